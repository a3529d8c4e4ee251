"""Sessions of Claude Code: lines of one response, whose words they are, sidechains, refusals."""

from __future__ import annotations

import json

import pytest

from policyengine.messages import ToolCall, Usage
from policyengine.recordings import claude_code
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import READERS, read_recordings

SNAPSHOT = {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}}


class Session:
    """Builds the lines of a session; every line is a second later."""

    def __init__(self):
        self.lines = []

    def line(self, kind, message=None, **more):
        number = len(self.lines)
        record = {"type": kind, "uuid": f"u{number}", "parentUuid": None, "sessionId": "s-1", "isSidechain": False}
        record |= {"timestamp": f"2026-01-05T10:00:{number:02}.000Z", **more}
        self.lines.append(record if message is None else {**record, "message": message})
        return self

    def user(self, content, **more):
        return self.line("user", {"role": "user", "content": content}, **more)

    def says(self, *blocks, of="m1", usage=None, model="m-1", **more):
        message = {"id": of, "role": "assistant", "model": model, "content": list(blocks), "usage": usage or {}}
        return self.line("assistant", message, **more)

    def answer(self, text, call_id="c1", failed=None, **more):
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        return self.user([block if failed is None else {**block, "is_error": failed}], **more)


def words(text):
    return {"type": "text", "text": text}


def use(call_id="c1", **arguments):
    return {"type": "tool_use", "id": call_id, "name": "Read", "input": arguments}


def read(tmp_path, session, *, name="talk.jsonl"):
    path = tmp_path / name
    lines = [line if isinstance(line, str) else json.dumps(line) for line in session.lines]
    path.write_text("\n".join(lines), encoding="utf-8")
    return list(read_recordings([path]))


def recording(tmp_path, session):
    (run,) = read(tmp_path, session)
    assert isinstance(run, Recording)
    return run


def test_a_session_is_one_run(tmp_path):
    session = (
        Session()
        .user("Mend it.")
        .says(words("Looking."), use(path="a.py"))
        .answer("x = 1")
        .says(words("Done."), of="m2")
    )
    run = recording(tmp_path, session)
    assert (run.format, run.id, run.group, run.task, run.line) == ("claude_code", "s-1", "m-1", "Mend it.", 1)
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid, ToolAnswered, ModelSaid]
    assert [event.at for event in run.events] == [0.0, 1.0, 2.0, 3.0]
    assert run.events[1].response.tool_calls == (ToolCall("c1", "Read", '{"path":"a.py"}', {"path": "a.py"}),)
    assert (run.ended, run.label, run.error) == ("final_answer", None, "")


def test_lines_of_one_message_are_one_batch_even_with_results_between(tmp_path):
    session = Session().says({"type": "thinking", "thinking": "hm"}).says(words("Both.")).says(use("c1"))
    run = recording(tmp_path, session.answer("one", "c1").says(use("c2")).answer("two", "c2"))
    said, *answers = run.events
    assert (said.response.text, said.response.reasoning) == ("Both.", "hm")
    assert [call.id for call in said.response.tool_calls] == ["c1", "c2"]
    assert [(answer.call_id, answer.result.text) for answer in answers] == [("c1", "one"), ("c2", "two")]


def test_usage_repeated_on_every_line_counts_once(tmp_path):
    early = {"input_tokens": 3, "cache_read_input_tokens": 5, "output_tokens": 1}
    session = Session().says(words("a"), usage=early).says(use(), usage={**early, "output_tokens": 9})
    (said,) = recording(tmp_path, session).events
    assert said.response.usage == Usage(8, 9, 17)


def test_what_the_harness_says_in_the_user_s_name_is_injected(tmp_path):
    session = Session().user("go").user("reminder", isMeta=True).user("so far", isCompactSummary=True)
    session.user("[Request interrupted by user]").user("<task-notification>done</task-notification>").user("go on")
    run = recording(tmp_path, session)
    assert [event.injected for event in run.events] == [False, True, True, True, True, False]


def test_the_task_is_what_the_user_first_asked(tmp_path):
    assert recording(tmp_path, Session().user("reminder", isMeta=True).user([words("Mend it.")])).task == "Mend it."


