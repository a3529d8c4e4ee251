"""`--fail-if "false_stop_rate > 0.01"`: a condition on the figures of every policy.

Knows: names of figures, six comparisons. Must not know: how figures come about.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

import msgspec

from policyengine.backtest.figures import PolicyFigures, Rate
from policyengine.errors import UsageError
from policyengine.policy.wording import suggestion

_CONDITION = re.compile(
    r"\s*(?P<name>[a-z_]+)(?:\.(?P<side>upper|lower))?\s*(?P<sign><=|>=|==|!=|<|>)\s*(?P<limit>[0-9.eE+-]+)\s*"
)
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_RATES: dict[str, Callable[[PolicyFigures], Rate]] = {
    "false_stop_rate": lambda policy: policy.rates.false_stop_rate,
    "working_stop_rate": lambda policy: policy.rates.working_stop_rate,
    "stop_rate": lambda policy: policy.rates.stop_rate,
}
_NUMBERS: dict[str, Callable[[PolicyFigures], float]] = {
    "turns_saved_share": lambda policy: policy.rates.turns_saved_share,
    "denied_succeeded": lambda policy: policy.total.denied_succeeded,
    "stopped": lambda policy: policy.total.stopped,
    "stopped_successes": lambda policy: policy.total.stopped_successes,
    "stopped_successes_working": lambda policy: policy.total.stopped_successes_working,
    "recovered_calls": lambda policy: policy.total.recovered_calls,
    "runs": lambda policy: policy.total.runs,
    "labelled": lambda policy: policy.total.labelled,
}
NAMES = (*_RATES, *_NUMBERS)
"""What a condition may ask about."""


class Condition(msgspec.Struct, frozen=True):
    """A figure, a comparison and a limit. `side` asks for an end of the 95 % interval of a rate."""

    text: str
    name: str
    side: str
    sign: str
    limit: float

    def observed(self, policy: PolicyFigures) -> float | None:
        """Return the figure of a policy; `None` where no run says anything about it."""
        if self.name in _NUMBERS:
            return _NUMBERS[self.name](policy)
        found = _RATES[self.name](policy)
        if self.side:
            return found.high if self.side == "upper" else found.low
        return found.value

    def holds(self, policy: PolicyFigures) -> bool:
        """Return whether the condition is true of a policy. Of a rate of no runs nothing is known: it counts as true,
        because a gate that checked nothing must not let anything pass.
        """
        observed = self.observed(policy)
        return observed is None or _SIGNS[self.sign](observed, self.limit)


def condition(text: str) -> Condition:
    """Return the condition that a text says.

    Raises:
        UsageError: it is none.
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        example = "false_stop_rate > 0.01, or working_stop_rate.upper > 0.002"
        raise UsageError(f"{text!r} is no condition such as {example}")
    name, side = found["name"], found["side"] or ""
    if name not in NAMES:
        raise UsageError(f"{text!r}: no figure is called {name!r}; {suggestion(name, NAMES, 'figures')}")
    if side and name not in _RATES:
        raise UsageError(f"{text!r}: only rates have an interval, and {name} is none of {', '.join(_RATES)}")
    try:
        limit = float(found["limit"])
    except ValueError:
        raise UsageError(f"{text!r}: {found['limit']!r} is no number") from None
    return Condition(text.strip(), name, side, found["sign"], limit)
