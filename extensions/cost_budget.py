"""Stop a run whose requests cost too much.

Knows: prices by model, what requests took. Must not know: histories, providers, the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from policyengine import (
    NANO,
    Action,
    ModelRequest,
    ModelResponse,
    OptionProblem,
    Proof,
    RunView,
    ScriptedCall,
    Turn,
    Usage,
    UsageError,
    bundled_prices,
    has_bundled_prices,
    hookimpl,
)

from .usage import Metered, UsageBudget, Used

CODE = "cost_budget"
UNKNOWN = "unknown_price"
ESTIMATED = "cost_estimate"

MISSING = (
    "the package genai-prices is not installed, so there are no prices: "
    "`pip install 'agent-policyengine[cost]'`, or list them under `prices`"
)

_MOST_USD = 1_000_000
_MOST_TOKENS = 10**12
_PRICE: dict[str, Any] = {"type": "number", "min": 0, "max": _MOST_USD, "required": True}

_NO_MODEL = "no-such-model"
_DEAR_MODELS = ("o1-pro", "gpt-4o", "claude-sonnet-4-5")
"""Models that a proof may use where the prices are those of the package; the dearer, the fewer tokens it takes."""

EMBEDDED = "scripted"
"""The model that comes with the engine (`policyengine run`, proofs): it answers for nothing."""

Price = Callable[[str, Used], int | None]
"""Returns the price of a request to a model in billionths of a dollar, or `None` where it is not known."""


class Paid(Metered):
    """Billionths of a dollar: `nano` all of them, `guessed` those for tokens that had to be estimated.

    `model` is the one asked last, `unpriced` the first one without a price.
    """

    nano: int = 0
    guessed: int = 0
    model: str = ""
    unpriced: str = ""


class CostBudget(UsageBudget):
    """Stop before a request once the requests of the run have cost `usd`, or once one of them has no known price.

    Prices come from the option `prices`, or, without it, from the data bundled with the package genai-prices; nothing
    is fetched. A model without a price is never free of charge without a word: the run stops, or the log has it.
    """

    name = "cost_budget"
    options: Any = {
        "usd": {"type": "number", "min": 0.000001, "max": _MOST_USD, "required": True, "meta": {"stricter": "lower"}},
        "prices": {
            "type": "dict",
            "minlength": 1,
            "maxlength": 200,
            "keysrules": {"type": "string", "minlength": 1, "maxlength": 200},
            "valuesrules": {"type": "dict", "schema": {"input": dict(_PRICE), "output": dict(_PRICE)}},
            "meta": {"keys": "patterns"},
        },
        "unknown_model": {"type": "string", "allowed": ["stop", "ignore"], "default": "stop"},
        "scope": {"type": "string", "allowed": ["run", "conversation"], "default": "run"},
    }
    state = Paid
    messages = {
        "cost_budget.stop": {"spent": "1.02", "budget": "1", "guessed": "0.2", "observed": 1.02, "limit": 1},
        "unknown_price.stop": {"model": "house-model"},
    }

    def state_scope(self) -> Literal["conversation", "run"]:
        """Return the scope that the option of that name chooses."""
        return "conversation" if self.options.scope == "conversation" else "run"

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report that there are no prices, and a pattern behind another one that matches all it matches."""
        prices = options.get("prices")
        if prices is None:
            if not has_bundled_prices():
                yield OptionProblem((), MISSING)
            return
        seen: list[str] = []
        for pattern in prices:
            before = next((other for other in seen if fnmatchcase(_example(pattern), other)), None)
            if before is not None and _example(pattern) != pattern:
                message = f"is never used: {before!r} stands before it and matches the same models"
                yield OptionProblem(("prices", pattern), message, fatal=False)
            seen.append(pattern)

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        return {"before_model_call": ("stop",)}

    def proofs(self) -> Iterable[Proof]:
        """Return a request that uses the budget up, and one to a model without a price."""
        names = _DEAR_MODELS if self.options.get("prices") is None else map(_example, self.options.prices)
        enough = [(tokens, name) for name in names if (tokens := self._tokens_for_budget(name)) is not None]
        if enough:
            tokens, name = min(enough)
            yield Proof("usd", "stop", CODE, 2, (_turn(name, tokens),))
        asked = (EMBEDDED, _NO_MODEL)  # the model of a proof, and who says to have answered
        if self.options.unknown_model == "stop" and all(self._price(name, 1) is None for name in asked):
            yield Proof("unknown_model", "stop", UNKNOWN, 2, (_turn(_NO_MODEL, 1),))

    def _tokens_for_budget(self, model: str) -> int | None:
        """Return how many tokens of prompt and answer each cost the whole budget, or `None` where none do."""
        high = 1
        while (self._price(model, high) or 0) < self.budget:
            high *= 2
            if high > _MOST_TOKENS:
                return None
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if (self._price(model, middle) or 0) >= self.budget else (middle, high)
        return high

    def _price(self, model: str, tokens: int) -> int | None:
        return self.price(model, Used(tokens, tokens, 2 * tokens))

    def setup(self) -> None:
        """Read the listed prices, or load those of the package."""
        self.budget = round(self.options.usd * NANO)
        prices = self.options.get("prices")
        self.price: Price = _bundled() if prices is None else _listed(prices)

    @hookimpl
    def before_model_call(self, run: RunView, request: ModelRequest) -> Action | None:
        """Stop before a request once the budget is used up, or once a model had no price."""
        state: Paid = run.state
        state.model = request.model or state.model
        if state.unpriced and self.options.unknown_model == "stop":
            return run.stop(UNKNOWN, model=state.unpriced)
        if state.nano < self.budget:
            return None
        facts = {"spent": _usd(state.nano), "budget": _usd(self.budget), "guessed": _usd(state.guessed)}
        return run.stop(CODE, observed=state.nano / NANO, limit=self.budget / NANO, **facts)

    def spend(self, run: RunView, response: ModelResponse, used: Used) -> Action | None:
        """Add what a request cost; the model that answered has the say, then the one that was asked."""
        state: Paid = run.state
        names = [name[:200] for name in (response.model, state.model) if name]
        price = next((price for name in names if (price := self.price(name, used)) is not None), None)
        if price is None and response.model == EMBEDDED:
            return None
        if price is None:
            model = names[0] if names else ""
            state.unpriced = state.unpriced or model or "?"
            return run.record(UNKNOWN, observed=used.total, model=model)
        state.nano += price
        if not {"prompt", "completion"} & set(used.guessed):
            return None
        state.guessed += price
        return run.record(ESTIMATED, observed=price / NANO, prompt=used.prompt, completion=used.completion)


