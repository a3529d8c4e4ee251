"""`context_compaction`: before the window is full, once, and never again for nothing."""

from __future__ import annotations

import pytest

from policyengine import (
    Compaction,
    Engine,
    HistoryWarning,
    Iteration,
    Message,
    ModelRequest,
    ModelResponse,
    ScriptedCall,
    ToolCall,
    ToolResult,
    Turn,
    Usage,
    batch,
    say,
)
from policyengine.extensions.context_compaction import ContextCompaction
from policyengine.testing import ListedRegistry, ManualClock, assert_valid, play, policy, rule

CALL = ToolCall("1", "look", "{}")
DEFAULTS = {name: field["default"] for name, field in ContextCompaction.options.items()}


class Rounds:
    """Plays rounds of one call for the rule and returns what it said before each."""

    def __init__(self, bench, **options):
        self.made = bench(ContextCompaction, **options)
        self.made.hook("step_start", 1)

    def request(self, purpose="main"):
        return self.made.hook("before_model_call", ModelRequest((Message("user", "t"),), purpose=purpose))

    def respond(self, prompt):
        usage = None if prompt is None else Usage(prompt, 10)
        self.made.hook("after_model_response", ModelResponse("", (CALL,), usage=usage))

    def play(self, *prompts):
        found = []
        for prompt in prompts:
            found.append(self.request())
            self.respond(prompt)
            self.made.hook("after_tool_call", CALL, ToolResult("1", "found"))
            self.made.hook("after_iteration", Iteration(self.made.run.iteration, 1))
            self.made.next_round()
        return found


def fired(answers):
    return [number for number, answer in enumerate(answers, 1) if answer is not None]


def test_a_prompt_that_fills_the_share_of_the_window_has_the_next_request_shortened(bench):
    answers = Rounds(bench, window=1_000).play(899, 900, 400, 500)
    assert fired(answers) == [3]
    action = answers[2]
    assert (action.name, action.code, action.observed, action.limit) == ("rewrite", "context_compaction", 900, 900)
    assert action.changes == {"compaction": Compaction("compact", 0.3)}


def test_the_default_window_is_65536_tokens(bench):
    assert fired(Rounds(bench).play(58_982, 58_983, 100)) == [3]


def test_strategy_and_share_are_handed_on(bench):
    answers = Rounds(bench, window=1_000, trigger=0.5, strategy="slide", keep=0.25).play(499, 500, 1)
    assert answers[2].changes == {"compaction": Compaction("slide", 0.25)}


def test_with_strategy_none_nothing_is_ever_shortened(bench):
    assert fired(Rounds(bench, window=1_000, strategy="none", messages=1).play(*[999, None] * 5)) == []


def test_t36_a_compaction_that_brought_nothing_is_not_tried_again_before_the_prompt_has_grown(bench):
    answers = Rounds(bench, window=1_000).play(900, 900, 910, 949, 950, 960, 1_000, 1_049)
    assert fired(answers) == [2, 6, 8]


def test_t36_after_one_that_helped_the_share_counts_again(bench):
    assert fired(Rounds(bench, window=1_000).play(950, 300, 899, 901, 300)) == [2, 5]


def test_a_round_is_shortened_once_whatever_is_reported_in_it(bench):
    rounds = Rounds(bench, window=1_000)
    rounds.play(950)
    assert rounds.request() is not None
    rounds.respond(999)
    assert rounds.request() is None


def test_only_requests_for_the_next_step_of_the_work_count(bench):
    rounds = Rounds(bench, window=1_000)
    rounds.play(500)
    for purpose in ("repair", "summary", "plan"):
        assert rounds.request(purpose) is None
        rounds.respond(990)
    assert rounds.request() is None


def test_t30_without_usage_messages_are_counted_and_the_code_says_so(bench):
    answers = Rounds(bench, messages=6).play(*[None] * 8)
    assert fired(answers) == [4, 8]  # one for the task, two a round: 7 before the fourth
    assert (answers[3].code, answers[3].observed, answers[3].limit) == ("context_compaction_messages", 7, 6)


def test_t30_usage_that_is_reported_outranks_the_number_of_messages(bench):
    assert fired(Rounds(bench, messages=3).play(*[100] * 9)) == []
    assert fired(Rounds(bench, messages=3).play(100, 100, None, None)) == [4]


def test_a_provider_that_reports_nothing_but_zero_reports_nothing(bench):
    assert fired(Rounds(bench, messages=4).play(0, 0, 0)) == [3]


