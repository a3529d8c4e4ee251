"""`Agent`: our own loop, driven synchronously or with asyncio.

Knows: how effects are performed: calling a model, running tools with time limits, asking a human.
Must not know: what any guard thinks, the order of an iteration.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Literal, Protocol
from uuid import uuid4

import msgspec

from policyengine.durable.heartbeat import holding
from policyengine.durable.keeper import LEASE_S, Found, Keeper, aclaim, claim
from policyengine.durable.offload import off_loop, submit
from policyengine.engine import Engine
from policyengine.errors import PolicyEngineError, UsageError
from policyengine.loop.advance import advance, effect_now
from policyengine.loop.ending import told
from policyengine.loop.state import (
    Answered,
    AskHuman,
    Begin,
    CallModel,
    CallTools,
    Cancelled,
    Effect,
    Event,
    Finish,
    Loop,
    LoopState,
    PickedUp,
    RequestFailed,
    Reserve,
    Reserved,
    Responded,
    ToolJob,
    ToolsDone,
    Wait,
    Waited,
)
from policyengine.mailbox import Mailbox
from policyengine.messages import Message, ModelRequest, ModelResponse, ProviderError, ToolResult
from policyengine.outcome import Outcome, PeerMessage
from policyengine.parsing.notation import described
from policyengine.plans.plan import Plan
from policyengine.protocols import PROTOCOLS, check_choice
from policyengine.run import read_driver
from policyengine.shared.account import check_ledger
from policyengine.shared.pools import Reserving, all_down, unused
from policyengine.stores import Store
from policyengine.subagent import agent_tool, running
from policyengine.toolset import Tool, Toolset, as_tools, failure_of, result_of, timeout_of


class Model(Protocol):
    """What answers requests.

    A request that fails raises: the exception of a provider's SDK as it is, or `RequestError`. What is none of them is
    a mistake of the model class, and ends the run with that exception.
    """

    name: str

    def complete(self, request: ModelRequest) -> ModelResponse | Awaitable[ModelResponse]:
        """Return the answer to a request; an async model returns an awaitable."""
        raise NotImplementedError


class RequestError(Exception):
    """A request failed; `error` is the classified failure."""

    def __init__(self, error: ProviderError) -> None:
        self.error = error
        super().__init__(f"{error.code}: {error.message}")


Start = Callable[[], Loop]
Commit = Callable[[ToolResult], ToolResult]
_Answer = queue.SimpleQueue[ToolResult | BaseException]
_Begun = tuple[Loop, Event]

Human = Callable[[AskHuman], bool | Answered | Awaitable[bool | Answered] | None]
"""Asked when a rule wants a human's approval.

