"""Text that holds calls, or is meant to: the one-JSON-object protocol, and calls leaked into a native answer.

Knows: which readings of a text each mode allows, and what verdict follows. Must not know: how calls are found, guards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from policyengine.identity import call_identity
from policyengine.messages import ToolCall
from policyengine.parsing.dialects import OPENING
from policyengine.parsing.found import Found, Terms
from policyengine.parsing.markup import unknown_markup, unknown_shape
from policyengine.parsing.native import kind_of
from policyengine.parsing.scan import SCANNABLE, Scan, scan
from policyengine.parsing.shapes import ShapeError, request
from policyengine.parsing.strict import StrictError, dumps, loads, prefix
from policyengine.parsing.verdict import Verdict

ANSWER_TOOL = "response"
LISTED = {"unwrap_array", "unwrap_tool_calls"}
"""Repairs of calls that stood in one list: the model meant all of them."""
AROUND_ANSWER = 40
"""How many characters that are no space may stand around a final answer; with more it was only mentioned."""


class Reading(NamedTuple):
    """What a mode allows. `fence`: a fence around everything. `recovery`: prose, other shapes, other notations."""

    fence: bool = False
    recovery: bool = False
    mending: bool = False


Mode = Literal["strict", "fenced", "lenient", "repair", "native"]

MODES: dict[Mode, Reading] = {
    "strict": Reading(),
    "fenced": Reading(fence=True),
    "lenient": Reading(fence=True, recovery=True),
    "repair": Reading(fence=True, recovery=True, mending=True),
    "native": Reading(mending=True),
}


# ---- the one-object protocol


def read_request(text: str, terms: Terms, reading: Reading) -> Verdict:
    """Return the verdict on a reply that should be one request object."""
    stripped = strip_invisible(text)
    repairs = () if stripped == text.strip() else ("strip_invisible",)
    verdict = _read_request(stripped, terms, reading)
    if repairs and verdict.usable:
        return _with_repairs(verdict, repairs)
    return verdict


def _read_request(text: str, terms: Terms, reading: Reading) -> Verdict:
    if not text:
        return Verdict("empty")
    if text[0] == "{":
        clean = _clean_request(text, terms)
        if clean is not None:
            return clean
    if not reading.recovery or len(text) > SCANNABLE:
        return _read_strictly(text, terms, reading)
    if text[0] == '"' and reading.mending:
        text, unwrapped = _decoded(text)
        if unwrapped:
            inner = _read_request(text, terms, reading)
            return _with_repairs(inner, ("unwrap_json_string",)) if inner.usable else inner
    found = scan(text, terms)
    if found.unread is not None:
        return _unread(found, text)
    calls = [call for call in found.calls if not found.prose or _is_evident(call, terms)]
    if not calls:
        if found.reasoned and not found.prose:
            return Verdict("reasoning_only", text=text)
        kept = _read_strictly(text, terms, reading)
        return kept if not kept.usable else Verdict("prose", text=text, reason="no_object")
    return _recovered(calls, found, text)


def _decoded(text: str) -> tuple[str, bool]:
    """Return the text that a JSON string holds, if it may be an object."""
    try:
        value = loads(text)
    except StrictError:
        return text, False
    return (value, True) if isinstance(value, str) and value.startswith("{") else (text, False)


def _is_evident(call: Found, terms: Terms) -> bool:
    """Return whether a call amid prose is one beyond doubt: other objects than requests have names, too."""
    return call.notation != "json" or call.name == ANSWER_TOOL or terms.tools.has(call.name)


def _clean_request(text: str, terms: Terms) -> Verdict | None:
    """Return the verdict on a strict object of the protocol's own shape: the common case, and the fast one."""
    try:
        shape = request(loads(text), terms.tools, aliases=False)
    except (StrictError, ShapeError):
        return None
    if terms.mending and shape.name != ANSWER_TOOL and not terms.tools.has(shape.name):
        return None
    return _of_requests([(shape.name, shape.args)], text, shape.repairs)


