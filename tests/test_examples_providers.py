"""The examples of providers and MCP servers run without a key and show what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.providers.asking import needed

EXAMPLES = Path(__file__).parents[1] / "examples" / "providers"
SHOWN = {
    "every_protocol": (
        ("openai", "anthropic"),
        [
            "openai_chat whole: completed, Found it. reasoning sent back: True",
            "openai_responses stream: completed, Found it. reasoning sent back: True",
            "anthropic_messages stream: completed, Found it. reasoning sent back: True",
        ],
    ),
    "failures": (
        ("openai",),
        ["wait 2 s", "completed: The key is in the drawer.", "asked: large 2 times, small 1 time"],
    ),
    "mcp_tools": (
        ("mcp",),
        [
            "look: claims read",
            "crash: The tool's server went away",
            "look: a key lies in the drawer",
            "completed: It is",
        ],
    ),
}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_says(name):
    packages, lines = SHOWN[name]
    for package in packages:
        needed(package)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_PROXY": "*"},
    )
    assert done.returncode == 0, done.stderr
    for line in lines:
        assert line in done.stdout
