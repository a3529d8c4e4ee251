"""`tool_call_limit`: exactly N rounds, exactly N calls, also where a parallel batch goes past the limit."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.context import RunView
from policyengine.extensions.tool_call_limit import ToolCallLimit
from policyengine.messages import UNDECLARED, Batch, Message, ModelRequest, ToolCall, ToolError, ToolResult
from policyengine.runstate import RunState

REQUEST = ModelRequest((Message("user", "task"),))
OK = ToolResult("", "fine", duration_s=0.1)
FAILED = ToolResult("", "no", "error")
UNKNOWN = ToolResult("", "no such tool", "error", ToolError("unknown_tool", retryable=False))
INVALID = ToolResult("", "arguments", "error", ToolError("invalid_arguments"))
REFUSED = ToolResult("", "refused", "denied", ToolError("repeat"))


def limited(bench, **options):
    """Return a rule with these options; `tools` of a bench are facts about tools."""
    rule = bench(ToolCallLimit)
    rule.reload(**options)
    return rule


def request(rule):
    answer = rule.hook("before_model_call", REQUEST)
    return answer and answer.name


def names(answers):
    return [answer and answer.name for answer in answers]


def play(rule, *tools, result=OK):
    """Ask for a request and play one batch; return the action at the request and those at the calls."""
    return request(rule), names(rule.batch(*((tool, result) for tool in tools))[0])


def test_ten_rounds_run_and_the_request_after_them_asks_for_the_answer(bench):
    rule = bench(ToolCallLimit, rounds=10)
    assert [play(rule, "a", "b") for _ in range(10)] == [(None, [None, None])] * 10
    answer = rule.hook("before_model_call", REQUEST)
    assert (answer.name, answer.code, answer.kind) == ("wind_down", "call_limit", "call_limit.wind_down")
    assert (answer.observed, answer.limit, answer.data) == (10, 10, {"of": "rounds"})


def test_a_round_in_which_nothing_ran_is_none(bench):
    rule = bench(ToolCallLimit, rounds=2)
    for result in (UNKNOWN, INVALID, REFUSED):
        play(rule, "a", result=result)
    rule.next_round()
    assert [play(rule, "a", result=FAILED)[0] for _ in range(3)] == [None, None, "wind_down"]


def test_a_host_that_reports_no_requests_is_refused_the_first_call_of_a_round_too_many(bench):
    rule = bench(ToolCallLimit, rounds=1)
    assert names(rule.batch(("a", OK), ("b", OK))[0]) == [None, None]
    assert names(rule.batch(("a", OK), ("b", OK))[0]) == ["wind_down", "wind_down"]


def test_a_host_that_counts_no_rounds_has_batches(bench):
    rule = bench(ToolCallLimit, rounds=2)
    found = []
    for _ in range(3):
        rule.run.iteration = 0
        found += names(rule.batch(("a", OK))[0])
    assert found == [None, None, "wind_down"]


def test_three_calls_run_and_the_rest_of_the_batch_is_refused_one_by_one(bench):
    rule = bench(ToolCallLimit, calls=3)
    play(rule, "a")
    assert play(rule, "a", "b", "c", "d") == (None, [None, None, "deny", "deny"])
    assert rule.state.all.done == 3
    answer = rule.hook("before_model_call", REQUEST)
    assert (answer.name, answer.observed, answer.limit, answer.data) == ("wind_down", 3, 3, {"of": "calls"})


def test_a_call_after_the_last_one_winds_down_where_no_request_is_reported(bench):
    rule = bench(ToolCallLimit, calls=1)
    rule.batch(("a", OK))
    assert names(rule.batch(("a", OK))[0]) == ["wind_down"]


def test_the_refusal_says_what_was_counted(bench):
    rule = bench(ToolCallLimit, calls=1, rounds=1)
    _, answer = rule.batch(("a", OK), ("b", OK))[0]
    assert (answer.code, answer.kind, answer.observed, answer.limit) == ("call_limit", "call_limit.deny", 1, 1)
    assert answer.data == {"of": "calls", "tool": "b"}


@pytest.mark.parametrize("result", [UNKNOWN, INVALID, REFUSED], ids=["unknown", "arguments", "refused"])
def test_a_call_that_did_not_run_gives_its_place_back(bench, result):
    rule = limited(bench, calls=2, tools={"a": 1})
    assert play(rule, "a", "b", "c", result=result) == (None, [None, None, "deny"])
    assert (rule.state.all.done, rule.state.all.open, rule.state.tools) == (0, 0, {})
    assert play(rule, "a", "b") == (None, [None, None])


def test_a_tool_that_ran_and_says_itself_that_something_is_unknown_has_run(bench):
    rule = bench(ToolCallLimit, calls=1)
    said = msgspec.structs.replace(UNKNOWN, error=ToolError("unknown_tool", declared=True))
    timed = msgspec.structs.replace(UNKNOWN, duration_s=0.2)
    for result in (said, timed):
        rule.batch(("a", result))
    assert rule.state.all.done == 1


def test_the_limit_of_a_tool_refuses_that_tool_only(bench):
    rule = limited(bench, tools={"search_*": 2, "search_fast": 3})
    assert play(rule, "search_a", "search_a", "search_a", "search_b", "read") == (
        None,
        [None, None, "deny", None, None],
    )
    assert play(rule, "search_a", "search_b", "search_b") == (None, ["deny", None, "deny"])
    assert play(rule, *["search_fast"] * 4) == (None, [None, None, None, "deny"])
    assert request(rule) is None


def test_calls_that_are_open_hold_their_places_across_batches(bench):
    rule = bench(ToolCallLimit, calls=2)
    made = [ToolCall(f"c{number}", "a") for number in range(4)]
    judged = [rule.hook("before_tool_call", call, Batch(call.id)) for call in made]
    assert names(judged) == [None, None, "deny", "deny"]
    rule.hook("after_tool_call", made[1], REFUSED)
    rule.hook("after_tool_call", made[2], ToolResult("c2", "no", "denied", ToolError("call_limit")))
    assert (rule.state.all.done, rule.state.all.open) == (0, 1)
    assert rule.hook("before_tool_call", ToolCall("c5", "a"), Batch("b")) is None


def test_equal_ids_of_open_calls_are_counted(bench):
    rule = bench(ToolCallLimit, calls=3)
    same = ToolCall("same", "a")
    assert [rule.hook("before_tool_call", same, Batch("b", index)) for index in range(2)] == [None, None]
    rule.hook("after_tool_call", same, OK)
    assert (rule.state.all.done, rule.state.all.open) == (1, 1)
    rule.hook("after_tool_call", same, OK)
    assert (rule.state.all.done, rule.state.all.open, rule.state.admitted) == (2, 0, {})


def test_many_open_calls_are_remembered_by_number_only(bench):
    rule = bench(ToolCallLimit, calls=400)
    made = [ToolCall(f"c{number}", "a") for number in range(401)]
    judged = [rule.hook("before_tool_call", call, Batch("b", index)) for index, call in enumerate(made)]
    assert names(judged) == [None] * 400 + ["deny"]
    assert (len(rule.state.admitted), rule.state.unnamed) == (256, 144)
    denied = ToolResult("", "no", "denied", ToolError("call_limit"))
    for call, answer in zip(reversed(made), reversed(judged), strict=True):
        rule.hook("after_tool_call", call, OK if answer is None else denied)
    assert (rule.state.all.done, rule.state.all.open, rule.state.unnamed) == (400, 0, 0)


def test_the_state_is_bounded_and_no_invented_name_escapes_the_limit(bench):
    rule = limited(bench, tools={"*": 2})
    for number in range(600):
        play(rule, f"tool-{number}")
        play(rule, f"tool-{number}", result=UNKNOWN)
    assert len(rule.state.tools) == 256
    refused = [play(rule, f"tool-{number}")[1] for number in (0, 0, 599, 10_000)]
    assert refused == [[None], ["deny"], ["deny"], ["deny"]]


def test_names_of_tools_that_do_not_exist_are_forgotten(bench):
    rule = limited(bench, tools={"*": 2})
    for number in range(300):
        play(rule, f"tool-{number}", result=UNKNOWN)
    assert rule.state.tools == {}


def test_scope_conversation_shares_the_limits_between_runs(bench):
    for scope, expected in (("run", [None, None]), ("conversation", [None, "wind_down"])):
        rule = bench(ToolCallLimit, rounds=2, calls=9, scope=scope)
        found = []
        for name in ("run-2", "run-3"):
            rule.next_run(name)
            play(rule, "a")
            found.append(request(rule))
        assert found == expected


def test_problems_of_options_are_told(faults):
    assert faults(ToolCallLimit) == [
        ": set `rounds`, `calls` or `tools`; write `mode: disabled` to switch the rule off"
    ]
    (problem,) = faults(ToolCallLimit, rounds=4, calls=3)
    assert problem.startswith("rounds: must not be above calls (3)")
    (problem,) = faults(ToolCallLimit, calls=3, tools={"a": 3, "b": 2})
    assert problem == "tools.a: must be below calls (3), or it can never take effect"
    (problem,) = faults(ToolCallLimit, tools={"*": 3, "search_*": 2, "shell": 1})
    assert problem == "tools.search_*: is never used: '*' stands before it and matches the same tools"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rounds": 10}, {"rounds": "fires at 11"}),
        ({"calls": 3}, {"calls": "fires at 1", "calls, next request": "fires at 2"}),
        ({"tools": {"shell": 2, "search_?": 1}}, {"tools[shell]": "fires at 1", "tools[search_?]": "fires at 1"}),
        (
            {"rounds": 2, "calls": 5, "tools": {"*": 1}},
            {
                "rounds": "fires at 3",
                "calls": "fires at 1",
                "calls, next request": "fires at 2",
                "tools[*]": "fires at 1",
            },
        ),
    ],
    ids=["rounds", "calls", "tools", "all"],
)
def test_every_limit_is_proved_through_the_loop(proved, options, expected):
    assert proved(ToolCallLimit, **options) == expected


def test_limits_nobody_would_wait_for_have_no_proof(bench):
    options = {"rounds": 50_000, "calls": 90_000, "tools": {"a": 60_000}}
    assert list(limited(bench, **options).guard.proofs()) == []


# ---- properties

OUTCOMES = {
    "ok": OK,
    "failed": FAILED,
    "unknown": UNKNOWN,
    "refused": REFUSED,
    "not_run": ToolResult("", "", "not_run"),
}
batches = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(sorted(OUTCOMES))), min_size=1, max_size=6),
    max_size=12,
)
limits = st.fixed_dictionaries(
    {}, optional={"rounds": st.integers(1, 5), "calls": st.integers(1, 8), "tools": st.just({"a": 2, "[bc]": 3})}
)


class Host:
    """Runs what it is let run, and asks for a batch whatever it is told; `rule` counts."""

    def __init__(self, options):
        self.rule = ToolCallLimit({"scope": "run", **options})
        self.run = RunState("r")
        self.state = ToolCallLimit.state()
        self.ran: list[tuple[int, str]] = []
        self.answers: list[str | None] = []

    @property
    def view(self):
        return RunView(self.run, "rule", self.state, lambda name: UNDECLARED)

    def round(self, calls):
        self.run.iteration += 1
        asked = self.rule.before_model_call(self.view, REQUEST)
        self.answers.append(asked and asked.name)
        made = [ToolCall(f"{self.run.iteration}-{index}", tool) for index, (tool, _) in enumerate(calls)]
        batch = f"b{self.run.iteration}"
        judged = [self.rule.before_tool_call(self.view, call, Batch(batch, i)) for i, call in enumerate(made)]
        self.answers += names(judged)
        for call, (_, outcome), answer in zip(made, calls, judged, strict=True):
            denied = ToolResult("", "no", "denied", ToolError("call_limit"))
            result = OUTCOMES[outcome] if answer is None and asked is None else denied
            if result in (OK, FAILED):
                self.ran.append((self.run.iteration, call.name))
            self.rule.after_tool_call(self.view, call, result)


@settings(max_examples=200)
@given(batches, limits)
def test_no_limit_is_ever_exceeded_and_a_place_is_refused_only_where_all_are_taken(script, options):
    host = Host(options)
    for calls in script:
        host.round(calls)
    tools = [tool for _, tool in host.ran]
    assert len(host.ran) <= options.get("calls", 1000)
    assert len({number for number, _ in host.ran}) <= options.get("rounds", 1000)
    if "tools" in options:
        assert tools.count("a") <= 2
        assert tools.count("b") <= 3
        assert tools.count("c") <= 3
    assert host.state.all.done == len(host.ran)
    assert host.state.all.open == 0
    assert all(count.open == 0 for count in host.state.tools.values())


@given(batches, limits, st.integers(0, 11))
def test_a_saved_and_resumed_run_decides_the_same(script, options, saved_at):
    kept, moved = Host(options), Host(options)
    for number, calls in enumerate(script):
        if number == saved_at:
            moved.state = msgspec.json.decode(msgspec.json.encode(moved.state), type=ToolCallLimit.state)
        kept.round(calls)
        moved.round(calls)
    assert kept.answers == moved.answers
    assert kept.state == moved.state
