"""OpenHands' stuck detector at its defaults: `is_stuck` after every round, as its loop asks before the next one.

Knows: the SDK's conversation state and events. Must not know: other guards, our engine.

A failed result is told as its event for errors (`AgentErrorEvent`), which is what it is where the tool raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks.peer import new_state
from benchmarks.peers.model import Check, Made, Peer, Played, Turn


class _Guard:
    def __init__(self, run: Played, *, thoughts: bool = True) -> None:
        self._thoughts = thoughts
        self._state = new_state()
        detector = import_module("openhands.sdk.conversation.stuck_detector").StuckDetector
        self._detector: Any = detector(self._state)
        self._event, self._llm = import_module("openhands.sdk.event"), import_module("openhands.sdk.llm")
        self._action, self._observation = _types()

    def checks(self, turn: Turn) -> Iterator[Check]:
        for text in turn.said:
            self._say("user", text)
        for made in turn.calls:
            self._called(turn, made)
        for made in turn.calls:
            self._answered(made)
        if not turn.calls and turn.response.text:
            self._say("agent", turn.response.text)
        yield self._detector.is_stuck

    def _say(self, source: str, text: str) -> None:
        role = "user" if source == "user" else "assistant"
        message = self._llm.Message(role=role, content=[self._llm.TextContent(text=text)])
        self._state.append_event(self._event.MessageEvent(source=source, llm_message=message))

    def _called(self, turn: Turn, made: Made) -> None:
        call = made.call
        self._state.append_event(
            self._event.ActionEvent(
                thought=[self._llm.TextContent(text=turn.response.text if self._thoughts else "")],
                action=self._action(args=made.args),
                tool_name=call.name,
                tool_call_id=call.id,
                tool_call=self._llm.MessageToolCall(
                    id=call.id, name=call.name, arguments=call.arguments, origin="completion"
                ),
                llm_response_id=f"response-{turn.number}",
            )
        )

    def _answered(self, made: Made) -> None:
        if made.result is None:
            return
        about = {"tool_name": made.call.name, "tool_call_id": made.call.id}
        if made.failed:
            event = self._event.AgentErrorEvent(error=made.text, **about)
        else:
            seen = self._observation.from_text(made.text)
            event = self._event.ObservationEvent(observation=seen, action_id=made.call.id, **about)
        self._state.append_event(event)


_made: list[Any] = []


def _types() -> tuple[Any, Any]:
    """Return an action with any arguments and an observation; the SDK allows each name once."""
    if not _made:
        tool, model = import_module("openhands.sdk.tool.schema"), import_module("pydantic").create_model
        _made.append(model("RecordedAction", __base__=tool.Action, args=(dict[str, Any], ...)))
        _made.append(model("RecordedObservation", __base__=tool.Observation))
    return _made[0], _made[1]


PEERS = (
    Peer("openhands-sdk", "openhands-sdk", "`StuckDetector.is_stuck`", _Guard, policy="peers/openhands"),
    Peer(
        "openhands-sdk, thoughts left out",
        "openhands-sdk",
        "the same, told calls without the text beside them: what our policy compares",
        partial(_Guard, thoughts=False),
        policy="peers/openhands",
        ends=False,
    ),
)
