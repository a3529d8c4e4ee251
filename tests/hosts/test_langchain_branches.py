"""The middleware where a thread has branches, calls run again, and others answer: every run has its own counts."""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest

from policyengine import ScriptedCall, batch, call, say
from policyengine.run import Run
from tests.hosts.own_rules import RULES, engine_of
from tests.hosts.scenarios import Scenario, look

if not os.environ.get("POLICYENGINE_NEEDS_LANGCHAIN"):
    pytest.importorskip("langchain", reason="the extra `langchain` is not installed", exc_type=ImportError)

from langchain.agents import create_agent
from langchain.agents.middleware import ToolCallLimitMiddleware, ToolRetryMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

from policyengine.hosts.langchain import PolicyMiddleware
from tests.hosts.test_langchain import FakeModel, Setting, assert_valid, setting_of

TASK = {"messages": [HumanMessage("task")]}
TWO_CALLS = "extensions:\n  tool_call_limit: {with: {calls: 2}}\n"
THREAD = {"configurable": {"thread_id": "t"}}
STALL = "extensions:\n  stall_detector: {with: {repeat: {stop: 3}}}\n"


class PerBranch(FakeModel):
    """Says the turn of the scenario that comes after the responses of the history, so that branches are alike."""

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        self.requests[:] = [None] * sum(isinstance(one, AIMessage) for one in messages)
        return super()._generate(messages)


def agent_of(setting, tools, *others, **options):
    return create_agent(setting.model, tools, middleware=[*others, setting.guard], **options)


def decide(what):
    return Command(resume={"decisions": [{"type": what}]})


@pytest.mark.parametrize("first", ["reject", "approve"])
def test_a_branch_goes_on_with_the_answer_that_a_human_gave_there(first):
    turns = (batch(ScriptedCall("pay", {"amount": 5}), ScriptedCall("look", {"page": 1}, "a")), say("done"))
    setting = setting_of(RULES, *turns)
    model = PerBranch(scenario=setting.scenario, requests=[])
    tools = [setting.tool(name, lambda **_: "done") for name in ("look", "pay")]
    agent = create_agent(
        model, tools, middleware=[setting.guard], checkpointer=InMemorySaver(), interrupt_before=["tools"]
    )
    agent.invoke(TASK, THREAD)
    asked = agent.get_state(THREAD).config
    agent.invoke(decide(first), THREAD)
    decided = agent.get_state(THREAD).config
    agent.invoke(None, agent.update_state(asked, {}, as_node="model"))
    agent.invoke(decide("approve" if first == "reject" else "reject"), THREAD)  # the other branch: paused before tools
    agent.invoke(None, decided)
    paid = [args for name, args in setting.executed if name == "pay"]
    assert paid == ([] if first == "reject" else [{"amount": 5}])


def boom_of(ran):
    @tool
    def boom() -> str:
        """Fail."""
        ran.append(1)
        raise ValueError("boom")

    return boom


def test_a_call_that_ran_and_failed_is_judged_again_before_it_runs_again():
    ran: list[int] = []
    setting = setting_of(TWO_CALLS, call("boom"), say("done"))
    agent = agent_of(setting, [boom_of(ran)], checkpointer=InMemorySaver())
    given: Any = TASK
    for _ in range(2):
        with pytest.raises(ValueError, match="boom"):
            agent.invoke(given, THREAD)
        given = None
    result = agent.invoke(None, THREAD)
    assert (len(ran), result["policy_outcome"]["executed"], result["policy_outcome"]["calls"]) == (2, 2, 3)
    assert_valid(result["messages"])


def test_retries_of_others_around_ours_are_judged_and_counted():
    ran: list[int] = []
    setting = setting_of(TWO_CALLS, call("boom"), say("done"))
    retry = ToolRetryMiddleware(max_retries=8, initial_delay=0, jitter=False, backoff_factor=0)
    result = agent_of(setting, [boom_of(ran)], retry).invoke(TASK)
    assert (len(ran), result["policy_outcome"]["executed"]) == (2, 2)
    assert_valid(result["messages"])


