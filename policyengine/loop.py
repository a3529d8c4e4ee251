"""The loop as a transition function: an event in, an effect out.

Knows: phases, the order of one iteration, what a decision means for the history.
Must not know: models, tools, threads, clocks, any particular guard.

Nothing here does I/O: drivers (`agent`) perform effects and feed back events. All of it lives in `LoopState`, plain
data, so a run can be saved and resumed at any phase. The history is valid whenever a request is built: every tool
call of an assistant message is answered directly after it, and notes only follow where nothing is left unanswered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from policyengine.actions import Ask, Deny, EndStep, Remedy, Retry, Rewrite, Stop, WindDown
from policyengine.decision import Decision, Note
from policyengine.draft import Draft, check_calls, corrected, repair_notice
from policyengine.errors import UsageError
from policyengine.history import build as history
from policyengine.history.compact import PER_TOKEN, Cut, part_to_summarise, plan_cut, shortened
from policyengine.history.reasoning import pass_reasoning
from policyengine.jsontext import encode
from policyengine.loopstate import (
    Answered,
    AskHuman,
    Begin,
    CallModel,
    CallTools,
    Cancelled,
    Effect,
    Event,
    Finish,
    Loop,
    LoopState,
    Pending,
    RequestFailed,
    Responded,
    ToolJob,
    ToolsDone,
    Wait,
    Waited,
)
from policyengine.messages import (
    Batch,
    Compaction,
    HistoryWarning,
    Message,
    ModelRequest,
    ModelResponse,
    ProviderError,
    ToolCall,
    ToolError,
    ToolResult,
    ToolSpec,
)
from policyengine.outcome import FailedAttempt, Outcome, OutcomeStatus
from policyengine.parsing.forms import examples_of
from policyengine.parsing.guess import as_parsed, settle_guess
from policyengine.parsing.parse import CUT_REASONS, parse_response
from policyengine.parsing.verdict import ANSWERED, FALLBACK, WARNING_KINDS, Verdict
from policyengine.plans import (
    SET_PLAN,
    UPDATE_STEP,
    Plan,
    Step,
    finish_current,
    plan_from,
    plan_snapshot,
    ready,
    set_plan_tool,
    single_step,
    snapshot_digest,
    start_next,
    update_plan,
    update_step_tool,
    with_result,
)
from policyengine.plans.plan import MAX_RESULT
from policyengine.policy.model import Parsing
from policyengine.providers.errors.overflow import INFERRED, find_silent_overflow
from policyengine.providers.errors.remedies import with_remedies
from policyengine.remedies import CHANGES
from policyengine.responses import visible_text
from policyengine.results.envelope import tool_result_envelope
from policyengine.runstate import StopReason

KEPT_ATTEMPTS = 20
"""How many failed attempts an outcome holds; the journal holds all."""

MAX_RECOVERIES = 12
"""How often an iteration may deal with a failed request; a rule that never gives up must not keep the run alive."""


def advance(loop: Loop, event: Event) -> Effect:
    """Take the run from one effect to the next.

    Raises:
        UsageError: the event does not fit the phase (for example results while a request is open).
    """
    phase = loop.state.phase
    match event:
        case Cancelled() if phase != "done":
            return _cancel(loop, event)
        case Begin() if phase == "new":
            return _begin(loop, event)
        case Responded() if phase == "model":
            return _responded(loop, event.response)
        case RequestFailed() if phase == "model":
            return _failed(loop, with_remedies(event.error))
        case ToolsDone() if phase == "tools":
            return _tools_done(loop, event.results)
        case Waited() if phase == "waiting":
            return _request(loop)
        case Answered() if phase == "human":
            return _answered(loop, event.approved is True)
    raise UsageError(f"event {type(event).__name__} does not fit phase {phase!r}")


def effect_now(loop: Loop) -> Effect:
    """Return the effect a resumed run waits for, rebuilt from its state.

    Calls that were running when the run was saved run again: only a store that records outcomes can do better.
    """
    match loop.state.phase:
        case "model":
            return _request(loop, judged=True)
        case "tools":
            return _run_tools(loop)
        case "human":
            return _ask(loop)
        case "waiting":
            return Wait(loop.state.wait_s)
        case "done" if loop.state.outcome is not None:
            return Finish(loop.state.outcome)
    raise UsageError("the run has not begun: send Begin")


# ---- one iteration, in order


def _begin(loop: Loop, event: Begin) -> Effect:
    if not event.task.strip():
        raise UsageError("the task is empty; providers refuse empty messages")
    loop.state.messages.append(history.user(event.task))
    decision = loop.run.start(event.task)
    if _ends(decision):
        return _finish(loop, "stopped", loop.run.stopped(decision))
    if event.plan is None and loop.run.snapshot.policy.plan.mode == "off":
        _deliver(loop)
        return _next_iteration(loop)
    if event.plan is None and loop.run.snapshot.policy.plan.decompose:
        return _ask_for_plan(loop)
    return _follow(loop, event.plan or single_step(event.task))


def _next_iteration(loop: Loop) -> Effect:
    state = loop.state
    if state.ending is not None and state.ending.action == "end_step" and state.plan is not None:
        return _step_ended(loop, state.plan, state.ending)
    if state.ending is not None:
        status: OutcomeStatus = "waiting" if state.ending.action == "hand_over" else "stopped"
        return _finish(loop, status, state.ending)
    if state.plan is not None and not state.plan.current and ready(state.plan):
        return _next_step(loop)
    if state.winding_down is not None and state.refusals_left <= 0:
        return _finish(loop, "stopped", state.winding_down)
    loop.run.begin_iteration()
    state.attempt = state.asked_again = state.repairs = state.recoveries = 0
    state.aside = ()
    state.failing = None
    return _request(loop)


def _request(loop: Loop, *, judged: bool = False) -> Effect:
    """Build the next request; `judged` requests were reported before and are only rebuilt."""
    state = loop.state
    _flush_notes(loop)
    if judged:
        return CallModel(_open_request(loop))
    state.changes = None
    state.doubtful = None
    state.attempt += 1
    decision = loop.run.before_model_call(_build(loop))
    if _ends(decision):
        return _end_now(loop, loop.run.stopped(decision))
    if isinstance(decision.control, WindDown):
        _wind_down(loop, loop.run.stopped(decision), loop.run.state.iteration - 1)
    _flush_notes(loop)
    wanted = decision.changed.compaction if decision.changed is not None else None
    if wanted is not None and state.compacted_in != loop.run.state.iteration:
        shorter = _compact(loop, wanted)
        if shorter is not None:
            return shorter
    state.phase = "model"
    state.changes = decision.changed
    return CallModel(_build(loop))


def _build(loop: Loop) -> ModelRequest:
    state = loop.state
    source = state.changes or state
    messages = (*_passed(loop, state.messages, source.model), *state.aside)
    return ModelRequest(
        messages,
        source.tools,
        state.attempt,
        "main",
        source.model,
        max_tokens=state.max_tokens,
        thinking=state.thinking,
    )


def _passed(loop: Loop, messages: Sequence[Message], model: str = "") -> Sequence[Message]:
    """Return the messages with the reasoning that the model's rule passes on."""
    return pass_reasoning(messages, loop.run.snapshot.policy.model(model or loop.state.model).reasoning)


