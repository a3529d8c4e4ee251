"""What each expectation means, and that a test which proves nothing fails."""

from __future__ import annotations

import pytest

from policyengine.policytest.play import play_suite
from policyengine.policytest.read import read_suite

POLICY = """\
apiVersion: policyengine/v1
kind: Policy
name: house
defaults: {{timeout: 10s}}
extensions:
  counting:
    use: local.counting
    with: {options}
{more}"""

GUARD = """\
import msgspec
from policyengine import Extension, hookimpl

RUNGS = ("stop", "deny", "ask", "hint")


class Seen(msgspec.Struct):
    calls: int = 0


class Counting(Extension):
    name = "local.counting"
    options = {name: {"type": "integer", "min": 1, "max": 99} for name in RUNGS}
    state = Seen
    messages = {f"counting.{name}": {} for name in RUNGS}
    templates = {"en": {kind: kind for kind in messages}}

    @hookimpl
    def run_start(self, run, task):
        return None

    @hookimpl
    def before_tool_call(self, run, call):
        run.state.calls += 1
        for action in RUNGS:
            limit = self.options.get(action)
            if limit and run.state.calls >= limit:
                return getattr(run, action)("counting", observed=run.state.calls, limit=limit)


class Broken(Extension):
    name = "local.broken"

    @hookimpl
    def after_tool_call(self, run, call, result):
        if run.id != "self-test":
            raise ValueError("out of order")
"""


@pytest.fixture
def failures(tmp_path):
    """Return a player: the failures of one test with four calls of `look` in four rounds, one after another."""

    def play(expect: str, *, options: str = "{hint: 2, deny: 3}", more: str = "", test: str = "", turns: str = ""):
        (tmp_path / "guards").mkdir(exist_ok=True)
        (tmp_path / "guards" / "counting.py").write_text(GUARD)
        (tmp_path / "house.yaml").write_text(POLICY.format(options=options, more=more))
        turns = turns or "[{times: 4, calls: [{tool: look, args: {}}]}, {text: done}]"
        path = tmp_path / "house.test.yaml"
        path.write_text(
            "apiVersion: policyengine/v1\nkind: PolicyTest\npolicy: house.yaml\nfolders: [guards]\ntests:\n"
            f"  - name: it\n    turns: {turns}\n    expect: [{expect}]\n{test}"
        )
        (result,) = play_suite(read_suite(path)).cases
        return [failure.message for failure in result.failures]

    return play


# ---- answers


@pytest.mark.parametrize(
    "expect",
    [
        "{at: 3, rule: counting, action: deny, code: counting}",
        "{at: [3, 4], rule: counting, action: deny}",
        "{call: 2, rule: counting, action: hint, tool: look}",
        "{at: 3, rule: counting, wants: deny, tool: 'lo*'}",
        "{allow: counting, until: 1}",
        "{outcome: completed, executed: 2}",
    ],
)
def test_what_holds_passes(failures, expect):
    assert failures(expect) == []


@pytest.mark.parametrize(
    ("expect", "failure"),
    [
        ("{at: 4, rule: counting, action: deny}", "counting should deny in round 4, but does so in round 3, 4"),
        ("{at: 2, rule: counting, action: deny}", "counting should deny in round 2, but does so in round 3, 4"),
        ("{call: [3], rule: counting, action: stop}", "counting should stop in call 3, but never does"),
        (
            "{at: 3, rule: counting, action: deny, code: repeat}",
            "counting should deny (repeat) in round 3, but never does",
        ),
        (
            "{allow: counting}",
            "counting should allow this, but does not in round 2, before_tool_call (call 2 look)",
        ),
        ("{outcome: stopped}", "the run should be stopped, but is completed"),
        ("{outcome: completed, executed: 4}", "4 calls should run, but 2 do"),
        ("{error: counting}", "counting should fail, but does not"),
    ],
)
def test_what_does_not_hold_says_what_is(failures, expect, failure):
    assert failures(expect) == [failure]


def test_the_mode_of_a_rule_tells_what_it_wants_from_what_comes_of_it(failures):
    shadow = "    mode: shadow\n"
    assert failures("{at: 3, rule: counting, wants: deny}", more=shadow) == []
    assert failures("{at: 3, rule: counting, action: deny}", more=shadow)
    assert failures("{at: 2, rule: counting, action: hint}", more="    mode: warn\n") == []


