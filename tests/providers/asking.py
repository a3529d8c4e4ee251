"""What the tests of SDKs share: where they are skipped, and how a model is asked by either driver."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from policyengine import Agent, Engine, Outcome
from policyengine.agent import RequestError
from policyengine.messages import Message, ModelRequest, ModelResponse, ToolSpec
from policyengine.providers.registry import connect
from tests.providers.wire_server import Reply, serve

NEEDED = os.environ.get("POLICYENGINE_NEEDS", "").split()
"""Packages whose absence is a failure, not a reason to skip."""

LOOK = ToolSpec("look", "Look somewhere.", {"type": "object", "properties": {"place": {"type": "string"}}})
WEATHER = ModelRequest((Message("system", "Be brief."), Message("user", "Where is it?")), (LOOK,))


CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "public_cases.jsonl").read_text(encoding="utf-8").splitlines()
]
BODIES = [case for case in CASES if case["class"] == "provider_error" and isinstance(case["input"].get("body"), dict)]
"""The cases of failed requests whose body is known."""


def needed(package: str) -> Any:
    """Return a package; without it the tests of a module are skipped, unless it was asked for."""
    return import_module(package) if package in NEEDED else pytest.importorskip(package)


def provider(protocol: str, url: str, **fields: Any) -> dict[str, Any]:
    base = url if protocol == "anthropic_messages" else f"{url}/v1"
    return {"protocol": protocol, "model": "asked", "base_url": base, "timeout_s": 10, **fields}


def ask(fields: dict[str, Any], driver: str, request: ModelRequest = WEATHER) -> ModelResponse:
    """Return the answer of a provider, asked by the driver `sync` or `async`."""
    model: Any = connect(fields)
    return driven(model, driver, lambda: model.complete(request), lambda: model.complete(request))


def driven(model: Any, driver: str, work: Callable[[], Any], awork: Callable[[], Any]) -> Any:
    """Return what comes of work with a model, done by a driver; the model is closed after it."""
    if driver == "sync":
        try:
            return work()
        finally:
            model.close()

    async def go() -> Any:
        try:
            return await awork()
        finally:
            await model.aclose()

    return asyncio.run(go())


def look(place: str) -> str:
    return f"a key lies {place}"


def run_agent(fields: dict[str, Any], driver: str) -> tuple[Outcome, list[float]]:
    """Return the outcome of an agent that may `look`, and for how long it waited before it asked again."""
    waits: list[float] = []

    async def asleep(seconds: float) -> None:
        waits.append(seconds)

    model: Any = connect(fields)
    agent = Agent(Engine("default"), model, [look], sleep=waits.append, asleep=asleep)
    task = "Where is it?"
    return driven(model, driver, lambda: agent.run(task), lambda: agent.arun(task)), waits


def failure(fields: dict[str, Any], driver: str, request: ModelRequest = WEATHER) -> Any:
    """Return the classified failure of a request that must fail."""
    with pytest.raises(RequestError) as caught:
        ask(fields, driver, request)
    return caught.value.error


def failures_of_cuts(at: Callable[..., dict[str, Any]], driver: str, cuts: list[Reply]) -> list[Any]:
    """Return the failures of streams that are cut, each of which must be one that is sent again."""
    with serve(*cuts) as wire:
        errors = [failure(at(wire.url, stream=True), driver) for _ in cuts]
    for sent, error in enumerate(errors):
        assert (sent, error.code in ("stream_cut", "connection"), error.retry_same_request) == (sent, True, True)
    return errors


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


DRIVERS = pytest.mark.parametrize("driver", ["sync", "async"])
"""Both drivers; whatever holds for one must hold for the other."""
