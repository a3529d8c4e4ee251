"""The loop never sends an invalid history, whatever the guards decide; a saved run ends the same."""

import asyncio
import json
import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import (
    Agent,
    Engine,
    Extension,
    ModelRequest,
    ModelResponse,
    ProviderError,
    RequestError,
    ScriptedCall,
    ToolCall,
    ToolFacts,
    Turn,
    UsageError,
    batch,
    call,
    hookimpl,
    say,
)
from policyengine.loop.advance import advance
from policyengine.loop.state import Answered, Begin, Cancelled, Finish, Loop, LoopState, Responded, ToolsDone
from policyengine.providers.scripted import ScriptedModel, answer_text
from policyengine.script import Script
from policyengine.testing import ListedRegistry, ManualClock, assert_valid, play, policy, rule


class Checking(ScriptedModel):
    """A scripted model that refuses an invalid history."""

    def __init__(self, script, protocol="native"):
        super().__init__(script)
        self.protocol = protocol
        self.requests = []

    def complete(self, request: ModelRequest) -> ModelResponse:
        assert_valid(request.messages, self.protocol)
        self.requests.append(request)
        return super().complete(request)


class Erratic(Extension):
    """Answers each hook with the next action of a list."""

    name = "erratic"
    options = {
        "plan": {
            "type": "dict",
            "keysrules": {"type": "string"},
            "valuesrules": {"type": "list", "schema": {"type": "string"}},
        }
    }
    messages = {f"x.{action}": {} for action in ("hint", "deny", "ask", "end_step", "wind_down", "stop", "retry")}
    templates = {"en": dict.fromkeys(messages, "note")}

    class state(msgspec.Struct):  # noqa: N801
        """How often each hook was asked."""

        asked: dict[str, int] = {}

    def pick(self, run, hook):
        plan = self.options.plan.get(hook, ())
        number = run.state.asked.get(hook, 0)
        run.state.asked[hook] = number + 1
        action = plan[number] if number < len(plan) else "none"
        return None if action == "none" else getattr(run, action)("x")

    @hookimpl
    def before_model_call(self, run, request):
        return self.pick(run, "before_model_call")

    @hookimpl
    def after_model_response(self, run, response):
        return self.pick(run, "after_model_response")

    @hookimpl
    def after_parse(self, run, verdict, calls):
        return self.pick(run, "after_parse")

    @hookimpl
    def hist_add_warning_end(self, run, warning):
        return self.pick(run, "hist_add_warning_end")

    @hookimpl
    def before_tool_call(self, run, call, batch):
        return self.pick(run, "before_tool_call")

    @hookimpl
    def after_tool_call(self, run, call, result):
        return self.pick(run, "after_tool_call")

    @hookimpl
    def after_iteration(self, run, iteration):
        return self.pick(run, "after_iteration")


PLANS = {
    "before_model_call": ["none", "hint", "wind_down", "stop"],
    "after_model_response": ["none", "retry", "hint", "stop"],
    "after_parse": ["none", "retry", "hint", "end_step", "wind_down", "stop"],
    "hist_add_warning_end": ["none", "hint", "stop"],
    "before_tool_call": ["none", "hint", "deny", "ask", "end_step", "wind_down", "stop"],
    "after_tool_call": ["none", "hint", "stop"],
    "after_iteration": ["none", "hint", "end_step", "wind_down", "stop"],
}
plans = st.fixed_dictionaries(
    {hook: st.lists(st.sampled_from(["none", *choices]), max_size=5) for hook, choices in PLANS.items()}
)
odd_calls = st.builds(
    ScriptedCall,
    tool=st.sampled_from(["search", "", "no such tool", "weird name!", "read"]),
    args=st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=2),
    result=st.sampled_from(["", "ok", "  "]),
    arguments=st.sampled_from([None, None, None, "{", "[1]", '{"a": 1', '{"a":1,"a":2}', "NaN", "", "not json"]),
)
odd_turns = st.builds(
    Turn,
    calls=st.lists(odd_calls, max_size=3).map(tuple),
    text=st.sampled_from(["", "", "thinking", "done"]),
    reasoning=st.sampled_from(["", "hm"]),
    finish_reason=st.sampled_from(["", "", "", "stop", "length"]),
)


