"""`token_budget`: tokens of a run or a step, reported or estimated, judged before a request."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.context import RunView
from policyengine.extensions.token_budget import TokenBudget
from policyengine.extensions.usage import Used, estimate, used_by
from policyengine.messages import (
    UNDECLARED,
    HistoryWarning,
    Iteration,
    Message,
    ModelRequest,
    ModelResponse,
    ToolCall,
    ToolResult,
    Usage,
)
from policyengine.runstate import RunState

REQUEST = ModelRequest((Message("user", "task"),))


def sent(rule, prompt=None, completion=None, total=None, *, text="", purpose="main"):
    """Ask for a request; if it may be sent, report a response with this usage. Return the action by name."""
    answer = rule.hook("before_model_call", msgspec.structs.replace(REQUEST, purpose=purpose))
    if answer is None:
        usage = None if (prompt, completion, total) == (None, None, None) else Usage(prompt, completion, total)
        rule.hook("after_model_response", ModelResponse(text, usage=usage))
    return answer and answer.name


def test_before_refuses_the_request_that_the_budget_has_no_room_for(bench):
    rule = bench(TokenBudget, run=100, count="prompt")
    assert [sent(rule, 40) for _ in range(2)] == [None, None]
    answer = rule.hook("before_model_call", REQUEST)
    assert (answer.name, answer.code, answer.kind) == ("stop", "token_budget", "token_budget.stop")
    assert (answer.observed, answer.limit) == (80, 100)
    assert answer.data == {"scope": "run", "count": "prompt", "guessed": 0, "needs": 40}


def test_after_lets_the_last_request_go_over_the_budget(bench):
    rule = bench(TokenBudget, run=100, count="prompt", check="after")
    assert [sent(rule, 40) for _ in range(3)] == [None] * 3
    answer = rule.hook("before_model_call", REQUEST)
    assert (answer.name, answer.observed, answer.limit, answer.data["needs"]) == ("stop", 120, 100, 0)


def test_a_request_that_just_fits_is_sent(bench):
    rule = bench(TokenBudget, run=120, count="prompt")
    assert [sent(rule, 40) for _ in range(4)] == [None, None, None, "stop"]


@pytest.mark.parametrize(("count", "requests"), [("total", 2), ("prompt", 3), ("completion", 4)])
def test_only_what_is_counted_counts(bench, count, requests):
    rule = bench(TokenBudget, run=100, count=count)
    assert [sent(rule, 30, 25, 55) for _ in range(5)].index("stop") == requests


def test_auxiliary_requests_count_and_are_judged(bench):
    rule = bench(TokenBudget, run=100, check="after")
    actions = [sent(rule, 40, purpose=purpose) for purpose in ("main", "repair", "summary", "main")]
    assert actions == [None, None, None, "stop"]


def test_after_a_summary_nobody_knows_how_long_the_next_prompt_is(bench):
    rule = bench(TokenBudget, run=100, count="prompt")
    assert sent(rule, 60) is None
    assert sent(rule, 60, purpose="main") == "stop"
    rule.run.iteration += 1
    assert rule.hook("before_model_call", msgspec.structs.replace(REQUEST, purpose="summary")) is None


def test_the_budget_of_the_run_is_not_given_again_to_a_new_step(bench):
    rule = bench(TokenBudget, run=100, count="prompt", check="after")
    sent(rule, 120)
    rule.next_step()
    assert [sent(rule, 1) for _ in range(3)] == ["stop"] * 3


def test_a_used_up_step_ends_at_the_end_of_its_round_and_the_next_one_starts_afresh(bench):
    rule = bench(TokenBudget, step=50, run=1000, count="prompt", check="after")
    sent(rule, 60)
    answer = rule.hook("after_iteration", Iteration(1, 1))
    assert (answer.name, answer.code, answer.kind) == ("end_step", "token_budget", "token_budget.end_step")
    assert (answer.observed, answer.limit, answer.data["scope"]) == (60, 50, "step")
    rule.next_step()
    assert sent(rule, 40) is None
    assert rule.hook("after_iteration", Iteration(2, 1)) is None
    assert rule.state.run == 100


def test_a_repeated_request_of_a_used_up_step_is_not_sent(bench):
    rule = bench(TokenBudget, step=50, check="after")
    sent(rule, 60)
    answer = rule.hook("before_model_call", REQUEST)
    assert (answer.name, answer.data["scope"]) == ("stop", "step")


def test_a_final_answer_stands(bench):
    rule = bench(TokenBudget, step=50, run=60)
    sent(rule, 90)
    assert rule.hook("after_iteration", Iteration(1, 0, True)) is None
    assert rule.hook("after_iteration", Iteration(1, 0, False)).name == "stop"


def test_the_wind_down_comes_first(bench):
    rule = bench(TokenBudget, run=100, wind_down_at=60, count="prompt", check="after")
    assert sent(rule, 70) is None
    answer = rule.hook("before_model_call", REQUEST)
    assert (answer.name, answer.kind, answer.observed, answer.limit) == (
        "wind_down",
        "token_budget.wind_down",
        70,
        100,
    )
    rule.hook("after_model_response", ModelResponse(usage=Usage(40)))
    assert sent(rule) == "stop"


def test_a_wind_down_needs_no_budget(bench):
    rule = bench(TokenBudget, wind_down_at=60)
    assert [sent(rule, 50, 10, 60), sent(rule)] == [None, "wind_down"]


def test_scope_conversation_shares_the_budget_between_runs(bench):
    for scope, expected in (("run", None), ("conversation", "stop")):
        rule = bench(TokenBudget, run=100, check="after", scope=scope)
        sent(rule, 120, 0, 120)
        rule.next_run("run-2")
        assert sent(rule) == expected


# ---- estimates


def test_missing_usage_is_estimated_from_what_passed_the_hooks_and_says_so(bench):
    rule = bench(TokenBudget, run=2000, check="after")
    rule.hook("run_start", "x" * 400)
    record = rule.hook("after_model_response", ModelResponse("y" * 40, (ToolCall("c", "look", "z" * 80),)))
    assert (record.name, record.code, record.observed) == ("record", "token_estimate", 131)
    assert record.data == {"prompt": 100, "completion": 31}
    rule.hook("after_tool_call", ToolCall("c", "look"), ToolResult("c", "r" * 4000))
    rule.hook("hist_add_warning_end", HistoryWarning("misformat", "w" * 40))
    record = rule.hook("after_model_response", ModelResponse("y" * 4, reasoning="t" * 400))
    assert record.data == {"prompt": 131 + 1000 + 10, "completion": 101}
    rule.hook("after_model_response", ModelResponse(usage=Usage(1000, 1, 1001)))
    answer = rule.hook("before_model_call", REQUEST)
    assert (answer.observed, answer.data["guessed"]) == (131 + 1242 + 1001, 131 + 1242)


def test_reported_usage_needs_no_record(bench):
    rule = bench(TokenBudget, run=2000)
    assert rule.hook("after_model_response", ModelResponse("y", usage=Usage(10, 1))) is None


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (Usage(40, 2, 42), Used(40, 2, 42)),
        (Usage(40, 2), Used(40, 2, 42)),
        (Usage(40, None, 42), Used(40, 2, 42)),
        (Usage(None, 2, 42), Used(40, 2, 42)),
        (Usage(40, 0, 40), Used(40, 0, 40)),
        (Usage(None, None, 42), Used(100, 10, 42, ("prompt", "completion"))),
        (Usage(40), Used(40, 10, 50, ("completion", "total"))),
        (Usage(0, 0, 0), Used(100, 10, 110, ("prompt", "completion", "total"))),
        (Usage(-5, -1, -6), Used(100, 10, 110, ("prompt", "completion", "total"))),
        (Usage(10**30, 2), Used(10**12, 2, 10**12 + 2)),
        (None, Used(100, 10, 110, ("prompt", "completion", "total"))),
    ],
    ids=str,
)
def test_what_follows_from_the_reported_usage_is_not_guessed(usage, expected):
    assert used_by(usage, 100, 10) == expected


def test_an_empty_answer_of_no_tokens_is_not_guessed():
    assert used_by(Usage(40, 0), 100, 0) == Used(40, 0, 40)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcde", 2), ("订单已取消", 5), ("\ud800", 1)])
def test_a_text_is_estimated_by_its_length(text, tokens):
    assert estimate(text) == tokens


# ---- options and proofs


def test_problems_of_options_are_told(faults):
    assert faults(TokenBudget) == [
        ": set `run`, `step` or `wind_down_at`; write `mode: disabled` to switch the rule off"
    ]
    assert faults(TokenBudget, run=100, step=100, wind_down_at=200) == [
        "step: must be below run (100), or it can never take effect",
        "wind_down_at: must be below run (100), or it can never take effect",
    ]
    assert faults(TokenBudget, run=100, step=99, wind_down_at=99) == []
    (problem,) = faults(TokenBudget, step=9, scope="conversation")
    assert problem.startswith("step: a step belongs to one run")


@pytest.mark.parametrize("check", ["before", "after"])
@pytest.mark.parametrize("count", ["total", "prompt", "completion"])
@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"run": 1}, ["run"]),
        ({"run": 400_000, "wind_down_at": 300_000}, ["run", "wind_down_at"]),
        ({"run": 1000, "step": 700, "wind_down_at": 500}, ["step", "run", "wind_down_at"]),
        ({"step": 123}, ["step"]),
        ({"wind_down_at": 7}, ["wind_down_at"]),
    ],
    ids=["one", "wind-down", "all", "step", "soft"],
)
def test_every_limit_is_proved_through_the_loop(proved, check, count, options, labels):
    found = proved(TokenBudget, check=check, count=count, **options)
    assert list(found) == labels
    assert all(alone.startswith("fires at") for alone in found.values())


def test_a_wind_down_without_room_for_a_request_is_unproven(bench):
    guard = bench(TokenBudget, run=1_000_000, wind_down_at=999_999).guard
    assert [proof.label for proof in guard.proofs()] == ["run"]


# ---- properties

usages = st.one_of(
    st.none(),
    st.builds(
        Usage,
        st.one_of(st.none(), st.integers(0, 60)),
        st.one_of(st.none(), st.integers(0, 20)),
        st.one_of(st.none(), st.integers(0, 80)),
    ),
)
steps = st.lists(st.tuples(usages, st.integers(0, 40), st.booleans()), max_size=25)


class Played:
    """Sends requests as long as it may; a third part of a step is whether a new step begins."""

    def __init__(self, options):
        self.rule = TokenBudget({"count": "total", "check": "before", "scope": "run", **options})
        self.run = RunState("r", step=1)
        self.state = TokenBudget.state()
        self.sizes: list[int] = []
        self.prompts: list[int] = []
        self.answers: list[object] = []

    def play(self, usage, length, new_step):
        self.run.iteration += 1
        self.run.step += new_step
        view = RunView(self.run, "rule", self.state, lambda name: UNDECLARED)
        answer = self.rule.before_model_call(view, REQUEST)
        self.answers.append(answer)
        if answer is not None:
            return
        before = self.state.run
        self.answers.append(self.rule.after_model_response(view, ModelResponse("x" * length, usage=usage)))
        self.sizes.append(self.state.run - before)
        self.rule.after_tool_call(view, ToolCall("c", "look"), ToolResult("c", "r" * length))


@settings(max_examples=200)
@given(steps, st.integers(1, 300), st.sampled_from(["before", "after"]), st.sampled_from(["total", "prompt"]))
def test_a_budget_is_exceeded_by_at_most_one_request_and_never_given_again(script, limit, check, count):
    played = Played({"run": limit, "check": check, "count": count})
    for step in script:
        played.play(*step)
    spent = sum(played.sizes)
    assert spent == played.state.run
    if played.sizes:
        assert sum(played.sizes[:-1]) < limit
        assert spent < limit + played.sizes[-1]
    stopped = [answer is not None and answer.name == "stop" for answer in played.answers]
    if spent >= limit:
        assert sum(stopped) == len(script) - len(played.sizes)


@given(steps, st.integers(1, 300))
def test_before_never_knowingly_exceeds_the_budget(script, limit):
    played = Played({"run": limit, "count": "prompt"})
    for step in script:
        before, latest = played.state.run, played.state.latest
        sent_before = len(played.sizes)
        played.play(*step)
        if len(played.sizes) > sent_before:
            assert before + latest <= limit
            # What is over the limit is only what the new prompt has beyond the one before it.
            assert played.state.run <= limit or played.state.run - limit <= played.sizes[-1] - latest


@given(steps, st.integers(1, 300), st.integers(0, 24))
def test_a_saved_and_resumed_run_decides_the_same(script, limit, saved_at):
    kept, moved = Played({"run": limit, "step": 50}), Played({"run": limit, "step": 50})
    for number, step in enumerate(script):
        if number == saved_at:
            moved.state = msgspec.json.decode(msgspec.json.encode(moved.state), type=TokenBudget.state)
        kept.play(*step)
        moved.play(*step)
    assert kept.answers == moved.answers
    assert kept.state == moved.state


def test_after_a_summary_that_failed_the_next_prompt_is_expected_to_be_as_long_as_before(bench):
    rule = bench(TokenBudget, run=100, count="prompt")
    sent(rule, 60)
    assert rule.hook("before_model_call", msgspec.structs.replace(REQUEST, purpose="summary")) is None
    assert rule.hook("before_model_call", REQUEST).name == "stop"
