"""Read damaged JSON: mend its structure, never a string body, and name every repair.

Knows: which damage has only one reading. Must not know: tool calls, tags, verdicts.

What a string holds stays as it is, character by character; the exceptions are named repairs and lose nothing that
could be sent on: a lone surrogate becomes U+FFFD, an escaped apostrophe (Python's notation) an apostrophe, and a
backslash that starts no JSON escape stays a backslash where that is the only reading. A string that is never closed
was cut off. Everything else that could mean two things is refused. One pass, linear, without recursion.
"""

from __future__ import annotations

import re
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from policyengine.parsing.strict import LONE, MAX_DEPTH, StrictError, finite, is_cut_off, loads, refuse_constant

MENDABLE = 256 * 1024
"""Longest text in characters that is mended; longer ones must be strict."""

JSON5_LIMIT = 2_000
"""Longest text that is given to `json5`, which is hundreds of times slower than `json`."""


class Allowance:
    """What may still be spent on one response: characters for `json5`, and strict readings that fail.

    A failed strict reading costs time in proportion to where in the text it fails.
    """

    __slots__ = ("failures", "left")

    def __init__(self, left: int = 2 * JSON5_LIMIT, failures: int = 64) -> None:
        self.left = left
        self.failures = failures

    def take(self, count: int) -> bool:
        """Return whether `count` characters may be given, and count them."""
        if count > min(self.left, JSON5_LIMIT):
            return False
        self.left -= count
        return True


class Mended(NamedTuple):
    """A value, the offset after it, what was repaired, and how many brackets were never closed.

    With `open` brackets the text at `end` is something that cannot belong to the value (or the end of the text); the
    caller knows whether the value may end there.
    """

    value: Any
    end: int
    repairs: tuple[str, ...] = ()
    open: int = 0


def mend(text: str, at: int = 0) -> Mended:
    """Return the value that begins at `at`.

    Raises:
        StrictError: it is damaged beyond one reading, or was cut off in the middle of a value.
    """
    if len(text) - at > MENDABLE:
        raise StrictError("too_long_to_mend", at)
    return _Reader(text, at).read()


def mend_whole(text: str, *, ended: bool, allowance: Allowance | None = None) -> tuple[Any, tuple[str, ...]]:
    """Return the value of `text`, which holds nothing else, and what was repaired.

    `ended` says that the text is known to be complete, so that missing brackets at its end may be added. Without an
    `allowance`, JSON5 is not tried.

    Raises:
        StrictError: as `mend` does, or there is other text behind the value.
    """
    try:
        return loads(text), ()
    except StrictError as error:
        if error.reason in HOPELESS:
            raise
    if len(text) > MENDABLE and is_cut_off(text):
        raise StrictError("truncated")
    try:
        read = mend(text)
        if read.open and read.end < len(text):
            raise StrictError("not_json", read.end)
    except StrictError as error:
        found = json5_object(text, allowance) if error.reason == "not_json" else None
        if found is None:
            raise
        return found, ("json5",)
    if read.open:
        if not ended:
            raise StrictError("truncated", read.end)
        return read.value, (*read.repairs, "close_containers")
    rest = _ODD_SPACE.sub("", text[read.end :]).strip()
    if not rest:
        odd = text[read.end :].strip()
        return read.value, (*read.repairs, *(_odd_space(odd) if odd else ()))
    if rest.strip("}] \t\r\n"):
        raise StrictError("truncated" if is_cut_off(rest) else "trailing_text", read.end)
    return read.value, (*read.repairs, "extra_closer")


def encodable(text: str) -> tuple[str, tuple[str, ...]]:
    """Return text that can be encoded: pairs of surrogates are put together, a lone one becomes U+FFFD."""
    text = _PAIR.sub(lambda match: match.group().encode("utf-16", "surrogatepass").decode("utf-16"), text)
    if LONE.search(text) is None:
        return text, ()
    return LONE.sub("\ufffd", text), ("lone_surrogate",)


HOPELESS = frozenset({"duplicate_key", "not_finite", "nested_too_deep", "number_too_long"})
"""Reasons that no repair can change."""


