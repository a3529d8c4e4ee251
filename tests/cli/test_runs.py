"""`policyengine runs diff`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policyengine import Agent, Engine, Script, call, say
from policyengine.loop.advance import advance
from policyengine.loop.state import Begin, Responded, ToolsDone
from policyengine.providers.scripted import ScriptedModel
from policyengine.recordings.compare import compare_runs, shape_of
from policyengine.telemetry.journal import JournalWriter

STEPS = (
    call("look", {"place": "drawer"}, '{"found": false, "took_ms": 12}'),
    call("look", {"place": "shelf"}, "dust"),
    say("Under the mat."),
)


def record(path: str, *turns: Any, task: str = "Find the key.", system: str = "", policy: str = "demo.yaml") -> None:
    """Let a scripted agent work and write its journal, after whatever the file already holds."""
    script = Script(task, turns or STEPS)
    model = ScriptedModel(script)
    with Path(path).open("a", encoding="utf-8") as file:
        engine = Engine(policy, folders=["guards"], journal=JournalWriter(file))
        Agent(engine, model, model.tools(), system=system).run(task)


def edited(source: str, target: str, kind: str, change: Callable[[dict[str, Any]], None], nth: int = 1) -> None:
    """Write a journal again with its n-th line of a kind changed."""
    lines = [json.loads(line) for line in Path(source).read_text().splitlines()]
    change([line for line in lines if line["type"] == kind][nth - 1])
    Path(target).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def diff(run):
    """Compare `a.jsonl`, a recorded run, with another journal."""
    record("a.jsonl")

    def invoke(other: str = "b.jsonl", *args: str):
        return run("runs", "diff", "a.jsonl", other, *args)

    return invoke


def found(result) -> dict[str, Any]:
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


def differing(shown: dict[str, Any]) -> list[str]:
    return [field["name"] for field in shown["fields"] if not field["same"]]


def test_two_runs_of_one_script_are_equal_though_ids_and_times_differ(diff):
    record("b.jsonl")
    assert Path("a.jsonl").read_text() != Path("b.jsonl").read_text()
    result = diff()
    assert result.exit_code == 0
    assert result.stdout.startswith("equal: ")
    shown = found(diff("b.jsonl", "--json"))
    assert (shown["equal"], shown["event"], shown["fields"]) == (True, None, [])
    assert shown["last_equal"] == {"event": "end", "iteration": 3}


def test_exact_counts_what_changes_from_run_to_run(diff):
    record("b.jsonl")
    shown = found(diff("b.jsonl", "--json", "--exact"))
    assert (shown["equal"], shown["event"], shown["events_equal"]) == (False, "setup", 0)
    assert differing(shown) == ["run", "payload"]  # the payload names the conversation
    assert diff("a.jsonl", "--exact").exit_code == 0


@pytest.mark.parametrize(
    ("turns", "event", "round_", "fields"),
    [
        ((STEPS[0], call("look", {"place": "mat"}, "a key"), STEPS[2]), "response", 2, ["calls"]),
        ((STEPS[0], call("lift", {"place": "shelf"}, "dust"), STEPS[2]), "request", 1, ["tools"]),
        ((call("look", {"place": "drawer"}, '{"found": []}'), *STEPS[1:]), "result", 1, ["shape", "text"]),
        ((STEPS[0], call("look", {"place": "shelf"}, "dust", exit_code=1), STEPS[2]), "result", 2, ["exit_code"]),
        ((*STEPS[:2], say("On the roof.")), "response", 3, ["text"]),
    ],
)
def test_the_first_difference_is_named_with_its_round(diff, turns, event, round_, fields):
    record("b.jsonl", *turns)
    shown = found(diff("b.jsonl", "--json"))
    assert (shown["event"], shown["iteration"], differing(shown)) == (event, round_, fields)
    assert diff().exit_code == 1


def test_both_sides_stand_beside_each_other_with_the_result_before(diff):
    record("b.jsonl", STEPS[0], call("look", {"place": "mat"}, "a key"), STEPS[2])
    text = diff().stdout
    assert text.startswith("different in round 2: response (calls)\n")
    row = next(line for line in text.splitlines() if " calls " in line)
    assert row.startswith("*")
    assert row.index("shelf") < row.index("mat")
    assert "the same before it: " in text
    assert "the result before it (round 1" in text
    assert text.count("object {found, took_ms}") == 2


def test_the_result_before_shows_what_was_masked(diff):
    turns = (call("look", {"place": "drawer"}, '{"found": false, "took_ms": 345}'), say("Nowhere."))
    record("b.jsonl", *turns)
    shown = found(diff("b.jsonl", "--json"))
    assert (shown["event"], shown["iteration"]) == ("response", 2)
    assert [shown[side]["previous_result"]["text"] for side in "ab"] == [
        '{"found": false, "took_ms": 12}',
        '{"found": false, "took_ms": 345}',
    ]
    assert "\n~  text" in diff().stdout


def test_another_policy_differs_at_its_first_other_decision(diff):
    Path("strict.yaml").write_text(Path("demo.yaml").read_text().replace("{hint: 2, deny: 3}", "{deny: 2}"))
    record("b.jsonl", policy="strict.yaml")
    shown = found(diff("b.jsonl", "--json"))
    assert (shown["event"], shown["iteration"]) == ("decision", 2)
    assert shown["at"] == 'call: look {"place": "shelf"}'
    assert {"action", "code", "rule"} <= set(differing(shown))


def test_a_stop_is_told_by_its_reason(run):
    Path("stop.yaml").write_text(Path("demo.yaml").read_text().replace("{hint: 2, deny: 3}", "{stop: 1}"))
    record("a2.jsonl", policy="stop.yaml")
    edited("a2.jsonl", "b.jsonl", "stopped", lambda line: line["payload"]["reason"].update(code="other", at="x.yaml:1"))
    shown = found(run("runs", "diff", "a2.jsonl", "b.jsonl", "--json"))
    assert (shown["event"], differing(shown)) == ("stop", ["code"])


@pytest.mark.parametrize(
    ("kind", "change", "event", "fields"),
    [
        ("start", lambda line: line["payload"].update(task="Other"), "task", ["task"]),
        ("run", lambda line: line["payload"].update(protocol="text"), "setup", ["protocol"]),
        ("after_parse", lambda line: line["payload"]["verdict"].update(kind="prose"), "parse", ["kind"]),
        ("before_tool_call", lambda line: line["payload"]["call"].update(args={"place": 1}), "call", ["arguments"]),
        ("before_tool_call", lambda line: line["payload"]["call"].update(name="peek"), "call", ["tool"]),
        ("after_tool_call", lambda line: line["payload"]["result"].update(status="timeout"), "result", ["status"]),
        ("after_tool_call", lambda line: line["decision"].update(message="x"), "decision", ["message"]),
        ("end", lambda line: line["payload"]["outcome"].update(status="failed"), "end", ["status"]),
        ("after_model_response", lambda line: line["payload"]["response"].update(model="x"), "response", ["model"]),
    ],
)
def test_every_kind_of_event_is_compared(diff, kind, change, event, fields):
    edited("a.jsonl", "b.jsonl", kind, change)
    shown = found(diff("b.jsonl", "--json"))
    assert (shown["event"], differing(shown)) == (event, fields)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("run", lambda line: line["payload"].update(conversation="c-9")),
        ("before_tool_call", lambda line: line["payload"]["call"].update(id="call_8f2")),
        ("before_tool_call", lambda line: line["payload"]["batch"].update(id="batch-77")),
        ("before_tool_call", lambda line: line["payload"]["call"].update(args=None, arguments=' {"place":"drawer"}')),
        ("after_tool_call", lambda line: line["payload"]["result"].update(duration_s=3.5)),
        ("after_tool_call", lambda line: line["payload"]["result"].update(text='{"found": false, "took_ms": 9}')),
        ("after_tool_call", lambda line: line.update(now=77.5, faults={"before_tool_call/x": "timeout"})),
        ("after_tool_call", lambda line: line["decision"].update(wanted={"shadow": ["deny:x"]})),
        ("after_model_response", lambda line: line["payload"]["response"].update(usage={"prompt_tokens": 9}, raw={})),
    ],
)
def test_what_is_volatile_does_not_count(diff, kind, change):
    edited("a.jsonl", "b.jsonl", kind, change)
    assert diff().exit_code == 0
    assert diff("b.jsonl", "--exact").exit_code == 1


def test_what_a_rule_observes_in_seconds_is_volatile_and_a_count_is_not(diff):
    edited("a.jsonl", "b.jsonl", "end_iteration", lambda line: line["decision"].update(observed=3.25, limit=3))
    edited("a.jsonl", "c.jsonl", "end_iteration", lambda line: line["decision"].update(observed=3.5, limit=3))
    edited("a.jsonl", "d.jsonl", "end_iteration", lambda line: line["decision"].update(observed=4, limit=3))
    edited("a.jsonl", "e.jsonl", "end_iteration", lambda line: line["decision"].update(observed=5, limit=3))
    assert compare_runs(Path("b.jsonl"), Path("c.jsonl")).difference is None
    assert compare_runs(Path("d.jsonl"), Path("e.jsonl")).difference.event == "decision"


def test_another_system_prompt_is_a_difference_of_the_first_request(diff):
    record("b.jsonl", system="Be brief.")
    shown = found(diff("b.jsonl", "--json"))
    assert (shown["event"], shown["iteration"], differing(shown)) == ("request", 1, ["message 1"])


def test_other_events_and_an_end_are_differences(diff):
    lines = Path("a.jsonl").read_text().splitlines(keepends=True)
    Path("b.jsonl").write_text("".join(line for line in lines if '"type":"after_parse"' not in line))
    shown = found(diff("b.jsonl", "--json"))
    assert (shown["event"], shown["iteration"]) == ("next event", 1)
    assert shown["fields"][0]["a"] == "parse: ok"
    Path("b.jsonl").write_text("".join(lines[:-1]))
    shown = found(diff("b.jsonl", "--json"))
    assert (shown["event"], shown["b"]["line"]) == ("length", None)
    assert "nothing: the journal ends here" in diff().stdout


def test_a_run_of_several_is_chosen(diff, run):
    record("b.jsonl", STEPS[1], STEPS[2])
    record("b.jsonl")
    result = diff()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "b.jsonl holds 2 runs (" in result.stderr
    assert "choose one with --run" in result.stderr
    assert diff("b.jsonl", "--run", "1", "--run", "2").exit_code == 0
    assert diff("b.jsonl", "--run", "1", "--run", "1").exit_code == 1
    ids = list(dict.fromkeys(json.loads(line)["run"] for line in Path("b.jsonl").read_text().splitlines()))
    assert run("runs", "diff", "b.jsonl", "b.jsonl", "--run", ids[0], "--run", ids[1][:12]).exit_code == 1
    assert "has no run 'nowhere'" in diff("b.jsonl", "--run", "1", "--run", "nowhere").stderr
    assert diff("b.jsonl", *["--run", "1"] * 3).exit_code == 2


def test_a_run_among_others_is_compared_as_if_it_were_alone(diff):
    first = Path("a.jsonl").read_text().splitlines(keepends=True)
    record("other.jsonl", STEPS[1], STEPS[2])
    second = Path("other.jsonl").read_text().splitlines(keepends=True)
    mixed = [line for pair in zip(first, second, strict=False) for line in pair] + first[len(second) :]
    Path("b.jsonl").write_text("".join(mixed))
    assert diff("b.jsonl", "--run", "1").exit_code == 0


def test_the_rest_is_not_read_after_the_first_difference(diff):
    edited("a.jsonl", "b.jsonl", "start", lambda line: line["payload"].update(task="Other"))
    Path("b.jsonl").write_text(Path("b.jsonl").read_text() + "no JSON\n")
    assert diff().exit_code == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("[1, 2]\n", "not a journal"),
        ('{"role": "user", "content": "x"}\n', "not a journal"),
        ('{"v": 1, "type": "run", "run": "r", "pay', "not a journal"),
        ('{"v": 9, "type": "run", "run": "r", "payload": {}}\n', "b.jsonl:1: journal version 9"),
        ('{"v": 1, "type": "jump", "run": "r", "payload": {}}\n', "b.jsonl:1: unknown type 'jump'"),
        ('{"v": 1, "type": "start", "run": "r", "payload": {"lost": "TypeError"}}\n', "the payload was not recorded"),
        ('{"v": 1, "type": "start", "run": "r", "payload": {}}\n', "start lacks 'task'"),
        ('{"v": 1, "type": "start", "run": "r", "payload": {"task": 7}}\n', "start: Expected `str`"),
        ('{"v": 1, "type": "resume", "run": "r", "payload": {"saved": "?"}}\n', "the saved run cannot be read"),
        (
            '{"v": 1, "type": "before_model_call", "run": "r", "payload": {"request": {"kept": 5, "messages": []}}}\n',
            "the request keeps 5 messages of 0",
        ),
    ],
)
def test_what_is_no_journal_cannot_be_compared(diff, text, reason):
    Path("b.jsonl").write_text(text)
    result = diff()
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr


def test_hostile_depth_is_refused(diff):
    deep = '{"v": 1, "type": "add_warning", "run": "r", "payload": {"kind": "x", "data": {"a": ' + "[" * 100_000
    Path("b.jsonl").write_text(deep + "]" * 100_000 + "}}}\n")
    assert (diff().exit_code, diff().stdout) == (2, "")


def test_a_journal_that_was_cut_off_says_where_and_what_was_equal_before(diff):
    data = Path("a.jsonl").read_bytes()
    Path("b.jsonl").write_bytes(data[:-40])
    result = diff()
    assert result.exit_code == 2
    count = len(data.splitlines())
    assert f"b.jsonl:{count}: the line is cut off" in result.stderr
    assert f"before that, {count - 1} events were the same" in result.stderr


def test_what_cannot_be_opened_is_told(diff, tmp_path):
    assert "no.jsonl: No such file or directory" in diff("no.jsonl").stderr
    result = diff(str(tmp_path))
    assert result.exit_code == 2
    assert "not a regular file" in result.stderr


def test_a_wrong_option_is_not_mistaken_for_a_difference(diff):
    result = diff("a.jsonl", "--exat")
    assert result.exit_code == 2
    assert "--exact" in result.stderr


def test_long_values_are_shown_around_what_differs_and_whole_on_request(run):
    long = "x" * 300
    record("b.jsonl", call("look", {"place": "drawer"}, long + "one" + long), say("y"))
    record("c.jsonl", call("look", {"place": "drawer"}, long + "two" + long), say("y"))
    shown = run("runs", "diff", "b.jsonl", "c.jsonl").stdout
    row = next(line for line in shown.splitlines() if line.startswith("*"))
    assert row.split()[1:] == ["text", f"...{'x' * 24}one{'x' * 45}...", f"...{'x' * 24}two{'x' * 45}..."]
    whole = run("runs", "diff", "b.jsonl", "c.jsonl", "--full").stdout
    assert whole.count("x") > 1200


def test_a_terminal_obeys_nothing_that_a_journal_says(diff):
    edited("a.jsonl", "b.jsonl", "start", lambda line: line["payload"].update(task="\x1b[2Jgone"))
    assert "\x1b[2J" not in diff().stdout
    assert "\\x1b[2Jgone" in diff().stdout


def test_a_resumed_run_equals_one_that_was_not_interrupted(diff):
    """The second part of a journal lists the whole history anew; that is no difference."""
    model = ScriptedModel(Script("Find the key.", STEPS))
    with Path("b.jsonl").open("w", encoding="utf-8") as file:
        engine = Engine("demo.yaml", folders=["guards"], journal=JournalWriter(file))
        agent = Agent(engine, model, model.tools())
        loop = agent.start()
        effect = advance(loop, Begin("Find the key."))
        effect = advance(loop, Responded(model.complete(effect.request)))
        done = []
        agent._run_jobs(loop, effect.jobs, done, lambda result: result)
        saved = agent.save(loop)
        engine.journal = JournalWriter(file)
        again = agent.resume(saved)
        agent.drive(again, ToolsDone(tuple(done)))
    assert '"type":"resume"' in Path("b.jsonl").read_text()
    assert diff().exit_code == 0, diff().stdout


def test_the_shape_of_a_result_is_told_in_words():
    assert shape_of("") == "nothing"
    assert shape_of("a, b") == "text"
    assert shape_of("[not JSON") == "text"
    assert shape_of('{"a": 1, "b": [2]}') == "object {a, b}"
    assert shape_of('[{"a": 1}, {"a": 2}]') == "list of 2 x object {a}"
    assert shape_of('[1, "x"]') == "list of 2"
    assert shape_of("[]") == "empty list"
