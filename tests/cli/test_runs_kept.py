"""`policyengine run --store`, and `policyengine runs` about the runs that are kept."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from policyengine import Agent, Engine, Script, call, say
from policyengine.cli import cli
from policyengine.cli.attending import MOST, call_lines
from policyengine.cli.keeping import Made, command_for, made_of, next_commands, shown_place
from policyengine.durable.keeper import Keeper, claim
from policyengine.durable.record import HEADS, STATES, Head, asked_about
from policyengine.errors import UsageError
from policyengine.history.check import check_history
from policyengine.loop.state import Begin
from policyengine.messages import Message, ModelRequest, ToolCall, ToolResult
from policyengine.providers.scripted import ScriptedModel
from policyengine.runstate import StopReason
from policyengine.script import fail
from policyengine.stores import StoreError, open_store
from policyengine.testing import make_engine

ROOT = Path(__file__).parents[2]
AT = ("--store", "runs.db")

DYING = '''\
import os, pathlib, signal


def look(place: str) -> str:
    """Look somewhere."""
    with open("looked.txt", "a") as file:
        file.write(place + "\\\\n")
    if place == "shelf" and not pathlib.Path("died").exists():
        pathlib.Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "really looked at " + place
'''.replace("\\\\", "\\")

HANDS_OVER = """\
apiVersion: policyengine/v1
kind: Policy
name: careful
interventions: {max: 1, then: hand_over}
extensions:
  counting: {use: demo.counting, with: {deny: 2}}
"""

POLLS = """\
task: Wait for the job.
turns:
  - calls: [{tool: job, args: {id: 7}, result: queued}]
  - calls: [{tool: job, args: {id: 7}, result: running}]
  - calls: [{tool: job, args: {id: 7}, result: done}]
  - text: It is done.
"""


def words(result: Result) -> str:
    """Return what was printed, runs of blanks as one."""
    return re.sub(" +", " ", result.stdout)


PLAY = ("run", "--policy", "demo.yaml", "--folder", "guards", "--script", "script.yaml")


@pytest.fixture
def runs(run) -> Callable[..., Result]:
    """Give one of the commands about kept runs."""

    def invoke(verb: str, *args: str) -> Result:
        return run("runs", verb, *args, *AT)

    return invoke


@pytest.fixture
def asking(play) -> None:
    """A run `night` that waits for a human's approval of its first call."""
    assert play(*AT, "--run-id", "night", "--agent", "clerk", rules="{ask: 1, stop: 3}").exit_code == 7


