"""`Guard`: the rules around a loop that somebody wrote by hand, in ten lines.

Knows: `HostRun`, messages as plain mappings. Must not know: any SDK; what has the shape of a message is read as one.

A loop of one's own does four things: it asks whether to send a request, reports the response, reports the results, and
goes round again. Everything else (rounds, batches, refusals, notes, wind-down, the end) is `HostRun`'s.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from policyengine.engine import Engine
from policyengine.errors import PolicyEngineError, UsageError
from policyengine.hosts.able import require
from policyengine.hosts.core import HostRun
from policyengine.hosts.functions import (
    called_by_name,
    is_coroutine_function,
    let_go,
    named_arguments,
    not_awaited,
    readable_signature,
    tool_name_of,
)
from policyengine.hosts.host import Host
from policyengine.hosts.shapes import calls_of, name_calls, read_reply
from policyengine.hosts.state import Ruling, Turn
from policyengine.hosts.table import HOSTS
from policyengine.messages import ModelRequest, ToolCall, ToolError, ToolResult
from policyengine.outcome import Outcome
from policyengine.runstate import StopReason
from policyengine.toolset import failure_of, result_of
from policyengine.workers import fault_text

Approve = Callable[[ToolCall, str], bool | Awaitable[bool]]
"""Asked whether a call may run, with the rule's question; only `True` lets it. It may be asynchronous (`Guard`)."""

_ASYNC = "`approve` is asynchronous: run the calls with `await turn.arun(tools)`, or guard an asynchronous function"


