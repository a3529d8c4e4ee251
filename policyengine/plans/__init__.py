"""Plans: steps with dependencies, written and changed by the model, kept valid by us. No I/O."""

from typing import TYPE_CHECKING

from policyengine.lazy import lazily

if TYPE_CHECKING:
    from policyengine.plans.decompose import Decomposed, plan_from, single_step
    from policyengine.plans.plan import (
        DEFAULT_MAX_STEPS,
        MAX_STEPS,
        SET_PLAN,
        UPDATE_STEP,
        Ended,
        Plan,
        PlanError,
        State,
        Step,
        finish_current,
        is_over,
        ready,
        start_next,
        with_result,
    )
    from policyengine.plans.snapshot import plan_snapshot, snapshot_digest
    from policyengine.plans.tools import set_plan_tool, update_step_tool
    from policyengine.plans.update import Updated, plan_echo, update_plan

__all__ = [
    "DEFAULT_MAX_STEPS",
    "MAX_STEPS",
    "SET_PLAN",
    "UPDATE_STEP",
    "Decomposed",
    "Ended",
    "Plan",
    "PlanError",
    "State",
    "Step",
    "Updated",
    "finish_current",
    "is_over",
    "plan_echo",
    "plan_from",
    "plan_snapshot",
    "ready",
    "set_plan_tool",
    "single_step",
    "snapshot_digest",
    "start_next",
    "update_plan",
    "update_step_tool",
    "with_result",
]

__getattr__ = lazily(
    __name__,
    {
        "DEFAULT_MAX_STEPS": "plan",
        "Decomposed": "decompose",
        "Ended": "plan",
        "MAX_STEPS": "plan",
        "Plan": "plan",
        "PlanError": "plan",
        "SET_PLAN": "plan",
        "State": "plan",
        "Step": "plan",
        "UPDATE_STEP": "plan",
        "Updated": "update",
        "finish_current": "plan",
        "is_over": "plan",
        "plan_echo": "update",
        "plan_from": "decompose",
        "plan_snapshot": "snapshot",
        "ready": "plan",
        "set_plan_tool": "tools",
        "single_step": "decompose",
        "snapshot_digest": "snapshot",
        "start_next": "plan",
        "update_plan": "update",
        "update_step_tool": "tools",
        "with_result": "plan",
    },
)
