"""Stop a run that takes too many rounds.

Knows: the number of the current round. Must not know: what happens in a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from policyengine import (
    Action,
    Extension,
    ModelRequest,
    OptionProblem,
    Proof,
    RunView,
    Turn,
    call,
    hookimpl,
    say,
)

CODE = "max_steps"

# A proof is played turn by turn. Beyond this many turns it would take longer than anybody waits for it.
_LONGEST_PROOF = 5_000


class StepLimit(Extension):
    """Let a run take exactly `max_steps` rounds, and ask for the final answer after `wind_down_at` of them.

    The limit is judged before a request is sent, not after a round: a run whose last permitted round brings the
    final answer completes, and a request over the limit is never paid for. The number of the round comes from the
    engine and belongs to the run, so the rule needs no state and no new step or user message resets it.
    """

    name = "step_limit"
    options: Any = {
        "max_steps": {"type": "integer", "min": 1, "max": 100_000, "default": 40, "meta": {"stricter": "lower"}},
        "wind_down_at": {
            "type": "integer",
            "min": 1,
            "max": 99_999,
            "meta": {"stricter": "lower", "absent": "loosest"},
        },
    }
    messages = {
        "max_steps.stop": {"observed": 40, "limit": 40},
        "max_steps.wind_down": {"observed": 35, "limit": 40},
    }

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report a wind-down that would come only when the run has been stopped already."""
        wind_down_at = options.get("wind_down_at")
        if wind_down_at is not None and wind_down_at >= options["max_steps"]:
            message = f"must be below max_steps ({options['max_steps']}), or it can never take effect"
            yield OptionProblem(("wind_down_at",), message)

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        return {"before_model_call": ("stop",) if self.wind_down_at is None else ("stop", "wind_down")}

    def proofs(self) -> Iterable[Proof]:
        """Return a run without end that must be wound down and stopped.

        Where a wind-down comes first, the turns after it are empty: calls would use up its rounds, and a text would
        be the final answer.
        """
        limit: int = self.options.max_steps
        wind_down_at: int | None = self.options.get("wind_down_at")
        if limit > _LONGEST_PROOF:
            return
        working = limit + 1 if wind_down_at is None else wind_down_at
        turns: tuple[Turn, ...] = tuple(call("probe", {"page": page}, f"page {page}") for page in range(working))
        turns += (say(""),) * (limit + 1 - working)
        if wind_down_at is not None:
            yield Proof("wind_down_at", "wind_down", CODE, wind_down_at + 1, turns[: wind_down_at + 1])
        yield Proof("max_steps", "stop", CODE, limit + 1, turns)

    def setup(self) -> None:
        """Look up the limits once."""
        self.max_steps: int = self.options.max_steps
        self.wind_down_at: int | None = self.options.get("wind_down_at")

    @hookimpl
    def before_model_call(self, run: RunView, request: ModelRequest) -> Action | None:
        """Stop before request number `max_steps` + 1; wind down after `wind_down_at` rounds."""
        done, limit = run.iteration - 1, self.max_steps
        if done >= limit:
            return run.stop(CODE, observed=done, limit=limit)
        if self.wind_down_at is not None and done >= self.wind_down_at:
            return run.wind_down(CODE, observed=done, limit=limit)
        return None
