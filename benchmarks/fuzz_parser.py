"""`python -m benchmarks.fuzz_parser [--runs N] [--seed S]`: look for texts that break the parser.

Knows: what must hold for every text in every mode. Must not know: how parsing works.

Texts are made of pieces of all notations, so that most of them nearly are something. With `--atheris` (installed apart,
`pip install atheris`) texts are grown towards new code instead, until it is interrupted.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from time import perf_counter

from policyengine.messages import ModelResponse, ToolCall
from policyengine.parsing import WARNING_KINDS, Mode, Verdict, parse_response
from policyengine.parsing.strict import loads

TOOLS = {
    "search": {
        "type": "object",
        "properties": {"q": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["q"],
    },
    "status": {"type": "object", "properties": {}},
}
MODES: tuple[Mode, ...] = ("strict", "fenced", "lenient", "repair", "native")
PIECES = (
    *"{}[]()<>:,\"'\\/|`~=- \n\tae1.\x00\ufeff\u00a0\u201c\u201d\uff1a\ud83d",
    *("```\n", "```json\n", "~~~\n", "> ", "\n\n", "\n", "For example ", "You could ", "I will. ", "Action: search\n"),
    *("<tool_call>", "</tool_call>", "<tool_calls>", "<function=search>", "<function=search", "</function>"),
    *("<parameter=q>", "</parameter>", '<invoke name="search">', '<parameter name="q">', "</invoke>"),
    *("<\uff5cDSML\uff5cinvoke ", "</\uff5cDSML\uff5cinvoke>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call_begin|>"),
    *("<|call|>", "<think>", "</think>", "<arg_key>q</arg_key><arg_value>", "</arg_value>", "search", "search(q="),
    *("[search(q='x')", '{"tool_name": "search", "tool_args": {"q": "x"}}', '"arguments": {', '{"actions": ['),
    *('{"name": "search", "arguments": {"q": "x"}}', '{"q": "x"}', '"tool_name":', "{'q': 'x', 'n': None}"),
    *("True", "NaN", "1e999", "\\u00e9", "\\ud83d", '\\"', "\\n", "// x\n", "/* ", "functions.", "<|im_end|>"),
)


def check(text: str, finish_reason: str = "") -> None:
    """Put a text to the parser in every way.

    Raises:
        AssertionError: a verdict that must not be.
    """
    said = ModelResponse(text, finish_reason=finish_reason)
    called = ModelResponse(tool_calls=(ToolCall("1", "search", text),), finish_reason=finish_reason)
    for mode in MODES:
        for tools in (TOOLS, None):
            for protocol, fallback in (("text", False), ("native", False), ("native", True)):
                verdict = parse_response(said, protocol=protocol, tools=tools, mode=mode, text_fallback=fallback)
                _check(verdict, always_strict=True)
            _check(parse_response(called, tools=tools, mode=mode), always_strict=False)


def _check(verdict: Verdict, *, always_strict: bool) -> None:
    assert verdict.usable == (verdict.kind not in WARNING_KINDS)
    if not verdict.usable:
        return
    for call in verdict.calls:
        assert call.name.strip()
        assert isinstance(call.args, dict)
        if always_strict or verdict.repairs:
            assert loads(call.arguments) == call.args
            call.arguments.encode()


def generate(source: random.Random) -> str:
    """Return a text of random pieces."""
    return "".join(source.choices(PIECES, k=source.randint(0, 25)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz_parser", description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--atheris", action="store_true", help="grow texts towards new code, until interrupted")
    options = parser.parse_args(arguments)
    if options.atheris:
        return _with_atheris()
    source = random.Random(options.seed)
    slowest = 0.0
    for number in range(options.runs):
        text, reason = generate(source), source.choice(("", "stop", "tool_calls", "length"))
        begun = perf_counter()
        try:
            check(text, reason)
        except Exception as error:  # noqa: BLE001 - whatever it is, the text that caused it is what we look for
            print(f"run {number}: {type(error).__name__}: {error}\n  text {text!r}\n  finish reason {reason!r}")
            return 1
        slowest = max(slowest, perf_counter() - begun)
    print(f"{options.runs} texts, no fault; slowest {slowest * 1000:.1f} ms for all modes together")
    return 0


def _with_atheris() -> int:
    try:
        import atheris
    except ImportError:
        print("atheris is not installed", file=sys.stderr)
        return 2

    def one(data: bytes) -> None:
        provider = atheris.FuzzedDataProvider(data)
        count = provider.ConsumeIntInRange(0, 12)
        pieces = [PIECES[provider.ConsumeIntInRange(0, len(PIECES) - 1)] for _ in range(count)]
        check("".join(pieces) + provider.ConsumeUnicode(200), provider.PickValueInList(["", "stop"]))

    atheris.instrument_all()
    atheris.Setup(sys.argv[:1], one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
