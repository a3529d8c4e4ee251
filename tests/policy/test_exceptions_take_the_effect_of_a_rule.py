"""`exceptions:`: which events are excepted, until when, and what is left of the rule."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from policyengine import Decision, Engine, ToolCall, ToolResult
from policyengine.policy.explain import explain
from policyengine.policy.model import Exemption, Policy, When
from policyengine.policy.problems import Position, Problem
from policyengine.replay import replay_journal
from policyengine.run import Run
from policyengine.telemetry.decision_log import DecisionLog
from policyengine.telemetry.journal import JournalWriter

Load = Callable[..., Policy]
Faults = Callable[..., tuple[Problem, ...]]

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: mine\nextends: [default]\n"
EXCEPTION = """exceptions:
  - {rule: stall_detector, when: {agent: crawler, tool: "http_*"}, expires: "2026-12-31", owner: platform, reason: x}
"""
BEFORE, LAST, AFTER = date(2026, 12, 1), date(2026, 12, 31), date(2027, 1, 1)


def engine(folder: Path, text: str = EXCEPTION, day: date = BEFORE, **facts: Any) -> Engine:
    (folder / "p.yaml").write_text(HEAD + text)
    return Engine(folder / "p.yaml", today=lambda: day, **facts)


def calls(run: Run, tool: str, count: int) -> list[Decision]:
    """Report equal calls with equal results, and return what was decided about each."""
    found = []
    for number in range(1, count + 1):
        asked = ToolCall(f"{tool}-{number}", tool, "{}", {})
        found.append(run.before_tool_call(asked))
        run.after_tool_call(asked, ToolResult(asked.id, "the same"))
    return found


def started(engine: Engine, agent: str = "crawler", **facts: Any) -> Run:
    run = engine.start_run(agent=agent, **facts)
    run.start("t")
    run.begin_iteration()
    return run


def test_an_excepted_event_goes_on_while_the_rule_still_counts(tmp_path: Path) -> None:
    run = started(engine(tmp_path))
    *_, last = calls(run, "http_get", 6)
    (vote,) = last.votes
    assert last.allowed
    assert [action.name for action in vote.raw] == ["deny"]
    assert vote.effective == ()
    assert vote.exception == f"{tmp_path / 'p.yaml'}:6"
    assert vote.raw[0].observed == 6
    assert run.state.interventions == 0


@pytest.mark.parametrize(("agent", "tool"), [("planner", "http_get"), ("crawler", "sql")])
def test_other_events_are_judged_as_ever(tmp_path: Path, agent: str, tool: str) -> None:
    run = started(engine(tmp_path), agent)
    assert [decision.action for decision in calls(run, tool, 5)][-1] == "deny"


@pytest.mark.parametrize(("day", "action"), [(BEFORE, "allow"), (LAST, "allow"), (AFTER, "deny")])
def test_an_exception_counts_to_the_end_of_its_last_day(tmp_path: Path, day: date, action: str) -> None:
    found = engine(tmp_path, day=day)
    assert calls(started(found), "http_get", 5)[-1].action == action
    assert [problem.code for problem in found.snapshot.policy.warnings] == (["R512"] if day == AFTER else [])


def test_the_day_of_a_run_is_the_one_on_which_it_first_asked(tmp_path: Path) -> None:
    days = [BEFORE]
    (tmp_path / "p.yaml").write_text(HEAD + EXCEPTION)
    made = Engine(tmp_path / "p.yaml", today=lambda: days[-1])
    run = started(made)
    calls(run, "http_get", 4)
    days.append(AFTER)
    assert calls(run, "http_get", 2)[-1].allowed
    assert made.resume_run(run.save())[0].state.day == "2026-12-01"
    assert calls(started(made), "http_get", 5)[-1].action == "deny"


def test_an_exception_that_names_tools_means_no_event_without_one() -> None:
    made = Exemption("2026-12-31", "o", "r", Position("p"), When(tool=("http_*",)))
    assert made.covers("http_get", "", "2026-12-31")
    assert not made.covers(None, "", "2026-12-31")
    assert not made.covers("http_get", "", "2027-01-01")
    assert Exemption("2026-12-31", "o", "r", Position("p")).covers(None, "any", "2026-01-01")


def test_the_journal_of_an_excepted_run_replays_on_any_day(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with path.open("w") as file:
        calls(started(engine(tmp_path, journal=JournalWriter(file))), "http_get", 6)
    assert '"day":"2026-12-01"' in path.read_text()
    found = list(replay_journal(path, engine(tmp_path, day=AFTER)))
    assert all(recorded == replayed for recorded, replayed in found)
    assert any(recorded.wanted for recorded, _ in found)


def test_the_decision_log_names_the_exception(tmp_path: Path) -> None:
    file = io.StringIO()
    calls(started(engine(tmp_path, sinks=[DecisionLog(file)])), "http_get", 5)
    (line,) = json.loads(file.getvalue().splitlines()[-2])["rules"][:1]
    rules = [rule for text in file.getvalue().splitlines() for rule in json.loads(text)["rules"] if "exception" in rule]
    assert line["id"] == "stall_detector"
    assert {(rule["id"], rule["effective"], rule["exception"]) for rule in rules} == {
        ("stall_detector", "allow", f"{tmp_path / 'p.yaml'}:6")
    }
    assert "deny" in {rule["raw"] for rule in rules}


def test_explain_shows_exceptions_in_full(tmp_path: Path) -> None:
    (found,) = explain(engine(tmp_path).snapshot.policy, "exceptions")
    assert '{rule: "stall_detector", when: a mapping' not in found.text()
    for part in ('rule: "stall_detector"', 'agent: "crawler"', 'expires: "2026-12-31"', "p.yaml:6"):
        assert part in found.text()


def test_an_overlay_appends_an_exception(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(HEAD + EXCEPTION)
    (tmp_path / "over.yaml").write_text(
        "apiVersion: policyengine/v1\nkind: Overlay\ntarget: mine\nexceptions:\n"
        '  $append: [{rule: stall_detector, expires: "2026-12-02", owner: me, reason: test}]\n'
    )
    policy = Engine(tmp_path / "p.yaml", overlays=[tmp_path / "over.yaml"], today=lambda: BEFORE).snapshot
    found = policy.rules["stall_detector"].exceptions
    assert [(entry.owner, entry.position.line) for entry in found] == [("platform", 6), ("me", 5)]


@pytest.mark.parametrize(
    ("entry", "code", "place", "said"),
    [
        ('{rule: wach, expires: "2026-12-31", owner: o, reason: r}', "R503", "rule", 'did you mean "watch"?'),
        ("{rule: watch, expires: 2026-12-31, owner: o, reason: r}", "Y114", "", ""),
        ('{rule: watch, expires: "2026-02-30", owner: o, reason: r}', "S216", "expires", "is not a day"),
        ('{rule: watch, expires: "31.12.2026", owner: o, reason: r}', "S216", "expires", "2026-12-31"),
        ("{rule: watch, owner: o, reason: r}", "S203", "expires", "missing"),
        ('{rule: watch, expires: "2026-12-31", reason: r}', "S203", "owner", "missing"),
        ('{rule: watch, expires: "2026-12-31", owner: o}', "S203", "reason", "missing"),
        ('{expires: "2026-12-31", owner: o, reason: r}', "S203", "rule", "missing"),
        ('{rule: watch, expires: "2026-12-31", owner: o, reason: r, when: {tols: x}}', "S204", "when.tols", "tool"),
    ],
)
def test_a_wrong_exception_is_refused(faults: Faults, entry: str, code: str, place: str, said: str) -> None:
    found = faults("extensions: {watch: {with: {word: x}}}\nexceptions: [" + entry + "]\n")
    assert [problem.code for problem in found] == [code]
    if place:
        assert found[0].path == f"exceptions[0].{place}"
    assert said in found[0].full()


@pytest.mark.parametrize(
    ("when", "codes"),
    [
        ("{tool: pay}", ["R513"]),
        ('{agent: "!*"}', ["R513"]),
        ("{agent: a}", []),
    ],
)
def test_an_exception_that_never_applies_is_a_warning(load: Load, when: str, codes: list[str]) -> None:
    body = "extensions: {watch: {with: {word: x}}}\nexceptions:\n"
    entry = f'  - {{rule: watch, when: {when}, expires: "2026-12-31", owner: o, reason: r}}\n'
    assert [problem.code for problem in load(body + entry, today=BEFORE).warnings] == codes