def test_who_stopped_the_run_is_compared(failures):
    stop = {"options": "{stop: 2}"}
    assert failures("{outcome: stopped, rule: counting, code: counting}", **stop) == []
    assert failures("{outcome: stopped, code: repeat}", **stop) == [
        "the run should be stopped by code repeat, but is by counting"
    ]
    assert failures("{outcome: completed, rule: counting}") == [
        "the run should be completed by rule counting, but is by nobody"
    ]


def test_the_engines_own_cap_can_end_a_run(failures):
    more = "interventions: {max: 1, then: stop}\n"
    assert failures("{outcome: stopped, rule: interventions}", more=more) == []


def test_a_human_answers_as_the_test_says(failures):
    asks = {"options": "{ask: 4}"}
    assert failures("{outcome: waiting, executed: 3}", **asks) == []
    assert failures("{outcome: completed, executed: 4}", **asks, test="    human: approves\n") == []
    assert failures("{outcome: completed, executed: 3}", **asks, test="    human: refuses\n") == []


@pytest.mark.parametrize("answer", ["approves", "refuses"])
def test_a_human_whom_nothing_asks_fails_the_test(failures, answer):
    found = failures("{outcome: completed}", options="{ask: 9}", test=f"    human: {answer}\n")
    assert found == [f"a human {answer}, but nothing asked one"]


# ---- what proves nothing


def test_a_rule_whose_selector_is_misspelt_cannot_pass_as_allowing(failures):
    more = "    when: {tool: loook}\n"
    (failure,) = failures("{allow: counting}", more=more)
    assert failure == (
        "counting should allow this, but it is never asked: its selector is tool loook: that proves nothing"
    )
    (failure,) = failures("{at: 3, rule: counting, action: deny}", more=more)
    assert failure == "counting should deny in round 3, but it is never asked: its selector is tool loook"
    assert failures("{allow: counting}", more="    when: {tool: look}\n", options="{stop: 9}") == []


def test_a_rule_whose_agent_is_misspelt_cannot_pass_as_allowing(failures):
    more = "    when: {agent: planer}\n"
    (failure,) = failures("{allow: counting}", more=more, test="    agent: planner\n")
    assert failure.endswith("it is never asked: its selector is agent planer: that proves nothing")


def test_a_rule_is_not_allowing_what_its_selector_leaves_out(failures):
    turns = "[{calls: [{tool: look}]}, {calls: [{tool: fetch}]}, {text: done}]"
    more = "    when: {tool: look}\n"
    (failure,) = failures("{allow: counting, tool: fetch}", more=more, turns=turns)
    assert failure.endswith("it is never asked: its selector is tool look: that proves nothing")
    assert failures("{allow: counting, tool: look}", more=more, turns=turns) == []


def test_a_rule_that_only_fails_allows_nothing(failures):
    more = "    on_error: allow\n"
    assert failures("{allow: counting}, {error: counting}", more=more, test="    faults: {counting: raise}\n") == [
        "counting should allow this, but it fails whenever it is asked: that proves nothing"
    ]


def test_a_misspelt_code_is_an_answer_that_is_never_given(failures):
    assert failures("{at: [3, 4], rule: counting, action: deny, code: countng}") == [
        "counting should deny (countng) in round 3, 4, but never does"
    ]
    assert failures("{outcome: stopped, code: countng}", options="{stop: 2}") == [
        "the run should be stopped by code countng, but is by counting"
    ]


def test_hearing_that_a_run_begins_is_not_being_asked(failures):
    (failure,) = failures("{allow: counting}", turns="[{text: hello}]")
    assert failure == "counting should allow this, but it is never asked: that proves nothing"


def test_a_disabled_rule_allows_nothing(failures):
    (failure,) = failures("{allow: counting}", more="    mode: disabled\n")
    assert failure == "counting should allow this, but the rule is disabled: that proves nothing"


def test_allowing_until_a_round_that_never_comes_fails(failures):
    assert failures("{allow: counting, until: 9}", options="{stop: 99}") == [
        "counting should allow this until round 9, but the run has only 5 rounds"
    ]


def test_a_rule_that_fails_unexpectedly_fails_the_test(failures):
    more = "  broken: {use: local.broken, on_error: allow}\n"
    (failure,) = failures("{allow: counting, until: 1}", more=more)
    assert failure.startswith("broken fails in round 1, after_tool_call (call 1 look): ValueError: out of order")
    assert failures("{error: broken}", more=more) == []
    assert failures("{error: broken, at: 4}", more=more) == []
    assert failures("{error: broken, at: 5}", more=more) == ["broken should fail in round 5, but does so in 1, 2, 3, 4"]