def shown(runs: Callable[..., Result], run_id: str) -> dict[str, Any]:
    result = runs("show", run_id, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def shell(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    where = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "policyengine", *args]
    return subprocess.run(command, env=where, capture_output=True, text=True, timeout=120, check=False, **options)


# ---- begin, look, decide, go on


def test_a_run_that_is_kept_says_its_id_and_which_command_comes_next(play):
    result = play(*AT, "--run-id", "night", rules="{ask: 1}")
    assert result.exit_code == 7
    assert " run night, kept in runs.db" in words(result)
    digest = re.search(r"--digest (\w+)", result.stdout)[1]
    assert f"policyengine runs approve night --digest {digest} --store runs.db" in words(result)
    assert f"policyengine runs reject night --digest {digest} --say TEXT --store runs.db" in words(result)
    assert words(result).endswith(" policyengine runs resume night --store runs.db\n")


def test_a_run_without_an_id_gets_one_that_can_be_typed(play, runs):
    result = play(*AT)
    run_id = re.search(r"run +(\w+), kept", result.stdout)[1]
    assert len(run_id) == 12
    assert shown(runs, run_id[:6])["run_id"] == run_id


def test_an_approved_run_goes_on_without_any_option(asking, runs, tmp_path, monkeypatch):
    assert runs("approve", "night", "--by", "Ada").exit_code == 0
    monkeypatch.chdir("/")
    monkeypatch.setenv("POLICYENGINE_STORE", str(tmp_path / "runs.db"))
    result = CliRunner().invoke(cli, ["runs", "resume", "night"])
    assert result.exit_code == 7, result.output  # the second call is asked about, too
    assert 'human approved: look {"place": "drawer"}\n result nothing\nround 2\n call look {"place": "shelf"}' in words(
        result
    )
    assert words(result).endswith(" policyengine runs resume night\n")


def test_a_rejection_tells_the_model_what_the_human_said(asking, runs):
    assert runs("reject", "night", "--say", "Not in the drawer.").exit_code == 0
    assert runs("resume", "night").exit_code == 7
    results = [message for message in shown(runs, "night")["messages"] if message["role"] == "tool"]
    assert results[0]["text"].endswith("Not in the drawer.")


def test_an_answer_to_another_question_does_not_count(asking, runs):
    result = runs("approve", "night", "--digest", "0" * 32)
    assert result.exit_code == 1
    assert "asks about something else by now" in result.stderr
    asked = shown(runs, "night")["asked"]
    for given, told in (
        (asked["calls"][0]["digest"], "is the digest of a call; that of the question is"),
        (asked["digest"][:12], "is the beginning of a digest; give all of it:"),
    ):
        assert f"{given} {told} {asked['digest']}" in " ".join(
            runs("approve", "night", "--digest", given).stderr.split()
        )
    assert shown(runs, "night")["answer"] is None


def test_show_has_all_one_needs_to_decide(asking, runs):
    text = words(runs("show", "night"))
    assert "run night of clerk: waiting\ntask Find the key.\n" in text
    assert "asks counting, demo.yaml:7: counting (observed 1, limit 1)\n" in text
    assert 'call look {"place": "drawer"}\n digest ' in text
    assert 'assistant calls look {"place": "drawer"}' in text
    assert "worker nobody" in text
    found = shown(runs, "night")
    assert (found["status"], found["ended"], found["asked"]["calls"][0]["tool"]) == ("waiting", False, "look")
    assert found["asked"]["digest"] in found["next"][1]


def test_show_says_who_answered_what(asking, runs):
    runs("reject", "night", "--by", "Ada", "--say", "Never.")
    text = words(runs("show", "night"))
    assert re.search(r"answered rejected by Ada, .* UTC look: Never\.\n", text)
    assert text.endswith("next policyengine runs resume night --store runs.db\n")
    again = runs("approve", "night", "--by", "Bob")
    assert again.exit_code == 1
    assert re.search(r"answered already: rejected by Ada, .* UTC; say --replace", " ".join(again.stderr.split()))
    assert runs("approve", "night", "--by", "Bob", "--replace").exit_code == 0
    assert runs("resume", "night").exit_code == 7
    assert [answer["by"] for answer in shown(runs, "night")["answers"]] == ["Ada", "Bob"]


def test_what_an_agent_wants_to_run_cannot_move_the_cursor(run):
    arguments = {"place": "\x1b[2K\r\u202e" + "x" * MOST}
    store = open_store("runs.db")
    Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("{hint: 2, deny: 3}", "{ask: 1}"))
    model = ScriptedModel(Script("t", (call("look", arguments), say("done"))))
    Agent(Engine("demo.yaml", folders=["guards"]), model, model.tools(), store=store).run("t\x1b[31m", run_id="evil")
    store.close()
    for verb in ("show evil", "list", "approve evil"):
        text = run("runs", *verb.split(), *AT).stdout
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\r" not in text
    assert re.search(r"x \.\.\. and \d+ characters more\n", run("runs", "show", "evil", *AT).stdout)


def test_list_shows_how_runs_stand(asking, play, runs):
    play(*AT, "--run-id", "day", rules="{stop: 2}")
    text = words(runs("list"))
    assert "run status agent rounds calls age worker waits for or ended by task" in text
    assert re.search(r"night waiting clerk 1 1 \d.* s - approval: look \(counting\) Find the key\.", text)
    assert re.search(r"day stopped 2 2 \d.* s - counting: counting Find the key\.", text)
    assert "night" not in runs("list", "--status", "stopped").stdout
    assert {head["run_id"] for head in json.loads(runs("list", "--json").stdout)["runs"]} == {"night", "day"}


def test_a_damaged_run_is_listed_and_can_be_forgotten(asking, runs):
    store = open_store("runs.db")
    store.update(lambda values: values.put(HEADS, "broken", b"{"))
    store.close()
    assert re.search(r"broken damaged what is kept of run 'broken' is damaged", words(runs("list")))
    assert json.loads(runs("list", "--json").stdout)["damaged"][0]["run_id"] == "broken"
    assert runs("show", "broken").exit_code == 2
    assert runs("forget", "broken").exit_code == 0
    assert json.loads(runs("list", "--json").stdout)["damaged"] == []
    assert shown(runs, "night")["status"] == "waiting"


@pytest.mark.parametrize("verb", ["show", "approve", "reject", "resume", "cancel", "export", "forget"])
def test_an_id_that_is_not_there_is_one_readable_message(runs, verb):
    open_store("runs.db").close()
    result = runs(verb, "nobody")
    assert result.exit_code == 1
    assert "error: no run 'nobody' is kept in this store" in result.stderr


