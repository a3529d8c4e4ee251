"""`policyengine diff`: what it lists, its exit codes, what it never prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from policyengine.cli import cli

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: mine\nextends: [default]\n"
OVER = "apiVersion: policyengine/v1\nkind: Overlay\ntarget: mine\n"
TIGHT = "extensions: {step_limit: {with: {max_steps: 50}}}\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(HEAD)
    Path("tight.yaml").write_text(HEAD + TIGHT)
    Path("over.yaml").write_text(OVER + TIGHT)
    Path("env.yaml").write_text(HEAD + TIGHT.replace("50", "{$env: STEPS}"))
    Path("mixed.yaml").write_text(HEAD + TIGHT + "language: zh\ndefaults: {mode: warn}\n")
    Path("broken.yaml").write_text(HEAD + "protocl: x\n")


def diff(*words: str, **env: str) -> Result:
    return CliRunner().invoke(cli, ["diff", *words], env=env)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("base.yaml", "base.yaml"), 0, "0 looser, 0 tighter, 0 other"),
        (("base.yaml", "tight.yaml"), 0, "0 looser, 1 tighter, 0 other"),
        (("tight.yaml", "base.yaml"), 1, "1 looser, 0 tighter, 0 other"),
        (("base.yaml", "base.yaml", "--new-overlay", "over.yaml"), 0, "1 tighter"),
        (("base.yaml", "base.yaml", "--old-overlay", "over.yaml"), 1, "1 looser"),
        (("base.yaml", "broken.yaml"), 2, "S204"),
        (("broken.yaml", "broken.yaml"), 2, "S204"),
        (("base.yaml", "nowhere"), 2, "M301"),
        (("default", "unattended"), 1, "looser"),
        (("base.yaml", "mixed.yaml"), 1, "language"),
    ],
)
def test_exit_codes(words: tuple[str, ...], code: int, said: str) -> None:
    result = diff(*words)
    assert result.exit_code == code, result.output
    assert said in result.output


def test_both_values_are_shown_with_their_places() -> None:
    result = diff("tight.yaml", "mixed.yaml")
    assert "extensions.step_limit.mode" in result.stdout
    assert '"enforce"' in result.stdout
    assert "mixed.yaml:7:18" in result.stdout


def test_json_is_one_object() -> None:
    result = diff("tight.yaml", "base.yaml", "--json")
    found = json.loads(result.stdout)
    assert (found["looser"], found["tighter"], found["other"]) == (1, 0, 0)
    (one,) = found["differences"]
    assert (one["path"], one["before"], one["after"]) == ("extensions.step_limit.with.max_steps", 50, 250)
    assert one["old"] == {"file": "tight.yaml", "line": 5, "column": 45}
    assert one["new"]["file"] == "policy:default"


def test_the_value_of_a_variable_decides_and_is_not_shown() -> None:
    for value, code in (("98", 0), ("9876", 1)):
        for words in (("base.yaml", "env.yaml"), ("base.yaml", "env.yaml", "--json")):
            result = diff(*words, STEPS=value)
            assert result.exit_code == code
            assert value not in result.output
            assert "STEPS" in result.output
