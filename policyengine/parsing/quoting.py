"""Whether something in a text is said or only shown: quotes, examples, offers.

Knows: how people and models mark an example. Must not know: notations of calls.

A wrong guess in one direction asks the model once more; in the other it runs an action that was only mentioned. So
every doubt counts as an illustration.
"""

from __future__ import annotations

import re

NEAR = 600
"""How many characters before a call are looked at."""


def is_illustration(text: str, start: int, end: int, since: int = 0) -> bool:
    """Return whether what stands from `start` to `end` is quoted, an example, or only offered.

    Looked at are the last sentences before it, not further back than `since`, and the first line after it.
    """
    before, after = text[max(since, start - NEAR) : start], text[end : end + NEAR]
    if before and after and before[-1] in _QUOTES and after[0] in _QUOTES:
        return True
    line_before, line_after = before.rpartition("\n")[2], _first_line(after)
    if _WORDS.search(_MARK.sub(" ", line_before)) and _WORDS.search(_MARK.sub(" ", line_after)):
        return True
    said = _sentences(before)
    if any(map(_EXAMPLE.search, said[-2:])) or any(map(_DOUBT.search, said[-1:])):
        return True
    return _AFTERWARDS.search(_first_line(after.lstrip(" \n`~"))) is not None


def starts_anew(text: str) -> bool:
    """Return whether a sentence ends or a paragraph begins in a text, and something is said in it."""
    return _WORDS.search(text) is not None and _BREAK.search(text) is not None


def _sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text that have words, without what is quoted in them."""
    return [part for part in _END.split(_CITED.sub(" ", text)) if _WORDS.search(part)]


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


_QUOTES = "`\"'\u201c\u201d\u2018\u2019\u00ab\u00bb\u300c\u300d"
_MARK = re.compile(r"<[^<>\n]{0,100}>|\[[A-Z_]{1,40}\]")
"""A tag is part of a notation and not of what is said on a line."""
_WORDS = re.compile(r"[^\W\d_]{2}")
_END = re.compile(r"[.!?\u3002](?=\s)|\n")
_BREAK = re.compile(r"[.!?\u3002](?=\s)|\n[ \t]*\n")
_CITED = re.compile(r"\"[^\"]{1,400}\"|\u201c[^\u201c\u201d]{1,400}\u201d")
_EXAMPLE = re.compile(
    r"\bfor (?:example|instance)\b|\be\.\s?g\.|\bsuch as\b|\bexamples?\b|\bsomething like\b|\blooks? like\b"
    r"|\bif you(?:'d|\u2019d| would)? (?:like|want|prefer|wish)\b"
    r"|\b(?:would you like|do you want|want me to|shall i|should i|may i|can i)\b"
    r"|\bplease (?:let me know|tell me|specify|provide|confirm)\b"
    r"|\b(?:hypothetical|imagine|suppose|pretend|illustrat\w*|placeholder)\b"
    r"|\u4f8b\u5982|\u6bd4\u5982|\u793a\u4f8b|\u683c\u5f0f",
    re.IGNORECASE,
)
"""In the last two sentences before a call: it is an example, or only offered."""
_DOUBT = re.compile(
    r"\byou (?:can|could|may|might|would|should)\b|\b(?:i|we|one) (?:could|might|would)\b"
    r"|\b(?:format|syntax|template|notation|schema)\b"
    r"|\b(?:do not|don't|don\u2019t|never|instead of|rather than|won't|will not|not going to)\b"
    r"|\b(?:says?|said|reads?|contains?|shows?|wrote|emitted|printed|returned|logged|like|form)"
    r"(?: this| so| the following| it)?\s*:\s*\Z",
    re.IGNORECASE,
)
"""In the last sentence before a call: whether it is meant is in doubt."""
_AFTERWARDS = re.compile(
    r"\b(?:is|was|would be|as) (?:an |just an |only an |the )?(?:example|illustration|format|syntax)\b"
    r"|^(?:is|would|could|might|was)\b|\bfor (?:example|instance)\b",
    re.IGNORECASE,
)
