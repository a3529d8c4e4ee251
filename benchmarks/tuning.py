"""`python -m benchmarks.tuning --recordings DIR`: every threshold of a policy with other values, over all sets.

Knows: which values are tried, what a fold of tasks is. Must not know: what is asked of a policy (`evidence`).

What `policyengine tune` does with files that it can read, for all sets at once: each value alone, the rest as it is in
force. Values that decide every run in the same way stand in one row.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.grids import Grid, show, update
from benchmarks.sets import read
from policyengine.backtest.judge import FOLDS, Assignment, Judge, Judged, PolicySource
from policyengine.backtest.sweep import Changes, candidates, overlay, shown, sweeps
from policyengine.backtest.tally import Groups, Tally
from policyengine.cli.output import configure_logging
from policyengine.errors import ConfigError
from policyengine.identity import remembering
from policyengine.plugins.registry import discover
from policyengine.policy.load import load_policy
from policyengine.policy.model import Policy
from policyengine.policy.stricter import looking

POLICY = "unattended"

BESIDE = (
    "failure_hint_injector.with.levels.deny=3,4,5,6,8,10",
    "stall_detector.with.results=compare_successes,ignore",
    "stall_detector.with.interleaved.stop=8,9,10,12,15",
    "step_limit.with.max_steps=100,150,200,209,250,400,500",
)
"""What is tried beside the values around those in force."""

PAIRS: dict[str, tuple[dict[str, Any], ...]] = {
    "stall_detector.with.repeat": (
        {"hint": 2, "deny": {"$delete": True}, "stop": 3},
        {"hint": 3, "deny": 4, "stop": 5},
    ),
    "stall_detector.with.cycle": ({"hint": 2, "deny": {"$delete": True}, "stop": 3}, {"hint": 3, "deny": 4, "stop": 5}),
    "stall_detector.with.interleaved": ({"hint": 4, "deny": 5, "stop": 6}, {"hint": 5, "deny": 7, "stop": 9}),
    "stall_detector.with.stagnation.exec": ({"hint": 6, "deny": 8, "stop": 10}, {"hint": 4, "deny": 5, "stop": 6}),
    "stall_detector.with.text": ({"hint": {"$delete": True}, "stop": 2},),
}
"""Ladders of which more than one rung has to move."""

CAPS = (4, 6, 8, 12, 15, 20, 40)

COLUMNS = (
    "threshold",
    "value",
    *(f"#{fold}: {what}" for fold in FOLDS for what in ("turns saved", "successes stopped", "at work")),
    "#refused, had succeeded",
)


class Candidate(NamedTuple):
    """One threshold with another value, as an overlay on the policy; the policy itself has none."""

    threshold: str
    value: str
    overlay: str


class Effect(NamedTuple):
    """What a candidate comes to: its tally of each fold, and a digest of all its decisions."""

    folds: dict[str, Tally]

    @property
    def decisions(self) -> tuple[int, ...]:
        """Equal for candidates that decide every run in the same way."""
        return tuple(tally.decisions for tally in self.folds.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return 0, or 2 if the work cannot be done."""
    arguments = _arguments(argv)
    configure_logging()
    try:
        grids = tables(arguments.recordings, arguments.policy, arguments.workers)
        if arguments.update:
            update(arguments.update, grids)
    except (OSError, ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for grid in () if arguments.update else grids:
        show(grid, markdown=arguments.markdown)
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recordings", type=Path, required=True, metavar="DIR", help="folder that holds the sets")
    parser.add_argument("--policy", default=POLICY, metavar="P", help="a shipped policy or a path; default: unattended")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/evidence-tuning.md")
    parser.add_argument(
        "--update", type=Path, metavar="FILE", help="write the Markdown between the marks of docs/evidence-tuning.md"
    )
    return parser.parse_args(argv)


def tables(root: Path, policy: str = POLICY, workers: int = 1) -> list[Grid]:
    """Return a table for each rule of the policy, and one for what is in force."""
    registry = discover()
    loaded = load_policy(policy, registry=registry)
    tried = list(_candidates(loaded, looking(registry, loaded)))
    in_force, *effects = effects_of(root, policy, [Candidate("", "in force", ""), *tried], workers)
    found = [Grid(f"{policy}: in force", COLUMNS[1:], (_row(in_force, "in force"),))]
    rules = dict.fromkeys(candidate.threshold.partition(".")[0] for candidate in tried)
    for rule in rules:
        rows = tuple(_rows(rule, tried, effects, in_force))
        found.append(Grid(f"{policy}: {rule}", COLUMNS, rows))
    return found


# ---- candidates


def _candidates(policy: Policy, look: Any) -> Iterator[Candidate]:
    sweep = {threshold.name: (threshold, values) for threshold, values in sweeps(policy, look, ())}
    for threshold, values in sweeps(policy, look, BESIDE):
        around = sweep[threshold.name][1] if threshold.name in sweep else ()
        values = tuple(dict.fromkeys((*around, *values)))
        sweep[threshold.name] = (threshold, tuple(sorted(values, key=lambda one: (isinstance(one, str), one))))
    for changes in candidates(list(sweep.values()), most=1000):
        yield Candidate(changes[0].threshold.name, _value(changes), overlay(policy, changes))
    head = f"apiVersion: policyengine/v1\nkind: Overlay\ntarget: {policy.name}\n"
    for name, ladders in PAIRS.items():
        rule, _, path = name.partition(".with.")
        for ladder in ladders:
            inner = "{" + ", ".join(f"{rung}: {_written(value)}" for rung, value in ladder.items()) + "}"
            nested = "".join(f"{{{key}: " for key in path.split(".")) + inner + "}" * len(path.split("."))
            kept = {rung: value for rung, value in ladder.items() if isinstance(value, int)}
            value = ", ".join(f"{rung} {value}" for rung, value in kept.items())
            yield Candidate(name, value, f"{head}extensions:\n  {rule}: {{with: {nested}}}\n")
    for cap in CAPS:
        yield Candidate("interventions.max", str(cap), f"{head}interventions: {{max: {cap}}}\n")


def _value(changes: Changes) -> str:
    return shown(changes[0].value)


def _written(value: Any) -> str:
    return "{$delete: true}" if isinstance(value, dict) else str(value)


# ---- judging


def effects_of(root: Path, policy: str, tried: Sequence[Candidate], workers: int) -> list[Effect | None]:
    """Return what each candidate comes to, or nothing where it is no policy."""
    with TemporaryDirectory() as folder:
        sources = [_source(policy, candidate, Path(folder) / f"{n}.yaml") for n, candidate in enumerate(tried)]
        parts = [sources[start::workers] for start in range(workers)]
        if workers == 1:
            found = [_judged(root, parts[0])]
        else:
            with ProcessPoolExecutor(workers) as pool:
                found = list(pool.map(_judged, [root] * workers, parts))
    return [found[place % workers][place // workers] for place in range(len(tried))]


def _source(policy: str, candidate: Candidate, file: Path) -> PolicySource:
    file.write_text(candidate.overlay, encoding="utf-8")
    return PolicySource(candidate.value, policy, (str(file),) if candidate.overlay else ())


def _judged(root: Path, sources: Sequence[PolicySource]) -> list[Effect | None]:
    valid = [source for source in sources if _is_policy(source)]
    judge = Judge(Assignment(tuple(valid), by="fold"))
    judged = Judged(0, groups=[Groups() for _ in valid])
    for recording in read(root):
        with remembering():
            judge.run(recording, judged)
    effects = dict(zip(map(id, valid), map(_effect, judged.groups), strict=True))
    return [effects.get(id(source)) for source in sources]


def _is_policy(source: PolicySource) -> bool:
    try:
        source.engine()
    except ConfigError:
        return False
    return True


def _effect(groups: Groups) -> Effect:
    folds = {fold: Tally() for fold in FOLDS}
    for key, tally in groups.sorted():
        folds[key.task[:1]].merge(tally)
    return Effect(folds)


# ---- rows


def _rows(
    rule: str, tried: Sequence[Candidate], effects: Sequence[Effect | None], in_force: Effect | None
) -> Iterator[tuple[str, ...]]:
    alike: dict[tuple[Any, ...], list[str]] = {}
    first: dict[tuple[Any, ...], Effect | None] = {}
    for candidate, effect in zip(tried, effects, strict=True):
        if candidate.threshold.partition(".")[0] == rule:
            key = (candidate.threshold, effect and effect.decisions)
            alike.setdefault(key, []).append(candidate.value)
            first.setdefault(key, effect)
    for (threshold, decisions), values in alike.items():
        name = threshold.replace(".with.", ": ") if ".with." in threshold else threshold
        same = in_force is not None and decisions == in_force.decisions
        yield (name, *_row(first[threshold, decisions], "; ".join(values) + (" (no difference)" if same else "")))


def _row(effect: Effect | None, value: str) -> tuple[str, ...]:
    if effect is None:
        return (value, *("refused" for _ in COLUMNS[2:]))
    cells: list[int] = []
    for tally in effect.folds.values():
        cells += (tally.turns_saved, tally.stopped_successes, tally.stopped_successes_working)
    denied = sum(tally.denied_succeeded for tally in effect.folds.values())
    return (value, *(f"{cell:,}" for cell in cells), f"{denied:,}")


if __name__ == "__main__":
    sys.exit(main())
