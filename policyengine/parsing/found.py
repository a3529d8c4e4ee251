"""What readers of text look for and what they find: plain values.

Knows: nothing but their shape. Must not know: any notation.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from policyengine.parsing.names import Tools
from policyengine.parsing.repair import Allowance

Notation = Literal["json", "markup", "python"]


class Terms(NamedTuple):
    """How a text is read.

    `mending` allows repairs inside a call; `ended` says that the model ended its message itself, so that missing
    brackets at the end are missing and not cut off. `allowance` bounds the slow reader of JSON5.
    """

    tools: Tools
    mending: bool = False
    ended: bool = False
    allowance: Allowance | None = None


class Found(NamedTuple):
    """A call in a text, from `start` to `end`. `legal` is false where the name cannot be a name at all."""

    start: int
    end: int
    name: str
    args: dict[str, Any]
    repairs: tuple[str, ...]
    notation: Notation
    legal: bool = True


class Unread(NamedTuple):
    """Something that is clearly a call and cannot be read; `reason` is `truncated` or another machine reason."""

    start: int
    end: int
    reason: str
    notation: Notation


Reading = list[Found] | Unread | None
"""What a reader makes of an opening: the calls, a call that cannot be read, or nothing that is a call."""