def test_a_store_out_of_reach_is_no_crash(run):
    Path("runs.db").mkdir()
    for result in (run("runs", "list", *AT), run("run", *AT)):
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")


def test_a_store_that_is_not_there_is_not_made(runs):
    result = runs("list")
    assert (result.exit_code, Path("runs.db").exists()) == (1, False)
    assert result.stderr == "error: no runs are kept at runs.db: there is no such file\n"


def test_a_run_that_waits_and_is_not_kept_says_what_would_keep_it(play):
    result = play(rules="{ask: 1, stop: 3}")
    assert result.exit_code == 7
    assert "with --store PLACE it can be answered later" in result.stderr


def test_how_many_logs_are_kept_means_nothing_where_none_is_begun_anew(play):
    assert "--log-keep has no effect without --log-rotate" in play("--log", "d.jsonl", "--log-keep", "3").stderr
    assert "log-keep" not in play("--log", "d.jsonl", "--log-keep", "3", "--log-rotate", "1MB").stderr


def test_a_store_that_fails_in_a_run_names_the_run_and_what_goes_on_with_it(play, monkeypatch):
    def fails(self: Any, loop: Any, effect: Any) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(Keeper, "keep", fails)
    result = play(*AT, "--run-id", "night")
    told = " ".join(result.stderr.split())
    assert "the disk is full; what is kept of run 'night' goes on with: policyengine runs resume" in told
    assert result.exit_code not in (0, 1, 6, 7)


def test_a_run_id_without_a_store_is_a_mistake(run):
    result = run("run", "--run-id", "night")
    assert result.exit_code == 1
    assert "--store PLACE" in result.stderr


# ---- the same again


def test_the_same_id_again_goes_on(asking, play, runs):
    runs("approve", "night")
    result = play(*AT, "--run-id", "night", rules="{ask: 1, stop: 3}")
    assert result.exit_code == 7
    assert 'round 2\n call look {"place": "shelf"}' in words(result)


def test_the_same_id_again_prints_how_the_run_ended(play):
    first = play(*AT, "--run-id", "night", rules="{stop: 2}")
    again = play(*AT, "--run-id", "night", rules="{nonsense: 1}")  # nothing is loaded for it
    assert (first.exit_code, again.exit_code) == (6, 6)
    assert "run night, kept in runs.db, has ended" in words(again)
    assert "by counting, demo.yaml:7: counting (observed 2, limit 2)" in words(again)
    assert "--say TEXT" in again.stderr


def test_the_same_id_for_another_task_is_refused(asking, play):
    result = play(*AT, "--run-id", "night", "Something else.")
    assert result.exit_code == 1
    assert "is about another task" in result.stderr


def test_json_of_a_run_that_is_kept_says_how_it_goes_on(play):
    result = play("--json", *AT, "--run-id", "night", rules="{ask: 1}")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["run_id"], found["asked"]["calls"][0]["tool"]) == (7, "night", "look")
    assert found["next"][-1] == "policyengine runs resume night --store runs.db"


def test_a_journal_goes_on_where_the_run_does(asking, runs, run):
    runs("cancel", "night")
    Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("ask: 1, stop: 3", "ask: 2"))
    assert run(*PLAY, *AT, "--run-id", "two", "--record", "j.jsonl").exit_code == 7
    runs("approve", "two")
    assert runs("resume", "two", "--record", "j.jsonl").exit_code == 7
    kinds = [json.loads(line)["type"] for line in Path("j.jsonl").read_text().splitlines()]
    assert (kinds.count("run"), kinds.count("resume"), kinds.count("after_tool_call")) == (1, 1, 2)


def test_an_interrupted_run_says_how_it_goes_on(run, runs):
    Path("demo_tools.py").write_text("def look(place: str) -> str:\n    raise KeyboardInterrupt\n")
    Path("demo.yaml").write_text(plain())
    result = run(*PLAY, "--tools", "demo_tools:look", *AT, "--run-id", "night")
    assert result.exit_code == 130
    assert result.stderr.strip() == (
        "interrupted; the run is kept. It goes on with: policyengine runs resume night --store runs.db"
    )
    assert (shown(runs, "night")["phase"], shown(runs, "night")["worker"]) == ("tools", "-")


def test_the_async_driver_keeps_runs_too(play, runs):
    assert play("--async", *AT, "--run-id", "night", rules="{ask: 1}").exit_code == 7
    runs("approve", "night")
    result = runs("resume", "night", "--async", "--policy", "default")
    assert (result.exit_code, "answer Under the mat." in words(result)) == (0, True)


