"""What a result says about itself: flags, an exit code, a status, an error member. Facts, never words.

Knows: how tools and protocols declare success and failure.
Must not know: how a result is shown, who asked for it.

Only the top level of an object counts, and only what is unmistakable there. An `error` that is null says nothing, and
neither does the word "error" in a text. A `status` may describe what the tool looked at (a failed build) rather than
the call, so it counts only where nothing else stands beside it or an error goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

ENVELOPE = frozenset({"status", "tool", "data", "error", "meta", "partial", "truncated"})
"""The members of our own envelope (`tool_result_envelope`)."""

ABOUT = frozenset(
    [
        "status",
        "success",
        "ok",
        "tool",
        "tool_name",
        "data",
        "error",
        "errors",
        "error_code",
        "error_type",
        "errorcode",
        "code",
        "message",
        "msg",
        "reason",
        "detail",
        "details",
        "description",
        "hint",
        "hints",
        "suggestion",
        "retryable",
        "retry_after",
        "partial",
        "truncated",
        "meta",
        "metadata",
        "trace_id",
        "request_id",
        "step",
        "type",
        "path",
        "stack",
        "traceback",
        "result",
        "output",
        "results",
        "jsonrpc",
        "blocked",
        "iserror",
        "is_error",
        "exit_code",
        "stdout",
        "stderr",
        "timed_out",
        "killed",
        "signal",
        "duration",
        "duration_ms",
    ]
)
"""Members that speak about the call. Whatever else an object has is what the call was made for."""

FLAGS = {
    "isError": "error_flag",
    "is_error": "error_flag",
    "timed_out": "timeout",
    "timedOut": "timeout",
    "interrupted": "interrupted",
    "killed": "interrupted",
    "cancelled": "interrupted",
    "canceled": "interrupted",
}
EXIT_CODES = ("exit_code", "exitCode", "exitcode", "returncode", "return_code", "exit_status")
FAILED = {
    "error": "envelope_error",
    "failed": "envelope_error",
    "failure": "envelope_error",
    "fail": "envelope_error",
    "timeout": "timeout",
    "timed_out": "timeout",
    "cancelled": "interrupted",
    "canceled": "interrupted",
    "interrupted": "interrupted",
    "blocked": "blocked",
    "denied": "blocked",
}
FINE = ("ok", "success", "succeeded", "completed")
PAYLOAD = ("data", "result", "results", "output", "content", "items", "stdout")
CUT = ("truncated", "is_truncated", "isTruncated")
MESSAGES = ("message", "msg", "reason", "detail", "description", "error_message", "errorMessage", "stderr", "hint")
FACTS = (
    *("success", "ok", "status", "blocked", "signal", "jsonrpc", "partial", "retryable", "code", "error_code"),
    *("errorCode", "error_type", *FLAGS, *EXIT_CODES, *CUT, *MESSAGES, "error", "errors"),
)
"""Members by which an object declares something. They count wherever they stand, however large the rest is."""
SHORT = 500


class Declared(msgspec.Struct, frozen=True):
    """What an object declares. `reason` is empty where it declares no failure.

    `code` is the failure's name in the tool's own words (`has_code`), else the reason. `rest` is what the object holds
    beside what it says about itself.
    """

    reason: str = ""
    code: str = ""
    has_code: bool = False
    message: str = ""
    retryable: bool | None = None
    exit_code: int | None = None
    partial: bool = False
    truncated: bool = False
    rest: dict[str, Any] | None = None


def declared(body: Mapping[str, Any], *, poll: bool = False) -> Declared:
    """Return what a JSON object declares about the call that returned it.

    `poll` is for tools that report on something else: there a status, an exit code or a time-out is the news itself,
    and only an envelope or a flag speaks about the call.
    """
    if "jsonrpc" in body and isinstance(body.get("result"), Mapping) and not body.get("error"):
        return declared(body["result"], poll=poll)
    exit_code = None if poll else exit_code_of(body)
    reason = _reason(body, exit_code, poll)
    partial = body.get("partial") is True
    if not reason and _some_failed(body):
        partial = True
    truncated = any(body.get(name) is True for name in CUT)
    if not reason:
        return Declared(exit_code=exit_code, partial=partial, truncated=truncated, rest=payload(body))
    code = _code(body)
    return Declared(
        reason=reason,
        code=code or reason,
        has_code=bool(code),
        message=_message(body),
        retryable=_retryable(body),
        exit_code=exit_code,
        partial=partial,
        truncated=truncated,
        rest=_rest(body),
    )


def is_envelope(body: Mapping[str, Any]) -> bool:
    """Return whether an object is an envelope as `tool_result_envelope` makes them (members may be missing)."""
    known = body.get("status") in ("ok", "success", "error") and set(body) <= ENVELOPE | {"message", "notes"}
    return known and ("data" in body or "error" in body)


def payload(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what an object holds for whoever made the call: the data of an envelope, else the object itself."""
    return _data(body) if is_envelope(body) else dict(body)


def exit_code_of(body: Mapping[str, Any]) -> int | None:
    """Return the exit code that an object gives, if it is a number."""
    return next((code for name in EXIT_CODES if (code := as_code(body.get(name))) is not None), None)


def as_code(value: Any) -> int | None:
    """Return an exit code as a number: an integer, or the text of one. No system has longer ones than 32 bits."""
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal() and len(value) < 12:
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(2**31) <= value < 2**32 else None