def _open_request(loop: Loop) -> ModelRequest:
    """Return the request that was sent and not answered yet."""
    state = loop.state
    if state.compacting is not None:
        return _summary_request(loop, state.compacting)
    if state.planning:
        return _plan_request(loop)
    if state.summing_up:
        return _step_summary_request(loop)
    return _build(loop) if state.draft is None else _repair_request(loop, state.draft)


def _offered(state: LoopState) -> tuple[ToolSpec, ...]:
    """Return the tools of the open request: a rule may have withheld some, and those must not run either."""
    return (state.changes or state).tools


def _responded(loop: Loop, response: ModelResponse) -> Effect:
    """A response came: count it, and hand it to whoever asked for it."""
    state = loop.state
    state.rounds = loop.run.state.iteration
    if response.usage is not None:
        state.prompt_tokens += response.usage.prompt_tokens or 0
        state.completion_tokens += response.usage.completion_tokens or 0
    if state.compacting is not None:
        return _summarised(loop, response, state.compacting)
    if state.planning:
        return _planned(loop, response)
    if state.summing_up:
        return _summed_up(loop, response)
    if state.draft is not None:
        return _repaired(loop, response)
    hidden = _silent_overflow(loop, response)
    if hidden is None:
        return _judged_response(loop, response)
    # Where the provider does not say so itself, the overflow is inferred, and an inference must not end a run.
    state.doubtful = response if hidden.message in INFERRED else None
    return _failed(loop, hidden)


def _judged_response(loop: Loop, response: ModelResponse) -> Effect:
    """Let a response be judged, read it, and let the reading be judged."""
    state, run = loop.state, loop.run
    response = history.with_ids(response, run.state.iteration)
    seen = run.after_model_response(response)
    if _ends(seen):
        return _unused(loop, response, run.stopped(seen))
    if isinstance(seen.control, Retry):
        return _retry(loop, response, seen.message)
    response, verdict = _parsed(loop, response)
    decision = run.after_parse(verdict)
    verdict = decision.changed or verdict
    if _ends(decision):
        return _unused(loop, response, run.stopped(decision))
    if isinstance(decision.control, Retry):
        return _retry(loop, response, decision.message)
    if isinstance(decision.control, WindDown):
        _wind_down(loop, run.stopped(decision), run.state.iteration)
    if verdict.reason != FALLBACK:
        state.last_text = verdict.text or state.last_text
    if not verdict.usable:
        return _unreadable(loop, response, verdict)
    if verdict.final and verdict.reason in (ANSWERED, FALLBACK):
        return _answered_for(loop, decision, verdict)
    if verdict.final and not verdict.text.strip():
        return _unusable(loop, _without_calls(response), "empty", _problem(loop, response, "nothing_left"))
    if verdict.final:
        state.messages.append(history.assistant(_without_calls(response), state.protocol))
        return _answer(loop, verdict.text) if state.plan is None else _step_answered(loop, state.plan, verdict.text)
    if decision.changed is not None and state.protocol == "native":
        response, verdict = _as_rewritten(loop, response, verdict)
    _note_recovery(loop, response, verdict)
    return _check_arguments(loop, Draft(response, verdict))


