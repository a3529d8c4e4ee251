"""Structured tool calls: read their names and arguments.

Knows: what gateways and models do to a structured call. Must not know: text protocols, history, guards.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from policyengine.identity import call_identity
from policyengine.messages import ModelResponse, ToolCall
from policyengine.parsing.found import Terms
from policyengine.parsing.names import resolve
from policyengine.parsing.repair import HOPELESS, mend_whole
from policyengine.parsing.strict import StrictError, dumps, loads, prefix, skip_space
from policyengine.parsing.verdict import Verdict, VerdictKind

MAX_COPIES = 1000
"""How many objects in a row are read from one arguments text."""


class CallError(ValueError):
    """A structured call that cannot run; `reason` is a content-free machine reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def read_calls(response: ModelResponse, terms: Terms) -> Verdict:
    """Return the verdict on a response with structured calls. One that cannot be read makes all of them unusable."""
    calls: list[ToolCall] = []
    repairs: dict[str, None] = {}
    for call in response.tool_calls:
        try:
            read, repaired = _read(call, terms)
        except (CallError, StrictError) as error:
            return Verdict(kind_of(error.reason), response.tool_calls, response.text, error.reason)
        calls.append(read)
        if repaired:
            repairs.update(dict.fromkeys(repaired))
    return Verdict("ok", tuple(calls), response.text, repairs=tuple(repairs))


def kind_of(reason: str) -> VerdictKind:
    """Return the kind of verdict for a machine reason."""
    if reason == "truncated":
        return "truncated"
    return "multiple" if reason == "two_objects" else "wrong_shape"


def _read(call: ToolCall, terms: Terms) -> tuple[ToolCall, tuple[str, ...]]:
    name, tools = call.name, terms.tools
    repairs: tuple[str, ...] = ()
    if not name or not _NAME.fullmatch(name):
        known = resolve(name, tools) if terms.mending else None
        if known is None or not tools.registered(known.text):
            raise CallError("name_missing")
    if isinstance(call.args, dict):
        # Arguments that came parsed (recordings, some providers) are what they are.
        args = call.args
    elif call.arguments and not call.arguments.isspace():
        args, repairs = _arguments(call, terms)
    else:
        args, repairs = _no_arguments(name, terms), ("empty_arguments",)
    if terms.mending and not tools.has(name):
        resolved = resolve(name, tools, args)
        if not resolved.legal:
            raise CallError("malformed_name")
        if resolved.repairs:
            call = msgspec.structs.replace(call, name=resolved.text)
            repairs = (*resolved.repairs, *repairs)
    if call.args is args:
        return call, repairs
    if repairs:
        return ToolCall(call.id, call.name, dumps(args), args), repairs
    return ToolCall(call.id, call.name, call.arguments, args), repairs


def _no_arguments(name: str, terms: Terms) -> dict[str, Any]:
    """Absent arguments are no arguments, unless the tool is known to need some."""
    tools = terms.tools
    known = resolve(name, tools).text if terms.mending else name
    if tools.required(known):
        raise CallError("arguments_missing")
    return {}


def _arguments(call: ToolCall, terms: Terms) -> tuple[dict[str, Any], tuple[str, ...]]:
    try:
        value: Any = loads(call.arguments)
        repairs: tuple[str, ...] = ()
    except StrictError as error:
        if not terms.mending or error.reason in HOPELESS:
            raise
        value, repairs = _mended(call, terms)
    if isinstance(value, dict):
        return value, repairs
    if terms.mending:
        if isinstance(value, str):
            return _unwrapped(value, call.name, terms, repairs)
        if value is None or value == []:
            return _no_arguments(call.name, terms), (*repairs, "empty_arguments")
    raise CallError("arguments_not_object")


def _mended(call: ToolCall, terms: Terms) -> tuple[Any, tuple[str, ...]]:
    text = call.arguments.strip(_INVISIBLE)
    if text.startswith("```") and text.endswith("```"):
        body = _FENCE.sub("", text, count=1).removesuffix("```")
        value, repairs = mend_whole(body, ended=terms.ended, allowance=terms.allowance)
        return value, ("strip_fence", *repairs)
    copies = _copies(text)
    if len(copies) > 1:
        return _one_of(copies, terms.tools.required(resolve(call.name, terms.tools).text))
    body = _without_tokens(text)
    if body != text:
        value, repairs = mend_whole(body, ended=True)
        return value, ("strip_control_tokens", *repairs)
    return mend_whole(text, ended=terms.ended, allowance=terms.allowance)


def _without_tokens(text: str) -> str:
    """Return the text without control tokens and closing tags at its end."""
    while match := _TOKEN.search(text, max(0, len(text) - TOKEN_LENGTH)):
        text = text[: match.start()].rstrip()
    return text


def _copies(text: str) -> list[Any]:
    """Return the objects of a text that is nothing but objects one after another; empty if it is something else."""
    found: list[Any] = []
    at = 0
    while at < len(text) and len(found) < MAX_COPIES:
        try:
            value, at = prefix(text, at)
        except StrictError:
            return []
        if not isinstance(value, dict):
            return []
        found.append(value)
        at = skip_space(text, at)
    return found if at >= len(text) else []


def _one_of(copies: list[Any], required: tuple[str, ...] | None) -> tuple[Any, tuple[str, ...]]:
    """Return the one object that copies repeat. Different objects are different calls, and nobody said which."""
    repairs: tuple[str, ...] = ("dedupe_concatenated",)
    if required and {} in copies:
        # Some gateways begin a stream with an empty object; a tool with required arguments cannot have meant it.
        copies, repairs = [value for value in copies if value], ("drop_empty_object", *repairs)
    if len({call_identity("", value) for value in copies}) != 1:
        raise CallError("two_objects")
    return copies[0], repairs if len(copies) > 1 else repairs[:1]


def _unwrapped(text: str, name: str, terms: Terms, repairs: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read arguments that were encoded once too often."""
    if not text.strip():
        return _no_arguments(name, terms), (*repairs, "unwrap_json_string", "empty_arguments")
    if not text.lstrip().startswith("{"):
        raise CallError("arguments_not_object")
    value, more = mend_whole(text, ended=terms.ended, allowance=terms.allowance)
    if not isinstance(value, dict):
        raise CallError("arguments_not_object")
    return value, (*repairs, "unwrap_json_string", *more)


_NAME = re.compile(r"\S+")
_INVISIBLE = " \t\r\n\ufeff\u200b\u200c\u200d\u2060"
_FENCE = re.compile(r"```[A-Za-z0-9]{0,10}\s*")
_TOKEN = re.compile(r"(?:<[|\uff5c][^<>\n]{1,40}[|\uff5c]>|</[a-z_]{1,40}>)\Z")
TOKEN_LENGTH = 50
