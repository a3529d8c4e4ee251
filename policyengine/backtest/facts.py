"""What one policy makes of one recorded run, in the numbers that are added up.

Knows: which question each number answers. Must not know: files, other runs, rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal

import msgspec

from policyengine.prices import BundledPrice
from policyengine.recordings.model import ModelSaid, Recording
from policyengine.replay import ReplayReport

Strongest = Literal["nothing", "hint", "deny", "stop"]
"""The strongest thing a policy would have done in a run; everything between a hint and a stop counts as `deny`."""


class RuleFacts(msgspec.Struct, frozen=True):
    """What one rule did in one run: hints it gave, other interventions short of an end, wishes it was not allowed."""

    rule: str
    hints: int = 0
    denies: int = 0
    wishes: int = 0


class RunFacts(msgspec.Struct, frozen=True):
    """One run under one policy.

    `turns` are its model responses, `stop_turn` the one (from 1) in which the policy would have ended it, `saved` how
    many came after. `working`: it made a new call after that; else it had already made every call it was going to make.
    Tokens are `None` where the recording has no usage.
    `decisions` is a digest of every intervention: two policies with the same one decide the run alike.
    """

    label: bool | None
    turns: int
    calls: int
    strongest: Strongest
    stop_turn: int | None
    stop_rule: str
    saved: int
    working: bool
    denied_succeeded: int
    recovered: int
    tokens: int | None
    tokens_saved: int | None
    nano: int | None
    nano_saved: int | None
    rules: tuple[RuleFacts, ...]
    decisions: int = 0


def facts_of(recording: Recording, report: ReplayReport, price: BundledPrice | None = None) -> RunFacts:
    """Return the numbers of one replayed run; `price` gives the prices of models."""
    stop = report.stop
    stop_turn = None if stop is None else stop.iteration
    nano, nano_saved = _cost(recording, stop_turn, price) if report.tokens is not None and price else (None, None)
    actions = {item.action for item in report.interventions}
    return RunFacts(
        label=recording.label,
        turns=report.iterations,
        calls=report.calls,
        strongest="stop" if stop else "deny" if actions - {"hint"} else "hint" if actions else "nothing",
        stop_turn=stop_turn,
        stop_rule="" if stop is None else stop.rule,
        saved=0 if stop_turn is None else report.iterations - stop_turn,
        working=report.new_calls_after_stop > 0,
        denied_succeeded=report.denied_succeeded,
        recovered=report.recovered,
        tokens=report.tokens,
        tokens_saved=report.tokens_after_stop,
        nano=nano,
        nano_saved=nano_saved,
        rules=_rules(report),
        decisions=_decisions(report),
    )


def _cost(recording: Recording, stop_turn: int | None, price: BundledPrice) -> tuple[int | None, int | None]:
    """Return what a run cost, and its rounds after a stop; nothing where one of its models has no known price."""
    total = saved = turn = 0
    for event in recording.events:
        if not isinstance(event, ModelSaid):
            continue
        turn += 1
        usage = event.response.usage
        if usage is None:
            continue
        model = event.response.model or recording.group
        nano = price(model, usage.prompt_tokens or 0, usage.completion_tokens or 0)
        if nano is None:
            return None, None
        total += nano
        saved += nano if stop_turn is not None and turn > stop_turn else 0
    return total, saved


def _decisions(report: ReplayReport) -> int:
    if not report.interventions:
        return 0
    made = [(item.iteration, item.call, item.hook, item.action, item.code, item.rule) for item in report.interventions]
    return number((repr(made),))


def _rules(report: ReplayReport) -> tuple[RuleFacts, ...]:
    if not report.interventions and not report.would:
        return ()
    ending = {"stop", "end_step", "wind_down"}
    counts: dict[str, list[int]] = {}
    for item in report.interventions:
        if item.action not in ending:
            counts.setdefault(item.rule, [0, 0, 0])[item.action != "hint"] += 1
    for wish in report.would:
        counts.setdefault(wish.rule, [0, 0, 0])[2] += 1
    return tuple(RuleFacts(rule, *numbers) for rule, numbers in sorted(counts.items()))


def plain(text: str) -> str:
    """Return a text that can be written as UTF-8: what a recording or a file name has of halves of pairs is escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def digest(parts: Iterable[str]) -> str:
    """Return a short digest of texts, by which runs are put in an order that has nothing to do with their content."""
    return _hashed(parts, 8).hex()


def number(parts: Iterable[str]) -> int:
    """Return a digest of texts as a whole number of 32 bits, so that sums of two thousand million fit into 64."""
    return int.from_bytes(_hashed(parts, 4), "big")


def _hashed(parts: Iterable[str], size: int) -> bytes:
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=size).digest()
