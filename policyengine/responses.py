"""What to do about a model response before anything in it is used: the cases that look like an answer and are none.

Knows: finish reasons, what a person can see of a response, what token counts give away.
Must not know: guards, history, how calls are parsed (that is `parse_response`).

The order matters: a prompt that the server cut silently makes everything after it worthless; a finish reason that names
a broken call outranks whatever came with it; only then does it count what there is to see. Reasoning is not visible.
How often unusable responses may follow each other is not decided here: that is `stop_unusable_response_loop`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import msgspec

from policyengine.messages import ModelResponse, as_mapping
from policyengine.parsing import WARNING_KINDS, parse_response

ResponseVerdict = Literal[
    "calls", "complete", "empty", "malformed_call", "truncated", "context_overflow", "refused", "failed"
]
ResponseAction = Literal["run_calls", "end", "retry", "retry_with_nudge", "compact_or_raise_window"]

CUT_REASONS = frozenset(["length", "max_tokens", "max_output_tokens", "incomplete"])
WINDOW_REASONS = frozenset(
    ["model_context_window_exceeded", "context_length_exceeded", "context_window_exceeded", "context_length"]
)
REFUSED_REASONS = frozenset(
    ["refusal", "content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "image_safety"]
)
FAILED_REASONS = frozenset(["error", "failed", "network_error", "abort", "aborted", "cancelled", "incomplete_stream"])
CALL_REASONS = frozenset(["tool_calls", "tool_use", "function_call", "tool_call"])
BROKEN_CALL_REASONS = frozenset(["unexpected_tool_call", "too_many_tool_calls", "invalid_tool_call", "tool_call_error"])
"""Further reasons, not spelled with "malformed", by which a provider says that it could not read the model's call."""

CUT_SHARE = 0.5
"""A prompt of fewer tokens than this share of the estimate was cut. Estimates by characters are off by less."""
CUT_TOKENS = 512
"""... if at least so many tokens are missing: short prompts are estimated badly."""
FIT_SHARE = 0.9
"""A window below this share of the estimate cannot have held the request."""
NO_ROOM_TOKENS = 16
"""A reply that ends at a length limit after no more tokens than this had no room: the prompt filled the window."""
FULL_SHARE = 0.98

_THOUGHTS = re.compile(
    r"<(think|thinking|reasoning|thought)\b[^<>]{0,200}>.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE
)
_LATE_CLOSE = re.compile(r"\A.*</(?:think|thinking|reasoning|thought)\s*>", re.DOTALL | re.IGNORECASE)
_INVISIBLE = re.compile(r"[\s\u00ad\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]+")
_MEDIA = ("image", "audio", "video", "file", "document", "inlinedata", "inline_data", "filedata", "file_data")


class ClassifiedResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a response is, and what to do.

    `reason` is a machine reason for the verdict. With a `retry` or `retry_with_nudge`, `max_retries` is how often it
    makes sense and `then` what follows; when they are used up, the action is `end` and the run has no answer: that must
    never be reported as a success.
    """

    verdict: ResponseVerdict
    action: ResponseAction
    reason: str = ""
    counts_as_unusable: bool = False
    """Whether the response counts for the breaker."""
    run_calls: bool = False
    """Whether calls in the response may run."""
    trust_usage: bool = True
    """Whether the reported prompt tokens may correct the caller's token estimate."""
    max_retries: int | None = None
    then: str = ""


def classify_response(
    response: ModelResponse,
    *,
    protocol: str = "native",
    tools: Collection[str] | None = None,
    estimated_prompt_tokens: int | None = None,
    context_window: int | None = None,
    answered: bool = False,
    retries: int = 0,
    max_retries: int = 2,
    then: str = "stop",
) -> ClassifiedResponse:
    """Return what a response is and what to do about it.

    Args:
        response: the response; media and cached tokens are read from `raw`, the provider's mapping.
        protocol: `native` or `text`: how calls are written.
        tools: names of the offered tools, where they are known.
        estimated_prompt_tokens: the caller's own count of the request; without it a silent cut cannot be seen.
        context_window: the window of the model in tokens, where it is known.
        answered: whether a tool already gave the user the answer, so that nothing needs to be added.
        retries: how many retries this response is already the result of.
        max_retries: how many there may be.
        then: what the caller does when they are used up; handed through.
    """
    seen = _overflow(response, estimated_prompt_tokens, context_window) or _by_reason(response)
    seen = seen or _by_content(response, protocol, tools, answered)
    if not seen.action.startswith("retry"):
        return seen
    action = seen.action if retries < max_retries else "end"
    return msgspec.structs.replace(seen, action=action, max_retries=max_retries, then=then)


def prompt_tokens(response: ModelResponse) -> int | None:
    """Return the tokens of the whole prompt, cached ones included; `None` where nothing (or nothing but 0) is known."""
    reported = as_mapping(as_mapping(response.raw).get("usage"))
    cached = sum(_count(reported.get(name)) for name in _CACHED)
    counted = response.usage.prompt_tokens if response.usage is not None else None
    return (_count(counted) + cached) or None


_CACHED = (
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "cacheReadInputTokens",
    "cacheWriteInputTokens",
)
"""Counted beside the prompt by the providers that report them; where they are part of it, the sum is only cautious."""


