"""Requests beside the one for the next response: a plan, a summary, a correction. Nothing of them is stored.

Knows: what they all carry, that rules see them like any other. Must not know: what they are for.
"""

from __future__ import annotations

from collections.abc import Sequence

from policyengine.decision import Decision
from policyengine.history import build as history
from policyengine.loop import ending, settings, sharing
from policyengine.loop.state import CallModel, Loop
from policyengine.messages import Message, ModelRequest, ToolSpec


def request(
    loop: Loop,
    purpose: str,
    notice: str,
    *,
    by: str,
    messages: Sequence[Message] | None = None,
    tools: tuple[ToolSpec, ...] = (),
    tool_choice: str = "",
) -> ModelRequest:
    """Return a request with the history (or these `messages`) and a notice in the name of `by` after it."""
    state = loop.state
    old = settings.passed(loop, state.messages if messages is None else messages)
    return ModelRequest(
        (*old, history.note(notice, by)),
        tools,
        max(state.attempt, 1),  # a plan is asked for before the first round
        purpose,
        state.model,
        tool_choice,
        max_tokens=state.max_tokens,
        thinking=state.thinking,
    )


def send(loop: Loop, asking: ModelRequest, after: int | None = None) -> CallModel | Decision:
    """Let a request be judged and send it; return the decision instead if that ends the run or the step.

    Who sends one has asked `sharing.for_request` before.
    `after` is that of `ending.wind_down`; without it, this round is the last that is no refusal round.
    """
    decision = loop.run.before_model_call(asking)
    if ending.ends(decision):
        sharing.unsent(loop)
        return decision
    ending.wind_down(loop, decision, loop.run.state.iteration if after is None else after)
    loop.state.phase = "model"
    return CallModel(asking)
