"""Going on from a file: the total is that of one undisturbed backtest, whatever is in the file and however it ended."""

from __future__ import annotations

import os
import shutil

import pytest
from click.testing import CliRunner

from policyengine.backtest.resume import Ledger
from policyengine.backtest.run import assigned, backtest
from policyengine.backtest.work import plan
from policyengine.cli import cli
from policyengine.errors import UsageError


class StopHereError(Exception):
    """What ends a backtest in the middle."""


def interrupted(after):
    """Return a `progress` that ends the backtest when so many units are done."""
    told = []

    def progress(done, whole):
        told.append(done)
        if len(told) > after:
            raise StopHereError

    return progress


def watched():
    """Return a list, and a `progress` that writes down in it what it is told."""
    told: list[tuple[int, int]] = []
    return told, lambda done, whole: told.append((done, whole))


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "ledger"


def test_what_was_done_before_a_crash_is_not_done_again(runs, figures, small_units, ledger):
    whole = figures(backtest([runs]))
    size = sum(unit.size for unit in plan([runs])[0])
    with pytest.raises(StopHereError):
        backtest([runs], resume=ledger, progress=interrupted(after=5))
    told, progress = watched()
    assert figures(backtest([runs], resume=ledger, progress=progress)) == whole
    assert len(told) == len(plan([runs])[0]) - 4  # the first word, and one for each unit that was left
    assert told[0][0] > 0
    assert told[-1] == (size, size)
    told, progress = watched()
    assert figures(backtest([runs], resume=ledger, progress=progress)) == whole
    assert told == [(size, size)]


def test_progress_counts_bytes_up_to_those_of_the_input(runs, small_units):
    told, progress = watched()
    backtest([runs], progress=progress)
    size = sum(unit.size for unit in plan([runs])[0])
    assert told[0] == (0, size)
    assert told[-1] == (size, size)
    assert told == sorted(told)
    assert {whole for _, whole in told} == {size}


def test_several_processes_go_on_from_what_one_began(runs, figures, small_units, ledger):
    with pytest.raises(StopHereError):
        backtest([runs], resume=ledger, progress=interrupted(after=5))
    assert figures(backtest([runs], resume=ledger, workers=2)) == figures(backtest([runs]))


def test_a_file_that_was_cut_off_at_any_byte_never_gives_a_wrong_total(runs, figures, tmp_path, monkeypatch, ledger):
    small = tmp_path / "small"
    small.mkdir()
    for name in ("single00.json", "single01.json"):
        shutil.copy(runs / name, small / name)
    monkeypatch.setattr("policyengine.backtest.work.BATCH_BYTES", 1)
    assignment = assigned(["default"])
    units = plan([small])[0]
    whole = figures(backtest([small], resume=ledger))
    content = ledger.read_bytes()
    ends = [place for place, byte in enumerate(content, start=1) if byte == 0x0A]
    assert len(ends) == 3  # what it belongs to, and two units
    for length in range(len(content) + 1):
        ledger.write_bytes(content[:length])
        with Ledger(ledger, assignment, units) as opened:
            assert len(list(opened.done())) == sum(length >= end for end in ends[1:])
        kept = max((end for end in ends if end <= length), default=ends[0])
        assert ledger.read_bytes() == content[:kept]
    for length in range(0, len(content), 97):
        ledger.write_bytes(content[:length])
        assert figures(backtest([small], resume=ledger)) == whole
        assert sorted(ledger.read_bytes().split(b"\n")) == sorted(content.split(b"\n"))


def test_lines_of_a_damaged_file_that_are_no_results_are_done_again(runs, figures, small_units, ledger):
    whole = figures(backtest([runs], resume=ledger))
    lines = ledger.read_bytes().splitlines(keepends=True)
    for damaged in (b"\0" * 40 + b"\n", lines[3][:50] + lines[4], b'{"unit": 1}\n', b"\n"):
        ledger.write_bytes(b"".join([*lines[:3], damaged, *lines[3:]]))
        assert figures(backtest([runs], resume=ledger)) == whole
    ledger.write_bytes(b"".join([*lines, lines[2], lines[2]]))
    assert figures(backtest([runs], resume=ledger)) == whole


@pytest.mark.parametrize(
    "options",
    [
        {"policies": ["cautious"]},
        {"policies": ["default", "cautious"]},
        {"baseline": "cautious"},
        {"by_task": True},
        {"form": "openai_chat"},
    ],
)
def test_a_file_of_other_policies_or_options_is_refused_and_left_alone(runs, ledger, options):
    backtest([runs], resume=ledger)
    before = ledger.read_bytes()
    with pytest.raises(UsageError, match="begun with other policies or options; take another file, or remove it"):
        backtest([runs], resume=ledger, **options)
    assert ledger.read_bytes() == before


def test_a_file_of_another_version_is_refused(runs, ledger, monkeypatch):
    backtest([runs], resume=ledger)
    monkeypatch.setattr("policyengine.backtest.resume.__version__", "99")
    with pytest.raises(UsageError, match=r"begun with version \d"):
        backtest([runs], resume=ledger)


