"""The guarded agent in the Agents SDK's real loop: every action happens, every call is answered, a crash blocks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from policyengine import (
    ConfigError,
    Conversation,
    ScriptedCall,
    UsageError,
    batch,
    call,
    say,
)
from policyengine.history.check import check_history
from tests.hosts.own_rules import RULES, engine_of
from tests.hosts.replayed import MANY_RULES, Decisions, assert_as_in_a_replay, some_turns
from tests.hosts.scenarios import SCENARIOS, Scenario, Seen, check, look, scenarios_for

if not os.environ.get("POLICYENGINE_NEEDS_OPENAI_AGENTS"):
    pytest.importorskip("agents", reason="the extra `openai-agents` is not installed", exc_type=ImportError)

from agents import (
    Agent,
    FunctionTool,
    MaxTurnsExceeded,
    ModelRefusalError,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    RunHooks,
    RunState,
    SQLiteSession,
    ToolExecutionConfig,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    WebSearchTool,
    function_tool,
    set_tracing_disabled,
)
from agents.mcp import MCPServer
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as McpTool
from pydantic import BaseModel

from policyengine.hosts.closed import FAILED_TEXT
from policyengine.hosts.openai_agents import HOST, PolicyRun, agent_tool

ROOT = Path(__file__).parents[2]
ALL = pytest.mark.parametrize("scenario", scenarios_for(HOST), ids=lambda scenario: scenario.name)
EACH_WAY = pytest.mark.parametrize("way", ["async", "sync", "streamed"])
QUIET = RunConfig(tracing_disabled=True)
set_tracing_disabled(True)


@contextlib.contextmanager
def a_loop():
    """Give `Runner.run_sync` a loop: the one that it makes itself is closed by nobody."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def step(turn, number):
    """Return a turn as a step of the SDK's own scripted model."""
    output = [assistant_message(turn.text, item_id=f"m{number}")] if turn.text or not turn.calls else []
    for index, item in enumerate(turn.calls):
        sent = item.args if item.arguments is None else item.arguments
        output.append(function_call(item.tool, sent, call_id=f"c{number}-{index}"))
    return ModelStep(output=output, response_id=f"r{number}")


class Setting:
    """An agent for a scenario, with everything that is looked at afterwards."""

    def __init__(self, scenario, engine=None, tools=None, saved=None, steps=None, agent=None, **options):
        self.scenario = scenario
        self.executed: list[Any] = []
        self.ran: list[str] = []
        turns = [*scenario.turns, say("over")]
        self.model = ScriptedModel(steps or [step(turn, number) for number, turn in enumerate(turns)])
        made = tools if tools is not None else [self.tool(name, f) for name, f in scenario.tools().items()]
        self.made = Agent(name="helper", model=self.model, tools=made, **(agent or {}))
        self.guard = PolicyRun(self.made, engine or scenario.engine(), saved=saved, **options)
        self.result: Any = None

    def tool(self, name, function):
        async def invoke(context, arguments):
            args = json.loads(arguments)
            self.executed.append((name, args))
            self.ran.append(context.tool_call_id)
            try:
                return function(**args)
            except RuntimeError as error:
                return json.dumps({"success": False, "error": str(error)})

        schema = {"type": "object", "properties": {}, "additionalProperties": True}
        return FunctionTool(name, name, schema, invoke, strict_json_schema=False)

    def send(self, given, way="async"):
        options: dict[str, Any] = {"run_config": QUIET, "max_turns": 50}
        if way == "sync":
            with a_loop():
                self.result = self.guard.run_sync(given, **options)
        elif way == "async":
            self.result = asyncio.run(self.guard.run(given, **options))
        else:
            self.result = asyncio.run(self.stream(given, options))
        return self.result

    async def stream(self, given, options):
        result = self.guard.run_streamed(given, **options)
        async for _ in result.stream_events():
            pass
        return result

    def run(self, way="async"):
        result = self.send("task", way)
        while result.interruptions:
            state = result.to_state()
            for item in result.interruptions:
                if self.scenario.approve:
                    state.approve(item)
                else:
                    state.reject(item)
            result = self.send(state, way)
        return result

    @property
    def items(self):
        return self.result.to_input_list()

    @property
    def outcome(self):
        return self.guard.outcome


