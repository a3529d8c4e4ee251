"""The two tools with which a model writes a plan: their names, their schemas, and how their steps are read.

Knows: what a model may send. Must not know: what an update does, responses, the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from policyengine.arguments import ArgumentError, validate_arguments
from policyengine.messages import ToolSpec
from policyengine.plans.plan import (
    DEFAULT_MAX_STEPS,
    MAX_DESCRIPTION,
    MAX_ID,
    MAX_RESULT,
    MAX_STEPS,
    SET_PLAN,
    UPDATE_STEP,
    Step,
    one_line,
)

FIELDS: dict[str, frozenset[str]] = {
    "replan": frozenset({"steps", "replace_current"}),
    "mark_done": frozenset({"id", "result"}),
    "add_step": frozenset({"id", "description", "depends_on"}),
    "remove_step": frozenset({"id"}),
}
"""Every action of `update_step` and the arguments that belong to it."""

REQUIRED: dict[str, tuple[str, ...]] = {
    "replan": ("steps",),
    "mark_done": (),
    "add_step": ("id", "description"),
    "remove_step": ("id",),
}
"""The arguments without which an action cannot be."""


def set_plan_tool(max_steps: int = DEFAULT_MAX_STEPS) -> ToolSpec:
    """Return the tool that takes a first plan of at most `max_steps` steps (not more than `MAX_STEPS`)."""
    schema = {
        "type": "object",
        "properties": {
            "steps": {
                **_steps(max_steps),
                "minItems": 1,
                "description": "The steps, in the order in which to take them.",
            }
        },
        "required": ["steps"],
        "additionalProperties": False,
    }
    return ToolSpec(
        SET_PLAN, "Write down the plan for the task: its steps, and which of them need others first.", schema
    )


def update_step_tool(max_steps: int = DEFAULT_MAX_STEPS) -> ToolSpec:
    """Return the tool that changes a plan of at most `max_steps` steps (not more than `MAX_STEPS`)."""
    schema = {
        "type": "object",
        "properties": {
            "action": {
                "type": "string",
                "enum": list(FIELDS),
                "description": "replan: put `steps` in the place of all steps that are not done. "
                "mark_done: the step `id` (without it, the current step) is done. "
                "add_step: add the step `id` at the end. remove_step: take out the step `id`.",
            },
            "id": {**_id(), "description": "The step that is meant, or the id of the new one."},
            "description": {**_description(), "description": "add_step: what is to be done."},
            "depends_on": {**_depends_on(max_steps), "description": "add_step: ids of steps that must be done first."},
            "result": {
                "type": "string",
                "maxLength": MAX_RESULT,
                "description": "mark_done: in one sentence, what came of the step.",
            },
            "steps": {
                **_steps(max_steps),
                "description": "replan: all steps that are still to be taken. Done steps stay without being listed.",
            },
            "replace_current": {
                "type": "boolean",
                "description": "replan: true gives up the current step. Otherwise it stays, listed or not.",
            },
        },
        "required": ["action"],
        "additionalProperties": False,
    }
    return ToolSpec(UPDATE_STEP, "Change the plan, or mark a step as done.", schema)


class Read(NamedTuple):
    """Arguments that fit their schema; otherwise a machine reason (`code`) and what to tell the model (`message`)."""

    args: dict[str, Any]
    code: str = ""
    message: str = ""


def read_arguments(tool: ToolSpec, args: Any) -> Read:
    """Return the arguments of one of the two tools, repaired where a repair is unambiguous."""
    checked = validate_arguments(tool.parameters, args, tool=tool.name)
    if checked.ok:
        return Read(checked.args)
    return Read({}, _code(checked.errors, checked.args), checked.hint)


def new_steps(items: Iterable[Mapping[str, Any]]) -> tuple[Step, ...]:
    """Return steps as the schema describes them, all of them pending."""
    return tuple(
        Step(item["id"], one_line(item["description"], MAX_DESCRIPTION), tuple(item.get("depends_on", ())))
        for item in items
    )


def _code(errors: Sequence[ArgumentError], args: Mapping[str, Any]) -> str:
    found = {(error.path, error.code) for error in errors}
    if ("action", "enum") in found:
        return "unknown_action"
    if ("steps", "items") in found:
        return "too_many_steps" if args.get("steps") else "no_steps"
    return "invalid_arguments"


def _steps(max_steps: int) -> dict[str, Any]:
    return {
        "type": "array",
        "maxItems": _bounded(max_steps),
        "items": {
            "type": "object",
            "properties": {
                "id": {**_id(), "description": "A short name without spaces, used once."},
                "description": {**_description(), "description": "What is to be done."},
                "depends_on": {**_depends_on(max_steps), "description": "Ids of steps that must be done first."},
            },
            "required": ["id", "description"],
            "additionalProperties": False,
        },
    }


def _bounded(max_steps: int) -> int:
    return max(1, min(max_steps, MAX_STEPS))


def _id() -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": MAX_ID}


def _description() -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": MAX_DESCRIPTION}


def _depends_on(max_steps: int) -> dict[str, Any]:
    return {"type": "array", "maxItems": _bounded(max_steps), "uniqueItems": True, "items": _id()}
