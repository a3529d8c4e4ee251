"""The kill switch: while it is on, no rule of any run has an effect.

Knows: who may turn it on. Must not know: runs, rules, what becomes of an answer (see `dispatch`).

One switch belongs to an engine and is asked at every answer of a rule, so that it reaches runs under way whatever
policy they are pinned to.
"""

from __future__ import annotations

import msgspec


class KillSwitch(msgspec.Struct):
    """On where the operator turned it on (`by_hand`) or the newest policy in force says so (`by_policy`)."""

    by_hand: bool = False
    by_policy: bool = False

    @property
    def on(self) -> bool:
        """Whether every rule is treated as if its mode were `shadow`."""
        return self.by_hand or self.by_policy
