"""Keeps one run in a store while a driver works on it.

Knows: what is committed at which point, and that nothing is once the run is somebody else's.
Must not know: how the loop decides, how effects are performed.

What is committed before an effect is performed says what is about to happen; what is committed afterwards is what came
of it. A worker that dies in between leaves calls whose outcome nobody knows, and whoever goes on can tell them from
those that never began.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, TypeVar

import msgspec

from policyengine.durable.lease import LeaseLostError, RunBusyError, is_free, new_owner
from policyengine.durable.offload import off_loop
from policyengine.durable.record import (
    ANSWERS,
    MESSAGES,
    SHOWN,
    STATES,
    Answer,
    Asked,
    Head,
    RunStatus,
    asked_about,
    forget_result,
    read_head,
    read_messages,
    read_outcome,
    read_results,
    row_key,
    write_head,
    write_messages,
    write_outcome,
    write_result,
)
from policyengine.errors import UsageError
from policyengine.identity import raw_fingerprint
from policyengine.log import log
from policyengine.loop.state import Answered, AskHuman, Effect, Loop, LoopState
from policyengine.messages import Message, ToolResult
from policyengine.outcome import Outcome
from policyengine.run import read_saved
from policyengine.stores import Store, StoreError, Values

T = TypeVar("T")

LEASE_S = 60.0
"""For how long a run belongs to a worker that says nothing."""


class Found(msgspec.Struct, frozen=True):
    """What was kept of a run that goes on: its state, its latest time, its messages, results of calls under way."""

    saved: bytes
    now: float
    messages: list[Message]
    results: dict[int, ToolResult]


class Keeper:
    """One run in a store, held by this worker. Made by `claim`; safe for the threads of one driver."""

    def __init__(self, store: Store, head: Head, lease_s: float) -> None:
        self.head = head
        self.lease_s = lease_s
        self.renewed = monotonic()
        self.store = store
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._messages: list[Message] | None = None
        self._kept = 0
        self._results: set[int] = set()

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.head.run_id

    def found(self) -> Found | None:
        """Return what was kept, or `None` for a run that has not begun. Raises StoreError."""

        def look(values: Values) -> Found | None:
            state = values.get(STATES, self.run_id)
            if state is None and self.head.turn:
                raise StoreError(f"run {self.run_id!r} had begun, but its state is missing")
            if state is None:
                return None
            saved = read_saved(state)
            calls = len(saved.loop["pending"])
            results = read_results(values, self.head, calls)
            return Found(state, saved.state.now, read_messages(values, self.head), results)

        found = self.store.read(look)
        if found is not None:
            self._messages, self._kept = found.messages, len(found.messages)
            self._results = set(found.results)
        return found

    def answer_to(self, question: AskHuman) -> Answer | None:
        """Return a human's answer that was kept, if it is one to this question: an answer to another one is none."""
        answer = self.head.answer
        if answer is None:
            return None
        if answer.digest == self._asked(question).digest:
            return answer
        log().warning("run {} asks something else than what was answered; it asks again", self.run_id)
        return None

    def heard(self, question: AskHuman, answer: Answered) -> None:
        """Remember what a human answered here; it is committed with the next effect."""
        asked = self._asked(question)
        tools = tuple(dict.fromkeys(call.tool for call in asked.calls))
        given = Answer(answer.approved, asked.digest, answer.text, answer.by, answer.at, tools)
        self.head = msgspec.structs.replace(self.head, answers=(*self.head.answers, given)[-ANSWERS:])

    def _asked(self, question: AskHuman) -> Asked:
        """Return a question: the one that waits, if it is the same as it was, else a new one."""
        before = self.head.asked
        if before is not None:
            same = asked_about(question.calls, question.reason, self.head.questions)
            if same == before:
                return before
        return asked_about(question.calls, question.reason, self.head.questions + 1)

    # ---- what the driver reports

    def keep(self, loop: Loop, effect: Effect) -> None:
        """Commit the run as it stands before `effect` is performed.

        Raises:
            StoreError: nothing was kept; the run stands where it stood in the store.
            LeaseLostError: another worker has taken the run over.
        """
        asked = self._asked(effect) if isinstance(effect, AskHuman) else None
        questions = self.head.questions + (asked is not None and asked != self.head.asked)
        status: RunStatus = "waiting" if asked else "running"
        self._commit(loop, msgspec.structs.replace(self.head, status=status, asked=asked, questions=questions))

    def results(self, loop: Loop) -> Callable[[ToolResult], None]:
        """Return what commits the results of the calls that are about to run, as they come; of two the first counts.

        It may be called from any thread. What comes after the next effect was kept (a call that was given up after its
        time) is left out. A store that fails now may not at the next effect, so that is only logged.
        """
        places = {item.call.id: place for place, item in enumerate(loop.state.pending)}
        turn = self.head.turn

        def commit(result: ToolResult) -> None:
            place = places[result.call_id]
            with self._lock:
                if self._closed or self.head.turn != turn or place in self._results:
                    return
                try:
                    self.store.update(lambda values: self._put_result(values, place, result))
                except (StoreError, LeaseLostError) as error:
                    log().warning("the result of {} in run {} is not kept yet: {}", result.call_id, self.run_id, error)
                    return
                self._results.add(place)

        return commit

    def end(self, loop: Loop, outcome: Outcome) -> None:
        """Commit how the run ended, and let go of it. Raises what `keep` does."""
        head = msgspec.structs.replace(
            self.head, status=outcome.status, stop=outcome.stop, error=outcome.error, asked=None
        )
        self._commit(loop, head, lambda values: write_outcome(values, self.run_id, outcome), last=True)

    def release(self) -> None:
        """Let go of a run that waits or cannot go on here. Where that cannot be written, its lease lapses by itself."""
        with self._lock:
            if self._closed:
                return
            self._closed = True

            def change(values: Values) -> None:
                head = read_head(values, self.run_id)
                if head is not None and head.owner == self.head.owner and self._process == os.getpid():
                    write_head(values, msgspec.structs.replace(head, owner="", until=0.0))

            try:
                self.store.update(change)
            except StoreError as error:
                log().warning("run {} could not be released: {}", self.run_id, error)

    def forked(self) -> None:
        """Have a lock of its own in a process that was forked: the one there may be held by a thread that is gone."""
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Say that this worker is still there. Raises what `keep` does."""
        with self._lock:
            if self._closed:
                return

            def change(values: Values) -> None:
                head = self._mine(values)
                until = values.now() + self.lease_s
                write_head(values, msgspec.structs.replace(head, until=until, lease_s=self.lease_s))

            self.store.update(change)
            self.renewed = monotonic()

    # ---- how it is committed

    def _commit(
        self, loop: Loop, head: Head, more: Callable[[Values], None] | None = None, *, last: bool = False
    ) -> None:
        with self._lock:
            if self._closed:
                return
            state, run = loop.state, loop.run
            body = self._written(lambda: run.save(_without_messages(state)))
            shortened = state.messages is not self._messages or len(state.messages) < self._kept
            head = msgspec.structs.replace(
                head,
                agent=run.state.agent,
                conversation=run.conversation.id,
                phase=state.phase,
                iteration=run.state.iteration,
                calls=run.state.calls,
                policy=run.snapshot.policy.name,
                digest=run.snapshot.digest,
                turn=head.turn + 1,
                answer=_answer_to(head.asked, self.head.answer),
            )

            def change(values: Values) -> Head:
                before, now = self._mine(values), values.now()
                # Another turn than ours: a commit that was said to have failed, or a store that lost some. All of it is
                # written anew, from what this worker has.
                whole = shortened or before.turn != self.head.turn
                fresh = state.messages if whole else state.messages[self._kept :]
                parts = (0 if whole else before.parts) + bool(fresh)
                owner, until = ("", 0.0) if last else (head.owner, now + self.lease_s)
                written = msgspec.structs.replace(
                    head,
                    created=before.created,
                    updated=now,
                    owner=owner,
                    until=until,
                    lease_s=self.lease_s,
                    origin=before.origin,
                    answers=tuple(each if each.at else _at(each, now) for each in head.answers),
                    parts=parts,
                )
                write_head(values, written)
                values.put(STATES, self.run_id, body)
                if fresh:
                    write_messages(values, self.run_id, parts - 1, fresh)
                for number in range(parts, max(before.parts, self.head.parts)):
                    values.delete(MESSAGES, row_key(self.run_id, number))
                for place in self._results:
                    forget_result(values, self.head, place)
                if more is not None:
                    more(values)
                return written

            self.head = self._written(lambda: self.store.update(change))
            self.renewed = monotonic()
            self._messages, self._kept = state.messages, len(state.messages)
            self._results = set()
            self._closed = last

    def _written(self, write: Callable[[], T]) -> T:
        """Return what `write` returns. Raises UsageError where something of the run is no plain data.

        A StoreError says which run it is about.
        """
        try:
            return write()
        except StoreError as error:
            text = f"run {self.run_id!r} cannot be kept: {error}"
            raise StoreError(text, transient=error.transient, unknown=error.unknown) from error
        except TypeError as error:
            about = "what a response has as `raw` must be plain data"
            raise UsageError(f"run {self.run_id!r} cannot be kept: {error}; {about}") from error

    def _put_result(self, values: Values, place: int, result: ToolResult) -> None:
        write_result(values, self._mine(values), place, result)

    def _mine(self, values: Values) -> Head:
        """Return the head as it is kept, if the run is still this worker's."""
        head = read_head(values, self.run_id)
        # A process that was forked has all of this one's memory, and none of its runs.
        if head is None or head.owner != self.head.owner or self._process != os.getpid():
            raise LeaseLostError(self.run_id)
        return head


