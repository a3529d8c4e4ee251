"""The id under which a provider finds a request again, for a report to its support.

Knows: the names of headers. Must not know: what went wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

REQUEST_ID_HEADERS = (
    "x-ds-trace-id",
    "eo-log-uuid",
    "x-request-id",
    "request-id",
    "x-amzn-requestid",
    "apim-request-id",
    "x-goog-request-id",
    "cf-ray",
)
"""Headers in the order in which they are asked; the first that is there and not empty is the id."""

MAX_LENGTH = 200
_IN_TEXT = re.compile(r"\brequest[ _-]?id\b[\s:=\"'`(\[]{1,6}([A-Za-z0-9][\w.\-]{5,127})", re.IGNORECASE)


def find_request_id(
    headers: Mapping[str, str],
    order: Iterable[str] = REQUEST_ID_HEADERS,
    *,
    told: Iterable[str] = (),
    text: str = "",
    internal: str = "",
) -> str:
    """Return the request id: from a header, else from the body, else from the text, else the caller's own.

    Args:
        headers: the response's headers; the case of their names does not count.
        order: names of headers in the order in which they are asked.
        told: ids that members of the body named.
        text: the text of the error.
        internal: the id under which the caller knows the request.
    """
    known = {name.lower(): value for name, value in headers.items()}
    candidates = [known.get(name.lower(), "").strip() for name in order]
    candidates += [item.strip() for item in told]
    found = _IN_TEXT.search(text)
    candidates += [found.group(1).rstrip(".-") if found else "", internal]
    return next((item[:MAX_LENGTH] for item in candidates if item), "")
