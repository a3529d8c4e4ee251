"""`python -m benchmarks.screenshots`: the pictures of docs/backtest.md, from made-up recordings.

Knows: how to make recordings up, and which parts of a report are shown. Must not know: how a report is made.

Nobody ran these agents. Seeded random numbers decide how long a run is, whether it goes on well, gets stuck or loses
its way, and what its label is; so the same commit makes the same recordings everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chromium import Clip, Page, page
from policyengine.backtest.html import html
from policyengine.backtest.run import assigned, backtest
from policyengine.backtest.timeline import timelines

TARGET = Path(__file__).parents[1] / "docs" / "images"
MOST_BYTES = 150_000

SETS = {"repairs": 150, "orders": 110}
MODELS = ("model-a", "model-b")
POLICIES = ("default", "unattended", "eager.yaml")

EAGER = """\
apiVersion: policyengine/v1
kind: Policy
name: eager
extends: [default]
extensions:
  stall_detector:
    with:
      repeat: {hint: 2, deny: 3, stop: 4}
  step_limit:
    with: {max_steps: 14}
"""
"""A policy that is wrong more often than those that are shipped."""

WIDTH = 1100

FILES = ("parser", "lexer", "cache", "router", "models", "views", "tasks", "config")


def recordings(folder: Path) -> list[Path]:
    """Write the sets and return their files: one run a line, in the form of plain chats."""
    written = []
    for name, count in SETS.items():
        path = folder / name / "runs.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(run(name, number)) + "\n" for number in range(count)), encoding="utf-8")
        written.append(path)
    return written


def run(name: str, number: int) -> dict[str, Any]:
    """Return one made-up run with its label."""
    chance = random.Random(f"{name} {number}")
    fate = chance.choices(("well", "stuck", "lost", "waits"), (62, 19, 16, 3))[0]
    steps = list(_STEPS[fate](chance))
    success = {"well": 0.85, "waits": 0.9, "stuck": 0.03, "lost": 0.05}[fate] > chance.random()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "The tests of one module fail. Find out why."}]
    for place, (said, tool, arguments, result) in enumerate(steps):
        call = {
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps(arguments)},
        }
        messages.append({"role": "assistant", "content": said, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    last = "All tests pass now." if success else "I could not find out why the tests fail."
    messages.append({"role": "assistant", "content": last})
    return {"id": f"{name}-{number:03}", "model": chance.choice(MODELS), "label": success, "messages": messages}


Step = tuple[str, str, dict[str, Any], str]


def _well(chance: random.Random) -> Iterator[Step]:
    for place in range(chance.randint(3, 11)):
        yield _look(chance, place)
    if chance.random() < 0.3:  # the same tests again after each edit: a repetition that is none
        for place in range(chance.randint(3, 5)):
            yield _edit(chance, place)
            result = f"{9 - place} failed, {31 + place} passed"
            yield ("Run the tests again.", "run_tests", {"module": "parser"}, result)


def _stuck(chance: random.Random) -> Iterator[Step]:
    for place in range(chance.randint(2, 7)):
        yield _look(chance, place)
    said, tool, arguments, _ = _edit(chance, 0)
    for _ in range(chance.randint(5, 26)):
        yield (said, tool, arguments, "Error: the old text was not found in the file")
    if chance.random() < 0.1:
        yield from (_look(chance, place) for place in range(20, 24))


def _lost(chance: random.Random) -> Iterator[Step]:
    cycle = [_look(chance, place) for place in range(chance.randint(2, 3))]
    for place in range(chance.randint(4, 9)):
        yield _look(chance, place + 30)
    for _ in range(chance.randint(3, 9)):
        yield from cycle


def _waits(chance: random.Random) -> Iterator[Step]:
    yield _look(chance, 0)
    for _ in range(chance.randint(2, 6)):
        yield ("Is the build done?", "build_status", {"build": 71}, "running")
    yield ("Is the build done?", "build_status", {"build": 71}, "done: 40 passed")
    yield _look(chance, 1)


_STEPS = {"well": _well, "stuck": _stuck, "lost": _lost, "waits": _waits}


def _look(chance: random.Random, place: int) -> Step:
    module, line = FILES[place % len(FILES)], chance.randint(1, 400)
    text = f"{line}: def {module}_{line}(value):\n{line + 1}:     return value[{place}]"
    return (f"Look at {module}.py next.", "read_file", {"path": f"src/{module}.py", "line": line}, text)


def _edit(chance: random.Random, place: int) -> Step:
    line = chance.randint(1, 400)
    arguments = {"path": "src/parser.py", "old": f"value[{line}]", "new": f"value.get({line + place})"}
    return ("The index is wrong; change it.", "edit_file", arguments, "ok")


def report(folder: Path) -> Path:
    """Return the report of the made-up recordings under the shipped policies."""
    recordings(folder / "recordings")
    (folder / "eager.yaml").write_text(EAGER, encoding="utf-8")
    with contextlib.chdir(folder):  # the pictures are to show no folder of this machine
        asked = assigned(POLICIES)
        found = backtest(["recordings"], asked.policies)
        text = html(found, ["recordings"], timelines(found, asked.policies, ["recordings"]))
    made = folder / "report.html"
    made.write_text(text, encoding="utf-8")
    return made


def pictures(report: Path, target: Path) -> Iterator[Path]:
    """Take the pictures and yield their files."""
    with page(WIDTH, 900) as tab:
        tab.prefer("light")
        tab.open(report.as_uri())
        yield from _take(tab, target / "backtest-front.png", "#front-part", 760)
        yield from _take(tab, target / "backtest-turns.png", "#survival", 470, from_figure=True)
        tab.run(_CHOOSE)
        yield from _take(tab, target / "backtest-timeline.png", "details.run[open]", 1060)
        tab.prefer("dark")
        tab.run("new Promise(resolve => setTimeout(resolve, 300))")
        yield from _take(tab, target / "backtest-dark.png", "#front-part", 540)


_CHOOSE = """(() => {
  const turn = (run) => Number(/stopped in turn (\\d+) by stall_detector/.exec(run.textContent)?.[1] ?? 999);
  const runs = [...document.querySelectorAll("details.run[data-policy=eager]")];
  const chosen = runs.reduce((best, run) => (turn(run) < turn(best) ? run : best));
  const filter = document.getElementById("filter");
  filter.value = chosen.querySelector("h3").textContent;
  document.getElementById("policy").value = "eager";
  filter.dispatchEvent(new Event("input"));
  chosen.open = true;
})()"""
"""Shows the run that the policy `eager` stops first, and no other."""


def _take(tab: Page, path: Path, selector: str, most: float, *, from_figure: bool = False) -> Iterator[Path]:
    found = f"document.querySelector({selector!r})" + (".closest('figure')" if from_figure else "")
    box = tab.run(f"(() => {{ const b = {found}.getBoundingClientRect(); return [b.top + scrollY, b.height] }})()")
    picture = tab.picture(Clip(0, max(box[0] - 16, 0), WIDTH, min(box[1] + 32, most)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_smaller(picture))
    yield path


def _smaller(picture: bytes) -> bytes:
    """Return the same PNG, packed as tightly as it can be."""
    chunks, place = [], 8
    while place < len(picture):
        (size,) = struct.unpack_from(">I", picture, place)
        chunks.append((picture[place + 4 : place + 8], picture[place + 8 : place + 8 + size]))
        place += size + 12
    pixels = zlib.compress(zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT")), 9)
    kept = [(kind, data) for kind, data in chunks if kind != b"IDAT"]
    kept.insert(-1, (b"IDAT", pixels))
    return picture[:8] + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in kept
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the pictures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.screenshots", description=__doc__.partition("\n")[0])
    parser.add_argument("--target", type=Path, default=TARGET, help="folder of the pictures (default: docs/images)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the recordings and the report in this folder")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        made = report(options.keep or Path(folder))
        for path in pictures(made, options.target):
            size = path.stat().st_size
            print(f"{path.name}: {size} bytes")
            if size > MOST_BYTES:
                print(f"{path.name} is larger than {MOST_BYTES} bytes", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
