"""Spans of runs: which there are, what they hold, where they go, and that no run depends on them."""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

if not os.environ.get("POLICYENGINE_NEEDS_TELEMETRY"):
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed", exc_type=ImportError)

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from policyengine import Agent, Engine, Extension, ModelResponse, ToolCall, call, hookimpl, say
from policyengine.hosts.core import HostRun
from policyengine.hosts.host import Host
from policyengine.messages import ToolSpec, Usage
from policyengine.plugins.registry import discover
from policyengine.policy.load import load_policy_text
from policyengine.policy.model import Log
from policyengine.providers.scripted import ScriptedModel
from policyengine.recordings import Recording, read_recordings
from policyengine.replay import replay
from policyengine.script import Script, ScriptedCall, Turn, fail
from policyengine.telemetry.spans import Content
from policyengine.telemetry.traces import Tracing
from policyengine.testing import ListedRegistry, ManualClock, play, policy, rule
from policyengine.toolset import Tool

ALL = Log(("arguments", "results", "messages"))
INCLUDED = "{include: [arguments, results, messages]}"
SECRET = "s3cret"
SECRETS = [
    call("look", {"key": f"{SECRET}-argument"}, result=f"{SECRET}-result"),
    fail("rate_limit", f"{SECRET}-error"),
    say(f"{SECRET}-answer"),
]