def outputs(items):
    return [item["output"] for item in items if item.get("type") == "function_call_output"]


def assert_valid(items):
    assert check_history(items, shape="openai_responses") == ()
    wanted = [item["call_id"] for item in items if item.get("type") == "function_call"]
    given = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert sorted(given) == sorted(wanted)


def assert_all_valid(setting):
    for made in setting.model.calls:
        assert_valid(made.input)
    assert_valid(setting.items)


def drive(scenario: Scenario, way: str = "async") -> Seen:
    setting = Setting(scenario)
    setting.run(way)
    assert_all_valid(setting)
    calls = [(item["call_id"], item["name"]) for item in setting.items if item.get("type") == "function_call"]
    # Notes are in requests only, and the last results may be in none.
    sent = [*setting.model.calls[-1].input, *setting.items]
    told = [item.get("output") or item.get("content") for item in sent if item.get("role", "tool") in ("user", "tool")]
    outcome = setting.outcome
    return Seen(
        executed=tuple(setting.executed),
        refused=tuple(name for id, name in calls if id not in setting.ran),
        told=tuple(map(str, told[1:])),
        requests=len(setting.model.calls),
        status=outcome.status,
        code=outcome.stop.code if outcome.stop and outcome.status != "completed" else "",
    )


@EACH_WAY
@ALL
def test_a_scenario_means_the_same_as_everywhere(scenario, way):
    check(scenario, drive(scenario, way))


# ---- rules of our own


def setting_of(policy, *turns, approve=None, **options):
    return Setting(Scenario("own", policy, turns, executed=(), approve=approve), engine_of(policy), **options)


@EACH_WAY
def test_a_result_is_given_as_a_rule_rewrote_it(way):
    setting = setting_of(RULES, call("look", {"page": 1}, "secret"), say("done"))
    setting.run(way)
    assert outputs(setting.items) == ["hidden"]
    assert_all_valid(setting)


@EACH_WAY
def test_a_result_that_ends_the_run_comes_before_the_last_word_and_no_model_is_asked(way):
    setting = setting_of(RULES, call("look", {"page": 1}, "stop"), say("never"))
    setting.run(way)
    assert len(setting.model.calls) == 1
    assert (setting.outcome.status, setting.outcome.stop.code) == ("stopped", "rules")
    assert setting.result.final_output == "rules said so"
    assert_all_valid(setting)


@EACH_WAY
def test_a_response_is_asked_for_again_and_leaves_no_trace(way):
    setting = setting_of("parsing: {max_retry: 1}\n" + RULES, say("once more"), say("done"))
    setting.run(way)
    assert [item["content"] for item in setting.model.calls[1].input] == ["task", "once more", "rules said so"]
    assert setting.result.final_output == "done"
    assert len(setting.items) == 2


@EACH_WAY
def test_a_response_of_no_use_is_asked_for_again_and_the_model_is_told(way):
    setting = setting_of("", say(""), look(1, "a"), say("done"))
    setting.run(way)
    assert len(setting.model.calls) == 3
    assert len(setting.model.calls[1].input) == 2
    assert setting.outcome.status == "completed"
    assert setting.result.final_output == "done"
    assert_valid(setting.items)


@EACH_WAY
def test_arguments_that_are_not_json_are_never_sent_on_and_the_run_goes_on(way):
    broken = ScriptedCall("look", result="never", arguments='{"page": oops')
    setting = setting_of("", batch(broken), call("look", {"page": 2}, "b"), say("done"))
    setting.run(way)
    assert setting.executed == [("look", {"page": 2})]
    assert setting.outcome.status == "completed"
    assert_all_valid(setting)


def test_arguments_that_can_be_mended_run_as_they_were_mended():
    mended = ScriptedCall("look", result="a", arguments='{"page": 1,}')
    setting = setting_of("parsing: {mode: repair}\n", batch(mended), say("done"))
    setting.run()
    assert setting.executed == [("look", {"page": 1})]
    assert_all_valid(setting)


def test_notes_stay_where_they_were_said():
    policy = "extensions:\n  stall_detector: {with: {repeat: {hint: 2}}}\n"
    setting = setting_of(policy, look(), look(), look(2, "x"), say("done"))
    setting.run()
    texts = [[at for at, item in enumerate(made.input) if item.get("role") == "user"] for made in setting.model.calls]
    assert texts == [[0], [0], [0, 5], [0, 5]]
    assert_all_valid(setting)


