"""A JSON object that stands somewhere in a text: find its end by its own structure.

Knows: strict JSON, repairs, when a missing bracket may be added. Must not know: tags, requests.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from policyengine.parsing.found import Terms
from policyengine.parsing.repair import HOPELESS, json5_object, mend
from policyengine.parsing.strict import StrictError, prefix


class Part(NamedTuple):
    """A value, the offset after it, and what was repaired."""

    value: Any
    end: int
    repairs: tuple[str, ...] = ()


def object_at(text: str, at: int, terms: Terms, close: re.Pattern[str] | None = None) -> Part:
    """Return the JSON value that begins at `at`.

    Missing brackets are added only where the text shows that the value is over: at the closing tag `close`, or at the
    end of a message that the model ended itself.

    Raises:
        StrictError: it is damaged, cut off, or damaged beyond one reading.
    """
    strictly = _strictly(text, at, terms)
    if strictly is not None:
        return strictly
    try:
        read = mend(text, at)
    except StrictError as error:
        found = _json5(text, at, terms) if error.reason == "not_json" else None
        if found is None:
            raise
        return found
    if not read.open:
        return Part(*read[:3])
    if close is not None and close.match(text, read.end):
        return Part(read.value, read.end, (*read.repairs, "close_containers"))
    if _LEFT.match(text, read.end) is None:
        raise StrictError("not_json", read.end)
    if not terms.ended:
        raise StrictError("truncated", read.end)
    return Part(read.value, read.end, (*read.repairs, "close_containers"))


def _strictly(text: str, at: int, terms: Terms) -> Part | None:
    """Return the value as strict JSON, or `None` where it has to be mended.

    Raises:
        StrictError: it is not strict, and mending is not allowed or would not help.
    """
    allowance = terms.allowance
    if terms.mending and allowance is not None and allowance.failures <= 0:
        return None
    try:
        return Part(*prefix(text, at, diagnose=not terms.mending))
    except StrictError as error:
        if not terms.mending or error.reason in HOPELESS:
            raise
    if allowance is not None:
        allowance.failures -= 1
    return None


def _json5(text: str, at: int, terms: Terms) -> Part | None:
    """Return the value as JSON5, where it is over before the next fence or closing tag."""
    ends = _JSON5_ENDS.search(text, at)
    found = json5_object(text[at : ends.start()], terms.allowance) if ends else None
    return Part(found, ends.start(), ("json5",)) if ends and found is not None else None


_LEFT = re.compile(r"\s*\Z")
_JSON5_ENDS = re.compile(r"\n[ \t]*(?:```|~~~)|</[\w:]{1,40}>|\Z")
"""Where a text that only JSON5 can read is over: it has to be known before it is read."""
