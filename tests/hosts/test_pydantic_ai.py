"""`PolicyCapability` in real runs of pydantic-ai, with models that are functions. Needs the extra `pydantic-ai`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("POLICYENGINE_NEEDS_PYDANTIC_AI"):
    import pydantic_ai
else:
    pydantic_ai = pytest.importorskip("pydantic_ai", reason="the extra `pydantic-ai` is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    BinaryContent,
    DeferredToolRequests,
    DeferredToolResults,
    ExternalToolset,
    ModelMessagesTypeAdapter,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    RunContext,
    Tool,
    ToolApproved,
    ToolDefinition,
    ToolFailed,
    ToolOutput,
    ToolReturn,
)
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    BinaryImage,
    FilePart,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from policyengine import Compaction, ConfigError, Engine, ScriptedCall, batch, say
from policyengine.extension import Extension
from policyengine.hooks import hookimpl
from policyengine.hosts import pydantic_ai as pydantic_ai_host
from policyengine.hosts.closed import ADAPTER_FAILED, FAILED_TEXT, WITHHELD_TEXT
from policyengine.hosts.pydantic_ai import PolicyCapability, PolicyStopped
from policyengine.hosts.table import HOSTS
from policyengine.policy.load import load_policy_text
from policyengine.replay import replay_journal
from policyengine.run import Run
from policyengine.telemetry.journal import JournalWriter
from policyengine.testing import ListedRegistry, ManualClock
from tests.hosts.replayed import Decisions, assert_as_in_a_replay
from tests.hosts.scenarios import BUILTINS, HEAD, Approval, AtMostTen, Scenario, Seen, check, scenarios_for
from tests.hosts.scenarios import SCENARIOS as ALL_SCENARIOS

ROOT = Path(__file__).parents[2]
HOST = HOSTS["pydantic_ai"]
SCENARIOS = pytest.mark.parametrize("scenario", scenarios_for(HOST), ids=lambda scenario: scenario.name)


@pytest.fixture(autouse=True)
def loop():
    """`run_sync` leaves the event loop that it makes open."""
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield
    asyncio.set_event_loop(None)
    made.close()


# ---- a model that follows a script


class Scripted:
    """Says the turns of a scenario in order; `seen` are the histories it was given."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.seen: list[list[Any]] = []

    def response(self, messages: list[Any]) -> ModelResponse:
        number = len(self.seen)
        self.seen.append(messages)
        turn = self.scenario.turn(number)
        calls = [
            ToolCallPart(made.tool, made.args if made.arguments is None else made.arguments, f"c{number}-{index}")
            for index, made in enumerate(turn.calls)
        ]
        return ModelResponse([*([TextPart(turn.text)] if turn.text else []), *calls])

    def __call__(self, messages: list[Any], info: AgentInfo) -> ModelResponse:
        return self.response(messages)

    async def stream(self, messages: list[Any], info: AgentInfo):
        response = self.response(messages)
        for index, part in enumerate(response.parts):
            if isinstance(part, TextPart):
                yield part.content
            else:
                yield {index: DeltaToolCall(part.tool_name, json.dumps(part.args), tool_call_id=part.tool_call_id)}

    def model(self) -> FunctionModel:
        return FunctionModel(self, stream_function=self.stream)


def tools_of(scenario: Scenario, executed: list[Any], *, waiting: bool = False) -> list[Tool]:
    """Return the tools of a scenario; they note what they run, and fail as pydantic-ai wants it."""

    def tool(name, function):
        def run(**args):
            executed.append((name, args))
            try:
                return function(**args)
            except RuntimeError as error:
                raise ToolFailed(str(error)) from error

        async def arun(**args):
            await asyncio.sleep(0)
            return run(**args)

        schema = {"type": "object", "properties": {}, "additionalProperties": True}
        return Tool.from_schema(arun if waiting else run, name, name, schema)

    return [tool(name, function) for name, function in scenario.tools().items()]


class Driven:
    """An agent under the policy of a scenario."""

    def __init__(self, scenario: Scenario, *, inline: bool = False, waiting: bool = False) -> None:
        self.scenario = scenario
        self.script = Scripted(scenario)
        self.executed: list[Any] = []
        human = scenario.approve is not None
        self.guard = PolicyCapability(
            scenario.engine(),
            attended=human,
            approve=(lambda call, question: scenario.approve is True) if human and inline else None,
        )
        self.agent = Agent(
            self.script.model(),
            output_type=[str, DeferredToolRequests],
            tools=tools_of(scenario, self.executed, waiting=waiting),
            capabilities=[self.guard],
        )

    def verdict(self, result) -> dict[str, Any]:
        """Return the arguments of the run that goes on after a human answered."""
        approvals = dict.fromkeys((call.tool_call_id for call in result.output.approvals), self.scenario.approve)
        return {
            "message_history": result.all_messages(),
            "deferred_tool_results": DeferredToolResults(approvals=approvals),
        }

    def seen(self, result) -> Seen:
        messages = result.all_messages()
        outcome = self.guard.outcome_of(result)
        given = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        said = [
            part
            for message in messages
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, ToolReturnPart) or (isinstance(part, UserPromptPart) and part.content != "task")
        ]
        refused = [part.tool_name for part in given if part.outcome in ("denied", "retried")]
        return Seen(
            executed=tuple(self.executed),
            refused=tuple(refused),
            told=tuple(str(part.content) for part in said),
            requests=len(self.script.seen),
            status=outcome.status,
            code=outcome.stop.code if outcome.stop and outcome.status != "completed" else "",
            answered=is_answered(messages),
        )


def is_answered(messages: list[Any]) -> bool:
    """Whether every call has one result, in requests before the next response, and nothing else has."""
    wanted: list[str] = []
    given: list[str] = []
    for message in [*messages, ModelResponse([])]:
        if isinstance(message, ModelRequest):
            given += [part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart)]
            continue
        if sorted(given) != sorted(wanted):
            return False
        wanted, given = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)], []
    return not wanted


