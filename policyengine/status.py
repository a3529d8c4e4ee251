"""What a running engine is doing, as plain data.

Knows: which facts of an engine an operator asks for. Must not know: how they are asked for, how they are shown.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import msgspec

from policyengine.plugins.imported import Outdated, outdated
from policyengine.policy.problems import Problem

if TYPE_CHECKING:
    from policyengine.engine import Engine, Rejection


class RejectionStatus(msgspec.Struct, frozen=True):
    """The version that was refused last: since when (seconds since 1970), and how often it was tried."""

    fingerprint: str
    problems: tuple[Problem, ...]
    since: float
    age_s: float
    seen: int


class EngineStatus(msgspec.Struct, frozen=True):
    """What is in force in one process, and what is wrong with it.

    `loaded_at` is in seconds since 1970. `differs_s` is for how long the files have differed from the policy in force
    (`None`: they do not, or there are none), as far as somebody looked; `stale` that this is longer than
    `max_staleness_s`, so that no new run starts. `killed_by` says who holds the kill switch: `hand` is
    `Engine.kill`, the `kill` verb included. `runs_active` are runs that have not ended and are still held by somebody.
    `restart_needed` are installed packages whose version on disk is not the one that was imported.
    """

    pid: int
    policy: str
    revision: str
    generation: int
    digest: str
    files: tuple[str, ...]
    folders: tuple[str, ...]
    loaded_at: float
    age_s: float
    killed: bool
    killed_by: tuple[Literal["hand", "policy"], ...]
    watching: bool
    differs_s: float | None
    max_staleness_s: float | None
    stale: bool
    runs_started: int
    runs_active: int
    rejection: RejectionStatus | None = None
    restart_needed: tuple[Outdated, ...] = ()


def status_of(engine: Engine) -> EngineStatus:
    """Return the status of an engine. Files and metadata are read for it; no lock is held, and nothing is built."""
    staleness = engine.staleness()
    now, switch = engine.wall_clock(), engine.switch
    snapshot, rejected = engine.snapshot, engine.rejected
    holders: tuple[tuple[Literal["hand", "policy"], bool], ...] = (
        ("hand", switch.by_hand),
        ("policy", switch.by_policy),
    )
    return EngineStatus(
        pid=os.getpid(),
        policy=snapshot.policy.name,
        revision=snapshot.policy.revision,
        generation=snapshot.generation,
        digest=snapshot.digest,
        files=snapshot.policy.files,
        folders=tuple(map(str, engine.folders)),
        loaded_at=engine.loaded_at,
        age_s=max(0.0, now - engine.loaded_at),
        killed=switch.on,
        killed_by=tuple(name for name, held in holders if held),
        watching=any(watch.alive for watch in tuple(engine.watches)),
        differs_s=staleness.differs_s,
        max_staleness_s=staleness.limit_s,
        stale=staleness.exceeded,
        runs_started=engine.runs.begun,
        runs_active=engine.runs.under_way,
        rejection=None if rejected is None else _rejection(rejected, str(engine.source), now),
        restart_needed=outdated(),
    )


def _rejection(rejected: Rejection, source: str, now: float) -> RejectionStatus:
    return RejectionStatus(
        fingerprint=rejected.fingerprint,
        problems=rejected.as_problems(source),
        since=rejected.since,
        age_s=max(0.0, now - rejected.since),
        seen=rejected.seen,
    )
