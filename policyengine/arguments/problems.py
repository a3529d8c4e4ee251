"""What is wrong with arguments, for programs (path and code) and for the model (a sentence that says what is allowed).

Knows: the validator's errors and our wording for them. Must not know: repairs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from policyengine.arguments import text
from policyengine.arguments.model import ArgumentError, Step, excerpt, path_text, printable, type_of
from policyengine.arguments.schema import CompiledSchema
from policyengine.arguments.tree import ROOT, Pointer, shade, shown

MAX_ERRORS = 50
"""Most errors listed."""

MAX_HINTED = 10
"""Most errors told to the model in one text."""

_MESSAGE_CHARS = 300
_VALUE_CHARS = 60
_MAX_NAMES = 30

_SIMPLE: dict[str, tuple[str, str]] = {
    "Pattern": ("pattern", "must match the pattern {pattern}"),
    "Minimum": ("range", "must be at least {limit}"),
    "Maximum": ("range", "must be at most {limit}"),
    "ExclusiveMinimum": ("range", "must be greater than {limit}"),
    "ExclusiveMaximum": ("range", "must be less than {limit}"),
    "MultipleOf": ("range", "must be a multiple of {multiple_of}"),
    "MinLength": ("length", "must have at least {limit} characters"),
    "MaxLength": ("length", "must have at most {limit} characters"),
    "MinItems": ("items", "must have at least {limit} items"),
    "MaxItems": ("items", "must have at most {limit} items"),
    "AdditionalItems": ("items", "must have at most {limit} items"),
    "UnevaluatedItems": ("items", "has items that are not allowed"),
    "UniqueItems": ("items", "must not hold the same item twice"),
    "Contains": ("items", "lacks an item that the schema asks for"),
    "MinProperties": ("properties", "must have at least {limit} properties"),
    "MaxProperties": ("properties", "must have at most {limit} properties"),
    "PropertyNames": ("property_name", "has a key that is not allowed"),
    "Not": ("forbidden", "has a value that the schema excludes"),
    "OneOfMultipleValid": ("ambiguous", "fits several alternatives, and must fit exactly one"),
}
"""Code and help of the errors that need no more than their own limit."""


def explain(schema: CompiledSchema, args: dict[str, Any], known: frozenset[str]) -> tuple[ArgumentError, ...]:
    """Return every reason why `schema` does not accept `args`, except at the places in `known`."""
    explainer = _Explainer(schema)
    found: dict[tuple[str, str], ArgumentError] = {}
    for error in schema.errors(ROOT, args, MAX_ERRORS):
        for one in explainer.of(error, ()):
            if one.path not in known and len(found) < MAX_ERRORS:
                found.setdefault((one.path, one.code), one)
    return tuple(sorted(found.values(), key=lambda one: one.path))  # the validator's order is not promised


def not_an_object(value: Any) -> ArgumentError:
    """Return the error of arguments that are no object."""
    message = f"the arguments are {_article(type_of(value))}, not an object"
    return ArgumentError("", "type", message, "Send one JSON object with the parameters as its keys.")


def hint(errors: Sequence[ArgumentError], tool: str = "") -> str:
    """Return the text that tells the model what to correct."""
    lines = [f"The arguments of {tool or 'this call'} were refused, so nothing was run:"]
    lines += [f"- {error.help or error.message}" for error in errors[:MAX_HINTED]]
    if len(errors) > MAX_HINTED:
        lines.append(f"- and {len(errors) - MAX_HINTED} more")
    return printable("\n".join([*lines, "Send the whole call again with this corrected."]))


class _Explainer:
    """Turns the validator's errors into ours."""

    def __init__(self, schema: CompiledSchema) -> None:
        self._schema = schema

    def of(self, error: Any, prefix: tuple[Step, ...]) -> Iterator[ArgumentError]:
        """Yield our errors for one of the validator's; its places are below `prefix`."""
        kind = type(error.kind).__name__
        steps = (*prefix, *error.instance_path)
        if kind == "Required":
            yield self._missing(error, steps)
        elif kind in ("AdditionalProperties", "UnevaluatedProperties"):
            for name in error.kind.unexpected:
                yield self._unexpected(error, steps, name)
        elif kind == "FalseSchema" and steps and isinstance(steps[-1], str):
            yield self._unexpected(error, steps[:-1], steps[-1])
        elif kind == "Type":
            yield from self._type([error], steps, prefix)
        elif kind in ("Enum", "Constant"):
            yield self._enum([error], steps)
        elif kind in ("AnyOf", "OneOfNotValid"):
            yield from self._union(error, steps, prefix)
        else:
            yield self._simple(error, steps, kind)

    def _missing(self, error: Any, steps: tuple[Step, ...]) -> ArgumentError:
        name = error.kind.property
        where = shown(path_text((*steps, name)))
        properties = self._part(error).get("properties")
        wanted = _described(properties.get(name)) if isinstance(properties, dict) else ""
        return ArgumentError(where, "missing_required", _message(error), f"{where} is required{wanted}.")

    def _unexpected(self, error: Any, steps: tuple[Step, ...], name: str) -> ArgumentError:
        where = shown(path_text((*steps, name)))
        properties = self._part(error).get("properties")
        allowed = list(properties) if isinstance(properties, dict) else []
        help = "is not a parameter of this tool" if not steps else "is not allowed there"
        if near := get_close_matches(name[:80], allowed[:200], 1, 0.7):
            help += f" (did you mean {near[0]}?)"
        if allowed:
            help += f"; allowed: {_listing([shown(item) for item in allowed])}"
        return self._error(error, where, "unexpected_property", help)

    def _type(
        self, errors: Sequence[Any], steps: tuple[Step, ...], prefix: tuple[Step, ...]
    ) -> Iterator[ArgumentError]:
        """Yield the error of a value whose type none of `errors` takes; inside text that holds a container, its own."""
        first = errors[0]
        value = first.instance
        types = list(dict.fromkeys(name for error in errors for name in error.kind.types))
        if isinstance(value, str):
            inside = [one for error in errors for one in self._inside_text(error, value, steps)]
            if inside:
                yield from inside
                return
        code = "type"
        if isinstance(value, str) and {"number", "integer"} & set(types) and text.is_not_finite(value):
            code = "non_finite_number"
        wanted = " or ".join(map(_article, types)) if code == "type" else "a finite number"
        yield self._error(first, shown(path_text(steps)), code, f"must be {wanted}, not {_given(value)}")

    def _inside_text(self, error: Any, value: str, steps: tuple[Step, ...]) -> Iterator[ArgumentError]:
        held = text.container(value)
        if held is None or ("array" if isinstance(held, list) else "object") not in error.kind.types:
            return
        for inner in self._schema.errors(self._pointer(error)[:-1], held, MAX_ERRORS):
            yield from self.of(inner, steps)

    def _enum(self, errors: Sequence[Any], steps: tuple[Step, ...]) -> ArgumentError:
        members: list[Any] = []
        for error in errors:
            options = getattr(error.kind, "options", None)
            members += options if options is not None else [error.kind.expected_value]
        listing = _listing(list(dict.fromkeys(_json(member) for member in members)))
        help = f"must be one of: {listing}" if len(members) > 1 else f"must be {listing}"
        return self._error(errors[0], shown(path_text(steps)), "enum", f"{help}; not {_given(errors[0].instance)}")

    def _union(self, error: Any, steps: tuple[Step, ...], prefix: tuple[Step, ...]) -> Iterator[ArgumentError]:
        """Yield the errors of the alternative that was most likely meant."""
        mismatched: list[Any] = []
        fitting: list[list[Any]] = []
        for branch in error.kind.context:
            wrong = [one for one in branch if _is_here(one, error, "Type")]
            mismatched += wrong
            if not wrong:
                fitting.append(branch)
        if not fitting:
            yield from self._type(mismatched, steps, prefix) if mismatched else [self._simple(error, steps, "")]
            return
        listings = [one for branch in fitting for one in branch if _is_here(one, error, "Enum", "Constant")]
        meant = min(fitting, key=_distance)
        if listings and len(listings) == sum(map(len, fitting)):
            yield self._enum(listings, steps)
        elif meant:
            for one in meant:
                yield from self.of(one, prefix)
        else:
            yield self._simple(error, steps, "")

    def _simple(self, error: Any, steps: tuple[Step, ...], kind: str) -> ArgumentError:
        code, help = _SIMPLE.get(kind, ("invalid", ""))
        facts = {name: getattr(error.kind, name, "") for name in ("limit", "pattern", "multiple_of")}
        where = shown(path_text(steps))
        return self._error(error, where, code, help.format(**facts) or f"is not allowed: {_message(error)}")

    def _error(self, error: Any, where: str, code: str, help: str) -> ArgumentError:
        return ArgumentError(where, code, _message(error), shown(f"{where or 'The object of arguments'} {help}."))

    def _part(self, error: Any) -> dict[str, Any]:
        part = self._schema.at(self._pointer(error)[:-1])
        return part if isinstance(part, dict) else {}

    @staticmethod
    def _pointer(error: Any) -> Pointer:
        return tuple(error.schema_path)


