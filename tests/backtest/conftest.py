"""Recordings that are written for a test, and a reader that can end its own process."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from policyengine.backtest.figures import BacktestReport
from policyengine.recordings import readers

READER = """
import os
import signal
from pathlib import Path

from policyengine.recordings.model import Recording
from policyengine.recordings.readers import Reader


def sniff(value):
    return isinstance(value, dict) and "kill" in value


def read(document):
    for line, value in document.values:
        mark = Path(value["kill"]) if value["kill"] else None
        if mark is None or not mark.exists():
            if mark is not None:
                mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield Recording("survived", document.source, "mortal", (), "empty", line=line)


READER = Reader("mortal", sniff, read)
"""
"""`{"kill": MARK}`: whoever reads it dies, unless the file MARK is there, which is made first."""


def chat(number: int, drawn: random.Random) -> dict[str, object]:
    """Return one run: some go round in circles, some have a label, some a usage."""
    messages: list[dict[str, object]] = [{"role": "user", "content": f"task {number % 7}"}]
    for place in range(drawn.randint(1, 9)):
        arguments = json.dumps({"q": drawn.choice(["same", "same", str(place)])})
        call = {"id": f"c{place}", "type": "function", "function": {"name": "look", "arguments": arguments}}
        usage = {"usage": {"prompt_tokens": 10 * place, "completion_tokens": 3}} if number % 3 == 0 else {}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call], **usage})
        messages.append({"role": "tool", "tool_call_id": f"c{place}", "content": drawn.choice(["found", "more\n" * 9])})
    if drawn.random() < 0.7:
        messages.append({"role": "assistant", "content": "done"})
    label = drawn.choice([True, False, None])
    return {"messages": messages, "label": label, "model": f"m{number % 2}", "task": f"t{number % 5}"}


def write_runs(folder: Path, *, lines: int, files: int) -> Path:
    """Write a file of lines (with one that is broken and one that is no run) and single files; return the folder."""
    drawn = random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)
    written = [json.dumps(chat(number, drawn)) for number in range(lines)]
    written[1:1] = ["{broken", '{"no": "run"}']
    (folder / "many.jsonl").write_text("\n".join(written), encoding="utf-8")
    for number in range(files):
        (folder / f"single{number:02}.json").write_text(json.dumps(chat(number, drawn)), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with runs."""
    return write_runs(tmp_path_factory.mktemp("recorded") / "runs", lines=80, files=12)


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a small input cut into many units, and worked on in several processes all the same."""
    monkeypatch.setattr("policyengine.backtest.work.PART_BYTES", 10_000)
    monkeypatch.setattr("policyengine.backtest.work.BATCH_BYTES", 5_000)
    monkeypatch.setattr("policyengine.backtest.run.INLINE_BYTES", 0)


@pytest.fixture
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, str], Path]]:
    """Install the reader `mortal` for this process and those it starts; return a function that writes a file for it.

    With a mark only the first process that reads the file dies, without one every process.
    """
    site = tmp_path / "site"
    about = site / "mortal_reader-1.dist-info"
    about.mkdir(parents=True)
    (site / "mortal_reader.py").write_text(READER, encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mortal-reader\nVersion: 1\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(f"[{readers.GROUP}]\nmortal = mortal_reader:READER\n", encoding="utf-8")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))  # for processes that are not our children
    readers.installed_readers.cache_clear()

    def write(path: Path, mark: str) -> Path:
        path.write_text(json.dumps({"kill": mark}), encoding="utf-8")
        return path

    yield write
    sys.modules.pop("mortal_reader", None)
    readers.installed_readers.cache_clear()


@pytest.fixture
def figures() -> Callable[[BacktestReport], bytes]:
    """Return what makes two reports comparable to the byte: everything but the time they took."""

    def without_time(report: BacktestReport) -> bytes:
        return msgspec.json.encode(msgspec.structs.replace(report, seconds=0.0))

    return without_time
