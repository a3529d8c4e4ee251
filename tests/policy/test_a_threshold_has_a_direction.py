"""Every number and duration of the built-in options says which direction is stricter, or why none is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from policyengine.plugins.registry import builtin_registry
from policyengine.policy.metaschema import check_extension_schema

REGISTRY = builtin_registry()

WITHOUT_DIRECTION = {
    "cost_budget.prices.*.input": "a price is a fact about a model",
    "cost_budget.prices.*.output": "a price is a fact about a model",
    "shared_limit.prices.*.input": "a price is a fact about a model",
    "shared_limit.prices.*.output": "a price is a fact about a model",
    "shared_limit.window": "the longer, the stricter, and without one nothing is forgotten: no direction says both",
    "shared_limit.wait": "how long a store is waited for takes nothing from what is refused",
    "context_compaction.messages": "0 is no limit, so that neither direction is stricter all the way",
    "context_compaction.keep": "how much is kept takes nothing from what is refused",
    "provider_recovery.wait.first": "a pace, no limit: the number of waits is `waits`",
    "provider_recovery.wait.factor": "a pace, no limit: the number of waits is `waits`",
    "provider_recovery.wait.max": "a pace, no limit: the number of waits is `waits`",
    "provider_recovery.keep": "how much is kept takes nothing from what is refused",
    "provider_recovery.fallback_models.[].window": "a fact about a model",
}
"""Numbers and durations without a direction, and why."""

UNKNOWN_IF_ABSENT = {
    "stall_detector.*.end_step": "the end of a step may clear the counts of other rungs",
}
"""Numbers whose schema does not say what it means that they are missing, and why; `*` is any ladder."""


def fields(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    for name, rule in schema.items():
        yield from below(rule, (*path, name))


def below(rule: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    yield path, rule
    inner = rule.get("schema")
    if isinstance(inner, Mapping):
        yield from below(inner, (*path, "[]")) if "type" in inner else fields(inner, path)
    if "valuesrules" in rule:
        yield from below(rule["valuesrules"], (*path, "*"))


def thresholds() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in REGISTRY.names():
        for path, rule in fields(REGISTRY.get(name).cls.options, (name,)):
            types = {rule["type"]} if isinstance(rule["type"], str) else set(rule["type"])
            if types & {"integer", "number"} or rule.get("check_with") == "duration":
                yield ".".join(path), rule


def meta(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    return rule.get("meta") or {}


def test_every_threshold_has_a_direction_or_a_reason_for_having_none() -> None:
    found = dict(thresholds())
    assert len(found) > 60
    assert {path for path, rule in found.items() if "stricter" not in meta(rule)} == set(WITHOUT_DIRECTION)


def test_it_is_known_what_a_missing_threshold_means() -> None:
    """It has a default, or it must be given, or nothing is as loose as having none."""
    unknown = {
        path
        for path, rule in thresholds()
        if "stricter" in meta(rule)
        and "default" not in rule
        and not rule.get("required")
        and meta(rule).get("absent") != "loosest"
    }
    ladders = {f"{path.split('.')[0]}.*.{path.split('.')[-1]}" for path in unknown}
    assert ladders == set(UNKNOWN_IF_ABSENT)


@pytest.mark.parametrize("extension", REGISTRY.names())
def test_every_mapping_with_free_keys_says_how_they_match(extension: str) -> None:
    for path, rule in fields(REGISTRY.get(extension).cls.options, (extension,)):
        if "valuesrules" in rule:
            assert meta(rule).get("keys") == "patterns", path


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"stricter": "lower", "absent": "off"}, "`meta.absent` must be loosest"),
        ({"stricter": "lower", "surely": "no"}, "`meta.surely` must be true or false"),
        ({"keys": "names"}, "`meta.keys` must be patterns"),
    ],
)
def test_a_mark_with_a_value_that_means_nothing_is_refused(said: dict[str, Any], complaint: str) -> None:
    found = check_extension_schema({"n": {"type": "integer", "min": 1, "max": 9, "meta": said}})
    assert [complaint in problem for problem in found] == [True]
