"""What must hold for every recording: runs, or what cannot be read; and a replay of what was read.

Knows: a small run in every format (recordings.json). Must not know: how a format is read.
"""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.fuzz.mutate import altered, as_json, damaged
from benchmarks.fuzz.place import written
from benchmarks.fuzz.source import Source, happens, pick
from policyengine.engine import Engine
from policyengine.recordings.model import Recording, Skipped, Unreadable
from policyengine.recordings.readers import READERS, read_recordings
from policyengine.replay import replay


class Case(NamedTuple):
    """A file by its suffix and content."""

    suffix: str
    data: bytes


@cache
def samples() -> dict[str, list[Any]]:
    """Return the values of a file of every format, by the reader's name."""
    made: dict[str, list[Any]] = json.loads(Path(__file__).with_name("recordings.json").read_text("utf-8"))
    assert made.keys() == {reader.name for reader in READERS}, "a format has no sample"
    return made


@cache
def _engine() -> Engine:
    return Engine("default", enforce_time=False)


def generate(source: Source) -> Case:
    """Return a case."""
    values = samples()[pick(source, sorted(samples()))]
    if happens(source, 2):
        values = altered(source, values, 6)
    if happens(source, 12):
        return Case(".parquet", damaged(source, [_table(values)]))
    if isinstance(values, list) and len(values) == 1 and happens(source, 2):
        data, suffix = as_json(values[0]), ".json"
    else:
        data, suffix = b"\n".join(map(as_json, values if isinstance(values, list) else [values])), ".jsonl"
    return Case(suffix, damaged(source, [data]) if happens(source, 2) else data)


def _table(values: Any) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return b"PAR1"
    stream = io.BytesIO()
    lines = [as_json(value).decode() for value in (values if isinstance(values, list) else [values])]
    parquet.write_table(pyarrow.table({"messages": lines}), stream, row_group_size=2)
    return stream.getvalue()


def check(case: Case) -> None:
    """Read the file, and replay what was read.

    Raises:
        AssertionError: a reader failed.
    """
    path = written(f"run{case.suffix}", case.data)
    for item in read_recordings([path]):
        if isinstance(item, Recording):
            replay(item, _engine())
        else:
            assert isinstance(item, Skipped | Unreadable)
            assert " failed: " not in item.reason or "reader" not in item.reason, item.reason