class Spans(InMemorySpanExporter):
    """Spans that were ended, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self))

    def named(self, start: str) -> list:
        return [span for span in self.get_finished_spans() if span.name.startswith(start)]

    def one(self, start: str):
        (found,) = self.named(start)
        return found


@pytest.fixture
def spans() -> Spans:
    return Spans()


class Asks(Extension):
    """Asks a human about every call."""

    name = "asks"
    messages = {"asks.ask": {}}
    templates = {"en": {"asks.ask": "May it?"}}

    @hookimpl
    def before_tool_call(self, run, call):
        return run.ask("asks")


def written(rules: str = "", log: str = "{}"):
    """A policy of these rules, as it is loaded."""
    text = f"apiVersion: policyengine/v1\nkind: Policy\nname: test\nextensions: {{{rules}}}\nlog: {log}\n"
    return load_policy_text(text, registry=discover())


def engine(spans: Spans, made="default", **options) -> Engine:
    return Engine(made, sinks=[Tracing(spans.provider)], **options)


def decisions(span) -> list[dict]:
    return [dict(event.attributes) for event in span.events if event.name == "policyengine.decision"]


# ---- which spans there are


def test_a_run_is_a_span_with_requests_and_calls_below_it(spans):
    turns = [call("look", {"x": 1}), say("done", usage=Usage(10, 5, 15), finish_reason="stop")]
    assert play(engine(spans), turns).outcome.status == "completed"
    run = spans.one("invoke_agent")
    assert [span.name for span in spans.get_finished_spans()] == [
        "chat scripted", "execute_tool look", "chat scripted", "invoke_agent",
    ]  # fmt: skip
    assert all(span.parent.span_id == run.context.span_id for span in spans.get_finished_spans() if span is not run)
    assert run.attributes["policyengine.outcome"] == "completed"
    assert run.status.status_code is trace.StatusCode.UNSET
    last = spans.named("chat")[-1]
    assert last.kind is trace.SpanKind.CLIENT
    assert last.attributes["gen_ai.operation.name"] == "chat"
    assert last.attributes["gen_ai.request.model"] == "scripted"
    assert last.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert (last.attributes["gen_ai.usage.input_tokens"], last.attributes["gen_ai.usage.output_tokens"]) == (10, 5)
    tool = spans.one("execute_tool")
    assert (tool.attributes["gen_ai.tool.name"], tool.attributes["gen_ai.tool.type"]) == ("look", "function")
    assert tool.attributes["gen_ai.tool.call.id"]
    identities = {span.attributes["gen_ai.conversation.id"] for span in spans.get_finished_spans()}
    assert len(identities) == 1


def test_every_name_is_one_of_the_conventions_or_our_own(spans):
    names = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE

    known = {value for name, value in vars(names).items() if name.startswith("GEN_AI_") and isinstance(value, str)}
    operations = {member.value for member in names.GenAiOperationNameValues}
    play(engine(spans, written("step_limit: {with: {max_steps: 3}}", INCLUDED)), [*SECRETS, call("look")])
    host_told = Engine(sinks=[Tracing(spans.provider, provider_name="openai")])
    play(host_told, [say("done")])
    seen = {name for span in spans.get_finished_spans() for name in span.attributes}
    assert {name for name in seen if not name.startswith("policyengine.")} <= {*known, ERROR_TYPE}
    assert "gen_ai.provider.name" in seen
    assert {span.attributes["gen_ai.operation.name"] for span in spans.get_finished_spans()} <= operations
    events = {name for span in spans.get_finished_spans() for event in span.events for name in event.attributes}
    assert all(name.startswith("policyengine.") for name in events)


def test_what_rules_wanted_is_told_at_the_span_it_was_about(spans):
    play(engine(spans), [call("look")] * 8)
    denied = spans.named("execute_tool")[4]
    (said,) = decisions(denied)
    assert {key.removeprefix("policyengine."): value for key, value in said.items()} == {
        "hook": "before_tool_call",
        "decision": "deny",
        "decided_by": "stall_detector",
        "seq": said["policyengine.seq"],
        "rule": "stall_detector",
        "at": said["policyengine.at"],
        "mode": "enforce",
        "action": "deny",
        "raw": "deny",
        "code": "repeat",
        "observed": 5,
        "limit": 5,
    }
    assert said["policyengine.at"].startswith("policy:default:")
    assert denied.status.status_code is trace.StatusCode.ERROR
    assert denied.attributes["error.type"] == "repeat"
    assert denied.attributes["policyengine.tool.status"] == "denied"
    run = spans.one("invoke_agent")
    assert run.status.status_code is trace.StatusCode.ERROR
    assert (run.attributes["error.type"], run.attributes["policyengine.stop.rule"]) == ("repeat", "stall_detector")
    assert [event.name for event in run.events] == ["policyengine.stop"]


def test_a_rule_in_shadow_shows_what_it_would_have_done(spans):
    made = written("step_limit: {mode: shadow, with: {max_steps: 1}}")
    assert play(engine(spans, made), [call("look"), call("look"), say("done")]).outcome.status == "completed"
    found = [said for span in spans.get_finished_spans() for said in decisions(span)]
    assert {(said["policyengine.raw"], said["policyengine.action"], said["policyengine.mode"]) for said in found} == {
        ("stop", "allow", "shadow")
    }
    assert len(spans.named("chat")) == 3


def test_a_request_that_failed_is_an_error_and_the_next_attempt_a_span_of_its_own(spans):
    assert play(engine(spans), [fail("rate_limit", "slow down"), say("done")]).outcome.status == "completed"
    first, second = spans.named("chat")
    assert (first.status.status_code, first.attributes["error.type"]) == (trace.StatusCode.ERROR, "rate_limit")
    assert second.status.status_code is trace.StatusCode.UNSET


def test_a_request_that_a_rule_stopped_was_never_sent(spans):
    made = written("wall_clock: {with: {stop: 5s}}")
    clock = ManualClock()
    played = play(engine(spans, made, clock=clock), [call("look")] * 5, clock=clock, pace_s=4.0)
    assert played.outcome.status == "stopped"
    assert len(spans.named("chat")) == played.outcome.iterations


def test_a_run_that_breaks_ends_its_spans(spans):
    class Broken:
        name = "broken"

        def complete(self, request):
            raise ZeroDivisionError(SECRET)

    with pytest.raises(ZeroDivisionError):
        Agent(engine(spans), Broken()).run("task")
    run, chat = spans.one("invoke_agent"), spans.one("chat")
    assert run.attributes["policyengine.outcome"] == "failed"
    assert run.attributes["error.type"] == "ZeroDivisionError"
    assert chat.attributes["error.type"] == "failed"


def test_a_run_that_waits_for_a_human_ends_its_span_when_tracing_is_closed_or_the_run_forgotten(spans):
    made = "default"
    tracing = Tracing(spans.provider)
    waiting = Engine(made, sinks=[tracing])
    first = HostRun(waiting, Host("test"))
    first.begin("task")
    tracing.close()
    assert spans.one("invoke_agent").attributes["policyengine.outcome"] == "left"
    second = HostRun(waiting, Host("test"))
    second.begin("task")
    del second
    gc.collect()
    HostRun(waiting, Host("test")).begin("another")
    assert len(spans.named("invoke_agent")) == 2


# ---- below each other


def test_what_a_tool_does_is_below_its_call(spans):
    tracer = trace.get_tracer("tool", tracer_provider=spans.provider)

    def look():
        with tracer.start_as_current_span("query"):
            return "ok"

    model = ScriptedModel(Script("t", (call("look"), say("done"))))
    Agent(engine(spans), model, [look]).run("task")
    assert spans.one("query").parent.span_id == spans.one("execute_tool").context.span_id


def test_what_a_model_does_is_below_its_request(spans):
    tracer = trace.get_tracer("sdk", tracer_provider=spans.provider)

    class Traced:
        name = "traced"

        async def complete(self, request):
            with tracer.start_as_current_span("POST"):
                await asyncio.sleep(0)
                return ModelResponse("done")

    asyncio.run(Agent(engine(spans), Traced()).arun("task"))
    assert spans.one("POST").parent.span_id == spans.one("chat").context.span_id


def test_a_run_is_below_the_current_span_of_the_host(spans):
    tracer = trace.get_tracer("host", tracer_provider=spans.provider)
    with tracer.start_as_current_span("request"):
        play(engine(spans), [say("done")])
    assert spans.one("invoke_agent").parent.span_id == spans.one("request").context.span_id


@pytest.mark.parametrize("is_async", [False, True])
def test_sub_agents_that_work_at_the_same_time_are_each_below_their_own_call(spans, is_async):
    tracing = Tracing(spans.provider)

    class Answers:
        name = "sub"

        if is_async:

            async def complete(self, request):
                await asyncio.sleep(0)
                return ModelResponse("done")
        else:

            def complete(self, request):
                return ModelResponse("done")

    sub = Agent(Engine(sinks=[tracing]), Answers())
    batch = Turn(calls=tuple(ScriptedCall("helper", {"task": f"part {number}"}) for number in range(3)))
    model = ScriptedModel(Script("t", (batch, say("done"))))
    parent = Agent(Engine(policy(log=ALL), sinks=[tracing]), model, [sub.as_tool("helper", "Helps.")])
    outcome = asyncio.run(parent.arun("task")) if is_async else parent.run("task")
    assert outcome.status == "completed"
    calls = {span.context.span_id: span for span in spans.named("execute_tool")}
    below = spans.named("invoke_agent helper")
    assert len(below) == 3
    assert {span.parent.span_id for span in below} == set(calls)
    assert len({span.context.trace_id for span in spans.get_finished_spans()}) == 1


def test_calls_that_run_together_end_when_each_of_them_did(spans):
    now = [0]

    def tick() -> int:
        now[0] += 1_000_000
        return now[0]

    run = Engine(sinks=[Tracing(spans.provider, clock=tick)]).start_run()
    host = HostRun(Engine(), Host("t"), run=run)
    host.begin("task")
    host.after_model("", [ToolCall("a", "look", "{}"), ToolCall("b", "find", "{}")])
    now[0] += 10**10
    host.answer("a", "ok", duration_s=1.0)
    host.answer("b", "ok", duration_s=2.0)
    first, second = spans.named("execute_tool")
    assert second.end_time - first.end_time == 10**9


# ---- in a host


def test_a_host_that_tells_of_calls_only_has_their_spans(spans):
    host = HostRun(engine(spans), Host("test"))
    host.begin("task")
    host.call(ToolCall("1", "look", "{}"))
    host.answer("1", "no", "error")
    host.end("completed")
    assert [span.name for span in spans.get_finished_spans()] == ["execute_tool look", "invoke_agent"]
    assert spans.one("execute_tool").attributes["error.type"] == "error"


def test_a_resumed_run_has_a_span_of_its_own_in_the_same_conversation(spans):
    made = engine(spans)
    host = HostRun(made, Host("test"))
    host.begin("task")
    saved = host.save()
    again = HostRun.resume(made, Host("test"), saved)
    again.after_model("done")
    again.end()
    run = spans.one("invoke_agent")
    assert run.attributes["policyengine.resumed"] is True
    assert run.attributes["gen_ai.conversation.id"] == host.run.conversation.id


# ---- content


def test_there_is_no_content_unless_the_policy_wants_it(spans):
    play(engine(spans), SECRETS, task=f"{SECRET}-task")
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


@pytest.mark.parametrize(
    ("include", "there"),
    [
        (["arguments"], {"argument"}),
        (["results"], {"result"}),
        (["messages"], {"task", "answer", "error"}),
        (["arguments", "results", "messages"], {"argument", "result", "task", "answer", "error"}),
    ],
)
def test_content_is_what_the_policy_includes(spans, include, there):
    play(
        engine(spans, written("provider_recovery: {}", f"{{include: [{', '.join(include)}]}}")),
        SECRETS,
        task=f"{SECRET}-task",
    )
    text = "".join(span.to_json() for span in spans.get_finished_spans())
    assert {kind for kind in ("argument", "result", "task", "answer", "error") if f"{SECRET}-{kind}" in text} == there


def test_masks_hide_the_same_as_in_the_decision_log(spans):
    hidden = Log(ALL.include, ("/call/arguments/key", "/result/text", "/message"))
    play(engine(spans, policy(log=hidden)), [SECRETS[0], SECRETS[2]], task=f"{SECRET}-task")
    text = "".join(span.to_json() for span in spans.get_finished_spans())
    assert SECRET not in text
    assert json.loads(spans.one("execute_tool").attributes["gen_ai.tool.call.arguments"]) == {"key": "[masked]"}


def test_a_request_holds_what_was_said_since_the_last_response(spans):
    play(engine(spans, policy(log=ALL)), [call("look"), call("look"), say("done")], task="the task")
    sent = [json.loads(span.attributes["gen_ai.input.messages"]) for span in spans.named("chat")]
    assert [[message["role"] for message in messages] for messages in sent] == [["user"], ["tool"], ["tool"]]
    (came,) = json.loads(spans.named("chat")[-1].attributes["gen_ai.output.messages"])
    assert came == {"role": "assistant", "parts": [{"type": "text", "content": "done"}], "finish_reason": "stop"}


def test_content_that_cannot_be_written_is_left_out_and_the_span_is_not(spans):
    host = HostRun(engine(spans, policy(log=ALL)), Host("test"))
    host.begin("a\ud800b")
    host.after_model("x\ud800", [ToolCall("1", "look", "", {"x": float("nan")})])
    host.answer("1", "r\ud800")
    host.end("completed")
    tool = spans.one("execute_tool")
    assert "gen_ai.tool.call.arguments" not in tool.attributes
    assert tool.attributes["gen_ai.tool.call.result"] == "r?"


# ---- nothing of the host's is touched, and no run depends on it


def test_no_global_provider_is_set(spans):
    before = trace.get_tracer_provider()
    play(engine(spans), [say("done")])
    play(Engine(sinks=[Tracing()]), [say("done")])
    assert trace.get_tracer_provider() is before
    assert isinstance(before, trace.ProxyTracerProvider)


def test_spans_that_are_not_sampled_cost_no_content(spans):
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    provider = TracerProvider(sampler=ALWAYS_OFF)
    played = play(Engine(policy(log=ALL), sinks=[Tracing(provider)]), [call("look"), say("done")])
    assert played.outcome.status == "completed"


def test_a_processor_that_raises_ends_no_run():
    class Broken(SpanProcessor):
        def on_start(self, span, parent_context=None):
            raise ZeroDivisionError

    provider = TracerProvider()
    provider.add_span_processor(Broken())
    assert play(Engine(sinks=[Tracing(provider)]), [call("look"), say("done")]).outcome.status == "completed"


def test_many_runs_in_threads_have_their_own_spans(spans):
    made = engine(spans)

    def work(number: int) -> None:
        model = ScriptedModel(Script("t", (call(f"tool{number}"), say("done"))))
        Agent(made, model, [Tool(ToolSpec(f"tool{number}"), lambda: "ok")]).run("task")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    runs = {span.context.trace_id: span for span in spans.named("invoke_agent")}
    assert len(runs) == 8
    for tool in spans.named("execute_tool"):
        assert tool.parent.span_id == runs[tool.context.trace_id].context.span_id


# ---- over the wire, and back again


@pytest.fixture
def collector():
    """A collector of OTLP over HTTP on loopback: its address, and the requests it got."""
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", got
    server.shutdown()
    server.server_close()
    thread.join()


def otlp_json(body: bytes) -> dict:
    """An export as OTLP writes it in JSON: as protobuf has it, with ids in hexadecimal."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    export = MessageToDict(ExportTraceServiceRequest.FromString(body))
    for resource in export["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in span:
                        span[key] = base64.b64decode(span[key]).hex()
    return export


def test_a_collector_receives_the_spans_and_the_backtest_reads_them(collector, tmp_path):
    otlp = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    exporter = pytest.importorskip(otlp, reason="the exporter is not installed", exc_type=ImportError)
    address, got = collector
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter.OTLPSpanExporter(endpoint=address)))
    made = written("step_limit: {with: {max_steps: 9}}", INCLUDED)
    played = play(Engine(made, sinks=[Tracing(provider)]), [call("look", {"x": 1}), say("done")], task="find it")
    provider.shutdown()
    assert played.outcome.status == "completed"
    assert len(got) == 4
    file = tmp_path / "traces.jsonl"
    file.write_text("".join(json.dumps(otlp_json(body)) + "\n" for body in got))
    (recording,) = read_recordings([file])
    assert isinstance(recording, Recording)
    assert (recording.format, recording.task, recording.ended) == ("otel_genai", "find it", "final_answer")
    assert replay(recording, Engine(made)).stop is None