def erratic_engine(plan, protocol="native"):
    made = policy(rule("erratic", {"plan": plan}), protocol=protocol)
    return Engine(made, registry=ListedRegistry(Erratic, trusted=True), clock=ManualClock())


@settings(max_examples=100, deadline=None)
@given(plans, st.lists(odd_turns, max_size=6), st.booleans(), st.booleans())
def test_no_decision_of_any_guard_makes_the_history_invalid(plan, turns, approves, text):
    protocol = "text" if text else "native"
    engine = erratic_engine(plan, protocol)
    script = Script("t", tuple(turns), protocol=protocol)
    model = Checking(script, protocol)
    outcome = Agent(engine, model, model.tools(), human=lambda _: approves).run("task")
    assert_valid(outcome.messages, protocol)
    assert outcome.status in ("completed", "stopped", "waiting")


@settings(max_examples=60, deadline=None)
@given(plans, st.lists(odd_turns, max_size=5), st.integers(0, 12))
def test_a_run_saved_at_any_effect_and_resumed_elsewhere_ends_the_same(plan, turns, at):
    script = Script("t", tuple(turns))
    whole = drive_with_break(plan, script, None)
    assert drive_with_break(plan, script, at) == whole


def drive_with_break(plan, script, at):
    """Drive effect by effect; before effect number `at`, save the run and go on with a copy in another engine."""
    model = ScriptedModel(script)
    agent = Agent(erratic_engine(plan), model, model.tools(), human=lambda _: True)
    loop = agent.start(run_id="r")
    effect = advance(loop, Begin("task"))
    number = 0
    while not isinstance(effect, Finish):
        if number == at:
            saved = agent.save(loop)
            agent = Agent(erratic_engine(plan), model, agent.tools, human=lambda _: True)
            loop = agent.resume(saved)
            from policyengine.loop.advance import effect_now

            again = effect_now(loop)
            assert type(again) is type(effect)
            effect = again
        effect = advance(loop, agent._perform(loop, effect, []))
        number += 1
    outcome = effect.outcome
    return msgspec.structs.replace(outcome, messages=tuple(plain(message) for message in outcome.messages))


def plain(message):
    return msgspec.to_builtins(message)


def test_sync_and_async_drivers_do_the_same():
    turns = (batch(ScriptedCall("a", {"x": 1}), ScriptedCall("b", {"x": 2})), call("a", {"x": 3}), say("done"))
    made = policy(rule("erratic", {"plan": {"before_tool_call": ["none", "deny"]}}))
    engine = Engine(made, registry=ListedRegistry(Erratic, trusted=True))
    outcomes = []
    for run in ("run", "arun"):
        model = ScriptedModel(Script("t", turns))
        agent = Agent(engine, model, model.tools())
        outcome = getattr(agent, run)("task")
        outcomes.append(asyncio.run(outcome) if run == "arun" else outcome)
    first, second = (msgspec.structs.replace(one, messages=tuple(map(plain, one.messages))) for one in outcomes)
    assert first == second
    assert first.executed == 2


def test_an_async_tool_runs_under_both_drivers():
    async def double(number: int) -> int:
        """Double a number."""
        return number * 2

    def agent():
        script = Script("t", (call("double", {"number": 4}), say("done")))
        return Agent(Engine(policy(), registry=ListedRegistry()), ScriptedModel(script), [double])

    for outcome in (agent().run("task"), asyncio.run(agent().arun("task"))):
        assert [message.text for message in outcome.messages if message.role == "tool"] == ["8"]


def test_notes_never_stand_between_the_results_of_a_batch():
    turns = [batch(*(ScriptedCall("a", {"x": number}) for number in range(3))), say("done")]
    made = policy(
        rule("erratic", {"plan": {"after_tool_call": ["none", "hint", "hint"], "before_tool_call": ["hint"]}})
    )
    played = play(Engine(made, registry=ListedRegistry(Erratic, trusted=True)), turns)
    roles = [message.role for message in played.messages]
    assert roles == ["user", "assistant", "tool", "tool", "tool", "user", "user", "user", "assistant"]
    assert [message.origin for message in played.messages[5:8]] == ["rule:erratic"] * 3


