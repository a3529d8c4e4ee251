"""A history that is too long: shortened by a summary, or by leaving out what is old.

Knows: that a history is shortened as a whole or not at all. Must not know: why it is too long.
"""

from __future__ import annotations

from policyengine.decision import Decision
from policyengine.errors import UsageError
from policyengine.history.compact import Cut, part_to_summarise, plan_cut, shortened
from policyengine.loop import auxiliary, ending, sharing, steps
from policyengine.loop.state import Goto, Loop, Next
from policyengine.messages import Compaction, Message, ModelRequest, ModelResponse
from policyengine.parsing.parse import CUT_REASONS
from policyengine.responses import visible_text


def start(loop: Loop, how: Compaction) -> Next | None:
    """Shorten the history and go on; `None` if there is nothing that could go."""
    state, run = loop.state, loop.run
    state.compacted_in = run.state.iteration
    cut = plan_cut(state.messages, how.keep)
    if cut is None:
        return None
    if how.strategy == "slide":
        notice = run.snapshot.templates.render("compaction.dropped", {})
        shorter = shortened(state.messages, cut, run.state.task, notice)
        if shorter is None:
            return None
        sharing.unsent(loop)  # the request for which there was no room
        return _go_on_with(loop, shorter)
    sharing.unsent(loop)
    state.compacting = cut
    return ask_for_summary(loop)


def ask_for_summary(loop: Loop) -> Next:
    """Ask for a summary of what is to be cut off."""
    state = loop.state
    reserve = sharing.for_request(loop, Goto.SUMMARY)
    if reserve is not None:
        return reserve
    if state.compacting is None:
        raise UsageError("nothing is to be cut off")
    asked = auxiliary.send(loop, summary_request(loop, state.compacting), loop.run.state.iteration - 1)
    if isinstance(asked, Decision):
        state.compacting = None
        return ending.end_now(loop, asked)
    return asked


def summary_request(loop: Loop, cut: Cut) -> ModelRequest:
    """Return the request for a summary of what is to be cut off."""
    notice = loop.run.snapshot.templates.render("compaction.request", {})
    old = part_to_summarise(loop.state.messages, cut)
    return auxiliary.request(loop, "summary", notice, by="compaction", messages=old)


def summarised(loop: Loop, response: ModelResponse, cut: Cut) -> Next:
    """Put the summary in the place of what it stands for; without one the history stays as it is, to the letter."""
    seen = loop.run.after_model_response(response)
    if ending.ends(seen):
        loop.state.compacting = None
        return ending.end_now(loop, seen)
    summary = visible_text(response)
    if not summary or response.tool_calls or response.finish_reason in CUT_REASONS:
        return not_summarised(loop)
    heading = loop.run.snapshot.templates.render("compaction.heading", {})
    shorter = shortened(loop.state.messages, cut, loop.run.state.task, f"{heading}\n{summary}")
    if shorter is None:
        return not_summarised(loop)
    loop.state.compacting = None
    return _go_on_with(loop, shorter)


def _go_on_with(loop: Loop, messages: list[Message]) -> Next:
    """Send the next request with a shorter history; a plan that may have been cut off is shown again."""
    state = loop.state
    state.messages = messages
    state.size.reset()
    if state.plan is not None:
        state.shown = ""
        steps.show(loop)
    return Goto.REQUEST


def not_summarised(loop: Loop) -> Next:
    """Go on without a summary: the failure that asked for one goes back to the rules, else the request is sent."""
    loop.state.compacting = None
    return Goto.REQUEST if loop.state.failing is None else Goto.FAILED