def drive_sync(scenario: Scenario) -> Seen:
    driven = Driven(scenario)
    result = driven.agent.run_sync("task")
    while isinstance(result.output, DeferredToolRequests):
        result = driven.agent.run_sync(**driven.verdict(result))
    return driven.seen(result)


async def drive(scenario: Scenario) -> Seen:
    driven = Driven(scenario, waiting=True)
    result = await driven.agent.run("task")
    while isinstance(result.output, DeferredToolRequests):
        result = await driven.agent.run(**driven.verdict(result))
    return driven.seen(result)


async def drive_inline(scenario: Scenario) -> Seen:
    driven = Driven(scenario, inline=True, waiting=True)
    return driven.seen(await driven.agent.run("task"))


async def drive_iter(scenario: Scenario) -> Seen:
    driven = Driven(scenario, inline=True)
    async with driven.agent.iter("task") as run:
        async for _ in run:
            pass
    return driven.seen(run.result)


async def drive_events(scenario: Scenario) -> Seen:
    """A run whose responses are streamed."""
    driven = Driven(scenario, inline=True, waiting=True)

    async def handle(ctx, events):
        async for _ in events:
            pass

    return driven.seen(await driven.agent.run("task", event_stream_handler=handle))


async def drive_stream(scenario: Scenario) -> Seen:
    driven = Driven(scenario, inline=True, waiting=True)
    async with driven.agent.run_stream("task") as result:
        await result.get_output()
    return driven.seen(result)


@SCENARIOS
def test_a_scenario_in_a_synchronous_run(scenario):
    check(scenario, drive_sync(scenario))


@SCENARIOS
@pytest.mark.parametrize("how", [drive, drive_inline, drive_iter, drive_events, drive_stream])
def test_a_scenario_in_an_asynchronous_run(scenario, how):
    check(scenario, asyncio.run(how(scenario)))


# ---- agents of the tests


def engine_of(policy: str, *extensions: type[Extension], **options: Any) -> Engine:
    registry = ListedRegistry(*extensions, Approval, AtMostTen, trusted=True, others=BUILTINS)
    loaded = load_policy_text(HEAD + policy, registry=registry)
    return Engine(loaded, registry=registry, clock=ManualClock(), enforce_time=False, **options)


LIMIT = "extensions:\n  tool_call_limit: {with: {tools: {look: 3}}}\n"
STOP = "extensions:\n  stall_detector: {with: {repeat: {stop: 3}}}\n"
ASK = "extensions:\n  approval: {}\n"


def says(*turns: Any) -> FunctionModel:
    """Return a model that says texts, and lists of calls `(tool, args)`, in order; then "over"."""
    number = iter(range(1000))

    def answer(messages: list[Any], info: AgentInfo) -> ModelResponse:
        at = next(number)
        turn = turns[at] if at < len(turns) else "over"
        turn = turn(messages, info) if callable(turn) else turn
        if isinstance(turn, str):
            return ModelResponse([TextPart(turn)] if turn else [])
        return ModelResponse([ToolCallPart(name, args, f"c{at}-{index}") for index, (name, args) in enumerate(turn)])

    return FunctionModel(answer)


def looking(model: FunctionModel, guard: PolicyCapability, tail: str = "", **options: Any) -> tuple[Agent, list[int]]:
    """Return an agent with the tool `look`, and the pages that it looked at."""
    agent, pages = Agent(model, capabilities=[guard], **options), []

    @agent.tool_plain
    def look(page: int) -> str:
        pages.append(page)
        return f"page {page}{tail}"

    return agent, pages


def parts_of(messages: list[Any], kind: type[Any]) -> list[Any]:
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


def pages(*numbers: int) -> list[list[Any]]:
    return [[("look", {"page": number})] for number in numbers]


# ---- hint, deny, rewrite, wind-down, stop


class Note(Extension):
    name = "note"
    messages = {"note.hint": {}}
    templates = {"en": {"note.hint": "Look at page 7."}}

    def answers(self):
        return {"after_tool_call": ("hint",)}

    @hookimpl
    def after_tool_call(self, run, call, result):
        return run.hint("note")


class Censor(Extension):
    name = "censor"

    def answers(self):
        return {"after_tool_call": ("rewrite",)}

    @hookimpl
    def after_tool_call(self, run, call, result):
        return run.rewrite("censor", text="(removed)") if "secret" in result.text else None


def test_a_hint_is_a_message_of_its_own_after_all_results_and_stays_in_the_history():
    guard = PolicyCapability(engine_of("extensions:\n  note: {}\n", Note))
    agent, _ = looking(says([("look", {"page": 1}), ("look", {"page": 2})], "done"), guard)
    messages = agent.run_sync("task").all_messages()
    said = [type(part).__name__ for message in messages for part in message.parts]
    assert said == [
        "UserPromptPart",
        "ToolCallPart",
        "ToolCallPart",
        "ToolReturnPart",
        "ToolReturnPart",
        "UserPromptPart",
        "UserPromptPart",
        "TextPart",
    ]
    assert "Look at page 7." in parts_of(messages, UserPromptPart)[1].content


def test_a_refused_call_is_answered_as_denied_and_costs_no_tool_call():
    guard = PolicyCapability(engine_of(LIMIT))
    agent, seen = looking(says(*pages(1, 2, 3, 4), "done"), guard)
    result = agent.run_sync("task")
    assert [part.outcome for part in parts_of(result.all_messages(), ToolReturnPart)] == ["success"] * 3 + ["denied"]
    assert (seen, result.usage.tool_calls) == ([1, 2, 3], 3)
    assert guard.outcome_of(result).executed == 3


def test_arguments_that_a_rule_wrote_are_validated_like_the_models():
    guard = PolicyCapability(engine_of("extensions:\n  at_most_ten: {}\n"))
    agent, paid = Agent(says([("pay", {"amount": 500})], "done"), capabilities=[guard]), []

    @agent.tool_plain
    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    assert agent.run_sync("task").output == "done"
    assert paid == [10]


