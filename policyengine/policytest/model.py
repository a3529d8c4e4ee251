"""Tests of a policy as frozen data, and what came of them.

Knows: what a test says. Must not know: files, how a test is played.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from policyengine.engine import Engine
from policyengine.messages import ToolFacts
from policyengine.policy.problems import Position
from policyengine.script import Turn
from policyengine.testing import ManualClock, Played

Fault = Literal["raise", "nonsense", "timeout"]
FAULTS: tuple[Fault, ...] = ("raise", "nonsense", "timeout")


class Expectation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line under `expect:`; `kind` says which of the four forms it has.

    `answer`: `rule` gives the answer in exactly those rounds (or calls) up to the last one named. `allow`: `rule` is
    asked and has nothing against it, up to round `until` (0: to the end). `error`: `rule` fails. `outcome`: how the
    run ends.
    """

    kind: Literal["answer", "allow", "error", "outcome"]
    position: Position
    rule: str = ""
    action: str = ""
    wants: str = ""
    code: str = ""
    tool: str = ""
    at: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()
    until: int = 0
    outcome: str = ""
    executed: int | None = None


class Case(msgspec.Struct, frozen=True):
    """One test: a run, played turn by turn, and what is expected of it."""

    name: str
    position: Position
    turns: tuple[Turn, ...]
    expect: tuple[Expectation, ...]
    task: str = "test"
    agent: str = ""
    protocol: str = ""
    pace_s: float = 0.0
    today: str = ""
    approves: bool | None = None
    tools: tuple[tuple[str, ToolFacts], ...] = ()
    faults: dict[str, Fault] = {}


class Suite(msgspec.Struct, frozen=True):
    """The tests of one file, with the engine that holds their policy and the clock that it goes by."""

    file: str
    engine: Engine
    clock: ManualClock
    cases: tuple[Case, ...]


class Failure(msgspec.Struct, frozen=True):
    """One expectation that does not hold, or a fault that nobody expected; `account` is what happened instead."""

    position: Position
    message: str
    account: str = ""


class CaseResult(msgspec.Struct, frozen=True):
    """What came of one test."""

    case: Case
    played: Played
    failures: tuple[Failure, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every expectation holds."""
        return not self.failures


class SuiteResult(msgspec.Struct, frozen=True):
    """What came of the tests of one file."""

    suite: Suite
    cases: tuple[CaseResult, ...]
