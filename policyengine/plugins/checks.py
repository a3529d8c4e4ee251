"""Registration checks: whether an extension class keeps the contract of `hooks` and `extension`.

Knows: what a class may declare and what a hook method may look like.
Must not know: where the class was found, policies, runs.

pluggy alone is not strict enough for hooks that decide. It registers a class whose misspelt or unmarked hook never
runs, a wrapper that swallows a verdict and a coroutine that is taken for an answer, and its versions differ on
properties and default values. So every class is judged here first, by static inspection, with the same result under
every supported pluggy.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from policyengine.errors import ExtensionError
from policyengine.extension import API_VERSION, Extension, Scope
from policyengine.hooks import BY_METHOD, PROJECT, HookSpecs
from policyengine.workers import fault_text

MARK = f"{PROJECT}_impl"
"""The attribute that `@hookimpl` sets on a method."""

_SEGMENT = "[A-Za-z][A-Za-z0-9_-]*"
_BUILTIN_NAME = re.compile(_SEGMENT)
_DOTTED_NAME = re.compile(rf"{_SEGMENT}(\.{_SEGMENT})+")
_OWN_METHODS = frozenset(name for name in vars(Extension) if callable(inspect.getattr_static(Extension, name)))
# High enough that a helper such as `run_totals` is nobody's misspelling, low enough for a plural or a lost underscore.
_FORGOTTEN = 0.85

_REFUSED_MARKS = {
    "wrapper": "a hook wrapper could hide the answers of other rules",
    "hookwrapper": "a hook wrapper could hide the answers of other rules",
    "tryfirst": "the order of rules comes from the policy",
    "trylast": "the order of rules comes from the policy",
    "optionalhook": "an optional hook may be misspelt without anyone noticing",
    "specname": "name the method after its hook point",
}


def check_extension(cls: type[Extension], origin: str, *, builtin: bool = False) -> tuple[str, ...]:
    """Return the hook points that an extension class implements, in policy spelling.

    Raises `ExtensionError` with every fault of the class at once. `origin` says where the class was found.
    """
    faults = faults_of(cls, builtin=builtin)
    if faults:
        raise ExtensionError(display_name(cls), with_line(cls, origin), "; ".join(faults))
    return implemented_hooks(cls)


def faults_of(cls: type[Extension], *, builtin: bool = False) -> tuple[str, ...]:
    """Return every way in which a class breaks the contract, also of one that fails when it is looked at."""
    faults: list[str] = []
    try:
        faults.extend(find_faults(cls, builtin=builtin))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a metaclass or a descriptor is foreign code; it is reported
        faults.append(f"it cannot be examined: {fault_text(error)}")
    return tuple(faults)


def implemented_hooks(cls: type[Extension]) -> tuple[str, ...]:
    """Return the hook points of which `cls` has a marked method, in policy spelling and the order of the hook table."""
    return tuple(
        point.name
        for method, point in BY_METHOD.items()
        if _mark(inspect.getattr_static(cls, method, None)) is not None
    )


def find_faults(cls: type[Extension], *, builtin: bool = False) -> Iterator[str]:
    """Yield every way in which an extension class breaks the contract."""
    yield from _name_faults(cls, builtin)
    yield from _version_faults(cls)
    yield from _state_faults(cls)
    yield from _text_faults(cls)
    yield from _option_faults(cls)
    for name, member in inspect.getmembers_static(cls):
        yield from _member_faults(name, member)
    if not any(_mark(member) is not None for _, member in inspect.getmembers_static(cls)):
        yield "it implements no hook point: mark its hook methods with @hookimpl"


def suggest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `; did you mean X?` for the closest of `known`, or an empty text."""
    import difflib  # a class without faults needs no advice

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def display_name(cls: type[Extension]) -> str:
    """Return the name of an extension, or of its class where it has none that can be had."""
    try:
        name: object = cls.name
    except Exception:  # noqa: BLE001 - see `faults_of`
        name = None
    return name if isinstance(name, str) and name else str(type.__dict__["__qualname__"].__get__(cls))


def module_of(cls: type) -> str:
    """Return the name of the module that defines a class, whatever its metaclass says."""
    return str(type.__dict__["__module__"].__get__(cls))


def with_line(cls: type[Extension], origin: str) -> str:
    """Add the line of the class to `origin` where `origin` is the file the class is defined in."""
    file = getattr(sys.modules.get(module_of(cls)), "__file__", None)
    if not file or not origin.endswith(Path(file).name):
        return origin
    try:
        return f"{origin}:{inspect.getsourcelines(cls)[1]}"
    except Exception:  # noqa: BLE001 - see `faults_of`
        return origin


def _name_faults(cls: type[Extension], builtin: bool) -> Iterator[str]:
    name: object = cls.name
    if not isinstance(name, str) or not name:
        yield f"class {cls.__qualname__} has no name: set `name` to the name that policies use"
    elif builtin and not _BUILTIN_NAME.fullmatch(name):
        yield f"the name {name!r} of a built-in extension must be one word without a dot"
    elif not builtin and not _DOTTED_NAME.fullmatch(name):
        yield (
            f"the name {name!r} must have the form `vendor.name` (letters, digits, `_`, `-`, at least one dot); "
            "names without a dot are kept for built-in extensions"
        )


def _version_faults(cls: type[Extension]) -> Iterator[str]:
    api: object = cls.api
    if type(api) is not int or api != API_VERSION:
        yield f"it was written for hook API {api!r}; this engine supports api {API_VERSION}"
    version: object = cls.state_version
    if type(version) is not int or version < 1:
        yield f"state_version must be a whole number from 1, not {version!r}"


