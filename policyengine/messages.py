"""What happened: messages, calls, results, requests, responses. Frozen values, nothing else.

Knows: the typed view of a conversation beside the provider's own mapping (`raw`).
Must not know: hooks, policies, providers' wire formats.

Typed structs drop unknown fields, so `raw` keeps the provider's mapping verbatim and is what goes back to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
Status = Literal["ok", "error", "timeout", "denied", "not_run"]
Effect = Literal["read", "write", "exec", "poll"]


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one request as the provider reported them. `None` where it reported nothing."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool call of a model response.

    `arguments` is the text the model sent; `args` is that text parsed, or `None` where it is not JSON.
    A call that never had a usable name has `name == ""`.
    """

    id: str
    name: str
    arguments: str = ""
    args: Any = None


class ToolError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a tool call failed.

    `declared` is true when the tool itself named `code`; codes given by the engine do not make two failures equal.
    `retryable` is `None` where nobody said.
    """

    code: str
    message: str = ""
    retryable: bool | None = None
    declared: bool = False


class ToolResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one tool call.

    `status`: `ok` and `error` come from the tool, `timeout` from the driver, `denied` from a guard (the call never
    ran), `not_run` from the loop (its batch was stopped). `text` is what the model reads. `duration_s` is in seconds.
    `beside` stands for images and files that came beside the text (`content_mark` makes such words); nobody reads it.
    """

    call_id: str
    text: str
    status: Status = "ok"
    error: ToolError | None = None
    exit_code: int | None = None
    duration_s: float | None = None
    beside: str = ""

    @property
    def ran(self) -> bool:
        """Whether the tool was started at all."""
        return self.status not in ("denied", "not_run")

    @property
    def compared(self) -> str:
        """The text with what stands for the rest: the same where all of two results is the same."""
        return f"{self.text}\n{self.beside}" if self.beside else self.text


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a history.

    `raw` is the provider's own mapping, kept verbatim. `origin` is empty for what the user, model or tools said,
    `rule:<id>` for text a rule injected and `loop` for text of the loop itself; injected text never enters a
    fingerprint.
    """

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    origin: str = ""
    raw: dict[str, Any] | None = None


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool as it is offered to the model: name, description, JSON Schema of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class Compaction(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a history is shortened.

    `compact` puts a summary in the place of what is old, `slide` drops it. `keep` is the share of the history (by
    length) that stays as it is, from the end.
    """

    strategy: Literal["compact", "slide"] = "compact"
    keep: float = 0.3


class ModelRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request to a model.

    `purpose` is `main`, or names an auxiliary request (`repair`); `attempt` counts from 1. `tool_choice` is empty (the
    model may choose), `required` (it must call something) or the name of the one tool it must call. `max_tokens` caps
    the answer where an earlier request asked for too many; `thinking` is false where the provider cannot be asked to
    think about this history. `compaction` is set by a rule and never sent: shorten the history before this request.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    attempt: int = 1
    purpose: str = "main"
    model: str = ""
    tool_choice: str = ""
    max_tokens: int | None = None
    thinking: bool = True
    compaction: Compaction | None = None


class ModelResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer of a model. `reasoning` is text the provider marks as such; `raw` is the provider's mapping."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    finish_reason: str = ""
    usage: Usage | None = None
    model: str = ""
    raw: dict[str, Any] | None = None


class ProviderError(msgspec.Struct, frozen=True, omit_defaults=True):
    """A failed request to a model, classified. `code` is one of the provider error classes, or `unknown`.

    `classify_provider_error` fills in the rest; an error made by hand may leave it out, and our loop then takes the
    remedies of its class. `retry_same_request` says
    whether sending the very same request again makes sense (`None`: nobody said), `remedies` what to do instead or
    before that, best first. Numbers are tokens as the provider told them, never bytes (those are `size_bytes` and
    `limit_bytes`); `ids`, `message_index` and `position` say which calls, message or part the provider complains about.
    """

    code: str
    message: str = ""
    status: int | None = None
    retry_after_s: float | None = None
    retry_same_request: bool | None = None
    remedies: tuple[str, ...] = ()
    tokens: int | None = None
    limit: int | None = None
    requested: int | None = None
    max_tokens: int | None = None
    input_tokens: int | None = None
    size_bytes: int | None = None
    limit_bytes: int | None = None
    ids: tuple[str, ...] = ()
    message_index: int | None = None
    position: int | None = None
    request_id: str = ""


class HistoryWarning(msgspec.Struct, frozen=True, omit_defaults=True):
    """A warning about to be added to the history. Guards look at `kind`, never at `text`."""

    kind: str
    text: str = ""
    data: dict[str, Any] = {}


class Batch(msgspec.Struct, frozen=True):
    """Which batch (all tool calls of one response) a call belongs to. `id` is unique in the run, `index` from 0."""

    id: str
    index: int = 0


class Iteration(msgspec.Struct, frozen=True):
    """One finished round: `number` from 1, tool `calls` judged, `usable` false if the response was a warning."""

    number: int
    calls: int = 0
    usable: bool = True


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a tool of which only text is known declares failure: the text starts with one of `text_prefix`."""

    text_prefix: tuple[str, ...] = ()


class ToolFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the policy's `tools:` says about a tool. `effect` is `exec` where nobody declared it.

    `timeout_s` is in seconds; `result_mask` are regular expressions removed from results before they are compared.
    """

    effect: Effect = "exec"
    timeout_s: float | None = None
    result_mask: tuple[str, ...] = ()
    failure: Failure = Failure()


UNDECLARED = ToolFacts()


def freeze(value: Any) -> Any:
    """Return Structs and plain data as nested read-only views, so that a hook cannot change what others see."""
    if isinstance(value, dict):
        return MappingProxyType({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list):
        return tuple(freeze(item) for item in value)
    if isinstance(value, tuple):
        items = tuple(freeze(item) for item in value)
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    if isinstance(value, msgspec.Struct):
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        changes = {name: new for name, old in fields if (new := freeze(old)) is not old}
        return msgspec.structs.replace(value, **changes) if changes else value
    return value


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}
