"""Plans: the steps of a run, and what happens between them.

Knows: where a step begins and ends, what is told there. Must not know: how a plan is kept valid (`plans`).
"""

from __future__ import annotations

from policyengine.actions import EndStep, Stop
from policyengine.decision import Decision, Note
from policyengine.errors import UsageError
from policyengine.loop import auxiliary, ending, sharing
from policyengine.loop.state import Goto, Loop, LoopState, Next
from policyengine.messages import Message, ModelRequest, ModelResponse
from policyengine.parsing.parse import CUT_REASONS
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
from policyengine.responses import visible_text
from policyengine.runstate import StopReason


def ask_for_plan(loop: Loop) -> Next:
    """Ask the model for a plan before anything else."""
    reserve = sharing.for_request(loop, Goto.PLAN)
    if reserve is not None:
        return reserve
    asked = auxiliary.send(loop, plan_request(loop))
    if isinstance(asked, Decision):
        return ending.end_now(loop, asked)
    loop.state.planning = True
    return asked


def plan_request(loop: Loop) -> ModelRequest:
    """Return the request for a plan; nothing of it is stored."""
    limit = loop.run.snapshot.policy.plan.max_steps
    notice = loop.run.snapshot.templates.render("plan.decompose", {"tool": SET_PLAN, "limit": limit})
    return auxiliary.request(loop, "plan", notice, by="plan", tools=(set_plan_tool(limit),), tool_choice=SET_PLAN)


def planned(loop: Loop, response: ModelResponse) -> Next:
    """Follow the plan in a response; without one that can be followed, the task is one step."""
    seen = loop.run.after_model_response(response)
    if ending.ends(seen):
        loop.state.planning = False
        return ending.end_now(loop, seen)
    made = plan_from(response, loop.run.snapshot.policy.plan.max_steps)
    if made.plan is None:
        return not_planned(loop)
    loop.state.planning = False
    return follow(loop, made.plan)


def not_planned(loop: Loop) -> Next:
    """Go on without a plan of the model's: the task is one step."""
    loop.state.planning = False
    return follow(loop, single_step(loop.run.state.task))


def follow(loop: Loop, plan: Plan) -> Next:
    """Begin with the first step: only now the model is offered the tool that changes the plan."""
    state = loop.state
    tool = update_step_tool(loop.run.snapshot.policy.plan.max_steps)
    if any(spec.name == tool.name for spec in state.tools):
        raise UsageError(f"a tool is named {tool.name!r}, which a run with a plan needs for itself")
    state.tools = (*state.tools, tool)
    loop.run.plan(active=True)
    state.plan = start_next(plan)
    deliver(loop)
    show(loop)
    return Goto.ITERATION


def update(loop: Loop) -> None:
    """Answer the calls of a batch that change the plan, in call order."""
    state = loop.state
    for item in state.pending:
        if state.plan is None or item.result is not None or item.call.name != UPDATE_STEP:
            continue
        limit = loop.run.snapshot.policy.plan.max_steps
        updated = update_plan(state.plan, item.call.args, call_id=item.call.id, max_steps=limit)
        state.plan, item.result = updated.plan, updated.result


def answered(loop: Loop, plan: Plan, text: str, reason: StopReason | None = None) -> Next:
    """A text without calls ends the step it belongs to; after the last step it is the answer of the run.

    So it is once the model was asked for its final answer, whatever steps are left. With a `reason` the text is not the
    model's: the step failed.
    """
    if plan.current:
        plan = loop.state.plan = finish_current(plan, "done" if reason is None else "failed", text)
    if not ready(plan) or loop.state.winding_down is not None:
        return ending.answer(loop, text, reason)
    decision = loop.run.end_iteration(0, True)
    if ending.ends(decision):
        loop.state.ending = loop.run.stopped(decision)
    ending.wind_down(loop, decision, loop.run.state.iteration)
    return Goto.ITERATION