def _answered_for(loop: Loop, decision: Decision, verdict: Verdict) -> Effect:
    """End with what a tool said already, or with the words of a rule; the history holds neither as said by the model.

    Words that are not the model's are never reported without the rule that said them.
    """
    reason = _rewriter(loop, decision) if verdict.reason == FALLBACK else None
    text = loop.state.last_text if verdict.reason == ANSWERED else verdict.text
    if loop.state.plan is not None:
        return _step_answered(loop, loop.state.plan, text, reason)
    return _answer(loop, text, reason)


def _rewriter(loop: Loop, decision: Decision) -> StopReason | None:
    """Return whose rewrite counted, as a reason; `None` where no rule but the parser gave the verdict."""
    votes = ((vote, action) for vote in decision.votes for action in vote.effective if isinstance(action, Rewrite))
    vote, action = next(votes, (None, None))
    if vote is None or action is None:
        return None
    reason = StopReason(
        code=action.code,
        rule=vote.rule,
        at=vote.at,
        action=action.name,
        observed=action.observed,
        limit=action.limit,
        iteration=loop.run.state.iteration,
    )
    loop.run.tell_stop(reason)
    return reason


def _note_recovery(loop: Loop, response: ModelResponse, verdict: Verdict) -> None:
    """Tell the model that its call had to be found amid prose; once, until a clean call breaks the streak."""
    if verdict.guess and not loop.state.recovered:
        forms = examples_of(_parsing(loop, response).forms)
        text = loop.run.snapshot.templates.render("recovered", {"protocol": loop.state.protocol, "forms": forms})
        loop.run.queue_note(Note("parsing", "recovered", text))
    loop.state.recovered = verdict.guess


def _without_calls(response: ModelResponse) -> ModelResponse:
    """Return a final answer without the calls that a rule took out of it: nobody would answer them."""
    return msgspec.structs.replace(response, tool_calls=(), raw=None) if response.tool_calls else response


def _as_rewritten(loop: Loop, response: ModelResponse, verdict: Verdict) -> tuple[ModelResponse, Verdict]:
    """Store the calls that a rule put into the verdict, under ids of their own, so that each gets its answer."""
    if verdict.calls == response.tool_calls:
        return response, verdict
    changed = msgspec.structs.replace(response, tool_calls=verdict.calls, raw=None)
    changed = history.with_ids(changed, loop.run.state.iteration)
    names = {tool.name for tool in _offered(loop.state)}
    unknown = tuple(call.id for call in changed.tool_calls if call.name not in names)
    return changed, msgspec.structs.replace(verdict, calls=changed.tool_calls, unknown=unknown)


def _parsed(loop: Loop, response: ModelResponse) -> tuple[ModelResponse, Verdict]:
    """Return the response as history keeps it, and the verdict that is acted on."""
    state, run = loop.state, loop.run
    parsing = _parsing(loop, response)
    schemas = {tool.name: tool.parameters for tool in _offered(state)}
    verdict = parse_response(
        response,
        protocol=state.protocol,
        tools=schemas,
        mode=parsing.mode,
        text_fallback=parsing.text_fallback,
        forms=parsing.forms,
    )
    verdict = settle_guess(verdict, lambda name: run.snapshot.tool(name).effect)
    if state.protocol == "text":
        return response, verdict
    return as_parsed(response, verdict, f"call-{run.state.iteration}-")


# ---- arguments against the tool's schema, before anything is judged


def _check_arguments(loop: Loop, draft: Draft) -> Effect:
    """Repair arguments where the policy allows it; ask for a correction, ask again, or refuse the calls that remain."""
    state, run = loop.state, loop.run
    settings = _parsing(loop, draft.response)
    draft = check_calls(draft, {tool.name: tool for tool in _offered(state)}, settings.arguments)
    if draft.invalid and state.repairs < settings.repair_calls:
        return _ask_for_repair(loop, draft)
    if draft.invalid and state.asked_again < settings.max_retry:
        call, hint = draft.first_invalid()
        notice = run.snapshot.templates.render("call.invalid_arguments", {"tool": call.name, "problem": hint})
        return _ask_again(loop, draft.response, HistoryWarning("invalid_arguments", notice, {"problem": hint}))
    state.messages.append(history.assistant(draft.response, state.protocol))
    return _judge_batch(loop, draft)


