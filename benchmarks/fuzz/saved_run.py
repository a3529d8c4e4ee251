"""What must hold for whatever a store gives back in the place of a saved run.

Knows: runs that were saved. Must not know: how one is read.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec

from benchmarks.fuzz.mutate import damaged, either
from benchmarks.fuzz.source import Source, happens
from policyengine.engine import Engine
from policyengine.errors import PolicyEngineError
from policyengine.hosts.core import HostRun
from policyengine.hosts.table import HOSTS
from policyengine.messages import ToolCall


@cache
def _engine() -> Engine:
    return Engine("default", enforce_time=False)


@cache
def seeds() -> tuple[Any, ...]:
    """Return saved runs as data: one at its beginning, one with a call that is open."""
    run = HostRun(_engine(), HOSTS["claude_code"], run_id="r")
    run.begin("go")
    first = run.save()
    for number in range(3):
        run.call(ToolCall(f"c{number}", "look", args={"n": number}))
        if number < 2:
            run.answer(f"c{number}", "nothing there", "error")
    return tuple(json.loads(saved) for saved in (first, run.save()))


def generate(source: Source) -> bytes:
    """Return a case."""
    return damaged(source, [b"", b"\x00" * 20, b"[]"]) if happens(source, 20) else either(source, seeds())


def check(case: bytes) -> None:
    """Resume the run; where that is possible, go on with it.

    Raises:
        AssertionError: a fault that is none of ours.
    """
    try:
        run = HostRun.resume(_engine(), HOSTS["claude_code"], case)
        if not run.ended:
            run.call(ToolCall("new", "look", args={}))
        run.save()
    except PolicyEngineError:
        return
    except msgspec.ValidationError as error:
        raise AssertionError(f"a saved run with another shape: {error}") from error
