"""Call every rule once with sample payloads, so that what cannot work fails at load and not in a run.

Knows: one sample payload per hook point. Must not know: real runs, files.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from policyengine.context import RunView
from policyengine.dispatch import check_answer
from policyengine.errors import ConfigError
from policyengine.extension import Extension
from policyengine.hooks import HookPoint
from policyengine.messages import (
    Batch,
    HistoryWarning,
    Iteration,
    Message,
    ModelRequest,
    ModelResponse,
    ProviderError,
    ToolCall,
    ToolResult,
)
from policyengine.outcome import Outcome
from policyengine.parsing.verdict import Verdict
from policyengine.policy.problems import Problem
from policyengine.runstate import RunState, StopReason
from policyengine.snapshot import Entry, PolicySnapshot
from policyengine.workers import call_with_limit, fault_text

LEAST_S = 1.0
"""What a first call may take at least: it may import and compile what later ones find ready."""

_CALL = ToolCall("sample-1", "sample_tool", '{"query":"sample"}', {"query": "sample"})

SAMPLES: dict[str, tuple[Any, ...]] = {
    "run_start": ("sample task",),
    "step_start": (1,),
    "before_model_call": (ModelRequest((Message("user", "sample task"),)),),
    "after_model_response": (ModelResponse("sample text", (_CALL,)),),
    "after_parse": (Verdict("ok", (_CALL,), "sample text"), (_CALL,)),
    "after_provider_error": (ProviderError("overloaded", "sample"),),
    "hist_add_warning.start": (HistoryWarning("misformat", "sample warning"),),
    "hist_add_warning.end": (HistoryWarning("misformat", "sample warning"),),
    "before_tool_call": (_CALL, Batch("batch-1")),
    "after_tool_call": (_CALL, ToolResult("sample-1", "sample result")),
    "after_iteration": (Iteration(1, 1),),
    "step_end": (1,),
    "on_stop": (StopReason("sample", "sample"),),
    "run_end": (Outcome("completed", "sample"),),
}
"""A payload for every hook point of a run, in the order of one iteration."""


def self_test(snapshot: PolicySnapshot) -> None:
    """Call every implementation in the snapshot with a sample payload, on state that is thrown away.

    Raises:
        ConfigError: one problem (X406) for every rule that raises or answers nonsense.
    """
    problems = []
    by_rule = {hook: {entry.rule.id: entry for entry in snapshot.tables[hook].entries} for hook in SAMPLES}
    for rule_id, extension in snapshot.extensions.items():
        state = RunState("self-test", iteration=1, step=1)
        kept, broken = _state(extension)
        view = RunView(state, rule_id, kept, snapshot.tool)
        for hook, payload in SAMPLES.items():
            fault = broken or _fault(by_rule[hook].get(rule_id), snapshot.tables[hook].point, view, payload)
            if fault:
                rule = snapshot.rules[rule_id]
                if rule.variables:  # it may quote an option, and the value of a variable is never shown
                    fault = f"(not shown: options come from $env {', '.join(rule.variables)})"
                text = f"{rule.use} fails its self-test at {hook}: {fault}"
                problems.append(Problem("X406", text, rule.position, f"extensions.{rule_id}"))
                break
    if problems:
        raise ConfigError(problems)


def _fault(entry: Entry | None, point: HookPoint, view: RunView, payload: tuple[Any, ...]) -> str:
    if entry is None:
        return ""
    answer, fault = _answer(entry, view, payload)
    return fault or check_answer(answer, point, payload, entry.extension)[1]


def _answer(entry: Entry, view: RunView, payload: tuple[Any, ...]) -> tuple[Any, str]:
    """Call an implementation as a run would: what is not built in gets a worker thread and is given up after a time."""
    if not entry.inline:
        limit_s = max(entry.limit_ns / 1e9, LEAST_S)
        in_time, answer, fault = call_with_limit(partial(entry.call, view, *payload), limit_s)
        return answer, fault if in_time else f"timeout: no answer after {limit_s:g} s"
    try:
        return entry.call(view, *payload), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the fault is reported with its rule
        return None, fault_text(error)


def _state(extension: Extension) -> tuple[Any, str]:
    """Return a fresh state of a rule, or why it cannot be made."""
    try:
        return extension.state() if extension.state else None, ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the fault is reported with its rule
        return None, f"its state cannot be made: {fault_text(error)}"