def _ask_for_repair(loop: Loop, draft: Draft) -> Effect:
    """Send one request that offers only the tool in question; its notice is never stored."""
    state, run = loop.state, loop.run
    state.repairs += 1
    state.draft = draft
    decision = run.before_model_call(_repair_request(loop, draft))
    if _ends(decision):
        state.draft = None
        return _unused(loop, draft.response, run.stopped(decision))
    if isinstance(decision.control, WindDown):
        _wind_down(loop, run.stopped(decision), run.state.iteration)
    state.phase = "model"
    return CallModel(_repair_request(loop, draft))


def _repair_request(loop: Loop, draft: Draft) -> ModelRequest:
    state = loop.state
    call, hint = draft.first_invalid()
    notice = repair_notice(loop.run.snapshot.templates, call, hint)
    tools = tuple(tool for tool in _offered(state) if tool.name == call.name)
    messages = (*_passed(loop, state.messages), history.note(notice, "repair"))
    return ModelRequest(messages, tools, state.attempt, "repair", state.model, call.name)


def _repaired(loop: Loop, response: ModelResponse) -> Effect:
    """Take the corrected arguments if they are there; what still does not fit is refused."""
    state, run = loop.state, loop.run
    draft, state.draft = state.draft, None
    if draft is None:
        raise UsageError("no call is being repaired")
    seen = run.after_model_response(response)
    if _ends(seen):
        return _unused(loop, draft.response, run.stopped(seen))
    return _check_arguments(loop, corrected(draft, response))


def _answer(loop: Loop, text: str, reason: StopReason | None = None) -> Effect:
    """The model gave its final answer: the round ends, and with it the run; no rule can stop it any more."""
    loop.run.end_iteration(0, True)
    return _finish(loop, "completed", reason or loop.state.winding_down, text)


def _retry(loop: Loop, response: ModelResponse, notice: str) -> Effect:
    """Ask again within the iteration; once the cap is reached, the response is unusable."""
    if loop.state.asked_again >= _parsing(loop, response).max_retry:
        return _unusable(loop, response, "misformat", _problem(loop, response, "retries_exhausted"))
    return _ask_again(loop, response, HistoryWarning("retry", notice))


def _unreadable(loop: Loop, response: ModelResponse, verdict: Verdict) -> Effect:
    """Ask again within the iteration, as often as the policy allows; then the response is unusable.

    The parse retry of the envelope article: the parser's own words and what was sent go with the request, on top of
    the whole history instead of in its place.
    """
    kind, data = WARNING_KINDS[verdict.kind], _problem(loop, response, verdict.reason)
    if loop.state.asked_again >= _parsing(loop, response).max_retry:
        return _unusable(loop, response, kind, data)
    variables = {"protocol": loop.state.protocol, "forms": (), **data}
    notice = loop.run.snapshot.templates.render(f"warning.{kind}", variables)
    return _ask_again(loop, response, HistoryWarning(kind, notice, data))


def _ask_again(loop: Loop, response: ModelResponse, problem: HistoryWarning) -> Effect:
    """Make one more attempt. The failed one goes with it, and with it only: history never holds it."""
    state = loop.state
    iteration, purpose = loop.run.state.iteration, "main" if state.draft is None else "repair"
    state.failed.append(FailedAttempt(iteration, state.attempt, purpose, problem.kind, problem.data, response))
    del state.failed[:-KEPT_ATTEMPTS]
    state.asked_again += 1
    state.aside = tuple(history.unusable(response, state.protocol, problem))
    return _request(loop)


def _parsing(loop: Loop, response: ModelResponse) -> Parsing:
    """Return the settings of parsing that hold for the model that answered."""
    return loop.run.snapshot.policy.parsing_of(response.model or loop.state.model)


def _problem(loop: Loop, response: ModelResponse, reason: str) -> dict[str, Any]:
    """Return the data of a warning: the reason, and how a reply has to look where the policy declares it."""
    forms = _parsing(loop, response).forms if loop.state.protocol == "text" else ()
    return {"reason": reason, "forms": examples_of(forms)} if forms else {"reason": reason}


def _unusable(loop: Loop, response: ModelResponse, kind: str, data: dict[str, Any]) -> Effect:
    """Keep the response in history, warn about it by kind, run nothing."""
    state, run = loop.state, loop.run
    warning, decision = run.add_warning(kind, data)
    state.messages += history.unusable(response, state.protocol, warning)
    if _ends(decision):
        state.ending = run.stopped(decision)
    return _end_iteration(loop, 0, False)


