"""What to do about each class of provider error, best first, and whether the same request may be sent again.

Knows: the classes. Must not know: how a class is recognised, who carries the remedies out.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from policyengine.messages import ProviderError

ErrorClass = Literal[
    "context_overflow",
    "invalid_history",
    "output_limit_too_large",
    "overloaded",
    "payload_too_large",
    "quota_exhausted",
    "rate_limit",
    "reasoning_replay",
    "repetitive_calls",
    "request_too_large",
    "authentication",
    "permission",
    "not_found",
    "content_filter",
    "malformed_output",
    "stream_cut",
    "timeout",
    "connection",
    "server_error",
    "invalid_request",
    "unknown",
]
Remedy = Literal[
    "backoff",
    "compact",
    "disable_thinking",
    "drop_media",
    "fallback_model",
    "fallback_provider",
    "prune_duplicate_rounds",
    "reduce_max_tokens",
    "repair_history",
    "restore_reasoning",
    "stop",
    "truncate_results",
    "wait",
]

ERROR_CLASSES: tuple[ErrorClass, ...] = get_args(ErrorClass)

REMEDIES: dict[ErrorClass, tuple[Remedy, ...]] = {
    "context_overflow": ("compact", "truncate_results", "fallback_model"),
    "invalid_history": ("repair_history",),
    "output_limit_too_large": ("reduce_max_tokens",),
    "overloaded": ("backoff", "fallback_model"),
    "payload_too_large": ("drop_media", "stop"),
    "quota_exhausted": ("stop", "fallback_provider"),
    "rate_limit": ("wait", "fallback_model"),
    "reasoning_replay": ("restore_reasoning", "disable_thinking"),
    "repetitive_calls": ("prune_duplicate_rounds",),
    "request_too_large": ("compact", "reduce_max_tokens"),
    "authentication": ("stop", "fallback_provider"),
    "permission": ("stop", "fallback_model"),
    "not_found": ("fallback_model", "stop"),
    "content_filter": ("stop", "fallback_model"),
    "malformed_output": ("backoff", "stop"),
    "stream_cut": ("backoff", "fallback_model"),
    "timeout": ("backoff", "fallback_model"),
    "connection": ("backoff", "fallback_provider"),
    "server_error": ("backoff", "fallback_model"),
    "invalid_request": ("stop",),
    "unknown": ("stop",),
}
"""The remedies of each class where the text says nothing more special."""

RETRY_SAME_REQUEST: frozenset[ErrorClass] = frozenset(
    ["rate_limit", "overloaded", "server_error", "timeout", "connection", "stream_cut", "malformed_output"]
)
"""Classes in which the very same request may succeed later. After any other it fails for ever."""

USEFUL_TOKENS = 1024
"""An answer that may be no longer than this is not worth asking for (in a small window: than this share of it)."""
USEFUL_SHARE = 0.05


def room_remedies(limit: int | None, input_tokens: int | None) -> tuple[Remedy, ...]:
    """Return what to do where input and reserved output together do not fit into a window."""
    if limit is None or input_tokens is None:
        return REMEDIES["output_limit_too_large"]
    if limit - input_tokens < min(USEFUL_TOKENS, limit * USEFUL_SHARE):
        return ("compact", "reduce_max_tokens")
    return ("reduce_max_tokens", "compact") if input_tokens * 2 > limit else ("reduce_max_tokens",)


def credit_remedies(affordable: int) -> tuple[Remedy, ...]:
    """Return what to do where the account affords an answer of so many tokens."""
    if affordable < USEFUL_TOKENS:
        return REMEDIES["quota_exhausted"]
    return ("reduce_max_tokens", "stop", "fallback_provider")


def with_remedies(error: ProviderError) -> ProviderError:
    """Return an error that somebody made by hand with what its class says where it says nothing itself."""
    code = next((known for known in ERROR_CLASSES if known == error.code), None)
    if code is None or error.remedies or error.retry_same_request is not None:
        return error
    return msgspec.structs.replace(error, remedies=REMEDIES[code], retry_same_request=code in RETRY_SAME_REQUEST)
