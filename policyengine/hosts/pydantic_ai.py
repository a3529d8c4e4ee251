"""`PolicyCapability`: the rules around agents of pydantic-ai, as one of its capabilities (extra `pydantic-ai`).

Knows: the life of a run in pydantic-ai, how its hooks refuse, defer, change and end. Must not know: rules.

A response is judged as a whole before its node runs, so every way to drive an agent is covered: `run`, `run_sync`,
`run_stream`, `iter`. Refusals are results of their calls. A run that a rule ends gets one closing message instead of
another request, so its history stays one that can be continued.

What fails in here refuses: a call is answered with a refusal, a request is not sent (see `closed`).
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import replace
from time import monotonic
from typing import Any

import msgspec
from pydantic import ValidationError
from pydantic_ai import CallToolsNode, ModelRequestNode, TextOutput
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import (
    AgentRunError,
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    SkipModelRequest,
    SkipToolExecution,
    SkipToolValidation,
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestContext, infer_model
from pydantic_ai.result import FinalResult
from pydantic_ai.tools import DeferredToolRequests, RunContext, ToolDefinition, ToolDenied
from pydantic_graph import End

from policyengine.engine import Engine
from policyengine.hosts.able import require
from policyengine.hosts.closed import ADAPTER_FAILED, FAILED_TEXT, WITHHELD_TEXT, fail_closed
from policyengine.hosts.core import HostRun
from policyengine.hosts.guard import GuardStopped
from policyengine.hosts.pydantic_ai_history import (
    answers_after,
    call_of,
    closing,
    facts_of,
    given_result,
    last_response,
    last_task,
    pending_calls,
    plain_result,
    prompt_text,
    shorter,
    takes_nothing,
    text_of,
    waiting_key,
)
from policyengine.hosts.state import Move, Ruling, Turn
from policyengine.hosts.table import HOSTS
from policyengine.identity import call_identity
from policyengine.messages import ModelRequest as Request
from policyengine.messages import ToolCall, ToolError, ToolResult, ToolSpec
from policyengine.outcome import Outcome
from policyengine.runstate import Conversation
from policyengine.shared.account import check_ledger
from policyengine.shared.pools import Reserving
from policyengine.subagent import running, runs_above
from policyengine.toolset import failure_of
from policyengine.workers import fault_text

Approve = Callable[[ToolCall, str], bool | Awaitable[bool]]
"""Asked whether a call may run, with the question of the rule; only `True` lets it."""

MOST_KEPT = 1000
"""How many conversations, outcomes and paused runs one capability remembers."""

NOTHING = "(nothing)"
"""Stands for the answer of a model that may have none."""

_OUTSIDE = ("external", "unapproved")
"""Kinds of tools whose calls pydantic-ai defers by itself once they are valid."""


class PolicyStopped(GuardStopped):
    """A rule ended the run, and the agent's output is no text that could say so.

    `outcome` says why; `messages` is the history, which can be continued.
    """

    def __init__(self, outcome: Outcome, messages: list[ModelMessage]) -> None:
        super().__init__(outcome)
        self.messages = messages


class _Kept(OrderedDict[str, Any]):
    """A mapping that forgets its oldest entries."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > MOST_KEPT:
            self.popitem(last=False)


def _move_refused(error: Exception, capability: PolicyCapability, *_: Any) -> Move:
    return Move("end", stop=capability._broken(error).stop)


def _turn_refused(error: Exception, capability: PolicyCapability, _ctx: Any, response: ModelResponse) -> Turn:
    capability._judged = response
    rulings = tuple(Ruling(call_of(part), "refuse", FAILED_TEXT, ADAPTER_FAILED) for part in response.tool_calls)
    capability._rulings = {ruling.call.id: ruling for ruling in rulings}
    if not rulings:
        capability._broken(error)
    capability._turn = Turn("calls" if rulings else "ended", rulings)
    return capability._turn


def _ruling_refused(_error: Exception, _capability: Any, _ctx: Any, call: ToolCallPart) -> Ruling:
    return Ruling(ToolCall(call.tool_call_id, call.tool_name), "refuse", FAILED_TEXT, ADAPTER_FAILED)


def _result_withheld(_error: Exception, _capability: Any, _ruling: Ruling, _value: Any, _began: float) -> Any:
    return WITHHELD_TEXT


def _failure_withheld(_error: Exception, *_: Any) -> str:
    return WITHHELD_TEXT


