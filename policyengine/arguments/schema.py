"""A tool's JSON Schema, compiled once: what it accepts at any place.

Knows: `jsonschema-rs`. Must not know: repairs, wording for models.

No reference is ever fetched: a schema that refers to another document is unusable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import quote

import msgspec

from policyengine.arguments.model import Step, path_text, printable
from policyengine.arguments.plain import read
from policyengine.arguments.tree import ROOT, Pointer, SchemaTree, shade
from policyengine.errors import UsageError

MAX_SCHEMA_DEPTH = 128
MAX_CACHED = 256
"""Most schemas that are kept compiled."""

_ROOT_URI = "urn:policyengine:schema"
_OLDER_DRAFTS = ("http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-04/schema#")


class SchemaError(UsageError):
    """A tool's schema cannot be used. `path` is the place in the schema, `tool` the tool's name where it is known."""

    def __init__(self, detail: str, path: str = "", tool: str = "") -> None:
        self.detail = detail
        self.path = path
        self.tool = tool
        owner = f"the schema of tool {tool!r}" if tool else "the schema"
        super().__init__(printable(f"{owner} is unusable{f' at {path}' if path else ''}: {detail}"))


def compile_schema(schema: Mapping[str, Any], tool: str = "") -> CompiledSchema:
    """Return a compiled schema; equal schemas are compiled once.

    Raises:
        SchemaError: it is no valid schema, or refers to another document.
    """
    if not isinstance(schema, Mapping):
        raise SchemaError(f"a schema is a mapping, not {type(schema).__name__}", tool=tool)
    try:
        return _compiled(_canonical(schema))
    except SchemaError as error:
        raise SchemaError(error.detail, error.path, tool) from error.__cause__


class CompiledSchema(SchemaTree):
    """A schema that can also say what any of its parts accepts."""

    def __init__(self, root: dict[str, Any]) -> None:
        root, validator = _build(root)
        super().__init__(root)
        draft = root.get("$schema")
        self._draft = {"$schema": draft} if draft else {}
        self._validators: dict[Pointer, Any] = {ROOT: validator}

    def accepts(self, at: Pointer, value: Any) -> bool:
        """Return whether the part at `at` accepts `value`, which holds no lone surrogates.

        A part that cannot stand alone accepts everything.
        """
        validator = self._validator(at)
        return validator is None or bool(validator.is_valid(value))

    def errors(self, at: Pointer, value: Any, limit: int) -> list[Any]:
        """Return the validator's first errors of `value` at the part at `at`."""
        validator = self._validator(at)
        return [] if validator is None else list(islice(validator.iter_errors(shade(value)), limit))

    def _validator(self, at: Pointer) -> Any:
        if at not in self._validators:
            self._validators[at] = self._compiled(at)
        return self._validators[at]

    def _compiled(self, at: Pointer) -> Any:
        import jsonschema_rs

        def retrieve(uri: str) -> Any:
            return self.root if uri == _ROOT_URI else _refuse(uri)

        fragment = "".join("/" + quote(_escaped(step), safe="~") for step in at)
        schema = {**self._draft, "$ref": f"{_ROOT_URI}#{fragment}"}
        try:
            return jsonschema_rs.validator_for(schema, validate_formats=False, retriever=retrieve)
        except (ValueError, jsonschema_rs.ReferencingError):
            return None


def _build(root: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return a schema with the draft it is written in, and its validator."""
    import jsonschema_rs

    first: Exception | None = None
    # Many tools name no draft and write an older one: tuples as `items`, `exclusiveMinimum: true`.
    for draft in (None,) if "$schema" in root else (None, *_OLDER_DRAFTS):
        schema = {"$schema": draft, **root} if draft else root
        try:
            return schema, jsonschema_rs.validator_for(schema, validate_formats=False, retriever=_refuse)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            first = first or error
    raise SchemaError(*_reason(first)) from first


def _reason(error: Exception | None) -> tuple[str, str]:
    path = path_text(getattr(error, "instance_path", ()))
    detail = str(getattr(error, "message", "") or error).partition("\n")[0]
    return (detail if len(detail) <= 300 else f"{detail[:300]} ..."), path


def _refuse(uri: str) -> Any:
    raise ValueError(f"references to other documents are not followed ({uri})")


def _canonical(schema: Mapping[str, Any]) -> bytes:
    """Return a schema as JSON that is the same for equal schemas."""
    try:
        canonical = _encode(schema)
    except (TypeError, ValueError, RecursionError):  # views, keys that are no text, surrogates, depth
        canonical = b""
    if canonical and not any(null in canonical for null in _NULLS):
        return canonical
    reading = read(schema, MAX_SCHEMA_DEPTH)
    for error in reading.errors:
        raise SchemaError(error.message, error.path)
    return json.dumps(shade(reading.value), sort_keys=True).encode()


@lru_cache(maxsize=MAX_CACHED)
def _compiled(canonical: bytes) -> CompiledSchema:
    schema = json.loads(canonical)
    for error in read(schema, MAX_SCHEMA_DEPTH).errors:
        raise SchemaError(error.message, error.path)
    return CompiledSchema(schema)


_NULLS = (b":null", b"[null", b",null")
"""What could be a null, or a number that is not finite, which the encoder writes as one."""

_encode = msgspec.json.Encoder(order="deterministic").encode


def _escaped(step: Step) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")