def test_a_policy_that_was_edited_is_another_policy(runs, ledger, tmp_path):
    policy = tmp_path / "mine.yaml"
    head = "apiVersion: policyengine/v1\nkind: Policy\nname: mine\nextends: "
    policy.write_text(head + "default\n", encoding="utf-8")
    backtest([runs], [str(policy)], resume=ledger)
    policy.write_text(head + "cautious\n", encoding="utf-8")
    with pytest.raises(UsageError, match="other policies"):
        backtest([runs], [str(policy)], resume=ledger)


@pytest.mark.parametrize(
    "content",
    [
        b"notes\n",
        b"notes",
        b"{}",
        b"{}\n",
        b'{"version":2}\n',
        b"\n",
        b"\0",
    ],
)
def test_a_file_of_something_else_is_never_overwritten(runs, ledger, content):
    ledger.write_bytes(content)
    with pytest.raises(UsageError, match="is no file to resume from; it is not overwritten"):
        backtest([runs], resume=ledger)
    assert ledger.read_bytes() == content


def test_a_file_that_cannot_be_written_is_an_error_that_says_why(runs, tmp_path):
    with pytest.raises(UsageError, match=r"cannot write .*: No such file or directory"):
        backtest([runs], resume=tmp_path / "nowhere" / "ledger")
    with pytest.raises(UsageError, match=r"cannot write .*: Is a directory"):
        backtest([runs], resume=tmp_path)


def test_two_backtests_do_not_write_to_one_file(runs, ledger):
    with Ledger(ledger, assigned(["default"]), ()), pytest.raises(UsageError, match="another backtest writes to"):
        backtest([runs], resume=ledger)


def test_only_what_was_changed_is_done_again(runs, figures, tmp_path, monkeypatch, ledger):
    monkeypatch.setattr("policyengine.backtest.work.BATCH_BYTES", 1)
    copied = shutil.copytree(runs, tmp_path / "copied")
    backtest([copied], resume=ledger)
    shutil.copy(runs / "single00.json", copied / "single01.json")
    os.utime(copied / "single01.json", ns=(1, 1))
    (copied / "single02.json").unlink()
    shutil.copy(runs / "single03.json", copied / "another.json")
    told, progress = watched()
    assert figures(backtest([copied], resume=ledger, progress=progress)) == figures(backtest([copied]))
    assert len(told) == 3  # the first word, the file that was changed and the new one


def test_labels_from_an_index_that_was_changed_count(runs, tmp_path, ledger):
    copied = shutil.copytree(runs, tmp_path / "copied")
    assert backtest([copied / "single00.json"], resume=ledger).policies[0].total.runs == 1
    for label in ("True", "False"):
        index = f"id,file,success,group\nx,single00.json,{label},fresh{label}\n"
        (tmp_path / "index.csv").write_text(index.replace(",single", ",copied/single"), encoding="utf-8")
        (group,) = backtest([copied / "single00.json"], resume=ledger).policies[0].groups
        assert group.model == f"fresh{label}"


def test_files_of_parts_of_the_input_put_one_behind_another_are_one_of_all_of_it(runs, figures, small_units, tmp_path):
    parts = [tmp_path / "part0", tmp_path / "part1"]
    for number, part in enumerate(parts):
        part.mkdir()
        for file in sorted(runs.iterdir())[number::2]:
            shutil.copy(file, part / file.name)
        backtest([part], resume=tmp_path / f"ledger{number}")
    together = tmp_path / "together"
    together.write_bytes(b"".join((tmp_path / f"ledger{number}").read_bytes() for number in range(2)))
    told, progress = watched()
    assert figures(backtest(parts, resume=together, progress=progress)) == figures(backtest(parts))
    assert len(told) == 1  # nothing was left to do

    other = tmp_path / "other"
    backtest([parts[1]], ["cautious"], resume=other)
    mixed = together.read_bytes() + other.read_bytes()
    together.write_bytes(mixed)
    with pytest.raises(UsageError, match="other policies or options"):
        backtest(parts, resume=together)
    assert together.read_bytes() == mixed


def test_the_file_may_lie_among_the_recordings(runs, figures, tmp_path):
    copied = shutil.copytree(runs, tmp_path / "copied")
    whole = figures(backtest([copied]))
    for name in ("ledger", "ledger.jsonl"):
        for _ in range(2):
            assert figures(backtest([copied], resume=copied / name)) == whole
        (copied / name).unlink()


def test_the_verb_goes_on_from_a_file_and_says_what_is_wrong_with_it(runs, ledger):
    def run(*more):
        return CliRunner().invoke(cli, ["backtest", str(runs), "--resume", str(ledger), "--workers", "1", *more])

    first, second = run(), run()
    assert (first.exit_code, second.exit_code) == (0, 0)
    shown, again = (result.stdout.splitlines() for result in (first, second))
    assert again[1:] == shown[1:]  # the first line says how long it took
    refused = run("--policy", "cautious")
    assert refused.exit_code == 1
    assert "other policies or options" in refused.stderr