def test_a_stop_on_one_call_runs_nothing_of_the_batch_and_answers_every_id():
    turns = [batch(*(ScriptedCall("a", {"x": number}) for number in range(3)))]
    made = policy(rule("erratic", {"plan": {"before_tool_call": ["none", "stop"]}}))
    played = play(Engine(made, registry=ListedRegistry(Erratic, trusted=True)), turns)
    assert played.outcome.status == "stopped"
    assert played.outcome.executed == 0
    assert played.outcome.stop.call == 2
    assert [message.role for message in played.messages] == ["user", "assistant", "tool", "tool", "tool"]


def test_wind_down_refuses_a_bounded_number_of_rounds_and_a_text_answer_ends_normally():
    made = policy(rule("erratic", {"plan": {"after_iteration": ["wind_down"]}}), wind_down_rounds=2)
    engine = Engine(made, registry=ListedRegistry(Erratic, trusted=True))
    calls = [call("a", {"x": number}) for number in range(6)]
    stopped = play(engine, calls).outcome
    assert (stopped.status, stopped.executed, stopped.iterations) == ("stopped", 1, 3)
    answered = play(engine, [*calls[:2], say("my answer")]).outcome
    assert (answered.status, answered.output, answered.executed) == ("completed", "my answer", 1)


def test_a_retry_notice_is_sent_once_and_never_stored():
    made = policy(rule("erratic", {"plan": {"after_parse": ["retry"]}}))
    made = msgspec.structs.replace(made, parsing=msgspec.structs.replace(made.parsing, max_retry=1))
    model = Checking(Script("t", (say("first"), say("second"))))
    outcome = Agent(Engine(made, registry=ListedRegistry(Erratic, trusted=True)), model).run("task")
    assert outcome.output == "second"
    assert [message.text for message in model.requests[1].messages] == ["task", "first", "note"]
    assert [message.text for message in outcome.messages] == ["task", "second"]
    assert [(failed.kind, failed.response.text) for failed in outcome.failed_attempts] == [("retry", "first")]


def test_an_unreadable_response_is_asked_for_again_with_what_was_sent_and_why():
    made = msgspec.structs.replace(policy(), protocol="text")
    made = msgspec.structs.replace(made, parsing=msgspec.structs.replace(made.parsing, max_retry=1))
    good = '{"tool_name": "response", "tool_args": {"text": "done"}}'
    model = Checking(Script("t", (say("no object"), say("no object again"), say(good)), protocol="text"))
    outcome = Agent(Engine(made), model).run("task")
    assert outcome.output == "done"
    _, first, second = model.requests
    assert first.messages[-2].text == "no object"
    assert "no_object" in first.messages[-1].text
    # The attempt that failed is not stored; the one that used up the retries is, with its warning.
    assert [message.text for message in second.messages].count("no object") == 0
    assert [message.text for message in second.messages].count("no object again") == 1
    (failed,) = outcome.failed_attempts
    assert (failed.iteration, failed.attempt, failed.kind, failed.details) == (
        1,
        1,
        "misformat",
        {"reason": "no_object"},
    )
    assert failed.response.text == "no object"


def test_a_retried_native_response_has_its_calls_answered_in_the_request():
    made = policy()
    made = msgspec.structs.replace(made, parsing=msgspec.structs.replace(made.parsing, max_retry=1))
    broken = Turn((ScriptedCall("a", arguments="{broken"),))
    model = Checking(Script("t", (broken, say("done"))))
    outcome = Agent(Engine(made), model, model.tools()).run("task")
    assert_valid(model.requests[1].messages)
    assert [message.role for message in model.requests[1].messages][-3:] == ["assistant", "tool", "user"]
    assert [message.role for message in outcome.messages][-2:] == ["user", "assistant"]


def test_t11_a_call_found_amid_prose_runs_with_a_note_that_no_breaker_counts():
    made = msgspec.structs.replace(policy(), protocol="text", tools=(("look", ToolFacts("read")),))
    made = msgspec.structs.replace(made, parsing=msgspec.structs.replace(made.parsing, mode="repair"))
    amid = 'I look.\n{"tool_name": "look", "tool_args": {"page": %d}}'
    good = '{"tool_name": "response", "tool_args": {"text": "done"}}'
    model = Checking(Script("t", (say(amid % 1), say(amid % 2), say(good)), protocol="text"), "text")

    def look(page: int) -> str:
        return f"page {page}"

    outcome = Agent(Engine(made), model, [look]).run("task")
    assert (outcome.executed, outcome.interventions, outcome.output) == (2, 0, "done")
    notes = [message for message in outcome.messages if message.origin == "rule:parsing"]
    assert len(notes) == 1  # once, until a clean call breaks the streak
    assert "one JSON object" in notes[0].text