def _judge_batch(loop: Loop, draft: Draft) -> Effect:
    """Judge every call of the batch, in call order, before anything runs."""
    state, run, verdict = loop.state, loop.run, draft.verdict
    run.state.batches += 1
    batch_id = f"batch-{run.state.batches}"
    state.pending = []
    for index, call in enumerate(verdict.calls):
        decision = run.before_tool_call(call, Batch(batch_id, index))
        number = run.state.calls
        call = decision.changed or call
        state.pending.append(_judged(loop, call, decision, draft))
        if _ends(decision) and state.ending is None:
            state.ending = run.stopped(decision, call=number)
        elif isinstance(decision.control, WindDown) and state.winding_down is None:
            _wind_down(loop, run.stopped(decision, call=number), run.state.iteration)
        elif state.pending[-1].ask and state.asking is None:
            state.asking = run.stopped(decision, call=number)
    if state.ending is not None or state.winding_down is not None:
        _refuse_rest(loop)
    if any(item.ask for item in state.pending):
        return _ask(loop)
    return _run_tools(loop)


def _judged(loop: Loop, call: ToolCall, decision: Decision, draft: Draft) -> Pending:
    render = loop.run.snapshot.templates.render
    if isinstance(decision.control, Deny):
        error = ToolError(decision.control.code, decision.message, False)
        return Pending(call, ToolResult(call.id, history.refusal(decision), "denied", error))
    if call.id in draft.verdict.unknown:
        text = render("unknown_tool", {"tool": call.name, "offered": [tool.name for tool in _offered(loop.state)]})
        return Pending(call, ToolResult(call.id, text, "error", ToolError("unknown_tool", text, False)))
    if call.id in draft.invalid:
        text = render("invalid_arguments", {"tool": call.name, "problem": draft.invalid[call.id]})
        return Pending(call, ToolResult(call.id, text, "error", ToolError("invalid_arguments", text, True)))
    return Pending(call, None, isinstance(decision.control, Ask))


def _refuse_rest(loop: Loop) -> None:
    """Nothing of the batch runs: answer every call that has no answer yet."""
    state = loop.state
    render = loop.run.snapshot.templates.render
    stopping = state.ending
    for item in state.pending:
        item.ask = False
        if item.result is not None:
            continue
        if stopping is not None:
            text, code = render("not_run", {"rule": stopping.rule, "tool": item.call.name}), "not_run"
        else:
            text, code = render("wind_down.refuse", {"tool": item.call.name}), "wind_down"
        item.result = ToolResult(item.call.id, text, "not_run", ToolError(code, text, False))


def _ask(loop: Loop) -> Effect:
    state = loop.state
    state.phase = "human"
    asked = tuple(item.call for item in state.pending if item.ask)
    if state.asking is None:
        raise UsageError("nothing is being asked")
    return AskHuman(asked, state.asking)


def _answered(loop: Loop, approved: bool) -> Effect:
    render = loop.run.snapshot.templates.render
    asking = loop.state.asking
    for item in loop.state.pending:
        if item.ask and not approved:
            text = render("denied", {"tool": item.call.name, "rule": asking.rule if asking else ""})
            item.result = ToolResult(item.call.id, text, "denied", ToolError("refused_by_human", text, False))
        item.ask = False
    loop.state.asking = None
    return _run_tools(loop)


def _run_tools(loop: Loop) -> Effect:
    state = loop.state
    _update_plan(loop)
    jobs = tuple(
        ToolJob(item.call, loop.run.snapshot.tool(item.call.name).timeout_s)
        for item in state.pending
        if item.result is None
    )
    state.phase = "tools"
    if not jobs:
        return _tools_done(loop, ())
    return CallTools(jobs)


def _tools_done(loop: Loop, results: tuple[ToolResult, ...]) -> Effect:
    """Report every result in call order, append them, and only then let notes follow."""
    state, run = loop.state, loop.run
    by_id = {result.call_id: result for result in results}
    waiting = {item.call.id for item in state.pending if item.result is None}
    if set(by_id) != waiting:
        raise UsageError(f"results for {sorted(by_id)} do not answer the calls {sorted(waiting)}")
    state.executed += len(by_id)
    for item in state.pending:
        result, decision = run.after_tool_call(item.call, item.result or by_id[item.call.id])
        state.messages.append(told(loop, item.call, result))
        item.answered = True
        if _ends(decision) and state.ending is None:
            state.ending = run.stopped(decision)
    count = len(state.pending)
    state.pending = []
    return _end_iteration(loop, count, True)


def told(loop: Loop, call: ToolCall, result: ToolResult) -> Message:
    """Return the message that tells the model the result of a call, in the form the policy wants (`tool_results`)."""
    run, text = loop.run, ""
    if run.snapshot.policy.tool_results == "envelope":
        facts, step, trace_id = run.snapshot.tool(call.name), run.state.iteration, run.state.run_id
        envelope = tool_result_envelope(result, tool=call.name, step=step, trace_id=trace_id, facts=facts)
        text = encode(envelope).decode()
    return history.tool(call, result, loop.state.protocol, text)


def _end_iteration(loop: Loop, calls: int, usable: bool) -> Effect:
    run = loop.run
    decision = run.end_iteration(calls, usable)
    if _ends(decision) and loop.state.ending is None:
        loop.state.ending = run.stopped(decision)
    elif isinstance(decision.control, WindDown) and loop.state.winding_down is None:
        _wind_down(loop, run.stopped(decision), run.state.iteration)
    if calls and loop.state.winding_down is not None and run.state.iteration > loop.state.wound_after:
        loop.state.refusals_left -= 1
    return _next_iteration(loop)


