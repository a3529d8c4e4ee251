"""`policyengine extensions new`: a package that works at once."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from policyengine import UsageError
from policyengine.cli import cli
from policyengine.scaffold import LONGEST, check_name, names, scaffold

NAME = "small-acme-guard"


def new(*args: str):
    return CliRunner().invoke(cli, ["extensions", "new", *args])


@pytest.fixture
def package(tmp_path, site):
    """Return a scaffolded package that looks installed, and a way to run Python in it."""
    scaffold(NAME, tmp_path)
    folder = tmp_path / NAME
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry_points = project["entry-points"]["policyengine.extensions"]
    site.install(project["name"], entry_points, project["version"], requires=project["dependencies"])
    search = os.pathsep.join(map(str, (site.path, folder / "src")))

    def python(*args: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", *args]
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)

    return python


def test_its_own_tests_pass(package):
    done = package("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_its_policy_is_sound_proven_and_tested_to_the_last_threshold(package):
    policy = f"policies/{NAME}.yaml"
    for verb in (["check", "--strict", policy], ["prove", "--strict", policy], ["test", "policies"]):
        done = package("policyengine", *verb)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
    for target in (NAME, "small.acme_guard"):
        done = package("policyengine", "extensions", "check", "--strict", target)
        assert (done.returncode, done.stdout.count("ok: small.acme_guard (")) == (0, 1), done.stdout + done.stderr
    done = package("policyengine", "test", "policies", "--fail-under", "100")
    assert (done.returncode, "100.0 % (6 of 6)" in done.stdout) == (0, True), done.stdout + done.stderr


def test_every_file_is_listed_and_the_next_step_is_said(tmp_path):
    result = new(NAME, "--output", str(tmp_path / "deep" / "down"))
    assert result.exit_code == 0
    folder = tmp_path / "deep" / "down" / NAME
    assert {path for path in folder.rglob("*") if path.is_file()} == {Path(line) for line in result.stdout.split()}
    assert "pip install -e" in result.stderr


def test_names_follow_from_the_name_of_the_package():
    assert names("acme-spend-limit") == {
        "name": "acme-spend-limit",
        "package": "acme_spend_limit",
        "extension": "acme.spend_limit",
        "cls": "AcmeSpendLimit",
    }


def test_nothing_is_left_to_fill_in_and_no_line_is_too_long_under_the_longest_name(tmp_path):
    name = "abcdefghij-bcdefghijk-cdefghijkl-defghij"
    assert len(name) == LONGEST
    for file in scaffold(name, tmp_path):
        text = file.read_text(encoding="utf-8")
        assert not any(f"@{word}@" in text or f"@{word}@" in str(file) for word in names(name))
        if file.suffix == ".py":
            ast.parse(text)
            assert max(map(len, text.splitlines()), default=0) <= 120


def test_an_existing_folder_or_file_is_left_alone(tmp_path):
    (tmp_path / NAME).mkdir()
    result = new(NAME, "--output", str(tmp_path))
    assert (result.exit_code, "exists already" in result.stderr) == (1, True)
    assert list((tmp_path / NAME).iterdir()) == []
    (tmp_path / "file").write_text("mine")
    assert new(NAME, "--output", str(tmp_path / "file")).exit_code == 1
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("guard", "for example acme-guard"),
        ("Acme_Guard", "for example acme-guard"),
        ("AcmeGuard", "for example acme-guard"),
        ("../acme-guard", "for example acme-guard"),
        ("acme-1st", "is no name"),
        ("-", "is no name"),
        ("", "is no name"),
        ("acme-guard\n", "is no name"),
        ("acme-" + "x" * LONGEST, "too long"),
        ("agent-policyengine", "the engine's own name"),
        ("testing-guard", "take for a test"),
        ("policyengine-guard", "the engine's own name"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(name, reason):
    with pytest.raises(UsageError, match=reason):
        check_name(name)


def test_a_module_of_that_name_may_not_exist_already(site):
    site.install("whatever", {}, other_acme_guard="")
    with pytest.raises(UsageError, match="installed already"):
        check_name("other-acme-guard")
