"""What holds for every verb: help without importing it, exit codes, where errors go."""

from __future__ import annotations

import subprocess
import sys

import pytest

from policyengine.cli import VERBS, guarded

MAIN = "from policyengine.cli import main; main()"


def in_a_process(*args: str, code: str = MAIN) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_help_lists_every_verb(run):
    result = run("--help")
    assert result.exit_code == 0
    assert all(f"  {verb} " in result.stdout for verb in VERBS)


def test_help_imports_no_verb_and_nothing_heavy():
    code = (
        "import sys\n"
        "from policyengine.cli import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'rich', 'yaml', 'cerberus', 'loguru', 'jinja2', 'policyengine.engine', 'policyengine.cli.run'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    assert in_a_process(code=code).stderr.strip() == "[]"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(run, verb):
    assert run(verb, "--help").exit_code == 0


def test_version_is_that_of_the_package():
    from importlib.metadata import version

    result = in_a_process("--version")
    assert (result.returncode, result.stdout.split()[-1]) == (0, version("agent-policyengine"))


def test_an_unknown_verb_is_a_usage_error_with_a_suggestion(run):
    result = run("chekc")
    assert result.exit_code == 1
    assert 'did you mean "check"?' in result.stderr
    assert result.stdout == ""


def test_a_missing_argument_is_a_usage_error(run):
    assert run("eval").exit_code == 1


def test_the_module_runs_like_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "policyengine.cli", "check"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (result.returncode, result.stdout) == (4, "")


def test_what_nobody_expected_is_a_traceback_and_exit_code_2(capsys):
    def work():
        raise RuntimeError("a bug")

    assert guarded(work) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interrupting_ends_with_the_shells_code():
    def work():
        raise KeyboardInterrupt

    assert guarded(work) == 130


def test_a_reader_that_went_away_ends_the_process_quietly():
    code = (
        "import os, sys\n"
        "read, write = os.pipe()\n"
        "os.dup2(write, 1)\n"
        "os.close(write), os.close(read)\n"
        "from policyengine.cli import main\n"
        "main()\n"
    )
    result = in_a_process("explain", "default", code=code)
    assert (result.returncode, result.stderr) == (141, "")
