"""Find extensions by name: built-in ones, installed packages, drop-in folders.

Knows: who provides which name, the allow-list of distributions, blocks.
Must not know: what a policy says, pluggy, what an extension decides.

Being installed does not make an extension active, and not even imported: an entry point is loaded when a policy asks
for a name that it provides (or may provide). Names without a dot belong to the built-in extensions, which are listed
in code; no installed package can take one of them. What is blocked is there for nobody, whoever lists it. pluggy's own
loader is not used, because it silently keeps the first of two packages that claim one name, in the order of `sys.path`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import msgspec

from policyengine import workers
from policyengine.errors import ExtensionError
from policyengine.extension import Extension
from policyengine.log import settle
from policyengine.plugins.blocks import BLOCKED, ENGINE, Block, blocking, normalized, process_blocks
from policyengine.plugins.checks import implemented_hooks
from policyengine.plugins.folder import classes_in_file, extension_files, load_file
from policyengine.plugins.found import (
    Found,
    class_origin,
    describe_failure,
    extensions_in,
    is_extension,
    make_found,
    short_path,
)
from policyengine.plugins.imported import note_import
from policyengine.plugins.packages import GROUP, Package, engine_fit, engine_version, installed_packages
from policyengine.workers import call_within

__all__ = ["GROUP", "Found", "Registry", "Source", "builtin_registry", "discover"]

ENGINE_TOO_OLD, ENGINE_TOO_NEW = "X411", "X412"

TWICE = "provided more than once; keep only one of them"
"""What is said of a name that two sources claim."""


class Source(msgspec.Struct, frozen=True):
    """One place that extensions come from: an entry point, or a file of a drop-in folder.

    `label` names it in error messages. `provides` is the one extension name it is known to provide without loading
    it; empty if only loading tells. `distribution` is empty for a file. `classes` imports without judging what is
    found; `package` and `entry` are what metadata says.
    """

    label: str
    load: Callable[[], tuple[Found, ...]]
    provides: str = ""
    distribution: str = ""
    classes: Callable[[], tuple[type[Extension], ...]] | None = None
    package: Package | None = None
    entry: importlib.metadata.EntryPoint | None = None


class Builtins(Mapping[str, Found]):
    """Built-in extensions by name, in their order; each is imported and checked when it is first asked for."""

    def __init__(self, homes: Mapping[str, Callable[[], Found]]) -> None:
        self._homes = dict(homes)
        self._found: dict[str, Found] = {}

    def __getitem__(self, name: str) -> Found:
        if name not in self._found:
            self._found[name] = self._homes[name]()
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


class Registry:
    """The extensions that policies may use.

    The names of `builtins` are known at once. `sources` are loaded when a name is asked for that they provide or may
    provide; a source that cannot be loaded is an error only for such a name. Sources given as a function are not even
    looked for before that. `only` is the allow-list of distributions (`None` allows every installed one). What falls
    under one of `blocks` can never be used, and a source whose distribution does is not loaded.
    """

    def __init__(
        self,
        builtins: Mapping[str, Found] | Iterable[Found] = (),
        sources: Iterable[Source] | Callable[[], Iterable[Source]] = (),
        only: Collection[str] | None = None,
        blocks: Iterable[Block] = (),
    ) -> None:
        self._builtins = builtins if isinstance(builtins, Mapping) else {found.name: found for found in builtins}
        self._places = sources
        self._only = None if only is None else frozenset(normalized(name) for name in only)
        self.blocks = tuple(blocks)
        self._results: dict[Source, tuple[Found, ...] | ExtensionError] = {}

    @cached_property
    def _sources(self) -> tuple[Source, ...]:
        found = self._places() if callable(self._places) else self._places
        return tuple(sorted(found, key=lambda source: (source.distribution, source.label)))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where extensions other than the built-in ones may come from, read from metadata and file names alone."""
        return tuple(source for source in self._sources if self._allows(source))

    def allowing(self, distributions: Collection[str]) -> Registry:
        """Return the same registry restricted to an allow-list of distributions."""
        return Registry(self._builtins, lambda: self._sources, distributions, self.blocks)

    def blocking(self, blocks: Iterable[Block]) -> Registry:
        """Return the same registry with further blocks."""
        return Registry(self._builtins, lambda: self._sources, self._only, (*self.blocks, *blocks))

    def blocked(self) -> tuple[tuple[Source, Block], ...]:
        """Return every source that a block keeps from being loaded, with that block."""
        pairs = ((source, self._block_of(source)) for source in self._sources)
        return tuple((source, block) for source, block in pairs if block is not None)

    def get(self, name: str) -> Found | None:
        """Return the extension of this name, or `None` if nothing provides it.

        Raises `ExtensionError` if its package is broken, breaks the contract, is not allowed or is blocked, or if two
        packages provide the name.
        """
        if self.blocks:
            self._check_blocked(name)
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
            raise ExtensionError(name, places, TWICE)
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
        known = (*self._builtins, *sorted(loaded | provided))
        return tuple(name for name in known if self._block(name) is None) if self.blocks else known

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
        return self._lists(source) and self._block_of(source) is None

    def _lists(self, source: Source) -> bool:
        return self._only is None or not source.distribution or normalized(source.distribution) in self._only

    def _block_of(self, source: Source) -> Block | None:
        return blocking(self.blocks, source.provides, source.distribution) if self.blocks else None

    def _block(self, name: str) -> Block | None:
        """Return the block that a name falls under; a distribution that is blocked leaves the name to others."""
        if "." not in name:
            return blocking(self.blocks, name, ENGINE if name in self._builtins else "")
        blocks = [self._block_of(source) for source in self._sources if source.provides == name]
        return blocks[0] if blocks and all(blocks) else blocking(self.blocks, name)

    def _check_blocked(self, name: str) -> None:
        block = self._block(name)
        if block is not None:
            labels = [source.label for source in self._sources if source.provides == name] if "." in name else []
            raise ExtensionError(name, labels[0] if labels else "not looked at", f"blocked by {block}", BLOCKED)

    def _load(self, source: Source) -> tuple[Found, ...] | ExtensionError:
        if source not in self._results:
            try:
                self._results[source] = source.load()
            except ExtensionError as error:
                self._results[source] = error
            settle()
        return self._results[source]

    def _check_forbidden(self, name: str) -> None:
        for source in self._sources:
            if source.provides == name and not self._lists(source):
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
    env: Mapping[str, str] | None = None,
) -> Registry:
    """Return the registry of built-in, installed and drop-in extensions, without what the process blocks.

    Args:
        entry_points: whether installed packages are looked at (their metadata; nothing is imported here).
        folders: drop-in folders, each of whose files is a source.
        only: the distributions whose extensions may be used; `None` for all.
        builtins: the package that lists the built-in extensions.
        env: stands for the environment variables of the process, of which `POLICYENGINE_BLOCK` is read.
    """
    files = [file_source(path) for folder in folders for path in extension_files(folder)]
    # The metadata of all installed packages is read where a policy asks for a name with a dot, and else not at all.
    places = lambda: [*(entry_point_sources() if entry_points else ()), *files]  # noqa: E731
    return Registry(_builtins(builtins), places, only, process_blocks(env))


