"""Stop a run whose responses keep being impossible to parse.

Knows: the kinds of warnings, and in which rounds they were added. Must not know: their texts, parsing, prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from policyengine import (
    Action,
    Extension,
    HistoryWarning,
    OptionProblem,
    Proof,
    RunView,
    Turn,
    call,
    hookimpl,
)

from .counts import COUNT, Counter, one_more, stop_option
from .warning_kinds import KINDS, kind_problems, kinds_option, unusable_turn

CODE = "parse_failures"


class Failed(Counter):
    """What was counted. `unusable` is the latest round with a warning about its response, counted or not."""

    unusable: int = 0
    counted: int = -1


class ParseFailures(Extension):
    """Stop after `stop` responses that could not be parsed, in total or in a row.

    Its counter is apart from the one of `stop_unusable_response_loop`, which mixes all kinds. A round counts once. A
    round without a warning ends the row; one with a warning of another kind neither counts nor ends it.
    """

    name = "parse_failures"
    options: Any = {
        "stop": stop_option(5),
        "kinds": kinds_option(["misformat", "truncated"]),
        "count": {**COUNT, "default": "total"},
    }
    state = Failed
    messages = {"parse_failures.stop": {"last": "misformat", "in_a_row": False, "observed": 5, "limit": 5}}

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report kinds that no response is warned about as: they would never be counted."""
        return kind_problems(options["kinds"])

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        return {"hist_add_warning.end": ("stop",)}

    def proofs(self) -> Iterable[Proof]:
        """Return responses that cannot be parsed, with usable ones between them where the total counts.

        `repeat` alone has no proof: a response is judged a repeat by another rule.
        """
        kind = next((kind for kind in ("misformat", "truncated", "empty", "reasoning_only") if kind in self.kinds), "")
        if not kind:
            return
        limit: int = self.options.stop
        turns: list[Turn] = []
        for number in range(limit):
            if number and self.options.count == "total":
                turns += (call("probe", {"page": 2 * number + page}, f"page {2 * number + page}") for page in (0, 1))
            turns.append(unusable_turn(kind, number))
        yield Proof("stop", "stop", CODE, len(turns), tuple(turns))

    def setup(self) -> None:
        """Look up the counted kinds once."""
        self.kinds = frozenset(self.options.kinds)

    @hookimpl
    def hist_add_warning_end(self, run: RunView, warning: HistoryWarning) -> Action | None:
        """Count the warning; stop at the limit."""
        counts = warning.kind in self.kinds
        if not counts and warning.kind not in KINDS:
            return None
        state: Failed = run.state
        now = run.iteration
        if now - state.unusable > 1:
            state.in_a_row = 0
        state.unusable = now
        if not counts or (now and state.counted == now):
            return None
        state.counted = now
        in_a_row = self.options.count == "consecutive"
        count, limit = one_more(state, in_a_row=in_a_row), self.options.stop
        if count < limit:
            return None
        return run.stop(CODE, observed=count, limit=limit, last=warning.kind, in_a_row=in_a_row)
