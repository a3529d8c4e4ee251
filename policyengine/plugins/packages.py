"""What installed packages say about the extensions in them, read from their metadata: nothing is imported.

Knows: distributions, entry points, `Requires-Dist`.
Must not know: policies, classes of extensions.

Of a distribution that is installed twice, the first one on the import path counts, as for `import` itself. Metadata
that cannot be read is a fault of its own package and of no other.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, EntryPoint

import msgspec

from policyengine.plugins.blocks import ENGINE, normalized
from policyengine.policy.versions import Fit, clauses, fit

__all__ = ["ENGINE", "GROUP", "Package", "engine_fit", "engine_version", "installed_packages"]

GROUP = "policyengine.extensions"
"""The entry point group of third-party packages."""

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?\Z", re.DOTALL)


class Package(msgspec.Struct, frozen=True):
    """An installed distribution that offers extensions.

    `engine` is the range of engine versions it asks for, as it is written; `None` where it does not depend on the
    engine. `fault` is why its metadata cannot be read. `shadowed` are `version (folder)` of the same distribution
    further down the import path, where the version is another one.
    """

    name: str
    version: str
    folder: str
    entries: tuple[EntryPoint, ...] = ()
    summary: str = ""
    engine: str | None = None
    fault: str = ""
    shadowed: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}".strip()


def installed_packages() -> tuple[Package, ...]:
    """Return every installed distribution with an entry point of the group, sorted by name."""
    found: dict[str, list[Distribution]] = {}
    for distribution in importlib.metadata.distributions():
        if _offers(distribution):
            found.setdefault(normalized(_name(distribution)), []).append(distribution)
    packages = (_package(name, distributions) for name, distributions in sorted(found.items()))
    return tuple(package for package in packages if package is not None)


@cache
def engine_version() -> str:
    """Return the version of the engine; empty where it is not installed as a distribution."""
    try:
        return importlib.metadata.version(ENGINE)
    except importlib.metadata.PackageNotFoundError:
        return ""


def engine_fit(wanted: str | None, running: str) -> Fit:
    """Return whether the engine is one that a package asks for; a range that cannot be read admits every engine."""
    bounds = clauses(wanted) if wanted else None
    return fit(running, bounds) if bounds and running else "ok"


def _offers(distribution: Distribution) -> bool:
    """Whether a distribution may have entry points of the group: a look at the text, because most have none."""
    try:
        return GROUP in (distribution.read_text("entry_points.txt") or "")
    except (OSError, ValueError):
        return False


def _package(name: str, distributions: list[Distribution]) -> Package | None:
    first = _first(name, distributions[0])
    if not _offers(first):
        return None
    folder, version = str(first.locate_file("")), _version(first)
    others = [(_version(other), str(other.locate_file(""))) for other in distributions]
    shadowed = tuple(f"{other} ({where})" for other, where in others if other != version)
    try:
        metadata = first.metadata
        entries = tuple(entry for entry in first.entry_points if entry.group == GROUP)
        shown, summary = metadata["Name"], metadata["Summary"] or ""
    except Exception as error:  # noqa: BLE001 - any damage of one package's metadata must not hide all others
        return Package(name, version, folder, fault=f"{type(error).__name__}: {error}", shadowed=shadowed)
    if not shown or not version:
        return Package(name, version, folder, fault="it gives no name or no version", shadowed=shadowed)
    return Package(shown, version, folder, entries, str(summary), _engine_range(first), shadowed=shadowed)


def _first(name: str, known: Distribution) -> Distribution:
    """Return the distribution of this name that `import` would find, which may be one without extensions."""
    try:
        return importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return known


def _name(distribution: Distribution) -> str:
    """Return the name of a distribution; that of its folder where its metadata has none."""
    try:
        name = distribution.metadata["Name"]
    except Exception:  # noqa: BLE001 - see `_package`
        name = None
    stem = str(getattr(distribution, "_path", "unknown")).replace("\\", "/").rpartition("/")[2]
    return str(name or stem.partition("-")[0])


def _version(distribution: Distribution) -> str:
    try:
        return str(distribution.metadata["Version"] or "")
    except Exception:  # noqa: BLE001 - see `_package`
        return ""


def _engine_range(distribution: Distribution) -> str | None:
    ranges = list(_engine_ranges(distribution.requires or ()))
    return ",".join(filter(None, ranges)) if ranges else None


def _engine_ranges(requirements: object) -> Iterator[str]:
    """Yield the ranges of all requirements on the engine that do not belong to an extra."""
    for text in requirements if isinstance(requirements, list) else ():
        match = _REQUIREMENT.match(text)
        if match and normalized(match[1]) == ENGINE and "extra" not in (match[3] or ""):
            yield match[2].strip()
