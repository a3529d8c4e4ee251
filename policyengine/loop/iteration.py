"""Where a run begins, and where each of its rounds does.

Knows: what may come between two rounds. Must not know: what happens within one.
"""

from __future__ import annotations

from policyengine.errors import UsageError
from policyengine.history import build as history
from policyengine.loop import ending, steps
from policyengine.loop.state import Begin, Goto, Loop, Next
from policyengine.plans import ready, single_step


def begin(loop: Loop, event: Begin) -> Next:
    """Begin the run, and with it the first round or the plan."""
    if not event.task.strip():
        raise UsageError("the task is empty; providers refuse empty messages")
    loop.state.messages.append(history.user(event.task))
    decision = loop.run.start(event.task)
    if ending.ends(decision):
        return ending.end_now(loop, decision)
    if event.plan is None and loop.run.snapshot.policy.plan.mode == "off":
        steps.deliver(loop)
        return Goto.ITERATION
    if event.plan is None and loop.run.snapshot.policy.plan.decompose:
        return steps.ask_for_plan(loop)
    return steps.follow(loop, event.plan or single_step(event.task))


def begin_next(loop: Loop) -> Next:
    """Carry out what was decided in the last round, and begin the next round if there is one."""
    state = loop.state
    if state.ending is not None and state.ending.action == "end_step" and state.plan is not None:
        return steps.ended(loop, state.plan, state.ending)
    if state.ending is not None:
        return ending.stop(loop, state.ending)
    if state.plan is not None and not state.plan.current and ready(state.plan):
        return steps.begin_next(loop)
    if state.winding_down is not None and state.refusals_left <= 0:
        return ending.finish(loop, "stopped", state.winding_down)
    loop.run.begin_iteration()
    state.attempt = state.asked_again = state.repairs = state.recoveries = 0
    state.aside = ()
    return Goto.REQUEST
