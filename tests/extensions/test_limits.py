"""All limits together, through the real loop: proofs in whole policies, random batches, resumes, journals."""

from __future__ import annotations

import asyncio
import io
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import Agent, Engine, Script, ScriptedCall, Turn, Usage, batch, say
from policyengine.extensions import BUILTIN
from policyengine.loop.advance import advance
from policyengine.loop.state import Begin, Finish
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.prove import prove
from policyengine.providers.scripted import ScriptedModel
from policyengine.replay import replay_journal
from policyengine.telemetry.journal import JournalWriter
from policyengine.testing import ManualClock, assert_valid, play

REGISTRY = builtin_registry()
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: t\n"
LIMITS = """
  tool_call_limit: {with: {rounds: 90, calls: 200, tools: {shell: 60, "search_*": 40}}}
  token_budget: {with: {run: 2000000, step: 1500000, wind_down_at: 1200000}}
  cost_budget: {with: {usd: 20}}
  wall_clock: {with: {stop: 1h, wind_down: 50m}}
  tool_timeout: {with: {stop: 4}}
  tool_failures: {with: {stop: 12}}
  unknown_tools: {with: {stop: 4}}
  parse_failures: {with: {stop: 6}}
"""
NAMES = [line.strip().partition(":")[0] for line in LIMITS.strip().split("\n")]


def engine(body, **options):
    return Engine(load_policy_text(HEAD + body, registry=REGISTRY), registry=REGISTRY, clock=ManualClock(), **options)


@pytest.mark.parametrize("base", ["default", "cautious", "unattended"])
def test_every_limit_fires_in_every_shipped_policy_that_it_is_added_to(base):
    made = load_policy_text(f"{HEAD}extends: [{base}]\nextensions:{LIMITS}", registry=REGISTRY)
    assert made.warnings == ()
    if base == "cautious":  # its own limit of rounds comes before this one
        made = load_policy_text(f"{HEAD}extends: [{base}]\nextensions:{LIMITS.replace('90', '50')}", registry=REGISTRY)
    entries = [entry for entry in prove(made, REGISTRY) if entry.rule in NAMES]
    assert {entry.rule for entry in entries} == set(NAMES)
    assert [entry for entry in entries if not entry.ok or entry.whole != f"fires at {entry.expect}"] == []


def test_no_limit_looks_at_the_history_of_a_request():
    made = engine(f"extensions:{LIMITS}")
    run = made.start_run()
    run.start("task")
    run.begin_iteration()
    request = SimpleNamespace(model="scripted", purpose="main", attempt=1, tools=())
    assert run.before_model_call(request).allowed
    assert {rule.use for rule in made.snapshot.policy.rules} == set(NAMES)
    assert set(NAMES) <= {cls.name for cls in BUILTIN}


# ---- random parallel batches

TOOLS = ["look", "shell", "fails"]
calls = st.tuples(st.sampled_from([*TOOLS, "no_such_tool"]), st.integers(0, 99))
turns = st.one_of(
    st.lists(calls, min_size=1, max_size=6).map(tuple),
    st.sampled_from(["", "prose"]).map(lambda text: text),
)
scripts = st.lists(turns, min_size=1, max_size=14)


def script_of(chosen):
    made = []
    for number, turn in enumerate(chosen):
        usage = None if number % 3 == 2 else Usage(10 + number, 5, 15 + number)
        if isinstance(turn, str):
            made.append(Turn(text=turn and f"{turn} {number}", finish_reason="length" if turn else "", usage=usage))
        else:
            made.append(Turn(tuple(ScriptedCall(tool, {"page": page}) for tool, page in turn), usage=usage))
    return Script("task", tuple(made))


class Tools:
    """Counts what really runs."""

    def __init__(self):
        self.ran: list[str] = []

    def functions(self):
        def look(page: int) -> str:
            self.ran.append("look")
            return f"page {page}"

        async def shell(page: int) -> str:
            self.ran.append("shell")
            return f"done {page}"

        def fails(page: int) -> str:
            self.ran.append("fails")
            raise RuntimeError(f"page {page}")

        return [look, shell, fails]


