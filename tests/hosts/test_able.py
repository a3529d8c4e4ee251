"""A policy that wants what a host cannot do is refused at load, and what rules declare is what they answer."""

from __future__ import annotations

import pytest

from policyengine import Engine
from policyengine.actions import Record
from policyengine.errors import ConfigError, UsageError
from policyengine.extension import Extension
from policyengine.extensions import BUILTIN
from policyengine.hooks import HOOKS, hookimpl
from policyengine.hosts.able import check_host, require
from policyengine.hosts.host import ABILITIES, ALL, Host, needed
from policyengine.hosts.table import HOSTS, host_named
from policyengine.policy.load import load_policy_text
from policyengine.testing import ManualClock, make_engine, play
from tests.hosts.scenarios import BUILTINS

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: p\n"


def problems(body, *, unable=(), silent=()):
    loaded = load_policy_text(HEAD + body, "p.yaml", registry=BUILTINS)
    snapshot = Engine(loaded, registry=BUILTINS).snapshot
    return check_host(snapshot, Host("poor", ALL - set(unable), frozenset(silent)))


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("policy", ["default", "cautious", "unattended"])
def test_every_known_host_takes_the_shipped_policies(policy, host):
    assert all(problem.code == "R518" for problem in require(Engine(policy).snapshot, host))


def test_a_rung_that_the_host_cannot_do_is_an_error_at_its_rule():
    body = "extensions:\n  stall_detector: {with: {repeat: {deny: 3, wind_down: 4}}}\n"
    (problem,) = problems(body, unable=["wind_down"])
    assert (problem.code, problem.severity, str(problem.position)) == ("R517", "error", "p.yaml:5:3")
    assert "poor cannot let the model give a final answer" in problem.message
    assert "`wind_down`" in problem.help
    assert problems("extensions: {stall_detector: {with: {repeat: {deny: 3}}}}\n", unable=["wind_down"]) == ()


@pytest.mark.parametrize(("mode", "codes"), [("enforce", ["R517"]), ("warn", []), ("shadow", []), ("disabled", [])])
def test_the_mode_of_a_rule_says_what_it_can_come_to(mode, codes):
    body = f"extensions: {{step_limit: {{mode: {mode}, with: {{max_steps: 9, wind_down_at: 5}}}}}}\n"
    assert [problem.code for problem in problems(body, unable=["wind_down"])] == codes
    if mode == "warn":
        assert {problem.code for problem in problems(body, unable=["hint"])} == {"R517"}


def test_a_rule_that_hears_nothing_can_never_fire():
    silent = ["after_model_response", "after_parse", "hist_add_warning.start", "hist_add_warning.end"]
    silent.append("after_tool_call")
    never = ["token_budget: {with: {run: 9}}", "parse_failures: {}", "repeat_message: {}", "tool_failures: {}"]
    never += ["cost_budget: {with: {usd: 1}}", "failure_hint_injector: {}"]
    for rule in never:
        (problem,) = problems(f"extensions: {{{rule}}}\n", silent=silent)
        assert (problem.code, problem.severity) == ("R518", "error"), rule
    for rule in (
        "stall_detector: {}",
        "step_limit: {}",
        "tool_call_limit: {with: {calls: 3}}",
        "wall_clock: {with: {stop: 1m}}",
    ):
        assert problems(f"extensions: {{{rule}}}\n", silent=silent) == (), rule


