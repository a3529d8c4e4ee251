"""What a plan is, and how its steps begin and end."""

from __future__ import annotations

import msgspec
import pytest

from policyengine.jsontext import decode, encode
from policyengine.plans import (
    MAX_STEPS,
    Plan,
    PlanError,
    Step,
    finish_current,
    is_over,
    ready,
    single_step,
    start_next,
    with_result,
)


def ids(steps):
    return [step.id for step in steps]


def states(plan):
    return {step.id: step.state for step in plan.steps}


def test_steps_are_ready_once_all_they_need_is_done(plan):
    assert ids(ready(plan("a b<a c<a,b d"))) == ["a", "d"]
    assert ids(ready(plan("a* b<a c<a,b d"))) == ["b", "d"]
    assert ids(ready(plan("a* b*<a c<a,b d>"))) == ["c"]


def test_the_first_ready_step_becomes_the_current_one(plan):
    begun = start_next(plan("b<a a c"))
    assert begun.current == "a"
    assert states(begun) == {"b": "pending", "a": "current", "c": "pending"}


def test_nothing_begins_while_a_step_is_under_way_or_when_nothing_is_ready(plan):
    for sketch in ("a> b", "a* b*", "a! b<a"):
        before = plan(sketch)
        assert start_next(before) is before


def test_a_plan_is_walked_to_its_end(plan):
    order, one = [], start_next(plan("c<a,b a b<a"))
    while not is_over(one):
        order.append(one.current)
        one = start_next(finish_current(one, "done", f"did {one.current}"))
    assert order == ["a", "b", "c"]
    assert one.current == ""
    assert one.step("b").result == "did b"
    assert one.revision == 1


def test_a_failed_step_blocks_all_that_needs_it_through_others_too(begun):
    failed = finish_current(begun("a b<a c<b d"), "failed", "no such page")
    assert states(failed) == {"a": "failed", "b": "blocked", "c": "blocked", "d": "pending"}
    assert not is_over(failed)
    assert is_over(finish_current(start_next(failed), "done"))


def test_a_step_ends_only_as_done_or_failed_and_only_if_it_began(plan):
    with pytest.raises(PlanError) as caught:
        finish_current(plan("a"), "done")
    assert caught.value.code == "no_current_step"
    with pytest.raises(PlanError) as caught:
        finish_current(plan("a>"), "pending")
    assert caught.value.code == "bad_state"


def test_a_result_is_one_line_that_fits_and_can_be_sent(begun):
    done = finish_current(begun("a"), "done", "found\n\n 3 \ud800 " + "x" * 900)
    result = done.step("a").result
    assert result.startswith("found 3 ")
    assert len(result) == 500
    assert result.endswith("…")
    msgspec.json.encode(done)


def test_a_result_is_filled_in_only_where_there_is_none(plan):
    done = plan("a* b")
    filled = with_result(done, "a", "three rows")
    assert filled.step("a").result == "three rows"
    assert with_result(filled, "a", "other") is filled
    assert with_result(done, "b", "too early") is done
    assert with_result(done, "z", "nobody") is done
    assert with_result(done, "a", " ") is done


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ((), "no_steps"),
        (tuple(Step(f"s{number}", "x") for number in range(MAX_STEPS + 1)), "too_many_steps"),
        ((Step("a", "x"), Step("a", "y")), "duplicate_id"),
        ((Step("", "x"),), "bad_id"),
        ((Step("a b", "x"),), "bad_id"),
        ((Step("a\u200b", "x"),), "bad_id"),
        ((Step("\ud800", "x"),), "bad_id"),
        ((Step("a" * 41, "x"),), "bad_id"),
        ((Step("a", " \n\u200b"),), "bad_description"),
        ((Step("a", "x" * 501),), "bad_description"),
        ((Step("a", "x", result="x" * 501),), "bad_result"),
        ((Step("a", "x", ("b",)),), "unknown_dependency"),
        ((Step("a", "x"), Step("b", "x", ("a", "a"))), "duplicate_dependency"),
        ((Step("a", "x", ("a",)),), "dependency_cycle"),
        (
            (Step("z", "x"), Step("a", "x", ("b", "z")), Step("b", "x", ("c",)), Step("c", "x", ("a",))),
            "dependency_cycle",
        ),
        ((Step("a", "x", (), "current"), Step("b", "x", (), "current")), "two_current_steps"),
        ((Step("a", "x"), Step("b", "x", ("a",), "done")), "dependencies_not_done"),
        ((Step("a", "x"), Step("b", "x", ("a",), "current")), "dependencies_not_done"),
        ((Step("a", "x", (), "blocked"),), "bad_state"),
        ((Step("a", "x", (), "failed"), Step("b", "x", ("a",))), "bad_state"),
    ],
)
def test_what_is_no_plan_cannot_be_made_or_loaded(steps, code):
    with pytest.raises(PlanError) as caught:
        Plan(steps)
    assert caught.value.code == code
    with pytest.raises(msgspec.DecodeError):
        decode(encode({"steps": [msgspec.to_builtins(step) for step in steps], "revision": 1}), Plan)


def test_a_cycle_is_told_as_a_path():
    with pytest.raises(PlanError, match="b -> c -> b"):
        Plan((Step("a", "x", ("b",)), Step("b", "x", ("c",)), Step("c", "x", ("b",))))


def test_a_plan_is_saved_and_loaded_as_it_is(plan):
    before = finish_current(Plan(plan("a* b><a c<b d").steps, 7), "failed", "Grund: ä")
    loaded = decode(encode(before), Plan)
    assert loaded == before
    assert (loaded.revision, loaded.step("b").result, loaded.step("c").state) == (7, "Grund: ä", "blocked")


def test_a_task_that_was_not_taken_apart_is_one_step():
    whole = single_step("Pay the\ninvoice. " + "x" * 900)
    assert ids(whole.steps) == ["task"]
    assert whole.steps[0].description.startswith("Pay the invoice. xxx")
    assert len(whole.steps[0].description) == 500
    assert single_step(" \u200b ").steps[0].description == "The task."
