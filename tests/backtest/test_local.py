"""Work on this machine: the result does not depend on who did which part, when, or how often somebody died."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.backtest import merge
from policyengine.backtest.facts import RuleFacts, RunFacts, digest
from policyengine.backtest.judge import MOST_ERRORS, Assignment, Judged, PolicySource
from policyengine.backtest.run import backtest
from policyengine.backtest.tally import Groups, Key, Sample, Tally, Transition, merge_transitions
from policyengine.backtest.work import plan
from policyengine.errors import UsageError
from policyengine.recordings.model import Unreadable

POLICIES = {"policies": ["default", "cautious"], "baseline": "unattended", "by_task": True}


def test_any_number_of_processes_gives_the_result_of_one(runs, figures, small_units):
    alone = backtest([runs], **POLICIES)
    assert len(plan([runs])[0]) > 12
    assert alone.runs == 92
    assert alone.read_error_count == 2
    assert figures(backtest([runs], workers=2, **POLICIES)) == figures(alone)
    assert figures(backtest([runs], workers=3, **POLICIES)) == figures(alone)


def test_how_the_input_is_cut_makes_no_difference(runs, figures, monkeypatch):
    whole = figures(backtest([runs], **POLICIES))
    for size in (1, 3_000, 50_000):
        monkeypatch.setattr("policyengine.backtest.work.PART_BYTES", size)
        monkeypatch.setattr("policyengine.backtest.work.BATCH_BYTES", size)
        assert figures(backtest([runs], **POLICIES)) == whole


@pytest.mark.parametrize(
    "asked",
    [
        {"policies": ["default"], "baseline": "default"},
        {"policies": ["default"], "baseline": "default", "overlays": ["overlay.yaml"]},
        {"policies": ["cautious", "cautious"]},
        {"policies": [PolicySource("mine", "default"), PolicySource("mine", "cautious")]},
        {"policies": [PolicySource("default", "cautious")], "baseline": "default"},
    ],
)
def test_two_policies_of_one_name_are_refused_before_anything_is_read(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("overlay.yaml").write_text("apiVersion: policyengine/v1\nkind: Overlay\ntarget: default\nkill_switch: true\n")
    with pytest.raises(UsageError, match=r"two policies are called \w+; give each a file with a name of its own"):
        backtest([tmp_path / "none"], **asked)


def test_a_unit_whose_worker_was_killed_is_done_again(runs, mortal, figures, small_units, tmp_path):
    mark = tmp_path / "mark"
    file = mortal(tmp_path / "mortal.json", str(mark))
    mark.touch()
    undisturbed = figures(backtest([runs, file]))
    mark.unlink()
    assert figures(backtest([runs, file], workers=2)) == undisturbed
    assert mark.exists()


def test_a_unit_that_always_kills_its_worker_is_named(runs, mortal, small_units, tmp_path):
    file = mortal(tmp_path / "deadly.json", "")
    with pytest.raises(UsageError, match=r"deadly\.json died 3 times; it may need more memory"):
        backtest([file, runs], workers=2)
    assert multiprocessing.active_children() == []


def test_an_error_of_a_worker_is_that_of_the_backtest(runs, small_units, tmp_path):
    policy = tmp_path / "mine.yaml"
    policy.write_text("apiVersion: policyengine/v1\nkind: Policy\nname: mine\n", encoding="utf-8")
    source = PolicySource("mine", str(policy), digest="another")
    with pytest.raises(UsageError, match="the policy mine was changed while the backtest was running"):
        backtest([runs], [source], workers=2)


PROGRAM = """
    import sys
    from policyengine.backtest import work
    from policyengine.backtest.run import backtest

    if __name__ == "__main__":
        work.PART_BYTES = work.BATCH_BYTES = 2_000
        backtest.__globals__["INLINE_BYTES"] = 0
        print("begun", flush=True)

        def told(done, whole):
            if done:
                print(f"done {done}", flush=True)
                sys.stdin.read(1)

        backtest([sys.argv[1]], workers=2, progress=told)
