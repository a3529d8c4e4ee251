"""`Agent`: our own loop, driven synchronously or with asyncio.

Knows: how effects are performed: calling a model, running tools with time limits, asking a human.
Must not know: what any guard thinks, the order of an iteration.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Literal, Protocol

import msgspec

from policyengine.engine import Engine
from policyengine.errors import UsageError
from policyengine.loop import (
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
    RequestFailed,
    Responded,
    ToolJob,
    ToolsDone,
    advance,
    effect_now,
)
from policyengine.messages import Message, ModelRequest, ModelResponse, ProviderError, ToolResult
from policyengine.outcome import Outcome
from policyengine.toolset import Toolset, as_tools, failure_of, result_of, timeout_of


class Model(Protocol):
    """What answers requests. Failures are raised as `RequestError`."""

    name: str

    def complete(self, request: ModelRequest) -> ModelResponse | Awaitable[ModelResponse]:
        """Return the answer to a request; an async model returns an awaitable."""
        raise NotImplementedError


class RequestError(Exception):
    """A request failed; `error` is the classified failure."""

    def __init__(self, error: ProviderError) -> None:
        self.error = error
        super().__init__(f"{error.code}: {error.message}")


Human = Callable[[AskHuman], bool]
"""Asked when a rule wants a human's approval; returns whether the calls may run."""


