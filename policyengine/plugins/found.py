"""What is known about one extension, and how its code is described in error messages.

Knows: classes, modules, files, tracebacks.
Must not know: entry points, folders, policies.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

import msgspec

from policyengine import workers
from policyengine.extension import Extension
from policyengine.plugins.checks import check_extension, module_of
from policyengine.workers import fault_text


class Found(msgspec.Struct, frozen=True):
    """An extension that passed the registration checks.

    `origin` is the file its class stands in, as short as possible. `distribution` and `version` are of the installed
    package (empty for a drop-in folder). `hooks` are the hook points it implements, in policy spelling.
    """

    name: str
    cls: type[Extension]
    origin: str
    distribution: str
    version: str
    builtin: bool
    hooks: tuple[str, ...]


def make_found(cls: type[Extension], distribution: str = "", version: str = "", *, builtin: bool = False) -> Found:
    """Check an extension class and return what is known about it; raises `ExtensionError`."""
    origin = class_origin(cls)
    hooks = check_extension(cls, origin, builtin=builtin)
    return Found(cls.name, cls, origin, distribution, version, builtin, hooks)


def is_extension(value: object) -> bool:
    """Return whether `value` is an extension class (and not the base class itself)."""
    # By its real type: a proxy says of itself what it likes, and some raise when they are asked.
    return issubclass(type(value), type) and issubclass(value, Extension) and value is not Extension  # type: ignore[arg-type]


def extensions_in(module: ModuleType) -> tuple[type[Extension], ...]:
    """Return the extension classes that a module defines, in its order.

    Classes imported from elsewhere do not count, except a package's own submodules. A leading underscore marks a
    private base class.
    """
    own = (module.__name__, module.__name__ + ".")
    classes = {
        id(value): value
        for name, value in vars(module).items()
        if is_extension(value) and not name.startswith("_") and (value.__module__ + ".").startswith(own[1])
    }
    return tuple(classes.values())


def class_origin(cls: type[Extension]) -> str:
    """Return the file that defines a class, or its module where there is no file."""
    name = module_of(cls)
    file = getattr(sys.modules.get(name), "__file__", None)
    return short_path(file) if file else name


def short_path(path: str | os.PathLike[str]) -> str:
    """Return a path relative to the working directory or to the longest matching import path, else as it is."""
    try:
        here = Path.cwd()
    except OSError:  # the working directory was deleted
        return str(path)
    absolute = Path(os.path.abspath(path))
    if absolute.is_relative_to(here):
        return str(absolute.relative_to(here))
    roots = [Path(root) for root in sys.path if root and absolute.is_relative_to(root)]
    if not roots:
        return str(path)
    return str(absolute.relative_to(max(roots, key=lambda root: len(root.parts))))


def describe_failure(error: BaseException, owner: str) -> tuple[str, str]:
    """Return `file:line` of the code that failed to import (empty if not known), and what went wrong.

    `owner` is the file name or top-level module that was imported: its own line tells its author more than the line
    of a library it called.
    """
    if isinstance(error, SyntaxError) and error.filename and os.path.isfile(error.filename):
        return f"{short_path(error.filename)}:{error.lineno or 1}", f"{type(error).__name__}: {error.msg}"
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not _is_machinery(frame.f_code.co_filename)
    ]
    own = [place for place in frames if owner in (*Path(place[0]).parts, Path(place[0]).stem)]
    file, line = (own or frames or [("", 0)])[-1]
    return f"{short_path(file)}:{line}" if file else "", fault_text(error)


def _is_machinery(file: str) -> bool:
    """Whether a frame belongs to the import system or to this package rather than to an extension."""
    path = Path(file)
    own = path.parent == Path(__file__).parent or path == Path(workers.__file__)
    return own or file.startswith("<frozen ") or "importlib" in path.parts
