"""A registry of a few invented extensions, and short ways to load a policy text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from policyengine.errors import ConfigError, ExtensionError
from policyengine.extension import Extension, OptionProblem
from policyengine.policy.load import load_policy_text
from policyengine.policy.model import Policy
from policyengine.policy.problems import Problem

HEADER = "apiVersion: policyengine/v1\nkind: Policy\nname: mine\n"
RUNG = {"type": "integer", "min": 1, "max": 100, "meta": {"stricter": "lower", "absent": "loosest"}}
UNSAID = {"type": "integer", "min": 1, "max": 100, "meta": {"stricter": "lower"}}


class CallLimit(Extension):
    """Has a number with a default and a ladder whose default is the default of the whole field."""

    name = "call_limit"
    options = {
        "limit": {"type": "integer", "min": 1, "max": 1000, "default": 40, "meta": {"stricter": "lower"}},
        "ladder": {
            "type": "dict",
            "default": {"hint": 3, "stop": 5},
            "schema": {"hint": RUNG, "stop": RUNG, "period": {**RUNG, "default": 7}},
        },
        "tools": {
            "type": "dict",
            "keysrules": {"type": "string", "minlength": 1},
            "valuesrules": {"type": "dict", "schema": {"limit": RUNG, "deep": {**RUNG, "default": 9}}},
            "meta": {"keys": "patterns"},
        },
        "unsaid": UNSAID,
        "hosts": {"type": "dict", "keysrules": {"type": "string", "minlength": 1}, "valuesrules": UNSAID},
        "kinds": {"type": "list", "schema": {"type": "string", "allowed": ["a", "b", "c"]}, "default": ["a", "b"]},
    }

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        ladder = options["ladder"]
        if ladder.get("stop", 100) <= ladder.get("hint", 0):
            yield OptionProblem(("ladder", "stop"), "stop must come after hint")
        if options["limit"] > 900:
            yield OptionProblem(("limit",), "hardly ever reached", fatal=False)


class Watch(Extension):
    name = "watch"
    options = {"word": {"type": "string", "maxlength": 20, "required": True}}


class Spend(Extension):
    name = "acme.spend"
    options = {"limit": {"type": "number", "min": 0, "max": 10_000}}


class Crashing(Extension):
    name = "crashing"

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        raise RuntimeError("boom")


class Trap(Extension):
    name = "trap"
    options = {"x": {"type": "nonsense"}}


class FakeFound(NamedTuple):
    cls: type[Extension]
    hooks: tuple[str, ...]
    distribution: str = ""
    version: str = ""
    builtin: bool = True
    origin: str = "fake.py"


class FakeRegistry:
    """Looks extensions up in a dict; `broken.one` cannot be loaded."""

    def __init__(self) -> None:
        tool_hooks = ("before_tool_call", "after_iteration")
        self.extensions = {
            "call_limit": FakeFound(CallLimit, tool_hooks),
            "watch": FakeFound(Watch, ("hist_add_warning.end",)),
            "acme.spend": FakeFound(Spend, tool_hooks, "acme-guards", "0.5.1", builtin=False),
            "folder.spend": FakeFound(Spend, tool_hooks, builtin=False),
            "crashing": FakeFound(Crashing, tool_hooks),
            "trap": FakeFound(Trap, tool_hooks),
        }

    def get(self, name: str) -> FakeFound | None:
        if name == "broken.one":
            raise ExtensionError(name, "broken.py:3", "cannot be imported")
        return self.extensions.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(self.extensions)


@pytest.fixture(scope="session")
def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture(scope="session")
def no_shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shipped")


@pytest.fixture(scope="session")
def load(registry: FakeRegistry, no_shipped: Path) -> Callable[..., Policy]:
    """Load a text, with the usual header in front of it."""

    def load(body: str, **facts: Any) -> Policy:
        return load_policy_text(HEADER + body, "p.yaml", registry=registry, shipped=no_shipped, **facts)

    return load


@pytest.fixture(scope="session")
def faults(load: Callable[..., Policy]) -> Callable[..., tuple[Problem, ...]]:
    """Return the problems of a text that cannot be loaded."""

    def faults(body: str, **facts: Any) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as caught:
            load(body, **facts)
        return caught.value.problems

    return faults