# ---- faults


@pytest.mark.parametrize("fault", ["raise", "nonsense", "timeout"])
@pytest.mark.parametrize("rule", ["counting", "stall_detector"])
def test_an_injected_fault_is_answered_by_on_error(failures, fault, rule):
    more = "  stall_detector: {}\n"
    test = f"    faults: {{{rule}: {fault}}}\n"
    expect = f"{{at: 1, rule: {rule}, action: deny, code: extension_error}}, {{error: {rule}, at: 1}}"
    assert failures(expect, more=more, test=test) == []


def test_other_rules_decide_beside_a_failing_one(failures):
    more = "    on_error: allow\n  step_limit: {with: {max_steps: 3}}\n"
    test = "    faults: {counting: raise}\n"
    expect = "{outcome: stopped, rule: step_limit}, {at: 4, rule: step_limit, action: stop}"
    assert failures(f"{expect}, {{error: counting}}", more=more, test=test) == []


def test_every_fault_that_happened_must_be_expected(failures):
    more = "  stall_detector: {}\n"
    test = "    faults: {counting: timeout, stall_detector: nonsense}\n"
    (failure,) = failures("{error: counting}", more=more, test=test)
    assert failure.startswith("stall_detector fails in round 0")
    assert failures("{error: counting}, {error: stall_detector}", more=more, test=test) == []
    answer = "{at: 1, rule: stall_detector, action: deny, code: extension_error}"
    assert failures(f"{{error: counting}}, {answer}", more=more, test=test) == []


def test_a_fault_that_is_never_met_fails_the_test(failures):
    more = "  broken: {use: local.broken, when: {tool: other}}\n"
    test = "    faults: {broken: raise}\n"
    found = failures("{outcome: completed}", more=more, test=test)
    assert found == ["the fault of broken was never met: the rule was not asked"]


# ---- facts and time


def test_facts_about_tools_are_those_of_the_test(failures):
    more = "  stall_detector: {with: {repeat: {deny: 3}, poll: {deny: 4}}}\n"
    quiet = {"options": "{stop: 99}", "more": more}
    assert failures("{at: [3, 4], rule: stall_detector, action: deny}", **quiet) == []
    assert failures("{at: 4, rule: stall_detector, action: deny}", **quiet,
                    test="    tools: {look: {effect: poll}}\n") == []  # fmt: skip


def test_time_passes_as_the_test_says_and_begins_anew_with_each_test(tmp_path):
    (tmp_path / "clock.yaml").write_text(
        "apiVersion: policyengine/v1\nkind: Policy\nname: clock\nextensions:\n  wall_clock: {with: {stop: 50s}}\n"
    )
    test = "  - {{name: {name}, pace: {pace}, turns: [{{times: 4, calls: [{{tool: look}}]}}], expect: [{expect}]}}\n"
    (tmp_path / "clock.test.yaml").write_text(
        "apiVersion: policyengine/v1\nkind: PolicyTest\npolicy: clock.yaml\ntests:\n"
        + test.format(name="slow", pace="20s", expect="{outcome: stopped, rule: wall_clock}")
        + test.format(name="fast", pace="5s", expect="{allow: wall_clock}, {outcome: completed}")
    )
    result = play_suite(read_suite(tmp_path / "clock.test.yaml"))
    assert [case.failures for case in result.cases] == [(), ()]
    assert result.suite.engine.snapshot.policy.name == "clock"


# ---- what is different from run to run


def test_the_kill_switch_and_rollouts_have_no_part_in_a_test(failures):
    more = "    rollout: {percent: 0}\nkill_switch: true\n"
    assert failures("{at: [3, 4], rule: counting, action: deny}", more=more) == []


def test_exceptions_expire_on_the_day_that_the_test_names(failures):
    more = 'exceptions:\n  - {rule: counting, when: {tool: look}, expires: "2031-05-31", owner: me, reason: because}\n'
    after, last = ('    today: "2031-06-01"\n', '    today: "2031-05-31"\n')
    assert failures("{at: [3, 4], rule: counting, action: deny}", more=more, test=after) == []
    (failure,) = failures("{at: [3, 4], rule: counting, action: deny}", more=more, test=last)
    assert failure == "counting should deny in round 3, 4, but never does"
    expect = "{at: [3, 4], rule: counting, wants: deny}, {outcome: completed, executed: 4}"
    assert failures(expect, more=more, test=last) == []
