"""A shortened history: nothing is orphaned, the task stays word for word, what is kept is kept untouched."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.history.check import check_history
from policyengine.history.compact import Cut, Size, length, part_to_summarise, plan_cut, shortened
from policyengine.messages import Message, ToolCall

GOAL = "Find the \U0001f511 in 'north' \u2014 exactly there.\nTwo lines."
DROPPED = "Older messages were left out."
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(str.strip)


def calling(*ids, text=""):
    return Message("assistant", text, tuple(ToolCall(id, "look", json.dumps({"p": id})) for id in ids))


def answer(id, text="found"):
    return Message("tool", text, tool_call_id=id, name="look")


@st.composite
def rounds(draw):
    """One or more messages that belong together: a call batch with its results and notes, a remark, a message."""
    kind = draw(st.sampled_from(["calls", "calls", "says", "user", "note"]))
    if kind != "calls":
        role = "assistant" if kind == "says" else "user"
        return [Message(role, draw(TEXTS), origin="rule:x" if kind == "note" else "")]
    count = draw(st.integers(1, 3))
    raw = draw(st.sampled_from([None, {"role": "assistant", "reasoning_content": "why", "x_unknown": {"kept": True}}]))
    ids = [f"c{draw(st.integers(0, 10**6))}-{index}" for index in range(count)]
    call = calling(*ids)
    if raw is not None:
        made = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in call.tool_calls
        ]
        call = Message("assistant", "", call.tool_calls, raw={**raw, "content": None, "tool_calls": made})
    results = [answer(id, draw(TEXTS)) for id in ids]
    notes = [Message("user", draw(TEXTS), origin="rule:x") for _ in range(draw(st.integers(0, 2)))]
    return [call, *results, *notes]


HISTORIES = st.builds(
    lambda system, parts: [
        *(Message("system", text) for text in system),
        Message("user", GOAL),
        *(message for part in parts for message in part),
    ],
    st.lists(TEXTS, max_size=2),
    st.lists(rounds(), max_size=12),
)
KEEP = st.floats(0, 0.9)


@given(HISTORIES, KEEP)
def test_a_valid_history_stays_valid_and_what_is_kept_stays_the_same(messages, keep):
    assert check_history(tuple(messages)) == ()
    cut = plan_cut(messages, keep)
    if cut is None:
        return
    short = shortened(messages, cut, GOAL, "s")
    part = part_to_summarise(messages, cut)
    assert check_history(part) == ()
    assert cut.end - cut.start > 1
    if short is None:
        return
    assert check_history(tuple(short)) == ()
    assert short[: cut.start] == messages[: cut.start]
    assert all(message.role == "system" for message in short[: cut.start])
    opening, tail = short[cut.start], short[cut.start + 1 :]
    assert all(new is old for new, old in zip(tail, messages[cut.end :], strict=True))
    assert opening.text.startswith(GOAL)
    assert opening.origin == "summary"


@given(HISTORIES, KEEP, st.sampled_from(["", "s", DROPPED, "a long summary " * 40]))
def test_what_is_called_shorter_is_shorter(messages, keep, instead):
    cut = plan_cut(messages, keep)
    short = shortened(messages, cut, GOAL, instead) if cut is not None else None
    if short is not None:
        assert sum(map(length, short)) < sum(map(length, messages))
        assert len(short) < len(messages)


@given(HISTORIES, KEEP)
def test_shortening_again_and_again_ends_and_keeps_the_goal_once(messages, keep):
    before = len(messages) + 1
    while len(messages) < before:
        before = len(messages)
        cut = plan_cut(messages, keep)
        messages = (shortened(messages, cut, GOAL, "s") if cut is not None else None) or messages
        assert sum(GOAL in message.text for message in messages) == 1
    assert check_history(tuple(messages)) == ()


@given(HISTORIES, KEEP)
def test_no_more_is_kept_than_asked_for_where_a_cut_allows_it(messages, keep):
    cut = plan_cut(messages, keep)
    if cut is None:
        return
    start = cut.start
    kept = sum(map(length, messages[cut.end :]))
    total = sum(map(length, messages[start:]))
    last_legal = not any(message.role in ("assistant", "user") for message in messages[cut.end + 1 :])
    assert kept <= total * keep or last_legal


def test_t36_parallel_calls_at_the_boundary_stay_with_their_results():
    batch = [calling("a", "b", "c"), answer("a"), answer("b", "x" * 400), answer("c")]
    messages = [Message("user", GOAL), Message("assistant", "I begin. " * 30), *batch, Message("user", "go on")]
    for keep in (0.0, 0.1, 0.3, 0.5, 0.8):
        cut = plan_cut(messages, keep)
        assert cut is not None
        assert cut.end in (2, 6)  # before the whole batch, or behind it
        assert check_history(tuple(shortened(messages, cut, GOAL, "s"))) == ()


def test_t36_an_injected_note_is_no_place_that_parts_a_call_from_its_result():
    # A note between two results is what AmritaCore wrote; the history is damaged, and the cut makes it no worse.
    batch = [calling("a", "b"), answer("a"), Message("user", "note", origin="rule:x"), answer("b")]
    messages = [Message("user", GOAL), Message("assistant", "Hm. " * 50), *batch, Message("assistant", "So.")]
    cut = plan_cut(messages, 0.2)
    assert cut is not None
    assert cut.end not in (3, 4, 5)


def test_results_of_the_text_protocol_stay_with_what_asked_for_them():
    asked = Message("assistant", '{"tool_name": "look", "tool_args": {}}')
    told = Message("user", '{"tool_name": "look", "result": "found"}', origin="tool")
    messages = [Message("user", GOAL), *[asked, told] * 6]
    for keep in (0.0, 0.1, 0.2, 0.35, 0.5, 0.7):
        cut = plan_cut(messages, keep)
        assert cut is not None
        assert messages[cut.end].origin != "tool"


def test_system_messages_at_the_beginning_stay():
    messages = [Message("system", "be brief"), Message("user", GOAL), *[Message("assistant", "x" * 99)] * 4]
    cut = plan_cut(messages, 0.3)
    assert cut is not None
    assert (cut.start, shortened(messages, cut, GOAL, "s")[0]) == (1, messages[0])


@pytest.mark.parametrize(
    "messages",
    [[], [Message("system", "s")], [Message("user", GOAL)], [Message("user", GOAL), Message("assistant", "x")]],
    ids=["nothing", "only a system prompt", "only the task", "one answer"],
)
def test_where_nothing_is_to_be_gained_nothing_is_cut(messages):
    assert plan_cut(messages, 0.3) is None


def test_one_open_batch_is_never_cut_off():
    messages = [Message("user", GOAL), calling("a", "b"), answer("a", "x" * 5000), answer("b")]
    cut = plan_cut(messages, 0.1)
    assert cut is None or cut.end <= 1


def test_a_summary_that_is_longer_than_what_it_stands_for_is_no_gain():
    messages = [Message("user", GOAL), Message("assistant", "yes"), Message("assistant", "x" * 300)]
    assert shortened(messages, Cut(0, 2), GOAL, "a summary of three letters") is None


@given(st.lists(st.lists(TEXTS, max_size=4), max_size=5))
def test_the_size_is_that_of_all_messages_however_they_came(parts):
    size, messages = Size(), []
    for part in parts:
        messages += [Message("user", text) for text in part]
        assert size.update(messages) == sum(map(length, messages))
    size.reset()
    assert size.update(messages) == sum(map(length, messages))
    assert size.update(messages[:1]) == sum(map(length, messages[:1]))
