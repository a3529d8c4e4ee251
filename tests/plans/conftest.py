"""Plans written as sketches: `"a* b<a c<a,b"` is a done step, one that needs it, and one that needs both."""

from __future__ import annotations

import pytest

from policyengine.plans import Plan, Step, start_next
from policyengine.plans.plan import blocked

MARKS = {"*": "done", ">": "current", "!": "failed"}


def sketched(text: str) -> Plan:
    """Return the plan of a sketch; `*` marks a done step, `>` the current one, `!` one that failed."""
    steps = []
    for word in text.split():
        head, _, needs = word.partition("<")
        state = MARKS.get(head[-1], "pending")
        id = head.rstrip("*>!")
        steps.append(Step(id, f"Do {id}.", tuple(filter(None, needs.split(","))), state))
    return Plan(blocked(steps))


@pytest.fixture
def plan():
    return sketched


@pytest.fixture
def begun():
    return lambda text: start_next(sketched(text))
