"""Spans of runs for OpenTelemetry, in its conventions for generative AI (extra `otel`).

Knows: which span an event begins or ends, which span a sub-agent's is below, what a decision adds to it.
Must not know: exporters, providers of spans (one is given, or the host's global one is used; none is ever set), how
content is written (`telemetry.spans`).

A run is `invoke_agent`, a request to a model `chat` below it, a call of a tool `execute_tool`. What rules wanted is an
event `policyengine.decision` of the span it was about. A run that a rule ended, a request that failed and a call that
failed or was refused have the status of an error, with the machine code as `error.type`.

Everything is told by decisions, so it is the same in our loop and in other people's. A request of which a host tells
nothing begins and ends where its response is told. A call ends where its result is told; calls of a batch that are told
together end after the time each took.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary, finalize

from policyengine.actions import EndStep, Stop
from policyengine.errors import UsageError
from policyengine.messages import ModelRequest, ModelResponse, ProviderError, ToolCall, ToolResult
from policyengine.outcome import Outcome
from policyengine.policy.model import Log
from policyengine.run import HUMAN, Report, Run
from policyengine.subagent import parent_run
from policyengine.telemetry import spans
from policyengine.telemetry.decision_log import MAX_NAME, is_plain

try:
    from opentelemetry import context, trace
except ImportError as missing:
    raise UsageError("spans need OpenTelemetry: pip install 'agent-policyengine[otel]'") from missing

SCOPE = "policyengine"
NANO = 10**9

_ABOUT_CHAT = ("before_model_call", "after_model_response", "after_provider_error", "after_parse")


class Tracing:
    """Makes spans of runs: a sink (`Engine(sinks=[Tracing(provider)])`).

    Args:
        provider: makes the spans; by default the host's global one, whatever that is at the time.
        provider_name: `gen_ai.provider.name` of requests (`openai`, `anthropic`), which only the host knows.
        clock: nanoseconds since 1970.
    """

    def __init__(
        self, provider: Any = None, *, provider_name: str = "", clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._tracer: Any = trace.get_tracer(SCOPE, tracer_provider=provider)
        self._provider_name = provider_name
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: WeakKeyDictionary[Run, _Spans] = WeakKeyDictionary()
        # Filled wherever a run is collected, even within a lock of the SDK: their spans are ended later.
        self._left: deque[_Spans] = deque()

    def __call__(self, report: Report) -> None:
        """Begin and end the spans that an event begins and ends, and add what was decided."""
        self._leave()
        held = self._held(report)
        now = self._clock()
        hook, payload = report.hook, report.payload
        held.take(hook, payload, report, now)
        if hook == HUMAN:
            asked = {"policyengine.rule": report.decision.decided_by, "policyengine.answer": payload[1]}
            held.about(hook, payload).add_event("policyengine.human", spans.sendable(asked), timestamp=now)
            return
        if not is_plain(report) and hook != "on_stop":
            about = held.about(hook, payload)
            for attributes in spans.decided(report):
                about.add_event("policyengine.decision", spans.sendable(attributes), timestamp=now)
        if hook == "run_end":
            with self._lock:
                self._runs.pop(report.run, None)
            held.end(payload[0], now)
        elif hook == "after_tool_call":
            held.answered(payload[0], report.decision.changed or payload[1], now)
        elif hook in ("after_parse", "after_provider_error"):
            held.end_chat(now)

    def request_failed(self, run: Run, error: ProviderError) -> None:
        """End the span of a failed request about which no rule is asked."""
        with self._lock:
            held = self._runs.get(run)
        if held is not None:
            held.failed(error)
            held.end_chat(self._clock())

    @contextmanager
    def around(self, run: Run) -> Iterator[None]:
        """Make what a run is doing the current span, for spans of other libraries made meanwhile.

        Our own loop does so while it calls a model or runs tools.
        """
        with self._lock:
            held = self._runs.get(run)
        if held is None:
            yield
            return
        token = context.attach(trace.set_span_in_context(held.current))
        try:
            yield
        finally:
            context.detach(token)

    def close(self) -> None:
        """End the spans of all runs that are under way: nothing more will be heard of them."""
        with self._lock:
            left = list(self._runs.values())
            self._runs.clear()
        for held in left:
            held.leave()
        self._leave()

    def _leave(self) -> None:
        while self._left:
            with suppress(IndexError):  # another thread took it
                self._left.popleft().leave()

    def _held(self, report: Report) -> _Spans:
        run = report.run
        with self._lock:
            held = self._runs.get(run)
        if held is not None:
            return held
        above = self._above(report)
        held = _Spans(self._tracer, self._clock, self._provider_name, report, above)
        with self._lock:
            self._runs[run] = held
        finalize(run, self._left.append, held).atexit = False
        return held

    def _above(self, report: Report) -> Any:
        """Return the context below which a run's span is: that of the call that began it, or the current one."""
        parent = parent_run()
        with self._lock:
            held = self._runs.get(parent) if parent is not None and parent is not report.run else None
        if held is None:
            return None
        return trace.set_span_in_context(held.began(report))


