"""Tell the model how to go on after a tool failed, and refuse a tool that keeps failing.

Knows: how often each tool failed in this step, as declared facts.
Must not know: what a tool's output means, where a note ends up in the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from policyengine import (
    UPDATE_STEP,
    Action,
    Batch,
    Extension,
    OptionProblem,
    Proof,
    RunView,
    ToolCall,
    ToolError,
    ToolResult,
    Turn,
    call,
    hookimpl,
)

from .counts import is_unknown_tool

CODE = "tool_failure"
INSIST_CODE = "tool_failure_again"
LEVELS = ("hint", "insist", "deny")

# Tool names come from the model, so the number of tallies must not depend on it.
_MOST_TOOLS = 256
_THRESHOLD = {"type": "integer", "min": 1, "max": 1_000, "meta": {"stricter": "lower", "absent": "loosest"}}


class Tally(msgspec.Struct):
    """Failures of one tool (or of all, with `scope: step`) in this step.

    `in_a_row` ends with a success, `total` with the step. `noted` is the level of the latest note (1 hint, 2 insist),
    `warned_off` whether the model was told that a retry is pointless. `last` names the batch of the latest failure
    that was counted.
    """

    total: int = 0
    in_a_row: int = 0
    noted: int = 0
    warned_off: bool = False
    last: str = ""


class Failures(msgspec.Struct):
    """All tallies of a step, the refused tools with the count that led to it, and the batch being judged."""

    batch: str = ""
    tallies: dict[str, Tally] = {}
    refused: dict[str, int] = {}


class FailureHintInjector(Extension):
    """Note after the first failure of a tool, insist after the second, refuse it after the third in a row.

    A failure is a declared fact (`RunView.failed`), never a word in an output; a refusal by a guard is none. Failures
    of one tool in one batch count once, because the model could not react between them. `hint` and `insist` read the
    total of the step, and each is sent once: a tool that fails now and then is worth two notes, not a note each time.
    `deny` reads the failures in a row (or the total, with `count: total`), and lasts until the step ends.

    The second note has a code of its own (`tool_failure_again`), so that records tell a first failure from a lasting
    one. Where the tool says that a retry is pointless (`error.retryable` is false), the note that permits a retry is
    replaced by one that asks for an alternative.
    """

    name = "failure_hint_injector"
    options: Any = {
        "levels": {
            "type": "dict",
            "schema": dict.fromkeys(LEVELS, _THRESHOLD),
            "default": {"hint": 1, "insist": 2, "deny": 3},
        },
        "scope": {"type": "string", "allowed": ["tool", "step"], "default": "tool"},
        "count": {"type": "string", "allowed": ["consecutive", "total"], "default": "consecutive"},
    }
    needs = frozenset({"after_tool_call"})
    state = Failures
    scope = "step"
    messages = {
        "tool_failure.retry": {
            "tool": "search",
            "scope": "tool",
            "plan": "",
            "in_a_row": True,
            "observed": 1,
            "limit": 3,
        },
        "tool_failure.change": {
            "tool": "search",
            "scope": "tool",
            "plan": "",
            "in_a_row": True,
            "observed": 2,
            "limit": 3,
        },
        "tool_failure.no_retry": {
            "tool": "search",
            "scope": "tool",
            "plan": "",
            "in_a_row": True,
            "observed": 1,
            "limit": 3,
        },
        "tool_failure.deny": {"tool": "search", "scope": "tool", "in_a_row": True, "observed": 3, "limit": 3},
    }

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report levels that do not rise, and options that leave nothing to do."""
        given = [(level, options["levels"][level]) for level in LEVELS if options["levels"].get(level) is not None]
        for (lower, low), (higher, high) in pairwise(given):
            if high <= low:
                message = f"must be above {lower} ({low}): each level is reached after the one before it"
                yield OptionProblem(("levels", higher), message)
        if not given:
            yield OptionProblem(("levels",), "no level is set; set `mode: disabled` on the rule to switch it off")

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        before = ("deny",) if "deny" in self.levels else ()
        return {"before_tool_call": before, "after_tool_call": ("hint",) if self.has_notes else ()}

    def proofs(self) -> Iterable[Proof]:
        """Return a tool that fails again and again, and one that says a retry is pointless."""
        for level in LEVELS:
            number = self.levels.get(level)
            if number is not None:
                action, expect = ("deny", number + 1) if level == "deny" else ("hint", number)
                code = INSIST_CODE if level == "insist" else CODE
                yield Proof(f"levels.{level}", action, code, expect, _failing(expect))
        if self.has_notes:
            turns = _failing(1, ToolError("gone", "no such page", retryable=False, declared=True))
            yield Proof("not retryable", "hint", INSIST_CODE if self._level(1) > 1 else CODE, 1, turns)

    def setup(self) -> None:
        """Look up the configured levels once."""
        self.levels = {level: number for level, number in self.options.levels.items() if number is not None}
        self.has_notes = "hint" in self.levels or "insist" in self.levels
        self.by_tool = self.options.scope == "tool"

    @hookimpl
    def before_tool_call(self, run: RunView, call: ToolCall, batch: Batch) -> Action | None:
        """Refuse a tool that failed too often in this step."""
        run.state.batch = batch.id
        count = run.state.refused.get(call.name, 0)
        limit = self.levels.get("deny")
        if limit is None or count < limit:
            return None
        return run.deny(CODE, observed=count, limit=limit, **self._facts(call))

    @hookimpl
    def after_tool_call(self, run: RunView, call: ToolCall, result: ToolResult) -> Action | None:
        """Count the failure and queue a note where it reaches a level; a success ends the row."""
        if run.planned and call.name == UPDATE_STEP:
            return None  # a refused change of the plan says itself what would be right
        # A call to a tool that does not exist says nothing about the tools that do; `unknown_tools` counts those.
        if not result.ran or is_unknown_tool(result):
            return None
        state: Failures = run.state
        # Rounds and batch ids: a host may count only one of them.
        this_batch = f"{run.iteration}/{state.batch}"
        key = call.name if self.by_tool else ""
        if not run.failed(call, result):
            if key in state.tallies:
                state.tallies[key].in_a_row = 0
            return None
        tally = state.tallies.pop(key, None) or Tally()
        state.tallies[key] = tally
        if len(state.tallies) > _MOST_TOOLS:
            del state.tallies[next(iter(state.tallies))]
        if tally.last == this_batch:
            return None
        tally.last = this_batch
        tally.total += 1
        tally.in_a_row += 1
        self._refuse(state, call.name, tally)
        return self._note(run, call, tally, retryable=result.error is None or result.error.retryable is not False)

    def _refuse(self, state: Failures, tool: str, tally: Tally) -> None:
        count = tally.total if self.options.count == "total" else tally.in_a_row
        if count >= self.levels.get("deny", count + 1):
            state.refused[tool] = count
            if len(state.refused) > _MOST_TOOLS:
                del state.refused[next(iter(state.refused))]

    def _note(self, run: RunView, call: ToolCall, tally: Tally, *, retryable: bool) -> Action | None:
        """Return a note where a level is reached for the first time in this step, or a retry is first ruled out."""
        level = self._level(tally.total)
        news = level > tally.noted or not (retryable or tally.warned_off)
        if not news or not self.has_notes:
            return None
        tally.noted = max(level, tally.noted)
        code, kind = (INSIST_CODE, "change") if level > 1 else (CODE, "retry")
        if not retryable:
            tally.warned_off = True
            kind = "no_retry"
        limit = self.levels.get("deny")
        plan = UPDATE_STEP if run.planned else ""
        return run.hint(code, f"{CODE}.{kind}", observed=tally.total, limit=limit, plan=plan, **self._facts(call))

    def _facts(self, call: ToolCall) -> dict[str, Any]:
        return {"tool": call.name, "scope": self.options.scope, "in_a_row": self.options.count == "consecutive"}

    def _level(self, total: int) -> int:
        if total >= self.levels.get("insist", total + 1):
            return 2
        return 1 if total >= self.levels.get("hint", total + 1) else 0


def _failing(times: int, error: ToolError | None = None) -> tuple[Turn, ...]:
    """Return turns in which one tool fails, never twice with the same arguments or the same text."""
    return tuple(
        call("probe", {"page": page}, f"page {page} cannot be read", status="error", error=error)
        for page in range(times)
    )
