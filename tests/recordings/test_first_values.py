"""What stands before the first run of a file, and runs that are none."""

from __future__ import annotations

import json

import pytest

from policyengine.recordings.loading import cut
from policyengine.recordings.model import Recording, Skipped, Unreadable
from policyengine.recordings.readers import LOOKED_AT, UNKNOWN, read_file, read_recordings

HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
BLOCKS = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
]


def lines(path, *values):
    path.write_text("\n".join(value if isinstance(value, str) else json.dumps(value) for value in values) + "\n")
    return path


def read(path):
    items = list(read_recordings([path]))
    problems = [(item.line, item.reason) for item in items if isinstance(item, Unreadable)]
    return [item for item in items if isinstance(item, Recording)], problems, items


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("null", UNKNOWN),
        ("1", UNKNOWN),
        ("{}", UNKNOWN),
        ("[]", "no messages"),
        ('{"messages": null}', "messages is null, not a list"),
        ('{"messages": []}', "no messages"),
    ],
)
@pytest.mark.parametrize("messages", [HELLO, BLOCKS])
def test_a_bad_first_value_is_told_and_the_others_are_read(tmp_path, value, reason, messages):
    path = lines(tmp_path / "a.jsonl", value, {"id": "x", "messages": messages}, {"id": "y", "messages": messages})
    runs, problems, _ = read(path)
    assert [(run.id, run.line) for run in runs] == [("x", 2), ("y", 3)]
    assert problems == [(1, reason)]


def test_bad_values_and_broken_lines_at_the_beginning_are_all_told(tmp_path):
    path = lines(tmp_path / "a.jsonl", "{", "null", "{", "7", {"id": "x", "messages": HELLO})
    runs, problems, _ = read(path)
    assert [run.id for run in runs] == ["x"]
    assert sorted(line for line, _ in problems) == [1, 2, 3, 4]


def test_one_message_a_line_is_a_whole_run_behind_a_bad_first_value(tmp_path):
    ((run,), problems, _) = read(lines(tmp_path / "a.jsonl", "null", *HELLO))
    assert (len(run.events), problems) == (2, [(1, UNKNOWN)])


@pytest.mark.parametrize(("before", "count"), [(LOOKED_AT - 1, 1), (LOOKED_AT, 0)])
def test_the_format_is_looked_for_in_the_first_values_only(tmp_path, before, count):
    runs, problems, items = read(lines(tmp_path / "a.jsonl", *["null"] * before, {"messages": HELLO}))
    assert (len(runs), len(problems)) == (count, before if count else 0)
    assert count or isinstance(items[-1], Skipped)


def test_parts_of_a_file_with_bad_first_values_give_what_the_whole_gives(tmp_path):
    path = lines(tmp_path / "a.jsonl", "null", "{}", *({"id": f"r{n}", "messages": HELLO} for n in range(9)))
    parts = [item for part in cut(path, 4) for item in read_file(path, "a", part)]
    whole = list(read_file(path, "a"))
    assert sorted(map(repr, parts)) == sorted(map(repr, whole))


def test_broken_lines_of_a_file_that_is_skipped_are_told(tmp_path):
    broken, skipped = read_recordings([lines(tmp_path / "a.jsonl", "{", '{"weigh": 1}')])
    assert isinstance(broken, Unreadable)
    assert broken.line == 1
    assert skipped == Skipped((tmp_path / "a.jsonl").as_posix(), UNKNOWN)


@pytest.mark.parametrize("messages", [HELLO, BLOCKS])
@pytest.mark.parametrize(("value", "reason"), [(None, "messages is null, not a list"), ([], "no messages")])
def test_a_run_without_messages_is_unreadable(tmp_path, messages, value, reason):
    path = lines(tmp_path / "a.jsonl", {"id": "x", "messages": messages}, {"messages": value, "label": True})
    runs, problems, _ = read(path)
    assert ([run.id for run in runs], problems) == (["x"], [(2, reason)])
    alone = tmp_path / "b.json"
    alone.write_text(json.dumps({"messages": value, "label": True}), encoding="utf-8")
    assert read(alone)[1] == [(0, reason)]


@pytest.mark.parametrize("messages", [HELLO, BLOCKS])
@pytest.mark.parametrize(
    ("label", "meant"),
    [
        *((True, True), (False, False), (1, True), (0, False), (1.0, True), (0.0, False), (None, None)),
        *(("true", True), ("False", False), ("TRUE", True), ("1", True), ("", None)),
    ],
)
def test_a_label_may_be_written_as_in_json_or_as_in_an_index(tmp_path, messages, label, meant):
    ((run,), problems, _) = read(lines(tmp_path / "a.jsonl", {"messages": messages, "label": label}))
    assert (run.label, problems) == (meant, [])


@pytest.mark.parametrize("messages", [HELLO, BLOCKS])
@pytest.mark.parametrize("label", ["yes", 2, 0.5, [], {"a": "b" * 99}])
def test_a_run_with_another_label_is_read_without_it_and_that_is_told(tmp_path, messages, label):
    path = lines(tmp_path / "a.jsonl", {"messages": HELLO}, {"messages": messages, "label": label})
    runs, ((line, reason),), _ = read(path)
    assert [run.label for run in runs] == [None, None]
    assert line == 2
    assert reason.startswith("label is ")
    assert reason.endswith("not true, false, 1 or 0; the run is read without it")
    assert len(reason) < 120