Only `True` lets the calls run; `None` leaves the run waiting. An `Answered` also says who answered, when, and what the
model is told with a refusal. It may be asynchronous under `arun`.
"""


class Agent:
    """A model, its tools and an engine: `run` works on a task to its end.

    `human` is asked for approvals; without one, a run that asks ends as `waiting`. In a `store` runs are kept at every
    effect, so that they outlive their process (`docs/durable-runs.md`); `lease_s` is for how many seconds a run belongs
    to a worker that says nothing, `origin` is kept beside each run. A `ledger` reserves what rules count together with
    other processes (`docs/fleets.md`).
    `system` is the system prompt; in the text protocol the description of the protocol follows it. `sleep` and
    `asleep` wait for a number of seconds before a request is repeated; tests pass their own.
    """

    def __init__(
        self,
        engine: Engine,
        model: Model,
        tools: Any = (),
        *,
        system: str = "",
        human: Human | None = None,
        sleep: Callable[[float], object] = time.sleep,
        asleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        store: Store | None = None,
        lease_s: float = LEASE_S,
        origin: Mapping[str, Any] | None = None,
        ledger: Reserving | None = None,
    ) -> None:
        # Both would otherwise be told by an attribute that is missing, in the middle of a run.
        if not isinstance(engine, Engine):
            raise UsageError(f"an agent needs an Engine first, not {type(engine).__name__}: Agent(Engine(), model)")
        if not callable(getattr(model, "complete", None)) or not hasattr(model, "name"):
            raise UsageError(f"a model has a `name` and a method `complete`; {type(model).__name__} has not")
        if not 1 <= lease_s < inf:
            raise UsageError(f"lease_s must be a number of seconds, 1 or more, not {lease_s}")
        self.engine = engine
        self.model = model
        self.tools: Toolset = as_tools(tools)
        self.system = system
        self.human = human
        self.sleep = sleep
        self.asleep = asleep
        self.store = store
        self.lease_s = lease_s
        self.origin = dict(origin or {})
        self.ledger = ledger

    def run(
        self,
        task: str,
        *,
        history: Sequence[Message] = (),
        plan: Plan | None = None,
        mailbox: Mailbox | None = None,
        **options: Any,
    ) -> Outcome:
        """Work on `task` and return how it ended.

        `history` are the messages of earlier runs of the conversation (`Outcome.messages`); with a `plan` the run
        follows it whatever the policy says about plans; `mailbox` is where peers leave messages. `options` are those
        of `Engine.start_run`.

        With a store the run is kept under its `run_id`, and the same call again goes on where it stood, whatever ended
        the process in between, or returns how it ended. The beginning (`history`, `plan`) then counts no more.

        Raises:
            RunBusyError, LeaseLostError, StoreError: the run is somebody else's, or cannot be kept.
        """
        if self.store is None:
            return self.drive(self.start(history, **options), Begin(task, plan), mailbox)
        run_id = options["run_id"] = options.get("run_id") or uuid4().hex
        begun = partial(self.start, history, **options)
        return self._work_on(self.store, run_id, Begin(task, plan), begun, mailbox)

    async def arun(
        self,
        task: str,
        *,
        history: Sequence[Message] = (),
        plan: Plan | None = None,
        mailbox: Mailbox | None = None,
        **options: Any,
    ) -> Outcome:
        """Work on `task` with asyncio: calls of one batch run concurrently. See `run`."""
        if self.store is None:
            return await self.adrive(self.start(history, **options), Begin(task, plan), mailbox)
        run_id = options["run_id"] = options.get("run_id") or uuid4().hex
        begun = partial(self.start, history, **options)
        return await self._awork_on(self.store, run_id, Begin(task, plan), begun, mailbox)

    def resume_run(self, run_id: str, *, mailbox: Mailbox | None = None) -> Outcome:
        """Go on with a run that is kept in the store; one that has ended returns how it did.

        Calls that were running when its process ended are not repeated, unless the policy declares that their tool
        only reads: a human is asked about them (`docs/durable-runs.md`).

        Raises:
            UsageError: there is no store, or no such run in it, or the run had not begun.
            RunBusyError, LeaseLostError, StoreError: the run is somebody else's, or cannot be kept.
        """
        return self._work_on(self._kept_in(), run_id, None, None, mailbox)

    async def aresume_run(self, run_id: str, *, mailbox: Mailbox | None = None) -> Outcome:
        """Go on with a run that is kept in the store, with asyncio; see `resume_run`."""
        return await self._awork_on(self._kept_in(), run_id, None, None, mailbox)

    def as_tool(self, name: str, description: str, *, shared: bool = True) -> Tool:
        """Return this agent as a tool of another one: it takes a `task` and answers with the outcome.

        A sub-agent that is stopped answers with an error, and the parent goes on. With `shared` its rules share the
        state of scope `conversation` with the parent's rules of the same id, budgets included.
        """
        return agent_tool(self, name, description, shared=shared)

    def start(self, history: Sequence[Message] = (), **options: Any) -> Loop:
        """Return a loop that has not begun, with the system prompt (or `history`) as its messages.

        A `protocol` among the options overrides the policy's.
        """
        snapshot = self.engine.snapshot
        wanted = options.pop("protocol", snapshot.policy.protocol)
        check_choice(wanted, (*PROTOCOLS, "auto"), "protocol")
        protocol: Literal["native", "text"] = "text" if wanted == "text" else "native"
        check_ledger(snapshot.shared, self.ledger)
        run = self.engine.start_run(protocol=protocol, snapshot=snapshot, **options)
        state = LoopState(protocol=protocol, model=self.model.name)
        system = self.system
        if protocol == "text":
            listed = [{"name": spec.name, "description": spec.description} for spec in self.tools.specs]
            forms = described(run.snapshot.policy.parsing_of(self.model.name).forms)
            shown = run.snapshot.templates.render("text_protocol", {"tools": listed, "forms": forms})
            system = f"{system}\n\n{shown}".strip()
        if history:
            state.messages = list(history)
        elif system:
            state.messages.append(Message("system", system))
        state.tools = self.tools.specs
        return Loop(run, state)

    def save(self, loop: Loop) -> bytes:
        """Return run and loop as JSON, at whatever phase they are."""
        return loop.run.save(loop.state)

    def resume(self, saved: bytes) -> Loop:
        """Return the loop that `save` wrote, under the engine's current policy."""
        check_ledger(self.engine.snapshot.shared, self.ledger)
        run, state = self.engine.resume_run(saved)
        return Loop(run, read_driver(state, LoopState))

    def drive(
        self, loop: Loop, event: Event | None = None, mailbox: Mailbox | None = None, keeper: Keeper | None = None
    ) -> Outcome:
        """Perform effects until the run is over; without an event, go on where a resumed run stands.

        Whatever else is raised (an interrupt, a model's own exception), the run is ended first, with a valid history.
        One that is kept by a `keeper` is not: it stands where it was kept last, and can be resumed there.
        """
        done: list[ToolResult] = []
        fetched: list[PeerMessage] = []
        try:
            effect = _advance(loop, event, mailbox, fetched) if event is not None else effect_now(loop)
            while not isinstance(effect, Finish):
                if keeper is not None:
                    keeper.keep(loop, effect)
                    fetched.clear()
                done.clear()
                with running(loop.run):
                    answer = self._perform(loop, effect, done, keeper)
                if answer is None:
                    return waiting(loop, effect)
                effect = _advance(loop, answer, mailbox, fetched)
            if keeper is not None:
                keeper.end(loop, effect.outcome)
        except BaseException as error:
            if keeper is None:
                _give_up(loop, error, done)
                self._settle(loop)
            elif mailbox is not None:
                mailbox.give_back(fetched)
            raise
        return effect.outcome

    async def adrive(
        self, loop: Loop, event: Event | None = None, mailbox: Mailbox | None = None, keeper: Keeper | None = None
    ) -> Outcome:
        """Perform effects with asyncio until the run is over; see `drive`."""
        done: list[ToolResult] = []
        fetched: list[PeerMessage] = []
        try:
            effect = _advance(loop, event, mailbox, fetched) if event is not None else effect_now(loop)
            while not isinstance(effect, Finish):
                if keeper is not None:
                    await off_loop(keeper.keep, loop, effect)
                    fetched.clear()
                done.clear()
                with running(loop.run):
                    answer = await self._aperform(loop, effect, done, keeper)
                if answer is None:
                    return waiting(loop, effect)
                effect = _advance(loop, answer, mailbox, fetched)
            if keeper is not None:
                await off_loop(keeper.end, loop, effect.outcome)
        except BaseException as error:
            if keeper is None:
                _give_up(loop, error, done)
                self._settle(loop)
            elif mailbox is not None:
                mailbox.give_back(fetched)
            raise
        return effect.outcome

    # ---- runs that are kept

    def _kept_in(self) -> Store:
        if self.store is None:
            raise UsageError("this agent has no store: Agent(..., store=open_store(PLACE))")
        return self.store

    def _work_on(
        self, store: Store, run_id: str, begin: Begin | None, start: Start | None, mailbox: Mailbox | None
    ) -> Outcome:
        """Work on a run that is kept: begin it, go on with it, or return how it ended."""
        task = begin.task if begin is not None else None
        taken = claim(store, run_id, task, origin=self.origin, lease_s=self.lease_s)
        if isinstance(taken, Outcome):
            return taken
        with holding(taken):
            loop, event = self._taken_up(taken, taken.found(), begin, start)
            return self.drive(loop, event, mailbox, taken)

    async def _awork_on(
        self, store: Store, run_id: str, begin: Begin | None, start: Start | None, mailbox: Mailbox | None
    ) -> Outcome:
        """Do what `_work_on` does, with asyncio."""
        task = begin.task if begin is not None else None
        taken = await aclaim(store, run_id, task, origin=self.origin, lease_s=self.lease_s)
        if isinstance(taken, Outcome):
            return taken
        with holding(taken):
            found = await off_loop(taken.found)
            loop, event = self._taken_up(taken, found, begin, start)
            return await self.adrive(loop, event, mailbox, taken)

    def _taken_up(self, keeper: Keeper, found: Found | None, begin: Begin | None, start: Start | None) -> _Begun:
        """Return the loop of a run that was taken, new or as it was kept, and the event it goes on with."""
        if found is not None:
            # Nobody worked on it in between, so that time does not count.
            pause = self.engine.clock() - found.now
            check_ledger(self.engine.snapshot.shared, self.ledger)
            run, state = self.engine.resume_run(found.saved, clock=lambda: self.engine.clock() - pause)
            loop = Loop(run, read_driver(state, LoopState))
            loop.state.messages = found.messages
            return loop, PickedUp(tuple(found.results.values()))
        if start is None or begin is None:
            raise UsageError(f"run {keeper.run_id!r} had not begun; call run(task, run_id={keeper.run_id!r})")
        return start(), begin

    # ---- performing effects; `done` collects results as they come, for the case that the run is given up

    def _perform(
        self, loop: Loop, effect: Effect, done: list[ToolResult], keeper: Keeper | None = None
    ) -> Event | None:
        match effect:
            case CallModel(request):
                return self._call_model(_sent(loop, request))
            case CallTools(jobs):
                self._run_jobs(loop, jobs, done, _commit(keeper, loop))
                return ToolsDone(tuple(done))
            case Wait(seconds):
                self.sleep(seconds)
                return Waited()
            case Reserve():
                return self._reserve(loop, effect)
            case AskHuman() if keeper is not None and (kept := keeper.answer_to(effect)) is not None:
                return Answered(kept.approved, kept.text, kept.by, kept.at)
            case AskHuman():
                answer = self.human(effect) if self.human is not None else None
                if inspect.isawaitable(answer):
                    if inspect.iscoroutine(answer):
                        answer.close()
                    raise UsageError("`human` is asynchronous: use `arun`")
                return _heard(effect, answer, keeper)
        raise UsageError(f"no driver for {type(effect).__name__}")

    async def _aperform(
        self, loop: Loop, effect: Effect, done: list[ToolResult], keeper: Keeper | None = None
    ) -> Event | None:
        match effect:
            case CallModel(request):
                return await self._acall_model(_sent(loop, request))
            case CallTools(jobs):
                commit = _commit(keeper, loop)
                await asyncio.gather(*(self._arun_job(loop, job, done, commit) for job in jobs))
                return ToolsDone(tuple(done))
            case Wait(seconds):
                await self.asleep(seconds)
                return Waited()
            case Reserve():
                return await self._areserve(loop, effect)
            case AskHuman() if self.human is not None and (keeper is None or keeper.answer_to(effect) is None):
                answer = self.human(effect)
                answer = await answer if inspect.isawaitable(answer) else answer
                return _heard(effect, answer, keeper)
        return self._perform(loop, effect, done, keeper)

    def _reserve(self, loop: Loop, effect: Reserve) -> Event:
        if self.ledger is None:  # a policy that came into force during the run has pools, the one before had none
            return Reserved(all_down(effect.needs))
        return Reserved(self.ledger.perform(effect.needs, effect.dues, loop.run.state.run_id))

    async def _areserve(self, loop: Loop, effect: Reserve) -> Event:
        job = submit(self._reserve, loop, effect)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            job.add_done_callback(partial(self._not_taken, effect))
            raise

    def _not_taken(self, effect: Reserve, job: Future[Event]) -> None:
        """Give back a reservation that nobody waits for any more; settle what it would have settled."""
        if self.ledger is None:
            return
        if job.cancelled():
            self.ledger.perform((), effect.dues)
        elif job.exception() is None and isinstance(event := job.result(), Reserved):
            self.ledger.perform((), unused(effect.needs, event.grants))

    def _settle(self, loop: Loop) -> None:
        """Settle what a run that was given up still owes to shared pools."""
        dues = loop.run.take_dues() if self.ledger is not None else ()
        if self.ledger is not None and dues:
            self.ledger.perform((), dues, loop.run.state.run_id)

    def _call_model(self, request: ModelRequest) -> Event:
        try:
            answer = self.model.complete(request)
        except Exception as error:  # noqa: BLE001 - an SDK may raise anything; what is no failed request is raised on
            return _request_failed(error)
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise UsageError(f"model {self.model.name!r} is asynchronous: use `arun`")
        return Responded(self._response(answer))

    async def _acall_model(self, request: ModelRequest) -> Event:
        try:
            answer: Any = self.model.complete(request)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:  # noqa: BLE001 - an SDK may raise anything; what is no failed request is raised on
            return _request_failed(error)
        return Responded(self._response(answer))

    def _response(self, answer: object) -> ModelResponse:
        if isinstance(answer, ModelResponse):
            return answer
        raise UsageError(f"model {self.model.name!r} returned {type(answer).__name__}, not a ModelResponse")

    def _run_jobs(self, loop: Loop, jobs: tuple[ToolJob, ...], done: list[ToolResult], commit: Commit) -> None:
        """Run the calls of a batch in threads and put their results into `done`, in call order."""
        if len(jobs) == 1 and jobs[0].timeout_s is None:
            done.append(commit(self._run_tool(jobs[0])))
            return
        answers = []
        for job in jobs:
            answer: _Answer = queue.SimpleQueue()
            work = partial(copy_context().run, self._into, answer, job, commit)
            threading.Thread(target=work, daemon=True).start()
            answers.append((job, answer, monotonic()))
        for job, answer, began in answers:
            done.append(self._await(loop, job, answer, began, commit))

    def _into(self, answer: _Answer, job: ToolJob, commit: Commit) -> None:
        result = self._run_tool(job, in_thread=True)
        answer.put(result)  # it ended; how long a store takes is not the tool's time
        try:
            answer.put(commit(result))
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            answer.put(error)

    def _await(self, loop: Loop, job: ToolJob, answer: _Answer, began: float, commit: Commit) -> ToolResult:
        left = None if job.timeout_s is None else max(0.0, began + job.timeout_s - monotonic())
        try:
            answer.get(timeout=left)
        except queue.Empty:
            return commit(self._timeout(loop, job))
        result = answer.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def _run_tool(self, job: ToolJob, *, in_thread: bool = False) -> ToolResult:
        """Run one call in this thread; whatever the tool raises is the result, not our exception.

        Only in the caller's own thread an interrupt is the user's.
        """
        began = monotonic()
        try:
            tool = self.tools.get(job.call.name)
            if tool is None:
                raise LookupError(f"no tool named {job.call.name!r}")
            value = tool.function(**(job.call.args or {}))
            if tool.is_async:
                value = asyncio.run(value)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not in_thread:
                raise
            return failure_of(job.call, error, monotonic() - began)
        return result_of(job.call, value, monotonic() - began)

    async def _arun_job(self, loop: Loop, job: ToolJob, done: list[ToolResult], commit: Commit) -> None:
        """Run one call as a task of its own, give it up after its time, and put its result into `done`."""
        tool = self.tools.get(job.call.name)
        if tool is not None and tool.is_async:
            running: asyncio.Future[ToolResult] = asyncio.ensure_future(self._arun_async(job, tool))
        else:
            running = _in_thread(partial(self._run_tool, in_thread=True), job)
        try:
            await asyncio.wait({running}, timeout=job.timeout_s)
        except asyncio.CancelledError:
            running.cancel()
            raise
        if running.done():
            result = running.result()
        else:
            running.cancel()  # and not waited for: a tool may ignore it
            running.add_done_callback(_forget)
            result = self._timeout(loop, job)
        done.append(result if commit is _uncommitted else await off_loop(commit, result))

    async def _arun_async(self, job: ToolJob, tool: Tool) -> ToolResult:
        began = monotonic()
        try:
            value = await tool.function(**(job.call.args or {}))
        except BaseException as error:
            task = asyncio.current_task()
            ours = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
            if ours or isinstance(error, KeyboardInterrupt):
                raise
            return failure_of(job.call, error, monotonic() - began)
        return result_of(job.call, value, monotonic() - began)

    def _timeout(self, loop: Loop, job: ToolJob) -> ToolResult:
        limit = job.timeout_s or 0.0
        text = loop.run.snapshot.templates.render("tool_timeout", {"tool": job.call.name, "limit": limit})
        return timeout_of(job.call, text, limit)


