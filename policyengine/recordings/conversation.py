"""Chat messages to events: which result answers which call, and who really spoke.

Knows: the roles of chat messages, call ids that are missing or repeated.
Must not know: files, run ids, labels, any one harness (a reader says what its harness does differently).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from policyengine.messages import ModelResponse, ToolCall, ToolError, ToolResult, Usage
from policyengine.parsing.strict import dumps
from policyengine.recordings.loading import NotJsonError, decode
from policyengine.recordings.model import (
    Event,
    ModelSaid,
    ShapeError,
    ToolAnswered,
    UserSaid,
    mapping,
    sequence,
    string,
    text_or_empty,
)

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""Roles of chat messages. `developer` is a system message, `function` the older name of `tool`."""


_as_text = json.JSONEncoder(ensure_ascii=False).encode


class RawCall(NamedTuple):
    """A call as recorded: its own `id` may be empty or repeated."""

    id: str
    name: str
    arguments: str
    args: Any


class Failure(NamedTuple):
    """What a harness says about a failed call, and the text that the model read."""

    text: str
    message: str = ""


def openai_call(value: Any) -> RawCall:
    """Return one entry of `tool_calls` of an OpenAI chat message."""
    entry = mapping(value, "a tool call")
    function = mapping(entry.get("function"), "function of a tool call")
    return raw_call(entry.get("id"), function.get("name"), function.get("arguments"))


def raw_call(call_id: Any, name: Any, arguments: Any) -> RawCall:
    """Return a call whose arguments are JSON text, or an object that a harness already parsed."""
    if isinstance(arguments, dict | list):
        text = _as_text(arguments)
        return RawCall(string(call_id, "id of a call"), string(name, "name of a call"), text, arguments)
    text = string(arguments, "arguments of a call")
    return RawCall(string(call_id, "id of a call"), string(name, "name of a call"), text, _parsed(text))


def parsed_call(name: str, args: dict[str, Any]) -> RawCall:
    """Return a call that a harness read from a text, as the parser of declared protocols writes one."""
    return RawCall("", name, dumps(args), args)


def _parsed(arguments: str) -> Any:
    try:
        return decode(arguments)
    except NotJsonError:
        return None


def no_failure(message: Mapping[str, Any], text: str) -> Failure | None:
    """Return nothing: plain chat messages do not say whether a call failed."""
    return None


def nobody_injects(text: str, task: str) -> bool:
    """Return false: in plain chat messages a user message is the user's."""
    return False


