"""Tuning finds the threshold that is best by construction, and says what the data cannot tell."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.backtest.front import Limit, dominates, front, gain, limit_of, overlap
from policyengine.backtest.judge import part_of
from policyengine.backtest.sweep import MOST, Threshold, around, candidates, named, overlay, sweeps, thresholds, values
from policyengine.backtest.tally import Tally
from policyengine.backtest.tune import Options, tune
from policyengine.errors import UsageError
from policyengine.plugins.registry import discover
from policyengine.policy.load import load_policy
from policyengine.policy.stricter import looking
from policyengine.recordings.readers import read_recordings

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: house\n"
STALL = HEAD + "extensions:\n  stall_detector: {with: {repeat: {stop: 9}}}\n"
STOP = "stall_detector.with.repeat.stop"


def run(
    name: str, task: str, repeats: int, *, label: bool | None, after: int = 0, tokens: int = 0
) -> dict[str, object]:
    """Return a recorded chat: the same call `repeats` times, then `after` new ones, then an answer if it succeeded."""
    messages: list[dict[str, object]] = [{"role": "user", "content": task}]
    steps = [({"at": "shelf"}, "nothing")] * repeats + [({"page": page}, f"page {page}") for page in range(after)]
    for number, (args, result) in enumerate(steps):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": json.dumps(args)}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        if tokens:
            messages[-1]["usage"] = {"prompt_tokens": tokens, "completion_tokens": 1}
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    if label:
        messages.append({"role": "assistant", "content": "It is behind the clock."})
    return {"id": name, "task": task, "label": label, "messages": messages}


def write(path: Path, runs: Iterable[dict[str, object]]) -> str:
    """Write recordings; the name of their folder is part of what divides tasks."""
    path = path.parent / "recorded" / path.name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in runs))
    return str(path)


def looping(tasks: int = 40) -> Iterable[dict[str, object]]:
    """Of each task a success that repeats a call at most four times, and a failure that repeats it twelve times."""
    for number in range(tasks):
        yield run(f"good-{number}", f"task {number}", 1 + number % 4, label=True, after=3)
        yield run(f"bad-{number}", f"task {number}", 12, label=False)


@pytest.fixture
def house(tmp_path):
    path = tmp_path / "house.yaml"
    path.write_text(STALL)
    return str(path)


def opened(source: str, overlays: Iterable[str] = ()):
    registry = discover()
    policy = load_policy(source, registry=registry, overlays=[Path(path) for path in overlays])
    return policy, looking(registry, policy)


# ---- what is found


def test_the_threshold_that_is_best_by_construction_is_found_in_both_directions(tmp_path, house):
    report = tune([write(tmp_path / "runs.jsonl", looping())], house, options=Options(sweep=(f"{STOP}=2..12",)))
    assert report.proposal.values == {STOP: 5}
    assert [direction.proposal for direction in report.directions] == [f"{STOP}=5"] * 2
    assert all(direction.confirmed for direction in report.directions)
    assert report.runs == 80
    assert report.tried == 10
    figures = report.proposal.folds["B"]
    assert figures.total.stopped_successes == 0
    assert figures.total.turns_saved == 7 * (figures.total.runs // 2)
    assert figures.gain.turns == 4 * (figures.total.runs // 2)
    assert figures.gain.is_sure


def test_the_best_value_is_among_those_that_are_tried_unasked(tmp_path, house):
    report = tune([write(tmp_path / "runs.jsonl", looping(16))], house)
    assert report.proposal.values == {STOP: 5}
    assert report.refused == ()


def test_the_policy_in_force_stays_where_nothing_is_better(tmp_path, house):
    Path(house).write_text(STALL.replace("9", "5"))
    report = tune([write(tmp_path / "runs.jsonl", looping(16))], house)
    assert report.proposal is None
    assert "in force" in report.directions[0].front
    assert report.directions[0].notes == ()


def test_the_front_has_what_no_other_beats_and_wrong_stops_are_bought_by_turns(tmp_path, house):
    report = tune([write(tmp_path / "runs.jsonl", looping())], house, options=Options(sweep=(f"{STOP}=2..12",)))
    kept = [report.candidate(name).folds["A"].total for name in report.directions[0].front]
    saved = [total.turns_saved for total in kept]
    wrong = [total.stopped_successes_working for total in kept]
    assert saved == sorted(saved, reverse=True)
    assert wrong == sorted(wrong, reverse=True)
    assert f"{STOP}=12" not in report.directions[0].front


def test_more_wrong_stops_may_be_accepted_as_a_number_or_a_share(tmp_path, house):
    paths = [write(tmp_path / "runs.jsonl", looping())]
    swept = (f"{STOP}=2..12",)
    for text in ("100", "100%"):
        assert tune(paths, house, options=Options(sweep=swept, limit=limit_of(text))).proposal.values == {STOP: 2}
    assert tune(paths, house, options=Options(sweep=swept, limit=limit_of("0"))).proposal.values == {STOP: 5}


def test_a_policy_beyond_the_limit_is_replaced_by_one_that_saves_less(tmp_path, house):
    Path(house).write_text(STALL.replace("9", "2"))
    options = Options(sweep=(f"{STOP}=2..12",), limit=Limit("number", 0))
    report = tune([write(tmp_path / "runs.jsonl", looping())], house, options=options)
    assert report.proposal.values == {STOP: 5}
    assert report.directions[0].confirmed
    assert report.proposal.folds["A"].gain.turns < 0


def test_tokens_saved_decide_between_candidates_that_are_equal_otherwise():
    one, other = Tally(turns_saved=5, tokens_saved=10), Tally(turns_saved=5, tokens_saved=20)
    assert dominates(other, one)
    assert front([one, other]) == [1]


# ---- what the data cannot tell


def folds_of(tasks: Iterable[str], path: Path) -> dict[str, str]:
    """Return in which fold each task would be in a file."""
    written = write(path, [run(task, task, 1, label=True) for task in tasks])
    return {one.task: part_of(one, "fold") for one in read_recordings([Path(written)])}


def test_a_proposal_that_only_one_fold_likes_is_not_borne_out(tmp_path, house):
    """In fold A no success repeats a call; in fold B every one does it six times and then finds what it needs."""
    runs = []
    for task, fold in folds_of([f"task {number}" for number in range(40)], tmp_path / "runs.jsonl").items():
        runs.append(run(f"good {task}", task, {"A": 1, "B": 6}[fold], label=True, after=3))
        runs.append(run(f"bad {task}", task, 12, label=False))
    path = write(tmp_path / "runs.jsonl", runs)
    report = tune([path], house, options=Options(sweep=(f"{STOP}=2..12",)))
    there, back = report.directions
    assert there.proposal == f"{STOP}=2"
    assert not there.confirmed
    assert any("fold B does not bear it out" in note for note in there.notes)
    assert back.proposal == f"{STOP}=7"
    assert back.confirmed


def test_few_runs_that_differ_are_called_too_few(tmp_path, house):
    paths = [write(tmp_path / "runs.jsonl", looping(8))]
    notes = tune(paths, house, options=Options(sweep=(f"{STOP}=5",))).directions[0].notes
    assert any("too few to tell" in note for note in notes)
    notes = tune(paths, house, options=Options(sweep=(f"{STOP}=5",), few=1)).directions[0].notes
    assert not any("too few to tell" in note for note in notes)


def test_candidates_whose_intervals_overlap_are_said_not_to_be_told_apart(tmp_path, house):
    runs = [run(f"bad-{number}", f"task {number}", 10 + 7 * number % 30, label=False) for number in range(16)]
    runs += [run(f"good-{number}", f"task {number}", 4, label=True, after=3) for number in range(6)]
    options = Options(sweep=(f"{STOP}=4,5",), limit=Limit("number", 0))
    notes = tune([write(tmp_path / "runs.jsonl", runs)], house, options=options).directions[0].notes
    assert any("cannot tell it from 1 other of the front" in note for note in notes)


def test_without_labelled_successes_nothing_is_proposed(tmp_path, house):
    runs = [run(f"r{number}", f"task {number}", 12, label=None) for number in range(20)]
    report = tune([write(tmp_path / "runs.jsonl", runs)], house, options=Options(sweep=(STOP,)))
    assert report.proposal is None
    assert "labelled as successful" in report.directions[0].notes[0]


def test_a_single_task_cannot_be_divided(tmp_path, house):
    runs = [run("good", "task", 1, label=True, after=3), run("bad", "task", 12, label=False)]
    report = tune([write(tmp_path / "runs.jsonl", runs)], house, options=Options(sweep=(STOP,)))
    assert sorted(report.folds.values()) == [0, 2]
    assert any("too few tasks" in note for direction in report.directions for note in direction.notes)
    assert not any(direction.confirmed for direction in report.directions)


def test_no_run_at_all_is_a_report_without_directions(tmp_path, house):
    (tmp_path / "empty").mkdir()
    report = tune([str(tmp_path / "empty")], house)
    assert (report.runs, report.directions, report.proposal, report.held_out) == (0, (), None, None)


# ---- folds


def test_all_runs_of_a_task_are_in_one_fold(tmp_path, house):
    runs = [run(f"r{number}", "the same", 1, label=True) for number in range(30)]
    report = tune([write(tmp_path / "runs.jsonl", runs)], house, options=Options(sweep=(STOP,)))
    assert sorted(report.folds.values()) == [0, 30]
    assert report.runs_without_task == 0


def test_runs_without_a_task_are_divided_by_their_ids_and_counted(tmp_path, house):
    runs = [{**run(f"r{number}", "words", 1, label=True), "task": ""} for number in range(30)]
    report = tune([write(tmp_path / "runs.jsonl", runs)], house, options=Options(sweep=(STOP,)))
    assert min(report.folds.values()) > 5
    assert sum(report.folds.values()) == report.runs_without_task == 30


def test_the_order_of_runs_makes_no_difference(tmp_path, house):
    options = Options(sweep=("stall_detector.with.repeat",))
    runs = list(looping(16))
    whole = tune([write(tmp_path / "runs.jsonl", runs)], house, options=options)
    again = tune([write(tmp_path / "runs.jsonl", runs)], house, options=options)
    turned = tune([write(tmp_path / "runs.jsonl", reversed(runs))], house, options=options)
    for other in (again, turned):
        assert other.candidates == whole.candidates
        assert other.directions == whole.directions


def test_the_number_of_processes_makes_no_difference(tmp_path, house, monkeypatch):
    write(tmp_path / "one.jsonl", looping(8))
    write(tmp_path / "two.jsonl", [run(f"more-{n}", f"more {n}", 7, label=n % 2 == 0) for n in range(9)])
    folder, swept = str(tmp_path / "recorded"), (f"{STOP}=4..6",)
    alone = tune([folder], house, options=Options(sweep=swept))
    monkeypatch.setattr("policyengine.backtest.tune.INLINE_BYTES", 0)
    done = []
    shared = tune([folder], house, options=Options(sweep=swept, workers=2), progress=lambda *bytes: done.append(bytes))
    assert msgspec.structs.replace(shared, seconds=0) == msgspec.structs.replace(alone, seconds=0)
    assert [whole for _, whole in done] == [done[-1][0]] * 2


# ---- candidates


def test_candidates_that_decide_alike_are_one_and_the_nearest_stands_for_them(tmp_path, house):
    report = tune([write(tmp_path / "runs.jsonl", looping())], house, options=Options(sweep=(f"{STOP}=13,20,14,5",)))
    assert [candidate.name for candidate in report.candidates] == ["in force", f"{STOP}=13", f"{STOP}=5"]
    assert report.candidates[1].alike == (f"{STOP}=20", f"{STOP}=14")


def test_a_rung_out_of_order_is_refused_and_listed(tmp_path, house):
    Path(house).write_text(STALL.replace("{stop: 9}", "{hint: 3, stop: 9}"))
    report = tune([write(tmp_path / "runs.jsonl", looping(4))], house, options=Options(sweep=(f"{STOP}=2,3,4",)))
    assert [(one.candidate, one.code) for one in report.refused] == [(f"{STOP}=2", "R510"), (f"{STOP}=3", "R510")]
    assert "must be greater than hint: 3" in report.refused[0].reason
    assert report.tried == 3


def test_a_loosening_candidate_of_a_locked_rule_is_refused_and_listed(tmp_path, house):
    Path(house).write_text(STALL.replace("{with:", "{locked: true, with:"))
    report = tune([write(tmp_path / "runs.jsonl", looping())], house, options=Options(sweep=(f"{STOP}=5,12",)))
    assert [(one.candidate, one.code) for one in report.refused] == [(f"{STOP}=12", "M314")]
    assert "is looser: 9 -> 12" in report.refused[0].reason
    assert report.proposal.values == {STOP: 5}


def test_candidates_lie_above_the_overlays_of_the_policy(tmp_path, house):
    over = tmp_path / "over.yaml"
    over.write_text("apiVersion: policyengine/v1\nkind: Overlay\ntarget: house\nextensions:\n")
    over.write_text(over.read_text() + "  stall_detector: {with: {repeat: {stop: 7}}}\n")
    paths = [write(tmp_path / "runs.jsonl", looping())]
    report = tune(paths, house, overlays=[str(over)], options=Options(sweep=(f"{STOP}=5,7,9",)))
    assert [(one.threshold, one.in_force) for one in report.swept] == [(STOP, 7)]
    assert [candidate.name for candidate in report.candidates] == ["in force", f"{STOP}=5", f"{STOP}=9"]
    assert report.proposal.values == {STOP: 5}


def test_refusals_of_calls_that_had_succeeded_are_told(tmp_path, house):
    swept = ("stall_detector.with.repeat.deny=2", f"{STOP}=5")
    options = Options(sweep=swept, grid=True)
    report = tune([write(tmp_path / "runs.jsonl", looping())], house, options=options)
    both = f"stall_detector.with.repeat.deny=2, {STOP}=5"
    assert report.proposal.name == f"{STOP}=5"
    assert report.candidate(both).folds["B"].total.denied_succeeded > 0
    Path(house).write_text(STALL.replace("{stop: 9}", "{deny: 8, stop: 9}"))
    report = tune(
        [write(tmp_path / "runs.jsonl", looping())],
        house,
        options=Options(sweep=("stall_detector.with.repeat.deny=4", f"{STOP}=5"), grid=True),
    )
    assert report.proposal.name == f"stall_detector.with.repeat.deny=4, {STOP}=5"
    assert any("calls that had succeeded (in force: " in note for note in report.directions[0].notes)


def test_values_that_no_option_can_have_are_refused_with_the_reason(tmp_path, house):
    report = tune([write(tmp_path / "runs.jsonl", looping(2))], house, options=Options(sweep=(f"{STOP}=0,many,2.5",)))
    assert [one.candidate for one in report.refused] == [f"{STOP}=0", f"{STOP}=many", f"{STOP}=2.5"]
    assert all(one.reason.startswith("extensions.stall_detector.with.repeat.stop: ") for one in report.refused)


def test_too_many_candidates_are_an_error_that_says_what_to_do(house):
    policy, look = opened(house)
    swept = sweeps(policy, look, [f"{STOP}=2..400"])
    with pytest.raises(UsageError, match=r"398 candidates, and 200 are allowed: .*--sweep.*--most"):
        candidates(swept)
    assert len(candidates(swept, most=398)) == 398
    every = sweeps(*opened("default"), [])
    with pytest.raises(UsageError, match="candidates, and 200 are allowed"):
        candidates(every, grid=True)


def test_a_grid_has_every_combination_with_the_values_in_force(tmp_path, house):
    Path(house).write_text(STALL.replace("{stop: 9}", "{deny: 6, stop: 9}"))
    swept = sweeps(*opened(house), ["stall_detector.with.repeat.deny=3,4", f"{STOP}=5,9"])
    assert [named(changes) for changes in candidates(swept, grid=True)] == [
        f"{STOP}=5",
        "stall_detector.with.repeat.deny=3",
        f"stall_detector.with.repeat.deny=3, {STOP}=5",
        "stall_detector.with.repeat.deny=4",
        f"stall_detector.with.repeat.deny=4, {STOP}=5",
    ]
    path = write(tmp_path / "runs.jsonl", looping())
    options = Options(sweep=("stall_detector.with.repeat.deny=3,4", f"{STOP}=5"), grid=True)
    report = tune([path], house, options=options)
    assert report.proposal.values[STOP] == 5
    assert [one.candidate for one in report.refused] == [f"{STOP}=5"]


SHIPPED = ("default", "cautious", "rollout-1-single-tool", "rollout-2-parsing", "rollout-3-chain", "rollout-4-controls")


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_tried_unasked_is_within_the_default_bound_and_keeps_ladders_valid(name, tmp_path):
    registry = discover()
    policy, look = opened(name)
    tried = candidates(sweeps(policy, look, []), most=MOST)
    assert tried
    for changes in tried:
        path = tmp_path / "candidate.yaml"
        path.write_text(overlay(policy, changes))
        (change,) = changes
        if "window" in change.threshold.path:
            continue  # how `bad` and `of` belong together is no ladder: loading tells
        made = load_policy(name, registry=registry, overlays=[path])
        before = {rule.id: rule.options for rule in policy.rules}
        after = {rule.id: rule.options for rule in made.rules}
        assert changed_paths(before, after) == {(change.threshold.rule, *change.threshold.path)}


def changed_paths(one: object, other: object) -> set[tuple[str, ...]]:
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        return {(key, *path) for key in one for path in changed_paths(one[key], other[key])}
    return set() if one == other else {()}


def test_an_overlay_changes_one_rung_of_a_ladder_that_nobody_wrote(tmp_path):
    path = tmp_path / "bare.yaml"
    path.write_text(HEAD + "extensions:\n  stall_detector: {}\n")
    policy, look = opened(str(path))
    for sweep in ("stall_detector.with.repeat.stop=6", "stall_detector.with.stagnation.exec.deny=15"):
        (changes,) = candidates(sweeps(policy, look, [sweep]))
        over = tmp_path / "over.yaml"
        over.write_text(overlay(policy, changes))
        made, _ = opened(str(path), [str(over)])
        keys = tuple(sweep.partition("=")[0].split(".")[2:])
        assert changed_paths(policy.rules[0].options, made.rules[0].options) == {keys}


def test_an_overlay_says_only_what_changes(house):
    (changes,) = candidates(sweeps(*opened(house), [f"{STOP}=5"]))
    text = overlay(opened(house)[0], changes)
    assert text.split("\n") == [
        "apiVersion: policyengine/v1",
        "kind: Overlay",
        "target: house",
        "extensions:",
        "  stall_detector:",
        "    with:",
        "      repeat: {stop: 5}",
        "",
    ]


# ---- what a sweep says


def test_thresholds_are_declared_numbers_of_rules_that_have_an_effect(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(
        HEAD + "extensions:\n"
        "  step_limit: {with: {max_steps: {$env: STEPS, default: 30}}}\n"
        "  tool_failures: {mode: shadow, with: {stop: 2}}\n"
        "  tool_call_limit: {with: {calls: 9, tools: {'pay_*': 2}}}\n"
        "  failure_hint_injector: {with: {levels: {hint: 1, insist: 3, deny: 5}}}\n"
    )
    policy, look = opened(str(path))
    found = {one.name: (one.value, one.low, one.high) for one in thresholds(policy, look)}
    assert found == {
        "tool_call_limit.with.calls": (9, 1, 100_000),
        "tool_call_limit.with.tools.pay_*": (2, 1, 100_000),
        "failure_hint_injector.with.levels.hint": (1, 1, 2),
        "failure_hint_injector.with.levels.insist": (3, 2, 4),
        "failure_hint_injector.with.levels.deny": (5, 4, 1_000),
    }


def test_a_name_without_values_takes_all_thresholds_below_it(house):
    policy, look = opened("default")
    found = [threshold.name for threshold, _ in sweeps(policy, look, ["extensions.stall_detector.with.repeat"])]
    assert found == [f"stall_detector.with.repeat.{rung}" for rung in ("hint", "deny", "stop")]
    assert {one.rule for one, _ in sweeps(policy, look, ["step_limit"])} == {"step_limit"}


def test_a_sweep_may_name_what_is_not_in_force_or_no_number(house, tmp_path):
    policy, look = opened(house)
    texts = ["stall_detector.with.repeat.deny=4", "stall_detector.with.scope=run,step"]
    texts.append('stall_detector.with.tools."read.*".repeat.stop=20')
    for text, (threshold, tried) in zip(texts, sweeps(policy, look, texts), strict=True):
        path = tmp_path / "over.yaml"
        for changes in candidates([(threshold, tried)]):
            path.write_text(overlay(policy, changes))
            opened(house, [str(path)])
        assert text.startswith(threshold.name)


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("stall_detectr.with.repeat.stop=3", 'did you mean "stall_detector"'),
        ("stall_detector.with.repeat.stp=3", "no option repeat.stp; did you mean"),
        ("stall_detector.with.nothing", "no threshold of a rule in force"),
        ("stall_detector.with.repeat=3", "is no single value"),
        ("stall_detector.with.repeat.stop=", "no values"),
        ("stall_detector.with.repeat.stop=5..2", "is no range"),
        ("stall_detector.with.repeat.stop=1..9..0", "is no range"),
        ("stall_detector.with.repeat.stop=1..99999999", "has 99999999 values"),
        ("repeat.stop=3", "write RULE.with.PATH=VALUES"),
    ],
)
def test_a_sweep_that_says_nothing_is_an_error_with_advice(house, text, about):
    with pytest.raises(UsageError, match=about.replace(".", r"\.")):
        sweeps(*opened(house), [text])


def test_an_option_that_comes_from_the_environment_is_not_swept(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPS", "77")
    path = tmp_path / "p.yaml"
    path.write_text(HEAD + "extensions:\n  step_limit: {with: {max_steps: {$env: STEPS}}}\n")
    with pytest.raises(UsageError, match="environment variable") as error:
        sweeps(*opened(str(path)), ["step_limit.with.max_steps=3"])
    assert "77" not in str(error.value)


def test_values_are_lists_ranges_and_words():
    assert values("3, 5,8", "") == (3, 5, 8)
    assert values("2..5,4,9", "") == (2, 3, 4, 5, 9)
    assert values("0.5..0.8..0.1", "") == (0.5, 0.6, 0.7, 0.8)
    assert values("10..20..5", "") == (10, 15, 20)
    assert values("true,5m,0.9", "") == (True, "5m", 0.9)


@given(st.integers(-5, 50), st.integers(0, 60), st.integers(1, 9))
def test_a_range_of_whole_numbers_has_what_its_ends_and_step_say(first, more, step):
    assert values(f"{first}..{first + more}..{step}", "") == tuple(range(first, first + more + 1, step))


@given(st.integers(1, 100_000), st.integers(0, 5), st.integers(0, 5))
def test_values_around_one_stay_in_its_bounds_and_leave_it_out(value, below, above):
    tried = around(Threshold("r", ("x",), value, value - below, value + above))
    assert value not in tried
    assert all(value - below <= one <= value + above for one in tried)
    assert list(tried) == sorted(set(tried))


# ---- limits, fronts, gains


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (None, Limit("in force", 0)),
        ("3", Limit("number", 3)),
        ("1", Limit("number", 1)),
        ("1.0", Limit("rate", 1)),
        ("0.02", Limit("rate", 0.02)),
        (".5", Limit("rate", 0.5)),
        ("2%", Limit("rate", 0.02)),
    ],
)
def test_a_limit_is_a_number_or_a_share(text, limit):
    assert limit_of(text) == limit


@pytest.mark.parametrize("text", ["", "few", "-1", "1.5", "101%", "nan"])
def test_what_is_neither_is_an_error(text):
    with pytest.raises(UsageError):
        limit_of(text)


def test_a_share_is_of_successful_runs():
    assert Limit("rate", 0.1).admits(Tally(successes=20, stopped_successes=2), Tally())
    assert not Limit("rate", 0.1).admits(Tally(successes=20, stopped_successes=3), Tally())


TALLIES = st.lists(
    st.builds(
        lambda saved, working, more: Tally(
            turns_saved=saved, stopped_successes_working=working, stopped_successes=working + more
        ),
        st.integers(0, 6),
        st.integers(0, 4),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


@given(TALLIES)
def test_what_is_left_out_of_a_front_is_dominated_by_what_is_on_it(tallies):
    kept = front(tallies)
    assert kept
    for place, tally in enumerate(tallies):
        if place in kept:
            assert not any(dominates(other, tally) for other in tallies)
        else:
            assert any(dominates(tallies[other], tally) for other in kept)


def test_a_gain_is_sure_only_where_its_interval_leaves_out_nothing():
    sure = gain(Tally(runs=20, turns=200, turns_squared=2000, gained=40, gained_squared=84, gained_times_turns=400))
    chance = gain(Tally(runs=20, turns=200, turns_squared=2000, gained=10, gained_squared=900, gained_times_turns=100))
    none = gain(Tally(runs=20, turns=200, turns_squared=2000))
    assert (sure.is_sure, chance.is_sure, none.is_sure) == (True, False, False)
    assert sure.bounds.low > 0 > chance.bounds.low
    assert overlap(chance, none)
    assert not overlap(sure, none)
