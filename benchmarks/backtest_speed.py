"""`python -m benchmarks.backtest_speed --recordings DIR`: what a backtest costs beside decoding the same files.

Knows: the phases of a backtest, what is timed against what. Must not know: formats, rates.

The floor is `msgspec.json.decode` of every file that is read, line by line where its lines are values. All times are
processor time of this one process. Decoding, reading, replaying and whole backtests take turns, and medians count. See
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import process_time
from typing import NamedTuple

import msgspec

from benchmarks.grids import Check, Grid, show, what_is_asked
from policyengine.backtest.run import backtest
from policyengine.engine import Engine
from policyengine.recordings.loading import is_lines
from policyengine.recordings.model import Recording, Skipped
from policyengine.recordings.readers import read_recordings
from policyengine.replay import replay

MAX_DECODES = 10.0
"""A backtest of everything takes at most this many times what decoding takes."""

ROUNDS = 9
TOP = 20

_decode = msgspec.json.Decoder().decode


class Texts(NamedTuple):
    """The files of a set as they are decoded: each of them, or each of its lines."""

    name: str
    folder: Path
    texts: tuple[bytes, ...]


class Times(NamedTuple):
    """Seconds: decoding, reading, reading and replaying, a whole backtest."""

    decode: float
    read: float
    replayed: float
    whole: float


class Timed(NamedTuple):
    """A set: its size, and the median of each time."""

    name: str
    size: int
    runs: int
    turns: int
    times: Times


class Found(NamedTuple):
    """All that is measured: every set, one backtest of all of them, and one of nothing."""

    sets: tuple[Timed, ...]
    whole: float
    nothing: float

    @property
    def floor(self) -> float:
        """Seconds to decode everything."""
        return sum(found.times.decode for found in self.sets)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 0, 1 if `--check` and the target is missed, 2 if there is nothing to measure."""
    arguments = _arguments(argv)
    sets = [held for folder in sorted(arguments.recordings.glob("*/")) if (held := _texts(folder)).texts]
    if not sets:
        print(f"error: no recordings in the folders of {arguments.recordings}", file=sys.stderr)
        return 2
    found = measure(sets, arguments.policy, arguments.rounds)
    ratio = found.whole / found.floor
    check = Check(
        f"a backtest of everything takes at most {MAX_DECODES:g} times as long as decoding it",
        f"{ratio:.1f}",
        ratio <= MAX_DECODES,
    )
    for grid in (_table(found), what_is_asked([check])):
        show(grid, markdown=arguments.markdown)
    if arguments.profile:
        show(_profile(sets, arguments.policy), markdown=arguments.markdown)
    return 1 if arguments.check and not check.holds else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtest_speed", description=description)
    parser.add_argument("--recordings", type=Path, required=True, metavar="DIR", help="folder that holds the sets")
    parser.add_argument("--policy", default="default", metavar="P", help="the policy (default: default)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="how often everything is timed")
    parser.add_argument("--profile", action="store_true", help="print where a backtest of everything spends its time")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--check", action="store_true", help="exit 1 if the target is missed")
    return parser.parse_args(argv)


def measure(sets: Sequence[Texts], policy: str, rounds: int) -> Found:
    """Return the times of every set, of all of them and of nothing."""
    folders = [found.folder for found in sets]
    engine = Engine(policy)
    sizes = [_size(folder, engine) for folder in folders]
    backtest(folders, [policy])  # what is imported and compiled once is no cost of recordings
    taken: list[list[Times]] = [[] for _ in sets]
    whole: list[float] = []
    nothing: list[float] = []
    with tempfile.TemporaryDirectory() as empty:
        for _ in range(rounds):
            for found, times in zip(sets, taken, strict=True):
                times.append(_times(found, policy, engine))
            whole.append(_seconds(lambda: backtest(folders, [policy])))
            nothing.append(_seconds(lambda: backtest([empty], [policy])))
    timed = tuple(
        Timed(found.name, sum(map(len, found.texts)), *size, Times(*map(median, zip(*times, strict=True))))
        for found, size, times in zip(sets, sizes, taken, strict=True)
    )
    return Found(timed, median(whole), median(nothing))


def _times(found: Texts, policy: str, engine: Engine) -> Times:
    return Times(
        _seconds(lambda: _decode_all(found.texts)),
        _seconds(lambda: _each(found.folder, lambda run: None)),
        _seconds(lambda: _each(found.folder, lambda run: replay(run, engine))),
        _seconds(lambda: backtest([found.folder], [policy])),
    )


def _seconds(work: Callable[[], object]) -> float:
    gc.collect()
    begun = process_time()
    work()
    return process_time() - begun


def _decode_all(texts: Sequence[bytes]) -> None:
    for text in texts:
        with suppress(msgspec.DecodeError):
            _decode(text)


def _each(folder: Path, use: Callable[[Recording], object]) -> None:
    """Hand out every recording and let it go, as a backtest does."""
    for run in read_recordings([folder]):
        if isinstance(run, Recording):
            use(run)


def _size(folder: Path, engine: Engine) -> tuple[int, int]:
    turns: list[int] = []
    _each(folder, lambda run: turns.append(replay(run, engine).iterations))
    return len(turns), sum(turns)


def _texts(folder: Path) -> Texts:
    sources = dict.fromkeys(item.source for item in read_recordings([folder]) if not isinstance(item, Skipped))
    return Texts(folder.name, folder, tuple(text for source in sources for text in _pieces(Path(source))))


def _pieces(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    if not is_lines(path):
        try:
            _decode(data)
        except msgspec.DecodeError:
            pass
        else:
            yield data
            return
    yield from (line for line in data.split(b"\n") if line.strip())


# ---- output


def _table(found: Found) -> Grid:
    columns = (
        "set",
        "#MB",
        "#runs",
        "#turns",
        "#decode, ms",
        "#read, ms",
        "#replay, ms",
        "#the rest, ms",
        "#a turn, us",
        "#times decode",
    )
    rows = [_row(timed, found.nothing) for timed in found.sets]
    start = ("no recordings at all", "", "", "", "", "", "", f"{found.nothing * 1e3:.0f}", "", "")
    return Grid("What a backtest costs", columns, (*rows, start, _row(_total(found), 0.0)))


def _total(found: Found) -> Timed:
    read, replayed = (sum(getattr(timed.times, name) for timed in found.sets) for name in ("read", "replayed"))
    size, runs, turns = (sum(getattr(timed, name) for timed in found.sets) for name in ("size", "runs", "turns"))
    return Timed("everything", size, runs, turns, Times(found.floor, read, replayed, found.whole))


def _row(timed: Timed, nothing: float) -> tuple[str, ...]:
    decode, read, replayed, whole = timed.times
    own = whole - nothing
    return (
        timed.name,
        f"{timed.size / 1e6:.1f}",
        f"{timed.runs:,}",
        f"{timed.turns:,}",
        *(f"{seconds * 1e3:.0f}" for seconds in (decode, read, replayed - read, own - replayed)),
        f"{own / timed.turns * 1e6:.0f}",
        f"{own / decode:.1f}",
    )


def _profile(sets: Sequence[Texts], policy: str) -> Grid:
    """Return the functions in which one backtest of everything spends most of its time, calls from there excluded."""
    profile = cProfile.Profile()
    profile.runcall(backtest, [found.folder for found in sets], [policy])
    stats = pstats.Stats(profile).get_stats_profile()
    found = sorted(stats.func_profiles.items(), key=lambda item: -item[1].tottime)[:TOP]
    rows = tuple(
        (name, f"{Path(row.file_name).stem}:{row.line_number}", str(row.ncalls), f"{row.tottime / stats.total_tt:.1%}")
        for name, row in found
    )
    return Grid("Where the time goes", ("function", "where", "#calls", "#share"), rows)


if __name__ == "__main__":
    sys.exit(main())