@EACH_WAY
def test_parallel_calls_report_to_one_run(way):
    calls = [ScriptedCall("look", {"page": page}, str(page)) for page in range(8)]
    setting = setting_of("extensions:\n  tool_call_limit: {with: {tools: {look: 5}}}\n", batch(*calls), say("done"))
    setting.run(way)
    assert [args["page"] for _, args in setting.executed] == [0, 1, 2, 3, 4]
    assert (setting.outcome.executed, setting.outcome.calls) == (5, 8)
    assert_all_valid(setting)


def test_calls_with_one_id_run_as_they_were_judged_and_each_has_its_answer():
    policy = "extensions:\n  tool_call_limit: {with: {tools: {look: 1}}}\n"
    twice = [function_call("look", {"page": page}, call_id="same", item_id=f"i{page}") for page in (1, 2)]
    setting = setting_of(policy, look(), say("done"), steps=[ModelStep(output=twice), step(say("done"), 1)])
    setting.run()
    assert setting.executed == [("look", {"page": 1})]
    assert_all_valid(setting)


@pytest.mark.parametrize("ended", ["answered", "stopped"])
def test_a_run_that_is_over_takes_no_second_task(ended):
    policy = "extensions:\n  step_limit: {with: {max_steps: 1}}\n"
    setting = setting_of(policy, *([say("x")] if ended == "answered" else [look(1, "a"), look(2, "b")]))
    setting.send("task", "sync")
    for way in ("sync", "async"):
        with pytest.raises(UsageError, match="make another one"):
            setting.send("another task", way)


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
    first.send("task", way)
    assert [item.raw_item.name for item in first.result.interruptions] == ["pay"]
    assert [first.guard.question(item) for item in first.result.interruptions] == [
        "rules said so (rules, policy.yaml:5)"
    ]
    assert first.executed == [("look", {"page": 1})]
    text, saved = first.result.to_state().to_string(), first.guard.save()
    steps = [step(turn, number + 2) for number, turn in enumerate(turns[2:])]
    other = setting_of(policy, *turns, saved=saved, steps=steps)
    state = asyncio.run(RunState.from_string(other.guard.agent, text))
    for item in state.get_interruptions():
        if approve:
            state.approve(item)
        else:
            state.reject(item)
    other.send(state, way)
    assert other.executed == [("pay", {"amount": 5})] * approve
    assert (other.outcome.status, other.outcome.calls) == ("completed", 3)
    assert other.outcome.executed == 1 + approve
    assert_valid(other.items)


def test_without_a_human_a_question_is_a_refusal():
    setting = setting_of(RULES, call("pay", {"amount": 5}), say("done"), attended=False)
    setting.run()
    assert (setting.executed, setting.outcome.status) == ([], "completed")


def test_the_approval_that_a_tool_wants_by_itself_stays():
    setting = setting_of(RULES, call("look", {"page": 1}, "a"), say("done"), tools=[])

    async def wanted(context, args, call_id):
        return args == {"page": 1}

    made = setting.tool("look", lambda page: "a")
    made.needs_approval = wanted
    setting.guard = PolicyRun(setting.made.clone(tools=[made]), engine_of(RULES))
    setting.send("task")
    assert len(setting.result.interruptions) == 1
    state = setting.result.to_state()
    state.approve(setting.result.interruptions[0])
    setting.send(state)
    assert len(setting.executed) == 1
    assert setting.outcome.executed == 1


def test_an_exception_of_a_tool_is_an_error_to_the_rules_and_the_model_reads_the_text_of_the_sdk():
    @function_tool
    def boom(page: int) -> str:
        """Fail."""
        raise LookupError("gone")

    policy = "extensions:\n  failure_hint_injector: {with: {levels: {hint: 1, deny: 2}}}\n"
    turns = [call("boom", {"page": page}) for page in range(3)]
    setting = setting_of(policy, *turns, say("done"), tools=[boom])
    setting.run()
    given = outputs(setting.items)
    assert given[0].startswith("An error occurred")
    assert "failure_hint_injector" in given[2]
    assert setting.outcome.executed == 2
    assert_all_valid(setting)


