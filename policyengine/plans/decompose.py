"""The response to "write a plan" -> a plan, or why there is none.

Knows: `set_plan`, and a list of steps written as text.
Must not know: how it was asked for, what happens without a plan.

A response that cannot be read costs nothing more: the task is one step then (`single_step`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from policyengine.identity import call_identity
from policyengine.messages import ModelResponse
from policyengine.parsing.found import Terms
from policyengine.parsing.names import Tools
from policyengine.parsing.objects import object_at
from policyengine.parsing.parse import CUT_REASONS, ENDED_REASONS, parse_response
from policyengine.parsing.repair import Allowance
from policyengine.parsing.scan import SCANNABLE
from policyengine.parsing.strict import StrictError
from policyengine.plans.plan import (
    DEFAULT_MAX_STEPS,
    MAX_DESCRIPTION,
    SET_PLAN,
    Plan,
    PlanError,
    Step,
    one_line,
    says_something,
)
from policyengine.plans.tools import new_steps, read_arguments, set_plan_tool


class Decomposed(msgspec.Struct, frozen=True):
    """A plan, or `None` with a machine `reason` and a `message` that says what was wrong with it."""

    plan: Plan | None
    reason: str = ""
    message: str = ""


def plan_from(response: ModelResponse, max_steps: int = DEFAULT_MAX_STEPS) -> Decomposed:
    """Return the plan in a response: in a call of `set_plan`, else in a JSON list of steps in its text.

    Calls are read as `parse_response` reads them with `mode="repair"`, in the text as well. A list may stand in a
    fence or amid prose, but there must be only one. Never raises.
    """
    tool = set_plan_tool(max_steps)
    if response.finish_reason in CUT_REASONS:
        return _none("truncated", "The response was cut off.")
    verdict = parse_response(response, tools={tool.name: tool.parameters}, mode="repair", text_fallback=True)
    if not verdict.usable:
        return _none(verdict.reason or verdict.kind, f"The response cannot be used ({verdict.kind}).")
    calls = [call for call in verdict.calls if call.name == SET_PLAN]
    if verdict.calls and not calls:
        return _none("wrong_function", f"Only {SET_PLAN} was asked for, not {one_line(verdict.calls[0].name, 80)}.")
    try:
        found = [call.args for call in calls] or [{"steps": steps} for steps in _lists(response)]
    except StrictError as error:
        return _none(error.reason, "The list of steps cannot be read.")
    if not found:
        return _none("no_plan", f"The response holds neither a call of {SET_PLAN} nor a list of steps.")
    if len({call_identity(SET_PLAN, args) for args in found}) > 1:
        return _none("several_plans", "The response holds several plans, and nobody said which one counts.")
    return _made(found[0], max_steps)


def single_step(task: str) -> Plan:
    """Return the plan of a task that was not taken apart: one step."""
    text = one_line(task, MAX_DESCRIPTION)
    return Plan((Step("task", text if says_something(text) else "The task."),))


def _made(args: Any, max_steps: int) -> Decomposed:
    read = read_arguments(set_plan_tool(max_steps), args)
    if read.code:
        return _none(read.code, read.message)
    try:
        return Decomposed(Plan(new_steps(read.args["steps"])))
    except PlanError as error:
        return _none(error.code, error.message)


def _none(reason: str, message: str) -> Decomposed:
    return Decomposed(None, reason, message)


def _lists(response: ModelResponse) -> Iterator[list[Any]]:
    """Yield every list of objects in a text, whatever it stands in.

    Raises:
        StrictError: one cannot be read. What is nested in it is never a plan of its own.
    """
    text = _REASONING.split(response.text[:SCANNABLE])[-1]
    terms = Terms(Tools(None), True, response.finish_reason in ENDED_REASONS, Allowance())
    at = 0
    while match := _OPENING.search(text, at):
        part = object_at(text, match.start(), terms)
        at = part.end
        yield part.value


_REASONING = re.compile(r"</(?:think|thinking|thought|thoughts|reasoning)>")
_OPENING = re.compile(r"\[\s{0,100}\{")