def said(engine: Engine) -> list[tuple]:
    """What rules decide in the runs of an engine from now on, as a list that fills."""
    found: list[tuple] = []

    def note(report) -> None:
        decision = report.decision
        told = decision.control is not None or decision.notes
        if told and report.hook != "after_provider_error":  # recordings hold no requests that failed
            code = decision.control.code if decision.control is not None else ""
            notes = tuple(note.kind for note in decision.notes)
            where = (report.hook, report.run.state.iteration, report.run.state.step)
            found.append((*where, decision.action, decision.decided_by, code, notes))

    engine.sinks.append(note)
    return found


ERROR = {"status": "error"}
RUNS = {
    "repeats": [call("look", {"x": 1}, "same")] * 8,
    "fails": [call("look", {"x": n}, "no such file", **ERROR) for n in range(6)] + [say("given up")],
    "batches": [
        Turn(calls=(ScriptedCall("look", {"x": n}), ScriptedCall("find", {"x": 1}, "bad", **ERROR)), text="thinking")
        for n in range(6)
    ],
    "recovers": [*[call("look", {"x": 1})] * 4, call("find", {"x": 2}), call("look", {"x": 1}), say("done")],
    "failed requests": [fail("rate_limit"), call("look"), fail("overloaded"), fail("overloaded"), say("done")],
    "unusable": [say(""), say(""), call("look"), say(""), say("done")],
    "leaked calls": [say('{"name": "look", "arguments": {"x": 1}}'), call("look", {"x": 1}), say("done")],
}


