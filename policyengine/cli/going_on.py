"""Runs that are kept: begun, gone on with in another process, followed by another run of the same conversation.

Knows: which of these a run needs. Must not know: how an agent is made, what is shown of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from policyengine.cli.keeping import Made, begin_command, command_for, made_of, shown_place, task_of
from policyengine.cli.output import print_json, say, terminal
from policyengine.cli.run import EXIT_CODES, How, Kept, described, perform
from policyengine.durable import Head, KeptRuns
from policyengine.durable.standing import Standing
from policyengine.errors import UsageError
from policyengine.identity import raw_fingerprint
from policyengine.providers.scripted import load_script
from policyengine.stores import Store, StoreError, open_store
from policyengine.telemetry.live import LiveView

ID_DIGITS = 12
"""Digits of the id of a run that nobody named."""


@contextmanager
def store_at(place: str, *, there: bool = False) -> Iterator[tuple[Store, KeptRuns]]:
    """Open the store at a place, as a store and as the runs in it.

    Where it should be `there` already, a file that is missing is a mistake: opening it would make an empty one.
    """
    path = place.removeprefix("sqlite:")
    if there and place != "memory:" and "://" not in place and not Path(path).exists():
        raise UsageError(f"no runs are kept at {path}: there is no such file")
    with closing(open_store(place)) as store:
        yield store, KeptRuns(store)


def begin(place: str, run_id: str | None, made: Made, how: How, task: str | None, agent: str) -> int:
    """Begin a run that is kept, or go on with the one of this id; print how it ended if it has."""
    if not task and made.model == "scripted":
        task = load_script(made.script).task
    with store_at(place) as (store, runs):
        chosen = run_id or uuid4().hex[:ID_DIGITS]
        head = _known(runs, chosen)
        same = head is not None and (not task or head.task_digest == raw_fingerprint(task))
        if head is not None and head.ended and same:
            return tell_ended(runs, head, place, how)
        standing = runs.standing(chosen) if head is not None else None
        if standing is not None and same:
            task = task or standing.run.task
        before = None
        if head is not None and same and standing is None:
            before, made = _before(runs, head), _following(head, made)
        return perform(made, how, task, Kept(store, place, chosen, standing, before), agent=agent)


def go_on(place: str, run_id: str, given: Mapping[str, Any], how: How, text: str | None) -> int:
    """Go on with a run; with a `text` for one that has ended, in another run of the same conversation."""
    with store_at(place, there=True) as (store, runs):
        head = runs.head(run_id, whole=True)
        if text is not None:
            return _follow(store, place, runs, head, given, how, text)
        if head.ended:
            return tell_ended(runs, head, place, how)
        standing = runs.standing(head.run_id)
        if standing is None:
            task = task_of(head)
            if task is None:
                raise UsageError(
                    f"run {head.run_id!r} had not begun when its process ended, and only the beginning of its task is "
                    f"kept; give it once more: {begin_command(head, place)}"
                )
            kept = Kept(store, place, head.run_id, None, _before(runs, head))
            return perform(made_of(head, given), how, task, kept)
        return perform(made_of(head, given), how, None, Kept(store, place, head.run_id, standing, resumed=True))


def tell_ended(runs: KeptRuns, head: Head, place: str, how: How) -> int:
    """Print how a run ended, and how one goes on after it; return the exit code of that."""
    outcome = runs.outcome(head.run_id)
    if outcome is None:
        raise StoreError(f"run {head.run_id!r} has ended, but how it did is missing")
    view = LiveView(terminal(stderr=how.as_json, no_color=how.no_color))
    view.tell("run", f"{head.run_id}, kept in {shown_place(place)}, has ended")
    view.finish(outcome)
    if how.as_json:
        policy = {"name": head.policy, "digest": head.digest}
        print_json(described(outcome, policy, head, place))
    if head.status != "completed":
        following = command_for("resume", head.run_id, place, "--say", "TEXT")
        say(f"run {head.run_id} has ended, so there is nothing to go on with. In the same conversation: {following}")
    return EXIT_CODES[outcome.status]


def _follow(store: Store, place: str, runs: KeptRuns, head: Head, given: Mapping[str, Any], how: How, text: str) -> int:
    """Begin the run that follows another one, or go on with it where it has begun."""
    if not head.ended:
        if head.asked is not None:
            raise UsageError(
                f"run {head.run_id!r} asks something; answer it first: {command_for('approve', head.run_id, place)}, "
                f"or {command_for('reject', head.run_id, place, '--say', 'TEXT')}"
            )
        raise UsageError(f"run {head.run_id!r} has not ended, so nothing can be said to it; resume it without --say")
    if not text.strip():
        raise UsageError("--say is what the agent is to do next; it is empty")
    made = made_of(head, given)
    before = _ended(runs, head)
    first, number = made.first or head.run_id, made.number + 1
    chosen = f"{first}.{number}"
    known = _known(runs, chosen)
    if known is not None and (known.origin.get("follows"), known.task_digest) != (head.run_id, raw_fingerprint(text)):
        raise UsageError(
            f"run {head.run_id!r} was followed by {chosen!r} already; say it there: "
            f"{command_for('resume', chosen, place, '--say', 'TEXT')}"
        )
    if known is not None and known.ended:
        return tell_ended(runs, known, place, how)
    played = made.played + before.loop.requests
    made = msgspec.structs.replace(made, first=first, follows=head.run_id, number=number, played=played)
    kept = Kept(store, place, chosen, runs.standing(chosen) if known is not None else None, before)
    return perform(made, how, text, kept, agent=head.agent)


def _before(runs: KeptRuns, head: Head) -> Standing | None:
    """Return how the run ended that another one follows which had not begun, or `None` if that follows none."""
    follows = head.origin.get("follows")
    if not isinstance(follows, str) or not follows:
        return None
    known = _known(runs, follows)
    if known is None:
        raise UsageError(
            f"run {head.run_id!r} follows {follows!r}, which was forgotten with its history; give its task to a new run"
        )
    return _ended(runs, known)


def _ended(runs: KeptRuns, head: Head) -> Standing:
    """Return what another run goes on from after one that has ended."""
    standing = runs.standing(head.run_id)
    if standing is None:
        raise UsageError(f"run {head.run_id!r} ended before it began; give its task to a new one")
    # What is kept of its messages, not what its state held: a run that was cancelled had answers added.
    return msgspec.structs.replace(standing, results={})


def _following(head: Head, made: Made) -> Made:
    """Return the options of a run with its place in the conversation, as it is kept."""
    if not head.origin.get("follows"):
        return made
    kept = made_of(head, {})
    return msgspec.structs.replace(made, first=kept.first, follows=kept.follows, number=kept.number, played=kept.played)


def _known(runs: KeptRuns, run_id: str) -> Head | None:
    """Return the head of the run of exactly this id, or `None`."""
    try:
        return runs.head(run_id, whole=True)
    except UsageError:
        return None
