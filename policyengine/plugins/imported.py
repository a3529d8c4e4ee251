"""Which version of a package this process imported, and whether another one is installed by now.

Knows: versions of distributions, read from metadata alone. Must not know: extensions, policies.

A package is imported once in the life of a process. What is installed over it has no effect until a restart.
"""

from __future__ import annotations

import importlib.metadata

import msgspec

from policyengine.plugins.packages import ENGINE, engine_version

_VERSIONS: dict[str, str] = {}


class Outdated(msgspec.Struct, frozen=True):
    """A package whose code in this process is not the one on disk; `installed` is empty where it is gone."""

    name: str
    imported: str
    installed: str


def note_import(distribution: str, version: str) -> None:
    """Remember the version of a package that was imported just now, unless it was imported before."""
    _VERSIONS.setdefault(distribution, version)


def outdated() -> tuple[Outdated, ...]:
    """Return the packages of extensions, this one included, for which the process needs a restart."""
    versions = {ENGINE: engine_version(), **_VERSIONS}
    found = ((name, version, _installed(name)) for name, version in sorted(versions.items()))
    return tuple(Outdated(name, was, now) for name, was, now in found if was != now)


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""
