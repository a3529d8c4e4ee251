"""Class `tool_result`: what a tool handed back, and whether that was a failure and what the model reads of it.

The case's `kind` is passed on as it is; what lies beside `output` (flags, streams, an exception) is put together as the
carrier of that kind would hand it over. Only reasons with one of our names are compared literally: one that is called
differently must merely be there.
"""

from __future__ import annotations

import builtins
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from policyengine import ToolFacts, classify_tool_result, tool_result_envelope
from policyengine.messages import Failure
from policyengine.results.classify import EVIDENCE

REASONS = {*EVIDENCE, "exception", "denied", "not_run"}
META = {"tool", "kind", "command", "facts", "effect", "text_prefix", "failure", "limit", "max_chars", "output_repr"}
CARRIED = ("content", "structuredContent", "structured_content", "isError")
FLAGS = ("success", "ok", "status", "error", "error_code", "blocked", "timed_out", "interrupted", "killed", "signal")
BESIDE = (*FLAGS, "stderr", "partial", "truncated")
NAMES = {
    name: getattr(builtins, name)
    for name in (
        "float",
        "bytes",
        "bytearray",
        "set",
        "frozenset",
        "dict",
        "list",
        "tuple",
        "range",
        "object",
        "complex",
    )
} | {"Decimal": Decimal, "datetime": datetime, "date": date, "nan": float("nan"), "inf": float("inf")}


def judge(case: dict[str, Any]) -> list[str]:
    """Return what is wrong with our outcome; an empty list means the case passes."""
    expected = case["expected"]
    problems = compare(case["input"], expected)
    for other in expected.get("accept", []):
        if not problems:
            break
        problems = problems if compare(case["input"], {**expected, **other}) else []
    return problems


def classified(given: dict[str, Any]) -> Any:
    """Return what we make of a case's input."""
    prefixes = given.get("text_prefix") or (given.get("failure") or {}).get("text_prefix") or ()
    facts = ToolFacts(
        effect=given.get("effect", "exec"),
        failure=Failure((prefixes,) if isinstance(prefixes, str) else tuple(prefixes)),
    )
    flag = given.get("is_error", given.get("isError"))
    return classify_tool_result(
        value_of(given),
        tool=given.get("tool", ""),
        kind=given.get("kind", "content"),
        exit_code=given.get("exit_code"),
        is_error=flag if isinstance(flag, bool) else None,
        command=given.get("command", ""),
        facts=facts,
        limit=given.get("limit", given.get("max_chars")),
    )


def value_of(given: dict[str, Any]) -> Any:
    """Return the value that a tool of this kind would have handed over."""
    if "output_repr" in given:
        return eval(given["output_repr"], {"__builtins__": {}}, NAMES)  # the file holds a value, not a program
    raised = given.get("exception", given.get("raises"))
    if raised:
        return exception_of(raised)
    if isinstance(given.get("content"), list) or any(name in given for name in CARRIED[1:3]):
        names = {"structured_content": "structuredContent"}
        return {names.get(name, name): given[name] for name in CARRIED if name in given}
    for name in ("output", "content", "result", "value", "text", "payload"):
        if name in given:
            beside = {key: given[key] for key in BESIDE if key in given}
            if beside and "exit_code" in given:
                beside["exit_code"] = given["exit_code"]
            return {"output": given[name], **beside} if beside else given[name]
    rest = {key: value for key, value in given.items() if key not in META}
    return rest or None


def exception_of(raised: Any) -> BaseException:
    """Return the exception that `Type: text` (or `{type, message}`) names."""
    if isinstance(raised, dict):
        name, text = str(raised.get("type", "")), str(raised.get("message", ""))
    else:
        name, _, text = str(raised).partition(":")
    cls = getattr(builtins, name.strip().rsplit(".", 1)[-1], None)
    if not (isinstance(cls, type) and issubclass(cls, BaseException)):
        cls = type(name.strip() or "ToolError", (Exception,), {})
    return cls(text.strip())


def compare(given: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    seen = classified(given)
    problems = always(seen, given)
    told = f"{seen.message}\n{seen.evidence}\n{seen.content}"
    if "ok" in expected and seen.ok is not expected["ok"]:
        problems.append(f"ok is {seen.ok} ({seen.reason}), expected {expected['ok']}")
    reason = expected.get("reason")
    if reason and (seen.reason != reason if reason in REASONS else not seen.reason):
        problems.append(f"reason is {seen.reason!r}, expected {reason!r}")
    for word in expected.get("hint_must_contain", []):
        if word.lower() not in told.lower():
            problems.append(f"nothing says {word!r}: {told!r}")
    for word in expected.get("content_must_contain", []):
        if word not in seen.content:
            problems.append(f"the content lacks {word!r}: {seen.content!r}")
    for name in ("empty", "partial", "truncated"):
        if name in expected and getattr(seen, name) is not expected[name]:
            problems.append(f"{name} is {getattr(seen, name)}")
    if expected.get("content_is_strict_json"):
        problems += not_strict(seen.content)
    others = expected.get("distinguish_from", given.get("distinguish_from", []))
    for other in others if isinstance(others, list) else [others]:
        problems += look_alike(seen, given, other)
    return problems


def always(seen: Any, given: dict[str, Any]) -> list[str]:
    """Return what is wrong whatever the case expects."""
    problems = []
    if not seen.content.strip():
        problems.append("the content is empty")
    try:
        seen.content.encode()
        json.dumps(tool_result_envelope(seen, tool=given.get("tool", "tool")), allow_nan=False).encode()
    except ValueError as error:
        problems.append(f"cannot be sent: {error}")
    if not seen.ok and not seen.message:
        problems.append("a failure without a message")
    return problems


def not_strict(text: str) -> list[str]:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return [f"the content is not strict JSON: {error}"]
    return []


def look_alike(seen: Any, given: dict[str, Any], other: Any) -> list[str]:
    """Return a problem if another outcome of the same tool reads the same."""
    if not isinstance(other, dict):
        return ["the content is what it must differ from"] if seen.content == other else []
    base = {key: given[key] for key in ("tool", "kind", "command") if key in given}
    rival = classified({**base, **other})
    return [f"{other} looks the same: {seen.content!r}"] if rival.content == seen.content else []