def test_a_tool_that_is_given_up_is_a_timeout():
    @function_tool(timeout=0.01)
    async def slow(page: int) -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return ""

    seen = []
    engine = engine_of("", sinks=[seen.append])
    scenario = Scenario("own", "", (call("slow", {"page": 1}), say("done")), executed=())
    setting = Setting(scenario, engine, tools=[slow])
    statuses = []
    real = setting.guard.host.answer_result
    setting.guard.host.answer_result = lambda id, result: statuses.append(result.status) or real(id, result)
    setting.run()
    assert statuses == ["timeout"]
    assert_all_valid(setting)


def test_an_exception_that_a_tool_lets_through_ends_the_run_as_failed():
    @function_tool(failure_error_function=None)
    def boom(page: int) -> str:
        """Fail."""
        raise LookupError("gone")

    setting = setting_of("", call("boom", {"page": 1}), tools=[boom])
    with pytest.raises(Exception, match="gone"):
        setting.run()
    assert setting.outcome.status == "failed"


def test_a_run_that_is_cancelled_in_a_tool_counts_it_as_started():
    begun = []

    async def stuck(context, arguments):
        begun.append(arguments)
        await asyncio.Event().wait()

    tool = FunctionTool("stuck", "Never ends.", {"type": "object", "properties": {}}, stuck, strict_json_schema=False)
    setting = setting_of("", call("stuck", {}), tools=[tool])

    async def cancelled():
        task = asyncio.create_task(setting.guard.run("task", run_config=QUIET))
        while not begun:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert (setting.outcome.status, setting.outcome.calls, setting.outcome.executed) == ("cancelled", 1, 1)


# ---- other agents


def two_agents(policy, *turns, target="other"):
    setting = setting_of(policy, *turns)
    look_tool = setting.tool("look", lambda page: "x")
    other = Agent(name=target, model=setting.model, tools=[look_tool])
    setting.made = Agent(name="first", model=setting.model, tools=[look_tool], handoffs=[other])
    other.handoffs.append(setting.made)
    setting.guard = PolicyRun(setting.made, engine_of(policy))
    return setting


@EACH_WAY
def test_an_agent_that_is_handed_to_is_guarded_as_part_of_the_run(way):
    policy = "extensions:\n  tool_call_limit: {with: {tools: {look: 2}}}\n"
    turns = (look(1), call("transfer_to_other"), look(2), look(3), say("done"))
    setting = two_agents(policy, *turns)
    setting.run(way)
    assert [args["page"] for _, args in setting.executed] == [1, 2]
    assert setting.result.last_agent.name == "other"
    assert (setting.outcome.status, setting.outcome.executed) == ("completed", 3)
    assert_all_valid(setting)


@EACH_WAY
def test_a_hand_off_that_is_refused_stays_where_it_is_and_is_answered(way):
    setting = two_agents(RULES, call("transfer_to_forbidden"), say("done"), target="forbidden")
    setting.run(way)
    assert setting.result.last_agent.name == "first"
    assert outputs(setting.items)[0].startswith("rules said so")
    assert_all_valid(setting)


def test_a_sub_agent_runs_under_the_policy_and_shares_the_budget_of_the_conversation():
    policy = "extensions:\n  tool_call_limit: {with: {tools: {look: 2}, scope: conversation}}\n"
    engine = engine_of(policy)
    inner = setting_of(policy, look(1, "a"), look(2, "b"), look(3, "c"), say("found"))
    sub = agent_tool(inner.made, engine, name="delegate", description="Have another agent look.")
    outer = setting_of(policy, call("delegate", {"task": "look"}), look(9, "z"), say("done"))
    look_tool = outer.tool("look", lambda page: "x")
    outer.guard = PolicyRun(outer.made.clone(tools=[sub, look_tool]), engine)
    outer.run()
    assert [args["page"] for _, args in inner.executed] == [1, 2]
    assert outer.executed == []
    assert outputs(outer.items)[0] == "found"
    assert_all_valid(outer)