def _is_here(one: Any, error: Any, *kinds: str) -> bool:
    return type(one.kind).__name__ in kinds and list(one.instance_path) == list(error.instance_path)


def _distance(branch: Sequence[Any]) -> int:
    """Return how far a value is from an alternative; a wrong constant, as in a tag, says that it is another one."""
    return sum(100 if type(one.kind).__name__ in ("Enum", "Constant") else 1 for one in branch)


def _message(error: Any) -> str:
    return shown(excerpt(error.message, _MESSAGE_CHARS))


def _described(part: Any) -> str:
    if not isinstance(part, dict):
        return ""
    members = part.get("enum")
    if isinstance(members, list):
        return f" (one of: {_listing([_json(member) for member in members])})"
    named = part.get("type")
    types = [named] if isinstance(named, str) else named or []
    return f" ({' or '.join(types)})" if types else ""


def _listing(items: Sequence[str]) -> str:
    more = f" and {len(items) - _MAX_NAMES} more" if len(items) > _MAX_NAMES else ""
    return ", ".join(items[:_MAX_NAMES]) + more


def _given(value: Any) -> str:
    kind = type_of(value)
    if kind in ("object", "array", "null"):
        return _article(kind)
    return f"the {kind} {excerpt(_json(value), _VALUE_CHARS)}"


def _json(value: Any) -> str:
    return shown(json.dumps(shade(value), ensure_ascii=False))


def _article(kind: str) -> str:
    if kind == "null":
        return kind
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
