"""LangChain's `ToolCallLimitMiddleware(run_limit=10, exit_behavior="end")`: `after_model` after every response.

Knows: that package. Must not know: other guards, our engine.

It has no default: the limit is that of the first example in its documentation, the reaction that of the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers.model import Check, Peer, Played, Turn

_LIMIT = 10


class _Guard:
    def __init__(self, run: Played) -> None:
        from langchain.agents.middleware import ToolCallLimitMiddleware
        from langchain_core.messages import AIMessage

        self._message: Any = AIMessage
        self._limit: Any = ToolCallLimitMiddleware(run_limit=_LIMIT, exit_behavior="end")
        self._state: dict[str, Any] = {}

    def checks(self, turn: Turn) -> Iterator[Check]:
        calls = [{"name": made.call.name, "args": made.args, "id": made.call.id} for made in turn.calls]
        self._state["messages"] = [self._message(content=turn.response.text, tool_calls=calls)]
        yield self._ends

    def _ends(self) -> bool:
        update = self._limit.after_model(self._state, None) or {}
        self._state.update(update)
        return update.get("jump_to") == "end"


PEERS = (Peer("langchain", "langchain", '`jump_to: "end"`', _Guard, policy="peers/langchain"),)