def claim(
    store: Store, run_id: str, task: str | None, *, origin: Mapping[str, Any] | None = None, lease_s: float = LEASE_S
) -> Keeper | Outcome:
    """Take a run for this worker, new or not; return how it ended if it has.

    `task` is what the run is to be about: another one is refused. `None` takes only a run that is kept already.

    Raises:
        RunBusyError: somebody else works on it.
        UsageError: there is no such run, or it is about another task.
        StoreError: the store cannot be used, or what is kept is damaged.
    """
    if not run_id or len(run_id) > 500 or not run_id.isprintable():
        raise UsageError(f"{run_id[:80]!r} is no id of a run: 1 to 500 printable characters")
    owner = new_owner()

    def change(values: Values) -> Head | Outcome:
        head, now = read_head(values, run_id), values.now()
        if head is None:
            if task is None:
                raise UsageError(f"no run {run_id!r} is kept in this store")
            if values.get(STATES, run_id) is not None:
                raise StoreError(f"run {run_id!r} had begun, but its head is missing")
            head = Head(run_id, task=task[:SHOWN], task_digest=raw_fingerprint(task), created=now)
            head = msgspec.structs.replace(head, origin=dict(origin or {}))
        elif task is not None and head.task_digest != raw_fingerprint(task):
            raise UsageError(f"run {run_id!r} is about another task: {head.task!r}; give this one an id of its own")
        elif head.ended:
            outcome = read_outcome(values, head)
            if outcome is None:
                raise StoreError(f"run {run_id!r} has ended, but how it did is missing")
            return outcome
        elif not is_free(head, now):
            raise RunBusyError(head, now)
        head = msgspec.structs.replace(head, owner=owner, until=now + lease_s, lease_s=lease_s, updated=now)
        write_head(values, head)
        return head

    taken = store.update(change)
    return taken if isinstance(taken, Outcome) else Keeper(store, taken, lease_s)


