"""Model output -> verdict.

Knows: the order in which a response is judged, protocols, modes.
Must not know: guards, history, what is done about a verdict.

A verdict depends on the whole response only, never on how it arrived in pieces. Truncation outranks everything.
`docs/parsing.md` has the tables of modes, notations and repairs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from policyengine.messages import ModelResponse, ToolCall
from policyengine.parsing.forms import Form, read_forms
from policyengine.parsing.found import Terms
from policyengine.parsing.names import Tools
from policyengine.parsing.native import read_calls
from policyengine.parsing.repair import Allowance
from policyengine.parsing.strict import StrictError, encode, loads
from policyengine.parsing.text import (
    ANSWER_TOOL,
    AROUND_ANSWER,
    MODES,
    Mode,
    read_answer,
    read_request,
    strip_invisible,
)
from policyengine.parsing.verdict import Verdict, VerdictKind
from policyengine.protocols import PROTOCOLS, check_choice

__all__ = ["ANSWER_TOOL", "CUT_REASONS", "ENDED_REASONS", "Mode", "parse_chunks", "parse_response"]

CUT_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"})
"""Finish reasons of a response that was cut off at the output limit."""

MALFORMED_REASONS = frozenset({"MALFORMED_FUNCTION_CALL", "malformed_function_call", "UNEXPECTED_TOOL_CALL"})
"""Finish reasons of a response whose call the provider itself could not read: what comes with it must not run."""

UNUSABLE_REASONS: dict[str, VerdictKind] = {
    **dict.fromkeys(CUT_REASONS, "truncated"),
    **dict.fromkeys(MALFORMED_REASONS, "wrong_shape"),
}
"""What a finish reason makes of a response, whatever it holds."""

ENDED_REASONS = frozenset({"stop", "end_turn", "tool_calls", "tool_use", "function_call", "STOP", "completed"})
"""Finish reasons of a response that the model ended itself."""


def parse_response(
    response: ModelResponse,
    *,
    protocol: str = "native",
    tools: Collection[str] | Mapping[str, Any] | None = None,
    mode: Mode = "strict",
    text_fallback: bool = False,
    max_calls: int | None = None,
    forms: Sequence[Form] = (),
) -> Verdict:
    """Return the verdict on a response.

    `protocol` is `native` (structured calls) or `text`: the reply is one JSON object, or what `forms` declare.
    `tools` are the offered names, with the JSON schemas of their arguments where they are known, or `None` where
    nothing is known (a recording).
    `mode` is `strict`, `fenced`, `lenient` or `repair`; `native` reads structured calls only and never looks at text.
    `text_fallback` takes calls in the text of a native response without structured calls for calls (modes `lenient`
    and `repair`). `max_calls` is the most calls that one response may hold.

    Raises:
        UsageError: there is no such protocol or mode.
    """
    if protocol not in PROTOCOLS or mode not in MODES:
        check_choice(protocol, PROTOCOLS, "protocol")
        check_choice(mode, MODES, "parsing mode")
    reason = response.finish_reason
    if reason and reason in UNUSABLE_REASONS:
        return Verdict(UNUSABLE_REASONS[reason], response.tool_calls, response.text, "finish_reason")
    try:
        clean = _clean(response, protocol, tools) if not forms else None
        if clean is not None:
            return clean
        offered, reading = Tools(tools), MODES[mode]
        terms = Terms(offered, reading.mending, response.finish_reason in ENDED_REASONS, Allowance())
        if response.tool_calls:
            verdict = read_calls(response, terms)
        elif mode == "native":
            verdict = Verdict("ok", (), response.text) if response.text.strip() else Verdict("empty")
        elif protocol == "text" and forms:
            verdict = read_forms(
                strip_invisible(response.text),
                forms,
                terms,
                fence=reading.fence,
                recovery=reading.recovery,
                answer_room=AROUND_ANSWER,
            )
        elif protocol == "text":
            verdict = read_request(response.text, terms, reading)
        else:
            verdict = read_answer(response.text, terms, reading, text_fallback)
    except RecursionError:
        return Verdict("wrong_shape", response.tool_calls, response.text, "nested_too_deep")
    if max_calls is not None and len(verdict.calls) > max_calls and verdict.usable:
        verdict = Verdict("multiple", verdict.calls, response.text, "too_many_calls")
    if verdict.kind == "empty" and response.reasoning.strip():
        return msgspec.structs.replace(verdict, kind="reasoning_only")
    known = tools is None or not verdict.calls or verdict.kind != "ok"
    return verdict if known else _with_unknown(verdict, offered)


def _clean(response: ModelResponse, protocol: str, tools: Collection[str] | None) -> Verdict | None:
    """Return the verdict on one strict call of an offered tool, or `None`.

    Most responses are that, and it is the same in every mode. What is left out here is judged elsewhere.
    """
    calls, text = response.tool_calls, response.text
    try:
        if not calls:
            if protocol != "text" or text[:1] != "{":
                return None
            value = loads(text)
            name, args = value.get("tool_name"), value.get("tool_args")
            if type(args) is not dict or "method" in args:
                return None
            call = ToolCall("text-1", name, encode(args).decode(), args)
            text = ""
        elif len(calls) == 1:
            (call,) = calls
            name, args = call.name, call.args
            if args is None:
                args = loads(call.arguments)
                call = ToolCall(call.id, name, call.arguments, args)
            if type(args) is not dict:
                return None
        else:
            return None
    except (StrictError, OverflowError):
        return None
    known = type(name) is str and name.isidentifier() and name != ANSWER_TOOL and (tools is None or name in tools)
    return Verdict("ok", (call,), text) if known else None


def parse_chunks(
    chunks: Iterable[str],
    *,
    protocol: str = "text",
    tools: Collection[str] | Mapping[str, Any] | None = None,
    finish_reason: str = "",
    mode: Mode = "strict",
    text_fallback: bool = False,
    max_calls: int | None = None,
    forms: Sequence[Form] = (),
) -> Verdict:
    """Return the verdict on streamed text: that of the whole text, whatever the chunking."""
    response = ModelResponse(text="".join(chunks), finish_reason=finish_reason)
    return parse_response(
        response,
        protocol=protocol,
        tools=tools,
        mode=mode,
        text_fallback=text_fallback,
        max_calls=max_calls,
        forms=forms,
    )


def _with_unknown(verdict: Verdict, offered: Tools) -> Verdict:
    unknown = tuple(call.id for call in verdict.calls if not offered.has(call.name))
    return msgspec.structs.replace(verdict, kind="unknown_tool", unknown=unknown) if unknown else verdict