def file_source(path: Path) -> Source:
    """Return the source that a file of extensions is."""
    return Source(short_path(path), partial(load_file, path), classes=partial(classes_in_file, path))


def entry_point_sources() -> list[Source]:
    """Return one source per entry point of the group, read from metadata alone."""
    return [source for package in installed_packages() for source in _package_sources(package)]


def _builtins(package: str) -> Builtins:
    """Return the built-in extensions of a package: those its `CLASSES` name, or the classes in its `BUILTIN`."""
    module = importlib.import_module(package)
    classes: Mapping[str, str] | None = getattr(module, "CLASSES", None)
    if classes is not None:
        return Builtins({name: partial(_named_builtin, package, name, cls) for name, cls in classes.items()})
    homes: dict[str, Callable[[], Found]] = {}
    for cls in module.BUILTIN:
        if cls.name in homes:
            raise ExtensionError(cls.name, class_origin(cls), "listed more than once among the built-in extensions")
        homes[cls.name] = partial(_builtin, cls)
    return Builtins(homes)


def _named_builtin(package: str, name: str, cls: str) -> Found:
    return _builtin(getattr(importlib.import_module(f"{package}.{name}"), cls))


def _builtin(cls: type[Extension]) -> Found:
    # Not checked: these classes are the same in every process, and the tests have each of them checked.
    return Found(cls.name, cls, class_origin(cls), ENGINE, engine_version(), True, implemented_hooks(cls))


