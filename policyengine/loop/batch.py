"""The calls of one response: judged, asked about, run, answered in their order.

Knows: that every call gets exactly one answer, whatever is decided. Must not know: how a call was read, who runs it.
"""

from __future__ import annotations

from policyengine.actions import Ask, Deny, WindDown
from policyengine.decision import Decision
from policyengine.draft import Draft
from policyengine.errors import UsageError
from policyengine.history import build as history
from policyengine.loop import ending, settings, sharing, steps
from policyengine.loop.state import Answered, AskHuman, CallTools, Effect, Goto, Loop, Next, Pending, ToolJob
from policyengine.messages import Batch, ModelResponse, Status, ToolCall, ToolError, ToolResult
from policyengine.run import HumanAnswer
from policyengine.runstate import StopReason


def judge(loop: Loop, draft: Draft) -> Next:
    """Judge every call of the batch, in call order, before anything runs."""
    state, run, verdict = loop.state, loop.run, draft.verdict
    reserve = sharing.for_calls(loop, verdict.calls, draft)
    if reserve is not None:
        state.pending = [Pending(call) for call in verdict.calls]  # not left unanswered if the run is given up
        return reserve
    run.state.batches += 1
    batch_id = f"batch-{run.state.batches}"
    state.pending = []
    for index, call in enumerate(verdict.calls):
        decision = run.before_tool_call(call, Batch(batch_id, index))
        number = run.state.calls
        call = decision.changed or call
        state.pending.append(_judged(loop, call, decision, draft))
        if ending.ends(decision) and state.ending is None:
            state.ending = run.stopped(decision, call=number)
        elif isinstance(decision.control, WindDown):
            ending.wind_down(loop, decision, run.state.iteration, number)
        elif state.pending[-1].ask and state.asking is None:
            state.asking = run.stopped(decision, call=number)
    if state.ending is not None or state.winding_down is not None:
        _refuse_rest(loop)
    if any(item.ask for item in state.pending):
        return ask_human(loop)
    return run_tools(loop)


def judge_reserved(loop: Loop) -> Next:
    """Judge the calls for which places were reserved."""
    return judge(loop, sharing.draft_of(loop))


def _judged(loop: Loop, call: ToolCall, decision: Decision, draft: Draft) -> Pending:
    render = loop.run.snapshot.templates.render
    if isinstance(decision.control, Deny):
        error = ToolError(decision.control.code, decision.message, False)
        return Pending(call, ToolResult(call.id, history.refusal(decision), "denied", error))
    if call.id in draft.verdict.unknown:
        loop.run.set_aside(call, "unknown_tool")
        names = [tool.name for tool in settings.offered(loop.state)]
        text = render("unknown_tool", {"tool": call.name, "offered": names})
        return Pending(call, ToolResult(call.id, text, "error", ToolError("unknown_tool", text, False)))
    if call.id in draft.invalid:
        loop.run.set_aside(call, "invalid_arguments")
        text = render("invalid_arguments", {"tool": call.name, "problem": draft.invalid[call.id]})
        return Pending(call, ToolResult(call.id, text, "error", ToolError("invalid_arguments", text, True)))
    return Pending(call, None, isinstance(decision.control, Ask))


def _refuse_rest(loop: Loop) -> None:
    """Nothing of the batch runs: answer every call that has no answer yet."""
    state = loop.state
    render = loop.run.snapshot.templates.render
    stopping = state.ending
    state.asking = None
    for item in state.pending:
        item.ask = False
        if item.result is not None:
            continue
        if stopping is not None:
            alone = len(state.pending) == 1
            text = render("not_run", {"rule": stopping.rule, "tool": item.call.name, "alone": alone})
            code = "not_run"
        else:
            text, code = render("wind_down.refuse", {"tool": item.call.name}), "wind_down"
        item.result = ToolResult(item.call.id, text, "not_run", ToolError(code, text, False))


