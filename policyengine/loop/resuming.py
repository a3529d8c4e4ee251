"""A run that goes on in another process: what is known of the calls that were running, and what only a human can say.

Knows: calls under way, which of them may simply run again. Must not know: stores, who asks the human.

Source: the field's reports of resumed agents that sent a mail or paid twice. A call whose outcome nobody knows is
never repeated silently: one that only reads is, one that may have changed something is a human's to decide.
"""

from __future__ import annotations

from collections.abc import Mapping

from policyengine.loop import batch
from policyengine.loop.state import Loop, Next
from policyengine.messages import ToolCall, ToolResult
from policyengine.runstate import StopReason

UNKNOWN = "unknown_outcome"
"""The machine reason of a question about calls that were running when their process ended."""


def pick_up(loop: Loop, results: Mapping[str, ToolResult]) -> Next:
    """Take the calls up that were running: `results` are known, by the calls' ids."""
    state = loop.state
    unknown = []
    for item in state.pending:
        if item.result is not None:
            continue
        item.result = results.get(item.call.id)
        if item.result is not None:
            state.executed += 1
        elif not _only_reads(loop, item.call):
            state.executed += 1
            item.ask = item.unknown = True
            unknown.append(item.call)
    if unknown:
        tools = sorted({call.name for call in unknown})
        text = loop.run.snapshot.templates.render("ask.unknown_outcome", {"tools": tools})
        state.asking = StopReason(UNKNOWN, "", action="ask", message=text, iteration=loop.run.state.iteration)
        loop.run.tell_stop(state.asking)
        return batch.ask_human(loop)
    calls = batch.open_calls(loop)
    return calls if calls.jobs else batch.tools_done(loop, ())


def _only_reads(loop: Loop, call: ToolCall) -> bool:
    """Return whether the policy declares that a call changes nothing; without a declaration it may."""
    return loop.run.snapshot.tool(call.name).effect in ("read", "poll")
