"""`python -m benchmarks.recovery --recordings DIR`: what the parser recovers from texts that were never run; its cost.

Knows: the labels in `labels/`, the effects of the tools named there, what is asked of the figures.
Must not know: how parsing works.

Labels were made by reading, before there was a parser that recovers such texts (labels/README.md). The list of words
that mark an example, and the odd spellings that are read in a declared protocol, were made with these texts at hand, so
the figures show what the parser does to them, not what it would do to others.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from benchmarks.grids import Check, Grid, show, what_is_asked
from benchmarks.samples import sample
from policyengine.backtest.stats import exact
from policyengine.identity import call_identity
from policyengine.messages import ModelResponse, ToolCall
from policyengine.parsing import Mode, Verdict, parse_response, settle_guess
from policyengine.parsing.forms import Form
from policyengine.recordings import bfcl, medagentbench, mint

LABELS = Path(__file__).parent / "labels"
SET = "agentdojo_malformed"
MODES: tuple[Mode, ...] = ("strict", "fenced", "lenient", "repair")
PROTOCOLS: dict[str, dict[str, Any]] = {
    "native, text fallback": {"protocol": "native", "text_fallback": True},
    "text": {"protocol": "text"},
}
SAMPLES: dict[str, tuple[Form, ...]] = {
    "mint": mint.FORMS,
    "bfcl_malformed": bfcl.FORMS,
    "medagentbench": medagentbench.FORMS,
}
"""Sets of which a sample of the malformed turns is labelled, with the protocol that their prompts declare."""
READS = ("get_", "search_", "read_", "list_")
"""How the names of tools begin that only read. All others count as `exec`: nobody declared them."""

MIN_RECOVERED = 0.95
MAX_RATIO = 5.0
MAX_WORST_S = 1.0
WORST = 256 * 1024
TURNS = 200


class Text(NamedTuple):
    """One recorded text: how often it occurs, which tools are registered (`None`: nobody knows), and which calls it
    holds (two readings)."""

    text: str
    count: int
    tools: tuple[str, ...] | None
    wanted: tuple[frozenset[str], ...]


class Found(NamedTuple):
    """What a parser made of one text: right calls, wrong ones, and its verdict."""

    text: Text
    right: int
    wrong: int
    verdict: Verdict


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 0, 1 if `--check` and a condition does not hold, 2 if the work cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recordings", type=Path, required=True, metavar="DIR", help="folder that holds the sets")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every condition at the end holds")
    parser.add_argument("--no-cost", action="store_true", help="leave out what depends on how busy the machine is")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/parsing.md")
    arguments = parser.parse_args(argv)
    try:
        texts = read_texts(arguments.recordings / SET)
        samples = {name: read_sample(arguments.recordings, name) for name in SAMPLES}
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    grids, checks = report(texts, samples)
    if not arguments.no_cost:
        cost, asked_of_cost = report_cost()
        grids.append(cost)
        checks += asked_of_cost
    grids.append(what_is_asked(checks))
    for grid in grids:
        show(grid, markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


def report(texts: Sequence[Text], samples: Mapping[str, Sequence[Text]]) -> tuple[list[Grid], list[Check]]:
    """Return the tables and what is asked of them."""
    found = {
        (protocol, mode): [look(text, mode, options) for text in texts]
        for protocol, options in PROTOCOLS.items()
        for mode in MODES
    }
    repaired = {protocol: found[protocol, "repair"] for protocol in PROTOCOLS}
    sampled = {
        (name, mode): [look(text, mode, {"protocol": "text", "forms": SAMPLES[name]}) for text in sample]
        for name, sample in samples.items()
        for mode in MODES
    }
    mended = {**repaired, **{name: sampled[name, "repair"] for name in samples}}
    checks = [check for protocol, items in mended.items() for check in _recovery_checks(protocol, items)]
    grids = [
        _parser_grid(f"Parser: {len(texts)} texts, {sum(text.count for text in texts)} messages", "protocol", found),
        _parser_grid("Declared text protocols: samples of malformed turns", "set", sampled),
        _effect_grid(mended),
        _why_grid(repaired["native, text fallback"]),
    ]
    return grids, checks


def report_cost() -> tuple[Grid, list[Check]]:
    """Return what clean responses cost, and what is asked of that and of the worst malformed text."""
    clean = [*clean_costs()]
    seconds, text = worst_cost()
    checks = [
        Check(
            f"a clean response of 2 KB costs at most {MAX_RATIO:g} times msgspec.json.decode, whatever it holds",
            f"{max(ratio for *_, ratio in clean):.2f} at most, {mean(ratio for *_, ratio in clean):.2f} on average",
            max(ratio for *_, ratio in clean) <= MAX_RATIO,
        ),
        Check(
            f"the worst malformed text of 256 KB costs less than {MAX_WORST_S:g} s",
            f"{seconds:.2f} s ({text})",
            seconds < MAX_WORST_S,
        ),
    ]
    columns = ("response", "#characters", "#parse_response, us", "#times msgspec.json.decode")
    rows = ((name, str(size), f"{cost:.1f}", f"{ratio:.2f}") for name, size, cost, ratio in clean)
    return Grid("Clean responses", columns, tuple(rows)), checks


# ---- recorded texts


def read_texts(folder: Path) -> list[Text]:
    """Return the texts of the set with their labels.

    Raises:
        ValueError: a text has no label.
    """
    labels = {item["sha256"]: item for item in _lines(LABELS / f"{SET}.jsonl")}
    second = dict(_second_readings())
    tools = json.loads((folder / "tools.json").read_text(encoding="utf-8"))
    texts = []
    for item in _lines(folder / "texts.jsonl"):
        digest = sha256(item["text"].encode()).hexdigest()[:16]
        if digest not in labels:
            raise ValueError(f"the text {digest} has no label")
        wanted = (frozenset({call["identity"], second.get(digest, "")}) for call in labels[digest]["calls"])
        texts.append(Text(item["text"], item["count"], tuple(tools[item["suite"]]), tuple(wanted)))
    return texts


def read_sample(recordings: Path, name: str) -> list[Text]:
    """Return the sample of a set with its labels; a text that was drawn twice comes once and counts twice.

    Raises:
        ValueError: a text has no label.
    """
    labels = {item["sha256"]: item for item in _lines(LABELS / f"{name}.jsonl")}
    turns = sample(recordings, name)
    drawn = Counter(turn.digest for turn in turns)
    texts = []
    for digest, text in {turn.digest: turn.text for turn in turns}.items():
        if digest not in labels:
            raise ValueError(f"the text {digest} of {name} has no label")
        wanted = tuple(frozenset({call["identity"]}) for call in labels[digest]["calls"])
        texts.append(Text(text, drawn[digest], None, wanted))
    return texts


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            yield json.loads(line)


def _second_readings() -> Iterator[tuple[str, str]]:
    """Yield the digest of each doubly escaped text with the identity of its call in the second reading."""
    readme = (LABELS / "README.md").read_text(encoding="utf-8")
    for match in re.finditer(r"^\| `(\w{16})` \| \w+ \| `\w{32}` \| `(\w{32})` \|$", readme, re.MULTILINE):
        yield match.group(1), match.group(2)


def look(text: Text, mode: Mode, options: dict[str, Any]) -> Found:
    """Return what the parser makes of a text."""
    verdict = parse_response(ModelResponse(text.text), tools=text.tools, mode=mode, **options)
    left = list(text.wanted)
    wrong = 0
    for identity in _acts(verdict, options.get("forms", ())) if verdict.usable else ():
        match = next((wanted for wanted in left if identity in wanted), None)
        if match is None:
            wrong += 1
        else:
            left.remove(match)
    return Found(text, len(text.wanted) - len(left), wrong, verdict)


def _acts(verdict: Verdict, forms: Sequence[Form]) -> list[str]:
    """Return the identities of what would run, a final answer in a declared form included."""
    answer = next((form for form in forms if form.answer and form.word), None)
    if verdict.final and answer is not None:
        return [call_identity(answer.name, {answer.argument: verdict.text})]
    return [call_identity(call.name, call.args) for call in verdict.calls]


def effect_of(tool: str) -> str:
    """Return the effect that this benchmark declares for a tool."""
    return "read" if tool.startswith(READS) else "exec"


def _acted_on(found: Found) -> str:
    if not found.right:
        return "not recovered"
    settled = settle_guess(found.verdict, effect_of)
    return "run" if settled.usable else "asked again"


def _recovery_checks(protocol: str, items: Sequence[Found]) -> Iterator[Check]:
    wanted, right = sum(len(item.text.wanted) for item in items), sum(item.right for item in items)
    wrong = sum(item.wrong for item in items)
    asked = f"{protocol}: at least {MIN_RECOVERED:.0%} of the labelled calls are recovered"
    if wanted:
        yield Check(asked, _share(right, wanted), right >= MIN_RECOVERED * wanted)
    yield Check(f"{protocol}: no call is recovered that is not labelled", str(wrong), wrong == 0)


# ---- cost


def clean_costs() -> Iterator[tuple[str, int, float, float]]:
    """Yield for clean responses: name, size, cost in microseconds, and how many times `msgspec.json.decode` that is."""
    decode = msgspec.json.decode
    for name, text, response, protocol in _clean_responses():
        parse = _parser_of(response, protocol)
        # In short turns, and the shortest of each: a machine that is busy slows both, and some turns are undisturbed.
        turns = [(_time(lambda text=text: decode(text)), _time(parse)) for _ in range(TURNS)]
        floor, cost = (min(column) for column in zip(*turns, strict=True))
        yield name, len(text), cost * 1e6, cost / floor


def _clean_responses() -> Iterator[tuple[str, str, ModelResponse, str]]:
    code = "def f(x):\n    if x > 0:\n        return {'x': x}\n" * 30
    prose = "The quick brown fox jumps over the lazy dog, and then it rests. " * 27
    small = {f"field_{number}": number for number in range(110)}
    for kind, arguments in (
        ("code", {"path": "src/f.py", "content": code, "mode": "w", "options": {"dry": False, "lines": [1, 2, 3]}}),
        ("prose", {"path": "notes/fox.md", "content": prose, "mode": "w"}),
        ("text with quotes", {"path": "notes/fox.md", "content": 'He said: "It rests", and "so: it does". ' * 36}),
        ("many small members", small),
    ):
        thoughts = ["I know what the file has to hold. " * 4, "Now I write it. " * 4]
        request = {"thoughts": thoughts, "headline": "Writing", "tool_name": "write_file", "tool_args": arguments}
        text = json.dumps(request)
        yield f"text, {kind}", text, ModelResponse(text), "text"
        text = json.dumps({**arguments, "reason": " ".join(thoughts)})
        call = ToolCall("call-1", "write_file", text)
        yield f"native, {kind}", text, ModelResponse(tool_calls=(call,)), "native"


def _parser_of(response: ModelResponse, protocol: str) -> Callable[[], Verdict]:
    tools = {"write_file": {"type": "object"}, "read_file": {"type": "object"}}
    return lambda: parse_response(response, protocol=protocol, tools=tools, mode="repair")


def _time(work: Callable[[], Any], times: int = 100) -> float:
    gc.disable()
    begun = perf_counter()
    for _ in range(times):
        work()
    spent = perf_counter() - begun
    gc.enable()
    return spent / times


def worst_cost() -> tuple[float, str]:
    """Return the longest time in seconds that any of many malformed texts takes in any mode, and the text's name."""
    worst, which = 0.0, ""
    tools = {"shell": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}}
    for name, text in malformed_texts():
        said = ModelResponse(text, finish_reason="stop")
        called = ModelResponse(tool_calls=(ToolCall("1", "shell", text),), finish_reason="stop")
        declared = [(said, {"protocol": "text", "forms": forms}) for forms in SAMPLES.values()]
        others = [(said, PROTOCOLS["text"]), (said, PROTOCOLS["native, text fallback"]), (called, {})]
        for response, options in (*others, *declared):
            for mode in ("lenient", "repair"):
                begun = perf_counter()
                parse_response(response, tools=tools, mode=mode, **options)
                spent = perf_counter() - begun
                if spent > worst:
                    worst, which = spent, name
    return worst, which


