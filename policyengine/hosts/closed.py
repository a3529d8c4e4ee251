"""Fail closed: an exception in an adapter, or in the engine below it, refuses and never lets through.

Knows: that whoever catches must answer. Must not know: hosts, what an answer looks like.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from policyengine.log import log
from policyengine.masking import trace_of

ADAPTER_FAILED = "adapter_failed"
"""The typed reason of a refusal because of a failure that is no rule's."""

FAILED_TEXT = "This was refused: the guard itself failed, so nothing is let through. It had no effect."
WITHHELD_TEXT = "The call ran, but its result is withheld: the guard that has to look at it failed."
LATE_TEXT = "The result came after the run had ended, and is left out."

P = ParamSpec("P")
T = TypeVar("T")


def fail_closed(
    refuse: Callable[..., Any], passing: tuple[type[BaseException], ...] = ()
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator: where the function raises, `refuse(error, *args, **kwargs)` is its answer.

    Exceptions in `passing` go on: those with which a host steers itself. Interrupts and cancellations always do. The
    decorated function must not run the tool, or the tool's own exception would count as a failure of the guard.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def waiting(*args: P.args, **kwargs: P.kwargs) -> Any:
                try:
                    return await cast(Any, function(*args, **kwargs))
                except passing:
                    raise
                except Exception as error:  # noqa: BLE001 - whatever failed, the answer is a refusal
                    return _answer(refuse, error, function, args, kwargs)

            return cast(Callable[P, T], waiting)

        @functools.wraps(function)
        def closed(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except passing:
                raise
            except Exception as error:  # noqa: BLE001 - whatever failed, the answer is a refusal
                return cast(T, _answer(refuse, error, function, args, kwargs))

        return closed

    return decorate


def _answer(refuse: Callable[..., Any], error: Exception, function: Any, args: Any, kwargs: Any) -> Any:
    name = type(error).__name__
    log().error("{} failed and refuses: {}\n{}", function.__qualname__, name, trace_of(error))
    return refuse(error, *args, **kwargs)