class _Spans:
    """The spans of one run. `calls` are those that have no answer yet, by id."""

    def __init__(self, tracer: Any, clock: Callable[[], int], provider_name: str, report: Report, above: Any) -> None:
        self._tracer = tracer
        self._clock = clock
        self._provider = {"gen_ai.provider.name": provider_name} if provider_name else {}
        name, attributes = spans.run_begun(report)
        name, attributes = spans.encodable(name), spans.sendable(attributes)
        self._root: Any = tracer.start_span(name, above, attributes=attributes, start_time=clock())
        self._content = spans.Content(report.run.snapshot.policy.log if self._root.is_recording() else Log())
        self._below: Any = trace.set_span_in_context(self._root)
        self._common = {key: attributes[key] for key in spans.COMMON if key in attributes}
        self._chat: Any = None
        self._asked: tuple[ModelRequest, int] | None = None
        self._any_request = False
        self._calls: dict[str, _Call] = {}
        self._replied: int | None = None

    @property
    def current(self) -> Any:
        """What the run is doing: a request, the one call that has no answer, or nothing in particular."""
        if self._chat is not None:
            return self._chat
        return next(iter(self._calls.values())).span if len(self._calls) == 1 else self._root

    def take(self, hook: str, payload: tuple[Any, ...], report: Report, now: int) -> None:
        """Begin and end what an event begins and ends, before its decision is told."""
        if hook == "before_model_call":
            self._request(payload[0], report, now)
        elif hook == "after_model_response":
            self._response(payload[0], now)
        elif hook == "after_provider_error":
            self.failed(payload[0])
        elif hook == "before_tool_call":
            self.end_chat(now)
            self._call(payload[0], report, now)
        elif hook == "on_stop":
            self._root.add_event("policyengine.stop", spans.sendable(spans.stopped(payload[0])), timestamp=now)
        elif hook in ("after_iteration", "step_start", "step_end") and self._replied is not None:
            self.end_chat(now)

    def about(self, hook: str, payload: tuple[Any, ...]) -> Any:
        """Return the span that a decision is about."""
        if hook in ("before_tool_call", "after_tool_call", HUMAN) and payload[0].id in self._calls:
            return self._calls[payload[0].id].span
        return self._chat if self._chat is not None and hook in _ABOUT_CHAT else self._root

    def began(self, report: Report) -> Any:
        """Return the span below which a sub-agent's run begins: that of the call that began it, if it can be told."""
        name, task = report.run.state.agent, report.payload[0]
        waiting = [call for call in self._calls.values() if not call.began]
        same = [call for call in waiting if call.name == name]
        exact = [call for call in same if isinstance(call.args, dict) and call.args.get("task") == task]
        found = next(iter(exact or same), waiting[0] if len(waiting) == 1 else None)
        if found is None:
            return self._root
        found.began = True
        return found.span

    def answered(self, call: ToolCall, result: ToolResult, now: int) -> None:
        """End the span of a call, with what became of it."""
        held = self._calls.pop(call.id, None)
        if held is None:
            return
        held.span.set_attributes(self._content.result(result))
        held.span.set_attributes(spans.sendable(spans.answered(result)))
        if result.status != "ok":
            _fail(held.span, spans.kind_of(result), self._content.text(result.text))
        end = now
        if held.together and result.duration_s is not None and result.duration_s >= 0:
            end = min(now, held.judged + int(result.duration_s * NANO))
        held.span.end(end)

    def end(self, outcome: Outcome, now: int) -> None:
        """End all spans of a run that is over."""
        self._root.set_attributes(spans.sendable(spans.run_ended(outcome)))
        if outcome.status in ("stopped", "failed", "cancelled"):
            _fail(self._root, spans.why(outcome), outcome.status)
        self._end_all(now, "" if outcome.status == "completed" else outcome.status)

    def leave(self) -> None:
        """End all spans of a run of which nothing more will be heard."""
        if self._root.is_recording():
            self._root.set_attribute("policyengine.outcome", "left")
            self._end_all(self._clock(), "left")

    # ---- requests

    def _request(self, request: ModelRequest, report: Report, now: int) -> None:
        self.end_chat(now)
        if isinstance(report.decision.control, Stop | EndStep):
            return
        request = report.decision.changed or request
        self._asked = (request, now)
        # A history that is shortened comes in the place of this request: there is a span only if something comes back.
        if request.messages and request.compaction is None:
            self._chat = self._begin_chat(request, now)

    def _begin_chat(self, request: ModelRequest, start: int) -> Any:
        name, attributes = spans.request(request)
        attributes |= self._content.request(request, whole=not self._any_request)
        self._any_request = True
        attributes = spans.sendable({**self._common, **self._provider, **attributes})
        return self._tracer.start_span(
            spans.encodable(name), self._below, kind=trace.SpanKind.CLIENT, attributes=attributes, start_time=start
        )

    def _response(self, response: ModelResponse, now: int) -> None:
        request, start = self._asked or (ModelRequest(()), now)
        if self._chat is None:
            self._chat = self._begin_chat(request, start)
        self._chat.set_attributes(spans.sendable({**spans.response(response), **self._content.response(response)}))
        self._replied = now

    def failed(self, error: ProviderError) -> None:
        """Say in the span of a request that it failed."""
        if self._chat is None and self._asked is not None and self._asked[0].messages:
            self._chat = self._begin_chat(*self._asked)
        if self._chat is not None:
            _fail(self._chat, error.code, self._content.text(error.message))

    def end_chat(self, now: int) -> None:
        """End the span of a request: when its response came, or now."""
        chat, replied = self._chat, self._replied
        self._chat = self._asked = self._replied = None
        if chat is not None:
            chat.end(replied or now)

    # ---- calls

    def _call(self, call: ToolCall, report: Report, now: int) -> None:
        changed = report.decision.changed or call
        attributes = spans.sendable({**self._common, **spans.call(changed), **self._content.call(changed)})
        span = self._tracer.start_span(
            spans.encodable(f"execute_tool {changed.name[:MAX_NAME]}".strip()),
            self._below,
            attributes=attributes,
            start_time=now,
        )
        batch = str(report.payload[1].id)
        others = [other for other in self._calls.values() if other.batch == batch]
        asked = report.decision.action == "ask" or any(other.asked for other in others)
        self._calls[call.id] = _Call(span, changed, batch, now, asked)
        for other in (*others, self._calls[call.id]):
            other.together, other.judged, other.asked = bool(others) and not asked, now, asked

    def _end_all(self, now: int, why: str) -> None:
        if self._chat is not None and why:
            _fail(self._chat, why, "")
        self.end_chat(now)
        for call in self._calls.values():
            call.span.set_attribute("policyengine.tool.status", "unanswered")
            call.span.end(now)
        self._calls.clear()
        self._root.end(now)


class _Call:
    """A call that has no answer yet. `began` says that a sub-agent began below it.

    `judged` is when the last call of its batch was judged; calls that run `together` are answered together.
    """

    def __init__(self, span: Any, call: ToolCall, batch: str, judged: int, asked: bool) -> None:
        self.span = span
        self.name = call.name
        self.args = call.args
        self.batch = batch
        self.judged = judged
        self.asked = asked
        self.together = False
        self.began = False


def _fail(span: Any, kind: str, why: str) -> None:
    span.set_attribute("error.type", spans.encodable(kind))
    span.set_status(trace.StatusCode.ERROR, spans.encodable(why or kind))