def test_a_rule_of_a_shipped_policy_is_only_warned_about_until_somebody_touches_it(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(HEAD + "extends: [default]\n")
    (problem,) = check_host(Engine(path).snapshot, HOSTS["own_loop"])
    assert (problem.code, problem.severity, bool(problem.note)) == ("R518", "warning", True)
    path.write_text(HEAD + "extends: [default]\nextensions: {provider_recovery: {with: {max: 3}}}\n")
    with pytest.raises(ConfigError, match=r"p\.yaml:5"):
        require(Engine(path).snapshot, HOSTS["own_loop"])
    path.write_text(HEAD + "extends: [default]\nextensions: {provider_recovery: {mode: disabled}}\n")
    assert require(Engine(path).snapshot, HOSTS["own_loop"]) == ()


def test_an_extension_that_declares_nothing_is_a_warning():
    class Quiet(Extension):
        name = "acme.quiet"

        @hookimpl
        def before_tool_call(self, run, call, batch):
            return None

    snapshot = make_engine({"acme.quiet": {}}, extensions=[Quiet]).snapshot
    assert [(one.code, one.severity) for one in check_host(snapshot, HOSTS["own_loop"])] == [("R519", "warning")]
    silent = Host("silent", silent=frozenset({"before_tool_call"}))
    assert [(one.code, one.severity) for one in check_host(snapshot, silent)] == [("R518", "error")]


# ---- what rules declare

OPTIONS = {
    "stall_detector": [{}, {"repeat": {"wind_down": 3}, "cycle": {"end_step": 2}, "text": {"stop": 2}}],
    "step_limit": [{}, {"max_steps": 5, "wind_down_at": 3}],
    "tool_access": [{"deny": ["look"]}, {"ask": ["look"]}, {"allow": ["pay"]}],
    "tool_call_limit": [{"rounds": 2}, {"calls": 3}, {"tools": {"a": 2}}],
    "token_budget": [{"run": 100}, {"step": 50}, {"run": 100, "step": 50, "wind_down_at": 20}],
    "cost_budget": [{"usd": 0.01}],
    "shared_limit": [
        {"counts": "tool_calls", "limit": 3, "then": "wind_down"},
        {"counts": "requests", "limit": 5, "wind_down_at": 2},
        {"counts": "tokens", "limit": 100, "reserve": 10, "wind_down_at": 90},
        {"counts": "tool_failures", "limit": 2, "window": "1h", "then": "stop"},
        {"counts": "provider_errors", "limit": 2, "window": "1h"},
    ],
    "wall_clock": [{"stop": "10s"}, {"wind_down": "5s"}, {"stop": "10s", "wind_down": "5s"}],
    "failure_hint_injector": [{}, {"levels": {"deny": 2}}, {"levels": {"insist": 2}}],
    "empty_response": [{"fallback": "x"}],
    "context_compaction": [{}, {"strategy": "none"}],
}


@pytest.mark.parametrize("cls", BUILTIN, ids=lambda cls: cls.name)
def test_what_a_built_in_rule_declares_is_what_it_answers(cls):
    for options in OPTIONS.get(cls.name, [{}]):
        clock = ManualClock()
        engine = make_engine({"rule": {"use": cls.name, "with": options}}, clock=clock, interventions={"max": 1000})
        extension = engine.snapshot.extensions["rule"]
        declared = {(hook, action) for hook, actions in extension.answers().items() for action in actions}
        assert all(action in HOOKS[hook].actions for hook, action in declared)
        assert extension.needs <= HOOKS.keys()
        proofs = list(extension.proofs())
        proved = {proof.action for proof in proofs}
        assert proved <= {action for _, action in declared}, "a proof shows an action that is not declared"
        for proof in proofs:
            played = play(engine, proof.turns, clock=clock, pace_s=proof.pace_s, protocol=proof.protocol)
            for answer in played.answers:
                given = {(answer.vote.hook, one.name) for one in answer.vote.raw if not isinstance(one, Record)}
                assert given <= declared


def test_hosts_and_abilities_have_no_slips():
    assert {needed(action, hook) for hook, point in HOOKS.items() for action in point.actions} - {""} <= ALL
    assert all(ABILITIES.values())
    with pytest.raises(ValueError, match="hnit"):
        Host("x", frozenset({"hnit"}))
    with pytest.raises(ValueError, match="before_tool"):
        Host("x", silent=frozenset({"before_tool"}))
    assert host_named("Claude-Code") is HOSTS["claude_code"]
    with pytest.raises(UsageError, match='did you mean "langchain"'):
        host_named("lang_chain")


def test_check_and_lint_take_a_host(tmp_path):
    from click.testing import CliRunner

    from policyengine.cli import cli

    path = tmp_path / "p.yaml"
    path.write_text(HEAD + "extensions: {token_budget: {with: {run: 1000}}}\n")
    for verb in ("check", "lint"):
        assert CliRunner().invoke(cli, [verb, str(path), "--host", "own_loop"]).exit_code == 0
        refused = CliRunner().invoke(cli, [verb, str(path), "--host", "claude-code", "--format", "short"])
        assert refused.exit_code == 1
        assert "p.yaml:4:14: error[R518] extensions.token_budget: the rule can never fire" in refused.stderr
    assert CliRunner().invoke(cli, ["check", "default", "--host", "claude_code", "--strict"]).exit_code == 3
    assert CliRunner().invoke(cli, ["check", str(path), "--host", "x"]).exit_code != 0
