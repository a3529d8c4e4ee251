"""Parquet: every row is read as a line of JSON is."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from policyengine.backtest.run import backtest
from policyengine.backtest.work import plan
from policyengine.recordings.loading import Part, cut, load
from policyengine.recordings.model import ModelSaid, Recording, Skipped, ToolAnswered, Unreadable
from policyengine.recordings.parquet import rows
from policyengine.recordings.readers import read_recordings

CALL = {"id": "c1", "type": "function", "function": {"name": "weigh", "arguments": '{"parcel": 1}'}}
TALK = [
    {"role": "user", "content": "weigh it"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "3 kg", "tool_call_id": "c1"},
    {"role": "assistant", "content": "It weighs 3 kg."},
]


def write(path, values, group=1000, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist(values) if not columns else pyarrow.table(columns)
    parquet.write_table(table, path, row_group_size=group)
    return path


def read(*paths):
    return list(read_recordings(paths))


def shape(run):
    return [(type(event).__name__, getattr(event, "call_id", "")) for event in run.events]


@pytest.mark.parametrize(
    "row",
    [
        {"id": "r1", "label": True, "messages": TALK},
        {"id": "r1", "label": True, "messages": json.dumps(TALK)},
        {"id": "r1", "label": True, "conversation": TALK},
        {"id": "r1", "label": True, "trajectory": json.dumps(TALK)},
        {"whole": json.dumps({"id": "r1", "label": True, "messages": TALK})},
        {"id": "r1", "label": True, "messages": json.dumps(TALK).encode()},
    ],
)
def test_a_row_is_read_as_a_line_of_json_is(tmp_path, row):
    line = tmp_path / "lines" / "runs.jsonl"
    line.parent.mkdir()
    line.write_text(json.dumps({"id": "r1", "label": True, "messages": TALK}))
    (same,) = read(line)
    (run,) = read(write(tmp_path / "runs.parquet", [row]))
    assert (run.id, run.label, run.format, run.line, run.task) == ("r1", True, "openai_chat", 1, "weigh it")
    assert run.events == same.events


def test_nulls_of_a_nested_record_are_missing_fields_and_those_of_a_column_stay(tmp_path):
    values = [{"task_id": 1, "reward": None, "info": None, "traj": TALK}, {"task_id": 2, "reward": 1.0, "traj": TALK}]
    first, second = read(write(tmp_path / "shop.parquet", values))
    assert (first.format, first.label, second.label) == ("tau_bench", None, True)
    arguments = [{"a": 1, "b": None}, {"a": None, "b": 2}]
    path = write(tmp_path / "args.parquet", [{"calls": arguments, "n": 1}])
    assert [value for _, value in rows(path)] == [{"calls": [{"a": 1}, {"b": 2}], "n": 1}]


def test_values_that_json_has_not_are_written_as_json_can(tmp_path):
    moment = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    path = write(
        tmp_path / "odd.parquet",
        [],
        at=[moment],
        price=[Decimal("1.50")],
        raw=[b"\xff"],
        facts=pyarrow.array([[("a", None), ("b", "x")]], pyarrow.map_(pyarrow.string(), pyarrow.string())),
    )
    assert [value for _, value in rows(path)] == [
        {"at": "2026-05-04T03:02:01+00:00", "price": 1.5, "raw": "\\xff", "facts": {"a": None, "b": "x"}}
    ]


def test_a_text_that_is_no_json_is_told_with_its_row(tmp_path):
    values = [{"id": str(n), "messages": json.dumps(TALK)} for n in range(3)]
    values[1]["messages"] = '[{"role": '
    first, broken, last = read(write(tmp_path / "runs.parquet", values))
    assert (first.id, last.id, last.line) == ("0", "2", 3)
    assert (broken.line, isinstance(broken, Unreadable)) == (2, True)


def test_a_table_of_something_else_is_skipped_and_one_without_rows_is_told(tmp_path):
    (other,) = read(write(tmp_path / "fish.parquet", [{"fish": 1}]))
    assert isinstance(other, Skipped)
    schema = pyarrow.schema([("messages", pyarrow.string())])
    parquet.write_table(schema.empty_table(), tmp_path / "none.parquet")
    (none,) = read(tmp_path / "none.parquet")
    assert (none.line, none.reason) == (0, "the table has no rows")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no table at all"])
def test_a_file_that_is_no_table_is_told(tmp_path, content):
    path = tmp_path / "broken.parquet"
    path.write_bytes(content)
    (told,) = read(path)
    assert isinstance(told, Unreadable)
    assert told.reason.startswith("not Parquet: ")


def test_a_table_that_breaks_off_gives_the_rows_before_and_tells_the_rest(tmp_path):
    values = [{"id": f"{n}-{'x' * 50}", "messages": TALK} for n in range(400)]
    path = write(tmp_path / "runs.parquet", values, group=200)
    data = bytearray(path.read_bytes())
    second = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    data[second.data_page_offset - 40 : second.data_page_offset + 60] = bytes(100)
    path.write_bytes(bytes(data))
    found = read(path)
    assert sum(isinstance(item, Recording) for item in found) == 200
    assert [(item.line, item.source) for item in found if isinstance(item, Unreadable)] == [(201, path.as_posix())]


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "runs.parquet", [{"messages": TALK}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (told,) = read(path)
    assert "agent-policyengine[parquet]" in told.reason
    counted = backtest([path])
    assert (counted.runs, counted.read_error_count) == (0, 1)


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6), limit=st.integers(1, 2000))
def test_parts_together_are_the_table(tmp_path_factory, sizes, limit):
    path = tmp_path_factory.mktemp("parts") / "runs.parquet"
    schema = pyarrow.schema([("id", pyarrow.string())])
    number = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for size in sizes:
            writer.write_table(pyarrow.table({"id": [str(number + n) for n in range(size)]}, schema))
            number += size
    parts = cut(path, limit)
    assert all(isinstance(part, Part) for part in parts)
    documents = [load(path, "runs.parquet", part) for part in parts]
    assert [value for document in documents for value in document.values] == list(rows(path))
    assert {document.first["id"] for document in documents} == {"0"}
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert all(part.size >= limit for part in parts[:-1])


def test_a_backtest_cuts_a_large_table_and_counts_every_run_once(tmp_path, monkeypatch):
    values = [{"id": str(n), "label": n % 2 == 0, "messages": TALK} for n in range(40)]
    path = write(tmp_path / "runs.parquet", values, group=10)
    whole = backtest([path])
    monkeypatch.setattr("policyengine.backtest.work.PART_BYTES", 1)
    units, _, _ = plan([path])
    assert sum(len(unit.pieces) for unit in units) == 4
    cut_up = backtest([path])
    assert (cut_up.runs, cut_up.read_error_count) == (40, 0)
    assert cut_up.policies == whole.policies


def test_an_index_names_the_rows_of_a_table(tmp_path):
    write(tmp_path / "runs.parquet", [{"messages": TALK, "n": 1}, {"messages": TALK, "n": 2}])
    (tmp_path / "index.csv").write_text("id,file,success\nfirst,runs.parquet:0,True\nsecond,runs.parquet:1,False\n")
    assert [(run.id, run.label) for run in read(tmp_path / "runs.parquet")] == [("first", True), ("second", False)]


def test_events_are_those_of_the_talk(tmp_path):
    (run,) = read(write(tmp_path / "runs.parquet", [{"messages": TALK, "id": "a"}]))
    assert [type(event) for event in run.events][1:3] == [ModelSaid, ToolAnswered]
    assert shape(run)[2] == ("ToolAnswered", "c1")