# ---- after the end: another run of the conversation


def test_a_run_that_a_guard_ended_says_how_its_conversation_goes_on(play, runs):
    play(*AT, "--run-id", "night", rules="{stop: 2}")
    result = runs("resume", "night")
    assert result.exit_code == 6
    assert "run night has ended, so there is nothing to go on with" in result.stderr
    assert "policyengine runs resume night --say TEXT --store runs.db" in result.stderr


@pytest.mark.parametrize(("verb", "code"), [("stop", 6), ("hand over", 7)])
def test_what_is_said_to_a_run_that_ended_begins_one_that_follows(play, run, runs, verb, code):
    play_it = play(*AT, "--run-id", "night", rules="{stop: 2}") if verb == "stop" else None
    if play_it is None:
        Path("demo.yaml").write_text(HANDS_OVER)
        play_it = run(*PLAY, *AT, "--run-id", "night")
    assert play_it.exit_code == code, play_it.output
    before = shown(runs, "night")
    result = runs("resume", "night", "--say", "Look under the mat.", "--policy", "default")
    assert result.exit_code == 0, result.output
    assert "run night.2, kept in runs.db" in words(result)
    after = shown(runs, "night.2")
    assert after["messages"][: len(before["messages"])] == before["messages"]
    assert after["messages"][len(before["messages"])]["text"] == "Look under the mat."
    assert after["output"] == "Under the mat."  # the script goes on where the first run left it
    again = runs("resume", "night", "--say", "Look under the mat.")
    assert (again.exit_code, "has ended" in again.stdout) == (0, True)
    other = runs("resume", "night", "--say", "Something else.")
    assert (other.exit_code, "was followed by 'night.2' already" in other.stderr) == (1, True)
    third = runs("resume", "night.2", "--say", "Thank you.")
    assert "run night.3, kept in" in words(third)


def test_what_rules_count_in_the_conversation_goes_on(play, runs, run):
    guard = Path("guards/counting.py")
    guard.write_text(guard.read_text().replace("    state = Seen\n", '    state = Seen\n    scope = "conversation"\n'))
    assert play(*AT, "--run-id", "night", rules="{stop: 2}").exit_code == 6
    second = runs("resume", "night", "--say", "Go on.")
    assert second.exit_code == 6, second.output
    assert "observed 3, limit 2" in words(second)


def test_nothing_is_said_to_a_run_that_has_not_ended(asking, runs):
    result = runs("resume", "night", "--say", "Hurry.")
    assert result.exit_code == 1
    assert "answer it first: policyengine runs approve night" in result.stderr


def taken_and_not_begun(run_id: str, task: str, **origin: Any) -> None:
    """A run whose process took it and died before it committed anything."""
    store = open_store("runs.db")
    keeper = claim(store, run_id, task, origin=origin)
    assert isinstance(keeper, Keeper)
    keeper.release()
    store.close()


@pytest.mark.parametrize("how", ["resume", "say", "run"])
def test_a_run_that_follows_and_had_not_begun_begins_with_its_history(play, run, runs, how):
    assert play(*AT, "--run-id", "night", rules="{stop: 2}").exit_code == 6
    before = shown(runs, "night")
    origin = {**before["origin"], "policy": "default", "follows": "night", "first": "night", "number": 2, "played": 2}
    taken_and_not_begun("night.2", "Look under the mat.", **origin)
    assert shown(runs, "night.2")["next"] == ["policyengine runs resume night.2 --store runs.db"]
    if how == "resume":
        result = runs("resume", "night.2")
    elif how == "say":
        result = runs("resume", "night", "--say", "Look under the mat.")
    else:
        result = run("run", "Look under the mat.", "--script", "script.yaml", *AT, "--run-id", "night.2")
    assert result.exit_code == 0, result.output
    after = shown(runs, "night.2")
    assert after["messages"][: len(before["messages"])] == before["messages"]
    assert after["output"] == "Under the mat."
    third = runs("resume", "night.2", "--say", "Thank you.")
    assert "run night.3, kept in" in words(third)


def test_a_run_that_follows_a_forgotten_one_does_not_begin_without_its_history(play, runs):
    assert play(*AT, "--run-id", "night", rules="{stop: 2}").exit_code == 6
    origin = shown(runs, "night")["origin"]
    taken_and_not_begun("night.2", "Look under the mat.", **origin, follows="night", first="night")
    assert runs("forget", "night").exit_code == 0
    result = runs("resume", "night.2")
    assert (result.exit_code, "which was forgotten with its history" in result.stderr) == (1, True)


