"""The options of shared_limit, what it says, and what it makes of recordings. Whole runs are in tests/shared."""

from __future__ import annotations

import pytest

from policyengine import Engine, ModelResponse, ToolCall, ToolResult, Usage
from policyengine.errors import ConfigError
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.prove import prove
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, UserSaid
from policyengine.replay import replay
from policyengine.run import Run
from policyengine.testing import make_engine

REGISTRY = builtin_registry()
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: t\n"


def policy_of(options, use="shared_limit"):
    return load_policy_text(f"{HEAD}extensions: {{team: {{use: {use}, with: {{{options}}}}}}}\n", registry=REGISTRY)


MISTAKES = [
    ("counts: tokens, limit: 100", "set it: what a request takes is known only afterwards"),
    ("counts: tokens, limit: 100, reserve: 101", "must not be above limit (100)"),
    ("counts: tokens, limit: 100, reserve: 1.5", "tokens are counted in whole numbers"),
    ("counts: requests, limit: 0.5", "requests are counted in whole numbers"),
    ("counts: requests, limit: 5, reserve: 1", "is for tokens and cost"),
    ("counts: requests, limit: 5, tools: [a]", "is for tool_calls and tool_failures"),
    ("counts: requests, limit: 5, then: ask", "a request that is refused is not sent"),
    ("counts: requests, limit: 5, then: wind_down", "set `wind_down_at` below the limit"),
    ("counts: requests, limit: 5, wind_down_at: 5", "must not be above 4"),
    ("counts: tokens, limit: 100, reserve: 20, wind_down_at: 90", "must not be above 80"),
    ("counts: tool_calls, limit: 5, wind_down_at: 3", "write `then: wind_down`"),
    ("counts: tool_failures, limit: 5", "the breaker would never close again"),
    ("counts: provider_errors, limit: 5", "the breaker would never close again"),
    ("counts: tool_calls, limit: 5, prices: {m: {input: 1, output: 1}}", "is for `counts: cost`"),
    ("counts: tool_calls, limit: 5, window: 2d", "duration"),
]


@pytest.mark.parametrize(("options", "said"), MISTAKES)
def test_options_that_cannot_be_meant_do_not_load(options, said):
    with pytest.raises(ConfigError) as failure:
        policy_of(options)
    assert said in str(failure.value)


def test_two_rules_that_mean_different_counts_by_one_pool_do_not_load():
    body = (
        "extensions:\n  a: {use: shared_limit, with: {counts: tool_calls, limit: 5, pool: p}}\n"
        "  b: {use: shared_limit, with: {counts: tool_calls, limit: 9, pool: p, window: 1h}}\n"
    )
    with pytest.raises(ConfigError, match="'a' counts otherwise in the pool 'p'"):
        Engine(load_policy_text(HEAD + body, registry=REGISTRY), registry=REGISTRY)
    sound = body.replace(", window: 1h", "").replace("name: t", "name: t")
    assert len(Engine(load_policy_text(HEAD + sound, registry=REGISTRY), registry=REGISTRY).snapshot.shared) == 2


def test_a_pool_without_a_name_has_that_of_its_rule_and_money_is_whole_billionths():
    engine = make_engine(
        {
            "team": {
                "use": "shared_limit",
                "with": {"counts": "cost", "limit": 2.5, "reserve": 0.1, "prices": {"m": {"input": 1, "output": 1}}},
            }
        }
    )
    (shared,) = engine.snapshot.shared
    assert (shared.rule, shared.pool.name, shared.pool.limit, shared.pool.reserve) == (
        "team",
        "team",
        2_500_000_000,
        100_000_000,
    )


PROVEN = [
    "counts: tool_calls, limit: 3",
    "counts: tool_calls, limit: 3, tools: ['se*'], then: stop",
    "counts: tool_calls, limit: 3, then: wind_down",
    "counts: tool_calls, limit: 3, then: ask, per: conversation",
    "counts: requests, limit: 3, per: agent",
    "counts: requests, limit: 5, wind_down_at: 2",
    "counts: tokens, limit: 1000, reserve: 100, wind_down_at: 900",
    "counts: cost, limit: 2.5, reserve: 0.1, prices: {big: {input: 2, output: 10}}",
    "counts: tool_failures, limit: 3, window: 1h, then: stop",
]


@pytest.mark.parametrize("options", PROVEN)
def test_what_can_be_proved_is_proved(options):
    entries = prove(policy_of(options), REGISTRY)
    assert entries
    assert all(entry.ok for entry in entries)


def test_limits_that_would_take_too_long_are_unproven():
    for options in (
        "counts: tool_calls, limit: 5000",
        "counts: requests, limit: 5000",
        "counts: provider_errors, limit: 3, window: 1h",
    ):
        policy = policy_of(options)
        engine = Engine(policy, registry=REGISTRY)
        assert list(engine.snapshot.extensions["team"].proofs()) == []


def recording(calls, at=None):
    events = [UserSaid("task", at=at and 0.0)]
    for number in range(calls):
        now = None if at is None else number * at
        call = ToolCall(f"c{number}", "look", f'{{"page": {number}}}', {"page": number})
        events += [
            ModelSaid(ModelResponse("", (call,), usage=Usage(50, 50, 100)), now),
            ToolAnswered(call.id, ToolResult(call.id, "x"), now),
        ]
    return Recording(id="r", source="s", format="t", events=tuple(events), ended="tool_result")


def test_a_recording_is_reckoned_as_if_its_run_were_alone():
    engine = Engine(policy_of("counts: tool_calls, limit: 3"), registry=REGISTRY)
    for _ in range(2):
        report = replay(recording(5), engine)
        assert [one.code for one in report.interventions] == ["shared_limit"] * 2
        assert report.denied_succeeded == 2
    report = replay(recording(5), Engine(policy_of("counts: tokens, limit: 250, reserve: 50"), registry=REGISTRY))
    assert (report.stop.code, report.stop.iteration, report.stop.observed) == ("shared_limit", 4, 300)


def test_a_window_of_a_recording_moves_with_its_times():
    engine = Engine(policy_of("counts: tool_calls, limit: 3, window: 60s"), registry=REGISTRY)
    assert replay(recording(9, at=30.0), engine).interventions == ()
    assert replay(recording(9, at=5.0), engine).interventions != ()


def test_a_driver_that_reserves_nothing_meets_a_pool_that_is_down():
    """A loop that reports to `Run` itself and knows nothing of pools must not run past them unseen."""
    for when_down, action in (("deny", "deny"), ("allow", "allow"), ("stop", "stop")):
        run: Run = Engine(
            policy_of(f"counts: tool_calls, limit: 3, when_down: {when_down}"), registry=REGISTRY
        ).start_run()
        run.start("task")
        run.begin_iteration()
        assert run.before_tool_call(ToolCall("c1", "look", "{}", {})).action == action


def test_a_grant_holds_for_one_request_only():
    run: Run = Engine(policy_of("counts: requests, limit: 3"), registry=REGISTRY).start_run()
    run.start("task")
    run.begin_iteration()
    from policyengine.messages import ModelRequest
    from policyengine.shared.alone import Alone

    run.shared(Alone(lambda: 0.0).perform(run.needs_of_request()))
    assert run.before_model_call(ModelRequest(())).allowed
    decision = run.before_model_call(ModelRequest(()))
    assert (decision.action, decision.control.code) == ("stop", "shared_down")
