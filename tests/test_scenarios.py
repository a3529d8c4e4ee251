"""The scenarios T1-T8, T17-T21, T23-T30 and T35-T40 of docs/reference-systems.md, through the real loop."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgspec
import pytest

from policyengine import (
    Agent,
    ConfigError,
    Conversation,
    Engine,
    Extension,
    ExtensionError,
    Message,
    Script,
    ScriptedCall,
    ToolError,
    Turn,
    Usage,
    UsageError,
    batch,
    call,
    check_history,
    fail,
    hookimpl,
    say,
)
from policyengine.loop.advance import advance
from policyengine.loop.state import Begin, Finish
from policyengine.plugins.registry import builtin_registry, discover
from policyengine.policy.load import load_policy, load_policy_text
from policyengine.providers.scripted import ScriptedModel, answer_text
from policyengine.testing import ListedRegistry, ManualClock, assert_valid, play, policy, rule

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: test\n"
REGISTRY = builtin_registry()

PROSE = "I will look into it, attempt {}."
GOOD = call("probe", {"page": 1}, "page 1")


def engine(body, registry=REGISTRY, **options):
    return Engine(load_policy_text(HEAD + body, registry=registry), registry=registry, clock=ManualClock(), **options)


def breaker(options="{max_consecutive_unusable_responses: 3}", extra=""):
    return engine(f"protocol: text\nextensions:\n  stop_unusable_response_loop: {{with: {options}}}\n{extra}")


def stall(options, extra=""):
    return engine(f"{extra}extensions:\n  stall_detector: {{with: {options}}}\n")


def done():
    return say(answer_text("done"))


# ---- unusable responses


def test_t1_three_unusable_responses_of_different_kinds_stop_at_the_third():
    made = breaker("{max_consecutive_unusable_responses: 3}", "  repeat_message: {}\n")
    played = play(made, [say(PROSE.format(1)), say(""), say(PROSE.format(1)), done()])
    stop = played.outcome.stop
    assert (stop.code, stop.observed, stop.limit, stop.iteration) == ("unusable_responses", 3, 3, 3)
    assert played.fired("stop") == [3]
    control = next(decision.control for _, decision in played.decisions if decision.action == "stop")
    assert control.data["kinds"] == ["misformat", "empty", "repeat"]


def test_an_empty_response_is_warned_about_in_the_history_so_that_the_next_request_is_another_one():
    played = play(breaker(), [say(""), done()])
    first, second = sent(played)
    assert [message.origin for message in second.messages[len(first.messages) :]] == ["warning:empty"]


def test_t2_a_usable_response_between_resets_the_streak():
    made = breaker("{max_consecutive_unusable_responses: 2}")
    played = play(made, [say(PROSE.format(1)), GOOD, say(PROSE.format(2)), done()])
    assert played.outcome.status == "completed"


def test_t3_two_warnings_in_one_iteration_count_once_unless_every_counts():
    def warned_twice(options):
        made = breaker(options)
        run = made.start_run(protocol="text")
        run.start("task")
        run.begin_iteration()
        return [run.add_warning("misformat")[1].action for _ in range(2)]

    limit = "max_consecutive_unusable_responses: 2"
    assert warned_twice(f"{{{limit}}}") == ["allow", "allow"]
    assert warned_twice(f"{{{limit}, count: every}}") == ["allow", "stop"]


def test_t4_limit_one_stops_at_the_first_zero_is_an_error_and_disabled_never_stops():
    turns = [say(PROSE.format(number)) for number in range(9)] + [done()]
    assert play(breaker("{max_consecutive_unusable_responses: 1}"), turns).outcome.iterations == 1
    with pytest.raises(ConfigError) as failure:
        breaker("{max_consecutive_unusable_responses: 0}")
    (problem,) = failure.value.problems
    assert problem.position.line == 6
    assert "mode: disabled" in problem.full()
    off = engine("protocol: text\nextensions: {stop_unusable_response_loop: {mode: disabled}}\n")
    assert play(off, turns).outcome.status == "completed"


def test_t5_the_text_of_a_warning_does_not_matter_its_kind_does():
    options = "{max_consecutive_unusable_responses: 2}"
    made = engine(f"language: zh\nprotocol: text\nextensions: {{stop_unusable_response_loop: {{with: {options}}}}}\n")
    assert play(made, [say(PROSE.format(1)), say(PROSE.format(2))]).outcome.status == "stopped"
    run = made.start_run(protocol="text")
    run.start("task")
    for _ in range(4):
        run.begin_iteration()
        assert run.add_warning("acme.unrelated", {"nested": {"kind": "misformat"}})[1].action == "allow"


def test_t6_the_window_rule_sees_what_consecutive_counting_does_not():
    turns = []
    for number in range(4):
        turns += [say(PROSE.format(number)), call("probe", {"page": number}, f"page {number}")]
    turns.append(done())
    only_consecutive = breaker("{max_consecutive_unusable_responses: 5}")
    assert play(only_consecutive, turns).outcome.status == "completed"
    window = breaker("{max_consecutive_unusable_responses: 5, window: {bad: 4, of: 8}}")
    stopped = play(window, turns).outcome
    assert (stopped.status, stopped.stop.iteration, stopped.stop.observed) == ("stopped", 7, 4)


def test_t7_run_scope_starts_afresh_and_conversation_scope_accumulates():
    turns = [say(PROSE.format(1)), say(PROSE.format(2)), done()]
    for scope, expected in (("run", ["completed"] * 3), ("conversation", ["completed", "completed", "stopped"])):
        made = breaker(f"{{max_consecutive_unusable_responses: 6, window: {{bad: 5, of: 12}}, scope: {scope}}}")
        conversation = Conversation("c")
        assert [play(made, turns, conversation=conversation).outcome.status for _ in range(3)] == expected


def test_t8_an_overlay_raises_the_limit_and_explain_shows_both(tmp_path):
    from policyengine.policy.explain import explain

    (tmp_path / "base.yaml").write_text(
        HEAD + "protocol: text\nextensions:\n  stop_unusable_response_loop:\n    with:\n"
        "      max_consecutive_unusable_responses: 2\n"
    )
    (tmp_path / "site.yaml").write_text(
        "apiVersion: policyengine/v1\nkind: Overlay\ntarget: test\nextensions:\n"
        "  stop_unusable_response_loop: {with: {max_consecutive_unusable_responses: 5}}\n"
    )
    loaded = load_policy(tmp_path / "base.yaml", registry=REGISTRY, overlays=[tmp_path / "site.yaml"])
    turns = [say(PROSE.format(number)) for number in range(8)]
    assert play(Engine(loaded, registry=REGISTRY), turns).outcome.stop.iteration == 5
    path = "extensions.stop_unusable_response_loop.with.max_consecutive_unusable_responses"
    (entry,) = explain(loaded, path)
    layers = [(layer.value, layer.position.file.rsplit("/", 1)[-1], layer.position.line) for layer in entry.layers]
    assert (2, "base.yaml", 8) in layers
    assert (5, "site.yaml", 5) in layers
    assert entry.value == 5


# ---- repeats and stalls


def test_t17_the_third_equal_call_is_refused_before_it_runs_and_the_next_one_stops():
    turns = [
        Turn(calls=(ScriptedCall("look", {"a": 1, "b": 2}, "same", arguments=text),))
        for text in ('{"a":1,"b":2}', '{"b":2,"a":1}', '{ "a" : 1,  "b":2 }', '{"a":1,"b":2}')
    ]
    played = play(stall("{repeat: {deny: 3, stop: 4}}"), turns)
    assert played.actions() == ["allow", "allow", "deny", "stop"]
    assert played.outcome.executed == 2
    assert (played.outcome.stop.code, played.outcome.stop.rule) == ("repeat", "stall_detector")
    refused = [message for message in played.messages if message.role == "tool"][2]
    assert "stall_detector" in refused.text
    notes = [message for message in played.messages if message.origin == "rule:stall_detector"]
    assert len(notes) == 1
    assert played.messages.index(notes[0]) == played.messages.index(refused) + 1


def test_t17_a_reply_without_a_call_between_equal_calls_is_no_progress():
    again = call("look", {"x": 1}, "same")
    for between in (say(""), say("", reasoning="hm")):
        assert play(stall("{repeat: {deny: 3}}"), [again, between, again, again, say("done")]).actions()[-1] == "deny"


def test_the_second_equal_call_in_a_row_may_stop_the_run_before_it_runs():
    played = play(stall("{repeat: {stop: 2}}"), [call("look", {"x": 1}, "same")] * 3)
    assert (played.outcome.executed, played.outcome.stop.code, played.outcome.stop.observed) == (1, "repeat", 2)


def test_t18_polling_with_progress_is_never_refused_and_an_allowance_is_counted():
    moving = [call("check", {"id": 7}, f"running {number} %") for number in range(12)] + [say("done")]
    assert "deny" not in play(stall("{repeat: {deny: 3}}"), moving).actions()
    standing = [call("check", {"id": 7}, "queued") for _ in range(12)] + [say("done")]
    assert play(stall("{repeat: {deny: 3}}"), standing).actions().index("deny") == 2
    allowed = stall("{repeat: {deny: 3}, tools: {check: {repeat: {deny: 10}}}}")
    assert play(allowed, standing).actions().index("deny") == 9


@pytest.mark.parametrize(("names", "period"), [("AB" * 3, 2), ("ABC" * 3, 3), ("ABCD" * 3, 4)])
def test_t19_cycles_are_detected_with_their_period(names, period):
    turns = [call(name, {"q": name}, f"result {name}") for name in names]
    played = play(stall("{repeat: {}, interleaved: {}, cycle: {max_period: 5, deny: 3}}"), [*turns, say("done")])
    denied = [decision.control for _, decision in played.decisions if decision.action == "deny"]
    assert [(control.code, control.data["period"]) for control in denied] == [("cycle", period)]
    assert played.actions()[-1] == "deny"


def test_t19_distinct_arguments_with_an_equal_answer_are_no_stall():
    turns = [call("attach", {"file": name}, "true") for name in "abc"]
    assert set(play(stall("{repeat: {deny: 3}, cycle: {deny: 3}}"), turns).actions()) == {"allow"}


def test_t20_a_repeated_batch_is_one_unit_and_copies_in_a_batch_count_each():
    pair = batch(ScriptedCall("a", {"x": 1}, "one"), ScriptedCall("b", {"x": 2}, "two"))
    played = play(stall("{repeat: {deny: 3, stop: 4}}"), [pair] * 4)
    assert played.actions()[:4] == ["allow"] * 4
    assert played.actions()[4:6] == ["deny", "deny"]
    assert (played.outcome.status, played.outcome.stop.iteration) == ("stopped", 4)
    copies = batch(*(ScriptedCall("a", {"x": 1}, "one") for _ in range(5)))
    played = play(stall("{repeat: {deny: 3}}"), [copies, say("done")])
    assert played.actions() == ["allow", "allow", "deny", "deny", "deny"]
    assert played.outcome.executed == 2
    answered = [message.tool_call_id for message in played.messages if message.role == "tool"]
    assert answered == [item.id for item in played.messages[1].tool_calls]


def test_t21_a_first_call_cannot_be_refused_and_other_tools_work_after_a_stall():
    with pytest.raises(ConfigError) as failure:
        stall("{repeat: {deny: 1}}")
    assert failure.value.problems[0].position.line == 5
    turns = [call("look", {"q": 1}, "same")] * 3 + [call("finish", {"answer": "x"}, "saved"), say("done")]
    played = play(stall("{repeat: {deny: 3}}"), turns)
    assert played.actions() == ["allow", "allow", "deny", "allow"]
    assert played.outcome.status == "completed"


_HALVES = """
import sys
from policyengine import Engine, ToolCall, ToolResult
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
head = "apiVersion: policyengine/v1\\nkind: Policy\\nname: t\\n"
text = head + "extensions: {stall_detector: {with: {repeat: {deny: 4}}}}"
registry = builtin_registry()
engine = Engine(load_policy_text(text, registry=registry), registry=registry)
if sys.argv[1] == "first":
    run = engine.start_run(run_id="r"); run.start("t")
