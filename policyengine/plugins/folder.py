"""Drop-in folders: every `*.py` file of a folder is a module of extensions.

Knows: files, compilation from source, module names.
Must not know: installed packages, policies.

A file is compiled from the very bytes that were read, under a module name made from its path and content.
`importlib.reload` served stale bytecode for two edits within one second, and no `__pycache__` may appear in a folder
that an operator mounts read-only. Files do not import each other: code that needs several modules is a package.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from policyengine.errors import ExtensionError
from policyengine.plugins.found import Found, describe_failure, extensions_in, make_found, short_path


def extension_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a drop-in folder that may define extensions, sorted by name.

    Names that start with `_` or `.` are left out (private modules, editor droppings).
    Raises `ExtensionError` if the folder cannot be listed.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ExtensionError(folder.name, str(folder), f"this folder of extensions cannot be read: {error}") from error
    return tuple(path for path in entries if path.suffix == ".py" and path.name[0] not in "_." and path.is_file())


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
    classes = extensions_in(load_module(path))
    if not classes:
        raise ExtensionError(path.stem, short_path(path), "the file defines no extension")
    return tuple(make_found(cls) for cls in classes)


def load_module(path: Path) -> ModuleType:
    """Compile and run one file; the same content at the same path gives the same module."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ExtensionError(path.stem, short_path(path), f"cannot be read: {error.strerror}") from error
    name = module_name(path, source)
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # before running it: msgspec looks up annotations of state classes there
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    except KeyboardInterrupt:
        del sys.modules[name]
        raise
    except BaseException as error:
        del sys.modules[name]
        place, text = describe_failure(error, path.name)
        raise ExtensionError(path.stem, place or short_path(path), f"cannot be imported: {text}") from error
    return module


def module_name(path: Path, source: bytes) -> str:
    """Return the module name for one content of one file."""
    digest = hashlib.sha256(os.fsencode(path.resolve()) + b"\0" + source).hexdigest()
    return f"policyengine_dropin_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{digest[:16]}"
