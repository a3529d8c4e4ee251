"""`python -m benchmarks.fuzz [TARGET]`: look for inputs that break the parser, the arguments or the envelope.

Cases are random and the same for the same seed. With `--atheris` (installed apart, `pip install atheris`) they are
grown towards new code instead. Without a limit, `--atheris` goes on until it is interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from benchmarks.fuzz.source import Chance, Grown

TARGETS = ("parser", "arguments", "envelope")
RUNS = 20_000
SHOWN = 4_000
"""How many characters of a case are printed."""

SLOWEST_S = 20
"""Longest time for one case, in seconds; with `--atheris` all code is several times slower."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", choices=TARGETS, help="the surface (without it, all of them in turn)")
    parser.add_argument("--runs", type=int, metavar="N", help=f"how many cases (without a limit: {RUNS})")
    parser.add_argument("--seconds", type=float, metavar="T", help="how long at most, for each target")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--atheris", action="store_true", help="grow cases towards new code; needs one TARGET")
    options = parser.parse_args(arguments)
    if options.atheris:
        if options.target is None:
            parser.error("--atheris needs a target")
        return _grow(options)
    return max(_search(target, options) for target in ([options.target] if options.target else TARGETS))


def _search(name: str, options: argparse.Namespace) -> int:
    target = _target(name)
    runs = options.runs if options.runs or options.seconds else RUNS
    begun, slowest, number = perf_counter(), 0.0, 0
    while (runs is None or number < runs) and (options.seconds is None or perf_counter() - begun < options.seconds):
        case = target.generate(Chance((options.seed, number)))
        started = perf_counter()
        try:
            target.check(case)
        except Exception as error:  # noqa: BLE001 - whatever it is, the case that caused it is what we look for
            print(f"{name}, run {number}: {type(error).__name__}: {ascii(str(error))[:SHOWN]}\n  {_shown(case)}")
            traceback.print_tb(error.__traceback__, limit=-3)
            return 1
        slowest = max(slowest, perf_counter() - started)
        if slowest > SLOWEST_S:
            print(f"{name}, run {number}: {slowest:.0f} s\n  {_shown(case)}")
            return 1
        number += 1
    print(f"{name}: {number} cases in {perf_counter() - begun:.0f} s, no fault; slowest {slowest * 1000:.0f} ms")
    return 0


def _grow(options: argparse.Namespace) -> int:
    try:
        import atheris
    except ImportError:
        print("atheris is not installed", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["policyengine"]):
        target = _target(options.target)

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
