"""A policy that names tools which nobody offers is told of once."""

from __future__ import annotations

import pytest
from loguru import logger

from policyengine import Agent, Guard, Script, call, say
from policyengine.offered import unmet, warn
from policyengine.providers.scripted import ScriptedModel
from policyengine.testing import make_engine


@pytest.fixture
def said():
    texts: list[str] = []
    handler = logger.add(lambda message: texts.append(message.record["message"]), level="WARNING")
    yield texts
    logger.remove(handler)


def engine(name="mine", **more):
    rules = {
        "tool_access": {"with": {"deny": ["delete_file", "mcp__*"]}},
        "tool_call_limit": {"when": {"tool": ["look", "!peek"]}, "with": {"calls": 9, "tools": {"search": 2}}},
        "step_limit": {"with": {"max_steps": 9}},
    }
    return make_engine(rules, name=name, tools={"read_*": {"effect": "read"}, **more})


def test_every_place_that_names_a_tool_is_told_of_with_the_name_on_offer_that_was_meant():
    offered = frozenset({"mcp__files__delete_file", "look"})
    told = list(unmet(engine().snapshot, offered))
    assert told == [
        "`tools:` names 'read_*', which is none of the 2 tools on offer",
        "rule 'tool_access' (policy.json:0) names 'delete_file', which is none of the 2 tools on offer; "
        "on offer is 'mcp__files__delete_file'",
        "rule 'tool_call_limit' (policy.json:0) names 'peek', which is none of the 2 tools on offer",
        "rule 'tool_call_limit' (policy.json:0) names 'search', which is none of the 2 tools on offer",
    ]
    everything = frozenset({"read_file", "delete_file", "look", "peek", "search"})
    assert list(unmet(engine().snapshot, everything)) == []


def test_a_run_says_so_at_its_start_and_only_once(said):
    def other() -> str:
        return "x"

    made = engine("loop-once")
    for _ in range(2):
        Agent(made, ScriptedModel(Script("t", (call("other", {}, "x"), say("done")))), [other]).run("t")
    assert len([text for text in said if "loop-once" in text]) == 5


def test_a_guard_that_knows_its_tools_says_so_too(said):
    for _ in range(2):
        with Guard(engine("guard-once"), task="t", tools=["other"]):
            pass
    assert len([text for text in said if "guard-once" in text]) == 5


def test_where_nobody_tells_what_is_on_offer_nothing_is_said(said):
    with Guard(engine("untold"), task="t") as guard:
        guard.ready()
        guard.response("done")
    assert said == []


def test_prices_by_pattern_are_no_tools(said):
    rule = {"with": {"usd": 1, "prices": {"house-large": {"input": 1, "output": 1}}}}
    assert warn(make_engine({"cost_budget": rule}).snapshot, ["look"]) == ()
