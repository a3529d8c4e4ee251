"""What requests to models cost, by the data bundled with the package genai-prices; nothing is fetched.

Knows: prices by model. Must not know: budgets, recordings.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

NANO = 10**9
"""Money is added up in whole billionths of a dollar, so that ten times ten cents are a dollar."""

PACKAGE = "genai_prices"

# Prices of packages change at dates and times of day. The latest ones, at noon: the same policy then decides the same
# whenever a recording is replayed, as long as the installed prices are the same.
_PRICED_AT = datetime(2100, 1, 1, 12, tzinfo=UTC)

_REMEMBERED = 1_000
"""Models whose prices are kept; the names of models come from whoever answers."""

BundledPrice = Callable[[str, int, int], int | None]
"""Returns what prompt and completion tokens of a model cost, in billionths of a dollar; `None` where nobody knows."""


def has_bundled_prices() -> bool:
    """Return whether the package is installed, without importing it."""
    return find_spec(PACKAGE) is not None


def bundled_prices() -> BundledPrice | None:
    """Return the prices of the package, which is imported here; `None` where it is not installed."""
    if not has_bundled_prices():
        return None
    package: Any = import_module(PACKAGE)

    def costs(model: str, prompt: int, completion: int) -> tuple[Decimal, Any]:
        usage = package.Usage(input_tokens=prompt, output_tokens=completion)
        found = package.calc_price(usage, model, genai_request_timestamp=_PRICED_AT)
        return found.total_price, found.model_price

    @lru_cache(maxsize=_REMEMBERED)
    def rates(model: str) -> tuple[Decimal, Decimal] | Literal["unknown", "tiered"]:
        """Return the prices of a token where they are the same for any number of tokens; the package takes its time."""
        try:
            base, prices = costs(model, 0, 0)
        except LookupError:
            return "unknown"
        if prices.input_mtok is None and prices.output_mtok is None:
            return "unknown"  # a model that is not priced by the token
        if base or not all(price is None or isinstance(price, Decimal) for price in vars(prices).values()):
            return "tiered"
        return costs(model, 1, 0)[0], costs(model, 0, 1)[0]

    def price(model: str, prompt: int, completion: int) -> int | None:
        rate = rates(model)
        if rate == "unknown":
            return None
        total = costs(model, prompt, completion)[0] if rate == "tiered" else rate[0] * prompt + rate[1] * completion
        return round(total * NANO)

    return price
