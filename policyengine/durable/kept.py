"""What people do with kept runs: look at them, answer what they ask, take them along, forget them.

Knows: heads, outcomes. Must not know: drivers, models, how a run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from policyengine.durable.lease import RunBusyError, is_free
from policyengine.durable.record import (
    ANSWERS,
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
    read_holder,
    read_messages,
    read_outcome,
    row_key,
    told,
    write_head,
    write_messages,
    write_outcome,
)
from policyengine.durable.standing import Standing, given_up, given_up_unread, read_standing
from policyengine.errors import UsageError
from policyengine.messages import Message
from policyengine.outcome import Outcome
from policyengine.stores import Store, StoreError, Values


class Damaged(msgspec.Struct, frozen=True):
    """A run whose head cannot be read, and why."""

    run_id: str
    problem: str


class Seen(msgspec.Struct, frozen=True):
    """All that is kept of a run, as of one time; `problem` says why how it stands cannot be read."""

    head: Head
    now: float
    messages: list[Message]
    standing: Standing | None = None
    outcome: Outcome | None = None
    problem: str = ""


HEADS_AT_ONCE = 200
"""How many heads are read as of one time. Others write theirs meanwhile; a list of all would never be finished."""


class KeptRuns:
    """The runs in a store. Every method raises StoreError where the store cannot be used.

    What only looks takes the beginning of an id, where only one run begins so. What changes a run takes its whole id.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def heads(self) -> tuple[list[Head], list[Damaged]]:
        """Return what is kept, the latest first, and what of it cannot be read."""

        found: list[Head] = []
        damaged: list[Damaged] = []
        ids = self._store.read(lambda values: values.keys(HEADS))
        for start in range(0, len(ids), HEADS_AT_ONCE):
            for head in self._heads(ids[start : start + HEADS_AT_ONCE]):
                if isinstance(head, Damaged):
                    damaged.append(head)
                else:
                    found.append(head)
        return sorted(found, key=lambda head: (-head.created, head.run_id)), damaged

    def _heads(self, ids: tuple[str, ...]) -> Iterator[Head | Damaged]:
        """Yield some heads at once; where one is damaged, each by itself."""

        def look(values: Values) -> list[Head | None]:
            values.get_many(HEADS, ids)
            return [read_head(values, run_id) for run_id in ids]

        try:
            yield from (head for head in self._store.read(look) if head is not None)
        except StoreError as error:
            if error.transient:
                raise
            if len(ids) == 1:
                yield Damaged(ids[0], str(error))
            else:
                for run_id in ids:
                    yield from self._heads((run_id,))

    def head(self, run_id: str, *, whole: bool = False) -> Head:
        """Return the head of a run; `whole`: only if that is its whole id.

        Raises:
            UsageError: there is no such run, or several.
        """
        return self._store.read(lambda values: _whole(values, run_id) if whole else _named(values, run_id))

    def seen(self, run_id: str) -> Seen:
        """Return all that is kept of a run. Raises UsageError as `head`."""

        def look(values: Values) -> Seen:
            head = _named(values, run_id)
            messages = read_messages(values, head)
            found = Seen(head, values.now(), messages, outcome=read_outcome(values, head, messages))
            try:
                return msgspec.structs.replace(found, standing=read_standing(values, head, messages))
            except StoreError as error:
                if error.transient:
                    raise
                return msgspec.structs.replace(found, problem=str(error))

        return self._store.read(look)

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

    def answer(
        self,
        run_id: str,
        *,
        approved: bool,
        digest: str | None = None,
        text: str = "",
        by: str = "",
        replace: bool = False,
    ) -> Head:
        """Keep a human's answer to what a run asks; it goes on when somebody resumes it.

        With a `digest` the answer counts only if that is what the run asks; without one it is what is kept now.
        `text` goes to the model with a refusal, `by` is kept beside it. With `replace` it takes the place of an answer
        that nobody has acted on yet; both stay among the run's answers.

        Raises:
            UsageError: there is no such run, it asks nothing, or something else, or it was answered already.
            RunBusyError: somebody works on it, and will ask in their own way.
        """

        def change(values: Values) -> Head:
            head, now = _whole(values, run_id), values.now()
            if head.asked is None or head.ended:
                raise UsageError(f"run {head.run_id!r} asks nothing: it is {head.status}")
            if not is_free(head, now):
                raise RunBusyError(head, now)
            if digest not in (None, head.asked.digest):
                if any(digest == call.digest for call in head.asked.calls):
                    raise UsageError(f"{digest} is the digest of a call; that of the question is {head.asked.digest}")
                if digest and head.asked.digest.startswith(digest):
                    raise UsageError(f"{digest} is the beginning of a digest; give all of it: {head.asked.digest}")
                raise UsageError(
                    f"run {head.run_id!r} asks about something else by now: {head.asked.digest}, not {digest}; "
                    "look at it again (runs show)"
                )
            before = head.answer
            if before is not None and before.digest == head.asked.digest and not replace:
                raise UsageError(
                    f"run {head.run_id!r} was answered already: {told(before)}; say --replace (replace=True) to have "
                    "this answer count instead"
                )
            tools = tuple(dict.fromkeys(call.tool for call in head.asked.calls))
            given = Answer(approved, head.asked.digest, text, by, now, tools)
            # Whoever held it and is overdue can write no more: their own answer must not take the place of this one.
            answers = (*head.answers, given)[-ANSWERS:]
            head = msgspec.structs.replace(head, answer=given, answers=answers, updated=now, owner="", until=0.0)
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
            head, now = _whole(values, run_id), values.now()
            if head.ended:
                raise UsageError(f"run {head.run_id!r} has ended already: it is {head.status}")
            if not is_free(head, now):
                raise RunBusyError(head, now)
            known = read_messages(values, head)
            standing = None
            try:
                standing = read_standing(values, head, known)
                outcome = given_up(standing, why)
            except StoreError as error:  # such as that of another version of the engine: nobody here goes on with it
                if error.transient:
                    raise
                outcome = given_up_unread(known, f"{why} ({error})")
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
        """Forget everything that is kept under the id of a run whose head cannot be read. Raises RunBusyError."""

        def change(values: Values) -> None:
            held, now = read_holder(values, run_id), values.now()
            if not is_free(held, now):
                raise RunBusyError(held, now)
            for kind in (HEADS, STATES, OUTCOMES):
                values.delete(kind, run_id)
            for kind in (MESSAGES, RESULTS):
                for key in values.keys(kind, row_key(run_id)):
                    values.delete(kind, key)

        self._store.update(change)

    def forget_where(self, chosen: Callable[[Head, float], bool]) -> Iterator[str]:
        """Forget the runs that are chosen by their head and the time; yield the id of each.

        One that somebody works on stays. Each is looked at again when it is forgotten: it may be another one by then.
        """

        def change(values: Values) -> bool:
            head, now = read_head(values, run_id), values.now()
            if head is None or not is_free(head, now) or not chosen(head, now):
                return False
            forget_run(values, head)
            return True

        now = self.now()
        for run_id in [head.run_id for head in self.heads()[0] if is_free(head, now) and chosen(head, now)]:
            if self._store.update(change):
                yield run_id

    def forget(self, run_id: str) -> Head:
        """Forget a run that has ended or that nobody works on. Raises UsageError as `head`, RunBusyError."""

        def change(values: Values) -> Head:
            head, now = _whole(values, run_id), values.now()
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


def _whole(values: Values, run_id: str) -> Head:
    """Return the head of the run of exactly this id: said twice, a beginning would mean another run the second time."""
    head = read_head(values, run_id) if run_id else None
    if head is not None:
        return head
    near = values.keys(HEADS, run_id) if run_id else ()
    more = f" and {len(near) - 5} more" if len(near) > 5 else ""
    hint = f"there is {', '.join(map(repr, near[:5]))}{more}; give the whole id" if near else "see `runs list`"
    raise UsageError(f"no run {run_id!r} is kept in this store; {hint}")
