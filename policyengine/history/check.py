"""Say what a provider would refuse in a history, before it does.

Knows: every problem there is, and the rules of a profile. Must not know: shapes' forms, how a problem is repaired.

Calls and results are matched turn by turn and in order (see `turns`); sets of ids over the whole history miss real
faults and raise false alarms. The time is linear in the length of the history.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from policyengine.history.chat import as_mappings
from policyengine.history.profile import HistoryProfile, as_profile
from policyengine.history.shapes import shape_named
from policyengine.history.turns import Pairing, Turn, pair, turns
from policyengine.history.views import Result, Shape, View
from policyengine.messages import Message

PROBLEMS: dict[str, str] = {
    "missing_result": "a call has no result before the model speaks again",
    "orphan_result": "a result answers no call of the turn it stands in",
    "duplicate_result": "a call has a second result",
    "duplicate_call_id": "two calls of one response have the same id",
    "interposed_message": "a message stands between a call and its result",
    "split_results": "results of one response stand in several messages",
    "text_before_result": "something stands before a result in its message",
    "empty_text_block": "a text, or a whole message, is empty",
    "empty_error_result": "a result is an error and has no content",
    "input_not_object": "the arguments of a call are not an object",
    "arguments_not_json": "the arguments of a call are not JSON",
    "bad_tool_name": "a call has a name that the provider refuses",
    "empty_call_id": "a call or a result has no id",
    "bad_call_id": "a call has an id that the provider refuses",
    "missing_reasoning": "an assistant message came back without its reasoning",
    "forbidden_reasoning": "an assistant message holds reasoning that must not come back",
    "missing_thinking": "the turn in progress does not begin with a thinking block",
    "unsigned_thinking": "a thinking block has no signature",
    "missing_thought_signature": "the first call of a response came back without its signature",
    "result_count_mismatch": "there are more or fewer responses than calls",
    "name_mismatch": "a result names another tool than its call",
}
"""Every code with what it means."""


class HistoryProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a provider would refuse: `code` is one of `PROBLEMS`, `index` the message, `id` the call.

    `id` is empty where no call is meant, or the call has none.
    """

    code: str
    index: int
    id: str = ""

    def __str__(self) -> str:
        return f"messages[{self.index}]: {self.code}{f' ({self.id})' if self.id else ''}: {PROBLEMS[self.code]}"


def check_history(
    messages: Sequence[Mapping[str, Any] | Message],
    *,
    shape: str = "openai_chat",
    profile: HistoryProfile | Mapping[str, Any] | None = None,
) -> tuple[HistoryProblem, ...]:
    """Return everything in a history that a provider would refuse, ordered by message.

    Args:
        messages: mappings in the provider's form, or `Message`s.
        shape: `openai_chat`, `anthropic`, `gemini` or `openai_responses`.
        profile: the rules in force, as a `HistoryProfile` or a mapping of its fields.

    Raises:
        UsageError: there is no such shape or rule, or a message is none.
    """
    return check(as_mappings(messages, shape), shape_named(shape), as_profile(profile))


def check(messages: Sequence[Mapping[str, Any]], shape: Shape, profile: HistoryProfile) -> tuple[HistoryProblem, ...]:
    """Return the problems of a history of mappings."""
    views = [shape.view(message, index) for index, message in enumerate(messages)]
    found: list[HistoryProblem] = []
    given: set[str] = set()
    history = list(turns(views, shape.RUNS))
    for turn in history:
        for view in (*turn.head, *turn.tail):
            found += _of_message(view, shape, profile)
        found += _of_ids(turn, given, profile)
        found += of_pairs(turn, pair(turn, shape.KEYED), shape, profile)
    found += _of_reasoning(history, shape, profile)
    found += _of_thinking(views, shape, profile)
    found += _of_turn_in_progress(views, shape, profile)
    return tuple(sorted(dict.fromkeys(found), key=lambda problem: problem.index))


