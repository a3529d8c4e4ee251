"""What a failed request says, whatever it arrived in: mappings, JSON inside strings, exceptions and their causes.

Knows: where SDKs and proxies put status, body, headers and causes (by attribute name, no SDK is imported).
Must not know: what the words mean.

Everything is bounded: how deep it looks, how many values, how much text. What it reads may be foreign and broken, so an
attribute that raises is one that is not there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MAX_DEPTH = 24
MAX_VALUES = 600
MAX_ITEMS = 60
MAX_TEXT = 16_384
"""Characters of one string that are looked at: its beginning, and its end."""
MAX_BODY = 262_144
"""Characters of one string in which JSON is looked for: only whole it can be read."""
MAX_TEXTS = 32_768
"""Characters of all strings together."""
MAX_DOCUMENTS = 6
"""JSON documents looked for in one string."""

STATUS_NAMES = frozenset(
    ["status", "status_code", "statuscode", "http_status", "httpstatus", "http_code", "httpstatuscode", "code"]
)
KIND_NAMES = frozenset(
    [
        *("type", "code", "status", "reason", "error", "error_code", "errorcode", "error_type", "__type", "name"),
        *("param", "quotaid", "quota_id", "finish_reason", "blockreason"),
    ]
)
MESSAGE_NAMES = frozenset(
    ["message", "msg", "detail", "error", "error_message", "errormessage", "raw", "reason", "description", "param"]
)
ID_NAMES = frozenset(["request_id", "requestid", "x-request-id", "_request_id", "trace_id", "traceid"])
ECHOES = frozenset(
    [
        *("input", "failed_generation", "messages", "prompt", "contents", "request", "stack", "stacktrace"),
        *("traceback", "requestheaders", "previous_errors", "url", "links", "doc_url", "documentation_url"),
    ]
)
"""Members that repeat the request or lead away: words in them say nothing about the failure."""
ATTRIBUTES = (
    *("status_code", "http_status", "status", "code", "type", "param", "message", "reason", "body", "error", "errors"),
    *("details", "detail", "request_id", "_request_id", "response_json", "retry_after"),
)
BODIES = ("_content", "body", "text", "content", "data")
_DECODER = json.JSONDecoder(strict=False)
_PAIR = re.compile(
    r"""\\{0,3}["'](type|code|status|reason|error_code|errorCode|__type)\\{0,3}["']\s{0,4}:\s{0,4}\\{0,3}["']"""
    r"""([A-Za-z0-9_.\- ]{1,80})"""
)
_TOLD = re.compile(
    r"""["'](?:message|msg|detail)["']\s{0,4}:\s{0,4}(?:b?'([^']{1,2000})'|b?"([^"]{1,2000})")""", re.IGNORECASE
)
_ECHO = re.compile(
    r"""["'](?:failed_generation|input)["']\s{0,4}:\s{0,4}(?:'[^']{0,8000}'|"[^"]{0,8000}")""", re.IGNORECASE
)
_STATUS = (
    re.compile(r"""["'](?:code|status|statusCode|status_code|http_code)["']\s{0,4}:\s{0,4}["']?([1-5]\d\d)\b"""),
    re.compile(r"\b(?:error|status|http|response)(?:[ _]?code)?(?:/[12](?:\.\d)?)?[\s:=\[(]{1,3}([1-5]\d\d)\b", re.I),
    re.compile(r"""^[\s<\["'(]{0,4}([45]\d\d)(?=[>\s:\])]|$)"""),
    re.compile(r"""['"(\[<]([45]\d\d)(?: [A-Z][a-z]|[>\])])"""),
)


class Unwrapped(NamedTuple):
    """What a failure says.

    `statuses` are HTTP statuses, the outermost first; `labels` types, codes and exception names in lower case; `fields`
    numbers and short texts by lower-case name; `messages` the sentences meant for people, the innermost first.
    """

    statuses: tuple[int, ...]
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    messages: tuple[str, ...]
    headers: dict[str, str]
    fields: dict[str, Any]
    request_ids: tuple[str, ...]

    @property
    def text(self) -> str:
        """All texts, one after the other."""
        return "\n".join(self.texts)

    @property
    def failure(self) -> int | None:
        """The first status that is a failure: the HTTP status may be 200, and the body says otherwise."""
        return next((status for status in self.statuses if status >= 400), None)


