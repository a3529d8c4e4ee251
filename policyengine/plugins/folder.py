"""Drop-in folders: every `*.py` file of a folder is a module of extensions.

Knows: files, compilation from source, module names.
Must not know: installed packages, policies.

A file is compiled from the very bytes that were read, under a module name made from its path and content.
`importlib.reload` served stale bytecode for two edits within one second, and no `__pycache__` may appear in a folder
that an operator mounts read-only. Files do not import each other: code that needs several modules is a package.

Every edit makes a module, and an operator may edit for months. So `sys.modules` knows these modules only weakly: one
lives as long as an extension class of it does, that is, as long as a policy snapshot uses it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from policyengine import workers
from policyengine.errors import ExtensionError
from policyengine.extension import Extension
from policyengine.plugins.found import Found, describe_failure, extensions_in, make_found, short_path
from policyengine.workers import call_within

_MODULE = "_policyengine_module"
"""The attribute by which an extension class keeps its module alive."""

_loading = threading.RLock()
"""Held while a file runs, so that no other engine is handed a module that is not complete yet."""


class _Entry:
    """Stands for a module in `sys.modules` without keeping it alive, and leaves when the module is gone.

    Whoever looks up the annotations of a class there finds the module's names through it.
    """

    __slots__ = ("_name", "known")

    def __init__(self, module: ModuleType) -> None:
        self._name = module.__name__
        self.known = weakref.ref(module, self._leave)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.known(), name)

    def _leave(self, _: object) -> None:
        entry: Any = sys.modules.get(self._name)
        if entry is self:
            del sys.modules[self._name]


def extension_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a drop-in folder that may define extensions, sorted by name.

    Names that start with `_` or `.` are left out (private modules, editor droppings).
    Raises `ExtensionError` if the folder cannot be listed.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ExtensionError(folder.name, str(folder), f"this folder of extensions cannot be read: {error}") from error
    found = tuple(path for path in entries if path.suffix == ".py" and path.name[0] not in "_." and path.is_file())
    for path in (folder, *found) if found else ():
        real = Path(os.path.realpath(path))
        for place in (real, real.parent) if path is not folder else (real,):
            if _is_anybodys(place):
                detail = f"{place} can be written by everybody, and what stands there is run; take that right away"
                raise ExtensionError(path.stem, short_path(path), detail)
    return found


def _is_anybodys(path: Path) -> bool:
    """Return whether every user can change a file, or put files into a directory.

    What is mounted read-only is nobody's, whatever its modes say: a ConfigMap's directory has 0777. That a directory is
    sticky does not help: files can be added to it.
    """
    try:
        if not os.stat(path).st_mode & stat.S_IWOTH:
            return False
        return not os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return False


def folder_digest(folders: Iterable[Path]) -> str:
    """Return the SHA-256 over names and contents of all files that may define extensions; empty without a folder.

    It changes whenever an extension may have changed, so that an edited file is a reason to reload.
    """
    digest = hashlib.sha256()
    found = False
    for folder in folders:
        for path in extension_files(folder):
            try:
                content = hashlib.sha256(path.read_bytes()).digest()
            except OSError:
                content = b"unreadable"
            digest.update(os.fsencode(path.name) + b"\0" + content)
        found = True
    return digest.hexdigest() if found else ""


def load_file(path: Path) -> tuple[Found, ...]:
    """Return the extensions that one file defines; raises `ExtensionError` with file and line."""
    return tuple(make_found(cls) for cls in classes_in_file(path))


def classes_in_file(path: Path) -> tuple[type[Extension], ...]:
    """Run one file and return its extension classes, unchecked; raises `ExtensionError` with file and line."""
    try:
        classes = extensions_in(load_module(path))
    except (KeyboardInterrupt, ExtensionError):
        raise
    except BaseException as error:
        place, text = describe_failure(error, path.name)
        raise ExtensionError(path.stem, place or short_path(path), f"cannot be examined: {text}") from error
    if not classes:
        raise ExtensionError(path.stem, short_path(path), "the file defines no extension")
    return classes


def load_module(path: Path) -> ModuleType:
    """Compile and run one file; the same content at the same path gives the same module while that is in use."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ExtensionError(path.stem, short_path(path), f"cannot be read: {error.strerror}") from error
    name = module_name(path, source)
    with _loading:
        entry: Any = sys.modules.get(name)
        module = entry.known() if isinstance(entry, _Entry) else None
        return module or _run(path, source, name)


def _run(path: Path, source: bytes, name: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = str(path)
    where = short_path(path)
    entry: Any = _Entry(module)
    sys.modules[name] = entry  # before running it: msgspec looks up annotations of state classes there
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
        call_within(lambda: exec(code, vars(module)), workers.SETUP_S)
    except KeyboardInterrupt:
        del sys.modules[name]
        raise
    except BaseException as error:
        del sys.modules[name]
        place, text = describe_failure(error, path.name)
        raise ExtensionError(path.stem, place or where, f"cannot be imported: {text}") from error
    for cls in extensions_in(module):
        setattr(cls, _MODULE, module)
    return module


def module_name(path: Path, source: bytes) -> str:
    """Return the module name for one content of one file."""
    digest = hashlib.sha256(os.fsencode(path.resolve()) + b"\0" + source).hexdigest()
    return f"policyengine_dropin_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{digest[:16]}"