def test_zero_messages_are_never_counted(bench):
    assert fired(Rounds(bench, messages=0).play(*[None] * 50)) == []


def test_every_message_that_the_rule_can_hear_of_is_counted(bench):
    rounds = Rounds(bench, messages=3)
    rounds.made.hook("hist_add_warning_end", HistoryWarning("empty", "nothing"))
    rounds.made.hook("step_start", 2)
    rounds.made.hook("after_tool_call", CALL, ToolResult("1", "found"))
    assert rounds.request().observed == 4


def test_state_survives_a_restart(bench):
    rounds = Rounds(bench, window=1_000)
    rounds.play(950)
    rounds.made.reload(window=1_000)
    assert rounds.request() is not None


def test_a_share_that_fills_the_window_again_is_refused(faults):
    (problem,) = faults(ContextCompaction, keep=0.5, trigger=0.5)
    assert problem.startswith("keep: must be below trigger (0.5)")
    assert faults(ContextCompaction, keep=0.5, trigger=0.5, strategy="none") == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"window": "fires at 2", "messages": "fires at 11"}),
        ({"messages": 1, "strategy": "slide"}, {"window": "fires at 2", "messages": "fires at 2"}),
        ({"messages": 21}, {"window": "fires at 2", "messages": "fires at 2"}),
        ({"messages": 22}, {"window": "fires at 2", "messages": "fires at 3"}),
        ({"messages": 0}, {"window": "fires at 2"}),
    ],
)
def test_every_rung_is_proved_through_the_loop(proved, options, expected):
    assert proved(ContextCompaction, **options) == expected


def test_with_strategy_none_there_is_nothing_to_prove(bench):
    assert list(bench(ContextCompaction, strategy="none").guard.proofs()) == []


# ---- through the loop


def played(turns, **options):
    made = policy(rule("context_compaction", {**DEFAULTS, **options}))
    return play(Engine(made, registry=ListedRegistry(), clock=ManualClock()), turns, task="Find it.")


def pages(number, prompt=None):
    made = (ScriptedCall("look", {"page": number, "part": part}, f"page {number} " * 30) for part in range(2))
    return Turn(tuple(made), usage=None if prompt is None else Usage(prompt, 10))


def said(message):
    """What a message says; the ids of scripted calls depend on their place in the script."""
    return message.role, message.text, [(item.name, item.arguments) for item in message.tool_calls]


def requests(run):
    return [report.payload[0] for report in run.reports if report.hook == "before_model_call"]


def test_a_summary_takes_the_place_of_old_rounds_before_the_window_is_full():
    turns = [pages(1, 300), pages(2, 600), pages(3, 950), say("the gist"), pages(4, 400), say("done")]
    run = played(turns, window=1_000)
    assert (run.outcome.status, run.outcome.output) == ("completed", "done")
    assert [request.purpose for request in requests(run)] == ["main"] * 4 + ["summary"] + ["main"] * 2
    assert "the gist" in run.messages[0].text
    assert run.messages[0].text.startswith("Find it.")
    assert_valid(run.messages)


def test_t36_a_failed_summary_costs_one_request_and_leaves_the_history_as_it_is():
    prompts = [300, 950, 951, 952, 953, 954]
    turns = [pages(number, prompt) for number, prompt in enumerate(prompts)]
    run = played([*turns[:2], say(""), *turns[2:], say("done")], window=1_000)
    whole = played([*turns, say("done")], strategy="none")
    assert [said(message) for message in run.messages] == [said(message) for message in whole.messages]
    assert [request.purpose for request in requests(run)].count("summary") == 1


def test_a_sliding_window_asks_nobody():
    turns = [pages(number, 400 if number % 3 else 950) for number in range(1, 9)]
    run = played([*turns, say("done")], window=1_000, strategy="slide")
    assert run.outcome.status == "completed"
    assert {request.purpose for request in requests(run)} == {"main"}
    assert run.messages[0].text.count("Find it.") == 1
    assert len(run.messages) < len(turns) * 3
    assert_valid(run.messages)


def test_a_rule_that_only_watches_shortens_nothing():
    made = policy(rule("context_compaction", {**DEFAULTS, "window": 1_000}, mode="shadow"))
    turns = [pages(1, 950), pages(2, 960), batch(ScriptedCall("look", {"page": 3})), say("done")]
    run = play(Engine(made, registry=ListedRegistry()), turns)
    assert {request.purpose for request in requests(run)} == {"main"}
    assert run.fired("rewrite") == []
