"""`python -m benchmarks.harness_faults --recordings DIR`: faults of a real harness, named by history and error alone.

Knows: how the harness of the set wrote its messages, and what each kind of final error says, by reading it.
Must not know: how histories are checked or errors classified.

The harness (trae-agent on ISO-Bench) left calls unanswered, sent errors without content, and ended in arguments that
were cut off. For each run the history of its last request is built anew: from the trajectory where it is there, else
from the derived line, with hashes for texts. `check_history` sees that history, `classify_provider_error` the error
that came back; they know nothing of each other, and have to name the same fault.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.grids import Check, Grid, show, what_is_asked
from policyengine import ModelResponse, ProviderError, ToolCall
from policyengine.history.check import HistoryProblem, check_history
from policyengine.history.repair import Repaired, repair_history
from policyengine.parsing import parse_response
from policyengine.providers.errors import classify_provider_error

SET = "trae_iso_bench"
MISSING, EMPTY, CUT = "missing_result", "empty_error_result", "arguments_not_json"


class Kind(NamedTuple):
    """A kind of final error, told by words that only it has; its class by hand, and the fault of a history it names."""

    about: str
    words: str
    code: str
    fault: str = ""


KINDS = (
    Kind("a call without its output", "No tool output found for function call", "invalid_history", MISSING),
    Kind("calls without their results", "ids were found without `tool_result`", "invalid_history", MISSING),
    Kind("an error result without content", "content cannot be empty if `is_error`", "invalid_history", EMPTY),
    Kind("a result without its call", "messages with role 'tool' must be a response", "invalid_history"),
    Kind("arguments that end inside a string", "Unterminated string starting at", "malformed_output"),
    Kind("an expired login", "Error when retrieving token from sso", "authentication"),
    Kind("a login that does not exist", "Error loading SSO Token", "authentication"),
    Kind("a wrong key", "Incorrect API key provided", "authentication"),
    Kind("an empty account", "You exceeded your current quota", "quota_exhausted"),
    Kind("no connection", "Connection error", "connection"),
    Kind("status 400 and nothing else", "Client error '400 Bad Request'", "invalid_request"),
    Kind("a tool that is offered without its type", "Missing required parameter: 'tools[", "invalid_request"),
)
UNREAD = Kind("not read by anybody", "", "?")
ORPHAN, TRUNCATED = KINDS[3], KINDS[4]

ASKED = {"calls without a result": 128, "error results without content": 68, "truncated arguments": 11}
"""How many runs of the derived file end in each fault of the harness."""
RAW = {MISSING: 3, EMPTY: 3, CUT: 3}
"""The same of the raw runs."""


class Turn(NamedTuple):
    """What the model said and called, the results (id, content, whether an error), and what the user said then."""

    text: str
    calls: tuple[tuple[str, str, dict[str, Any]], ...]
    results: tuple[tuple[str, str, bool], ...]
    said: tuple[str, ...] = ()


class Run(NamedTuple):
    """One run: its first messages, its turns, and the error of the request after them, if that failed."""

    id: str
    shape: str
    first: tuple[str, ...]
    turns: tuple[Turn, ...]
    error: str


class Looked(NamedTuple):
    """What is found in one run. `alarms` are problems of the last history that the provider accepted."""

    run: Run
    kind: Kind | None
    error: ProviderError | None
    messages: list[dict[str, Any]]
    problems: tuple[HistoryProblem, ...]
    repaired: Repaired
    alarms: tuple[HistoryProblem, ...]
    last: int

    @property
    def named(self) -> tuple[HistoryProblem, ...]:
        """The problems of the kind that the error names."""
        return tuple(item for item in self.problems if self.kind and item.code == self.kind.fault)

    @property
    def agrees(self) -> bool:
        """Whether the last turn, and nothing else, has the fault that the error names; once, and for the same id."""
        if self.error is None or len(self.problems) != 1 or len(self.named) != 1:
            return False
        id = self.named[0].id
        return self.named[0].index >= self.last and (not self.error.ids or not _is_real(id) or self.error.ids == (id,))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 0, 1 if `--check` and a condition does not hold, 2 if the work cannot be done."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.harness_faults", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--recordings", type=Path, required=True, metavar="DIR", help="folder that holds the sets")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every condition at the end holds")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/evidence-histories.md")
    arguments = parser.parse_args(argv)
    folder = arguments.recordings / SET
    try:
        raw = [*read_raw(folder)]
        derived = [*read_derived(folder)]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    grids, checks = report([look(run) for run in raw], [look(run) for run in derived])
    for grid in grids:
        show(grid, markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


# ---- runs


def read_raw(folder: Path) -> Iterator[Run]:
    """Yield the runs whose trajectory is there."""
    with (folder / "raw_selection.csv").open(encoding="utf-8", newline="") as file:
        for id, _, name in csv.reader(file):
            yield _of_trajectory(id, json.loads((folder / name).read_text(encoding="utf-8")))


def read_derived(folder: Path) -> Iterator[Run]:
    """Yield the runs of the derived file."""
    for line in (folder / "compact.jsonl").read_text(encoding="utf-8").splitlines():
        yield _of_line(json.loads(line))


def _of_trajectory(id: str, run: Mapping[str, Any]) -> Run:
    """Return a run of a trajectory. Messages of a step are those sent after its response, if anything was."""
    steps = run["agent_steps"]
    sent = run["llm_interactions"][0]["input_messages"] if run["llm_interactions"] else steps[0]["llm_messages"]
    turns = []
    for number, step in enumerate(steps):
        response = step["llm_response"]
        if response is None:
            continue
        after = step["llm_messages"] if number + 1 < len(steps) else []
        calls = tuple((call["call_id"], call["name"], call["arguments"]) for call in response["tool_calls"] or ())
        results = [message["tool_result"] for message in after if message.get("tool_result")]
        said = tuple(message["content"] for message in after if not message.get("tool_result"))
        turns.append(Turn(response["content"], calls, tuple(map(_of_result, results)), said))
    shape = "openai_responses" if run["provider"] == "openai" else "anthropic"
    first = tuple(message["content"] for message in sent if message["role"] == "user")
    return Run(id, shape, first, tuple(turns), steps[-1]["error"] or "")


def _of_result(result: Mapping[str, Any]) -> tuple[str, str, bool]:
    parts = (result.get("result"), result.get("error"))
    return result["call_id"], "\n".join(filter(None, parts)).strip(), not result["success"]


def _of_line(run: Mapping[str, Any]) -> Run:
    """Return a run of a derived line: ids are made up, hashes stand for texts, a remark for what the user said."""
    lines = run["turns"]
    error = str(lines[-1].get("error") or "") if lines else ""
    turns = []
    for number, line in enumerate(lines[:-1] if error else lines):
        size, digest = line["text"][:2]
        calls = tuple((f"{number}.{place}", call[0], {"hash": call[1]}) for place, call in enumerate(line["calls"]))
        results = tuple(
            (f"{number}.{place}", result[1] if result[0] else "", bool(result[2]))
            for place, result in enumerate(line["results"])
        )
        said = () if results or number + 1 == len(lines) else ("go on",)
        turns.append(Turn(digest if size else "", calls, results, said))
    shape = "anthropic" if "claude" in run["group"] else "openai_responses"
    return Run(run["id"], "openai_chat" if ORPHAN.words in error else shape, ("task",), tuple(turns), error)


def _is_real(id: str) -> bool:
    return id.startswith(("call_", "toolu_"))


# ---- histories


def written(run: Run, turns: Sequence[Turn]) -> Iterator[dict[str, Any]]:
    """Yield the messages that the harness sends: each block and each result in one of its own."""
    for text in run.first:
        yield {"role": "user", "content": text}
    for turn in turns:
        yield from _said_by_model(turn, run.shape)
        for id, content, failed in turn.results:
            yield _result(id, content, failed, run.shape)
        for text in turn.said:
            yield {"role": "user", "content": text}


def _said_by_model(turn: Turn, shape: str) -> Iterator[dict[str, Any]]:
    if shape == "openai_chat" and (turn.text or turn.calls):
        calls = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for id, name, arguments in turn.calls
        ]
        yield {"role": "assistant", "content": turn.text or None, **({"tool_calls": calls} if calls else {})}
        return
    if turn.text:
        yield {"role": "assistant", "content": turn.text}
    for id, name, arguments in turn.calls:
        if shape == "anthropic":
            block = {"type": "tool_use", "id": id, "name": name, "input": arguments}
            yield {"role": "assistant", "content": [block]}
        else:
            yield {"type": "function_call", "call_id": id, "name": name, "arguments": json.dumps(arguments)}


def _result(id: str, content: str, failed: bool, shape: str) -> dict[str, Any]:
    if shape == "openai_chat":
        return {"role": "tool", "tool_call_id": id, "content": content}
    if shape == "openai_responses":
        return {"type": "function_call_output", "call_id": id, "output": content}
    block = {"type": "tool_result", "tool_use_id": id, "content": content, "is_error": failed}
    return {"role": "user", "content": [block]}


def joined_index(messages: Sequence[Mapping[str, Any]], index: int) -> int:
    """Return where a message stands once neighbours of one role are put together, as the provider does."""
    roles = [message["role"] for message in messages[: index + 1]]
    return sum(one != other for one, other in pairwise(roles))


def look(run: Run) -> Looked:
    """Return what is found in a run."""
    messages = [*written(run, run.turns)]
    accepted = [*written(run, run.turns[:-1])] if run.turns else []
    return Looked(
        run,
        next((kind for kind in KINDS if kind.words in run.error), UNREAD) if run.error else None,
        classify_provider_error(run.error) if run.error else None,
        messages,
        check_history(messages, shape=run.shape),
        repair_history(messages, shape=run.shape),
        check_history(accepted, shape=run.shape),
        len(accepted),
    )


def place_as_told(item: Looked) -> int | None:
    """Return the index that the provider gives to the fault that was found.

    It says where a missing result should stand, once neighbours of one role are put together, and counts the messages
    as they were sent where a result is wrong by itself.
    """
    if item.run.shape != "anthropic" or len(item.named) != 1:
        return None
    index = item.named[0].index
    return index if item.named[0].code == EMPTY else joined_index(item.messages, index) + 1


def with_cut_call(item: Looked) -> list[dict[str, Any]]:
    """Return the history as it had been if the harness had kept the response it could not read.

    The response itself is not recorded. The call here fails with the very text of the error.
    """
    return [*item.messages, {"type": "function_call", "call_id": "cut", "name": "edit", "arguments": cut_text(item)}]


def cut_text(item: Looked) -> str:
    """Return arguments that end inside a string which begins where the error says."""
    begun = int(item.run.error.rpartition("(char ")[2].rstrip(")"))
    return '{"a":'.ljust(begun) + '"cut'


# ---- report


def report(raw: Sequence[Looked], derived: Sequence[Looked]) -> tuple[list[Grid], list[Check]]:
    """Return the tables and what is asked of them."""
    checks = [*_raw_checks(raw, derived), *_derived_checks(derived)]
    grids = [
        _raw_grid(raw),
        _truncated_grid(raw),
        _kind_grid(derived),
        _missing_grid(derived),
        _empty_grid(derived),
        what_is_asked(checks, "Harness faults: what is asked"),
    ]
    return grids, checks


def _raw_grid(raw: Sequence[Looked]) -> Grid:
    rows = []
    for item in raw:
        ids = "-"
        if item.error and item.error.ids:
            ids = "yes" if item.error.ids == tuple(problem.id for problem in item.named) else "NO"
        place = "-"
        if item.error and item.error.message_index is not None:
            told = place_as_told(item)
            place = f"{item.error.message_index}, {'same' if told == item.error.message_index else f'NOT {told}'}"
        problems = ", ".join(problem.code for problem in item.problems) or "none"
        row = (
            item.run.id.rpartition("/")[2],
            item.run.shape,
            str(len(item.messages)),
            item.error.code if item.error else "-",
        )
        rows.append((*row, problems, ids, place, ", ".join(_repairs(item)) or "-", _clean(item)))
    columns = ("run", "shape", "#messages", "error", "problems", "same id", "place", "repairs", "clean then")
    return Grid("Raw runs: the last history and the error that came back", columns, tuple(rows))


def _repairs(item: Looked) -> list[str]:
    return sorted({repair.code for repair in item.repaired.repairs})


def _clean(item: Looked) -> str:
    return "no" if check_history(item.repaired.messages, shape=item.run.shape) else "yes"


def _truncated_grid(raw: Sequence[Looked]) -> Grid:
    rows = []
    for item in raw:
        if item.kind is not TRUNCATED or item.error is None:
            continue
        history = with_cut_call(item)
        repaired = repair_history(history, shape=item.run.shape)
        verdict = parse_response(ModelResponse(tool_calls=(ToolCall("cut", "edit", cut_text(item)),)), tools=("edit",))
        codes = ", ".join(problem.code for problem in check_history(history, shape=item.run.shape))
        repairs = ", ".join(repair.code for repair in repaired.repairs)
        clean = "no" if check_history(repaired.messages, shape=item.run.shape) else "yes"
        rows.append((item.run.id.rpartition("/")[2], item.error.code, verdict.kind, codes, repairs, clean))
    columns = ("run", "error", "verdict on the response", "problems", "repairs", "clean then")
    return Grid("Raw runs with truncated arguments, had the harness kept the response", columns, tuple(rows))


def _kind_grid(derived: Sequence[Looked]) -> Grid:
    rows = []
    for kind in (*KINDS, UNREAD):
        mine = [item for item in derived if item.kind is kind]
        if not mine:
            continue
        given = Counter(item.error.code for item in mine if item.error)
        found = Counter(problem.code for item in mine for problem in item.problems if problem.index >= item.last)
        codes = ", ".join(f"{code} {count}" for code, count in sorted(given.items()))
        faults = ", ".join(f"{code} {count}" for code, count in sorted(found.items())) or "none"
        rows.append((kind.about, kind.code, codes, str(len(mine)), faults))
    columns = ("final error", "class by hand", "class", "#runs", "problems in their last turns")
    return Grid(f"Final errors of {len(derived)} derived runs", columns, tuple(rows))


def _missing_grid(derived: Sequence[Looked]) -> Grid:
    """Return the calls without a result by what came after: counted in the file, and found by `check_history`."""
    counted, found = Counter[str](), Counter[str]()
    for item in derived:
        for number, turn in enumerate(item.run.turns):
            counted[_after(item, number)] += len(turn.calls) - len(turn.results)
        for problem in item.problems:
            if problem.code == MISSING:
                found[_after(item, len(item.run.turns) - (problem.index >= item.last))] += 1
    rows = [(after, str(counted[after]), str(found[after])) for after in AFTER]
    rows.append(("all", str(counted.total()), str(found.total())))
    return Grid("Derived runs: calls without a result", ("what came after", "#in the file", f"#{MISSING}"), tuple(rows))


AFTER = (
    "the request is refused, the error names the call",
    "the request is refused, the error says nothing",
    "the model speaks again",
    "the run ends, nothing is sent",
)


def _after(item: Looked, number: int) -> str:
    """Return what came after a turn; all turns but the last count as one."""
    if number != len(item.run.turns) - 1:
        return AFTER[2]
    if not item.run.error:
        return AFTER[3]
    return AFTER[0] if item.kind and item.kind.fault == MISSING else AFTER[1]


def _empty_grid(derived: Sequence[Looked]) -> Grid:
    counted, found = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for item in derived:
        for number, turn in enumerate(item.run.turns):
            last = number + 1 == len(item.run.turns)
            after = "refused" if last and item.kind and item.kind.fault == EMPTY else "accepted"
            counted[item.run.shape, after] += sum(failed and not content for _, content, failed in turn.results)
        for problem in item.problems:
            if problem.code == EMPTY:
                refused = problem.index >= item.last and item.kind and item.kind.fault == EMPTY
                found[item.run.shape, "refused" if refused else "accepted"] += 1
    rows = tuple((*key, str(count), str(found[key])) for key, count in sorted(counted.items()) if count or found[key])
    return Grid("Derived runs: error results without content", ("shape", "request", "#in the file", f"#{EMPTY}"), rows)


# ---- what is asked


def _raw_checks(raw: Sequence[Looked], derived: Sequence[Looked]) -> Iterator[Check]:
    yield _all("raw: every final error is of the class that a person says", [*map(_classed, _failed(raw))])
    faulty = [item for item in raw if item.kind and item.kind.fault]
    asked = "raw: check_history names the fault that the error names, for the same id, and nothing else"
    yield _all(asked, [item.agrees for item in faulty], RAW[MISSING] + RAW[EMPTY])
    placed = [item for item in faulty if item.error and item.error.message_index is not None]
    same = [place_as_told(item) == item.error.message_index for item in placed if item.error]
    yield _all("raw: and in the message that the error names", same, RAW[EMPTY])
    cut = [item for item in raw if item.kind is TRUNCATED]
    yield _all("raw: truncated arguments are named", [*map(_names_cut, cut)], RAW[CUT])
    others = [item for item in raw if item.kind and not item.kind.fault]
    yield _all("raw: where the error names no fault of the history, none is found", [not i.problems for i in others])
    yield _all("raw: a repaired history is clean", [_clean(item) == "yes" for item in raw])
    known = {item.run.id: item for item in derived}
    pairs = [(item, known[item.run.id]) for item in raw if item.run.id in known]
    same = [
        [(p.code, p.index) for p in one.problems] == [(p.code, p.index) for p in two.problems] for one, two in pairs
    ]
    yield _all("raw and derived: the same problems in the same messages", same, len(raw))


def _names_cut(item: Looked) -> bool:
    """Return whether the built arguments fail as the recorded ones did, and the check says so of that call alone."""
    try:
        json.loads(cut_text(item))
    except ValueError as error:
        codes = [p.code for p in check_history(with_cut_call(item), shape=item.run.shape) if p.id == "cut"]
        return str(error) == item.run.error and codes == [CUT, MISSING] and not item.problems
    return False


def _derived_checks(derived: Sequence[Looked]) -> Iterator[Check]:
    ends = {
        "calls without a result": [item for item in derived if item.kind and item.kind.fault == MISSING],
        "error results without content": [item for item in derived if item.kind and item.kind.fault == EMPTY],
        "truncated arguments": [item for item in derived if item.kind is TRUNCATED],
    }
    for fault, items in ends.items():
        asked = f"derived: runs that end in {fault}: {ASKED[fault]}"
        yield Check(asked, str(len(items)), len(items) == ASKED[fault])
    yield _all("derived: every final error is of the class that a person says", [*map(_classed, _failed(derived))])
    missing, empty, _ = ends.values()
    last = "derived: in each of them check_history names {}, in the last turn and once"
    yield _all(last.format(MISSING), [*map(_once, missing)], ASKED["calls without a result"])
    yield _all(last.format(EMPTY), [*map(_once, empty)], ASKED["error results without content"])
    counted = sum(len(turn.calls) - len(turn.results) for item in derived for turn in item.run.turns)
    found = sum(problem.code == MISSING for item in derived for problem in item.problems)
    asked = f"derived: as many {MISSING} as calls without a result in the file"
    yield Check(asked, f"{found} of {counted}", found == counted)
    told = [item.error.message_index == place_as_told(item) for item in missing if item.error and _placed(item)]
    yield _all(f"derived: {MISSING} is in the message that the error names", told)
    told = [item.error.message_index == place_as_told(item) for item in empty if item.error]
    asked = f"derived: {EMPTY} is in the message that the error names, in nine of ten runs"
    yield Check(asked, f"{sum(told)} of {len(told)}", bool(told) and sum(told) >= 0.9 * len(told))
    alarmed = [item for item in derived if item.alarms]
    asked = "derived: histories that the provider accepted and check_history does not: at most 4"
    alarms = Counter(problem.code for item in alarmed for problem in item.alarms)
    listed = ", ".join(f"{code} {count}" for code, count in sorted(alarms.items())) or "none"
    accepted = sum(bool(item.run.turns) for item in derived)
    yield Check(asked, f"{len(alarmed)} of {accepted} ({listed})", len(alarmed) <= 4)
    yield _all("derived: a repaired history is clean", [_clean(item) == "yes" for item in derived])


def _failed(items: Sequence[Looked]) -> list[Looked]:
    return [item for item in items if item.kind]


def _classed(item: Looked) -> bool:
    return bool(item.kind and item.error and item.kind.code == item.error.code)


def _once(item: Looked) -> bool:
    """Return whether the fault stands once in the last turn, and the error names as many ids."""
    ids = item.error.ids if item.error else ()
    in_last = [problem for problem in item.named if problem.index >= item.last]
    return len(in_last) == 1 and len(ids) == (item.kind is not None and item.kind.fault == MISSING)


def _placed(item: Looked) -> bool:
    return item.error is not None and item.error.message_index is not None


def _all(asked: str, held: Sequence[bool], wanted: int | None = None) -> Check:
    number = len(held) if wanted is None else wanted
    return Check(asked, f"{sum(held)} of {number}", len(held) == number and all(held) and number > 0)


if __name__ == "__main__":
    sys.exit(main())
