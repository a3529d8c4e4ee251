"""What a human answered is in the decision log and in the journal, of every driver, without content."""

from __future__ import annotations

import io
import json

import pytest

from policyengine import Agent, Engine, Guard, Script, ScriptedCall, Turn, UsageError, say
from policyengine.hosts.core import HostRun
from policyengine.hosts.table import HOSTS
from policyengine.loop.state import Answered
from policyengine.messages import ToolCall
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.providers.scripted import ScriptedModel
from policyengine.recordings.compare import compare_runs
from policyengine.replay import replay_journal
from policyengine.telemetry.decision_log import DecisionLog
from policyengine.telemetry.journal import JournalWriter

TEXT = """apiVersion: policyengine/v1
kind: Policy
name: t
log: {sample: {allow: 0.0}}
extensions:
  tool_access: {with: {ask: [pay]}}
"""
SECRET = {"to": "s3cret"}


def watched(journal=None):
    file = io.StringIO()
    options = {} if journal is None else {"journal": JournalWriter(journal)}
    return file, Engine(load_policy_text(TEXT, registry=builtin_registry()), sinks=[DecisionLog(file)], **options)


def humans(file):
    assert "s3cret" not in file.getvalue()
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    (asked,) = [line for line in lines if line["decision"] == "ask"]
    (human,) = [line for line in lines if line["type"] == "human"]
    assert human["call"] == asked["call"]
    assert (human["hook"], human["decided_by"], human["rules"]) == ("human", "tool_access", [])
    assert human["seq"] > asked["seq"]
    return human["code"], human["decision"]


def played(made, human):
    def pay(to: str) -> str:
        return "paid"

    model = ScriptedModel(Script("t", (Turn((ScriptedCall("pay", SECRET),)), say("done"))))
    return Agent(made, model, [pay], human=human).run("t")


@pytest.mark.parametrize(("said", "code", "decision"), [(True, "approved", "allow"), (False, "refused", "deny")])
def test_the_loop_records_what_the_human_said(said, code, decision):
    file, made = watched()
    played(made, lambda question: said)
    assert humans(file) == (code, decision)


@pytest.mark.parametrize(
    ("approve", "code"), [(lambda *_: True, "approved"), (lambda *_: "yes", "refused"), (None, "nobody")]
)
def test_a_host_records_what_the_human_said_and_that_there_was_none(approve, code):
    file, made = watched()
    with Guard(made, task="t", approve=approve) as guard:
        guard.ready()
        guard.response("", [("pay", SECRET)]).run({"pay": lambda to: "paid"})
    assert humans(file) == (code, "allow" if code == "approved" else "deny")


def test_a_call_that_a_host_runs_after_a_question_was_approved():
    file, made = watched()
    run = HostRun(made, HOSTS["own_loop"])
    run.begin("t")
    ruling = run.call(ToolCall("c", "pay", args=SECRET))
    assert ruling.action == "ask"
    run.answer("c", "paid")
    assert humans(file) == ("approved", "allow")


def test_a_question_of_which_no_answer_was_ever_heard_has_had_nobody():
    file, made = watched()
    run = HostRun(made, HOSTS["own_loop"])
    run.begin("t")
    run.call(ToolCall("c", "pay", args=SECRET))
    run.user_message("go on")
    assert humans(file) == ("nobody", "deny")


def test_what_the_human_said_besides_follows_the_text_of_the_refusal():
    _, made = watched()
    run = HostRun(made, HOSTS["own_loop"])
    run.begin("t")
    run.call(ToolCall("c", "pay", args=SECRET))
    ruling = run.approve("c", False, said="She is a customer.")
    assert ruling.text.endswith("\nShe is a customer.")
    assert (ruling.code, ruling.rule, ruling.at.rpartition(":")[2]) == ("refused_by_human", "tool_access", "6")