def test_a_run_that_had_not_begun_begins_with_its_task_if_that_is_known_whole(play, run, runs):
    assert play(*AT, "--run-id", "night", rules="{stop: 9}").exit_code == 0
    origin = shown(runs, "night")["origin"]
    taken_and_not_begun("short", "Find the key.", **origin)
    assert runs("resume", "short").exit_code == 0
    assert shown(runs, "short")["task"] == "Find the key."
    taken_and_not_begun("-long", "Find the key. " * 50, **origin)
    command = "policyengine run TASK --run-id=-long --store runs.db"
    result = run("runs", "resume", *AT, "--", "-long")
    assert (result.exit_code, command in result.stderr) == (1, True)
    listed = json.loads(runs("list", "--json").stdout)["runs"]
    assert [each["next"] for each in listed if each["run_id"] == "-long"] == [[command]]
    taken_and_not_begun("night.2", "Find the key. " * 50, **origin, follows="night", first="night")
    assert shown(runs, "night.2")["next"] == ["policyengine runs resume night --say TEXT --store runs.db"]


# ---- which run is meant


@pytest.mark.parametrize("verb", ["approve", "reject", "cancel", "forget", "resume"])
def test_what_changes_a_run_takes_its_whole_id(asking, runs, verb):
    result = runs(verb, "nig")
    assert result.exit_code == 1
    assert "no run 'nig' is kept in this store; there is 'night'; give the whole id" in result.stderr
    assert runs("show", "nig").exit_code == 0


@pytest.mark.parametrize("run_id", ["-x", "--by=boss"])
def test_commands_about_an_id_that_looks_like_an_option_can_be_given_as_they_are_printed(play, run_id):
    result = play(*AT, f"--run-id={run_id}", "--json", rules="{ask: 1}")
    commands = json.loads(result.stdout)["next"]
    assert len(commands) == 4
    for command in commands[:2]:
        given = shlex.split(command)
        assert given[:2] == ["policyengine", "runs"]
        assert CliRunner().invoke(cli, given[1:]).exit_code == 0, command


def test_a_run_of_another_version_can_be_looked_at_cancelled_and_forgotten(asking, runs):
    store = open_store("runs.db")
    state = store.read(lambda values: values.get(STATES, "night"))
    assert state is not None
    other = json.dumps({**json.loads(state), "version": 99}).encode()
    store.update(lambda values: values.put(STATES, "night", other))
    store.close()
    result = runs("show", "night")
    assert (result.exit_code, "problem the state of run 'night' cannot be read" in words(result)) == (0, True)
    assert runs("cancel", "night").exit_code == 0
    assert shown(runs, "night")["status"] == "cancelled"
    assert runs("forget", "night").exit_code == 0


def test_the_person_who_decides_sees_what_runs_and_that_the_model_wrote_something_else():
    calls = (ToolCall("c", "pay", '{"amount": 7}', {"amount": 7000}),)
    lines = [line for _, line in call_lines(asked_about(calls, StopReason("ask", "ask")), digests=False)]
    assert lines == ['pay {"amount": 7000}', 'the model wrote {"amount": 7}']


def test_a_journal_whose_last_line_was_cut_off_goes_on_in_a_new_line(asking, play, runs, run):
    assert play(*AT, "--run-id", "day", "--record", "day.jsonl", rules="{ask: 1}").exit_code == 7
    journal = Path("day.jsonl")
    journal.write_text(journal.read_text()[:-20])
    runs("approve", "day")
    assert runs("resume", "day", "--policy", "default", "--record", "day.jsonl").exit_code == 0
    lines = journal.read_text().splitlines()
    broken = [number for number, line in enumerate(lines, start=1) if not line.endswith("}")]
    assert len(broken) == 1
    result = run("replay", "day.jsonl", "--json")
    assert f"day.jsonl:{broken[0]}: cannot be read" in result.stderr
    assert json.loads(result.stdout)["outcome"] == "final_answer"


# ---- options


def test_options_of_the_run_are_kept_without_secrets(play, runs):
    play(*AT, "--run-id", "night", rules="{stop: 2}")
    origin = shown(runs, "night")["origin"]
    assert origin["policy"] == str(Path("demo.yaml").absolute())
    assert origin["script"] == str(Path("script.yaml").absolute())


@pytest.mark.parametrize(
    "place",
    [
        "redis://user:secret@host/0",
        "redis://:secret@host/0",
        "redis://host/0?password=secret",
        "rediss://host/0?prefix=a&password=secret",
        "unix:///path?db=0&password=secret",
    ],
)
def test_a_place_with_a_password_is_not_printed(place):
    assert shown_place(place) == f"{place.partition(':')[0]}://..."
    assert "secret" not in command_for("resume", "night", place)
    assert "secret" not in " ".join(next_commands(Head("night", task="t", task_digest="x"), place))


