"""Class `loop`: a sequence of calls and texts, and whether, where and why a guard refuses one.

The case's `config` becomes the options of `stall_detector`; its thresholds are `deny` rungs (a text cannot be refused,
so its rung is `stop`).
"""

from __future__ import annotations

import json
from typing import Any

from policyengine import Batch, ToolCall, ToolError, ToolFacts, ToolResult, Verdict
from policyengine.run import Run
from policyengine.runstate import RunState
from policyengine.snapshot import build_snapshot
from policyengine.testing import ListedRegistry, policy, rule


def judge(case: dict[str, Any]) -> list[str]:
    """Return what is wrong with our outcome; an empty list means the case passes."""
    given, expected = case["input"], case["expected"]
    outcome = play(given)
    problems = []
    if outcome["stall"] != expected["stall"]:
        return [f"stall is {outcome['stall']}, expected {expected['stall']} (ours: {outcome})"]
    if not expected["stall"]:
        return []
    for field in ("at_call", "at_text"):
        if field in expected or f"{field}_range" in expected:
            low, high = expected.get(f"{field}_range", [expected.get(field)] * 2)
            at = outcome[field]
            if at is None or not low <= at <= high:
                problems.append(f"{field} is {at}, expected {low}..{high}")
    accepted = [expected.get("kind"), *expected.get("accept", [])]
    if expected.get("kind") and outcome["kind"] not in accepted:
        problems.append(f"kind is {outcome['kind']!r}, expected {expected['kind']!r}")
    if "period" in expected and outcome["kind"] == "cycle" and outcome["period"] != expected["period"]:
        problems.append(f"period is {outcome['period']}, expected {expected['period']}")
    return problems


def play(given: dict[str, Any]) -> dict[str, Any]:
    """Report the events to a run; return the first refusal or stop."""
    run = _run(given["config"], given.get("effects", {}))
    run.start("case")
    calls = texts = batches = 0
    for group in _grouped(given["events"]):
        kind = group[0].get("type", "call")
        if kind == "user":
            run.user_message(str(group[0].get("text", "")))
        elif kind == "text":
            texts += 1
            run.begin_iteration()
            decision = run.after_parse(Verdict("ok", (), group[0]["text"]))
            if decision.action != "allow":
                return _found(decision, None, texts)
            run.end_iteration(0, True)
        elif kind == "call":
            batches += 1
            run.begin_iteration()
            made = [_call(event, calls + index) for index, event in enumerate(group)]
            for index, call in enumerate(made):
                calls += 1
                decision = run.before_tool_call(call, Batch(f"b{batches}", index))
                if decision.action != "allow":
                    return _found(decision, calls, None)
            for call, event in zip(made, group, strict=True):
                run.after_tool_call(call, _result(call, event))
            run.end_iteration(len(made), True)
        else:
            raise ValueError(f"unknown event type {kind!r}")
    return {"stall": False, "kind": None, "period": None, "at_call": None, "at_text": None}


def _found(decision: Any, at_call: int | None, at_text: int | None) -> dict[str, Any]:
    data = decision.control.data
    return {
        "stall": True,
        "kind": data["pattern"],
        "period": data.get("period"),
        "at_call": at_call,
        "at_text": at_text,
    }


def _run(config: dict[str, Any], effects: dict[str, str]) -> Run:
    repeat, cycle = config.get("repeat_threshold"), config.get("cycle_repeats")
    options: dict[str, Any] = {
        "repeat": {"deny": repeat} if repeat else {},
        "text": {"stop": repeat} if repeat else {},
        "cycle": {"deny": cycle, "max_period": config.get("max_period", 5)} if cycle else {},
        "interleaved": _deny(config.get("interleaved_threshold")),
        "stagnation": {
            **_deny(config.get("stagnation_threshold")),
            "exec": _deny(config.get("stagnation_threshold_exec")),
        },
        "poll": _deny(config.get("poll_threshold")),
        "scope": "step",
        "tools": {"*": {"ignore_args": list(config["ignore_args"])}} if config.get("ignore_args") else {},
    }
    for tool, names in (config.get("ignore_args_by_tool") or {}).items():
        options["tools"][tool] = {"ignore_args": list(names)}
    tools = tuple((name, ToolFacts(effect=effect)) for name, effect in effects.items())
    made = policy(rule("stall_detector", options), tools=tools)
    return Run(build_snapshot(made, ListedRegistry()), RunState("case"))


def _deny(threshold: int | None) -> dict[str, int]:
    return {"deny": threshold} if threshold else {}


def _grouped(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Put the calls of one response together: a `batch` event, or neighbours with the same `batch` value."""
    groups: list[list[dict[str, Any]]] = []
    for event in events:
        if "calls" in event:
            groups.append([{"type": "call", **item} for item in event["calls"]])
            continue
        batch = event.get("batch", event.get("batch_id", event.get("turn")))
        last = groups[-1][0] if groups else {}
        same = batch is not None and batch == last.get("batch", last.get("batch_id", last.get("turn")))
        if same and event.get("type", "call") == "call" == last.get("type", "call"):
            groups[-1].append(event)
        else:
            groups.append([event])
    return groups


def _call(event: dict[str, Any], number: int) -> ToolCall:
    args = event.get("args", {})
    text = args if isinstance(args, str) else json.dumps(args)
    parsed = None if isinstance(args, str) or event.get("raw") else args
    return ToolCall(f"c{number}", event.get("tool") or "", text, parsed)


def _result(call: ToolCall, event: dict[str, Any]) -> ToolResult:
    result = event.get("result")
    text = result if isinstance(result, str) else json.dumps(result)
    if event.get("ok", True):
        return ToolResult(call.id, text)
    code = event.get("error_code")
    return ToolResult(call.id, text, "error", ToolError(code or "error", text, declared=code is not None))
