"""Class `response`: a response that looks like an answer and is none, or a row of them and whether the breaker opens.

A row is played through a real run under `stop_unusable_response_loop`: every kind of response is written as a model
would write it, parsed, and warned about by the kind that the parser's verdict has.
"""

from __future__ import annotations

import re
from typing import Any

from policyengine import (
    Batch,
    ModelResponse,
    ToolCall,
    ToolResult,
    Usage,
    classify_response,
    parse_response,
)
from policyengine.actions import Stop
from policyengine.parsing import WARNING_KINDS
from policyengine.run import Run
from policyengine.runstate import RunState
from policyengine.snapshot import build_snapshot
from policyengine.testing import ListedRegistry, policy, rule

COMPARED = ("verdict", "action", "max_retries", "then", "counts_as_unusable")
MUST_NOT = (
    (re.compile("success|empty text|as final"), lambda seen: seen.verdict != "complete"),
    (re.compile("map to stop|end the (turn|run)"), lambda seen: seen.action != "end"),
    (re.compile("execut|run the"), lambda seen: not seen.run_calls),
    (re.compile("calibrat"), lambda seen: not seen.trust_usage),
    (re.compile("^retry|loop"), lambda seen: not seen.action.startswith("retry")),
)
DELIVERED = re.compile("deliver|answered|terminal|user_visible|already_sent|silent|empty_ok|no_reply|allow_empty")
TOOLS = {"look"}
CALL = '{"tool_name": "look", "tool_args": {"place": "drawer"}}'
TEXTS = {
    "no_json": "I shall have a look at it now.",
    "prose": "Let me think about where it could be.",
    "dict_without_tool_name": '{"thoughts": ["the drawer"], "headline": "Looking"}',
    "dict_without_tool_args": '{"tool_name": "look"}',
    "json_array": f"[{CALL}]",
    "two_objects": f"{CALL} {CALL}",
    "empty": "",
    "whitespace": " \n",
    "unknown_tool": '{"tool_name": "listen", "tool_args": {}}',
    "answer": '{"tool_name": "response", "tool_args": {"text": "In the drawer."}}',
    "ok": CALL,
}
USABLE = re.compile(r"\b(ok|valid|usable|success|tool_?call|call|answer|final|text|complete)\b")
UNUSABLE = re.compile(r"\b(no|not|in|un|mal|without|missing|bad|broken|empty|invalid|unusable|malformed)\b")


def judge(case: dict[str, Any]) -> list[str]:
    """Return what is wrong with our outcome; an empty list means the case passes."""
    given, expected = case["input"], case["expected"]
    if "responses" in given:
        found: Any = breaker(given)
        wrong = {name: found[name] for name in ("verdict", "at_response") if found[name] != expected.get(name)}
        return [f"{name} is {value!r}, expected {expected.get(name)!r}" for name, value in wrong.items()]
    seen = classified(given)
    options = [expected, *({**other} for other in expected.get("accept", []))]
    if not any(all(getattr(seen, name) == option[name] for name in COMPARED if name in option) for option in options):
        ours = {name: getattr(seen, name) for name in COMPARED}
        return [f"ours: {ours}, expected {expected}"]
    return [
        f"must not: {phrase}"
        for phrase in expected.get("must_not", [])
        if not all(holds(seen) for pattern, holds in MUST_NOT if pattern.search(phrase))
    ]


def classified(given: dict[str, Any]) -> Any:
    """Return what we make of a single response."""
    rules = given.get("policy") or {}
    return classify_response(
        response_of(given),
        estimated_prompt_tokens=given.get("estimated_prompt_tokens"),
        context_window=next((given[name] for name in ("context_window", "num_ctx", "window") if name in given), None),
        answered=delivered(given),
        retries=next((given[name] for name in given if "retries" in name and not name.startswith("max")), 0),
        max_retries=next((rules[name] for name in rules if "retries" in name), 2),
        then=rules.get("then", "stop"),
    )


def delivered(given: Any) -> bool:
    """Return whether the case says that the user already has the answer."""
    if isinstance(given, list):
        return any(map(delivered, given))
    if not isinstance(given, dict):
        return False
    return any((value and DELIVERED.search(str(name))) or delivered(value) for name, value in given.items())


