"""Corners of the loop: what waits, what is asked, what is resumed, what a plan does where something else ends."""

import asyncio

import msgspec
import pytest

from policyengine import (
    Agent,
    Engine,
    Extension,
    Mailbox,
    ModelResponse,
    ToolCall,
    Turn,
    Usage,
    batch,
    call,
    fail,
    hookimpl,
    say,
)
from policyengine.history.check import check_history
from policyengine.loop.advance import advance, effect_now
from policyengine.loop.state import Begin, CallModel, CallTools
from policyengine.plans import Plan, Step
from policyengine.policy.model import Interventions, ModelFacts, Parsing, Planning
from policyengine.providers.scripted import ScriptedModel
from policyengine.recordings.readers import read_recordings
from policyengine.replay import replay, replay_journal
from policyengine.runstate import Conversation
from policyengine.script import Script, ScriptedCall
from policyengine.telemetry.journal import JournalWriter
from policyengine.testing import ListedRegistry, ManualClock, assert_valid, policy, rule

THREE = Plan((Step("a", "One."), Step("b", "Two."), Step("c", "Three.")))


class Says(Extension):
    """Answers with one action at one hook, in one iteration, step or purpose (`at`), or at every call of a page."""

    name = "says"
    options = {
        "hook": {"type": "string", "default": ""},
        "action": {"type": "string", "default": "hint"},
        "at": {"type": "string", "default": ""},
    }
    messages = {f"corner.{action}": {} for action in ("hint", "ask", "end_step", "wind_down", "stop")}
    templates = {"en": dict.fromkeys(messages, "Corner.")}

    def answer(self, run, hook, at):
        """Answer where it is wanted."""
        wanted = self.options.hook == hook and self.options.at in ("", str(at))
        return getattr(run, self.options.action)("corner") if wanted else None

    @hookimpl
    def step_start(self, run, step):
        """Answer."""
        return self.answer(run, "step_start", step) if self.options.action in ("hint", "end_step") else None

    @hookimpl
    def step_end(self, run, step):
        """Answer."""
        return self.answer(run, "step_end", step) if self.options.action in ("hint", "end_step") else None

    @hookimpl
    def before_model_call(self, run, request):
        """Answer."""
        wanted = self.options.action in ("hint", "wind_down", "stop")
        return self.answer(run, "before_model_call", request.purpose) if wanted else None

    @hookimpl
    def after_model_response(self, run, response):
        """Answer."""
        return self.answer(run, "after_model_response", response.text) if self.options.action == "hint" else None

    @hookimpl
    def before_tool_call(self, run, call, batch):
        """Answer."""
        return self.answer(run, "before_tool_call", (call.args or {}).get("page"))

    @hookimpl
    def after_iteration(self, run, iteration):
        """Answer."""
        wanted = self.options.action in ("hint", "wind_down", "end_step")
        return self.answer(run, "after_iteration", iteration.number) if wanted else None


class Checking(ScriptedModel):
    """A scripted model that keeps its requests and refuses an invalid history."""

    def __init__(self, *turns):
        super().__init__(Script("t", turns))
        self.requests = []

    def complete(self, request):
        assert_valid(request.messages)
        self.requests.append(request)
        return super().complete(request)


def look(page: int = 1) -> str:
    """Look at a page."""
    return f"page {page}: " + "high at noon, low at six. " * 20


def planned(*rules, **settings):
    return msgspec.structs.replace(policy(*rules), plan=Planning("steps", **{"decompose": False, **settings}))


def agent_of(made, *turns, tools=(look,), journal=None, **options):
    engine = Engine(made, registry=ListedRegistry(Says, trusted=True), clock=ManualClock(), journal=journal)
    return Agent(engine, Checking(*turns), tools, sleep=lambda seconds: None, **options)


def says(hook, action, at="", **fields):
    return rule("says", {"hook": hook, "action": action, "at": at}, id=f"{hook}_{at}", **fields)


def states(outcome):
    return [step.state for step in outcome.plan.steps]


DONE = call("update_step", {"action": "mark_done", "result": "ok"})