@pytest.mark.parametrize("protocol", ["native", "text"])
def test_the_policy_may_have_all_results_told_in_one_envelope(protocol):
    plan = {"before_tool_call": ["none", "deny"]}
    made = policy(rule("erratic", {"plan": plan}))
    made = msgspec.structs.replace(made, protocol=protocol, tool_results="envelope")
    turns = [call("a", result="found"), call("a"), call("a", result="Boom", status="error")]
    if protocol == "text":
        turns = [say(json.dumps({"tool_name": "a", "tool_args": {}}))] * 2 + [say("no object")]
        turns = [Turn((item.calls[0],), text=item.text) if item.calls else item for item in turns]
    script = Script("t", (*turns, say(answer_text("done") if protocol == "text" else "done")), protocol=protocol)
    model = Checking(script, protocol)
    outcome = Agent(Engine(made, registry=ListedRegistry(Erratic, trusted=True)), model, [a_tool]).run("task")
    told = [message.text for message in outcome.messages if message.role == "tool" or message.origin == "tool"]
    if protocol == "text":
        told = [json.loads(text)["result"] for text in told]
    envelopes = [json.loads(text) for text in told]
    assert envelopes
    for envelope in envelopes:
        assert list(envelope)[:5] == ["status", "tool", "data", "error", "meta"]
        assert envelope["tool"] == "a"
        assert envelope["meta"]["step"] >= 1
        assert envelope["meta"]["trace_id"]
    assert [envelope["status"] for envelope in envelopes[:2]] == ["ok", "error"]
    assert envelopes[1]["error"]["retryable"] is False


def a_tool() -> str:
    """Find something."""
    return "found"


a_tool.__name__ = "a"


def test_only_the_last_failed_attempts_are_kept():
    from policyengine.loop.requests import KEPT_ATTEMPTS

    made = msgspec.structs.replace(policy(), protocol="text")
    made = msgspec.structs.replace(made, parsing=msgspec.structs.replace(made.parsing, max_retry=10))
    turns = tuple(say(f"no {number}") for number in range(33))
    outcome = Agent(Engine(made), Checking(Script("t", turns, protocol="text"))).run("task")
    assert len(outcome.failed_attempts) == KEPT_ATTEMPTS


def test_retries_are_off_unless_the_policy_allows_them():
    made = policy(rule("erratic", {"plan": {"after_parse": ["retry"]}}))
    played = play(Engine(made, registry=ListedRegistry(Erratic, trusted=True)), [say("first"), say("second")])
    assert any(message.origin == "warning:misformat" for message in played.messages)


def test_a_run_that_asks_waits_and_goes_on_after_the_answer():
    made = policy(rule("erratic", {"plan": {"before_tool_call": ["ask"]}}))
    engine = Engine(made, registry=ListedRegistry(Erratic, trusted=True))
    model = ScriptedModel(Script("t", (call("a"), say("done"))))
    agent = Agent(engine, model, model.tools())
    loop = agent.start()
    outcome = agent.drive(loop, Begin("task"))
    assert outcome.status == "waiting"
    assert outcome.stop.action == "ask"
    resumed = agent.resume(agent.save(loop))
    assert agent.drive(resumed, Answered(True)).status == "completed"


def test_a_refusal_by_a_human_is_told_to_the_model():
    made = policy(rule("erratic", {"plan": {"before_tool_call": ["ask"]}}))
    engine = Engine(made, registry=ListedRegistry(Erratic, trusted=True))
    played = play(engine, [call("a"), say("done")], human=lambda _: False)
    assert played.outcome.executed == 0
    assert played.outcome.status == "completed"