def malformed_texts() -> Iterator[tuple[str, str]]:
    """Yield malformed texts of 256 KB, each with a name: what a reader that is not linear would choke on."""
    call = '<tool_call>{"name":"shell","arguments":{"cmd":"x"}}'
    units = (
        *("{", "[", '"', "\\", "`", "~", "``` ", "```\n{", "<", "<think>", "</think>", "\n", "> ", "'", "\u201c", "a("),
        *('{"a":', "{'a':", "[1,", "1,", '\n{"a":1', '\n\n{"a":x', '{"tool_name":', '\n{"a":[1,2,3]}', '{\\"a\\":'),
        *("<tool_call>", '<tool_call>{"a', "<function=shell>", '<function=shell>{"', "<function=(", "<function= "),
        *("<function=shell><parameter=cmd>", '<invoke name="shell">', "[TOOL_CALLS]", "<|tool_call_begin|>"),
        *("shell(cmd=", "shell(cmd=1)\n", "[shell(cmd=1)]\nx\n", '[shell(cmd="', "</parameter> ", "<shell><cmd>"),
        *("Action: shell\n", "For example, ", f"{call}\n", f"x {call} y\n", f"{call}</tool_call>\n", f"{call}</think>"),
        *(f"```\n{call}\n```\n", 'x\n```json\n{"tool_name": "shell", "tool_args": {"cmd": "x"}}\n\n', "{'q': 1}\n\n"),
        *("<tool_call>x<|im_end|>", "<tool_calls></think>", "[TOOL_CALLS]</think>x", "<function=shell{'cmd': 'x'}"),
        *(f"For example {call}</tool_call>\n\n", "For example <tool_call>{x}</tool_call>\n\n", "example <function=(\n"),
        *('For example <tool_call>{"name":"shell","arguments":{/**/"cmd":"x"}}</tool_call>\n\n', '{"cmd": 0x1} '),
        *(
            "<execute>",
            "<execute>x</execute>",
            "</execute>",
            *("<execute>", "<execute>x</execute>", "</execute>", "< execute ", "GET x\n", "POST x\n", "FINISH("),
            "GET x\n",
            "POST x\n",
            'POST x\n{"a":',
            "FINISH(",
        ),
        *(
            "[f(a=1)]\n",
            "[f(a=",
            "[f(a=1)], ",
            "[f](",
            "[f a=",
            "[f]\n",
            "f(",
            "user\n",
            "Observation:\n",
            "<eos>",
            "< ",
            *("[f(a=1)]\n", "[f(a=", "[f(a=1)], ", "[f](", "[f a=", "[f]\n", "f(", "user\n", "Observation:\n"),
            *("<eos>", "< ", "[f(a=1)]<eos>", 'POST x\n{"a":'),
        ),
        *('x\n{"name": "shell", "arguments": {"cmd": "x"}}\n', '`{` {"name": 1}\n', "shell <shell> {", "\n`x` {'a'}"),
    )
    for unit in units:
        yield repr(unit), (unit * (WORST // len(unit) + 1))[:WORST]
    head = '{"tool_name": "shell", "tool_args": {"cmd": '
    calls = "[shell(cmd=1)]\n" * (WORST // 15)
    yield "Python calls amid prose", f"x\n{calls}y"
    yield "Python calls that end in the middle of one", f"x\n{calls}[shell(cmd="
    yield "numbers in an open array", head + "[" + "1," * (WORST // 2)
    yield "a Python list of numbers", head.replace('"', "'") + "[" + "1," * (WORST // 2 - 40) + "1]}}"
    yield "a Python list of strings", head.replace('"', "'") + "[" + "'a'," * (WORST // 4 - 40) + "'a']}}"
    yield "an open string", head + '"' + "x" * WORST
    yield "escapes", head.replace('"', "'") + "'" + "\\n" * (WORST // 2 - 40) + "'}}"
    yield "backslashes", head + '"' + "\\d" * (WORST // 2 - 40) + '"}}'
    yield "spaces in a tag", "<tool_call>shell" + " " * WORST + "x"
    yield "closing tags in a value", "<function=shell><parameter=cmd>" + "</parameter>" * (WORST // 12)


# ---- tables


def _parser_grid(title: str, what: str, found: dict[tuple[str, Mode], list[Found]]) -> Grid:
    rows = []
    for (protocol, mode), items in found.items():
        calls, messages = _sums(items, weighted=False), _sums(items, weighted=True)
        rows.append((protocol, mode, _share(*calls[:2]), str(calls[2]), _share(*messages[:2]), str(messages[2])))
    columns = (what, "mode", "#calls recovered", "#wrong calls", "#weighted by count", "#wrong, weighted")
    return Grid(title, columns, tuple(rows))


def _sums(items: Sequence[Found], *, weighted: bool) -> tuple[int, int, int]:
    weight = [item.text.count if weighted else 1 for item in items]
    right = sum(item.right * times for item, times in zip(items, weight, strict=True))
    wanted = sum(len(item.text.wanted) * times for item, times in zip(items, weight, strict=True))
    wrong = sum(item.wrong * times for item, times in zip(items, weight, strict=True))
    return right, wanted, wrong


def _effect_grid(repaired: dict[str, list[Found]]) -> Grid:
    rows = []
    for protocol, items in repaired.items():
        texts, messages, calls = Counter[str](), Counter[str](), Counter[str]()
        for item in items:
            if not item.text.wanted:
                continue
            outcome = _acted_on(item)
            texts[outcome] += 1
            messages[outcome] += item.text.count
            calls[outcome] += len(item.text.wanted)
        for outcome in ("run", "asked again", "not recovered"):
            rows.append((protocol, outcome, str(texts[outcome]), str(messages[outcome]), str(calls[outcome])))
    title = "Effect rule (mode repair): what becomes of the texts that hold calls"
    return Grid(title, ("protocol", "outcome", "#texts", "#messages", "#calls"), tuple(rows))


def _why_grid(items: Sequence[Found]) -> Grid:
    """Return the verdicts on the texts without a call."""
    counts = Counter((item.verdict.kind, item.verdict.reason) for item in items if not item.text.wanted)
    rows = ((kind, reason or "-", str(count)) for (kind, reason), count in sorted(counts.items()))
    return Grid(
        "Texts without a call (native, text fallback, mode repair)", ("verdict", "reason", "#texts"), tuple(rows)
    )


def _share(events: int, trials: int) -> str:
    if not trials:
        return "none to recover"
    low, high = exact(events, trials)
    return f"{events} of {trials}: {events / trials:.1%} ({100 * low:.1f} to {100 * high:.1f})"


if __name__ == "__main__":
    sys.exit(main())
