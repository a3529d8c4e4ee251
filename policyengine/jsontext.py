"""Structs as JSON text and back, also where text holds lone surrogates.

Knows: JSON. Must not know: what is written.

msgspec fails on lone surrogates, and text from models and tools contains them. The standard module is the slow way
round, taken only then.
"""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def encode(value: Any, *, exact: bool = True) -> bytes:
    """Return `value` (Structs and plain data) as JSON.

    NaN and infinity become null, unless `exact` is false: then they are written as `decode` reads them, which strict
    readers do not.
    """
    try:
        if exact:
            return msgspec.json.encode(value)
    except UnicodeEncodeError:
        pass
    return json.dumps(msgspec.to_builtins(value)).encode("ascii")


def finite(value: Any) -> bool:
    """Return whether plain data holds neither NaN nor infinity."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(finite, value))


def decode(data: bytes, kind: type[T]) -> T:
    """Return JSON `data` as a `kind`.

    Raises:
        msgspec.DecodeError: it is no JSON, or does not have the shape of `kind`.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as first:
        try:
            return msgspec.convert(json.loads(data), kind)
        except (ValueError, RecursionError) as error:
            raise msgspec.DecodeError(str(first)) from error