def test_cancelling_while_tools_run_answers_their_calls_and_ends_the_run():
    seen = []

    class Observer(Extension):
        name = "observer"

        @hookimpl
        def after_tool_call(self, run, call, result):
            seen.append(result.status)

        @hookimpl
        def run_end(self, run, outcome):
            seen.append(outcome.status)

    engine = Engine(policy(rule("observer")), registry=ListedRegistry(Observer, trusted=True))
    seen.clear()  # the self-test at load has called it too
    run = engine.start_run()
    from policyengine.messages import ToolSpec

    loop = Loop(run, LoopState(tools=(ToolSpec("a"),)))
    advance(loop, Begin("task"))
    response = ModelResponse(tool_calls=(ToolCall("1", "a", "{}"), ToolCall("2", "a", "{}")))
    advance(loop, Responded(response))
    effect = advance(loop, Cancelled("user"))
    assert effect.outcome.status == "cancelled"
    assert_valid(effect.outcome.messages)
    assert seen == ["error", "error", "cancelled"]
    assert "not known" in effect.outcome.messages[-1].text
    assert effect.outcome.executed == 2


def test_events_out_of_order_are_the_callers_mistake():
    loop = Loop(Engine(policy(), registry=ListedRegistry()).start_run(), LoopState())
    with pytest.raises(UsageError, match="does not fit phase 'new'"):
        advance(loop, ToolsDone(()))
    advance(loop, Begin("task"))
    with pytest.raises(UsageError, match="does not fit phase 'model'"):
        advance(loop, Begin("task"))


def test_a_failed_request_ends_the_run_as_failed_not_stopped():
    class Down:
        name = "down"

        def complete(self, request):
            raise RequestError(ProviderError("overloaded", "try later", 529))

    outcome = Agent(Engine(policy(), registry=ListedRegistry()), Down()).run("task")
    assert (outcome.status, outcome.error) == ("failed", "overloaded: try later")


def test_calls_without_ids_or_with_the_same_id_are_told_apart():
    class Twins:
        name = "twins"
        asked = 0

        def complete(self, request):
            assert_valid(request.messages)
            self.asked += 1
            if self.asked > 1:
                return ModelResponse("done")
            return ModelResponse(tool_calls=tuple(ToolCall(id, "a", "{}") for id in ("", "x", "x", "")))

    def a() -> str:
        """Do it."""
        return "fine"

    outcome = Agent(Engine(policy(), registry=ListedRegistry()), Twins(), [a]).run("task")
    assert outcome.executed == 4


def test_a_raising_tool_and_one_that_exits_are_results():
    def bad() -> None:
        """Raise."""
        raise ValueError("no")

    def worse() -> None:
        """Exit."""
        raise SystemExit(1)

    script = Script("t", (batch(ScriptedCall("bad"), ScriptedCall("worse")), say("done")))
    outcome = Agent(Engine(policy(), registry=ListedRegistry()), ScriptedModel(script), [bad, worse]).run("task")
    texts = [message.text for message in outcome.messages if message.role == "tool"]
    assert texts == ["Error: ValueError: no", "Error: SystemExit: 1"]
    assert outcome.status == "completed"


def test_the_text_protocol_runs_to_an_answer():
    turns = [call("a", {"x": 1}, "fine"), say(answer_text("all is well"))]
    played = play(Engine(policy(protocol="text"), registry=ListedRegistry()), turns)
    assert (played.outcome.status, played.outcome.output) == ("completed", "all is well")
    assert json.loads(played.messages[3].text) == {"tool_name": "a", "result": "fine"}


def test_an_empty_policy_changes_nothing():
    turns = [call("a", {"x": 1}, "same")] * 12 + [say("done")]
    played = play(Engine(policy(), registry=ListedRegistry()), turns)
    assert (played.outcome.status, played.outcome.executed, played.outcome.interventions) == ("completed", 12, 0)


@pytest.mark.parametrize("driver", ["run", "arun"])
@pytest.mark.parametrize("blocking", [True, False])
def test_a_tool_that_overruns_its_time_is_given_up_and_the_others_of_the_batch_are_not(driver, blocking):
    release = threading.Event()

    def blocked() -> str:
        """Wait, blocking."""
        release.wait(20)
        return "late"

    async def suspended() -> str:
        """Wait, suspended."""
        await asyncio.get_running_loop().run_in_executor(None, release.wait, 20)
        return "late"

    def quick() -> str:
        """Answer."""
        return "fine"

    made = Engine(policy(tools=(("slow", ToolFacts(timeout_s=0.05)),)), registry=ListedRegistry())
    turns = (batch(ScriptedCall("slow"), ScriptedCall("quick")), say("done"))
    agent = Agent(made, ScriptedModel(Script("t", turns)), {"slow": blocked if blocking else suspended, "quick": quick})

    async def both():
        try:
            return await agent.arun("task")
        finally:
            release.set()

    try:
        outcome = asyncio.run(both()) if driver == "arun" else agent.run("task")
    finally:
        release.set()
    first, second = (message for message in outcome.messages if message.role == "tool")
    assert "0.05" in first.text
    assert second.text == "fine"
    assert outcome.status == "completed"


