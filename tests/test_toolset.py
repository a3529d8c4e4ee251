"""What may be a tool, and what is said of what may not."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from policyengine import Agent, Engine, UsageError, call, say
from policyengine.providers.scripted import ScriptedModel
from policyengine.script import Script
from policyengine.toolset import as_tools, load_tools


class Look:
    """Look somewhere."""

    def __call__(self, place: str = "") -> str:
        return "a key"


class Wait:
    async def __call__(self) -> str:
        return "waited"


def f(x: int = 1) -> int:
    return x


async def later() -> str:
    return "later"


def test_an_object_that_can_be_called_has_the_name_of_its_class():
    assert [spec.name for spec in as_tools([Look(), Wait()]).specs] == ["Look", "Wait"]
    assert as_tools([Wait()]).get("Wait").is_async
    assert not as_tools([Look()]).get("Look").is_async


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ([functools.partial(f, 2)], "mapping of names"),
        ({"f": max}, "'f' has no signature"),
        ([dict], "'dict' has no signature"),
        ([5], "is no function"),
        (5, "must be functions"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_the_reason(source, reason):
    with pytest.raises(UsageError, match=reason):
        as_tools(source)


def test_annotations_that_cannot_be_read_are_left_out():
    def odd(x): ...

    odd.__annotations__ = {"x": "1 +"}
    assert as_tools([odd]).specs[0].parameters["properties"] == {"x": {}}
    assert as_tools({"f": functools.partial(f, 2)}).get("f") is not None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("def (", "SyntaxError"),
        ("import nothing_of_this_name", "No module named"),
        ("def __getattr__(name): raise SystemExit(0)", "SystemExit: 0"),
        ("x = 1", "has no 'T'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_usage_error(tmp_path: Path, monkeypatch, source, reason):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_tools.py").write_text(source)
    monkeypatch.delitem(sys.modules, "broken_tools", raising=False)
    with pytest.raises(UsageError, match=reason):
        load_tools("broken_tools:T")
    sys.modules.pop("broken_tools", None)


@pytest.mark.parametrize("reference", ["../x:y", "..:x", "a/b:x", "x.py:y z:", "", "x", ":x"])
def test_a_reference_that_names_no_module_is_a_usage_error(reference):
    with pytest.raises(UsageError):
        load_tools(reference)


@pytest.mark.filterwarnings("error")
def test_a_function_that_returns_a_coroutine_has_not_run():
    model = ScriptedModel(Script("t", (call("hidden"), say("done"))))
    outcome = Agent(Engine(), model, {"hidden": lambda: later()}).run("t")
    told = next(message.text for message in outcome.messages if message.role == "tool")
    assert "async def" in told
    assert "error" in told.casefold()
