"""What must hold for every text in every mode of the parser.

Knows: texts that nearly are calls, calls whose structure is damaged. Must not know: how parsing works.

Half of the cases are random pieces of all notations. The others are a call that is known, with damage to its structure
only: whatever becomes of it, it is refused, or the strings of the call are exactly those that were written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.fuzz.source import Source, happens, pick, some, strings
from policyengine.messages import ModelResponse, ToolCall
from policyengine.parsing import WARNING_KINDS, Form, Mode, Verdict, parse_chunks, parse_response
from policyengine.parsing.strict import dumps, loads

TOOLS = {
    "search": {
        "type": "object",
        "properties": {"q": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["q"],
    },
    "status": {"type": "object", "properties": {}},
}
MODES: tuple[Mode, ...] = ("strict", "fenced", "lenient", "repair", "native")
ANSWER = "response"
FORMS = (
    Form("tag", "search", "q"),
    Form("line", "GET", "url", "body"),
    Form("call", "status", answer=True),
    Form("python"),
    Form("prose", answer=True),
)
PIECES = (
    *"{}[]()<>:,\"'\\/|`~=- \n\tae1.\x00\ufeff\u00a0\u201c\u201d\uff1a\ud83d",
    *("```\n", "```json\n", "~~~\n", "> ", "\n\n", "\n", "For example ", "You could ", "I will. ", "Action: search\n"),
    *("<tool_call>", "</tool_call>", "<tool_calls>", "<function=search>", "<function=search", "</function>"),
    *("<parameter=q>", "</parameter>", '<invoke name="search">', '<parameter name="q">', "</invoke>"),
    *("<\uff5cDSML\uff5cinvoke ", "</\uff5cDSML\uff5cinvoke>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call_begin|>"),
    *("<|call|>", "<think>", "</think>", "<arg_key>q</arg_key><arg_value>", "</arg_value>", "search", "search(q="),
    *("[search(q='x')", '{"tool_name": "search", "tool_args": {"q": "x"}}', '"arguments": {', '{"actions": ['),
    *('{"name": "search", "arguments": {"q": "x"}}', '{"q": "x"}', '"tool_name":', "{'q': 'x', 'n': None}"),
    *("<search>", "</search>", "GET x\n", "status(", "[search](", "user\n", "<eos>"),
    *("True", "NaN", "1e999", "\\u00e9", "\\ud83d", '\\"', "\\n", "// x\n", "/* ", "functions.", "<|im_end|>"),
)
BODIES = tuple(piece for piece in PIECES if piece != "\ud83d")
KEYS = ("q", "n", "a b", "file", "q2", "", "\u00e9", "x'y", 'x"y', "x\\y")
SCALARS = (0, 1, -7, 0.5, True, False, None)
WRAPPED = (
    ("", ""),
    ('{"tool_name": "search", "tool_args": ', "}"),
    ('```json\n{"tool_name": "search", "tool_args": ', "}\n```"),
    ('<tool_call>{"name": "search", "arguments": ', "}</tool_call>"),
    ("<function=search>", "</function>"),
    ('<invoke name="search">', "</invoke>"),
    ("[TOOL_CALLS]search[ARGS]", ""),
    ("<|tool_call_begin|>search\n", "<|tool_call_end|>"),
)
"""What stands around arguments. Nothing at all means that they come in a structured call."""


class Case(NamedTuple):
    """A text, how it comes, and for damaged calls the arguments that were meant.

    `exact` says that the damage can change no value, `cut` that the end of the text is missing, `python` that the call
    is code, which is a call only where its name is known.
    """

    text: str
    reason: str
    cuts: tuple[int, ...]
    meant: dict[str, Any] | None = None
    native: bool = False
    exact: bool = False
    cut: bool = False
    python: bool = False


def generate(source: Source) -> Case:
    """Return a case."""
    cuts = tuple(source.number(1, 9) for _ in range(source.number(0, 6)))
    if happens(source, 2):
        return _damaged(source, cuts)
    text = "".join(some(source, PIECES, 25)) + (source.text(40) if happens(source, 4) else "")
    return Case(text, pick(source, ("", "stop", "tool_calls", "length")), cuts)


def check(case: Case) -> None:
    """Put a case to the parser in every way.

    Raises:
        AssertionError: a verdict that must not be.
    """
    called = ModelResponse(tool_calls=(ToolCall("1", "search", case.text),), finish_reason=case.reason)
    for mode in MODES:
        for tools in (TOOLS, None):
            for options in (
                {"protocol": "text"},
                {"protocol": "native"},
                {"protocol": "native", "text_fallback": True},
                {"protocol": "text", "forms": FORMS},
            ):
                said = ModelResponse(case.text, finish_reason=case.reason)
                verdict = parse_response(said, tools=tools, mode=mode, **options)
                _check(verdict, tools, always_strict=True)
                if not case.native and "forms" not in options and (tools or not case.python):
                    _check_meant(case, verdict)
                if mode in ("strict", "repair"):
                    _check_chunks(case, verdict, mode, tools, options)
            verdict = parse_response(called, tools=tools, mode=mode)
            _check(verdict, tools, always_strict=False)
            if case.native:
                _check_meant(case, verdict)


def _check(verdict: Verdict, tools: Any, *, always_strict: bool) -> None:
    assert verdict.usable == (verdict.kind not in WARNING_KINDS)
    if not verdict.usable:
        return
    for call in verdict.calls:
        assert call.name.strip()
        assert isinstance(call.args, dict)
        if always_strict or verdict.repairs:
            assert loads(call.arguments) == call.args
            call.arguments.encode()
            _check_again(call, tools)


def _check_again(call: ToolCall, tools: Any) -> None:
    """A call that was read, written anew, is itself under the strictest reading."""
    sent = ModelResponse(tool_calls=(ToolCall("1", call.name, dumps(call.args)),))
    said = ModelResponse(dumps({"tool_name": call.name, "tool_args": call.args}))
    for response, protocol in ((sent, "native"), (said, "text")):
        if protocol == "text" and (call.name == ANSWER or ":" in call.name or "method" in call.args):
            continue  # the one-object protocol has a meaning of its own for these
        again = parse_response(response, protocol=protocol, tools=tools, mode="strict")
        assert again.usable, again
        assert [(one.name, one.args) for one in again.calls] == [(call.name, call.args)], again
        assert not again.repairs, again


def _check_chunks(case: Case, whole: Verdict, mode: Mode, tools: Any, options: dict[str, Any]) -> None:
    options = {"finish_reason": case.reason, "tools": tools, "mode": mode, **options}
    assert parse_chunks(_chunks(case), **options) == whole
    assert parse_chunks(iter(case.text), **options) == whole


def _chunks(case: Case) -> Iterator[str]:
    rest = case.text
    for size in case.cuts:
        yield rest[:size]
        rest = rest[size:]
    yield rest


def _check_meant(case: Case, verdict: Verdict) -> None:
    if case.meant is None or not verdict.usable or not verdict.calls:
        return
    assert [call.name for call in verdict.calls] == ["search"], verdict
    found, meant = strings(verdict.calls[0].args), strings(case.meant)
    assert (meant[: len(found)] if case.cut else meant) == found, (verdict, found, meant)
    if case.exact:
        assert verdict.calls[0].args == case.meant, verdict


# ---- damaged calls


def _damaged(source: Source, cuts: tuple[int, ...]) -> Case:
    meant = {pick(source, KEYS): _value(source, 2) for _ in range(source.number(0, 4))}
    reason = pick(source, ("", "stop", "tool_calls"))
    if happens(source, 8):
        return _in_tags(source, reason, cuts)
    before, after = pick(source, WRAPPED)
    structural = not before and happens(source, 2)
    text = "".join(_written(source, meant, closers=structural))
    if happens(source, 12):
        text = dumps(dumps(meant))[1:-1]  # in other quotes nobody could tell how often a string was escaped
    cut = happens(source, 8)
    text = f"{before}{text}{after}"
    if cut:
        text = text[: source.number(0, len(text))]
    return Case(text, reason, cuts, meant, not before, not structural and not cut, cut)


def _in_tags(source: Source, reason: str, cuts: tuple[int, ...]) -> Case:
    """Return a call whose argument is raw text in tags, or a string of Python."""
    body = "".join(some(source, BODIES, 8))
    if happens(source, 3):
        return Case(f"[search(q={body!r})]", reason, cuts, {"q": body}, exact=True, python=True)
    if re.search("</(?!think)|<arg|<param", body):
        body = '</think>{"tool_name": "search", "tool_args": {"q": "x"}}'
    head, tail = pick(
        source,
        (
            ("<function=search>\n<parameter=q>\n", "\n</parameter>\n</function>"),
            ('<invoke name="search"><parameter name="q">', "</parameter></invoke>"),
            ("<tool_call>search<arg_key>q</arg_key><arg_value>", "</arg_value></tool_call>"),
        ),
    )
    text = f"{head}{body}{tail}"
    if happens(source, 4):
        return Case(text[: source.number(0, len(text))], reason, cuts, {"q": body}, cut=True)
    return Case(text, reason, cuts, {"q": body}, exact=True)


def _value(source: Source, depth: int) -> Any:
    kind = source.number(0, 5 if depth else 3)
    if kind <= 2:
        return "".join(some(source, BODIES, 6))
    if kind == 3:
        return pick(source, SCALARS)
    if kind == 4:
        return [_value(source, depth - 1) for _ in range(source.number(0, 3))]
    return {pick(source, KEYS): _value(source, depth - 1) for _ in range(source.number(0, 3))}


def _written(source: Source, value: Any, *, closers: bool) -> Iterator[str]:
    """Yield a value as JSON whose structure is damaged here and there."""
    if isinstance(value, str):
        yield _string(source, value)
    elif isinstance(value, dict | list):
        yield "{" if isinstance(value, dict) else "["
        yield from _members(source, value, closers=closers)
        close = "}" if isinstance(value, dict) else "]"
        yield pick(source, ("", close * 2, "]", "}")) if closers and happens(source, 6) else close
    else:
        yield repr(value) if happens(source, 6) else json.dumps(value)


def _members(source: Source, value: Any, *, closers: bool) -> Iterator[str]:
    members = list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
    for number, (key, item) in enumerate(members, 1):
        yield _space(source)
        if isinstance(value, dict):
            plain = key.isidentifier() and key.isascii()
            yield key if plain and happens(source, 8) else _string(source, key)
            yield pick(source, (":", ":", ":", ":", " : ", "\uff1a"))
        yield from _written(source, item, closers=closers)
        if number < len(members):
            yield pick(source, (",", " ", "\uff0c", ", ")) if happens(source, 6) else ", "
        elif happens(source, 10):
            yield ","


def _space(source: Source) -> str:
    return pick(source, (" ", "\n", "\\n", "\u00a0", "// x\n", "/* x */", "\ufeff")) if happens(source, 10) else ""


def _string(source: Source, value: str) -> str:
    """Return a string in some quotes; what it holds is written so that it can be read in one way."""
    written = json.dumps(value, ensure_ascii=happens(source, 2))[1:-1]
    if happens(source, 8):
        written = written.replace("\\n", "\n").replace("\\t", "\t") if "\\\\" not in written else written
    quotes = source.number(0, 20)
    if quotes == 20:
        return "'" + written.replace("'", "\\'").replace('\\"', '"' if "\\\\" not in written else '\\"') + "'"
    if quotes == 19 and not re.search("[\u201c\u201d]", written):
        return f"\u201c{written}\u201d"
    return f'"{written}"'
