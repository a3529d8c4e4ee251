"""Metrics of engines for Prometheus (extra `prometheus`).

Knows: what is counted, under which names and labels, how it is served. Must not know: how a decision is made.

Content-free, and bounded: names that come from policies, extensions and models (rules, codes, tools) are labels only
up to a number, all later ones are `other`. A tool's name is a label once the tool was offered or has run, so that no
model can use them up with names of its own.
Everything is counted per engine. What is a state and no count (the policy in force, the kill switch, ...) is looked at
when somebody scrapes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from policyengine.actions import ALLOW, EndStep, Record, Stop
from policyengine.decision import Vote
from policyengine.engine import Engine
from policyengine.errors import UsageError
from policyengine.messages import ModelRequest, ModelResponse, ProviderError, ToolCall, ToolResult
from policyengine.prices import NANO, BundledPrice
from policyengine.run import HUMAN, Report, Run
from policyengine.status import log_dropped
from policyengine.telemetry.decision_log import strictest
from policyengine.telemetry.spans import encodable

try:
    import prometheus_client
    from prometheus_client import core
except ImportError as missing:
    raise UsageError("metrics need prometheus_client: pip install 'agent-policyengine[prometheus]'") from missing

OTHER = "other"
MOST_NAMES = 100
"""How many names of each kind are labels."""

MOST_TOKENS = 2**62
"""No response counts more: a provider may say anything."""

SECONDS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1.0)
"""Bounds of the histogram of rules, from ten microseconds to a second."""

_COUNTERS = {
    "decisions": ("Decisions, by what was carried out.", ("hook", "action", "rule", "mode")),
    "rule_answers": (
        "What rules wanted, and what their modes left of it.",
        ("rule", "hook", "raw", "effective", "mode", "code"),
    ),
    "rule_errors": ("Rules that failed, by kind; `timeout` ran over their time.", ("rule", "kind")),
    "human_answers": ("What came of questions to humans.", ("rule", "answer")),
    "runs_ended": ("Runs that ended, by how.", ("status",)),
    "stops": ("Stops, ends of steps, wind-downs and questions, by reason.", ("rule", "code", "action")),
    "tool_calls": (
        "Tool calls, by how they were answered; `denied` and `not_run` were never started.",
        ("tool", "status"),
    ),
    "model_requests": ("Requests to models that the rules let go.", ()),
    "provider_errors": ("Failed requests to models, by class.", ("code",)),
    "tokens": ("Tokens as providers reported them.", ("kind",)),
    "cost_dollars": ("What responses cost, where prices are known.", ()),
    "reloads": ("Versions of the policy that came into force after the first, or were refused.", ("outcome",)),
}


class Metrics:
    """Counts what happens in an engine, and says what state it is in.

    It registers itself with the engine: every run that starts from now on is counted. Another engine is added with
    `add`; its `name` is the label `engine`. `registry` is by default one of its own, so that nothing is added to what
    the host shows; `prices` says what tokens cost (`policyengine.prices.bundled_prices()`).

    Raises:
        UsageError: prometheus_client is not installed (when this module is imported), or the registry has such metrics
            already.
    """

    def __init__(
        self,
        engine: Engine,
        registry: Any = None,
        *,
        name: str = "main",
        prices: BundledPrice | None = None,
        most_names: int = MOST_NAMES,
    ) -> None:
        self.registry: Any = registry if registry is not None else prometheus_client.CollectorRegistry()
        self._prices = prices
        self._lock = threading.Lock()
        self._engines: dict[str, Engine] = {}
        self._names = {kind: Names(most_names) for kind in ("rule", "code", "tool")}
        try:
            self._count = {
                key: Children(
                    prometheus_client.Counter(f"policyengine_{key}", text, ("engine", *labels), registry=self.registry)
                )
                for key, (text, labels) in _COUNTERS.items()
            }
            self._seconds = Children(
                prometheus_client.Histogram(
                    "policyengine_rule_seconds",
                    "Running time of rules.",
                    ("engine", "rule"),
                    buckets=SECONDS,
                    registry=self.registry,
                )
            )
            self.registry.register(State(self._engines))
        except ValueError as error:
            raise UsageError(f"the registry has metrics of these names already; use `add`: {error}") from error
        self.add(engine, name)

    def add(self, engine: Engine, name: str) -> None:
        """Count what happens in another engine, too.

        Raises:
            UsageError: there is an engine of this name already.
        """
        with self._lock:
            if name in self._engines:
                raise UsageError(f"there are metrics of an engine {name!r} already; give each a name of its own")
            self._engines[name] = engine
        watcher = _Watcher(name, self._count, self._seconds, self._names, self._prices)
        engine.sinks.append(watcher)
        engine.listeners.append(watcher.heard)

    def text(self) -> str:
        """Return everything in the text format of Prometheus."""
        shown: bytes = prometheus_client.generate_latest(self.registry)
        return shown.decode()

    @contextmanager
    def serve(self, port: int = 0, host: str = "127.0.0.1") -> Iterator[str]:
        """Serve the metrics by HTTP for as long as the block lasts; yield where. Port 0 is any free one.

        Whoever reaches the port can read them: there is no password, so by default only this machine does.

        Raises:
            UsageError: the port cannot be used.
        """
        try:
            server, thread = prometheus_client.start_http_server(port, addr=host, registry=self.registry)
        except (OSError, OverflowError) as error:
            raise UsageError(f"cannot serve metrics at {host}:{port}: {error}") from error
        try:
            yield f"http://{host}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class Names:
    """The names of one kind that are labels; there is room for `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def learn(self, name: str) -> str:
        """Return the label of a name, which it takes for itself if there is room."""
        if name in self._known:
            return name
        with self._lock:
            if len(self._known) < self._most:
                self._known.add(name)
        return self.known(name)

    def known(self, name: str) -> str:
        """Return the label of a name, without taking one."""
        return name if name in self._known else OTHER


class Children:
    """The time series of a metric, found by their labels without asking the library each time."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._known: dict[tuple[str, ...], Any] = {}

    def __call__(self, *labels: str) -> Any:
        """Return one series."""
        found = self._known.get(labels)
        if found is None:
            found = self._known[labels] = self._metric.labels(*map(encodable, labels))
        return found


class _Watcher:
    """Counts what happens in one engine: a sink and a listener."""

    def __init__(
        self,
        engine: str,
        count: dict[str, Children],
        seconds: Children,
        names: dict[str, Names],
        prices: BundledPrice | None,
    ) -> None:
        self._engine = engine
        self._count = count
        self._seconds = seconds
        self._rule, self._code, self._tool = names["rule"], names["code"], names["tool"]
        self._prices = prices
        # Requests in the place of which the history may be shortened, and the failures told last.
        self._unsure: WeakKeyDictionary[Run, bool] = WeakKeyDictionary()
        self._told: WeakKeyDictionary[Run, Any] = WeakKeyDictionary()
        self._more: dict[str, Callable[[Report], None]] = {
            "before_model_call": self._request,
            "after_model_response": self._response,
            "after_provider_error": self._failure,
            "after_tool_call": self._result,
            "on_stop": self._stop,
            "run_end": self._end,
        }

    def __call__(self, report: Report) -> None:
        """Count one decision."""
        decision = report.decision
        if report.hook == HUMAN:
            self._count["human_answers"](self._engine, self._rule.learn(decision.decided_by), report.payload[1]).inc()
            return
        mode = ""
        for vote in decision.votes:
            self._vote(vote, report.hook)
            if vote.rule == decision.decided_by:
                mode = vote.mode
        rule = self._rule.learn(decision.decided_by) if decision.decided_by else ""
        self._count["decisions"](self._engine, report.hook, decision.action, rule, mode).inc()
        more = self._more.get(report.hook)
        if more is not None:
            more(report)

    def request_failed(self, run: Run, error: ProviderError) -> None:
        """Count a failed request about which no rule is asked."""
        self._unsure.pop(run, None)
        self._count["provider_errors"](self._engine, self._code.learn(error.code)).inc()

    def heard(self, event: str, subject: Any) -> None:
        """Count that a policy came into force or was refused."""
        outcome = {"policy_loaded": "loaded", "policy_rejected": "rejected"}.get(event)
        if outcome is not None:
            self._count["reloads"](self._engine, outcome).inc()

    def _vote(self, vote: Vote, hook: str) -> None:
        rule = self._rule.learn(vote.rule)
        self._seconds(self._engine, rule).observe(vote.us / 1e6)
        if vote.error:
            self._count["rule_errors"](self._engine, rule, "timeout" if vote.error == "timeout" else "error").inc()
        if vote.raw:
            raw, effective = _name(vote.raw), _name(vote.effective)
            code = self._code.learn(main.code) if (main := strictest(vote.raw)) is not None and main.code else ""
            self._count["rule_answers"](self._engine, rule, vote.hook or hook, raw, effective, vote.mode, code).inc()

    def _request(self, report: Report) -> None:
        request = report.payload[0]
        if isinstance(request, ModelRequest):
            for tool in request.tools:
                self._tool.learn(tool.name)
            if request.purpose == "main":
                self._told.pop(report.run, None)
        self._unsure.pop(report.run, None)
        if isinstance(report.decision.control, Stop | EndStep):
            return
        changed = report.decision.changed
        if isinstance(changed, ModelRequest) and changed.compaction is not None:
            self._unsure[report.run] = True  # sent after all, if something comes back
        else:
            self._count["model_requests"](self._engine).inc()

    def _sent(self, report: Report) -> None:
        if self._unsure.pop(report.run, False):
            self._count["model_requests"](self._engine).inc()

    def _response(self, report: Report) -> None:
        self._sent(report)
        response = report.payload[0]
        usage = response.usage if isinstance(response, ModelResponse) else None
        if usage is None:
            return
        prompt, completion = (min(n or 0, MOST_TOKENS) for n in (usage.prompt_tokens, usage.completion_tokens))
        for kind, tokens in (("prompt", prompt), ("completion", completion)):
            if tokens > 0:
                self._count["tokens"](self._engine, kind).inc(tokens)
        if self._prices is not None and response.model and prompt >= 0 and completion >= 0:
            cost = self._prices(response.model, prompt, completion)
            if cost:
                self._count["cost_dollars"](self._engine).inc(cost / NANO)

    def _failure(self, report: Report) -> None:
        self._sent(report)
        error = report.payload[0]
        if self._told.get(report.run) is not error:  # the rules are asked again where a remedy changed nothing
            self._told[report.run] = error
            self._count["provider_errors"](self._engine, self._code.learn(error.code)).inc()

    def _result(self, report: Report) -> None:
        call, result = report.payload
        if not isinstance(call, ToolCall) or not isinstance(result, ToolResult):
            return
        unknown = result.error is not None and result.error.code == "unknown_tool" and not result.error.declared
        tool = self._tool.learn(call.name) if result.ran and not unknown else self._tool.known(call.name)
        self._count["tool_calls"](self._engine, tool, result.status).inc()

    def _stop(self, report: Report) -> None:
        reason = report.payload[0]
        rule, code = self._rule.learn(reason.rule), self._code.learn(reason.code)
        self._count["stops"](self._engine, rule, code, reason.action).inc()

    def _end(self, report: Report) -> None:
        self._count["runs_ended"](self._engine, report.payload[0].status).inc()


def _name(actions: Iterable[Any]) -> str:
    """Name the strictest of a rule's actions."""
    main = strictest(tuple(actions))
    if main is None:
        return ALLOW
    return "record" if isinstance(main, Record) else main.name


class State:
    """What engines are doing at the moment somebody asks: a collector."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        self._engines = engines

    def describe(self) -> Iterator[Any]:
        """Name the metrics without looking at any engine."""
        return self._families({})

    def collect(self) -> Iterator[Any]:
        """Look at every engine."""
        return self._families(dict(self._engines))

    def _families(self, engines: dict[str, Engine]) -> Iterator[Any]:
        def family(kind: Any, name: str, text: str, look: Callable[[Engine], float]) -> Any:
            made = kind(f"policyengine_{name}", text, labels=("engine",))
            for label, engine in engines.items():
                made.add_metric((encodable(label),), look(engine))
            return made

        gauge, counter = core.GaugeMetricFamily, core.CounterMetricFamily
        info = core.InfoMetricFamily("policyengine_policy", "The policy in force.", labels=("engine",))
        for label, engine in engines.items():
            policy = engine.snapshot.policy
            facts = {"name": policy.name, "revision": policy.revision, "digest": engine.snapshot.digest[:12]}
            info.add_metric((encodable(label),), {key: encodable(text) for key, text in facts.items()})
        yield info
        yield family(gauge, "policy_generation", "Generation of the policy in force.", lambda e: e.snapshot.generation)
        yield family(
            gauge, "policy_loaded_timestamp_seconds", "When the policy came into force.", lambda e: e.loaded_at
        )
        yield family(
            gauge,
            "policy_differs_seconds",
            "For how long the files have differed from the policy in force.",
            lambda e: e.staleness().differs_s or 0.0,
        )
        yield family(gauge, "policy_stale", "1 where this is too long.", lambda e: float(e.staleness().exceeded))
        yield family(
            gauge, "policy_rejected", "1 where the files as they are were refused.", lambda e: float(bool(e.rejected))
        )
        yield family(gauge, "kill_switch", "1 while no rule has an effect.", lambda e: float(e.killed))
        yield family(gauge, "runs_active", "Runs under way.", lambda e: e.runs.under_way)
        yield family(counter, "runs_started", "Runs begun or resumed.", lambda e: e.runs.begun)
        yield family(counter, "log_dropped_lines", "Lines that decision logs could not write.", log_dropped)
