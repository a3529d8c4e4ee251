"""Repairs of one value, led by its schema: only where it fails, and only where one repair is left.

Knows: which changes keep the meaning. Must not know: envelopes, aliases, wording.

Every repair is tried on the value and kept only if the schema then accepts it. Where two different repairs would be
accepted, neither is made. The work is bounded, so a hostile pair of schema and arguments ends as "not repaired".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from policyengine.arguments import text
from policyengine.arguments.model import Repair, Step, path_text
from policyengine.arguments.plain import Reading
from policyengine.arguments.schema import CompiledSchema
from policyengine.arguments.tree import ROOT, Pointer, listed, shade

MAX_WORK = 300_000
"""Most values looked at in search of repairs, counted anew each time; a place that is entered counts as several."""

PLACE_WORK = 10

MAX_NESTED = 100
"""Most places that are entered one from within another, alternatives included."""

CHARS_PER_VALUE = 64
"""Characters of text that count as one value."""

Path = tuple[Step, ...]


class Fitted(msgspec.Struct, frozen=True):
    """A value and what was changed in it."""

    value: Any
    repairs: tuple[Repair, ...] = ()


class Exhausted(Exception):
    """The work allowed for one set of arguments is used up."""


class Coercer:
    """The search for repairs in one set of arguments.

    `args` are these arguments as they were read.
    """

    def __init__(self, schema: CompiledSchema, args: Reading) -> None:
        self.schema = schema
        self._bracketed = args.bracketed
        self._surrogates = args.surrogates
        self._left = MAX_WORK
        self._entered: dict[tuple[Pointer, int], None] = {}
        self._wrapping = False

    def fit(self, at: Pointer, value: Any, path: Path = ()) -> Fitted | None:
        """Return `value` as the schema at `at` accepts it, or `None`.

        Raises:
            Exhausted: the work is used up.
        """
        self._spend(value)
        if self.accepts(at, value):
            return self._decoded(at, value, path) if self._bracketed else Fitted(value)
        place = (at, id(value))
        if place in self._entered or len(self._entered) >= MAX_NESTED:
            return None  # references lead back to where the search came from
        self._entered[place] = None
        try:
            return self._repaired(at, value, path)
        finally:
            del self._entered[place]

    def fit_whole(self, value: dict[str, Any]) -> Fitted | None:
        """Return the arguments as the schema accepts them, such that fitting them again changes nothing.

        Where the work is used up by the last look for JSON text in what was repaired, that look is left out.

        Raises:
            Exhausted: the work is used up.
        """
        fitted = self.fit(ROOT, value)
        found = fitted if self._bracketed else None
        while fitted is not None and found is not None and found.repairs:
            # Only a value that is accepted shows which alternatives speak about its parts.
            try:
                found = self._decoded(ROOT, fitted.value, ())
            except Exhausted:
                break
            fitted = Fitted(found.value, (*fitted.repairs, *found.repairs))
        return fitted

    def accepts(self, at: Pointer, value: Any) -> bool:
        """Return whether the schema at `at` accepts `value` as it is."""
        # The validator converts lazily: it may judge before it meets a surrogate, so it must never meet one.
        return self.schema.accepts(at, shade(value) if self._surrogates else value)

    def _repaired(self, at: Pointer, value: Any, path: Path) -> Fitted | None:
        inner = Fitted(value)
        if isinstance(value, dict | list):
            inner = self._inside(at, value, path)
            if inner.repairs and self.accepts(at, inner.value):
                return inner
        chosen = self._only([*self._candidates(at, inner.value, path)], at)
        return chosen and Fitted(chosen.value, (*inner.repairs, *chosen.repairs))

    def _inside(self, at: Pointer, value: Any, path: Path) -> Fitted:
        """Return a container in which every member is fitted that can be."""
        repairs: list[Repair] = []
        if isinstance(value, list):
            items = [self._member(self.schema.of_item(at, i), v, (*path, i), repairs) for i, v in enumerate(value)]
            return Fitted(items, tuple(repairs)) if repairs else Fitted(value)
        members: dict[str, Any] = {}
        for key, item in value.items():
            parts = self.schema.of_property(at, key)
            if item is None and self._is_filler(at, key, parts):
                repairs.append(Repair(path_text((*path, key)), "drop_null_optional"))
            else:
                members[key] = self._member(parts, item, (*path, key), repairs)
        return Fitted(members, tuple(repairs)) if repairs else Fitted(value)

    def _member(self, parts: list[Pointer], value: Any, path: Path, repairs: list[Repair]) -> Any:
        for part in parts:
            fitted = self.fit(part, value, path)
            if fitted is not None:
                value = fitted.value
                repairs += fitted.repairs
        return value

    def _is_filler(self, at: Pointer, key: str, parts: list[Pointer]) -> bool:
        """Return whether null stands for "absent": the property is declared, optional and not nullable."""
        if not self.schema.declares(at, key) or self.schema.requires(at, key):
            return False
        return not all(self.accepts(part, None) for part in parts)

    def _candidates(self, at: Pointer, value: Any, path: Path) -> Iterator[Fitted]:
        """Yield what `value` could mean at `at`; not all of it is accepted."""
        types = self.schema.types(at)
        if isinstance(value, str):
            yield from self._meanings(types, value, path)
            yield from self._spellings(at, value, path)
            yield from self._contents(types, at, value, path)
        if "array" in types and not self._wrapping and _can_be_item(value):
            yield self._wrapped(at, value, path)
        for branch in self.schema.branches(at):
            fitted = self.fit(branch, value, path)
            if fitted is not None and fitted.repairs:
                yield fitted

    def _meanings(self, types: frozenset[str], value: str, path: Path) -> Iterator[Fitted]:
        where = path_text(path)
        if "boolean" in types and (truth := text.boolean(value)) is not None:
            yield Fitted(truth, (Repair(where, "string_to_boolean"),))
        if "integer" in types or "number" in types:
            spelled = text.number if "number" in types else text.integer
            if (amount := spelled(value)) is not None:
                yield Fitted(amount, (Repair(where, "string_to_number"),))

    def _spellings(self, at: Pointer, value: str, path: Path) -> Iterator[Fitted]:
        wanted = shade(value).casefold()
        for facet in self.schema.facets(at):
            members = [member for member in listed(self.schema.at(facet)) if isinstance(member, str)]
            same = {member for member in members if member.casefold() == wanted}
            if len(same) == 1:
                yield Fitted(same.pop(), (Repair(path_text(path), "enum_case"),))

    def _contents(self, types: frozenset[str], at: Pointer, value: str, path: Path) -> Iterator[Fitted]:
        if not types & {"array", "object"}:
            return
        held = text.container(value)
        if held is None or ("array" if isinstance(held, list) else "object") not in types:
            return
        self._bracketed = True  # what was read may hold such text again
        fitted = self.fit(at, held, path)
        if fitted is not None:
            yield Fitted(fitted.value, (Repair(path_text(path), "parse_json_string"), *fitted.repairs))

    def _wrapped(self, at: Pointer, value: Any, path: Path) -> Fitted:
        """Return `value` as the only item of an array at `at`. An item is never wrapped once more."""
        repairs: list[Repair] = []
        self._wrapping = True
        try:
            item = self._member(self.schema.of_item(at, 0), value, (*path, 0), repairs)
        finally:
            self._wrapping = False
        return Fitted([item], (Repair(path_text(path), "wrap_scalar"), *repairs))

    def _only(self, candidates: list[Fitted], at: Pointer) -> Fitted | None:
        """Return the one candidate that is accepted; wrapping counts only where nothing else fits."""
        accepted = [candidate for candidate in candidates if self.accepts(at, candidate.value)]
        plain = [candidate for candidate in accepted if not _is_wrapped(candidate)]
        accepted = plain or accepted
        if len({repr(candidate.value) for candidate in accepted}) != 1:
            return None
        return min(accepted, key=lambda candidate: len(candidate.repairs))

    def _decoded(self, at: Pointer, value: Any, path: Path) -> Fitted:
        """Return an accepted value with JSON arrays in place of their text where both text and arrays are allowed.

        Text is what the schema accepts first, so nothing fails; the tool would get one literal string.
        """
        self._spend(value)
        if isinstance(value, str):
            return self._array_of_text(at, value, path)
        place = (at, id(value))
        if not isinstance(value, dict | list) or place in self._entered or len(self._entered) >= MAX_NESTED:
            return Fitted(value)
        self._entered[place] = None
        try:
            return self._with_decoded_members(at, value, path)
        finally:
            del self._entered[place]

    def _with_decoded_members(self, at: Pointer, value: Any, path: Path) -> Fitted:
        repairs: list[Repair] = []
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        members = {step: self._decoded_member(at, step, item, (*path, step), repairs) for step, item in pairs}
        found = Fitted(members if isinstance(value, dict) else list(members.values()), tuple(repairs))
        for branch in self.schema.branches(at):
            if self.accepts(branch, found.value):
                within = self._decoded(branch, found.value, path)
                found = Fitted(within.value, (*found.repairs, *within.repairs))
        return found if found.repairs and self.accepts(at, found.value) else Fitted(value)

    def _decoded_member(self, at: Pointer, step: Step, value: Any, path: Path, repairs: list[Repair]) -> Any:
        parts = self.schema.of_property(at, step) if isinstance(step, str) else self.schema.of_item(at, step)
        for part in parts:
            within = self._decoded(part, value, path)
            value = within.value
            repairs += within.repairs
        return value

    def _array_of_text(self, at: Pointer, value: str, path: Path) -> Fitted:
        if value.lstrip()[:1] == "[" and {"string", "array"} <= self.schema.any_types(at):
            items = text.container(value)
            if isinstance(items, list) and self.accepts(at, items):
                within = self._decoded(at, items, path)
                return Fitted(within.value, (Repair(path_text(path), "parse_json_string"), *within.repairs))
        return Fitted(value)

    def _spend(self, value: Any) -> None:
        self._left -= PLACE_WORK
        waiting = [value]
        while waiting:
            item = waiting.pop()
            self._left -= 1 + (len(item) // CHARS_PER_VALUE if isinstance(item, str) else 0)
            if self._left < 0:
                raise Exhausted
            if isinstance(item, dict):
                waiting += item.values()
            elif isinstance(item, list):
                waiting += item


def _can_be_item(value: Any) -> bool:
    """Return whether a value may be wrapped: a scalar, but neither null nor blank text nor a broken container."""
    if isinstance(value, str):
        return bool(value.strip()) and not text.looks_like_container(value)
    return isinstance(value, int | float)


def _is_wrapped(candidate: Fitted) -> bool:
    return any(repair.name == "wrap_scalar" for repair in candidate.repairs)
