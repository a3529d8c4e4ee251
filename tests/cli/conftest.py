"""The command line in this process, and a folder with a policy, a drop-in guard, a script and tools to run it on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from policyengine.cli import cli

GUARD = '''\
"""A guard whose thresholds are its options, and one that fails."""
import msgspec
from policyengine import Extension, hookimpl
from policyengine.extension import Proof
from policyengine.script import call


RUNGS = ("hint", "deny", "stop", "ask")


class Seen(msgspec.Struct):
    calls: int = 0


class Counting(Extension):
    """Counts calls: hints, refuses and stops at the numbers of its options."""

    name = "demo.counting"
    options = {name: {"type": "integer", "min": 1, "max": 99} for name in RUNGS}
    state = Seen
    messages = {f"counting.{name}": {"tool": "t", "observed": 1, "limit": 1} for name in RUNGS}
    templates = {"en": {kind: kind + " for {{ tool }}\\n" for kind in messages}}

    @hookimpl
    def before_tool_call(self, run, call):
        run.state.calls += 1
        for action in ("stop", "deny", "ask", "hint"):
            limit = self.options.get(action)
            if limit is not None and run.state.calls >= limit:
                return getattr(run, action)("counting", observed=run.state.calls, limit=limit, tool=call.name)

    def proofs(self):
        for action in ("hint", "deny", "stop"):
            limit = self.options.get(action)
            if limit is not None:
                turns = tuple(call("t", {"n": n}) for n in range(limit))
                yield Proof(action, action, "counting", limit, turns)


class Broken(Extension):
    """Fails at the first result of a run, with content of the run in its text."""

    name = "demo.broken"

    @hookimpl
    def after_tool_call(self, run, call, result):
        if run.id != "self-test":
            raise ValueError("cannot read " + result.text)
'''

POLICY = """\
apiVersion: policyengine/v1
kind: Policy
name: demo
revision: "7"
defaults: {timeout: 10s}
extensions:
  counting:
    use: demo.counting
    with: {hint: 2, deny: 3}
"""

SCRIPT = """\
task: Find the key.
tools: {look: Look somewhere.}
turns:
  - calls: [{tool: look, args: {place: drawer}, result: nothing}]
  - calls: [{tool: look, args: {place: shelf}, result: dust}]
  - calls: [{tool: look, args: {place: mat}, result: a key}]
  - text: Under the mat.
"""

TOOLS = '''\
"""Tools of the test."""


def look(place: str) -> str:
    """Look somewhere."""
    return f"really looked at {place}"


TOOLS = [look]
'''


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the command line in a folder with `demo.yaml`, `guards/`, `script.yaml` and `demo_tools.py`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "demo_tools", raising=False)
    (tmp_path / "guards").mkdir()
    (tmp_path / "guards" / "counting.py").write_text(GUARD)
    (tmp_path / "demo.yaml").write_text(POLICY)
    (tmp_path / "script.yaml").write_text(SCRIPT)
    (tmp_path / "demo_tools.py").write_text(TOOLS)

    def invoke(*args: str, input: str | None = None) -> Result:
        return CliRunner().invoke(cli, args, input=input)

    return invoke


DEMO = ("--policy", "demo.yaml", "--folder", "guards")
PLAY = ("run", *DEMO, "--script", "script.yaml")


@pytest.fixture
def play(run):
    """Run the script under the policy; `rules` replaces the options of its one rule."""

    def invoke(*args: str, rules: str = "{hint: 2, deny: 3}") -> Result:
        Path("demo.yaml").write_text(POLICY.replace("{hint: 2, deny: 3}", rules))
        return run(*PLAY, *args)

    return invoke
