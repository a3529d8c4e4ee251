"""The library says things through loguru, and leaves the logging of its host as it is."""

from __future__ import annotations

import subprocess
import sys

BODY = """
import logging
import sys
from loguru import logger

before = dict(logger._core.handlers), logging.getLogger().handlers[:], dict(logging.root.manager.loggerDict)

import policyengine
from policyengine import Engine
from policyengine.agent import Agent
from policyengine.providers.scripted import ScriptedModel
from policyengine.script import Script, call, say

def say_something():
    engine = Engine()
    engine.kill()
    outcome = Agent(engine, ScriptedModel(Script("t", (call("look"), say("done")))), []).run("task")
    assert outcome.status == "completed"
"""


def run(body: str) -> str:
    """Run a program in a process of its own and return what it wrote to stderr."""
    done = subprocess.run([sys.executable, "-c", BODY + body], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_using_the_library_adds_and_removes_no_handler_of_loguru_and_none_of_logging():
    run(
        "say_something()\n"
        "after = dict(logger._core.handlers), logging.getLogger().handlers[:]\n"
        "assert (list(after[0]), after[1]) == (list(before[0]), before[1])\n"
        "own = set(logging.root.manager.loggerDict) - set(before[2])\n"
        "assert not [name for name in own if name.startswith('policyengine')]\n"
        "assert logging.getLogger().level == logging.WARNING\n"
    )


def test_sinks_of_the_host_hear_the_library_and_nobody_else_does():
    said = run(
        "heard = []\n"
        "logger.remove()\n"
        "logger.add(heard.append, level='WARNING', format='{name}|{message}')\n"
        "say_something()\n"
        "assert [line.split('|')[0].split('.')[0] for line in heard] == ['policyengine'], heard\n"
        "assert 'kill switch is on' in heard[0]\n"
    )
    assert said == ""


def test_without_sinks_of_the_host_it_is_the_default_one_of_loguru_that_hears_it():
    assert "the kill switch is on" in run("say_something()\n")


def test_a_host_silences_the_library_as_any_other_and_lets_it_speak_again():
    said = run(
        "logger.disable('policyengine')\n"
        "say_something()\n"
        "logger.warning('the host speaks')\n"
        "logger.enable('policyengine')\n"
        "say_something()\n"
    )
    lines = [line.rsplit(" - ", 1)[1] for line in said.splitlines()]
    assert [line[:18] for line in lines] == ["the host speaks", "the kill switch is"]


def test_importing_the_library_and_deciding_does_not_even_import_loguru():
    body = (
        "import sys\n"
        "from policyengine import Engine, ToolCall\n"
        "run = Engine().start_run()\n"
        "run.start('task')\n"
        "run.before_tool_call(ToolCall('1', 'look', '{}'))\n"
        "sys.exit('loguru' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", body], check=False).returncode == 0


def test_the_command_line_takes_its_sinks_for_its_own_process_only():
    run(
        "import policyengine.cli\n"
        "assert list(logger._core.handlers) == list(before[0])\n"
    )  # fmt: skip
