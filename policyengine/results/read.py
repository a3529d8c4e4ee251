"""A result as its carrier delivered it: text, the data behind it, what the carrier itself declares.

Knows: JSON text, process output, content blocks, objects that carry results.
Must not know: what counts as a failure, what the model is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from policyengine.results.declared import FACTS, declared, is_envelope
from policyengine.results.plain import Plain, attribute, bytes_text, dumped, is_a, plain

Kind = Literal["content", "json", "process", "python", "structured"]

_MARKER = re.compile(r"\W*(?:command |process )?exit(?:ed with)? (?:code|status):? ?(-?[0-9]{1,9})\W*", re.IGNORECASE)
_MAX_JSON = 4_000_000


class Read(NamedTuple):
    """A result as it was delivered: the text, the data behind it if there is any, and what its carrier declared."""

    text: str
    body: Any = None
    flag: bool = False
    exit_code: int | None = None
    plain: Plain = Plain(None)
    cut: bool = False


def read_result(value: Any, kind: Kind) -> tuple[Read, Kind]:
    """Return a result as it was delivered, and how: an object may say itself that it carries one."""
    carried, kind = _carrier(value, kind)
    return _read_value(carried, kind), kind


def _read_value(value: Any, kind: Kind) -> Read:
    if issubclass(type(value), bytes | bytearray):
        value = bytes_text(bytes(value))
    if issubclass(type(value), str):
        return _read_text(str.__str__(value), kind)
    if value is None:
        return Read("")
    found = plain(value, FACTS)
    body = found.value
    if isinstance(body, dict) and _is_protocol(body):
        return _read_protocol(body, found, kind)
    if isinstance(body, list) and kind in ("content", "structured") and body and all(map(_is_block, body)):
        return _with_inner(Read(_blocks_text(body), plain=found), kind)
    if kind == "process" and isinstance(body, dict) and ("stdout" in body or "stderr" in body or "output" in body):
        return Read(_streams(body), body, plain=found)
    if isinstance(body, str):  # an object that has no form but its text
        return Read(body, plain=found)
    return Read(dumped(body), body, plain=found)


def _read_text(text: str, kind: Kind) -> Read:
    if kind == "process":
        return Read(text, exit_code=marked_exit_code(text))
    if kind == "json":
        return read_json(text)
    if kind == "structured" and text.lstrip()[:1] in ("{", "["):
        return read_json(text)
    return _with_inner(Read(text), kind)


def read_json(text: str) -> Read:
    """Read JSON text; where it says more than JSON can (NaN, lone surrogates) it is written anew, else it stays."""
    if len(text) > _MAX_JSON or not text.strip():
        return Read(text)
    try:
        found = plain(json.loads(text), FACTS)
    except (ValueError, RecursionError):
        return Read(text)
    return Read(dumped(found.value) if found.notes else text, found.value, plain=found)


def _with_inner(read: Read, kind: Kind) -> Read:
    """Look into a text that is, as a whole, an object which declares a failure. The text itself stays as it is."""
    text = read.text.strip()
    if kind not in ("python", "structured") or not text.startswith("{") or len(text) > _MAX_JSON:
        return read
    body = read_json(text).body
    if isinstance(body, Mapping) and (declared(body).reason or is_envelope(body)):
        return read._replace(body=body)
    return read


def _carrier(value: Any, kind: Kind) -> tuple[Any, Kind]:
    """Return objects that carry a result (a finished process, a protocol's result) as mappings."""
    if value is None or is_a(value, Mapping | list | tuple | str | bytes | int | float):
        return value, kind
    if attribute(type(value), "check_returncode") is not None:
        names = ("returncode", "stdout", "stderr")
        return {name: _shown(attribute(value, name)) for name in names}, "process"
    flag, content = attribute(value, "isError"), attribute(value, "content")
    if type(flag) is bool and issubclass(type(content), list | tuple):
        structured = attribute(value, "structuredContent")
        return {"content": content, "isError": flag, "structuredContent": structured}, "structured"
    return value, kind


def _shown(stream: Any) -> Any:
    return bytes_text(stream) if type(stream) is bytes else stream


def _is_protocol(body: Mapping[str, Any]) -> bool:
    """Return whether an object is a tool result of the Model Context Protocol."""
    content = body.get("content")
    if not isinstance(content, list):
        known = content is None and "structuredContent" in body
        return known and set(body) <= {"structuredContent", "isError", "_meta", "content", "meta"}
    marked = isinstance(body.get("isError", body.get("is_error")), bool) or "structuredContent" in body
    return all(map(_is_block, content)) and (marked or (bool(content) and set(body) <= {"content", "_meta", "meta"}))


def _is_block(item: Any) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("type"), str)


def _read_protocol(body: dict[str, Any], found: Plain, kind: Kind) -> Read:
    flag = body.get("isError") is True or body.get("is_error") is True
    structured = body.get("structuredContent")
    text = _blocks_text(body.get("content") or [])
    if kind == "python":
        # A function that returns such an object gives data; what it declares is read, the text stays the data.
        inner = structured if isinstance(structured, Mapping) else _with_inner(Read(text), kind).body
        inner = inner if isinstance(inner, Mapping) else body
        return Read(dumped(body), inner, flag, plain=found)
    if isinstance(structured, Mapping | list):
        return Read(text if text.strip() else dumped(structured), structured, flag, plain=found)
    return _with_inner(Read(text, flag=flag, plain=found), kind)


def _blocks_text(blocks: list[Any]) -> str:
    return "\n".join(filter(str.strip, map(_block_text, blocks)))


def _block_text(block: Mapping[str, Any]) -> str:
    """Return a content block as text; what cannot be read is named, so that an image is no empty result."""
    kind = str(block.get("type"))[:40]
    resource = block.get("resource")
    inner = resource if isinstance(resource, Mapping) else block
    text = inner.get("text")
    if isinstance(text, str):
        return text
    if kind == "text":
        return ""
    about = [inner.get("mimeType") or inner.get("mime_type"), inner.get("uri"), inner.get("name")]
    payload = inner.get("data") or inner.get("blob")
    about.append(f"{len(payload)} characters" if isinstance(payload, str) else None)
    named = [str(item)[:200] for item in about if item]
    return f"[{': '.join([kind, ', '.join(named)]) if named else kind}]"


def _streams(body: Mapping[str, Any]) -> str:
    out = next((value for name in ("stdout", "output") if isinstance(value := body.get(name), str)), "")
    err = body.get("stderr")
    if not isinstance(err, str) or not err.strip():
        return out
    return f"{out.rstrip()}\n[stderr]\n{err}" if out.strip() else err


def marked_exit_code(text: str) -> int | None:
    """Return the exit code that a runner wrote under the output, on a line of its own."""
    last = text.rstrip().rsplit("\n", 1)[-1]
    found = _MARKER.fullmatch(last) if len(last) < 80 else None
    return int(found[1]) if found else None
