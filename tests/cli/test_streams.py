"""What reaches the terminal, and what happens where there is none: closed streams, prints of tools, escape codes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from policyengine.plugins.found import short_path

ESC = "\x1b[31m"

LOUD = '''\
print("imported")


def look(place: str) -> str:
    """Look."""
    print("called")
    return "a key"


TOOLS = [look]
'''


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = line.replace("PE", f"{shlex.quote(sys.executable)} -m policyengine")
    where = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(line, shell=True, cwd=folder, env=where, capture_output=True, text=True, timeout=60)


def test_the_package_itself_can_be_run(tmp_path):
    done = shell("PE check default", tmp_path)
    assert (done.returncode, done.stdout[:4]) == (0, "ok: ")


@pytest.mark.parametrize("verb", ["run", "run --json", "check default", "explain default", "check nothing.yaml"])
def test_closed_streams_are_no_crash(tmp_path, verb):
    done = shell(f"PE {verb} >&-", tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode == (1 if "nothing" in verb else 0)


def test_a_working_directory_that_is_gone_is_no_crash(tmp_path):
    (tmp_path / "gone").mkdir()
    done = shell("cd gone && rmdir ../gone && PE check default", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_is_shown_as_it_is_where_there_is_no_working_directory(monkeypatch):
    def gone():
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    assert short_path("guards/g.py") == "guards/g.py"


def test_with_json_what_tools_and_their_module_print_is_not_on_stdout(play):
    Path("loud_tools.py").write_text(LOUD)
    sys.modules.pop("loud_tools", None)
    result = play("--json", "--tools", "loud_tools:TOOLS")
    assert json.loads(result.stdout)["status"] == "completed"
    assert "imported\n" in result.stderr
    assert "called\n" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("check", "demo.yaml", "--folder", "guards", "--json"),
        ("explain", "demo.yaml", "--folder", "guards", "--json"),
        ("prove", "demo.yaml", "--folder", "guards", "--json"),
        ("eval", "--policy", "demo.yaml", "--folder", "guards", "--hook", "run_start", "--payload", "{}", "--json"),
    ],
)
def test_with_json_what_guards_print_is_not_on_stdout(run, args):
    guard = Path("guards/counting.py")
    guard.write_text(guard.read_text() + '\nprint("imported")\n')
    result = run(*args)
    assert result.exit_code == 0
    json.loads(result.stdout)
    assert "imported\n" in result.stderr


def test_tools_whose_module_exits_are_no_success(run):
    Path("leaving.py").write_text("import sys; sys.exit(0)")
    result = run("run", "--tools", "leaving:T")
    assert (result.exit_code, result.stderr[:6]) == (1, "error:")


def test_a_watch_that_cannot_begin_overwrites_no_journal(run):
    Path("j.jsonl").write_text("kept\n")
    result = run("run", "--record", "j.jsonl", "--watch")
    assert result.exit_code == 1
    assert "nothing to watch" in result.stderr
    assert Path("j.jsonl").read_text() == "kept\n"


@pytest.mark.parametrize("value", ["2020-01-01", "!!binary aGVsbG8="])
@pytest.mark.parametrize("protocol", ["native", "text"])
def test_a_script_with_what_json_cannot_say_is_a_usage_error(run, value, protocol):
    Path("s.yaml").write_text(f"task: t\nturns: [{{calls: [{{tool: f, args: {{d: {value}}}}}]}}]\n")
    result = run("run", "--script", "s.yaml", "--protocol", protocol)
    assert result.exit_code == 1
    assert "what JSON can say" in result.stderr


def test_a_number_with_too_many_digits_is_a_usage_error(run):
    payload = '{"call": {"name": "f", "args": {"n": ' + "9" * 5000 + "}}}"
    result = run("eval", "--hook", "before_tool_call", "--payload", payload)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: payload:")


@pytest.mark.skipif(os.name == "nt", reason="such file names do not exist there")
def test_a_file_name_cannot_control_the_terminal(run):
    bad, good = f"bad{ESC}\n.yaml", f"good{ESC}.yaml"
    Path(bad).write_text("apiVersion: policyengine/v1\nkind: Policy\nname: x\nextensions: {nothing: {}}\n")
    Path(good).write_text(Path("demo.yaml").read_text())
    payload = '{"call": {"name": "f"}}'
    policy = ("--policy", good, "--folder", "guards")
    asked = ("eval", *policy, "--hook", "before_tool_call", "--payload", payload, "--repeat", "3")
    for args, code in (
        (("check", bad), 1),
        (("check", bad, "--format", "short"), 1),
        (("check", f"no{ESC}.yaml"), 1),
        (("check", good, "--folder", "guards"), 0),
        (("explain", good, "--folder", "guards"), 0),
        (asked, 0),
        (("run", *policy, "--script", "script.yaml"), 0),
        (("run", "--script", f"no{ESC}.yaml"), 1),
    ):
        result = run(*args)
        assert result.exit_code == code, result.output
        assert "\x1b" not in result.stdout + result.stderr, args
        assert "\\x1b[31m" in result.stdout + result.stderr, args


def test_a_code_of_a_guard_cannot_control_the_terminal(run):
    guard = Path("guards/counting.py")
    guard.write_text(guard.read_text().replace(', action)("counting",', ', action)("counting" + call.name,'))
    payload = json.dumps({"call": {"name": f"f{ESC}"}})
    policy = ("--policy", "demo.yaml", "--folder", "guards")
    result = run("eval", *policy, "--hook", "before_tool_call", "--payload", payload, "--repeat", "3")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "countingf\\x1b[31m" in result.stdout
    Path("script.yaml").write_text(
        f"task: t\nturns: [{', '.join(['{calls: [{tool: ' + json.dumps(f'f{ESC}') + '}]}'] * 3)}, {{text: done}}]\n"
    )
    result = run("run", *policy, "--script", "script.yaml")
    assert "\x1b" not in result.stdout
    assert "countingf\\x1b[31m" in result.stdout