def _package_sources(package: Package) -> Iterator[Source]:
    if package.fault:
        error = ExtensionError(package.name, package.folder, f"its metadata cannot be read: {package.fault}")
        yield Source(package.label, partial(_raise, error), distribution=package.name, package=package)
    for entry in package.entries:
        label = f"{package.label}, entry point {entry.name} = {entry.value}"
        # A dotted entry point name that points to an attribute promises one extension of that name; anything else is
        # a label, and what it provides is known after import.
        provides = entry.name if ":" in entry.value and "." in entry.name else ""
        load = partial(_load_entry_point, package, entry, label)
        classes = partial(classes_of_entry_point, package, entry, label)
        yield Source(label, load, provides, package.name, classes, package, entry)


def _raise(error: ExtensionError) -> NoReturn:
    raise error


def _load_entry_point(package: Package, entry: importlib.metadata.EntryPoint, label: str) -> tuple[Found, ...]:
    check_engine(package, entry.name)
    classes = classes_of_entry_point(package, entry, label)
    found = tuple(_of_distribution(cls, package.name, package.version) for cls in classes)
    fault = misnamed(entry, found[0].name)
    if fault:
        raise ExtensionError(found[0].name, label, fault)
    return found


def check_engine(package: Package, name: str) -> None:
    """Refuse a package that asks for another engine, before any of its code runs; raises `ExtensionError`."""
    running = engine_version()
    verdict = engine_fit(package.engine, running)
    if verdict != "ok":
        code = ENGINE_TOO_NEW if verdict == "too new" else ENGINE_TOO_OLD
        detail = f"the engine ({running}) is {verdict}: the package needs {package.engine}"
        raise ExtensionError(name, package.label, detail, code)


def misnamed(entry: importlib.metadata.EntryPoint, name: str) -> str:
    """Return what is wrong with an entry point that promises another extension than it leads to; else empty."""
    if ":" in entry.value and "." in entry.name and name != entry.name:
        return f"the entry point must have the extension's name {name!r}"
    return ""


def classes_of_entry_point(
    package: Package, entry: importlib.metadata.EntryPoint, label: str
) -> tuple[type[Extension], ...]:
    """Import what an entry point leads to and return its extension classes; raises `ExtensionError`."""
    try:
        target = call_within(entry.load, workers.SETUP_S)
        note_import(package.name, package.version)
        module = issubclass(type(target), ModuleType)
        classes = extensions_in(target) if module else (target,) if is_extension(target) else ()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        place, text = describe_failure(error, entry.value.partition(":")[0].partition(".")[0])
        where = f"{package.label}, {place or entry.value}"
        raise ExtensionError(entry.name, where, f"cannot be imported: {text}") from error
    if not classes:
        fault = "the entry point leads neither to an Extension class nor to a module"
        raise ExtensionError(entry.name, label, "the module defines no extension" if module else fault)
    return classes


def _of_distribution(cls: type[Any], distribution: str, version: str) -> Found:
    try:
        return make_found(cls, distribution, version)
    except ExtensionError as error:
        raise ExtensionError(error.extension, f"{distribution} {version}, {error.origin}", error.detail) from error


def _raise_broken(name: str, errors: Sequence[ExtensionError]) -> None:
    """Say which of the sources that may have provided `name` could not be loaded."""
    if len(errors) == 1:
        raise ExtensionError(name, errors[0].origin, errors[0].detail, errors[0].code) from errors[0]
    if errors:
        details = "; ".join(f"{error.origin}: {error.detail}" for error in errors)
        raise ExtensionError(name, "several sources", f"none of these could be loaded: {details}") from errors[0]