def _heard(question: AskHuman, said: object, keeper: Keeper | None) -> Event | None:
    """Return the event of what a human said here, which a run that is kept remembers; `None` if they said nothing."""
    if said is None:
        return None
    answer = said if isinstance(said, Answered) else Answered(said is True)
    if keeper is not None:
        keeper.heard(question, answer)
    return answer


def _uncommitted(result: ToolResult) -> ToolResult:
    return result


def _commit(keeper: Keeper | None, loop: Loop) -> Commit:
    """Return what is done with each result as it comes."""
    if keeper is None:
        return _uncommitted
    kept = keeper.results(loop)

    def commit(result: ToolResult) -> ToolResult:
        kept(result)
        return result

    return commit


def _sent(loop: Loop, request: ModelRequest) -> ModelRequest:
    """Return a request as it is sent: in the text protocol only the system prompt offers the tools."""
    if loop.state.protocol == "text" and request.tools and not request.tool_choice:
        return msgspec.structs.replace(request, tools=())
    return request


def _request_failed(error: Exception) -> Event:
    """Return the failure of a request, classified; what is no failure of a request is raised on.

    The exceptions of any provider's SDK are known by what they carry (docs/provider-errors.md).
    """
    if isinstance(error, PolicyEngineError):
        raise error
    # Classifying is needed only where a request failed.
    from policyengine.providers.errors import classify_provider_error

    found = classify_provider_error(error)
    if found.code == "unknown" and not isinstance(error, RequestError):
        raise error
    return RequestFailed(found)


