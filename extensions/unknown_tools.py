"""Stop a run that keeps calling tools that do not exist.

Knows: the code of the engine's answer to such a call. Must not know: which tools there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from policyengine import Proof, RunView, ToolCall, ToolError, ToolResult, call

from .counts import COUNT, UNKNOWN_TOOL, StopAfter, is_unknown_tool, stop_option


class UnknownTools(StopAfter):
    """Stop after `stop` batches with a call of a tool that does not exist; a call of one that does ends the row."""

    name = "unknown_tools"
    code = UNKNOWN_TOOL
    options: Any = {"stop": stop_option(3), "count": COUNT}
    messages = {"unknown_tool.stop": {"tool": "serach", "in_a_row": True, "observed": 3, "limit": 3}}

    def counts(self, run: RunView, call: ToolCall, result: ToolResult) -> bool | None:
        """Return whether there is no such tool."""
        return is_unknown_tool(result)

    def proofs(self) -> Iterable[Proof]:
        """Return calls that are answered as those of tools that do not exist."""
        limit: int = self.options.stop
        error = ToolError(UNKNOWN_TOOL, "no such tool")
        turns = tuple(
            call("probe", {"page": page}, f"no tool for page {page}", status="error", error=error)
            for page in range(limit)
        )
        yield Proof("stop", "stop", self.code, limit, turns)
