"""The journal: written by a run, read as a recording, replayed to the same decisions."""

from __future__ import annotations

import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.agent import Agent
from policyengine.messages import (
    Batch,
    Message,
    ModelRequest,
    ModelResponse,
    ProviderError,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from policyengine.outcome import Outcome
from policyengine.parsing.verdict import Verdict
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import read_recordings
from policyengine.replay import replay, replay_journal
from policyengine.runstate import Conversation
from policyengine.telemetry.journal import JournalError, JournalWriter, encode


class Recorder:
    """A journal in memory that can be put into a file."""

    def __init__(self):
        self.text = io.StringIO()
        self.writer = JournalWriter(self.text)

    def lines(self):
        return [json.loads(line) for line in self.text.getvalue().splitlines()]

    def file(self, folder, text=None):
        path = folder / "run.jsonl"
        path.write_text(self.text.getvalue() if text is None else text, encoding="ascii")
        return path


@pytest.fixture
def recorder():
    return Recorder()


def call(name, number=1, **more):
    return ToolCall(f"{name}-{number}", name, "{}", {}, **more)


def drive(run, rounds):
    """Drive a run through rounds of tool names; no names is a text. The clock counts on."""
    now = 100.0
    run.start("count", now=now)
    for number, names in enumerate(rounds, start=1):
        now += 1.5
        run.begin_iteration(now=now)
        run.before_model_call(ModelRequest((Message("user", "count"),)), now=now)
        calls = tuple(call(name, f"{number}.{index}") for index, name in enumerate(names))
        run.after_model_response(ModelResponse("" if names else f"text {number}", calls), now=now)
        run.after_parse(Verdict("ok" if names else "prose", calls), now=now)
        if not names:
            run.add_warning("misformat", {"reason": "no_object"}, now=now)
        for index, item in enumerate(calls):
            run.before_tool_call(item, Batch(f"b{number}", index), now=now)
        for item in calls:
            run.after_tool_call(item, ToolResult(item.id, "note this"), now=now)
        run.end_iteration(len(names), bool(names), now=now)
    run.end(Outcome("completed", "counted"), now=now)


def same(pairs):
    pairs = list(pairs)
    assert pairs
    assert [new for _, new in pairs] == [recorded for recorded, _ in pairs]
    return [recorded for recorded, _ in pairs]


# ---- replay


def test_a_journal_holds_every_event_with_content_clock_and_decision(engine, recorder):
    drive(engine(journal=recorder.writer).start_run(run_id="r", agent="clerk"), [["deny_x"]])
    lines = recorder.lines()
    assert [line["type"] for line in lines] == [
        "run",
        "start",
        "begin_iteration",
        "before_model_call",
        "after_model_response",
        "after_parse",
        "before_tool_call",
        "after_tool_call",
        "end_iteration",
        "end",
    ]
    assert all((line["v"], line["run"]) == (1, "r") for line in lines)
    judged = lines[6]
    assert judged["now"] == 101.5
    assert judged["payload"]["call"]["name"] == "deny_x"
    assert judged["decision"]["action"] == "deny"
    assert (judged["decision"]["decided_by"], judged["decision"]["code"]) == ("guard", "by_name")


NAMES = st.sampled_from(["f", "g", "hint_x", "deny_x", "stop_x", "ask_x", "end_step_x", "wind_down_x"])


@settings(deadline=None, max_examples=40)
@given(rounds=st.lists(st.lists(NAMES, max_size=3), max_size=6), mode=st.sampled_from(["enforce", "warn", "shadow"]))
def test_replaying_a_journal_gives_identical_decisions(engine, tmp_path_factory, rounds, mode):
    recorder = Recorder()
    drive(engine(mode=mode, journal=recorder.writer, cap=3).start_run(run_id="r"), rounds)
    path = recorder.file(tmp_path_factory.mktemp("journal"))
    recorded = same(replay_journal(path, engine(mode=mode, cap=3)))
    assert len(recorded) == len(recorder.lines()) - 1


def test_another_policy_shows_as_different_decisions(engine, recorder, tmp_path):
    drive(engine(journal=recorder.writer).start_run(run_id="r"), [["deny_x"], ["f"]])
    pairs = list(replay_journal(recorder.file(tmp_path), engine(mode="shadow")))
    differing = [(old.action, new.action) for old, new in pairs if old != new]
    assert ("deny", "allow") in differing


def test_a_recorded_overrun_happens_again_and_only_there(engine, recorder, tmp_path):
    slow = engine(journal=recorder.writer, timeout_s=0.0, builtin=False)
    drive(slow.start_run(run_id="r"), [["f"]])
    faults = [line.get("faults") for line in recorder.lines() if line["type"] == "before_tool_call"]
    assert faults == [{"before_tool_call/guard": "timeout"}]
    recorded = same(replay_journal(recorder.file(tmp_path), engine(timeout_s=10.0, builtin=False)))
    assert "deny" in [decision.action for decision in recorded]


def test_no_rule_overruns_in_a_replay_that_did_not_when_recorded(engine, recorder, tmp_path):
    drive(engine(journal=recorder.writer).start_run(run_id="r"), [["f"]])
    same(replay_journal(recorder.file(tmp_path), engine(timeout_s=0.0)))


def test_lone_surrogates_and_nan_survive(engine, recorder, tmp_path):
    run = engine(journal=recorder.writer).start_run(run_id="r")
    run.start("x\ud800", now=1.0)
    run.before_tool_call(ToolCall("c", "hint_\udc00", '{"a": NaN}', {"a": math.nan, "b\ud800": [1.5]}), now=2.0)
    path = recorder.file(tmp_path)
    same(replay_journal(path, engine()))
    (recording,) = read_recordings([path])
    assert recording.task == "x\ud800"
    args = recording.events[1].response.tool_calls[0].args
    assert math.isnan(args["a"])
    assert args["b\ud800"] == [1.5]


def test_provider_errors_user_messages_and_failed_calls_are_replayed(engine, recorder, tmp_path):
    run = engine(journal=recorder.writer).start_run(run_id="r")
    run.start("t", now=0.0)
    run.begin_iteration(now=1.0)
    run.after_provider_error(ProviderError("overloaded", "busy", 529, 2.0), now=1.0)
    run.user_message("more", now=2.0)
    run.user_message("task again", injected=True, now=3.0)
    assert len(same(replay_journal(recorder.file(tmp_path), engine()))) == 5


def test_runs_of_one_conversation_share_it_in_the_replay(engine, recorder, tmp_path):
    maker = engine(journal=recorder.writer)
    shared = Conversation("talk")
    for number in (1, 2):
        drive(maker.start_run(run_id=f"r{number}", conversation=shared), [["hint_x"]])
    assert [line["payload"]["conversation"] for line in recorder.lines() if line["type"] == "run"] == ["talk", "talk"]
    same(replay_journal(recorder.file(tmp_path), engine()))


def test_interleaved_runs_are_kept_apart(engine, recorder, tmp_path):
    maker = engine(journal=recorder.writer)
    first, second = maker.start_run(run_id="a"), maker.start_run(run_id="b")
    first.start("one", now=0.0)
    second.start("two", now=0.0)
    first.before_tool_call(call("hint_x"), now=1.0)
    second.before_tool_call(call("hint_x"), now=1.0)
    path = recorder.file(tmp_path)
    assert [decision.observed for decision in same(replay_journal(path, engine()))] == [None] * 4
    assert [recording.task for recording in read_recordings([path])] == ["one", "two"]


def test_a_resumed_run_is_replayed_from_its_saved_state(engine, recorder, tmp_path):
    before = engine().start_run(run_id="r")
    before.start("t", now=0.0)
    before.before_tool_call(call("deny_x"), now=1.0)
    run, _ = engine(journal=recorder.writer).resume_run(before.save())
    run.before_tool_call(call("deny_x", 2), now=2.0)
    (decision,) = same(replay_journal(recorder.file(tmp_path), engine()))
    assert decision.observed == 2


def test_a_journal_without_a_line_on_how_a_run_was_made_is_replayed_as_a_plain_run(engine, recorder, tmp_path):
    drive(engine(journal=recorder.writer).start_run(run_id="r"), [["deny_x"]])
    without = recorder.text.getvalue().partition("\n")[2]
    same(replay_journal(recorder.file(tmp_path, without), engine()))


# ---- the live loop


class Scripted:
    """A model that says what it was given, one response a request."""

    name = "scripted"

    def __init__(self, *responses):
        self.responses = list(responses)

    def complete(self, request):
        return self.responses.pop(0)


def test_a_live_run_replays_to_the_same_decisions_and_reads_as_what_happened(engine, recorder, tmp_path):
    def weigh() -> str:
        """Weigh."""
        return "2 kg"

    usage = Usage(5, 2, 7)
    model = Scripted(
        ModelResponse("", (ToolCall("", "weigh", "{}", {}), ToolCall("", "weigh", "{}", {})), usage=usage),
        ModelResponse("", usage=usage),
        ModelResponse("", (ToolCall("same", "deny_x", "{}", {}),)),
        ModelResponse("It weighs 2 kg."),
    )
    outcome = Agent(engine(journal=recorder.writer), model, [weigh]).run("weigh it")
    assert outcome.status == "completed"
    path = recorder.file(tmp_path)
    recorded = same(replay_journal(path, engine()))
    assert [decision.action for decision in recorded].count("deny") == 1
    (recording,) = read_recordings([path])
    assert (recording.format, recording.ended, recording.task) == ("journal", "final_answer", "weigh it")
    statuses = [event.result.status for event in recording.events if isinstance(event, ToolAnswered)]
    assert statuses == ["ok", "ok", "denied"]
    report = replay(recording, engine())
    assert (report.iterations, report.calls, report.denied_succeeded) == (4, 3, 0)
    assert [item.action for item in report.interventions] == ["deny"]


def test_a_run_in_the_text_protocol_replays_from_its_recording(engine, recorder, tmp_path):
    model = Scripted(
        ModelResponse('{"tool_name": "stop_x", "tool_args": {}}'),
        ModelResponse('{"tool_name": "response", "tool_args": {"text": "done"}}'),
    )
    maker = engine(journal=recorder.writer, mode="shadow")
    run = maker.start_run(run_id="r", protocol="text")
    run.start("t", now=0.0)
    for number, response in enumerate(model.responses, start=1):
        run.begin_iteration(now=number)
        run.after_model_response(response, now=number)
        calls = (ToolCall("text-1", "stop_x", "{}", {}),) if number == 1 else ()
        run.after_parse(Verdict("ok", calls), now=number)
        for item in calls:
            run.before_tool_call(item, Batch("b1"), now=number)
            run.after_tool_call(item, ToolResult(item.id, "went on"), now=number)
        run.end_iteration(len(calls), True, now=number)
    (recording,) = read_recordings([recorder.file(tmp_path)])
    assert recording.protocol == "text"
    report = replay(recording, engine())
    assert (report.iterations, report.calls, report.stop.iteration, report.stop.call) == (2, 1, 1, 1)


# ---- what is written


def test_a_request_is_written_as_what_is_new_in_it(engine, recorder, tmp_path):
    run = engine(journal=recorder.writer).start_run(run_id="r")
    run.start("t", now=0.0)
    messages = tuple(Message("user", f"m{number}") for number in range(3))
    tools = (ToolSpec("weigh"),)
    for request in (
        ModelRequest(messages[:1], tools),
        ModelRequest(messages, tools, 2),
        ModelRequest((messages[0], Message("user", "other")), ()),
    ):
        run.before_model_call(request, now=1.0)
    parts = [line["payload"]["request"] for line in recorder.lines() if line["type"] == "before_model_call"]
    assert [(part["kept"], len(part["messages"]), "tools" in part) for part in parts] == [
        (0, 1, True),
        (1, 2, False),
        (1, 1, True),
    ]
    watched = []
    replaying = engine(sinks=[lambda report: watched.append(report)])
    same(replay_journal(recorder.file(tmp_path), replaying))
    requests = [report.payload[0] for report in watched if report.hook == "before_model_call"]
    assert requests[1] == ModelRequest(messages, tools, 2)
    assert requests[2] == ModelRequest((messages[0], Message("user", "other")))


def test_an_unwritable_journal_ends_recording_and_not_the_run(engine):
    file = io.StringIO()
    run = engine(journal=JournalWriter(file)).start_run(run_id="r")
    file.close()
    assert run.start("t", now=0.0).allowed
    assert run.before_tool_call(call("deny_x"), now=0.0).action == "deny"


def test_what_is_no_json_is_written_as_text_and_what_is_nested_too_deeply_is_marked_lost(engine, tmp_path):
    assert json.loads(encode({"payload": {"value": object}}))["payload"]["value"] == str(object)
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    line = encode({"v": 1, "type": "start", "run": "r", "payload": {"task": deep}})
    assert json.loads(line)["payload"] == {"lost": "RecursionError"}
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n", encoding="ascii")
    with pytest.raises(JournalError, match="not recorded"):
        list(replay_journal(path, engine()))


# ---- damaged journals


def test_a_cut_off_last_line_ends_the_replay_and_is_reported_by_the_reader(engine, recorder, tmp_path):
    drive(engine(journal=recorder.writer).start_run(run_id="r"), [["f"]])
    path = recorder.file(tmp_path, recorder.text.getvalue()[:-30])
    assert len(same(replay_journal(path, engine()))) == len(recorder.lines()) - 2
    problem, recording = read_recordings([path])
    assert (type(problem), problem.line) == (Unreadable, len(recorder.lines()))
    assert len(recording.events) == 3


def test_after_a_broken_line_a_journal_is_not_used(engine, recorder, tmp_path):
    drive(engine(journal=recorder.writer).start_run(run_id="r"), [["f"], ["g"]])
    lines = recorder.text.getvalue().splitlines()
    lines[4] = "{"
    path = recorder.file(tmp_path, "\n".join(lines) + "\n")
    with pytest.raises(JournalError, match="line 5"):
        list(replay_journal(path, engine()))
    problem, recording = read_recordings([path])
    assert (problem.line, len(recording.events)) == (5, 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"v": 2}, "version 2"),
        ({"type": "dance"}, "unknown type"),
        ({"payload": {}}, "lacks"),
        ({"payload": {"task": 7}}, "start"),
        ({"now": "late"}, "now"),
        ({"type": "resume"}, "saved run"),
        ({"type": "resume", "payload": {"saved": "?"}}, "saved run"),
    ],
)
def test_a_line_that_cannot_be_understood_is_named(engine, tmp_path, change, reason):
    line = {"v": 1, "type": "start", "run": "r", "now": 0.0, "payload": {"task": "t"}, **change}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(line) + "\n", encoding="ascii")
    with pytest.raises(JournalError, match=reason):
        list(replay_journal(path, engine()))