def _of_message(view: View, shape: Shape, profile: HistoryProfile) -> Iterator[HistoryProblem]:
    if profile.empty_text == "refused" and (view.empty or view.hollow):
        yield HistoryProblem("empty_text_block", view.index)
    for result in view.results:
        if is_refused_mute(result, profile):
            yield HistoryProblem("empty_error_result", view.index, result.id)
    for call in view.calls:
        if not call.id and shape.KEYED:
            yield HistoryProblem("empty_call_id", view.index)
        elif call.id and not is_good_id(call.id, profile):
            yield HistoryProblem("bad_call_id", view.index, call.id)
        if not is_good_name(call.name, shape, profile):
            yield HistoryProblem("bad_tool_name", view.index, call.id)
        if call.arguments != "ok":
            code = "arguments_not_json" if call.arguments == "not_json" else "input_not_object"
            yield HistoryProblem(code, view.index, call.id)


def is_refused_mute(result: Result, profile: HistoryProfile) -> bool:
    """Return whether the provider refuses a result because it is an error and says nothing."""
    return result.mute and profile.empty_text == "refused"


def is_good_id(id: str, profile: HistoryProfile) -> bool:
    """Return whether the provider takes an id that is not empty."""
    return not profile.id_pattern or re.fullmatch(profile.id_pattern, id) is not None


def is_good_name(name: str, shape: Shape, profile: HistoryProfile) -> bool:
    """Return whether the provider takes a name."""
    return re.fullmatch(profile.name_pattern or shape.NAME_PATTERN, name) is not None


def _of_ids(turn: Turn, given: set[str], profile: HistoryProfile) -> Iterator[HistoryProblem]:
    if profile.unique_ids == "turn":
        given.clear()
    for call in turn.calls:
        if call.id in given:
            yield HistoryProblem("duplicate_call_id", call.index, call.id)
        elif call.id:
            given.add(call.id)


def of_pairs(turn: Turn, pairing: Pairing, shape: Shape, profile: HistoryProfile) -> Iterator[HistoryProblem]:
    """Yield what is wrong between the calls of a turn and its results."""
    yield from _of_order(turn, pairing, shape, profile)
    for result in pairing.blank:
        yield HistoryProblem("empty_call_id", result.index)
    if not shape.KEYED:
        counted = next((view for view in turn.tail if view.results), None) if turn.calls else None
        if counted and len(counted.results) != len(turn.calls):
            yield HistoryProblem("result_count_mismatch", counted.index)
            return
    answered = {call.id for call, _ in pairing.answers}
    for call in pairing.unanswered:
        # Of two calls with one id and one result, the id is what is wrong.
        if not call.id or call.id not in answered:
            yield HistoryProblem("missing_result", call.index, call.id)
    for result in pairing.duplicates:
        yield HistoryProblem("duplicate_result", result.index, result.id)
    if not any(view.refers for view in turn.head):
        for result in pairing.orphans:
            yield HistoryProblem("orphan_result", result.index, result.id)
    for call, result in pairing.answers:
        if is_misnamed(call.name, result.name, shape):
            yield HistoryProblem("name_mismatch", result.index, call.id)


def is_misnamed(call: str, result: str, shape: Shape) -> bool:
    """Return whether a result names another tool than its call; where ids decide, it need not name any."""
    return call != result and bool(result or not shape.KEYED)


def _of_order(turn: Turn, pairing: Pairing, shape: Shape, profile: HistoryProfile) -> Iterator[HistoryProblem]:
    """Yield what stands where it must not. `next_id` is that of the first answer from a message on."""
    if not pairing.answers:
        return
    last = pairing.answers[-1][1].index
    firsts: dict[int, str] = {}
    late: dict[int, str] = {}
    for call, result in pairing.answers:
        firsts.setdefault(result.index, call.id)
        if result.late:
            late.setdefault(result.index, call.id)
    for index, id in late.items():
        yield HistoryProblem("text_before_result", index, id)
    next_id = ""
    interposed = []
    for view in reversed(turn.tail):
        next_id = firsts.get(view.index, next_id)
        if view.index < last and not view.results and view.other:
            interposed.append(HistoryProblem("interposed_message", view.index, next_id))
    yield from reversed(interposed)
    if shape.JOINED and shape.KEYED:
        yield from _of_split(turn, firsts, profile)