@pytest.mark.parametrize("place", ["redis://host/0?prefix=a", "unix:///path?db=0", "a@b.db", "sqlite:runs.db"])
def test_a_place_without_one_is(place):
    assert shown_place(place) == place


def test_the_version_of_an_interface_in_a_url_is_kept():
    url = "https://host/openai?api-version=2025-01-01"
    assert Made(model="azure:m", base_url=url).origin()["base_url"] == url


@pytest.mark.parametrize(
    "url",
    ["https://me:secret@host/v1", "https://secret@host/v1", "https://host/v1?api_key=secret", "https://host/v1#secret"],
)
def test_a_url_with_a_password_is_not_kept_and_has_to_be_given_again(url):
    origin = Made(model="openai:m", base_url=url, api_key_env="MY_KEY").origin()
    assert "secret" not in json.dumps(origin)
    assert origin["api_key_env"] == "MY_KEY"
    head = Head("night", origin=origin)
    with pytest.raises(UsageError, match="give --base-url again"):
        made_of(head, {})
    assert made_of(head, {"base_url": "https://other/v1"}).base_url == "https://other/v1"
    other = made_of(head, {"model": "anthropic:m", "stream": False})
    assert (other.base_url, other.api_key_env) == (None, None)


def test_options_given_to_resume_count_instead(asking, runs):
    runs("approve", "night")
    result = runs("resume", "night", "--policy", "default")
    assert result.exit_code == 0, result.output
    assert "answer Under the mat." in words(result)


def test_a_run_of_another_program_needs_to_be_told_its_model(run, runs):
    store = open_store("runs.db")
    Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("{hint: 2, deny: 3}", "{ask: 1}"))
    model = ScriptedModel(Script("t", (call("look"), say("done"))))
    Agent(Engine("demo.yaml", folders=["guards"]), model, model.tools(), store=store).run("t", run_id="theirs")
    store.close()
    result = runs("resume", "theirs")
    assert result.exit_code == 1
    assert "was begun by another program" in result.stderr


def test_equal_calls_get_their_next_results_in_another_process(run, runs):
    for protocol in ("native", "text"):
        Path("polls.yaml").write_text(POLLS)
        Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("{hint: 2, deny: 3}", "{ask: 1}"))
        options = ("-p", "demo.yaml", "--folder", "guards", "--script", "polls.yaml", "--protocol", protocol)
        assert run("run", *options, *AT, "--run-id", protocol).exit_code == 7
        told = ""
        for code in (7, 7, 0):
            runs("approve", protocol)
            result = runs("resume", protocol)
            assert result.exit_code == code, result.output
            told += words(result)
        assert re.findall(r"result (\w+)", told) == ["queued", "running", "done"]
        assert "answer It is done." in told


# ---- end them, forget them


def test_a_cancelled_run_has_ended_with_a_valid_history(asking, runs):
    assert runs("cancel", "night", "--why", "not needed").exit_code == 0
    found = shown(runs, "night")
    assert (found["status"], found["error"], found["asked"]) == ("cancelled", "not needed", None)
    assert found["messages"][-1]["role"] == "tool"
    assert check_history(json.loads(runs("export", "night").stdout)["messages"]) == ()
    assert runs("resume", "night").exit_code == 130
    assert runs("approve", "night").exit_code == 1
    assert "has ended already" in runs("cancel", "night").stderr
    assert "night.2" in runs("resume", "night", "--say", "Go on.", "--policy", "default").stdout


def test_runs_are_forgotten_one_by_one_or_by_age(asking, play, runs):
    play(*AT, "--run-id", "day", rules="{stop: 2}")
    assert runs("forget").exit_code == 1
    assert runs("forget", "--ended", "--before", "1d").stdout == ""
    assert runs("forget", "--ended").stdout == "forgotten: day\n"
    assert runs("forget", "--before", "0s").stdout == "forgotten: night\n"
    assert json.loads(runs("list", "--json").stdout)["runs"] == []
    assert runs("forget", "--before", "1y").exit_code == 1


# ---- take them along