class Agent:
    """A model, its tools and an engine: `run` works on a task to its end.

    `human` is asked for approvals; without one, a run that asks ends as `waiting`.
    `system` is the system prompt; in the text protocol the description of the protocol follows it.
    """

    def __init__(
        self, engine: Engine, model: Model, tools: Any = (), *, system: str = "", human: Human | None = None
    ) -> None:
        self.engine = engine
        self.model = model
        self.tools: Toolset = as_tools(tools)
        self.system = system
        self.human = human

    def run(self, task: str, *, history: Sequence[Message] = (), **options: Any) -> Outcome:
        """Work on `task` and return how it ended.

        `history` are the messages of earlier runs of the conversation (`Outcome.messages`); `options` are those of
        `Engine.start_run`.
        """
        return self.drive(self.start(history, **options), Begin(task))

    async def arun(self, task: str, *, history: Sequence[Message] = (), **options: Any) -> Outcome:
        """Work on `task` with asyncio: calls of one batch run concurrently."""
        return await self.adrive(self.start(history, **options), Begin(task))

    def start(self, history: Sequence[Message] = (), **options: Any) -> Loop:
        """Return a loop that has not begun, with the system prompt (or `history`) as its messages.

        A `protocol` among the options overrides the policy's.
        """
        protocol: Literal["native", "text"] = "native"
        if options.pop("protocol", self.engine.snapshot.policy.protocol) == "text":
            protocol = "text"
        run = self.engine.start_run(protocol=protocol, **options)
        state = LoopState(protocol=protocol, model=self.model.name)
        system = self.system
        if protocol == "text":
            listed = [{"name": spec.name, "description": spec.description} for spec in self.tools.specs]
            described = run.snapshot.templates.render("text_protocol", {"tools": listed})
            system = f"{system}\n\n{described}".strip()
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
        run, state = self.engine.resume_run(saved)
        return Loop(run, msgspec.convert(state, LoopState))

    def drive(self, loop: Loop, event: Event | None = None) -> Outcome:
        """Perform effects until the run is over; without an event, go on where a resumed run stands."""
        effect = advance(loop, event) if event is not None else effect_now(loop)
        try:
            while not isinstance(effect, Finish):
                done = self._perform(loop, effect)
                if done is None:
                    return waiting(loop, effect)
                effect = advance(loop, done)
        except KeyboardInterrupt:
            effect = advance(loop, Cancelled("interrupted"))
            raise
        return effect.outcome

    async def adrive(self, loop: Loop, event: Event | None = None) -> Outcome:
        """Perform effects with asyncio until the run is over."""
        effect = advance(loop, event) if event is not None else effect_now(loop)
        try:
            while not isinstance(effect, Finish):
                done = await self._aperform(loop, effect)
                if done is None:
                    return waiting(loop, effect)
                effect = advance(loop, done)
        except asyncio.CancelledError:
            advance(loop, Cancelled("cancelled"))
            raise
        return effect.outcome

    # ---- performing effects

    def _perform(self, loop: Loop, effect: Effect) -> Event | None:
        match effect:
            case CallModel(request):
                return self._call_model(request)
            case CallTools(jobs):
                return ToolsDone(self._run_jobs(loop, jobs))
            case AskHuman():
                return Answered(self.human(effect)) if self.human is not None else None
        raise UsageError(f"no driver for {type(effect).__name__}")

    async def _aperform(self, loop: Loop, effect: Effect) -> Event | None:
        match effect:
            case CallModel(request):
                return await self._acall_model(request)
            case CallTools(jobs):
                return ToolsDone(tuple(await asyncio.gather(*(self._arun_job(loop, job) for job in jobs))))
        return self._perform(loop, effect)

    def _call_model(self, request: ModelRequest) -> Event:
        try:
            answer = self.model.complete(request)
        except RequestError as error:
            return RequestFailed(error.error)
        if not isinstance(answer, ModelResponse):
            raise UsageError(f"model {self.model.name!r} is asynchronous: use `arun`")
        return Responded(answer)

    async def _acall_model(self, request: ModelRequest) -> Event:
        try:
            answer = self.model.complete(request)
            return Responded(answer if isinstance(answer, ModelResponse) else await answer)
        except RequestError as error:
            return RequestFailed(error.error)

    def _run_jobs(self, loop: Loop, jobs: tuple[ToolJob, ...]) -> tuple[ToolResult, ...]:
        """Run the calls of a batch in threads; the results come in call order."""
        if len(jobs) == 1 and jobs[0].timeout_s is None:
            return (self._run_tool(jobs[0]),)
        answers = []
        for job in jobs:
            answer: queue.SimpleQueue[ToolResult] = queue.SimpleQueue()
            threading.Thread(target=self._into, args=(answer, job), daemon=True).start()
            answers.append((job, answer, monotonic()))
        return tuple(self._await(loop, job, answer, began) for job, answer, began in answers)

    def _into(self, answer: queue.SimpleQueue[ToolResult], job: ToolJob) -> None:
        answer.put(self._run_tool(job))

    def _await(self, loop: Loop, job: ToolJob, answer: queue.SimpleQueue[ToolResult], began: float) -> ToolResult:
        if job.timeout_s is None:
            return answer.get()
        try:
            return answer.get(timeout=max(0.0, began + job.timeout_s - monotonic()))
        except queue.Empty:
            return self._timeout(loop, job)

    def _run_tool(self, job: ToolJob) -> ToolResult:
        """Run one call in this thread; whatever the tool raises is the result, not our exception."""
        began = monotonic()
        try:
            tool = self.tools.get(job.call.name)
            if tool is None:
                raise LookupError(f"no tool named {job.call.name!r}")
            value = tool.function(**(job.call.args or {}))
            if tool.is_async:
                value = asyncio.run(value)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool's exception is an event, never ours
            return failure_of(job.call, error, monotonic() - began)
        return result_of(job.call, value, monotonic() - began)

    async def _arun_job(self, loop: Loop, job: ToolJob) -> ToolResult:
        tool = self.tools.get(job.call.name)
        began = monotonic()
        is_async = tool is not None and tool.is_async
        running = self._arun_async(job, began) if is_async else _in_thread(self._run_tool, job)
        try:
            return await asyncio.wait_for(running, job.timeout_s)
        except TimeoutError:
            return self._timeout(loop, job)

    async def _arun_async(self, job: ToolJob, began: float) -> ToolResult:
        tool = self.tools.get(job.call.name)
        try:
            value = await tool.function(**(job.call.args or {})) if tool is not None else None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool's exception is an event, never ours
            return failure_of(job.call, error, monotonic() - began)
        return result_of(job.call, value, monotonic() - began)

    def _timeout(self, loop: Loop, job: ToolJob) -> ToolResult:
        limit = job.timeout_s or 0.0
        text = loop.run.snapshot.templates.render("tool_timeout", {"tool": job.call.name, "limit": limit})
        return timeout_of(job.call, text, limit)


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
        messages=tuple(state.messages),
    )


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

    threading.Thread(target=work, daemon=True).start()
    return future
