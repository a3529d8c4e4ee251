"""A plan: steps that depend on each other, and where they stand. Plain data and pure functions.

Knows: which plans are possible, and how a step begins and ends.
Must not know: tools, responses, prompts, the loop.

A plan that breaks a rule cannot be made, by no function, by no update and by no saved file: whoever holds a `Plan` need
not look for cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import msgspec

SET_PLAN = "set_plan"
UPDATE_STEP = "update_step"
"""The tools with which a model writes a plan and ends or changes its steps."""

MAX_ID = 40
MAX_DESCRIPTION = 500
MAX_RESULT = 500
"""Longest id, description and result of a step, in characters."""

DEFAULT_MAX_STEPS = 30
MAX_STEPS = 50
"""Most steps of a plan where nothing else is said, and at all. Done steps count."""

State = Literal["pending", "current", "done", "failed", "blocked"]
Ended = Literal["done", "failed"]


class PlanError(ValueError):
    """There can be no such plan. `code` is a machine reason, the text says what would be right."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(message)


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One piece of the work.

    `depends_on` are the ids of steps that must be done first. A step is `blocked` while one of them, or one of theirs,
    has failed. `result` is a short text about what came of it.
    """

    id: str
    description: str
    depends_on: tuple[str, ...] = ()
    state: State = "pending"
    result: str = ""


class Plan(msgspec.Struct, frozen=True):
    """The steps in the order in which they are taken where dependencies leave a choice.

    `revision` counts the versions of the plan that were written, from 1; progress does not count.

    Raises:
        PlanError: the steps make no plan.
    """

    steps: tuple[Step, ...]
    revision: int = 1

    def __post_init__(self) -> None:
        """Refuse what is no plan."""
        _check_texts(self.steps)
        _check_dependencies(self.steps)
        _check_states(self.steps)

    @property
    def current(self) -> str:
        """The id of the step being worked on; empty if there is none."""
        return next((step.id for step in self.steps if step.state == "current"), "")

    def step(self, id: str) -> Step | None:
        """Return the step of this id, or `None`."""
        return next((step for step in self.steps if step.id == id), None)

    def count(self, *states: State) -> int:
        """Return how many steps are in one of these states."""
        return sum(step.state in states for step in self.steps)


def ready(plan: Plan) -> tuple[Step, ...]:
    """Return the pending steps whose dependencies are all done, in the order of the plan."""
    done = ids_of(plan.steps, "done")
    return tuple(step for step in plan.steps if step.state == "pending" and done.issuperset(step.depends_on))


def start_next(plan: Plan) -> Plan:
    """Return the plan with its first ready step as the current one.

    The same plan comes back if there is a current step already, or nothing is ready.
    """
    steps = ready(plan)
    if plan.current or not steps:
        return plan
    return _with(plan, msgspec.structs.replace(steps[0], state="current"))


def finish_current(plan: Plan, state: Ended, result: str = "") -> Plan:
    """Return the plan with its current step ended. With `failed`, all that depends on it becomes blocked.

    `result` is put on one line and cut.

    Raises:
        PlanError: there is no current step, or `state` is none in which a step ends.
    """
    step = plan.step(plan.current)
    if step is None:
        raise PlanError("no_current_step", "No step is under way.")
    if state not in get_args(Ended):
        raise PlanError("bad_state", f"A step ends as done or failed, not as {state!r}.")
    return _with(plan, msgspec.structs.replace(step, state=state, result=one_line(result, MAX_RESULT)))


def with_result(plan: Plan, id: str, result: str) -> Plan:
    """Return the plan with a result for a step that ended without one.

    The same plan comes back if there is no such step, it has not ended, or it has a result: that one stays.
    """
    step, text = plan.step(id), one_line(result, MAX_RESULT)
    if step is None or step.result or not text or step.state not in get_args(Ended):
        return plan
    return _with(plan, msgspec.structs.replace(step, result=text))


def is_over(plan: Plan) -> bool:
    """Return whether no step is under way and none can begin: the rest is done, failed or blocked."""
    return not plan.count("pending", "current")


def blocked(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps with exactly those blocked that depend, directly or through others, on a failed one."""
    steps = tuple(steps)
    dead = ids_of(steps, "failed")
    waiting = [step for step in steps if step.state in ("pending", "blocked")]
    while more := {step.id for step in waiting if step.id not in dead and not dead.isdisjoint(step.depends_on)}:
        dead |= more
    states: dict[str, State] = {step.id: "blocked" if step.id in dead else "pending" for step in waiting}
    return tuple(
        step if states.get(step.id, step.state) == step.state else msgspec.structs.replace(step, state=states[step.id])
        for step in steps
    )