def _listed(prices: Mapping[str, Any]) -> Price:
    """Return the prices of the option: an exact entry first, then the first pattern that matches."""

    def price(model: str, used: Used) -> int | None:
        entry = prices.get(model)
        if entry is None:
            entry = next((entry for pattern, entry in prices.items() if fnmatchcase(model, pattern)), None)
        if entry is None:
            return None
        # Dollars for a million tokens are thousands of billionths for one.
        nano: float = (used.prompt * entry["input"] + used.completion * entry["output"]) * 1000
        return round(nano)

    return price


def _bundled() -> Price:
    """Return the prices that come with the package; it is imported here, where a policy wants it."""
    prices = bundled_prices()
    if prices is None:
        raise UsageError(MISSING)
    return lambda model, used: prices(model, used.prompt, used.completion)


def _usd(nano: int) -> str:
    return f"{nano / NANO:.6f}".rstrip("0").rstrip(".")


def _example(pattern: str) -> str:
    """Return a name that a pattern matches; the pattern itself where it is a name, or too clever."""
    name = pattern.replace("*", "x").replace("?", "x")
    return name if fnmatchcase(name, pattern) else pattern


def _turn(model: str, tokens: int) -> Turn:
    usage = Usage(tokens, tokens, 2 * tokens)
    return Turn((ScriptedCall("probe", {"page": 1}, "page 1"),), usage=usage, model=model)
