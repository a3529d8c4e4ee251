"""Stop a run that takes too long.

Knows: the time of events, as the driver reports it. Must not know: clocks, what takes the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from policyengine import (
    Action,
    Batch,
    Extension,
    ModelRequest,
    OptionProblem,
    Proof,
    RunView,
    ToolCall,
    call,
    hookimpl,
    seconds,
)

CODE = "wall_clock"

_DURATION: dict[str, Any] = {
    "type": "string",
    "check_with": "duration",
    "meta": {"form": "duration", "stricter": "lower", "absent": "loosest"},
}

# No run takes so long between two events (116 days): the clock was set, or the recording begins to have times.
_LEAP_S = 1e7


class Began(msgspec.Struct):
    """When the run began and when its latest event was, in seconds of the driver's clock."""

    known: bool = False
    began: float = 0.0
    latest: float = 0.0


class WallClock(Extension):
    """Ask for the final answer, or stop, some time after the run began.

    Time is judged before every request and before every call, and a wind-down only before a request: a batch that
    came in time for it still runs. A recording without times stands still and never trips.
    """

    name = "wall_clock"
    options: Any = {"stop": dict(_DURATION), "wind_down": dict(_DURATION)}
    state = Began
    messages = {
        "wall_clock.stop": {"observed": 600.5, "limit": 600},
        "wall_clock.wind_down": {"observed": 540.2, "limit": 540},
    }

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report that nothing is limited, or a wind-down that would come only when the run has been stopped."""
        stop, wind_down = options.get("stop"), options.get("wind_down")
        if stop is None and wind_down is None:
            yield OptionProblem((), "set `stop`, `wind_down` or both; write `mode: disabled` to switch the rule off")
        elif stop is not None and wind_down is not None and _seconds(wind_down) >= _seconds(stop):
            yield OptionProblem(("wind_down",), f"must be below stop ({stop}), or it can never take effect")

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        stop = ("stop",) if self.stop_s is not None else ()
        wind_down = ("wind_down",) if self.wind_down_s is not None else ()
        return {"before_model_call": stop + wind_down, "before_tool_call": stop}

    def proofs(self) -> Iterable[Proof]:
        """Return a call that comes too late for `stop`, and one that leaves time only for the final answer."""
        turns = (call("probe", {"page": 1}, "page 1"),)
        if self.wind_down_s is not None:
            yield Proof("wind_down", "wind_down", CODE, 2, turns, pace_s=self.wind_down_s)
        if self.stop_s is not None:
            yield Proof("stop", "stop", CODE, 1, turns, pace_s=self.stop_s)

    def setup(self) -> None:
        """Read the durations once."""
        stop, wind_down = self.options.get("stop"), self.options.get("wind_down")
        self.stop_s = None if stop is None else _seconds(stop)
        self.wind_down_s = None if wind_down is None else _seconds(wind_down)

    @hookimpl
    def run_start(self, run: RunView, task: str) -> Action | None:
        """Take note of the time."""
        _elapsed(run)
        return None

    @hookimpl
    def before_model_call(self, run: RunView, request: ModelRequest) -> Action | None:
        """Stop or wind down before a request that comes too late."""
        elapsed = _elapsed(run)
        late = self._late(run, elapsed)
        if late is None and self.wind_down_s is not None and elapsed >= self.wind_down_s:
            return run.wind_down(CODE, observed=elapsed, limit=self.wind_down_s)
        return late

    @hookimpl
    def before_tool_call(self, run: RunView, call: ToolCall, batch: Batch) -> Action | None:
        """Stop before a call that comes too late."""
        return self._late(run, _elapsed(run))

    def _late(self, run: RunView, elapsed: float) -> Action | None:
        if self.stop_s is None or elapsed < self.stop_s:
            return None
        return run.stop(CODE, observed=elapsed, limit=self.stop_s)


def _elapsed(run: RunView) -> float:
    """Return the seconds since the run began; a clock that was set in between (another machine) adds nothing."""
    state: Began = run.state
    now = run.now
    if not state.known:
        state.known = True
        state.began = state.latest = now
    if not 0 <= now - state.latest < _LEAP_S:
        state.began = now - (state.latest - state.began)
    state.latest = now
    return now - state.began


def _seconds(text: str) -> float:
    """Return a duration that the schema has checked."""
    return seconds(text) or 0.0
