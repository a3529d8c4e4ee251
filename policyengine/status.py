"""What a running engine is doing, as plain data.

Knows: which facts of an engine an operator asks for. Must not know: how they are asked for, how they are shown.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from policyengine.plugins.imported import Outdated, outdated
from policyengine.policy.problems import Problem

if TYPE_CHECKING:
    from policyengine.engine import Engine, Rejection
    from policyengine.run import Run

MOST_RUNS = 20
"""How many runs under way a status lists: those that have been silent for longest."""

MOST_CHARACTERS = 128
"""How many characters of a name that a host gave are told."""

Phase = Literal["new", "deciding", "model", "tools", "human"]


class RejectionStatus(msgspec.Struct, frozen=True):
    """The version that was refused last: since when (seconds since 1970), and how often it was tried."""

    fingerprint: str
    problems: tuple[Problem, ...]
    since: float
    age_s: float
    seen: int


class RunStatus(msgspec.Struct, frozen=True):
    """A run under way.

    `phase` is what it was doing when it was heard of last: `model` waits for a response, `tools` for results, `human`
    for somebody who was asked about a call of the batch; `deciding` is anything between. `silent_s` is how long ago
    that was, by the clock of the engine.
    """

    run_id: str
    agent: str
    phase: Phase
    iteration: int
    step: int
    calls: int
    silent_s: float


class StopStatus(msgspec.Struct, frozen=True):
    """The last stop, end of a step, wind-down or question of any run. Without its text: that may hold content."""

    run_id: str
    since: float
    age_s: float
    code: str
    rule: str
    at: str
    action: str
    observed: float | None
    limit: float | None
    iteration: int


class EngineStatus(msgspec.Struct, frozen=True):
    """What is in force in one process, and what is wrong with it.

    `loaded_at` is in seconds since 1970. `differs_s` is for how long the files have differed from the policy in force
    (`None`: they do not, or there are none), as far as somebody looked; `stale` that this is longer than
    `max_staleness_s`, so that no new run starts. `killed_by` says who holds the kill switch: `hand` is
    `Engine.kill`, the `kill` verb included. `runs_active` are runs that have not ended and are still held by somebody.
    `restart_needed` are installed packages whose version on disk is not the one that was imported. `runs` are at most
    20 of the runs under way. `decisions` counts what was decided, by action (`allow` is not counted; `hint` counts
    decisions that brought notes). `log_dropped` are lines that decision logs of this engine could not write.
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
    runs: tuple[RunStatus, ...] = ()
    decisions: dict[str, int] = {}
    last_stop: StopStatus | None = None
    log_dropped: int = 0


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
        runs=_runs(engine),
        decisions=engine.runs.decisions,
        last_stop=_last_stop(engine, now),
        log_dropped=log_dropped(engine),
    )


def log_dropped(engine: Engine) -> int:
    """Return how many lines the decision logs of an engine could not write."""
    counts: list[Any] = [getattr(sink, "dropped", 0) for sink in tuple(engine.sinks)]
    return sum(count for count in counts if isinstance(count, int))


def _runs(engine: Engine) -> tuple[RunStatus, ...]:
    now = engine.clock()
    found = sorted((_run(run, now) for run in engine.runs.runs()), key=lambda run: -run.silent_s)
    return tuple(found[:MOST_RUNS])


def _run(run: Run, now: float) -> RunStatus:
    state = run.state
    return RunStatus(
        run_id=state.run_id[:MOST_CHARACTERS],
        agent=state.agent[:MOST_CHARACTERS],
        phase=_phase(run),
        iteration=state.iteration,
        step=state.step,
        calls=state.calls,
        silent_s=max(0.0, now - state.now) if state.started else 0.0,
    )


def _phase(run: Run) -> Phase:
    event, stop = run.last_event, run.last_stop
    if not run.state.started:
        return "new"
    if event == "before_model_call":
        return "model"
    if event in ("set_aside", "human_answered"):
        return "tools"
    if event not in ("before_tool_call", "stopped"):
        return "deciding"
    if stop is not None and stop.action == "ask" and stop.iteration == run.state.iteration:
        return "human"
    return "tools" if event == "before_tool_call" else "deciding"


def _last_stop(engine: Engine, now: float) -> StopStatus | None:
    last = engine.runs.last_stop
    if last is None:
        return None
    reason = last.reason
    return StopStatus(
        run_id=last.run_id[:MOST_CHARACTERS],
        since=last.at,
        age_s=max(0.0, now - last.at),
        code=reason.code,
        rule=reason.rule,
        at=reason.at,
        action=reason.action,
        observed=reason.observed,
        limit=reason.limit,
        iteration=reason.iteration,
    )


def _rejection(rejected: Rejection, source: str, now: float) -> RejectionStatus:
    return RejectionStatus(
        fingerprint=rejected.fingerprint,
        problems=rejected.as_problems(source),
        since=rejected.since,
        age_s=max(0.0, now - rejected.since),
        seen=rejected.seen,
    )