@pytest.mark.parametrize("value", ["a secret", {"word": "secret"}, ToolReturn("a secret", metadata={"kept": 1})])
def test_a_result_is_given_to_the_model_as_a_rule_rewrote_it(value):
    guard = PolicyCapability(engine_of("extensions:\n  censor: {}\n", Censor))
    agent = Agent(says([("tell", {})], "done"), capabilities=[guard])
    agent.tool_plain(lambda: value, name="tell")
    (part,) = parts_of(agent.run_sync("task").all_messages(), ToolReturnPart)
    assert part.content == "(removed)"
    assert part.metadata == ({"kept": 1} if isinstance(value, ToolReturn) else None)


def test_a_result_that_no_rule_changes_keeps_its_type():
    guard = PolicyCapability(engine_of("extensions:\n  censor: {}\n", Censor))
    agent = Agent(says([("tell", {})], "done"), capabilities=[guard])
    agent.tool_plain(lambda: {"word": [1, 2]}, name="tell")
    (part,) = parts_of(agent.run_sync("task").all_messages(), ToolReturnPart)
    assert part.content == {"word": [1, 2]}


def test_a_failure_is_told_as_a_rule_rewrote_it():
    guard = PolicyCapability(engine_of("extensions:\n  censor: {}\n", Censor))
    agent = Agent(says([("tell", {})], "done"), capabilities=[guard])

    @agent.tool_plain
    def tell() -> str:
        raise ToolFailed("the secret is gone")

    (part,) = parts_of(agent.run_sync("task").all_messages(), ToolReturnPart)
    assert (part.content, part.outcome) == ("(removed)", "failed")


def test_results_have_one_shape_where_the_policy_wants_it():
    guard = PolicyCapability(engine_of("tool_results: envelope\nextensions:\n  note: {}\n", Note))
    agent, _ = looking(says(*pages(1), "done"), guard)
    (part,) = parts_of(agent.run_sync("task").all_messages(), ToolReturnPart)
    assert json.loads(part.content)["status"] == "ok"


def test_a_stop_is_the_output_and_the_history_goes_on_from_there():
    guard = PolicyCapability(engine_of(STOP))
    agent, seen = looking(says(*pages(1, 1, 1), "fresh start"), guard)
    result = agent.run_sync("task")
    outcome = guard.outcome_of(result)
    assert (outcome.status, outcome.stop.code, result.output) == ("stopped", "repeat", outcome.stop.message)
    messages = result.all_messages()
    assert is_answered(messages)
    assert messages[-1].parts[0].content == result.output
    assert messages[-1].metadata == {"policyengine": {"code": "repeat", "rule": "stall_detector"}}
    again = agent.run_sync("go on", message_history=messages)
    assert (again.output, seen) == ("fresh start", [1, 1])
    assert guard.outcome_of(again).status == "completed"


class Fruit(BaseModel):
    name: str


def test_a_stop_is_raised_where_the_output_is_no_text():
    guard = PolicyCapability(engine_of(STOP))
    agent, _ = looking(says(*pages(1, 1, 1)), guard, output_type=Fruit)
    with pytest.raises(PolicyStopped, match="repeat") as caught:
        agent.run_sync("task")
    assert caught.value.outcome.stop.code == "repeat"
    assert is_answered(caught.value.messages)
    assert isinstance(caught.value.messages[-1], ModelResponse)


def test_what_a_stop_gives_can_be_said():
    guard = PolicyCapability(engine_of(STOP), stopped=lambda outcome: Fruit(name=outcome.stop.code))
    agent, _ = looking(says(*pages(1, 1, 1)), guard, output_type=Fruit)
    assert agent.run_sync("task").output == Fruit(name="repeat")


class Step(BaseModel):
    """It looks like a call of a tool, and is the output of an agent."""

    name: str
    arguments: dict[str, int]


@pytest.mark.parametrize("kind", [Step, ToolOutput(Step), NativeOutput(Step), PromptedOutput(Step), [str, Step]])
def test_output_of_a_type_is_an_answer_and_no_call(kind):
    step = {"name": "look", "arguments": {"page": 2}}

    def answer(messages, info):
        return [(info.output_tools[0].name, step)] if info.output_tools else json.dumps(step)

    guard = PolicyCapability(engine_of(LIMIT))
    profile = {"supports_json_schema_output": True}
    model = says(*pages(1), answer)
    model._profile = {**model.profile, **profile}
    agent, _ = looking(model, guard, output_type=kind)
    result = agent.run_sync("task")
    outcome = guard.outcome_of(result)
    assert result.output == Step.model_validate(step)
    assert is_answered(result.all_messages())
    assert (outcome.status, outcome.iterations, outcome.calls) == ("completed", 2, 1)


def test_output_that_is_a_file_or_nothing_is_an_answer():
    def picture(messages, info):
        return ModelResponse([FilePart(BinaryImage(b"x", media_type="image/png"))])

    for kind, model, output in [
        (BinaryImage, FunctionModel(picture, profile={"supports_image_output": True}), BinaryImage),
        (Fruit | None, says(""), type(None)),
    ]:
        guard = PolicyCapability(engine_of(LIMIT))
        result = looking(model, guard, output_type=kind)[0].run_sync("task")
        assert isinstance(result.output, output)
        assert (guard.outcome_of(result).status, guard.outcome_of(result).iterations) == ("completed", 1)


# ---- responses that cannot be used


def test_an_empty_response_is_asked_for_again_by_the_policy_and_costs_no_retry():
    guard = PolicyCapability(engine_of("extensions:\n  stop_unusable_response_loop: {}\n"))
    agent, _ = looking(says("", "", "done"), guard, retries=0)
    result = agent.run_sync("task")
    assert result.output == "done"
    assert len(parts_of(result.all_messages(), UserPromptPart)) == 3
    assert guard.outcome_of(result).iterations == 3


def test_responses_that_stay_unusable_end_the_run_and_no_text_of_the_model_is_its_output():
    policy = "extensions:\n  stop_unusable_response_loop: {with: {max_consecutive_unusable_responses: 2}}\n"
    guard = PolicyCapability(engine_of(policy))
    agent, _ = looking(says("", "", "never"), guard)
    result = agent.run_sync("task")
    outcome = guard.outcome_of(result)
    assert outcome.status == "stopped"
    assert result.output == outcome.stop.message


