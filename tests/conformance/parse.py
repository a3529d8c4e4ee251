"""Class `parse`: a response, and the verdict, calls and history it must lead to.

`text_json` is the text protocol, `text_tags` and `native_with_text_fallback` are a native response without structured
calls that falls back to its text. All run in the repairing mode.
"""

from __future__ import annotations

from typing import Any

from policyengine import ModelResponse, ToolCall, Verdict
from policyengine.history.build import assistant, with_ids
from policyengine.parsing import WARNING_KINDS, as_parsed, parse_response
from policyengine.templates import Templates


def judge(case: dict[str, Any]) -> list[str]:
    """Return what is wrong with our outcome; an empty list means the case passes."""
    expected = case["expected"]
    response, verdict = parse(case["input"])
    wanted = [expected, *expected.get("accept", [])]
    problems = [difference(verdict, option, case["input"]) for option in wanted]
    if all(problems):
        return [problems[0]]
    hint = hint_of(verdict, case["input"])
    missing = [word for word in expected.get("hint_must_contain", []) if word not in hint]
    if missing:
        return [f"the message to the model lacks {missing}: {hint}"]
    if "history_name" in expected:
        stored = assistant(as_parsed(response, verdict)[0], "native").tool_calls[0].name
        if stored != expected["history_name"]:
            return [f"stored as {stored!r}, expected {expected['history_name']!r}"]
    return []


def parse(given: dict[str, Any]) -> tuple[ModelResponse, Verdict]:
    """Return the response of a case and the verdict on it."""
    calls = given.get("tool_calls", given.get("calls"))
    if calls is None:
        calls = [given] if "name" in given or "arguments" in given else []
    text = "".join(given["chunks"]) if "chunks" in given else given.get("text") or ""
    response = ModelResponse(
        text,
        tuple(_call(call, index) for index, call in enumerate(calls)),
        given.get("reasoning") or given.get("reasoning_content") or "",
        given.get("finish_reason") or "",
    )
    response = with_ids(response, 1)
    mode = given.get("mode", "native")
    return response, parse_response(
        response,
        protocol="text" if mode == "text_json" else "native",
        tools=given.get("tools"),
        mode="repair",
        text_fallback=mode in ("text_tags", "native_with_text_fallback"),
        max_calls=given.get("max_calls_per_turn"),
    )


def _call(call: dict[str, Any], index: int) -> ToolCall:
    function = call.get("function", call)
    arguments = function.get("arguments")
    id = call.get("id")
    return ToolCall(
        f"c{index}" if id is None else id,
        function.get("name") or "",
        arguments if isinstance(arguments, str) else "",
        arguments if isinstance(arguments, dict) else None,
    )


def outcome_of(verdict: Verdict, given: dict[str, Any]) -> dict[str, Any]:
    """Return a verdict in the words of the cases."""
    calls = [{"tool": call.name, "args": call.args} for call in verdict.calls]
    if verdict.final and given.get("mode") == "text_json":
        calls = [{"tool": "response", "args": {"text": verdict.text}}]
    if verdict.kind == "ok":
        return {"verdict": "parsed" if calls else "plain_text", "calls": calls}
    if verdict.kind in ("truncated", "empty", "reasoning_only"):
        return {"verdict": verdict.kind, "calls": []}
    return {"verdict": "misformat", "calls": []}


def difference(verdict: Verdict, wanted: dict[str, Any], given: dict[str, Any]) -> str:
    """Return how our outcome differs from one that is right; empty if it does not."""
    ours = outcome_of(verdict, given)
    if ours["verdict"] != wanted["verdict"]:
        return f"{ours['verdict']} ({verdict.kind}: {verdict.reason}), expected {wanted['verdict']}"
    calls = [{"tool": call["tool"], "args": call["args"]} for call in wanted.get("calls", ours["calls"])]
    if ours["calls"] != calls:
        return f"calls {ours['calls']}, expected {calls}"
    ids = wanted.get("call_ids")
    if ids is not None and [call.id for call in verdict.calls] != ids:
        return f"ids {[call.id for call in verdict.calls]}, expected {ids}"
    if "repairs" in wanted and bool(wanted["repairs"]) != bool(verdict.repairs):
        return f"repairs {verdict.repairs}, expected {wanted['repairs'] or 'none'}"
    return ""


def hint_of(verdict: Verdict, given: dict[str, Any]) -> str:
    """Return what the model is told about a verdict."""
    templates = Templates("en")
    if verdict.unknown:
        name = next(call.name for call in verdict.calls if call.id in verdict.unknown)
        return templates.render("unknown_tool", {"tool": name, "offered": list(given.get("tools") or ())})
    if verdict.usable:
        return ""
    protocol = "text" if given.get("mode") == "text_json" else "native"
    kind = WARNING_KINDS[verdict.kind]
    return templates.render(f"warning.{kind}", {"protocol": protocol, "reason": verdict.reason})
