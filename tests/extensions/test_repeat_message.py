"""`repeat_message`: equal texts without a call between them are a repeat."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.context import RunView
from policyengine.extensions.repeat_message import RepeatMessage
from policyengine.messages import UNDECLARED, ToolCall
from policyengine.parsing.verdict import Verdict
from policyengine.runstate import RunState

CALL = ToolCall("1", "search")


def prose(text, kind="prose"):
    return Verdict(kind, (), text)


def kinds(bench, *verdicts, **options):
    """Return the kind every verdict has after the rule judged it."""
    rule = bench(RepeatMessage, **options)
    found = []
    for verdict in verdicts:
        answer = rule.hook("after_parse", verdict, verdict.calls)
        found.append(answer.changes["verdict"].kind if answer else verdict.kind)
        rule.next_round()
    return found


def test_the_second_equal_text_is_a_repeat_and_so_is_the_third(bench):
    assert kinds(bench, prose("Let me see."), prose("Let me see."), prose("Let me see.")) == [
        "prose",
        "repeat",
        "repeat",
    ]


def test_the_rewritten_verdict_is_unusable_and_keeps_the_text(bench):
    rule = bench(RepeatMessage)
    rule.hook("after_parse", prose("Done.", "ok"), ())
    answer = rule.hook("after_parse", prose("Done.", "ok"), ())
    verdict = answer.changes["verdict"]
    assert (answer.name, answer.code) == ("rewrite", "repeat")
    assert (verdict.usable, verdict.text, verdict.reason) == (False, "Done.", "same_text")


def test_outer_white_space_and_unicode_form_do_not_matter(bench):
    assert kinds(bench, prose("caf\u00e9"), prose("\n  cafe\u0301\t")) == ["prose", "repeat"]


@pytest.mark.parametrize("other", ["let me see.", "Let me  see.", "Let me see"])
def test_any_other_difference_matters(bench, other):
    assert kinds(bench, prose("Let me see."), prose(other)) == ["prose", "prose"]


def test_a_call_in_between_ends_the_streak(bench):
    with_call = Verdict("ok", (CALL,), "Let me see.")
    assert kinds(bench, prose("Let me see."), with_call, prose("Let me see.")) == ["prose", "ok", "prose"]


def test_responses_with_calls_are_never_judged(bench):
    with_call = Verdict("ok", (CALL,), "Let me see.")
    assert kinds(bench, with_call, with_call) == ["ok", "ok"]


def test_an_empty_response_is_no_repeat_not_even_as_the_first_one(bench):
    empty = Verdict("empty")
    assert kinds(bench, empty, empty, Verdict("reasoning_only"), prose("a"), empty, prose("a")) == [
        "empty",
        "empty",
        "reasoning_only",
        "prose",
        "empty",
        "repeat",
    ]


def test_a_truncated_text_stays_truncated(bench):
    assert kinds(bench, prose("Part", "truncated"), prose("Part", "truncated"), prose("Part")) == [
        "truncated",
        "truncated",
        "repeat",
    ]


def test_the_answer_to_the_next_message_may_equal_the_one_before(bench):
    rule = bench(RepeatMessage)
    assert rule.hook("after_parse", prose("42", "ok"), ()) is None
    rule.next_step()
    assert rule.hook("after_parse", prose("42", "ok"), ()) is None


def test_short_texts_can_be_left_out(bench):
    assert kinds(bench, prose("ok"), prose("ok"), prose("okay"), prose("okay"), min_length=4) == [
        "prose",
        "prose",
        "prose",
        "repeat",
    ]


def test_a_lone_surrogate_is_text_like_any_other(bench):
    assert kinds(bench, prose("a\ud800"), prose("a\ud800")) == ["prose", "repeat"]


def test_state_survives_a_restart(bench):
    rule = bench(RepeatMessage)
    rule.hook("after_parse", prose("Again."), ())
    rule.reload(min_length=2)
    assert rule.hook("after_parse", prose("Again."), ()).code == "repeat"


@pytest.mark.parametrize("options", [{}, {"min_length": 200}], ids=["default", "long"])
def test_the_repeat_is_proved_through_the_loop(proved, options):
    assert proved(RepeatMessage, **options) == {"repeat": "fires at 2"}


@given(st.lists(st.sampled_from(["a", " a", "b", "", "call"]), max_size=12))
def test_a_repeat_is_exactly_an_equal_text_with_nothing_but_silence_between(script):
    rule = RepeatMessage({"min_length": 1})
    view = RunView(RunState("r"), "rule", RepeatMessage.state(), lambda name: UNDECLARED)
    previous = None
    for item in script:
        verdict = Verdict("ok", (CALL,)) if item == "call" else prose(item)
        judged = rule.after_parse(view, verdict, verdict.calls) is not None
        text = item.strip()
        assert judged == (item != "call" and text != "" and text == previous)
        if item == "call":
            previous = None
        elif text:
            previous = text
