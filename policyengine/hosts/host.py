"""What a host can do with a decision, and what it tells of a run.

Knows: abilities, and which of them an action needs at a hook point.
Must not know: policies, runs, any particular framework.
"""

from __future__ import annotations

import msgspec

from policyengine.hooks import HOOKS

ABILITIES: dict[str, str] = {
    "hint": "add a note to the history before the next request",
    "deny": "refuse a call and tell the model why",
    "ask": "ask a human about a call",
    "rewrite": "run a call with other arguments",
    "rewrite_result": "give the model another text than the tool returned",
    "rewrite_request": "send another request than was built (tools, model, a shorter history)",
    "retry": "ask the model once more within the same round",
    "recover": "send a failed request again, after a remedy",
    "wind_down": "let the model give a final answer while its calls are refused",
    "end_step": "end the run where the step ends",
    "stop": "end the run",
}
"""Everything a host may be able to do."""

ALL = frozenset(ABILITIES)

_NEEDS = {
    ("rewrite", "after_tool_call"): "rewrite_result",
    ("rewrite", "before_model_call"): "rewrite_request",
    ("rewrite", "hist_add_warning.start"): "hint",
    ("rewrite", "after_parse"): "",  # how a response is read is the run's own affair
    ("retry", "after_provider_error"): "recover",
}


def needed(action: str, hook: str) -> str:
    """Return the ability that an action needs at a hook point; empty where it needs none."""
    if action in ("record", "allow"):
        return ""
    return _NEEDS.get((action, hook), action)


class Host(msgspec.Struct, frozen=True):
    """A framework that runs agents, or a loop written by hand.

    `can` are its `ABILITIES`. `silent` are the hook points about which it reports nothing, so that rules are never
    asked there; requests are never silent, because a response or a call tells that there was one. `shares` says
    whether it can be given a ledger, for what rules count together with other processes.
    """

    name: str
    can: frozenset[str] = ALL
    silent: frozenset[str] = frozenset()
    shares: bool = True

    def __post_init__(self) -> None:
        """Refuse a slip in a name: it would take an ability away, or promise one, unseen."""
        unknown = (self.can - ALL) | (self.silent - HOOKS.keys())
        if unknown:
            raise ValueError(f"host {self.name!r}: there is no {', '.join(sorted(unknown))}")

    def able(self, action: str, hook: str) -> bool:
        """Return whether the host can carry out an action decided at a hook point."""
        need = needed(action, hook)
        return not need or need in self.can
