"""What must hold for the masks of a decision log: what they mean is never written.

Knows: lines with content, pointers. Must not know: how a line is masked.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from benchmarks.fuzz.mutate import altered
from benchmarks.fuzz.source import Source, some
from policyengine.policy.pointers import pointer_trouble
from policyengine.telemetry.decision_log import CallLine, PolicyLine, Record, encode

SECRET = "hunter2-0c5d7f"
POINTERS = (
    *("/call/arguments/token", "/call/arguments", "/result", "/result/text", "/message", "/rules/*/error"),
    *("/call/arguments/*/token", "/call/arguments/list/0", "/call/arguments/a~1b", "/call/arguments/m~0n", "/call"),
)
ARGUMENTS: dict[str, Any] = {
    "token": SECRET,
    "list": [SECRET, 1],
    "a/b": SECRET,
    "m~n": SECRET,
    "in": {"token": SECRET},
}


class Case(NamedTuple):
    """Arguments, and pointers to what must be hidden."""

    arguments: Any
    masks: tuple[str, ...]


def generate(source: Source) -> Case:
    """Return a case."""
    return Case(altered(source, ARGUMENTS), tuple(some(source, POINTERS, 3)))


def check(case: Case) -> None:
    """Write a line.

    Raises:
        AssertionError: it is no line, or shows what a mask means.
    """
    call = CallLine("look", "d", 1, case.arguments)
    policy = PolicyLine("p", "", 1, "d")
    record = Record(
        1, "decision", "t", "r", "", 1, 1, "before_tool_call", 1, policy, call, "allow", "allow", "", "", SECRET, (),
        0.0, None, {"text": SECRET},
    )  # fmt: skip
    masks = [mask for mask in case.masks if not pointer_trouble(mask)]
    text = encode(record, masks)
    assert "\n" not in text
    line = json.loads(text)
    if "/call/arguments" in masks or "/call" in masks:
        assert SECRET not in json.dumps(line["call"])
    if "/result" in masks or "/result/text" in masks:
        assert SECRET not in json.dumps(line.get("result"))
    if "/call/arguments/token" in masks:
        written = line["call"].get("arguments")
        assert not isinstance(written, dict) or SECRET not in json.dumps(written.get("token"))