def test_an_exported_run_is_a_recording(play, runs, run):
    play(*AT, "--run-id", "night", rules="{hint: 2}")
    Path("night.jsonl").write_text(runs("export", "night", "--label", "succeeded").stdout)
    report = json.loads(run("replay", "night.jsonl", "--json").stdout)
    assert (report["run"], report["calls"], report["label"], report["outcome"]) == ("night", 3, True, "final_answer")
    assert report["iterations"] == 4
    counted = json.loads(run("backtest", "night.jsonl", "--policy", "default", "--json").stdout)
    assert "night" not in json.dumps(counted.get("unreadable", ""))
    exported = json.loads(Path("night.jsonl").read_text())
    assert [message["role"] for message in exported["messages"] if message.get("injected")] == ["user", "user"]
    kept = json.loads(runs("export", "night", "--format", "messages").stdout)
    assert kept["messages"] == shown(runs, "night")["messages"]


# ---- a human at the terminal


def test_what_replay_cannot_read_says_what_it_can(play, runs, run):
    play(*AT, "--run-id", "night")
    Path("ours.jsonl").write_text(runs("export", "night", "--format", "messages").stdout)
    for verb in ("replay", "backtest"):
        result = run(verb, "ours.jsonl")
        assert "export the run as openai_chat" in " ".join(result.output.split())
        result = run(verb, "-")
        assert "not from standard input; write them to a file first" in " ".join(result.output.split())


def at_terminal(answer: str, *args: str, ahead: str = "") -> tuple[int, str]:
    """Give a command at a terminal, answer its first question, and return its exit code and what it showed.

    `ahead` is typed before the question is there.
    """
    ours, theirs = pty.openpty()
    where = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "policyengine", *args]
    process = subprocess.Popen(command, env=where, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    os.write(ours, ahead.encode())
    text, said = "", False
    while select.select([ours], [], [], 120)[0]:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        text += part.decode()
        if "[y/N]" in text and not said:
            said = True
            os.write(ours, answer.encode())
    os.close(ours)
    return process.wait(timeout=60), re.sub(r"\x1b\[[\d;]*m", "", text)


@pytest.mark.parametrize(("answer", "code", "told"), [("y\n", 0, "approved"), ("\n", 0, "refused"), ("\x04", 7, "")])
def test_at_a_terminal_a_human_is_asked_there(run, runs, answer, code, told):
    Path("script.yaml").write_text("task: Once.\nturns:\n  - calls: [{tool: job}]\n  - text: Done.\n")
    Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("{hint: 2, deny: 3}", "{ask: 1}"))
    options = ("-p", "demo.yaml", "--folder", "guards", "--script", "script.yaml", "--no-color")
    ended, text = at_terminal(answer, "run", *options, *AT, "--run-id", "night")
    assert ended == code, text
    assert "asks       counting, demo.yaml:7: counting (observed 1, limit 1)" in text
    assert "call       job {}" in text
    assert "Run it? [y/N]" in text
    assert f"human      {told}" in text or not told
    if code == 7:
        ended, text = at_terminal("y\n", "runs", "resume", "night", *AT)
        assert (ended, "Run it? [y/N]" in text) == (0, True)


def test_what_was_typed_before_the_question_is_no_answer_to_it(run):
    Path("script.yaml").write_text("task: Once.\nturns:\n  - calls: [{tool: job}]\n  - text: Done.\n")
    Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("{hint: 2, deny: 3}", "{ask: 1}"))
    _, text = at_terminal("\n", *PLAY, ahead="y\n")
    assert "human      refused" in text


def test_unattended_nobody_is_asked_at_a_terminal(run):
    Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("{hint: 2, deny: 3}", "{ask: 1}"))
    options = ("-p", "demo.yaml", "--folder", "guards", "--script", "script.yaml", "--unattended")
    ended, text = at_terminal("y\n", "run", *options)
    assert (ended, "[y/N]" in text) == (7, False)


# ---- a process that dies


def died(policy: str, runs: Callable[..., Result]) -> None:
    """Let a `run` process kill itself in its second call."""
    Path("demo_tools.py").write_text(DYING)
    Path("demo.yaml").write_text(policy)
    options = ("-p", "demo.yaml", "--folder", "guards", "--script", "script.yaml", "--tools", "demo_tools:look")
    done = shell("run", *options, *AT, "--run-id", "night")
    assert done.returncode == -signal.SIGKILL
    found = shown(runs, "night")
    assert (found["status"], found["phase"], found["worker"]) == ("running", "tools", "gone")
    assert found["next"] == ["policyengine runs resume night --store runs.db"]


def plain(tools: str = "") -> str:
    head = "apiVersion: policyengine/v1\nkind: Policy\nname: demo\n"
    return f"{head}{tools}extensions:\n  counting: {{use: demo.counting, with: {{stop: 50}}}}\n"


