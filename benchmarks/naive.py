"""Stop rules of a few lines each, as people write them first: what policies are compared with.

Knows: a recorded run as a sequence of calls with their results. Must not know: the engine, policies, labels.

Every rule looks back over the whole run and returns the turn (model response, from 1) in which it would fire: the first
one after whose results its condition holds. Calls are equal if tool and arguments are, results if their texts are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from policyengine.context import failed
from policyengine.messages import UNDECLARED, ToolCall, ToolResult
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, UserSaid

LONGEST_CYCLE = 5


class Made(NamedTuple):
    """One call of a run: the `turn` that made it, which call it is, and what it answered.

    `result` is `None` where no result is recorded.
    """

    turn: int
    call: str
    result: str | None
    failed: bool


class History(NamedTuple):
    """A recorded run for these rules: its number of turns, its calls in order, and stretches of turns without calls.

    A stretch is the turns of consecutive responses with a text and no call, with nothing in between.
    """

    turns: int
    calls: tuple[Made, ...]
    monologues: tuple[tuple[int, ...], ...]


Rule = Callable[[History], int | None]


def history(recording: Recording) -> History:
    """Return a recording as these rules see it."""
    results = {event.call_id: event.result for event in recording.events if isinstance(event, ToolAnswered)}
    turns = 0
    calls: list[Made] = []
    monologues: list[list[int]] = [[]]
    for event in recording.events:
        if isinstance(event, UserSaid):
            monologues.append([])
        if not isinstance(event, ModelSaid):
            continue
        turns += 1
        calls += (_made(turns, call, results.get(call.id)) for call in event.response.tool_calls)
        if event.response.tool_calls:
            monologues.append([])
        elif event.response.text.strip():
            monologues[-1].append(turns)
    return History(turns, tuple(calls), tuple(tuple(stretch) for stretch in monologues if stretch))


def same_call(call: ToolCall) -> str:
    """Return what two calls have in common if they are the same call."""
    arguments = call.arguments if call.args is None else json.dumps(call.args, sort_keys=True, ensure_ascii=False)
    return f"{call.name} {arguments}"


def _made(turn: int, call: ToolCall, result: ToolResult | None) -> Made:
    if result is None:
        return Made(turn, same_call(call), None, False)
    return Made(turn, same_call(call), result.text, failed(result, UNDECLARED))


# ---- rules


def consecutive(times: int) -> Rule:
    """The same call `times` times in a row."""
    return lambda run: _row(run.calls, times, lambda made: made.call)


def consecutive_same_result(times: int) -> Rule:
    """The same call with the same result `times` times in a row."""
    return lambda run: _row(run.calls, times, _exchange)


def anywhere(times: int) -> Rule:
    """The same call `times` times in the run."""

    def rule(run: History) -> int | None:
        counts: Counter[str] = Counter()
        for made in run.calls:
            counts[made.call] += 1
            if counts[made.call] >= times:
                return made.turn
        return None

    return rule


def error_streak(times: int) -> Rule:
    """`times` failed results in a row."""
    return lambda run: _row(run.calls, times, lambda made: made.failed or None)


def cycle(times: int, shortest: int = 1) -> Rule:
    """A block of up to five calls `times` times in a row, whatever they answer."""

    def rule(run: History) -> int | None:
        calls = [made.call for made in run.calls]
        for end in range(1, len(calls) + 1):
            for period in range(shortest, LONGEST_CYCLE + 1):
                block = calls[end - period : end]
                if period * times <= end and calls[end - period * times : end] == block * times:
                    return run.calls[end - 1].turn
        return None

    return rule


def openhands_like(run: History) -> int | None:
    """The conditions of OpenHands' stuck detector at its defaults, without its window of 20 events.

    The same call and result four times in a row; the same call failing four times in a row; two calls with their
    results alternating three times; three responses in a row with a text and no call.
    """
    fired = (
        _row(run.calls, 4, _exchange),
        _row(run.calls, 4, lambda made: made.call if made.failed else None),
        _alternating(run.calls, 6),
        min((stretch[2] for stretch in run.monologues if len(stretch) > 2), default=None),
    )
    return min((turn for turn in fired if turn is not None), default=None)


RULES: dict[str, Rule] = {
    "consec3": consecutive(3),
    "consec_same_result3": consecutive_same_result(3),
    "consec_same_result4": consecutive_same_result(4),
    "anywhere4": anywhere(4),
    "errstreak3": error_streak(3),
    "cycle3": cycle(3),
    "openhands_like": openhands_like,
}
"""The rules by the names that the sets' own indexes use."""


def _exchange(made: Made) -> tuple[str, str] | None:
    return None if made.result is None else (made.call, made.result)


def _row(calls: Iterable[Made], times: int, key: Callable[[Made], object]) -> int | None:
    """Return the turn that completes a row of equal keys; calls without a key (`None`) end a row."""
    last: object = None
    count = 0
    for made in calls:
        now = key(made)
        count = count + 1 if now is not None and now == last else 1
        last = now
        if now is not None and count >= times:
            return made.turn
    return None


def _alternating(calls: Sequence[Made], length: int) -> int | None:
    count = 0
    for index, made in enumerate(calls):
        before = _exchange(calls[index - 2]) if index > 1 else None
        count = count + 1 if before is not None and before == _exchange(made) else 0
        if count >= length - 2:
            return made.turn
    return None
