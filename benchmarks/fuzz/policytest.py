"""What must hold for every file of tests of a policy: verdicts, or positioned problems.

Knows: tests that pass. Must not know: how they are played.
"""

from __future__ import annotations

from benchmarks.fuzz.mutate import damaged
from benchmarks.fuzz.place import written
from benchmarks.fuzz.source import Source
from policyengine.errors import ConfigError, ExtensionError
from policyengine.policytest.play import play_case
from policyengine.policytest.read import read_suite

SEEDS = (
    b"""apiVersion: policyengine/v1
kind: PolicyTest
policy: default
tests:
  - name: it stops
    turns:
      - {calls: [{tool: look, args: {n: 1}, result: nothing}], times: 6}
      - text: done
    expect:
      - {outcome: completed}
  - name: a fault
    task: go
    agent: a
    pace: 1s
    human: approves
    tools: {look: {effect: read}}
    faults: {step_limit: raise}
    turns: [{calls: [{tool: look, status: error, exit_code: 1}]}, {text: "", finish_reason: length}]
    expect: [{rule: step_limit, action: stop, at: 1}, {allow: look}]
""",
)


def generate(source: Source) -> bytes:
    """Return a case."""
    return damaged(source, SEEDS)


def check(case: bytes) -> None:
    """Read the tests, and play them."""
    path = written("mine.test.yaml", case)
    try:
        suite = read_suite(path)
    except (ConfigError, ExtensionError):
        return
    for test in suite.cases:
        play_case(suite, test)