def test_tools_that_nothing_could_refuse_are_refused_unless_they_are_named():
    plain = Agent(name="a")
    with pytest.raises(UsageError, match="web_search"):
        PolicyRun(Agent(name="b", tools=[WebSearchTool()]))
    PolicyRun(Agent(name="b", tools=[WebSearchTool()]), unguarded=["web_search"])
    with pytest.raises(UsageError, match="agent_tool"):
        PolicyRun(Agent(name="b", tools=[plain.as_tool("sub", "Another agent.")]))


class Report(BaseModel):
    """What the agent owes."""

    text: str


def test_an_agent_that_owes_an_object_ends_with_a_refusal_or_what_the_handler_gives():
    turns = (call("look", {"page": 1}, "stop"), say("never"))
    setting = setting_of(RULES, *turns, agent={"output_type": Report})
    with pytest.raises(ModelRefusalError, match="rules said so"):
        setting.run()
    assert setting.outcome.stop.code == "rules"
    setting = setting_of(RULES, *turns, agent={"output_type": Report})
    handlers = {"model_refusal": lambda given: Report(text=str(given.error))}
    result = asyncio.run(setting.guard.run("task", run_config=QUIET, error_handlers=handlers))
    assert isinstance(result.final_output, Report)


def test_the_agent_that_was_given_stays_as_it_was():
    setting = setting_of(RULES, say("done"))
    tool = setting.tool("look", lambda page: "x")
    agent = Agent(name="a", model=setting.model, tools=[tool])
    PolicyRun(agent, engine_of(RULES))
    assert agent.tools == [tool]
    assert tool.tool_input_guardrails is None
    assert agent.model is setting.model


def test_models_are_wrapped_wherever_they_come_from():
    for where in ("config", "name"):
        setting = setting_of(RULES, call("look", {"page": 1}, "stop"), say("never"))
        named = type("Provider", (), {"get_model": lambda self, name, model=setting.model: model})()
        config = RunConfig(tracing_disabled=True, **({"model": setting.model} if where == "config" else {}))
        if where == "name":
            config.model_provider = named
        setting.guard = PolicyRun(setting.made.clone(model="a-name"), engine_of(RULES))
        result = asyncio.run(setting.guard.run("task", run_config=config))
        assert result.final_output == "rules said so"


# ---- what the user has besides


def test_requests_that_the_sdk_sends_again_are_attempts_of_one_round_and_notes_go_with_each():
    policy = "extensions:\n  stall_detector: {with: {repeat: {hint: 2}}}\n"
    steps = [step(look(), 0), step(look(), 1), ModelStep.raise_error(ConnectionError("down")), step(say("done"), 2)]
    retry = ModelRetrySettings(max_retries=2, backoff={"initial_delay": 0.0}, policy=lambda _: True)
    settings = ModelSettings(retry=retry)
    setting = setting_of(policy, look(), steps=steps, agent={"model_settings": settings})
    setting.run()
    assert [len(made.input) for made in setting.model.calls] == [1, 3, 6, 6]
    assert (setting.outcome.status, setting.outcome.iterations) == ("completed", 3)


def test_guardrails_filters_and_hooks_of_the_user_stay():
    seen = []

    class Hooks(RunHooks):
        async def on_agent_end(self, context, agent, output):
            seen.append(output)

        async def on_tool_start(self, context, agent, tool):
            seen.append(tool.name)

    def shout(given):
        seen.append("filter")
        return given.model_data

    setting = setting_of("", look(1, "a"), look(13, "b"), say("done"), tools=[])
    made = setting.tool("look", lambda page: "a")
    made.tool_input_guardrails = [
        ToolInputGuardrail(
            lambda data: (
                ToolGuardrailFunctionOutput.reject_content("unlucky")
                if "13" in data.context.tool_arguments
                else ToolGuardrailFunctionOutput.allow()
            )
        )
    ]
    setting.guard = PolicyRun(setting.made.clone(tools=[made]), engine_of(""))
    config = RunConfig(tracing_disabled=True, call_model_input_filter=shout)
    setting.result = asyncio.run(setting.guard.run("task", run_config=config, hooks=Hooks()))
    assert seen == ["filter", "look", "filter", "filter", "done"]
    assert outputs(setting.items) == ["a", "unlucky"]
    assert (setting.outcome.calls, setting.outcome.executed) == (2, 1)


