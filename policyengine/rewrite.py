"""Apply a rewrite to the payload of a hook, or say why it cannot be applied.

Knows: which fields of which payload may be replaced. Must not know: who asked for it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from policyengine.actions import Rewrite
from policyengine.messages import ModelRequest, ToolCall, ToolResult
from policyengine.parsing.verdict import Verdict

REQUEST_FIELDS = ("tools", "model")
RESULT_FIELDS = ("text", "status", "error", "exit_code")


def target_of(hook: str, payload: tuple[Any, ...]) -> Any:
    """Return the part of a hook's payload that a rewrite changes: its first part, but the result of a call."""
    return payload[1] if hook == "after_tool_call" else payload[0]


def apply_rewrite(value: Any, rewrite: Rewrite) -> Any:
    """Return `value` with the fields named in `rewrite.changes` replaced.

    Of a tool call only `args` (a mapping) may be replaced, of a request `tools` and `model`, of a result
    everything but its id and duration; a verdict is replaced as a whole (`verdict`) or by field.

    Raises:
        ValueError: a field does not exist, may not be replaced, or has the wrong type.
    """
    changes = dict(rewrite.changes)
    if not changes:
        raise ValueError("a rewrite that changes nothing")
    if isinstance(value, ToolCall):
        return _rewritten_call(value, changes)
    if isinstance(value, Verdict) and "verdict" in changes:
        verdict = changes.pop("verdict")
        if changes or not isinstance(verdict, Verdict):
            raise ValueError("`verdict` must be a Verdict and the only change")
        return verdict
    fixed: dict[type, tuple[str, ...]] = {ModelRequest: REQUEST_FIELDS, ToolResult: RESULT_FIELDS}
    allowed = fixed.get(type(value), value.__struct_fields__)
    unknown = sorted(set(changes) - set(allowed))
    if unknown:
        raise ValueError(f"{type(value).__name__} has no field {unknown[0]!r} that can be rewritten")
    return _checked(msgspec.structs.replace(value, **changes))


def _rewritten_call(call: ToolCall, changes: dict[str, Any]) -> ToolCall:
    if set(changes) != {"args"} or not isinstance(changes["args"], dict):
        raise ValueError("of a tool call only `args` can be rewritten, by a mapping")
    try:
        text = msgspec.json.encode(changes["args"]).decode()
    except (TypeError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise ValueError(f"`args` cannot be written as JSON: {error}") from error
    return msgspec.structs.replace(call, args=msgspec.json.decode(text), arguments=text)


def _checked(value: Any) -> Any:
    try:
        msgspec.convert(msgspec.to_builtins(value), type(value))
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(str(error)) from error
    return value