def test_a_journal_line_of_another_version_makes_the_file_unreadable(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"v": 9, "type": "start", "run": "r", "payload": {}}\n', encoding="ascii")
    (item,) = read_recordings([path])
    assert isinstance(item, Unreadable)
    assert "version 9" in item.reason


# ---- as recordings of other people's loops


def test_a_host_that_reports_only_calls_gets_one_response_per_batch(engine, recorder, tmp_path):
    run = engine(journal=recorder.writer).start_run(run_id="r")
    run.start("t", now=0.0)
    for number, batch in enumerate(["b1", "b1", "b2"]):
        run.before_tool_call(call("f", number), Batch(batch, number % 2), now=1.0)
    run.after_tool_call(call("f", 0), ToolResult("f-0", "late"), now=2.0)
    run.after_tool_call(call("f", 2), ToolResult("f-2", "two"), now=2.0)
    same_id = call("f", 2)
    run.before_tool_call(same_id, now=3.0)
    run.after_tool_call(same_id, ToolResult(same_id.id, "three"), now=3.0)
    (recording,) = read_recordings([recorder.file(tmp_path)])
    assert isinstance(recording, Recording)
    batches = [len(event.response.tool_calls) for event in recording.events if isinstance(event, ModelSaid)]
    assert batches == [2, 1, 1]
    assert [event.result.text for event in recording.events if isinstance(event, ToolAnswered)] == [
        "late",
        "two",
        "three",
    ]


