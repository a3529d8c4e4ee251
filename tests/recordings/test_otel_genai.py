"""Traces of generative AI: both conventions, both ways to write spans, tools, agents within agents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.messages import ToolCall, Usage
from policyengine.recordings import otel_genai
from policyengine.recordings.model import Document, ModelSaid, Recording, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import READERS, read_recordings

EPOCH = 1_700_000_000


def span(number, *, trace="t1", parent="", start=0.0, end=None, events=(), failed="", **attributes):
    """One span; `chat__x=1` becomes the attribute `gen_ai.chat.x`."""
    named = {"gen_ai." + key.replace("__", "."): value for key, value in attributes.items()}
    return {
        "traceId": trace,
        "spanId": f"s{number}",
        "parentSpanId": parent,
        "name": "x",
        "startTimeUnixNano": str(round((EPOCH + start) * 1e9)),
        "endTimeUnixNano": str(round((EPOCH + (start if end is None else end)) * 1e9)),
        "attributes": [{"key": key, "value": otlp(value)} for key, value in named.items()],
        "events": list(events),
        "status": {"code": 2, "message": failed} if failed else {},
    }


def otlp(value):
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [otlp(item) for item in value]}}
    return {"kvlistValue": {"values": [{"key": key, "value": otlp(item)} for key, item in value.items()]}}


def export(*spans):
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def says(role, *parts, **more):
    return {"role": role, "parts": [words(part) if isinstance(part, str) else part for part in parts], **more}


def words(text):
    return {"type": "text", "content": text}


def call(call_id="c1", **arguments):
    return {"type": "tool_call", "id": call_id, "name": "weigh", "arguments": arguments}


def response(text, call_id="c1"):
    return {"type": "tool_call_response", "id": call_id, "response": text}


def chat(number, sent, came, **more):
    """A request to a model with its messages as JSON text."""
    if came is not None:
        more["output__messages"] = json.dumps([came])
    return span(number, operation__name="chat", input__messages=json.dumps(sent), **more)


def tool(number, call_id="c1", **more):
    return span(number, operation__name="execute_tool", tool__name="weigh", tool__call__id=call_id, **more)


ASK = says("user", "Weigh it.")
WEIGH = says("assistant", call(parcel=7), finish_reason="tool_call")
DONE = says("assistant", "2 kg.", finish_reason="stop")
ANSWERED = says("tool", response("2 kg"))


def read(tmp_path, *values, name="trace.json"):
    path = tmp_path / name
    path.write_text("\n".join(v if isinstance(v, str) else json.dumps(v) for v in values), encoding="utf-8")
    return list(read_recordings([path]))


def recording(tmp_path, *spans):
    (run,) = read(tmp_path, export(*spans))
    assert isinstance(run, Recording), run
    return run


def kinds(run):
    return [type(event) for event in run.events]


WHOLE = [UserSaid, ModelSaid, ToolAnswered, ModelSaid]


def test_requests_of_one_trace_are_one_run_without_repeating_the_history(tmp_path):
    usage = {"usage__input_tokens": 5, "usage__output_tokens": 2, "response__model": "m-1"}
    run = recording(
        tmp_path,
        chat(1, [says("system", "Be brief."), ASK], WEIGH, start=0, end=1, **usage),
        tool(2, start=1, end=3),
        chat(3, [says("system", "Be brief."), ASK, WEIGH, ANSWERED], DONE, start=3, end=4),
    )
    assert (run.format, run.id, run.group, run.task, run.line) == ("otel_genai", "t1", "m-1", "Weigh it.", 1)
    assert kinds(run) == WHOLE
    said = run.events[1].response
    assert said.tool_calls == (ToolCall("c1", "weigh", '{"parcel":7}', {"parcel": 7}),)
    assert (said.usage, said.model, said.finish_reason) == (Usage(5, 2, 7), "m-1", "tool_call")
    answer = run.events[2].result
    assert (answer.call_id, answer.text, answer.status) == ("c1", "2 kg", "ok")
    assert answer.duration_s == pytest.approx(2, abs=1e-3)
    assert [round(event.at) for event in run.events] == [0, 1, 3, 4]
    assert run.ended == "final_answer"


def test_lines_of_a_console_exporter_are_read_in_any_order(tmp_path):
    def console(number, parent, second, **attributes):
        return {
            "name": "x",
            "context": {"trace_id": "0xab", "span_id": f"0x{number}", "trace_state": "[]"},
            "parent_id": parent,
            "start_time": f"2026-01-05T10:00:{second:02}.000000Z",
            "end_time": f"2026-01-05T10:00:{second + 1:02}.000000Z",
            "status": {"status_code": "UNSET"},
            "attributes": attributes,
            "events": [],
        }

    first = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": [ASK], "gen_ai.output.messages": [WEIGH]}
    second = {**first, "gen_ai.input.messages": [ASK, WEIGH, ANSWERED], "gen_ai.output.messages": [DONE]}
    lines = [console(3, "0x9", 4, **second), console(1, "0x9", 0, **first), console(9, None, 0, **{"http.route": "/"})]
    (run,) = read(tmp_path, *lines, name="spans.jsonl")
    assert (run.id, kinds(run)) == ("ab", WHOLE)
    assert run.events[-1].at == 5


def old(name, **fields):
    attributes = [{"key": key, "value": otlp(value)} for key, value in fields.items()]
    return {"name": name, "timeUnixNano": "0", "attributes": attributes}


OLD_CALL = {"id": "c1", "type": "function", "function": {"name": "weigh", "arguments": '{"parcel": 7}'}}
OLD_FIRST = [
    old("gen_ai.system.message", content="Be brief."),
    old("gen_ai.user.message", content="Weigh it."),
    old("gen_ai.choice", index=0, finish_reason="tool_calls", message={"tool_calls": [OLD_CALL]}),
    old("gen_ai.choice", index=1, finish_reason="stop", message={"content": "another"}),
]
OLD_SECOND = [
    OLD_FIRST[1],
    old("gen_ai.assistant.message", tool_calls=json.dumps([OLD_CALL])),
    old("gen_ai.tool.message", id="c1", content="2 kg"),
    old("gen_ai.choice", index=0, finish_reason="stop", message=json.dumps({"content": "2 kg."})),
]


def test_events_of_the_older_conventions_are_read(tmp_path):
    run = recording(
        tmp_path,
        span(1, operation__name="chat", events=OLD_FIRST),
        span(2, start=1, usage__prompt_tokens=3, usage__completion_tokens=1, events=OLD_SECOND),
    )
    assert kinds(run) == WHOLE
    assert run.events[1].response.tool_calls[0].args == {"parcel": 7}
    assert (run.events[1].response.finish_reason, run.events[2].result.text) == ("tool_calls", "2 kg")
    assert (run.events[3].response.text, run.events[3].response.usage) == ("2 kg.", Usage(3, 1, 4))


def test_events_exported_as_log_records_belong_to_their_span(tmp_path):
    def record(event):
        body = {"kvlistValue": {"values": event["attributes"]}}
        return {"traceId": "t1", "spanId": "s1", "eventName": event["name"], "body": body, "attributes": []}

    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record(event) for event in OLD_FIRST]}]}]}
    (run,) = read(tmp_path, logs, export(span(1, operation__name="chat")), name="export.jsonl")
    assert kinds(run) == [UserSaid, ModelSaid]
    assert run.ended == "call"


def test_messages_in_an_event_with_the_details_are_read(tmp_path):
    held = {"gen_ai.input.messages": json.dumps([ASK]), "gen_ai.output.messages": json.dumps([DONE])}
    run = recording(tmp_path, span(1, operation__name="chat", events=[old(otel_genai.DETAILS, **held)]))
    assert kinds(run) == [UserSaid, ModelSaid]


def test_a_failed_tool_span_makes_its_result_a_failure(tmp_path):
    again = chat(3, [ASK, WEIGH, ANSWERED], DONE, start=3)
    run = recording(tmp_path, chat(1, [ASK], WEIGH), tool(2, start=1, failed="no scale"), again)
    assert (run.events[2].result.status, run.events[2].result.error.message) == ("error", "no scale")
    run = recording(tmp_path, chat(1, [ASK], WEIGH), tool(2, start=1) | attribute("error.type", "timeout"), again)
    assert run.events[2].result.status == "error"


def attribute(key, value):
    named = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "c1", key: value}
    return {"attributes": [{"key": key, "value": otlp(value)} for key, value in named.items()]}


def test_a_result_that_no_request_holds_is_that_of_the_tool_s_span(tmp_path):
    run = recording(tmp_path, chat(1, [ASK], WEIGH), tool(2, start=1, end=2, tool__call__result='{"kg": 2}'))
    assert kinds(run) == [UserSaid, ModelSaid, ToolAnswered]
    assert (run.events[2].result.text, run.ended) == ('{"kg": 2}', "tool_result")


def test_spans_of_tools_without_ids_answer_calls_by_name_in_order(tmp_path):
    both = says("assistant", call("a", parcel=1), call("b", parcel=2))
    spans = [
        span(n, operation__name="execute_tool", tool__name="weigh", start=n, tool__call__result=f"{n} kg")
        for n in (2, 3)
    ]
    run = recording(tmp_path, chat(1, [ASK], both), *spans)
    assert [(event.call_id, event.result.text) for event in run.events[2:]] == [("a", "2 kg"), ("b", "3 kg")]


def test_without_content_of_messages_the_spans_of_tools_tell_the_calls(tmp_path):
    arguments = {"tool__call__arguments": '{"parcel": 7}', "tool__call__result": "2 kg"}
    run = recording(tmp_path, span(1, operation__name="chat"), tool(2, start=1, **arguments), tool(3, "c2", start=2))
    assert kinds(run) == [ModelSaid, ToolAnswered]
    assert run.events[0].response.tool_calls == (ToolCall("c1", "weigh", '{"parcel":7}', {"parcel": 7}),)


def test_a_run_without_any_content_is_unreadable(tmp_path):
    (problem,) = read(tmp_path, export(span(1, operation__name="chat"), tool(2, start=1)))
    assert (type(problem), problem.line) == (Unreadable, 1)
    assert "not recorded" in problem.reason


def test_a_conversation_over_several_traces_is_one_run(tmp_path):
    first = chat(1, [ASK], DONE, conversation__id="talk")
    second = chat(1, [ASK, DONE, says("user", "And now?")], DONE, trace="t2", start=5)
    agent = span(9, trace="t2", start=5, operation__name="invoke_agent", conversation__id="talk")
    run = recording(tmp_path, second, agent, first)
    assert run.id == "talk"
    assert kinds(run) == [UserSaid, ModelSaid, UserSaid, ModelSaid]
    assert [event.text for event in run.events if isinstance(event, UserSaid)] == ["Weigh it.", "And now?"]


def test_a_history_that_began_before_the_trace_is_part_of_the_run(tmp_path):
    run = recording(tmp_path, chat(1, [ASK, WEIGH, ANSWERED, DONE, says("user", "And now?")], DONE))
    assert kinds(run) == [*WHOLE, UserSaid, ModelSaid]


def test_where_the_provider_keeps_the_history_every_message_is_new(tmp_path):
    assert kinds(recording(tmp_path, chat(1, [ASK], WEIGH), chat(2, [ANSWERED], DONE, start=1))) == WHOLE


def test_a_request_that_failed_is_asked_again_without_repeating_its_messages(tmp_path):
    run = recording(tmp_path, chat(1, [ASK], None, failed="busy"), chat(2, [ASK], DONE, start=1))
    assert (kinds(run), run.error) == ([UserSaid, ModelSaid], "")
    run = recording(tmp_path, chat(1, [ASK], None, failed="busy"))
    assert (kinds(run), run.error) == ([UserSaid], "busy")


def test_an_agent_within_an_agent_is_a_run_of_its_own(tmp_path):
    spans = [
        span("a", operation__name="invoke_agent"),
        chat(1, [ASK], WEIGH, parent="sa"),
        tool(2, start=1, parent="sa", tool__call__result="2 kg"),
        span("b", operation__name="invoke_agent", start=1, parent="s2"),
        chat(3, [says("user", "Look.")], DONE, start=2, parent="sb"),
        chat(4, [ASK, WEIGH, ANSWERED], DONE, start=3, parent="sa"),
    ]
    outer, inner = read(tmp_path, export(*spans))
    assert (outer.id, kinds(outer)) == ("t1", WHOLE)
    assert (inner.id, inner.task, kinds(inner)) == ("t1/sb", "Look.", [UserSaid, ModelSaid])


def test_a_text_beside_results_is_the_harness_s_own(tmp_path):
    both = says("user", response("2 kg"), "Two steps left.")
    run = recording(tmp_path, chat(1, [ASK], WEIGH), chat(2, [ASK, WEIGH, both], DONE, start=1))
    assert kinds(run) == [UserSaid, ModelSaid, ToolAnswered, UserSaid, ModelSaid]
    assert run.events[3].injected


def test_a_span_exported_twice_counts_once_and_structured_attributes_are_read(tmp_path):
    held = span(1, operation__name="chat", input__messages=[ASK], output__messages=[says("assistant", "a")])
    assert kinds(recording(tmp_path, held, held)) == [UserSaid, ModelSaid]


def test_reasoning_finish_reasons_and_calls_with_arguments_as_text_are_read(tmp_path):
    thought = {"type": "reasoning", "content": "hm"}
    said = says("assistant", thought, {"type": "tool_call", "id": "c1", "name": "weigh", "arguments": '{"parcel": 7}'})
    run = recording(tmp_path, chat(1, [], said, response__finish_reasons=["tool_calls"]))
    (event,) = run.events
    assert (event.response.reasoning, event.response.finish_reason) == ("hm", "tool_calls")
    assert event.response.tool_calls[0].args == {"parcel": 7}


def test_a_trace_without_requests_to_models_is_reported(tmp_path):
    (problem,) = read(tmp_path, export(span(1), span(2, operation__name="embeddings")))
    assert problem.reason == "none of the spans is a request to a model"


def test_a_broken_line_and_a_span_that_is_none_are_reported_and_the_others_are_read(tmp_path):
    *problems, run = read(tmp_path, export(chat(1, [ASK], DONE)), "{", export(3), name="export.jsonl")
    assert [problem.line for problem in problems] == [2, 3]
    assert kinds(run) == [UserSaid, ModelSaid]


def test_exports_and_spans_are_recognised():
    for value in (export(), {"resourceLogs": []}, span(1), [span(1)]):
        assert next(reader.name for reader in READERS if reader.sniff(value)) == "otel_genai"
    for value in ({"attributes": {}}, {"traceId": "t"}, {"context": 3, "attributes": {}}, [], "x"):
        assert not otel_genai.sniff(value)


PART = st.sampled_from([words("a"), call("c1"), call("c2", n=1), call(""), response("x"), response("y", "")])
MESSAGE = st.builds(says, st.sampled_from(["user", "assistant", "tool", "system"]), PART, PART)
SPAN = st.one_of(
    st.builds(chat, st.integers(1, 9), st.lists(MESSAGE, max_size=3), MESSAGE, start=st.integers(0, 9)),
    st.builds(tool, st.integers(1, 9), st.sampled_from(["c1", "c2", ""]), start=st.integers(0, 9)),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(SPAN, max_size=6))
def test_whatever_the_spans_say_every_result_answers_one_earlier_call_once_and_time_moves_on(spans):
    value = export(*spans)
    for run in otel_genai.read(Document("x.json", value, iter([(1, value)]))):
        if isinstance(run, Unreadable):
            continue
        waiting: set[str] = set()
        times = [event.at for event in run.events if event.at is not None]
        assert times == sorted(times)
        for event in run.events:
            if isinstance(event, ModelSaid):
                waiting |= {call.id for call in event.response.tool_calls}
            elif isinstance(event, ToolAnswered):
                waiting.remove(event.call_id)
