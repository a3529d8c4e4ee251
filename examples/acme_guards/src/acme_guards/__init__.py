"""Refuse payments once a run has spent enough.

Knows: which tools pay, and the argument that says how much.
Must not know: who is paid, the model, other guards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from policyengine import Action, Batch, Extension, Proof, RunView, ToolCall, ToolFacts, ToolResult, call, hookimpl

__all__ = ["SpendLimit", "Spent"]


class Spent(msgspec.Struct):
    """What the run has spent, and what the calls that are about to run will spend, by call id."""

    total: float = 0.0
    pending: dict[str, float] = {}


class SpendLimit(Extension):
    """Deny a payment that would bring the sum of all payments of the run above `limit`.

    A payment counts from the moment it is allowed, so that copies in one batch cannot pass side by side. One that
    never ran (another rule refused it, its batch was stopped) counts no longer. One that failed still counts:
    nobody knows whether the money moved.
    """

    name = "acme.spend"
    api = 1
    options = {
        "limit": {"type": "number", "min": 0, "max": 1_000_000_000, "required": True, "meta": {"stricter": "lower"}},
        "tools": {"type": "list", "schema": {"type": "string"}, "minlength": 1, "default": ["pay_*"]},
        "argument": {"type": "string", "minlength": 1, "default": "amount"},
    }
    state = Spent
    state_version = 1
    scope = "run"
    messages = {
        "spend_limit.deny": {"tool": "pay_invoice", "observed": 120, "limit": 100, "remaining": 20},
        "spend_unclear.deny": {"tool": "pay_invoice", "argument": "amount"},
    }
    templates = {
        "en": {
            "spend_limit.deny": (
                "{{ tool }} was {% if advisory %}not {% endif %}refused: it would bring this run's payments to"
                " {{ observed }}, and the limit is {{ limit }}. {{ remaining }} is left."
                " Pay less, or tell the user why you cannot pay."
            ),
            "spend_unclear.deny": (
                "{{ tool }} was {% if advisory %}not {% endif %}refused: `{{ argument }}` must be a number that is"
                " not negative."
            ),
        },
        "zh": {
            "spend_limit.deny": (
                "{{ tool }} {% if advisory %}未{% else %}已{% endif %}被拒绝：本次运行的付款总额将达到"
                " {{ observed }}，上限为 {{ limit }}，剩余额度 {{ remaining }}。"
                "请减少金额，或向用户说明无法付款的原因。"
            ),
            "spend_unclear.deny": (
                "{{ tool }} {% if advisory %}未{% else %}已{% endif %}被拒绝：`{{ argument }}` 必须是非负数。"
            ),
        },
    }

    def proofs(self) -> Iterable[Proof]:
        """Spend exactly the limit, which is allowed, and then one more."""
        tool, argument = self.options.tools[0].replace("*", "bill").replace("?", "x"), self.options.argument
        turns = (call(tool, {argument: self.options.limit}), call(tool, {argument: 1}))
        yield Proof("limit", "deny", "spend_limit", 2, turns, tools={tool: ToolFacts(effect="write")})
        yield Proof("unclear", "deny", "spend_unclear", 1, (call(tool, {argument: "all of it"}),))

    @hookimpl
    def before_tool_call(self, run: RunView, call: ToolCall, batch: Batch) -> Action | None:
        """Judge a payment against what is spent and what the calls before it will spend."""
        if not self._pays(call):
            return None
        amount = self._amount(call)
        if amount is None:
            return run.deny("spend_unclear", tool=call.name, argument=self.options.argument)
        spent = run.state.total + sum(run.state.pending.values())
        total = round(spent + amount, 6)
        if total > self.options.limit:
            remaining = max(0.0, round(self.options.limit - spent, 6))
            return run.deny(
                "spend_limit", observed=total, limit=self.options.limit, tool=call.name, remaining=remaining
            )
        run.state.pending[call.id] = amount
        return None

    @hookimpl
    def after_tool_call(self, run: RunView, call: ToolCall, result: ToolResult) -> None:
        """Count what really ran: also a call that this rule only warned about."""
        run.state.pending.pop(call.id, None)
        if result.ran and self._pays(call):
            run.state.total += self._amount(call) or 0.0

    def _pays(self, call: ToolCall) -> bool:
        return any(fnmatchcase(call.name, pattern) for pattern in self.options.tools)

    def _amount(self, call: ToolCall) -> float | None:
        """Return the amount, or `None` if it is missing, negative or no finite number."""
        value: Any = call.args.get(self.options.argument) if isinstance(call.args, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if math.isfinite(value) and value >= 0 else None
