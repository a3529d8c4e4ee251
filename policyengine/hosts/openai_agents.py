"""Agents of the OpenAI Agents SDK under a policy: the agent, its tools and those it hands off to, guarded as one run.

Knows: where the SDK asks before it acts. Must not know: how anything is decided.

`RunHooks` only observe, so the model is wrapped: requests and responses are judged there, before the SDK acts on them,
and there the run ends, with a last message in the model's place. Every tool carries guardrails of ours (refusals,
results), a wrapped `on_invoke_tool` (arguments as a rule rewrote them) and `needs_approval` (questions).

The extra `openai-agents` installs what is needed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from time import monotonic
from typing import Any, cast

import msgspec
from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelProvider,
    ModelResponse,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    ToolsToFinalOutputResult,
    Usage,
    function_tool,
    handoff,
)

from policyengine.engine import Engine
from policyengine.errors import UsageError
from policyengine.hosts import openai_items as forms
from policyengine.hosts.able import require
from policyengine.hosts.closed import ADAPTER_FAILED, FAILED_TEXT, WITHHELD_TEXT, fail_closed
from policyengine.hosts.core import HostRun
from policyengine.hosts.shapes import get, read_call
from policyengine.hosts.state import Ruling
from policyengine.hosts.table import HOSTS
from policyengine.messages import Message, ModelRequest, ToolSpec
from policyengine.outcome import Outcome, OutcomeStatus
from policyengine.policy.model import Policy
from policyengine.runstate import StopReason
from policyengine.subagent import envelope, running, runs_above
from policyengine.toolset import failure_of, result_of, timeout_of
from policyengine.workers import fault_text

HOST = HOSTS["openai_agents"]

_SYNC = "__agents_sync_function_tool__"
_OBSERVED = [name for name in dir(RunHooks) if name.startswith("on_") and name != "on_agent_end"]


def _reject(text: str) -> ToolGuardrailFunctionOutput:
    return ToolGuardrailFunctionOutput.reject_content(text)


class PolicyRun:
    """One run of an agent under a policy: `run`, `run_sync` and `run_streamed` are those of `Runner`.

    The agent itself stays as it is; `agent` is the guarded one. Give its result's `RunState` to `run` to go on after
    approvals. For another task, make another one; `question` says what a rule asks about an interruption.

    Args:
        agent: what `Runner.run` would be given.
        policy: a shipped policy, a file, a `Policy`, or an `Engine` that several runs share.
        attended: whether interruptions reach a human; otherwise what would be asked is refused.
        unguarded: names of tools that run outside these guards all the same: hosted ones, computers, shells.
        saved: what `save` returned, to go on in another process.
        options: those of `Engine.start_run` (`run_id`, `conversation`), and `ledger`, which reserves what rules count
            together with other processes (`docs/fleets.md`).

    Attributes: `warnings` are the problems of the policy on this host that forbid nothing.

    Raises:
        ConfigError: the policy cannot be used, or asks for what this host cannot do.
        UsageError: the agent has a tool that cannot be guarded.
    """

    def __init__(
        self,
        agent: Agent[Any],
        policy: str | Path | Policy | Engine = "default",
        *,
        attended: bool = True,
        unguarded: Collection[str] = (),
        saved: bytes | None = None,
        **options: Any,
    ) -> None:
        self.engine = policy if isinstance(policy, Engine) else Engine(policy)
        self.warnings = require(self.engine.snapshot, HOST)
        if saved is None:
            self.host = HostRun(self.engine, HOST, attended=attended, **{"agent": agent.name, **options})
        else:
            self.host = HostRun.resume(self.engine, HOST, saved, attended=attended, ledger=options.get("ledger"))
        self.memory: dict[str, Any] = self.host.state.extra or {"rulings": [], "notes": [], "cleared": []}
        self.host.state.extra = self.memory
        self.host.was_started = lambda call_id: call_id in self.memory["cleared"]
        self._unguarded = frozenset(unguarded)
        self._agents: dict[int, tuple[Any, Any]] = {}
        self._errors: dict[str, Exception] = {}
        self._late: dict[str, float] = {}
        self.agent = self.guard(agent)

    # ---- running

    async def run(self, given: Any, **options: Any) -> Any:
        """Run the agent as `Runner.run` does, and end the run unless it waits for approvals."""
        self._begin(given)
        try:
            result = await Runner.run(self.agent, given, **self.options(**options))
        except BaseException as error:
            self._broken(error)
            raise
        self.finish(result)
        return result

    def run_sync(self, given: Any, **options: Any) -> Any:
        """Run the agent as `Runner.run_sync` does."""
        self._begin(given)
        try:
            result = Runner.run_sync(self.agent, given, **self.options(**options))
        except BaseException as error:
            self._broken(error)
            raise
        self.finish(result)
        return result

    def run_streamed(self, given: Any, **options: Any) -> Any:
        """Run the agent as `Runner.run_streamed` does; the final output ends the run. After an error, call `finish`."""
        self._begin(given)
        return Runner.run_streamed(self.agent, given, **self.options(**options))

    def options(self, **options: Any) -> dict[str, Any]:
        """Return what `Runner` must be given besides the guarded agent, around what you give it."""
        config = options.get("run_config") or RunConfig()
        config = RunConfig(**config) if isinstance(config, dict) else config
        model = config.model
        config = dataclasses.replace(
            config,
            model=self.wrapped(model) if isinstance(model, Model) else model,
            model_provider=_PolicyProvider(self, config.model_provider),
            tool_not_found_behavior="return_error_to_model",
            tool_error_formatter=self._formatter(config.tool_error_formatter),
        )
        return {**options, "run_config": config, "hooks": _Ending(self, options.get("hooks") or RunHooks())}

    def _begin(self, given: Any) -> None:
        if not isinstance(given, RunState):
            if self.host.ended:
                raise UsageError(
                    "this PolicyRun has ended: for another task make another one (they may share an Engine)"
                )
            self.host.begin(forms.task_of(given))

    def finish(self, result: Any = None, *, status: OutcomeStatus | None = None, error: str = "") -> Outcome | None:
        """End the run with a result of `Runner`; one that waits for approvals stays open (`None`)."""
        if getattr(result, "interruptions", None):
            return None
        output = getattr(result, "final_output", None)
        return self.host.end(status, output="" if output is None else str(output), error=error)

    def _broken(self, error: BaseException) -> None:
        status: OutcomeStatus = "failed" if isinstance(error, Exception) else "cancelled"
        self.finish(status=status, error=fault_text(error))

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended, once it has."""
        return self.host.outcome

    @property
    def stop(self) -> StopReason | None:
        """Why the run ended, where a rule ended it."""
        return self.host.stop

    def question(self, item: Any) -> str:
        """Return what a rule asks about an interruption, with the rule and where it stands; empty where none asks."""
        ruling = self._ruling(str(get(item.raw_item, "call_id") or ""))
        return ruling.shown if ruling is not None and ruling.action == "ask" else ""

    def save(self) -> bytes:
        """Return the run, to be kept beside the SDK's `RunState`."""
        self.host.state.recent.clear()  # no result comes late to a run that waits, and calls may hold whole files
        return self.host.save()

    # ---- guarding

    def guard(self, agent: Agent[Any]) -> Agent[Any]:
        """Return a guarded copy of an agent, of its tools, and of the agents it hands off to."""
        known = self._agents.get(id(agent))
        if known is not None:
            return known[1]
        made = agent.clone(tools=[self._tool(tool) for tool in agent.tools], handoffs=[])
        if made.tool_use_behavior != "run_llm_again":
            made.tool_use_behavior = _Behaviour(self, made.tool_use_behavior)
        if isinstance(made.model, Model):
            made.model = self.wrapped(made.model)
        self._agents[id(agent)] = (agent, made)
        self._agents[id(made)] = (made, made)
        made.handoffs = [self._handoff(item, made) for item in agent.handoffs]
        if agent.mcp_servers:
            theirs = made.get_mcp_tools

            async def get_mcp_tools(context: Any) -> list[Any]:
                return [self._tool(tool) for tool in await theirs(context)]

            made.get_mcp_tools = get_mcp_tools
        return made

    def wrapped(self, model: Model) -> Model:
        """Return a model whose requests and responses are judged."""
        return model if isinstance(model, _PolicyModel) else _PolicyModel(self, model)

    def _tool(self, tool: Any) -> Any:
        if not isinstance(tool, FunctionTool):
            if tool.name not in self._unguarded:
                raise UsageError(
                    f"tool {tool.name!r} runs where nothing can refuse it: name it in `unguarded`, or drop it"
                )
            return tool
        if isinstance(tool.on_invoke_tool, _Invoker):
            return tool
        if tool._is_agent_tool and tool.name not in self._unguarded:
            raise UsageError(f"tool {tool.name!r} runs an agent that nothing guards: make it with `agent_tool`")
        made = copy.copy(tool)
        made.on_invoke_tool = _Invoker(self, made.on_invoke_tool)
        # Others may refuse before, and change after: what ours allows runs, and ours sees what a tool really said.
        before = ToolInputGuardrail(self.before_call, "policyengine")
        after = ToolOutputGuardrail(self.after_call, "policyengine")
        made.tool_input_guardrails = [*(tool.tool_input_guardrails or ()), before]
        made.tool_output_guardrails = [after, *(tool.tool_output_guardrails or ())]
        made.needs_approval = self._approval(tool.needs_approval)
        return made

    def _approval(self, theirs: Any) -> Callable[[Any, dict[str, Any], str], Awaitable[bool]]:
        async def needs_approval(context: Any, args: dict[str, Any], call_id: str) -> bool:
            if self._asks(call_id):
                return True
            said = theirs(context, args, call_id) if callable(theirs) else theirs
            return bool(await said if inspect.isawaitable(said) else said)

        return needs_approval

    @fail_closed(lambda *_: False)
    def _asks(self, call_id: str) -> bool:
        """Return whether a human is to be asked. Where nobody was, such a call does not run either."""
        ruling = self._ruling(call_id)
        return ruling is not None and ruling.action == "ask"

    def _handoff(self, item: Any, source: Agent[Any]) -> Any:
        """Return a hand-off that is refused by staying with the agent that asked for it."""
        if isinstance(item, Agent):
            item = handoff(self.guard(item))
        told: dict[str, str] = {}
        made = copy.copy(item)

        async def on_invoke_handoff(context: Any, arguments: str) -> Any:
            ruling = self._handing(made.tool_name)
            if ruling is None or not ruling.runs:
                told["text"] = ruling.text if ruling is not None else FAILED_TEXT
                return source
            target = self.guard(await item.on_invoke_handoff(context, arguments))
            told["text"] = self._handed(ruling, item.get_transfer_message(target))
            return target

        made.on_invoke_handoff = on_invoke_handoff
        made.get_transfer_message = lambda agent: told.pop("text", FAILED_TEXT)
        return made

    @fail_closed(lambda *_, **__: None)
    def _handing(self, name: str) -> Ruling | None:
        """Return the ruling on the hand-off that the SDK takes: the first one of a response."""
        ruling = next((one for one in self._rulings() if one.call.name == name), None)
        if ruling is not None and ruling.action == "ask":  # the SDK asks nobody about a hand-off
            return self.host.approve(ruling.call.id, None)
        return ruling

    @fail_closed(lambda error, run, ruling, text: text)
    def _handed(self, ruling: Ruling, text: str) -> str:
        return self.host.answer(ruling.call.id, text)

    def _rulings(self) -> list[Ruling]:
        return [msgspec.convert(kept, Ruling) for kept in self.memory["rulings"]]

    def _ruling(self, call_id: str) -> Ruling | None:
        kept = next((one for one in self.memory["rulings"] if one["call"]["id"] == call_id), None)
        return None if kept is None else msgspec.convert(kept, Ruling)

    # ---- calls

    @fail_closed(lambda *_, **__: _reject(FAILED_TEXT))
    def before_call(self, data: Any) -> ToolGuardrailFunctionOutput:
        """Let a call run, or answer it (a guardrail of the SDK)."""
        ruling = self.cleared(data.context)
        # The SDK may ask guardrails before it asks the human; then nothing is cleared, and nothing runs.
        return ToolGuardrailFunctionOutput.allow() if ruling.runs or ruling.action == "ask" else _reject(ruling.text)

    def cleared(self, context: Any) -> Ruling:
        """Return the ruling on a call that is about to run; one that the SDK made itself is judged now."""
        call_id = context.tool_call_id
        ruling = self._ruling(call_id)
        if ruling is None:
            ruling = self.host.call(read_call(call_id, context.tool_name, context.tool_arguments))
            if ruling.action == "ask":  # the time to ask is over
                ruling = self.host.approve(call_id, None)
            self._rule([*self._rulings(), ruling])
        if ruling.action == "ask" and context.is_tool_approved(context.tool_name, call_id) is True:
            ruling = self._approved(call_id, True)
        if ruling.runs:
            self.memory["cleared"] = [*self.memory["cleared"], call_id]
        return ruling

    def _approved(self, call_id: str, approved: bool) -> Ruling:
        """Report what a human said about a call, and keep the ruling that came of it."""
        ruling = self.host.approve(call_id, approved)
        self._rule([ruling if one.call.id == call_id else one for one in self._rulings()])
        return ruling

    def _rule(self, rulings: list[Ruling]) -> None:
        self.memory["rulings"] = msgspec.to_builtins(rulings)

    @fail_closed(lambda *_, **__: None)
    def arguments(self, context: Any, given: str) -> str | None:
        """Return the arguments with which a call runs; `None` for a call that may not run."""
        ruling = self._ruling(context.tool_call_id)
        if ruling is None or context.tool_call_id not in self.memory["cleared"]:
            return None
        return forms.sendable(ruling.call) if ruling.changed else given

    @fail_closed(lambda *_, **__: _reject(WITHHELD_TEXT))
    def after_call(self, data: Any) -> ToolGuardrailFunctionOutput:
        """Report a result, and replace its text where a rule changed it (a guardrail of the SDK)."""
        call_id = data.context.tool_call_id
        ruling = self._ruling(call_id)
        if ruling is None or not ruling.runs:
            return ToolGuardrailFunctionOutput.allow()
        text = forms.result_text(data.output)
        error, late = self._errors.pop(call_id, None), self._late.pop(call_id, None)
        if late is not None:
            result = timeout_of(ruling.call, text, late)
        elif error is not None:
            result = msgspec.structs.replace(failure_of(ruling.call, error), text=text)
        else:
            result = result_of(ruling.call, text)
        result = msgspec.structs.replace(result, beside=forms.beside_of(data.output))
        told = self.host.answer_result(call_id, result)
        # An image, a file or any other value stays as it is, unless a rule gave a text for it.
        return ToolGuardrailFunctionOutput.allow() if told.text == result.text else _reject(told.text)

    def ran(self, call_id: str) -> bool:
        """Return whether a call was allowed to run, as far as anything is known of it."""
        ruling = self._ruling(call_id)
        return ruling is None or ruling.runs

    @fail_closed(lambda *_, **__: None)
    def raised(self, call_id: str, error: Exception) -> None:
        """Report a tool whose exception ends the run of the SDK."""
        ruling = self._ruling(call_id)
        if ruling is not None:
            self.host.answer_result(call_id, failure_of(ruling.call, error))

    def timed_out(self, call_id: str, after_s: float) -> None:
        """Remember that a call was given up."""
        self._late[call_id] = after_s

    def _formatter(self, theirs: Any) -> Callable[[Any], Awaitable[str | None]]:
        """Return a formatter of the SDK's error texts that gives ours where there is one."""

        async def formatter(given: Any) -> str | None:
            text = self._error_text(given)
            if text is not None or theirs is None:
                return text
            said = theirs(given)
            told: str | None = await said if inspect.isawaitable(said) else said
            return told

        return formatter

    @fail_closed(lambda *_, **__: FAILED_TEXT)
    def _error_text(self, given: Any) -> str | None:
        if given.kind == "tool_exception":
            self._errors[given.call_id] = given.error
            return None
        ruling = self._ruling(given.call_id)
        if ruling is None:
            return None
        if given.kind == "approval_rejected" and ruling.action == "ask":
            ruling = self._approved(given.call_id, False)
        return ruling.text or None


