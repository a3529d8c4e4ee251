"""What a provider is: a protocol, where it is spoken, for which model, and what goes with every request.

Knows: presets, how a provider is written as `preset:model`, as a mapping or in a file.
Must not know: SDKs, requests, what a protocol looks like.

A field that there is not is an error: one that is misspelt would otherwise be sent to nobody, or to the provider.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import yaml

from policyengine.errors import UsageError
from policyengine.masking import keep_secret, without_secrets
from policyengine.policy.wording import suggestion
from policyengine.providers.errors.remedies import ERROR_CLASSES, RETRY_SAME_REQUEST
from policyengine.yamldata import YamlError, read

NO_KEY = "none"
"""Sent where a provider wants no key: the SDKs demand a text."""

_SECRET_HEADER = re.compile("auth|key|token|secret|cookie", re.IGNORECASE)


class Fallback(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Another provider, and when it is asked instead of the one before it.

    After `after` failures in a row of a class in `errors`, requests go to `use` for `rest_s` seconds; then the first
    provider is asked again. `use` is what `connect` takes.
    """

    use: str | dict[str, Any]
    after: int = 2
    errors: tuple[str, ...] = tuple(sorted(RETRY_SAME_REQUEST))
    rest_s: float = 300.0


class Provider(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One model at one place, and how it is spoken to.

    Attributes:
        protocol: how requests and responses are written; see `known_protocols`.
        model: the model's name, as the provider knows it.
        base_url: where it is; empty for the SDK's own.
        api_key_env: the environment variable that holds the key; empty where there is none.
        stream: whether the response is asked for as a stream. Nothing is shown meanwhile: it is assembled.
        timeout_s: how long the server may be silent.
        stream_timeout_s: how long a stream may take altogether; `None` for as long as it is not silent.
        max_tokens: how long an answer may be; a request that asks for less wins.
        max_tokens_field: under which name that is sent (`openai_chat` only).
        headers: sent with each request.
        options: sent in the body of each request as they are; one that is null is left out.
        thinking_off: sent instead where the model must not think; see docs/providers.md.
        fallbacks: which providers are asked when this one fails again and again.
    """

    protocol: str
    model: str
    base_url: str = ""
    api_key_env: str = ""
    stream: bool = False
    timeout_s: float = 120.0
    stream_timeout_s: float | None = None
    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}
    thinking_off: dict[str, Any] = {}
    fallbacks: tuple[Fallback, ...] = ()

    def __repr__(self) -> str:
        """Show what it is, without what headers and options may hold."""
        return f"Provider({self.protocol}, {self.model}, {without_secrets(self.base_url)})"


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Return the presets that are shipped, by name."""
    text = files("policyengine.providers").joinpath("presets.yaml").read_text(encoding="utf-8")
    made: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return made


def as_provider(value: str | Mapping[str, Any] | Provider, **changes: Any) -> Provider:
    """Return a provider that is given as `preset:model`, as a mapping, or as the name of a YAML file that holds one.

    `changes` are fields that win.

    Raises:
        UsageError: an unknown preset or field, or a value of the wrong kind.
    """
    if isinstance(value, Provider):
        return _checked({**msgspec.to_builtins(value), **changes}, "provider")
    if isinstance(value, Mapping):
        return _checked({**_with_preset(dict(value), "provider"), **changes}, "provider")
    if not isinstance(value, str):
        raise UsageError(f"a provider is `preset:model` or a mapping, not {type(value).__name__}")
    if value.endswith((".yaml", ".yml")):
        return _checked({**_with_preset(_read(value), value), **changes}, value)
    name, colon, model = value.partition(":")
    if not colon or not model:
        raise UsageError(f"{value!r} names no provider and model; write preset:model, such as openai:NAME")
    return _checked({**_with_preset({"preset": name}, "provider"), "model": model, **changes}, value)


def key_of(provider: Provider) -> str:
    """Return the key for a provider from the environment.

    Raises:
        UsageError: the variable is not set.
    """
    if not provider.api_key_env:
        return NO_KEY
    key = os.environ.get(provider.api_key_env, "").strip()
    if not key:
        raise UsageError(
            f"the environment variable {provider.api_key_env} is not set; it holds the key of the provider"
        )
    keep_secret(key, f"${provider.api_key_env}")
    return key


def _read(path: str) -> dict[str, Any]:
    try:
        value = read(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YamlError) as error:
        raise UsageError(f"cannot read the provider {path}: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path}: a provider is a mapping, not {type(value).__name__}")
    return value


def _with_preset(value: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a mapping on top of those of the preset that it names."""
    name = value.pop("preset", None)
    if name is None:
        return value
    if name not in presets():
        raise UsageError(f"{where}: no preset named {name!r}; {suggestion(str(name), presets())}")
    return {**presets()[name], **value}


def _checked(value: dict[str, Any], where: str) -> Provider:
    for key in value:
        if key not in Provider.__struct_fields__:
            raise UsageError(f"{where}: there is no field {key!r}; {suggestion(str(key), Provider.__struct_fields__)}")
    try:
        provider = msgspec.convert(value, Provider)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from error
    if not provider.model:
        raise UsageError(f"{where}: a provider needs a model")
    if provider.timeout_s <= 0 or (provider.stream_timeout_s or 1) <= 0 or (provider.max_tokens or 1) < 1:
        raise UsageError(f"{where}: times and max_tokens are above 0")
    for fallback in provider.fallbacks:
        _check_fallback(fallback, where)
    for name, text in provider.headers.items():
        if _SECRET_HEADER.search(name):
            keep_secret(text.removeprefix("Bearer ").strip(), f"header {name}")
    return provider


def _check_fallback(fallback: Fallback, where: str) -> None:
    if fallback.after < 1 or fallback.rest_s < 0:
        raise UsageError(f"{where}: a fallback is asked after 1 failure or more, for 0 seconds or more")
    for code in fallback.errors:
        if code not in ERROR_CLASSES:
            raise UsageError(f"{where}: no class of errors named {code!r}; {suggestion(code, ERROR_CLASSES)}")
