"""`cost_budget`: money, from listed or bundled prices; a model without a price is never free without a word."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine import ConfigError, Engine, prices
from policyengine.context import RunView
from policyengine.extensions.cost_budget import CostBudget
from policyengine.messages import UNDECLARED, Message, ModelRequest, ModelResponse, Usage
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.runstate import RunState

REGISTRY = builtin_registry()
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: t\n"
PRICES = {"big": {"input": 2, "output": 10}, "big-*": {"input": 1, "output": 4}, "*-free": {"input": 0, "output": 0}}
MILLION = 1_000_000


def request(rule, model=""):
    answer = rule.hook("before_model_call", ModelRequest((Message("user", "task"),), model=model))
    return answer and answer.name


def respond(rule, model, prompt=None, completion=None):
    usage = None if prompt is None else Usage(prompt, completion)
    answer = rule.hook("after_model_response", ModelResponse("text", model=model, usage=usage))
    return answer and (answer.name, answer.code)


def test_a_used_up_budget_stops_before_the_next_request(bench):
    rule = bench(CostBudget, usd=10, prices=PRICES)
    assert respond(rule, "big", MILLION, 790_000) is None
    assert request(rule) is None
    assert respond(rule, "big-mini", 100_000, 1) is None
    answer = rule.hook("before_model_call", ModelRequest(()))
    assert (answer.name, answer.code, answer.kind) == ("stop", "cost_budget", "cost_budget.stop")
    assert (answer.observed, answer.limit) == (10.000004, 10.0)
    assert answer.data == {"spent": "10.000004", "budget": "10", "guessed": "0"}


def test_ten_times_ten_cents_are_a_dollar(bench):
    rule = bench(CostBudget, usd=1, prices={"m": {"input": 0.1, "output": 0}})
    actions = []
    for _ in range(11):
        actions.append(request(rule))
        respond(rule, "m", MILLION, 1)
    assert actions == [None] * 10 + ["stop"]


def test_an_exact_name_counts_before_a_pattern_and_the_first_pattern_before_others(bench):
    rule = bench(CostBudget, usd=100, prices=PRICES)
    for model, nano in (("big", 2 * 10**9), ("big-1", 10**9), ("big-free", 10**9), ("x-free", 0)):
        before = rule.state.nano
        respond(rule, model, MILLION, None)
        assert rule.state.nano - before in range(nano, nano + 20_000), model


def test_a_model_without_a_price_is_recorded_and_stops_the_next_request(bench):
    rule = bench(CostBudget, usd=1, prices=PRICES)
    assert request(rule) is None
    assert respond(rule, "house", 10, 10) == ("record", "unknown_price")
    answer = rule.hook("before_model_call", ModelRequest(()))
    assert (answer.name, answer.code, answer.kind) == ("stop", "unknown_price", "unknown_price.stop")
    assert answer.data == {"model": "house"}


def test_an_unknown_model_can_be_left_out_of_the_budget_but_not_out_of_the_log(bench):
    rule = bench(CostBudget, usd=1, prices=PRICES, unknown_model="ignore")
    assert [respond(rule, "house", 10, 10) for _ in range(2)] == [("record", "unknown_price")] * 2
    assert request(rule) is None


def test_a_response_without_any_model_is_unknown_too(bench):
    rule = bench(CostBudget, usd=1, prices=PRICES)
    assert respond(rule, "", 10, 10) == ("record", "unknown_price")
    assert request(rule) == "stop"


def test_the_model_that_was_asked_stands_in_for_one_that_is_not_listed(bench):
    rule = bench(CostBudget, usd=1, prices=PRICES)
    request(rule, "big")
    assert respond(rule, "big.2026-01-01", 10, 10) is None
    assert respond(rule, "", 10, 10) is None
    assert rule.state.nano == 2 * (10 * 2000 + 10 * 10_000)


def test_the_embedded_model_costs_nothing_unless_a_price_is_listed(bench):
    rule = bench(CostBudget, usd=1, prices=PRICES)
    assert respond(rule, "scripted", 10, 10) is None
    assert (rule.state.nano, request(rule)) == (0, None)
    rule = bench(CostBudget, usd=1, prices={"scripted": {"input": 1, "output": 1}})
    respond(rule, "scripted", MILLION, 1)
    assert request(rule) == "stop"


def test_estimated_tokens_are_said_to_be(bench):
    rule = bench(CostBudget, usd=0.000001, prices=PRICES)
    rule.hook("run_start", "x" * 4000)
    assert respond(rule, "big") == ("record", "cost_estimate")
    answer = rule.hook("before_model_call", ModelRequest(()))
    assert (answer.observed, answer.data["guessed"]) == (0.00201, "0.00201")


def test_scope_conversation_shares_the_budget_between_runs(bench):
    for scope, expected in (("run", None), ("conversation", "stop")):
        rule = bench(CostBudget, usd=1, prices=PRICES, scope=scope)
        respond(rule, "big", MILLION, 1)
        rule.next_run("run-2")
        assert request(rule) == expected


# ---- bundled prices


def test_bundled_prices_need_no_listing(bench):
    rule = bench(CostBudget, usd=1000)
    assert respond(rule, "gpt-4o", 1000, 1000) is None
    assert 0 < rule.state.nano < 10**9
    assert respond(rule, "no-such-model", 10, 10) == ("record", "unknown_price")


def test_bundled_prices_do_not_depend_on_the_time(bench, monkeypatch):
    rule = bench(CostBudget, usd=1000)
    respond(rule, "deepseek-chat", 1000, 1000)
    asked = []
    real = sys.modules["genai_prices"].calc_price
    monkeypatch.setattr(
        sys.modules["genai_prices"], "calc_price", lambda *args, **how: (asked.append(how), real(*args, **how))[1]
    )
    respond(bench(CostBudget, usd=1000), "deepseek-chat", 1000, 1000)
    assert {how["genai_request_timestamp"].year for how in asked} == {2100}


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setattr(prices, "PACKAGE", "no_such_package_of_prices")


def test_without_the_package_a_policy_that_needs_it_does_not_load_and_says_what_to_install(no_package):
    with pytest.raises(ConfigError) as failure:
        load_policy_text(HEAD + "extensions: {cost_budget: {with: {usd: 1}}}\n", registry=REGISTRY)
    (problem,) = failure.value.problems
    assert problem.position.line == 4
    assert "pip install 'agent-policyengine[cost]'" in problem.full()


def test_without_the_package_listed_prices_still_work(no_package):
    body = "extensions: {cost_budget: {with: {usd: 1, prices: {big: {input: 2, output: 10}}}}}\n"
    assert Engine(load_policy_text(HEAD + body, registry=REGISTRY), registry=REGISTRY)


def test_an_instance_made_without_a_check_says_so_too(no_package):
    with pytest.raises(Exception, match="genai-prices is not installed"):
        CostBudget({"usd": 1, "unknown_model": "stop", "scope": "run"})


def test_the_package_is_imported_only_where_a_policy_wants_it():
    code = (
        "import sys\n"
        "from policyengine import Engine\n"
        "from policyengine.plugins.registry import builtin_registry\n"
        "from policyengine.policy.load import load_policy_text\n"
        f"text = {HEAD!r} + sys.argv[1]\n"
        "Engine(load_policy_text(text, registry=builtin_registry()), registry=builtin_registry())\n"
        "print('genai_prices' in sys.modules)\n"
    )
    bodies = [
        "extensions: {step_limit: {}}",
        "extensions: {cost_budget: {with: {usd: 1, prices: {a: {input: 1, output: 1}}}}}",
        "extensions: {cost_budget: {mode: disabled, with: {usd: 1}}}",
        "extensions: {cost_budget: {with: {usd: 1}}}",
    ]
    runs = [subprocess.run([sys.executable, "-c", code, body], capture_output=True, text=True) for body in bodies]
    assert [run.stdout.strip() for run in runs] == ["False", "False", "False", "True"], runs


# ---- options and proofs


def test_a_pattern_that_is_never_used_is_told(faults):
    prices = {"big-*": {"input": 1, "output": 1}, "big-mini-*": {"input": 1, "output": 1}}
    (problem,) = faults(CostBudget, usd=1, prices=prices)
    assert problem == "prices.big-mini-*: is never used: 'big-*' stands before it and matches the same models"
    assert faults(CostBudget, usd=1, prices=PRICES) == []
    assert faults(CostBudget, usd=1) == []


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"usd": 0.5}, ["usd", "unknown_model"]),
        ({"usd": 250, "unknown_model": "ignore"}, ["usd"]),
        ({"usd": 0.000001, "prices": PRICES}, ["usd", "unknown_model"]),
        ({"usd": 3, "prices": {"*": {"input": 1, "output": 2}}}, ["usd"]),
        ({"usd": 3, "prices": {"x": {"input": 0, "output": 0}}}, ["unknown_model"]),
    ],
    ids=["bundled", "ignored", "listed", "everything", "free"],
)
def test_every_limit_is_proved_through_the_loop(proved, options, labels):
    found = proved(CostBudget, **{"unknown_model": "stop", **options})
    assert list(found) == labels
    assert set(found.values()) == {"fires at 2"}


# ---- properties

requests = st.lists(
    st.tuples(st.sampled_from(["big", "big-1", "a-free", "scripted"]), st.integers(0, 5000), st.integers(0, 5000)),
    max_size=20,
)


class Played:
    """Sends requests as long as it may."""

    def __init__(self, usd):
        self.rule = CostBudget({"usd": usd, "prices": PRICES, "unknown_model": "stop", "scope": "run"})
        self.state = CostBudget.state()
        self.costs: list[int] = []
        self.answers: list[object] = []

    def play(self, model, prompt, completion):
        view = RunView(RunState("r"), "rule", self.state, lambda name: UNDECLARED)
        self.answers.append(self.rule.before_model_call(view, ModelRequest(())))
        if self.answers[-1] is not None:
            return
        before = self.state.nano
        self.rule.after_model_response(view, ModelResponse("text", model=model, usage=Usage(prompt, completion)))
        self.costs.append(self.state.nano - before)


@given(requests, st.sampled_from([0.001, 0.01, 0.05]))
def test_a_budget_is_exceeded_by_less_than_the_cost_of_one_request(script, usd):
    played = Played(usd)
    for step in script:
        played.play(*step)
    assert sum(played.costs[:-1]) < usd * 10**9
    assert sum(played.costs) == played.state.nano


@given(requests, st.integers(0, 19))
def test_a_saved_and_resumed_run_decides_the_same(script, saved_at):
    kept, moved = Played(0.02), Played(0.02)
    for number, step in enumerate(script):
        if number == saved_at:
            moved.state = msgspec.json.decode(msgspec.json.encode(moved.state), type=CostBudget.state)
        kept.play(*step)
        moved.play(*step)
    assert kept.answers == moved.answers
    assert kept.state == moved.state
