"""LangChain agents (`create_agent`) under a policy: one middleware, the same rules as everywhere.

Knows: the graph of `create_agent`, what its nodes may return. Must not know: how anything is decided.

The run is kept in the state of the graph, as text, and written by every node of ours: whatever a checkpointer restores
(another process, an earlier checkpoint, a resumed interrupt) is the run as it was there. A live run is used instead
while it is the one that the state speaks of, so that tools that run in parallel threads report to one run.

The extra `langchain` installs what is needed here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, NotRequired, TypedDict
from uuid import uuid4

import msgspec
from langchain.agents.middleware import (
    AgentMiddleware,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
    hook_config,
)
from langchain.agents.middleware.types import OmitFromInput, PrivateStateAttr
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from policyengine.engine import Engine
from policyengine.errors import UsageError
from policyengine.history.compact import Cut, part_to_summarise, plan_cut, shortened
from policyengine.hosts import langchain_messages as forms
from policyengine.hosts.able import require
from policyengine.hosts.closed import ADAPTER_FAILED, FAILED_TEXT, WITHHELD_TEXT, fail_closed
from policyengine.hosts.core import HostRun
from policyengine.hosts.state import Ruling
from policyengine.hosts.table import HOSTS
from policyengine.jsontext import decode
from policyengine.messages import Compaction, ToolCall, ToolError
from policyengine.policy.model import Policy
from policyengine.run import SavedRun
from policyengine.runstate import Conversation
from policyengine.shared.account import check_ledger
from policyengine.shared.pools import Reserving
from policyengine.subagent import running, runs_above
from policyengine.toolset import failure_of, result_of

HOST = HOSTS["langchain"]

KEY = "policyengine"
OUTCOME = "policy_outcome"

MOST_LIVE = 1_000
"""How many runs are kept beside what the state of their graph says."""

CHANGED = "-changed"
"""Ends the id under which a call is judged that somebody changed after it was judged."""

Update = dict[str, Any] | None


class PolicyState(TypedDict):
    """What the state of the graph holds of ours: the run (private), and how it ended (`policy_outcome`)."""

    policyengine: NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]
    policy_outcome: NotRequired[Annotated[dict[str, Any] | None, OmitFromInput]]


class WrongAnswerError(UsageError):
    """An interrupt was resumed with what is no answer to its questions; resume it again."""


class _Live(msgspec.Struct):
    """A run, and the mark of the state that was written of it last: each branch of a thread has a mark of its own."""

    run: HostRun
    version: str = ""


def _crashed(error: Exception, *_: Any, **__: Any) -> Update:
    return {"messages": [_closing(FAILED_TEXT, ADAPTER_FAILED)], "jump_to": "end"}


def _crashed_after(error: Exception, _: Any, state: Any) -> Update:
    response, answers = forms.last_response(state["messages"])
    open_calls = forms.calls_of(response, answers) if response is not None else ()
    messages = [*(forms.refusal(call, FAILED_TEXT) for call in open_calls), _closing(FAILED_TEXT, ADAPTER_FAILED)]
    return {"messages": messages, "jump_to": "end"}


def _refused(error: Exception, _: Any, request: ToolCallRequest) -> tuple[None, Any, ToolMessage]:
    call = ToolCall(request.tool_call["id"] or "", request.tool_call["name"])
    return None, None, forms.refusal(call, FAILED_TEXT)


def _withheld(error: Exception, _: Any, live: Any, ruling: Ruling, *__: Any) -> ToolMessage:
    return forms.refusal(ruling.call, WITHHELD_TEXT)


def _closing(text: str, code: str) -> AIMessage:
    return AIMessage(text, response_metadata={KEY: {"code": code}}, additional_kwargs={forms.SOURCE: "end"})


class PolicyMiddleware(AgentMiddleware[PolicyState, Any, Any]):
    """Puts a policy around an agent made by `create_agent`. Give it first in the list `middleware`.

    One invocation of the agent is one run; runs of a thread, and of sub-agents that tools start, share state of scope
    `conversation`. One instance serves any number of agents, threads and processes.

    Args:
        policy: a shipped policy, a file, a `Policy`, or an `Engine` that several agents share.
        agent: the name of the agent for rules and log.
        attended: whether an interrupt reaches a human (needs a checkpointer); otherwise what would be asked is refused.
        models: the models that a rule may choose, by name.
        shared: whether an agent that is a tool of another shares the conversation of its parent.
        ledger: reserves what rules count together with other processes (`docs/fleets.md`).

    Attributes: `warnings` are the problems of the policy on this host that forbid nothing.

    Raises:
        ConfigError: the policy cannot be used, or asks for what this host cannot do.
    """

    state_schema = PolicyState

    def __init__(
        self,
        policy: str | Path | Policy | Engine = "default",
        *,
        agent: str = "",
        attended: bool = True,
        models: Mapping[str, BaseChatModel] | None = None,
        shared: bool = True,
        ledger: Reserving | None = None,
    ) -> None:
        super().__init__()
        self.engine = policy if isinstance(policy, Engine) else Engine(policy)
        self.warnings = require(self.engine.snapshot, HOST)
        check_ledger(self.engine.snapshot.shared, ledger)
        self.ledger = ledger
        self.agent = agent
        self.attended = attended
        self.models = dict(models or {})
        self.shared = shared
        self._live: OrderedDict[str, _Live] = OrderedDict()
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._lock = threading.Lock()

    # ---- the run

    def load(self, state: Any) -> _Live:
        """Return the run that a state of the graph speaks of."""
        kept = state.get(KEY)
        if not kept:
            raise UsageError("the state of the graph holds no run of the policy engine")
        with self._lock:
            live = self._live.get(kept["version"])
            if live is None:
                saved = kept["saved"].encode()
                run = HostRun.resume(self.engine, HOST, saved, attended=self.attended, ledger=self.ledger)
                live = self._keep(_Live(run, kept["version"]))
            return live

    def _keep(self, live: _Live) -> _Live:
        self._live[live.version] = live
        while len(self._live) > MOST_LIVE:
            self._live.popitem(last=False)
        return live

    def written(self, live: _Live, **update: Any) -> dict[str, Any]:
        """Return an update of the state that holds the run as it is now."""
        live.run.state.recent.clear()  # no result comes later than its step, and what calls hold may be whole files
        run, saved = live.run, live.run.save().decode()
        with self._lock:
            self._live.pop(live.version, None)
            live.version = uuid4().hex
            self._keep(live)
        return {
            **update,
            KEY: {"run": run.run.state.run_id, "version": live.version, "ended": run.ended, "saved": saved},
        }

    # ---- nodes

    @hook_config(can_jump_to=["end"])
    def before_agent(self, state: Any, runtime: Runtime[Any]) -> Update:
        """Begin the run."""
        return self._begin(state)

    @hook_config(can_jump_to=["end"])
    async def abefore_agent(self, state: Any, runtime: Runtime[Any]) -> Update:
        """Begin the run."""
        return self._begin(state)

    @fail_closed(_crashed, passing=(GraphBubbleUp,))
    def _begin(self, state: Any) -> Update:
        conversation, asked = self._conversation(state)
        above = runs_above()
        thread = "" if above else _thread()
        if self.shared and above:
            conversation = above[-1].conversation
        elif conversation is None:  # a node of another graph keeps no state between invocations
            conversation = self._conversations.get(thread)
        how: dict[str, Any] = {"attended": self.attended, "ledger": self.ledger}
        run = HostRun(self.engine, HOST, **how, agent=self.agent, conversation=conversation)
        live = _Live(run)
        if thread:
            self._conversations[thread] = run.run.conversation
            while len(self._conversations) > MOST_LIVE:
                self._conversations.popitem(last=False)
        messages = _all_answered(state["messages"], run, "cancelled" if asked else "interrupted")
        if run.begin(forms.task_of(state["messages"])).action == "end":
            return self.written(live, messages=[*messages, self.ending(run)], jump_to="end", **{OUTCOME: None})
        return self.written(live, messages=messages, **{OUTCOME: None})

    def _conversation(self, state: Any) -> tuple[Conversation | None, bool]:
        """Return what the thread's runs share, and whether the last of them was asking; one that is open ends here."""
        kept = state.get(KEY)
        if not kept:
            return None, False
        if kept["ended"]:  # no run is resumed for this: a journal would tell of it
            return decode(kept["saved"].encode(), SavedRun).conversation, False
        previous = self.load(state).run
        # While a human is asked nothing of the batch runs; whatever else was left open may have been under way.
        asked = any(item.ask for item in previous.state.open)
        previous.was_started = lambda _: not asked
        previous.end()
        self._live.pop(kept["version"], None)
        return previous.run.conversation, asked

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Runtime[Any]) -> Update:
        """End the run where the last results ended it."""
        return self._before(state)

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> Update:
        """End the run where the last results ended it."""
        return self._before(state)

    @fail_closed(_crashed, passing=(GraphBubbleUp,))
    def _before(self, state: Any) -> Update:
        live = self.load(state)
        self.catch_up(live.run, state["messages"])
        if live.run.ended:
            return self.written(live, messages=[self.ending(live.run)], jump_to="end")
        return None

    def catch_up(self, run: HostRun, messages: Sequence[AnyMessage]) -> None:
        """Report results of which this run does not know: another process held it, or an earlier checkpoint goes on."""
        _, answers = forms.last_response(messages)
        for call in run.open_calls:
            message = answers.get(call.id)
            if message is not None and not forms.is_ours(message):
                run.answer_result(call.id, _result(call, message))

    def _answered_before(self, run: HostRun, answers: Mapping[str, ToolMessage]) -> None:
        """Report calls that other middleware answered in the place of their tools: none of them ran."""
        for call in run.open_calls:
            message = answers.get(call.id)
            if message is None or forms.is_ours(message):
                continue
            result, executed = _result(call, message), run.state.executed
            if result.status == "error":
                result = msgspec.structs.replace(result, status="denied")
            run.answer_result(call.id, result)
            run.state.executed = executed

    @hook_config(can_jump_to=["end", "model"])
    def after_model(self, state: Any, runtime: Runtime[Any]) -> Update:
        """Ask about calls, answer the calls of a response that is not used, end the run."""
        return self._after(state)

    @hook_config(can_jump_to=["end", "model"])
    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> Update:
        """Ask about calls, answer the calls of a response that is not used, end the run."""
        return self._after(state)

    @fail_closed(_crashed_after, passing=(GraphBubbleUp, WrongAnswerError))
    def _after(self, state: Any) -> Update:
        live = self.load(state)
        response, answers = forms.last_response(state["messages"])
        judged = live.run.state.extra
        if response is None or not judged or judged["message"] != response.id:
            return None  # a response that others made: its calls are judged one by one
        self._answered_before(live.run, answers)
        rulings = [msgspec.convert(kept, Ruling) for kept in judged["rulings"]]
        rest = [ruling for ruling in rulings if ruling.call.id not in answers]
        texts: list[Any] = [forms.refusal(ruling.call, ruling.text) for ruling in rest]
        if judged["kind"] == "ended":
            return self.written(live, messages=[*texts, self.ending(live.run)], jump_to="end")
        if judged["kind"] == "unusable":
            if not response.content and not response.tool_calls:
                texts.append(RemoveMessage(id=response.id))
            return self.written(live, messages=texts, jump_to="model")
        asked = [ruling for ruling in rest if ruling.action == "ask"]
        if asked:
            self._ask(live, asked, rulings)
            rest = [ruling for ruling in rulings if ruling.call.id not in answers]
        if rest and not any(ruling.runs for ruling in rest):
            # Here, not at the tools: after a tool with `return_direct` a refusal would be the answer of the agent.
            return self.written(live, messages=[forms.refusal(ruling.call, ruling.text) for ruling in rest])
        return self.written(live) if asked or answers else None

    def _ask(self, live: _Live, asked: list[Ruling], rulings: list[Ruling]) -> None:
        """Ask a human about calls, all at once, in the form of `HumanInTheLoopMiddleware`."""
        calls = [{"name": one.call.name, "args": one.call.args, "description": one.shown} for one in asked]
        allowed = [{"action_name": one.call.name, "allowed_decisions": ["approve", "reject"]} for one in asked]
        said = _answered({"action_requests": calls, "review_configs": allowed})
        for (approved, message), ruling in zip(said, asked, strict=True):
            rulings[rulings.index(ruling)] = live.run.approve(ruling.call.id, approved, said=message)
        live.run.state.extra = {**live.run.state.extra, "rulings": forms.plain(rulings)}

    def after_agent(self, state: Any, runtime: Runtime[Any]) -> Update:
        """End the run, and tell how (`policy_outcome`)."""
        return self._end(state)

    async def aafter_agent(self, state: Any, runtime: Runtime[Any]) -> Update:
        """End the run, and tell how (`policy_outcome`)."""
        return self._end(state)

    @fail_closed(lambda *_, **__: {OUTCOME: {"status": "failed", "error": FAILED_TEXT}}, passing=(GraphBubbleUp,))
    def _end(self, state: Any) -> Update:
        live = self.load(state)
        self.catch_up(live.run, state["messages"])
        # A tool with `return_direct` ends the agent: its result is the answer.
        last = isinstance(state["messages"][-1], ToolMessage)
        _, answers = forms.last_response(state["messages"])
        direct = [forms.text_of(message) for message in answers.values() if last and not forms.is_ours(message)]
        live.run.was_started = lambda _: False  # no call is under way here, and those that ran have their answers
        outcome = live.run.end(output=direct[0] if direct else "")
        told = forms.plain(msgspec.structs.asdict(outcome))
        if outcome.stop is not None:
            told["stop"]["action"] = outcome.stop.action  # also where it is the usual one
        update = self.written(live, **{OUTCOME: told})
        self._live.pop(live.version, None)
        return update

    def ending(self, run: HostRun) -> AIMessage:
        """Return the message with which the agent ends, for the user."""
        stop = run.stop
        if stop is None:
            return _closing(run.outcome.output or "The run has ended." if run.outcome else "The run has ended.", "")
        return _closing(run.farewell, stop.code)

    # ---- the model

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[Any], ModelResponse[Any]]) -> Any:
        """Judge a request and its response; send what the rules made of it."""
        exchange = _Exchange(self, request)
        exchange.begin()
        while exchange.sending is not None:
            exchange.received(handler(exchange.sending))
        return exchange.result

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[Any], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        """Judge a request and its response; send what the rules made of it."""
        exchange = _Exchange(self, request)
        exchange.begin()
        while exchange.sending is not None:
            exchange.received(await handler(exchange.sending))
        return exchange.result

    # ---- tools

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Run a call as it was ruled, and report its result."""
        live, ruling, ruled = self._ruled(request)
        if live is None:
            return ruled
        started = monotonic()
        try:
            with running(live.run.run):
                result = handler(ruled)
        except GraphBubbleUp:
            raise
        except Exception as error:
            self._failed(live, ruling, error, monotonic() - started)
            raise
        return self._told(live, ruling, request, result, monotonic() - started)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Run a call as it was ruled, and report its result."""
        live, ruling, ruled = self._ruled(request)
        if live is None:
            return ruled
        started = monotonic()
        try:
            with running(live.run.run):
                result = await handler(ruled)
        except GraphBubbleUp:
            raise
        except Exception as error:
            self._failed(live, ruling, error, monotonic() - started)
            raise
        return self._told(live, ruling, request, result, monotonic() - started)

    @fail_closed(_refused, passing=(GraphBubbleUp,))
    def _ruled(self, request: ToolCallRequest) -> tuple[_Live | None, Any, Any]:
        """Return run, ruling and the request as it was ruled; without a run, what stands for its result."""
        live, call = self.load(request.state), _sent(request)
        ruling = self._ruling(live, call)
        if not ruling.runs:
            return None, ruling, forms.refusal(call, ruling.text)
        if not isinstance(ruling.call.args, dict):
            raise UsageError(f"call {call.id!r} has no arguments that could be read")
        return live, ruling, _as_ruled(request, ruling)

    def _ruling(self, live: _Live, call: ToolCall) -> Ruling:
        """Return the ruling on a call: that of its batch, or a new one where somebody made or changed it since."""
        judged, other = live.run.state.extra, CHANGED
        if judged and judged["sent"].get(call.id) == [call.name, call.args]:
            kept = msgspec.convert(next(one for one in judged["rulings"] if one["call"]["id"] == call.id), Ruling)
            if not kept.runs or any(call.id == one.id for one in live.run.open_calls):
                return kept
            other = f"-again-{uuid4().hex[:8]}"  # it has its result: somebody runs it once more
        ruling = live.run.call(msgspec.structs.replace(call, id=call.id + other))
        # A question belongs to the batch, and its time is over.
        return live.run.approve(ruling.call.id, None) if ruling.action == "ask" else ruling

    @fail_closed(lambda *_, **__: None)
    def _failed(self, live: _Live, ruling: Ruling, error: Exception, duration_s: float) -> None:
        live.run.answer_result(ruling.call.id, failure_of(ruling.call, error, duration_s))

    @fail_closed(_withheld, passing=(GraphBubbleUp,))
    def _told(self, live: _Live, ruling: Ruling, request: ToolCallRequest, result: Any, duration_s: float) -> Any:
        """Report a result, and return it with the text that the rules made of it."""
        if isinstance(result, list):
            return [
                self._told(live, ruling, request, one, duration_s) if _answers(one, request) else one for one in result
            ]
        if isinstance(result, Command):
            return self._told_command(live, ruling, request, result, duration_s)
        given = _result(ruling.call, result, duration_s, unknown=request.tool is None)
        told = live.run.answer_result(ruling.call.id, given)
        if told.text == given.text and told.status == given.status:
            return result
        status = "success" if told.status == "ok" else "error"
        return result.model_copy(update={"content": told.text, "status": status})

    def _told_command(
        self, live: _Live, ruling: Ruling, request: ToolCallRequest, command: Command[Any], duration_s: float
    ) -> Command[Any]:
        update = command.update if isinstance(command.update, dict) else {}
        messages = list(update.get("messages") or ())
        place = next((at for at, message in enumerate(messages) if _answers(message, request)), None)
        if place is None:  # the graph goes on elsewhere, without a result
            live.run.answer(ruling.call.id)
            return command
        messages[place] = self._told(live, ruling, request, messages[place], duration_s)
        return replace(command, update={**update, "messages": messages})