def response_of(given: dict[str, Any]) -> ModelResponse:
    """Return a response in whatever wire format the case has it."""
    content = given.get("content", given.get("text"))
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [content] if isinstance(content, str) else []
    thoughts = [given.get("reasoning_content") or given.get("reasoning") or ""]
    calls = [call_of(item) for item in given.get("tool_calls") or []]
    for part in parts:
        if "functionCall" in part or part.get("type") in ("tool_use", "tool_call", "function_call"):
            calls.append(call_of(part.get("functionCall", part)))
        elif part.get("thought") or part.get("type") in ("thinking", "reasoning", "redacted_thinking"):
            thoughts.append(str(part.get("thinking") or part.get("text") or ""))
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
    usage = given.get("usage") or {}
    names = ("prompt_tokens", "input_tokens", "promptTokenCount", "inputTokens")
    written = ("completion_tokens", "output_tokens", "candidatesTokenCount", "outputTokens")
    prompt = next((usage[name] for name in names if name in usage), None)
    completion = next((usage[name] for name in written if name in usage), None)
    return ModelResponse(
        text="\n".join(filter(None, texts)),
        tool_calls=tuple(calls),
        reasoning="\n".join(filter(None, thoughts)),
        finish_reason=given.get("finish_reason") or given.get("stop_reason") or "",
        usage=Usage(prompt, completion) if usage else None,
        raw=given,
    )


def call_of(item: dict[str, Any]) -> ToolCall:
    inner = item.get("function", item)
    arguments = next((inner[name] for name in ("arguments", "input", "args") if name in inner), "{}")
    if isinstance(arguments, str):
        return ToolCall(item.get("id", ""), inner.get("name") or "", arguments)
    return ToolCall(item.get("id", ""), inner.get("name") or "", "", arguments)


def breaker(given: dict[str, Any]) -> dict[str, Any]:
    """Play a row of responses; return whether and where the rule stops the run."""
    options = {
        "max_consecutive_unusable_responses": given.get("limit", 5),
        "kinds": ["misformat", "repeat", "empty", "truncated", "reasoning_only"],
        "scope": "run",
        "count": "once",
    }
    made = policy(rule("stop_unusable_response_loop", options), protocol="text")
    run = Run(build_snapshot(made, ListedRegistry()), RunState("case", protocol="text"))
    run.start("case")
    for number, item in enumerate(given["responses"], 1):
        if isinstance(play(run, item, number), Stop):
            return {"verdict": "breaker_open", "at_response": number}
    return {"verdict": "breaker_closed", "at_response": None}


def play(run: Run, item: Any, number: int) -> Any:
    """Report one response to the run as the loop does; return the control action, if any."""
    run.begin_iteration()
    if item == {"kind": "repeat"}:
        control = run.add_warning("repeat", {})[1].control
        run.end_iteration(0, False)
        return control
    response, protocol = written(item)
    verdict = parse_response(response, protocol=protocol, tools=TOOLS)
    run.after_parse(verdict)
    seen = classify_response(response, protocol=protocol, tools=TOOLS)
    if seen.counts_as_unusable or not verdict.usable:
        kind = WARNING_KINDS.get(verdict.kind, "misformat")
        control = run.add_warning(kind, {"reason": verdict.reason})[1].control
        run.end_iteration(0, False)
        return control
    for index, call in enumerate(verdict.calls):
        run.before_tool_call(call, Batch(f"b{number}", index))
        run.after_tool_call(call, ToolResult(call.id, "dust"))
    run.end_iteration(len(verdict.calls), True)
    return None


def written(item: Any) -> tuple[ModelResponse, str]:
    """Return a response of the named kind as a model would write it, and its protocol."""
    if isinstance(item, dict) and ("content" in item or "tool_calls" in item):
        return response_of(item), "native"
    if isinstance(item, dict) and "text" in item:
        return ModelResponse(text=item["text"], finish_reason=item.get("finish_reason", "")), "text"
    kind = str(item.get("kind", "") if isinstance(item, dict) else item).lower()
    if kind in TEXTS:
        return ModelResponse(text=TEXTS[kind]), "text"
    if "reasoning" in kind or "think" in kind:
        return ModelResponse(reasoning="It must be in the drawer."), "text"
    if "truncat" in kind or "length" in kind:
        return ModelResponse(text=CALL[:30], finish_reason="length"), "text"
    if "malformed" in kind:
        return ModelResponse(finish_reason="MALFORMED_FUNCTION_CALL"), "native"
    if "unknown" in kind:
        return ModelResponse(text=TEXTS["unknown_tool"]), "text"
    words = re.sub(r"[_\W]+", " ", kind)
    usable = USABLE.search(words) and not UNUSABLE.search(words)
    return ModelResponse(text=CALL if usable else TEXTS["no_json"]), "text"
