"""The contract with extensions: one documented method per hook point.

Knows: the name of every hook point, its payload, and which actions it accepts.
Must not know: who implements a hook, or what the engine does with an answer.

Policy files spell a hook point with a dot where the name has a phase (`hist_add_warning.end`); the method is the
same with `_` for `.`. `HOOKS` at the end of this file is the one table of both spellings.

Deciding hooks (`before_*`, `after_*`, `hist_*`, `run_start`, `step_*`) may return actions. Observers (`on_*`,
`run_end`) return nothing. All hooks are synchronous and do no I/O: what needs I/O is an action that the driver
performs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pluggy

from policyengine.actions import Answer

if TYPE_CHECKING:
    from policyengine.context import RunView
    from policyengine.messages import (
        Batch,
        HistoryWarning,
        Iteration,
        ModelRequest,
        ModelResponse,
        ProviderError,
        ToolCall,
        ToolResult,
    )
    from policyengine.parsing.verdict import Verdict

PROJECT = "policyengine"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """Every hook point of a run. Implement any of them as a method of an `Extension`, marked with `@hookimpl`."""

    @hookspec
    def run_start(self, run: RunView, task: str) -> Answer:
        """Hear that a run begins.

        When: once per run, before the first request.
        What you get: the task as the user gave it.
        What your answer does: a `hint` is added to the history before the first request; `None` is no opinion.
        If you raise: the rule's `on_error` applies; see docs/hooks.md.
        Example:
            return run.hint("house_rules")
        """
        raise NotImplementedError

    @hookspec
    def run_end(self, run: RunView, outcome: Any) -> None:
        """Hear that a run ended.

        When: once per run, always, also after a stop, an error or a cancellation.
        What you get: the `Outcome` (status, output, stop, counts).
        What your answer does: nothing; this is an observer.
        If you raise: it is logged; the run is over either way.
        Example:
            totals.append(outcome.iterations)
        """
        raise NotImplementedError

    @hookspec
    def step_start(self, run: RunView, step: int) -> Answer:
        """Hear that a step of the plan begins.

        When: at every step boundary; without a plan once for the one implicit step, and again after a user message.
        What you get: the number of the step, from 1.
        What your answer does: a `hint` is added to the history; `end_step` ends the step at once.
        If you raise: the rule's `on_error` applies.
        Example:
            return run.hint("step_budget", limit=5)
        """
        raise NotImplementedError

    @hookspec
    def step_end(self, run: RunView, step: int) -> Answer:
        """Hear that a step of the plan ended.

        When: before the state of scope `step` is cleared.
        What you get: the number of the step, from 1.
        What your answer does: a `hint` is added to the history; `end_step` has no further effect here.
        If you raise: the rule's `on_error` applies.
        Example:
            return run.hint("step_was_stuck") if run.state.stuck else None
        """
        raise NotImplementedError

    @hookspec
    def before_model_call(self, run: RunView, request: ModelRequest) -> Answer:
        """Vote on a request before it is sent.

        When: before every request, auxiliary ones (repair, summary) included.
        What you get: the whole request; its history is valid.
        What your answer does: `rewrite` replaces `tools` or `model` of the request, or has the history shortened first
            (`compaction`), `hint` adds a note first, `wind_down` asks for a final answer, `stop` ends the run before
            the request is sent.
        If you raise: the rule's `on_error` applies.
        Example:
            if run.iteration > 10: return run.stop("max_steps", limit=10)
        """
        raise NotImplementedError

    @hookspec
    def after_model_response(self, run: RunView, response: ModelResponse) -> Answer:
        """Vote on a response before it is parsed.

        When: after every successful request.
        What you get: the response as the provider sent it, with usage where it was reported.
        What your answer does: `retry` asks again within the iteration, `hint` queues a note, `stop` ends the run.
        If you raise: the rule's `on_error` applies.
        Example:
            run.state.tokens += (response.usage.total_tokens or 0) if response.usage else 0
        """
        raise NotImplementedError

    @hookspec
    def after_parse(self, run: RunView, verdict: Verdict, calls: Sequence[ToolCall]) -> Answer:
        """Vote on what the parser made of a response.

        When: after parsing, before an unusable response is warned about and before any call is judged.
        What you get: the verdict, and the calls it found (also calls of an unusable response, which will not run).
        What your answer does: `retry` asks again, `rewrite` replaces the verdict (for example its kind by `repeat`),
            `hint` queues a note, `end_step`, `wind_down` and `stop` as everywhere.
        If you raise: the rule's `on_error` applies.
        Example:
            if verdict.kind == "prose": return run.hint("answer_in_json")
        """
        raise NotImplementedError

    @hookspec
    def after_provider_error(self, run: RunView, error: ProviderError) -> Answer:
        """Vote on a failed request.

        When: after a request failed and the failure was classified.
        What you get: the class of the failure, its text, status and retry-after time.
        What your answer does: `retry` (from `run.recover`) sends the request again, after a `Remedy` if one is given;
            `stop` ends the run with a typed reason. With no opinion the run ends as failed.
        If you raise: the rule's `on_error` applies.
        Example:
            if error.code == "overloaded": return run.recover("overloaded", Remedy("wait", wait_s=2.0))
        """
        raise NotImplementedError

    @hookspec
    def hist_add_warning_start(self, run: RunView, warning: HistoryWarning) -> Answer:
        """Vote on a warning before it is added to the history.

        When: before the warning about an unusable response is added.
        What you get: the warning's kind, text and data.
        What your answer does: `rewrite` replaces the text or the kind.
        If you raise: the rule's `on_error` applies.
        Example:
            return run.rewrite("shorter", text=warning.text[:200])
        """
        raise NotImplementedError

    @hookspec
    def hist_add_warning_end(self, run: RunView, warning: HistoryWarning) -> Answer:
        """Vote after a warning was added to the history.

        When: after the warning about an unusable response was added.
        What you get: the warning's kind, text and data; count kinds, never compare texts.
        What your answer does: `stop` ends the run, `hint` queues a further note.
        If you raise: the rule's `on_error` applies.
        Example:
            if run.state.count >= 5: return run.stop("unusable_responses", observed=run.state.count, limit=5)
        """
        raise NotImplementedError

    @hookspec
    def before_tool_call(self, run: RunView, call: ToolCall, batch: Batch) -> Answer:
        """Vote on a tool call that is about to run.

        When: for every call of a batch, in call order, before anything of the batch runs.
        What you get: the call with its parsed arguments, and which batch it belongs to.
        What your answer does: `deny` answers the call with an error result, `ask` waits for a human, `rewrite`
            replaces arguments (the call is judged once more), `hint` waits for the end of the batch; `end_step` and
            `stop` run nothing of the batch; `wind_down` refuses the batch and asks for a final answer.
        If you raise: the call is denied, unless the rule's `on_error` says otherwise.
        Example:
            if call.name == "drop_table": return run.deny("never_allowed")
        """
        raise NotImplementedError

    @hookspec
    def after_tool_call(self, run: RunView, call: ToolCall, result: ToolResult) -> Answer:
        """Vote on the result of a tool call.

        When: once the result is known, in call order; also for calls that never ran (`result.ran` is false).
        What you get: the call and its result.
        What your answer does: `rewrite` replaces fields of the result, `hint` queues a note that is added after all
            results of the batch, `stop` ends the run after the batch.
        If you raise: the rule's `on_error` applies.
        Example:
            if run.failed(call, result): return run.hint("tool_failed", tool=call.name)
        """
        raise NotImplementedError

    @hookspec
    def after_iteration(self, run: RunView, iteration: Iteration) -> Answer:
        """Vote at the end of each round of model and tools.

        When: inside the loop, after the results of the round were appended.
        What you get: the number of the round, how many calls it made and whether the response was usable.
        What your answer does: `hint` adds a note, `end_step`, `wind_down` and `stop` as everywhere.
        If you raise: the rule's `on_error` applies.
        Example:
            if iteration.number >= 40: return run.stop("max_steps", observed=iteration.number, limit=40)
        """
        raise NotImplementedError

    @hookspec
    def on_stop(self, run: RunView, stop: Any) -> None:
        """Hear that a guard ended the run, or that it waits for a human.

        When: when a stop, the end of a step, a wind-down, an ask or a hand-over is decided.
        What you get: the typed `StopReason` (code, rule, observed, limit, message).
        What your answer does: nothing; this is an observer.
        If you raise: it is logged.
        Example:
            counter[stop.code] += 1
        """
        raise NotImplementedError

    @hookspec
    def on_policy_loaded(self, snapshot: Any) -> None:
        """Hear that a new policy is in force.

        When: after the engine swapped to a new snapshot, the first one included.
        What you get: the frozen `PolicySnapshot` (name, revision, generation, digest).
        What your answer does: nothing; this is an observer.
        If you raise: it is logged; the snapshot stays in force.
        Example:
            gauge.set(snapshot.generation)
        """
        raise NotImplementedError

    @hookspec
    def on_policy_rejected(self, problems: Sequence[Any]) -> None:
        """Hear that an edited policy was rejected and the last good one stays in force.

        When: once per failing content.
        What you get: the positioned problems.
        What your answer does: nothing; this is an observer.
        If you raise: it is logged.
        Example:
            pager.notify(str(problems[0]))
        """
        raise NotImplementedError


class HookPoint(msgspec.Struct, frozen=True):
    """One row of the hook table: policy spelling, method, payload names in order, accepted actions.

    An empty `actions` marks an observer.
    """

    name: str
    method: str
    payload: tuple[str, ...]
    actions: frozenset[str]

    @property
    def decides(self) -> bool:
        """Whether answers at this hook change what happens."""
        return bool(self.actions)


def _point(name: str, payload: str, actions: str) -> HookPoint:
    granted = frozenset(actions.split())
    return HookPoint(name, name.replace(".", "_"), tuple(payload.split()), granted | {"record"} if granted else granted)


HOOKS: dict[str, HookPoint] = {
    point.name: point
    for point in (
        _point("run_start", "task", "hint"),
        _point("run_end", "outcome", ""),
        _point("step_start", "step", "hint end_step"),
        _point("step_end", "step", "hint end_step"),
        _point("before_model_call", "request", "rewrite hint wind_down stop"),
        _point("after_model_response", "response", "retry hint stop"),
        _point("after_parse", "verdict calls", "retry rewrite hint end_step wind_down stop"),
        _point("after_provider_error", "error", "retry stop"),
        _point("hist_add_warning.start", "warning", "rewrite"),
        _point("hist_add_warning.end", "warning", "stop hint"),
        _point("before_tool_call", "call batch", "hint deny ask rewrite end_step wind_down stop"),
        _point("after_tool_call", "call result", "rewrite hint stop"),
        _point("after_iteration", "iteration", "hint end_step wind_down stop"),
        _point("on_stop", "stop", ""),
        _point("on_policy_loaded", "snapshot", ""),
        _point("on_policy_rejected", "problems", ""),
    )
}
"""Every hook point by its policy spelling."""

BY_METHOD: dict[str, HookPoint] = {point.method: point for point in HOOKS.values()}
"""The same table by method name."""