"""


def program(folder, runs):
    file = folder / "program.py"
    file.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, str(file), str(runs)], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are looked for in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_or_killed_in_the_middle_it_leaves_no_process_behind(runs, tmp_path, how):
    process = program(tmp_path, runs)
    assert process.stdout.readline() == b"begun\n"
    assert process.stdout.readline().startswith(b"done ")
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: every process of the group
    else:
        process.kill()
    _, errors = process.communicate(timeout=60)  # ends when the last process that has the pipes has ended
    # Where it is interrupted is up to chance, and so is how many tracebacks tell of it; its workers tell nothing.
    assert process.returncode != 0
    assert b"SpawnProcess" not in errors
    if how == signal.SIGINT:
        assert b"KeyboardInterrupt" in errors


# ---- sums


numbers = st.integers(0, 9)
rules = st.sampled_from(["stall_detector", "step_limit", "tool_failures"])


@st.composite
def facts(draw):
    turns = draw(st.integers(0, 120))
    stop = draw(st.none() | st.integers(1, max(1, turns))) if turns else None
    usage = draw(st.booleans())
    listed = draw(st.dictionaries(rules, st.tuples(numbers, numbers, numbers), max_size=3))
    return RunFacts(
        label=draw(st.sampled_from([True, False, None])),
        turns=turns,
        calls=draw(numbers),
        strongest="stop" if stop else draw(st.sampled_from(["nothing", "hint", "deny"])),
        stop_turn=stop,
        stop_rule=draw(rules) if stop else "",
        saved=turns - stop if stop else 0,
        working=draw(st.booleans()),
        denied_succeeded=draw(numbers),
        recovered=draw(numbers),
        tokens=draw(numbers) if usage else None,
        tokens_saved=draw(numbers) if usage else None,
        nano=draw(numbers) if usage else None,
        nano_saved=draw(numbers) if usage else None,
        rules=tuple(RuleFacts(name, *counts) for name, counts in sorted(listed.items())),
    )


keys = st.builds(Key, st.sampled_from("ab"), st.sampled_from("mn"), st.sampled_from(["", "t"]))
judged_runs = st.lists(st.tuples(keys, facts()), max_size=12)

ASSIGNMENT = Assignment((PolicySource("p", "p"),))


def unit_of(number, listed):
    """What came of a unit with these runs, each with its place in the whole input."""
    judged = Judged(number, len(listed), groups=[Groups()])
    for place, (key, run) in listed:
        sample = Sample(digest((str(place),)), f"run {place}", "file", place, run.stop_turn or 0, run.stop_rule)
        judged.groups[0].of(key).add(run, sample)
    return judged


def report_of(units):
    merged = merge.empty(ASSIGNMENT)
    for judged in units:
        merged.add(judged)
    return merge.report(merged, ASSIGNMENT, 0.0)


def tally_of(listed):
    return unit_of(0, listed).groups[0].total()


def copy(tally):
    return msgspec.json.decode(msgspec.json.encode(tally), type=Tally)


@given(judged_runs, st.lists(st.integers(0, 4), min_size=12, max_size=12), st.randoms(use_true_random=False))
def test_runs_shared_out_in_any_way_and_order_give_one_report(listed, shares, drawn):
    placed = list(enumerate(listed))
    whole = report_of([unit_of(0, placed)])
    parts = [[run for run, share in zip(placed, shares, strict=False) if share == part] for part in range(5)]
    units = [unit_of(number, part) for number, part in enumerate(parts)]
    drawn.shuffle(units)
    assert report_of(units) == whole


@given(judged_runs, judged_runs, judged_runs)
def test_tallies_can_be_merged_in_any_order_and_nesting(first, second, third):
    a, b, c = (tally_of(list(enumerate(listed, start))) for listed, start in ((first, 0), (second, 20), (third, 40)))

    def added(one, other):
        result = copy(one)
        result.merge(copy(other))
        return result

    assert added(a, b) == added(b, a)
    assert added(added(a, b), c) == added(a, added(b, c))
    assert added(a, Tally()) == added(Tally(), a) == a


@given(st.lists(st.tuples(st.sampled_from(["nothing>stop", "hint>deny"]), st.sampled_from([True, False, None]))))
def test_transitions_can_be_merged_in_any_order(listed):
    def counted(part):
        found = {}
        for name, label in part:
            found.setdefault(name, Transition()).count(label)
        return found

    whole = counted(listed)
    merged = {}
    for part in (listed[1::2], listed[::2]):
        merge_transitions(merged, counted(part))
    assert merged == whole


@given(st.permutations(range(6)), st.lists(st.integers(0, MOST_ERRORS), min_size=6, max_size=6))
def test_of_many_read_errors_the_first_of_the_input_are_kept_whatever_the_order(order, counts):
    def unit(number):
        errors = [Unreadable(f"file {number}", 1, "broken")] * counts[number]
        return Judged(number, errors=len(errors), groups=[Groups()], unreadable=errors)

    whole = report_of(unit(number) for number in range(6))
    assert report_of(unit(number) for number in order) == whole
    assert whole.read_error_count == sum(counts)
    assert len(whole.read_errors) == min(sum(counts), MOST_ERRORS)
    expected = [f"file {number}" for number in range(6) for _ in range(counts[number])][:MOST_ERRORS]
    assert [error.source for error in whole.read_errors] == expected


def test_the_runs_that_are_named_are_the_same_each_time(runs, monkeypatch):
    first = backtest([runs]).policies[0].samples
    monkeypatch.setattr("policyengine.backtest.work.BATCH_BYTES", 1)
    assert first
    assert backtest([runs]).policies[0].samples == first
    assert all(list(first).count(sample) == 1 for sample in first)


def test_names_that_cannot_be_written_as_text_are_escaped(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff")
    try:
        folder.mkdir()
    except OSError:  # a file system that takes no such names
        folder = tmp_path
    (folder / "a.json").write_bytes(rb'{"model": "m\ud800", "messages": [{"role": "user", "content": "\udc00"}]}')
    (folder / "b.json").write_bytes(b"{")
    (folder / "c.txt").write_bytes(b"")
    outcome = backtest([tmp_path], by_task=True, resume=tmp_path / "ledger")
    assert outcome.policies[0].groups[0].model == "m\\ud800"
    assert msgspec.json.encode(outcome)
    assert (outcome.runs, outcome.read_error_count, len(outcome.skipped)) == (1, 1, 1)