@pytest.mark.parametrize("name", RUNS)
def test_the_reader_of_traces_makes_the_same_decisions_of_exported_spans(spans, tmp_path, name):
    made = msgspec.structs.replace(Engine("default").snapshot.policy, log=ALL)
    live = engine(spans, made)
    decided = said(live)
    play(live, RUNS[name], task="find it")
    file = tmp_path / "spans.jsonl"
    exported = [json.loads(span.to_json()) for span in spans.get_finished_spans()]
    file.write_text("".join(json.dumps(span) + "\n" for span in exported))
    (recording,) = read_recordings([file])
    assert isinstance(recording, Recording), recording
    replayed = Engine(made)
    found = said(replayed)
    replay(recording, replayed)
    assert found[: len(decided)] == decided


def test_what_a_human_answered_is_told_at_the_call(spans):
    host = HostRun(engine(spans, policy(rule("asks")), registry=ListedRegistry(Asks, trusted=True)), Host("test"))
    host.begin("task")
    host.call(ToolCall("1", "look", "{}"))
    host.approve("1", True)
    host.answer("1", "ok")
    host.end("completed")
    (told,) = [event for event in spans.one("execute_tool").events if event.name == "policyengine.human"]
    assert dict(told.attributes) == {"policyengine.rule": "asks", "policyengine.answer": "approved"}
    assert spans.one("invoke_agent").status.status_code is trace.StatusCode.UNSET


