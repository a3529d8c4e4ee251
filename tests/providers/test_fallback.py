"""Another provider where the first one fails again and again."""

from __future__ import annotations

import asyncio

import pytest

from policyengine import Agent, Engine
from policyengine.agent import RequestError
from policyengine.messages import Message, ModelRequest, ModelResponse, ProviderError
from policyengine.providers.config import Fallback
from policyengine.providers.fallback import FallbackModel

REQUEST = ModelRequest((Message("user", "x"),), model="first")


class Said:
    """Fails with the codes it was given, then answers; keeps the models it was asked for."""

    def __init__(self, name: str, *codes: str) -> None:
        self.name = name
        self.codes = list(codes)
        self.asked: list[str] = []

    def complete(self, request: ModelRequest) -> ModelResponse:
        self.asked.append(request.model)
        code = self.codes.pop(0) if self.codes else ""
        if code:
            raise RequestError(ProviderError(code))
        return ModelResponse(f"from {self.name}")


class SaidLater(Said):
    async def complete(self, request: ModelRequest) -> ModelResponse:  # type: ignore[override]
        return Said.complete(self, request)


def tries(model: FallbackModel, times: int, request: ModelRequest = REQUEST) -> list[str]:
    said = []
    for _ in range(times):
        try:
            said.append(model.complete(request).text)
        except RequestError as error:
            said.append(error.error.code)
    return said


def test_after_enough_failures_in_a_row_the_next_model_is_asked_in_its_own_name():
    first, second = Said("first", "overloaded", "timeout"), Said("second")
    model = FallbackModel(first, [(Fallback("x"), second)])
    assert tries(model, 3) == ["overloaded", "timeout", "from second"]
    assert second.asked == ["second"]
    assert model.current is second


def test_an_answer_ends_the_row_and_other_classes_do_not_count():
    first = Said("first", "overloaded", "", "overloaded", "invalid_request", "invalid_request")
    model = FallbackModel(first, [(Fallback("x"), Said("second"))])
    tries(model, 5)
    assert model.current is first


def test_after_its_time_the_first_model_is_asked_again():
    now = [0.0]
    first, second = Said("first", "overloaded"), Said("second")
    model = FallbackModel(first, [(Fallback("x", after=1, rest_s=60), second)], clock=lambda: now[0])
    assert tries(model, 2) == ["overloaded", "from second"]
    now[0] = 60.0
    assert tries(model, 1) == ["from first"]


def test_a_fallback_has_a_fallback_and_the_last_one_stays():
    models = [Said("first", "timeout"), Said("second", "timeout"), Said("third", "timeout", "timeout")]
    rules = [(Fallback("x", after=1), models[1]), (Fallback("x", after=1), models[2])]
    assert tries(FallbackModel(models[0], rules), 5) == ["timeout"] * 4 + ["from third"]


def test_a_request_that_names_one_of_the_models_goes_to_it():
    first, second = Said("first"), Said("second")
    model = FallbackModel(first, [(Fallback("x"), second)])
    assert tries(model, 1, ModelRequest(REQUEST.messages, model="second")) == ["from second"]
    assert tries(model, 1, ModelRequest(REQUEST.messages, model="other")) == ["from first"]
    assert first.asked == ["other"]


def test_asynchronous_models_are_counted_when_they_are_awaited():
    first, second = SaidLater("first", "overloaded"), SaidLater("second")
    model = FallbackModel(first, [(Fallback("x", after=1), second)])

    async def go() -> str:
        with pytest.raises(RequestError):
            await model.complete(REQUEST)
        return (await model.complete(REQUEST)).text

    assert asyncio.run(go()) == "from second"


def test_in_a_run_the_rules_send_again_and_the_next_provider_answers():
    first, second = Said("first", "overloaded", "overloaded"), Said("second")
    model = FallbackModel(first, [(Fallback("x", after=2), second)])
    waits: list[float] = []
    outcome = Agent(Engine("default"), model, sleep=waits.append).run("x")
    assert (outcome.status, outcome.output) == ("completed", "from second")
    assert len(waits) == 2