def test_a_killed_run_goes_on_and_repeats_what_only_reads(run, runs):
    died(plain("tools: {look: {effect: read}}\n"), runs)
    done = shell("runs", "resume", "night", *AT)
    assert done.returncode == 0, done.stderr
    assert Path("looked.txt").read_text().split() == ["drawer", "shelf", "shelf", "mat"]
    assert shown(runs, "night")["output"] == "Under the mat."


@pytest.mark.parametrize(
    ("verb", "looked"), [("approve", ["drawer", "shelf", "shelf", "mat"]), ("reject", ["drawer", "shelf", "mat"])]
)
def test_a_killed_run_asks_before_it_repeats_what_may_have_changed_something(run, runs, verb, looked):
    died(plain(), runs)
    text = words(runs("show", "night"))
    assert "1 of them begun and without a known end; phase tools\n" in text
    assert 'under way look {"place": "shelf"}\n no result yet; if its worker is gone, resume runs it again' in text
    (call,) = shown(runs, "night")["under_way"]
    assert (call["tool"], call["result"]) == ("look", "unknown")
    done = shell("runs", "resume", "night", *AT)
    assert done.returncode == 7, done.stderr
    assert "nobody knows what came of them (unknown_outcome)" in runs("show", "night").stdout
    assert runs(verb, "night").exit_code == 0
    done = shell("runs", "resume", "night", *AT)
    assert done.returncode == 0, done.stderr
    assert Path("looked.txt").read_text().split() == looked


def test_a_killed_run_can_be_cancelled_and_its_conversation_goes_on(run, runs):
    died(plain(), runs)
    assert runs("cancel", "night").exit_code == 0
    exported = json.loads(runs("export", "night").stdout)
    assert check_history(exported["messages"]) == ()
    assert "interrupted" in exported["messages"][-1]["content"]
    assert runs("resume", "night", "--say", "Look again.").exit_code == 0
    assert shown(runs, "night.2")["output"] == "Under the mat."


def test_a_run_that_somebody_works_on_is_nobody_elses(run, runs):
    Path("demo_tools.py").write_text("def look(place: str) -> str:\n    import sys\n    return sys.stdin.readline()\n")
    Path("demo.yaml").write_text(plain())
    options = ("-p", "demo.yaml", "--folder", "guards", "--script", "script.yaml", "--tools", "demo_tools:look")
    command = [sys.executable, "-m", "policyengine", "run", *options, *AT, "--run-id", "night"]
    where = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=where, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert any("call  " in line for line in process.stdout)  # kept before the call runs, shown before that
    try:
        while (found := json.loads(runs("list", "--json").stdout)["runs"][0])["phase"] != "tools":
            assert process.poll() is None
        assert found["worker"] == "alive"
        for verb in ("resume", "cancel", "forget"):
            result = runs(verb, "night")
            assert result.exit_code == 2, result.output
            assert "is being worked on" in result.stderr
        assert runs("forget", "--before", "0s").stdout == ""
    finally:
        process.communicate("a\nb\nc\n", timeout=60)
    assert process.returncode == 0


# ---- a scripted model in another process


def test_requests_count_whether_they_are_answered_or_fail():
    model = ScriptedModel(Script("t", (fail("overloaded"), call("look"), say("done"))))
    agent = Agent(make_engine({"recovery": {"use": "provider_recovery"}}), model, model.tools(), sleep=lambda _: None)
    loop = agent.start()
    assert agent.drive(loop, Begin("t")).status == "completed"
    assert loop.state.requests == 3


def test_a_script_goes_on_behind_the_turns_that_were_played():
    script = Script("t", (say("one"), say("two")))
    assert ScriptedModel(script, 1).complete(ModelRequest(())).text == "two"


def test_results_that_a_history_holds_are_not_given_again():
    script = Script(
        "t", (call("job", {"id": 7}, "queued"), call("job", {"id": 7}, "running"), call("job", {"id": 7}, "done"))
    )
    asked = Message("assistant", "", (ToolCall("a", "job", '{"id": 7}'), ToolCall("b", "job", '{"id": 7}')))
    refused = Message("tool", "refused", tool_call_id="a", origin="loop")
    history = (asked, refused, Message("tool", "queued", tool_call_id="b"))
    tools = ScriptedModel(script).tools(history)
    assert tools.get("job").function(id=7).text == "running"
    under_way = ScriptedModel(script).tools(
        (*history, asked), [ToolResult("a", "running"), ToolResult("b", "", "not_run")]
    )
    assert under_way.get("job").function(id=7).text == "done"
