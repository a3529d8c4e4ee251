"""What must hold for every failed request: a class, and no key of anybody in the text.

Knows: failures as they were seen. Must not know: how one is judged.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.fuzz.mutate import altered, damaged
from benchmarks.fuzz.source import Source, happens, pick
from policyengine.messages import ProviderError
from policyengine.providers.errors.classify import MAX_MESSAGE, classify_provider_error

KEY = "sk-proj-0123456789abcdefghij"
SEEN = Path(__file__).parents[2] / "tests" / "data" / "provider_errors.jsonl"
HEADERS: dict[str, Any] = {"retry-after": "20", "x-request-id": "req_1", "x-ratelimit-reset-tokens": "1m30s"}


class Case(NamedTuple):
    """A failure, and what is known apart from it."""

    error: Any
    status: Any
    headers: Any


@cache
def seeds() -> tuple[Any, ...]:
    """Return failures as they were recorded."""
    return tuple(json.loads(line) for line in SEEN.read_text("utf-8").splitlines())


def generate(source: Source) -> Case:
    """Return a case."""
    value = altered(source, pick(source, seeds()))
    headers = altered(source, HEADERS)
    if happens(source, 2):
        text = damaged(source, [json.dumps(value).encode()])
        value = text if happens(source, 2) else text.decode("utf-8", "replace")
    if happens(source, 3):
        value = Exception(value, {"body": value})
    return Case(value, pick(source, (None, 400, 429, 500, -1, "429", 10**30)), headers if happens(source, 2) else None)


def check(case: Case) -> None:
    """Judge the failure.

    Raises:
        AssertionError: the answer is none, too long, or holds a key.
    """
    found = classify_provider_error(case.error, status=case.status, headers=case.headers, now=1_700_000_000.0)
    assert isinstance(found, ProviderError)
    assert len(found.message) <= MAX_MESSAGE
    told = classify_provider_error(f"Incorrect API key provided: {KEY}. {case.error!r}"[:50_000], status=401)
    assert KEY not in repr(told), "a key is shown"
