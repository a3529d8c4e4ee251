"""Sequences that must trip each rung, for `policyengine prove`.

Knows: the shortest sequence for each kind of stall. Must not know: how it is detected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Literal

from policyengine import Ladder, Proof, ToolFacts, Turn, call, say

from .options import MAX_PERIOD, find_override

Effect = Literal["read", "exec", "poll"]

GENERAL = "worker"
OTHER = "other_tool"


def all_proofs(options: Mapping[str, Any]) -> Iterator[Proof]:
    """Yield one proof per rung of every kind, and of every override for a tool that can be reached."""
    tools = options.get("tools") or {}
    general = _free_name(tools)
    max_period = (options.get("cycle") or {}).get("max_period") or MAX_PERIOD
    yield from _calls("", general, options, max_period)
    yield from _text(options)
    for pattern, entry in tools.items():
        name = _example(pattern)
        if find_override(tools, name) is entry:
            yield from _calls(f"[{pattern}]", name, entry, max_period)


def _calls(suffix: str, tool: str, ladders: Mapping[str, Any], max_period: int) -> Iterator[Proof]:
    stagnation = ladders.get("stagnation") or {}
    # An override under `repeat` also holds for the polls of that tool.
    poll = ladders.get("repeat") if suffix and ladders.get("poll") is None else ladders.get("poll")
    yield from chain(
        _repeat(f"repeat{suffix}", "repeat", tool, "read", ladders.get("repeat")),
        _repeat(f"poll{suffix}", "poll", tool, "poll", poll),
        _cycle(f"cycle{suffix}", tool, 2, ladders.get("cycle")),
        _cycle(
            f"cycle{suffix} period {max_period}", tool, max_period, ladders.get("cycle") if max_period > 2 else None
        ),
        _interleaved(f"interleaved{suffix}", tool, ladders.get("interleaved")),
        _stagnation(f"stagnation{suffix}", tool, "read", stagnation),
        _stagnation(f"stagnation.exec{suffix}", tool, "exec", stagnation.get("exec")),
    )


def _repeat(label: str, code: str, tool: str, effect: Effect, rungs: Mapping[str, Any] | None) -> Iterator[Proof]:
    for number, rung in Ladder.of(rungs).steps:
        turns = (call(tool, {"item": 1}, "same"),) * number
        yield Proof(f"{label}.{rung}", rung, code, number, turns, _facts(tool, effect))


def _cycle(label: str, tool: str, period: int, rungs: Mapping[str, Any] | None) -> Iterator[Proof]:
    for number, rung in Ladder.of(rungs).steps:
        block = tuple(call(tool, {"part": part}, f"answer {part}") for part in range(period))
        yield Proof(f"{label}.{rung}", rung, "cycle", period * number, block * number, _facts(tool, "read"))


def _interleaved(label: str, tool: str, rungs: Mapping[str, Any] | None) -> Iterator[Proof]:
    for number, rung in Ladder.of(rungs).steps:
        turns: list[Turn] = []
        for turn in range(number):
            turns += (call(OTHER, {"turn": turn}, f"news {turn}"), call(tool, {"item": 1}, "same"))
        yield Proof(f"{label}.{rung}", rung, "interleaved", len(turns), tuple(turns), _facts(tool, "read"))


def _stagnation(label: str, tool: str, effect: Effect, rungs: Mapping[str, Any] | None) -> Iterator[Proof]:
    for number, rung in Ladder.of(rungs).steps:
        turns = tuple(call(tool, {"question": turn}, "same") for turn in range(number))
        yield Proof(f"{label}.{rung}", rung, "stagnation", number, turns, _facts(tool, effect))


def _text(options: Mapping[str, Any]) -> Iterator[Proof]:
    for number, rung in Ladder.of(options.get("text")).steps:
        turns = (say("I will look into it now."),) * number
        yield Proof(f"text.{rung}", rung, "text_repeat", number, turns, protocol="text")


def _facts(tool: str, effect: Effect) -> dict[str, ToolFacts]:
    return {tool: ToolFacts(effect=effect), OTHER: ToolFacts(effect="read")}


def _free_name(tools: Mapping[str, Any]) -> str:
    """Return a tool name that no override matches, if there is one."""
    names = (GENERAL, *(f"{GENERAL}_{number}" for number in range(10)))
    return next((name for name in names if not find_override(tools, name)), GENERAL)


def _example(pattern: str) -> str:
    """Return a name that a pattern matches."""
    name = ""
    rest = pattern
    while rest:
        head, rest = rest[0], rest[1:]
        closing = rest.find("]", 1)
        if head == "[" and closing > 0:
            name += "x" if rest[0] == "!" else rest[0]
            rest = rest[closing + 1 :]
        else:
            name += "x" if head in "*?" else head
    return name