def unwrap(error: Any, *, status: int | None = None, headers: Any = None) -> Unwrapped:
    """Return everything that `error` says; what it holds may be of any type."""
    walk = _Walk()
    walk.read_headers(headers)
    walk.visit(error, "", 0)
    found = [code for _, code in sorted(walk.statuses, key=lambda item: item[0])]
    found += [code for text in walk.texts[:8] for code in _told_statuses(text) if code not in found]
    messages = [told for _, told in sorted(walk.messages, key=lambda item: -item[0])]
    return Unwrapped(
        statuses=(*((status,) if _is_status(status) and status is not None else ()), *found),
        texts=tuple(walk.texts),
        labels=tuple(dict.fromkeys(walk.labels)),
        messages=tuple(messages),
        headers=walk.headers,
        fields=walk.fields,
        request_ids=tuple(dict.fromkeys(walk.request_ids)),
    )


def attribute(thing: Any, name: str) -> Any:
    """Return an attribute of a foreign object; `None` where there is none or reading it fails."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property of a foreign object may raise anything; then it tells nothing
        return None


class _Walk:
    """Collects what is found on the way through nested values."""

    def __init__(self) -> None:
        self.statuses: list[tuple[int, int]] = []
        self.texts: list[str] = []
        self.labels: list[str] = []
        self.messages: list[tuple[int, str]] = []
        self.headers: dict[str, str] = {}
        self.fields: dict[str, Any] = {}
        self.request_ids: list[str] = []
        self._values = MAX_VALUES
        self._characters = MAX_TEXTS
        self._seen: set[int] = set()

    def visit(self, value: Any, name: str, depth: int) -> None:
        self._values -= 1
        if depth > MAX_DEPTH or self._values < 0 or value is None or isinstance(value, bool):
            return
        if isinstance(value, int | float):
            self._number(value, name, depth)
        elif isinstance(value, str):
            self._string(value, name, depth)
        elif isinstance(value, bytes | bytearray):
            self._string(bytes(value[:MAX_BODY]).decode("utf-8", "replace"), name, depth)
        elif id(value) not in self._seen:
            self._seen.add(id(value))
            self._composite(value, name, depth)

    def _composite(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, Mapping):
            self._mapping(value, depth)
        elif isinstance(value, list | tuple):
            for item in value[:MAX_ITEMS]:
                self.visit(item, name, depth + 1)
        elif isinstance(value, BaseException):
            self._exception(value, depth)
        else:
            self._object(value, depth)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> None:
        for key, item in _pairs(value):
            name = key.lower()
            if name in ("headers", "httpheaders"):
                self.read_headers(item)
            elif name not in ECHOES:
                self.visit(item, name, depth + 1)

    def _exception(self, error: BaseException, depth: int) -> None:
        for kind in type(error).__mro__[:8]:
            if kind not in (object, BaseException, Exception):
                self.labels.append(kind.__name__.lower())
        self._object(error, depth)
        self.visit(_text_of(error), "", depth)
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        for inner in (cause, *_inner(error)):
            self.visit(inner, "", depth + 1)

    def _object(self, value: Any, depth: int) -> None:
        for name in ATTRIBUTES:
            item = attribute(value, name)
            if isinstance(item, str | bytes | int | float | Mapping | list | tuple) and item != "":
                self.visit(item, name.lstrip("_"), depth + 1)
        self.read_headers(attribute(value, "headers"))
        response = attribute(value, "response")
        if isinstance(response, str | bytes | Mapping):
            self.visit(response, "response", depth + 1)
        elif response is not None and not isinstance(value, type):
            self._response(response, depth + 1)
        elif not isinstance(value, BaseException):
            self._body(value, depth)

    def _response(self, response: Any, depth: int) -> None:
        self._values -= 1
        for name in ("status_code", "status"):
            self.visit(_plain(attribute(response, name)), name, depth)
        self.read_headers(attribute(response, "headers"))
        self._body(response, depth)

    def _body(self, holder: Any, depth: int) -> None:
        """Read a body that is already there; properties may go to the network, so only stored values are looked at."""
        stored = attribute(holder, "__dict__")
        for name in BODIES:
            item = stored.get(name) if isinstance(stored, dict) else None
            if isinstance(item, str | bytes | Mapping | list) and item:
                self.visit(item, "body", depth + 1)
                return

    def _number(self, value: float, name: str, depth: int) -> None:
        if name in STATUS_NAMES and _is_status(value):
            self.statuses.append((depth, int(value)))
        elif name:
            self.fields.setdefault(name, value)

    def _string(self, value: str, name: str, depth: int) -> None:
        text = value[:MAX_BODY].strip()
        if not text:
            return
        if name in ID_NAMES and len(text) <= 200:
            self.request_ids.append(text)
            return
        if len(text) <= 100 and name:
            self.fields.setdefault(name, text)
            self._short(text, name, depth)
        for document, prose in _documents(text):
            if prose:
                self._prose(prose, name, depth)
            self.visit(document, name, depth + 1)

    def _short(self, text: str, name: str, depth: int) -> None:
        if name in KIND_NAMES:
            self.labels.append(text.lower())
        if name in STATUS_NAMES and re.fullmatch(r"[1-5]\d\d", text):
            self.statuses.append((depth, int(text)))

    def _prose(self, text: str, name: str, depth: int) -> None:
        room = self._characters
        if room <= 0:
            return
        text = _ECHO.sub("", _cut(text))[:room]
        self._characters -= len(text)
        self.texts.append(text)
        self.labels += (match.group(2).lower() for match in _PAIR.finditer(text))
        told = _TOLD.search(text)
        if told is not None:
            self.messages.append((depth + 1, told.group(1) or told.group(2)))
        elif name in MESSAGE_NAMES and " " in text:
            self.messages.append((depth, text))
        elif name in ("", "body", "event", "response", "text"):
            self.messages.append((-1, text))  # the last choice: mostly a wrapper around the sentence itself

    def read_headers(self, headers: Any) -> None:
        """Add headers: a mapping, pairs, or an object with `items()`."""
        if headers is None or isinstance(headers, str | bytes | int | float):
            return
        for key, value in _pairs(headers):
            if isinstance(value, list | tuple) and value:
                value = value[0]
            if isinstance(value, bytes):
                value = value.decode("latin-1")
            if isinstance(value, str | int | float):
                self.headers.setdefault(key.lower(), str(value)[:500].strip())


def _documents(text: str) -> Iterator[tuple[Any, str]]:
    """Yield the JSON objects in a text, each with the prose before it; the last prose comes with `None`."""
    at = 0
    for _ in range(MAX_DOCUMENTS):
        found = _document(text, at)
        if found is None:
            break
        start, document, end = found
        yield document, text[at:start].strip()
        at = end
    yield None, text[at:].strip()


def _document(text: str, at: int) -> tuple[int, Any, int] | None:
    """Return start, value and end of the next JSON object in a text."""
    start = at
    for _ in range(MAX_DOCUMENTS):
        start = text.find("{", start)
        if start < 0:
            return None
        try:
            document, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
            continue
        if document:
            return start, document, end
        start = end
    return None


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        items = value.items() if hasattr(value, "items") else value
        pairs = [pair for pair, _ in zip(items, range(MAX_ITEMS * 4), strict=False)]
    except Exception:  # noqa: BLE001 - a foreign mapping may raise anything; then it holds nothing
        return
    for pair in pairs:
        if isinstance(pair, tuple | list) and len(pair) == 2:
            key, item = pair
            if isinstance(key, bytes):
                key = key.decode("latin-1")
            if isinstance(key, str):
                yield key, item


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception of a foreign package may fail to describe itself
        return ""


def _inner(error: BaseException) -> tuple[Any, ...]:
    members = attribute(error, "exceptions")
    return tuple(members[:MAX_ITEMS]) if isinstance(members, list | tuple) else ()


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else None


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return text[: MAX_TEXT * 3 // 4] + "\n" + text[-MAX_TEXT // 4 :]


def _is_status(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599


def _told_statuses(text: str) -> Iterator[int]:
    for pattern in _STATUS:
        for match in pattern.finditer(text[:4000]):
            yield int(match.group(1))
            break
