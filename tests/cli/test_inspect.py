"""`policyengine inspect tool`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from policyengine.probing import sample_of

SHOP = '''\
"""Tools of a shop."""
import enum
import time
from typing import Annotated, Literal, Optional

from policyengine import ToolResult

calls = []


class Colour(enum.Enum):
    RED = "red"


def good(item: str, amount: int = 1) -> dict:
    """Look up an item."""
    print("looking")
    calls.append(item)
    if item != "sample":
        return {"status": "error", "error": {"code": "no_item", "message": "no such item", "retryable": False}}
    return {"item": item, "left": amount}


async def later(item: str) -> dict:
    """Look up an item, later."""
    return {"item": item}


def told(item: str) -> object:
    """Tell of failures in prose."""
    return {"item": item} if item == "sample" else "Error: no such item"


def mixed(item: str) -> object:
    """Fail in two ways."""
    if isinstance(item, dict):
        return {"success": False, "error": "wrong"}
    return [item]


def numbers() -> dict:
    """Return a number that is none."""
    return {"mean": float("nan")}


def odd() -> dict:
    """Return a set."""
    return {"tags": {"a"}}


def rows() -> object:
    """Return an iterator."""
    return (n for n in range(3))


def leaves() -> None:
    """End the process."""
    raise SystemExit(3)


def slow() -> None:
    """Take too long."""
    time.sleep(0.5)


def silent() -> None:
    """Do something."""


def made() -> ToolResult:
    """Return a finished result."""
    return ToolResult("", "fine")


def bare(x, *more):
    return {"x": x}


def positional(x: int, /) -> dict:
    """Take an argument that has no name."""
    return {"x": x}


GOOD = [good, later]
NONE = []
'''


@pytest.fixture
def shop(run, monkeypatch):
    """Run `inspect tool` on a function of the module `shop`."""
    Path("shop.py").write_text(SHOP)
    monkeypatch.delitem(sys.modules, "shop", raising=False)

    def invoke(name: str, *args: str):
        return run("inspect", "tool", f"shop:{name}", *args)

    return invoke


def codes(result) -> list[str]:
    (tool,) = json.loads(result.stdout)["tools"]
    return [problem["code"] for problem in tool["problems"]]


def test_success_and_failure_are_shown_in_one_shape(shop):
    result = shop("good")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "good(item: string, amount: integer)"
    assert lines[2].startswith('  valid {"item": "sample"} -> object: ok')
    assert "  without item {} -> raised: failed (exception)" in lines
    assert '  wrong type of item {"item": {"unexpected": true}} -> object: failed (no_item)' in lines
    envelopes = [json.loads(line) for line in lines if line.startswith("    {")]
    assert [set(envelope) for envelope in envelopes] == [{"status", "tool", "data", "error", "meta"}] * 3
    assert lines[-1] == "  one shape"


def test_json_holds_every_probe_and_nothing_that_the_tool_prints(shop):
    result = shop("good", "--args", '{"item": "sample"}', "--args", '{"item": "x"}', "--json")
    shown = json.loads(result.stdout)
    (tool,) = shown["tools"]
    assert (shown["ok"], tool["ok"], tool["ran"], tool["problems"]) == (True, True, True, [])
    assert [probe["args"] for probe in tool["probes"]] == [{"item": "sample"}, {"item": "x"}]
    assert [probe["outcome"]["ok"] for probe in tool["probes"]] == [True, False]
    assert tool["probes"][1]["envelope"]["error"]["code"] == "no_item"
    assert "looking" in result.stderr


def test_no_run_calls_nothing(shop):
    result = shop("good", "--no-run")
    assert result.exit_code == 0
    assert "nothing was called" in result.stdout
    assert "looking" not in result.output


@pytest.mark.parametrize(
    ("name", "exit_code", "found"),
    [
        ("told", 1, ["free_text_failure", "different_shapes"]),
        ("mixed", 1, ["undeclared_code", "different_shapes"]),
        ("numbers", 1, ["not_finite"]),
        ("odd", 1, ["not_json"]),
        ("rows", 1, ["iterator"]),
        ("leaves", 1, ["raises_base_exception"]),
        ("slow", 1, ["timeout"]),
        ("silent", 0, ["empty_output"]),
        ("made", 0, []),
        ("later", 0, []),
        ("bare", 0, ["no_docstring", "untyped_parameter", "open_signature"]),
        ("positional", 1, ["positional_only"]),
    ],
)
def test_what_confuses_an_agent_is_a_problem(shop, name, exit_code, found):
    result = shop(name, "--json", "--timeout", "100ms" if name == "slow" else "10s")
    assert (result.exit_code, codes(result)) == (exit_code, found)


def test_warnings_count_only_with_strict(shop):
    assert shop("silent").exit_code == 0
    assert shop("silent", "--strict").exit_code == 3
    assert "warning[empty_output]" in shop("silent").stdout


def test_every_tool_of_a_list_is_probed(shop):
    result = shop("GOOD", "--json")
    assert [tool["tool"] for tool in json.loads(result.stdout)["tools"]] == ["good", "later"]
    assert shop("NONE").exit_code == 4
    assert shop("NONE", "--allow-empty").exit_code == 0


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("good", ["--args", "[1]"], "must be a JSON object, not list"),
        ("good", ["--args", "{"], "must be a JSON object: "),
        ("good", ["--args", '{"x": NaN}'], "NaN is no JSON number"),
        ("GOOD", ["--args", "{}"], "--args fit one tool, and shop:GOOD holds 2"),
        ("missing", [], "has no 'missing'"),
        ("good", ["--timeout", "soon"], "is no duration"),
    ],
)
def test_wrong_input_is_told(shop, name, args, reason):
    result = shop(name, *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert reason in result.stderr


def test_the_help_says_that_the_tool_is_really_run(run):
    assert "REALLY RUN" in run("inspect", "tool", "--help").stdout


def test_samples_follow_the_annotation(shop):
    shop("good", "--no-run")
    from typing import Annotated, Any, Literal, Optional

    import shop as module

    fitting = {
        int: 1,
        float: 1.0,
        bool: True,
        str: "sample",
        dict[str, int]: {},
        list[int]: [],
        Literal["a", "b"]: "a",
        Optional[int]: 1,  # noqa: UP045 - both spellings are met
        (int | None): 1,
        Annotated[int, "seconds"]: 1,
        module.Colour: "red",
        Any: "sample",
    }
    assert [sample_of(hint) for hint in fitting] == list(fitting.values())
