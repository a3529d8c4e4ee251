"""Stop a run whose responses keep being unusable.

Knows: the kinds of warnings, and in which rounds they were added. Must not know: their texts, parsing, prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from policyengine import (
    Action,
    Extension,
    HistoryWarning,
    Iteration,
    OptionProblem,
    Proof,
    RunView,
    Turn,
    call,
    hookimpl,
)

from .warning_kinds import KINDS, kind_problems, kinds_option, unusable_turn

CODE = "unusable_responses"

_WINDOW_FIELD = {"type": "integer", "required": True, "min": 1, "max": 1_000}


class Streak(msgspec.Struct):
    """What was counted so far. Rounds are numbered through all runs of the scope: `offset` + the number in `run`.

    `clock` is the latest round seen, `unusable` the latest one with a warning about its response (counted or not),
    `counted` the latest one that was counted. `kinds` are those of the current streak, in the order in which they
    came up; `recent` are the counted rounds inside the window, each with the kind that was counted first.
    """

    run: str = ""
    offset: int = 0
    clock: int = 0
    unusable: int = 0
    counted: int = -1
    count: int = 0
    kinds: list[str] = []
    recent: list[tuple[int, str]] = []


class StopUnusableResponseLoop(Extension):
    """Stop after a number of unusable responses in a row, or after too many of them among the latest rounds.

    One counter runs over all configured kinds of warnings. "In a row" means rounds: a round without a warning about
    its response was usable and ends the streak; a round with a warning of a kind that is not configured neither
    counts nor ends it. That follows from the numbers of the rounds alone, so the rule works on
    `hist_add_warning.end` by itself. It also listens to `after_iteration` to learn how far a run got, which tells
    two runs of a conversation apart where the first ended with a usable response.
    """

    name = "stop_unusable_response_loop"
    options: Any = {
        "max_consecutive_unusable_responses": {
            "type": "integer",
            "min": 1,
            "max": 1_000,
            "default": 5,
            "meta": {"stricter": "lower"},
        },
        "kinds": kinds_option(KINDS),
        "window": {
            "type": "dict",
            "schema": {
                "bad": {**_WINDOW_FIELD, "meta": {"stricter": "lower", "absent": "loosest"}},
                "of": {**_WINDOW_FIELD, "meta": {"stricter": "higher", "absent": "loosest"}},
            },
        },
        "scope": {"type": "string", "allowed": ["run", "conversation"], "default": "run"},
        "count": {"type": "string", "allowed": ["once", "every"], "default": "once"},
    }
    state = Streak
    messages = {
        "unusable_responses.stop": {"kinds": ["misformat", "empty"], "observed": 5, "limit": 5, "window": 0},
    }

    def state_scope(self) -> Literal["conversation", "run"]:
        """Return the scope that the option of that name chooses."""
        return "conversation" if self.options.scope == "conversation" else "run"

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report kinds that no response can have, and a window that cannot fire, or never as the first."""
        yield from kind_problems(options["kinds"])
        window = options.get("window")
        if window is not None:
            limit = options["max_consecutive_unusable_responses"]
            yield from _window_problems(limit, window["bad"], window["of"])

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        return {"hist_add_warning.end": ("stop",)}

    def proofs(self) -> Iterable[Proof]:
        """Return unusable responses in a row, and a mixture that only the window notices.

        `repeat` alone has no proof: a response is judged a repeat by another rule (`repeat_message`).
        """
        kind = next((kind for kind in ("truncated", "empty", "reasoning_only", "misformat") if kind in self.kinds), "")
        if not kind:
            return
        limit: int = self.options.max_consecutive_unusable_responses
        turns = tuple(unusable_turn(kind, number) for number in range(limit))
        yield Proof("max_consecutive_unusable_responses", "stop", CODE, limit, turns)
        window = self.options.get("window")
        if window is not None and window.bad <= _most_bad(limit, window.of):
            mixture: list[Turn] = []
            for number in range(window.bad):
                if number and number % (limit - 1) == 0:
                    mixture.append(call("probe", {"page": number}, f"page {number}"))
                mixture.append(unusable_turn(kind, number))
            yield Proof("window", "stop", CODE, len(mixture), tuple(mixture))

    def setup(self) -> None:
        """Look up the counted kinds once."""
        self.kinds = frozenset(self.options.kinds)

    @hookimpl
    def hist_add_warning_end(self, run: RunView, warning: HistoryWarning) -> Action | None:
        """Count the warning; stop at the limit."""
        if warning.kind not in self.kinds and warning.kind not in KINDS:
            return None
        state: Streak = run.state
        now = _round(run)
        if now - state.unusable > 1:
            state.count = 0
            state.kinds = []
        state.unusable = now
        if warning.kind not in self.kinds or (state.counted == now and self.options.count == "once"):
            return None
        state.counted = now
        state.count += 1
        if warning.kind not in state.kinds:
            state.kinds.append(warning.kind)
        # Both are asked even if the first one fires: a stop may be ignored (shadow, replay), and counting goes on.
        in_window = self._in_window(run, now, warning.kind)
        return self._in_a_row(run) or in_window

    @hookimpl
    def after_iteration(self, run: RunView, iteration: Iteration) -> Action | None:
        """Take note of how far the run got."""
        _round(run)
        return None

    def _in_a_row(self, run: RunView) -> Action | None:
        limit: int = self.options.max_consecutive_unusable_responses
        if run.state.count < limit:
            return None
        return run.stop(CODE, observed=run.state.count, limit=limit, kinds=list(run.state.kinds), window=0)

    def _in_window(self, run: RunView, now: int, kind: str) -> Action | None:
        window = self.options.get("window")
        if window is None:
            return None
        recent = {number: first for number, first in run.state.recent if number > now - window.of}
        recent.setdefault(now, kind)
        run.state.recent = list(recent.items())[-window.bad :]
        bad = len(run.state.recent)
        if bad < window.bad:
            return None
        kinds = list(dict.fromkeys(first for _, first in run.state.recent))
        return run.stop(CODE, observed=bad, limit=window.bad, kinds=kinds, window=window.of)


def _round(run: RunView) -> int:
    """Return the number of the current round, counted through all runs that share the state."""
    state: Streak = run.state
    if state.run != run.id:
        state.run = run.id
        state.offset = state.clock
    now = state.offset + run.iteration
    state.clock = max(state.clock, now)
    return now


def _window_problems(limit: int, bad: int, of: int) -> Iterable[OptionProblem]:
    if bad > of:
        yield OptionProblem(("window", "bad"), f"{bad} of the last {of} rounds can never be unusable")
    elif bad > _most_bad(limit, of):
        message = f"always comes after max_consecutive_unusable_responses ({limit}), which will have stopped the run"
        yield OptionProblem(("window", "bad"), message, fatal=False)


def _most_bad(limit: int, of: int) -> int:
    """Return how many of `of` rounds can be unusable without `limit` of them in a row."""
    return of - of // limit
