"""Where a history may be cut, so that a summary can take the place of what is before.

Knows: the common view, which results belong to which calls. Must not know: summaries, when to compact.

A cut stands before a message: that message and all after it are kept. It may stand anywhere except where it would part
a call from its result; it need not be a message of the user. The end of the history is no cut: nothing would be kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from policyengine.history.chat import as_mappings
from policyengine.history.check import needs_reasoning, start_of_turn_in_progress
from policyengine.history.profile import HistoryProfile, as_profile
from policyengine.history.shapes import shape_named
from policyengine.history.turns import Turn, turns
from policyengine.history.views import View
from policyengine.messages import Message


def legal_cuts(
    messages: Sequence[Mapping[str, Any] | Message],
    *,
    shape: str = "openai_chat",
    profile: HistoryProfile | Mapping[str, Any] | None = None,
    pending: Collection[str] = (),
) -> tuple[int, ...]:
    """Return every index from which a history may be kept, in order.

    Args:
        messages: mappings in the provider's form, or `Message`s.
        shape: as for `check_history`.
        profile: as for `check_history`; where it asks for thinking or reasoning, a cut must not part calls from it.
        pending: ids of calls whose results are still to come: they must not be cut off.

    Raises:
        UsageError: there is no such shape or rule, or a message is none.
    """
    form, rules = shape_named(shape), as_profile(profile)
    views = [form.view(message, index) for index, message in enumerate(as_mappings(messages, shape))]
    legal = set(range(len(views)))
    open_at = len(views)
    history = list(turns(views, form.RUNS))
    for turn in history:
        legal.difference_update(_inside(turn.head, turn.tail, form.RUNS))
        if open_at == len(views):
            open_at = next((call.index for call in turn.calls if call.id in pending), open_at)
    if rules.thinking == "enabled" and shape == "anthropic":
        legal.difference_update(_without_thinking(views))
    if form.RUNS:
        legal.difference_update(_without_reasoning(history, rules.reasoning_content))
    return tuple(sorted(index for index in legal if index <= open_at))


def nearest_cuts(
    messages: Sequence[Mapping[str, Any] | Message],
    at: int | None = None,
    *,
    shape: str = "openai_chat",
    profile: HistoryProfile | Mapping[str, Any] | None = None,
    pending: Collection[str] = (),
) -> tuple[int, ...]:
    """Return the legal cut at `at`, or the nearest one before and the nearest one after it; empty if there is none.

    Without `at`, as much as possible is cut off. See `legal_cuts` for the rest.
    """
    legal = legal_cuts(messages, shape=shape, profile=profile, pending=pending)
    wanted = len(messages) if at is None else at
    place = bisect_left(legal, wanted)
    if legal[place : place + 1] == (wanted,):
        return (wanted,)
    return legal[max(place - 1, 0) : place + 1]


def _inside(head: tuple[View, ...], tail: tuple[View, ...], runs: bool) -> set[int]:
    """Return the indexes of one turn that are no cut: behind its calls and up to its last result."""
    last = max((view.index for view in tail if view.results), default=-1)
    first = next((view.index for view in head if view.calls or view.refers), None)
    inside = {view.index for view in tail if view.results or not view.other}
    if runs:  # items of one response belong together, reasoning to the call behind it above all
        inside.update(view.index for view in head[1:])
    if first is not None:
        inside.update(view.index for view in (*head, *tail) if first < view.index <= last)
    return inside


def _without_reasoning(history: list[Turn], rule: str) -> set[int]:
    """Return the indexes from which calls would have no reasoning in front of them though they have some now."""
    found: set[int] = set()
    lacking = False
    for number in reversed(range(len(history))):
        turn = history[number]
        lacking = lacking and not any(view.other for view in turn.tail)
        if any(view.reasoning for view in turn.head):
            lacking = False
        else:
            lacking = lacking or any(needs_reasoning(view, rule) for view in turn.head)
        if lacking and number and turn.head and not any(view.other for view in history[number - 1].tail):
            found.add(turn.head[0].index)
    return found


def _without_thinking(views: list[View]) -> set[int]:
    """Return the indexes in the turn in progress from which it would not begin with thinking."""
    found: set[int] = set()
    calls = leads = False
    for view in reversed(views[start_of_turn_in_progress(views) :]):
        if view.model:
            calls, leads = calls or bool(view.calls), view.leads
        if calls and not leads:
            found.add(view.index)
    # At its very start nothing is cut off that is not missing already.
    found.discard(start_of_turn_in_progress(views))
    return found
