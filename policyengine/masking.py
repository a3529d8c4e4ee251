"""Secrets out of texts: the values of variables and keys that this process was given, and what looks like a key.

Knows: values that must not be shown, the forms of providers' keys, addresses with a password or a key.
Must not know: who says a text, where it goes.

What is known is kept for the life of the process, so that an exception raised hours later, in any module, can be told
without the value. Values are matched whole: a short one, or a plain number, would take other words with it, and is
left alone here (problems of a policy hide those too, see `policy.environment`).
"""

from __future__ import annotations

import re
import threading

SHORTEST = 8
"""Values of fewer characters are no secrets that a text could be searched for."""

MOST = 1_000
"""How many values are kept; the oldest goes."""

_KEY = re.compile(r"\b(?:(sk|pk|rk|gsk|xai|hf)[-_][\w\-*.]{8,256}|(AIza)[\w\-*]{16,256}|(Bearer )[\w\-*.]{8,2000})")
_LOGIN = re.compile(r"(?<=://)[^\s/\"'<>]{1,500}@")  # a password may hold an @, too
_PARAMETER = re.compile(
    r"(?<=[?&])([\w.\-]{0,40}(?:key|token|secret|passw|auth|sig|credential)[\w.\-]{0,40}=)[^\s&#\"'<>]{1,500}",
    re.IGNORECASE,
)

_lock = threading.Lock()
_known: dict[str, str] = {}


def keep_secret(value: str, label: str) -> None:
    """Remember a value that no text may show; `label` stands in its place."""
    if len(value) < SHORTEST or value.isdecimal():
        return
    with _lock:
        _known[value] = label
        while len(_known) > MOST:
            del _known[next(iter(_known))]


def without_secrets(text: str) -> str:
    """Return a text with what is known, and what looks like a key or a password, replaced."""
    return without_keys(without_known(text))


def without_known(text: str) -> str:
    """Return a text with every value that was kept secret replaced by its label."""
    if not _known:
        return text
    with _lock:
        pairs = sorted(_known.items(), key=lambda pair: -len(pair[0]))
    for value, label in pairs:
        if value in text:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _, label=label: label, text)  # type: ignore[misc]
    return text


def without_keys(text: str) -> str:
    """Return a text with the rest of what begins like a provider's key, and logins and keys in addresses, cut out."""
    text = _KEY.sub(lambda match: f"{next(filter(None, match.groups()))}...", text)
    text = _PARAMETER.sub(r"\1...", text) if "=" in text else text
    return _LOGIN.sub("...@", text) if "://" in text else text


def trace_of(error: BaseException) -> str:
    """Return the traceback of an exception as it may be logged.

    A log library that prints the values of variables beside the lines would print those that hold secrets.
    """
    import traceback  # where something failed already

    try:
        lines = traceback.format_exception(error)
    except Exception as failed:  # noqa: BLE001 - the text of a foreign exception is foreign code
        return f"{type(error).__name__} (its traceback cannot be shown: {type(failed).__name__})"
    return without_secrets("".join(lines).rstrip("\n"))