def ask_human(loop: Loop) -> Effect:
    """Wait for a human who says whether the calls may run."""
    state = loop.state
    state.phase = "human"
    asked = tuple(item.call for item in state.pending if item.ask)
    if state.asking is None:
        raise UsageError("nothing is being asked")
    return AskHuman(asked, state.asking)


def human_answered(loop: Loop, answer: Answered) -> Next:
    """Run the calls that were asked about, or answer that they may not run, with what the human said."""
    rule, approved = loop.state.asking.rule if loop.state.asking else "", answer.approved is True
    for item in loop.state.pending:
        if item.ask:
            word: HumanAnswer = "approved" if approved else "refused"
            loop.run.human_answered(item.call, word, rule, by=answer.by, at=answer.at, text=answer.text)
        if item.ask and not approved:
            item.result = _refused(loop, item, answer.text)
        item.ask = item.unknown = False
    loop.state.asking = None
    return run_tools(loop)


def _refused(loop: Loop, item: Pending, said: str) -> ToolResult:
    """Return the answer to a call that a human does not let run, or not again."""
    render, asking = loop.run.snapshot.templates.render, loop.state.asking
    status: Status
    if item.unknown:
        code, status = "unknown_outcome", "error"
        text = render(code, {"tool": item.call.name})
    else:
        code, status = "refused_by_human", "denied"
        text = render("denied", {"tool": item.call.name, "rule": asking.rule if asking else ""})
    text = f"{text}\n{said}" if said.strip() else text
    return ToolResult(item.call.id, text, status, ToolError(code, text, False))


def run_tools(loop: Loop) -> Next:
    """Run what has no answer yet; the calls that change the plan are answered here."""
    steps.update(loop)
    loop.state.phase = "tools"
    calls = open_calls(loop)
    return calls if calls.jobs else tools_done(loop, ())


def open_calls(loop: Loop) -> CallTools:
    """Return the calls that have no answer yet, to be run."""
    waiting = (item.call for item in loop.state.pending if item.result is None)
    return CallTools(tuple(ToolJob(call, loop.run.snapshot.tool(call.name).timeout_s) for call in waiting))


def tools_done(loop: Loop, results: tuple[ToolResult, ...]) -> Next:
    """Report every result in call order, append them, and only then let notes follow."""
    state, run = loop.state, loop.run
    by_id = {result.call_id: result for result in results}
    waiting = {item.call.id for item in state.pending if item.result is None}
    if set(by_id) != waiting:
        raise UsageError(f"results for {sorted(by_id)} do not answer the calls {sorted(waiting)}")
    state.executed += len(by_id)
    for item in state.pending:
        result, decision = run.after_tool_call(item.call, item.result or by_id[item.call.id])
        state.messages.append(ending.told(loop, item.call, result))
        item.answered = True
        if ending.ends(decision) and state.ending is None:
            state.ending = run.stopped(decision)
    count = len(state.pending)
    state.pending = []
    return end_iteration(loop, count, True)


def end_iteration(loop: Loop, calls: int, usable: bool) -> Next:
    """End the round; a round of calls in a wind-down uses up one of its refusal rounds."""
    run = loop.run
    decision = run.end_iteration(calls, usable)
    if ending.ends(decision) and loop.state.ending is None:
        loop.state.ending = run.stopped(decision)
    else:
        ending.wind_down(loop, decision, run.state.iteration)
    if calls and loop.state.winding_down is not None and run.state.iteration > loop.state.wound_after:
        loop.state.refusals_left -= 1
    return Goto.ITERATION


def unused(loop: Loop, response: ModelResponse, reason: StopReason) -> Next:
    """A stop between response and batch: keep the response, answer its calls, run nothing."""
    state = loop.state
    state.ending = reason
    if response.text.strip() or response.tool_calls:
        state.messages.append(history.assistant(response, state.protocol))
    state.last_text = response.text or state.last_text
    state.pending = [Pending(call) for call in response.tool_calls]
    _refuse_rest(loop)
    return tools_done(loop, ())
