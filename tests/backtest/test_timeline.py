"""Sample runs are found again, and every intervention stands where it happens."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.backtest import timeline as module
from policyengine.backtest import work
from policyengine.backtest.run import assigned, backtest
from policyengine.backtest.timeline import Gap, Timelines, Turn, timeline, timelines
from policyengine.engine import Engine
from policyengine.errors import UsageError
from policyengine.recordings.readers import read_recordings

POLICY = """\
apiVersion: policyengine/v1
kind: Policy
name: strict
extensions:
  stall_detector:
    with:
      repeat: {hint: 2, deny: 3, stop: 4}
"""


def chat(*calls: tuple[str, str, str], label: bool | None = None, **about: object) -> dict[str, object]:
    """Return a run: of every call its tool, one argument and the result."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "the task"}]
    for number, (tool, argument, result) in enumerate(calls):
        function = {"name": tool, "arguments": json.dumps({"q": argument})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": f"thought {number + 1}", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return {"messages": [*messages, {"role": "assistant", "content": "the end"}], "label": label, **about}


STUCK = chat(*[("look", "a", "nothing")] * 5, ("look", "b", "found"), label=True, id="stuck")


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("strict.yaml").write_text(POLICY)
    Path("runs").mkdir()

    def lines(*runs: dict[str, object], name: str = "runs/some.jsonl") -> None:
        Path(name).write_text("".join(json.dumps(run) + "\n" for run in runs))

    return lines


def again(policies=("strict.yaml",), **options) -> Timelines:
    """Return the timelines of a backtest of the folder `runs`."""
    sources = assigned(policies).policies
    return timelines(backtest(["runs"], sources), sources, ["runs"], **options)


def turns(found: Timelines, number: int = 0) -> list[Turn]:
    return [item for item in found.runs[number].items if isinstance(item, Turn)]


def test_an_intervention_stands_at_the_call_that_it_is_about(write):
    write(STUCK)
    found = again()
    marks = {turn.number: [mark.action for call in turn.calls for mark in call.asked] for turn in turns(found)}
    assert marks == {1: [], 2: ["hint"], 3: ["hint", "deny"], 4: ["stop"], 5: [], 6: [], 7: []}
    (stop,) = turns(found)[3].calls[0].asked
    assert (stop.rule, stop.code, stop.observed, stop.limit) == ("stall_detector", "repeat", 4, 4)
    assert "stopped" in stop.message


def test_what_follows_a_stop_is_marked_as_what_would_not_have_happened(write):
    write(STUCK)
    found = again()
    assert [turn.late for turn in turns(found)] == [False] * 4 + [True] * 3
    assert found.runs[0].stop is not None
    assert found.runs[0].stop.iteration == 4


def test_texts_calls_and_results_are_those_of_the_recording(write):
    write(STUCK)
    first = turns(again())[0]
    assert (first.heard, first.text) == (("the task",), "thought 1")
    (call,) = first.calls
    assert (call.number, call.name, call.arguments) == (1, "look", '{"q": "a"}')
    assert (call.status, call.result) == ("ok", "nothing")


def test_what_a_rule_says_of_a_round_stands_in_the_round(write):
    Path("strict.yaml").write_text(
        POLICY.partition("extensions")[0] + "extensions: {step_limit: {with: {max_steps: 2}}}"
    )
    write(STUCK)
    (marked,) = [turn for turn in turns(again()) if turn.before or turn.after]
    assert [mark.action for mark in marked.before + marked.after] == ["stop"]
    assert not any(call.asked or call.answered for turn in turns(again()) for call in turn.calls)


def test_what_a_rule_would_do_in_shadow_is_shown_as_a_wish(write):
    Path("strict.yaml").write_text(POLICY.replace("    with", "    mode: shadow\n    with"))
    write(STUCK)
    engine = Engine("strict.yaml")
    (recording,) = read_recordings(["runs"])
    shown = timeline(recording, engine, "strict")
    marks = [mark for item in shown.items if isinstance(item, Turn) for call in item.calls for mark in call.asked]
    assert marks
    assert {mark.mode for mark in marks} == {"shadow"}
    assert shown.stop is None


def test_a_response_that_cannot_be_acted_on_says_why(write):
    empty = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]}
    write(empty)
    (recording,) = read_recordings(["runs"])
    (turn,) = timeline(recording, Engine("default"), "default").items
    assert isinstance(turn, Turn)
    assert turn.unusable.startswith("empty")


