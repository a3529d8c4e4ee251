"""Stop a run whose tools keep failing.

Knows: declared failures of calls. Must not know: what a tool's output means, calls of tools that do not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from policyengine import Proof, RunView, ToolCall, ToolResult, call

from .counts import COUNT, StopAfter, is_unknown_tool, stop_option

# As often may one tool fail in a proof: other rules take a tool away that fails more often.
_PER_TOOL = 3


class ToolFailures(StopAfter):
    """Stop after `stop` batches in which a call failed, whichever tool it was; a success ends the row.

    A failure is a declared fact (`RunView.failed`), timeouts included. Calls of tools that do not exist are none:
    they have a counter of their own (`unknown_tools`).
    """

    name = "tool_failures"
    code = "tool_failures"
    options: Any = {
        "stop": stop_option(5),
        "count": COUNT,
        "scope": {"type": "string", "allowed": ["run", "step"], "default": "run"},
    }
    messages = {"tool_failures.stop": {"tool": "search", "in_a_row": True, "observed": 5, "limit": 5}}

    def state_scope(self) -> Literal["run", "step"]:
        """Return the scope that the option of that name chooses."""
        return "step" if self.options.scope == "step" else "run"

    def counts(self, run: RunView, call: ToolCall, result: ToolResult) -> bool | None:
        """Return whether the call failed; a call of a tool that does not exist says nothing."""
        return None if is_unknown_tool(result) else run.failed(call, result)

    def proofs(self) -> Iterable[Proof]:
        """Return failures of several tools, each of which fails a few times."""
        limit: int = self.options.stop
        turns = tuple(
            call(f"probe_{number // _PER_TOOL}", {"page": number}, f"page {number} cannot be read", status="error")
            for number in range(limit)
        )
        yield Proof("stop", "stop", self.code, limit, turns)