class Pairing:
    """Gives calls unique ids and finds the call that a result answers.

    Within a batch a result is matched by its id; where ids are missing or repeated, by order. A late result goes to the
    call of an earlier batch that had its id.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._serial = 0
        self._open: list[tuple[str, RawCall]] = []
        self._by_id = False
        self._late: dict[str, str] = {}

    def batch(self, calls: Iterable[RawCall]) -> tuple[ToolCall, ...]:
        """Begin a batch and return its calls with ids that are unique in the recording."""
        if self._by_id:
            self._late.update((call.id, new) for new, call in self._open)
        self._open = [(self._unique(call.id), call) for call in calls]
        ids = [call.id for _, call in self._open]
        self._by_id = all(ids) and len(set(ids)) == len(ids)
        return tuple(ToolCall(new, call.name, call.arguments, call.args) for new, call in self._open)

    def answer(self, call_id: str, name: str) -> str | None:
        """Return the unique id of the call that a result answers, or nothing if no call waits for one."""
        waiting = self._open
        for index, (new, call) in enumerate(waiting):
            if call_id and call.id == call_id:
                del waiting[index]
                return new
        if call_id in self._late:
            return self._late.pop(call_id)
        if call_id in self._taken and self._by_id:
            return None  # a second answer to a call; the first one stands
        found = next((index for index, (_, call) in enumerate(waiting) if name and call.name == name), 0)
        return waiting.pop(found)[0] if waiting else None

    def _unique(self, call_id: str) -> str:
        candidate = call_id
        while not candidate or candidate in self._taken:
            self._serial += 1
            candidate = f"{call_id or 'call'}~{self._serial}"
        self._taken.add(candidate)
        return candidate


def events(
    messages: Any,
    *,
    read_call: Callable[[Any], RawCall] = openai_call,
    failure: Callable[[Mapping[str, Any], str], Failure | None] = no_failure,
    injected: Callable[[str, str], bool] = nobody_injects,
    undecided: bool = False,
) -> tuple[Event, ...]:
    """Return what a list of chat messages says happened.

    `failure(message, text)` tells whether the harness marked a tool message as failed; `injected(text, task)` whether
    a later user message is the harness's own, which a message may also say itself (`injected: true`). `undecided`:
    calls may stand in texts, and a tool message may answer one of those. Raises `ShapeError` for what is no chat
    message.
    """
    happened: list[Event] = []
    pairing = Pairing()
    task: str | None = None
    for value in sequence(messages, "messages"):
        message = mapping(value, "a message")
        role = message.get("role")
        if role == "user":
            said = text_of(message.get("content"))
            ours = message.get("injected") is True or (task is not None and injected(said, task))
            happened.append(UserSaid(said, ours))
            task = said if task is None and not ours else task
        elif role == "assistant":
            happened.append(ModelSaid(_response(message, pairing, read_call)))
        elif role in ("tool", "function"):
            answer = _answer(message, pairing, failure)
            if answer is None and undecided:
                answer = ToolAnswered("", ToolResult("", text_of(message.get("content"))))
            if answer is not None:
                happened.append(answer)
        elif role not in ("system", "developer"):
            raise ShapeError(f"a message has the role {role!r}")
    return tuple(happened)


def _response(message: Mapping[str, Any], pairing: Pairing, read_call: Callable[[Any], RawCall]) -> ModelResponse:
    calls = [read_call(call) for call in sequence(message.get("tool_calls"), "tool_calls")]
    legacy = message.get("function_call")
    if not calls and isinstance(legacy, dict):
        calls = [raw_call("", legacy.get("name"), legacy.get("arguments"))]
    return ModelResponse(
        text_of(message.get("content")),
        pairing.batch(calls),
        reasoning=reasoning_of(message),
        finish_reason=text_or_empty(message.get("finish_reason")),
        usage=usage_of(message.get("usage")),
    )


def _answer(
    message: Mapping[str, Any], pairing: Pairing, failure: Callable[[Mapping[str, Any], str], Failure | None]
) -> ToolAnswered | None:
    call_id = pairing.answer(string(message.get("tool_call_id"), "tool_call_id"), text_or_empty(message.get("name")))
    if call_id is None:
        return None
    text = text_of(message.get("content"))
    failed = failure(message, text)
    if failed is None:
        return ToolAnswered(call_id, ToolResult(call_id, text))
    error = ToolError("tool_failed", failed.message) if failed.message else None
    return ToolAnswered(call_id, ToolResult(call_id, failed.text, "error", error))


def lacking(value: Any) -> str:
    """Return what is wrong with a conversation that has no message; an empty text for anything else."""
    messages = value.get("messages", value) if isinstance(value, dict) else value
    if messages is None and isinstance(value, dict):
        return "messages is null, not a list"
    return "no messages" if messages == [] else ""


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return the reasoning that a provider marked as such."""
    for key in ("reasoning_content", "reasoning"):
        if isinstance(text := message.get(key), str):
            return text
    return ""


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or blocks that hold it under `text` or `content`."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_block_text(block) for block in sequence(content, "content"))


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    held = mapping(block, "a content block")
    return text_or_empty(held.get("text", held.get("content")))


def usage_of(value: Any) -> Usage | None:
    """Return the tokens a provider reported, under OpenAI's names or Anthropic's."""
    if not isinstance(value, dict):
        return None
    prompt = first_count(value, "prompt_tokens", "input_tokens")
    completion = first_count(value, "completion_tokens", "output_tokens")
    total = first_count(value, "total_tokens")
    if total is None and prompt is not None and completion is not None:
        total = prompt + completion
    if prompt is None and completion is None and total is None:
        return None
    return Usage(prompt, completion, total)


def first_count(value: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these members that is a count of tokens."""
    for name in names:
        count = value.get(name)
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
    return None
