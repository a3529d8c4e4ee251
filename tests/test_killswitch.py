"""The kill switch: it reaches every run at its next event, takes every effect, and leaves every record."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from policyengine import Decision, Engine, Hint, ToolCall, ToolResult
from policyengine.replay import replay_journal
from policyengine.run import Run
from policyengine.telemetry.decision_log import DecisionLog
from policyengine.telemetry.journal import JournalWriter

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: mine\nextends: [default]\n"


@pytest.fixture
def heard() -> Iterator[list[str]]:
    texts: list[str] = []
    sink = logger.add(lambda message: texts.append(str(message)), level="WARNING", format="{message}")
    yield texts
    logger.remove(sink)


def started(engine: Engine) -> Run:
    run = engine.start_run()
    run.start("t")
    run.begin_iteration()
    return run


def again(run: Run) -> Decision:
    """Report the same call with the same result once more."""
    call = ToolCall(f"call-{run.state.calls}", "look", "{}", {})
    decision = run.before_tool_call(call)
    run.after_tool_call(call, ToolResult(call.id, "the same"))
    return decision


def test_while_it_is_on_no_rule_has_an_effect_and_every_rule_counts():
    engine = Engine()
    run = started(engine)
    assert [again(run).action for _ in range(4)] == ["allow"] * 4
    engine.kill()
    killed = again(run)
    assert (killed.action, killed.notes, killed.votes[0].mode) == ("allow", (), "shadow")
    assert killed.votes[0].raw[0].name == "deny"
    engine.kill(False)
    decision = again(run)
    assert (decision.action, decision.control.observed) == ("deny", 6)


def test_a_policy_turns_it_for_runs_that_are_pinned_to_another_generation(tmp_path: Path, heard: list[str]):
    path = tmp_path / "p.yaml"
    path.write_text(HEAD)
    engine = Engine(path)
    run = started(engine)
    for _ in range(4):
        again(run)
    path.write_text(HEAD + "kill_switch: true\n")
    assert engine.reload()
    assert run.snapshot.generation == 1
    assert again(run).allowed
    assert "R514" in [problem.code for problem in engine.snapshot.policy.warnings]
    path.write_text(HEAD)
    assert engine.reload()
    assert again(run).action == "deny"
    assert [text.split(":")[0] for text in heard] == ["the kill switch is on", "the kill switch is off"]


def test_either_hand_or_policy_is_enough(tmp_path: Path, heard: list[str]):
    (tmp_path / "p.yaml").write_text(HEAD + "kill_switch: {$env: KILL, default: false}\n")
    engine = Engine(tmp_path / "p.yaml", env={"KILL": "true"})
    assert engine.killed
    engine.kill()
    engine.kill(False)
    assert engine.killed
    assert heard[-1].startswith("the kill switch stays on")
    assert not Engine(tmp_path / "p.yaml", env={}).killed


def test_a_refused_policy_turns_nothing(tmp_path: Path):
    path = tmp_path / "p.yaml"
    path.write_text(HEAD)
    engine = Engine(path)
    path.write_text(HEAD + "kill_switch: true\nprotocl: x\n")
    assert not engine.reload()
    assert not engine.killed


def test_it_does_not_wait_for_a_reload_under_way():
    engine = Engine()
    with engine._lock:
        thread = threading.Thread(target=engine.kill, daemon=True)
        thread.start()
        thread.join(5)
        assert engine.killed


def test_a_resumed_run_and_one_of_a_conversation_obey_it():
    engine = Engine()
    saved = started(engine).save()
    engine.kill()
    run, _ = engine.resume_run(saved)
    assert [again(run).action for _ in range(8)] == ["allow"] * 8
    assert run.take_notes() == ()
    assert run.killed


def test_a_run_without_an_engine_has_the_switch_of_its_policy(tmp_path: Path):
    (tmp_path / "p.yaml").write_text(HEAD + "kill_switch: true\n")
    engine = Engine(tmp_path / "p.yaml")
    run = Run(engine.snapshot, engine.start_run().state)
    run.start("t")
    assert all(again(run).allowed for _ in range(6))


def test_hints_and_rewrites_are_recorded_only():
    engine = Engine()
    engine.kill()
    run = started(engine)
    votes = [vote for _ in range(3) for vote in again(run).votes]
    assert [type(action) for vote in votes for action in vote.raw] == [Hint]
    assert run.state.interventions == 0


def test_the_decision_log_says_so():
    file = io.StringIO()
    engine = Engine(sinks=[DecisionLog(file)])
    run = started(engine)
    again(run)
    engine.kill()
    again(run)
    said = [json.loads(line).get("kill_switch") for line in file.getvalue().splitlines()]
    assert set(said) == {None, True}
    assert said == sorted(said, key=bool)


def test_a_journal_replays_with_the_switch_as_it_was(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    with path.open("w") as file:
        engine = Engine(journal=JournalWriter(file))
        run = started(engine)
        for number in range(1, 8):
            engine.kill(number in (3, 5))
            again(run)
    pairs = list(replay_journal(path, Engine()))
    assert all(recorded == replayed for recorded, replayed in pairs)
    actions = [recorded.action for recorded, _ in pairs if recorded.hook == "before_tool_call"]
    assert actions == ["allow", "allow", "allow", "allow", "allow", "deny", "stop"]
    other = Engine()
    other.kill()
    assert all(recorded == replayed for recorded, replayed in replay_journal(path, other))


def test_a_reload_writes_only_the_policy_s_side_so_that_a_kill_meanwhile_is_not_lost(tmp_path: Path):
    class Watched:
        by_hand = by_policy = on = False

        def __setattr__(self, name: str, value: bool) -> None:
            written.append(name)

    written: list[str] = []
    path = tmp_path / "p.yaml"
    path.write_text(HEAD)
    engine = Engine(path)
    engine.switch = Watched()  # type: ignore[assignment]
    path.write_text(HEAD + "wind_down: {rounds: 3}\n")
    assert engine.reload()
    assert written == ["by_policy"]


def test_turned_in_the_middle_of_an_event_it_counts_for_all_of_its_rules_or_none(tmp_path: Path):
    class Flickering:
        by_hand = by_policy = asked = False

        @property
        def on(self) -> bool:
            self.asked = not self.asked
            return self.asked

    path = tmp_path / "run.jsonl"
    with path.open("w") as file:
        engine = Engine(sinks=[DecisionLog(io.StringIO())], journal=JournalWriter(file))
        engine.switch = Flickering()  # type: ignore[assignment]
        run = started(engine)
        decisions = [again(run) for _ in range(7)]
    assert all(len({vote.mode for vote in decision.votes}) == 1 for decision in decisions)
    assert max(len(decision.votes) for decision in decisions) > 1
    assert all(recorded == replayed for recorded, replayed in replay_journal(path, Engine()))