def test_a_failed_request_beside_the_main_one_is_an_error(spans):
    text = "apiVersion: policyengine/v1\nkind: Policy\nname: t\nplan: {mode: steps, decompose: true}\nextensions: {}\n"
    engine = Engine(load_policy_text(text, registry=discover()), registry=discover(), sinks=[Tracing(spans.provider)])
    play(engine, [fail("server_error"), say("done")])
    first, second = spans.named("chat")
    assert (first.attributes["policyengine.purpose"], first.attributes["error.type"]) == ("plan", "server_error")
    assert "error.type" not in second.attributes


NESTED: list = []
for _ in range(3000):
    NESTED = [NESTED]


@pytest.mark.parametrize("odd", [float("inf"), float("nan"), 10**5000, NESTED], ids=["inf", "nan", "huge", "deep"])
def test_arguments_that_cannot_be_written_are_masked_whole(odd):
    content = Content(Log(("arguments", "messages"), ("/call/arguments/token",)))
    asked = ToolCall("1", "look", "", {"page": odd, "token": SECRET})
    assert content.call(asked) == {"gen_ai.tool.call.arguments": '"[masked]"'}
    assert SECRET not in str(content.response(ModelResponse("", (asked,))))
    assert SECRET not in str(Content(Log(("arguments",))).call(asked))


def test_ids_names_and_numbers_that_nobody_can_send_are_made_sendable(spans):
    engine = Engine(policy(), registry=ListedRegistry(), sinks=[Tracing(spans.provider)])
    run = HostRun(engine, Host("other"))
    run.begin("task")
    run.before_model()
    facts = {"finish_reason": "st\ud800op", "model": "mo\ud800del", "usage": Usage(10**400, -(10**30))}
    run.after_model("", [ToolCall("i\ud800d", "lo\ud800ok", "{}")], **facts)
    run.answer("i\ud800d", "ok")
    run.end()
    chat, tool = spans.one("chat").attributes, spans.one("execute_tool lo?ok").attributes
    assert (chat["gen_ai.response.model"], chat["gen_ai.response.finish_reasons"]) == ("mo?del", ("st?op",))
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (2**63 - 1, -(2**63 - 1))
    assert tool["gen_ai.tool.call.id"] == "i?d"
    for span in spans.get_finished_spans():
        span.to_json().encode()
