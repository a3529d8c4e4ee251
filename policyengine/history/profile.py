"""What a provider demands of a history beyond its shape: the rules in force for one model.

Knows: the rules and their values. Must not know: shapes, how a rule is checked or met.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from policyengine.errors import UsageError


class HistoryProfile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The rules of one provider and model. The defaults demand nothing that differs between providers.

    Attributes:
        reasoning_content: whether assistant messages must come back with their reasoning: `required` (all of them),
            `required_on_tool_calls` (those with calls), `forbidden` (none may), `any`. An empty text is reasoning.
        thinking: of signed thinking blocks: `enabled` (every block signed, and the turn in progress begins with one),
            `disabled` (every block signed, none in a final assistant message), `forbidden` (no blocks), `any`.
        thought_signature: `required` if the first call of each response in the turn in progress must be signed.
        strict_adjacency: whether all results must stand in the one message after the calls.
        unique_ids: where no two calls may have the same id: in one `turn`, or in the whole `history`.
        empty_text: whether empty texts, and error results without content, are `refused` or `allowed`.
        name_pattern: what tool names must match as a whole; empty for what the shape says.
        id_pattern: what call ids must match as a whole; empty for any.
    """

    reasoning_content: Literal["any", "required", "required_on_tool_calls", "forbidden"] = "any"
    thinking: Literal["any", "enabled", "disabled", "forbidden"] = "any"
    thought_signature: Literal["any", "required"] = "any"
    strict_adjacency: bool = False
    unique_ids: Literal["turn", "history"] = "turn"
    empty_text: Literal["refused", "allowed"] = "refused"
    name_pattern: str = ""
    id_pattern: str = ""


def as_profile(value: HistoryProfile | Mapping[str, Any] | None) -> HistoryProfile:
    """Return a profile, read from a mapping if it is one; `None` is the default profile.

    Raises:
        UsageError: an unknown rule, a value that the rule does not have, or a pattern that is none.
    """
    if value is None:
        return _DEFAULT
    try:
        profile = value if isinstance(value, HistoryProfile) else msgspec.convert(dict(value), HistoryProfile)
        for pattern in (profile.name_pattern, profile.id_pattern):
            re.compile(pattern)
    except (msgspec.ValidationError, re.error) as error:
        raise UsageError(f"history profile: {error} (rules: {', '.join(HistoryProfile.__struct_fields__)})") from error
    return profile


_DEFAULT = HistoryProfile()
