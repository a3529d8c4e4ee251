"""Plain chat messages in a text protocol that only the policy knows (`--protocol text`)."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from policyengine.cli import cli
from policyengine.errors import UsageError
from policyengine.messages import ToolResult
from policyengine.parsing.forms import Form
from policyengine.policy.model import Parsing
from policyengine.recordings.model import ModelSaid, ToolAnswered, UserSaid
from policyengine.recordings.readers import READERS, in_protocol, read_recordings
from policyengine.replay import replay

FORMS = (Form("tag", "run", "code"), Form("tag", "done", answer=True))
POLICY = """apiVersion: policyengine/v1
kind: Policy
name: tags
protocol: text
parsing:
  mode: repair
  forms:
    - {form: tag, word: run, argument: code}
    - {form: tag, word: done, answer: true}
extensions:
  stall_detector:
    with: {repeat: {stop: 3}}
"""
SAME = [{"role": "assistant", "content": "<run>look</run>"}, {"role": "user", "content": "fog"}]
NATIVE = {"id": "c", "function": {"name": "look", "arguments": "{}"}}


def read(folder, *messages):
    path = folder / "chat.json"
    path.write_text(json.dumps({"id": "r", "messages": [{"role": "user", "content": "go"}, *messages]}))
    (run,) = read_recordings([path], in_protocol(READERS, "text"))
    return run


def said(role, text, **more):
    return {"role": role, "content": text, **more}


def test_the_messages_are_texts_and_nobody_has_decided_what_is_a_call(tmp_path):
    run = read(tmp_path, *SAME, said("tool", "also fog"))
    assert (run.protocol, run.undecided, run.forms) == ("text", True, ())
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid, UserSaid, ToolAnswered]
    assert run.events[-1].call_id == ""


def test_the_users_message_behind_a_call_is_its_result(tmp_path, engine):
    run = read(tmp_path, *SAME, *SAME, said("assistant", "<done>fog</done>"))
    report = replay(run, engine(parsing=Parsing(forms=FORMS)))
    assert (report.calls, report.iterations, report.recovered, report.outcome) == (2, 3, 0, "final_answer")


def test_another_policy_reads_the_same_messages_otherwise(tmp_path, engine):
    run = read(tmp_path, *SAME, said("assistant", "fog"))
    other = (Form("tag", "walk", "where"),)
    assert replay(run, engine(parsing=Parsing(forms=other))).calls == 0
    assert replay(run, engine()).calls == 0  # one JSON object is the protocol where none is declared


def test_an_answer_or_an_unreadable_reply_takes_no_message_for_a_result(tmp_path, engine):
    run = read(
        tmp_path,
        said("assistant", "<done>1</done>"),
        said("user", "and now?"),
        said("assistant", "hm"),
        said("user", "x"),
    )
    assert replay(run, engine(parsing=Parsing(forms=FORMS))).calls == 0


@pytest.mark.parametrize(
    ("behind", "texts"),
    [
        ([said("user", "both")], ["both", "both"]),
        ([said("tool", "one"), said("tool", "two")], ["one", "two"]),
        ([said("tool", "one"), said("user", "the user speaks")], ["one", "one"]),
        ([said("tool", "1"), said("tool", "2"), said("tool", "3")], ["1\n2\n3", "1\n2\n3"]),
        ([], ["", ""]),
    ],
)
def test_messages_answer_calls_in_order_or_all_together(tmp_path, engine, monkeypatch, behind, texts):
    run = read(tmp_path, said("assistant", "[look(at='sea'), look(at='sky')]"), *behind)
    made = engine(parsing=Parsing(forms=(Form("python"),)))
    heard: list[ToolResult] = []
    start = made.start_run

    def start_run(**arguments):
        started = start(**arguments)
        after = started.after_tool_call

        def after_tool_call(call, result, **more):
            heard.append(result)
            assert result.call_id == call.id
            return after(call, result, **more)

        started.after_tool_call = after_tool_call
        return started

    monkeypatch.setattr(made, "start_run", start_run)
    assert replay(run, made).calls == 2
    assert [result.text for result in heard] == texts
    assert {result.status for result in heard} == ({"ok"} if behind else {"not_run"})


def test_calls_after_a_stop_are_new_where_they_are_unlike_all_before(tmp_path, engine):
    calls = ["[stop_now()]", "[stop_now()]", "[fish()]"]
    messages = [message for call in calls for message in (said("assistant", call), said("user", "ok"))]
    report = replay(read(tmp_path, *messages), engine(parsing=Parsing(forms=(Form("python"),))))
    assert report.stop.iteration == 1
    assert report.new_calls_after_stop == 1


def test_a_structured_call_among_texts_keeps_its_own_result(tmp_path, engine):
    run = read(tmp_path, said("assistant", None, tool_calls=[NATIVE]), said("tool", "fog", tool_call_id="c"), *SAME)
    assert run.events[2].call_id == "c"
    assert replay(run, engine(parsing=Parsing(forms=FORMS))).calls == 2


def test_formats_with_a_protocol_of_their_own_are_left_alone():
    changed = [new.name for new, old in zip(in_protocol(READERS, "text"), READERS, strict=True) if new != old]
    assert changed == ["openai_chat"]
    assert in_protocol(READERS, "native") == READERS
    with pytest.raises(UsageError, match="openai_chat only"):
        in_protocol(READERS[:1], "text")
    with pytest.raises(UsageError, match="protocol named 'txet'"):
        in_protocol(READERS, "txet")


def test_replay_and_backtest_have_the_option(tmp_path):
    read(tmp_path, *SAME, *SAME, *SAME, *SAME)
    policy = tmp_path / "tags.yaml"
    policy.write_text(POLICY)
    paths = (str(tmp_path / "chat.json"), "--policy", str(policy))

    def run(*arguments):
        return CliRunner().invoke(cli, [*arguments, *paths, "--json"])

    report = json.loads(run("replay", "--protocol", "text").stdout)
    assert (report["calls"], report["stop"]["call"]) == (4, 3)
    assert json.loads(run("replay").stdout)["calls"] == 0
    gate = ("--fail-if", "stop_rate > 0")
    assert run("backtest", "--protocol", "text", *gate).exit_code == 1
    assert run("backtest", *gate).exit_code == 0
    assert "openai_chat only" in run("backtest", "--protocol", "text", "--format", "tau_bench").stderr


@pytest.mark.parametrize(
    ("messages", "ended"),
    [
        ([said("assistant", "<run>look</run>")], "call"),
        ([said("assistant", "<done>1</done>")], "final_answer"),
        ([said("assistant", "I wonder.")], "empty"),
        (SAME, "tool_result"),
        ([*SAME, said("user", "thanks")], "user_message"),
        ([said("assistant", "<done>1</done>"), said("user", "thanks")], "user_message"),
    ],
)
def test_the_policy_also_says_how_such_a_run_ends(tmp_path, engine, messages, ended):
    report = replay(read(tmp_path, *messages), engine(parsing=Parsing(forms=FORMS)))
    assert report.outcome == ended


def test_a_complaint_about_an_unreadable_reply_closes_no_step_and_a_new_wish_does(tmp_path, engine, monkeypatch):
    run = read(
        tmp_path,
        said("assistant", "hm"),
        said("user", "Use the tags."),
        said("assistant", "<done>1</done>"),
        said("user", "2?"),
    )
    made = engine(parsing=Parsing(forms=FORMS))
    heard = []
    start = made.start_run

    def start_run(**arguments):
        started = start(**arguments)
        told = started.user_message
        monkeypatch.setattr(
            started,
            "user_message",
            lambda text, **more: (heard.append((text, more["injected"])), told(text, **more))[1],
        )
        return started

    monkeypatch.setattr(made, "start_run", start_run)
    replay(run, made)
    assert heard == [("Use the tags.", True), ("2?", False)]
