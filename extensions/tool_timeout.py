"""Stop a run whose tools keep running over their time.

Knows: which results have status `timeout`. Must not know: clocks, how a call is given up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from policyengine import Proof, RunView, ToolCall, ToolResult, call

from .counts import COUNT, StopAfter, is_unknown_tool, stop_option

# As often may one tool fail in a proof: other rules take a tool away that fails more often.
_PER_TOOL = 3


class ToolTimeout(StopAfter):
    """Stop after `stop` batches in which a call ran over its time; another result that came in time ends the row.

    The time itself is a fact about the tool: `tools: {search: {timeout: 10s}}` in the policy.
    """

    name = "tool_timeout"
    code = "tool_timeout"
    options: Any = {"stop": stop_option(3), "count": COUNT}
    messages = {"tool_timeout.stop": {"tool": "search", "in_a_row": True, "observed": 3, "limit": 3}}

    def counts(self, run: RunView, call: ToolCall, result: ToolResult) -> bool | None:
        """Return whether the call was given up; a call of a tool that does not exist says nothing."""
        return None if is_unknown_tool(result) else result.status == "timeout"

    def proofs(self) -> Iterable[Proof]:
        """Return calls of several tools that are all given up."""
        limit: int = self.options.stop
        turns = tuple(
            call(f"probe_{number // _PER_TOOL}", {"page": number}, f"page {number} took too long", status="timeout")
            for number in range(limit)
        )
        yield Proof("stop", "stop", self.code, limit, turns)