else:
    run, _ = engine.resume_run(sys.stdin.buffer.read())
for text in ('{"a": 1, "b": [2.0]}', '{"b":[2],"a":1}'):
    run.begin_iteration()
    call = ToolCall("1", "look", text)
    print(run.before_tool_call(call).action, file=sys.stderr)
    run.after_tool_call(call, ToolResult("1", "same at 2026-01-01T00:00:00Z"))
    run.end_iteration(1)
sys.stdout.buffer.write(run.save())
"""


def test_t23_signatures_saved_in_one_process_equal_those_of_another_with_another_hash_seed():
    halves = [sys.executable, "-c", _HALVES]
    first = subprocess.run([*halves, "first"], capture_output=True, check=True, env={"PYTHONHASHSEED": "1"}, timeout=60)
    other = {"PYTHONHASHSEED": "2"}
    second = subprocess.run(
        [*halves, "second"], input=first.stdout, capture_output=True, check=True, env=other, timeout=60
    )
    assert first.stderr.split() == [b"allow", b"allow"]
    assert second.stderr.split() == [b"allow", b"deny"]


# ---- failures


def failing(number, tool="fetch", **facts):
    return call(tool, {"page": number}, f"page {number} is gone", status="error", **facts)


HINTS = "extensions: {failure_hint_injector: {with: {levels: {hint: 1, insist: 2, deny: 3}}}}\n"


def kinds(played):
    return [note.kind for _, decision in played.decisions for note in decision.notes]


@pytest.mark.parametrize(
    "made",
    [
        RuntimeError("no such page"),
        {
            "status": "error",
            "tool": "fetch",
            "data": None,
            "error": {"code": "gone", "message": "x", "retryable": True},
        },
        {"success": False, "error": "no such page"},
        '{"success": false, "error": "no such page"}',
        SimpleNamespace(isError=True, content=[{"type": "text", "text": "no such page"}]),
    ],
    ids=["raises", "envelope", "success false", "success false as text", "flag of the carrier"],
)
def test_t24_every_way_to_fail_is_one_failure(made):
    assert failures_of(made, {"page": 1}) == (["tool_failure.retry"], "tool_failures")


def test_t24_arguments_against_the_schema_are_a_failure():
    assert failures_of("page 1", {"page": "one"}) == (["tool_failure.retry"], "tool_failures")
    assert failures_of("page 1", {"page": 1}) == ([], "")


def test_t24_a_call_that_a_guard_refused_is_no_failure():
    assert failures_of("page 1", {"page": 1}, "  stall_detector: {with: {repeat: {deny: 2}}}\n", times=4) == ([], "")


def failures_of(made, args, extra="", times=1):
    """Return the notes that calls bring, and the code of the stop after the first failure."""

    def fetch(page: int) -> object:
        if isinstance(made, Exception):
            raise made
        return made

    notes, stops = [], []
    for rules in ("failure_hint_injector: {}", "tool_failures: {with: {stop: 1}}"):
        limited = engine(f"parsing: {{arguments: check}}\nextensions:\n{extra}  {rules}\n")
        limited.sinks.append(lambda report: notes.extend(note.kind for note in report.decision.notes))
        turns = (*[call("fetch", args)] * times, say("done"))
        stops.append(Agent(limited, ScriptedModel(Script("task", turns)), [fetch]).run("task").stop)
    failed = [kind for kind in notes if kind.startswith("tool_failure")]
    return failed, stops[1].code if stops[1] else ""


def test_t25_levels_rise_with_failures_and_only_of_the_failing_tool():
    turns = [failing(1), failing(2), call("other", {}, "broken", status="error"), failing(3), failing(4), say("done")]
    played = play(engine(HINTS), turns)
    assert kinds(played) == ["tool_failure.retry", "tool_failure.change", "tool_failure.retry"]
    assert played.actions() == ["allow", "allow", "allow", "allow", "deny"]


def test_t25_success_resets_the_row_but_not_the_total():
    fine = call("fetch", {"page": 0}, "fine")
    turns = [failing(1), failing(2), fine, failing(3), failing(4), call("fetch", {"page": 9})]
    played = play(engine(HINTS), [*turns, say("done")])
    assert kinds(played) == ["tool_failure.retry", "tool_failure.change"]
    assert set(played.actions()) == {"allow"}


def test_t25_a_new_step_starts_afresh():
    run = engine(HINTS).start_run()
    run.start("task")
    from policyengine import ToolCall, ToolResult

    def fail(number):
        run.begin_iteration()
        made = ToolCall("1", "fetch", f'{{"page":{number}}}')
        decision = run.before_tool_call(made)
        run.after_tool_call(made, ToolResult("1", "gone", "error"))
        return decision.action

    assert [fail(number) for number in range(4)] == ["allow", "allow", "allow", "deny"]
    run.user_message("try again, please")
    assert fail(9) == "allow"


def test_t26_a_failure_in_a_parallel_batch_gives_one_note_after_all_results():
    three = batch(
        ScriptedCall("a", {}, "fine"), ScriptedCall("b", {}, "broken", status="error"), ScriptedCall("c", {}, "fine")
    )
    played = play(engine(HINTS), [three, say("done")])
    roles = [message.role for message in played.messages]
    assert roles == ["user", "assistant", "tool", "tool", "tool", "user", "assistant"]
    assert played.messages[5].origin == "rule:failure_hint_injector"


def test_a_refusal_by_a_guard_is_no_failure_and_an_exit_code_is_one():
    body = "extensions:\n  stall_detector: {with: {repeat: {deny: 2}}}\n  failure_hint_injector: {}\n"
    played = play(engine(body), [call("look", {}, "same")] * 3 + [say("done")])
    assert not [kind for kind in kinds(played) if kind.startswith("tool_failure")]
    played = play(engine(body), [call("sh", {"c": 1}, "no such file", exit_code=2), say("done")])
    assert kinds(played) == ["tool_failure.retry"]


def test_a_failure_that_cannot_be_retried_gets_no_retry_note():
    final = failing(1, error=ToolError("gone", "no such page", retryable=False, declared=True))
    assert kinds(play(engine(HINTS), [final, say("done")])) == ["tool_failure.no_retry"]


def test_t27_unknown_tools_are_listed_what_there_is_and_the_third_in_a_row_stops():
    def look(page: int) -> str:
        return f"page {page}"

    def outcome(*names):
        turns = tuple(call(name, {"page": number}) for number, name in enumerate(names))
        limited = engine("extensions: {unknown_tools: {with: {stop: 3}}}\n")
        return Agent(limited, ScriptedModel(Script("task", (*turns, say("done")))), [look]).run("task")

    stopped = outcome("loook", "lok", "luck")
    assert (stopped.stop.code, stopped.stop.observed, stopped.stop.iteration) == ("unknown_tool", 3, 3)
    answers = [message.text for message in stopped.messages if message.role == "tool"]
    assert all("The tools are: look" in text for text in answers)
    assert outcome("loook", "lok", "look", "luck").status == "completed"


# ---- limits


def looking(rounds, first=0):
    return [call("look", {"page": page}, f"page {page}") for page in range(first, first + rounds)]


def limited(name, options, extra=""):
    return engine(f"{extra}extensions: {{{name}: {{with: {options}}}}}\n")


def test_t28_ten_rounds_run_calls_after_them_are_refused_in_pairs_and_the_notice_comes_once():
    played = play(limited("tool_call_limit", "{rounds: 10}"), looking(20))
    outcome = played.outcome
    assert (outcome.executed, outcome.iterations, outcome.interventions) == (10, 12, 0)
    assert (outcome.status, outcome.stop.code, outcome.stop.observed) == ("stopped", "call_limit", 10)
    assert_valid(played.messages)
    notices = [message for message in played.messages if message.origin == "rule:tool_call_limit"]
    assert len(notices) == 1
    refused = [message for message in played.messages if message.role == "tool"][10:]
    assert len(refused) == 2
    assert all("was not run" in message.text for message in refused)


@pytest.mark.parametrize("rounds", [3, 10, 11])
def test_t28_a_text_answer_ends_the_run_normally_at_any_point(rounds):
    outcome = play(limited("tool_call_limit", "{rounds: 10}"), [*looking(rounds), say("done")]).outcome
    assert (outcome.status, outcome.output, outcome.executed) == ("completed", "done", min(rounds, 10))


def test_t28_three_calls_run_also_where_a_batch_goes_past_the_limit():
    five = batch(*(ScriptedCall("look", {"page": page}, f"page {page}") for page in range(10, 15)))
    played = play(limited("tool_call_limit", "{calls: 3}"), [*looking(1), five, say("done")])
    assert played.actions() == ["allow", "allow", "allow", "deny", "deny", "deny"]
    assert (played.outcome.status, played.outcome.executed) == ("completed", 3)
    assert_valid(played.messages)


def test_t28_a_refused_tool_leaves_the_others_alone():
    turns = [*looking(3), call("other", {}, "fine"), say("done")]
    played = play(limited("tool_call_limit", "{tools: {look: 2}}"), turns)
    assert played.actions() == ["allow", "allow", "deny", "allow"]
    assert (played.outcome.status, played.outcome.executed) == ("completed", 3)


def test_t28_a_run_resumed_at_any_point_is_limited_the_same():
    made = limited("tool_call_limit", "{rounds: 3, calls: 4}")
    pair = batch(*(ScriptedCall("look", {"page": page}, f"page {page}") for page in (1, 2, 3)))
    script = Script("task", (*looking(2, 10), pair, *looking(4, 20)))
    straight = Agent(made, ScriptedModel(script), ScriptedModel(script).tools()).run("task")

    model = ScriptedModel(script)
    agent = Agent(made, model, model.tools())
    loop = agent.start()
    effect = advance(loop, Begin("task"))
    while not isinstance(effect, Finish):
        done = []
        event = agent._perform(loop, effect, done)
        loop = agent.resume(agent.save(loop))
        effect = advance(loop, event)
    resumed = effect.outcome
    assert (resumed.status, resumed.executed, resumed.stop.code) == (straight.status, 4, "call_limit")
    assert resumed.stop.message == straight.stop.message


def spending(prompts):
    return [
        Turn((ScriptedCall("look", {"page": page}, f"page {page}"),), usage=Usage(prompt, 0, prompt))
        for page, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(("check", "requests", "observed"), [("before", 2, 80), ("after", 3, 120)])
def test_t29_the_third_prompt_of_forty_is_sent_or_refused_and_then_the_run_stops(check, requests, observed):
    made = limited("token_budget", f"{{run: 100, count: prompt, check: {check}}}")
    outcome = play(made, spending([40] * 9)).outcome
    assert (outcome.status, outcome.stop.code, outcome.stop.observed) == ("stopped", "token_budget", observed)
    assert (outcome.iterations, outcome.executed, outcome.prompt_tokens) == (requests, requests, observed)
    assert_valid(outcome.messages)


def test_t29_no_budget_is_unlimited_and_a_budget_of_nothing_is_an_error():
    assert play(limited("token_budget", "{step: 100000}"), [*spending([40] * 9), say("done")]).outcome.stop is None
    with pytest.raises(ConfigError) as failure:
        limited("token_budget", "{run: 0}")
    assert "mode: disabled" in failure.value.problems[0].full()


def test_t29_a_used_up_budget_of_the_run_is_not_given_again_to_a_new_step():
    run = limited("token_budget", "{run: 100, count: prompt, check: after}").start_run()
    run.start("task")
    from policyengine import ModelRequest, ModelResponse

    run.begin_iteration()
    assert run.before_model_call(ModelRequest(())).allowed
    run.after_model_response(ModelResponse("x", usage=Usage(120, 0, 120)))
    run.user_message("go on")
    run.begin_iteration()
    decision = run.before_model_call(ModelRequest(()))
    assert (decision.action, decision.control.code) == ("stop", "token_budget")


def test_t29_requests_that_repair_and_ask_again_are_counted():
    def look(page: int) -> str:
        return f"page {page}"

    usage = Usage(40, 0, 40)
    bad = Turn((ScriptedCall("look", {"page": "one"}),), usage=usage)
    prose = Turn(text="", usage=usage)
    body = "parsing: {arguments: check, repair_calls: 2, max_retry: 3}\n"
    made = limited("token_budget", "{run: 100, check: after}", body)
    for turns in ((bad, bad, bad), (prose, prose, prose)):
        model = ScriptedModel(Script("task", (*turns, say("done"))))
        outcome = Agent(made, model, [look]).run("task")
        assert (outcome.stop.code, outcome.stop.observed, outcome.stop.iteration) == ("token_budget", 120, 1)
        assert outcome.executed == 0
        assert_valid(outcome.messages)


def test_t30_where_the_provider_reports_no_usage_it_is_estimated_and_the_log_and_the_stop_say_so():
    turns = [call("look", {"page": page}, "word " * 400) for page in range(9)]
    played = play(limited("token_budget", "{run: 3000, check: after}"), turns)
    records = [
        action
        for _, decision in played.decisions
        for vote in decision.votes
        for action in vote.raw
        if action.code == "token_estimate"
    ]
    assert len(records) == played.outcome.iterations == 4
    assert [record.data["prompt"] for record in records] == [1, 505, 1009, 1513]
    assert played.outcome.stop.observed == sum(record.observed for record in records) == 3044
    assert "3044 of them are an estimate" in played.outcome.stop.message
    assert played.outcome.prompt_tokens == 0


def test_t30_reported_usage_is_no_estimate():
    played = play(limited("token_budget", "{run: 100, check: after}"), spending([40] * 9))
    assert "estimate" not in played.outcome.stop.message


HALTS = """
extensions:
  step_limit: {with: {max_steps: 5}}
  parse_failures: {with: {stop: 3}}
  unknown_tools: {with: {stop: 3, count: total}}
  tool_failures: {with: {stop: 3, count: total}}
  stall_detector: {with: {repeat: {stop: 3}}}
