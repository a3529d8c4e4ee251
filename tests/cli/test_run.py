"""`policyengine run`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from policyengine.cli.run import Paced, as_protocol
from policyengine.messages import ModelRequest
from policyengine.providers.scripted import ScriptedModel, load_script
from policyengine.script import Script, say


def shown(result) -> str:
    """Return what was printed, runs of blanks as one."""
    return re.sub(" +", " ", result.stdout)


def test_it_needs_no_options_and_shows_the_guards_at_work(run):
    result = run("run")
    assert result.exit_code == 0
    assert "Find out why the nightly build fails" in result.stdout
    assert "stall_detector, policy:default:" in result.stdout
    assert result.stdout.count("  completed ") == 1
    assert result.stderr == ""


def test_a_task_replaces_that_of_the_script(play):
    assert "task Something else." in shown(play("Something else."))


def test_the_account_tells_what_happened_and_why(play):
    account = shown(play())
    assert 'call look {"place": "drawer"}\n result nothing' in account
    assert "hint counting, demo.yaml:7: counting (observed 2, limit 2)\n counting.hint for look" in account
    assert "deny counting, demo.yaml:7: counting (observed 3, limit 3)\n counting.deny for look" in account
    assert "result refused" in account
    assert "answer Under the mat." in account


def test_a_run_stopped_by_a_guard_exits_with_6(play):
    result = play(rules="{stop: 2}")
    assert result.exit_code == 6
    assert "stopped 2 rounds, 2 calls (1 run), 0 interventions" in shown(result)
    assert "by counting, demo.yaml:7: counting (observed 2, limit 2)" in shown(result)


def test_a_run_that_waits_for_a_human_exits_with_7(play):
    result = play(rules="{ask: 1}")
    assert result.exit_code == 7
    assert "waiting" in result.stdout


def test_json_is_one_object_and_nothing_else_on_stdout(play):
    result = play("--json")
    outcome = json.loads(result.stdout)
    assert (outcome["status"], outcome["output"], outcome["stop"]) == ("completed", "Under the mat.", None)
    assert (outcome["iterations"], outcome["calls"], outcome["executed"], outcome["interventions"]) == (4, 3, 2, 2)
    assert outcome["policy"]["name"] == "demo"
    assert "Under the mat." in result.stderr


def test_json_of_a_stopped_run_says_why(play):
    stop = json.loads(play("--json", rules="{stop: 2}").stdout)["stop"]
    expected = {"code": "counting", "rule": "counting", "at": "demo.yaml:7", "observed": 2, "limit": 2, "call": 2}
    assert {name: stop[name] for name in expected} == expected


def test_the_async_driver_gives_the_same_account(play):
    assert play("--async").stdout == play().stdout


def test_the_text_protocol_plays_the_same_script(play):
    result = play("--protocol", "text")
    assert result.exit_code == 0
    assert "unusable" not in result.stdout
    assert "answer Under the mat." in shown(result)


def test_python_tools_replace_the_scripted_ones(play):
    assert "result really looked at drawer" in shown(play("--tools", "demo_tools:TOOLS"))


def test_the_log_is_appended_and_the_journal_is_new(play):
    for _ in range(2):
        assert play("--log", "log.jsonl", "--record", "journal.jsonl").exit_code == 0
    log = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    journal = [json.loads(line) for line in Path("journal.jsonl").read_text().splitlines()]
    assert len({line["run_id"] for line in log if line["run_id"]}) == 2
    assert len({line["run"] for line in journal}) == 1
    assert [line["code"] for line in log if line["type"] == "reload"] == ["policy_loaded"] * 2


def test_a_journal_is_not_overwritten_for_a_run_that_cannot_begin(play):
    Path("journal.jsonl").write_text("precious\n")
    assert play("--record", "journal.jsonl", rules="{hint: 0}").exit_code == 1
    assert Path("journal.jsonl").read_text() == "precious\n"


def test_a_policy_error_is_shown_in_full_and_exits_with_1(play):
    result = play(rules="{hnit: 2}")
    assert result.exit_code == 1
    assert "demo.yaml:9:12: error[S204] extensions.counting.with.hnit: unknown setting" in result.stderr
    assert "    9 |     with: {hnit: 2}\n      |            ^^^^" in result.stderr
    assert 'did you mean "hint"?' in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "scriptd"), "no model named 'scriptd'; did you mean \"scripted\"?"),
        (("--script", "loop"), "no script named 'loop'"),
        (("--tools", "demo_tools"), "module:object"),
        (("--tools", "no_such_module:x"), "cannot import 'no_such_module'"),
        (("--log", "nowhere/log.jsonl"), "cannot write nowhere/log.jsonl"),
        (("--policy", "defualt"), 'did you mean "default"?'),
        (("--folder", "nowhere"), "nowhere"),
        (("--delay", "3"), "a number with a unit"),
        (("--watch",), "nothing to watch"),
    ],
)
def test_an_option_at_fault_is_one_readable_message(run, options, said):
    result = run("run", *options)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_colours_only_where_there_is_a_terminal(play):
    assert "\x1b" not in play().stdout


def test_a_paced_model_waits_before_it_answers():
    waited: list[float] = []
    model = Paced(ScriptedModel(Script("t", (say("done"),))), 0.2, waited.append)
    assert model.complete(ModelRequest(())).text == "done"
    assert waited == [0.2]


def test_a_native_script_becomes_one_call_at_a_time_in_the_text_protocol():
    script = load_script("recovers")
    spoken = as_protocol(script, "text")
    assert all(len(turn.calls) <= 1 for turn in spoken.turns)
    assert sum(len(turn.calls) for turn in spoken.turns) == sum(len(turn.calls) for turn in script.turns)
    assert as_protocol(script, "auto") is script


def test_a_policy_edited_while_the_run_goes_on_is_taken_between_rounds(play):
    # The tools edit the policy and wait until the engine has told of it, so that nothing depends on time.
    Path("demo_tools.py").write_text(
        "import json, pathlib, time\n"
        "def look(place: str) -> str:\n"
        "    if place == 'drawer':\n"
        "        policy = pathlib.Path('demo.yaml')\n"
        "        policy.write_text(policy.read_text().replace('{stop: 50}', '{stop: 2}'))\n"
        "        log = pathlib.Path('log.jsonl')\n"
        "        end = time.monotonic() + 60\n"
        "        while '\"generation\":2' not in log.read_text() and time.monotonic() < end:\n"
        "            pass\n"
        "    return place\n"
    )
    result = play("--watch", "--log", "log.jsonl", "--tools", "demo_tools:look", rules="{stop: 50}")
    assert result.exit_code == 6
    assert "reload demo revision 7, 1 rule, generation 2" in shown(result)
    assert "extensions.counting.with.stop: 50 -> 2" in shown(result)


def test_a_policy_file_given_as_the_task_is_a_mistake_not_a_task(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("apiVersion: policyengine/v1\nkind: Policy\nname: mine\nextensions: {}\n")
    result = run("run", "mine.yaml")
    assert result.exit_code == 1
    assert "--policy mine.yaml" in result.stderr
