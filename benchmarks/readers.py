"""`python -m benchmarks.readers --recordings DIR`: what the readers make of whole sets, beside the sets' own indexes.

Knows: the sets, where their indexes count otherwise than a reader and why. Must not know: formats.

An index counts the turns and calls of every run, and says which runs succeeded; all of it was made without this
project. Reading is timed beside `msgspec.json.decode` of the same files.
"""

from __future__ import annotations

import argparse
import ast
import csv
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import msgspec

from benchmarks import compact
from benchmarks.grids import Check, Grid, show, what_is_asked
from policyengine.recordings.loading import is_lines
from policyengine.recordings.model import ModelSaid, Recording, Skipped, ToolAnswered, Unreadable
from policyengine.recordings.readers import READERS, Reader, read_recordings

TURNS = 3
"""How often reading and decoding are timed, by turns; the fastest of each counts."""

OUTLINES = "compact.jsonl"


class Counts(NamedTuple):
    """Turns (model responses) and calls of a run."""

    turns: int
    calls: int


def _nothing(run: Recording, row: Mapping[str, str]) -> Counts:
    return Counts(0, 0)


class Set(NamedTuple):
    """What is known of a set: how many things in it cannot be read, and where its index counts otherwise.

    `less` says how many turns and calls fewer than the index a run has, `why` explains it.
    """

    unreadable: int = 0
    less: Callable[[Recording, Mapping[str, str]], Counts] = _nothing
    why: str = ""


def _given_up(run: Recording, row: Mapping[str, str]) -> Counts:
    left_out = int("exit_" in row["term"])
    return Counts(left_out, left_out)


def _failed_request(run: Recording, row: Mapping[str, str]) -> Counts:
    return Counts(int(bool(run.error)), 0)


def _broken_off(run: Recording, row: Mapping[str, str]) -> Counts:
    responses = (event.response for event in run.events if isinstance(event, ModelSaid))
    empty = sum(not response.text.strip() and not response.tool_calls for response in responses)
    on_broken_line = int(row["file"] == "session.jsonl")
    return Counts(int(row["n_empty"]) - empty + on_broken_line, 0)


def _by_text(calls: Callable[[str], int]) -> Callable[[Recording, Mapping[str, str]], Counts]:
    """Return the difference to an index that counts calls in what the model wrote, whatever its harness made of it."""

    def less(run: Recording, row: Mapping[str, str]) -> Counts:
        texts = (event.response.text for event in run.events if isinstance(event, ModelSaid))
        return Counts(0, sum(map(calls, texts)) - counts(run).calls)

    return less


def _pairs(text: str) -> int:
    return int(re.search(r"<execute>.*?</execute>|<solution>.*?</solution>", text, re.DOTALL) is not None)


def _commands(text: str) -> int:
    return int(text.strip().startswith(("GET ", "POST ", "FINISH")))


def _listed(text: str) -> int:
    try:
        value = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    listed = value.elts if isinstance(value, ast.List) else [value]
    return len(listed) if all(isinstance(item, ast.Call) for item in listed) else 0


SETS: dict[str, Set] = {
    "agentdojo_raw": Set(),
    "bfcl_malformed": Set(
        less=_by_text(_listed),
        why="the index counts calls that the protocol has not, such as those with positional arguments",
    ),
    "claude_code_jsonl": Set(),
    "medagentbench": Set(
        less=_by_text(_commands), why="the index counts answers as calls, and no reply in a fence, which was run"
    ),
    "mini_swe_agent": Set(),
    "mint": Set(
        less=_by_text(_pairs),
        why="the index counts replies with a pair of tags, answers too, and no fences, which were run",
    ),
    "openhands_litellm": Set(),
    "openhands_v1_events": Set(unreadable=1),
    "pi_sessions": Set(
        unreadable=1,
        less=_broken_off,
        why="what broke off before a word is no turn, and one stands on the line with two objects",
    ),
    "sweagent_claude35": Set(less=_given_up, why="what the harness writes when it gives up is no turn"),
    "tau2_bench": Set(),
    "tau_bench": Set(),
    "trae_iso_bench": Set(less=_failed_request, why="a request that failed is no turn"),
}
"""The sets that have an index."""


