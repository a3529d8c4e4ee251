"""Options of the stall detector: schema, defaults, per-tool ladders, rungs that can never fire.

Knows: what a policy may say. Must not know: calls, results, runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from policyengine import RUNGS, Ladder, OptionProblem, ladder_option, ladder_problems

MAX_PERIOD = 5
MAX_GAP = 50
TEXT_RUNGS = tuple(rung for rung in RUNGS if rung != "deny")
KINDS = ("repeat", "cycle", "interleaved", "stagnation", "poll")

RESULTS: dict[str, Any] = {"type": "string", "allowed": ["compare", "compare_successes", "ignore"]}
"""Which results of equal calls are taken as equal: those that are, also any two failures, or all."""

_TOOL: dict[str, Any] = {
    "repeat": ladder_option(),
    "cycle": ladder_option(),
    "interleaved": ladder_option(),
    "stagnation": ladder_option(exec=ladder_option()),
    "poll": {**ladder_option(), "meta": {"instead": "repeat"}},
    # Without a direction: calls that become equal count towards other ladders than before.
    "ignore_args": {"type": "list", "schema": {"type": "string", "minlength": 1}},
    "results": RESULTS,
}

SCHEMA: dict[str, Any] = {
    "repeat": ladder_option({"hint": 3, "deny": 5, "stop": 8}),
    "cycle": ladder_option(
        {"hint": 3, "stop": 5, "max_period": MAX_PERIOD},
        max_period={"type": "integer", "min": 2, "max": 16, "default": MAX_PERIOD, "meta": {"stricter": "higher"}},
    ),
    "interleaved": ladder_option(
        {"hint": 6, "deny": 10, "max_gap": MAX_GAP},
        max_gap={"type": "integer", "min": 2, "max": 100, "default": MAX_GAP, "meta": {"stricter": "higher"}},
    ),
    "stagnation": ladder_option(
        {"hint": 6, "deny": 10, "exec": {"hint": 12, "deny": 20}},
        exec=ladder_option(),
    ),
    "poll": ladder_option({"hint": 10, "deny": 20, "stop": 25}),
    "text": ladder_option({"hint": 2, "stop": 4}, rungs=TEXT_RUNGS),
    "tools": {
        "type": "dict",
        "keysrules": {"type": "string", "minlength": 1},
        "valuesrules": {"type": "dict", "schema": _TOOL},
        "meta": {"keys": "patterns"},
        "default": {},
    },
    "results": {**RESULTS, "default": "compare"},
    "scope": {"type": "string", "allowed": ["step", "run", "conversation"], "default": "step"},
}


class Rungs(msgspec.Struct, frozen=True):
    """A ladder split by how its rungs count: `deny` counts every copy of a call, the `rest` one per batch.

    `first` is the lowest number of both.
    """

    deny: int
    rest: Ladder
    first: int


class Plan(msgspec.Struct, frozen=True):
    """The ladders that hold for one tool."""

    repeat: Rungs
    poll: Rungs
    interleaved: Rungs
    cycle: Ladder
    stagnation: dict[str, Ladder]
    ignore: frozenset[str] = frozenset()
    results: str = "compare"

    def identical(self, effect: str) -> Rungs:
        """Return the ladder for identical calls of a tool with this effect."""
        return self.poll if effect == "poll" else self.repeat


def find_override(tools: Mapping[str, Any], tool: str) -> Mapping[str, Any]:
    """Return the overrides for a tool: an exact entry, else the first pattern that matches, else nothing."""
    if tool in tools:
        found: Mapping[str, Any] = tools[tool]
        return found
    return next((entry for pattern, entry in tools.items() if fnmatchcase(tool, pattern)), {})


def make_plan(options: Mapping[str, Any], tool: str) -> Plan:
    """Return the ladders for a tool; a ladder in its override replaces the general one whole."""
    override = find_override(options.get("tools") or {}, tool)

    def chosen(*names: str) -> Mapping[str, Any]:
        for name in names:
            if override.get(name) is not None:
                entry: Mapping[str, Any] = override[name]
                return entry
        return options.get(names[0]) or {}

    stagnation = chosen("stagnation")
    return Plan(
        repeat=_rungs(chosen("repeat")),
        # An override that speaks of a polling tool only under `repeat` means its identical calls: these are its polls.
        poll=_rungs(chosen("poll", "repeat")),
        interleaved=_rungs(chosen("interleaved")),
        cycle=Ladder.of(chosen("cycle")),
        stagnation={"read": Ladder.of(stagnation), "exec": Ladder.of(stagnation.get("exec"))},
        ignore=frozenset(override.get("ignore_args") or ()),
        results=override.get("results") or options.get("results") or "compare",
    )


def _rungs(options: Mapping[str, Any]) -> Rungs:
    whole = Ladder.of(options)
    return Rungs(whole.number("deny"), whole.without("deny"), whole.first)


def option_problems(options: Mapping[str, Any]) -> list[OptionProblem]:
    """Return the rungs that these options make unreachable, and patterns that no tool can reach."""
    problems = _order_problems(options, ())
    problems += ladder_problems(options.get("text"), ("text",))
    tools = options.get("tools") or {}
    for pattern, entry in tools.items():
        problems += _order_problems(entry, ("tools", pattern))
    problems += _pattern_problems(tools)
    problems += _masked_cycle(options)
    problems += _after_step(options)
    if not any(_has_rungs(entry) for entry in (options, *tools.values())):
        problems.append(OptionProblem((), "no ladder has any rung, so nothing is ever detected", fatal=False))
    return problems


def _order_problems(options: Mapping[str, Any], path: tuple[str, ...]) -> list[OptionProblem]:
    problems: list[OptionProblem] = []
    for kind in KINDS:
        problems += ladder_problems(options.get(kind), (*path, kind))
    stagnation = options.get("stagnation") or {}
    return problems + ladder_problems(stagnation.get("exec"), (*path, "stagnation", "exec"))


def _pattern_problems(tools: Mapping[str, Any]) -> list[OptionProblem]:
    patterns = list(tools)
    if "*" not in patterns:
        return []
    return [
        OptionProblem(("tools", pattern), 'comes after "*" and is never used; put it before', fatal=False)
        for pattern in patterns[patterns.index("*") + 1 :]
        if any(mark in pattern for mark in "*?[")
    ]


def _masked_cycle(options: Mapping[str, Any]) -> list[OptionProblem]:
    """Each call of a cycle is also an interleaved repeat, one repetition earlier than the cycle completes."""
    ends = [number for rung in ("stop", "wind_down", "end_step") if (number := _number(options, "interleaved", rung))]
    if not ends:
        return []
    text = "is never reached: interleaved ends the work at {} equal calls, before that many repetitions of a cycle"
    return [
        OptionProblem(("cycle", rung), text.format(min(ends)), fatal=False)
        for rung in RUNGS
        if (number := _number(options, "cycle", rung)) and number >= min(ends)
    ]


def _after_step(options: Mapping[str, Any]) -> list[OptionProblem]:
    """State of scope `step` is cleared when a step ends, so what comes after `end_step` is never counted to."""
    if (options.get("scope") or "step") != "step":
        return []
    text = "is never reached with scope step: the count starts again when end_step ends the step at {}"
    return [
        OptionProblem((kind, rung), text.format(end), fatal=False)
        for kind in (*KINDS, "text")
        if (end := _number(options, kind, "end_step"))
        for rung in ("wind_down", "stop")
        if _number(options, kind, rung)
    ]


def _number(options: Mapping[str, Any], kind: str, rung: str) -> int:
    number = (options.get(kind) or {}).get(rung)
    return int(number) if number is not None else 0


def _has_rungs(entry: Mapping[str, Any]) -> bool:
    nested = (entry.get("stagnation") or {}).get("exec")
    ladders = [entry.get(kind) for kind in (*KINDS, "text")]
    return any(Ladder.of(found).steps for found in (*ladders, nested))


def rungs_used(options: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the rungs that any ladder for calls has, and those of the ladder for texts."""
    entries = (options, *(options.get("tools") or {}).values())
    ladders = [entry.get(kind) or {} for entry in entries for kind in KINDS]
    ladders += [ladder["exec"] for ladder in ladders if ladder.get("exec")]
    calls = {rung for ladder in ladders for _, rung in Ladder.of(ladder).steps}
    texts = {rung for _, rung in Ladder.of(options.get("text")).steps}
    return tuple(rung for rung in RUNGS if rung in calls), tuple(rung for rung in RUNGS if rung in texts)