def _of_split(turn: Turn, firsts: dict[int, str], profile: HistoryProfile) -> Iterator[HistoryProblem]:
    """Yield results after the first message of results.

    User messages in a row are put together by those who are not strict, which is harmless unless other content then
    stands between the results.
    """
    content = False
    started = False
    for view in turn.tail:
        if started and view.index in firsts and (profile.strict_adjacency or content):
            yield HistoryProblem("split_results", view.index, firsts[view.index])
        if view.index in firsts:
            started = True
            content = content or view.other


def _of_reasoning(history: list[Turn], shape: Shape, profile: HistoryProfile) -> Iterator[HistoryProblem]:
    rule = profile.reasoning_content
    missing = "missing_thinking" if shape.NAME == "anthropic" else "missing_reasoning"
    fresh = True
    for turn in history:
        held = any(view.reasoning for view in turn.head)
        for view in turn.head:
            if shape.RUNS or view.reasoning is not False or not needs_reasoning(view, rule):
                continue
            yield HistoryProblem(missing, view.index, view.calls[0].id if view.calls else "")
        if shape.RUNS and fresh and not held:
            # One response may be stored as call, result, call, result behind a single reasoning item.
            first = next((view for view in turn.head if needs_reasoning(view, rule)), None)
            if first:
                yield HistoryProblem(missing, first.index, first.calls[0].id if first.calls else "")
        fresh = any(view.other for view in turn.tail) or (fresh and not held)


def needs_reasoning(view: View, rule: str) -> bool:
    """Return whether a message of the model must carry reasoning."""
    return bool(view.calls) if rule == "required_on_tool_calls" else rule == "required" and view.reasoning is not None


def _of_turn_in_progress(views: Sequence[View], shape: Shape, profile: HistoryProfile) -> Iterator[HistoryProblem]:
    """Yield what thinking and signatures lack. Providers look no further back than the last message of the user."""
    start = start_of_turn_in_progress(views)
    current = [view for view in views[start:] if view.model]
    if profile.thinking == "enabled" and shape.NAME == "anthropic" and any(view.calls for view in current):
        first = current[0]
        if not first.leads:
            yield HistoryProblem("missing_thinking", first.index, first.calls[0].id if first.calls else "")
    if profile.thought_signature == "required":
        for view in current:
            if view.calls and not view.calls[0].signed:
                yield HistoryProblem("missing_thought_signature", view.index, view.calls[0].id)


def start_of_turn_in_progress(views: Sequence[View]) -> int:
    """Return the index after the last message in which the user says something and no result stands."""
    said = (view.index for view in reversed(views) if not view.model and not view.results and view.other)
    return next(said, -1) + 1


def _of_thinking(views: Sequence[View], shape: Shape, profile: HistoryProfile) -> Iterator[HistoryProblem]:
    for view in views:
        if is_unwanted(view, shape, profile, final=view.index == len(views) - 1):
            yield HistoryProblem("forbidden_reasoning", view.index)
        elif is_unsigned(view, profile):
            yield HistoryProblem("unsigned_thinking", view.index)


def is_unwanted(view: View, shape: Shape, profile: HistoryProfile, *, final: bool) -> bool:
    """Return whether the provider refuses the reasoning of a message; `final` says that it is the last one."""
    if not view.reasoning or profile.reasoning_content == "forbidden":
        return bool(view.reasoning)
    if shape.NAME != "anthropic":
        return False
    return profile.thinking == "forbidden" or (profile.thinking == "disabled" and final)


def is_unsigned(view: View, profile: HistoryProfile) -> bool:
    """Return whether a message holds thinking that the provider did not sign, and signatures are asked for."""
    return bool(view.unsigned) and profile.thinking != "any"
