"""A response whose calls are being checked against the schemas of their tools, before anything is judged.

Knows: arguments, schemas, how a correction is asked for. Must not know: guards, phases, history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from policyengine.jsontext import encode
from policyengine.messages import ModelResponse, ToolCall, ToolSpec
from policyengine.parsing.strict import StrictError, loads
from policyengine.parsing.verdict import Verdict
from policyengine.templates import Templates

if TYPE_CHECKING:
    from policyengine.arguments import Repair


class Draft(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response and its verdict on the way to the batch.

    `invalid` maps the ids of calls whose arguments do not fit to the validator's words for the model.
    """

    response: ModelResponse
    verdict: Verdict
    invalid: dict[str, str] = {}

    def first_invalid(self) -> tuple[ToolCall, str]:
        """Return the first call whose arguments do not fit, and why."""
        call = next(call for call in self.verdict.calls if call.id in self.invalid)
        return call, self.invalid[call.id]


def check_calls(draft: Draft, tools: Mapping[str, ToolSpec], how: str) -> Draft:
    """Return the draft with every call checked; `how` is `off`, `check` or `coerce` (see `Parsing.arguments`).

    A repaired call replaces the one that was sent, in the verdict and in the response, so that history holds what ran.
    """
    if how == "off":
        return draft
    # jsonschema-rs is imported where the first schema is checked.
    from policyengine.arguments import validate_arguments

    invalid: dict[str, str] = {}
    changed: dict[str, ToolCall] = {}
    for call in draft.verdict.calls:
        spec = tools.get(call.name)
        if spec is None or not spec.parameters:
            continue
        checked = validate_arguments(spec.parameters, call.args, tool=call.name)
        if not checked.ok:
            invalid[call.id] = checked.hint
        elif checked.repairs and how == "check":
            invalid[call.id] = only_after_repair(call.name, checked.repairs)
        elif checked.repairs:
            changed[call.id] = with_args(call, checked.args)
    return msgspec.structs.replace(_replaced(draft, changed), invalid=invalid)


def only_after_repair(tool: str, repairs: Sequence[Repair]) -> str:
    """Return what to tell the model where arguments would fit if they were mended, and nothing is to be mended."""
    parts = ", ".join(f"{repair.path or 'the arguments'} ({repair.name.replace('_', ' ')})" for repair in repairs)
    return f"The arguments of {tool} fit its schema only if they are changed: {parts}. Send the whole call again so."


def corrected(draft: Draft, response: ModelResponse) -> Draft:
    """Return the draft with the arguments of the call being repaired taken from the answer to the repair request."""
    wanted, _ = draft.first_invalid()
    for call in response.tool_calls:
        args = call.args if isinstance(call.args, dict) else _object(call.arguments)
        if call.name == wanted.name and args is not None:
            return _replaced(draft, {wanted.id: with_args(wanted, args)})
    return draft


def with_args(call: ToolCall, args: Mapping[str, Any]) -> ToolCall:
    """Return the call with these arguments, as values and as text."""
    plain = dict(args)
    return msgspec.structs.replace(call, args=plain, arguments=encode(plain).decode())


def repair_notice(templates: Templates, call: ToolCall, problem: str) -> str:
    """Return the notice of a repair request: correct these arguments, invent nothing and remove nothing."""
    return templates.render("call.repair", {"tool": call.name, "problem": problem, "arguments": call.arguments})


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = loads(text)
    except StrictError:
        return None
    return value if isinstance(value, dict) else None


def _replaced(draft: Draft, changed: Mapping[str, ToolCall]) -> Draft:
    if not changed:
        return draft
    calls = tuple(changed.get(call.id, call) for call in draft.verdict.calls)
    response = draft.response
    if response.tool_calls:
        sent = tuple(changed.get(call.id, call) for call in response.tool_calls)
        response = msgspec.structs.replace(response, tool_calls=sent, raw=None)
    return Draft(response, msgspec.structs.replace(draft.verdict, calls=calls), draft.invalid)