def test_calls_of_a_batch_that_belong_to_no_reported_response_are_a_response_of_their_own(engine, recorder, tmp_path):
    run = engine(journal=recorder.writer).start_run(run_id="r")
    run.start("t", now=0.0)
    run.after_model_response(ModelResponse("", (call("f"),)), now=1.0)
    run.before_tool_call(call("f"), Batch("b1"), now=1.0)
    run.before_tool_call(call("g"), Batch("b2"), now=1.0)
    (recording,) = read_recordings([recorder.file(tmp_path)])
    names = [[item.name for item in event.response.tool_calls] for event in recording.events[1:]]
    assert names == [["f"], ["g"]]


def test_a_host_without_a_parser_has_its_calls_added_to_the_response(engine, recorder, tmp_path):
    run = engine(journal=recorder.writer).start_run(run_id="r")
    run.start("t", now=0.0)
    run.after_model_response(ModelResponse("I will weigh it."), now=1.0)
    run.before_tool_call(call("f"), Batch("b"), now=1.0)
    run.before_tool_call(call("f"), Batch("b"), now=1.0)
    run.after_tool_call(call("f"), ToolResult("f-1", "ok"), now=1.0)
    (recording,) = read_recordings([recorder.file(tmp_path)])
    said = recording.events[1].response
    assert (said.text, len(said.tool_calls), recording.ended) == ("I will weigh it.", 1, "tool_result")


