"""What one run holds of shared pools: reserved, not settled yet; and what it owes to them.

Knows: when a reservation is used, given back or exceeded. Must not know: stores, the loop, any particular rule.

It is part of the state of the run and saved with it. A run that dies gives nothing back: what it held stays counted,
because nobody knows whether it was used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from policyengine.errors import UsageError
from policyengine.messages import ToolCall, ToolResult
from policyengine.shared.pools import METERED, OF_REQUESTS, Due, Grant, Need, Pool, Reserving

if TYPE_CHECKING:
    from policyengine.policy.model import When

OF_THE_REQUEST = frozenset(
    [
        "content_filter",
        "context_overflow",
        "invalid_history",
        "invalid_request",
        "output_limit_too_large",
        "payload_too_large",
        "reasoning_replay",
        "repetitive_calls",
        "request_too_large",
    ]
)
"""Classes of failures that lie in the request: they say nothing about how the provider is for everybody else."""

NOT_STARTED = ("unknown_tool", "invalid_arguments")
"""Codes of the engine's own answers to calls that it could not run."""

MOST_OPEN = 1024
"""For how many calls without a result is remembered what they hold. What is forgotten stays counted."""


class SharedRule(msgspec.Struct, frozen=True):
    """A rule in force that counts in a pool, and which events it sees."""

    rule: str
    pool: Pool
    when: When | None = None

    def sees(self, call: ToolCall, agent: str) -> bool:
        """Return whether a call counts."""
        return self.pool.matches(call.name) and (self.when is None or self.when.admits(call.name, agent))

    def counts_in(self, pool: Pool) -> bool:
        """Return whether the rule counts in a pool, whatever its own limit."""
        return (self.pool.counts, self.pool.name) == (pool.counts, pool.name)


class Hold(msgspec.Struct):
    """What is reserved under one key: `left` of it has no call yet."""

    pool: Pool
    granted: int = 0
    left: int = 0
    at: float = 0.0


class Place(msgspec.Struct, frozen=True):
    """What a call holds under one key: 1, or 0 for a call that has no place there."""

    key: str
    pool: Pool
    held: int = 0
    at: float = 0.0


class Account(msgspec.Struct):
    """Everything a run has to do with shared pools.

    `told` are the latest grants by rule, `places` says for the call being judged which rules have a place for it.
    `requests` and `calls` are reservations by key, `open` what calls without a result hold, by call id and, where calls
    have one id, in their order. `spent` is what rules say that a request took; `dues` wait for the next chance to be
    settled.
    """

    told: dict[str, Grant] = {}
    places: dict[str, bool] = {}
    requests: dict[str, Hold] = {}
    calls: dict[str, Hold] = {}
    open: dict[str, list[list[Place]]] = {}
    spent: dict[str, int] = {}
    dues: list[Due] = []

    # ---- what was granted

    def take(self, grants: Sequence[Grant], pools: Mapping[str, Pool]) -> None:
        """Take what was granted; `pools` are those of the rules in force."""
        if any(grant.counts in OF_REQUESTS for grant in grants):
            self.sent()
        fresh: set[str] = set()
        for grant in grants:
            pool = pools.get(grant.rule)
            self.told[grant.rule] = grant
            if pool is None:
                continue
            held = self.requests if grant.counts in OF_REQUESTS else self.calls
            known = held.get(grant.key) if grant.key in fresh else None
            if known is None or grant.granted > known.granted:
                before = self.calls.get(grant.key) if held is self.calls and grant.key not in fresh else None
                if before is not None and before.left:
                    self._owe(before.pool, grant.key, -before.left, before.at)
                held[grant.key] = Hold(pool, grant.granted, grant.granted, grant.at)
            fresh.add(grant.key)

    # ---- requests

    def asked(self) -> None:
        """The rules judged a request: what they were told does not hold for another one."""
        self.told = {rule: grant for rule, grant in self.told.items() if grant.counts not in OF_REQUESTS}

    def sent(self) -> None:
        """No answer to the latest request will be told any more: it was sent, and what it held stays counted."""
        for key, hold in self.requests.items():
            if hold.pool.counts == "requests":
                self._owe(hold.pool, key, 1 - hold.granted, hold.at)
        self.requests = {}

    def unsent(self) -> None:
        """The request was not sent after all: give back what was reserved."""
        for key, hold in self.requests.items():
            self._owe(hold.pool, key, -hold.granted, hold.at)
        self.requests = {}

    def answered(self, rules: Sequence[SharedRule]) -> None:
        """A response came: settle what the request took, as the rules say; without a word the reservation stands."""
        for key, hold in self.requests.items():
            if hold.pool.counts == "requests":
                self._owe(hold.pool, key, 1 - hold.granted, hold.at)
            elif hold.pool.counts in METERED:
                said = [self.spent[one.rule] for one in rules if one.rule in self.spent and one.counts_in(hold.pool)]
                if said:
                    self._owe(hold.pool, key, max(said) - hold.granted, hold.at)
        self.requests, self.spent = {}, {}

    def failed(self, code: str) -> None:
        """The request failed: it counts as a request and as a failure, and took no tokens."""
        for key, hold in self.requests.items():
            match hold.pool.counts:
                case "requests":
                    self._owe(hold.pool, key, 1 - hold.granted, hold.at)
                case "provider_errors" if code not in OF_THE_REQUEST:
                    self._owe(hold.pool, key, 1, hold.at)
                case "tokens" | "cost":
                    self._owe(hold.pool, key, -hold.granted, hold.at)
        self.requests, self.spent = {}, {}

    # ---- calls

    def admit(self, call: ToolCall, rules: Sequence[SharedRule], agent: str) -> None:
        """Give a call its place under every key, as long as there are some, before it is judged."""
        self.places = {}
        held: dict[str, Place] = {}
        for one in rules:
            grant = self.told.get(one.rule)
            if grant is None or grant.counts in OF_REQUESTS or not one.sees(call, agent):
                continue
            hold = self.calls.get(grant.key)
            if hold is None:
                continue
            if grant.key not in held:
                number = hold.granted - hold.left
                has = hold.left > 0
                hold.left -= has
                held[grant.key] = Place(grant.key, hold.pool, int(has), hold.at)
            else:
                number = hold.granted - hold.left - held[grant.key].held
            self.places[one.rule] = number < grant.granted
        if rules:  # also where it holds nothing: another call of this id may hold something
            self.open.setdefault(call.id, []).append([*held.values()])
            while len(self.open) > MOST_OPEN:
                del self.open[next(iter(self.open))]

    def refused(self, call: ToolCall) -> None:
        """A call of the batch under judgement will not run: its places are there for the next calls of the batch."""
        same = self.open.get(call.id)
        if not same:
            return
        kept: list[Place] = []
        for place in same[-1]:  # it was judged just now
            hold = self.calls.get(place.key)
            if place.held and hold is not None and place.pool.counts == "tool_calls":
                hold.left += place.held
                place = msgspec.structs.replace(place, held=0)
            kept.append(place)
        same[-1] = kept

    def ended(self, call: ToolCall, result: ToolResult, *, failed: bool) -> None:
        """The result of a call came: count it if it ran, give its place back if not, and count a failure."""
        ran = started(result)
        for place in self._taken(call.id, ran):
            if place.pool.counts == "tool_calls":
                self._owe(place.pool, place.key, int(ran) - place.held, place.at)
                hold = self.calls.get(place.key)
                if hold is not None and hold.left and not place.held:  # freed by a refusal, and no call took it
                    hold.left -= 1
                    self._owe(place.pool, place.key, -1, hold.at)
            elif failed:
                self._owe(place.pool, place.key, 1, place.at)

    def _taken(self, call_id: str, ran: bool) -> list[Place]:
        """Return what a call holds, and forget it: of several of one id, one that ran is rather one with a place."""
        same = self.open.get(call_id)
        if not same:
            return []
        found = next((at for at, one in enumerate(same) if any(place.held for place in one) is ran), 0)
        places = same.pop(found)
        if not same:
            del self.open[call_id]
        return places

    def _owe(self, pool: Pool, key: str, amount: int, at: float) -> None:
        if amount:
            self.dues.append(Due(pool, key, amount, at))


