"""Whatever stands in a well-formed file, loading ends with a policy or with positioned problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.errors import ConfigError
from policyengine.policy.explain import explain
from policyengine.policy.load import load_policy_text
from policyengine.policy.model import Policy
from policyengine.policy.problems import Problem

FULL: dict[str, Any] = {
    "apiVersion": "policyengine/v1",
    "kind": "Policy",
    "name": "mine",
    "revision": "3",
    "requires": {"policyengine": ">=0", "extensions": {"acme-guards": ">=0.4"}},
    "defaults": {"mode": "warn", "on_error": "allow", "timeout": "1s"},
    "protocol": "auto",
    "language": "en",
    "parsing": {"mode": "strict", "max_retry": 1},
    "interventions": {"max": 3, "then": "stop"},
    "wind_down": {"rounds": 1},
    "tools": {"a*": {"effect": "read", "timeout": "5s", "result_mask": ["x+"], "failure": {"text_prefix": "E"}}},
    "extensions": {
        "call_limit": {
            "at": ["before_tool_call"],
            "with": {"limit": 3, "ladder": {"hint": 2, "stop": 4}, "kinds": ["a"], "tools": {"x": {"limit": 1}}},
            "when": {"tool": ["a", "!b"], "agent": "x"},
            "mode": "shadow",
            "on_error": "stop",
            "timeout": "2s",
            "order": {"after": ["spend"], "before": []},
        },
        "spend": {"use": "acme.spend", "with": {"limit": 1.5}},
    },
    "log": {"include": ["results"]},
    "reload": {"pin": "run", "settle": "1s"},
}
del FULL["extensions"]["call_limit"]["order"]["before"]

WORDS = [
    "",
    "off",
    "on",
    "x",
    "1s",
    "a.b",
    "call_limit",
    "spend",
    "before_tool_call",
    "$delete",
    "$append",
    "$env",
    "*",
    "(",
    ">=1",
]
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*WORDS[1:], "with", "use"]), inner, max_size=2)
    ),
    max_leaves=5,
)


def spots(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key in a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [(value, key) for key, _ in pairs]
    for _, child in (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else ()
    ):
        found += spots(child)
    return found


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(FULL))
    for _ in range(draw(st.integers(0, 3))):
        container, key = draw(st.sampled_from(spots(document)))
        if isinstance(container, dict) and draw(st.booleans()):
            container[draw(st.sampled_from(["x", "$delete", "$append", "on", "locked", *WORDS[1:5]]))] = draw(ODD)
        else:
            container[key] = draw(ODD)
    return document


def quoted(document: Any) -> str:
    """YAML with every text in quotes; the last way of writing is JSON, which is YAML too."""
    return json.dumps(document, indent=1)


def attempt(text: str, **facts: Any) -> Policy | tuple[Problem, ...]:
    try:
        return load_policy_text(text, **facts)
    except ConfigError as error:
        return error.problems


def is_sound(result: Policy | tuple[Problem, ...]) -> bool:
    """Whether everything that can be printed about a result can be printed."""
    if isinstance(result, Policy):
        return all(setting.text() for setting in explain(result))
    return bool(result) and all(problem.full() and problem.github() for problem in result)


@settings(max_examples=150, deadline=None)
@given(mutated(), st.sampled_from(["p.yaml", "p.json5"]))
def test_a_mutated_policy_loads_or_is_refused(
    registry: Any, no_shipped: Path, document: dict[str, Any], name: str
) -> None:
    assert is_sound(attempt(quoted(document), name=name, registry=registry, shipped=no_shipped))


def test_the_document_that_is_mutated_is_a_good_one(registry: Any, no_shipped: Path) -> None:
    policy = load_policy_text(quoted(FULL), registry=registry, shipped=no_shipped)
    assert [rule.id for rule in policy.rules] == ["spend", "call_limit"]
    assert load_policy_text(yaml.safe_dump(FULL), registry=registry, shipped=no_shipped).rules


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 700))
def test_every_prefix_of_a_file_loads_or_is_refused(registry: Any, no_shipped: Path, end: int) -> None:
    assert is_sound(attempt(yaml.safe_dump(FULL)[:end], registry=registry, shipped=no_shipped))


@settings(max_examples=100, deadline=None)
@given(mutated(), mutated())
def test_a_mutated_overlay_loads_or_is_refused(
    registry: Any, tmp_path_factory: Any, no_shipped: Path, document: dict[str, Any], other: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("over") / "over.json"
    upper = {key: value for key, value in other.items() if key not in ("name", "kind")}
    path.write_text(json.dumps({**upper, "kind": "Overlay", "target": "mine"}), encoding="utf-8")
    assert is_sound(attempt(quoted(document), registry=registry, overlays=[path], shipped=no_shipped))