class PolicyCapability(AbstractCapability[Any]):
    """A policy for agents: `Agent(..., capabilities=[PolicyCapability("default")])`.

    Args:
        policy: a shipped policy, a file, a `Policy`, or an `Engine` that several agents share.
        attended: whether somebody answers deferred calls; if not, what a rule would ask about is refused.
        approve: asked at once when a rule wants a human, instead of deferring the call.
        shared: sub-agents share the state of rules with scope `conversation` with the run that calls them.
        models: the models that a rule may choose, by name; another name is left to pydantic-ai (`openai:...`).
        stopped: gives the output of a run that a rule ended. Without it that is the rule's message where the agent's
            output is text, and `PolicyStopped` is raised where it is not.
        store: keeps runs that wait for a human, as bytes by the ids of conversation and run; by default in this process
            only.
        ledger: reserves what rules count together with other processes (`docs/fleets.md`).

    Attributes: `warnings` are the problems of the policy on this host that forbid nothing.

    Raises:
        ConfigError: the policy cannot be used, or asks for what pydantic-ai cannot do.
    """

    def __init__(
        self,
        policy: Any = "default",
        *,
        attended: bool = True,
        approve: Approve | None = None,
        shared: bool = True,
        models: Mapping[str, Model[Any]] | None = None,
        stopped: Callable[[Outcome], Any] | None = None,
        store: MutableMapping[str, bytes] | None = None,
        ledger: Reserving | None = None,
    ) -> None:
        self.engine = policy if isinstance(policy, Engine) else Engine(policy)
        self.host = HOSTS["pydantic_ai"]
        self.warnings = require(self.engine.snapshot, self.host)
        check_ledger(self.engine.snapshot.shared, ledger)
        self.ledger = ledger
        self.attended = attended or approve is not None
        self.approve = approve
        self.shared = shared
        self.models = dict(models or {})
        self.stopped = stopped
        self.store: MutableMapping[str, bytes] = _Kept() if store is None else store
        self._conversations: MutableMapping[str, Conversation] = _Kept()
        self._outcomes: MutableMapping[str, Outcome] = _Kept()
        self._start_anew()

    def _start_anew(self) -> None:
        self._run: HostRun | None = None
        self._judged: ModelResponse | None = None  # the response that `_turn` and `_rulings` are about
        self._turn = Turn("calls")
        self._rulings: dict[str, Ruling] = {}
        self._sent: dict[str, str] = {}  # by id of a call: the identity of what the model sent
        self._begun: set[str] = set()  # what may run, as far as we know: no other call was started
        self._said_last = ""
        self._notice = ""  # to be sent with the next request, and forgotten
        self._prompt = ""  # what the user said beside the results of deferred calls
        self._answers_in: frozenset[str] = frozenset()  # tools with which the model gives its final output
        self._takes_text = True
        self._typed = False

    def outcome_of(self, result: Any) -> Outcome | None:
        """Return how a run ended: of a result, or of the id of a run. `None` while it waits for a human."""
        return self._outcomes.get(result if isinstance(result, str) else result.run_id)

    # ---- the life of a run

    def get_ordering(self) -> CapabilityOrdering:
        """Return that this one is outermost: it refuses before others work, and sees results as the model does."""
        return CapabilityOrdering(position="outermost")

    async def for_run(self, ctx: RunContext[Any]) -> PolicyCapability:
        """Return an instance of its own for a run; what outlives runs is shared."""
        own = copy.copy(self)
        own._start_anew()
        return own

    @property
    def run(self) -> HostRun:
        """The run of this instance."""
        if self._run is None:
            raise RuntimeError("the capability was used outside a run")
        return self._run

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Begin and end our run around theirs."""
        self._open(ctx)
        try:
            result = await handler()
        except BaseException as error:
            known = not isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt)
            self._close(ctx, "failed" if known else "cancelled", fault_text(error))
            raise
        self._finish(ctx, result)
        return result

    def _open(self, ctx: RunContext[Any]) -> None:
        """Begin a run, or go on with the one that waits for the calls that are pending. What fails here raises."""
        key, runs = ctx.conversation_id or "", runs_above()
        pending = pending_calls(ctx.messages)
        prompt = prompt_text(ctx.prompt)
        waiting = waiting_key(key, ctx.messages)
        saved = self.store.get(waiting) if pending else None
        if saved is not None:
            self._run = HostRun.resume(self.engine, self.host, saved, attended=self.attended, ledger=self.ledger)
            self._run.was_started = self._was_started
            self._load(self._run.state.extra, pending)
            self._conversations[key] = self._run.run.conversation
            self._prompt = prompt
        self.store.pop(waiting, None)  # only now: a run that cannot go on yet may be tried again
        if saved is not None:
            return
        conversation = runs[-1].conversation if self.shared and runs else self._conversations.get(key)
        if conversation is None:
            conversation = Conversation()
        self._conversations[key] = conversation
        name = (ctx.agent.name if ctx.agent is not None else "") or ""
        options: dict[str, Any] = {"run_id": ctx.run_id or "", "agent": name, "conversation": conversation}
        self._run = HostRun(self.engine, self.host, attended=self.attended, ledger=self.ledger, **options)
        self._run.was_started = self._was_started
        self._run.begin(prompt or last_task(ctx.messages))

    def _was_started(self, call_id: str) -> bool:
        return call_id in self._begun

    def _finish(self, ctx: RunContext[Any], result: Any) -> None:
        """Report the end of a run that has a result; one that waits for a human is kept."""
        if isinstance(result.output, DeferredToolRequests) and self.run.open_calls and not self.run.ended:
            self.run.state.extra = {
                "rulings": {name: msgspec.to_builtins(item) for name, item in self._rulings.items()},
                "sent": self._sent,
            }
            self.run.state.recent.clear()  # no result comes late to it, and what calls hold may be whole files
            self.store[waiting_key(ctx.conversation_id or "", result.all_messages())] = self.run.save()
            return
        response = last_response(result.all_messages())
        if response is not None and response is not self._judged and not self._rulings.keys() & _ids(response):
            self._judge(ctx, response)  # `run_stream` hands out a final answer without a node for it
        self._close(ctx, "completed", output=str(result.output))

    def _close(self, ctx: RunContext[Any], status: Any, error: str = "", output: str = "") -> None:
        outcome = self.run.end(status, output=output, error=error)
        self._outcomes[ctx.run_id or ""] = outcome

    def _load(self, extra: Any, pending: frozenset[str]) -> None:
        kept = extra["rulings"].items()
        self._rulings = {name: msgspec.convert(item, Ruling) for name, item in kept if name in pending}
        self._sent = dict(extra["sent"])
        self._begun = {ruling.call.id for ruling in self._rulings.values()}  # others may have run them meanwhile

    # ---- requests

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Report a request; add notes to the history, change the request, or end the run instead."""
        move = self._before(ctx, request_context)
        if move.action == "end":
            last = self._closing(ctx)
            if self._takes_text or self.stopped is not None:
                raise SkipModelRequest(last)
            ctx.messages.append(last)  # as text it would be read as the output, which is of another type
            raise self._stopped(ctx)
        for note in move.notes:
            ctx.enqueue(note.text)
        if move.request is not None:
            request_context = await self._changed(ctx, request_context, move.request)
        if self._notice:
            notice, self._notice = ModelRequest([UserPromptPart(self._notice)]), ""
            request_context = replace(request_context, messages=[*request_context.messages, notice])
        return request_context

    @fail_closed(_move_refused)
    def _before(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> Move:
        parameters = request_context.model_request_parameters
        self._takes_text = (
            parameters.allow_text_output
            and parameters.output_mode in ("text", "tool")
            and parameters.output_object is None
            and not isinstance(getattr(ctx.agent, "output_type", None), TextOutput)
        )
        self._typed = parameters.output_object is not None and not parameters.output_tools
        self._look_at_answers(ctx.messages)
        if self._prompt:
            said, self._prompt = self._prompt, ""
            move = self.run.user_message(said)
            if move.action == "end":
                return move
        tools = tuple(
            ToolSpec(tool.name, tool.description or "", dict(tool.parameters_json_schema))
            for tool in parameters.function_tools
        )
        return self.run.before_model(Request((), tools, model=request_context.model.model_name))

    def _look_at_answers(self, messages: list[ModelMessage]) -> None:
        """Report results that came by no hook: of deferred calls, and of calls that pydantic-ai refused itself."""
        given = answers_after(messages)
        open_calls = {call.id for call in self.run.open_calls}
        for name, part in given.items():
            ruling = self._rulings.get(name)
            if ruling is None or ruling.call.id not in open_calls:
                continue
            if ruling.action == "ask" and part.outcome == "denied":
                self.run.approve(ruling.call.id, False)
                continue
            result = given_result(ruling.call, part)
            told = self._answered(ruling, result, ran=part.outcome == "success")
            if told.text != result.text:
                part.content = told.text

    async def _changed(
        self, ctx: RunContext[Any], request_context: ModelRequestContext, wanted: Request
    ) -> ModelRequestContext:
        """Return the request as a rule wants it: other tools, another model, a shorter history."""
        parameters = request_context.model_request_parameters
        changes: dict[str, Any] = {}
        if wanted.model and wanted.model != request_context.model.model_name:
            changes |= {"model": self.models.get(wanted.model) or infer_model(wanted.model), "model_id": None}
        offered = {tool.name: tool for tool in parameters.function_tools}
        specs = [spec for spec in wanted.tools if spec.name in offered]
        tools = [
            replace(offered[spec.name], description=spec.description, parameters_json_schema=spec.parameters)
            for spec in specs
        ]
        if tools != parameters.function_tools:
            changes["model_request_parameters"] = replace(parameters, function_tools=tools)
        if wanted.compaction is not None:
            model = changes.get("model", request_context.model)

            async def summarise(messages: list[ModelMessage]) -> ModelResponse:
                try:
                    response = await model_request(model, messages, model_settings=request_context.model_settings)
                except AgentRunError:
                    return ModelResponse([])  # without a summary the history stays as it is
                ctx.usage.incr(response.usage)
                return response

            run = self.run.run
            new = await shorter(ctx.messages, wanted.compaction, run.state.task, run.snapshot.templates, summarise)
            if new is not None:
                ctx.messages[:] = new
                changes["messages"] = list(new)
        return replace(request_context, **changes) if changes else request_context

    # ---- responses

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        """Judge a response before anything of it runs; one that cannot be used is answered and asked for again."""
        if not isinstance(node, CallToolsNode):
            return node
        turn = self._judge(ctx, node.model_response)
        if turn.kind == "retry":
            return self._once_more(ctx, turn)
        return self._again() if turn.kind == "unusable" else node

    async def wrap_node_run(self, ctx: RunContext[Any], *, node: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """End the run where a response ends it for our rules and not for pydantic-ai."""
        if isinstance(node, CallToolsNode):
            response = node.model_response
            turn = self._judge(ctx, response)
            if self.run.ended and not _ids(response):
                return self._end(ctx)
            if turn.kind == "final" and not (turn.text and turn.text == self._said_last):
                return self._end(ctx, turn)
        return await handler(node)

    def _judge(self, ctx: RunContext[Any], response: ModelResponse) -> Turn:
        """Return what becomes of a response, judged once; of one that waited for results, the calls were judged."""
        if response is self._judged:
            return self._turn
        ids = _ids(response)
        if self._judged is None and ids and ids & self._rulings.keys():
            self._judged = response
            return self._turn
        return self._judge_now(ctx, response)

    @fail_closed(_turn_refused)
    def _judge_now(self, ctx: RunContext[Any], response: ModelResponse) -> Turn:
        if self.run.ended:
            self._judged, self._rulings = response, {}
            self._turn = self.run.after_model(text_of(response), self._calls(ctx, response))
            return self._turn
        calls = self._calls(ctx, response)
        text = text_of(response) or self._answer_text(response)
        if not text and not calls and takes_nothing(getattr(ctx.agent, "output_type", None)):
            text = NOTHING
        if text and self._typed:
            text = f"output({text})"  # of a type: it may look like a call, and is none
        self._said_last = text
        turn = self.run.after_model(text, calls, **facts_of(response))
        if turn.kind == "unusable" and turn.stop is not None:
            raise RuntimeError(turn.stop.code)  # the engine failed: to ask again would only fail again
        self._rulings = {call.id: ruling for call, ruling in zip(calls, turn.rulings, strict=True)}
        self._sent = {call.id: _identity(call) for call in calls}
        self._judged, self._turn = response, turn
        return turn

    def _calls(self, ctx: RunContext[Any], response: ModelResponse) -> list[ToolCall]:
        """Return the calls that want a result; those with which the model gives its output are none."""
        manager = ctx.tool_manager
        if manager is not None and manager.tools is not None:
            kinds = {name: tool.tool_def.kind for name, tool in manager.tools.items()}
            self._answers_in = frozenset(name for name, kind in kinds.items() if kind == "output")
            self.run.tools = frozenset(kinds) - self._answers_in
        given = answers_after(ctx.messages) if last_response(ctx.messages) is response else {}
        return [
            call_of(part)
            for part in response.tool_calls
            if part.tool_name not in self._answers_in and part.tool_call_id not in given
        ]

    def _answers(self, response: ModelResponse) -> list[ToolCallPart]:
        return [part for part in response.tool_calls if part.tool_name in self._answers_in]

    def _answer_text(self, response: ModelResponse) -> str:
        """Return the output that a response gives through a tool, as text that is never read as a call."""
        return "".join(f"{part.tool_name}({part.args_as_json_str()})" for part in self._answers(response))

    def _again(self) -> ModelRequestNode[Any, Any]:
        """Return the request that follows a response of which nothing runs: an answer to every call, and the notes."""
        notes = [UserPromptPart(note.text) for note in self.run.take_notes()]
        return ModelRequestNode(ModelRequest([*self._refusals(), *notes]))

    def _once_more(self, ctx: RunContext[Any], turn: Turn) -> ModelRequestNode[Any, Any]:
        """Return the request that led to a response again: that one is forgotten, and the notice is never stored."""
        messages = ctx.messages
        if len(messages) < 2 or messages[-1] is not self._judged or not isinstance(messages[-2], ModelRequest):
            return ModelRequestNode(ModelRequest([*self._refusals(), UserPromptPart(turn.notice)]))
        messages.pop()
        self._notice = turn.notice
        return ModelRequestNode(messages.pop())

    def _refusals(self) -> list[ToolReturnPart]:
        return [
            ToolReturnPart(ruling.call.name, ruling.text, tool_call_id=name, outcome="denied")
            for name, ruling in self._rulings.items()
            if not ruling.runs
        ]

    # ---- calls

    async def wrap_tool_validate(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: Any,
        handler: Callable[[Any], Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        """Give a call the arguments that a rule wrote; one that will not run needs no valid ones."""
        ruling = self._rule(ctx, call)
        if ruling.action in ("refuse", "not_run"):
            if tool_def.kind in _OUTSIDE:
                raise ToolFailed(ruling.text)
            raise SkipToolValidation({})
        if tool_def.kind in _OUTSIDE:  # who runs it tells us afterwards, or never
            self._begun.add(ruling.call.id)
        try:
            return await handler(ruling.call.args if ruling.changed else args)
        except (ValidationError, ModelRetry, ToolFailed) as error:
            self._invalid(ruling, error)
            raise

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Run a call that may run and report its result; answer every other one."""
        ruling = self._rule(ctx, call)
        if ruling.action == "ask":
            ruling = await self._ask(ruling)
        if not ruling.runs:
            return ToolDenied(ruling.text)
        began = monotonic()
        self._begun.add(ruling.call.id)
        try:
            with running(self.run.run):
                value = await handler(args)
        except SkipToolExecution as skipped:
            value = skipped.result
        except (ApprovalRequired, CallDeferred):
            raise  # it has no result yet
        except GuardStopped as stopped:  # a sub-agent's, which ends that one only
            raise ToolFailed(self._failed(ruling, stopped, began)) from stopped
        except Exception as error:
            self._fail(ruling, error, began)
            raise
        return self._result(ruling, value, began)

    @fail_closed(_ruling_refused)
    def _rule(self, ctx: RunContext[Any], call: ToolCallPart) -> Ruling:
        """Return what becomes of a call. One whose response nobody saw (a streamed one) is judged by itself."""
        name = call.tool_call_id
        ruling = self._rulings.get(name)
        if ruling is None:
            ruling = self._rulings[name] = self.run.call(call_of(call))
            self._sent[name] = _identity(call_of(call))
            return ruling
        if not ctx.tool_call_approved:
            return ruling
        if _identity(call_of(call)) != self._sent[name]:
            ruling = self._rulings[name] = self._other_call(ruling, call_of(call))
        elif ruling.action == "ask":
            ruling = self._rulings[name] = self.run.approve(ruling.call.id, True)
        return ruling

    def _other_call(self, ruling: Ruling, call: ToolCall) -> Ruling:
        """Judge the call that a human put in the place of one that waited; that one is rejected with it."""
        if ruling.action == "ask":
            self.run.approve(ruling.call.id, False)
        else:
            self.run.answer_result(ruling.call.id, ToolResult(ruling.call.id, "", "denied"))
        self._sent[call.id] = _identity(call)
        other = self.run.call(msgspec.structs.replace(call, id=f"{call.id}-as-approved"))
        return self.run.approve(other.call.id, True) if other.action == "ask" else other

    async def _ask(self, ruling: Ruling) -> Ruling:
        """Ask at once where somebody is there for that; else the call is deferred."""
        if self.approve is None:
            told = {"question": ruling.shown, "rule": ruling.rule, "at": ruling.at, "digest": ruling.digest}
            raise ApprovalRequired(told)
        answer = self.approve(ruling.call, ruling.shown)
        if inspect.isawaitable(answer):
            answer = await answer
        return self.run.approve(ruling.call.id, answer is True)

    @fail_closed(_result_withheld)
    def _result(self, ruling: Ruling, value: Any, began: float) -> Any:
        """Report what a tool returned; return it, or the text that a rule put in its place."""
        result = plain_result(ruling.call, value, monotonic() - began)
        told = self.run.answer_result(ruling.call.id, result)
        if told.text == result.text:
            return value
        return replace(value, return_value=told.text) if isinstance(value, ToolReturn) else told.text

    def _fail(self, ruling: Ruling, error: Exception, began: float) -> None:
        """Report a failure that the model may be told of; raise another one where a rule changed its text."""
        told, said = self._failed(ruling, error, began), _words(error)
        if told != said and isinstance(error, ToolRetryError | ToolFailedError | ModelRetry | ToolFailed):
            raise ToolFailed(told) from error

    @fail_closed(_failure_withheld)
    def _failed(self, ruling: Ruling, error: Exception, began: float) -> str:
        result = failure_of(ruling.call, error, monotonic() - began)
        if isinstance(error, ToolRetryError | ToolFailedError | ModelRetry | ToolFailed):
            result = msgspec.structs.replace(result, text=_words(error))
        told = self.run.answer_result(ruling.call.id, result).text
        return _words(error) if told == result.text else told

    @fail_closed(_failure_withheld)
    def _invalid(self, ruling: Ruling, error: Exception) -> str:
        """Report a call that pydantic-ai rejects for its arguments."""
        problem = ToolError("invalid_arguments", str(error), True)
        return self._answered(ruling, ToolResult(ruling.call.id, str(error), "error", problem), ran=False).text

    def _answered(self, ruling: Ruling, result: ToolResult, *, ran: bool) -> ToolResult:
        """Report a result; an error that comes without the tool having been started counts as no execution."""
        executed = self.run.state.executed
        told = self.run.answer_result(ruling.call.id, result)
        if not ran:
            self.run.state.executed = executed
        return told

    # ---- the end

    def _broken(self, error: Exception) -> Outcome:
        """Return the outcome of a run in which this capability itself failed."""
        return self.run.give_up(error)

    def _end(self, ctx: RunContext[Any], turn: Turn | None = None) -> End[Any]:
        """Return the end of the run with the text of a rule; raise where the output cannot be one."""
        outcome = self.run.outcome
        if turn is not None and self._rulings:
            ctx.messages.append(ModelRequest(self._refusals()))
        if self.stopped is not None and outcome is not None:
            return End(FinalResult(self.stopped(outcome)))
        if self._takes_text:
            return End(FinalResult(turn.text if turn is not None else self._said()))
        raise self._stopped(ctx)

    def _stopped(self, ctx: RunContext[Any]) -> PolicyStopped:
        outcome = self.run.outcome or Outcome("stopped", self.run.state.text)
        return PolicyStopped(outcome, list(ctx.messages))

    def _closing(self, ctx: RunContext[Any]) -> ModelResponse:
        stop = self.run.stop
        last = closing(self._said(), stop.code if stop else "", stop.rule if stop else "")
        return replace(last, run_id=ctx.run_id, conversation_id=ctx.conversation_id)

    def _said(self) -> str:
        """Return what the user reads of a run that was ended."""
        return self.run.farewell or FAILED_TEXT


def _words(error: Exception) -> str:
    """Return what the model reads of a failure."""
    if isinstance(error, ToolRetryError):
        part = error.tool_retry
        return part.model_response_str(wrap_if_error=False) if isinstance(part, ToolReturnPart) else str(part.content)
    return (
        error.tool_failed.model_response_str(wrap_if_error=False) if isinstance(error, ToolFailedError) else str(error)
    )


def _ids(response: ModelResponse) -> frozenset[str]:
    return frozenset(part.tool_call_id for part in response.tool_calls)


def _identity(call: ToolCall) -> str:
    return call_identity(call.name, call.args, call.arguments)
