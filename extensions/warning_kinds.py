"""The kinds of warnings about unusable responses, for the rules that count them.

Knows: the kinds, how an option names some of them. Must not know: which rule counts what.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from policyengine import OptionProblem, ScriptedCall, Turn, batch, say

KINDS = ("misformat", "repeat", "empty", "truncated", "reasoning_only")
"""Every kind of warning about an unusable response."""


def kinds_option(default: Sequence[str]) -> dict[str, Any]:
    """Return the schema of the option `kinds`."""
    return {
        "type": "list",
        "schema": {"type": "string"},
        "minlength": 1,
        "maxlength": 50,
        "default": list(default),
        "meta": {"stricter": "superset"},
    }


def kind_problems(kinds: Iterable[str]) -> Iterable[OptionProblem]:
    """Report kinds that would never be counted: one without a dot is ours or misspelt, hosts' own kinds have a dot."""
    for kind in kinds:
        if kind in KINDS or "." in kind.strip("."):
            continue
        from difflib import get_close_matches  # a policy without mistakes needs no advice

        close = get_close_matches(kind, KINDS, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        known = ", ".join(KINDS)
        yield OptionProblem(("kinds",), f"no response is warned about as {kind!r}{meant} (kinds are: {known})")


def unusable_turn(kind: str, number: int) -> Turn:
    """Return a turn that is parsed to a verdict of this warning kind; no two of them have equal texts."""
    if kind == "truncated":
        return say(f"Part {number} of the report begins with", finish_reason="length")
    if kind == "empty":
        return say("")
    if kind == "reasoning_only":
        return Turn(reasoning=f"Thought number {number}.")
    return batch(ScriptedCall("probe", arguments=f"[{number}]"))