@pytest.mark.parametrize("driver", ["run", "arun"])
def test_the_calls_of_a_batch_run_at_the_same_time(driver):
    meet = threading.Barrier(2)

    def wait() -> str:
        """Wait for the other call."""
        meet.wait(20)
        return "met"

    turns = (batch(ScriptedCall("wait"), ScriptedCall("wait")), say("done"))
    agent = Agent(Engine(policy(), registry=ListedRegistry()), ScriptedModel(Script("t", turns)), [wait])
    outcome = asyncio.run(agent.arun("task")) if driver == "arun" else agent.run("task")
    assert [message.text for message in outcome.messages if message.role == "tool"] == ["met", "met"]


def test_text_with_lone_surrogates_can_be_saved_and_resumed():
    made = Engine(policy(), registry=ListedRegistry())
    model = ScriptedModel(Script("t", (call("a", {}, "bad \ud800 text"), say("done"))))
    agent = Agent(made, model, model.tools())
    loop = agent.start()
    advance(loop, Begin("task \udfff"))
    resumed = agent.resume(agent.save(loop))
    assert resumed.state.messages == loop.state.messages
    assert agent.drive(resumed).status == "completed"


@pytest.mark.parametrize("answer", [False, "no", 1, None])
@pytest.mark.parametrize("driver", ["run", "arun"])
def test_only_true_is_an_approval(driver, answer):
    made = policy(rule("erratic", {"plan": {"before_tool_call": ["ask"]}}))
    engine = Engine(made, registry=ListedRegistry(Erratic, trusted=True))
    model = ScriptedModel(Script("t", (call("a"), say("done"))))

    async def asked(effect):
        return answer

    human = asked if driver == "arun" else lambda effect: answer
    agent = Agent(engine, model, model.tools(), human=human)
    outcome = asyncio.run(agent.arun("task")) if driver == "arun" else agent.run("task")
    assert outcome.executed == 0


def test_an_asynchronous_human_cannot_be_asked_synchronously():
    made = policy(rule("erratic", {"plan": {"before_tool_call": ["ask"]}}))
    model = ScriptedModel(Script("t", (call("a"), say("done"))))

    async def asked(effect):
        return True

    agent = Agent(Engine(made, registry=ListedRegistry(Erratic, trusted=True)), model, model.tools(), human=asked)
    with pytest.raises(UsageError, match="asynchronous"):
        agent.run("task")


class Withholding(Extension):
    """Takes a tool out of every request."""

    name = "withholding"

    @hookimpl
    def before_model_call(self, run, request):
        return run.rewrite("held", tools=tuple(tool for tool in request.tools if tool.name != "pay"))


def test_a_tool_that_a_rule_withheld_does_not_run():
    engine = Engine(policy(rule("withholding")), registry=ListedRegistry(Withholding, trusted=True))
    played = play(engine, [call("pay", {"amount": 1}), call("look"), say("done")])
    assert played.outcome.executed == 1
    assert "pay" in played.messages[2].text