def test_agents_that_are_nodes_of_a_graph_share_the_conversation_of_its_thread():
    policy = "extensions:\n  tool_call_limit: {with: {tools: {look: 2}, scope: conversation}}\n"
    setting = setting_of(policy, *[look(1, "a"), say("x")] * 6)
    tools = [setting.tool("look", lambda page: "a")]
    graph = StateGraph(MessagesState)
    graph.add_node("one", agent_of(setting, tools))
    graph.add_node("two", agent_of(setting, tools))
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    graph.add_edge("two", END)
    graph = graph.compile(checkpointer=InMemorySaver())
    for thread, ran in (("t", 2), ("t", 2), ("other", 4)):
        graph.invoke(TASK, {"configurable": {"thread_id": thread}})
        assert len(setting.executed) == ran


def shots_of(contents):
    left = iter(contents)

    @tool
    def shot() -> list:
        """Take a picture."""
        data = base64.b64encode(next(left)).decode()
        return [{"type": "image", "base64": data, "mime_type": "image/png", "id": f"lc_{data}{id(data)}"}]

    return shot


@pytest.mark.parametrize(("contents", "status"), [(b"abcde", "completed"), (b"aaaaa", "stopped")])
def test_images_are_equal_results_only_where_they_are_equal(contents, status):
    setting = setting_of(STALL, *[call("shot", result="")] * 4, say("done"))
    shots = shots_of([bytes([one]) for one in contents])
    result = agent_of(setting, [shots]).invoke(TASK)
    assert result["policy_outcome"]["status"] == status
    shown = [one.content for one in result["messages"] if isinstance(one, ToolMessage) and one.status == "success"]
    assert all(content[0]["type"] == "image" for content in shown)


def test_an_image_stays_one_where_results_come_in_an_envelope():
    setting = setting_of("tool_results: envelope\n", call("shot", result=""), say("done"))
    result = agent_of(setting, [shots_of([b"a"])]).invoke(TASK)
    assert result["messages"][2].content[0]["type"] == "image"


def test_a_refusal_is_never_the_answer_of_an_agent_whose_tool_answers_directly():
    ran: list[int] = []

    @tool(return_direct=True)
    def look_up(page: int) -> str:
        """Look it up."""
        ran.append(page)
        return "direct"

    setting = setting_of(RULES, call("look_up", {"page": 7}), call("look_up", {"page": 8}))
    result = agent_of(setting, [look_up]).invoke(TASK)
    outcome = result["policy_outcome"]
    assert (ran, outcome["status"], outcome["output"], outcome["executed"]) == ([8], "completed", "direct", 1)
    assert_valid(result["messages"])


def test_what_a_call_held_is_not_kept_in_the_state_once_it_is_answered():
    setting = setting_of(RULES, call("look", {"page": "y" * 50_000}, "a"), call("look", {"page": 2}, "b"), say("x"))
    setting.run()
    assert len(setting.agent.get_state(THREAD).values["policyengine"]["saved"]) < 20_000


def test_calls_that_others_answered_in_the_place_of_their_tool_count_as_not_run():
    limit = ToolCallLimitMiddleware(run_limit=1)
    setting = Setting(
        Scenario("own", RULES, (look(1, "a"), look(2, "b"), say("x")), executed=()),
        PolicyMiddleware(engine_of(RULES)),
        others=[limit],
    )
    setting.run()
    assert len(setting.executed) == setting.outcome["executed"] == 1
    assert_valid(setting.messages)


@pytest.mark.parametrize("point", ["after_model_response", "after_parse", "before_tool_call", "after_tool_call"])
def test_an_engine_that_fails_at_every_response_ends_the_run_soon(point, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Run, point, broken)
    setting = setting_of(RULES, *[look(page, "a") for page in range(9)], say("done"))
    setting.run()
    assert len(setting.model.requests) == 3
    assert (setting.outcome["status"], setting.outcome["stop"]["code"]) == ("failed", "adapter_failed")
    assert_valid(setting.messages)