"""


def halted(*kinds):
    """Play one turn for each kind under a policy with all limits of the state-machine article."""
    made = {
        "parse": lambda number: batch(ScriptedCall("look", arguments=f"[{number}]")),
        "unknown": lambda number: call("loook", {"page": number}),
        "fail": lambda number: call("fail", {"page": number}),
        "same": lambda number: call("look", {"page": 0}),
        "fine": lambda number: call("look", {"page": number}),
        "finish": lambda number: say("done"),
    }

    def look(page: int) -> str:
        return f"page {page}"

    def fail(page: int) -> str:
        raise RuntimeError(f"page {page} cannot be read")

    model = ScriptedModel(Script("task", tuple(made[kind](number) for number, kind in enumerate(kinds, 1))))
    agent = Agent(engine(HALTS), model, [look, fail])
    loop = agent.start()
    return agent, loop, agent.drive(loop, Begin("task"))


@pytest.mark.parametrize(
    ("kinds", "code", "iteration"),
    [
        (["fine"] * 6, "max_steps", 6),
        (["parse"] * 5, "parse_failures", 3),
        (["parse", "fine", "parse", "fine", "parse"], "parse_failures", 5),
        (["unknown"] * 5, "unknown_tool", 3),
        (["fail"] * 5, "tool_failures", 3),
        (["same"] * 5, "repeat", 3),
        (["parse", "unknown", "fail", "parse", "unknown", "fail"], "max_steps", 6),
        (["parse", "fail", "parse", "fail", "fail"], "tool_failures", 5),
        (["fail", "unknown", "fail", "unknown", "unknown"], "unknown_tool", 5),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_t40_every_halt_has_a_counter_and_a_reason_of_its_own(kinds, code, iteration):
    _, _, outcome = halted(*kinds)
    assert (outcome.status, outcome.stop.code, outcome.stop.iteration) == ("stopped", code, iteration)
    assert_valid(outcome.messages)


def test_t40_an_answer_ends_the_run_and_further_events_are_rejected():
    agent, loop, outcome = halted("fine", "finish", "fine")
    assert (outcome.status, outcome.output, outcome.executed) == ("completed", "done", 1)
    with pytest.raises(UsageError):
        advance(loop, Begin("more"))
    assert agent.drive(loop) == outcome


def test_t40_a_halted_run_gives_the_same_reason_again_and_changes_nothing():
    agent, loop, outcome = halted("parse", "parse", "parse")
    saved = agent.save(loop)
    assert agent.drive(loop) == outcome
    with pytest.raises(UsageError):
        advance(loop, Begin("more"))
    assert agent.save(loop) == saved
    assert agent.drive(agent.resume(saved)).stop == outcome.stop


# ---- windows, and what is sent back


RECOVERY = """extensions:
  provider_recovery:
    with:
      fallback_models: [{model: small, window: 4096}, {model: large, window: 128000}]