class OnceMore(Extension):
    name = "once_more"
    messages = {"once_more.retry": {}}
    templates = {"en": {"once_more.retry": "Once more, please."}}

    def answers(self):
        return {"after_parse": ("retry",)}

    @hookimpl
    def after_parse(self, run, verdict):
        return run.retry("once_more") if verdict.text == "bad" else None


def test_a_response_that_a_rule_asks_for_again_is_forgotten_and_so_is_the_notice():
    requests = []

    def keep(turn):
        def answer(messages, info):
            requests.append(messages)
            return turn

        return answer

    policy = "parsing: {max_retry: 1}\nextensions:\n  once_more: {}\n"
    guard = PolicyCapability(engine_of(policy, OnceMore))
    agent, _ = looking(says(*map(keep, [*pages(1), "bad", "good"])), guard)
    result = agent.run_sync("task")
    assert result.output == "good"
    assert "Once more, please." in str(requests[2])
    assert "bad" not in str(requests[2])
    assert "Once more" not in str(result.all_messages())
    assert "bad" not in str(result.all_messages())
    assert guard.outcome_of(result).iterations == 2


@pytest.mark.parametrize(("options", "output"), [("answered_by: [look]", ""), ("fallback: nothing", "nothing")])
def test_silence_may_be_an_answer_or_be_given_a_text_by_the_policy(options, output):
    guard = PolicyCapability(engine_of(f"extensions:\n  empty_response: {{with: {{{options}, after: 1}}}}\n"))
    agent, _ = looking(says(*pages(1), "", "never"), guard)
    result = agent.run_sync("task")
    assert result.output == output
    assert guard.outcome_of(result).status == "completed"
    assert is_answered(result.all_messages())


# ---- what pydantic-ai rejects itself


def test_a_call_with_wrong_arguments_is_reported_and_counts_as_not_run():
    guard = PolicyCapability(engine_of(LIMIT))
    agent, seen = looking(says([("look", {"page": "x"})], *pages(2), "done"), guard)
    result = agent.run_sync("task")
    outcome = guard.outcome_of(result)
    assert (seen, outcome.calls, outcome.executed, outcome.status) == ([2], 2, 1, "completed")


def test_a_tool_that_asks_for_another_try_has_failed_and_keeps_its_words():
    reports = []
    guard = PolicyCapability(engine_of(LIMIT, sinks=[reports.append]))
    agent = Agent(says(*pages(1, 2), "done"), capabilities=[guard])

    @agent.tool_plain
    def look(page: int) -> str:
        if page == 1:
            raise ModelRetry("look at page 2")
        return "here"

    result = agent.run_sync("task")
    assert [part.outcome for part in parts_of(result.all_messages(), ToolReturnPart)] == ["retried", "success"]
    told = [report.payload[1] for report in reports if report.hook == "after_tool_call"]
    assert [(one.status, one.text) for one in told] == [("error", "look at page 2"), ("ok", "here")]


def test_an_exception_of_a_tool_ends_the_run_as_without_a_policy():
    guard = PolicyCapability(engine_of(LIMIT))
    agent, runs = Agent(says(*pages(1)), capabilities=[guard]), []

    @agent.tool
    def look(ctx: RunContext, page: int) -> str:
        runs.append(ctx.run_id)
        raise ZeroDivisionError("no page")

    with pytest.raises(ZeroDivisionError):
        agent.run_sync("task")
    outcome = guard.outcome_of(runs[0])
    assert (outcome.status, outcome.executed) == ("failed", 1)
    assert "no page" in outcome.error


# ---- batches, concurrency, isolation


def test_calls_of_a_batch_run_at_the_same_time_and_all_are_judged_before():
    guard = PolicyCapability(engine_of(LIMIT))
    agent, running = Agent(says([("look", {"page": n}) for n in range(5)], "done"), capabilities=[guard]), []

    @agent.tool_plain
    async def look(page: int) -> int:
        running.append(page)
        for _ in range(20):
            await asyncio.sleep(0)
        return len(running)

    result = agent.run_sync("task")
    given = parts_of(result.all_messages(), ToolReturnPart)
    assert [part.content for part in given[:3]] == [3, 3, 3]
    assert [part.outcome for part in given] == ["success"] * 3 + ["denied"] * 2


def test_runs_at_the_same_time_have_budgets_of_their_own():
    async def both():
        guard = PolicyCapability(engine_of(LIMIT))
        agents = [looking(says(*pages(1, 2, 3, 4), "done"), guard) for _ in range(4)]
        results = await asyncio.gather(*(agent.run("task") for agent, _ in agents))
        return [seen for _, seen in agents], [guard.outcome_of(result).executed for result in results]

    seen, executed = asyncio.run(both())
    assert seen == [[1, 2, 3]] * 4
    assert executed == [3] * 4


def test_a_cancelled_run_ends_as_cancelled_and_its_call_counts_as_started():
    ids = []

    async def cancelled(guard):
        agent = Agent(says(*pages(1)), capabilities=[guard])

        @agent.tool
        async def look(ctx: RunContext, page: int) -> str:
            ids.append(ctx.run_id)
            await asyncio.Event().wait()
            return "never"

        task = asyncio.create_task(agent.run("task"))
        while not ids:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    guard = PolicyCapability(engine_of(LIMIT))
    asyncio.run(cancelled(guard))
    assert (guard.outcome_of(ids[0]).status, guard.outcome_of(ids[0]).executed) == ("cancelled", 1)


# ---- going on


SHARED = "extensions:\n  tool_call_limit: {with: {scope: conversation, tools: {look: 3}}}\n"


def test_runs_of_one_history_share_the_budget_of_a_conversation():
    guard = PolicyCapability(engine_of(SHARED))
    agent, seen = looking(says(*pages(1, 2), "first", *pages(3, 4), "second"), guard)
    first = agent.run_sync("task")
    second = agent.run_sync("go on", message_history=first.all_messages())
    assert (second.output, seen) == ("second", [1, 2, 3])
    fresh, seen = looking(says(*pages(1, 2, 3)), guard)
    fresh.run_sync("task")
    assert seen == [1, 2, 3]