class _Invoker:
    """The invoker of a tool: with the arguments as they were ruled on, and only for a call that may run."""

    def __init__(self, run: PolicyRun, inner: Any) -> None:
        self._run = run
        self._inner = inner
        if getattr(inner, _SYNC, False):  # the SDK then waits for the thread of a tool that it gave up
            setattr(self, _SYNC, True)

    async def __call__(self, context: Any, given: str) -> Any:
        run, call_id = self._run, context.tool_call_id
        arguments = run.arguments(context, given)
        if arguments is None:
            return FAILED_TEXT
        started = monotonic()
        try:
            with running(run.host.run):
                return await self._inner(context, arguments)
        except asyncio.CancelledError:
            run.timed_out(call_id, monotonic() - started)
            raise
        except Exception as error:
            run.raised(call_id, error)
            raise


class _Behaviour:
    """What the agent's `tool_use_behavior` says of the calls that ran: a refusal is never its final output."""

    def __init__(self, run: PolicyRun, theirs: Any) -> None:
        self._run = run
        self._theirs = theirs

    async def __call__(self, context: Any, results: list[Any]) -> ToolsToFinalOutputResult:
        theirs = self._theirs
        ran = [one for one in results if self._run.ran(str(get(getattr(one.run_item, "raw_item", None), "call_id")))]
        if not ran:
            return ToolsToFinalOutputResult(is_final_output=False)
        if callable(theirs):
            said = theirs(context, ran)
            judged: ToolsToFinalOutputResult = await said if inspect.isawaitable(said) else said
            return judged
        if isinstance(theirs, dict):
            names = theirs.get("stop_at_tool_names", [])
            ran = [one for one in ran if one.tool.name in names or one.tool.qualified_name in names]
        return ToolsToFinalOutputResult(is_final_output=bool(ran), final_output=ran[0].output if ran else None)


