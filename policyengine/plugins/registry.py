"""Find extensions by name: built-in ones, installed packages, drop-in folders.

Knows: the entry point group, who provides which name, the allow-list of distributions.
Must not know: what a policy says, pluggy, what an extension decides.

Being installed does not make an extension active, and not even imported: an entry point is loaded when a policy asks
for a name that it provides (or may provide). Names without a dot belong to the built-in extensions, which are listed
in code; no installed package can take one of them. pluggy's own loader is not used, because it silently keeps the
first of two packages that claim one name, in the order of `sys.path`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from policyengine.errors import ExtensionError
from policyengine.plugins.folder import extension_files, load_file
from policyengine.plugins.found import Found, describe_failure, extensions_in, is_extension, make_found, short_path

__all__ = ["GROUP", "Found", "Registry", "Source", "builtin_registry", "discover"]

GROUP = "policyengine.extensions"
"""The entry point group of third-party packages, and the package of the built-in extensions."""

DISTRIBUTION = "agent-policyengine"


class Source(msgspec.Struct, frozen=True):
    """One place that extensions come from: an entry point, or a file of a drop-in folder.

    `label` names it in error messages. `provides` is the one extension name it is known to provide without loading
    it; empty if only loading tells. `distribution` is empty for a file.
    """

    label: str
    load: Callable[[], tuple[Found, ...]]
    provides: str = ""
    distribution: str = ""


class Registry:
    """The extensions that policies may use.

    `builtins` are known at once. `sources` are loaded when a name is asked for that they provide or may provide; a
    source that cannot be loaded is an error only for such a name. `only` is the allow-list of distributions
    (`None` allows every installed one).
    """

    def __init__(
        self, builtins: Iterable[Found] = (), sources: Iterable[Source] = (), only: Collection[str] | None = None
    ) -> None:
        self._builtins = {found.name: found for found in builtins}
        self._sources = tuple(sorted(sources, key=lambda source: (source.distribution, source.label)))
        self._only = None if only is None else frozenset(_normalized(name) for name in only)
        self._results: dict[Source, tuple[Found, ...] | ExtensionError] = {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where extensions other than the built-in ones may come from, read from metadata and file names alone."""
        return tuple(source for source in self._sources if self._allows(source))

    def allowing(self, distributions: Collection[str]) -> Registry:
        """Return the same registry restricted to an allow-list of distributions."""
        return Registry(self._builtins.values(), self._sources, distributions)

    def get(self, name: str) -> Found | None:
        """Return the extension of this name, or `None` if nothing provides it.

        Raises `ExtensionError` if its package is broken, breaks the contract or is not allowed, or if two packages
        provide the name.
        """
        if "." not in name:
            return self._builtins.get(name)
        providers = [source for source in self.sources if source.provides == name]
        if not providers:
            self._check_forbidden(name)
        results = {source: self._load(source) for source in self.sources if source.provides in (name, "")}
        found: dict[type, Found] = {}
        claims = set(providers)
        for source, result in results.items():
            for item in result if isinstance(result, tuple) else ():
                if item.name == name:
                    found[item.cls] = item
                    claims.add(source)
        if len(found) > 1 or len({source.distribution for source in claims}) > 1:
            places = " and ".join(sorted(source.label for source in claims))
            raise ExtensionError(name, places, "provided more than once; keep only one of them")
        if found:
            return next(iter(found.values()))
        _raise_broken(name, [result for result in results.values() if isinstance(result, ExtensionError)])
        return None

    def names(self) -> tuple[str, ...]:
        """Return every known name without loading anything: built-in ones first, in their order.

        Names that only loading an entry point would tell are included once it was loaded.
        """
        loaded = {found.name for result in self._results.values() if isinstance(result, tuple) for found in result}
        provided = {source.provides for source in self.sources if source.provides}
        return (*self._builtins, *sorted(loaded | provided))

    def all(self) -> tuple[Found, ...]:
        """Load every allowed source and return all usable extensions; `problems` tells what is left out."""
        for source in self.sources:
            self._load(source)
        return tuple(found for name in self.names() if isinstance(found := self._try(name), Found))

    def problems(self) -> tuple[ExtensionError, ...]:
        """Load every allowed source and return what is wrong with them, also where no policy uses them."""
        self.all()
        broken = [result for result in self._results.values() if isinstance(result, ExtensionError)]
        seen = {(error.origin, error.detail) for error in broken}
        tried = [error for name in self.names() if isinstance(error := self._try(name), ExtensionError)]
        return (*broken, *(error for error in tried if (error.origin, error.detail) not in seen))

    def _try(self, name: str) -> Found | ExtensionError | None:
        try:
            return self.get(name)
        except ExtensionError as error:
            return error

    def _allows(self, source: Source) -> bool:
        return self._only is None or not source.distribution or _normalized(source.distribution) in self._only

    def _load(self, source: Source) -> tuple[Found, ...] | ExtensionError:
        if source not in self._results:
            try:
                self._results[source] = source.load()
            except ExtensionError as error:
                self._results[source] = error
        return self._results[source]

    def _check_forbidden(self, name: str) -> None:
        for source in self._sources:
            if source.provides == name and not self._allows(source):
                detail = (
                    f"{source.distribution} is installed, but the policy does not list it under requires.extensions"
                )
                raise ExtensionError(name, source.label, detail)