def test_a_response_that_was_asked_for_again_is_not_part_of_the_recording(engine, recorder, tmp_path):
    run = engine(journal=recorder.writer).start_run(run_id="r")
    run.start("t", now=0.0)
    run.begin_iteration(now=1.0)
    run.after_model_response(ModelResponse("first try"), now=1.0)
    run.after_model_response(ModelResponse("second try"), now=1.0)
    run.end_iteration(0, True, now=1.0)
    run.user_message("thanks", now=2.0)
    run.end(Outcome("failed", error="overloaded"), now=3.0)
    (recording,) = read_recordings([recorder.file(tmp_path)])
    assert [type(event) for event in recording.events] == [UserSaid, ModelSaid, UserSaid]
    assert (recording.events[1].response.text, recording.error) == ("second try", "overloaded")


def test_calls_of_a_response_that_was_unusable_stay_unusable_in_the_recording(engine, recorder, tmp_path):
    run = engine(journal=recorder.writer).start_run(run_id="r")
    run.start("t", now=0.0)
    bad = ToolCall("c", "f", '{"a": ')
    run.begin_iteration(now=1.0)
    run.after_model_response(ModelResponse("", (bad,)), now=1.0)
    run.after_parse(Verdict("truncated", (bad,), reason="truncated"), now=1.0)
    run.add_warning("truncated", now=1.0)
    run.end_iteration(0, False, now=1.0)
    (recording,) = read_recordings([recorder.file(tmp_path)])
    report = replay(recording, engine())
    assert (report.iterations, report.calls, report.outcome) == (1, 0, "call")


