"""Class `args`: arguments against a schema, and whether they are valid, repaired or refused, and why."""

from __future__ import annotations

import json
from typing import Any

from policyengine import Arguments, validate_arguments


def judge(case: dict[str, Any]) -> list[str]:
    """Return what is wrong with our outcome; an empty list means the case passes."""
    given, expected = case["input"], case["expected"]
    outcome = validate_arguments(given["schema"], given["args"], aliases=given.get("aliases", {}))
    others = [{**expected, **other} for other in expected.get("accept", []) if isinstance(other, dict)]
    found = [_differences(outcome, right) for right in (expected, *others)]
    return [] if [] in found else found[0]


def _differences(outcome: Arguments, expected: dict[str, Any]) -> list[str]:
    if outcome.ok != expected["ok"]:
        return [f"ok is {outcome.ok}, expected {expected['ok']} ({outcome})"]
    if outcome.ok:
        problems = []
        if "args" in expected and _exact(outcome.args) != _exact(expected["args"]):
            problems.append(f"args are {outcome.args!r}, expected {expected['args']!r}")
        if "repairs" in expected and bool(outcome.repairs) != bool(expected["repairs"]):
            problems.append(f"repairs are {outcome.repairs}, expected {expected['repairs']}")
        return problems
    ours = {(error.path, error.code) for error in outcome.errors}
    theirs = {(error["path"], error["code"]) for error in expected.get("errors", [])}
    problems = [f"errors are {sorted(ours)}, expected {sorted(theirs)}"] if theirs and ours != theirs else []
    missing = [word for word in expected.get("hint_must_contain", []) if str(word) not in outcome.hint]
    return problems + ([f"the hint lacks {missing}: {outcome.hint!r}"] if missing else [])


def _exact(value: Any) -> str:
    """Return a form in which `1`, `1.0` and `true` differ and the order of keys does not count."""
    return json.dumps(value, sort_keys=True)
