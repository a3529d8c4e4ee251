"""`python -m benchmarks.fuzz [SURFACE]`: look for inputs that break what must hold for every input.

Cases are random and the same for the same seed. A failure is an exception that is not the documented one, a case that
takes too long, and one that takes too much memory. With `--atheris` (installed apart, `pip install atheris`) cases are
grown towards new code instead. Without a limit, `--atheris` goes on until it is interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from benchmarks.fuzz.source import Chance, Grown

SURFACES = (
    *("policy", "overlay", "prompt", "recording", "journal", "hook", "control", "saved_run", "store"),
    *("provider_error", "response", "parser", "arguments", "envelope", "script", "policytest", "masks"),
)
RUNS = 20_000
SHOWN = 4_000
"""How many characters of a case are printed."""

SLOWEST_S = 20
"""Longest time for one case, in seconds; with `--atheris` all code is several times slower."""

LARGEST_MB = 1_500
"""How much larger the process may ever grow than it was at the first case of a surface."""


class TooSlow(BaseException):
    """A case is not done in time; nothing on the way may take it for an error of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("surface", nargs="?", choices=SURFACES, help="the surface (without it, all of them in turn)")
    parser.add_argument("--runs", type=int, metavar="N", help=f"how many cases (without a limit: {RUNS})")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first case")
    parser.add_argument("--seconds", type=float, metavar="T", help="how long at most, for each surface")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--atheris", action="store_true", help="grow cases towards new code; needs one SURFACE")
    options = parser.parse_args(arguments)
    if options.atheris:
        if options.surface is None:
            parser.error("--atheris needs a surface")
        return _grow(options)
    from loguru import logger

    logger.remove()  # what the package says on the way is not what is looked for
    return max(_search(surface, options) for surface in ([options.surface] if options.surface else SURFACES))


def _search(name: str, options: argparse.Namespace) -> int:
    target = _target(name)
    runs = options.runs if options.runs or options.seconds else RUNS
    begun, slowest, number, size = perf_counter(), 0.0, options.first, 0.0
    last = None if runs is None else options.first + runs
    while (last is None or number < last) and (options.seconds is None or perf_counter() - begun < options.seconds):
        case = target.generate(Chance((options.seed, number)))
        started = perf_counter()
        try:
            with _bounded(SLOWEST_S):
                target.check(case)
        except (Exception, TooSlow) as error:  # noqa: BLE001 - whatever it is, the case that caused it is looked for
            print(f"{name}, seed {options.seed}, run {number}: {type(error).__name__}: {ascii(str(error))[:SHOWN]}")
            print(f"  {_shown(case)}")
            traceback.print_tb(error.__traceback__, limit=-5)
            return 1
        slowest = max(slowest, perf_counter() - started)
        size = size or _largest_mb()
        if _largest_mb() - size > LARGEST_MB:
            print(f"{name}, seed {options.seed}, run {number}: {_largest_mb() - size:.0f} MB more\n  {_shown(case)}")
            return 1
        number += 1
    told = (
        f"{number - options.first} cases in {perf_counter() - begun:.0f} s, no fault; slowest {slowest * 1000:.0f} ms"
    )
    print(f"{name}: seed {options.seed}, {told}", flush=True)
    return 0


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """Raise TooSlow inside a block that takes longer."""

    def over(_number: int, _frame: object) -> None:
        raise TooSlow(f"not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _largest_mb() -> float:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _grow(options: argparse.Namespace) -> int:
    try:
        import atheris
    except ImportError:
        print("atheris is not installed", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["policyengine"]):
        target = _target(options.surface)

    def one(data: bytes) -> None:
        case = target.generate(Grown(atheris.FuzzedDataProvider(data)))
        try:
            target.check(case)
        except Exception:
            print(_shown(case), file=sys.stderr)
            raise

    limits = {"runs": options.runs, "max_total_time": options.seconds and int(options.seconds)}
    flags = [f"-{name}={value}" for name, value in limits.items() if value]
    kept = tempfile.mkdtemp(prefix="fuzz-") + os.sep
    fixed = [
        "-max_len=2000",
        "-len_control=0",
        f"-timeout={SLOWEST_S}",
        "-rss_limit_mb=4000",
        f"-seed={options.seed + 1}",
    ]
    atheris.Setup([sys.argv[0], *fixed, f"-artifact_prefix={kept}", *flags], one)
    atheris.Fuzz()
    return 0


def _target(name: str) -> Any:
    return importlib.import_module(f"benchmarks.fuzz.{name}")


def _shown(case: Any) -> str:
    try:
        shown = ascii(case)
    except Exception as error:  # noqa: BLE001 - the objects of a case may refuse to show themselves
        return f"a case that cannot be shown ({type(error).__name__}); the seed and the number of the run make it again"
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]} ..."


if __name__ == "__main__":
    sys.exit(main())
