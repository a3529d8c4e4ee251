"""Repairs of the arguments as a whole: other names of parameters, and one object too many around them.

Knows: top-level names. Must not know: repairs of single values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from policyengine.arguments import text
from policyengine.arguments.coerce import Coercer, Exhausted, Fitted
from policyengine.arguments.model import ArgumentError, Repair, path_text
from policyengine.arguments.plain import read
from policyengine.arguments.schema import CompiledSchema
from policyengine.arguments.tree import ROOT

ENVELOPES = ("arguments", "args", "parameters")
"""Names under which models put the arguments once more."""

NO_NAMES: Mapping[str, Sequence[str]] = MappingProxyType({})

_OPEN_ON_PURPOSE = ("additionalProperties", "unevaluatedProperties", "patternProperties")


class AliasConflict(Exception):
    """One parameter was given under two names with different values."""

    def __init__(self, error: ArgumentError) -> None:
        super().__init__()
        self.error = error


def names_of(schema: CompiledSchema, aliases: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return alias to parameter. What the schema itself declares is a parameter, never an alias."""
    return {
        name: parameter
        for parameter, others in aliases.items()
        for name in ([others] if isinstance(others, str) else others)
        if not schema.names(name)
    }


def fit_root(coercer: Coercer, args: dict[str, Any], names: Mapping[str, str]) -> Fitted | None:
    """Return arguments as the schema accepts them, or `None`.

    Raises:
        AliasConflict: one parameter has two values.
    """
    fitted = _fit(coercer, args, names)
    so_far = fitted or Fitted(args)
    if fitted is None or _would_be_lost(coercer.schema, so_far.value, names):
        opened = _open(coercer.schema, so_far.value)
        # What was text may hold what the arguments around it did not.
        inner = opened and _fit(Coercer(coercer.schema, read(opened.value)), opened.value, names)
        if opened and inner:
            return Fitted(inner.value, (*so_far.repairs, *opened.repairs, *inner.repairs))
    return fitted


def reported_view(schema: CompiledSchema, args: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the object whose errors help: under the parameters' own names, without an envelope that is clearly one.

    Raises:
        AliasConflict: one parameter has two values.
    """
    opened = _open(schema, args)
    is_meant = opened is not None and any(schema.names(key) or key in names for key in opened.value)
    view: dict[str, Any] = _renamed(schema, opened.value if opened and is_meant else args, names).value
    return view


def _fit(coercer: Coercer, args: dict[str, Any], names: Mapping[str, str]) -> Fitted | None:
    renamed = _renamed(coercer.schema, args, names)
    try:
        fitted = coercer.fit_whole(renamed.value)
    except Exhausted:
        fitted = Fitted(renamed.value) if coercer.accepts(ROOT, renamed.value) else None
    return fitted and Fitted(fitted.value, (*renamed.repairs, *fitted.repairs))


def _renamed(schema: CompiledSchema, args: dict[str, Any], names: Mapping[str, str]) -> Fitted:
    """Return arguments under the parameters' own names. A value given under the own name wins."""
    if not names.keys() & args.keys():
        return Fitted(args)
    given: dict[str, tuple[str, Any]] = {}
    for name in args:
        parameter = names.get(name)
        if parameter is None or _is_given(schema, args, parameter):
            continue
        known = given.setdefault(parameter, (name, args[name]))
        if repr(known[1]) != repr(args[name]):
            raise AliasConflict(_conflict(parameter, known[0], name))
    value: dict[str, Any] = {}
    repairs = []
    for name, item in args.items():
        parameter = names.get(name, "")
        if name in given:
            continue  # its null gives way to what the alias says
        if name not in names:
            value[name] = item
        elif parameter in given and given[parameter][0] == name:
            value[parameter] = item
        if name in names:
            repairs.append(Repair(path_text((parameter,)), "alias"))
    return Fitted(value, tuple(repairs))


def _is_given(schema: CompiledSchema, args: dict[str, Any], parameter: str) -> bool:
    if parameter not in args:
        return False
    nullable = all(schema.accepts(part, None) for part in schema.of_property(ROOT, parameter))
    return args[parameter] is not None or nullable


def _conflict(parameter: str, first: str, second: str) -> ArgumentError:
    message = f"{first!r} and {second!r} both stand for {parameter!r} and differ"
    return ArgumentError(path_text((second,)), "alias_conflict", message, f"Give {parameter} once, under that name.")


def _open(schema: CompiledSchema, args: dict[str, Any]) -> Fitted | None:
    """Return what a single key that the schema does not know holds, if it is named like an envelope."""
    if len(args) != 1:
        return None
    ((name, inner),) = args.items()
    if name not in ENVELOPES or schema.names(name):
        return None
    repairs = [Repair(name, "unwrap_envelope")]
    if isinstance(inner, str):
        inner = text.container(inner)
        repairs.insert(0, Repair(name, "parse_json_string"))
    return Fitted(inner, tuple(repairs)) if isinstance(inner, dict) else None


def _would_be_lost(schema: CompiledSchema, args: dict[str, Any], names: Mapping[str, str]) -> bool:
    """Return whether arguments are accepted only because the schema ignores what it does not know.

    That is so if an envelope holds nothing but declared parameters, and the schema does not say that it takes others.
    """
    opened = _open(schema, args)
    if opened is None or not opened.value or any(any(schema.keyword(ROOT, name)) for name in _OPEN_ON_PURPOSE):
        return False
    return all(schema.names(key) or key in names for key in opened.value)
