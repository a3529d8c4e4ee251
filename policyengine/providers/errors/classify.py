"""What a failed request was: one class, what the text says about it in numbers, and what helps.

Knows: which sign outranks which. Must not know: how the request is sent again, or by whom.

The order is the point. A provider that refuses a looping or unpaired history says so under the same status and type as
everything else; an empty account looks like a rate limit; "too many tokens per day" looks like an overflow; a request
that is larger than the limit per minute looks like one that is too early. So: loop, reasoning, pairing, billing,
numbers, overload, quota, overflow, size; then what a status or an SDK's exception says on its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from policyengine.masking import without_secrets
from policyengine.messages import ProviderError
from policyengine.providers.errors import wordings
from policyengine.providers.errors.numbers import (
    Numbers,
    normal,
    rate_numbers,
    read_ids,
    read_message_index,
    read_numbers,
    read_position,
    read_sizes,
    read_wait,
)
from policyengine.providers.errors.remedies import (
    REMEDIES,
    RETRY_SAME_REQUEST,
    ErrorClass,
    Remedy,
    credit_remedies,
    room_remedies,
)
from policyengine.providers.errors.request_id import REQUEST_ID_HEADERS, find_request_id
from policyengine.providers.errors.unwrap import Unwrapped, attribute, unwrap

MAX_MESSAGE = 2000
_NO_QUOTA = re.compile(r"\blimit: ?0\b(?!\.)|free quota tier")


class Found(NamedTuple):
    """A class; remedies and whether to repeat the request, where those of the class do not fit."""

    code: ErrorClass
    remedies: tuple[Remedy, ...] = ()
    retry: bool | None = None


class Signs(NamedTuple):
    """What the judges look at: the normalised text with labels, the status of the failure, the numbers, the wait."""

    text: str
    status: int | None
    numbers: Numbers
    wait: float | None
    windowed: bool


def classify_provider_error(
    error: Any,
    *,
    status: int | None = None,
    headers: Any = None,
    request_id_headers: Sequence[str] = REQUEST_ID_HEADERS,
    internal_id: str = "",
    now: float | None = None,
) -> ProviderError:
    """Return what a failed request was; never raises, whatever `error` is.

    Args:
        error: an exception (of any SDK, with causes), a body as text, bytes or mapping, an event of a stream, or a
            mapping that holds `status`, `headers` and `body`. A `ProviderError`, or an exception that carries one, is
            returned as it is.
        status: the HTTP status, where it is known apart from `error`.
        headers: the response's headers, where they are known apart from `error`.
        request_id_headers: names of headers that hold the request's id, in the order in which they are asked.
        internal_id: the id under which the caller knows the request, taken where the provider gives none.
        now: seconds since 1970, to read a retry time that is given as a date; else the `date` header is used.
    """
    for known in (error, attribute(error, "error") if isinstance(error, BaseException) else None):
        if isinstance(known, ProviderError):
            return known
    said = unwrap(error, status=status, headers=headers)
    text = "\n".join(map(normal, (*said.texts, *said.labels)))
    fields = said.fields
    signs = Signs(
        text=text,
        status=said.failure,
        numbers=read_numbers(text, fields),
        wait=read_wait(text, said.headers, fields, now=now),
        windowed=bool(wordings.WINDOW.search(text)),
    )
    found = next((found for found in (judge(signs) for judge in JUDGES) if found is not None), Found("unknown"))
    return _error(
        said,
        signs,
        found,
        find_request_id(said.headers, request_id_headers, told=said.request_ids, text=said.text, internal=internal_id),
    )


def _error(said: Unwrapped, signs: Signs, found: Found, request_id: str) -> ProviderError:
    numbers = _numbers_of(found.code, signs)
    size, limit_bytes = read_sizes(signs.text) if found.code == "payload_too_large" else (None, None)
    return ProviderError(
        code=found.code,
        message=_message(said),
        status=said.statuses[0] if said.statuses else None,
        retry_after_s=signs.wait,
        retry_same_request=found.code in RETRY_SAME_REQUEST if found.retry is None else found.retry,
        remedies=found.remedies or REMEDIES[found.code],
        tokens=numbers.tokens,
        limit=numbers.limit,
        requested=numbers.requested,
        max_tokens=numbers.max_tokens,
        input_tokens=numbers.input_tokens,
        size_bytes=size,
        limit_bytes=limit_bytes,
        ids=read_ids(said.text) if found.code in ("invalid_history", "reasoning_replay") else (),
        message_index=read_message_index(signs.text),
        position=read_position(signs.text) if found.code in ("invalid_history", "reasoning_replay") else None,
        request_id=request_id,
    )


def _numbers_of(code: ErrorClass, signs: Signs) -> Numbers:
    """Return the numbers that mean something in this class: a limit per minute is no window, bytes are no tokens."""
    numbers = signs.numbers
    if code in ("rate_limit", "request_too_large"):
        limit, _, requested = rate_numbers(signs.text)
        return Numbers(limit=limit if limit is not None else numbers.limit, requested=requested)
    if code in ("context_overflow", "output_limit_too_large"):
        total = numbers.requested
        return numbers._replace(requested=total if total is not None else _sum(numbers))
    if code == "quota_exhausted":
        return numbers if numbers.affordable is not None else numbers._replace(limit=None)
    return Numbers()


def _sum(numbers: Numbers) -> int | None:
    if numbers.input_tokens is None or numbers.max_tokens is None:
        return None
    return numbers.input_tokens + numbers.max_tokens


def _message(said: Unwrapped) -> str:
    told = said.messages[0] if said.messages else said.text or " ".join(said.labels)
    told = " ".join(told[: MAX_MESSAGE * 2].split())
    return without_secrets(told)[:MAX_MESSAGE]


# ---- judges, in their order: each returns a class, or leaves it to the next


def _loop(signs: Signs) -> Found | None:
    return Found("repetitive_calls") if wordings.REPETITIVE.search(signs.text) else None


def _reasoning(signs: Signs) -> Found | None:
    if not wordings.REASONING.search(signs.text):
        return None
    forbidden = wordings.REASONING_FORBIDDEN.search(signs.text)
    return Found("reasoning_replay", ("repair_history", "disable_thinking") if forbidden else ())


def _pairing(signs: Signs) -> Found | None:
    return Found("invalid_history") if wordings.HISTORY.search(signs.text) else None


def _billing(signs: Signs) -> Found | None:
    text = signs.text
    if _NO_QUOTA.search(text) and wordings.RATE.search(text):
        return Found("quota_exhausted")
    if signs.numbers.affordable is not None:
        return Found("quota_exhausted", credit_remedies(signs.numbers.affordable))
    if wordings.CURRENT_QUOTA.search(text):
        empty = "insufficient_quota" in text or "suspended" in text
        soon = signs.wait is not None or signs.windowed or "resource_exhausted" in text
        return Found("quota_exhausted") if empty or not soon else None
    if wordings.BILLING.search(text):
        limited = "usage limit" in text or "usage_limit" in text
        return None if limited and signs.wait is not None else Found("quota_exhausted")
    return Found("quota_exhausted") if signs.status == 402 else None


def _by_numbers(signs: Signs) -> Found | None:
    """Return what comparing the numbers says, whatever the words around them."""
    limit, _, requested = rate_numbers(signs.text)
    if signs.windowed:
        if limit is not None and requested is not None:
            return Found("request_too_large") if requested > limit else None
        return Found("request_too_large") if "request too large" in signs.text else None  # the text may be cut
    numbers = signs.numbers
    if _fits_without_output(numbers):
        remedies = room_remedies(numbers.limit, numbers.input_tokens)
        return Found("context_overflow" if remedies[0] == "compact" else "output_limit_too_large", remedies)
    if wordings.OUTPUT_LIMIT.search(signs.text) and not wordings.NOT_OUTPUT_LIMIT.search(signs.text):
        beyond = numbers.input_tokens is not None and numbers.limit is not None and numbers.input_tokens > numbers.limit
        return None if beyond else Found("output_limit_too_large")
    return None


def _fits_without_output(numbers: Numbers) -> bool:
    """Whether the prompt fits into the window and only the output reserved beside it does not."""
    given, reserved, limit = numbers.input_tokens, numbers.max_tokens, numbers.limit
    return bool(given is not None and reserved and limit and given < limit < given + reserved)


def _overload(signs: Signs) -> Found | None:
    words = wordings.OVERLOADED.search(signs.text)
    if words is not None and words.group() == "slow down" and signs.status == 429:
        return None  # whoever sends too many requests is told so, too
    return Found("overloaded") if words is not None or signs.status == 529 else None


def _quota(signs: Signs) -> Found | None:
    if "larger than max" in signs.text:
        return None
    return Found("rate_limit") if wordings.RATE.search(signs.text) else None


def _overflow(signs: Signs) -> Found | None:
    return Found("context_overflow") if wordings.OVERFLOW.search(signs.text) else None


def _size(signs: Signs) -> Found | None:
    if signs.status != 413 and not wordings.SIZE.search(signs.text):
        return None
    return Found("payload_too_large", ("truncate_results", "stop") if wordings.LONG_TEXT.search(signs.text) else ())


def _refused(signs: Signs) -> Found | None:
    """Return what no waiting changes: who asks, for what, and what about."""
    if wordings.CONTENT.search(signs.text):
        return Found("content_filter")
    if signs.status == 401 or wordings.AUTH.search(signs.text):
        return Found("authentication")
    if signs.status == 404 or wordings.MISSING.search(signs.text):
        return Found("not_found")
    return Found("permission") if signs.status == 403 or wordings.PERMISSION.search(signs.text) else None


def _cut(signs: Signs) -> Found | None:
    """Return what happened on the way: nothing in the request is wrong."""
    if wordings.OUTPUT.search(signs.text):
        return Found("malformed_output")
    if wordings.STREAM.search(signs.text):
        return Found("stream_cut")
    if signs.status in (408, 504, 524) or wordings.TIMEOUT.search(signs.text):
        return Found("timeout")
    if wordings.BAD_CERTIFICATE.search(signs.text):
        return Found("connection", ("stop", "fallback_provider"), retry=False)
    return Found("connection") if wordings.CONNECTION.search(signs.text) else None


def _by_status(signs: Signs) -> Found | None:
    status, text = signs.status, signs.text
    if status == 429:
        return Found("rate_limit")
    if status in (425, 503):
        return Found("overloaded")
    if status is not None and status >= 500:
        return Found("server_error")
    invalid = (status is not None and 400 <= status < 500) or wordings.INVALID.search(text)
    if wordings.SERVER.search(text) and (status is None or not invalid):
        return Found("server_error")
    if not invalid:
        return None
    if wordings.MEDIA_REFUSED.search(text):
        return Found("invalid_request", ("drop_media", "fallback_model"))
    if read_message_index(text) is not None:
        return Found("invalid_history")
    if "thinking" in text:
        return Found("invalid_request", ("disable_thinking", "stop"))
    return Found("invalid_request")


JUDGES: tuple[Callable[[Signs], Found | None], ...] = (
    _loop,
    _reasoning,
    _pairing,
    _billing,
    _by_numbers,
    _overload,
    _quota,
    _overflow,
    _size,
    _refused,
    _cut,
    _by_status,
)