@pytest.mark.parametrize("is_async", [False, True])
def test_a_human_who_does_not_answer_leaves_the_run_waiting_in_either_driver(is_async):
    agent = agent_of(policy(says("before_tool_call", "ask")), call("look"), say("end"), human=lambda asked: None)
    outcome = asyncio.run(agent.arun("t")) if is_async else agent.run("t")
    assert (outcome.status, outcome.executed) == ("waiting", 0)


def test_a_run_that_waits_tells_its_plan_and_loses_no_message_of_a_peer():
    mailbox = Mailbox()

    class Late(Checking):
        def complete(self, request):
            mailbox.post("scout", "The pier is closed.")
            return super().complete(request)

    agent = agent_of(planned(says("before_tool_call", "ask")))
    agent.model = Late(call("look"))
    outcome = agent.run("t", plan=THREE, mailbox=mailbox)
    assert outcome.status == "waiting"
    assert states(outcome) == ["current", "pending", "pending"]
    assert [message.text for message in outcome.undelivered] == ["The pier is closed."]


def test_a_human_is_told_the_reason_of_the_call_that_is_asked_about_now():
    heard = []
    first, second = says("before_tool_call", "ask", "1"), says("before_tool_call", "ask", "3")
    agent = agent_of(
        planned(first, second, says("before_tool_call", "end_step", "2")),
        batch(ScriptedCall("look", {"page": 1}), ScriptedCall("look", {"page": 2})),
        call("look", {"page": 3}),
        human=lambda asked: heard.append(asked.reason.rule) or True,
    )
    agent.run("t", plan=THREE)
    assert heard == [second.id]


@pytest.mark.parametrize("hook", ["before_model_call", "after_iteration", "before_tool_call"])
def test_after_a_wind_down_a_text_is_the_answer_whatever_steps_are_left(hook):
    at = {"before_model_call": "main", "after_iteration": "1", "before_tool_call": "1"}[hook]
    agent = agent_of(planned(says(hook, "wind_down", at)), call("look", {"page": 1}), say("All I know."), say("never"))
    outcome = agent.run("t", plan=THREE)
    assert (outcome.status, outcome.output, outcome.stop.action) == ("completed", "All I know.", "wind_down")
    assert states(outcome) == ["done", "pending", "pending"]


def test_a_wind_down_at_the_end_of_a_round_that_ended_a_step_is_carried_out():
    agent = agent_of(planned(says("after_iteration", "wind_down", "1")), say("One is done."), say("All I know."))
    outcome = agent.run("t", plan=THREE)
    assert (outcome.output, outcome.stop.action, outcome.iterations) == ("All I know.", "wind_down", 2)


@pytest.mark.parametrize("purpose", ["plan", "step_summary", "summary"])
def test_a_wind_down_before_a_request_for_something_else_holds_for_the_work(purpose):
    quiet = call("update_step", {"action": "mark_done"})
    steps = [{"id": "a", "description": "One."}, {"id": "b", "description": "Two."}]
    turns = {
        "plan": (call("set_plan", {"steps": steps}),),
        "step_summary": (quiet, say("One was done.")),
        "summary": (call("look"), call("look", {"page": 2}), fail("context_overflow"), say("Two pages.")),
    }[purpose]
    made = msgspec.structs.replace(
        policy(says("before_model_call", "wind_down", purpose), RECOVERING),
        plan=Planning("off" if purpose == "summary" else "steps", decompose=purpose == "plan", summaries=True),
    )
    agent = agent_of(made, *turns, say("All I know."))
    outcome = agent.run("Tell me. " * 40, plan=THREE if purpose == "step_summary" else None)
    assert purpose in [request.purpose for request in agent.model.requests]
    assert (outcome.output, outcome.stop.action) == ("All I know.", "wind_down")


RECOVERING = rule(
    "provider_recovery",
    {
        "allow": ["compact", "disable_thinking", "reduce_max_tokens"],
        "max": 1,
        "waits": 0,
        "wait": {"first": "1s", "factor": 2, "max": "60s"},
        "fallback_models": [],
        "keep": 0.1,
    },
)


def test_a_step_that_a_rule_ends_at_its_start_fails_and_the_next_one_begins():
    agent = agent_of(planned(says("step_start", "end_step", "2")), say("One."), say("Three."))
    outcome = agent.run("t", plan=THREE)
    assert states(outcome) == ["done", "failed", "done"]
    assert (outcome.status, outcome.output) == ("completed", "Three.")


