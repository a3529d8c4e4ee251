"""Calls of any Python function as calls of a tool: arguments by name, and back to what the function takes.

Knows: signatures. Must not know: runs, guards, schemas.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from policyengine.errors import UsageError


def tool_name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, of the one within a `partial`, or of the class of an object that is called."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def is_coroutine_function(function: Any) -> bool:
    """Return whether a call has to be awaited, also where an object is called."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def readable_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function. Raises UsageError where it has none that can be read."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        name = tool_name_of(function)
        raise UsageError(f"the arguments of {name!r} cannot be read: put it into a function ({error})") from error


def called_by_name(function: Callable[..., Any], signature: inspect.Signature, named: Mapping[str, Any]) -> Any:
    """Return what a function returns that gets its arguments by name, whatever form it takes them in."""
    args, kwargs = given_arguments(signature, named)
    return function(*args, **kwargs)


def not_awaited(name: str, value: Any) -> Any:
    """Return what a function returned. Raises UsageError where it would have to be awaited."""
    if inspect.isawaitable(value):
        let_go(value)
        raise UsageError(f"{name!r} returns what has to be awaited: declare it with `async def`")
    return value


def let_go(value: Any) -> None:
    """Close what nobody is going to await, so that Python does not warn of it."""
    if inspect.iscoroutine(value):
        value.close()


def named_arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name; those of `*args` are a list. Raises TypeError as the call would."""
    bound = signature.bind(*args, **kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[name] = list(value) if kind is Parameter.VAR_POSITIONAL else value
    return named


def given_arguments(signature: inspect.Signature, named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments by name as the function takes them: by position where it wants that, else by name."""
    args: list[Any] = []
    kwargs = dict(named)
    rest = next((one.name for one in signature.parameters.values() if one.kind is Parameter.VAR_POSITIONAL), None)
    more = list(kwargs.pop(rest, ())) if rest is not None else []
    for name, parameter in signature.parameters.items():
        positional = parameter.kind is Parameter.POSITIONAL_ONLY
        if more and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
            positional = True  # what follows comes by position, so this has to
        if positional and name in kwargs:
            args.append(kwargs.pop(name))
        elif positional and more and parameter.default is not Parameter.empty:
            args.append(parameter.default)
    return [*args, *more], kwargs
