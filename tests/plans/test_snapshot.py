"""What the model is shown of a plan, and when that has changed."""

from __future__ import annotations

import pytest

from policyengine.plans import (
    Plan,
    finish_current,
    plan_snapshot,
    single_step,
    snapshot_digest,
    start_next,
    update_plan,
)
from policyengine.templates import CORE_MESSAGES, Templates


def test_a_snapshot_shows_every_step_and_the_current_one(begun):
    shown = plan_snapshot(finish_current(begun("a b<a c"), "failed", "no such page"))
    assert shown["steps"] == [
        {"id": "a", "state": "failed", "depends_on": [], "description": "Do a.", "reason": "no such page"},
        {"id": "b", "state": "blocked", "depends_on": ["a"], "description": "Do b.", "reason": ""},
        {"id": "c", "state": "pending", "depends_on": [], "description": "Do c.", "reason": ""},
    ]
    assert [shown[name] for name in ("current", "done", "total", "remaining", "stuck")] == ["", 0, 3, 1, 2]
    assert shown.keys() == CORE_MESSAGES["plan.snapshot"].keys()
    assert shown["steps"][0].keys() == CORE_MESSAGES["plan.snapshot"]["steps"][0].keys()


def test_the_digest_changes_exactly_when_the_snapshot_does(plan):
    before = plan("a b")
    digest = snapshot_digest(before)
    assert digest == snapshot_digest(Plan(before.steps, 9))
    begun = start_next(before)
    done = finish_current(begun, "done")
    digests = {digest, snapshot_digest(begun), snapshot_digest(done), snapshot_digest(plan("a b<a"))}
    assert len(digests) == 4
    assert snapshot_digest(finish_current(begun, "done", "a result is not shown")) == snapshot_digest(done)
    refused = update_plan(begun, {"action": "add_step", "id": "a", "description": "x"})
    assert snapshot_digest(refused.plan) == snapshot_digest(begun)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_text_names_the_step_and_forbids_an_early_answer(language, begun):
    templates = Templates(language)
    text = templates.render("plan.snapshot", plan_snapshot(begun("a b<a c<a,b")))
    lines = text.split("\n")
    assert len([line for line in lines if line.startswith("- ")]) == 3
    assert "- a [current]" in text
    assert "a, b" in text or "a、b" in text
    assert "update_step" in text
    over = templates.render("plan.snapshot", plan_snapshot(finish_current(begun("a"), "done")))
    assert "update_step" not in over
    told = {
        "en": ("Do not give your final answer", "give your final answer now"),
        "zh": ("不要给出最终答复", "请现在给出最终答复"),
    }
    assert told[language][0] in text
    assert told[language][1] in over


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_longest_plan_is_shown_whole(language):
    ids = [f"{number:02}{'i' * 38}" for number in range(50)]
    steps = [{"id": id, "description": "d" * 500, "depends_on": ids[:at]} for at, id in enumerate(ids)]
    plan = update_plan(single_step("x"), {"action": "replan", "steps": steps}, max_steps=50).plan
    text = Templates(language).render("plan.snapshot", plan_snapshot(plan))
    assert len([line for line in text.split("\n") if line.startswith("- ")]) == 50
    assert "…" not in text