def test_a_step_that_ended_cannot_be_ended_again():
    agent = agent_of(planned(says("step_end", "end_step")), say("One."), say("Two."), say("Three."))
    assert states(agent.run("t", plan=THREE)) == ["done", "done", "done"]


@pytest.mark.parametrize("case", ["step_start", "plan", "plan_response", "step_summary", "summary_response"])
def test_the_cap_of_interventions_hands_over_between_steps_as_well(case):
    decompose = case.startswith("plan")
    hook, at = {
        "step_start": ("step_start", "2"),
        "plan": ("before_model_call", "plan"),
        "plan_response": ("after_model_response", "no plan"),
        "step_summary": ("before_model_call", "step_summary"),
        "summary_response": ("after_model_response", "summed up"),
    }[case]
    rules = (says("step_start", "hint", "1"), says(hook, "hint", at))
    made = msgspec.structs.replace(
        planned(*rules, decompose=decompose, summaries=True), interventions=Interventions(1, "hand_over")
    )
    quiet = call("update_step", {"action": "mark_done"})
    agent = agent_of(made, *((say("no plan"),) if decompose else (quiet, say("summed up"))), say("never"))
    outcome = agent.run("t", plan=None if decompose else THREE)
    assert (outcome.status, outcome.stop.code) == ("waiting", "interventions")


def test_what_a_provider_cannot_take_is_kept_from_every_later_request():
    made = msgspec.structs.replace(
        planned(msgspec.structs.replace(RECOVERING, options={**RECOVERING.options, "max": 20}), summaries=True),
        parsing=Parsing(arguments="check", repair_calls=1),
    )
    agent = agent_of(
        made,
        fail("reasoning_replay", remedies=("disable_thinking",)),
        fail("output_limit_too_large", remedies=("reduce_max_tokens",), limit=100, requested=300),
        call("look", {"page": "two"}),
        call("look", {"page": 2}),
        fail("context_overflow", remedies=("compact",)),
        say("Page 2."),
        call("update_step", {"action": "mark_done"}),
        say("One was done."),
    )
    agent.run("Tell me. " * 40, plan=THREE)
    later = agent.model.requests[2:]
    assert {request.purpose for request in later} == {"main", "repair", "summary", "step_summary"}
    assert {(request.thinking, request.max_tokens) for request in later} == {(False, 100)}


@pytest.mark.parametrize("purpose", ["plan", "repair", "step_summary"])
def test_a_run_that_is_resumed_at_an_auxiliary_request_sends_what_it_sent(purpose):
    made = msgspec.structs.replace(
        planned(says("before_model_call", "hint", purpose), decompose=purpose == "plan", summaries=True),
        parsing=Parsing(arguments="check", repair_calls=1),
    )
    turns = {
        "plan": (say("no plan"),),
        "repair": (call("look", {"page": "two"}), call("look", {"page": 2})),
        "step_summary": (call("update_step", {"action": "mark_done"}), say("One was done.")),
    }[purpose]
    plan = THREE if purpose == "step_summary" else None
    straight = agent_of(made, *turns, say("x")).run("t", plan=plan, run_id="r")
    agent = agent_of(made, *turns, say("x"))
    loop = agent.start(run_id="r")
    effect = advance(loop, Begin("t", plan))
    while not (isinstance(effect, CallModel) and effect.request.purpose == purpose):
        effect = advance(loop, agent._perform(loop, effect, []))
    loop = agent.resume(agent.save(loop))
    assert effect_now(loop) == effect
    assert agent.drive(loop).messages == straight.messages


def test_an_inferred_overflow_ends_no_run_where_all_recoveries_are_used():
    full = Usage(255, 1)
    turns = (Turn((ScriptedCall("look", {"page": page}),), usage=full, finish_reason="length") for page in range(6))
    made = msgspec.structs.replace(policy(RECOVERING), models=(("*", ModelFacts(window=256)),))
    agent = agent_of(made, *turns, say("High at noon."))
    outcome = agent.run("Tell me. " * 4)
    assert "summary" in [request.purpose for request in agent.model.requests]
    assert (outcome.status, outcome.output, outcome.stop) == ("completed", "High at noon.", None)