def test_the_turns_that_the_sdk_allows_end_the_run_as_failed():
    setting = setting_of("", look(1, "a"), look(2, "b"), say("done"))
    with pytest.raises(MaxTurnsExceeded):
        asyncio.run(setting.guard.run("task", run_config={"tracing_disabled": True}, max_turns=1))
    assert (setting.outcome.status, setting.outcome.executed) == ("failed", 1)


class Server(MCPServer):
    """A server of MCP with one tool."""

    def __init__(self):
        super().__init__()
        self.executed = []

    @property
    def name(self):
        return "server"

    async def connect(self):
        return None

    async def cleanup(self):
        return None

    async def list_tools(self, run_context=None, agent=None):
        return [McpTool(name="look", inputSchema={"type": "object", "properties": {"page": {"type": "integer"}}})]

    async def call_tool(self, tool_name, arguments, meta=None):
        self.executed.append(arguments)
        return CallToolResult(content=[TextContent(type="text", text="a")])

    async def list_prompts(self):
        return None

    async def get_prompt(self, name, arguments=None):
        return None


@EACH_WAY
def test_tools_of_an_mcp_server_are_guarded(way):
    policy = "extensions:\n  tool_call_limit: {with: {tools: {look: 1}}}\n"
    server = Server()
    setting = setting_of(policy, look(1), look(2), say("done"), tools=[], agent={"mcp_servers": [server]})
    setting.run(way)
    assert server.executed == [{"page": 1}]
    assert (setting.outcome.calls, setting.outcome.executed) == (2, 1)
    assert_all_valid(setting)


def test_runs_of_a_session_share_what_is_of_the_conversation():
    policy = "extensions:\n  tool_call_limit: {with: {tools: {look: 2}, scope: conversation}}\n"
    engine, session, talk = engine_of(policy), SQLiteSession("s"), Conversation("talk")
    setting = setting_of(policy, *[look(1, "a"), say("x")] * 3)
    for _ in range(3):
        run = PolicyRun(setting.made, engine, conversation=talk)
        asyncio.run(run.run("task", session=session, run_config=QUIET))
        assert run.outcome.status == "completed"
    assert len(setting.executed) == 2
    for made in setting.model.calls:
        assert_valid(made.input)
    session.close()


def test_runs_at_the_same_time_have_counts_of_their_own():
    policy = "extensions:\n  tool_call_limit: {with: {tools: {look: 2}}}\n"
    engine = engine_of(policy)
    settings = [Setting(Scenario("own", "", (look(1), look(2), look(3)), executed=()), engine) for _ in range(5)]

    async def all_of_them():
        await asyncio.gather(*(one.guard.run("task", run_config=QUIET) for one in settings))

    asyncio.run(all_of_them())
    assert [len(one.executed) for one in settings] == [2] * 5


def test_results_come_in_an_envelope_where_the_policy_says_so():
    setting = setting_of("tool_results: envelope\n", call("look", {"page": 1}, "a"), say("done"))
    setting.run()
    assert json.loads(outputs(setting.items)[0])["status"] == "ok"


# ---- failures of our own


def crash(monkeypatch, name):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(f"policyengine.hosts.openai_agents.{name}", broken)


@EACH_WAY
@pytest.mark.parametrize(
    "name",
    [
        "_Exchange._request",
        "forms.calls_in",
        "forms.call_of",
        "HostRun.after_model",
        "HostRun.before_model",
        "_readable",
    ],
)
def test_a_crash_of_ours_blocks_and_the_agent_ends(way, name, monkeypatch):
    setting = setting_of(RULES, call("look", {"page": 1}, "a"), say("done"))
    crash(monkeypatch, name)
    setting.run(way)
    assert setting.executed == []
    assert setting.result.final_output == FAILED_TEXT
    assert_valid(setting.items)


@EACH_WAY
@pytest.mark.parametrize("name", ["PolicyRun.cleared", "PolicyRun._ruling", "forms.sendable"])
def test_a_crash_of_ours_at_a_call_runs_nothing(way, name, monkeypatch):
    engine = SCENARIOS[9].engine()
    scenario = Scenario("own", "", (call("pay", {"amount": 500}, "paid"), say("done")), executed=())
    setting = Setting(scenario, engine)
    crash(monkeypatch, name)
    setting.run(way)
    assert setting.executed == []
    assert FAILED_TEXT in outputs(setting.items)
    assert_all_valid(setting)