def paying(model: FunctionModel, guard: PolicyCapability) -> tuple[Agent, list[int]]:
    agent, paid = Agent(model, capabilities=[guard], output_type=[str, DeferredToolRequests]), []

    @agent.tool_plain
    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    @agent.tool_plain
    def look(page: int) -> str:
        return f"page {page}"

    return agent, paid


def approved(result: Any, answer: Any = True) -> dict[str, Any]:
    given = {call.tool_call_id: answer for call in result.output.approvals}
    return {"message_history": result.all_messages(), "deferred_tool_results": DeferredToolResults(approvals=given)}


BOTH = "extensions:\n  approval: {}\n  tool_call_limit: {with: {calls: 3}}\n"


def test_a_run_that_waits_goes_on_in_another_process_with_its_counts():
    store: dict[str, bytes] = {}
    first = PolicyCapability(engine_of(BOTH), store=store)
    batch = [("look", {"page": 1}), ("pay", {"amount": 5}), ("look", {"page": 2})]
    agent, paid = paying(says(batch), first)
    waiting = agent.run_sync("task")
    assert isinstance(waiting.output, DeferredToolRequests)
    assert waiting.output.metadata["c0-1"]["question"] == "May pay be called? (approval, policy.yaml:5)"
    assert first.outcome_of(waiting) is None
    assert [key.partition("/")[0] for key in store] == [waiting.conversation_id]
    history = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(waiting.all_messages()))

    second = PolicyCapability(engine_of(BOTH), store=store)
    agent, paid = paying(says([("look", {"page": 3})], "done"), second)
    results = DeferredToolResults(approvals={"c0-1": True})
    result = agent.run_sync("and hurry", message_history=history, deferred_tool_results=results)
    outcome = second.outcome_of(result)
    assert (paid, store) == ([5], {})
    assert (outcome.calls, outcome.executed, outcome.iterations) == (4, 3, 3)
    assert parts_of(result.all_messages(), ToolReturnPart)[-1].outcome == "denied"


def test_runs_of_one_conversation_that_wait_at_the_same_time_go_on_each_with_its_counts():
    guard = PolicyCapability(engine_of(BOTH))
    agent, paid = paying(says("hello", [("pay", {"amount": 1})], [("pay", {"amount": 2})], "one", "two"), guard)
    before = agent.run_sync("task").all_messages()
    waiting = [agent.run_sync(task, message_history=before) for task in ("first", "second")]
    assert waiting[0].conversation_id == waiting[1].conversation_id
    for number, run in enumerate(waiting, 1):
        outcome = guard.outcome_of(agent.run_sync(**approved(run)))
        assert (paid[-1], outcome.calls, outcome.executed) == (number, 1, 1)


@pytest.mark.parametrize(("contents", "status"), [("abcde", "completed"), ("aaaaa", "stopped")])
def test_images_beside_a_value_are_equal_results_only_where_they_are_equal(contents, status):
    guard = PolicyCapability(engine_of("extensions:\n  stall_detector: {with: {repeat: {stop: 3}}}\n"))
    agent, left = Agent(says(*[[("shot", {})]] * 5, "done"), capabilities=[guard]), iter(contents)

    @agent.tool_plain
    def shot() -> ToolReturn:
        image = BinaryContent(next(left).encode(), media_type="image/png")
        return ToolReturn("Here is the screen", content=[image])

    assert guard.outcome_of(agent.run_sync("task")).status == status


@pytest.mark.parametrize("point", ["after_model_response", "after_parse", "before_tool_call", "after_tool_call"])
def test_an_engine_that_fails_at_every_response_ends_the_run_soon(point, monkeypatch):
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Run, point, broken)
    guard = PolicyCapability(engine_of(SHARED))
    agent, _ = looking(says(*[[("look", {"page": page})] for page in range(9)], "done"), guard)
    outcome = guard.outcome_of(agent.run_sync("task"))
    assert (outcome.status, outcome.stop.code) == ("failed", ADAPTER_FAILED)


def test_an_approved_call_of_a_run_that_is_lost_is_judged_anew_and_runs_once():
    guard = PolicyCapability(engine_of(ASK), store={})
    agent, paid = paying(says([("pay", {"amount": 5}), ("look", {"page": 1})], "done"), guard)
    waiting = agent.run_sync("task")
    guard.store.clear()
    result = agent.run_sync(**approved(waiting))
    assert (result.output, paid) == ("done", [5])
    assert guard.outcome_of(result).executed == 1


def test_other_arguments_of_the_human_are_judged_before_they_run():
    policy = "extensions:\n  approval: {}\n  at_most_ten: {}\n"
    guard = PolicyCapability(engine_of(policy))
    agent, paid = paying(says([("pay", {"amount": 5})], "done"), guard)
    result = agent.run_sync(**approved(agent.run_sync("task"), ToolApproved(override_args={"amount": 7})))
    assert (result.output, paid) == ("done", [7])
    outcome = guard.outcome_of(result)
    assert (outcome.calls, outcome.executed) == (2, 1)


def test_where_nobody_answers_what_would_be_asked_is_refused():
    guard = PolicyCapability(engine_of(ASK), attended=False)
    agent, paid = paying(says([("pay", {"amount": 5})], "done"), guard)
    result = agent.run_sync("task")
    assert (result.output, paid) == ("done", [])
    assert parts_of(result.all_messages(), ToolReturnPart)[0].outcome == "denied"


def test_somebody_who_is_asked_at_once_may_be_asynchronous_and_only_true_approves():
    async def ask(call, question):
        return "yes"

    guard = PolicyCapability(engine_of(ASK), approve=ask)
    agent, paid = paying(says([("pay", {"amount": 5})], "done"), guard)
    assert agent.run_sync("task").output == "done"
    assert paid == []