def ids_of(steps: Iterable[Step], *states: State) -> set[str]:
    """Return the ids of the steps in these states (in any, where none is named)."""
    return {step.id for step in steps if not states or step.state in states}


def one_line(text: str, limit: int) -> str:
    """Return text that can be sent, on one line and cut after `limit` characters."""
    from policyengine.results.plain import encodable  # a run without a plan needs none of it

    text = encodable(" ".join(text[: limit * 4].split()))
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def says_something(text: str) -> bool:
    """Return whether text holds anything that can be seen."""
    return any(char.isprintable() and char != " " for char in text)


def _with(plan: Plan, changed: Step) -> Plan:
    steps = (changed if step.id == changed.id else step for step in plan.steps)
    return msgspec.structs.replace(plan, steps=blocked(steps))


# ---- what a plan must be


def _check_texts(steps: Sequence[Step]) -> None:
    if not steps:
        raise PlanError("no_steps", "A plan needs at least one step.")
    if len(steps) > MAX_STEPS:
        raise PlanError("too_many_steps", f"A plan has at most {MAX_STEPS} steps, not {len(steps)}.")
    for step in steps:
        if not 1 <= len(step.id) <= MAX_ID or not step.id.isprintable() or " " in step.id:
            raise PlanError("bad_id", f"An id has 1 to {MAX_ID} visible characters and no spaces, unlike {step.id!a}.")
        if not says_something(step.description):
            raise PlanError("bad_description", f"The description of step {step.id} must say what is to be done.")
        if len(step.description) > MAX_DESCRIPTION:
            raise PlanError(
                "bad_description", f"The description of step {step.id} must have at most {MAX_DESCRIPTION} characters."
            )
        if len(step.result) > MAX_RESULT:
            raise PlanError("bad_result", f"The result of step {step.id} must have at most {MAX_RESULT} characters.")


def _check_dependencies(steps: Sequence[Step]) -> None:
    seen: set[str] = set()
    for step in steps:
        if step.id in seen:
            raise PlanError("duplicate_id", f"Two steps have the id {step.id}; give every step an id of its own.")
        seen.add(step.id)
    for step in steps:
        if len(set(step.depends_on)) < len(step.depends_on):
            raise PlanError("duplicate_dependency", f"Step {step.id} names a dependency twice; name it once.")
        for id in step.depends_on:
            if id not in seen:
                raise PlanError(
                    "unknown_dependency",
                    f"Step {step.id} depends on {id}, which is no step. The steps are: {', '.join(sorted(seen))}.",
                )
    circle = _cycle(steps)
    if circle:
        path = " -> ".join((*circle, circle[0]))
        raise PlanError(
            "dependency_cycle", f"These steps wait for each other: {path}. Take one of these dependencies away."
        )


def _cycle(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the ids of steps that depend on each other in a circle, empty if there are none."""
    left = {step.id: step.depends_on for step in steps}
    while free := [id for id, needs in left.items() if left.keys().isdisjoint(needs)]:
        for id in free:
            del left[id]
    path: list[str] = []
    id = next(iter(left), "")
    while id and id not in path:
        path.append(id)
        id = next(need for need in left[id] if need in left)
    return tuple(path[path.index(id) :]) if id else ()


def _check_states(steps: Sequence[Step]) -> None:
    done = ids_of(steps, "done")
    under_way = ids_of(steps, "current")
    if len(under_way) > 1:
        raise PlanError("two_current_steps", f"Only one step can be the current one, not {len(under_way)}.")
    for step in steps:
        if step.state in ("current", "done", "failed") and not done.issuperset(step.depends_on):
            missing = ", ".join(id for id in step.depends_on if id not in done)
            raise PlanError(
                "dependencies_not_done",
                f"Step {step.id} is {step.state}, so it can depend on done steps only, and {missing} is not done.",
            )
    if blocked(steps) != tuple(steps):
        raise PlanError("bad_state", "Exactly the steps that depend on a failed one must be blocked.")
