"""Pools, what a run needs of them, what it was granted, and what is owed to them afterwards. Data only.

Knows: what a pool counts and for whom. Must not know: where counts are kept, runs, the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Literal, Protocol

import msgspec

Counts = Literal["tool_calls", "requests", "tokens", "cost", "tool_failures", "provider_errors"]

OF_REQUESTS: frozenset[Counts] = frozenset(["requests", "tokens", "cost", "provider_errors"])
"""What is asked for before a request; everything else is asked for before a batch of calls."""

METERED: frozenset[Counts] = frozenset(["tokens", "cost"])
"""What is known only afterwards, so that an estimate is reserved."""

BREAKERS: frozenset[Counts] = frozenset(["tool_failures", "provider_errors"])
"""What is never reserved: these pools are only looked at, and failures are added as they happen."""

_LONGEST_KEY = 200


class Pool(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rule counts together with every run that names the same pool.

    `limit` and `reserve` are whole numbers: calls, requests, tokens, failures, or billionths of a dollar. `window_s`
    is for how long something counts (`None`: for ever), `per` what has a count of its own within the pool, `tools`
    which calls count (all without one). `reserve` is held for a request until its tokens or cost are known.
    `when_down` says what happens while the store does not answer, and `wait_s` after what time that is so.
    """

    name: str
    counts: Counts
    limit: int
    window_s: float | None = None
    per: Literal["", "conversation", "agent"] = ""
    tools: tuple[str, ...] = ()
    reserve: int = 0
    when_down: Literal["deny", "allow", "stop"] = "deny"
    wait_s: float = 2.0

    def matches(self, tool: str) -> bool:
        """Return whether calls of a tool count."""
        return not self.tools or any(fnmatchcase(tool, pattern) for pattern in self.tools)

    def key(self, *, conversation: str, agent: str) -> str:
        """Return under which name the count is kept, for a run of this conversation and agent."""
        part = {"conversation": conversation, "agent": agent, "": ""}[self.per]
        # Slashes of a name are doubled, so that no name can be that of another pool's conversation or agent.
        name = self.name.replace("/", "//")
        # Neither must a longer window be forgotten with a shorter one, where two policies have one name.
        window = f"@{float(self.window_s)}" if self.window_s else ""
        key = f"{self.counts}{window}/{name}" + (f"/{self.per}/{part}" if self.per else "")
        if len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable():
            return key
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return f"{self.counts}{window}/#{digest}"

    def same_count(self, other: Pool) -> bool:
        """Return whether two pools of one name count the same; limits and what is done about them may differ."""
        return (self.window_s, self.per, self.tools, self.reserve) == (
            other.window_s,
            other.per,
            other.tools,
            other.reserve,
        )


class Need(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rule's pool is asked for; `amount` is 0 where it is only looked at."""

    rule: str
    pool: Pool
    key: str
    amount: int = 0


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rule's pool said: of `asked`, `granted` is reserved; `used` is what counted before, of `limit`.

    `state` is `down` where the store did not answer: then nothing is known, and nothing is reserved. `at` is the time
    by the clock of the store, `us` how many microseconds it took.
    """

    rule: str
    pool: str
    counts: Counts
    key: str
    asked: int = 0
    granted: int = 0
    used: int = 0
    limit: int = 0
    state: Literal["ok", "down"] = "ok"
    at: float = 0.0
    us: int = 0


class Due(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change to a count: what was used beyond what was reserved, or, below 0, what is given back.

    `at` is when it was reserved: what is given back is taken from there.
    """

    pool: Pool
    key: str
    amount: int
    at: float = 0.0


class Reserving(Protocol):
    """Who carries out reservations: a `Ledger`, or a reckoning without a store (`alone`)."""

    def perform(self, needs: Sequence[Need], dues: Sequence[Due] = (), run_id: str = "") -> tuple[Grant, ...]:
        """Settle what is owed, reserve what is needed, all at once, and return a grant for each need."""
        raise NotImplementedError


def unused(needs: Sequence[Need], grants: Sequence[Grant]) -> list[Due]:
    """Return what gives back all that was granted."""
    taken: dict[str, Due] = {}
    for need, grant in zip(needs, grants, strict=True):
        known = taken.get(grant.key)
        if grant.granted and (known is None or -known.amount < grant.granted):
            taken[grant.key] = Due(need.pool, grant.key, -grant.granted, grant.at)
    return list(taken.values())


def all_down(needs: Sequence[Need], us: int = 0) -> tuple[Grant, ...]:
    """Return the grants of a store that does not answer."""
    return tuple(
        Grant(
            need.rule,
            need.pool.name,
            need.pool.counts,
            need.key,
            need.amount,
            limit=need.pool.limit,
            state="down",
            us=us,
        )
        for need in needs
    )