TIGHT = """
interventions: {max: 1000, then: stop}
extensions:
  tool_call_limit: {with: {rounds: 6, calls: 9, tools: {shell: 3, "f*": 4}}}
  token_budget: {with: {run: 120, check: after}}
  tool_failures: {with: {stop: 5}}
  unknown_tools: {with: {stop: 4, count: total}}
  parse_failures: {with: {stop: 3}}
  stall_detector: {with: {repeat: {deny: 3}}}
"""
ENGINE = engine(TIGHT)


@settings(max_examples=60, deadline=None)
@given(scripts, st.booleans())
def test_no_budget_is_exceeded_by_more_than_its_bound_in_either_driver(chosen, asynchronous):
    tools = Tools()
    agent = Agent(ENGINE, ScriptedModel(script_of(chosen)), tools.functions())
    loop = agent.start()
    spent: list[int] = []
    loop.run.sinks = (partial(note_spent, spent),)
    outcome = asyncio.run(agent.adrive(loop, begin())) if asynchronous else agent.drive(loop, begin())
    assert outcome.executed == len(tools.ran) <= 9
    assert tools.ran.count("shell") <= 3
    assert tools.ran.count("fails") <= 4
    counted = loop.run.state.cells["tool_call_limit"].value
    assert (counted.all.done, counted.all.open, counted.rounds <= 6) == (len(tools.ran), 0, True)
    assert all(tokens < 120 for tokens in spent)  # so the run is over its budget by one request at most
    assert_valid(outcome.messages)
    if outcome.stop is not None:
        own = {"call_limit", "token_budget", "tool_failures", "unknown_tool", "parse_failures"}
        assert outcome.stop.code in own
        assert outcome.stop.observed >= outcome.stop.limit


def note_spent(spent, report):
    """Note what was spent whenever a request is sent."""
    if report.hook == "before_model_call" and report.decision.action != "stop":
        spent.append(report.run.state.cells["token_budget"].value.run)


def begin():
    return Begin("task")


@settings(max_examples=30, deadline=None)
@given(scripts, st.integers(0, 25))
def test_a_run_saved_and_resumed_between_any_two_effects_ends_the_same(chosen, at):
    def drive(resumed_at):
        agent = Agent(ENGINE, ScriptedModel(script_of(chosen)), Tools().functions())
        loop = agent.start(run_id="r")
        effect, number = advance(loop, begin()), 0
        while not isinstance(effect, Finish):
            event = agent._perform(loop, effect, [])
            if number == resumed_at:
                loop = agent.resume(agent.save(loop))
            effect, number = advance(loop, event), number + 1
        return effect.outcome

    kept, moved = drive(None), drive(at)
    assert (kept.status, kept.stop, kept.executed, kept.messages) == (
        moved.status,
        moved.stop,
        moved.executed,
        moved.messages,
    )


def test_a_journal_of_limited_runs_replays_to_identical_decisions(tmp_path):
    text = io.StringIO()
    policy = TIGHT.replace("run: 120", "run: 900")
    recorded = engine(policy, journal=JournalWriter(text))
    five = [tuple((tool, 10 * turn + place) for place, tool in enumerate(["look", "shell"] * 3)) for turn in range(4)]
    script = script_of([five[0], "prose", "", *five[1:]])
    play(recorded, [*script.turns, say("done")])
    path = tmp_path / "journal.jsonl"
    path.write_text(text.getvalue())
    pairs = list(replay_journal(path, engine(policy)))
    assert len(pairs) > 20
    assert all(then == now for then, now in pairs)
    assert {then.action for then, _ in pairs} >= {"deny", "wind_down"}


def test_a_stop_keeps_the_partial_result():
    looks = [batch(ScriptedCall("look", {"page": page}, f"page {page}")) for page in range(9)]
    said = [Turn(turn.calls, f"Found page {page}.", usage=Usage(40, 0, 40)) for page, turn in enumerate(looks)]
    for body, text in (
        ("token_budget: {with: {run: 100}}", "Found page 1."),
        ("tool_call_limit: {with: {rounds: 2}}", "Found page 3."),
        ("step_limit: {with: {max_steps: 3}}", "Found page 2."),
    ):
        outcome = play(engine(f"extensions:\n  {body}\n"), said).outcome
        assert (outcome.status, outcome.output) == ("stopped", text)
        assert_valid(outcome.messages)
