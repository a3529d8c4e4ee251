"""`python -m benchmarks.startup`: what it costs to start, against the libraries alone, and to load many rules.

Knows: how processes and loads are timed, what is asked of the figures. Must not know: how a policy is loaded.

Every process takes turns with the others, so that a machine that is busy slows all of them. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.grids import Check, Grid, show, what_is_asked
from policyengine.cli.loading import load

LIBRARIES = "import yaml, cerberus, pluggy, msgspec"
"""The libraries that loading a policy is built on: no start can be faster than their import."""
MAX_LIBRARIES = 2.0
RUNS = 30

RULES = (10, 100, 1_000)
USED = ("step_limit", "tool_failures", "stall_detector", "parse_failures", "repeat_message")
MAX_GROWTH = 1.5
"""By how much a rule may cost more among the most rules than among a tenth of them."""
ROUNDS = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 0, or 1 if `--check` and something that is asked does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 unless every condition at the end holds")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/benchmarks.md")
    parser.add_argument(
        "--runs", type=int, default=RUNS, help="how often each process is started (default: %(default)s)"
    )
    arguments = parser.parse_args(argv)
    with TemporaryDirectory() as folder:
        starts, start_checks = measure_starts(time_processes(commands(), arguments.runs, Path(folder)))
        loads, load_checks = measure_loads(time_loads(Path(folder)))
    show(starts, markdown=arguments.markdown)
    show(loads, markdown=arguments.markdown)
    checks = [*start_checks, *load_checks]
    show(what_is_asked(checks), markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


def commands() -> dict[str, list[str]]:
    """Return every process that is timed; the installed script only where there is one beside this interpreter."""
    script = Path(sys.executable).with_name("policyengine")
    installed = {"policyengine check default": [str(script), "check", "default"]} if script.exists() else {}
    return {
        "an empty program": [sys.executable, "-c", "pass"],
        "the libraries": [sys.executable, "-c", LIBRARIES],
        "python -m policyengine check default": [sys.executable, "-m", "policyengine", "check", "default"],
        **installed,
    }


def time_processes(processes: Mapping[str, list[str]], runs: int, folder: Path) -> dict[str, list[float]]:
    """Return the seconds of each run of each process, after one that does not count."""
    environment = with_bytecode(folder)
    taken: dict[str, list[float]] = {name: [] for name in processes}
    for number in range(runs + 1):
        for name, command in processes.items():
            begun = perf_counter()
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
            if number:
                taken[name].append(perf_counter() - begun)
    return taken


def with_bytecode(folder: Path) -> dict[str, str]:
    """Return the environment of processes that are timed.

    Bytecode is kept in a place of its own, which a first run fills: an installed package has its bytecode, and a
    checkout whose files were just changed would be timed with a compiler.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def measure_starts(taken: Mapping[str, Sequence[float]]) -> tuple[Grid, list[Check]]:
    """Return the table of processes, and what is asked of each that starts the engine."""
    base = taken["the libraries"]
    rows, checks = [], []
    for name, times in taken.items():
        middle, least = median(times) / median(base), min(times) / min(base)
        figures = (f"{median(times) * 1e3:.0f}", f"{min(times) * 1e3:.0f}", f"{middle:.2f}", f"{least:.2f}")
        rows.append((name, *figures))
        if "policyengine" in name:
            asked = f"{name}: at most {MAX_LIBRARIES:g} times the libraries, median and minimum"
            holds = max(middle, least) <= MAX_LIBRARIES
            checks.append(Check(asked, f"{middle:.2f}, {least:.2f}", holds))
    columns = ("process", "#median, ms", "#minimum, ms", "#medians / libraries", "#minima / libraries")
    return Grid("Start-up: whole processes", columns, tuple(rows)), checks


def time_loads(folder: Path) -> dict[int, float]:
    """Return the least seconds per rule to load a policy of so many rules, after a warm-up; they take turns."""
    files = {rules: _written(folder, rules) for rules in RULES}
    load(files[RULES[0]])
    least = dict.fromkeys(RULES, float("inf"))
    for _ in range(ROUNDS):
        for rules, file in files.items():
            times = max(1, RULES[-1] // rules // 4)
            gc.collect()
            begun = perf_counter()
            for _ in range(times):
                load(file)
            least[rules] = min(least[rules], (perf_counter() - begun) / times / rules)
    return least


def measure_loads(costs: Mapping[int, float]) -> tuple[Grid, list[Check]]:
    """Return the table of loads, and what is asked of the largest."""
    fewer, most = RULES[-2:]
    growth = costs[most] / costs[fewer]
    columns = ("what", *(f"#{rules:,} rules, us each" for rules in RULES), f"#{most:,} / {fewer:,}")
    row = ("load, compile, self-test", *(f"{costs[rules] * 1e6:.0f}" for rules in RULES), f"{growth:.2f}")
    asked = f"a rule of {most:,}: at most {MAX_GROWTH:g} times a rule of {fewer:,}"
    return Grid("Start-up: cost per rule", columns, (row,)), [Check(asked, f"{growth:.2f}", growth <= MAX_GROWTH)]


def _written(folder: Path, rules: int) -> str:
    """Write a policy of so many rules, of five extensions in turn; return its path."""
    lines = ["apiVersion: policyengine/v1\nkind: Policy\nname: many\nextensions:\n"]
    for number in range(rules):
        use = USED[number % len(USED)]
        lines.append(f"  rule_{number}:\n    use: {use}\n    timeout: 300ms\n    when: {{tool: ['read_*', search]}}\n")
    file = folder / f"{rules}.yaml"
    file.write_text("".join(lines), encoding="utf-8")
    return str(file)


if __name__ == "__main__":
    sys.exit(main())
