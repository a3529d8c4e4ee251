"""Another provider where the first one fails again and again.

Knows: which model is asked next. Must not know: when a failed request is sent again; that is for the rules to say.

Nothing is repeated here: a failure is passed on, and if the rules send the request again it goes to the next provider.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any

import msgspec

from policyengine.agent import Model
from policyengine.messages import ModelRequest, ModelResponse
from policyengine.providers.config import Fallback
from policyengine.providers.errors import classify_provider_error


class FallbackModel:
    """Asks its first model, and after enough failures in a row the next one, for a time.

    A request that names another of the models goes to that one. Several runs may share it.
    """

    def __init__(
        self, first: Model, fallbacks: Sequence[tuple[Fallback, Model]], clock: Callable[[], float] = monotonic
    ) -> None:
        self.name = first.name
        self._models: list[Model] = [first, *(model for _, model in fallbacks)]
        self._rules = [rule for rule, _ in fallbacks]
        self._clock = clock
        self._lock = threading.Lock()
        self._current = 0
        self._failures = 0
        self._until = 0.0

    @property
    def current(self) -> Model:
        """The model that the next request goes to."""
        return self._models[self._now()]

    def complete(self, request: ModelRequest) -> ModelResponse | Awaitable[ModelResponse]:
        """Return the answer of the model whose turn it is."""
        place, request = self._routed(request)
        try:
            answer = self._models[place].complete(request)
        except Exception as error:
            self._failed(place, error)
            raise
        if inspect.isawaitable(answer):
            return self._awaited(place, answer)
        self._answered(place)
        return answer

    def close(self) -> None:
        """Close what its models have open."""
        for model in self._models:
            close = getattr(model, "close", None)
            if close is not None:
                close()

    async def aclose(self) -> None:
        """Close what its models have open in this event loop."""
        for model in self._models:
            aclose = getattr(model, "aclose", None)
            if aclose is not None:
                await aclose()

    async def _awaited(self, place: int, answer: Awaitable[ModelResponse]) -> ModelResponse:
        try:
            response = await answer
        except Exception as error:
            self._failed(place, error)
            raise
        self._answered(place)
        return response

    def _routed(self, request: ModelRequest) -> tuple[int, ModelRequest]:
        """Return which model is asked, and the request in its name."""
        named = [place for place, model in enumerate(self._models) if place and model.name == request.model]
        place = named[0] if named else self._now()
        if request.model in ("", self.name) and place:
            request = msgspec.structs.replace(request, model=self._models[place].name)
        return place, request

    def _now(self) -> int:
        with self._lock:
            if self._current and self._clock() >= self._until:
                self._current = self._failures = 0
            return self._current

    def _failed(self, place: int, error: Any) -> None:
        code = classify_provider_error(error).code
        with self._lock:
            if place != self._current or place >= len(self._rules):
                return
            rule = self._rules[place]
            if code in rule.errors:
                self._failures += 1
            if self._failures >= rule.after:
                self._current, self._failures = place + 1, 0
                self._until = self._clock() + rule.rest_s

    def _answered(self, place: int) -> None:
        with self._lock:
            if place == self._current:
                self._failures = 0