def test_a_sub_agent_that_shares_the_conversation_is_replayed_with_its_parent(tmp_path):
    budget = rule("token_budget", {"run": 100, "check": "after", "scope": "conversation", "count": "total"})
    usage = Usage(40, 0, 40)
    path = tmp_path / "journal.jsonl"
    with path.open("w", encoding="utf-8") as file:
        journal = JournalWriter(file)
        page = ScriptedCall("look", {"page": 1})
        clerk = agent_of(policy(budget), Turn((page,), usage=usage), Turn(text="a", usage=usage), journal=journal)
        tools = [clerk.as_tool("clerk", "Looks things up.")]
        asks = Turn((ScriptedCall("clerk", {"task": "Find it."}),), usage=usage)
        parent = agent_of(policy(budget), asks, say("never"), tools=tools, journal=journal)
        assert parent.run("Ask.").stop.code == "token_budget"
    pairs = list(replay_journal(path, Engine(policy(budget), registry=ListedRegistry(), clock=ManualClock())))
    assert pairs
    assert [made for made, _ in pairs] == [again for _, again in pairs]


@pytest.mark.parametrize("arguments", ['{"page": NaN}', '{"page": 1e999}', "\ud800", '{"page": ' + "1" * 5000 + "}"])
def test_arguments_that_only_a_lenient_reader_takes_for_json_never_go_back_to_the_provider(arguments):
    agent = agent_of(policy(), say("never"))
    agent.model = Answering(ModelResponse("", (ToolCall("a", "look", arguments),)), ModelResponse("end"))
    outcome = agent.run("t")
    assert not check_history(outcome.messages)
    assert "unreadable_arguments" in outcome.messages[1].tool_calls[0].arguments


@pytest.mark.parametrize("arguments", ["", "{broken"])
def test_a_call_whose_arguments_came_as_an_object_is_remembered_with_them(arguments):
    agent = agent_of(policy(), say("never"))
    agent.model = Answering(ModelResponse("", (ToolCall("a", "look", arguments, {"page": 2}),)), ModelResponse("end"))
    outcome = agent.run("t")
    assert outcome.executed == 1
    assert outcome.messages[1].tool_calls[0].arguments == '{"page": 2}'


class Answering:
    """A model that gives these responses."""

    name = "says"

    def __init__(self, *responses):
        self.responses = list(responses)

    def complete(self, request):
        return self.responses.pop(0)


def test_plans_summaries_and_corrections_are_no_rounds_of_a_recorded_run(tmp_path):
    steps = [{"id": "a", "description": "One."}, {"id": "b", "description": "Two."}]
    made = msgspec.structs.replace(
        planned(decompose=True, summaries=True), parsing=Parsing(arguments="check", repair_calls=1)
    )
    path = tmp_path / "journal.jsonl"
    with path.open("w", encoding="utf-8") as file:
        agent = agent_of(
            made,
            call("set_plan", {"steps": steps}),
            call("look", {"page": "two"}),
            call("look", {"page": 2}),
            call("update_step", {"action": "mark_done"}),
            say("One was done."),
            say("High at noon."),
            journal=JournalWriter(file),
        )
        outcome = agent.run("t")
    assert [request.purpose for request in agent.model.requests] == [
        "plan",
        "main",
        "repair",
        "main",
        "step_summary",
        "main",
    ]
    (recording,) = read_recordings([path])
    report = replay(recording, Engine(made, registry=ListedRegistry(), clock=ManualClock()))
    assert (report.iterations, report.calls) == (outcome.iterations, outcome.calls) == (3, 2)


def test_runs_that_share_a_limit_of_calls_do_not_give_back_the_places_of_each_other():
    limit = policy(rule("tool_call_limit", {"calls": 2, "scope": "conversation"}))
    engine = Engine(limit, registry=ListedRegistry(), clock=ManualClock())
    shared = Conversation()
    effects = []
    for _ in range(3):  # three runs that use the same ids of calls
        agent = Agent(engine, Checking(TWICE), [look])
        loop = agent.start(conversation=shared)
        effects.append(advance(loop, agent._perform(loop, advance(loop, Begin("t")), [])))
    assert [type(effect) for effect in effects] == [CallTools, CallModel, CallModel]
    assert shared.cells["tool_call_limit"].value.all.open == 2


TWICE = batch(ScriptedCall("look", {"page": 1}), ScriptedCall("look", {"page": 2}))
