"""Find better thresholds in recordings: judge all candidates in one pass, choose on one half of the tasks, report on
the other.

Knows: the order of these, what a proposal is. Must not know: how candidates are made, how anything is shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import msgspec

from policyengine.backtest import merge
from policyengine.backtest.figures import (
    GroupFigures,
    PolicyFigures,
    Rates,
    ReadError,
    group_figures,
    policy_figures,
    rates,
)
from policyengine.backtest.front import FEW, Gain, Limit, front, gain, overlap, rank
from policyengine.backtest.judge import ALONE, FOLDS, Assignment, PolicySource, sources
from policyengine.backtest.local import judge_all
from policyengine.backtest.run import INLINE_BYTES, Progress
from policyengine.backtest.stats import exact
from policyengine.backtest.sweep import MOST, Changes, Sweep, candidates, named, overlay, sweeps
from policyengine.backtest.tally import Groups, Key, Tally
from policyengine.backtest.work import Unit, plan
from policyengine.errors import ConfigError, ExtensionError
from policyengine.plugins.registry import discover
from policyengine.policy.load import load_policy
from policyengine.policy.model import Policy
from policyengine.policy.problems import problems_of
from policyengine.policy.stricter import looking
from policyengine.recordings.model import Skipped
from policyengine.recordings.readers import readers_for


class Swept(msgspec.Struct, frozen=True):
    """A threshold, its value in force (`None` where there is none) and the values that were tried."""

    threshold: str
    in_force: Any
    values: tuple[Any, ...]


class Refused(msgspec.Struct, frozen=True):
    """A candidate that is no policy, and why."""

    candidate: str
    values: dict[str, Any]
    code: str
    reason: str


class FoldFigures(msgspec.Struct, frozen=True):
    """What a candidate makes of the runs of one half of the tasks."""

    total: GroupFigures
    rates: Rates
    gain: Gain


class Candidate(msgspec.Struct, frozen=True):
    """A policy that was judged. `alike` are candidates that decide every run in the same way; `overlay` makes it."""

    name: str
    values: dict[str, Any]
    alike: tuple[str, ...]
    folds: dict[str, FoldFigures]
    overlay: str


class Direction(msgspec.Struct, frozen=True):
    """What comes of choosing on one half and looking at the other.

    `front` are the candidates that none is better than on the first half, by name. `proposal` is the best that stays
    in the limit there; empty where that is the policy in force, or where nothing can be said. It is `confirmed` where
    it stays in the limit on the other half too, saves more turns there than the policy in force, and decides enough
    runs of both halves otherwise. `notes` say what the data cannot tell.
    """

    tuned_on: str
    reported_on: str
    front: tuple[str, ...]
    proposal: str
    confirmed: bool
    notes: tuple[str, ...]


class TuneReport(msgspec.Struct, frozen=True):
    """Everything that was found. The first candidate is the policy in force; `held_out` shows the proposal (or else
    the policy in force) on the half on which it was not chosen.
    """

    policy: str
    source: str
    runs: int
    folds: dict[str, int]
    runs_without_task: int
    limit: str
    swept: tuple[Swept, ...]
    tried: int
    refused: tuple[Refused, ...]
    candidates: tuple[Candidate, ...]
    directions: tuple[Direction, ...]
    held_out: PolicyFigures | None
    read_errors: tuple[ReadError, ...]
    read_error_count: int
    skipped: tuple[Skipped, ...]
    seconds: float

    def candidate(self, name: str) -> Candidate:
        """Return a candidate by its name."""
        return next(one for one in self.candidates if one.name == name)

    @property
    def proposal(self) -> Candidate | None:
        """The candidate that is proposed: chosen on the first half."""
        chosen = self.directions[0].proposal if self.directions else ""
        return self.candidate(chosen) if chosen else None


class Options(msgspec.Struct, frozen=True):
    """How to tune. `few` is how many runs must be decided otherwise; see `backtest` for `form` and `protocol`."""

    sweep: tuple[str, ...] = ()
    grid: bool = False
    most: int = MOST
    limit: Limit = Limit()
    few: int = FEW
    form: str = ""
    protocol: str = "native"
    workers: int = 1


AS_USUAL = Options()


def tune(
    paths: Iterable[str | os.PathLike[str]],
    policy: str = "default",
    *,
    overlays: Sequence[str] = (),
    folders: Sequence[str] = (),
    options: Options = AS_USUAL,
    progress: Progress | None = None,
) -> TuneReport:
    """Return what other thresholds would have done in recorded runs, and which of them are proposed.

    Raises:
        ConfigError: the policy itself cannot be used.
        UsageError: a sweep names nothing, or too much.
    """
    begun = perf_counter()
    (in_force,) = sources([policy], overlays, folders)
    registry = discover(folders=[Path(folder) for folder in folders])
    loaded = load_policy(policy, registry=registry, overlays=[Path(path) for path in overlays])
    swept = sweeps(loaded, looking(registry, loaded), options.sweep)
    tried = candidates(swept, grid=options.grid, most=options.most)
    units, skipped, unreadable = plan(paths, readers_for(options.form, options.protocol))
    with TemporaryDirectory() as folder:
        made, refused = _made(loaded, in_force, tried if units else [], Path(folder))
        kept: list[Changes] = [(), *(changes for changes, _ in made)]
        policies = (in_force, *(source for _, source in made))
        assignment = Assignment(policies, baseline=True, by="fold", format=options.form, protocol=options.protocol)
        merged = merge.empty(assignment, skipped, unreadable)
        _judge(units, assignment, merged, options.workers, progress)
    classes = _classes(loaded, kept, merged.groups)
    directions = tuple(_direction(classes, one, other, options) for one, other in (FOLDS, FOLDS[::-1]))
    groups = classes[0].groups
    not_read, left_out = merged.not_read()
    return TuneReport(
        policy=loaded.name,
        source=policy,
        runs=merged.runs,
        folds={fold: _of_fold(groups, fold).total().runs for fold in FOLDS},
        runs_without_task=sum(tally.runs for key, tally in groups.sorted() if key.task.endswith(ALONE)),
        limit=str(options.limit),
        swept=tuple(_swept(sweep) for sweep in swept),
        tried=len(tried),
        refused=refused,
        candidates=tuple(one.figures for one in classes),
        directions=directions if merged.runs else (),
        held_out=_held_out(classes, directions[0]) if merged.runs else None,
        read_errors=not_read,
        read_error_count=merged.errors,
        skipped=left_out,
        seconds=round(perf_counter() - begun, 3),
    )


def _swept(sweep: Sweep) -> Swept:
    threshold, values = sweep
    return Swept(threshold.name, None if threshold.value is msgspec.UNSET else threshold.value, values)


def _values(changes: Changes) -> dict[str, Any]:
    return {change.threshold.name: change.value for change in changes}


# ---- candidates as policies


def _made(
    policy: Policy, in_force: PolicySource, tried: Sequence[Changes], folder: Path
) -> tuple[list[tuple[Changes, PolicySource]], tuple[Refused, ...]]:
    """Write the overlay of every candidate, and load it as an engine would."""
    made: list[tuple[Changes, PolicySource]] = []
    refused: list[Refused] = []
    for number, changes in enumerate(tried):
        file = folder / f"candidate-{number}.yaml"
        file.write_text(overlay(policy, changes), encoding="utf-8")
        overlays = (*in_force.overlays, str(file))
        source = msgspec.structs.replace(in_force, name=named(changes), overlays=overlays, digest="")
        try:
            digest = source.engine().snapshot.digest
        except (ConfigError, ExtensionError) as error:
            first = problems_of(error, in_force.source)[0]
            reason = f"{first.path}: {first.message}" if first.path else first.message
            refused.append(Refused(named(changes), _values(changes), first.code, reason))
        else:
            made.append((changes, msgspec.structs.replace(source, digest=digest)))
    return made, tuple(refused)


# ---- one pass


def _judge(
    units: Sequence[Unit], assignment: Assignment, merged: merge.Merged, workers: int, progress: Progress | None
) -> None:
    if not units:
        return
    # Many policies make little input much work, so that it is handed out in the smallest pieces.
    small = [Unit(number, (piece,)) for number, piece in enumerate(piece for unit in units for piece in unit.pieces)]
    sizes = {unit.number: unit.size for unit in small}
    whole, done = sum(sizes.values()), 0
    inline = whole * len(assignment.policies) < INLINE_BYTES
    for judged in judge_all(assignment, small, 1 if inline else workers):
        merged.add(judged)
        done += sizes[judged.number]
        if progress is not None:
            progress(done, whole)


# ---- what they decide


class _Class(msgspec.Struct, frozen=True):
    """Candidates that decide every run in the same way, shown by the one that changes least."""

    figures: Candidate
    groups: Groups
    folds: dict[str, Tally]


def _of_fold(groups: Groups, fold: str) -> Groups:
    return Groups({name: pair for name, pair in groups.tallies.items() if pair[0].task.removesuffix(ALONE) == fold})


def _classes(policy: Policy, tried: Sequence[Changes], groups: Sequence[Groups]) -> list[_Class]:
    alike: dict[tuple[int, ...], list[int]] = {}
    folds = [{fold: _of_fold(one, fold).total() for fold in FOLDS} for one in groups]
    for place, by_fold in enumerate(folds):
        alike.setdefault(tuple(tally.decisions for tally in by_fold.values()), []).append(place)
    found: list[_Class] = []
    for places in alike.values():
        first, *others = sorted(places, key=lambda place: (_distance(tried[place]), place))
        changes = tried[first]
        figures = Candidate(
            name=named(changes),
            values=_values(changes),
            alike=tuple(named(tried[place]) for place in sorted(others)),
            folds={
                fold: FoldFigures(group_figures(Key("", "", fold), tally), rates(tally), gain(tally))
                for fold, tally in folds[first].items()
            },
            overlay=overlay(policy, changes) if changes else "",
        )
        found.append(_Class(figures, groups[first], folds[first]))
    return found


def _distance(changes: Changes) -> tuple[int, float]:
    return len(changes), sum(change.distance for change in changes)


# ---- the choice


def _direction(classes: Sequence[_Class], tuned_on: str, reported_on: str, options: Options) -> Direction:
    tallies = [one.folds[tuned_on] for one in classes]
    best = front(tallies)
    chosen, notes = _chosen(tallies, options.limit, tuned_on)
    confirmed = False
    if chosen:
        confirmed, doubts = _doubts(classes, chosen, best, tuned_on, reported_on, options)
        notes += doubts
    return Direction(
        tuned_on=tuned_on,
        reported_on=reported_on,
        front=tuple(classes[place].figures.name for place in best),
        proposal=classes[chosen].figures.name if chosen else "",
        confirmed=confirmed,
        notes=tuple(notes),
    )


def _chosen(tallies: Sequence[Tally], limit: Limit, fold: str) -> tuple[int, list[str]]:
    """Return the place of the best candidate in the limit; 0, the policy in force, where there is none better."""
    in_force = tallies[0]
    if not in_force.runs:
        return 0, [f"no run is in fold {fold}: there are too few tasks to divide them"]
    if not in_force.successes:
        return 0, [f"no run of fold {fold} is labelled as successful, so wrong stops cannot be told from right ones"]
    admitted = [place for place, tally in enumerate(tallies) if limit.admits(tally, in_force)]
    if not admitted:
        return 0, [f"no candidate stays in the limit on fold {fold}: {limit}"]
    best = min(admitted, key=lambda place: (rank(tallies[place]), place))
    return (best if 0 not in admitted or rank(tallies[best]) < rank(in_force) else 0), []


def _doubts(
    classes: Sequence[_Class], chosen: int, best: Sequence[int], tuned_on: str, reported_on: str, options: Options
) -> tuple[bool, list[str]]:
    """Return whether the other fold bears a proposal out, and what the data cannot tell."""
    tally, in_force = (classes[place].folds[reported_on] for place in (chosen, 0))
    if not tally.runs:
        return False, [f"no run is in fold {reported_on}: there are too few tasks to divide them"]
    found = gain(tally)
    notes = []
    within = options.limit.admits(tally, in_force)
    if not within:
        notes.append(
            f"fold {reported_on} does not bear it out: there it stops {tally.stopped_successes} successful runs, "
            f"{tally.stopped_successes_working} of them at work (in force: {in_force.stopped_successes}, "
            f"{in_force.stopped_successes_working}), and the limit is {options.limit}"
        )
    # Where the policy in force itself is beyond the limit, a candidate within it need not save more.
    tuned = classes[0].folds[tuned_on]
    better = rank(tally) < rank(in_force) or not options.limit.admits(tuned, tuned)
    if not better:
        notes.append(f"fold {reported_on} does not bear it out: there it is no better than the policy in force")
    changed = {fold: classes[chosen].folds[fold].changed for fold in (tuned_on, reported_on)}
    for fold, count in changed.items():
        if count < options.few:
            notes.append(f"too few to tell: it decides {count} runs of fold {fold} otherwise, fewer than {options.few}")
    if better and found.turns > 0 and not found.is_sure:
        notes.append(
            f"the turns it saves on fold {reported_on} may be chance: the interval of the difference includes 0"
        )
    if tally.denied_succeeded > in_force.denied_succeeded:
        notes.append(
            f"on fold {reported_on} it refuses {tally.denied_succeeded} calls that had succeeded "
            f"(in force: {in_force.denied_succeeded})"
        )
    others = [place for place in best if place not in (0, chosen)]
    mine = gain(classes[chosen].folds[tuned_on])
    near = sum(overlap(mine, gain(classes[place].folds[tuned_on])) for place in others)
    if near:
        notes.append(
            f"the data cannot tell it from {near} other{'' if near == 1 else 's'} of the front: "
            f"their intervals on fold {tuned_on} overlap"
        )
    if not tally.successes:
        notes.append(f"no run of fold {reported_on} is labelled as successful, so wrong stops cannot be seen there")
    elif not tally.stopped_successes_working:
        most = 100 * exact(0, tally.successes).high
        notes.append(
            f"none of {tally.successes} successful runs of fold {reported_on} is stopped at work, "
            f"which leaves up to {most:.1f} % possible"
        )
    elif 2 * tally.stopped_successes_working >= tally.successes:
        notes.append(
            f"it stops {tally.stopped_successes_working} of {tally.successes} successful runs of fold {reported_on} at "
            "work, as the policy in force may do too: look at that policy first"
        )
    enough = min(changed.values()) >= options.few
    return within and better and enough and tally.successes > 0, notes


def _held_out(classes: Sequence[_Class], direction: Direction) -> PolicyFigures:
    chosen = next((one for one in classes if one.figures.name == direction.proposal), classes[0])
    return policy_figures(chosen.figures.name, "", "", _of_fold(chosen.groups, direction.reported_on))
