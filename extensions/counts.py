"""What the rules share that stop a run after a number of results of one kind.

Knows: how results are counted: once per batch, in a row or in total. Must not know: which results count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from policyengine import Action, Batch, Extension, RunView, ToolCall, ToolResult, hookimpl

UNKNOWN_TOOL = "unknown_tool"
"""The code of the engine's answer to a call of a tool that does not exist."""

COUNT: dict[str, Any] = {"type": "string", "allowed": ["consecutive", "total"], "default": "consecutive"}


def stop_option(default: int) -> dict[str, Any]:
    """Return the schema of the option `stop`."""
    return {"type": "integer", "min": 1, "max": 1_000, "default": default, "meta": {"stricter": "lower"}}


def is_unknown_tool(result: ToolResult) -> bool:
    """Return whether a result says that there is no such tool."""
    return result.error is not None and result.error.code == UNKNOWN_TOOL


class Counter(msgspec.Struct):
    """How often something was counted, in all and since it last did not count."""

    total: int = 0
    in_a_row: int = 0


def one_more(counter: Counter, *, in_a_row: bool) -> int:
    """Count once more, and return the number that is compared with the limit."""
    counter.total += 1
    counter.in_a_row += 1
    return counter.in_a_row if in_a_row else counter.total


class Tally(Counter):
    """What was counted. `batch` is the batch being judged, `counted_in` the latest one that was counted."""

    batch: str = ""
    counted_in: str = ""


class StopAfter(Extension):
    """Base of rules that stop after `stop` results of one kind, in a row or in total.

    Results of one batch count once, because the model could not react between them. A result that does not count
    ends the row, unless it says nothing (`counts` returns `None`); a call that did not run never says anything.
    """

    code: ClassVar[str] = ""
    needs = frozenset({"after_tool_call"})
    state = Tally

    def counts(self, run: RunView, call: ToolCall, result: ToolResult) -> bool | None:
        """Return whether a result counts (true), ends the row (false), or says nothing (`None`)."""
        raise NotImplementedError

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        return {"after_tool_call": ("stop",)}

    @hookimpl
    def before_tool_call(self, run: RunView, call: ToolCall, batch: Batch) -> Action | None:
        """Take note of the batch: it tells batches apart where a host counts no rounds."""
        run.state.batch = batch.id
        return None

    @hookimpl
    def after_tool_call(self, run: RunView, call: ToolCall, result: ToolResult) -> Action | None:
        """Count the result; stop at the limit."""
        says = self.counts(run, call, result) if result.ran else None
        if says is None:
            return None
        tally: Tally = run.state
        if not says:
            tally.in_a_row = 0
            return None
        this_batch = f"{run.iteration}/{tally.batch}"
        if tally.counted_in == this_batch:
            return None
        tally.counted_in = this_batch
        in_a_row = self.options.count == "consecutive"
        count, limit = one_more(tally, in_a_row=in_a_row), self.options.stop
        if count < limit:
            return None
        return run.stop(self.code, observed=count, limit=limit, tool=call.name, in_a_row=in_a_row)
