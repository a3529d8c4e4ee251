"""`Guard` around a loop written by hand, and our own agent, in the scenarios that every host is held to."""

from __future__ import annotations

import json

import pytest

from policyengine import Agent, Guard, ToolCall
from policyengine.hosts.table import HOSTS
from policyengine.providers.scripted import ScriptedModel
from policyengine.script import Script
from policyengine.testing import make_engine
from policyengine.toolset import as_tools
from tests.hosts.scenarios import SCENARIOS, Scenario, Seen, check, scenarios_for

ALL = pytest.mark.parametrize("scenario", scenarios_for(HOSTS["own_loop"]), ids=lambda scenario: scenario.name)


def recording(scenario: Scenario):
    """Return the tools of a scenario, and the list of what they run."""
    executed = []

    def wrapped(name, function):
        def tool(**args):
            executed.append((name, args))
            return function(**args)

        return tool

    return {name: wrapped(name, function) for name, function in scenario.tools().items()}, executed


def reply(scenario, number):
    """Return a turn as a chat message."""
    turn = scenario.turn(number)
    calls = [
        {"id": f"c{number}-{index}", "function": {"name": item.tool, "arguments": json.dumps(item.args)}}
        for index, item in enumerate(turn.calls)
    ]
    return {"role": "assistant", "content": turn.text, **({"tool_calls": calls} if calls else {})}


def seen_by(messages, executed, refused, outcome, requests):
    wanted = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    given = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    return Seen(
        executed=tuple(executed),
        refused=tuple(refused),
        told=tuple(message["content"] for message in messages[1:] if message["role"] in ("user", "tool")),
        requests=requests,
        status=outcome.status,
        code=outcome.stop.code if outcome.stop and outcome.status != "completed" else "",
        answered=given == wanted,
    )


def guard_of(scenario):
    def approve(call, question):
        return scenario.approve is True

    human = approve if scenario.approve is not None else None
    return Guard(scenario.engine(), task="task", tools=scenario.names(), approve=human)


def drive_guard(scenario: Scenario) -> Seen:
    tools, executed = recording(scenario)
    messages, refused, requests = [{"role": "user", "content": "task"}], [], 0
    with guard_of(scenario) as guard:
        while guard.ready(messages):
            messages.append(reply(scenario, requests))
            requests += 1
            turn = guard.response(messages[-1]).run(tools)
            refused += [ruling.call.name for ruling in turn.refused]
            messages += turn.messages()
    return seen_by(messages, executed, refused, guard.outcome, requests)


async def drive_guard_async(scenario: Scenario) -> Seen:
    tools, executed = recording(scenario)

    def asynchronous(function):
        async def tool(**args):
            return function(**args)

        return tool

    messages, refused, requests = [{"role": "user", "content": "task"}], [], 0
    async with guard_of(scenario) as guard:
        while guard.ready(messages):
            messages.append(reply(scenario, requests))
            requests += 1
            turn = await guard.response(messages[-1]).arun({n: asynchronous(tool) for n, tool in tools.items()})
            refused += [ruling.call.name for ruling in turn.refused]
            messages += turn.messages()
    return seen_by(messages, executed, refused, guard.outcome, requests)


def drive_agent(scenario: Scenario) -> Seen:
    tools, executed = recording(scenario)
    human = None if scenario.approve is None else lambda effect: scenario.approve
    model = ScriptedModel(Script("task", scenario.turns))
    engine = scenario.engine()
    results = []
    engine.sinks.append(lambda report: results.append(report.payload) if report.hook == "after_tool_call" else None)
    outcome = Agent(engine, model, as_tools(tools), human=human).run("task")
    sent = [call.id for message in outcome.messages for call in message.tool_calls]
    given = [message.tool_call_id for message in outcome.messages if message.role == "tool"]
    unknown = {"denied", "not_run"}
    refused = [
        call.name
        for call, result in results
        if result.status in unknown or (result.error and result.error.code == "unknown_tool")
    ]
    return Seen(
        executed=tuple(executed),
        refused=tuple(refused),
        told=tuple(message.text for message in outcome.messages[1:] if message.role in ("user", "tool")),
        requests=sum(message.role == "assistant" for message in outcome.messages),
        status=outcome.status,
        code=outcome.stop.code if outcome.stop and outcome.status != "completed" else "",
        answered=given == sent,
    )


@ALL
def test_a_guard_does_what_every_host_does(scenario):
    check(scenario, drive_guard(scenario))


@ALL
def test_an_asynchronous_guard_does_the_same(scenario):
    import asyncio

    check(scenario, asyncio.run(drive_guard_async(scenario)))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_our_own_agent_does_what_every_host_does(scenario):
    check(scenario, drive_agent(scenario))


@ALL
def test_a_guard_that_is_saved_and_resumed_between_any_two_steps_does_the_same(scenario):
    tools, executed = recording(scenario)
    messages, refused, requests = [{"role": "user", "content": "task"}], [], 0
    guard = guard_of(scenario)
    guard.begin()

    def again(guard):
        return Guard.resume(guard.engine, guard.save(), tools=scenario.names(), approve=guard.approve)

    guard = again(guard)
    while guard.ready(messages):
        guard = again(guard)
        messages.append(reply(scenario, requests))
        requests += 1
        turn = guard.response(messages[-1])
        guard = again(guard)
        turn._run = guard.run
        turn.run(tools)
        guard = again(guard)
        refused += [ruling.call.name for ruling in turn.refused]
        messages += turn.messages()
    guard.end()
    check(scenario, seen_by(messages, executed, refused, guard.outcome, requests))


def test_a_call_by_itself_is_a_batch_and_a_round_of_its_own():
    engine = make_engine({"stall_detector": {"with": {"repeat": {"deny": 3, "stop": 4}}}})
    with Guard(engine, task="t") as guard:
        said = []
        for _ in range(4):
            ruling = guard.allow("look", {"page": 1})
            said.append(ruling.action)
            if ruling.runs:
                guard.answer(ruling.call, "same")
    assert said == ["run", "run", "refuse", "not_run"]
    assert (guard.outcome.status, guard.outcome.stop.code, guard.outcome.iterations) == ("stopped", "repeat", 4)
    assert guard.outcome.executed == 2
    assert isinstance(ruling.call, ToolCall)
