"""The guarded agent where results are no text, and where tools run that no guardrail of the SDK covers."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from policyengine import call, say
from policyengine.run import Run
from tests.hosts.own_rules import RULES, engine_of
from tests.hosts.scenarios import look

if not os.environ.get("POLICYENGINE_NEEDS_OPENAI_AGENTS"):
    pytest.importorskip("agents", reason="the extra `openai-agents` is not installed", exc_type=ImportError)

from agents import (
    Agent,
    CustomTool,
    FunctionTool,
    Runner,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    ToolsToFinalOutputResult,
)
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

from policyengine.hosts.openai_agents import PolicyRun
from tests.hosts.test_openai_agents import QUIET, assert_all_valid, setting_of

STALL = "extensions:\n  stall_detector: {with: {repeat: {stop: 3}, text: {stop: 3}}}\n"
IMAGE = ToolOutputImage(image_url="data:image/png;base64,AAAA")


def tool_of(values):
    left = iter(values)

    async def invoke(context, arguments):
        return next(left)

    return FunctionTool("shot", "shot", {"type": "object", "properties": {}}, invoke, strict_json_schema=False)


def agent_of(*values):
    calls = [
        ModelStep(output=[function_call("shot", {}, call_id=f"c{number}")], response_id=f"r{number}")
        for number, _ in enumerate(values)
    ]
    model = ScriptedModel([*calls, ModelStep(output=[assistant_message("done", item_id="m")], response_id="r")])
    return Agent(name="a", model=model, tools=[tool_of(values)])


def outputs_of(result):
    return [one["output"] for one in result.to_input_list() if one.get("type") == "function_call_output"]


@pytest.mark.parametrize(
    "value",
    [
        IMAGE,
        [IMAGE],
        [ToolOutputText(text="see"), IMAGE],
        ToolOutputFileContent(file_data="AAAA", filename="x.pdf"),
        {"type": "image", "image_url": "data:x"},
        {"type": "thing", "a": 1},
        [{"type": "row", "v": 1}, {"type": "row", "v": 2}],
        {"a": 1},
        None,
        "",
        [1, 2],
        5,
    ],
    ids=str,
)
def test_a_result_stays_as_it_is_where_no_rule_gives_a_text_for_it(value):
    with_policy = asyncio.run(PolicyRun(agent_of(value), "default").run("task", run_config=QUIET))
    assert outputs_of(with_policy) == outputs_of(asyncio.run(Runner.run(agent_of(value), "task", run_config=QUIET)))


@pytest.mark.parametrize(("contents", "status"), [("abcde", "completed"), ("aaaaa", "stopped")])
def test_images_are_equal_results_only_where_they_are_equal(contents, status):
    shots = [ToolOutputImage(image_url=f"data:image/png;base64,{one}") for one in contents]
    run = PolicyRun(agent_of(*shots), engine_of(STALL))
    asyncio.run(run.run("task", run_config=QUIET))
    assert run.outcome.status == status


def custom_of(ran):
    async def invoke(context, given):
        ran.append(given)
        return f"did {given}"

    return CustomTool(name="custom", description="custom", on_invoke_tool=invoke)


def custom_steps(*inputs, text=""):
    steps = []
    for number, given in enumerate(inputs):
        made = ResponseCustomToolCall(
            call_id=f"c{number}", input=given, name="custom", type="custom_tool_call", id=f"x{number}"
        )
        said = [assistant_message(text, item_id=f"m{number}")] if text else []
        steps.append(ModelStep(output=[*said, made], response_id=f"r{number}"))
    return [*steps, ModelStep(output=[assistant_message("done", item_id="m")], response_id="r")]


def run_custom(steps, policy=STALL):
    ran: list[Any] = []
    agent = Agent(name="a", model=ScriptedModel(steps), tools=[custom_of(ran)])
    run = PolicyRun(agent, engine_of(policy), unguarded=["custom"])
    result = asyncio.run(run.run("task", run_config=QUIET, max_turns=30))
    return ran, run, result


@pytest.mark.parametrize("text", ["", "I do it"])
def test_tools_that_are_named_as_unguarded_work(text):
    ran, run, result = run_custom(custom_steps("a", "b", "c", "d", text=text))
    assert (ran, result.final_output) == (["a", "b", "c", "d"], "done")
    assert (run.outcome.status, run.outcome.iterations) == ("completed", 5)


def test_the_same_call_of_an_unguarded_tool_for_ever_is_the_same_message_for_ever():
    ran, run, _ = run_custom(custom_steps(*["a"] * 9, text="I do it"))
    assert (run.outcome.status, run.outcome.stop.code) == ("stopped", "text_repeat")
    assert ran == ["a", "a"]


def test_a_tool_that_comes_during_the_run_ends_it_before_the_model_is_asked():
    ran: list[Any] = []
    run = PolicyRun(Agent(name="a", model=ScriptedModel(custom_steps("a"))), engine_of(RULES))
    run.agent.tools.append(custom_of(ran))
    asyncio.run(run.run("task", run_config=QUIET))
    assert (ran, run.outcome.status) == ([], "failed")
    assert "custom" in run.outcome.error


def any_of(context, results):
    return ToolsToFinalOutputResult(is_final_output=bool(results), final_output=results[0].output)


@pytest.mark.parametrize("behaviour", ["stop_on_first_tool", {"stop_at_tool_names": ["look"]}, any_of], ids=str)
def test_a_refusal_is_never_the_final_output_where_that_of_a_tool_is(behaviour):
    turns = [call("look", {"page": 7}), call("look", {"page": 8}, "found"), say("done")]
    setting = setting_of(RULES, *turns, agent={"tool_use_behavior": behaviour})
    setting.run()
    assert setting.result.final_output == "found"
    assert (setting.guard.outcome.status, setting.guard.outcome.executed) == ("completed", 1)
    assert_all_valid(setting)


@pytest.mark.parametrize("point", ["after_model_response", "after_parse", "before_tool_call", "after_tool_call"])
def test_an_engine_that_fails_at_every_response_ends_the_run_soon(point, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Run, point, broken)
    setting = setting_of(RULES, *[look(page, "a") for page in range(9)], say("done"))
    setting.run()
    assert len(setting.model.calls) == 3
    assert (setting.guard.outcome.status, setting.guard.outcome.stop.code) == ("failed", "adapter_failed")
    assert_all_valid(setting)