@pytest.fixture
def cut_and_resumed(engine, recorder):
    """A journal whose process was killed while it wrote line 4, and which a second one went on with."""
    run = engine(journal=recorder.writer).start_run(run_id="r")
    run.start("count", now=1.0)
    run.before_tool_call(call("f"), now=1.0)
    saved = run.save()
    run.after_tool_call(call("f"), ToolResult("f-1", "lost"), now=2.0)
    lines = recorder.text.getvalue().splitlines(keepends=True)
    head = "".join(lines[:3]) + lines[3][:30] + "\n"
    recorder.text.truncate(recorder.text.seek(0))
    resumed, _ = engine(journal=recorder.writer).resume_run(saved)
    resumed.after_tool_call(call("f"), ToolResult("f-1", "seven"), now=9.0)
    resumed.end(Outcome("completed", "counted"), now=9.0)
    return head, recorder.text.getvalue()


def test_a_line_that_a_crash_cut_off_is_told_and_the_resumed_run_is_read_on(
    engine, recorder, tmp_path, cut_and_resumed
):
    path = recorder.file(tmp_path, "".join(cut_and_resumed))
    problem, recording = read_recordings([path])
    assert (type(problem), problem.line) == (Unreadable, 4)
    assert recording.events[-1].result.text == "seven"
    assert len(same(replay_journal(path, engine()))) == 4


def test_behind_a_cut_off_line_only_what_was_resumed_is_used(engine, recorder, tmp_path, cut_and_resumed):
    head, tail = cut_and_resumed
    other = io.StringIO()
    drive(engine(journal=JournalWriter(other)).start_run(run_id="other"), [["f"]])
    path = recorder.file(tmp_path, head + other.getvalue() + tail)
    with pytest.raises(JournalError, match="line 4"):
        list(replay_journal(path, engine()))
    problem, recording = read_recordings([path])
    assert (problem.line, recording.id, recording.events[-1].result.text) == (4, "r", "seven")
    path = recorder.file(tmp_path, head + tail + "{\n" + tail.splitlines(keepends=True)[1])
    first, second, again = read_recordings([path])
    assert (first.line, second.line, again.events) == (4, 8, recording.events)