def test_a_crash_of_ours_where_a_human_would_be_asked_runs_nothing(monkeypatch):
    setting = setting_of(RULES, call("pay", {"amount": 5}, "paid"), say("done"), approve=True)
    monkeypatch.setattr("policyengine.hosts.openai_agents.PolicyRun._asks", lambda *_: False)
    setting.run()
    assert (setting.executed, setting.outcome.status) == ([], "completed")
    assert_all_valid(setting)


def test_who_says_always_is_not_asked_again_and_the_rules_know():
    setting = setting_of(RULES, call("pay", {"amount": 5}, "paid"), call("pay", {"amount": 6}, "paid"), say("done"))
    setting.send("task")
    state = setting.result.to_state()
    state.approve(setting.result.interruptions[0], always_approve=True)
    setting.send(state)
    assert (len(setting.executed), setting.outcome.executed) == (2, 2)


def test_guardrails_before_approval_clear_nothing():
    setting = setting_of(RULES, call("pay", {"amount": 5}, "paid"), say("done"))
    execution = ToolExecutionConfig(pre_approval_tool_input_guardrails=True)
    config = RunConfig(tracing_disabled=True, tool_execution=execution)
    result = asyncio.run(setting.guard.run("task", run_config=config))
    assert setting.guard.memory["cleared"] == []
    state = result.to_state()
    state.reject(result.interruptions[0])
    asyncio.run(setting.guard.run(state, run_config=config))
    assert (setting.executed, setting.outcome.executed) == ([], 0)


@EACH_WAY
def test_a_crash_of_ours_after_a_call_withholds_its_result(way, monkeypatch):
    setting = setting_of(RULES, call("look", {"page": 1}, "a"), say("done"))
    crash(monkeypatch, "result_of")
    setting.run(way)
    assert "withheld" in outputs(setting.items)[0]
    assert_all_valid(setting)


def test_a_policy_that_wants_more_than_the_host_can_is_refused_when_it_is_loaded():
    policy = "extensions:\n  context_compaction:\n    with: {window: 1000}\n"
    with pytest.raises(ConfigError, match="R517"):
        PolicyRun(Agent(name="a"), engine_of(policy))


# ---- the same decisions as a replay


def chat_of(setting):
    """Return what happened as chat messages that say who wrote them."""
    chat: list[dict[str, Any]] = []
    for item in setting.items:
        if item.get("role") == "user":
            chat.append({"role": "user", "content": item["content"]})
        elif item.get("type") == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            if chat[-1].get("tool_calls") is None:
                chat.append({"role": "assistant", "tool_calls": []})
            chat[-1]["tool_calls"].append({"id": item["call_id"], "function": function})
        elif item.get("type") == "function_call_output":
            ran = item["call_id"] in setting.ran
            status = "error" if ran and "success" in item["output"] else "ok" if ran else "denied"
            chat.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"], "status": status})
        else:
            ours = item["id"] == "msg_policyengine"
            chat.append({"role": "assistant", "content": item["content"][0]["text"], "ours": ours})
    return chat


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.approve is None], ids=lambda one: one.name)
def test_decisions_are_those_of_a_replay(scenario):
    decisions = Decisions()
    setting = Setting(scenario, scenario.engine(sinks=[decisions]))
    setting.run()
    assert_as_in_a_replay(decisions, scenario.engine(), chat_of(setting))


@pytest.mark.parametrize("seed", range(15))
def test_decisions_of_many_rules_are_those_of_a_replay(seed):
    decisions = Decisions()
    scenario = Scenario("many", MANY_RULES, some_turns(seed), executed=())
    setting = Setting(scenario, scenario.engine(sinks=[decisions]))
    setting.run()
    assert_all_valid(setting)
    assert_as_in_a_replay(decisions, scenario.engine(), chat_of(setting))


def test_the_block_of_the_documentation_holds(capsys, monkeypatch):
    monkeypatch.setattr("agents.MultiProvider.get_model", lambda *_: ScriptedModel([[assistant_message("at nine")]]))
    page = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
    section = page.partition("\n## OpenAI Agents SDK\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    with a_loop():
        exec(block, {"__name__": "page"})
    assert capsys.readouterr().out == "at nine completed 0\n"
