"""`connect`: the model that answers for a provider.

Knows: which protocols there are, built in and installed. Must not know: what a protocol looks like.

An installed package adds a protocol by an entry point of the group `policyengine.providers`: its name is the name of
the protocol, its object is called with a `Provider` and returns a `Model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from policyengine.agent import Model
from policyengine.errors import PolicyEngineError, UsageError
from policyengine.policy.wording import suggestion
from policyengine.providers.config import Fallback, Provider, as_provider

GROUP = "policyengine.providers"
"""The entry point group of third-party protocols."""

BUILT_IN = {
    "openai_chat": "policyengine.providers.openai_chat",
    "openai_responses": "policyengine.providers.openai_responses",
    "anthropic_messages": "policyengine.providers.anthropic_messages",
}
"""The modules of the protocols that are built in; each has a function `connect`."""


def known_protocols() -> tuple[str, ...]:
    """Return the names of all protocols; an installed one does not hide one that is built in."""
    return (*BUILT_IN, *(name for name in _installed() if name not in BUILT_IN))


def connect(value: str | Mapping[str, Any] | Provider, **changes: Any) -> Model:
    """Return the model of a provider: `preset:model`, a mapping of fields, a YAML file or a `Provider`.

    `changes` are fields that win, such as `base_url`. Nothing is sent yet. The model answers both drivers: asked
    within an event loop it returns an awaitable.

    Raises:
        UsageError: an unknown preset, field or protocol, no key, or the SDK is not installed.
    """
    provider = as_provider(value, **changes)
    model = adapter(provider.protocol)(provider)
    if not provider.fallbacks:
        return model
    from policyengine.providers.fallback import FallbackModel

    return FallbackModel(model, [(fallback, _without_fallbacks(fallback)) for fallback in provider.fallbacks])


def _without_fallbacks(fallback: Fallback) -> Model:
    provider = as_provider(fallback.use)
    if provider.fallbacks:
        raise UsageError(f"{provider.model} is a fallback and has fallbacks of its own; put them into one list")
    return connect(provider)


def adapter(protocol: str) -> Callable[[Provider], Model]:
    """Return what makes the models of a protocol.

    Raises:
        UsageError: there is no such protocol, or its package cannot be imported.
    """
    if protocol in BUILT_IN:
        made: Callable[[Provider], Model] = import_module(BUILT_IN[protocol]).connect
        return made
    installed = _installed()
    if protocol not in installed:
        raise UsageError(f"no provider protocol named {protocol!r}; {suggestion(protocol, (*BUILT_IN, *installed))}")
    entry = installed[protocol]
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        found = entry.load()
    except PolicyEngineError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise UsageError(f"protocol {protocol!r} of {package} cannot be imported: {kind}: {error}") from error
    if not callable(found):
        raise UsageError(f"protocol {protocol!r} of {package} is {type(found).__name__}, which nobody can call")
    return found  # type: ignore[no-any-return]


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}
