"""When two calls are the same call, and two results the same result.

Knows: canonical JSON, which parts of a result change without meaning anything.
Must not know: guards, streaks, the loop.

The identity of a call is its tool and its arguments as values: the order of keys, spacing and escapes do not matter,
the order of array items does, `1` equals `1.0`, text is compared in NFC, and a null differs from a missing key.
Arguments are never masked. A result is compared as it is (`raw_fingerprint`), or without ids, times and durations
(`masked_fingerprint`). All fingerprints are the same in every process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any
from unicodedata import is_normalized, normalize

import msgspec

from policyengine.patterns import compiled, substituted

__all__ = ["call_identity", "content_mark", "mask_volatile", "masked_fingerprint", "raw_fingerprint", "remembering"]

DIGEST_BYTES = 16
_LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")
NOTHING: frozenset[str] = frozenset()

_encode = msgspec.json.Encoder(order="deterministic").encode
_PLAIN = frozenset({str, int, bool, type(None)})
_PLAIN_DEPTH = 16


def call_identity(name: str, args: Any, arguments: str = "", ignore: frozenset[str] = NOTHING) -> str:
    """Return the identity of a tool call as 32 hex digits.

    `args` are the parsed arguments. Where they are `None`, `arguments` is the text the model sent: JSON text counts as
    what it parses to, empty text as no arguments, anything else as itself. `ignore` names top-level arguments that do
    not count.
    """
    if args is None:
        args = _parsed(arguments)
    if ignore and isinstance(args, Mapping):
        args = {key: item for key, item in args.items() if key not in ignore}
    data = _plain_form(name, args) or _canonical((name, args))
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def raw_fingerprint(text: str) -> str:
    """Return a fingerprint of a text as it is (in NFC), as 32 hex digits."""
    return blake2b(_utf8(text), digest_size=DIGEST_BYTES).hexdigest()


def content_mark(kind: str, data: bytes | str) -> str:
    """Return a word for an image, a file, or anything else that is no text: the same for the same data.

    It has letters only, of which no mask takes any away.
    """
    digest = blake2b(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data, digest_size=DIGEST_BYTES)
    return f"[{kind} {digest.hexdigest().translate(_LETTERS)}]"


def masked_fingerprint(text: str, masks: tuple[str, ...] = ()) -> str:
    """Return a fingerprint of a text without its volatile parts; see `mask_volatile`."""
    known = _KNOWN.get()
    if known is None:
        return raw_fingerprint(mask_volatile(text, masks))
    found = known.get((text, masks))
    if found is None:
        found = known[text, masks] = raw_fingerprint(mask_volatile(text, masks))
    return found


_KNOWN: ContextVar[dict[tuple[str, tuple[str, ...]], str] | None] = ContextVar("known", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Mask each text only once while the block lasts: for whoever shows the same results to many policies."""
    token = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(token)


def mask_volatile(text: str, masks: tuple[str, ...] = ()) -> str:
    """Return a text with its volatile parts replaced by fixed words.

    Replaced are UUIDs, ISO and epoch timestamps, numbers with a time unit (`812 ms`, `1m 12s`) or under a key that
    ends in one (`durationMs`, `elapsed_s`), process ids, and hexadecimal words of 12 or more characters that have both
    digits and letters. `masks` are further regular expressions that a tool declares; they are replaced first.
    Other digits stay: "20 %" is progress. Units end at hours, since a call takes no days; a bare `m` may be metres and
    a key that ends in `min` a minimum, so neither counts.
    """
    for mask in masks:
        text = substituted(mask, "<mask>", text)
    if _DIGIT.search(text) is None:
        return text
    # A search for fixed bytes takes a tenth of what a pattern takes, and few texts have what most patterns look for. No
    # word that is put in has a digit, and no pattern matches its brackets, so that the text as it was can be asked.
    data = text.encode("utf-8", "surrogatepass")
    outlines = data.translate(_HEX_OUTLINE), data.translate(_TIME_OUTLINE), data.lower()
    for pattern, substitute, outline, parts in _VOLATILE:
        if any(part in outlines[outline] for part in parts):
            text = compiled(pattern).sub(substitute, text)
    return compiled(_KEYED_NUMBER).sub(_mask_keyed, text)