# ---- requests that fail, and histories that are too long


def _failed(loop: Loop, error: ProviderError) -> Effect:
    """Ask the rules what to do about a failed request; without an opinion the run ends as failed.

    A response that only seems to hide an overflow is then taken as it is.
    """
    state = loop.state
    if state.compacting is not None:
        return _not_summarised(loop)
    if state.planning:
        return _not_planned(loop)
    if state.summing_up:
        return _not_summed_up(loop)
    draft, state.draft = state.draft, None
    if draft is not None:  # no correction is to be had: the calls are refused as they are
        state.messages.append(history.assistant(draft.response, state.protocol))
        return _judge_batch(loop, draft)
    decision = loop.run.after_provider_error(error)
    if _ends(decision):
        return _end_now(loop, loop.run.stopped(decision))
    if isinstance(decision.control, Retry) and state.recoveries < MAX_RECOVERIES:
        state.recoveries += 1
        return _recover(loop, error, decision.control.remedy)
    response, state.doubtful = state.doubtful, None
    if response is not None:
        return _judged_response(loop, response)
    return _finish(loop, "failed", None, error=f"{error.code}: {error.message}")


def _recover(loop: Loop, error: ProviderError, remedy: Remedy | None) -> Effect:
    """Carry out a remedy and send the request again; if it changes nothing, the rules are asked again."""
    state = loop.state
    changed = True
    match remedy:
        case None:
            pass
        case Remedy(name="wait"):
            state.phase = "waiting"
            state.wait_s = remedy.wait_s
            return Wait(remedy.wait_s)
        case Remedy(name="compact"):
            state.failing = error
            shorter = _compact(loop, remedy.compaction or Compaction())
            if shorter is not None:
                return shorter
            state.failing = None
            changed = False
        case Remedy(name="fallback_model"):
            changed = state.model != remedy.model
            state.model = remedy.model
        case Remedy(name="reduce_max_tokens"):
            changed = state.max_tokens is None or (remedy.max_tokens or 0) < state.max_tokens
            state.max_tokens = remedy.max_tokens
        case Remedy(name="disable_thinking"):
            changed, state.thinking = state.thinking, False
        case _:
            new = CHANGES[remedy.name](state.messages)
            changed = new != state.messages
            state.messages = new
            state.size.reset()
    return _request(loop) if changed else _failed(loop, error)


def _silent_overflow(loop: Loop, response: ModelResponse) -> ProviderError | None:
    """Return the overflow that a response hides: most of the prompt was dropped, or no room left for an answer."""
    state = loop.state
    window = loop.run.snapshot.policy.model(response.model or state.model).window
    if window is None and response.usage is None:
        return None
    estimate = state.size.update(state.messages) // PER_TOKEN
    return find_silent_overflow(response, estimated_prompt_tokens=estimate, context_window=window)


def _compact(loop: Loop, how: Compaction) -> Effect | None:
    """Shorten the history and go on; `None` if there is nothing that could go."""
    state, run = loop.state, loop.run
    state.compacted_in = run.state.iteration
    cut = plan_cut(state.messages, how.keep)
    if cut is None:
        return None
    if how.strategy == "slide":
        notice = run.snapshot.templates.render("compaction.dropped", {})
        shorter = shortened(state.messages, cut, run.state.task, notice)
        return None if shorter is None else _go_on_with(loop, shorter)
    decision = run.before_model_call(_summary_request(loop, cut))
    if _ends(decision):
        return _end_now(loop, run.stopped(decision))
    state.compacting = cut
    state.phase = "model"
    return CallModel(_summary_request(loop, cut))


def _summary_request(loop: Loop, cut: Cut) -> ModelRequest:
    state = loop.state
    notice = loop.run.snapshot.templates.render("compaction.request", {})
    old = _passed(loop, part_to_summarise(state.messages, cut))
    messages = (*old, history.note(notice, "compaction"))
    return ModelRequest(messages, (), state.attempt, "summary", state.model, max_tokens=state.max_tokens)


def _summarised(loop: Loop, response: ModelResponse, cut: Cut) -> Effect:
    """Put the summary in the place of what it stands for; without one the history stays as it is, to the letter."""
    seen = loop.run.after_model_response(response)
    if _ends(seen):
        loop.state.compacting = None
        return _end_now(loop, loop.run.stopped(seen))
    summary = visible_text(response)
    if not summary or response.tool_calls or response.finish_reason in CUT_REASONS:
        return _not_summarised(loop)
    heading = loop.run.snapshot.templates.render("compaction.heading", {})
    shorter = shortened(loop.state.messages, cut, loop.run.state.task, f"{heading}\n{summary}")
    if shorter is None:
        return _not_summarised(loop)
    loop.state.compacting = None
    return _go_on_with(loop, shorter)


