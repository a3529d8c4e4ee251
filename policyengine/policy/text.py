"""Bytes to text that shows what it says: size, encoding, hidden characters.

Knows: which characters a policy file may hold. Must not know: YAML, JSON.
"""

from __future__ import annotations

import codecs
import re
from unicodedata import name as unicode_name

from policyengine.errors import ConfigError
from policyengine.policy.nodes import Source
from policyengine.policy.problems import Position, Problem

MAX_BYTES = 1024 * 1024
"""Largest accepted file."""

MAX_DEPTH = 40
"""Deepest accepted nesting of mappings and lists."""

# U+0085, U+2028 and U+2029 end a line for some readers and not for others, so that a comment can hide a live key (a
# lone carriage return likewise). Bidirectional controls and zero-width characters make a text look like another one.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]|\r(?!\n)"
)
_NONCHARACTERS = re.compile(
    "[\ufdd0-\ufdef" + "".join(f"{chr(p << 16 | 0xFFFE)}-{chr(p << 16 | 0xFFFF)}" for p in range(1, 17)) + "]"
)
_WIDE_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def decode(data: bytes, file: str) -> Source:
    """Return the text of a policy file; a UTF-8 byte order mark at its start is dropped.

    Raises ConfigError with every forbidden character, or with the reason why the bytes are no text.
    """
    if len(data) > MAX_BYTES:
        raise ConfigError([_refused(file, "Y101", f"the file is larger than {MAX_BYTES:,} bytes")])
    if data.startswith(_WIDE_MARKS) or b"\0" in data[:4]:
        raise ConfigError([_refused(file, "Y102", "the file is UTF-16 or UTF-32", "save it as UTF-8")])
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        position = Source(file, before).at(len(before))
        found = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise ConfigError([Source(file, "").problem("Y102", found, position, help="save the file as UTF-8")]) from None
    source = Source(file, text)
    hidden = [*_FORBIDDEN.finditer(text), *_NONCHARACTERS.finditer(text)]
    if hidden:
        raise ConfigError([_hidden(source, match) for match in sorted(hidden, key=re.Match.start)[:20]])
    return source


def _refused(file: str, code: str, message: str, help: str = "") -> Problem:
    return Source(file, "").problem(code, message, Position(file, 1, 1), help=help)


def _hidden(source: Source, match: re.Match[str]) -> Problem:
    char = match.group()
    called = unicode_name(char, "") or ("CARRIAGE RETURN without a line feed" if char == "\r" else "control character")
    written = f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}" if ord(char) < 0x10000 else ""
    advice = f'remove it; inside double quotes it can be written as "{written}"' if written else "remove it"
    position = source.at(match.start())
    # The line itself is not shown: printed, it would do to the terminal what the character does to the file.
    message = f"forbidden character U+{ord(char):04X} ({called.lower()})"
    return Source(source.file, "").problem("Y103", message, position, help=advice)