"""
OVERFLOW = {"limit": 16_384, "tokens": 20_411}


def sent(played):
    return [report.payload[0] for report in played.reports if report.hook == "before_model_call"]


def wide(number, **facts):
    return Turn((ScriptedCall("read", {"page": number}, f"page {number}: " + "words " * 60),), **facts)


def test_t35_an_overflow_compacts_once_and_then_asks_a_larger_model_never_a_smaller_one():
    turns = [wide(1), wide(2), wide(3), fail("context_overflow", **OVERFLOW), say("pages 1 to 3 were read")]
    played = play(engine(RECOVERY), [*turns, *[fail("context_overflow", **OVERFLOW)], wide(4), say("done")])
    assert (played.outcome.status, played.outcome.output) == ("completed", "done")
    remedies = [action.remedy.name for _, decision in played.decisions for action in actions(decision, "retry")]
    assert remedies == ["compact", "truncate_results", "fallback_model"]
    assert [request.purpose for request in sent(played)].count("summary") == 1
    assert [request.model for request in sent(played)][-2:] == ["large", "large"]
    assert "small" not in {request.model for request in sent(played)}


def actions(decision, name):
    return [action for vote in decision.votes for action in vote.effective if action.name == name]


def test_t35_an_answer_that_was_cut_at_its_own_limit_is_truncated_and_no_overflow():
    cut = say("The first half of the", finish_reason="length", usage=Usage(300, 4_096))
    body = f"models: {{scripted: {{window: 16384}}}}\n{RECOVERY}"
    played = play(engine(body), [wide(1), cut, say("done")])
    assert [message.origin for message in played.messages if message.origin] == ["warning:truncated"]
    assert not [report for report in played.reports if report.hook == "after_provider_error"]


COMPACTION = "extensions: {context_compaction: {with: {window: 1000, keep: 0.3}}}\n"


def test_t36_a_compaction_at_a_parallel_batch_orphans_nothing_and_keeps_the_task():
    three = [ScriptedCall(name, {"x": 1}, f"{name}: " + "found " * 40) for name in "abc"]
    turns = [wide(1), batch(*three), Turn(tuple(three[:2]), usage=Usage(950, 9)), say("the gist"), wide(2), say("done")]
    played = play(engine(COMPACTION), turns, task="Keep this task, word for word.")
    assert played.outcome.status == "completed"
    assert check_history(played.messages) == ()
    assert played.messages[0].text.startswith("Keep this task, word for word.\n\n")
    assert "the gist" in played.messages[0].text
    assert [len(message.tool_calls) for message in played.messages if message.role == "assistant"] == [2, 1, 0]


@pytest.mark.parametrize("failed", [say(""), say("The user", finish_reason="length"), fail("overloaded")])
def test_t36_a_summary_that_fails_changes_nothing_and_is_not_asked_for_again(failed):
    full = [wide(number, usage=Usage(tokens, 9)) for number, tokens in enumerate([300, 600, 950, 955, 960, 965])]
    played = play(engine(COMPACTION), [*full[:3], failed, *full[3:], say("done")])
    assert (played.outcome.status, played.outcome.executed) == ("completed", 6)
    assert len(played.messages) == 1 + 2 * 6 + 1
    assert [request.purpose for request in sent(played)].count("summary") == 1


def test_t37_reasoning_that_is_not_to_go_back_is_left_out_of_a_copy():
    body = "models: {scripted: {reasoning: drop}}\nextensions: {}\n"
    raw = {"role": "assistant", "content": "before", "reasoning_content": "because", "x_unknown": {"kept": [1]}}
    before = [Message("user", "earlier"), Message("assistant", "before", raw=raw)]
    kept = msgspec.json.encode(before)
    played = play(engine(body), [wide(1), say("done")], history=before)
    for request in sent(played):
        assert request.messages[1].raw == {"role": "assistant", "content": "before", "x_unknown": {"kept": [1]}}
    assert played.messages[1].raw == raw
    assert msgspec.json.encode(before) == kept


# ---- engine


class Trace(Extension):
    """Notes which hooks were called."""

    name = "trace"
    seen: list[str] = []

    class state(msgspec.Struct):  # noqa: N801
        """Nothing."""

    @hookimpl
    def after_tool_call(self, run, call, result):
        """Note."""
        self.seen.append(f"after_tool_call:{result.status}")

    @hookimpl
    def after_iteration(self, run, iteration):
        """Note."""
        self.seen.append("after_iteration")

    @hookimpl
    def run_end(self, run, outcome):
        """Note."""
        self.seen.append(f"run_end:{outcome.status}")


class Raising(Extension):
    """Raises before every call."""

    name = "raising"

    @hookimpl
    def before_tool_call(self, run, call, batch):
        """Raise, except in the self-test."""
        if run.id != "self-test":
            raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("on_error", "status", "executed"), [("deny", "completed", 0), ("allow", "completed", 1), ("stop", "stopped", 0)]
)
def test_t38_a_raising_guard_gets_on_error_and_the_others_and_the_end_hooks_still_run(on_error, status, executed):
    Trace.seen.clear()
    made = policy(rule("raising", on_error=on_error), rule("trace"))
    started = Engine(made, registry=ListedRegistry(Raising, Trace, trusted=True))
    Trace.seen.clear()
    outcome = play(started, [call("a"), say("done")]).outcome
    assert (outcome.status, outcome.executed) == (status, executed)
    first = {"deny": "denied", "allow": "ok", "stop": "not_run"}[on_error]
    assert Trace.seen[:2] == [f"after_tool_call:{first}", "after_iteration"]
    assert Trace.seen[-1] == f"run_end:{status}"


def test_a_limit_may_be_another_one_for_each_agent():
    made = engine(
        "extensions:\n"
        "  few: {use: step_limit, with: {max_steps: 2}, when: {agent: crawler}}\n"
        "  many: {use: step_limit, with: {max_steps: 4}, when: {agent: '!crawler'}}\n"
    )
    stopped = [play(made, looking(9), agent=name).outcome.stop for name in ("crawler", "planner")]
    assert [(stop.rule, stop.limit) for stop in stopped] == [("few", 2), ("many", 4)]


def test_runs_of_one_engine_at_the_same_time_decide_as_if_they_were_alone():
    made = stall("{repeat: {deny: 3, stop: 5}}")

    def run(number):
        turns = tuple([call("look", {"x": number % 2}, "same")] * 6)
        model = ScriptedModel(Script("task", turns))
        outcome = Agent(made, model, model.tools()).run("task", run_id=f"r-{number}")
        return outcome.executed, outcome.stop.observed

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(12))) == [(2, 5)] * 12


def test_t39_two_files_that_register_one_name_are_an_error_naming_both(tmp_path):
    code = (
        "from policyengine import Extension, hookimpl\n"
        "class One(Extension):\n"
        "    name = 'acme.one'\n"
        "    @hookimpl\n"
        "    def after_iteration(self, run, iteration):\n"
        "        return None\n"
    )
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(code)
    registry = discover(entry_points=False, folders=[tmp_path])
    with pytest.raises(ExtensionError) as failure:
        registry.get("acme.one")
    assert "first.py" in str(failure.value)
    assert "second.py" in str(failure.value)


@pytest.mark.parametrize(
    ("body", "line", "meant"),
    [
        ("extensions: {stall_detectr: {}}\n", 4, "stall_detector"),
        ("extensions: {step_limit: {with: {max_step: 4}}}\n", 4, "max_steps"),
        ("extensions: {step_limit: {at: [before_model_cal]}}\n", 4, "before_model_call"),
    ],
)
def test_t39_a_typo_is_a_positioned_error_with_a_suggestion(body, line, meant):
    with pytest.raises(ConfigError) as failure:
        engine(body)
    (problem,) = failure.value.problems
    assert problem.position.line == line
    assert meant in problem.full()


def test_t39_order_is_that_of_the_policy_and_stable():
    body = "extensions:\n  step_limit: {order: {after: [stall_detector]}}\n  repeat_message: {}\n  stall_detector: {}\n"
    orders = {tuple(item.id for item in load_policy_text(HEAD + body, registry=REGISTRY).rules) for _ in range(3)}
    assert orders == {("repeat_message", "stall_detector", "step_limit")}


def test_t39_an_empty_policy_changes_nothing():
    played = play(engine("extensions: {}\n"), [call("a", {}, "same")] * 9 + [say("done")])
    assert (played.outcome.status, played.outcome.executed) == ("completed", 9)


def test_replaying_a_journal_gives_identical_decisions(tmp_path):
    from policyengine.replay import replay_journal
    from policyengine.telemetry.journal import JournalWriter

    path = tmp_path / "journal.jsonl"
    with path.open("w") as file:
        recorded = Engine("default", registry=REGISTRY, journal=JournalWriter(file))
        turns = [call("a", {"x": 1}, "same")] * 3 + [failing(1), failing(2)] + [call("a", {"x": 1}, "same")] * 5
        play(recorded, turns)
    pairs = list(replay_journal(path, Engine("default", registry=REGISTRY)))
    assert len(pairs) > 30
    assert all(then == now for then, now in pairs)
    assert any(then.action != "allow" for then, _ in pairs)


def test_a_stopped_run_is_never_reported_as_success():
    outcome = play(stall("{repeat: {stop: 3}}"), [call("write", {"x": 1}, "saved")] * 5).outcome
    assert outcome.status == "stopped"
    assert json.loads(msgspec.json.encode(outcome))["stop"]["code"] == "repeat"
