"""Where backtest and tune may write, and how file names are told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
posix = pytest.mark.skipif(sys.platform == "win32", reason="links, devices and names of POSIX")


@pytest.fixture
def runs():
    """Write a folder with one run; give it beside `run`, which enters a directory of its own."""
    Path("runs").mkdir()
    Path("runs/a.json").write_text(json.dumps(HELLO), encoding="utf-8")
    return Path("runs")


def files():
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.parametrize("path", ["runs/a.json", "runs"])
@pytest.mark.parametrize("report", ["runs/a.json", "runs/../runs/a.json", "hard.json", "link.json"])
def test_a_report_never_takes_the_place_of_its_input(run, runs, path, report):
    Path("hard.json").hardlink_to("runs/a.json")
    Path("link.json").symlink_to("runs/a.json")
    before = files()
    result = run("backtest", path, "--report", report)
    assert (result.exit_code, files()) == (1, before)
    assert "may not be written over" in result.stderr


@pytest.mark.parametrize("option", ["--policy", "--overlay", "--baseline", "--resume"])
def test_a_report_never_takes_the_place_of_a_file_that_is_used(run, runs, option):
    Path("used.json").write_text("{}", encoding="utf-8")
    result = run("backtest", "runs", option, "used.json", "--report", "used.json")
    assert result.exit_code == 1
    assert "may not be written over used.json" in result.stderr
    assert Path("used.json").read_text(encoding="utf-8") == "{}"


def test_a_report_in_the_folder_of_recordings_may_be_written_again(run, runs):
    for _ in range(2):
        result = run("backtest", "runs", "--report", "runs/report.json")
        assert result.exit_code == 0, result.stderr
    assert json.loads(Path("runs/report.json").read_text(encoding="utf-8"))["runs"] == 1
    assert "runs/report.json: skipped: no reader knows this format" in result.stderr


@posix
@pytest.mark.parametrize("report", ["folder.md", "/proc/x.md", "full.md", "loop.md", "x" * 300 + ".md"])
@pytest.mark.parametrize("verb", ["backtest", "tune"])
def test_what_cannot_be_written_is_told_before_the_work(run, runs, report, verb):
    Path("folder.md").mkdir()
    Path("full.md").symlink_to("/dev/full")
    Path("loop.md").symlink_to("loop.md")
    result = run(verb, "runs", "--report" if verb == "backtest" else "--write", report)
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert not result.stdout
    assert Path(report).name in result.stderr


def test_a_check_of_a_target_leaves_nothing_behind(run, runs):
    before = files()
    result = run("backtest", "runs", "-p", "no-such-policy", "--report", "new.md")
    assert (result.exit_code, files()) == (1, before)


def test_a_report_that_cannot_be_written_in_the_end_is_told(run, runs, monkeypatch):
    def full(path, *args, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("policyengine.cli.backtest.for_us_alone", full)
    result = run("backtest", "runs", "--report", "a.md")
    assert result.exit_code == 2
    assert "error: cannot write a.md: No space left on device\n" in result.stderr
    assert "1 run" in result.stdout


@posix
@pytest.mark.parametrize("resume", ["/dev/null", "/dev/full"])
def test_a_file_to_resume_from_is_a_regular_one(run, runs, resume):
    result = run("backtest", "runs", "--resume", resume)
    assert (result.exit_code, result.stderr) == (1, f"error: cannot write {resume}: not a regular file\n")


@posix
@pytest.mark.parametrize("verb", ["backtest", "replay"])
def test_a_line_break_in_a_file_name_is_told_as_an_escape(run, runs, verb):
    Path("runs/b\nc.json").write_text("{", encoding="utf-8")
    Path("runs/d\ne.json").write_text('{"weigh": 1}', encoding="utf-8")
    result = run(verb, "runs")
    assert "runs/b\\nc.json:1: cannot be read: " in result.stderr
    assert "runs/d\\ne.json: skipped: no reader knows this format\n" in result.stderr


def test_of_many_files_that_no_reader_knows_the_first_are_named(run, runs):
    for number in range(25):
        Path(f"runs/x{number:02}.json").write_text('{"weigh": 1}', encoding="utf-8")
    told = run("backtest", "runs").stderr.splitlines()
    assert [line.partition(":")[0] for line in told[:20]] == [f"runs/x{number:02}.json" for number in range(20)]
    assert told[20:] == ["25 files skipped: no reader knows this format"]


@posix
@pytest.mark.parametrize("suffix", ["json", "md"])
def test_a_report_with_recorded_texts_is_for_us_alone(run, runs, suffix):
    assert run("backtest", "runs", "--report", f"a.{suffix}").exit_code == 0
    assert run("backtest", "runs", "--report", f"b.{suffix}", "--no-content").exit_code == 0
    Path("c").touch()
    assert Path(f"a.{suffix}").stat().st_mode & 0o777 == 0o600
    assert Path(f"b.{suffix}").stat().st_mode == Path("c").stat().st_mode
