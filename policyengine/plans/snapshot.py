"""A plan as the model is shown it, and whether that differs from what it was shown last.

Knows: what the template `plan.snapshot` needs. Must not know: templates, when a snapshot is sent.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from policyengine.jsontext import encode
from policyengine.plans.plan import UPDATE_STEP, Plan, Step


def plan_snapshot(plan: Plan) -> dict[str, Any]:
    """Return the data of the template `plan.snapshot`.

    `steps` has of each step `id`, `state`, `depends_on`, `description` and `reason` (why it failed; else empty).
    `current` is an id or empty; `remaining` counts the steps that are under way or can still be reached, `stuck` the
    failed and blocked ones.
    """
    return {
        "steps": [_shown(step) for step in plan.steps],
        "current": plan.current,
        "done": plan.count("done"),
        "total": len(plan.steps),
        "remaining": plan.count("pending", "current"),
        "stuck": plan.count("failed", "blocked"),
        "tool": UPDATE_STEP,
    }


def snapshot_digest(plan: Plan) -> str:
    """Return a digest of what the model is shown: equal, in any process, exactly if the snapshots are."""
    return sha256(encode(plan_snapshot(plan))).hexdigest()[:32]


def _shown(step: Step) -> dict[str, Any]:
    return {
        "id": step.id,
        "state": step.state,
        "depends_on": list(step.depends_on),
        "description": step.description,
        "reason": step.result if step.state == "failed" else "",
    }