def test_a_journal_has_the_answer_and_replays_to_the_same_decisions(tmp_path):
    path = tmp_path / "run.jsonl"
    with path.open("w", encoding="utf-8") as journal:
        _, made = watched(journal)
        played(made, lambda question: False)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    (answer,) = [line["payload"] for line in lines if line["type"] == "human_answered"]
    assert (answer["answer"], answer["rule"], answer["call"]["name"]) == ("refused", "tool_access", "pay")
    assert lines[0]["payload"]["policy"] == made.snapshot.named
    assert all(then == now for then, now in replay_journal(path, watched()[1]))


@pytest.mark.parametrize("make", [DecisionLog, JournalWriter])
def test_a_path_in_the_place_of_an_open_file_is_an_error_that_says_what_to_give(make, tmp_path):
    for wrong in (str(tmp_path / "x.jsonl"), tmp_path / "x.jsonl", 7):
        with pytest.raises(UsageError, match="open text file"):
            make(wrong)


def kept_answer(policy, **answer):
    """Play a run that asks and waits, answer it, go on; return the decision log and the journal."""
    from policyengine.durable import KeptRuns
    from policyengine.stores.memory import MemoryStore

    def pay(to: str) -> str:
        return "paid"

    file, journal, store = io.StringIO(), io.StringIO(), MemoryStore(clock=lambda: 1_000.0)
    made = Engine(
        load_policy_text(policy, registry=builtin_registry()),
        sinks=[DecisionLog(file)],
        journal=JournalWriter(journal),
    )
    model = ScriptedModel(Script("t", (Turn((ScriptedCall("pay", SECRET),)), say("done"))))
    agent = Agent(made, model, [pay], store=store)
    assert agent.run("t", run_id="r").status == "waiting"
    KeptRuns(store).answer("r", **answer)
    assert agent.resume_run("r").status == "completed"
    lines = [[json.loads(line) for line in each.getvalue().splitlines()] for each in (file, journal)]
    (logged,) = [line for line in lines[0] if line["type"] == "human"]
    (recorded,) = [line["payload"] for line in lines[1] if line["type"] == "human_answered"]
    return logged, recorded


@pytest.mark.parametrize(("content", "message"), [("", ""), ("include: [messages], ", "Not this one.")])
def test_log_and_journal_say_who_answered_and_when_and_the_log_what_only_where_it_holds_messages(content, message):
    text = TEXT.replace("log: {", f"log: {{{content}")
    logged, recorded = kept_answer(text, approved=False, by="accounting", text="Not this one.")
    assert (logged["by"], logged["answered"]) == ("accounting", "1970-01-01T00:16:40.000Z")
    assert (logged["message"], logged["code"]) == (message, "refused")
    assert (recorded["by"], recorded["at"], recorded["text"]) == ("accounting", 1_000.0, "Not this one.")


def test_a_journal_without_who_answered_is_read_as_before(tmp_path):
    path = tmp_path / "run.jsonl"
    with path.open("w", encoding="utf-8") as journal:
        _, made = watched(journal)
        played(made, lambda question: False)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if line["type"] == "human_answered":
            for name in ("by", "at", "text"):
                del line["payload"][name]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert all(then == now for then, now in replay_journal(path, watched()[1]))


def test_who_answered_and_when_is_no_difference_between_two_runs_and_what_they_said_is(tmp_path):
    paths = {}
    for name, said in (
        ("ada", Answered(False, "No.", by="Ada", at=1.0)),
        ("bob", Answered(False, "No.", by="Bob", at=2.0)),
        ("other", Answered(False, "Never.", by="Ada", at=1.0)),
    ):
        paths[name] = tmp_path / f"{name}.jsonl"
        with paths[name].open("w", encoding="utf-8") as journal:
            played(watched(journal)[1], lambda question, said=said: said)
    assert compare_runs(paths["ada"], paths["bob"]).difference is None
    difference = compare_runs(paths["ada"], paths["other"]).difference
    assert [field.name for field in difference.fields if not field.same] == ["text"]