class _Exchange:
    """One request and what came of it, driven by both twins: `sending` is what to send next, `result` the end of it."""

    def __init__(self, middleware: PolicyMiddleware, request: ModelRequest[Any]) -> None:
        self.middleware = middleware
        self.request = request
        self.sending: ModelRequest[Any] | None = None
        self.result: Any = None
        self.live: Any = None
        self._put: list[Any] = []  # what goes into the history before the response
        self._compaction: Compaction | None = None
        self._cut: Cut | None = None

    def _fail(self, error: Exception | None = None) -> None:
        self.sending = None
        if error is not None and self.live is not None:
            self.live.run.give_up(error)
        self.result = ModelResponse(result=[_closing(FAILED_TEXT, ADAPTER_FAILED)])

    @fail_closed(lambda error, exchange, *_: exchange._fail(error), passing=(GraphBubbleUp,))
    def begin(self) -> None:
        """Have the request judged."""
        self.live = self.middleware.load(self.request.state)
        self.middleware.catch_up(self.live.run, self.request.state["messages"])
        self._send()

    def _send(self, aside: Sequence[AnyMessage] = ()) -> None:
        """Send the request as the rules leave it, with their notes; `aside` goes with it and is not kept."""
        move = self.live.run.before_model(forms.request_of(self.request))
        if move.action == "end":
            self._end()
            return
        notes = [forms.note_message(note.text, note.rule) for note in move.notes]
        self._put += notes
        self.request = self.request.override(messages=[*self.request.messages, *notes])
        if move.request is not None:
            self._change(move.request)
        if self._compaction is not None:
            self._compact(self._compaction)
        else:
            self.sending = self.request.override(messages=[*self.request.messages, *aside])

    def _end(self) -> None:
        self.sending = None
        self._finish([self.middleware.ending(self.live.run)])

    def _finish(self, messages: list[Any], structured: Any = None) -> None:
        self.sending = None
        response = ModelResponse(result=[*self._put, *messages], structured_response=structured)
        self.result = ExtendedModelResponse(response, Command(update=self.middleware.written(self.live)))

    def _change(self, wanted: Any) -> None:
        """Take over what a rule changed in the request."""
        before = forms.request_of(self.request)
        if wanted.tools != before.tools:
            kept = {tool.name for tool in wanted.tools}
            self.request = self.request.override(
                tools=[tool for tool in self.request.tools if forms.tool_name(tool) in kept]
            )
        if wanted.model != before.model:
            if wanted.model not in self.middleware.models:
                raise UsageError(f"a rule wants the model {wanted.model!r}, which `models` does not hold")
            self.request = self.request.override(model=self.middleware.models[wanted.model])
        self._compaction = wanted.compaction

    # ---- a history that is shortened

    def _compact(self, how: Compaction) -> None:
        messages = [forms.message_of(message) for message in self.request.messages]
        self._cut = plan_cut(messages, how.keep)
        templates = self.live.run.run.snapshot.templates
        if self._cut is None:
            self._shortened(None)
        elif how.strategy == "slide":
            self._shortened(templates.render("compaction.dropped", {}))
        else:
            old = self.request.messages[: len(part_to_summarise(messages, self._cut))]
            ask = HumanMessage(templates.render("compaction.request", {}))
            self.sending = self.request.override(messages=[*old, ask], tools=[], tool_choice=None, response_format=None)

    def _summarised(self, response: ModelResponse[Any]) -> None:
        said = next((message for message in response.result if isinstance(message, AIMessage)), None)
        text = "" if said is None or said.tool_calls else forms.text_of(said).strip()
        heading = self.live.run.run.snapshot.templates.render("compaction.heading", {})
        self._shortened(f"{heading}\n{text}" if text else None)

    def _shortened(self, instead: str | None) -> None:
        """Put a text in the place of the old messages; without one the history stays as it is."""
        self._compaction = None
        given = self.request.messages
        messages = [forms.message_of(message) for message in given]
        shorter = None
        if instead is not None and self._cut is not None:
            shorter = shortened(messages, self._cut, self.live.run.run.state.task, instead)
        if shorter is not None and self._cut is not None:
            opening = forms.note_message(shorter[self._cut.start].text, "compaction")
            kept = [*given[: self._cut.start], opening, *given[self._cut.end :]]
            self.request = self.request.override(messages=kept)
            # Others may have left messages out of this request only: then it is shortened for this request only.
            if [*self.request.state["messages"], *self._put] == given:
                self._put = [RemoveMessage(id=REMOVE_ALL_MESSAGES), *kept]
        self.sending = self.request

    # ---- the response

    @fail_closed(lambda error, exchange, *_: exchange._fail(error), passing=(GraphBubbleUp,))
    def received(self, response: ModelResponse[Any]) -> None:
        """Have a response judged: it is taken, or asked for once more."""
        if self._compaction is not None:
            self._summarised(response)
            return
        place = next(at for at, message in enumerate(response.result) if isinstance(message, AIMessage))
        message = forms.named(response.result[place])
        # Structured output comes as a call that is answered already.
        answered = {one.tool_call_id for one in response.result if isinstance(one, ToolMessage)}
        text = forms.text_of(message)
        if not text and answered:
            text = next(forms.text_of(one) for one in response.result if isinstance(one, ToolMessage))
        turn = self.live.run.after_model(
            text,
            forms.calls_of(message, answered),
            finish_reason=forms.finish_reason_of(message),
            usage=forms.usage_of(message),
            model=forms.model_of(message),
        )
        if turn.kind == "retry":
            said = [AIMessage(forms.text_of(message))] if message.content and not message.tool_calls else []
            self._send([*said, HumanMessage(turn.notice)])
            return
        calls = [ruling.call for ruling in turn.rulings]
        message = forms.with_calls(message, calls, answered)
        sent = {call["id"]: [call["name"], call["args"]] for call in message.tool_calls}
        rulings = forms.plain(list(turn.rulings))
        self.live.run.state.extra = {"message": message.id, "kind": turn.kind, "rulings": rulings, "sent": sent}
        others = [one for at, one in enumerate(response.result) if at != place]
        self._finish([message, *others], response.structured_response)


