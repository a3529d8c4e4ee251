"""Messages of pydantic-ai as ours and back: responses, calls, results, a history that is shortened.

Knows: the message classes of pydantic-ai. Must not know: runs, rules, what is done with a message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

import msgspec
from pydantic_ai.messages import (
    CompactionPart,
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SpeechPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_core import to_json, to_jsonable_python

from policyengine.history.compact import part_to_summarise, plan_cut, shortened
from policyengine.hosts.shapes import read_call
from policyengine.identity import content_mark
from policyengine.messages import Compaction, Message, ToolCall, ToolError, ToolResult, Usage
from policyengine.parsing.parse import CUT_REASONS
from policyengine.templates import Templates
from policyengine.toolset import result_of

_OTHER_OUTPUT = (CompactionPart, FilePart, SpeechPart)
_ERRORS = {"failed": "tool_failed", "retried": "retry"}


def call_of(part: ToolCallPart) -> ToolCall:
    """Return a call as the model sent it; arguments that are no JSON stay a text."""
    if isinstance(part.args, str) and part.args:
        return read_call(part.tool_call_id, part.tool_name, part.args)
    return ToolCall(part.tool_call_id, part.tool_name, args=dict(part.args or {}))


def text_of(response: ModelResponse) -> str:
    """Return what the model said, without its thoughts; what is no text (an image) is named by its class."""
    said = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    others = (part for part in response.parts if isinstance(part, _OTHER_OUTPUT))
    return said or "\n".join(map(_words, others))


def facts_of(response: ModelResponse) -> dict[str, Any]:
    """Return what `HostRun.after_model` takes beside text and calls."""
    spent = response.usage
    told = spent.input_tokens or spent.output_tokens
    total = spent.input_tokens + spent.output_tokens
    return {
        "reasoning": "\n".join(part.content for part in response.parts if isinstance(part, ThinkingPart)),
        "finish_reason": response.finish_reason or "",
        "usage": Usage(spent.input_tokens, spent.output_tokens, total) if told else None,
        "model": response.model_name or "",
    }


def prompt_text(prompt: Any) -> str:
    """Return the text of a prompt of the user; what is no text (an image) is named by its class."""
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return "\n".join(_words(item) for item in prompt)


def _words(item: Any) -> str:
    content = item if isinstance(item, str) else getattr(item, "content", None)
    return content if isinstance(content, str) else f"({type(item).__name__})"


def takes_nothing(output_type: Any) -> bool:
    """Return whether an agent may answer with nothing: one of its types of output is `None`."""
    kinds = output_type if isinstance(output_type, list | tuple) else get_args(output_type)
    return any(kind in (None, type(None)) or takes_nothing(kind) for kind in kinds if kind is not output_type)


def last_task(messages: Sequence[ModelMessage]) -> str:
    """Return what the user said last in a history."""
    for message in reversed(messages):
        for part in reversed(message.parts):
            if isinstance(part, UserPromptPart):
                return prompt_text(part.content)
    return ""


def last_response(messages: Sequence[ModelMessage]) -> ModelResponse | None:
    """Return the last response of a history."""
    return next((message for message in reversed(messages) if isinstance(message, ModelResponse)), None)


def answers_after(messages: Sequence[ModelMessage]) -> dict[str, ToolReturnPart]:
    """Return the results that follow the last response, by the id of their call."""
    found: dict[str, ToolReturnPart] = {}
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            break
        found.update({part.tool_call_id: part for part in message.parts if isinstance(part, ToolReturnPart)})
    return found


def waiting_key(conversation: str, messages: Sequence[ModelMessage]) -> str:
    """Return the name of the run that waits at the end of a history: a conversation may have several."""
    response = last_response(messages)
    run = response.run_id if response is not None else ""
    return f"{conversation}/{run}" if run else conversation


def pending_calls(messages: Sequence[ModelMessage]) -> frozenset[str]:
    """Return the ids of calls in the last response that have no result."""
    response = last_response(messages)
    asked = {part.tool_call_id for part in response.tool_calls} if response is not None else set()
    return frozenset(asked - answers_after(messages).keys())


def plain_result(call: ToolCall, value: Any, duration_s: float | None) -> ToolResult:
    """Return what a tool returned as a result; of a `ToolReturn` it is the value."""
    beside = ""
    if isinstance(value, ToolReturn):
        beside = content_mark("content", _as_json(value.content)) if value.content else ""
        value = value.return_value
    if not isinstance(value, str | ToolResult):
        value = to_jsonable_python(value, bytes_mode="base64", fallback=str)
    result = result_of(call, value, duration_s)
    return msgspec.structs.replace(result, beside=beside) if beside else result


def _as_json(content: Any) -> bytes:
    return to_json(content, bytes_mode="base64", fallback=str)


def given_result(call: ToolCall, part: ToolReturnPart) -> ToolResult:
    """Return an answer that the framework put into the history itself (an outside result, a retry, a refusal)."""
    if part.outcome == "success":
        return plain_result(call, part.content, None)
    text = part.model_response_str(wrap_if_error=False)
    if part.outcome == "denied":
        return ToolResult(call.id, text, "denied", ToolError("refused_by_human", text, False))
    if part.outcome in _ERRORS:
        return ToolResult(call.id, text, "error", ToolError(_ERRORS[part.outcome], text, part.outcome == "retried"))
    return ToolResult(call.id, text, "not_run", ToolError("cancelled", text, False))


def closing(text: str, code: str, rule: str) -> ModelResponse:
    """Return the response that stands at the end of a history that a rule ended."""
    about = {"policyengine": {"code": code, "rule": rule}}
    return ModelResponse([TextPart(text)], model_name="policyengine", finish_reason="stop", metadata=about)


# ---- a history that is too long

Summarise = Callable[[list[ModelMessage]], Awaitable[ModelResponse]]

_Piece = tuple[int, Any]
"""Where a message of ours comes from: the index of the framework's message, and its part (`None`: all of it)."""


