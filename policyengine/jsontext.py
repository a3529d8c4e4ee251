"""Structs as JSON text and back, also where text holds lone surrogates.

Knows: JSON. Must not know: what is written.

msgspec fails on lone surrogates (and on integers of more than 64 bits), and text from models and tools contains them.
The standard module is the slow way round, taken only then.
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
    except (UnicodeEncodeError, OverflowError):  # OverflowError: an integer of more than 64 bits
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
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
    except (msgspec.DecodeError, UnicodeError) as first:
        try:
            return converted(json.loads(data), kind)
        except msgspec.ValidationError:
            raise
        except (ValueError, RecursionError) as error:
            raise msgspec.DecodeError(str(first)) from error


def converted(value: Any, kind: type[T]) -> T:
    """Return plain data as a `kind`.

    Raises:
        msgspec.ValidationError: it does not have the shape of `kind`.
    """
    try:
        return msgspec.convert(value, kind)
    except UnicodeError as error:  # a key with a lone surrogate
        raise msgspec.ValidationError(f"a name that is no text: {error}") from error
    except RecursionError as error:
        raise msgspec.ValidationError("nested too deeply") from error
