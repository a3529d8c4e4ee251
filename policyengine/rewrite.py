"""Apply a rewrite to the payload of a hook, or say why it cannot be applied.

Knows: which fields of which payload may be replaced. Must not know: who asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from policyengine.actions import Rewrite
from policyengine.jsontext import finite
from policyengine.messages import ModelRequest, ToolCall, ToolResult
from policyengine.parsing.verdict import Verdict

REQUEST_FIELDS = ("tools", "model", "compaction")
RESULT_FIELDS = ("text", "status", "error", "exit_code")
MAX_DEPTH = 100
"""How deep the values of a rewrite may be nested."""


def target_of(hook: str, payload: tuple[Any, ...]) -> Any:
    """Return the part of a hook's payload that a rewrite changes: its first part, but the result of a call."""
    return payload[1] if hook == "after_tool_call" else payload[0]


def apply_rewrite(value: Any, rewrite: Rewrite) -> Any:
    """Return `value` with the fields named in `rewrite.changes` replaced.

    Of a tool call only `args` (a mapping) may be replaced, of a request `tools`, `model` and `compaction`, of a result
    everything but its id and duration; a verdict is replaced as a whole (`verdict`) or by field. New values are
    copied, and read-only views in them become plain data again.

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
        return _converted("verdict", verdict, Verdict)
    fixed: dict[type, tuple[str, ...]] = {ModelRequest: REQUEST_FIELDS, ToolResult: RESULT_FIELDS}
    kinds = {field.name: field.type for field in msgspec.structs.fields(value)}
    unknown = sorted(set(changes) - set(fixed.get(type(value), kinds)))
    if unknown:
        raise ValueError(f"{type(value).__name__} has no field {unknown[0]!r} that can be rewritten")
    new = {name: _converted(name, item, kinds[name]) for name, item in changes.items()}
    return msgspec.structs.replace(value, **new)


def thaw(value: Any, depth: int = 0) -> Any:
    """Return Structs, read-only views and plain data as a copy of plain data: mappings, lists, scalars.

    Raises:
        ValueError: it is nested too deeply.
        TypeError: it holds something that is no data.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {thaw(key, depth + 1): thaw(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item, depth + 1) for item in value]
    if isinstance(value, msgspec.Struct):
        return {name: thaw(getattr(value, name), depth + 1) for name in value.__struct_fields__}
    return thaw(msgspec.to_builtins(value), depth + 1)


def _rewritten_call(call: ToolCall, changes: dict[str, Any]) -> ToolCall:
    if set(changes) != {"args"} or not isinstance(changes["args"], Mapping):
        raise ValueError("of a tool call only `args` can be rewritten, by a mapping")
    try:
        args = thaw(changes["args"])
        if not finite(args):
            raise ValueError("a number is NaN or infinite")
        text = msgspec.json.encode(args).decode()
        return msgspec.structs.replace(call, args=msgspec.json.decode(text), arguments=text)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"`args` cannot be written as JSON: {error}") from error


def _converted(name: str, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(thaw(value), kind)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"`{name}`: {error}") from error
