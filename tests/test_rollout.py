"""Rollouts: who is in is sticky, exact at both ends, and stays in when more are let in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine import Engine, ToolCall, ToolResult
from policyengine.policy.model import Rollout
from policyengine.prove import prove
from policyengine.replay import replay_journal
from policyengine.run import Run
from policyengine.runstate import Conversation
from policyengine.telemetry.journal import JournalWriter

NAMES = st.text(max_size=40)
PERCENT = st.floats(0, 100) | st.integers(0, 100)
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: mine\nextends: [default]\n"


@given(NAMES, st.text(max_size=20), PERCENT, PERCENT)
def test_raising_the_percentage_never_drops_anyone(name: str, salt: str, one: float, other: float):
    low, high = sorted((one, other))
    assert Rollout(high, salt=salt).includes(name) or not Rollout(low, salt=salt).includes(name)


@given(NAMES, st.text(max_size=20))
def test_nobody_is_in_at_0_and_everybody_at_100(name: str, salt: str):
    assert not Rollout(0, salt=salt).includes(name)
    assert Rollout(100, salt=salt).includes(name)


@given(NAMES, PERCENT)
def test_the_same_name_is_always_in_or_always_out(name: str, percent: float):
    assert len({Rollout(percent, salt="s").includes(name) for _ in range(3)}) == 1


def test_who_is_in_never_changes_between_versions():
    """Recorded once: a rollout that is drawn anew by an upgrade is not sticky."""
    found = [number for number in range(60) if Rollout(10, salt="s").includes(f"run-{number}")]
    assert found == [7, 8, 9, 14, 57]


@pytest.mark.parametrize("percent", [1, 10, 50, 90, 99.5])
def test_about_as_many_are_in_as_asked_for(percent: float):
    count = sum(Rollout(percent, salt="s").includes(f"run-{number}") for number in range(10_000))
    assert abs(count - percent * 100) < 4 * (10_000 * percent / 100 * (1 - percent / 100)) ** 0.5


def test_another_salt_draws_anew():
    drawn = [{name for name in range(1000) if Rollout(50, salt=salt).includes(str(name))} for salt in ("a", "b")]
    assert 150 < len(drawn[0] & drawn[1]) < 350


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Engine]:
    def engine(rollout: str, **facts: Any) -> Engine:
        (tmp_path / "p.yaml").write_text(HEAD + f"extensions: {{stall_detector: {{rollout: {rollout}}}}}\n")
        return Engine(tmp_path / "p.yaml", **facts)

    return engine


def denied(run: Run) -> bool:
    """Report one call five times; return whether it was refused."""
    run.start("t")
    run.begin_iteration()
    decisions = []
    for number in range(5):
        call = ToolCall(f"call-{number}", "look", "{}", {})
        decisions.append(run.before_tool_call(call))
        run.after_tool_call(call, ToolResult(call.id, "the same"))
    return decisions[-1].action == "deny"


def test_a_run_outside_is_not_shown_to_the_rule(engine: Callable[..., Engine]):
    made = engine("{percent: 50, salt: s}")
    rollout = made.snapshot.rules["stall_detector"].rollout
    names = [f"run-{number}" for number in range(20)]
    found = {name: denied(made.start_run(run_id=name)) for name in names}
    assert found == {name: rollout.includes(name) for name in names}
    assert len(set(found.values())) == 2
    outside = next(name for name in names if not found[name])
    assert "stall_detector" not in made.start_run(run_id=outside).state.cells


@pytest.mark.parametrize(("percent", "count"), [(0, 0), (100, 6)])
def test_both_ends_are_exact_in_runs(engine: Callable[..., Engine], percent: int, count: int):
    made = engine(f"{{percent: {percent}}}")
    assert sum(denied(made.start_run()) for _ in range(6)) == count
    assert ("R515" in [problem.code for problem in made.snapshot.policy.warnings]) == (not percent)


def test_it_may_go_by_agent_or_conversation(engine: Callable[..., Engine]):
    made = engine("{percent: 50, by: agent}")
    agents = [f"agent-{number}" for number in range(12)]
    first = [denied(made.start_run(agent=name)) for name in agents]
    assert first == [denied(made.start_run(agent=name)) for name in agents]
    assert len(set(first)) == 2
    made = engine("{percent: 50, by: conversation}")
    first = [denied(made.start_run(conversation=Conversation(f"c-{number}"))) for number in range(12)]
    assert first == [denied(made.start_run(conversation=Conversation(f"c-{number}"))) for number in range(12)]
    assert len(set(first)) == 2


def test_a_saved_run_and_a_journal_stay_where_they_were(engine: Callable[..., Engine], tmp_path: Path):
    path = tmp_path / "run.jsonl"
    with path.open("w") as file:
        made = engine("{percent: 50}", journal=JournalWriter(file))
        for number in range(8):
            denied(made.start_run(run_id=f"run-{number}"))
    assert all(recorded == replayed for recorded, replayed in replay_journal(path, engine("{percent: 50}")))
    run = engine("{percent: 50}").start_run(run_id="run-1")
    again, _ = engine("{percent: 50}").resume_run(run.save())
    assert denied(again) == denied(run)


def test_a_run_may_come_in_at_the_next_round(engine: Callable[..., Engine], tmp_path: Path):
    made = engine("{percent: 0}", pin="iteration")
    run = made.start_run()
    assert not denied(run)
    engine("{percent: 100}")
    assert made.reload()
    run.begin_iteration()
    for number in range(5, 10):
        call = ToolCall(f"call-{number}", "look", "{}", {})
        decision = run.before_tool_call(call)
        run.after_tool_call(call, ToolResult(call.id, "the same"))
    assert decision.action == "deny"


def test_a_proof_is_for_a_run_that_every_rule_is_for(engine: Callable[..., Engine]):
    from policyengine.plugins.registry import discover

    proved = prove(engine("{percent: 0}").snapshot.policy, discover())
    assert all(entry.ok for entry in proved if entry.rule == "stall_detector")