async def aclaim(
    store: Store, run_id: str, task: str | None, *, origin: Mapping[str, Any] | None = None, lease_s: float = LEASE_S
) -> Keeper | Outcome:
    """Do what `claim` does without keeping the event loop waiting; a claim that is cancelled is given up again."""
    lock, taken, given_up = threading.Lock(), list[Keeper](), threading.Event()

    def take() -> Keeper | Outcome:
        found = claim(store, run_id, task, origin=origin, lease_s=lease_s)
        if isinstance(found, Keeper):
            with lock:
                taken.append(found)
            if given_up.is_set():
                found.release()
        return found

    try:
        return await off_loop(take)
    except asyncio.CancelledError:
        given_up.set()
        with lock:
            held = list(taken)
        for keeper in held:
            keeper.release()
        raise


def _answer_to(asked: Asked | None, answer: Answer | None) -> Answer | None:
    """Return the answer to what is asked; one to another question is kept among the answers of the run only."""
    return answer if asked is not None and answer is not None and answer.digest == asked.digest else None


def _at(answer: Answer, now: float) -> Answer:
    return msgspec.structs.replace(answer, at=now)


def _without_messages(state: LoopState) -> LoopState:
    """Return the loop's state without what is kept beside it."""
    outcome = state.outcome and msgspec.structs.replace(state.outcome, messages=())
    return msgspec.structs.replace(state, messages=[], outcome=outcome)