def _reason(body: Mapping[str, Any], exit_code: int | None, poll: bool) -> str:
    for name, reason in FLAGS.items():
        if body.get(name) is True and (reason == "error_flag" or not poll):
            return reason
    if exit_code:
        return "exit_code"
    if exit_code is None and not poll and _was_killed(body):
        return "interrupted"
    if body.get("success") is False or body.get("success") == "false":
        return "success_false"
    status = _status_reason(body, poll)
    if status:
        return status
    if body.get("success") is True or body.get("ok") is True or body.get("status") in FINE:
        return ""
    error = body.get("error")
    if not _is_error(error):
        return _without_error(body)
    if body.get("ok") is False:
        return "success_false"
    if body.get("blocked") is True:
        return "blocked"
    if "jsonrpc" in body:
        return "envelope_error"
    return "" if any(_filled(body.get(name)) for name in PAYLOAD) else "error_member"


def _was_killed(body: Mapping[str, Any]) -> bool:
    """Return whether a process ended by a signal and so has no exit code."""
    is_process = "stdout" in body or any(name in body for name in EXIT_CODES)
    return is_process and isinstance(body.get("signal"), str) and bool(body["signal"])


def _without_error(body: Mapping[str, Any]) -> str:
    """Return the reason of objects that say in other ways than by `error` that there is nothing but a failure."""
    alone = set(map(str.lower, body)) <= ABOUT
    if body.get("blocked") is True and (alone or _filled(_message(body))):
        return "blocked"
    if body.get("ok") is False and alone and _filled(_message(body)):
        return "success_false"
    errors = body.get("errors")
    if isinstance(errors, list) and errors and "data" in body and body["data"] is None:
        return "error_member"
    return "every_item_failed" if _all_failed(body) else ""


def _status_reason(body: Mapping[str, Any], poll: bool) -> str:
    status = body.get("status")
    reason = FAILED.get(status.lower(), "") if isinstance(status, str) else ""
    if not reason:
        return ""
    error = body.get("error")
    if isinstance(error, Mapping) and (error.get("code") or error.get("message")):
        return reason
    if poll:
        return ""
    is_error = reason == "envelope_error" and str(status).lower() == "error"
    if is_error and _is_error(error):
        return reason
    # `failed` alone may be the state of a build; with words about it and nothing else it is the state of the call.
    told = is_error or reason == "timeout" or _filled(_message(body))
    return reason if told and set(map(str.lower, body)) <= ABOUT else ""


def _is_error(error: Any) -> bool:
    """Return whether the value of an `error` member is an error. Numbers are not: a fit has an error too."""
    if isinstance(error, str):
        return bool(error.strip())
    return error is True or (isinstance(error, Mapping | list) and bool(error))


def _items(body: Mapping[str, Any]) -> list[Any]:
    lists = [value for name in ("results", "items", "result", "data") if isinstance(value := body.get(name), list)]
    return lists[0] if lists else []


def _all_failed(body: Mapping[str, Any]) -> bool:
    items = _items(body)
    return bool(items) and all(isinstance(item, Mapping) and _item_failed(item) for item in items)


def _some_failed(body: Mapping[str, Any]) -> bool:
    return _is_error(body.get("error")) or any(
        isinstance(item, Mapping) and _item_failed(item) for item in _items(body)
    )


def _item_failed(item: Mapping[str, Any]) -> bool:
    return _is_error(item.get("error")) and not any(_filled(item.get(name)) for name in PAYLOAD)


def _filled(value: Any) -> bool:
    return value not in (None, "", [], {}, ()) and value is not False


def _error_parts(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects in which a failure is described, the closest first."""
    parts = []
    for name in ("error", "errors"):
        value = body.get(name)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, Mapping):
            nested = value.get("error")
            parts += [nested, value] if isinstance(nested, Mapping) else [value]
    return [*parts, body]


def _code(body: Mapping[str, Any]) -> str:
    for part in _error_parts(body):
        for name in ("code", "error_code", "errorCode", "error_type"):
            value = part.get(name)
            if isinstance(value, str | int) and value and not isinstance(value, bool) and str(value).strip():
                return str(value).strip()[:100]
    return ""


def _message(body: Mapping[str, Any]) -> str:
    items = [item for item in _items(body)[:1] if isinstance(item, Mapping)]
    for part in (*_error_parts(body), *items):
        for value in (part.get("error"), *(part.get(name) for name in MESSAGES)):
            if isinstance(value, str) and value.strip():
                return value.strip()[:SHORT]
    return ""


def _retryable(body: Mapping[str, Any]) -> bool | None:
    for part in _error_parts(body):
        value = part.get("retryable")
        if isinstance(value, bool):
            return value
    return None


def _data(body: Mapping[str, Any]) -> dict[str, Any] | None:
    data = body.get("data")
    return dict(data) if isinstance(data, Mapping) else None if data is None else {"value": data}


def _rest(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a failed result holds beside its failure, or `None`."""
    if is_envelope(body):
        return _data(body)
    told = {"error", "message", "msg", "reason", "detail", "description", "code", "error_code", "errorCode"}
    told |= {"status", "success", "ok", "retryable", "jsonrpc", "partial", "tool", "meta", *CUT, *FLAGS, *EXIT_CODES}
    rest = {name: value for name, value in body.items() if name not in told and _filled(value)}
    return rest or None
