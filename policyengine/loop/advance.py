"""The loop as a transition function: an event in, an effect out.

Knows: which event belongs to which phase, and who is handed what.
Must not know: models, tools, threads, clocks, any particular guard.

Nothing in this package does I/O: drivers (`agent`) perform effects and feed back events. All of it lives in
`LoopState`, plain data, so a run can be saved and resumed at any phase. The history is valid whenever a request is
built: every tool call of an assistant message is answered directly after it, and notes only follow where nothing is
left unanswered.
"""

from __future__ import annotations

from collections.abc import Callable

from policyengine.errors import UsageError
from policyengine.loop import (
    arguments,
    batch,
    compaction,
    ending,
    iteration,
    reading,
    recovery,
    requests,
    resuming,
    sharing,
    steps,
)
from policyengine.loop.state import (
    Answered,
    Begin,
    CallModel,
    Cancelled,
    Effect,
    Event,
    Finish,
    Goto,
    Loop,
    Next,
    PickedUp,
    RequestFailed,
    Reserved,
    Responded,
    ToolsDone,
    Wait,
    Waited,
)
from policyengine.messages import ModelRequest, ModelResponse, ProviderError
from policyengine.providers.errors.remedies import with_remedies


def advance(loop: Loop, event: Event) -> Effect:
    """Take the run from one effect to the next.

    Raises:
        UsageError: the event does not fit the phase (for example results while a request is open).
    """
    following = _begin_with(loop, event)
    while isinstance(following, Goto):
        following = PLACES[following](loop)
    if loop.run.state.shared is not None and not isinstance(event, Cancelled):
        following = sharing.settle_first(loop, following)
    return following


def _begin_with(loop: Loop, event: Event) -> Next:
    phase = loop.state.phase
    match event:
        case Cancelled() if phase != "done":
            return _cancelled(loop, event)
        case Begin() if phase == "new":
            return iteration.begin(loop, event)
        case Responded() if phase == "model":
            return _responded(loop, event.response)
        case RequestFailed() if phase == "model":
            return _failed(loop, with_remedies(event.error))
        case ToolsDone() if phase == "tools":
            return batch.tools_done(loop, event.results)
        case Reserved() if phase == "reserving":
            following = sharing.reserved(loop, event)
            return effect_now(loop) if following is None else following
        case Waited() if phase == "waiting":
            return Goto.REQUEST
        case PickedUp() if phase == "tools":
            return resuming.pick_up(loop, {result.call_id: result for result in event.results})
        case PickedUp() if phase != "new":
            return effect_now(loop)
        case Answered() if phase == "human":
            return batch.human_answered(loop, event)
    raise UsageError(f"event {type(event).__name__} does not fit phase {phase!r}")


PLACES: dict[Goto, Callable[[Loop], Next]] = {
    Goto.ITERATION: iteration.begin_next,
    Goto.REQUEST: requests.send,
    Goto.FAILED: recovery.ask_rules,
    Goto.DOUBTFUL: reading.read_doubtful,
    Goto.PLAN: steps.ask_for_plan,
    Goto.STEP: steps.begin_next,
    Goto.SUMMARY: compaction.ask_for_summary,
    Goto.REPAIR: arguments.ask_for_repair,
    Goto.BATCH: batch.judge_reserved,
}


def effect_now(loop: Loop) -> Effect:
    """Return the effect a resumed run waits for, rebuilt from its state.

    Calls that were running when the run was saved run again; `PickedUp` is for a driver that can do better.
    """
    match loop.state.phase:
        case "model":
            return CallModel(_open_request(loop))
        case "tools":
            return batch.open_calls(loop)
        case "human":
            return batch.ask_human(loop)
        case "waiting":
            return Wait(loop.state.wait_s)
        case "reserving":
            return sharing.reserve_again(loop)
        case "done" if loop.state.outcome is not None:
            return Finish(loop.state.outcome)
    raise UsageError("the run has not begun: send Begin")


def _open_request(loop: Loop) -> ModelRequest:
    """Return the request that was sent and not answered yet."""
    state = loop.state
    if state.compacting is not None:
        return compaction.summary_request(loop, state.compacting)
    if state.planning:
        return steps.plan_request(loop)
    if state.summing_up:
        return steps.summary_request(loop)
    return requests.build(loop) if state.draft is None else arguments.repair_request(loop, state.draft)


def _responded(loop: Loop, response: ModelResponse) -> Next:
    """A response came: count it, and hand it to whoever asked for it."""
    state = loop.state
    state.requests += 1
    state.rounds = loop.run.state.iteration
    if response.usage is not None:
        state.prompt_tokens += response.usage.prompt_tokens or 0
        state.completion_tokens += response.usage.completion_tokens or 0
    if state.compacting is not None:
        return compaction.summarised(loop, response, state.compacting)
    if state.planning:
        return steps.planned(loop, response)
    if state.summing_up:
        return steps.summed_up(loop, response)
    if state.draft is not None:
        return arguments.repaired(loop, response)
    return reading.hear(loop, response)


def _cancelled(loop: Loop, event: Cancelled) -> Next:
    """Give the run up; one that only had to settle what it owes has ended already."""
    state = loop.state
    if state.phase == "reserving" and state.reserving is not None and state.outcome is not None:
        state.phase, state.reserving = "done", None
        return Finish(state.outcome)
    return ending.cancel(loop, event)


def _failed(loop: Loop, error: ProviderError) -> Next:
    """A request failed: without an auxiliary one the run goes on, for the next response the rules are asked."""
    state = loop.state
    state.requests += 1
    sharing.failed(loop, error.code)
    if state.compacting is not None or state.planning or state.summing_up or state.draft is not None:
        loop.run.auxiliary_failed(error)
    if state.compacting is not None:
        return compaction.not_summarised(loop)
    if state.planning:
        return steps.not_planned(loop)
    if state.summing_up:
        return steps.not_summed_up(loop)
    if state.draft is not None:
        return arguments.not_repaired(loop, state.draft)
    state.failing = error
    return Goto.FAILED
