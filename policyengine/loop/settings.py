"""What holds for the model that is asked: which tools it is offered, how it is read, which reasoning goes back to it.

Knows: the policy and the open request. Must not know: phases, decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

from policyengine.history.reasoning import pass_reasoning
from policyengine.loop.state import Loop, LoopState
from policyengine.messages import Message, ModelResponse, ToolSpec
from policyengine.policy.model import Parsing


def passed(loop: Loop, messages: Sequence[Message], model: str = "") -> Sequence[Message]:
    """Return the messages with the reasoning that the model's rule passes on."""
    return pass_reasoning(messages, loop.run.snapshot.policy.model(model or loop.state.model).reasoning)


def offered(state: LoopState) -> tuple[ToolSpec, ...]:
    """Return the tools of the open request: a rule may have withheld some, and those must not run either."""
    return (state.changes or state).tools


def parsing_of(loop: Loop, response: ModelResponse) -> Parsing:
    """Return the settings of parsing that hold for the model that answered."""
    return loop.run.snapshot.policy.parsing_of(response.model or loop.state.model)