@pytest.mark.parametrize("raised", [GeneratorExit, asyncio.CancelledError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("driver", ["run", "arun"])
def test_whatever_a_tool_raises_is_a_result_and_hangs_nothing(driver, raised):
    def bad() -> None:
        """Raise."""
        raise raised

    async def worse() -> None:
        """Raise too."""
        raise asyncio.CancelledError

    turns = (batch(ScriptedCall("bad"), ScriptedCall("worse")), say("done"))
    agent = Agent(Engine(policy(), registry=ListedRegistry()), ScriptedModel(Script("t", turns)), [bad, worse])
    outcome = asyncio.run(agent.arun("task")) if driver == "arun" else agent.run("task")
    assert (outcome.status, outcome.executed) == ("completed", 2)


def test_cancelling_keeps_what_was_done_and_says_what_is_not_known():
    ended = []

    class Watching(Extension):
        name = "watching"

        @hookimpl
        def run_end(self, run, outcome):
            ended.append(outcome)

    quick_done = threading.Event()

    def quick() -> str:
        """Write."""
        quick_done.set()
        return "wrote file"

    async def cancelled():
        started = asyncio.Event()

        async def slow() -> str:
            """Wait."""
            started.set()
            await asyncio.Event().wait()
            return "never"

        turns = (batch(ScriptedCall("quick"), ScriptedCall("slow")), say("done"))
        engine = Engine(policy(rule("watching")), registry=ListedRegistry(Watching, trusted=True))
        agent = Agent(engine, ScriptedModel(Script("t", turns)), {"quick": quick, "slow": slow})
        task = asyncio.create_task(agent.arun("task"))
        await started.wait()
        while not quick_done.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    outcome = ended[-1]
    first, second = (message.text for message in outcome.messages if message.role == "tool")
    assert outcome.executed == 2
    assert first == "wrote file" or "not known" in first
    assert "not known" in second


def test_a_model_that_crashes_ends_the_run_as_failed_before_the_crash_goes_on():
    ended = []

    class Watching(Extension):
        name = "watching"

        @hookimpl
        def run_end(self, run, outcome):
            ended.append(outcome.status)

    class Broken:
        name = "broken"

        def complete(self, request):
            raise ValueError("boom")

    engine = Engine(policy(rule("watching")), registry=ListedRegistry(Watching, trusted=True))
    ended.clear()
    with pytest.raises(ValueError, match="boom"):
        Agent(engine, Broken()).run("task")
    assert ended == ["failed"]


def test_wind_down_is_bounded_also_where_a_rule_asks_for_it_every_round():
    made = policy(rule("erratic", {"plan": {"after_iteration": ["wind_down"] * 20}}), wind_down_rounds=2)
    engine = Engine(made, registry=ListedRegistry(Erratic, trusted=True))
    outcome = play(engine, [call("a", {"x": number}) for number in range(20)]).outcome
    assert (outcome.status, outcome.iterations) == ("stopped", 3)


class Rewriting(Extension):
    """Puts other calls into the verdict."""

    name = "rewriting"
    options = {"how": {"type": "string", "default": "drop"}}

    @hookimpl
    def after_parse(self, run, verdict, calls):
        if not calls:
            return None
        other = {"drop": calls[:1], "double": (*calls, calls[0]), "none": (), "add": (*calls, ToolCall("n", "b", "{}"))}
        return run.rewrite("x", calls=tuple(other[self.options.how]))


@pytest.mark.parametrize("how", ["drop", "double", "none", "add"])
def test_a_verdict_with_other_calls_makes_a_history_with_those_calls(how):
    engine = Engine(policy(rule("rewriting", {"how": how})), registry=ListedRegistry(Rewriting, trusted=True))
    script = Script("t", (batch(ScriptedCall("a", {"x": 1}), ScriptedCall("a", {"x": 2})), say("done")))
    model = Checking(script)
    assert_valid(Agent(engine, model, model.tools()).run("task").messages)


def test_ids_stay_unique_whatever_the_model_sends():
    from policyengine.history.build import with_ids

    response = ModelResponse(tool_calls=tuple(ToolCall(id, "a", "{}") for id in ("call-1-1", "call-1-1", "", "")))
    ids = [item.id for item in with_ids(response, 1).tool_calls]
    assert len(set(ids)) == 4


def test_a_waiting_run_leaves_messages_that_may_be_sent():
    made = policy(rule("erratic", {"plan": {"before_tool_call": ["none", "ask"]}}))
    model = ScriptedModel(Script("t", (batch(ScriptedCall("a"), ScriptedCall("b")), say("done"))))
    agent = Agent(Engine(made, registry=ListedRegistry(Erratic, trusted=True)), model, model.tools())
    outcome = agent.run("task")
    assert outcome.status == "waiting"
    assert_valid(outcome.messages)


def test_an_empty_task_is_refused():
    with pytest.raises(UsageError, match="empty"):
        Agent(Engine(policy(), registry=ListedRegistry()), ScriptedModel(Script("t", ()))).run("  ")