def builtin_registry(package: str = GROUP) -> Registry:
    """Return the registry of the built-in extensions alone.

    The package is imported here and by name, so that the core never depends on an extension.
    """
    return Registry(_builtins(package))


def discover(
    entry_points: bool = True,
    folders: Sequence[Path] = (),
    only: Collection[str] | None = None,
    *,
    builtins: str = GROUP,
) -> Registry:
    """Return the registry of built-in, installed and drop-in extensions.

    Args:
        entry_points: whether installed packages are looked at (their metadata; nothing is imported here).
        folders: drop-in folders, each of whose files is a source.
        only: the distributions whose extensions may be used; `None` for all.
        builtins: the package that lists the built-in extensions.
    """
    sources = entry_point_sources() if entry_points else []
    for folder in folders:
        sources += [Source(short_path(path), partial(load_file, path)) for path in extension_files(folder)]
    return Registry(_builtins(builtins), sources, only)


def entry_point_sources() -> list[Source]:
    """Return one source per entry point of the group, read from metadata alone."""
    return [_entry_point_source(entry) for entry in importlib.metadata.entry_points(group=GROUP)]


def _builtins(package: str) -> list[Found]:
    listed: Sequence[Any] = importlib.import_module(package).BUILTIN
    version = _own_version()
    found = [make_found(cls, DISTRIBUTION, version, builtin=True) for cls in listed]
    names = [item.name for item in found]
    for item in found:
        if names.count(item.name) > 1:
            raise ExtensionError(item.name, item.origin, "listed more than once among the built-in extensions")
    return found


def _own_version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _entry_point_source(entry: importlib.metadata.EntryPoint) -> Source:
    name, version = (entry.dist.name, entry.dist.version) if entry.dist else ("", "")
    label = f"{name} {version}, entry point {entry.name} = {entry.value}"
    # A dotted entry point name that points to an attribute promises one extension of that name; anything else is a
    # label, and what it provides is known after import.
    provides = entry.name if entry.attr and "." in entry.name else ""
    return Source(label, partial(_load_entry_point, entry, name, version, label), provides, name)


def _load_entry_point(
    entry: importlib.metadata.EntryPoint, distribution: str, version: str, label: str
) -> tuple[Found, ...]:
    try:
        target = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        place, text = describe_failure(error, entry.module.partition(".")[0])
        where = f"{distribution} {version}, {place or entry.value}"
        raise ExtensionError(entry.name, where, f"cannot be imported: {text}") from error
    if isinstance(target, ModuleType):
        classes = extensions_in(target)
        if not classes:
            raise ExtensionError(entry.name, label, "the module defines no extension")
    elif is_extension(target):
        classes = (target,)
    else:
        raise ExtensionError(entry.name, label, "the entry point leads neither to an Extension class nor to a module")
    found = tuple(_of_distribution(cls, distribution, version) for cls in classes)
    if entry.attr and "." in entry.name and found[0].name != entry.name:
        raise ExtensionError(found[0].name, label, f"the entry point must have the extension's name {found[0].name!r}")
    return found


def _of_distribution(cls: type[Any], distribution: str, version: str) -> Found:
    try:
        return make_found(cls, distribution, version)
    except ExtensionError as error:
        raise ExtensionError(error.extension, f"{distribution} {version}, {error.origin}", error.detail) from error


def _raise_broken(name: str, errors: Sequence[ExtensionError]) -> None:
    """Say which of the sources that may have provided `name` could not be loaded."""
    if len(errors) == 1:
        raise ExtensionError(name, errors[0].origin, errors[0].detail) from errors[0]
    if errors:
        details = "; ".join(f"{error.origin}: {error.detail}" for error in errors)
        raise ExtensionError(name, "several sources", f"none of these could be loaded: {details}") from errors[0]


def _normalized(distribution: str) -> str:
    """Return a distribution name as package indexes compare it (`Acme_Guards` equals `acme-guards`)."""
    return distribution.lower().replace("_", "-").replace(".", "-")