def visible_text(response: ModelResponse) -> str:
    """Return what a person would read: the text without thoughts and invisible characters, or a refusal."""
    text = _THOUGHTS.sub("", response.text)
    text = _LATE_CLOSE.sub("", text)
    return text.strip() if _INVISIBLE.sub("", text) else ""


def has_media(response: ModelResponse) -> bool:
    """Return whether the response holds an image, sound, a video or a file."""
    return any(_is_media(part) for part in _parts(as_mapping(response.raw)))


def _overflow(response: ModelResponse, estimate: int | None, window: int | None) -> ClassifiedResponse | None:
    reason = ""
    prompt = prompt_tokens(response)
    finish = response.finish_reason.lower()
    if finish in WINDOW_REASONS:
        reason = "window_exceeded"
    elif prompt and estimate and _is_prompt_cut(prompt, estimate, window):
        reason = "prompt_cut"
    elif finish in CUT_REASONS and not (response.tool_calls or visible_text(response) or has_media(response)):
        reason = _without_room(response, prompt, window)
    if not reason:
        return None
    return ClassifiedResponse("context_overflow", "compact_or_raise_window", reason, trust_usage=reason != "prompt_cut")


def _is_prompt_cut(prompt: int, estimate: int, window: int | None) -> bool:
    if prompt < estimate * CUT_SHARE and estimate - prompt >= CUT_TOKENS:
        return True
    # The request cannot have fitted, and yet all of what the server counted did.
    return window is not None and prompt <= window < estimate * FIT_SHARE


def _without_room(response: ModelResponse, prompt: int | None, window: int | None) -> str:
    """Return a reason if an empty reply that ended at a length limit means that the prompt filled the window."""
    usage = response.usage
    written = _count(usage.completion_tokens) if usage is not None and usage.completion_tokens is not None else None
    if window and prompt and prompt + (written or 0) >= window * FULL_SHARE:
        return "window_full"
    if written is not None:
        return "window_full" if written <= NO_ROOM_TOKENS else ""
    return "" if response.reasoning.strip() or response.text.strip() else "window_full"


def _by_reason(response: ModelResponse) -> ClassifiedResponse | None:
    """Return the verdict of a finish reason that outranks the content."""
    finish = response.finish_reason.lower()
    if "malformed" in finish or finish in BROKEN_CALL_REASONS:
        return ClassifiedResponse("malformed_call", "retry", finish, counts_as_unusable=True)
    if finish in FAILED_REASONS:
        return ClassifiedResponse("failed", "retry", finish)
    if finish in REFUSED_REASONS or as_mapping(_message(response)).get("refusal"):
        return ClassifiedResponse("refused", "end", finish or "refusal")
    if finish in CUT_REASONS:
        if response.tool_calls or visible_text(response):
            return ClassifiedResponse("truncated", "retry_with_nudge", "length", counts_as_unusable=True)
        return ClassifiedResponse("empty", "retry_with_nudge", "output_limit", counts_as_unusable=True)
    if finish in CALL_REASONS and not response.tool_calls:
        return ClassifiedResponse("malformed_call", "retry_with_nudge", "call_missing", counts_as_unusable=True)
    return None


def _by_content(
    response: ModelResponse, protocol: str, tools: Collection[str] | None, answered: bool
) -> ClassifiedResponse:
    shown = visible_text(response)
    verdict = parse_response(msgspec.structs.replace(response, text=shown), protocol=protocol, tools=tools)
    if verdict.calls and verdict.usable:
        return ClassifiedResponse("calls", "run_calls", run_calls=True)
    kind = WARNING_KINDS.get(verdict.kind, "")
    if kind == "misformat":
        reason = verdict.reason or verdict.kind
        return ClassifiedResponse("malformed_call", "retry_with_nudge", reason, counts_as_unusable=True)
    if kind == "truncated":
        return ClassifiedResponse("truncated", "retry_with_nudge", verdict.reason, counts_as_unusable=True)
    if (shown and verdict.final) or has_media(response):
        return ClassifiedResponse("complete", "end")
    if answered:
        return ClassifiedResponse("complete", "end", "answered_by_a_tool")
    thought = bool(response.reasoning.strip() or response.text.strip())
    reason = "reasoning_only" if thought else "empty"
    return ClassifiedResponse("empty", "retry_with_nudge", reason, counts_as_unusable=True)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _message(response: ModelResponse) -> Any:
    """Return the message inside a provider's mapping, or the mapping itself."""
    raw = as_mapping(response.raw)
    choices = raw.get("choices", raw.get("candidates"))
    if isinstance(choices, list) and choices:
        raw = as_mapping(choices[0])
    inner = raw.get("message", raw.get("content"))
    return inner if isinstance(inner, Mapping) else raw


def _parts(raw: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield every content part of a provider's mapping, whatever level it keeps them on."""
    message = _message(ModelResponse(raw=dict(raw)))
    for name in ("content", "parts", "images", "output"):
        parts = message.get(name)
        if isinstance(parts, list):
            yield from (part for part in parts if isinstance(part, Mapping))
    if isinstance(message.get("audio"), Mapping):
        yield {"type": "audio"}


def _is_media(part: Mapping[str, Any]) -> bool:
    kind = str(part.get("type", "")).lower().removeprefix("output_")
    return kind.startswith(_MEDIA) or any(str(name).lower() in _MEDIA and part[name] for name in part)
