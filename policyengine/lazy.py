"""Packages whose names are imported when they are first used.

Knows: `__getattr__` of modules (PEP 562). Must not know: any package.

A package that is asked for one of its modules does not have to import the others first. Type checkers do not see the
names: a package lists them under `TYPE_CHECKING` too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: `homes` says in which of its modules each name is."""

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
