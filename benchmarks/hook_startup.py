"""`python -m benchmarks.hook_startup`: what one event of a hook costs, as a whole process, against an empty program.

Knows: how processes are timed, what is asked of the figures. Must not know: how an event is answered.

Every process takes turns with the others, so that a machine that is busy slows all of them. See docs/claude-code.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.grids import Check, Grid, show, what_is_asked
from benchmarks.startup import with_bytecode

MAX_EMPTY = 6.0
"""How many times an empty program a call may take to be judged."""
RUNS = 30
EMPTY, JUDGED = "an empty program", "PreToolUse"
FORGETFUL = "forgetful"
"""A state directory whose kept policies are removed before every process."""

Case = tuple[list[str], Callable[[int], bytes]]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return 0, or 1 if `--check` and what is asked does not hold."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hook_startup", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="exit 1 unless every condition at the end holds")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/claude-code.md")
    parser.add_argument(
        "--runs", type=int, default=RUNS, help="how often each process is started (default: %(default)s)"
    )
    arguments = parser.parse_args(argv)
    with TemporaryDirectory() as folder:
        taken = time_processes(cases(Path(folder)), arguments.runs, Path(folder))
    grid, checks = measure(taken)
    show(grid, markdown=arguments.markdown)
    show(what_is_asked(checks), markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


def event(name: str, number: int, tool: str = "Bash", **more: object) -> bytes:
    """Return an event as Claude Code sends it, about call `number`."""
    call = {"tool_name": tool, "tool_input": {"command": f"ls {number}"}, "tool_use_id": f"toolu_{number}"}
    return json.dumps({"session_id": "timed", "hook_event_name": name, "cwd": "/", **call, **more}).encode()


def cases(folder: Path) -> dict[str, Case]:
    """Return every process that is timed, with what it reads. The script is written as an installation does."""
    script = folder / "policyengine"
    script.write_text("import sys\nfrom policyengine.start import main\nsys.exit(main())\n", encoding="utf-8")
    options = ["claude-code", "--state", str(folder / "state")]
    module = [sys.executable, "-P", "-m", "policyengine.hook", *options]
    nothing: Callable[[int], bytes] = lambda number: b""  # noqa: E731
    return {
        EMPTY: ([sys.executable, "-c", "pass"], nothing),
        "import msgspec": ([sys.executable, "-c", "import msgspec"], nothing),
        JUDGED: (module, lambda number: event("PreToolUse", number)),
        "PostToolUse": (module, lambda number: event("PostToolUse", number, tool_response={"stdout": str(number)})),
        "an event that changes nothing": (module, lambda number: event("Notification", number)),
        "PreToolUse, as the installed script": (
            [sys.executable, str(script), "hook", *options],
            lambda number: event("PreToolUse", 100_000 + number),
        ),
        "PreToolUse, no policy kept": (
            [*module[:-1], str(folder / FORGETFUL)],
            lambda number: event("PreToolUse", 200_000 + number),
        ),
    }


def time_processes(processes: Mapping[str, Case], runs: int, folder: Path) -> dict[str, list[float]]:
    """Return the seconds of each run of each process, after one that does not count."""
    environment = with_bytecode(folder)
    taken: dict[str, list[float]] = {name: [] for name in processes}
    for number in range(runs + 1):
        for name, (command, data) in processes.items():
            for kept in (folder / FORGETFUL).glob("*.policy"):
                kept.unlink()
            begun = perf_counter()
            done = subprocess.run(command, env=environment, input=data(number), capture_output=True, check=True)
            if number:
                taken[name].append(perf_counter() - begun)
            if name != EMPTY and done.stdout:
                raise SystemExit(f"{name} answered: {done.stdout!r}")
    return taken


def measure(taken: Mapping[str, Sequence[float]]) -> tuple[Grid, list[Check]]:
    """Return the table, and what is asked of the event that holds up a call."""
    base = taken[EMPTY]
    rows = []
    for name, times in taken.items():
        ratios = (f"{median(times) / median(base):.2f}", f"{min(times) / min(base):.2f}")
        rows.append((name, f"{median(times) * 1e3:.0f}", f"{min(times) * 1e3:.0f}", *ratios))
    columns = ("process", "#median, ms", "#minimum, ms", "#medians / empty", "#minima / empty")
    ratio = median(taken[JUDGED]) / median(base)
    asked = f"{JUDGED}: at most {MAX_EMPTY:g} times an empty program, medians"
    return Grid("Hooks: whole processes", columns, tuple(rows)), [Check(asked, f"{ratio:.2f}", ratio <= MAX_EMPTY)]


if __name__ == "__main__":
    sys.exit(main())
