"""Tool arguments against the tool's JSON Schema: valid, repaired, or refused with every reason.

Knows: the order of the steps. Must not know: tools, policies, guards.

Strict first: what the schema accepts is returned as it is. Only where it fails is a repair looked for, led by the
schema, and only what the whole schema accepts afterwards is taken. Text that a schema calls a string is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from policyengine.arguments.coerce import Coercer, Fitted
from policyengine.arguments.model import ArgumentError, Arguments, Repair
from policyengine.arguments.plain import Reading, read
from policyengine.arguments.problems import explain, hint, not_an_object
from policyengine.arguments.root import NO_NAMES, AliasConflict, fit_root, names_of, reported_view
from policyengine.arguments.schema import CompiledSchema, SchemaError, compile_schema
from policyengine.arguments.text import container

__all__ = ["ArgumentError", "Arguments", "Repair", "SchemaError", "check_schema", "validate_arguments"]


def validate_arguments(
    schema: Mapping[str, Any],
    args: Any,
    *,
    aliases: Mapping[str, Sequence[str]] = NO_NAMES,
    tool: str = "",
) -> Arguments:
    """Return whether `args` fit `schema`, repaired where a repair is unambiguous.

    `args` are the parsed arguments, their JSON text, or `None` for a call without any; they are never changed, but
    what needed no repair is shared with the result. `aliases` gives other accepted names for top-level parameters.
    `tool` is the name to use in messages.

    Raises:
        SchemaError: the schema itself is unusable, or refers to another document.
    """
    compiled = compile_schema(schema, tool)
    names = names_of(compiled, aliases)
    start = _as_object(args)
    reading = read(start.value)
    if reading.fatal:
        return _refused(args, reading.errors, tool)
    if not isinstance(reading.value, dict):
        return _refused(args, (not_an_object(reading.value),), tool)
    if reading.errors:
        return _refused(args, _all_errors(compiled, reading, names), tool)
    try:
        fitted = fit_root(Coercer(compiled, reading), reading.value, names)
    except AliasConflict:
        fitted = None
    if fitted is None:
        return _refused(args, _all_errors(compiled, reading, names), tool)
    return Arguments(True, fitted.value, (*start.repairs, *fitted.repairs))


def check_schema(schema: Mapping[str, Any], tool: str = "") -> None:
    """Find out early, when a tool is registered, whether its schema can be used.

    Raises:
        SchemaError: it cannot.
    """
    compile_schema(schema, tool)


def _as_object(args: Any) -> Fitted:
    if args is None or (isinstance(args, str) and not args.strip()):
        return Fitted({}, (Repair("", "empty_arguments"),))
    if isinstance(args, str):
        parsed = container(args)
        if isinstance(parsed, dict):
            return Fitted(parsed, (Repair("", "parse_json_string"),))
    return Fitted(args)


def _all_errors(compiled: CompiledSchema, reading: Reading, names: Mapping[str, str]) -> tuple[ArgumentError, ...]:
    """Return every error once: what no schema can allow, then what this one does not."""
    found = list(reading.errors)
    view = reading.value
    try:
        view = reported_view(compiled, view, names)
    except AliasConflict as conflict:
        found.append(conflict.error)
    return (*found, *explain(compiled, view, frozenset(error.path for error in found)))


def _refused(args: Any, errors: tuple[ArgumentError, ...], tool: str) -> Arguments:
    original = args if isinstance(args, dict) else {}
    return Arguments(False, original, errors=errors, hint=hint(errors, tool))
