"""Collecting the events of a run: pairing, the task, arguments that were recorded as objects."""

from __future__ import annotations

import json

import pytest

from policyengine.recordings.conversation import RawCall
from policyengine.recordings.model import ToolAnswered
from policyengine.recordings.tape import Tape, count, number, object_call


def test_a_result_without_a_call_is_left_out():
    tape = Tape()
    assert not tape.tool("c1", "f", "x")
    tape.model("", [RawCall("c1", "f", "{}", {})])
    assert tape.tool("c1", "f", "x", error="why", status="error", duration_s=0.5)
    assert not tape.tool("c1", "f", "y")
    (answer,) = [event for event in tape.events if isinstance(event, ToolAnswered)]
    assert (answer.result.text, answer.result.error.message, answer.result.duration_s) == ("x", "why", 0.5)


def test_the_task_is_the_first_text_that_no_harness_wrote():
    tape = Tape()
    tape.user("reminder", injected=True)
    tape.user("Mend it.")
    tape.user("More.")
    assert (tape.task, tape.ended, bool(tape), bool(Tape())) == ("Mend it.", "user_message", True, False)


@pytest.mark.parametrize("arguments", [{"a": [1, None]}, {"é": "ü"}, {"a": "\ud800"}, {}])
def test_arguments_that_were_an_object_are_written_as_json(arguments):
    call = object_call("c1", "f", arguments)
    assert json.loads(call.arguments) == call.args == arguments
    assert not set("\\ ") & set(call.arguments)


@pytest.mark.parametrize(("arguments", "args"), [('{"a": 1}', {"a": 1}), ("{", None), (None, None), ([1], [1])])
def test_other_arguments_are_read_as_they_are(arguments, args):
    assert object_call("c1", "f", arguments).args == args


@pytest.mark.parametrize("value", [None, True, -1, "5", [], float("nan"), 10**400])
def test_what_is_no_number_is_none(value):
    assert number(value) is None
    assert count(value) in (0, 10**400)


def test_numbers_are_numbers():
    assert (number(2), number(2.5), count(3)) == (2.0, 2.5, 3)
