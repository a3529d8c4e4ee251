"""A sub-agent is a tool: what ends it does not end its parent."""

import asyncio

import msgspec
import pytest

from policyengine import Agent, Engine, Extension, ModelResponse, ToolCall, as_tools, call, hookimpl, say
from policyengine.providers.scripted import ScriptedModel
from policyengine.script import Script
from policyengine.subagent import MAX_DEPTH
from policyengine.testing import ListedRegistry, ManualClock, policy, rule


class Count(msgspec.Struct):
    """How many responses there were."""

    responses: int = 0


class Cap(Extension):
    """Stops at a number of responses; counts in the conversation."""

    name = "cap"
    options = {"stop": {"type": "integer", "min": 1, "max": 9, "default": 2}}
    state = Count
    scope = "conversation"
    messages = {"cap.stop": {}}
    templates = {"en": {"cap.stop": "Enough."}}

    @hookimpl
    def after_model_response(self, run, response):
        """Count."""
        run.state.responses += 1
        if run.state.responses > self.options.stop:
            return run.stop("cap", observed=run.state.responses, limit=self.options.stop)
        return None


def agent_of(made, *turns, tools=(), is_async=False):
    model = ScriptedModel(Script("t", turns))
    if is_async:
        model = Async(model)
    return Agent(Engine(made, registry=ListedRegistry(Cap, trusted=True), clock=ManualClock()), model, tools)


class Async:
    """A scripted model with an asynchronous `complete`."""

    def __init__(self, inner):
        self.inner = inner
        self.name = inner.name

    async def complete(self, request):
        await asyncio.sleep(0)
        return self.inner.complete(request)


def run(agent, task, is_async):
    return asyncio.run(agent.arun(task)) if is_async else agent.run(task)


def results(outcome):
    return [message.text for message in outcome.messages if message.role == "tool"]


@pytest.mark.parametrize("is_async", [False, True])
def test_the_answer_of_a_sub_agent_is_the_result_of_the_call(is_async):
    child = agent_of(policy(), say("High at noon."), is_async=is_async)
    tool = child.as_tool("tide_clerk", "Knows the tide.")
    parent = agent_of(policy(), call("tide_clerk", {"task": "When?"}), say("At noon."), tools=[tool], is_async=is_async)
    outcome = run(parent, "Ask.", is_async)
    assert (outcome.status, results(outcome)) == ("completed", ["High at noon."])


@pytest.mark.parametrize("is_async", [False, True])
def test_t9_a_stopped_sub_agent_is_an_error_for_its_parent_which_goes_on(is_async):
    made = policy(rule("cap", {"stop": 1}))
    child = agent_of(made, call("x"), call("x"), say("never"), tools=[x], is_async=is_async)
    tool = child.as_tool("tide_clerk", "Knows the tide.", shared=False)
    parent = agent_of(
        policy(), call("tide_clerk", {"task": "When?"}), say("I do not know."), tools=[tool], is_async=is_async
    )
    outcome = run(parent, "Ask.", is_async)
    assert outcome.status == "completed"
    (text,) = results(outcome)
    assert "cap" in text
    assert "did not finish" in text


def x() -> str:
    """Do x."""
    return "x"


def test_state_of_the_conversation_is_shared_so_that_a_budget_is_one_for_all():
    made = policy(rule("cap", {"stop": 2}))
    child = agent_of(made, call("x"), say("a"), say("b"), tools=[x])
    tool = child.as_tool("clerk", "Knows.")
    parent = agent_of(made, call("clerk", {"task": "one"}), say("end"), tools=[tool])
    outcome = parent.run("Ask.")
    # One response of the parent and one of the child are permitted; the second of the child is one too many, and so
    # is the next of the parent.
    assert outcome.status == "stopped"
    assert (outcome.stop.code, outcome.stop.observed) == ("cap", 4)


def test_a_sub_agent_of_its_own_shares_nothing():
    made = policy(rule("cap", {"stop": 2}))
    child = agent_of(made, call("x"), say("a"), tools=[x])
    tool = child.as_tool("clerk", "Knows.", shared=False)
    parent = agent_of(made, call("clerk", {"task": "one"}), say("end"), tools=[tool])
    assert parent.run("Ask.").status == "completed"


def test_an_agent_that_is_its_own_tool_does_not_go_on_for_ever():
    asked = []

    class Endless:
        name = "endless"

        def complete(self, request):
            asked.append(request)
            results = sum(message.role == "tool" for message in request.messages)
            return ModelResponse(tool_calls=(ToolCall(f"c{results}", "me", '{"task": "again"}', {"task": "again"}),))

    agent = Agent(Engine(policy(rule("cap", {"stop": 1})), registry=ListedRegistry(Cap, trusted=True)), Endless())
    agent.tools = as_tools([agent.as_tool("me", "Myself.", shared=False)])
    outcome = agent.run("Go.")
    assert outcome.status == "stopped"
    assert len(asked) == 2 * MAX_DEPTH


def test_what_a_wind_down_tells_a_sub_agent_is_not_told_to_its_parent():
    from policyengine.outcome import Outcome
    from policyengine.runstate import StopReason
    from policyengine.subagent import envelope

    stop = StopReason("call_limit", "tool_call_limit", action="wind_down", message="Give your final answer now.")
    told = envelope("clerk", Outcome("stopped", "half", stop))
    assert "final answer" not in str(told)
    assert (told["error"]["code"], told["partial"], told["data"]) == ("call_limit", True, {"output": "half"})