def _thread() -> str:
    """Return the thread that is invoked; empty where there is none."""
    try:
        return str(get_config().get("configurable", {}).get("thread_id") or "")
    except RuntimeError:
        return ""


def _sent(request: ToolCallRequest) -> ToolCall:
    call = request.tool_call
    return ToolCall(call["id"] or "", call["name"], args=call["args"])


def _as_ruled(request: ToolCallRequest, ruling: Ruling) -> ToolCallRequest:
    """Return the request with the arguments that were ruled on."""
    if not ruling.changed:
        return request
    return request.override(tool_call={**request.tool_call, "args": ruling.call.args})


def _answers(message: Any, request: ToolCallRequest) -> bool:
    return isinstance(message, ToolMessage) and message.tool_call_id == request.tool_call["id"]


def _result(call: ToolCall, message: ToolMessage, duration_s: float | None = None, *, unknown: bool = False) -> Any:
    """Return a tool message as a result; errors of LangChain come as messages, not as exceptions."""
    text = forms.text_of(message)
    result = msgspec.structs.replace(result_of(call, text, duration_s), beside=forms.beside_of(message))
    if message.status != "error" or result.status != "ok":
        return result
    error = ToolError("unknown_tool" if unknown else "tool_error", text)
    return msgspec.structs.replace(result, status="error", error=error)


