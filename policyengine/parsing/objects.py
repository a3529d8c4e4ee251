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
    try:
        value, end = prefix(text, at, diagnose=not terms.mending)
    except StrictError as error:
        if not terms.mending or error.reason in HOPELESS:
            raise
    else:
        return Part(value, end)
    try:
        read = mend(text, at)
    except StrictError as error:
        ends = _JSON5_ENDS.search(text, at)
        found = None
        if error.reason == "not_json" and ends is not None:
            found = json5_object(text[at : ends.start()], terms.allowance)
        if found is None or ends is None:
            raise
        return Part(found, ends.start(), ("json5",))
    if not read.open:
        return Part(*read[:3])
    at_end = _LEFT.match(text, read.end) is not None
    if close is not None and close.match(text, read.end):
        return Part(read.value, read.end, (*read.repairs, "close_containers"))
    if not at_end:
        raise StrictError("not_json", read.end)
    if not terms.ended:
        raise StrictError("truncated", read.end)
    return Part(read.value, read.end, (*read.repairs, "close_containers"))


_LEFT = re.compile(r"\s*\Z")
_JSON5_ENDS = re.compile(r"\n[ \t]*(?:```|~~~)|</[\w:]{1,40}>|\Z")
"""Where a text that only JSON5 can read is over: it has to be known before it is read."""
