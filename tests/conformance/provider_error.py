"""Class `provider_error`: what a failed request was, what helps, and the numbers in its text.

Compared are the class, whether the same request may be sent again, the first remedy, and every number, id and place
that a case names.
"""

from __future__ import annotations

import re
from typing import Any

from policyengine import ProviderError
from policyengine.providers.errors import classify_provider_error

NUMBERS = ("tokens", "limit", "requested", "max_tokens", "input_tokens", "retry_after_s", "message_index", "position")
REMEDY = re.compile(r"[a-z]+(?:_[a-z]+)*")


def judge(case: dict[str, Any]) -> list[str]:
    """Return what is wrong with our outcome; an empty list means the case passes."""
    given, expected = case["input"], case["expected"]
    ours = classify_provider_error(given)
    others = [{**expected, **other} for other in expected.get("accept", []) if isinstance(other, dict)]
    found = [_differences(ours, right) for right in (expected, *others)]
    return [] if [] in found else found[0]


def _differences(ours: ProviderError, expected: dict[str, Any]) -> list[str]:
    seen = {"error_class": ours.code, "retry_same_request": ours.retry_same_request, "ids": list(ours.ids)}
    seen |= {name: getattr(ours, name) for name in NUMBERS}
    if seen["limit"] is None:  # a case has one name for limits, whatever they count
        seen["limit"] = ours.limit_bytes
    problems = [
        f"{name} is {value!r}, expected {expected[name]!r}"
        for name, value in seen.items()
        if name in expected and value != expected[name]
    ]
    wanted = expected.get("remedy") or [None]
    if wanted[0] is not None and ours.remedies[:1] != (wanted[0],):
        problems.append(f"remedies are {ours.remedies}, expected {wanted}")
    for phrase in expected.get("must_not", []):
        forbidden = REMEDY.match(phrase)
        if forbidden and forbidden.group() in ours.remedies:
            problems.append(f"must not: {phrase}")
    return problems
