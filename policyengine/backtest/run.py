"""A whole backtest: plan the input, judge it, add it up.

Knows: the order of these. Must not know: how each is done, how the report is shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from time import perf_counter
from typing import Literal

from policyengine.backtest import merge
from policyengine.backtest.figures import BacktestReport
from policyengine.backtest.judge import Assignment, Judged, PolicySource, sources
from policyengine.backtest.local import judge_all
from policyengine.backtest.resume import Ledger
from policyengine.backtest.work import Unit, plan
from policyengine.errors import UsageError
from policyengine.recordings.readers import readers_for

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and those of the whole input."""

EngineName = Literal["local", "ray"]

INLINE_BYTES = 16 * 2**20
"""Less input than this is not worth the start of other processes."""


def backtest(
    paths: Iterable[str | os.PathLike[str]],
    policies: Sequence[str] | Sequence[PolicySource] = ("default",),
    *,
    overlays: Sequence[str] = (),
    folders: Sequence[str] = (),
    baseline: str | None = None,
    by_task: bool = False,
    form: str = "",
    protocol: str = "native",
    workers: int = 1,
    engine: EngineName = "local",
    address: str | None = None,
    resume: Path | None = None,
    progress: Progress | None = None,
) -> BacktestReport:
    """Return what policies would have done in recorded runs.

    Args:
        paths: files, and folders with all recordings in them.
        policies: shipped names or files (or sources that were made already); all are judged in one pass.
        overlays: overlays on each of the policies (not on the baseline).
        folders: drop-in folders of extensions.
        baseline: another policy, from which transitions are counted.
        by_task: whether tasks are groups of their own.
        form: read every file as this format.
        protocol: how calls are written in plain chat messages; `text` is what each policy declares.
        workers: processes of the engine `local`; 1 does all the work here. A program that wants more calls this below
            `if __name__ == "__main__":`, because they import its main module.
        engine: `local`, or `ray` (needs the extra `ray`).
        address: of a Ray cluster; without it Ray runs on this machine.
        resume: a file to go on from; it is made if there is none.
        progress: told about bytes done.

    Raises:
        ConfigError: a policy cannot be used.
        UsageError: arguments contradict each other, or workers died again and again.
    """
    begun = perf_counter()
    if resume is not None and os.path.exists(resume) and not (os.path.isfile(resume) or os.path.isdir(resume)):
        raise UsageError(f"cannot write {resume}: not a regular file")
    assignment = assigned(policies, overlays, folders, baseline, by_task=by_task, form=form, protocol=protocol)
    units, skipped, unreadable = plan(paths, readers_for(form, protocol), resume)
    merged = merge.empty(assignment, skipped, unreadable)
    with closing(_judged(assignment, units, workers, engine, address, resume, progress)) as results:
        for judged in results:
            merged.add(judged)
    return merge.report(merged, assignment, perf_counter() - begun)


def assigned(
    policies: Sequence[str] | Sequence[PolicySource],
    overlays: Sequence[str] = (),
    folders: Sequence[str] = (),
    baseline: str | None = None,
    *,
    by_task: bool = False,
    form: str = "",
    protocol: str = "native",
) -> Assignment:
    """Return what workers are told, every policy loaded once.

    Raises:
        ConfigError: a policy cannot be used.
        UsageError: there is none, or two would have the same name in the figures.
    """
    first = sources([baseline], folders=folders) if baseline is not None else ()
    made = tuple(policy for policy in policies if isinstance(policy, PolicySource))
    named = sources((policy for policy in policies if isinstance(policy, str)), overlays, folders)
    if not made and not named:
        raise UsageError("no policy is given")
    judged = (*first, *named, *made)
    _check_names([policy.name for policy in judged])
    return Assignment(judged, baseline is not None, "task" if by_task else "", form, protocol)


def _check_names(names: Sequence[str]) -> None:
    """Figures, conditions and transitions go by a policy's name: two of one name cannot be told apart."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two policies are called {twice}; give each a file with a name of its own")


def _judged(
    assignment: Assignment,
    units: Sequence[Unit],
    workers: int,
    engine: EngineName,
    address: str | None,
    resume: Path | None,
    progress: Progress | None,
) -> Generator[Judged, None, None]:
    sizes = {unit.number: unit.size for unit in units}
    whole, done = sum(sizes.values()), 0
    with ExitStack() as stack:
        ledger = None if resume is None else stack.enter_context(Ledger(resume, assignment, units))
        if ledger is not None:
            for judged in ledger.done():
                done += sizes[judged.number]
                yield judged
            units = [unit for unit in units if unit.number not in ledger.known]
        if progress is not None:
            progress(done, whole)  # so that the time left is reckoned from what is done from now on
        for judged in _work(assignment, units, workers, engine, address):
            if ledger is not None:
                try:
                    ledger.add(judged)
                except OSError as error:
                    raise UsageError(f"cannot write {resume}: {error.strerror}") from error
            done += sizes[judged.number]
            if progress is not None:
                progress(done, whole)
            yield judged


def _work(
    assignment: Assignment, units: Sequence[Unit], workers: int, engine: EngineName, address: str | None
) -> Iterator[Judged]:
    if engine == "ray":
        from policyengine.backtest.on_ray import judge_on_ray

        return judge_on_ray(assignment, units, address)
    if address is not None:
        raise UsageError('an address is one of a Ray cluster; it needs `engine="ray"`')
    small = sum(unit.size for unit in units) < INLINE_BYTES
    return judge_all(assignment, units, 1 if small else workers)