async def shorter(
    messages: Sequence[ModelMessage], how: Compaction, task: str, templates: Templates, summarise: Summarise
) -> list[ModelMessage] | None:
    """Return a history shortened as a rule wants it, or `None` where nothing is to be gained or no summary came.

    The cut parts no call from its result, and the task stays word for word.
    """
    pieces, views = _views(messages)
    cut = plan_cut(views, how.keep)
    if cut is None:
        return None
    if how.strategy == "slide":
        instead = templates.render("compaction.dropped", {})
    else:
        old = _rebuilt(messages, pieces[: len(part_to_summarise(views, cut))])
        notice = templates.render("compaction.request", {})
        response = await summarise([*old, ModelRequest([UserPromptPart(notice)])])
        said = text_of(response).strip()
        if not said or response.tool_calls or response.finish_reason in CUT_REASONS:
            return None
        instead = f"{templates.render('compaction.heading', {})}\n{said}"
    new = shortened(views, cut, task, instead)
    if new is None:
        return None
    opening = ModelRequest([UserPromptPart(new[cut.start].text)])
    return [*_rebuilt(messages, pieces[: cut.start]), opening, *_rebuilt(messages, pieces[cut.end :])]


def _views(messages: Sequence[ModelMessage]) -> tuple[list[_Piece], list[Message]]:
    pieces: list[_Piece] = []
    views: list[Message] = []
    for index, message in enumerate(messages):
        for part, view in _views_of(message):
            pieces.append((index, part))
            views.append(view)
    return pieces, views


def _views_of(message: ModelMessage) -> Iterator[tuple[Any, Message]]:
    if isinstance(message, ModelResponse):
        calls = tuple(map(call_of, message.tool_calls))
        yield None, Message("assistant", text_of(message), calls)
        return
    for part in message.parts:
        if isinstance(part, ToolReturnPart):
            text = part.model_response_str()
            yield part, Message("tool", text, tool_call_id=part.tool_call_id, name=part.tool_name)
        elif isinstance(part, SystemPromptPart):
            yield part, Message("system", part.content)
        else:
            yield part, Message("user", prompt_text(getattr(part, "content", "")) or type(part).__name__)


def _rebuilt(messages: Sequence[ModelMessage], pieces: Sequence[_Piece]) -> list[ModelMessage]:
    """Return the messages of which `pieces` are left; one that is whole is the very object."""
    kept: dict[int, list[Any]] = {}
    for index, part in pieces:
        kept.setdefault(index, []).append(part)
    rebuilt: list[ModelMessage] = []
    for index, parts in kept.items():
        message = messages[index]
        whole = isinstance(message, ModelResponse) or len(parts) == len(message.parts)
        rebuilt.append(message if whole else replace(message, parts=parts))
    return rebuilt
