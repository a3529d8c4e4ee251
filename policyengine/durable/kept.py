"""What people do with kept runs: look at them, answer what they ask, take them along, forget them.

Knows: heads, outcomes. Must not know: drivers, models, how a run goes on.
"""

from __future__ import annotations

import msgspec

from policyengine.durable.lease import RunBusyError, is_free
from policyengine.durable.record import (
    HEADS,
    MESSAGES,
    OUTCOMES,
    RESULTS,
    STATES,
    Answer,
    Head,
    forget_result,
    forget_run,
    read_head,
    read_messages,
    read_outcome,
    write_head,
    write_messages,
    write_outcome,
)
from policyengine.durable.standing import Standing, given_up, read_standing
from policyengine.errors import UsageError
from policyengine.messages import Message
from policyengine.outcome import Outcome
from policyengine.stores import Store, StoreError, Values


class Damaged(msgspec.Struct, frozen=True):
    """A run whose head cannot be read, and why."""

    run_id: str
    problem: str


class KeptRuns:
    """The runs in a store. Every method raises StoreError where the store cannot be used."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def heads(self) -> tuple[list[Head], list[Damaged]]:
        """Return what is kept, the latest first, and what of it cannot be read."""

        def look(values: Values) -> tuple[list[Head], list[Damaged]]:
            found, damaged = [], []
            for run_id in values.keys(HEADS):
                try:
                    head = read_head(values, run_id)
                except StoreError as error:
                    if error.transient:
                        raise
                    damaged.append(Damaged(run_id, str(error)))
                else:
                    found += [head] if head is not None else []
            return found, damaged

        found, damaged = self._store.read(look)
        return sorted(found, key=lambda head: (-head.created, head.run_id)), damaged

    def head(self, run_id: str) -> Head:
        """Return the head of a run; the beginning of an id is enough where only one begins so.

        Raises:
            UsageError: there is no such run, or several.
        """
        return self._store.read(lambda values: _named(values, run_id))

    def now(self) -> float:
        """Return the time by the store's clock, which that of every head is by."""
        return self._store.read(lambda values: values.now())

    def standing(self, run_id: str) -> Standing | None:
        """Return how a run stands, or `None` if it had not begun. Raises UsageError as `head`."""
        return self._store.read(lambda values: read_standing(values, _named(values, run_id)))

    def messages(self, run_id: str) -> list[Message]:
        """Return the messages of a run so far. Raises UsageError as `head`."""
        return self._store.read(lambda values: read_messages(values, _named(values, run_id)))

    def outcome(self, run_id: str) -> Outcome | None:
        """Return how a run ended, or `None` if it has not. Raises UsageError as `head`."""
        return self._store.read(lambda values: read_outcome(values, _named(values, run_id)))

    def answer(self, run_id: str, *, approved: bool, digest: str | None = None, text: str = "", by: str = "") -> Head:
        """Keep a human's answer to what a run asks; it goes on when somebody resumes it.

        With a `digest` the answer counts only if that is what the run asks; without one it is what is kept now.
        `text` goes to the model with a refusal, `by` is kept beside it.

        Raises:
            UsageError: there is no such run, it asks nothing, or something else.
            RunBusyError: somebody works on it, and will ask in their own way.
        """

        def change(values: Values) -> Head:
            head, now = _named(values, run_id), values.now()
            if head.asked is None or head.ended:
                raise UsageError(f"run {head.run_id!r} asks nothing: it is {head.status}")
            if not is_free(head, now):
                raise RunBusyError(head, now)
            if digest not in (None, head.asked.digest):
                raise UsageError(
                    f"run {head.run_id!r} asks about something else by now: {head.asked.digest}, not {digest}; "
                    "look at it again (runs show)"
                )
            head = msgspec.structs.replace(head, answer=Answer(approved, head.asked.digest, text, by, now), updated=now)
            write_head(values, head)
            return head

        return self._store.update(change)

    def cancel(self, run_id: str, why: str = "cancelled") -> Head:
        """End a run for good, without its policy: calls that were running or asked about are answered as such.

        Raises:
            UsageError: there is no such run, or it has ended.
            RunBusyError: somebody works on it.
        """

        def change(values: Values) -> Head:
            head, now = _named(values, run_id), values.now()
            if head.ended:
                raise UsageError(f"run {head.run_id!r} has ended already: it is {head.status}")
            if not is_free(head, now):
                raise RunBusyError(head, now)
            standing = read_standing(values, head)
            outcome = given_up(standing, why)
            known = standing.messages if standing is not None else ()
            fresh = list(outcome.messages[len(known) :])
            if fresh:
                write_messages(values, head.run_id, head.parts, fresh)
            for place in standing.results if standing is not None else ():
                forget_result(values, head, place)
            head = msgspec.structs.replace(
                head,
                status="cancelled",
                phase="done",
                error=why,
                parts=head.parts + bool(fresh),
                asked=None,
                answer=None,
                owner="",
                until=0.0,
                updated=now,
            )
            write_outcome(values, head.run_id, outcome)
            write_head(values, head)
            return head

        return self._store.update(change)

    def forget_damaged(self, run_id: str) -> None:
        """Forget everything that is kept under the id of a run whose head cannot be read."""

        def change(values: Values) -> None:
            for kind in (HEADS, STATES, OUTCOMES):
                values.delete(kind, run_id)
            for kind in (MESSAGES, RESULTS):
                for key in values.keys(kind, f"{run_id}/"):
                    if key.removeprefix(f"{run_id}/").replace("/", "").isdigit():
                        values.delete(kind, key)

        self._store.update(change)

    def forget(self, run_id: str) -> Head:
        """Forget a run that has ended or that nobody works on. Raises UsageError as `head`, RunBusyError."""

        def change(values: Values) -> Head:
            head, now = _named(values, run_id), values.now()
            if not is_free(head, now):
                raise RunBusyError(head, now)
            forget_run(values, head)
            return head

        return self._store.update(change)


def _named(values: Values, run_id: str) -> Head:
    head = read_head(values, run_id) if run_id else None
    if head is not None:
        return head
    near = values.keys(HEADS, run_id) if run_id else ()
    if len(near) == 1 and (head := read_head(values, near[0])) is not None:
        return head
    if near:
        raise UsageError(f"{len(near)} runs begin with {run_id!r}: {', '.join(near[:5])}")
    raise UsageError(f"no run {run_id!r} is kept in this store; see `runs list`")
