"""Class `history`: a history in a provider's form, and what the provider would refuse in it.

A problem is compared by code and message, and by id where the case names one. What we find must also be mendable:
after the repair only what cannot be written in the provider's place may be left.
"""

from __future__ import annotations

from typing import Any

from policyengine.history.check import HistoryProblem, check_history
from policyengine.history.profile import HistoryProfile
from policyengine.history.repair import UNREPAIRABLE, repair_history

NOT_A_RULE = ("optional", "allowed", "ignored", "supported", "none", None)
"""Other words of the cases for a rule that is not in force."""


def judge(case: dict[str, Any]) -> list[str]:
    """Return what is wrong with our outcome; an empty list means the case passes."""
    given, expected = case["input"], case["expected"]
    messages, shape, profile = given["messages"], given["format"], _profile(given.get("profile") or {})
    found = check_history(messages, shape=shape, profile=profile)
    wanted = [expected, *(option for option in expected.get("accept", []) if isinstance(option, dict))]
    differences = [_difference(found, option) for option in wanted]
    if all(differences):
        return [differences[0]]
    left = repair_history(messages, shape=shape, profile=profile).remaining
    if any(problem.code not in UNREPAIRABLE for problem in left):
        return [f"after the repair there is still {_shown(left)}"]
    return []


def _profile(rules: dict[str, Any]) -> dict[str, Any]:
    known = HistoryProfile.__struct_fields__
    return {name: value for name, value in rules.items() if name in known and value not in NOT_A_RULE}


def _difference(found: tuple[HistoryProblem, ...], expected: dict[str, Any]) -> str:
    problems = expected.get("problems", [])
    wanted = sorted((problem["index"], problem["code"]) for problem in problems)
    ids = {(problem["index"], problem["code"], problem["id"]) for problem in problems if "id" in problem}
    ours = sorted((problem.index, problem.code) for problem in found)
    if expected["valid"] == bool(found) or ours != wanted:
        return f"found {_shown(found)}, expected {problems or 'nothing'}"
    missing = ids - {(problem.index, problem.code, problem.id) for problem in found}
    return f"found {_shown(found)}, which lacks {sorted(missing)}" if missing else ""


def _shown(problems: tuple[HistoryProblem, ...]) -> str:
    return "; ".join(f"{problem.code} {problem.id} at {problem.index}" for problem in problems) or "nothing"