class GuardStopped(PolicyEngineError):
    """A guard ended the run, where `Guard(raising=True)` was asked for; `outcome` says why."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        stop = outcome.stop
        super().__init__(f"{stop.code}: {stop.message}" if stop else outcome.status)


class Guard:
    """One run of a loop written by hand, under a policy.

    Use it with `with` (or `async with`); it ends the run whatever happens in the block.

    Args:
        policy: a shipped policy, a file, a `Policy`, or an `Engine` that several guards share.
        task: what the user wants.
        tools: the names on offer, where calls of others are to be refused here; any mapping or list of names.
        approve: asked when a rule wants a human; without it such calls are refused. It gets the call and the question,
            which ends with the rule and its place. One that is asynchronous is awaited by `arun`, and by `tool` around
            an asynchronous function; elsewhere it raises `UsageError`.
        raising: raise `GuardStopped` where a guard ends the run, instead of letting the loop find out.
        host: what the loop can do, if less than everything.
        options: those of `Engine.start_run` (`run_id`, `agent`, `conversation`), and `ledger`, which reserves what
            rules count together with other processes (`docs/fleets.md`).

    `warnings` are what `policyengine check --host own_loop` says of the policy, beside errors.

    Raises:
        ConfigError: the policy cannot be used, or asks for what the loop cannot do.
    """

    def __init__(
        self,
        policy: Any = "default",
        *,
        task: str = "",
        tools: Iterable[str] | None = None,
        approve: Approve | None = None,
        raising: bool = False,
        host: Host = HOSTS["own_loop"],
        **options: Any,
    ) -> None:
        self.engine = policy if isinstance(policy, Engine) else Engine(policy)
        self.warnings = require(self.engine.snapshot, host)
        names = None if tools is None else tuple(tools)
        self.run = HostRun(self.engine, host, attended=approve is not None, tools=names, strict=True, **options)
        self.approve = approve
        self.raising = raising
        self._task = task
        self._notice = ""
        self._left_out: set[str] = set()
        self.run.was_started = self._was_started

    @classmethod
    def resume(cls, policy: Any, saved: bytes, **how: Any) -> Guard:
        """Return the guard that `save` wrote; `how` are arguments as when it was made."""
        guard = cls(policy, **how)
        guard.run = HostRun.resume(
            guard.engine,
            guard.run.host,
            saved,
            attended=guard.run.attended,
            tools=guard.run.tools,
            strict=True,
            ledger=guard.run.ledger,
        )
        guard.run.was_started = guard._was_started
        return guard

    def save(self) -> bytes:
        """Return the run as JSON, at any point."""
        return self.run.save()

    def __enter__(self) -> Guard:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if kind is None or kind is GuardStopped:
            self.run.end()
        else:
            self.run.end("failed" if issubclass(kind, Exception) else "cancelled", error=fault_text(error or kind()))

    async def __aenter__(self) -> Guard:
        return self.__enter__()

    async def __aexit__(self, *raised: Any) -> None:
        self.__exit__(*raised)

    # ---- the run

    @property
    def ended(self) -> bool:
        """Whether the run is over, or its answer was given."""
        return self.run.ended or self.run.state.final

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended; `None` before the block does, unless a guard ended it."""
        return self.run.outcome

    @property
    def stop(self) -> StopReason | None:
        """Why a guard ended the run, if one did."""
        return self.run.stop

    def begin(self, task: str = "") -> None:
        """Begin the run; `with` does it. A run that was resumed has begun."""
        if not self.run.run.state.started:
            self.run.begin(task or self._task)

    def user(self, text: str, *, injected: bool = False) -> dict[str, str]:
        """Report a message of the user during the run; return it as a message."""
        self.run.user_message(text, injected=injected)
        return {"role": "user", "content": text}

    def ready(self, messages: list[Any] | None = None, *, model: str = "") -> bool:
        """Return whether another request is to be sent; notes of the rules are appended to `messages` first.

        False once the model gave its answer or a guard ended the run.

        Raises:
            GuardStopped: a guard ended it, and the guard is `raising`.
        """
        if not self.ended:
            move = self.run.before_model(ModelRequest((), model=model))
            if messages is not None:
                messages += [{"role": "user", "content": note.text} for note in move.notes]
        if self.run.ended and self.raising:
            assert self.run.outcome is not None
            raise GuardStopped(self.run.outcome)
        return not self.ended

    def response(self, reply: Any = "", calls: Iterable[Any] | None = None, **facts: Any) -> GuardTurn:
        """Report a response and return what may run of it.

        `reply` is a text, a message (`{"content": ..., "tool_calls": [...]}`, or an object with these attributes), a
        message of Anthropic's form (calls are blocks of the content), or a whole completion. `calls`, if given, are the
        calls: `ToolCall`s, `(name, args)` or mappings. `facts` are `usage`, `finish_reason`, `reasoning` and `model`
        where the reply does not hold them.

        A call with an empty or repeated id gets another one, in the reply too: put the reply itself into your history.

        Raises:
            UsageError: the reply has another shape, so that calls in it would not be seen.
        """
        read = read_reply(reply)
        made = read.calls if calls is None else calls_of(calls, f"call-{self.run.run.state.iteration or 1}")
        given = {**read.facts, **facts}
        turn = self.run.after_model(read.text, made, **given)
        if calls is None:
            name_calls(read.holders, [ruling.call.id for ruling in turn.rulings])
        return GuardTurn(self, turn, blocks=read.blocks)

    def allow(self, name: str, args: Mapping[str, Any] | None = None) -> Ruling:
        """Judge one call by itself, where nothing is known of responses; `ruling.runs` says whether it may run.

        Report its result with `answer`.
        """
        ruling = self._judged(name, args)
        return self._ruled(ruling, _now(self._said(ruling)))

    async def _allow_waiting(self, name: str, args: Mapping[str, Any]) -> Ruling:
        ruling = self._judged(name, args)
        said = self._said(ruling)
        return self._ruled(ruling, await said if inspect.isawaitable(said) else said)

    def _judged(self, name: str, args: Mapping[str, Any] | None) -> Ruling:
        self.begin()
        return self.run.call(ToolCall("", name, args=dict(args or {})))

    def answer(self, call: ToolCall, value: Any) -> ToolResult:
        """Report what a call returned (or the exception it raised); return the result for the model."""
        return self.run.answer_result(call.id, _result(call, value))

    def tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of which every call is judged by itself, where nobody tells of responses.

        It returns what the function returns; the text for the model where the call is refused or a rule changed the
        result. Calls that raise are reported and raise. Use it as a decorator, too.

        Raises:
            UsageError: the function has no signature that can be read.
        """
        name, signature = tool_name_of(function), readable_signature(function)

        def told(call: ToolCall, value: Any) -> Any:
            made, answer = result_of(call, value), self.answer(call, value)
            return value if answer.text == made.text else answer.text

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            ruling = self.allow(name, named_arguments(signature, args, kwargs))
            if not ruling.runs:
                return ruling.text
            try:
                value = not_awaited(name, called_by_name(function, signature, ruling.call.args))
            except Exception as error:
                self.answer(ruling.call, error)
                raise
            return told(ruling.call, value)

        @functools.wraps(function)
        async def waiting(*args: Any, **kwargs: Any) -> Any:
            ruling = await self._allow_waiting(name, named_arguments(signature, args, kwargs))
            if not ruling.runs:
                return ruling.text
            try:
                value = await called_by_name(function, signature, ruling.call.args)
            except Exception as error:
                self.answer(ruling.call, error)
                raise
            return told(ruling.call, value)

        return waiting if is_coroutine_function(function) else guarded

    def end(self, output: str = "") -> Outcome:
        """End the run; `with` does it."""
        return self.run.end(output=output)

    def _was_started(self, call_id: str) -> bool:
        return call_id not in self._left_out

    def _said(self, ruling: Ruling) -> Any:
        """Return what `approve` says to a question, which may have to be awaited; `None` where nothing is asked."""
        if ruling.action != "ask" or self.approve is None:
            return None
        return self.approve(ruling.call, ruling.shown)

    def _ruled(self, ruling: Ruling, said: Any) -> Ruling:
        if ruling.action != "ask":
            return ruling
        return self.run.approve(ruling.call.id, None if self.approve is None else said is True)


class GuardTurn:
    """One response: what may run of it, and the answers to all its calls.

    Attributes: `text` (what the model said), `kind` (see `hosts.state.Turn`), `stop` (why a guard ended the run, if it
    did).
    """

    def __init__(self, guard: Guard, turn: Turn, *, blocks: bool = False) -> None:
        self._guard = guard
        self._run = guard.run
        self._blocks = blocks
        self._answers: dict[str, ToolResult] = {}
        self._waiting: dict[str, Any] = {}
        self._rulings = list(turn.rulings)
        for ruling in turn.rulings:
            said = guard._said(ruling)
            if inspect.isawaitable(said):
                self._waiting[ruling.call.id] = said
            else:
                self._ruled(ruling, said)
        self.kind = turn.kind
        self.text = turn.text
        self.stop = turn.stop

    def _ruled(self, ruling: Ruling, said: Any) -> None:
        """Take in what became of a call once a human was asked, if one had to be."""
        made = self._guard._ruled(ruling, said)
        self._rulings = [made if one is ruling else one for one in self._rulings]
        if not made.runs:
            self._answers[made.call.id] = ToolResult(made.call.id, made.text, "denied")

    def _known(self) -> list[Ruling]:
        """Return what became of all calls; raises UsageError while a question waits to be asked."""
        waiting, self._waiting = self._waiting, {}
        for said in waiting.values():
            let_go(said)
        if any(ruling.action == "ask" for ruling in self._rulings):
            raise UsageError(_ASYNC)
        return self._rulings

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that may run, rewritten where a rule rewrote them."""
        return tuple(ruling.call for ruling in self._known() if ruling.runs)

    def _unanswered(self) -> list[ToolCall]:
        """Return the calls that may run and did not yet."""
        return [call for call in self.calls if call.id not in self._answers]

    @property
    def refused(self) -> tuple[Ruling, ...]:
        """The calls that do not run: `text` for the model, `code`, `rule` and `at` (`file:line`) say why."""
        return tuple(ruling for ruling in self._known() if not ruling.runs)

    def answer(self, call: ToolCall | str, value: Any, *, duration_s: float | None = None) -> str:
        """Report what a call returned (text as it is, anything else as JSON) or the exception it raised.

        Returns the text for the model, which a rule may have changed. May be called from any thread, in any order.
        """
        call = self._call(call)
        told = self._run.answer_result(call.id, _result(call, value, duration_s))
        self._answers[call.id] = told
        return told.text

    def run(self, tools: Mapping[str, Callable[..., Any]]) -> GuardTurn:
        """Run what may run, one call after the other, and report each result; an exception is one."""
        calls = self._unanswered()
        with self._beginning(calls):
            for call in calls:
                self._guard._left_out.discard(call.id)
                began = monotonic()
                value: Any
                if call.name not in tools:
                    self._unknown(call, tools)
                    continue
                try:
                    value = tools[call.name](**(call.args or {}))
                except Exception as error:  # noqa: BLE001 - whatever a tool raises is its result
                    value = error
                self.answer(call, value, duration_s=monotonic() - began)
        return self

    @contextmanager
    def _beginning(self, calls: Iterable[ToolCall]) -> Iterator[None]:
        """Within the block calls begin one by one: those that did not where it is left early were not started."""
        waiting = {call.id for call in calls}
        self._guard._left_out |= waiting
        done = False
        try:
            yield
            done = True
        finally:
            if done:
                self._guard._left_out -= waiting

    def _unknown(self, call: ToolCall, tools: Iterable[str]) -> None:
        """Answer a call of a tool that is not there, in the words of our own loop."""
        facts = {"tool": call.name, "offered": sorted(tools)}
        text = self._run.run.snapshot.templates.render("unknown_tool", facts)
        error = ToolError("unknown_tool", text, False)
        self._answers[call.id] = self._run.answer_result(call.id, ToolResult(call.id, text, "error", error))

    async def arun(self, tools: Mapping[str, Callable[..., Any]]) -> GuardTurn:
        """Run what may run concurrently; functions that are not asynchronous run one after the other."""
        for ruling in list(self._rulings):
            if ruling.call.id in self._waiting:
                with self._beginning([one.call for one in self._rulings if one.action != "refuse"]):
                    said = await self._waiting.pop(ruling.call.id)
                self._ruled(ruling, said)
        calls = self._unanswered()
        with self._beginning(calls):
            await asyncio.gather(*(self._arun(tools, call) for call in calls))
        return self

    async def _arun(self, tools: Mapping[str, Callable[..., Any]], call: ToolCall) -> None:
        self._guard._left_out.discard(call.id)
        began = monotonic()
        value: Any
        if call.name not in tools:
            self._unknown(call, tools)
            return
        try:
            value = tools[call.name](**(call.args or {}))
            if inspect.isawaitable(value):
                value = await value
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is its result
            value = error
        self.answer(call, value, duration_s=monotonic() - began)

    def results(self) -> tuple[ToolResult, ...]:
        """Return the answer to every call, in call order.

        Raises:
            UsageError: a call that may run has no answer yet.
        """
        missing = [ruling.call.id for ruling in self._known() if ruling.call.id not in self._answers]
        if missing:
            raise UsageError(f"these calls have no answer yet: {', '.join(missing)}")
        return tuple(self._answers[ruling.call.id] for ruling in self._rulings)

    def messages(self) -> list[dict[str, Any]]:
        """Return the answers as messages of the role `tool`, one for every call, in call order.

        Where the calls were blocks of the content (Anthropic), it is one message of the user with a block for each.
        """
        results = self.results()
        if self._blocks:
            return [{"role": "user", "content": [_block(result) for result in results]}] if results else []
        return [
            {"role": "tool", "tool_call_id": result.call_id, "content": result.text or "(no output)"}
            for result in results
        ]

    def _call(self, call: ToolCall | str) -> ToolCall:
        wanted = call if isinstance(call, str) else call.id
        for ruling in self._rulings:
            if ruling.call.id == wanted:
                return ruling.call
        raise UsageError(f"call {wanted!r} is none of this response")


def _now(said: Any) -> Any:
    """Return what `approve` said, which cannot be awaited here."""
    if inspect.isawaitable(said):
        let_go(said)
        raise UsageError(_ASYNC)
    return said


def _block(result: ToolResult) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": result.call_id, "content": result.text or "(no output)"}
    return block if result.status == "ok" else {**block, "is_error": True}


def _result(call: ToolCall, value: Any, duration_s: float | None = None) -> ToolResult:
    """Return what a call returned, or the exception it raised, as its result."""
    if isinstance(value, BaseException):
        return failure_of(call, value, duration_s)
    return result_of(call, value, duration_s)


__all__ = ["Guard", "GuardStopped", "GuardTurn"]
