"""Model output -> verdict, strictly: nothing is guessed, nothing is repaired.

Knows: native tool calls and the one-JSON-object text protocol.
Must not know: guards, history, what is done about a verdict.

The text protocol (after Agent Zero): the whole reply is one JSON object `{"tool_name": ..., "tool_args": {...}}`;
the final answer is a call of the tool `response` with `text`. A verdict depends on the whole text only, never on how
it arrived in pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from policyengine.messages import ModelResponse, ToolCall
from policyengine.parsing.strict import StrictError, loads, prefix
from policyengine.parsing.verdict import Verdict, VerdictKind

ANSWER_TOOL = "response"
CUT_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"})
_NAME = re.compile(r"\S+")


def parse_response(
    response: ModelResponse, *, protocol: str = "native", tools: Collection[str] | None = None
) -> Verdict:
    """Return the verdict on a response.

    `protocol` is `native` or `text`; `tools` are the offered names, or `None` where they are not known (a recording).
    """
    if response.finish_reason in CUT_REASONS:
        return Verdict("truncated", response.tool_calls, response.text, "finish_reason")
    if protocol == "text" and not response.tool_calls:
        verdict = _parse_text(response.text.strip())
    else:
        verdict = _parse_native(response)
    if verdict.kind == "empty" and response.reasoning.strip():
        return msgspec.structs.replace(verdict, kind="reasoning_only")
    return _with_unknown(verdict, tools)


def parse_chunks(
    chunks: Iterable[str], *, protocol: str = "text", tools: Collection[str] | None = None, finish_reason: str = ""
) -> Verdict:
    """Return the verdict on streamed text: that of the whole text, whatever the chunking."""
    return parse_response(
        ModelResponse(text="".join(chunks), finish_reason=finish_reason), protocol=protocol, tools=tools
    )


def _parse_native(response: ModelResponse) -> Verdict:
    if not response.tool_calls:
        return Verdict("ok", (), response.text) if response.text.strip() else Verdict("empty")
    calls = []
    for call in response.tool_calls:
        read = _read_arguments(call)
        if isinstance(read, str):
            return Verdict(_kind(read), response.tool_calls, response.text, read)
        calls.append(read)
    return Verdict("ok", tuple(calls), response.text)


def _kind(reason: str) -> VerdictKind:
    return "truncated" if reason == "truncated" else "wrong_shape"


def _read_arguments(call: ToolCall) -> ToolCall | str:
    """Return the call with parsed arguments, or a machine reason why it cannot run."""
    if not _NAME.fullmatch(call.name):
        return "name_missing"
    if isinstance(call.args, dict):
        return call
    try:
        args = loads(call.arguments) if call.arguments.strip() else {}
    except StrictError as error:
        return error.reason
    if not isinstance(args, dict):
        return "arguments_not_object"
    return msgspec.structs.replace(call, args=args)


def _parse_text(text: str) -> Verdict:
    if not text:
        return Verdict("empty")
    if text.startswith("```") or text.startswith("~~~"):
        return Verdict("fenced", text=text, reason="fence")
    if text.startswith("["):
        return Verdict("wrong_shape", text=text, reason="array")
    if not text.startswith("{"):
        return Verdict("fenced" if _fence_with_object(text) else "prose", text=text, reason="no_object")
    try:
        value, end = prefix(text)
    except StrictError as error:
        return Verdict(_kind(error.reason), text=text, reason=error.reason)
    rest = text[end:].strip()
    if rest:
        return _with_trailing(text, rest)
    return _request(value, text)


def _with_trailing(text: str, rest: str) -> Verdict:
    if rest.startswith("{"):
        return Verdict("multiple", text=text, reason="two_objects")
    if rest[0] in "}]":
        return Verdict("wrong_shape", text=text, reason="extra_bracket")
    return Verdict("prose", text=text, reason="text_after_object")


def _request(value: Any, text: str) -> Verdict:
    name, args = value.get("tool_name"), value.get("tool_args")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return Verdict("wrong_shape", text=text, reason="name_missing")
    if not isinstance(args, dict):
        return Verdict("wrong_shape", text=text, reason="arguments_not_object")
    if name == ANSWER_TOOL:
        answer = args.get("text")
        if not isinstance(answer, str):
            return Verdict("wrong_shape", text=text, reason="answer_without_text")
        return Verdict("ok", (), answer) if answer.strip() else Verdict("empty", reason="empty_answer")
    return Verdict("ok", (ToolCall("text-1", name, json.dumps(args), args),))


def _fence_with_object(text: str) -> bool:
    return re.search(r"(```|~~~)[\w-]*\s*\{", text) is not None


def _with_unknown(verdict: Verdict, tools: Collection[str] | None) -> Verdict:
    if tools is None or verdict.kind != "ok":
        return verdict
    unknown = tuple(call.id for call in verdict.calls if call.name not in tools)
    return msgspec.structs.replace(verdict, kind="unknown_tool", unknown=unknown) if unknown else verdict
