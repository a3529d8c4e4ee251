"""A JSON Schema as a tree: which parts of it speak about a value, a property or an item.

Knows: the keywords of JSON Schema that lead from one part to another. Must not know: validation, repairs.

Text with lone surrogates, which the validator cannot take, is replaced by stand-ins, in schema and value alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from policyengine.arguments.model import Step, printable, type_of

Pointer = tuple[Step, ...]
"""Where a part of a schema stands in it."""

ROOT: Pointer = ()

_STAND_INS = {code: code - 0xD800 + 0xF0000 for code in range(0xD800, 0xE000)}
_STOOD_FOR = {stand_in: code for code, stand_in in _STAND_INS.items()}


def shade(value: Any) -> Any:
    """Return plain data with a stand-in for every lone surrogate."""
    if isinstance(value, str):
        return value.translate(_STAND_INS)
    if isinstance(value, list):
        return [shade(item) for item in value]
    if isinstance(value, dict):
        return {shade(key): shade(item) for key, item in value.items()}
    return value


def shown(text: str) -> str:
    """Return text of the validator for people and models: stand-ins as the escape of what they stand for."""
    return printable(text.translate(_STOOD_FOR))


def listed(part: Mapping[str, Any]) -> list[Any]:
    """Return the values that `enum` or `const` of a part allow."""
    members = part.get("enum")
    found = list(members) if isinstance(members, list) else []
    return [*found, part["const"]] if "const" in part else found


class SchemaTree:
    """A schema that can be asked about its parts. Its answers are kept, since it does not change."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self._facets: dict[Pointer, tuple[Pointer, ...]] = {}

    def at(self, pointer: Pointer) -> Any:
        """Return the part of the schema at `pointer`, or `None`."""
        part: Any = self.root
        for step in pointer:
            try:
                part = part[step]
            except (KeyError, IndexError, TypeError):
                return None
        return part

    def facets(self, at: Pointer) -> tuple[Pointer, ...]:
        """Return every part that speaks about the same value as `at`: itself, `$ref` targets, members of `allOf`."""
        if at not in self._facets:
            found: dict[Pointer, None] = {}
            waiting = [at]
            while waiting:
                pointer = waiting.pop(0)
                part = self.at(pointer)
                # A part with an id of its own is another document: references in it lead elsewhere.
                if pointer in found or not isinstance(part, dict) or ("$id" in part and pointer != ROOT):
                    continue
                found[pointer] = None
                if (target := self._target(part.get("$ref"))) is not None:
                    waiting.append(target)
                waiting += [(*pointer, "allOf", index) for index in range(_length(part.get("allOf")))]
            self._facets[at] = tuple(found)
        return self._facets[at]

    def keyword(self, at: Pointer, name: str) -> Iterator[tuple[Pointer, Any]]:
        """Yield the places and values of a keyword in all facets of `at`."""
        for facet in self.facets(at):
            if name in (part := self.at(facet)):
                yield (*facet, name), part[name]

    def branches(self, at: Pointer) -> Iterator[Pointer]:
        """Yield the alternatives for a value at `at`: members of `anyOf` and `oneOf`."""
        for name in ("anyOf", "oneOf"):
            for pointer, members in self.keyword(at, name):
                yield from ((*pointer, index) for index in range(_length(members)))

    def of_property(self, at: Pointer, key: str) -> list[Pointer]:
        """Return the parts that speak about property `key` of an object at `at`."""
        key = shade(key)
        found: list[Pointer] = []
        for facet in self.facets(at):
            part = self.at(facet)
            own: list[Pointer] = []
            if key in _mapping(part.get("properties")):
                own.append((*facet, "properties", key))
            for pattern in _mapping(part.get("patternProperties")):
                if _matches(pattern, key):
                    own.append((*facet, "patternProperties", pattern))
            if not own and isinstance(part.get("additionalProperties"), dict):
                own.append((*facet, "additionalProperties"))
            found += own
        return found

    def of_item(self, at: Pointer, index: int) -> list[Pointer]:
        """Return the parts that speak about item `index` of an array at `at`."""
        found: list[Pointer] = []
        for facet in self.facets(at):
            part = self.at(facet)
            older = isinstance(part.get("items"), list)
            first, rest = ("items", "additionalItems") if older else ("prefixItems", "items")
            if index < _length(part.get(first)):
                found.append((*facet, first, index))
            elif isinstance(part.get(rest), dict):
                found.append((*facet, rest))
        return found

    def declares(self, at: Pointer, key: str) -> bool:
        """Return whether `properties` names `key` at `at`."""
        return any(shade(key) in _mapping(known) for _, known in self.keyword(at, "properties"))

    def names(self, key: str) -> bool:
        """Return whether `key` is a parameter: declared at the top, in any alternative."""
        return any(self.declares(place, key) for place in self._reach(ROOT))

    def requires(self, at: Pointer, key: str) -> bool:
        """Return whether `key` is required at `at`."""
        return any(shade(key) in known for _, known in self.keyword(at, "required") if isinstance(known, list))

    def types(self, at: Pointer) -> frozenset[str]:
        """Return the types named at `at`; where only values are listed, their types."""
        found: set[str] = set()
        for facet in self.facets(at):
            part = self.at(facet)
            named = part.get("type")
            if named is not None:
                found.update([named] if isinstance(named, str) else named)
            else:
                found.update(type_of(member) for member in listed(part))
        return frozenset(found)

    def any_types(self, at: Pointer) -> frozenset[str]:
        """Return the types named at `at` or in any of its alternatives."""
        return frozenset().union(*map(self.types, self._reach(at)))

    def _reach(self, at: Pointer) -> tuple[Pointer, ...]:
        """Return `at` and all its alternatives, theirs included."""
        seen: dict[Pointer, None] = {}
        waiting = [at]
        while waiting:
            pointer = waiting.pop()
            if pointer not in seen:
                seen[pointer] = None
                waiting += self.branches(pointer)
        return tuple(seen)

    def _target(self, reference: Any) -> Pointer | None:
        """Return where a reference within this schema leads."""
        if not isinstance(reference, str):
            return None
        base, _, fragment = reference.partition("#")
        if base not in ("", self.root.get("$id")) or (fragment and not fragment.startswith("/")):
            return None
        pointer: list[Step] = []
        for token in unquote(fragment).split("/")[1:]:
            step = token.replace("~1", "/").replace("~0", "~")
            isindex = step.isascii() and step.isdigit() and isinstance(self.at(tuple(pointer)), list)
            pointer.append(int(step) if isindex else step)
        return tuple(pointer)


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> Any:
    import jsonschema_rs

    return jsonschema_rs.validator_for({"pattern": pattern})


def _matches(pattern: str, key: str) -> bool:
    """Return whether a key matches, by the validator's own rules and limits for patterns."""
    return bool(_pattern(pattern).is_valid(key))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
