"""Guards over whole sets: where each stops every run, and what a call costs it.

Knows: sets of recordings, clocks. Must not know: any guard, how figures are printed.

A run is played to one guard after the other, each after the floor (`benchmarks.speed.floor`: parse the arguments of a
call, write them in one form, hash that) for the same calls. So a busy machine slows both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

from benchmarks import compact
from benchmarks.outcomes import Recorded, with_history
from benchmarks.peers.model import Guard, Played, Turn, arguments_text, played
from benchmarks.speed import floor
from policyengine.recordings.model import Recording
from policyengine.recordings.readers import read_recordings

OUTLINES = "compact.jsonl"

Starts = Mapping[str, Callable[[Played], Guard]]


class Set(NamedTuple):
    """The runs of a set. `outlines`: texts and arguments are hashes."""

    name: str
    runs: list[Recorded]
    outlines: bool = False


class Found(NamedTuple):
    """What a guard did: the turn in which it ended each run, and the cost of a call in floors (of each run)."""

    stops: list[int | None]
    costs: list[float]

    @property
    def cost(self) -> float | None:
        """The median cost of a call over all runs with calls."""
        return median(self.costs) if self.costs else None


def read_sets(root: Path) -> list[Set]:
    """Return every set in a folder that has runs; where there are outlines of all runs, these."""
    whole = _by_set(found for found in read_recordings([root]) if isinstance(found, Recording))
    outlined = sorted(root.rglob(OUTLINES))
    outlines = _by_set(found for found in read_recordings(outlined, (compact.READER,)) if isinstance(found, Recording))
    sets = [Set(name, with_history(runs)) for name, runs in whole.items() if name not in outlines]
    sets += [Set(f"{name}, outlines", with_history(runs), True) for name, runs in outlines.items()]
    return sorted(sets, key=lambda found: found.name)


def _by_set(recordings: Iterable[Recording]) -> dict[str, list[Recording]]:
    sets: dict[str, list[Recording]] = {}
    for recording in recordings:
        sets.setdefault(recording.set, []).append(recording)
    return sets


def drive(runs: Sequence[Recorded], starts: Starts) -> dict[str, Found]:
    """Play every run to every guard."""
    found = {name: Found([], []) for name in starts}
    names = list(starts)
    for number, run in enumerate(runs):
        seen = played(run.recording)
        first = number % len(names)  # who comes first finds caches that somebody else has filled
        for name in names[first:] + names[:first]:
            turn, cost = _play(starts[name](seen), seen)
            found[name].stops.append(turn)
            if cost is not None:
                found[name].costs.append(cost)
    return found


def _play(guard: Guard, run: Played) -> tuple[int | None, float | None]:
    """Return where a guard ends a run, and what a call up to there cost it, in floors."""
    spent = floors = 0
    stop = None
    for turn in run.turns:
        floors += _floors(turn)
        for check in guard.checks(turn):
            begun = perf_counter_ns()
            ends = check()
            spent += perf_counter_ns() - begun
            if ends:
                stop = turn.number
                break
        if stop is not None:
            break
    return stop, spent / floors if floors else None


def _floors(turn: Turn) -> int:
    texts = [arguments_text(made) for made in turn.calls]
    begun = perf_counter_ns()
    for text in texts:
        floor(text)
    return perf_counter_ns() - begun if texts else 0
