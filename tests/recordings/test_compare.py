"""Comparing journals: whatever a file holds, the answer is a comparison or a clear error."""

from __future__ import annotations

import json
import os
import tempfile
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import Agent, Engine, Script, call, say
from policyengine.providers.scripted import ScriptedModel
from policyengine.recordings.compare import Comparison, UnreadableRunError, compare_runs, runs_of, shape_of
from policyengine.telemetry.journal import JournalWriter

ENGINE = Engine("default")


def journal(*turns) -> str:
    """Return the journal of a scripted run."""
    file = StringIO()
    model = ScriptedModel(Script("t", turns))
    ENGINE.journal = JournalWriter(file)
    Agent(ENGINE, model, model.tools()).run("t")
    return file.getvalue()


WHOLE = journal(call("look", {"n": 1}, '{"a": 1}'), call("look", {"n": 2}, "x"), say("done"))


def compared(a: bytes, b: bytes, *, exact: bool = False) -> Comparison | UnreadableRunError:
    with tempfile.TemporaryDirectory() as folder:
        one, other = Path(folder) / "a.jsonl", Path(folder) / "b.jsonl"
        one.write_bytes(a)
        other.write_bytes(b)
        try:
            return compare_runs(one, other, exact=exact)
        except UnreadableRunError as error:
            return error


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(WHOLE)), st.integers(0, 40), st.binary(max_size=40), st.booleans())
def test_a_damaged_journal_is_compared_or_refused(at, length, put, exact):
    data = WHOLE.encode()
    found = compared(data, data[:at] + put + data[at + length :], exact=exact)
    assert isinstance(found, Comparison) or found.reason


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(WHOLE)))
def test_a_journal_that_ends_early_is_never_equal_to_the_whole(at):
    found = compared(WHOLE.encode(), WHOLE.encode()[:at])
    if at < len(WHOLE) - 1:
        assert isinstance(found, UnreadableRunError) or found.difference.event == "length"
    else:
        assert found.difference is None


def test_the_comparison_is_symmetric():
    other = journal(call("look", {"n": 1}, '{"b": 1}'), say("done"))
    one, two = compared(WHOLE.encode(), other.encode()), compared(other.encode(), WHOLE.encode())
    assert (one.events, one.difference.event) == (two.events, two.difference.event) == (one.events, "result")
    assert [(f.name, f.a, f.b) for f in one.difference.fields] == [(f.name, f.b, f.a) for f in two.difference.fields]


def test_a_named_pipe_is_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UnreadableRunError, match="not a regular file"):
        runs_of(pipe)


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_every_text_has_a_shape(value):
    assert shape_of(json.dumps(value))
