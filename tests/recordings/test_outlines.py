"""Outlines of runs (`benchmarks.compact`): identity by hash; no reader of the package claims them."""

from __future__ import annotations

import json

from benchmarks.compact import DECLARED, READER
from policyengine.messages import ToolCall, ToolResult
from policyengine.recordings.model import ModelSaid, Recording, Skipped, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import READERS, read_recordings


def turn(text="Next.", calls=(("shell", "aaaa1111", "ls"),), results=((4, "bbbb2222", 0, "a.py"),), **more):
    said = [len(text), "cccc3333", text]
    return {"text": said, "calls": [*map(list, calls)], "results": [*map(list, results)], **more}


def outline(*turns, success: bool | None = True):
    return {"id": "set/7", "group": "big", "task": "clock", "success": success, "term": "end", "turns": list(turns)}


def read(tmp_path, value, readers=(READER,)):
    path = tmp_path / "compact.jsonl"
    path.write_text(json.dumps(value), encoding="utf-8")
    (item,) = read_recordings([path], readers)
    return item


def test_calls_and_results_are_told_apart_by_their_hashes(tmp_path):
    run = read(tmp_path, outline(turn(), turn(results=[(9, "dddd4444", 1, "Tracebac")])))
    assert (run.id, run.group, run.task, run.label, run.ended) == ("set/7", "big", "clock", True, "tool_result")
    task, said, answer, again, failed = run.events
    assert task == UserSaid("clock")
    assert said.response.text == "Next. cccc3333"
    assert said.response.tool_calls == (ToolCall("0-0", "shell", args={"sha8": "aaaa1111"}),)
    assert answer == ToolAnswered("0-0", ToolResult("0-0", "a.py bbbb2222"))
    assert again.response.tool_calls[0].args == said.response.tool_calls[0].args
    assert (failed.result.status, failed.result.text) == ("error", "Tracebac dddd4444")


def test_failures_that_were_guessed_from_words_can_be_left_out(tmp_path):
    failed = [(9, "dddd4444", 1, "Tracebac")]
    guessed, declared = (turn(calls=[(name, "aaaa1111", "ls")], results=failed) for name in ("shell", "bash"))
    run = read(tmp_path, outline(guessed, declared), (DECLARED,))
    assert [event.result.status for event in run.events if isinstance(event, ToolAnswered)] == ["ok", "error"]


def test_an_empty_response_stays_empty_and_a_failed_request_is_none(tmp_path):
    run = read(tmp_path, outline(turn("", (), (), empty=True), turn("", (), (), error="Error code: 429")))
    (said,) = (event for event in run.events if isinstance(event, ModelSaid))
    assert (said.response.text, run.error, run.ended) == ("", "Error code: 429", "empty")


def test_what_the_harness_wrote_when_it_gave_up_is_no_turn(tmp_path):
    run = read(tmp_path, outline(turn(calls=[("shell", "eeee5555", "exit_cost")])))
    assert run.events == (UserSaid("clock"),)


def test_an_outline_of_the_wrong_shape_is_unreadable(tmp_path):
    for broken in (turn(calls=[("shell", "x")]), turn(calls=()), {"text": 5}, 7):
        assert isinstance(read(tmp_path, outline(broken)), Unreadable)


def test_the_package_skips_outlines_and_says_why(tmp_path):
    item = read(tmp_path, outline(turn()), READERS)
    assert isinstance(item, Skipped)
    assert item.reason == "no reader knows this format"
    assert not isinstance(item, Recording)
