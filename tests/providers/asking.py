"""What the tests of SDKs share: where they are skipped, and how a model is asked by either driver."""

from __future__ import annotations

import asyncio
import os
from importlib import import_module
from typing import Any

import pytest

from policyengine.agent import RequestError
from policyengine.messages import Message, ModelRequest, ModelResponse, ToolSpec
from policyengine.providers.registry import connect

NEEDED = os.environ.get("POLICYENGINE_NEEDS", "").split()
"""Packages whose absence is a failure, not a reason to skip."""

LOOK = ToolSpec("look", "Look somewhere.", {"type": "object", "properties": {"place": {"type": "string"}}})
WEATHER = ModelRequest((Message("system", "Be brief."), Message("user", "Where is it?")), (LOOK,))


def needed(package: str) -> Any:
    """Return a package; without it the tests of a module are skipped, unless it was asked for."""
    return import_module(package) if package in NEEDED else pytest.importorskip(package)


def provider(protocol: str, url: str, **fields: Any) -> dict[str, Any]:
    base = url if protocol == "anthropic_messages" else f"{url}/v1"
    return {"protocol": protocol, "model": "asked", "base_url": base, "timeout_s": 10, **fields}


def ask(fields: dict[str, Any], driver: str, request: ModelRequest = WEATHER) -> ModelResponse:
    """Return the answer of a provider, asked by the driver `sync` or `async`."""
    model: Any = connect(fields)
    if driver == "sync":
        try:
            return model.complete(request)
        finally:
            model.close()

    async def go() -> ModelResponse:
        try:
            return await model.complete(request)
        finally:
            await model.aclose()

    return asyncio.run(go())


def failure(fields: dict[str, Any], driver: str, request: ModelRequest = WEATHER) -> Any:
    """Return the classified failure of a request that must fail."""
    with pytest.raises(RequestError) as caught:
        ask(fields, driver, request)
    return caught.value.error


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


DRIVERS = pytest.mark.parametrize("driver", ["sync", "async"])
"""Both drivers; whatever holds for one must hold for the other."""
