"""Pools that many processes share: reserved before a request or a batch is judged, settled before the loop goes on.

Knows: when the loop has to wait for a reservation, where it goes on. Must not know: stores, how pools are counted.

Nothing here is done for a run whose rules have no shared pool. A run that is resumed while it reserves does so again,
and what it reserved before stays counted; what it would give back for a second time it does not give back.
"""

from __future__ import annotations

from policyengine.draft import Draft
from policyengine.errors import UsageError
from policyengine.loop.state import Effect, Goto, Loop, Reserve, Reserved, Reserving
from policyengine.messages import ToolCall


def for_request(loop: Loop, then: Goto, draft: Draft | None = None) -> Reserve | None:
    """Return what has to be reserved before a request is judged; the loop then goes to `then`, and here once more.

    `None` where it is reserved already, or nothing has to be.
    """
    if not loop.run.shares or _is_done(loop):
        return None
    return _reserve(loop, Reserving(loop.run.needs_of_request(), (), then.name, draft=draft))


def for_calls(loop: Loop, calls: tuple[ToolCall, ...], draft: Draft) -> Reserve | None:
    """Return what has to be reserved before calls are judged; see `for_request`."""
    if not loop.run.shares or _is_done(loop):
        return None
    return _reserve(loop, Reserving(loop.run.needs_of_calls(calls), (), Goto.BATCH.name, draft=draft))


def unsent(loop: Loop) -> None:
    """The request that was reserved for is not sent: give back what it holds."""
    if loop.run.state.shared is not None:
        loop.run.state.shared.unsent()


def failed(loop: Loop, code: str) -> None:
    """The request failed: settle what it held, and count the failure."""
    if loop.run.state.shared is not None:
        loop.run.state.shared.failed(code)


def settle_first(loop: Loop, effect: Effect) -> Effect:
    """Return an effect, or, where the run owes something to shared pools, the settling that comes before it."""
    dues = () if isinstance(effect, Reserve) else loop.run.take_dues()
    if not dues:
        return effect
    state = loop.state
    state.reserving = Reserving((), dues, phase=state.phase)
    state.phase = "reserving"
    return Reserve((), dues)


def reserved(loop: Loop, event: Reserved) -> Goto | None:
    """Take what was granted; return where the loop goes on, `None` if it is with the effect that had to wait."""
    state = loop.state
    waiting = _waiting(loop)
    answered = [grant.rule for grant in event.grants]
    if answered != [need.rule for need in waiting.needs]:
        raise UsageError(f"grants for {answered} do not answer what was asked for")
    if event.grants:
        loop.run.shared(event.grants)
    if not waiting.then:
        state.phase, state.reserving = waiting.phase, None
        return None
    waiting.done = True
    return Goto[waiting.then]


def reserve_again(loop: Loop) -> Reserve:
    """Return the reservation that a resumed run waits for. What it gives back may have been given back already."""
    waiting = _waiting(loop)
    return Reserve(waiting.needs, tuple(due for due in waiting.dues if due.amount > 0))


def draft_of(loop: Loop) -> Draft:
    """Return the response that a reservation was made for."""
    draft = _waiting(loop).draft
    if draft is None:
        raise UsageError("no response waits for a reservation")
    return draft


def _waiting(loop: Loop) -> Reserving:
    if loop.state.reserving is None:
        raise UsageError("nothing is being reserved")
    return loop.state.reserving


def _is_done(loop: Loop) -> bool:
    """Return whether the reservation was made just now; it holds for what is done next, and for that only."""
    reserving = loop.state.reserving
    if reserving is None or not reserving.done:
        return False
    loop.state.reserving = None
    return True


def _reserve(loop: Loop, wanted: Reserving) -> Reserve | None:
    """Reserve what is needed, and settle what is owed with it."""
    if not wanted.needs:
        return None
    wanted.dues = loop.run.take_dues()
    loop.state.reserving = wanted
    loop.state.phase = "reserving"
    return Reserve(wanted.needs, wanted.dues)