def test_tools_of_others_are_judged_before_they_are_deferred_and_their_results_reported():
    reports = []
    guard = PolicyCapability(
        engine_of(
            "extensions:\n  censor: {}\n" + "  tool_call_limit: {with: {calls: 2}}\n", Censor, sinks=[reports.append]
        )
    )
    schema = {"type": "object", "properties": {}}
    away = ExternalToolset([ToolDefinition(name="away", parameters_json_schema=schema)])
    calls = [("away", {}), ("away", {}), ("away", {})]
    agent = Agent(says(calls, "done"), capabilities=[guard], toolsets=[away], output_type=[str, DeferredToolRequests])
    waiting = agent.run_sync("task")
    assert [call.tool_call_id for call in waiting.output.calls] == ["c0-0", "c0-1"]
    results = DeferredToolResults(calls={"c0-0": "a secret", "c0-1": "fine"})
    result = agent.run_sync(message_history=waiting.all_messages(), deferred_tool_results=results)
    told = {part.tool_call_id: part.content for part in parts_of(result.all_messages(), ToolReturnPart)}
    assert (told["c0-0"], told["c0-1"]) == ("(removed)", "fine")
    outcome = guard.outcome_of(result)
    assert (outcome.status, outcome.calls, outcome.executed) == ("completed", 3, 2)


def test_tools_that_need_approval_anyway_are_asked_about_once():
    guard = PolicyCapability(engine_of(ASK))
    agent, paid = Agent(says([("pay", {})], "done"), capabilities=[guard], output_type=[str, DeferredToolRequests]), []

    @agent.tool_plain(requires_approval=True)
    def pay() -> str:
        paid.append(1)
        return "paid"

    result = agent.run_sync(**approved(agent.run_sync("task")))
    assert (result.output, paid) == ("done", [1])


def test_another_capability_may_answer_what_is_asked_during_the_run():
    async def decide(ctx, requests):
        return requests.build_results(approve_all=True)

    guard = PolicyCapability(engine_of(ASK))
    agent = Agent(says([("pay", {})], "done"), capabilities=[HandleDeferredToolCalls(decide), guard])
    agent.tool_plain(lambda: "paid", name="pay")
    result = agent.run_sync("task")
    assert parts_of(result.all_messages(), ToolReturnPart)[0].content == "paid"
    assert guard.outcome_of(result).executed == 1


# ---- sub-agents


def family(parent: Any, child: Any, policy: str, **options: Any) -> tuple[Agent, list[int], PolicyCapability]:
    """Return an agent with the tool `look` and the tool `delegate`, which has a sub-agent do the task."""
    guard = PolicyCapability(engine_of(policy), **options)
    inner, seen = looking(child, guard)
    outer = Agent(parent, capabilities=[guard])

    @outer.tool_plain
    def look(page: int) -> str:
        seen.append(page)
        return f"page {page}"

    @outer.tool_plain
    async def delegate(task: str) -> str:
        return (await inner.run(task)).output

    return outer, seen, guard


def test_a_sub_agent_shares_the_budget_of_the_conversation():
    child = says(*pages(2, 3, 4), "enough")
    parent = says(*pages(1), [("delegate", {"task": "look"})], *pages(5), "done")
    agent, seen, _ = family(parent, child, SHARED)
    assert agent.run_sync("task").output == "done"
    assert seen == [1, 2, 3]


def test_a_sub_agent_may_have_a_budget_of_its_own():
    child = says(*pages(2, 3, 4), "enough")
    agent, seen, _ = family(
        says(*pages(1), [("delegate", {"task": "look"})], *pages(5), "done"), child, SHARED, shared=False
    )
    agent.run_sync("task")
    assert seen == [1, 2, 3, 4, 5]


def test_a_sub_agent_that_is_stopped_does_not_stop_the_one_that_called_it():
    agent, seen, guard = family(says([("delegate", {"task": "look"})], "done"), says(*pages(1, 1, 1)), STOP)
    result = agent.run_sync("task")
    assert (result.output, seen) == ("done", [1, 1])
    assert guard.outcome_of(result).status == "completed"


def test_a_sub_agent_with_output_of_a_type_that_is_stopped_is_a_tool_that_failed():
    guard = PolicyCapability(engine_of(STOP))
    inner, _ = looking(says(*pages(1, 1, 1)), guard, output_type=Fruit)
    outer = Agent(says([("delegate", {})], "done"), capabilities=[guard])

    @outer.tool_plain
    async def delegate() -> str:
        return (await inner.run("look")).output.name

    result = outer.run_sync("task")
    (part,) = parts_of(result.all_messages(), ToolReturnPart)
    assert (result.output, part.outcome) == ("done", "failed")
    assert "repeat" in part.content


def test_an_agent_that_calls_itself_for_ever_is_ended():
    guard = PolicyCapability(engine_of(LIMIT))
    calls = []

    def again(messages, info):
        return [("delegate", {})]

    agent = Agent(says(*[again] * 100), capabilities=[guard])

    @agent.tool_plain
    async def delegate() -> str:
        calls.append(1)
        return (await agent.run("task")).output

    with pytest.raises(RecursionError):
        agent.run_sync("task")
    assert len(calls) == 8


# ---- failures of our own


def broken(*_: Any, **__: Any) -> Any:
    raise OSError("the guard failed")


def test_a_request_is_not_sent_where_the_adapter_fails(monkeypatch):
    monkeypatch.setattr(PolicyCapability, "_look_at_answers", broken)
    guard = PolicyCapability(engine_of(LIMIT))
    asked = []
    agent, _ = looking(FunctionModel(lambda messages, info: asked.append(1)), guard)
    result = agent.run_sync("task")
    assert (result.output, asked) == (FAILED_TEXT, [])
    assert (guard.outcome_of(result).status, guard.outcome_of(result).stop.code) == ("failed", ADAPTER_FAILED)


@pytest.mark.parametrize("where", ["_calls", "_rule"])
def test_no_call_runs_where_the_adapter_fails(monkeypatch, where):
    if where == "_calls":
        monkeypatch.setattr(PolicyCapability, where, broken)
    else:
        monkeypatch.setattr(pydantic_ai_host, "_identity", broken)
    guard = PolicyCapability(engine_of(LIMIT))
    agent, seen = looking(says(*pages(1), "done"), guard)
    result = agent.run_sync("task")
    assert seen == []
    assert [part.content for part in parts_of(result.all_messages(), ToolReturnPart)] == [FAILED_TEXT]