def ended(loop: Loop, plan: Plan, reason: StopReason) -> Next:
    """A rule ended the step: it failed, and what depends on it with it. If nothing else can begin, so does the run."""
    state = loop.state
    state.ending = None
    if plan.current:
        plan = state.plan = finish_current(plan, "failed", reason.message or reason.code)
    if not ready(plan):
        return ending.finish(loop, "stopped", reason)
    return begin_next(loop)


def begin_next(loop: Loop) -> Next:
    """Between two steps: sum up what ended, hear what peers sent, show the plan if it changed, begin the next step."""
    state = loop.state
    ended = next((step.id for step in state.plan.steps if _wants_summary(step)), "") if state.plan else ""
    if ended and loop.run.snapshot.policy.plan.summaries:
        return _sum_up(loop, ended)
    decision = loop.run.next_step()
    if isinstance(decision.control, Stop):
        return ending.end_now(loop, decision)
    assert state.plan is not None
    state.plan = start_next(state.plan)
    if _ends_at_once(decision):
        state.ending = loop.run.stopped(decision)
        return Goto.ITERATION
    deliver(loop)
    show(loop)
    return Goto.ITERATION


def _ends_at_once(decision: Decision) -> bool:
    """Return whether a rule ends the step that begins; the one that ended cannot be ended again."""
    begun = (action for vote in decision.votes if vote.hook == "step_start" for action in vote.effective)
    return any(isinstance(action, EndStep) for action in begun)


def _wants_summary(step: Step) -> bool:
    return step.state in ("done", "failed") and not step.result


def _sum_up(loop: Loop, step: str) -> Next:
    reserve = sharing.for_request(loop, Goto.STEP)
    if reserve is not None:
        return reserve
    loop.state.summing_up = step
    asked = auxiliary.send(loop, summary_request(loop))
    if isinstance(asked, Decision):
        loop.state.summing_up = ""
        return ending.end_now(loop, asked)
    return asked


def summary_request(loop: Loop) -> ModelRequest:
    """Return the request for a summary of a step; nothing of it is stored."""
    state = loop.state
    notice = loop.run.snapshot.templates.render("plan.step_summary", {**_about(state), "limit": MAX_RESULT})
    return auxiliary.request(loop, "step_summary", notice, by="plan")


def _about(state: LoopState) -> dict[str, str]:
    """Return the template variables about the step that is being summed up."""
    step = state.plan.step(state.summing_up) if state.plan else None
    return {"step": state.summing_up, "description": step.description if step else ""}


def summed_up(loop: Loop, response: ModelResponse) -> Next:
    """Keep the summary with the plan; an empty or cut-off one is replaced by a sentence of ours."""
    seen = loop.run.after_model_response(response)
    if ending.ends(seen):
        loop.state.summing_up = ""
        return ending.end_now(loop, seen)
    text = "" if response.tool_calls or response.finish_reason in CUT_REASONS else visible_text(response)
    return not_summed_up(loop, text)


def not_summed_up(loop: Loop, text: str = "") -> Next:
    """Keep `text` as what came of the step, or a sentence of ours."""
    state = loop.state
    assert state.plan is not None
    text = text or loop.run.snapshot.templates.render("plan.step_done_default", _about(state))
    state.plan, state.summing_up = with_result(state.plan, state.summing_up, text), ""
    return begin_next(loop)


def show(loop: Loop) -> None:
    """Tell the model the plan, if it is not the one it was told last."""
    state = loop.state
    assert state.plan is not None
    digest = snapshot_digest(state.plan)
    if digest != state.shown:
        state.shown = digest
        text = loop.run.snapshot.templates.render("plan.snapshot", plan_snapshot(state.plan))
        loop.run.queue_note(Note("plan", "plan.snapshot", text))


def deliver(loop: Loop) -> None:
    """Put what peers sent into the history. Only where a step begins: in the middle of one it would only distract."""
    state = loop.state
    for message in state.inbox:
        heading = loop.run.snapshot.templates.render("peer.message", {"sender": message.sender})
        loop.run.user_message(message.text, injected=True)
        state.messages.append(Message("user", f"{heading}\n{message.text}", origin=f"peer:{message.sender}"))
    state.inbox = []
