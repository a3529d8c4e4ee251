"""Tools as plain Python functions: what is offered to the model and how a call is run.

Knows: functions, their signatures, how a return value becomes a result.
Must not know: guards, threads, timeouts, history.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policyengine.errors import UsageError
from policyengine.log import settle
from policyengine.messages import Effect, ToolCall, ToolError, ToolResult, ToolSpec
from policyengine.results import as_result, classify_tool_result
from policyengine.signatures import convert, description_of, signature_of


class Tool(msgspec.Struct, frozen=True):
    """A function the model may call. `is_async` functions are awaited by the async driver.

    `effect` is what the tool claims to do, where somebody said so; only `with_effects` looks at it.
    """

    spec: ToolSpec
    function: Callable[..., Any]
    is_async: bool = False
    effect: Effect | None = None


class Toolset:
    """The tools of an agent, by name."""

    __slots__ = ("_tools",)

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self._tools:
                raise UsageError(f"two tools are named {tool.spec.name!r}")
            self._tools[tool.spec.name] = tool

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What is offered to the model."""
        return tuple(tool.spec for tool in self._tools.values())

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, or `None`."""
        return self._tools.get(name)


def as_tools(source: Any) -> Toolset:
    """Return a toolset of a function, a list or mapping of functions, or a `Toolset`.

    Name, description and argument types come from the signature and docstring.

    Raises:
        UsageError: `source` holds something that is no function.
    """
    if isinstance(source, Toolset):
        return source
    if callable(source):
        source = [source]
    if isinstance(source, Mapping):
        return Toolset(_tool(function, str(name)) for name, function in source.items())
    if not isinstance(source, Iterable):
        raise UsageError(f"tools must be functions, not {type(source).__name__}")
    return Toolset(item if isinstance(item, Tool) else _tool(item, "") for item in source)


_MISSING = object()


def load_tools(reference: str) -> Toolset:
    """Return the tools at `module:object`.

    Raises:
        UsageError: the reference is malformed or points to nothing.
    """
    return as_tools(load_object(reference, "tools"))


def load_object(reference: str, what: str) -> Any:
    """Import a module and return what stands at `module:object`; `what` names it in messages.

    Raises:
        UsageError: the reference is malformed or points to nothing.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        are = "are" if what.endswith("s") else "is"
        raise UsageError(f"{what} {are} given as module:object, not {reference!r}")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise UsageError(f"{module_name!r} is no name of a module: write package.module:object, without slashes")
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, attribute, _MISSING)
        settle()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise UsageError(f"cannot import {module_name!r}: {kind}{error}") from error
    if found is _MISSING:
        raise UsageError(f"module {module_name!r} has no {attribute!r}")
    return found


def made_by(function: Callable[[], Any], reference: str) -> Any:
    """Return what a function without arguments makes.

    Raises:
        UsageError: it needs arguments, is asynchronous, or raises.
    """
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise UsageError(f"{reference} cannot be called without arguments: {error}") from error
    except ValueError:
        pass  # it has no signature to read
    try:
        made = function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"{reference} failed: {type(error).__name__}: {error}") from error
    if inspect.iscoroutine(made):
        made.close()
        raise UsageError(f"{reference} is asynchronous; give a function that returns what it makes")
    return made


def result_of(call: ToolCall, value: Any, duration_s: float | None = None) -> ToolResult:
    """Return what a tool returned as a result: text as it is, a `ToolResult` as it is, anything else as JSON.

    An object that declares a failure (`success: false`, an envelope with an error, an exit code) is one; see
    docs/tool-results.md.
    """
    if inspect.iscoroutine(value):
        value.close()  # nothing will await it
        fault = TypeError("the tool returned a coroutine, so it did not run; declare it with `async def`")
        return failure_of(call, fault, duration_s)
    if isinstance(value, ToolResult):
        return msgspec.structs.replace(value, call_id=call.id, duration_s=duration_s)
    return as_result(call.id, classify_tool_result(value, tool=call.name, kind="python"), duration_s)


def failure_of(call: ToolCall, error: BaseException, duration_s: float | None = None) -> ToolResult:
    """Return the result of a tool that raised."""
    return as_result(call.id, classify_tool_result(error, tool=call.name), duration_s)


def timeout_of(call: ToolCall, text: str, limit_s: float) -> ToolResult:
    """Return the result of a tool that was given up after `limit_s` seconds."""
    return ToolResult(call.id, text, "timeout", ToolError("timeout", text), None, limit_s)


def _tool(function: Any, name: str) -> Tool:
    if not callable(function):
        raise UsageError(f"{function!r} is no function, so it cannot be a tool")
    name = name or _name(function)
    signature = signature_of(function, name)
    spec = ToolSpec(name, description_of(function), signature.schema)
    # An object with `async def __call__` is no coroutine function itself.
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    if signature.converted:
        function = _converting(function, signature.converted, is_async=is_async)
    return Tool(spec, function, is_async)


def _converting(function: Callable[..., Any], converted: dict[str, Any], *, is_async: bool) -> Callable[..., Any]:
    """Return a function that takes plain arguments; those that do not fit are the result of the call, typed."""

    def run(**arguments: Any) -> Any:
        try:
            made = convert(arguments, converted)
        except ValueError as error:
            text = f"Invalid arguments: {error}"
            return ToolResult("", text, "error", ToolError("invalid_arguments", text, False))
        return function(**made)

    async def arun(**arguments: Any) -> Any:
        made = run(**arguments)
        return await made if inspect.isawaitable(made) else made

    return arun if is_async else run


def _name(function: Callable[..., Any]) -> str:
    """Return the name of a function; an object that can be called has its class's."""
    if isinstance(function, functools.partial):
        raise UsageError(f"{function!r} has no name; give the tools as a mapping of names to functions")
    return str(getattr(function, "__name__", None) or type(function).__name__)
