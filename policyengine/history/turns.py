"""Which result answers which call: locally, turn by turn.

Knows: the common view. Must not know: shapes' forms, wording, repairs.

A turn is what the model said at once (its head) and what follows until it speaks again (its tail). Ids may come again
in later turns: servers that number calls from zero in every response are common. So results are looked for in the tail
of their own turn only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from policyengine.history.views import Call, Result, View


class Turn(NamedTuple):
    """A head (empty before the model first speaks) and a tail."""

    head: tuple[View, ...]
    tail: tuple[View, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls of the turn."""
        return tuple(call for view in self.head for call in view.calls)


class Pairing(NamedTuple):
    """What became of the calls and results of a turn.

    `answers` are in the order of the results. `blank` are answers whose result has no id though its call has one.
    """

    answers: tuple[tuple[Call, Result], ...]
    unanswered: tuple[Call, ...]
    orphans: tuple[Result, ...]
    duplicates: tuple[Result, ...]
    blank: tuple[Result, ...]


def turns(views: Sequence[View], runs: bool) -> Iterator[Turn]:
    """Yield the turns of a history; with `runs`, views of the model in a row are one head."""
    head: list[View] = []
    tail: list[View] = []
    for view in views:
        if not view.model:
            tail.append(view)
            continue
        if (head or tail) and not (runs and head and not tail):
            yield Turn(tuple(head), tuple(tail))
            head, tail = [], []
        head.append(view)
    if head or tail:
        yield Turn(tuple(head), tuple(tail))


def pair(turn: Turn, keyed: bool) -> Pairing:
    """Return which result answers which call, by id or (not `keyed`) by id where both have one, else by name."""
    results = [result for view in turn.tail for result in view.results]
    return _by_id(turn, results) if keyed else _by_name(turn.calls, results)


def _by_id(turn: Turn, results: list[Result]) -> Pairing:
    waiting: dict[str, deque[Call]] = {}
    for call in turn.calls:
        waiting.setdefault(call.id, deque()).append(call)
    answers: dict[Result, Call] = {}
    orphans: list[Result] = []
    duplicates: list[Result] = []
    nameless: list[Result] = []
    for result in results:
        if result.id not in waiting:
            (orphans if result.id else nameless).append(result)
        elif waiting[result.id]:
            answers[result] = waiting[result.id].popleft()
        elif result.id:
            duplicates.append(result)
        else:
            nameless.append(result)
    done = set(answers.values())
    left = deque(call for call in turn.calls if call.id and call not in done)
    blank = []
    for result in nameless:
        if left:
            answers[result] = left.popleft()
            blank.append(result)
        else:
            orphans.append(result)
    return _pairing(turn.calls, results, answers, orphans, duplicates, blank)


def _by_name(calls: tuple[Call, ...], results: list[Result]) -> Pairing:
    answers: dict[Result, Call] = {}
    _match(answers, calls, [result for result in results if result.id], by_id=True)
    done = set(answers.values())
    # Where both have an id and the ids differ, an equal name proves nothing.
    with_id = [call for call in calls if call not in done and call.id]
    without = [call for call in calls if call not in done and not call.id]
    _match(answers, without, [result for result in results if result not in answers], by_id=False)
    _match(answers, with_id, [result for result in results if result not in answers and not result.id], by_id=False)
    done = set(answers.values())
    left = [call for call in calls if call not in done]
    over = [result for result in results if result not in answers]
    if len(left) == len(over):  # as many as there are calls: they are misnamed
        answers.update({r: call for call, r in zip(left, over, strict=True) if not (call.id and r.id)})
    return _pairing(calls, results, answers, [result for result in over if result not in answers], [], [])


def _match(answers: dict[Result, Call], calls: Sequence[Call], results: list[Result], *, by_id: bool) -> None:
    """Add the answers to calls of the same id or name, the first to the first."""
    waiting: dict[str, deque[Call]] = {}
    for call in calls:
        waiting.setdefault(call.id if by_id else call.name, deque()).append(call)
    for result in results:
        queue = waiting.get(result.id if by_id else result.name)
        if queue:
            answers[result] = queue.popleft()


def _pairing(
    calls: tuple[Call, ...],
    results: list[Result],
    answers: dict[Result, Call],
    orphans: list[Result],
    duplicates: list[Result],
    blank: list[Result],
) -> Pairing:
    done = set(answers.values())
    return Pairing(
        tuple((answers[result], result) for result in results if result in answers),
        tuple(call for call in calls if call not in done),
        tuple(orphans),
        tuple(duplicates),
        tuple(blank),
    )