def _go_on_with(loop: Loop, messages: list[Message]) -> Effect:
    """Send the next request with a shorter history; a plan that may have been cut off is shown again."""
    state = loop.state
    state.messages = messages
    state.size.reset()
    state.failing = None
    if state.plan is not None:
        state.shown = ""
        _show_plan(loop)
    return _request(loop)


def _not_summarised(loop: Loop) -> Effect:
    """Go on without a summary: the failure that asked for one goes back to the rules, else the request is sent."""
    state = loop.state
    state.compacting = None
    error, state.failing = state.failing, None
    return _request(loop) if error is None else _failed(loop, error)


# ---- plans: the steps of a run, and what happens between them


def _ask_for_plan(loop: Loop) -> Effect:
    state, run = loop.state, loop.run
    state.planning = True
    decision = run.before_model_call(_plan_request(loop))
    if _ends(decision):
        state.planning = False
        return _finish(loop, "stopped", run.stopped(decision))
    state.phase = "model"
    return CallModel(_plan_request(loop))


def _plan_request(loop: Loop) -> ModelRequest:
    state, limit = loop.state, loop.run.snapshot.policy.plan.max_steps
    notice = loop.run.snapshot.templates.render("plan.decompose", {"tool": SET_PLAN, "limit": limit})
    messages = (*_passed(loop, state.messages), history.note(notice, "plan"))
    return ModelRequest(messages, (set_plan_tool(limit),), 1, "plan", state.model, SET_PLAN)


def _planned(loop: Loop, response: ModelResponse) -> Effect:
    """Follow the plan in a response; without one that can be followed, the task is one step."""
    seen = loop.run.after_model_response(response)
    if _ends(seen):
        loop.state.planning = False
        return _finish(loop, "stopped", loop.run.stopped(seen))
    made = plan_from(response, loop.run.snapshot.policy.plan.max_steps)
    if made.plan is None:
        return _not_planned(loop)
    loop.state.planning = False
    return _follow(loop, made.plan)


def _not_planned(loop: Loop) -> Effect:
    loop.state.planning = False
    return _follow(loop, single_step(loop.run.state.task))


def _follow(loop: Loop, plan: Plan) -> Effect:
    """Begin with the first step: only now the model is offered the tool that changes the plan."""
    state = loop.state
    tool = update_step_tool(loop.run.snapshot.policy.plan.max_steps)
    if any(spec.name == tool.name for spec in state.tools):
        raise UsageError(f"a tool is named {tool.name!r}, which a run with a plan needs for itself")
    state.tools = (*state.tools, tool)
    loop.run.plan(active=True)
    state.plan = start_next(plan)
    _deliver(loop)
    _show_plan(loop)
    return _next_iteration(loop)


def _update_plan(loop: Loop) -> None:
    """Answer the calls of a batch that change the plan, in call order."""
    state = loop.state
    for item in state.pending:
        if state.plan is None or item.result is not None or item.call.name != UPDATE_STEP:
            continue
        limit = loop.run.snapshot.policy.plan.max_steps
        updated = update_plan(state.plan, item.call.args, call_id=item.call.id, max_steps=limit)
        state.plan, item.result = updated.plan, updated.result


def _step_answered(loop: Loop, plan: Plan, text: str, reason: StopReason | None = None) -> Effect:
    """A text without calls ends the step it belongs to; after the last step it is the answer of the run.

    With a `reason` the text is not the model's: the step failed.
    """
    if plan.current:
        plan = loop.state.plan = finish_current(plan, "done" if reason is None else "failed", text)
    if not ready(plan):
        return _answer(loop, text, reason)
    decision = loop.run.end_iteration(0, True)
    if _ends(decision):
        loop.state.ending = loop.run.stopped(decision)
    return _next_iteration(loop)


def _step_ended(loop: Loop, plan: Plan, reason: StopReason) -> Effect:
    """A rule ended the step: it failed, and what depends on it with it. If nothing else can begin, so does the run."""
    state = loop.state
    state.ending = None
    if plan.current:
        plan = state.plan = finish_current(plan, "failed", reason.message or reason.code)
    if not ready(plan):
        return _finish(loop, "stopped", reason)
    return _next_step(loop)


def _next_step(loop: Loop) -> Effect:
    """Between two steps: sum up what ended, hear what peers sent, show the plan if it changed, begin the next step."""
    state = loop.state
    ended = next((step.id for step in state.plan.steps if _wants_summary(step)), "") if state.plan else ""
    if ended and loop.run.snapshot.policy.plan.summaries:
        return _sum_up(loop, ended)
    decision = loop.run.next_step()
    if isinstance(decision.control, Stop):
        return _end_now(loop, loop.run.stopped(decision))
    assert state.plan is not None
    state.plan = start_next(state.plan)
    _deliver(loop)
    _show_plan(loop)
    return _next_iteration(loop)


def _wants_summary(step: Step) -> bool:
    return step.state in ("done", "failed") and not step.result


