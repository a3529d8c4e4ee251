"""JSON pointers (RFC 6901) into a line of the decision log, as `log.mask` has them.

Knows: how a pointer is written, which parts of a line are content. Must not know: how a line is made, what a mask does.

A pointer begins at the line, so its names are those of the record in docs/decision-log.md. One part may be `*`, which
stands for any key or index. Only content can be masked: the facts of a line are what an audit counts by.
"""

from __future__ import annotations

import re

from policyengine.policy.wording import closest

ANY = "*"

CONTENT: tuple[tuple[str, str], ...] = (
    ("/call/arguments", "arguments"),
    ("/result", "results"),
    ("/result/status", "results"),
    ("/result/exit_code", "results"),
    ("/result/text", "results"),
    ("/message", "messages"),
    ("/rules/*/error", "messages"),
)
"""Every place of a line that holds content, and which entry of `log.include` puts it there.

Arguments may have any form, so a pointer may go on below them; nothing else has further parts.
"""

_PLACES = ", ".join(place for place, _ in CONTENT)
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_PART = r"(?:\*|(?:[^~/*]|~[01])*)"

POINTER = (
    rf"^/(?:call/arguments(?:/{_PART})*|result(?:/(?:status|exit_code|text))?|message"
    r"|rules/(?:\*|0|[1-9][0-9]{0,8})/error)$"
)
"""The pointers that `pointer_trouble` has nothing against, as a regular expression for editors."""


def parts_of(pointer: str) -> tuple[str, ...]:
    """Return the parts of a pointer, their escapes resolved."""
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def is_index(part: str) -> bool:
    """Return whether a part is an index of a list (or a key that looks like one)."""
    return _INDEX.fullmatch(part) is not None


def pointer_trouble(pointer: str) -> str:
    """Return why a pointer cannot be a mask; empty if it can."""
    if not pointer.startswith("/"):
        return "a pointer begins with `/`, at the line of the log"
    if re.search(r"~(?![01])", pointer):
        return "`~` is written `~0` in a pointer, and a `/` inside a name `~1`"
    if any(ANY in part and part != ANY for part in parts_of(pointer)):
        return f"`{ANY}` stands alone in its part, for any key or index; it is no pattern of names"
    if _place(parts_of(pointer)):
        return ""
    near = closest(pointer, [place for place, _ in CONTENT])
    meant = f'; did you mean "{near}"?' if near else ""
    return f"no content of a line stands there{meant} (content: {_PLACES})"


def included_by(pointer: str) -> str:
    """Return which entry of `log.include` puts what a (sound) pointer means into a line."""
    return _place(parts_of(pointer))


def _place(parts: tuple[str, ...]) -> str:
    for place, include in CONTENT:
        known = parts_of(place)
        head = parts if include != "arguments" else parts[: len(known)]
        if len(head) == len(known) and all(map(_fits, head, known)):
            return include
    return ""


def _fits(part: str, known: str) -> bool:
    return part == known or (known == ANY and is_index(part))