@pytest.mark.parametrize(
    ("text", "result", "status"),
    [
        ("no such file", "Error: no such file", "error"),
        ("no", "User rejected tool use", "denied"),
        ("The user doesn't want to proceed with this tool use. Wait.", None, "denied"),
        ("x", "Sibling tool call errored", "not_run"),
        ("<tool_use_error>Sibling tool call errored</tool_use_error>", None, "not_run"),
    ],
)
def test_a_failed_result_says_whether_its_call_ran(tmp_path, text, result, status):
    run = recording(tmp_path, Session().says(use()).answer(text, failed=True, toolUseResult=result))
    assert run.events[1].result.status == status


def test_a_result_that_does_not_say_it_failed_is_fine(tmp_path):
    session = Session().says(use(), use("c2")).answer("Error: hm").answer("User rejected tool use", "c2", failed=False)
    assert [event.result.status for event in recording(tmp_path, session).events[1:]] == ["ok", "ok"]


def test_the_duration_of_a_call_is_kept_where_it_was_recorded(tmp_path):
    session = Session().says(use(), use("c2")).answer("a", toolUseResult={"durationMs": 250}).answer("b", "c2")
    assert [event.result.duration_s for event in recording(tmp_path, session).events[1:]] == [0.25, None]


def test_records_of_other_types_are_left_out(tmp_path):
    session = Session().user("go").line("progress", data={"type": "hook_progress"}).line("system", subtype="x")
    session.line("queue-operation", operation="enqueue", content="later").line("attachment")
    session.lines.insert(0, SNAPSHOT)
    assert len(recording(tmp_path, session).events) == 1


def test_an_error_that_the_harness_reports_as_the_model_is_no_response(tmp_path):
    session = Session().user("go").says(words("busy"), model="<synthetic>", isApiErrorMessage=True)
    run = recording(tmp_path, session)
    assert (len(run.events), run.error) == (1, "busy")
    assert recording(tmp_path, session.says(words("Done."), of="m2")).error == ""


def test_a_line_read_before_is_a_copy(tmp_path):
    session = Session().user("go").says(use())
    session.lines += session.lines
    assert len(recording(tmp_path, session).events) == 2


def test_a_sidechain_is_a_run_of_its_own(tmp_path):
    session = Session().user("go").says(use("c1"))
    session.user("look", isSidechain=True, agentId="a1").says(words("seen"), of="m2", isSidechain=True, agentId="a1")
    main, side = read(tmp_path, session.answer("it is there"))
    assert (main.id, side.id, side.line, side.task) == ("s-1", "s-1/a1", 3, "look")
    assert [type(event) for event in main.events] == [UserSaid, ModelSaid, ToolAnswered]
    assert [type(event) for event in side.events] == [UserSaid, ModelSaid]


def test_sidechains_without_the_name_of_an_agent_are_told_apart_by_their_first_line(tmp_path):
    session = Session().user("a", isSidechain=True).user("b", isSidechain=True)
    session.says(words("of a"), isSidechain=True, parentUuid="u0")
    session.says(words("of b"), of="m2", isSidechain=True, parentUuid="u1")
    session.user("more of a", isSidechain=True, parentUuid="u2")
    first, second = read(tmp_path, session)
    assert (first.id, second.id) == ("s-1/u0", "s-1/u1")
    assert (len(first.events), len(second.events)) == (3, 2)


def test_a_broken_line_is_reported_and_reading_goes_on(tmp_path):
    session = Session().user("go").says(words("a"))
    session.lines.insert(1, "{")
    session.line("user", {"role": "user", "content": 7})
    *problems, run = read(tmp_path, session)
    assert [problem.line for problem in problems] == [2, 4]
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid]


def test_a_session_without_messages_is_unreadable(tmp_path):
    session = Session().line("system")
    (problem,) = read(tmp_path, session)
    assert isinstance(problem, Unreadable)
    assert problem.reason == "the session has no messages"


@pytest.mark.parametrize(
    "first",
    [
        SNAPSHOT,
        {"type": "summary", "summary": "x", "leafUuid": "u"},
        {"type": "queue-operation", "operation": "enqueue", "sessionId": "s"},
        Session().user("go").lines[0],
        Session().line("progress").lines[0],
    ],
)
def test_a_session_is_recognised_whatever_its_first_line_is(first):
    assert next(reader.name for reader in READERS if reader.sniff(first)) == "claude_code"


def test_other_values_are_no_session():
    for value in ({"type": "summary"}, {"sessionId": "s"}, {"type": "user", "sessionId": "s"}, {"type": 3}, [], "x"):
        assert not claude_code.sniff(value)