@pytest.mark.parametrize("fails", [False, True])
def test_a_result_that_the_adapter_cannot_report_is_withheld(monkeypatch, fails):
    monkeypatch.setattr(pydantic_ai_host, "plain_result", broken)
    monkeypatch.setattr(pydantic_ai_host, "failure_of", broken)
    guard = PolicyCapability(engine_of(LIMIT))
    agent = Agent(says(*pages(1), "done"), capabilities=[guard])

    @agent.tool_plain
    def look(page: int) -> str:
        if fails:
            raise ToolFailed("a secret")
        return "a secret"

    (part,) = parts_of(agent.run_sync("task").all_messages(), ToolReturnPart)
    assert part.content == WITHHELD_TEXT


def test_a_rule_that_fails_in_the_engine_does_not_let_a_call_through(monkeypatch):
    monkeypatch.setattr("policyengine.run.Run.before_tool_call", broken)
    guard = PolicyCapability(engine_of(LIMIT))
    agent, seen = looking(says(*pages(1), "done"), guard)
    result = agent.run_sync("task")
    assert seen == []
    assert parts_of(result.all_messages(), ToolReturnPart)[0].outcome == "denied"


def test_an_engine_that_cannot_judge_a_text_ends_the_run(monkeypatch):
    monkeypatch.setattr("policyengine.run.Run.after_parse", broken)
    guard = PolicyCapability(engine_of(LIMIT))
    agent, _ = looking(says("an answer"), guard)
    result = agent.run_sync("task")
    assert result.output == FAILED_TEXT
    assert guard.outcome_of(result).status == "failed"


def test_a_run_that_cannot_begin_does_not_begin(monkeypatch):
    guard = PolicyCapability(engine_of(LIMIT))
    monkeypatch.setattr(guard.engine, "start_run", broken)
    asked = []
    agent, _ = looking(FunctionModel(lambda messages, info: asked.append(1)), guard)
    with pytest.raises(OSError, match="the guard failed"):
        agent.run_sync("task")
    assert asked == []


def test_a_capability_outside_a_run_refuses():
    guard = PolicyCapability(engine_of(LIMIT))
    with pytest.raises(RuntimeError, match="outside a run"):
        _ = guard.run


# ---- what cannot be done is refused when the policy is loaded


class Recover(Extension):
    name = "recover_it"

    def answers(self):
        return {"after_provider_error": ("retry",)}

    @hookimpl
    def after_provider_error(self, run, error):
        return run.recover("again")


def test_a_policy_that_wants_what_the_host_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="R518"):
        PolicyCapability(engine_of("extensions:\n  recover_it: {}\n", Recover))


@pytest.mark.parametrize("name", ["default", "cautious", "unattended"])
def test_shipped_policies_can_be_used(name):
    guard = PolicyCapability(name)
    agent, seen = looking(says(*pages(1), "done"), guard)
    assert agent.run_sync("task").output == "done"
    assert (seen, guard.outcome_of(agent.run_sync("task")).status) == ([1], "completed")


# ---- requests


class Change(Extension):
    name = "change"
    options: Any = {"what": {"type": "string", "default": "tools"}}

    def answers(self):
        return {"before_model_call": ("rewrite",)}

    @hookimpl
    def before_model_call(self, run, request):
        if self.options.what == "tools":
            return run.rewrite("fewer", tools=[tool for tool in request.tools if tool.name != "look"])
        if self.options.what == "model":
            return run.rewrite("other", model="other")
        if run.iteration == 6:
            return run.rewrite("shorter", compaction=Compaction(self.options.what, 0.3))
        return None


def test_a_rule_may_take_a_tool_out_of_a_request_and_choose_the_model():
    offered = []

    def answer(messages, info):
        offered.append([tool.name for tool in info.function_tools])
        return "done"

    agent, _ = looking(says(answer), PolicyCapability(engine_of("extensions:\n  change: {}\n", Change)))
    agent.run_sync("task")
    assert offered == [[]]
    policy = engine_of("extensions:\n  change: {with: {what: model}}\n", Change)
    agent, _ = looking(says("first"), PolicyCapability(policy, models={"other": says("second")}))
    assert agent.run_sync("task").output == "second"


@pytest.mark.parametrize("how", ["slide", "compact"])
def test_a_history_is_shortened_for_good_and_parts_no_call_from_its_result(how):
    sizes = []

    def look(number, summary=False):
        def answer(messages, info):
            sizes.append(len(messages))
            if how == "compact" and not info.function_tools:
                return "all pages were dull"
            return [("look", {"page": number})] if number else "done"

        return answer

    turns = [look(n) for n in (1, 2, 3, 4, 5)] + ([look(0)] if how == "compact" else []) + [look(6), look(0)]
    guard = PolicyCapability(engine_of(f"extensions:\n  change: {{with: {{what: {how}}}}}\n", Change))
    agent, seen = looking(says(*turns), guard, system_prompt="be brief", tail=" dull" * 100)
    result = agent.run_sync("the task")
    messages = result.all_messages()
    assert (result.output, seen) == ("done", [1, 2, 3, 4, 5, 6])
    assert is_answered(messages)
    assert len(messages) < 12
    assert messages[0].parts[0].content == "be brief"
    assert "the task" in parts_of(messages, UserPromptPart)[0].content
    assert ("all pages were dull" in str(messages)) == (how == "compact")


def test_a_summary_that_fails_leaves_the_history_as_it_is():
    def answer(messages, info):
        if not info.function_tools:
            raise ModelHTTPError(500, "m")
        return [("look", {"page": len(messages)})]

    guard = PolicyCapability(engine_of("extensions:\n  change: {with: {what: compact}}\n", Change))
    agent, seen = looking(says(*[answer] * 7, "done"), guard, tail=" dull" * 100)
    result = agent.run_sync("task")
    assert (result.output, len(seen)) == ("done", 6)
    assert len(result.all_messages()) == 14


