"""Stop a run whose requests cost too much.

Knows: prices by model, what requests took. Must not know: histories, providers, the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    hookimpl,
)

from .pricing import EMBEDDED, MOST_USD, PRICES, Price, cheapest_way, price_by, price_of, price_problems, usd
from .usage import Metered, UsageBudget, Used

CODE = "cost_budget"
UNKNOWN = "unknown_price"
ESTIMATED = "cost_estimate"

_NO_MODEL = "no-such-model"


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
        "usd": {"type": "number", "min": 0.000001, "max": MOST_USD, "required": True, "meta": {"stricter": "lower"}},
        "prices": dict(PRICES),
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
        return price_problems(options.get("prices"))

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        return {"before_model_call": ("stop",)}

    def proofs(self) -> Iterable[Proof]:
        """Return a request that uses the budget up, and one to a model without a price."""
        enough = cheapest_way(self.price, self.options.get("prices"), self.budget)
        if enough is not None:
            tokens, name = enough
            yield Proof("usd", "stop", CODE, 2, (_turn(name, tokens),))
        asked = (EMBEDDED, _NO_MODEL)  # the model of a proof, and who says to have answered
        if self.options.unknown_model == "stop" and all(price_of(self.price, 1, name) is None for name in asked):
            yield Proof("unknown_model", "stop", UNKNOWN, 2, (_turn(_NO_MODEL, 1),))

    def setup(self) -> None:
        """Read the listed prices, or load those of the package."""
        self.budget = round(self.options.usd * NANO)
        self.price: Price = price_by(self.options.get("prices"))

    @hookimpl
    def before_model_call(self, run: RunView, request: ModelRequest) -> Action | None:
        """Stop before a request once the budget is used up, or once a model had no price."""
        state: Paid = run.state
        state.model = request.model or state.model
        if state.unpriced and self.options.unknown_model == "stop":
            return run.stop(UNKNOWN, model=state.unpriced)
        if state.nano < self.budget:
            return None
        facts = {"spent": usd(state.nano), "budget": usd(self.budget), "guessed": usd(state.guessed)}
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


def _turn(model: str, tokens: int) -> Turn:
    usage = Usage(tokens, tokens, 2 * tokens)
    return Turn((ScriptedCall("probe", {"page": 1}, "page 1"),), usage=usage, model=model)
