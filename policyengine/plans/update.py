"""One call of `update_step`: a new plan and what to tell the model, or the same plan and what was wrong.

Knows: what each action may do. Must not know: when steps begin, prompts, the loop.

An update is valid as a whole or changes nothing. Nothing is dropped without being named: done steps stay, and so does
the current step, unless the model says that it gives it up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from policyengine.messages import ToolError, ToolResult
from policyengine.parsing.strict import dumps
from policyengine.plans.plan import (
    DEFAULT_MAX_STEPS,
    MAX_RESULT,
    Plan,
    PlanError,
    Step,
    blocked,
    ids_of,
    one_line,
    ready,
)
from policyengine.plans.tools import FIELDS, REQUIRED, new_steps, read_arguments, update_step_tool


class Updated(msgspec.Struct, frozen=True):
    """What came of a call: the plan from now on, and the result for the model.

    With an error `plan` is the very object that was given. `data` is what `result.text` holds after a valid update: a
    sentence, the revision, the current step, the steps that can be begun, and every step's state.
    """

    plan: Plan
    result: ToolResult
    data: dict[str, Any] = {}

    @property
    def ok(self) -> bool:
        """Whether the update was valid."""
        return self.result.status == "ok"

    @property
    def code(self) -> str:
        """The machine reason of an error; empty for a valid update."""
        return self.result.error.code if self.result.error else ""


def update_plan(plan: Plan, args: Any, *, call_id: str = "", max_steps: int = DEFAULT_MAX_STEPS) -> Updated:
    """Return what a call of `update_step` with these arguments does to a plan. Never raises, whatever they are."""
    read = read_arguments(update_step_tool(max_steps), args)
    if read.code:
        return _refused(plan, call_id, read.code, read.message)
    action = read.args["action"]
    try:
        _check_fields(action, read.args)
        steps, message = _ACTIONS[action](plan, read.args)
        if len(steps) > max(max_steps, len(plan.steps)):
            raise PlanError(
                "too_many_steps",
                f"The plan would have {len(steps)} steps, done ones included, and {max_steps} is the most. "
                "Put several steps into one.",
            )
        changed = Plan(steps, plan.revision + 1)
    except PlanError as error:
        return _refused(plan, call_id, error.code, f"The plan was not changed. {error.message}")
    data = {"message": message, **plan_echo(changed)}
    return Updated(changed, ToolResult(call_id, dumps(data)), data)


def plan_echo(plan: Plan) -> dict[str, Any]:
    """Return the plan without descriptions, as results of the plan tools show it."""
    return {
        "revision": plan.revision,
        "current": plan.current or None,
        "ready": [step.id for step in ready(plan)],
        "steps": {step.id: step.state for step in plan.steps},
    }


def _refused(plan: Plan, call_id: str, code: str, message: str) -> Updated:
    # It can be mended and sent again, so it is worth another try.
    error = ToolError(code, message, retryable=True, declared=True)
    return Updated(plan, ToolResult(call_id, message, "error", error))


def _check_fields(action: str, args: Mapping[str, Any]) -> None:
    missing = [name for name in REQUIRED[action] if name not in args]
    if missing:
        raise PlanError("missing_argument", f"{action} needs {' and '.join(missing)} as well.")
    foreign = [name for name in args if name != "action" and name not in FIELDS[action]]
    if foreign:
        allowed = ", ".join(name for name in _ORDER if name in FIELDS[action])
        raise PlanError(
            "unexpected_argument",
            f"{', '.join(foreign)} cannot be sent with {action}, which takes: {allowed}. Send one action per call.",
        )


# ---- actions


def _replan(plan: Plan, args: Mapping[str, Any]) -> tuple[tuple[Step, ...], str]:
    listed = new_steps(args["steps"])
    ids = ids_of(listed)
    kept = [step for step in plan.steps if step.state == "done"]
    current = plan.step(plan.current)
    for step in kept:
        if step.id in ids:
            raise PlanError(
                "duplicate_id", f"Step {step.id} is done and stays; leave it out, or give the new step another id."
            )
    message = "The plan was replaced."
    if current is not None and args.get("replace_current"):
        if not listed:
            raise PlanError("no_steps", f"List at least one step in the place of the current step {current.id}.")
        if current.id in ids:
            raise PlanError(
                "current_step",
                f"Step {current.id} cannot be given up and listed. Leave replace_current out to keep it under way, "
                "or give the new step another id.",
            )
        message = f"The plan was replaced; step {current.id} was given up."
    elif current is not None:
        message = f"The plan was replaced; step {current.id} is still the current one."
        if current.id not in ids:
            kept.append(current)
        else:
            listed = tuple(
                msgspec.structs.replace(step, state="current") if step.id == current.id else step for step in listed
            )
    steps = (*kept, *listed)
    _check_removed(plan, steps)
    return steps, message


def _check_removed(plan: Plan, steps: tuple[Step, ...]) -> None:
    """Refuse dependencies on steps that a new plan leaves out."""
    left = ids_of(steps)
    for step in steps:
        for id in step.depends_on:
            gone = plan.step(id) if id not in left else None
            if gone is not None:
                raise PlanError(
                    "dependency_failed" if gone.state in ("failed", "blocked") else "dependency_removed",
                    f"Step {step.id} depends on {id}, which is {_told(gone)} and not in the new plan. "
                    f"List {id} again, or let {step.id} depend on other steps.",
                )


def _mark_done(plan: Plan, args: Mapping[str, Any]) -> tuple[tuple[Step, ...], str]:
    id = args.get("id", plan.current)
    if not id:
        raise PlanError("no_current_step", "No step is under way; name the step that is done.")
    step = _existing(plan, id)
    if step.state == "done":
        raise PlanError("already_done", f"Step {id} is done already. {_next(plan)}")
    if step.state == "failed":
        raise PlanError("step_failed", f"Step {id} has failed. To try it again, list it in a replan.")
    done = ids_of(plan.steps, "done")
    missing = [need for need in step.depends_on if need not in done]
    if missing:
        raise PlanError(
            "dependencies_not_done",
            f"Step {id} depends on {', '.join(missing)}, which must be done first; or replan without that dependency.",
        )
    ended = msgspec.structs.replace(step, state="done", result=one_line(args.get("result", ""), MAX_RESULT))
    return tuple(ended if one.id == id else one for one in plan.steps), f"Step {id} is done."


def _add_step(plan: Plan, args: Mapping[str, Any]) -> tuple[tuple[Step, ...], str]:
    (step,) = new_steps([args])
    if plan.step(step.id) is not None:
        raise PlanError("duplicate_id", f"There is a step {step.id} already; give the new one another id.")
    for id in step.depends_on:
        needed = plan.step(id)
        if needed is not None and needed.state in ("failed", "blocked"):
            raise PlanError(
                "dependency_failed",
                f"Step {step.id} depends on {id}, which is {_told(needed)}, so it could never begin. "
                "Let it depend on other steps, or replan.",
            )
    return (*plan.steps, step), f"Step {step.id} was added."


def _remove_step(plan: Plan, args: Mapping[str, Any]) -> tuple[tuple[Step, ...], str]:
    id = args["id"]
    step = _existing(plan, id)
    if step.state == "done":
        raise PlanError("done_step", f"Step {id} is done and stays in the plan.")
    if step.state == "current":
        raise PlanError(
            "current_step", f"Step {id} is the current one. Mark it as done, or replan with replace_current."
        )
    needed_by = [other.id for other in plan.steps if id in other.depends_on]
    if needed_by:
        raise PlanError(
            "step_needed", f"Step {id} is needed by: {', '.join(needed_by)}. Remove these first, or replan."
        )
    if len(plan.steps) == 1:
        raise PlanError("no_steps", f"Step {id} is the only one. Replan to put others in its place.")
    return blocked(other for other in plan.steps if other.id != id), f"Step {id} was removed."


def _existing(plan: Plan, id: str) -> Step:
    step = plan.step(id)
    if step is None:
        ids = ", ".join(one.id for one in plan.steps)
        raise PlanError("unknown_step", f"There is no step {one_line(id, 80)}. The steps are: {ids}.")
    return step


def _told(step: Step) -> str:
    return {"failed": "failed", "blocked": "blocked by a failed step"}.get(step.state, f"a {step.state} step")


def _next(plan: Plan) -> str:
    if plan.current:
        return f"The current step is {plan.current}."
    ids = ", ".join(step.id for step in ready(plan))
    return f"What can be begun now: {ids}." if ids else "No step is left that could be begun."


_ACTIONS: dict[str, Callable[[Plan, Mapping[str, Any]], tuple[tuple[Step, ...], str]]] = {
    "replan": _replan,
    "mark_done": _mark_done,
    "add_step": _add_step,
    "remove_step": _remove_step,
}
_ORDER = ("id", "description", "depends_on", "result", "steps", "replace_current")
