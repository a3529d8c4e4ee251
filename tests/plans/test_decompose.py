"""From a response to a first plan: calls, lists in text, and what is neither."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import ModelResponse, ToolCall
from policyengine.plans import plan_from

STEPS = [
    {"id": "look", "description": "Find the invoice."},
    {"id": "pay", "description": "Pay it.", "depends_on": ["look"]},
]
LIST = json.dumps(STEPS)
ARGS = json.dumps({"steps": STEPS})


def called(arguments, name="set_plan"):
    return ModelResponse(tool_calls=(ToolCall("call-1", name, arguments),), finish_reason="tool_calls")


def said(text, finish_reason="stop"):
    return ModelResponse(text, finish_reason=finish_reason)


@pytest.mark.parametrize(
    "response",
    [
        called(ARGS),
        ModelResponse(tool_calls=(ToolCall("call-1", "set_plan", "", {"steps": STEPS}),)),
        called(json.dumps({"steps": LIST})),
        called(ARGS.replace('"', "'")),
        called(ARGS, "functions.set_plan"),
        ModelResponse(tool_calls=(ToolCall("1", "set_plan", ARGS), ToolCall("2", "set_plan", ARGS))),
        ModelResponse(tool_calls=(ToolCall("1", "search", "{}"), ToolCall("2", "set_plan", ARGS))),
        said(json.dumps({"tool_name": "set_plan", "tool_args": {"steps": STEPS}})),
        said(f'<tool_call>{{"name": "set_plan", "arguments": {ARGS}}}</tool_call>'),
        said(LIST),
        said(json.dumps(STEPS, indent=2)),
        said(f"```json\n{LIST}\n```"),
        said(f"Here is the plan:\n\n{LIST}\n\nShall I begin?"),
        said(f"<think>Not [{{}}] but two steps.</think>{LIST}"),
        said(f"{LIST}\n\nAgain:\n{LIST}"),
        said(ARGS),
        said(LIST.replace("}]", "},]")),
        said(LIST.removesuffix("]")),
    ],
)
def test_a_plan_is_read_from_a_call_or_a_list(response):
    found = plan_from(response)
    assert found.reason == found.message == ""
    assert [(step.id, step.description, step.depends_on) for step in found.plan.steps] == [
        ("look", "Find the invoice.", ()),
        ("pay", "Pay it.", ("look",)),
    ]
    assert found.plan.revision == 1


def listed(*steps):
    return called(json.dumps({"steps": list(steps)}))


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (said(""), "empty"),
        (said("I will look and pay."), "no_plan"),
        (said("[]"), "no_plan"),
        (ModelResponse(reasoning="Let me see.", finish_reason="stop"), "reasoning_only"),
        (said(LIST, "length"), "truncated"),
        (said(LIST[:-20]), "truncated"),
        (said(LIST.removesuffix("]"), ""), "truncated"),
        (called(ARGS[:-5] + "oops"), "truncated"),
        (called(ARGS.replace('"id": "look"', '"id": "look", "id": "x"')), "duplicate_key"),
        (called("{}", "search"), "wrong_function"),
        (said(f"Either {LIST} or {json.dumps(STEPS[:1])}."), "several_plans"),
        (
            ModelResponse(tool_calls=(ToolCall("1", "set_plan", ARGS), ToolCall("2", "set_plan", "{}"))),
            "several_plans",
        ),
        (said(LIST.replace(", ", " or ", 1)), "not_json"),
        (listed(), "no_steps"),
        (listed(*({"id": f"s{number}", "description": "x"} for number in range(4))), "too_many_steps"),
        (listed({"id": "a", "description": "x"}, {"id": "a", "description": "y"}), "duplicate_id"),
        (listed({"id": "a", "description": "x", "depends_on": ["z"]}), "unknown_dependency"),
        (listed({"id": "a", "description": "x", "depends_on": ["a"]}), "dependency_cycle"),
        (listed({"id": "a", "description": "\u200b"}), "bad_description"),
        (listed({"id": "a b", "description": "x"}), "bad_id"),
        (listed({"id": 1, "description": "x"}), "invalid_arguments"),
        (listed({"id": "a", "description": "x", "state": "done"}), "invalid_arguments"),
        (listed("look", "pay"), "invalid_arguments"),
        (said('[{"name": "x"}]'), "invalid_arguments"),
    ],
)
def test_what_is_no_plan_is_refused_with_a_reason(response, reason):
    found = plan_from(response, max_steps=3)
    assert found.plan is None
    assert found.reason == reason
    assert found.message


@settings(deadline=None)
@given(
    st.text()
    | st.lists(st.sampled_from([LIST, "[{", "}]", '"', "```", "<think>", "</think>", "[", ARGS, "\n"])).map("".join)
)
def test_no_text_makes_it_raise(text):
    found = plan_from(said(text))
    assert (found.plan is None) == bool(found.reason)
    assert plan_from(called(text)).reason or text.strip()


def test_a_list_in_a_broken_one_is_never_a_plan_of_its_own():
    assert plan_from(said(f'[{{"id": "a", "parts": {LIST}, oops}}]')).plan is None


def test_a_long_text_is_read_in_no_time():
    assert plan_from(said("[{" * 200_000)).plan is None
    assert plan_from(said("[ " * 200_000)).reason == "no_plan"