class _Ending(RunHooks[Any]):
    """Ends the run where the SDK has its final output; everything else is the user's own hooks."""

    def __init__(self, run: PolicyRun, theirs: Any) -> None:
        self._run = run
        self._theirs = theirs
        for name in _OBSERVED:
            setattr(self, name, getattr(theirs, name))

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """End the run."""
        await self._theirs.on_agent_end(context, agent, output)
        self._run.host.end(output=str(output))


class _PolicyProvider(ModelProvider):
    """Looks models up by name, and wraps them."""

    def __init__(self, run: PolicyRun, inner: ModelProvider) -> None:
        self._run = run
        self._inner = inner
        self._models: dict[str | None, Model] = {}

    def get_model(self, model_name: str | None) -> Model:
        """Return the model of this name, wrapped."""
        if model_name not in self._models:
            self._models[model_name] = self._run.wrapped(self._inner.get_model(model_name))
        return self._models[model_name]

    async def aclose(self) -> None:
        """Release what the provider holds."""
        await self._inner.aclose()


class _Exchange:
    """One request and what came of it: `send` gives the items to send, `take` says whether the response is used."""

    def __init__(self, run: PolicyRun, given: Any, tools: Any, handoffs: Any, schema: Any) -> None:
        self.run = run
        self.items = forms.as_items(given)
        self.tools = list(tools)
        self.names = {*(tool.name for tool in tools), *(item.tool_name for item in handoffs)}
        self.structured = schema is not None and not schema.is_plain_text()
        self._kept: list[Any] = []  # responses that could not be used, and what was said about them
        self._aside: list[Any] = []  # goes with the next attempt only

    def ending(self) -> list[Any]:
        """Return the output that ends the run."""
        host = self.run.host
        text = host.farewell or (host.outcome.output if host.outcome is not None else "") or FAILED_TEXT
        return [forms.ending_item(text, structured=self.structured)]

    def failed(self, error: Exception) -> list[Any]:
        """End the run after a failure of ours; return the output that ends it."""
        self.run.host.give_up(error)
        return [forms.ending_item(FAILED_TEXT, structured=self.structured)]

    @fail_closed(lambda error, exchange: exchange.run.host.give_up(error) and None)
    def send(self) -> list[Any] | None:
        """Return what to send; `None` where the run is over."""
        host, memory = self.run.host, self.run.memory
        for tool in self.tools:
            guarded = isinstance(tool, FunctionTool) and isinstance(tool.on_invoke_tool, _Invoker)
            if not guarded and (isinstance(tool, FunctionTool) or tool.name not in self.run._unguarded):
                raise UsageError(f"tool {tool.name!r} came during the run, and nothing guards it")
        self._catch_up()
        host.tools = self.names
        move = host.before_model(self._request())
        if move.action == "end":
            return None
        last = forms.mark_of(self.items[-1]) if self.items else ""
        made = [{"after": last, "text": note.text} for note in move.notes]
        if self._kept:
            self._kept += [forms.user_item(note["text"]) for note in made]
        else:
            memory["notes"] = [*memory["notes"], *made]
        sent = [*forms.with_notes(self.items, memory["notes"]), *self._kept, *self._aside]
        self._aside = []
        return sent

    def _catch_up(self) -> None:
        """Take note of questions to which a human said no."""
        outputs = forms.outputs_in(self.items)
        for ruling in self.run._rulings():
            if ruling.action == "ask" and ruling.call.id in outputs:
                self.run.host.approve(ruling.call.id, False)

    def _request(self) -> ModelRequest:
        messages = tuple(
            Message("user" if get(item, "role") != "assistant" else "assistant", forms.text_of(item["content"]))
            for item in self.items
            if isinstance(item, dict) and "content" in item
        )
        tools = tuple(ToolSpec(tool.name, get(tool, "description") or "") for tool in self.tools)
        return ModelRequest(messages, tools)

    @fail_closed(lambda error, exchange, *_: exchange.failed(error))
    def take(self, output: list[Any], usage: Any) -> list[Any] | None:
        """Have a response judged; return the output to act on, or `None` to ask once more."""
        sent = forms.calls_in(output)
        text = forms.said_in(output)
        outside = forms.outside_in(output)
        marks = " ".join(map(forms.mark_of_item, outside))
        turn = self.run.host.after_model(
            f"{text}\n{marks}".strip() if outside and not sent else text,
            [forms.call_of(item) for item in sent],
            reasoning=forms.thought_in(output),
            usage=forms.usage_of(usage),
        )
        said = [forms.assistant_item(text)] if text else []
        if turn.kind == "retry":
            self._aside = [*said, forms.user_item(turn.notice)]
            return None
        if turn.kind == "unusable":
            self._kept += said
            for ruling in turn.rulings:
                self._kept += forms.call_items(ruling.call, ruling.text)
            return None
        if turn.kind == "ended" and not sent:
            return self.ending()
        if turn.kind == "ended":
            output = [item for item in output if item not in outside]
        elif outside:
            self.run.host.state.final = False  # it is no answer: the SDK runs what it calls, and asks again
        for item, ruling in zip(sent, turn.rulings, strict=True):
            item.call_id = ruling.call.id
            if not isinstance(forms.call_of(item).args, dict):
                item.arguments = forms.sendable(ruling.call)
        rulings = [_readable(ruling) for ruling in turn.rulings]
        self.run._rule(rulings)
        self.run.memory["cleared"] = []
        return output