def check_ledger(shares: Sequence[SharedRule], ledger: Reserving | None) -> None:
    """Refuse to go on without a ledger where rules count in shared pools: nothing would be limited.

    Raises:
        UsageError: there is none, and a rule needs it.
    """
    if shares and ledger is None:
        rules = ", ".join(one.rule for one in shares)
        advice = "give one as `ledger`: Ledger(open_store(place)) (a command: --shared PLACE), see docs/fleets.md"
        raise UsageError(
            f"no ledger, and rules of the policy count in pools that many processes share ({rules}): {advice}"
        )


def started(result: ToolResult) -> bool:
    """Return whether the tool was started: neither a rule nor the engine itself kept the call from running."""
    error = result.error
    if error is not None and error.code in NOT_STARTED and not error.declared and result.duration_s is None:
        return False
    return result.ran


def needs_of_request(rules: Sequence[SharedRule], agent: str, conversation: str) -> tuple[Need, ...]:
    """Return what the pools are asked for before a request."""
    needs = []
    for one in rules:
        pool = one.pool
        if pool.counts in OF_REQUESTS and (one.when is None or one.when.admits(None, agent)):
            amount = pool.reserve if pool.counts in METERED else int(pool.counts == "requests")
            needs.append(Need(one.rule, pool, pool.key(conversation=conversation, agent=agent), amount))
    return tuple(needs)


def needs_of_calls(
    rules: Sequence[SharedRule], calls: Sequence[ToolCall], agent: str, conversation: str
) -> tuple[Need, ...]:
    """Return what the pools are asked for before a batch: a place for every call that any of their rules sees."""
    seen: dict[str, set[int]] = {}
    asking: list[tuple[SharedRule, str]] = []
    for one in rules:
        if one.pool.counts in OF_REQUESTS:
            continue
        matching = {index for index, call in enumerate(calls) if one.sees(call, agent)}
        if matching:
            key = one.pool.key(conversation=conversation, agent=agent)
            seen.setdefault(key, set()).update(matching)
            asking.append((one, key))
    return tuple(
        Need(one.rule, one.pool, key, len(seen[key]) if one.pool.counts == "tool_calls" else 0) for one, key in asking
    )
