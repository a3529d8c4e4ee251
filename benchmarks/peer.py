"""OpenHands' stuck detector on the same steps, where `openhands-sdk` is installed (it needs Python 3.12).

Knows: the SDK's conversation state and events. Must not know: our engine.

The detector reads the last 20 events of the active branch (ten steps) and nothing before them, so a conversation with
the ten latest steps of a run costs it the same as one with all of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from uuid import uuid4

from benchmarks.scripted import Step


class Peer:
    """A conversation that is told every step; `is_stuck` is what its loop calls once per round."""

    def __init__(self, state: Any, detector: Any, make: Callable[[Step], tuple[Any, Any]]) -> None:
        self._state = state
        self._make = make
        self.is_stuck: Callable[[], bool] = detector.is_stuck

    def happened(self, step: Step) -> None:
        """Append the step's action and observation."""
        for event in self._make(step):
            self._state.append_event(event)


def sdk_version() -> str:
    """Return the installed version of the SDK, or nothing."""
    try:
        return version("openhands-sdk")
    except PackageNotFoundError:
        return ""


def new_state() -> Any:
    """Return the state of a conversation without events, kept in memory."""
    # Read at import: no request for a price list, no banner.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("OPENHANDS_SUPPRESS_BANNER", "1")
    sdk = import_module("openhands.sdk")
    conversation = import_module("openhands.sdk.conversation.state").ConversationState
    store = import_module("openhands.sdk.io").InMemoryFileStore
    workspace = import_module("openhands.sdk.workspace").LocalWorkspace
    logging.getLogger("openhands").setLevel(logging.ERROR)
    return conversation.create(
        id=uuid4(),
        agent=sdk.Agent(llm=sdk.LLM(model="none", api_key="none"), tools=[]),
        workspace=workspace(working_dir="."),
        file_store=store(),
    )


def make_peers(count: int) -> list[Peer]:
    """Return so many conversations without events. The SDK's models are kept as plain as it allows."""
    states = [new_state() for _ in range(count)]
    pydantic = import_module("pydantic")
    detector = import_module("openhands.sdk.conversation.stuck_detector").StuckDetector
    event, llm, tool = (import_module(f"openhands.sdk.{name}") for name in ("event", "llm", "tool.schema"))

    fields = {"path": str, "query": str, "options": dict[str, Any], "first_line": int, "last_line": int}
    action_type = pydantic.create_model(
        "ScriptedAction", __base__=tool.Action, **{name: (kind, ...) for name, kind in fields.items()}
    )
    observation_type = pydantic.create_model("ScriptedObservation", __base__=tool.Observation)

    def make(step: Step) -> tuple[Any, Any]:
        call = step.call
        action = event.ActionEvent(
            thought=[llm.TextContent(text=step.response.text)],
            action=action_type(**call.args),
            tool_name=call.name,
            tool_call_id=call.id,
            tool_call=llm.MessageToolCall(id=call.id, name=call.name, arguments=call.arguments, origin="completion"),
            llm_response_id=f"response-{call.id}",
        )
        observation = event.ObservationEvent(
            observation=observation_type.from_text(step.result.text),
            action_id=action.id,
            tool_name=call.name,
            tool_call_id=call.id,
        )
        return action, observation

    return [Peer(state, detector(state), make) for state in states]
