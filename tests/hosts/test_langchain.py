"""The middleware in LangChain's real loop: every action happens, every call is answered, a crash of ours blocks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from policyengine import Compaction, ConfigError, Engine, Extension, ScriptedCall, batch, call, hookimpl, say
from policyengine.errors import UsageError
from policyengine.history.check import check_history
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.testing import ListedRegistry, ManualClock
from tests.hosts.own_rules import RULES, engine_of
from tests.hosts.replayed import MANY_RULES, Decisions, assert_as_in_a_replay, some_turns
from tests.hosts.scenarios import BUILTINS, HEAD, SCENARIOS, Scenario, Seen, check, look, scenarios_for

if not os.environ.get("POLICYENGINE_NEEDS_LANGCHAIN"):
    pytest.importorskip("langchain", reason="the extra `langchain` is not installed", exc_type=ImportError)

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ModelCallLimitMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool, ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from policyengine.hosts.closed import FAILED_TEXT
from policyengine.hosts.langchain import HOST, PolicyMiddleware

ROOT = Path(__file__).parents[2]
ALL = pytest.mark.parametrize("scenario", scenarios_for(HOST), ids=lambda scenario: scenario.name)
EACH_WAY = pytest.mark.parametrize("way", ["sync", "async"])


class FakeModel(BaseChatModel):
    """Says the turns of a scenario, in order, whatever it is asked; remembers what it was sent."""

    scenario: Any
    requests: list[Any] = []

    @property
    def _llm_type(self):
        return "fake"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        number = len(self.requests)
        self.requests.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=reply(self.scenario.turn(number), number))])


def reply(turn, number):
    calls, invalid = [], []
    for index, item in enumerate(turn.calls):
        id = f"c{number}-{index}"
        if item.arguments is None:
            calls.append({"name": item.tool, "args": item.args, "id": id, "type": "tool_call"})
        else:
            invalid.append({"name": item.tool, "args": item.arguments, "id": id, "error": None})
    return AIMessage(turn.text, tool_calls=calls, invalid_tool_calls=invalid)


class Setting:
    """An agent for a scenario, with everything that is looked at afterwards."""

    def __init__(self, scenario, middleware=None, others=(), saver=None, tools=None, after=None, **options):
        self.scenario = scenario
        self.executed: list[Any] = []
        self.model = FakeModel(scenario=scenario, requests=[])
        self.guard = middleware or PolicyMiddleware(scenario.engine(), **options)
        made = tools if tools is not None else [self.tool(name, f) for name, f in scenario.tools().items()]
        self.saver = saver or InMemorySaver()
        self.agent = create_agent(self.model, made, middleware=[self.guard, *others], checkpointer=self.saver)
        self.result: Any = None

    def tool(self, name, function):
        def run(**args):
            self.executed.append((name, args))
            try:
                return function(**args)
            except RuntimeError as error:
                raise ToolException(str(error)) from error

        async def arun(**args):
            return run(**args)

        schema = {"type": "object", "properties": {key: {} for key in ("page", "amount", "n")}}
        return StructuredTool(
            name=name, description=name, args_schema=schema, func=run, coroutine=arun, handle_tool_error=True
        )

    def send(self, given, way="sync", thread="t"):
        config = {"configurable": {"thread_id": thread}}
        if way == "sync":
            self.result = self.agent.invoke(given, config)
        else:
            self.result = asyncio.run(self.agent.ainvoke(given, config))
        return self.result

    def run(self, way="sync", thread="t"):
        result = self.send({"messages": [HumanMessage("task")]}, way, thread)
        while "__interrupt__" in result:
            asked = result["__interrupt__"][0].value["action_requests"]
            said = {"type": "approve" if self.scenario.approve else "reject"}
            result = self.send(Command(resume={"decisions": [said] * len(asked)}), way, thread)
        return result

    @property
    def messages(self):
        return self.result["messages"]

    @property
    def outcome(self):
        return self.result["policy_outcome"]


def as_chat(messages):
    """Return LangChain messages in the chat form that `check_history` reads."""
    made: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            made.append({"role": "tool", "content": message.content, "tool_call_id": message.tool_call_id})
        elif isinstance(message, AIMessage):
            calls = [
                {
                    "id": one["id"],
                    "type": "function",
                    "function": {"name": one["name"], "arguments": json.dumps(one["args"])},
                }
                for one in message.tool_calls
            ]
            made.append(
                {"role": "assistant", "content": str(message.text) or None, **({"tool_calls": calls} if calls else {})}
            )
        else:
            made.append({"role": "user", "content": message.text})
    return made


def assert_valid(messages):
    assert check_history(as_chat(messages)) == ()
    wanted = [one["id"] for message in messages if isinstance(message, AIMessage) for one in message.tool_calls]
    given = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
    assert sorted(given) == sorted(wanted)


def drive(scenario: Scenario, way: str = "sync") -> Seen:
    setting = Setting(scenario)
    setting.run(way)
    messages = setting.messages
    assert_valid(messages)
    ran = [name for name, _ in setting.executed]
    answers = [message for message in messages if isinstance(message, ToolMessage)]
    refused = [one.name for one in answers if one.status == "error" and not _ran(one, scenario, setting, ran)]
    outcome = setting.outcome
    stop = outcome.get("stop")
    return Seen(
        executed=tuple(setting.executed),
        refused=tuple(refused),
        told=tuple(str(one.text) for one in messages[1:] if not isinstance(one, AIMessage)),
        requests=len(setting.model.requests),
        status=outcome["status"],
        code=stop["code"] if stop and outcome["status"] != "completed" else "",
    )


def _ran(message, scenario, setting, ran):
    return any(item.result == message.text and item.tool in ran for turn in scenario.turns for item in turn.calls)


@EACH_WAY
@ALL
def test_a_scenario_means_the_same_as_everywhere(scenario, way):
    check(scenario, drive(scenario, way))


# ---- rules of our own


def setting_of(policy, *turns, approve=None, **options):
    scenario = Scenario("own", policy, turns, executed=(), approve=approve)
    return Setting(scenario, PolicyMiddleware(engine_of(policy)), **options)


@EACH_WAY
def test_a_result_is_given_as_a_rule_rewrote_it(way):
    setting = setting_of(RULES, call("look", {"page": 1}, "secret"), say("done"))
    setting.run(way)
    assert [one.content for one in setting.messages if isinstance(one, ToolMessage)] == ["hidden"]
    assert_valid(setting.messages)


@EACH_WAY
def test_a_result_that_ends_the_run_comes_before_the_last_word_and_no_model_is_asked(way):
    setting = setting_of(RULES, call("look", {"page": 1}, "stop"), say("never"))
    setting.run(way)
    assert len(setting.model.requests) == 1
    assert setting.outcome["stop"]["code"] == "rules"
    assert setting.messages[-1].content == "rules said so"
    assert setting.messages[-1].response_metadata["policyengine"] == {"code": "rules"}
    assert_valid(setting.messages)


@EACH_WAY
def test_a_response_is_asked_for_again_and_leaves_no_trace(way):
    setting = setting_of("parsing: {max_retry: 1}\n" + RULES, say("once more"), say("done"))
    setting.run(way)
    assert [one.text for one in setting.model.requests[1]][-2:] == ["once more", "rules said so"]
    assert [one.text for one in setting.messages] == ["task", "done"]
    assert setting.outcome["iterations"] == 1


@EACH_WAY
def test_an_empty_response_is_taken_out_and_the_model_is_told_and_asked_again(way):
    setting = setting_of("", say(""), say("done"))
    setting.run(way)
    assert [type(one).__name__ for one in setting.messages] == ["HumanMessage", "HumanMessage", "AIMessage"]
    assert setting.outcome["status"] == "completed"
    assert_valid(setting.messages)


@EACH_WAY
def test_arguments_that_are_not_json_are_answered_and_the_run_goes_on(way):
    broken = ScriptedCall("look", result="never", arguments='{"page": oops')
    setting = setting_of("", batch(broken), call("look", {"page": 2}, "b"), say("done"))
    setting.run(way)
    assert setting.executed == [("look", {"page": 2})]
    assert setting.outcome["status"] == "completed"
    assert_valid(setting.messages)


def test_arguments_that_can_be_mended_run_as_they_were_mended():
    mended = ScriptedCall("look", result="a", arguments='{"page": 1,}')
    setting = setting_of("parsing: {mode: repair}\n", batch(mended), say("done"))
    setting.run()
    assert setting.executed == [("look", {"page": 1})]
    assert_valid(setting.messages)


@EACH_WAY
def test_parallel_calls_report_to_one_run_from_their_threads(way):
    names = [ScriptedCall("look", {"page": page}, str(page)) for page in range(8)]
    setting = setting_of("extensions:\n  tool_call_limit: {with: {tools: {look: 5}}}\n", batch(*names), say("done"))
    setting.run(way)
    assert sorted(args["page"] for _, args in setting.executed) == [0, 1, 2, 3, 4]
    assert (setting.outcome["executed"], setting.outcome["calls"]) == (5, 8)
    assert_valid(setting.messages)


def test_calls_with_one_id_run_as_they_were_judged_and_each_has_its_answer(monkeypatch):
    def twice(turn, number):
        calls = [{"name": one.tool, "args": one.args, "id": "same", "type": "tool_call"} for one in turn.calls]
        return AIMessage(turn.text, tool_calls=calls)

    monkeypatch.setattr(sys.modules[__name__], "reply", twice)
    calls = batch(ScriptedCall("look", {"page": 7}, "never"), ScriptedCall("look", {"page": 1}, "a"))
    setting = setting_of(RULES, calls, say("done"))
    setting.run()
    assert setting.executed == [("look", {"page": 1})]
    assert_valid(setting.messages)


def test_tools_that_wait_for_each_other_run_at_the_same_time():
    meet = threading.Barrier(2, timeout=30)

    def tool(name):
        return StructuredTool.from_function(lambda: str(meet.wait() >= 0), name=name, description=name)

    setting = setting_of(RULES, batch(ScriptedCall("a"), ScriptedCall("b")), say("done"), tools=[tool("a"), tool("b")])
    setting.run()
    assert setting.outcome["executed"] == 2


@EACH_WAY
@pytest.mark.parametrize("approve", [True, False])
def test_a_question_survives_the_process_that_asked_it(way, approve):
    turns = (
        call("look", {"page": 1}, "a"),
        call("pay", {"amount": 5}, "paid"),
        call("look", {"page": 1}, "a"),
        say("x"),
    )
    policy = RULES + "  tool_call_limit: {with: {tools: {look: 1}}}\n"
    first = setting_of(policy, *turns)
    result = first.send({"messages": [HumanMessage("task")]}, way)
    question = result["__interrupt__"][0].value
    assert question["action_requests"] == [
        {"name": "pay", "args": {"amount": 5}, "description": "rules said so (rules, policy.yaml:5)"}
    ]
    assert first.executed == [("look", {"page": 1})]
    other = setting_of(policy, *turns, saver=first.saver)
    other.model.requests.extend([None, None])
    other.send(Command(resume={"decisions": [{"type": "approve" if approve else "reject"}]}), way)
    assert other.executed == [("pay", {"amount": 5})] * approve
    assert other.outcome["calls"] == 3
    assert [one.status for one in other.messages if isinstance(one, ToolMessage)] == [
        "success",
        "success" if approve else "error",
        "error",  # the budget of one look was used up in the other process
    ]
    assert_valid(other.messages)


@EACH_WAY
@pytest.mark.parametrize(
    "said",
    [
        {"said": None},
        "yes",
        {"decisions": []},
        {"decisions": [{"type": "approve"}] * 2},
        {"decisions": [{"type": "edit"}]},
        {"decisions": [{"type": "aprove"}]},
        [1],
    ],
)
def test_what_is_no_answer_to_the_question_raises_and_the_question_waits_on(said, way):
    setting = setting_of(RULES, call("pay", {"amount": 5}), say("done"))
    setting.send({"messages": [HumanMessage("task")]}, way)
    with pytest.raises(UsageError, match="decision"):
        setting.send(Command(resume=said), way)
    assert setting.executed == []
    setting.send(Command(resume={"decisions": [{"type": "approve"}]}), way)
    assert setting.executed == [("pay", {"amount": 5})]
    assert_valid(setting.messages)


def test_the_model_reads_what_the_reviewer_said():
    setting = setting_of(RULES, call("pay", {"amount": 5}), say("done"))
    setting.send({"messages": [HumanMessage("task")]})
    setting.send(Command(resume={"decisions": [{"type": "reject", "message": "She is a customer."}]}))
    (refused,) = [one for one in setting.messages if isinstance(one, ToolMessage)]
    assert refused.content.endswith("\nShe is a customer.")
    assert setting.executed == []


def test_the_outcome_says_how_a_run_was_ended_also_where_it_is_the_usual_way():
    setting = setting_of("extensions:\n  step_limit: {with: {max_steps: 1}}\n", look(1, "a"), look(2, "b"))
    setting.send({"messages": [HumanMessage("task")]})
    assert setting.outcome["stop"]["action"] == "stop"


def test_the_last_message_of_a_run_that_wound_down_is_none_that_was_meant_for_the_model():
    setting = setting_of("extensions:\n  tool_call_limit: {with: {calls: 1}}\n", *[look(n, "a") for n in range(9)])
    setting.send({"messages": [HumanMessage("task")]})
    assert setting.outcome["stop"]["action"] == "wind_down"
    assert setting.messages[-1].content.startswith("The run was ended: call_limit (tool_call_limit, ")


def test_without_a_human_a_question_is_a_refusal():
    scenario = Scenario("own", RULES, (call("pay", {"amount": 5}), say("done")), executed=())
    setting = Setting(scenario, PolicyMiddleware(engine_of(RULES), attended=False))
    setting.run()
    assert (setting.executed, setting.outcome["status"]) == ([], "completed")


def test_a_new_task_answers_the_calls_of_a_question_that_was_left_open():
    setting = setting_of(RULES, call("pay", {"amount": 5}), say("done"))
    setting.send({"messages": [HumanMessage("task")]})
    setting.send({"messages": [HumanMessage("something else")]})
    assert setting.executed == []
    assert setting.outcome["status"] == "completed"
    assert_valid(setting.messages)


@pytest.mark.parametrize(("asked", "told"), [(True, "before it started"), (False, "was interrupted")])
def test_a_call_that_was_left_open_may_have_run_unless_a_human_was_being_asked(asked, told):
    def look(page: int) -> str:
        """Look."""
        return interrupt("sure?")

    policy = "extensions:\n  tool_access: {with: {ask: [look]}}\n" if asked else RULES
    setting = setting_of(policy, call("look", {"page": 1}), say("done"), tools=[look])
    setting.send({"messages": [HumanMessage("task")]})
    setting.send({"messages": [HumanMessage("something else")]})
    (answer,) = [one.content for one in setting.messages if isinstance(one, ToolMessage)]
    assert told in answer
    assert setting.outcome["status"] == "completed"
    assert_valid(setting.messages)


def test_runs_of_one_thread_share_what_is_of_the_conversation_and_threads_share_nothing():
    policy = "extensions:\n  tool_call_limit: {with: {tools: {look: 2}, scope: conversation}}\n"
    turns = [look(1, "a"), say("x")] * 4
    setting = setting_of(policy, *turns)
    for thread in ("t", "t", "t", "other"):
        setting.run(thread=thread)
    assert len(setting.executed) == 3


def test_an_interrupt_of_a_tool_passes_and_the_call_is_judged_once():
    def confirm(page: int) -> str:
        """Confirm."""
        return interrupt("sure?")

    policy = "extensions:\n  tool_call_limit: {with: {tools: {confirm: 1}}}\n"
    setting = setting_of(policy, call("confirm", {"page": 1}), say("done"), tools=[confirm])
    assert setting.send({"messages": [HumanMessage("task")]})["__interrupt__"][0].value == "sure?"
    setting.send(Command(resume="quite"))
    assert [one.content for one in setting.messages if isinstance(one, ToolMessage)] == ["quite"]
    assert (setting.outcome["calls"], setting.outcome["executed"]) == (1, 1)


@EACH_WAY
def test_results_of_a_batch_that_another_process_began_count(way):
    def confirm(page: int) -> str:
        """Confirm."""
        return interrupt("sure?")

    policy = "extensions:\n  tool_call_limit: {with: {tools: {look: 1}}}\n"
    turns = (
        batch(ScriptedCall("look", {"page": 1}, "a"), ScriptedCall("confirm", {"page": 1})),
        look(2, "b"),
        say("x"),
    )
    scenario = Scenario("own", policy, turns, executed=())
    saver, made = InMemorySaver(), []
    for given in ({"messages": [HumanMessage("task")]}, Command(resume="quite")):
        setting = Setting(scenario, PolicyMiddleware(engine_of(policy)), saver=saver, tools=[confirm])
        tools = [confirm, setting.tool("look", lambda page: "a")]
        setting.agent = create_agent(setting.model, tools, middleware=[setting.guard], checkpointer=saver)
        setting.model.requests.extend([None] * len(made))
        setting.send(given, way)
        made += setting.executed
    assert made == [("look", {"page": 1})]
    assert (setting.outcome["calls"], setting.outcome["executed"]) == (3, 2)
    assert_valid(setting.messages)


@EACH_WAY
def test_an_exception_of_a_tool_is_reported_and_goes_its_way(way):
    def boom(page: int) -> str:
        """Fail."""
        raise LookupError("gone")

    setting = setting_of(RULES, call("boom", {"page": 1}), say("done"), tools=[boom])
    with pytest.raises(LookupError, match="gone"):
        setting.run(way)


def test_the_history_is_shortened_and_stays_valid():
    policy = "extensions:\n  context_compaction:\n    with: {window: 1000, messages: 8, strategy: slide, keep: 0.3}\n"
    setting = setting_of(policy, *[look(page, f"page {page} " * 30) for page in range(9)], say("done"))
    setting.run()
    assert len(setting.messages) < 21
    assert setting.outcome["status"] == "completed"
    assert_valid(setting.messages)


def test_a_sub_agent_shares_the_budget_of_the_conversation():
    policy = "extensions:\n  tool_call_limit: {with: {tools: {look: 2}, scope: conversation}}\n"
    engine = engine_of(policy)
    inner = setting_of(policy, look(1, "a"), look(2, "b"), look(3, "c"), say("found"))
    guard = PolicyMiddleware(engine, agent="inner")
    sub = create_agent(inner.model, [inner.tool("look", lambda **_: "x")], middleware=[guard])

    def delegate(page: int) -> str:
        """Have another agent look."""
        return sub.invoke({"messages": [HumanMessage("look")]})["messages"][-1].text

    scenario = Scenario("own", policy, (call("delegate", {"page": 1}), look(9, "z"), say("done")), executed=())
    outer = Setting(scenario, PolicyMiddleware(engine, agent="outer"), tools=None)
    outer.agent = create_agent(
        outer.model, [delegate, outer.tool("look", lambda **_: "x")], middleware=[outer.guard], checkpointer=outer.saver
    )
    outer.run()
    assert [args["page"] for _, args in inner.executed] == [1, 2]
    assert outer.executed == []
    assert_valid(outer.messages)


def test_agents_do_not_work_below_each_other_for_ever():
    guard = PolicyMiddleware(engine_of(RULES))
    depths = []

    def deeper(page: int) -> str:
        """Ask another one of the same."""
        depths.append(page)
        turns = Scenario("own", "", (call("deeper", {"page": page + 1}), say("done")), executed=())
        agent = create_agent(FakeModel(scenario=turns, requests=[]), [deeper], middleware=[guard])
        return agent.invoke({"messages": [HumanMessage("deeper")]})["messages"][-1].text

    setting = setting_of(RULES, call("deeper", {"page": 21}), say("done"), tools=[deeper])
    setting.run()
    assert depths == [*range(21, 29)]
    assert setting.outcome["status"] == "completed"


# ---- requests that rules change


class Requests(Extension):
    """Changes the second request: another model, one tool less, a summary of the history."""

    name = "requests"

    def answers(self):
        return {"before_model_call": ("rewrite",)}

    @hookimpl
    def before_model_call(self, run, request):
        if run.iteration != 5:
            return None
        tools = [tool for tool in request.tools if tool.name == "look"]
        return run.rewrite("requests", tools=tools, model="other", compaction=Compaction("compact", 0.3))


def test_a_request_is_sent_as_a_rule_changed_it_with_a_summary_by_the_model():
    registry = ListedRegistry(Requests, trusted=True, others=BUILTINS)
    loaded = load_policy_text(HEAD + "extensions:\n  requests: {}\n", registry=registry)
    engine = Engine(loaded, registry=registry, clock=ManualClock(), enforce_time=False)
    turns = [look(page, f"page {page} " * 40) for page in range(4)]
    scenario = Scenario("own", "", (*turns, say("never")), executed=(), offered=("look", "pay"))
    other = FakeModel(scenario=Scenario("o", "", (say("a summary"), say("done")), executed=()), requests=[])
    setting = Setting(scenario, PolicyMiddleware(engine, models={"other": other}))
    setting.run()
    assert len(setting.model.requests) == 4
    assert "a summary" in other.requests[1][0].text
    assert other.requests[1][0].text.startswith("task")
    assert setting.messages[0].text == other.requests[1][0].text
    assert setting.messages[-1].text == "done"
    assert_valid(setting.messages)


def test_a_model_that_nobody_gave_ends_the_run():
    registry = ListedRegistry(Requests, trusted=True, others=BUILTINS)
    loaded = load_policy_text(HEAD + "extensions:\n  requests: {}\n", registry=registry)
    turns = [look(page, "x") for page in range(5)]
    scenario = Scenario("own", "", (*turns, say("never")), executed=())
    setting = Setting(scenario, PolicyMiddleware(Engine(loaded, registry=registry, enforce_time=False)))
    setting.run()
    assert (len(setting.executed), setting.messages[-1].text) == (4, FAILED_TEXT)


# ---- the graph around it


def test_results_come_in_an_envelope_where_the_policy_says_so():
    setting = setting_of("tool_results: envelope\n", call("look", {"page": 1}, "a"), say("done"))
    setting.run()
    assert json.loads(setting.messages[2].content)["status"] == "ok"


def test_structured_output_is_an_answer_and_no_call():
    class Answer(BaseModel):
        text: str

    scenario = Scenario("own", "", (call("Answer", {"text": "done"}),), executed=())
    model = FakeModel(scenario=scenario, requests=[])
    guard = PolicyMiddleware(engine_of(""))
    agent = create_agent(model, [], middleware=[guard], response_format=ToolStrategy(Answer))
    result = agent.invoke({"messages": [HumanMessage("task")]})
    assert result["structured_response"] == Answer(text="done")
    assert result["policy_outcome"]["status"] == "completed"
    assert result["policy_outcome"]["calls"] == 0


def test_an_earlier_checkpoint_goes_on_with_the_counts_of_then():
    policy = "extensions:\n  tool_call_limit: {with: {tools: {look: 2}}}\n"
    setting = setting_of(policy, look(1, "a"), look(2, "b"), look(3, "c"), say("done"))
    setting.run()
    assert len(setting.executed) == 2
    config = {"configurable": {"thread_id": "t"}}
    then = next(one for one in setting.agent.get_state_history(config) if len(one.values["messages"]) == 3)
    del setting.model.requests[1:]
    setting.result = setting.agent.invoke(None, then.config)
    assert [args["page"] for _, args in setting.executed] == [1, 2, 2]
    assert setting.outcome["executed"] == 2
    assert_valid(setting.messages)


def test_a_stream_shows_every_step():
    setting = setting_of("", look(1, "a"), say("done"))
    config = {"configurable": {"thread_id": "t"}}
    steps = list(setting.agent.stream({"messages": [HumanMessage("task")]}, config, stream_mode="updates"))
    assert [name for one in steps for name in one].count("model") == 2
    assert steps[-1]["PolicyMiddleware.after_agent"]["policy_outcome"]["status"] == "completed"


def test_the_state_that_is_kept_is_private():
    setting = setting_of("", say("done"))
    assert "policyengine" not in setting.run()


# ---- other middleware


def test_a_human_of_langchain_may_be_asked_besides():
    human = HumanInTheLoopMiddleware({"look": True})
    setting = setting_of(RULES, look(1, "a"), say("done"), others=[human], approve=True)
    setting.run()
    assert setting.executed == [("look", {"page": 1})]
    assert_valid(setting.messages)


def test_a_limit_of_langchain_that_ends_the_agent_ends_the_run_too():
    limit = ModelCallLimitMiddleware(run_limit=1)
    setting = setting_of(RULES, look(1, "a"), say("never"), others=[limit])
    setting.run()
    assert (len(setting.model.requests), setting.outcome["status"]) == (1, "cancelled")


class Meddler(AgentMiddleware):
    """Changes arguments after the response was judged."""

    def wrap_model_call(self, request, handler):
        return handler(request)

    def after_model(self, state, runtime):
        message = state["messages"][-1]
        if not getattr(message, "tool_calls", None):
            return None
        changed = [{**one, "args": {"page": 7}} for one in message.tool_calls]
        return {"messages": [message.model_copy(update={"tool_calls": changed})]}


def test_a_call_that_others_changed_is_judged_as_it_would_run():
    setting = setting_of(RULES, look(1, "same"), say("done"), others=[Meddler()])
    setting.run()
    assert setting.executed == []
    assert setting.messages[2].content.startswith("rules said so")
    assert_valid(setting.messages)


# ---- failures of our own


def crash(monkeypatch, name):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(f"policyengine.hosts.langchain.{name}", broken)


@EACH_WAY
@pytest.mark.parametrize("name", ["PolicyMiddleware.load", "forms.request_of", "forms.calls_of", "HostRun.after_model"])
def test_a_crash_of_ours_blocks_and_the_agent_ends(way, name, monkeypatch):
    setting = setting_of(RULES, call("look", {"page": 1}, "a"), say("done"))
    crash(monkeypatch, name)
    setting.run(way)
    assert setting.executed == []
    assert setting.messages[-1].content == FAILED_TEXT
    assert_valid(setting.messages)


@EACH_WAY
@pytest.mark.parametrize("name", ["_as_ruled", "_sent"])
def test_a_crash_of_ours_at_a_call_runs_nothing(way, name, monkeypatch):
    setting = setting_of(RULES, call("look", {"page": 1}, "a"), say("done"))
    crash(monkeypatch, name)
    setting.run(way)
    assert setting.executed == []
    assert_valid(setting.messages)


@EACH_WAY
def test_a_crash_of_ours_after_a_call_withholds_its_result(way, monkeypatch):
    setting = setting_of(RULES, call("look", {"page": 1}, "a"), say("done"))
    crash(monkeypatch, "_result")
    setting.run(way)
    assert "withheld" in setting.messages[2].content
    assert_valid(setting.messages)


def test_a_policy_that_wants_more_than_the_host_can_is_refused_when_it_is_loaded():
    class Recover(Extension):
        name = "recover_it"

        def answers(self):
            return {"after_provider_error": ("retry",)}

        @hookimpl
        def after_provider_error(self, run, error):
            return run.recover("x")

    registry = ListedRegistry(Recover, trusted=True, others=builtin_registry())
    loaded = load_policy_text(HEAD + "extensions:\n  recover_it: {}\n", registry=registry)
    with pytest.raises(ConfigError, match="R518"):
        PolicyMiddleware(Engine(loaded, registry=registry))


# ---- the same decisions as a replay


def chat_of(setting):
    """Return what happened as chat messages that say who wrote them."""
    chat = as_chat(setting.messages)
    for made, message in zip(chat, setting.messages, strict=True):
        if isinstance(message, ToolMessage):
            ours = "policyengine" in message.additional_kwargs
            made["status"] = "denied" if ours else "error" if message.status == "error" else "ok"
        made["ours"] = "policyengine" in message.additional_kwargs
    return chat


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.approve is None], ids=lambda one: one.name)
def test_decisions_are_those_of_a_replay(scenario):
    decisions = Decisions()
    setting = Setting(scenario, PolicyMiddleware(scenario.engine(sinks=[decisions])))
    setting.run()
    assert_as_in_a_replay(decisions, scenario.engine(), chat_of(setting))


@pytest.mark.parametrize("seed", range(15))
def test_decisions_of_many_rules_are_those_of_a_replay(seed):
    decisions = Decisions()
    scenario = Scenario("many", MANY_RULES, some_turns(seed), executed=())
    setting = Setting(scenario, PolicyMiddleware(scenario.engine(sinks=[decisions])))
    setting.run()
    assert_valid(setting.messages)
    assert_as_in_a_replay(decisions, scenario.engine(), chat_of(setting))


def test_the_block_of_the_documentation_holds(capsys):
    page = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
    block, _ = re.findall(  # the other one goes on after an interrupt
        r"```python\n(.*?)```", page.partition("\n## LangChain\n")[2].partition("\n## ")[0], re.DOTALL
    )
    exec(
        block,
        {"model": FakeModel(scenario=Scenario("d", "", (say("at nine"),), executed=()), requests=[]), "tools": []},
    )
    assert capsys.readouterr().out == "completed 0 None\n"