def _sum_up(loop: Loop, step: str) -> Effect:
    state, run = loop.state, loop.run
    state.summing_up = step
    decision = run.before_model_call(_step_summary_request(loop))
    if _ends(decision):
        state.summing_up = ""
        return _finish(loop, "stopped", run.stopped(decision))
    state.phase = "model"
    return CallModel(_step_summary_request(loop))


def _step_summary_request(loop: Loop) -> ModelRequest:
    state = loop.state
    notice = loop.run.snapshot.templates.render("plan.step_summary", {**_about(state), "limit": MAX_RESULT})
    messages = (*_passed(loop, state.messages), history.note(notice, "plan"))
    return ModelRequest(messages, (), state.attempt, "step_summary", state.model)


def _about(state: LoopState) -> dict[str, str]:
    """Return the template variables about the step that is being summed up."""
    step = state.plan.step(state.summing_up) if state.plan else None
    return {"step": state.summing_up, "description": step.description if step else ""}


def _summed_up(loop: Loop, response: ModelResponse) -> Effect:
    """Keep the summary with the plan; an empty or cut-off one is replaced by a sentence of ours."""
    seen = loop.run.after_model_response(response)
    if _ends(seen):
        loop.state.summing_up = ""
        return _finish(loop, "stopped", loop.run.stopped(seen))
    text = "" if response.tool_calls or response.finish_reason in CUT_REASONS else visible_text(response)
    return _not_summed_up(loop, text)


def _not_summed_up(loop: Loop, text: str = "") -> Effect:
    state = loop.state
    assert state.plan is not None
    text = text or loop.run.snapshot.templates.render("plan.step_done_default", _about(state))
    state.plan, state.summing_up = with_result(state.plan, state.summing_up, text), ""
    return _next_step(loop)


def _show_plan(loop: Loop) -> None:
    """Tell the model the plan, if it is not the one it was told last."""
    state = loop.state
    assert state.plan is not None
    digest = snapshot_digest(state.plan)
    if digest != state.shown:
        state.shown = digest
        text = loop.run.snapshot.templates.render("plan.snapshot", plan_snapshot(state.plan))
        loop.run.queue_note(Note("plan", "plan.snapshot", text))


def _deliver(loop: Loop) -> None:
    """Put what peers sent into the history. Only where a step begins: in the middle of one it would only distract."""
    state = loop.state
    for message in state.inbox:
        heading = loop.run.snapshot.templates.render("peer.message", {"sender": message.sender})
        loop.run.user_message(message.text, injected=True)
        state.messages.append(Message("user", f"{heading}\n{message.text}", origin=f"peer:{message.sender}"))
    state.inbox = []


# ---- endings


def _ends(decision: Decision) -> bool:
    return isinstance(decision.control, Stop | EndStep)


def _wind_down(loop: Loop, reason: StopReason, after: int) -> None:
    """Ask for a final answer; calls are refused from now on. The first reason stands.

    Rounds after iteration number `after` count as refusal rounds.
    """
    state = loop.state
    if state.winding_down is None:
        state.winding_down = reason
        state.wound_after = after
        state.refusals_left = loop.run.snapshot.policy.wind_down_rounds
        loop.run.queue_note(Note(reason.rule, "wind_down", reason.message))


def _unused(loop: Loop, response: ModelResponse, reason: StopReason) -> Effect:
    """A stop between response and batch: keep the response, answer its calls, run nothing."""
    state = loop.state
    state.ending = reason
    if response.text.strip() or response.tool_calls:
        state.messages.append(history.assistant(response, state.protocol))
    state.last_text = response.text or state.last_text
    state.pending = [Pending(call) for call in response.tool_calls]
    _refuse_rest(loop)
    return _tools_done(loop, ())


def _end_now(loop: Loop, reason: StopReason) -> Effect:
    if reason.action == "end_step" and loop.state.plan is not None:
        return _step_ended(loop, loop.state.plan, reason)
    status: OutcomeStatus = "waiting" if reason.action == "hand_over" else "stopped"
    return _finish(loop, status, reason)


def _cancel(loop: Loop, event: Cancelled) -> Effect:
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
    return _finish(loop, event.status, None, error=event.why)


def _abandoned(loop: Loop, call: ToolCall, started: bool) -> ToolResult:
    """Return the answer to a call whose result nobody waits for any more."""
    kind = "interrupted" if started else "cancelled"
    text = loop.run.snapshot.templates.render(kind, {"tool": call.name})
    return ToolResult(call.id, text, "error" if started else "not_run", ToolError(kind, text, False))


def _finish(
    loop: Loop, status: OutcomeStatus, stop: StopReason | None, output: str | None = None, error: str = ""
) -> Effect:
    state, run = loop.state, loop.run
    _flush_notes(loop)
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


def _flush_notes(loop: Loop) -> None:
    for note in loop.run.take_notes():
        loop.state.messages.append(history.note(note.text, note.rule))
