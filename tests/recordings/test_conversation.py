"""Chat messages to events: pairing of calls and results, who spoke, usage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.messages import ToolCall, ToolResult, Usage
from policyengine.recordings.conversation import Pairing, RawCall, events, raw_call, text_of, usage_of
from policyengine.recordings.model import ModelSaid, ShapeError, ToolAnswered, UserSaid, ending


def called(*calls, text=None):
    """One assistant message with calls given as (id, name, arguments)."""
    entries = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"role": "assistant", "content": text, "tool_calls": entries}


def answered(call_id, text, **more):
    return {"role": "tool", "tool_call_id": call_id, "content": text, **more}


def results(happened):
    return [(event.call_id, event.result.text) for event in happened if isinstance(event, ToolAnswered)]


def calls(happened):
    return [call for event in happened if isinstance(event, ModelSaid) for call in event.response.tool_calls]


def test_messages_become_events_in_order_and_system_messages_are_left_out():
    happened = events(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "weigh the parcel"},
            called(("c1", "weigh", '{"parcel": 7}'), text="one moment"),
            answered("c1", "2 kg"),
            {"role": "assistant", "content": "It weighs 2 kg."},
        ]
    )
    assert happened[0] == UserSaid("weigh the parcel")
    assert happened[1].response.tool_calls == (ToolCall("c1", "weigh", '{"parcel": 7}', {"parcel": 7}),)
    assert happened[1].response.text == "one moment"
    assert happened[2] == ToolAnswered("c1", ToolResult("c1", "2 kg"))
    assert happened[3].response.text == "It weighs 2 kg."
    assert ending(happened) == "final_answer"


def test_results_of_a_batch_with_proper_ids_are_paired_by_id_in_any_order():
    happened = events([called(("a", "f", "{}"), ("b", "g", "{}")), answered("b", "of b"), answered("a", "of a")])
    assert results(happened) == [("b", "of b"), ("a", "of a")]


@pytest.mark.parametrize("ids", [("", ""), (None, None), ("x", "x")], ids=["empty", "null", "repeated"])
def test_results_of_a_batch_with_unusable_ids_are_paired_by_order(ids):
    happened = events(
        [called((ids[0], "f", "{}"), (ids[1], "f", "{}")), answered(ids[0], "first"), answered(ids[1], "second")]
    )
    first, second = calls(happened)
    assert first.id != second.id
    assert results(happened) == [(first.id, "first"), (second.id, "second")]


def test_ids_repeated_in_a_later_batch_are_made_unique_and_paired_within_their_batch():
    happened = events([called(("c", "f", "1")), answered("c", "one"), called(("c", "f", "2")), answered("c", "two")])
    first, second = calls(happened)
    assert results(happened) == [(first.id, "one"), (second.id, "two")]
    assert first.id != second.id


def test_a_call_without_a_result_stays_without_one():
    happened = events([called(("a", "f", "{}"), ("b", "f", "{}")), answered("b", "only b")])
    assert results(happened) == [("b", "only b")]


def test_a_second_answer_to_a_call_and_an_answer_to_nothing_are_dropped():
    happened = events(
        [
            answered("zero", "to nothing"),
            called(("a", "f", "{}"), ("b", "f", "{}")),
            answered("a", "1"),
            answered("a", "2"),
        ]
    )
    assert results(happened) == [("a", "1")]


def test_a_late_result_goes_to_the_call_of_the_earlier_batch():
    happened = events([called(("a", "f", "{}"), ("b", "f", "{}")), called(("c", "f", "{}")), answered("b", "late")])
    assert results(happened) == [("b", "late")]


def test_a_result_under_an_unknown_id_goes_to_the_waiting_call_of_that_name():
    happened = events([called(("a", "f", "{}"), ("b", "g", "{}")), answered("zz", "of g", name="g")])
    assert results(happened) == [("b", "of g")]


def test_the_older_function_call_form_is_read():
    happened = events(
        [
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "done"},
        ]
    )
    (call,) = calls(happened)
    assert (call.name, results(happened)) == ("f", [(call.id, "done")])


def test_arguments_that_are_not_json_keep_their_text_and_have_no_parsed_form():
    call = raw_call("c", "think", "{'thought': 'a parcel'}")
    assert (call.arguments, call.args) == ("{'thought': 'a parcel'}", None)


def test_arguments_given_as_an_object_are_written_as_json():
    assert raw_call("c", "f", {"é": [1]}) == RawCall("c", "f", '{"é": [1]}', {"é": [1]})


def test_content_blocks_are_joined_whatever_key_holds_their_text():
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "content": "b"}, "c", {"type": "image"}]
    assert text_of(blocks) == "abc"


def test_reasoning_finish_reason_and_usage_of_a_message_are_kept():
    message = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "finish_reason": "length",
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    (said,) = events([message])
    assert (said.response.reasoning, said.response.finish_reason) == ("hm", "length")
    assert said.response.usage == Usage(3, 4, 7)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"input_tokens": 2, "output_tokens": 5}, Usage(2, 5, 7)),
        ({"total_tokens": 9}, Usage(None, None, 9)),
        ({"total_tokens": True}, None),
        ({"total_tokens": -1}, None),
        ({}, None),
        (None, None),
    ],
)
def test_usage_is_what_the_provider_reported(value, expected):
    assert usage_of(value) == expected


def test_a_harness_says_which_later_user_messages_are_its_own():
    happened = events(
        [{"role": "user", "content": text} for text in ("task", "task", "more")],
        injected=lambda text, task: text == task,
    )
    assert [event.injected for event in happened] == [False, True, False]


@pytest.mark.parametrize(
    "messages",
    [
        {},
        ["hi"],
        [{"role": "exit"}],
        [{"content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [3]}],
        [{"role": "assistant", "tool_calls": {}}],
        [{"role": "assistant", "tool_calls": [7]}],
        [{"role": "assistant", "tool_calls": [{"function": None}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": ["f"]}}]}],
        [{"role": "tool", "tool_call_id": {}}],
    ],
)
def test_what_is_no_chat_message_is_refused(messages):
    with pytest.raises(ShapeError):
        events(messages)


JSON = st.sampled_from([None, True, 0, -3, 2.5, "", "a", "b", "{}", [], ["a"], [None], {}, {"a": 1}, {"name": "a"}])
ROLE = st.sampled_from(["system", "user", "assistant", "tool", "function", "developer"])
MESSAGE = st.fixed_dictionaries(
    {"role": ROLE},
    optional={
        "content": JSON,
        "tool_call_id": JSON,
        "name": JSON,
        "usage": JSON,
        "function_call": JSON,
        "tool_calls": st.lists(
            st.fixed_dictionaries({"id": JSON, "function": st.fixed_dictionaries({"name": JSON, "arguments": JSON})}),
            max_size=3,
        ),
    },
)


@settings(deadline=None)
@given(st.lists(MESSAGE, max_size=8))
def test_any_messages_are_read_or_refused_and_every_result_answers_one_earlier_call_once(messages):
    try:
        happened = events(messages)
    except ShapeError:
        return
    known: set[str] = set()
    unanswered: set[str] = set()
    for event in happened:
        if isinstance(event, ModelSaid):
            new = [call.id for call in event.response.tool_calls]
            assert len(set(new)) == len(new)
            assert not known & set(new)
            assert all(new)
            known |= set(new)
            unanswered |= set(new)
        elif isinstance(event, ToolAnswered):
            assert event.call_id == event.result.call_id
            unanswered.remove(event.call_id)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["", "a", "b", "a~1", "call~1"]), max_size=12))
def test_assigned_ids_are_unique_whatever_the_recorded_ids_are(ids):
    pairing = Pairing()
    given_out = [pairing.batch([RawCall(call_id, "f", "{}", {})])[0].id for call_id in ids]
    assert len(set(given_out)) == len(given_out)