def test_without_content_no_text_of_the_recording_is_kept(write):
    write(chat(*[("secret_tool", "secret-argument", "secret-result")] * 5, label=False, id="r1"))
    kept = msgspec.json.encode(again(content=False)).decode()
    for text in ("secret", "thought", "the task", "the end"):
        assert text not in kept
    assert '"deny"' in kept
    assert "secret-result" in msgspec.json.encode(again()).decode()


@given(text=st.text(), most=st.integers(1, 50), left=st.integers(-100, 200))
def test_a_text_is_cut_to_its_beginning_and_its_end(text, most, left):
    texts = module._Texts(True)
    texts._left = left
    cut = texts.cut(text, most)
    assert len(cut) <= most + len(f" [... {len(text)} characters left out ...] ")
    assert cut == text or (cut[: most // 2] == text[: most // 2] and cut[-1] == text[-1])


def test_a_long_run_is_bounded_and_its_gaps_say_what_is_missing(write):
    calls = [("look", str(number) if number % 40 else "same", "x" * 5_000) for number in range(400)]
    write(chat(*calls, label=False, id="long"))
    (recording,) = read_recordings(["runs"])
    shown = timeline(recording, Engine("strict.yaml"), "strict")
    numbers = []
    for item in shown.items:
        numbers += range(item.first, item.last + 1) if isinstance(item, Gap) else [item.number]
    assert numbers == list(range(1, 402))
    assert sum(isinstance(item, Turn) for item in shown.items) <= module.MOST_TURNS
    assert shown.stop is not None
    assert shown.stop.iteration in [item.number for item in shown.items if isinstance(item, Turn)]
    assert len(msgspec.json.encode(shown)) < 2 * module.RUN_CHARACTERS


def test_calls_beyond_the_most_are_counted(write):
    several = chat(("look", "a", "b"), label=False)
    call = several["messages"][1]["tool_calls"][0]
    several["messages"][1]["tool_calls"] = [call | {"id": f"c{number}"} for number in range(30)]
    write(several)
    (recording,) = read_recordings(["runs"])
    turn = timeline(recording, Engine("strict.yaml"), "strict").items[0]
    assert isinstance(turn, Turn)
    assert (len(turn.calls), turn.more_calls) == (module.MOST_CALLS, 10)


def test_a_run_in_the_middle_of_a_large_file_is_found_by_its_part(write, monkeypatch):
    quiet = [chat(("look", "a", "nothing"), id=f"r{number}") for number in range(20)]
    write(*quiet[:9], STUCK, *quiet[9:])
    monkeypatch.setattr(work, "PART_BYTES", 1_000)
    read = []
    real = module.read_file
    monkeypatch.setattr(module, "read_file", lambda *args, **named: read.append(args[2]) or real(*args, **named))
    (shown,) = again().runs
    assert (shown.run, shown.line) == ("stuck", 10)
    assert [part is not None and part.line <= 10 for part in read] == [True]


def test_a_run_that_is_no_longer_there_is_counted(write):
    write(STUCK)
    sources = assigned(["strict.yaml"]).policies
    report = backtest(["runs"], sources)
    Path("runs/some.jsonl").unlink()
    assert timelines(report, sources, ["runs"]) == Timelines((), 1, True)


def test_a_policy_that_has_changed_since_is_not_shown_as_what_was_judged(write):
    write(STUCK)
    report = backtest(["runs"], ["strict.yaml"])
    Path("strict.yaml").write_text(POLICY.replace("stop: 4", "stop: 5"))
    with pytest.raises(UsageError, match="was changed"):
        timelines(report, assigned(["strict.yaml"]).policies, ["runs"])


def test_runs_that_say_most_against_a_policy_come_first_and_policies_take_turns(write, monkeypatch):
    failed = [chat(*[("look", "a", "nothing")] * 9, label=False, id=f"f{number}") for number in range(8)]
    write(*failed, STUCK)
    Path("other.yaml").write_text(POLICY.replace("strict", "other"))
    found = again(["strict.yaml", "other.yaml"])
    assert [(run.policy, run.kinds[0]) for run in found.runs if "stopped_working" in run.kinds] == [
        ("strict", "stopped_working"),
        ("other", "stopped_working"),
    ]
    assert found.runs[0].run == "stuck"
    monkeypatch.setattr(module, "MOST_RUNS", 2)
    assert [(run.policy, run.run) for run in again(["strict.yaml", "other.yaml"]).runs] == [
        ("strict", "stuck"),
        ("other", "stuck"),
    ]