def _readable(ruling: Ruling) -> Ruling:
    """Return a ruling that lets no call run whose arguments nobody could read."""
    if not ruling.runs or isinstance(ruling.call.args, dict):
        return ruling
    return Ruling(ruling.call, "refuse", FAILED_TEXT, ADAPTER_FAILED)


class _PolicyModel(Model):
    """A model whose requests and responses are judged before the SDK acts on them."""

    def __init__(self, run: PolicyRun, inner: Model) -> None:
        self._run = run
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)

    async def close(self) -> None:
        """Release what the model holds."""
        await self._inner.close()

    def get_retry_advice(self, request: Any) -> Any:
        """Return the model's own advice."""
        return self._inner.get_retry_advice(request)

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,
        model_settings: Any,
        tools: Any,
        output_schema: Any,
        handoffs: Any,
        tracing: Any,
        **more: Any,
    ) -> ModelResponse:
        """Return a response that was judged, or the end of the run."""
        exchange = _Exchange(self._run, input, tools, handoffs, output_schema)
        while (items := exchange.send()) is not None:
            response = await self._inner.get_response(
                system_instructions, items, model_settings, tools, output_schema, handoffs, tracing, **more
            )
            taken = exchange.take(response.output, response.usage)
            if taken is not None:
                response.output = taken
                return response
        return ModelResponse(output=exchange.ending(), usage=Usage(), response_id=None)

    async def stream_response(
        self,
        system_instructions: str | None,
        input: Any,
        model_settings: Any,
        tools: Any,
        output_schema: Any,
        handoffs: Any,
        tracing: Any,
        **more: Any,
    ) -> AsyncIterator[Any]:
        """Pass the events on; the last one is held back until its response was judged."""
        exchange = _Exchange(self._run, input, tools, handoffs, output_schema)
        while (items := exchange.send()) is not None:
            done: list[Any] = []
            events = self._inner.stream_response(
                system_instructions, items, model_settings, tools, output_schema, handoffs, tracing, **more
            )
            async with contextlib.aclosing(cast(Any, events)) as stream:
                async for event in stream:
                    if event.type == "response.output_item.done":
                        done.append(event.item)
                    if event.type != "response.completed":
                        yield event
                        continue
                    taken = exchange.take(event.response.output or done, event.response.usage)
                    if taken is not None:
                        event.response.output = taken
                        yield event
                        return
                    break
                else:
                    return  # the model ended it otherwise, and the SDK knows what to do
        for event in forms.stream_of(exchange.ending()):
            yield event


def agent_tool(
    agent: Agent[Any],
    policy: str | Path | Policy | Engine = "default",
    *,
    name: str,
    description: str,
    shared: bool = True,
    max_turns: int | None = None,
) -> FunctionTool:
    """Return a tool that hands a task to another agent, which runs under the policy as a run of its own.

    A sub-agent that is stopped ends its own run only; its parent reads why. With `shared` it has the conversation of
    the run that calls it, and so one budget with it. Nobody is asked within it.
    """
    engine = policy if isinstance(policy, Engine) else Engine(policy)

    async def work(task: str) -> str:
        above = runs_above()
        conversation = above[-1].conversation if shared and above else None
        run = PolicyRun(agent, engine, attended=False, conversation=conversation)
        await run.run(task, max_turns=max_turns)
        told = envelope(name, run.finish() or Outcome("cancelled"))
        return told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)

    return function_tool(work, name_override=name, description_override=description)
