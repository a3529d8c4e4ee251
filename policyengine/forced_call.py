"""Get one valid call of one of the offered functions out of a model, in a bounded number of attempts.

Knows: what may go wrong with a call that is required, and what to tell the model about it.
Must not know: models, threads, guards, the loop.

The flow is XAgent's schema check with self-repair, without its defects: every failure gives the model feedback, there
is at most one notice at any time and it never enters the caller's messages, the repair is one request that offers
only the function in question and may only correct it, its usage counts, and when the attempts are used up the typed
failure itself is returned, with the number of attempts, not a wrapper around it.

A `Forced` is plain data: `request` says what to send, `take` what came of the answer. `force_call` drives both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from policyengine.arguments import ArgumentError, validate_arguments
from policyengine.draft import repair_notice, with_args
from policyengine.errors import UsageError
from policyengine.history.build import note
from policyengine.messages import Message, ModelRequest, ModelResponse, ToolCall, ToolSpec, Usage
from policyengine.parsing.parse import CUT_REASONS
from policyengine.templates import Templates

if TYPE_CHECKING:
    from policyengine.agent import Model

FailureCode = Literal["missing_call", "wrong_function", "invalid_arguments", "truncated"]


class CallFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why no valid call came: the failure of the last attempt.

    `attempts` counts the attempts made, `raw` is the last text or argument text of the model, `errors` are the
    validator's own words.
    """

    code: FailureCode
    message: str
    attempts: int
    function: str = ""
    raw: str = ""
    errors: tuple[ArgumentError, ...] = ()


class Forced(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a required call stands.

    `tools` are the functions offered. `inner` are tools that one of them, `wrapper`, takes as
    `{"tool_call": {"tool_name": ..., "tool_input": ...}}`: a model that calls one of them directly is understood if
    the arguments validate. `notice` is the one notice the next request ends with; `repairing` is the call being
    repaired. `repaired` is whether the repair request was used. Tokens are summed over all requests.
    """

    tools: tuple[ToolSpec, ...]
    inner: tuple[ToolSpec, ...] = ()
    wrapper: str = ""
    max_attempts: int = 3
    attempts: int = 0
    repaired: bool = False
    notice: str = ""
    repairing: ToolCall | None = None
    failure: CallFailure | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """Tokens of all requests so far."""
        return Usage(self.prompt_tokens, self.completion_tokens, self.prompt_tokens + self.completion_tokens)


class ForcedResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """A valid call, or the failure of the last attempt."""

    call: ToolCall | None
    failure: CallFailure | None
    attempts: int
    usage: Usage


def request(state: Forced, messages: tuple[Message, ...], model: str = "") -> ModelRequest:
    """Return the next request: the caller's messages, unchanged, and at most one notice after them."""
    tools, choice, purpose = state.tools, "required", "main"
    if state.repairing is not None:
        tools = tuple(tool for tool in (*state.tools, *state.inner) if tool.name == state.repairing.name)
        choice, purpose = state.repairing.name, "repair"
    elif len(tools) == 1:
        choice = tools[0].name
    if state.notice:
        messages = (*messages, note(state.notice, "forced_call"))
    return ModelRequest(messages, tools, state.attempts + 1, purpose, model, choice)


def take(state: Forced, response: ModelResponse, templates: Templates) -> tuple[Forced, ToolCall | None]:
    """Return the state after a response, and the call if it is valid.

    The flow is over when there is a call, or when `attempts` has reached `max_attempts`; then `failure` says why.
    """
    state = _counted(state, response.usage)
    repairing, state = state.repairing, msgspec.structs.replace(state, repairing=None, notice="")
    if repairing is None:
        state = msgspec.structs.replace(state, attempts=state.attempts + 1)
    found = _read(state, response)
    if isinstance(found, ToolCall):
        return msgspec.structs.replace(state, failure=None), found
    failure, call = found
    state = msgspec.structs.replace(state, failure=failure)
    if failure.code == "invalid_arguments" and call is not None and not state.repaired:
        state = msgspec.structs.replace(state, repaired=True, repairing=call)
        return msgspec.structs.replace(state, notice=repair_notice(templates, call, failure.message)), None
    return msgspec.structs.replace(state, notice=_notice(state, failure, templates)), None


def is_over(state: Forced) -> bool:
    """Return whether the attempts are used up and no repair is under way."""
    return state.attempts >= state.max_attempts and state.repairing is None


def force_call(
    model: Model,
    messages: tuple[Message, ...],
    tools: tuple[ToolSpec, ...],
    *,
    inner: tuple[ToolSpec, ...] = (),
    wrapper: str = "",
    max_attempts: int = 3,
    templates: Templates | None = None,
) -> ForcedResult:
    """Ask a synchronous model for one valid call of one of `tools`.

    Raises:
        RequestError: a request failed.
        UsageError: no tool is offered, `max_attempts` is below 1, or the model is asynchronous.
    """
    if not tools or max_attempts < 1:
        raise UsageError("a forced call needs at least one tool and one attempt")
    templates = templates or Templates()
    state = Forced(tools, inner, wrapper, max_attempts)
    while True:
        response = model.complete(request(state, messages, model.name))
        if not isinstance(response, ModelResponse):
            raise UsageError(f"model {model.name!r} is asynchronous: drive `request` and `take` yourself")
        state, call = take(state, response, templates)
        if call is not None:
            return ForcedResult(call, None, state.attempts, state.usage)
        if is_over(state):
            return ForcedResult(None, state.failure, state.attempts, state.usage)


def _read(state: Forced, response: ModelResponse) -> ToolCall | tuple[CallFailure, ToolCall | None]:
    attempts = state.attempts
    if response.finish_reason in CUT_REASONS:
        return CallFailure("truncated", "the response was cut off", attempts, raw=response.text), None
    if not response.tool_calls:
        return CallFailure("missing_call", "the response holds no call", attempts, raw=response.text), None
    call = response.tool_calls[0]
    offered = {tool.name: tool for tool in state.tools}
    unwrapped = {tool.name: tool for tool in state.inner}
    spec = offered.get(call.name) or (unwrapped.get(call.name) if state.wrapper else None)
    if spec is None:
        message = f"there is no function {call.name!r}; offered are: {', '.join(offered)}"
        return CallFailure("wrong_function", message, attempts, call.name, call.arguments), None
    checked = validate_arguments(spec.parameters, _given(call), tool=call.name)
    if not checked.ok:
        failure = CallFailure("invalid_arguments", checked.hint, attempts, call.name, call.arguments, checked.errors)
        return failure, call
    args = checked.args
    if call.name not in offered:
        call = msgspec.structs.replace(call, name=state.wrapper)
        args = {"tool_call": {"tool_name": spec.name, "tool_input": args}}
    return with_args(call, args)


def _given(call: ToolCall) -> Any:
    return call.args if call.args is not None else call.arguments


def _notice(state: Forced, failure: CallFailure, templates: Templates) -> str:
    offered = [tool.name for tool in state.tools]
    data = {"tool": failure.function, "offered": offered, "problem": failure.message}
    return templates.render(f"call.{failure.code}", data)


def _counted(state: Forced, usage: Usage | None) -> Forced:
    if usage is None:
        return state
    return msgspec.structs.replace(
        state,
        prompt_tokens=state.prompt_tokens + (usage.prompt_tokens or 0),
        completion_tokens=state.completion_tokens + (usage.completion_tokens or 0),
    )