class _Frame:
    """A container that is still open, and the key (of an object) whose value comes next."""

    __slots__ = ("key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key = ""

    def put(self, value: Any) -> None:
        """Add a value; in an object under the key that was read before it."""
        if type(self.value) is dict:
            self.value[self.key] = value
        else:
            self.value.append(value)


_NOTHING = object()


class _Reader:
    """One reading of one text."""

    __slots__ = (
        "at",
        "escaped_bodies",
        "lists",
        "loose_bodies",
        "plain_strings",
        "repairs",
        "root",
        "scalar",
        "stack",
        "text",
    )

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.stack: list[_Frame] = []
        self.lists = 0
        self.root: Any = None
        self.repairs: dict[str, None] = {}
        self.scalar = ""
        self.plain_strings = False
        self.escaped_bodies = False
        self.loose_bodies = False

    def read(self) -> Mended:
        self._skip()
        while True:
            value = self._open()
            if value is _NOTHING:
                continue
            if not self._attach(value):
                break
        over_escaped = "unescape_structural_quotes" in self.repairs
        if over_escaped and (self.loose_bodies or (self.plain_strings and self.escaped_bodies)):
            raise StrictError("mixed_escapes", self.at)
        return Mended(self.root, self.at, tuple(self.repairs), len(self.stack))

    # ---- structure

    def _open(self) -> Any:
        """Read a whole value, or open a container and read up to its first value (then return `_NOTHING`)."""
        mark = self.text[self.at : self.at + 1]
        if mark not in ("{", "["):
            return self._scalar(mark)
        self._push({} if mark == "{" else [])
        self._skip()
        if self.text[self.at : self.at + 1] == ("}" if mark == "{" else "]"):
            self.at += 1
            return self._pop()
        if mark == "{":
            self._key()
        return _NOTHING

    def _push(self, container: Any) -> None:
        if len(self.stack) == MAX_DEPTH:
            raise StrictError("nested_too_deep", self.at)
        self.stack.append(_Frame(container))
        self.lists += type(container) is list
        self.at += 1

    def _pop(self) -> Any:
        container = self.stack.pop().value
        self.lists -= type(container) is list
        self.scalar = ""
        return container

    def _attach(self, value: Any) -> bool:
        """Put a value where it belongs and read on; return whether another value comes."""
        while self.stack:
            frame = self.stack[-1]
            frame.put(value)
            self._skip()
            if self._separator(frame):
                return True
            if not self._close(frame):
                for inner, outer in zip(self.stack[:0:-1], self.stack[-2::-1], strict=True):
                    outer.put(inner.value)
                value = self.stack[0].value
                break
            value = self._pop()
        self.root = value
        return False

    def _separator(self, frame: _Frame) -> bool:
        """Read a comma (and the key after it, in an object); return whether a value comes next."""
        mark = self.text[self.at : self.at + 1]
        if mark in (",", "\uff0c") and mark:
            self.at += 1
            if mark != ",":
                self.repairs["fullwidth_punctuation"] = None
            self._skip()
            if self.text[self.at : self.at + 1] in ("}", "]"):
                self.repairs["trailing_comma"] = None
                return False
            if self.at == len(self.text):
                raise StrictError("truncated", self.at)
        elif mark == '"' and type(frame.value) is dict and self.scalar != "string":
            # After a string a quote may as well belong to the string (unescaped), after anything else it cannot.
            self.repairs["missing_comma"] = None
        else:
            return False
        if type(frame.value) is dict:
            self._key()
        return True

    def _close(self, frame: _Frame) -> bool:
        """Read a closing bracket; one that can only close an outer container closes the inner one as well."""
        mark = self.text[self.at : self.at + 1]
        is_dict = type(frame.value) is dict
        if mark == ("}" if is_dict else "]"):
            self.at += 1
            return True
        outer = self.lists if is_dict else len(self.stack) - self.lists
        if mark == ("]" if is_dict else "}") and outer:
            self.repairs["close_containers"] = None
            return True
        return False

    def _key(self) -> None:
        frame = self.stack[-1]
        quoted = self._string(self.text[self.at : self.at + 1])
        if quoted is None:
            match = _IDENTIFIER.match(self.text, self.at)
            if match is None:
                raise self._unexpected()
            self.at = match.end()
            self.repairs["unquoted_keys"] = None
            quoted = match.group()
        if quoted in frame.value:
            raise StrictError("duplicate_key", self.at)
        frame.key = quoted
        self._skip()
        mark = self.text[self.at : self.at + 1]
        if mark == "\uff1a":
            self.repairs["fullwidth_punctuation"] = None
        elif mark != ":":
            raise self._unexpected()
        self.at += 1
        self._skip()

    def _skip(self) -> None:
        """Skip white space, also where it was written as an escape or is none that JSON knows."""
        match = _SPACE.match(self.text, self.at)
        if match is None:
            return
        self.at = match.end()
        while match := _ODD_SPACE.match(self.text, self.at):
            self.repairs["escaped_whitespace" if match.group()[0] == "\\" else "odd_whitespace"] = None
            self.at = match.end()
            rest = _SPACE.match(self.text, self.at)
            self.at = rest.end() if rest else self.at

    def _unexpected(self) -> StrictError:
        return StrictError("truncated" if self.at >= len(self.text) else "not_json", self.at)

    # ---- scalars

    def _scalar(self, mark: str) -> Any:
        text = self._string(mark)
        if text is not None:
            self.scalar = "string"
            return text
        self.scalar = "bare"
        match = _NUMBER.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return _number(match.group(), match.start())
        match = _WORD.match(self.text, self.at)
        if match is None:
            raise self._unexpected()
        word = match.group()
        if word in _LITERALS:
            self.at = match.end()
            if word[0].isupper():
                self.repairs["python_literals"] = None
            return _LITERALS[word]
        if word.lstrip("-+").lower() in ("nan", "infinity", "inf"):
            raise StrictError("not_finite", self.at)
        # The text may have ended in the middle of a literal.
        raise StrictError("truncated" if match.end() == len(self.text) else "not_json", self.at)

    def _string(self, mark: str) -> str | None:
        """Read a string in any of the known quotes; `None` if there is none here."""
        if mark == '"':
            self.plain_strings = True
            return self._plain_string()
        if mark == "'":
            self.repairs["single_quotes"] = None
            return self._loose_string(_SINGLE)
        if mark in ("\u201c", "\u201d") and mark:
            self.repairs["curly_quotes"] = None
            return self._loose_string(_CURLY)
        if mark == "\\" and self.text.startswith('\\"', self.at):
            return self._over_escaped()
        return None

    def _plain_string(self) -> str:
        body = self._body(_DOUBLE, 1)
        if _VALID.fullmatch(body) is None:
            return self._unescape(body)
        return self._encodable(scanstring(body + '"', 0, False)[0])

    def _loose_string(self, pattern: re.Pattern[str]) -> str:
        """Read a string in quotes that escaping once more leaves alone, so that they do not tell how deep it is."""
        self.plain_strings = True
        body = self._body(pattern, 1)
        self.loose_bodies = self.loose_bodies or "\\" in body
        return self._unescape(body)

    def _body(self, pattern: re.Pattern[str], quote: int) -> str:
        """Return what stands between the quotes and go behind them; without a closing quote the text was cut off."""
        match = pattern.match(self.text, self.at)
        if match is None:
            raise StrictError("truncated", self.at)
        self.at = match.end()
        body = match.group()[quote:-quote]
        if _CONTROL.search(body):
            self.repairs["raw_control_characters"] = None
        return body

    def _over_escaped(self) -> str:
        """Read a string whose quotes carry a backslash: it was escaped once more than its surroundings."""
        self.repairs["unescape_structural_quotes"] = None
        body = self._body(_ESCAPED, 2)
        if "\\" not in body:
            return self._encodable(body)
        # With plain quotes elsewhere it is unclear how deep this body is escaped; `read` refuses that at the end.
        self.escaped_bodies = True
        try:
            inner, _ = scanstring(body + '"', 0, False)
        except JSONDecodeError as error:
            raise StrictError("invalid_escape", self.at) from error
        return self._unescape(inner)

    def _unescape(self, body: str) -> str:
        if "\\" not in body:
            return self._encodable(body)
        odd = {match.group(1) for match in _ESCAPE.finditer(body)} - _PLAIN_ESCAPES
        odd = {escape for escape in odd if len(escape) != _UNICODE}
        if "'" in odd:
            self.repairs["escaped_apostrophe"] = None
            odd.discard("'")
        if odd:
            self._check_literal(odd, body)
            self.repairs["literal_backslash"] = None
        return self._encodable(_ESCAPE.sub(_escaped, body))

    def _check_literal(self, odd: set[str], body: str) -> None:
        """Refuse backslashes that start no escape, unless the string has no escape that could be meant so, too."""
        used = {match.group(1) for match in _ESCAPE.finditer(body)} - {'"', "'"}
        if used != odd or any(escape[0] in _OTHER_ESCAPES or len(escape) > 1 for escape in odd):
            raise StrictError("invalid_escape", self.at)

    def _encodable(self, value: str) -> str:
        if LONE.search(value) is None:
            return value
        value, repairs = encodable(value)
        self.repairs.update(dict.fromkeys(repairs))
        return value


def _odd_space(text: str) -> tuple[str, ...]:
    """Return the name of the repair of white space that JSON does not know."""
    return ("escaped_whitespace" if "\\" in text else "odd_whitespace",)


def _number(text: str, at: int) -> int | float:
    if text.lstrip("-").isdigit():
        try:
            return int(text)
        except ValueError as error:
            raise StrictError("number_too_long", at) from error
    return finite(text, at)


def _escaped(match: re.Match[str]) -> str:
    escape = match.group(1)
    if len(escape) == _UNICODE:
        return chr(int(escape[1:], 16))
    return _MEANINGS.get(escape, match.group())


def json5_object(text: str, allowance: Allowance | None) -> Any | None:
    """Return the object that JSON5 reads in a short text, or `None`.

    Only for what JSON5 alone knows (comments, hexadecimal numbers, a leading plus). Its strings drop the backslash of
    an unknown escape, so a text with any escape that is not JSON's is left alone.
    """
    if allowance is None or any(match.group(1) not in _PLAIN_ESCAPES for match in _ESCAPE.finditer(text)):
        return None
    if not allowance.take(len(text)):
        return None
    import json5  # here, because importing it takes longer than parsing a thousand responses

    try:
        value = json5.loads(text, allow_duplicate_keys=False, parse_constant=refuse_constant, parse_float=finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


_SPACE = re.compile(r"[ \t\r\n]*")
_ODD_SPACE = re.compile("(?:\\\\[nrt])+|[\u00a0\u2000-\u200d\u2028\u2029\u202f\u2060\u3000\ufeff\x0b\x0c]+")
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]{0,100}(?=\s{0,20}:)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])")
_WORD = re.compile(r"[-+]?[A-Za-z]{1,20}(?![\w.])")
_DOUBLE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SINGLE = re.compile(r"'[^'\\]*+(?:\\.[^'\\]*+)*+'", re.DOTALL)
_CURLY = re.compile("[\u201c\u201d][^\u201c\u201d\\\\]*+(?:\\\\.[^\u201c\u201d\\\\]*+)*+[\u201c\u201d]", re.DOTALL)
_ESCAPED = re.compile(r'\\"[^"\\]*+(?:(?:\\\\(?:\\["\\]|[^"\\])|\\[^"\\])[^"\\]*+)*+\\"', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_VALID = re.compile(r'[^\\]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^\\]*+)*+')
_CONTROL = re.compile(r"[\x00-\x1f]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_UNICODE = len("uXXXX")
_PLAIN_ESCAPES = frozenset('"\\/bfnrt')
_OTHER_ESCAPES = "uxN01234567\r\n"
"""What may follow a backslash in other notations and then means something else."""
_MEANINGS = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LITERALS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
