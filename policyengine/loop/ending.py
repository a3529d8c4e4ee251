"""How a run, a round or a wind-down comes to its end, and what the outcome holds.

Knows: reasons, outcomes, the answer to every open call. Must not know: what comes after, who decided.
"""

from __future__ import annotations

from policyengine.actions import EndStep, Stop, WindDown
from policyengine.decision import Decision, Note
from policyengine.history import build as history
from policyengine.loop.state import Cancelled, Effect, Finish, Goto, Loop, Next
from policyengine.messages import Message, ToolCall, ToolError, ToolResult
from policyengine.outcome import Outcome, OutcomeStatus
from policyengine.runstate import StopReason


def ends(decision: Decision) -> bool:
    """Return whether a decision ends the run or the step."""
    return isinstance(decision.control, Stop | EndStep)


def wind_down(loop: Loop, decision: Decision, after: int, call: int | None = None) -> None:
    """Ask for a final answer if a decision says so; calls are refused from now on. The first reason stands.

    Rounds after iteration number `after` count as refusal rounds; `call` is the number of the call being judged.
    """
    state = loop.state
    if not isinstance(decision.control, WindDown) or state.winding_down is not None:
        return
    reason = state.winding_down = loop.run.stopped(decision, call=call)
    state.wound_after = after
    state.refusals_left = loop.run.snapshot.policy.wind_down_rounds
    loop.run.queue_note(Note(reason.rule, "wind_down", reason.message))


def end_now(loop: Loop, decision: Decision) -> Next:
    """End the run; where there is a plan and only the step ends, go on with the next one."""
    reason = loop.run.stopped(decision)
    if reason.action == "end_step" and loop.state.plan is not None:
        loop.state.ending = reason
        return Goto.ITERATION
    return stop(loop, reason)


def stop(loop: Loop, reason: StopReason) -> Effect:
    """End the run for a reason: stopped, or waiting for a human."""
    status: OutcomeStatus = "waiting" if reason.action == "hand_over" else "stopped"
    return finish(loop, status, reason)


def finish(
    loop: Loop, status: OutcomeStatus, stop: StopReason | None, output: str | None = None, error: str = ""
) -> Effect:
    """End the run with its outcome."""
    state, run = loop.state, loop.run
    flush_notes(loop)
    outcome = Outcome(
        status=status,
        output=state.last_text if output is None else output,
        stop=stop,
        error=error,
        iterations=state.rounds,
        calls=run.state.calls,
        executed=state.executed,
        interventions=run.state.interventions,
        prompt_tokens=state.prompt_tokens,
        completion_tokens=state.completion_tokens,
        messages=tuple(state.messages),
        failed_attempts=tuple(state.failed),
        plan=state.plan,
        undelivered=tuple(state.inbox),
    )
    run.end(outcome)
    state.phase = "done"
    state.outcome = outcome
    return Finish(outcome)


def flush_notes(loop: Loop) -> None:
    """Put the queued notes into the history; only where every call is answered."""
    for note in loop.run.take_notes():
        loop.state.messages.append(history.note(note.text, note.rule))


def told(loop: Loop, call: ToolCall, result: ToolResult) -> Message:
    """Return the message that tells the model the result of a call, in the form the policy wants (`tool_results`)."""
    return history.tool(call, result, loop.state.protocol, loop.run.envelope(call, result))


def answer(loop: Loop, text: str, reason: StopReason | None = None) -> Effect:
    """The model gave its final answer: the round ends, and with it the run; no rule can stop it any more."""
    loop.run.end_iteration(0, True)
    return finish(loop, "completed", reason or loop.state.winding_down, text)


def cancel(loop: Loop, event: Cancelled) -> Effect:
    """Answer what is open, truthfully, so that the history stays valid, and end the run."""
    state, run = loop.state, loop.run
    finished = {result.call_id: result for result in event.finished}
    started = state.phase == "tools"
    open_calls = [item for item in state.pending if not item.answered]
    for item in open_calls:
        if item.result is None and started:
            state.executed += 1
        result = item.result or finished.get(item.call.id) or _abandoned(loop, item.call, started)
        result, _ = run.after_tool_call(item.call, result)
        state.messages.append(told(loop, item.call, result))
        item.answered = True
    if open_calls:
        run.end_iteration(len(state.pending), True)
    state.pending = []
    return finish(loop, event.status, None, error=event.why)


def _abandoned(loop: Loop, call: ToolCall, started: bool) -> ToolResult:
    """Return the answer to a call whose result nobody waits for any more."""
    kind = "interrupted" if started else "cancelled"
    text = loop.run.snapshot.templates.render(kind, {"tool": call.name})
    return ToolResult(call.id, text, "error" if started else "not_run", ToolError(kind, text, False))