def _state_faults(cls: type[Extension]) -> Iterator[str]:
    if cls.scope not in get_args(Scope):
        yield f"scope must be one of {', '.join(get_args(Scope))}, not {cls.scope!r}"
    state: object = cls.state
    if state is None:
        return
    if not (isinstance(state, type) and issubclass(state, msgspec.Struct)):
        yield f"state must be a msgspec.Struct class, not {state!r}"
        return
    if state.__struct_config__.frozen:
        yield f"state {state.__name__} must not be frozen: it is updated in place"
    required = [field.name for field in msgspec.structs.fields(state) if field.required]
    if required:
        yield f"every field of state {state.__name__} needs a default; without one: {', '.join(required)}"


def _text_faults(cls: type[Extension]) -> Iterator[str]:
    messages: object = cls.messages
    if not isinstance(messages, Mapping):
        yield "messages must be a mapping of message kinds to sample data"
    else:
        for kind, sample in messages.items():
            if not isinstance(kind, str) or not isinstance(sample, Mapping):
                yield f"messages[{kind!r}] must be a mapping of sample data"
    templates: object = cls.templates
    if not isinstance(templates, Mapping):
        yield "templates must be a mapping of languages to mappings of message kinds to texts"
        return
    for language, texts in templates.items():
        if not isinstance(texts, Mapping) or not all(isinstance(text, str) for pair in texts.items() for text in pair):
            yield f"templates[{language!r}] must be a mapping of message kinds to texts"


def _option_faults(cls: type[Extension]) -> Iterator[str]:
    # Imported late: the validator brings Cerberus with it, and knows policies, which this module must not.
    from policyengine.policy.validate import check_extension_schema

    schema: object = inspect.getattr_static(cls, "options", None)
    if not isinstance(schema, Mapping):
        yield "options must be a mapping: the schema of the rule's `with:`"
        return
    for fault in check_extension_schema(dict(schema)):
        yield f"options: {fault}"


def _mark(member: object) -> Mapping[str, Any] | None:
    """Return the options that `@hookimpl` left on a class member, found without evaluating properties."""
    mark = getattr(member, MARK, None) or getattr(_function(member), MARK, None)
    return mark if isinstance(mark, Mapping) else None


def _member_faults(name: str, member: object) -> Iterator[str]:
    mark = _mark(member)
    if mark is None:
        yield from _forgotten_mark(name, member)
        return
    label = f"{name}{_line(member)}"
    if name not in BY_METHOD:
        yield f"{label}: there is no such hook point{suggest(name.replace('.', '_'), BY_METHOD)}"
        return
    for option, reason in _REFUSED_MARKS.items():
        if mark.get(option):
            yield f"{label}: @hookimpl({option}=...) is refused: {reason}"
    if not inspect.isfunction(member):
        yield f"{label}: a hook must be a plain method, not a {type(member).__name__}"
        return
    yield from _signature_faults(name, label, member)


def _forgotten_mark(name: str, member: object) -> Iterator[str]:
    """A public callable named (almost) like a hook point, but not marked, would silently never be called."""
    if name.startswith("_") or name in _OWN_METHODS:
        return
    if not (callable(member) or isinstance(member, property | staticmethod | classmethod)):
        return
    if name in BY_METHOD:
        yield f"{name}{_line(member)}: a method with the name of a hook point must be marked with @hookimpl"
        return
    import difflib  # built-in extensions are not checked at run time

    squeezed = {method.replace("_", ""): method for method in BY_METHOD}
    meant = squeezed.get(name.replace("_", "").lower()) or next(
        iter(difflib.get_close_matches(name.lower(), BY_METHOD, n=1, cutoff=_FORGOTTEN)), None
    )
    if meant:
        yield (
            f"{name}{_line(member)}: looks like the hook point {meant!r} but is not marked with @hookimpl; "
            "rename and mark it, or give it a different name"
        )


def _signature_faults(name: str, label: str, method: Callable[..., Any]) -> Iterator[str]:
    for function in (method, inspect.unwrap(method)):
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            yield f"{label}: hooks are synchronous; what needs I/O is an action that the driver performs"
            break
        if inspect.isgeneratorfunction(function):
            yield f"{label}: a generator is not an answer; return actions instead of yielding them"
            break
    known = tuple(inspect.signature(getattr(HookSpecs, name)).parameters)[1:]
    parameters = list(inspect.signature(method).parameters.values())
    if not parameters or parameters[0].name in known:
        yield f"{label}: the first parameter must be `self`"
        return
    for parameter in parameters[1:]:
        yield from (f"{label}: {fault}" for fault in _parameter_faults(parameter, known))


def _parameter_faults(parameter: inspect.Parameter, known: tuple[str, ...]) -> Iterator[str]:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        yield f"`{parameter}` is refused: name the parameters that the method needs"
        return
    if parameter.name not in known:
        yield (
            f"unknown parameter {parameter.name!r}{suggest(parameter.name, known)} "
            f"(it may take any of: {', '.join(known)})"
        )
    if parameter.kind is parameter.KEYWORD_ONLY:
        yield f"parameter {parameter.name!r} is keyword-only; hooks are called by position"
    if parameter.default is not parameter.empty:
        yield f"parameter {parameter.name!r} has a default; pluggy may pass it instead of the value"


def _function(member: object) -> object:
    """Return the function inside a property, a static or a class method; anything else as it is."""
    return member.fget if isinstance(member, property) else getattr(member, "__func__", member)


def _line(member: object) -> str:
    """Return ` (line N)` for the function behind a class member, or an empty text."""
    function = _function(member)
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return f" (line {code.co_firstlineno})" if code else ""