_HEX = "[0-9a-fA-F]"
_NUMBER = r"[0-9]++(?:[.,][0-9]++){0,4}"
_UNIT = "(?:ns|us|µs|μs|ms|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?)"
_UNIT_KEY = (
    "(?:(?<=_)(?:ns|us|ms|s|secs?|seconds?|mins|minutes?|hrs?|hours?)"
    "|(?<=[a-z0-9])(?:Ns|Us|Ms|MS|S|Secs?|Seconds?|Mins|Minutes?|Hrs?|Hours?)"
    "|(?<![A-Za-z0-9_])(?:ns|us|ms|secs?|seconds|mins|minutes|hrs|hours))"
    r"[\"')]?\s{0,3}$"
)
_KEYED_NUMBER = (
    r"([:=](?:(?<=[scdrS][:=])|(?<=[scderS\"')\s][\"')\s][:=]))\s{0,3}[\"']?)"
    r"-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]{1,3})?"
)
_KEY_WINDOW = 16
"""Characters before a `:` or `=` that hold the longest unit, its closing quote and the character before it."""

_ENDS = "(?![0-9A-Za-z])"
_DIGIT = re.compile("[0-9]")

_HEX_OUTLINE = bytes.maketrans(b"0123456789abcdefABCDEF", b"0" * 22)
_TIME_OUTLINE = bytes.maketrans(b"0123456789numsh\xc2\xce", b"0" * 10 + b"u" * 7)
"""Digits become `0`, and what a unit may begin with (the first byte of a micro sign, too) becomes `u`."""

_IN_HEX, _IN_TIME, _IN_LOWER = range(3)

# Repetition is possessive, bounded or followed by what cannot be part of it, so that a scan is linear in the text.
# Where it can, a pattern starts with a plain class and looks behind after it: only then does the engine skip ahead.
# Every match has one of the parts in the outline that is named with them. A pattern is compiled when a text first needs
# it: a process that judges one call needs few.
_VOLATILE: tuple[tuple[str, str, int, tuple[bytes, ...]], ...] = (
    (
        rf"{_HEX}(?<![0-9A-Za-z]{_HEX}){_HEX}{{7}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}{_ENDS}",
        "<uuid>",
        _IN_HEX,
        (b"-0000-0000-0000-",),
    ),
    (
        r"[0-9](?<![0-9][0-9])[0-9]{3}"
        r"(?:-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?"
        r"|[0-9]{4}T[0-9]{4}(?:[0-9]{2})?(?:[.,][0-9]{1,9})?)"
        rf"(?: ?(?:Z|UTC|GMT|[+-][0-9]{{2}}:?[0-9]{{2}}){_ENDS})?",
        "<timestamp>",
        _IN_TIME,
        (b"0000-00-00", b"00000000T0000"),
    ),
    (
        rf"{_HEX}(?:(?<![0-9A-Za-z]{_HEX})|(?<=0x{_HEX}))"
        r"(?:(?<=[0-9])[0-9]*+[a-fA-F]|(?<=[a-fA-F])[a-fA-F]*+[0-9])"
        rf"{_HEX}*+(?<={_HEX}{{12}}){_ENDS}",
        "<hex>",
        _IN_HEX,
        (b"0" * 12,),
    ),
    (
        rf"1(?<![0-9A-Za-z.]1)[2-9][0-9]{{8}}(?:[0-9]{{3}}|[0-9]{{6}}|[0-9]{{9}})?(?:\.[0-9]{{1,9}})?{_ENDS}",
        "<timestamp>",
        _IN_TIME,
        (b"0" * 10,),
    ),
    (
        r"[0-9](?<![0-9A-Za-z.][0-9])[0-9]*+(?:[.,][0-9]++){0,4} ?"
        rf"(?:h ?{_NUMBER} ?m(?:in)?(?: ?{_NUMBER} ?s)?|m(?:in)? ?{_NUMBER} ?s|{_UNIT}){_ENDS}",
        "<duration>",
        _IN_TIME,
        (b"0u", b"0 u"),
    ),
    (
        r"[pP](?:(?<![A-Za-z][pP])|(?<=[a-z]P)|(?<=[pP][pP]))(?:id|ID)"
        r"([\"']?\s{0,3}[:=#]?\s{0,3}[\"']?)[0-9]{1,10}(?![0-9])",
        r"pid\1<pid>",
        _IN_LOWER,
        (b"pid",),
    ),
)


