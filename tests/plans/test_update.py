"""The tool `update_step`: every action, every refusal, and that no sequence of calls breaks a plan."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import tool_result_envelope
from policyengine.arguments import check_schema
from policyengine.jsontext import decode, encode
from policyengine.plans import (
    Plan,
    Step,
    finish_current,
    plan_echo,
    set_plan_tool,
    snapshot_digest,
    start_next,
    update_plan,
    update_step_tool,
)


def item(id, *needs, description=None):
    return {"id": id, "description": description or f"Do {id}.", "depends_on": list(needs)}


def states(plan):
    return {step.id: step.state for step in plan.steps}


def accepted(plan, **args):
    updated = update_plan(plan, args)
    assert updated.ok, updated.result.text
    assert updated.code == ""
    assert updated.plan.revision == plan.revision + 1
    return updated.plan


def refused(plan, max_steps=30, **args):
    updated = update_plan(plan, args, max_steps=max_steps)
    assert not updated.ok
    assert updated.plan is plan
    assert updated.data == {}
    assert updated.result.error.message == updated.result.text
    return updated.code, updated.result.text


# ---- mark_done


def test_the_current_step_is_done(begun):
    plan = accepted(begun("a b<a"), action="mark_done", result="3 rows\nfound")
    assert states(plan) == {"a": "done", "b": "pending"}
    assert plan.current == ""
    assert plan.step("a").result == "3 rows found"


def test_another_step_may_be_done_if_what_it_needs_is(begun):
    plan = accepted(begun("a b c<b"), action="mark_done", id="b")
    assert states(plan) == {"a": "current", "b": "done", "c": "pending"}
    assert accepted(plan, action="mark_done", id="c").step("c").state == "done"


@pytest.mark.parametrize(
    ("sketch", "args", "code", "told"),
    [
        ("a", {}, "no_current_step", "name the step"),
        ("a> b<a", {"id": "b"}, "dependencies_not_done", "b depends on a, which must be done first"),
        ("a> b", {"id": "z"}, "unknown_step", "The steps are: a, b."),
        ("a* b>", {"id": "a"}, "already_done", "The current step is b."),
        ("a* b<a", {"id": "a"}, "already_done", "What can be begun now: b."),
        ("a*", {"id": "a"}, "already_done", "No step is left"),
        ("a! b<a", {"id": "a"}, "step_failed", "list it in a replan"),
        ("a! b<a", {"id": "b"}, "dependencies_not_done", "replan without that dependency"),
        ("a>", {"result": "x" * 501}, "invalid_arguments", "at most 500 characters"),
        ("a>", {"description": "x"}, "unexpected_argument", "description cannot be sent with mark_done"),
    ],
)
def test_what_cannot_be_marked_done(plan, sketch, args, code, told):
    found, text = refused(plan(sketch), action="mark_done", **args)
    assert found == code
    assert told in text


# ---- add_step, remove_step


def test_a_step_is_added_at_the_end(begun):
    plan = accepted(begun("a b"), action="add_step", **item("c", "a"))
    assert states(plan) == {"a": "current", "b": "pending", "c": "pending"}
    assert plan.step("c") == Step("c", "Do c.", ("a",))


def test_a_finished_plan_is_opened_again_by_a_new_step(plan):
    assert start_next(accepted(plan("a*"), action="add_step", id="b", description="x")).current == "b"


@pytest.mark.parametrize(
    ("sketch", "args", "code", "told"),
    [
        ("a b", item("a"), "duplicate_id", "There is a step a already"),
        ("a b", item("c", "z"), "unknown_dependency", "c depends on z, which is no step. The steps are: a, b, c."),
        ("a b", item("c", "c"), "dependency_cycle", "c -> c"),
        ("a! b<a", item("c", "a"), "dependency_failed", "which is failed"),
        ("a! b<a", item("c", "b"), "dependency_failed", "blocked by a failed step"),
        ("a b", {"id": "c"}, "missing_argument", "add_step needs description as well"),
        ("a b", {}, "missing_argument", "add_step needs id and description as well"),
        ("a b", item("c", description="\u200b"), "bad_description", "must say what is to be done"),
        ("a b", item("c", description="x" * 501), "invalid_arguments", "at most 500 characters"),
        ("a b", item("c" * 41), "invalid_arguments", "at most 40 characters"),
        ("a b", item("c d"), "bad_id", "no spaces"),
        ("a b", item("c", "a", "a"), "invalid_arguments", "same item twice"),
        ("a b", item("c") | {"depends_on": 7}, "invalid_arguments", "depends_on must be an array"),
    ],
)
def test_what_cannot_be_added(plan, sketch, args, code, told):
    found, text = refused(plan(sketch), action="add_step", **args)
    assert found == code
    assert told in text


def test_a_plan_that_is_full_takes_no_more_steps(plan):
    code, text = refused(plan("a* b c"), 3, action="add_step", **item("d"))
    assert code == "too_many_steps"
    assert "3 is the most" in text


def test_a_plan_above_a_limit_that_was_lowered_can_still_go_on(plan):
    done = update_plan(plan("a> b c"), {"action": "mark_done"}, max_steps=2)
    assert done.ok
    assert refused(done.plan, 2, action="add_step", **item("d"))[0] == "too_many_steps"


def test_a_step_nobody_needs_is_removed(begun):
    assert states(accepted(begun("a b c<a"), action="remove_step", id="c")) == {"a": "current", "b": "pending"}
    failed = finish_current(begun("a b<a c"), "failed")
    without = accepted(accepted(failed, action="remove_step", id="b"), action="remove_step", id="a")
    assert states(without) == {"c": "pending"}


@pytest.mark.parametrize(
    ("sketch", "args", "code", "told"),
    [
        ("a b<a c<a", {"id": "a"}, "step_needed", "needed by: b, c. Remove these first, or replan"),
        ("a> b", {"id": "a"}, "current_step", "replan with replace_current"),
        ("a* b", {"id": "a"}, "done_step", "stays in the plan"),
        ("a b", {"id": "z"}, "unknown_step", "The steps are: a, b."),
        ("a", {"id": "a"}, "no_steps", "Replan"),
        ("a b", {}, "missing_argument", "needs id"),
        ("a b", {"id": ""}, "invalid_arguments", "at least 1 character"),
        ("a b", {"id": "b", "steps": []}, "unexpected_argument", "remove_step, which takes: id. Send one action"),
    ],
)
def test_what_cannot_be_removed(plan, sketch, args, code, told):
    found, text = refused(plan(sketch), action="remove_step", **args)
    assert found == code
    assert told in text


# ---- replan


def test_a_new_plan_takes_the_place_of_all_that_is_not_done(plan):
    before = plan("a* b! c<b d")
    after = accepted(before, action="replan", steps=[item("e", "a"), item("b", "e")])
    assert states(after) == {"a": "done", "e": "pending", "b": "pending"}
    assert after.step("a") is before.step("a")


def test_the_current_step_stays_where_it_is_not_listed(begun):
    after = accepted(begun("a b"), action="replan", steps=[item("c", "a")])
    assert states(after) == {"a": "current", "c": "pending"}


def test_the_current_step_stays_under_way_where_it_is_listed(begun):
    steps = [item("c"), item("a", description="Do it in another way."), item("d", "a")]
    updated = update_plan(begun("a b"), {"action": "replan", "steps": steps})
    assert states(updated.plan) == {"c": "pending", "a": "current", "d": "pending"}
    assert updated.plan.step("a").description == "Do it in another way."
    assert updated.data["message"] == "The plan was replaced; step a is still the current one."


def test_the_current_step_is_given_up_only_where_the_model_says_so(begun):
    updated = update_plan(begun("a b"), {"action": "replan", "steps": [item("c")], "replace_current": True})
    assert states(updated.plan) == {"c": "pending"}
    assert updated.data["message"] == "The plan was replaced; step a was given up."


def test_the_rest_may_turn_out_to_be_needless(plan):
    assert states(accepted(plan("a* b c"), action="replan", steps=[])) == {"a": "done"}
    assert states(accepted(plan("a> b c"), action="replan", steps=[])) == {"a": "current"}


@pytest.mark.parametrize(
    ("sketch", "args", "code", "told"),
    [
        ("a", {}, "missing_argument", "replan needs steps"),
        ("a b", {"steps": []}, "no_steps", "at least one step"),
        ("a> b", {"steps": [], "replace_current": True}, "no_steps", "in the place of the current step a"),
        ("a> b", {"steps": [item("a")], "replace_current": True}, "current_step", "cannot be given up and listed"),
        ("a* b", {"steps": [item("a")]}, "duplicate_id", "Step a is done and stays; leave it out"),
        ("a", {"steps": [item("b"), item("b")]}, "duplicate_id", "Two steps have the id b"),
        ("a", {"steps": [item("b", "z")]}, "unknown_dependency", "z, which is no step"),
        ("a b", {"steps": [item("c", "b")]}, "dependency_removed", "List b again"),
        ("a! b<a", {"steps": [item("c", "a")]}, "dependency_failed", "a, which is failed"),
        ("a! b<a", {"steps": [item("c", "b")]}, "dependency_failed", "blocked"),
        (
            "a>",
            {"steps": [item("b", "a")], "replace_current": True},
            "dependency_removed",
            "a, which is a current step",
        ),
        ("a", {"steps": [item("b", "c"), item("c", "b")]}, "dependency_cycle", "b -> c -> b"),
        ("a> b", {"steps": [item("b"), item("a", "b")]}, "dependencies_not_done", "done steps only, and b is not done"),
        ("a", {"steps": [{"id": "b"}]}, "invalid_arguments", "steps[0].description is required"),
        ("a", {"steps": [item("b") | {"status": "done"}]}, "invalid_arguments", "status is not allowed there"),
        ("a", {"steps": "b"}, "invalid_arguments", "steps must be an array"),
        ("a", {"steps": [item(f"s{n}") for n in range(31)]}, "too_many_steps", "at most 30 items"),
        ("a", {"steps": [item("b")], "id": "a"}, "unexpected_argument", "replan, which takes: steps, replace_current"),
    ],
)
def test_what_is_no_new_plan(plan, sketch, args, code, told):
    found, text = refused(plan(sketch), action="replan", **args)
    assert found == code
    assert told in text


def test_done_steps_count_where_a_new_plan_is_too_long(plan):
    code, text = refused(plan("a* b"), 3, action="replan", steps=[item("c"), item("d"), item("e")])
    assert code == "too_many_steps"
    assert "4 steps, done ones included" in text


# ---- any call


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (None, "invalid_arguments", "action is required"),
        ({}, "invalid_arguments", "action is required"),
        ({"action": "finish"}, "unknown_action", '"replan", "mark_done", "add_step", "remove_step"'),
        ({"action": 3}, "unknown_action", "mark_done"),
        ({"action": "mark_done", "step": "a"}, "invalid_arguments", "step is not a parameter"),
        ([1], "invalid_arguments", "Send one JSON object"),
        ("no json", "invalid_arguments", "Send one JSON object"),
        ({"action": "mark_done", "id": float("nan")}, "invalid_arguments", "id"),
    ],
)
def test_arguments_that_cannot_be_read_are_refused(begun, args, code, told):
    plan = begun("a b")
    updated = update_plan(plan, args)
    assert updated.plan is plan
    assert updated.code == code
    assert told in updated.result.text


def test_arguments_with_one_reading_are_repaired(begun):
    updated = update_plan(
        begun("a"), '{"action": "Replan", "steps": "[{\\"id\\": \\"b\\", \\"description\\": \\"x\\"}]"}'
    )
    assert states(updated.plan) == {"a": "current", "b": "pending"}


def test_the_result_echoes_the_plan_compactly(begun):
    updated = update_plan(begun("a b<a c"), {"action": "mark_done"}, call_id="call-7")
    assert updated.result.call_id == "call-7"
    assert json.loads(updated.result.text) == updated.data
    assert updated.data == {
        "message": "Step a is done.",
        "revision": 2,
        "current": None,
        "ready": ["b", "c"],
        "steps": {"a": "done", "b": "pending", "c": "pending"},
    }
    assert {key: value for key, value in updated.data.items() if key != "message"} == plan_echo(updated.plan)


def test_results_fit_the_envelope(begun):
    good = update_plan(begun("a b"), {"action": "mark_done"})
    envelope = tool_result_envelope(good.result, tool="update_step")
    assert (envelope["status"], envelope["data"], envelope["error"]) == ("ok", good.data, None)
    bad = update_plan(begun("a b"), {"action": "remove_step", "id": "z"})
    envelope = tool_result_envelope(bad.result, tool="update_step")
    assert (envelope["status"], envelope["data"]) == ("error", None)
    assert envelope["error"] == {"code": "unknown_step", "message": bad.result.text, "retryable": True}


@pytest.mark.parametrize("max_steps", [-1, 0, 1, 30, 1_000])
def test_the_schemas_can_be_used_whatever_the_limit(max_steps):
    for make in (set_plan_tool, update_step_tool):
        tool = make(max_steps)
        check_schema(tool.parameters, tool.name)
        assert tool.parameters["additionalProperties"] is False
        assert tool.parameters["properties"]["steps"]["maxItems"] == min(max(max_steps, 1), 50)


# ---- any sequence of calls

LIMIT = 6
IDS = st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "", "x y"])
NEEDS = st.lists(IDS, max_size=3)
TEXTS = st.sampled_from(["Do it.", "", "\u200b", "x" * 501, "zwei\nZeilen \ud800"])
ITEMS = st.fixed_dictionaries({"id": IDS, "description": TEXTS | st.just("Do it.")}, optional={"depends_on": NEEDS})
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | IDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | IDS, inner, max_size=3),
    max_leaves=8,
)
CALLS = st.one_of(
    st.fixed_dictionaries({"action": st.just("mark_done")}, optional={"id": IDS, "result": TEXTS}),
    st.builds(lambda one: {"action": "add_step", **one}, ITEMS),
    st.fixed_dictionaries({"action": st.just("remove_step"), "id": IDS}),
    st.fixed_dictionaries(
        {"action": st.just("replan"), "steps": st.lists(ITEMS, max_size=LIMIT + 1)},
        optional={"replace_current": st.booleans()},
    ),
    st.fixed_dictionaries(
        {"action": st.sampled_from(["replan", "mark_done", "add_step", "remove_step", "other"])},
        optional={"id": ANYTHING, "steps": ANYTHING, "depends_on": ANYTHING, "extra": ANYTHING, "result": ANYTHING},
    ),
    ANYTHING,
)
MOVES = st.lists(CALLS | st.sampled_from(["start", "done", "failed"]), max_size=25)


def check_invariants(plan: Plan) -> None:
    """Check what always holds of a plan, without the code that makes sure of it."""
    by_id = {step.id: step for step in plan.steps}
    assert len(by_id) == len(plan.steps)
    assert 1 <= len(plan.steps) <= LIMIT
    assert sum(step.state == "current" for step in plan.steps) <= 1
    order: list[str] = []
    while len(order) < len(by_id):
        free = [id for id, step in by_id.items() if id not in order and set(step.depends_on) <= set(order)]
        assert free, "a cycle, or a dependency that is no step"
        order += free
    for step in plan.steps:
        needed = {by_id[id].state for id in step.depends_on}
        if step.state in ("current", "done", "failed"):
            assert needed <= {"done"}
        else:
            assert (step.state == "blocked") == bool(needed & {"failed", "blocked"})
        assert len(step.description) <= 500
        assert len(step.result) <= 500
    msgspec.json.encode(plan)
    loaded = decode(encode(plan), Plan)
    assert loaded == plan
    assert snapshot_digest(loaded) == snapshot_digest(plan)


def moved(plan: Plan, move: object) -> Plan:
    """Return the plan after one move, checked for what that move may not do."""
    if move == "start":
        return start_next(plan)
    if move in ("done", "failed"):
        return finish_current(plan, move, "so it went") if plan.current else plan
    updated = update_plan(plan, move, max_steps=LIMIT)
    msgspec.json.encode(updated.result)
    if not updated.ok:
        assert updated.plan is plan
        assert updated.result.text
        return plan
    assert updated.plan.revision == plan.revision + 1
    was = plan.step(plan.current)
    if was is not None and not move.get("replace_current"):
        assert updated.plan.step(was.id).state in ("current", "done")
    return updated.plan


@settings(deadline=None)
@given(MOVES)
def test_no_sequence_of_calls_breaks_a_plan(moves):
    plan = Plan((Step("a", "x"), Step("b", "x", ("a",)), Step("c", "x", ("a",)), Step("d", "x", ("b", "c"))))
    for move in moves:
        after = moved(plan, move)
        for step in plan.steps:
            if step.state == "done":
                assert after.step(step.id) == step
        check_invariants(after)
        plan = after


@settings(deadline=None)
@given(ANYTHING)
def test_no_arguments_make_an_update_raise(args):
    plan = Plan((Step("a", "x"),))
    assert update_plan(plan, args).plan is plan or args["action"]
