"""What the budgets of money share: prices as options list them, or as the package has them.

Knows: prices by model and tokens. Must not know: budgets, runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from policyengine import NANO, OptionProblem, UsageError, bundled_prices, has_bundled_prices

from .patterns import example
from .usage import Used

MISSING = (
    "the package genai-prices is not installed, so there are no prices: "
    "`pip install 'agent-policyengine[cost]'`, or list them under `prices`"
)

MOST_USD = 1_000_000
MOST_TOKENS = 10**12
_PRICE: dict[str, Any] = {"type": "number", "min": 0, "max": MOST_USD, "required": True}

PRICES: dict[str, Any] = {
    "type": "dict",
    "minlength": 1,
    "maxlength": 200,
    "keysrules": {"type": "string", "minlength": 1, "maxlength": 200},
    "valuesrules": {"type": "dict", "schema": {"input": dict(_PRICE), "output": dict(_PRICE)}},
    "meta": {"keys": "patterns"},
}
"""The option `prices`: dollars for a million tokens of prompt and answer, by model or pattern."""

DEAR_MODELS = ("o1-pro", "gpt-4o", "claude-sonnet-4-5")
"""Models that a proof may use where the prices are those of the package; the dearer, the fewer tokens it takes."""

EMBEDDED = "scripted"
"""The model that comes with the engine (`policyengine run`, proofs): it answers for nothing."""

Price = Callable[[str, Used], int | None]
"""Returns the price of a request to a model in billionths of a dollar, or `None` where it is not known."""


def price_problems(prices: Mapping[str, Any] | None) -> Iterable[OptionProblem]:
    """Report that there are no prices, and a pattern behind another one that matches all it matches."""
    if prices is None:
        if not has_bundled_prices():
            yield OptionProblem((), MISSING)
        return
    seen: list[str] = []
    for pattern in prices:
        before = next((other for other in seen if fnmatchcase(example(pattern), other)), None)
        if before is not None and example(pattern) != pattern:
            message = f"is never used: {before!r} stands before it and matches the same models"
            yield OptionProblem(("prices", pattern), message, fatal=False)
        seen.append(pattern)


def price_by(prices: Mapping[str, Any] | None) -> Price:
    """Return the prices that an option lists, or, without it, those of the package, which is imported here."""
    if prices is not None:
        return _listed(prices)
    bundled = bundled_prices()
    if bundled is None:
        raise UsageError(MISSING)
    return lambda model, used: bundled(model, used.prompt, used.completion)


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


def price_of(price: Price, tokens: int, model: str) -> int | None:
    """Return what as many tokens of prompt and of answer cost."""
    return price(model, Used(tokens, tokens, 2 * tokens))


def cheapest_way(price: Price, prices: Mapping[str, Any] | None, nano: int) -> tuple[int, str] | None:
    """Return how few tokens of prompt and answer each cost so much, and of which model; `None` where none do."""
    names = DEAR_MODELS if prices is None else map(example, prices)
    enough = [(tokens, name) for name in names if (tokens := _tokens_for(price, nano, name)) is not None]
    return min(enough, default=None)


def _tokens_for(price: Price, nano: int, model: str) -> int | None:
    high = 1
    while (price_of(price, high, model) or 0) < nano:
        high *= 2
        if high > MOST_TOKENS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if (price_of(price, middle, model) or 0) >= nano else (middle, high)
    return high


def usd(nano: int) -> str:
    """Return an amount of money as it is told."""
    return f"{nano / NANO:.6f}".rstrip("0").rstrip(".")