def _answered(questions: dict[str, Any]) -> list[tuple[bool, str]]:
    """Ask a human, and return what was said. An answer that is none raises, and the next one is taken instead of it."""
    said = interrupt(questions)
    while True:
        try:
            return _decisions(said, len(questions["action_requests"]))
        except WrongAnswerError as error:
            try:
                said = interrupt(questions)  # the graph keeps the wrong answer: one that came after it is the next
            except GraphInterrupt:
                raise error from None


def _decisions(said: Any, wanted: int) -> list[tuple[bool, str]]:
    """Return what a human said to each question, with the message for the model; only an approval lets a call run.

    Raises:
        WrongAnswerError: it is no answer to these questions; the interrupt waits on for another one.
    """
    decisions = said.get("decisions") if isinstance(said, Mapping) else [said] if isinstance(said, bool) else said
    if not isinstance(decisions, list | tuple):
        raise WrongAnswerError(f'resume with {{"decisions": [...]}}, one for each question, not {said!r:.80}')
    if len(decisions) != wanted:
        raise WrongAnswerError(f"there are {wanted} questions, and {len(decisions)} decisions")
    return [_decision(one) for one in decisions]


def _decision(one: Any) -> tuple[bool, str]:
    if isinstance(one, bool):
        return one, ""
    kind = one.get("type") if isinstance(one, Mapping) else None
    if kind not in ("approve", "reject"):
        raise WrongAnswerError(f"the type of a decision is approve or reject, not {kind!r}")
    return kind == "approve", str(one.get("message") or "") if kind == "reject" else ""


def _all_answered(messages: Sequence[AnyMessage], run: HostRun, how: str) -> list[Any]:
    """Return an update that answers calls of earlier invocations that were given up, empty if there are none."""
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    mended: list[Any] = []
    for message in messages:
        mended.append(message)
        if isinstance(message, AIMessage):
            for call in forms.calls_of(message, answered):
                text = run.run.snapshot.templates.render(how, {"tool": call.name})
                mended.append(forms.refusal(call, text))
    return [RemoveMessage(id=REMOVE_ALL_MESSAGES), *mended] if len(mended) > len(messages) else []