def _read_strictly(text: str, terms: Terms, reading: Reading) -> Verdict:
    if text.startswith(("```", "~~~")):
        inner = _inside_fence(text) if reading.fence else None
        if inner is None:
            return Verdict("fenced", text=text, reason="fence")
        inside = _read_strictly(inner, terms, Reading())
        return _with_repairs(inside, ("strip_fence",)) if inside.usable else inside
    if text.startswith("["):
        return Verdict("wrong_shape", text=text, reason="array")
    if not text.startswith("{"):
        if _LEAKED.search(text):
            return Verdict("foreign_markup", text=text, reason="markup")
        return Verdict("fenced" if _FENCED_OBJECT.search(text) else "prose", text=text, reason="no_object")
    try:
        value, end = prefix(text)
    except StrictError as error:
        return Verdict(kind_of(error.reason), text=text, reason=error.reason)
    rest = text[end:].strip()
    if rest:
        return _with_trailing(text, rest)
    try:
        shape = request(value, terms.tools, aliases=False)
    except ShapeError as error:
        return Verdict("wrong_shape", text=text, reason=error.reason)
    return _of_requests([(shape.name, shape.args)], text, shape.repairs)


def _with_trailing(text: str, rest: str) -> Verdict:
    if rest.startswith("{"):
        return Verdict("multiple", text=text, reason="two_objects")
    if rest[0] in "}]":
        return Verdict("wrong_shape", text=text, reason="extra_bracket")
    return Verdict("prose", text=text, reason="text_after_object")


def _inside_fence(text: str) -> str | None:
    """Return the content of the one fence that is the whole text."""
    opening = _FENCE.match(text)
    if opening is None:
        return None
    run = opening.group(1)
    *body, last = text[opening.end() :].split("\n")
    if not _closes(last, run) or any(_closes(line, run) for line in body):
        return None
    return "\n".join(body).strip()


def _closes(line: str, run: str) -> bool:
    """Return whether a line closes a fence that was opened with `run`."""
    line = line.strip()
    return len(line) >= len(run) and not line.strip(run[0])


# ---- calls in a native answer


def read_answer(text: str, terms: Terms, reading: Reading, fallback: bool) -> Verdict:
    """Return the verdict on a native response without structured calls.

    With `fallback` calls in the text are taken for calls; without it a text that is clearly a call is unusable.
    """
    if not text.strip():
        return Verdict("empty")
    if _NOTHING_LIKE_A_CALL.fullmatch(text) and "Action:" not in text:
        return Verdict("ok", (), text)
    stripped = strip_invisible(text)
    if len(text) > SCANNABLE:
        leaked = _LEAKED.search(text)
        return Verdict("foreign_markup" if leaked else "ok", (), text, "too_long_to_scan" if leaked else "")
    found = scan(stripped, terms._replace(mending=terms.mending and fallback))
    if found.unread is not None:
        return _unread(found, text)
    calls = [call for call in found.calls if call.notation != "json" or terms.tools.registered(call.name)]
    if calls and fallback and reading.recovery:
        return _recovered(calls, found, stripped, natively=True)
    if any(call.notation == "markup" for call in calls) or (calls and not found.prose):
        return Verdict("foreign_markup", text=text, reason="call_in_text")
    if not found.calls and not found.shown and unknown_markup(found.prose, terms.tools):
        return Verdict("foreign_markup", text=text, reason="unknown_markup")
    if not found.calls and not found.shown and unknown_shape(stripped, terms.tools):
        return Verdict("foreign_markup", text=text, reason="unknown_shape")
    if found.reasoned and not found.prose and not found.calls:
        return Verdict("reasoning_only", text=text)
    return Verdict("ok", (), text)


# ---- both