class Found(NamedTuple):
    """What was read of a set, beside the rows of its index. `decode_s` is the time to decode the same files."""

    name: str
    about: Set
    rows: dict[str, dict[str, str]]
    runs: list[Recording]
    unreadable: list[Unreadable]
    read_s: float
    decode_s: float

    @property
    def unknown(self) -> int:
        """Runs that the index has and nobody found, and the other way round, and runs that were found twice."""
        ids = [run.id for run in self.runs]
        return len(self.rows.keys() ^ set(ids)) + len(ids) - len(set(ids))

    @property
    def mislabelled(self) -> int:
        """Runs whose label is not that of the index."""
        labels = {"True": True, "False": False}
        return sum(run.label != labels.get(self.rows[run.id]["success"]) for run in self.known)

    @property
    def unlike(self) -> list[Recording]:
        """Runs whose turns or calls are not those of the index, less what is explained."""
        return [run for run in self.known if counts(run) != self._expected(run)]

    @property
    def explained(self) -> int:
        """Runs that are as expected and yet not as in the index."""
        return sum(counts(run) == self._expected(run) != self._indexed(run) for run in self.known)

    @property
    def known(self) -> list[Recording]:
        """Runs that the index has."""
        return [run for run in self.runs if run.id in self.rows]

    def _indexed(self, run: Recording) -> Counts:
        row = self.rows[run.id]
        return Counts(int(row["n_turns"]), int(row["n_calls"]))

    def _expected(self, run: Recording) -> Counts:
        indexed, less = self._indexed(run), self.about.less(run, self.rows[run.id])
        return Counts(indexed.turns - less.turns, indexed.calls - less.calls)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 0, 1 if `--check` and a condition does not hold, 2 if the work cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recordings", type=Path, required=True, metavar="DIR", help="folder that holds the sets")
    parser.add_argument("--set", action="append", choices=sorted(SETS), help="only this set (may be repeated)")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every condition at the end holds")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    arguments = parser.parse_args(argv)
    names = arguments.set or list(SETS)
    try:
        whole = [_read(arguments.recordings / name, READERS) for name in names]
        outlined = [name for name in names if (arguments.recordings / name / OUTLINES).exists()]
        outlines = [_read(arguments.recordings / name, (compact.READER,)) for name in outlined]
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    checks = [check for found in (*whole, *outlines) for check in _checks(found)]
    for grid in (
        _table("Whole recordings", whole),
        _table(f"Outlines ({OUTLINES})", outlines),
        _unreadable(whole),
        what_is_asked(checks),
    ):
        if grid.rows:
            show(grid, markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


def counts(run: Recording) -> Counts:
    """Return the turns and calls of a run."""
    responses = [event.response for event in run.events if isinstance(event, ModelSaid)]
    return Counts(len(responses), sum(len(response.tool_calls) for response in responses))


def failures(run: Recording) -> int:
    """Return how many results of a run are failures."""
    return sum(isinstance(event, ToolAnswered) and event.result.status in ("error", "timeout") for event in run.events)


def _read(folder: Path, readers: tuple[Reader, ...]) -> Found:
    outlines = readers == (compact.READER,)
    with (folder / "index.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file) if outlines or row["file"]}
    place = folder / OUTLINES if outlines else folder
    read_s = decode_s = float("inf")
    for _ in range(TURNS):
        begun = perf_counter()
        items = list(read_recordings([place], readers))
        read_s = min(read_s, perf_counter() - begun)
        sources = {item.source for item in items if not isinstance(item, Skipped)}
        begun = perf_counter()
        for source in sources:
            _decode(Path(source))
        decode_s = min(decode_s, perf_counter() - begun)
    runs = [item for item in items if isinstance(item, Recording)]
    unreadable = [item for item in items if isinstance(item, Unreadable)]
    about = SETS[folder.name]
    name = f"{folder.name}, outlines" if outlines else folder.name
    return Found(name, about._replace(unreadable=0) if outlines else about, rows, runs, unreadable, read_s, decode_s)


def _decode(path: Path) -> None:
    decode = msgspec.json.decode
    for text in path.open("rb") if is_lines(path) else [path.read_bytes()]:
        try:
            decode(text)
        except msgspec.DecodeError:
            if not is_lines(path):
                for line in text.splitlines():
                    decode(line)


# ---- tables


def _checks(found: Found) -> Iterator[Check]:
    yield Check(f"{found.name}: every run of the index is found once", str(found.unknown), not found.unknown)
    yield Check(f"{found.name}: labels are those of the index", str(found.mislabelled), not found.mislabelled)
    asked = f"{found.name}: turns and calls are those of the index"
    if found.about.why:
        asked += f" ({found.about.why})"
    unlike = [run.id for run in found.unlike]
    yield Check(asked, ", ".join([f"{len(unlike)} are not", *unlike[:3]]), not unlike)
    yield Check(
        f"{found.name}: {found.about.unreadable} cannot be read",
        str(len(found.unreadable)),
        len(found.unreadable) == found.about.unreadable,
    )


def _table(title: str, sets: Sequence[Found]) -> Grid:
    columns = (
        "set",
        "#runs",
        "#in the index",
        "#labelled",
        "#successes",
        "#turns",
        "#in the index",
        "#calls",
        "#in the index",
        "#failed results",
        "#in the index",
        "#runs counted otherwise",
        "#unreadable",
        "#read, s",
        "#times msgspec.json.decode",
    )
    return Grid(title, columns, tuple(_line(found) for found in sets))


def _line(found: Found) -> tuple[str, ...]:
    own, rows = [counts(run) for run in found.runs], found.rows.values()
    numbers = (
        len(found.runs),
        len(rows),
        sum(run.label is not None for run in found.runs),
        sum(run.label is True for run in found.runs),
        sum(count.turns for count in own),
        sum(int(row["n_turns"]) for row in rows),
        sum(count.calls for count in own),
        sum(int(row["n_calls"]) for row in rows),
        sum(failures(run) for run in found.runs),
        sum(int(row["n_tool_errors"]) for row in rows),
        found.explained + len(found.unlike),
        len(found.unreadable),
    )
    times = (f"{found.read_s:.3f}", f"{found.read_s / found.decode_s:.1f}" if found.decode_s else "-")
    return (found.name, *(f"{number:,}" for number in numbers), *times)


def _unreadable(sets: Sequence[Found]) -> Grid:
    rows = [
        (found.name, Path(item.source).name, str(item.line), item.reason) for found in sets for item in found.unreadable
    ]
    return Grid("What cannot be read", ("set", "file", "#line", "reason"), tuple(rows))


if __name__ == "__main__":
    sys.exit(main())
