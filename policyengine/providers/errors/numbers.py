"""The numbers in a provider's error text: tokens, limits, bytes, waiting times, ids and places in the request.

Knows: how providers write them. Must not know: what class the error is, what is done about it.

Texts are expected as `normal` returns them. Every gap in a pattern is bounded, so that no text takes long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

MAX_IDS = 64
MAX_NUMBER = 10**12
MAX_WAIT_S = 366 * 86400.0

_N = r"(?<![\d.])(\d[\d,]{0,15}+)"
_CAP = r"max_?(?:completion_?|output_?|new_?)?tokens"
_QUOTES = re.compile(r"[`'\"*\u2018\u2019\u201c\u201d\\]{1,4}")
_SPACES = re.compile(r"\s{1,200}")


def _patterns(*sources: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(source.replace("{N}", _N).replace("{CAP}", _CAP)) for source in sources)


_SUM = re.compile(rf"{_N} ?\+ ?{_N} ?> ?{_N}")
_ROOM = re.compile(rf"{_N} ?> ?{_N} ?- ?{_N}")
_PAIR = re.compile(rf"{_N} ?(?:tokens? )?> ?{_N}")
_PART = re.compile(
    rf"{_N}(?: tokens)? (?:of|in|for|from) (?:the |your )?"
    r"(text input|tool input|image input|audio input|input messages|inputs?|messages?|prompt|functions?|tools?"
    r"|function definitions|tool definitions|completion|output|response)\b"
)
_WRITTEN = frozenset(["completion", "output", "response"])
_INPUT = _patterns(
    r"{N} input tokens",
    r"{N} inputs tokens",
    r"{N} (?:tokens )?(?:of|from) (?:the )?input",
    r"\binput_tokens\W{1,3}{N}",
)
_CAPPED = _patterns(
    r"{CAP}(?: is)? too (?:large|big|high): ?{N}",
    r"{CAP} ?(?:value )?(?:of|is|:|=|\() ?{N}",
    r"whereas you provided {N}",
    r"{CAP}[^\n]{1,160}?but (?:got|received) {N}",
    r"{N} {CAP}",
    r"{N} output tokens",
    r"requested up to {N} tokens",
)
_TOTAL = _patterns(
    r"\brequested(?: about| a total of| approximately)?:? {N}(?! ?(?:output|completion))",
    r"\ba total of (?:at least )?{N} tokens",
)
_TOKENS = _patterns(
    r"prompt (?:is )?too long: ?{N}",
    r"resulted in {N} tokens",
    r"contains (?:at least |about )?{N} (?:input |prompt )?tokens",
    r"tokens? count(?: of| is|:)? ?\(?{N}",
    r"\b(?:request|input|prompt|messages?|length|requested tokens|tokens) ?\({N}(?: tokens)?\)",
    r"(?:input|prompt|sequence) (?:length|size)(?: of| is|:)? \(?{N}",
    r"\bprompt (?:is|has|with) {N} tokens",
    r"\b(?:prompt|input)[_ ]tokens?:? \(?{N}",
    r"(?:given|received|but got):? {N}(?! ?max)",
    r"\bfirst {N} tokens",
    r"length of prompt_tokens \({N}\)",
    r"you passed {N}",
    r"\bn_prompt_tokens: {N}",
)
_LIMIT = _patterns(
    r"supports? (?:at most|up to|a maximum of|only(?: up to)?) {N}",
    r"(?:maximum|max) (?:context|prompt|input|sequence|total|model)? ?(?:length|tokens|size|window)"
    r"(?: (?:of|is|limit|allowed|for this model)){0,3}:? ?(?:only )?\(?{N}",
    r"(?:context|model)(?:'s)? ?(?:length|window|size|limit)(?: (?:of|is|limit|exceeded)){0,2}:? ?(?:only )?\(?{N}",
    r"\bless than or equal to {N}",
    r"(?:<=|cannot exceed|must not exceed|lower than|at most|no more than|must have less than) {N}",
    r"\[ ?\d{1,3} ?, ?{N} ?\]",
    r"between \d{1,3} and {N}",
    r"(?:larger|greater|higher|more) than (?:the )?[a-z_' ]{0,40}{N}",
    r"exceed(?:s|ed|ing)? (?!by )(?:the |this |your )?[a-z_' ]{0,60}?\(?{N}",
    r"tokens? limit(?: of| is|:)? ?{N}",
    r"{N} (?:tokens )?(?:maximum|max\b)",
    r"\bmax_seq_len \({N}\)",
    r"\bn_ctx: {N}",
    r"limit for (?:this|the) model is {N}",
    r"\blimit(?: is| of)?:? ?{N}",
    r"only affords? {N}|afford {N}",
)
_EXCLUSIVE = re.compile(rf"\bto {_N} \(exclusive\)")
_LIMIT_LEFT = re.compile(rf"\blimit:? {_N}")
_USED = re.compile(rf"\b(?:used|current):? {_N}")
_AFFORD = re.compile(rf"\bonly afford {_N}")

_UNIT = r"(kib|mib|gib|kb|mb|gb|bytes?|b|characters|chars)\b"
_MORE = re.compile(rf"(\d[\d,]{{0,15}}+(?:\.\d{{1,4}})?) ?{_UNIT} ?> ?(\d[\d,]{{0,15}}+(?:\.\d{{1,4}})?) ?{_UNIT}")
_SIZE = re.compile(rf"(?<![\d.])(\d[\d,]{{0,15}}+(?:\.\d{{1,4}})?) ?{_UNIT}")
_SCALE = {"k": 1024, "m": 1024**2, "g": 1024**3}

_SECONDS = {"ms": 0.001, "mi": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN_UNIT = r"(milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z])"
_SPAN = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,12}})?) ?{_SPAN_UNIT}")
_WAIT = re.compile(
    r"\b(?:try(?:ing)? again|retry(?:ing)?|retry[-_]?delay|retry[-_ ]after|wait(?:ing)?|resets?|available)\b"
    rf"[^\d.;]{{0,40}}?((?:\d{{1,9}}(?:\.\d{{1,12}})? ?{_SPAN_UNIT},? ?(?:and )?){{1,4}})"
)
_WAIT_BARE = re.compile(
    r"\b(?:retry[-_ ]?after(?:[-_ ]?(?:s|seconds))?|retry_delay \{ ?seconds"
    r"|resets_in_seconds|reset_after_seconds)[:= ]{1,3}(\d{1,9}(?:\.\d{1,9})?)\b"
)
_RESET = re.compile(r"ratelimit-reset|ratelimit-(?:requests|tokens|input-tokens|output-tokens)-reset")

_INDEX = re.compile(
    r"\b(?:messages?|contents|input)(?:\.\[|\[|\.)(\d{1,6})\b|\bmessage (?:at )?(?:index|position) (\d{1,6})\b"
    r"|\bat (?:message )?index (\d{1,6})\b|\bmessage #(\d{1,6})\b"
)
_POSITION = re.compile(r"\bposition (\d{1,6})\b|\bin the (\d{1,6})\. content block")
_PLACE = re.compile(r"\b(?:content|parts)(?:\.\[|\[|\.)(\d{1,6})\b")
_ID = re.compile(r"[`'\"]?([A-Za-z0-9_][A-Za-z0-9_:.|\-]{0,127})[`'\"]?")
_ID_BREAK = re.compile(r"\s{0,4}(?:,\s{0,4}(?:and\s{1,4})?|and\s{1,4})")
_IDS_AFTER = re.compile(
    r"did not have response messages:?"
    r"|immediately after:"
    r"|following ids?:"
    r"|tool output found for (?:function|custom tool|tool) calls?:?"
    r"|(?:function|tool|custom tool) call output with call_id:?"
    r"|found in [`'\"]?tool_result[`'\"]? blocks:"
    r"|blocks? with ids?:"
    r"|item with id:?"
    r"|duplicate (?:tool[_ ]?(?:call|use) )?[`'\"]?ids?[`'\"]?:"
    r"|missing (?:tool )?(?:results?|responses?|outputs?) for(?: the following)?(?: tool)?(?: calls?)?(?: ids?)?:?"
    r"|tool[_ ](?:call|use)[_ ]?ids?[`'\"]? (?:was|is|not found|mismatch):?"
    r"|unexpected tool call ids?"
    r"|(?:item found with|content for item|item with) (?:id )?(?=[a-z]{1,6}_)"
    r"|tool(?: call)? id[ :]{0,2}\("
    r"|tool_call_ids?[`'\"]?\s?[:=]"
    r"|[`'\"]?tool_call_id[`'\"]?\s(?=[`'\"](?!tool_call))"
    r"|\bitem (?=['\"`](?:rs|fc|msg|ctc|ws|item)_)"
    r"|required ['\"`]?reasoning['\"`]? item:",
    re.IGNORECASE,
)
_NO_ID = frozenset(
    [
        "each",
        "the",
        "a",
        "an",
        "must",
        "is",
        "was",
        "not",
        "found",
        "in",
        "of",
        "for",
        "and",
        "to",
        "with",
        "must",
        "be",
    ]
)


class Numbers(NamedTuple):
    """Tokens as an error text tells them; `None` where it does not.

    `tokens` is the size of the prompt, `requested` all that was asked for (the reserved output included).
    """

    tokens: int | None = None
    limit: int | None = None
    requested: int | None = None
    max_tokens: int | None = None
    input_tokens: int | None = None
    affordable: int | None = None


def normal(text: str) -> str:
    """Return a text in lower case, without quotes and with single spaces: wordings differ in nothing more often."""
    return _SPACES.sub(" ", _QUOTES.sub("", text)).lower().strip()


def read_numbers(text: str, fields: Mapping[str, Any]) -> Numbers:
    """Return the token numbers of a normalised text, and of the members of the body."""
    if match := _SUM.search(text):
        given, reserved, limit = (number(group) for group in match.groups())
        return Numbers(given, limit, (given or 0) + (reserved or 0), reserved, given)
    if match := _ROOM.search(text):
        reserved, limit, given = (number(group) for group in match.groups())
        return Numbers(given, limit, (given or 0) + (reserved or 0), reserved, given)
    given, reserved = _parts(text)
    given = given if given is not None else _first(_INPUT, text)
    reserved = reserved if reserved is not None else _first(_CAPPED, text)
    total = _first(_TOTAL, text)
    tokens = given if given is not None else _first(_TOKENS, text)
    limit = _limit(text)
    if match := _PAIR.search(text):
        more, limit = number(match.group(1)), number(match.group(2))
        if reserved is None or reserved != more:
            tokens = more
    told = _member(fields, "n_prompt_tokens", "prompt_tokens", "input_tokens", "num_prompt_tokens", "token_count")
    window = _member(fields, "n_ctx", "context_length", "max_context_length", "context_window", "token_limit")
    tokens = told if told is not None else tokens
    limit = window if window is not None else limit
    if given is None and reserved is None and tokens is None:
        tokens = total
    affordable = _found(_AFFORD, text)
    return Numbers(tokens, limit if affordable is None else affordable, total, reserved, given, affordable)


def rate_numbers(text: str) -> tuple[int | None, int | None, int | None]:
    """Return limit, used and requested of a limit per time."""
    return _found(_LIMIT_LEFT, text), _found(_USED, text), _first(_TOTAL, text)


def read_sizes(text: str) -> tuple[int | None, int | None]:
    """Return size and limit in bytes (or characters) of a normalised text."""
    if match := _MORE.search(text):
        return _bytes(match.group(1), match.group(2)), _bytes(match.group(3), match.group(4))
    found = [_bytes(value, unit) for value, unit in _SIZE.findall(text[:4000])]
    sizes = [size for size in found if size is not None]
    if match := re.search(rf"length \(?{_N}\)? exceeds[^\d]{{0,40}}{_N}", text):
        return number(match.group(1)), number(match.group(2))
    if match := re.search(rf"maximum length {_N}[^\d]{{0,60}}length {_N}", text):
        return number(match.group(2)), number(match.group(1))
    if match := re.search(rf"larger than max(?:imum)? \({_N} vs\.? {_N}\)", text):
        return number(match.group(1)), number(match.group(2))
    if len(sizes) == 1:
        return None, sizes[0]
    return (max(sizes), min(sizes)) if len(sizes) == 2 else (None, None)


def read_wait(
    text: str, headers: Mapping[str, str], fields: Mapping[str, Any], *, now: float | None = None
) -> float | None:
    """Return how many seconds the provider wants us to wait; `None` where it does not say.

    Args:
        text: the normalised text.
        headers: response headers by lower-case name.
        fields: members of the body by lower-case name.
        now: the time in seconds since 1970; without it, dates are measured from the response's `date` header.
    """
    waits = (
        _scaled(headers.get("retry-after-ms"), 0.001),
        _header_wait(headers.get("retry-after"), _base(headers, now)),
        _scaled(_any(fields, "retry_after_ms", "retryafterms", "retry-after-ms"), 0.001),
        _scaled(_any(fields, "retry_after", "retryafter", "retry_after_s", "retry_after_seconds"), 1.0),
        _longer(span(str(_any(fields, "retrydelay", "retry_delay") or "")), _text_wait(text)),
        _scaled(_any(fields, "resets_in_seconds", "reset_after_seconds", "estimated_time"), 1.0),
        _reset_wait(headers, _base(headers, now)),
    )
    return next((wait for wait in waits if wait is not None and 0 <= wait <= MAX_WAIT_S), None)


def span(text: str) -> float | None:
    """Return a time like `1h2m3.5s`, `34s` or `120 ms` in seconds."""
    found = [float(value) * _seconds(unit) for value, unit in _SPAN.findall(text.lower()[:200])]
    return round(sum(found), 6) if found else None


def read_ids(text: str) -> tuple[str, ...]:
    """Return the ids of calls (or reasoning items) that a text, as the provider has it, names."""
    ids: dict[str, None] = {}
    for lead in _IDS_AFTER.finditer(text):
        for item in _listed(text, lead.end()):
            ids.setdefault(item)
            if len(ids) >= MAX_IDS:
                return tuple(ids)
    return tuple(ids)


def read_message_index(text: str) -> int | None:
    """Return the index of the message that a normalised text names."""
    match = _INDEX.search(text)
    return next((int(group) for group in match.groups() if group is not None), None) if match else None


def read_position(text: str) -> int | None:
    """Return the position that a normalised text names, counted as the provider counts."""
    match = _POSITION.search(text) or _PLACE.search(text)
    return next((int(group) for group in match.groups() if group is not None), None) if match else None


def number(text: str) -> int | None:
    """Return digits with thousands separators as a number."""
    digits = text.replace(",", "")
    value = int(digits) if digits.isascii() and digits.isdigit() else None
    return value if value is not None and value <= MAX_NUMBER else None


def _parts(text: str) -> tuple[int | None, int | None]:
    given: list[int] = []
    written: list[int] = []
    for value, part in _PART.findall(text[:4000]):
        amount = number(value)
        if amount is not None:
            (written if part in _WRITTEN else given).append(amount)
    return (sum(given) if given else None), (sum(written) if written else None)


def _limit(text: str) -> int | None:
    exclusive = _found(_EXCLUSIVE, text)
    return exclusive - 1 if exclusive else _first(_LIMIT, text)


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    return next((found for found in (_found(pattern, text) for pattern in patterns) if found is not None), None)


def _found(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    group = next((group for group in match.groups() if group is not None), None) if match else None
    return number(group) if group else None


def _any(fields: Mapping[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if name in fields), None)


def _member(fields: Mapping[str, Any], *names: str) -> int | None:
    value = _any(fields, *names)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_NUMBER else None


def _bytes(value: str, unit: str) -> int | None:
    scale = _SCALE.get(unit[0], 1) if unit not in ("bytes", "byte", "b") else 1
    digits = value.replace(",", "")
    return int(float(digits) * scale) if re.fullmatch(r"\d{1,16}(?:\.\d{1,4})?", digits) else None


def _seconds(unit: str) -> float:
    return 0.001 if unit.startswith(("ms", "milli")) else _SECONDS[unit[0]]


def _text_wait(text: str) -> float | None:
    if match := _WAIT.search(text):
        return span(match.group(1))
    match = _WAIT_BARE.search(text)
    return float(match.group(1)) if match else None


def _longer(*waits: float | None) -> float | None:
    return max((wait for wait in waits if wait is not None), default=None)


def _scaled(value: Any, scale: float) -> float | None:
    if isinstance(value, str):
        if not re.fullmatch(r"\d{1,12}(?:\.\d{1,9})?", value):
            return span(value) if scale == 1.0 else None
        value = float(value)
    return round(value * scale, 6) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _base(headers: Mapping[str, str], now: float | None) -> float | None:
    return now if now is not None else _date(headers.get("date"))


def _header_wait(value: str | None, base: float | None) -> float | None:
    if not value:
        return None
    seconds = _scaled(value, 1.0)
    if seconds is not None:
        return seconds
    until = _date(value)
    return max(0.0, until - base) if until is not None and base is not None else None


def _date(value: str | None) -> float | None:
    if not value:
        return None
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError, OSError):
        pass
    try:
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _reset_wait(headers: Mapping[str, str], base: float | None) -> float | None:
    """Return when the limits are open again that have nothing left."""
    waits = []
    for name, value in headers.items():
        if not _RESET.search(name) or headers.get(name.replace("reset", "remaining"), "0") != "0":
            continue
        if re.fullmatch(r"\d{10,13}(?:\.\d{1,6})?", value):
            moment = float(value) / (1000 if len(value.split(".")[0]) > 11 else 1)
            wait = moment - base if base is not None else None
        else:
            wait = _header_wait(value, base)
        if wait is not None and wait >= 0:
            waits.append(wait)
    return max(waits, default=None)


def _listed(text: str, at: int) -> Iterator[str]:
    match = re.compile(r"\s{0,4}[\[({]?\s{0,2}").match(text, at)
    at = match.end() if match else at
    for _ in range(MAX_IDS):
        found = _ID.match(text, at)
        item = found.group(1).rstrip(".:") if found else ""
        if found is None or not item or item.lower() in _NO_ID or text[found.end() : found.end() + 1] == "[":
            return
        yield item
        pause = _ID_BREAK.match(text, found.end())
        if pause is None or item != found.group(1):
            return
        at = pause.end()