def _unread(found: Scan, text: str) -> Verdict:
    assert found.unread is not None
    reason, notation = found.unread.reason, found.unread.notation
    kind = kind_of(reason)
    return Verdict("foreign_markup" if kind == "wrong_shape" and notation != "json" else kind, text=text, reason=reason)


def _recovered(calls: list[Found], found: Scan, text: str, *, natively: bool = False) -> Verdict:
    """Return the verdict on calls found in a text, whatever stood around them."""
    if not all(call.legal for call in calls):
        return Verdict("wrong_shape", text=text, reason="malformed_name")
    repairs = dict.fromkeys(repair for call in calls for repair in call.repairs)
    objects = [call for call in calls if call.notation == "json"]
    if objects:
        if not natively and "unwrap_tool_calls" in repairs and len(calls) > 1:
            return Verdict("wrong_shape", text=text, reason="tool_calls_not_exactly_one")
        distinct = {call_identity(call.name, call.args): call for call in calls}
        if len(distinct) > 1 and not (natively and repairs.keys() & LISTED):
            return Verdict("multiple", text=text, reason="two_objects")
        if len(distinct) < len(calls):
            calls = list(distinct.values())
            repairs["dedupe_concatenated"] = None
    for name, applies in (
        ("strip_reasoning", found.reasoned),
        ("strip_fence", found.fenced),
        ("drop_imagined_turn", found.imagined),
        ("leading_prose", found.before),
        ("trailing_prose", found.after),
    ):
        if applies:
            repairs[name] = None
    is_answer = not natively and any(call.name == ANSWER_TOOL for call in calls)
    if is_answer and len("".join(found.prose.split())) > AROUND_ANSWER:
        return Verdict("prose", text=text, reason="answer_amid_prose")
    verdict = _of_requests([(call.name, call.args) for call in calls], text, tuple(repairs), answers=not natively)
    if not verdict.usable or not found.prose:
        return verdict
    return Verdict(verdict.kind, verdict.calls, verdict.text or found.prose, repairs=verdict.repairs, guess=True)


def _of_requests(
    requests: Iterable[tuple[str, dict[str, Any]]], text: str, repairs: tuple[str, ...], *, answers: bool = True
) -> Verdict:
    calls = []
    for number, (name, args) in enumerate(requests, 1):
        if _NAME.fullmatch(name) is None:
            return Verdict("wrong_shape", text=text, reason="name_missing")
        if name == ANSWER_TOOL and answers:
            return _answer(args, text, repairs)
        calls.append(ToolCall(f"text-{number}", name, dumps(args), args))
    return Verdict("ok", tuple(calls), repairs=repairs)


def _answer(args: dict[str, Any], text: str, repairs: tuple[str, ...]) -> Verdict:
    answer = args.get("text")
    if not isinstance(answer, str):
        return Verdict("wrong_shape", text=text, reason="answer_without_text")
    if not answer.strip():
        return Verdict("empty", reason="empty_answer")
    return Verdict("ok", (), answer, repairs=repairs)


def _with_repairs(verdict: Verdict, repairs: tuple[str, ...]) -> Verdict:
    return msgspec.structs.replace(verdict, repairs=repairs + verdict.repairs)


def strip_invisible(text: str) -> str:
    """Return the text without spaces, byte order mark and zero-width characters around it."""
    return text.strip(_INVISIBLE)


_INVISIBLE = " \t\r\n\x0b\x0c\u00a0\ufeff\u200b\u200c\u200d\u2060"
_NAME = re.compile(r"\S+")
_NOTHING_LIKE_A_CALL = re.compile(r"[^<\[{(]*")
_FENCE = re.compile(r"(`{3,}+|~{3,}+)[^\n`]*\n")
_FENCED_OBJECT = re.compile(r"(?:```|~~~)[\w-]*\s*\{")
_LEAKED = re.compile(rf"^[ \t]*(?:```[\w-]*\s+)?(?:{OPENING})", re.MULTILINE)