def _mask_keyed(match: re.Match[str]) -> str:
    start = match.start()
    if compiled(_UNIT_KEY).search(match.string[max(0, start - _KEY_WINDOW) : start]) is None:
        return match.group()
    return match.group(1) + "<duration>"


def _utf8(text: str) -> bytes:
    if not text.isascii() and not is_normalized("NFC", text):
        text = normalize("NFC", text)
    return text.encode("utf-8", "surrogatepass")


def _parsed(arguments: str) -> Any:
    if not arguments.strip():
        return {}
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return _Text(b"text " + _utf8(arguments))


def _plain_form(name: str, args: Any) -> bytes | None:
    """Return what `_canonical` writes, or `None` where a value needs normalising first (msgspec writes NaN as null)."""
    try:
        if not _is_plain(args.values() if type(args) is dict else (args,)):
            if type(args) is not dict:
                return None
            # A whole number written as 30.0 is common enough to be spared the slow path.
            args = {key: int(item) if type(item) is float and item.is_integer() else item for key, item in args.items()}
            if not _is_plain(args.values()):
                return None
        data = _encode((name, args))
    except (TypeError, ValueError, RecursionError, OverflowError):
        return None
    return data if _is_nfc(data) else None


def _is_nfc(data: bytes) -> bool:
    # Quotes never combine with what follows them, so the whole is in NFC exactly when every string in it is.
    return data.isascii() or is_normalized("NFC", data.decode())


def _is_plain(values: Iterable[Any], depth: int = 0) -> bool:
    """Return whether msgspec writes these values in their one canonical form (strings and keys apart)."""
    if _PLAIN.issuperset(map(type, values)):
        return True
    if depth == _PLAIN_DEPTH:
        return False
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind is list:
            if not _is_plain(value, depth + 1):
                return False
        elif kind is dict:
            if not _is_plain(value.values(), depth + 1):
                return False
        elif kind is not float or value.is_integer() or value - value != 0:
            return False
    return True


class _Text:
    """Bytes to be written as they are; `leaves` is the container that ends here."""

    __slots__ = ("data", "leaves")

    def __init__(self, data: bytes, leaves: int = 0) -> None:
        self.data = data
        self.leaves = leaves


def _canonical(value: Any) -> bytes:
    """Write any value in the form that the fast path gives for plain ASCII data. Not recursive: depth has no limit."""
    out: list[bytes] = []
    inside: set[int] = set()
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, _Text):
            out.append(item.data)
            inside.discard(item.leaves)
        elif isinstance(item, Mapping | list | tuple):
            if id(item) in inside:
                out.append(b"<cycle>")
                continue
            inside.add(id(item))
            if isinstance(item, Mapping):
                todo += reversed(_members(item))
            else:
                todo += reversed(_items(item))
        else:
            out.append(_scalar(item))
    return b"".join(out)


def _members(mapping: Mapping[Any, Any]) -> list[Any]:
    parts: list[Any] = []
    for name, key in sorted(((_key(key), key) for key in mapping), key=lambda pair: pair[0]):
        parts += (_Text((b"," if parts else b"{") + _scalar(name) + b":"), mapping[key])
    return [*parts, _Text(b"}" if parts else b"{}", id(mapping))]


def _items(sequence: list[Any] | tuple[Any, ...]) -> list[Any]:
    parts: list[Any] = []
    for item in sequence:
        parts += (_Text(b"," if parts else b"["), item)
    return [*parts, _Text(b"]" if parts else b"[]", id(sequence))]


def _key(key: Any) -> str:
    """Return a key as text; what is not text becomes a key as it does in JSON."""
    return normalize("NFC", key) if isinstance(key, str) else _scalar(key).decode()


def _scalar(value: Any) -> bytes:
    """Write one leaf. What JSON cannot say is written as a bare word, which no JSON text contains."""
    if isinstance(value, str):
        text = value if value.isascii() else normalize("NFC", value)
        try:
            return _encode(text)
        except UnicodeEncodeError:
            return json.dumps(text).encode()
    if isinstance(value, float):
        if value.is_integer():
            value = int(value)
        elif value - value != 0:
            return repr(value).encode()
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return hex(value).encode() if isinstance(value, int) else b"<" + type(value).__qualname__.encode() + b">"