def _advance(loop: Loop, event: Event, mailbox: Mailbox | None, fetched: list[PeerMessage]) -> Effect:
    """Fetch what peers left, so that it is there when a step begins, and go on; `fetched` says what was."""
    if mailbox is not None:
        taken = mailbox.take()
        fetched += taken
        loop.state.inbox += taken
    return advance(loop, event)


def waiting(loop: Loop, effect: Effect) -> Outcome:
    """Return the outcome of a run that waits for a human; the loop stays as it is and can be saved."""
    state = loop.state
    return Outcome(
        status="waiting",
        output=state.last_text,
        stop=effect.reason if isinstance(effect, AskHuman) else None,
        iterations=state.rounds,
        calls=loop.run.state.calls,
        executed=state.executed,
        interventions=loop.run.state.interventions,
        prompt_tokens=state.prompt_tokens,
        completion_tokens=state.completion_tokens,
        messages=(*state.messages, *_answers_so_far(loop)),
        failed_attempts=tuple(state.failed),
        plan=state.plan,
        undelivered=tuple(state.inbox),
    )


def _answers_so_far(loop: Loop) -> Iterator[Message]:
    """Answer the calls that wait, in the outcome only: its messages may be sent as the history of another run."""
    rule = loop.state.asking.rule if loop.state.asking else ""
    for item in loop.state.pending:
        text = loop.run.snapshot.templates.render("ask.wait", {"tool": item.call.name, "rule": rule})
        yield told(loop, item.call, item.result or ToolResult(item.call.id, text, "not_run"))


def _give_up(loop: Loop, error: BaseException, done: list[ToolResult]) -> None:
    """End a run that its driver cannot go on with; what was raised is raised on."""
    if loop.state.phase == "done" or isinstance(error, UsageError):
        return
    wanted = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
    why = ("interrupted" if isinstance(error, KeyboardInterrupt) else "cancelled") if wanted else type(error).__name__
    advance(loop, Cancelled(why, tuple(done), "cancelled" if wanted else "failed"))


def _forget(running: asyncio.Future[ToolResult]) -> None:
    """Fetch the result of a task that was given up, so that asyncio does not complain about it."""
    if not running.cancelled():
        running.exception()


def _in_thread(function: Callable[[ToolJob], ToolResult], job: ToolJob) -> asyncio.Future[ToolResult]:
    """Run a blocking tool in a daemon thread: one that never returns must not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ToolResult] = loop.create_future()

    def settle(result: ToolResult) -> None:
        if not future.done():
            future.set_result(result)

    def work() -> None:
        result = function(job)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result)

    threading.Thread(target=partial(copy_context().run, work), daemon=True).start()
    return future