# ---- streaming


def test_a_stop_is_raised_where_streamed_output_is_no_text():
    async def stream(messages, info):
        yield {0: DeltaToolCall("look", '{"page": 1}', tool_call_id=f"c{len(messages)}")}

    async def run():
        guard = PolicyCapability(engine_of(STOP))
        agent, seen = looking(FunctionModel(stream_function=stream), guard, output_type=Fruit)
        with pytest.raises(PolicyStopped) as caught:
            async with agent.run_stream("task") as result:
                await result.get_output()
        return seen, caught.value

    seen, stopped = asyncio.run(run())
    assert (seen, stopped.outcome.stop.code) == ([1, 1], "repeat")
    assert is_answered(stopped.messages)


def test_calls_beside_a_streamed_answer_are_judged_too():
    async def stream(messages, info):
        yield "the answer"
        yield {1: DeltaToolCall("look", '{"page": 1}', tool_call_id="c1")}
        yield {2: DeltaToolCall("look", '{"page": 1}', tool_call_id="c2")}

    async def run():
        guard = PolicyCapability(engine_of("extensions:\n  tool_call_limit: {with: {tools: {look: 1}}}\n"))
        agent, seen = looking(FunctionModel(stream_function=stream), guard)
        async with agent.run_stream("task") as result:
            assert await result.get_output() == "the answer"
        return seen, guard.outcome_of(result)

    seen, outcome = asyncio.run(run())
    assert seen == [1]
    assert (outcome.status, outcome.output, outcome.calls) == ("completed", "the answer", 2)


# ---- the same decisions as a replay


def as_chat(messages: list[Any]) -> list[dict[str, Any]]:
    """Return a history in the form that `replayed` reads."""
    chat = [{"role": "user", "content": "task"}]
    for message in messages[1:]:
        if isinstance(message, ModelResponse):
            made = [
                {"id": part.tool_call_id, "function": {"name": part.tool_name, "arguments": part.args_as_json_str()}}
                for part in message.tool_calls
            ]
            ours = bool(message.metadata and "policyengine" in message.metadata)
            chat.append({"role": "assistant", "content": message.text, "tool_calls": made, "ours": ours})
            continue
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                status = {"success": "ok", "denied": "denied"}.get(part.outcome, "error")
                chat.append(
                    {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.content, "status": status}
                )
    return chat


@pytest.mark.parametrize("scenario", [one for one in ALL_SCENARIOS if one.approve is None], ids=lambda one: one.name)
def test_decisions_are_those_of_a_replay(scenario):
    decisions, driven = Decisions(), Driven(scenario, waiting=True)
    driven.guard.engine.sinks.append(decisions)
    result = asyncio.run(driven.agent.run("task"))
    assert_as_in_a_replay(decisions, scenario.engine(), as_chat(result.all_messages()))


def test_a_journal_of_a_run_gives_the_same_decisions_again(tmp_path):
    with (tmp_path / "j.jsonl").open("w") as file:
        guard = PolicyCapability(engine_of(BOTH, journal=JournalWriter(file)))
        agent, _ = paying(says([("pay", {"amount": 5}), ("look", {"page": 1})], *pages(2, 3), "done"), guard)
        agent.run_sync(**approved(agent.run_sync("task")))
    pairs = list(replay_journal(tmp_path / "j.jsonl", engine_of(BOTH)))
    assert len(pairs) > 10
    assert all(recorded == now for recorded, now in pairs)


RULES = """\
parsing: {max_retry: 0}
extensions:
  stall_detector:
    with:
      repeat: {hint: 2, deny: 3, stop: 5}
      cycle: {hint: 2, deny: 3, wind_down: 4}
      text: {hint: 2, stop: 3}
  failure_hint_injector: {with: {levels: {hint: 1, deny: 3}}}
  step_limit: {with: {max_steps: 7, wind_down_at: 6}}
  tool_call_limit: {with: {calls: 9, tools: {b: 4}}}
"""

made_calls = st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.sampled_from("xy"), st.booleans())
responses = st.one_of(st.lists(made_calls, min_size=1, max_size=3), st.sampled_from(["one", "two"]))


@settings(max_examples=60, deadline=None)
@given(st.lists(responses, max_size=10))
def test_whatever_a_model_does_decisions_are_those_of_a_replay_and_the_history_is_valid(turns):
    script = [
        say(turn)
        if isinstance(turn, str)
        else batch(
            *(
                ScriptedCall(name, {"n": number}, text, status="ok" if fine else "error")
                for name, number, text, fine in turn
            )
        )
        for turn in turns
    ]
    scenario = Scenario("any", RULES, tuple(script), (), offered=("a", "b", "c"))
    decisions, driven = Decisions(), Driven(scenario, waiting=True)  # in threads, results would come in any order
    driven.guard.engine.sinks.append(decisions)
    result = asyncio.run(driven.agent.run("task"))
    messages = result.all_messages()
    assert is_answered(messages)
    assert isinstance(messages[-1], ModelResponse)
    outcome = driven.guard.outcome_of(result)
    assert outcome.executed == len(driven.executed)
    assert outcome.status in ("completed", "stopped")
    assert_as_in_a_replay(decisions, scenario.engine(), as_chat(messages))


# ---- start-up


def test_nothing_of_the_framework_is_imported_until_it_is_used():
    code = "import sys, policyengine, policyengine.hosts.table; assert 'pydantic_ai' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_example_runs_without_a_key_and_ends_by_a_rule(tmp_path):
    program = ROOT / "examples" / "hosts" / "pydantic_ai_agent.py"
    keyless = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    ran = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=keyless, capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.endswith("stopped: repeat by stall_detector\n3 calls judged, 2 run\n")


def test_the_block_of_the_documentation_holds(capsys):
    page = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
    (block,) = re.findall(
        r"```python\n(.*?)```", page.partition("\n## pydantic-ai\n")[2].partition("\n## ")[0], re.DOTALL
    )
    exec(block, {})
    assert capsys.readouterr().out == "completed 0\n"
