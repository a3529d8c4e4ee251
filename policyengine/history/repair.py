"""Make a history valid again without inventing what only the model can say.

Knows: what to do about each problem. Must not know: shapes' forms, why a history was damaged.

A turn without problems is passed on as it is. Results are moved to their calls, missing ones are replaced by one that
says so; what answers nothing goes. Reasoning, thinking blocks and signatures are never written: what lacks them stays
a problem, and the honest way on is a request without thinking.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from policyengine.history.chat import as_mappings, as_message
from policyengine.history.check import (
    HistoryProblem,
    check,
    is_good_id,
    is_good_name,
    is_misnamed,
    is_refused_mute,
    is_unsigned,
    is_unwanted,
    of_pairs,
)
from policyengine.history.profile import HistoryProfile, as_profile
from policyengine.history.shapes import shape_named
from policyengine.history.turns import Pairing, Turn, pair, turns
from policyengine.history.views import Call, Edit, Result, Shape, View, state_of_text
from policyengine.messages import Message
from policyengine.parsing.repair import encodable, mend_whole
from policyengine.parsing.strict import StrictError

INTERRUPTED = "No result: the call was interrupted."
"""What a result says that stands for a missing one."""

SILENT = "The call failed and returned no text."
"""What an error result says that said nothing."""

UNREADABLE = "unreadable_arguments"
"""The argument under which text is kept that is no JSON object."""

UNUSABLE_NAME = "unusable_call"

REPAIRS: dict[str, str] = {
    "insert_result": "a result that says there was none, directly after the others",
    "move_result": "a result went to the call that it answers",
    "drop_orphan_result": "a result without a call went",
    "drop_duplicate_result": "every result of a call but the first went",
    "reorder": "results went in front of what stood before them, or into one message",
    "rename_call_id": "a call and its result got an id of their own",
    "rename_tool": "a call and its result got a name that is legal",
    "fill_result": "a result got the id or the name of the call it answers",
    "word_error": "an error result without content got a text that says so",
    "rewrite_arguments": "arguments became a JSON object",
    "drop_empty_text": "an empty text, or a message of nothing else, went",
    "drop_reasoning": "reasoning that must not come back went",
    "drop_unsigned_thinking": "a thinking block without a signature went",
}
"""Every repair with what it does."""

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_PASSES = 4

UNREPAIRABLE = ("missing_reasoning", "missing_thinking", "missing_thought_signature")
"""Problems that could be mended only by inventing what the model or the provider did not write."""

_OF_THINKING = ("missing_reasoning", "missing_thinking")


class HistoryRepair(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change: `code` is one of `REPAIRS`, `index` the message in the history as it was given, `id` the call there.

    `before` is what is gone or was rewritten, as it was stored.
    """

    code: str
    index: int
    id: str = ""
    before: Any = None


class Repaired(NamedTuple):
    """A repaired history.

    Attributes:
        messages: the history; messages that needed no change are the same objects.
        repairs: what was changed.
        remaining: the problems of `messages` that nobody but the provider could mend.
        disable_thinking: whether the request must be sent with thinking switched off to be accepted.
    """

    messages: tuple[Any, ...]
    repairs: tuple[HistoryRepair, ...]
    remaining: tuple[HistoryProblem, ...]
    disable_thinking: bool


def repair_history(
    messages: Sequence[Mapping[str, Any] | Message],
    *,
    shape: str = "openai_chat",
    profile: HistoryProfile | Mapping[str, Any] | None = None,
    text: str = INTERRUPTED,
) -> Repaired:
    """Return the history with every problem mended that can be, in time linear in its length.

    `messages` is not changed. Repairing what is repaired changes nothing.

    Args:
        messages: mappings in the provider's form, or `Message`s; the result has the same.
        shape: as for `check_history`.
        profile: as for `check_history`.
        text: what a result says that stands for a missing one.

    Raises:
        UsageError: there is no such shape or rule, or a message is none.
    """
    form, rules = shape_named(shape), as_profile(profile)
    mappings = as_mappings(messages, shape)
    problems = check(mappings, form, rules)
    rebuilt: list[tuple[Mapping[str, Any], int | None]] = [*zip(mappings, range(len(mappings)), strict=True)]
    remaining = problems
    repairs: list[HistoryRepair] = []
    # What is taken away may leave a message empty or another one last, which a second pass sees.
    for _ in range(_PASSES):
        if all(problem.code in UNREPAIRABLE for problem in remaining):
            break
        mender = _Mender([mapping for mapping, _ in rebuilt], form, rules, text.strip() or INTERRUPTED)
        passed = mender.run()
        if not mender.repairs:
            break
        origins = [at for _, at in rebuilt]
        near = list(accumulate(origins, _latest, initial=0))
        repairs += (replace(repair, index=near[repair.index + 1]) for repair in mender.repairs)
        rebuilt = [(mapping, None if at is None else origins[at]) for mapping, at in passed]
        remaining = check([mapping for mapping, _ in rebuilt], form, rules)
    typed = any(isinstance(message, Message) for message in messages)
    return Repaired(
        tuple(_as_given(mapping, at, messages, mappings, typed, shape) for mapping, at in rebuilt),
        tuple(repairs),
        remaining,
        any(problem.code in _OF_THINKING for problem in remaining),
    )


def _latest(before: int, at: int | None) -> int:
    """Return the index in the given history of a message, or of the one before it if it is new."""
    return before if at is None else at


def _as_given(
    mapping: Mapping[str, Any],
    at: int | None,
    messages: Sequence[Mapping[str, Any] | Message],
    mappings: list[Mapping[str, Any]],
    typed: bool,
    shape: str,
) -> Any:
    old = None if at is None else messages[at]
    if at is not None and mapping is mappings[at]:
        return old
    if isinstance(old, Message) or (old is None and typed):
        return as_message(mapping, old, shape)
    return mapping


class _Moved(NamedTuple):
    """An answer that came from a later turn."""

    call: Call
    result: Result


class _Mender:
    """Rebuilds one history, turn by turn."""

    def __init__(self, messages: list[Mapping[str, Any]], shape: Shape, profile: HistoryProfile, text: str) -> None:
        self.messages = messages
        self.shape = shape
        self.profile = profile
        self.text = text
        self.repairs: list[HistoryRepair] = []
        self.edits: dict[int, Edit] = {}
        self.names: dict[Call, str] = {}
        self.ids: dict[Call, str] = {}
        self.worded: dict[Result, Mapping[str, Any]] = {}
        self.views = [shape.view(message, index) for index, message in enumerate(messages)]
        self.taken = {call.id for view in self.views for call in view.calls}
        self.taken.update(result.id for view in self.views for result in view.results)
        self.last_id = 0

    def run(self) -> list[tuple[Mapping[str, Any], int | None]]:
        """Return the new messages, each with the index of the old one it was."""
        history = list(turns(self.views, self.shape.RUNS))
        pairings = [pair(turn, self.shape.KEYED) for turn in history]
        moved = self._late_answers(history, pairings)
        elsewhere = {answer.result for answers in moved for answer in answers}
        given: set[str] = set()
        for turn in history:
            for view in (*turn.head, *turn.tail):
                self._mend_message(view)
            self._mend_ids(turn, given)
        rebuilt: list[tuple[Mapping[str, Any], int | None]] = []
        for turn, pairing, late in zip(history, pairings, moved, strict=True):
            rebuilt += self._rebuilt(turn, pairing, late, elsewhere)
        return rebuilt

    def _note(self, code: str, index: int, id: str = "", before: Any = None) -> None:
        self.repairs.append(HistoryRepair(code, index, id, before))

    def _edit(self, index: int) -> Edit:
        return self.edits.setdefault(index, Edit())

    # ---- what is wrong with a message by itself

    def _mend_message(self, view: View) -> None:
        message = self.messages[view.index]
        if self.profile.empty_text == "refused" and (view.empty or view.hollow):
            self._edit(view.index).gone = view.hollow
            self._edit(view.index).drop.update(view.empty)
            self._note("drop_empty_text", view.index)
        self._mend_thinking(view)
        for result in view.results:
            if is_refused_mute(result, self.profile):
                stored = self.shape.result(message, result.part)
                self.worded[result] = self._edit(view.index).results[result.part] = self.shape.worded(stored, SILENT)
                self._note("word_error", view.index, result.id, stored)
        for call in view.calls:
            if call.arguments != "ok":
                raw = self.shape.raw_arguments(message, call.part)
                self._edit(view.index).arguments[call.part] = readable(raw)
                self._note("rewrite_arguments", view.index, call.id, raw)
            if not is_good_name(call.name, self.shape, self.profile):
                name = _ILLEGAL.sub("_", call.name)[:64]
                good = [name for name in (name, UNUSABLE_NAME) if is_good_name(name, self.shape, self.profile)]
                if good:
                    self.names[call] = self._edit(view.index).names[call.part] = good[0]
                    self._note("rename_tool", view.index, call.id, call.name)

    def _mend_thinking(self, view: View) -> None:
        message = self.messages[view.index]
        if is_unwanted(view, self.shape, self.profile, final=view.index == len(self.views) - 1):
            edit = self._edit(view.index)
            edit.drop.update(view.thinking)
            edit.strip_reasoning = not view.thinking
            self._note("drop_reasoning", view.index, before=message)
        elif is_unsigned(view, self.profile):
            self._edit(view.index).drop.update(view.unsigned)
            self._note("drop_unsigned_thinking", view.index, before=message)

    # ---- ids

    def _mend_ids(self, turn: Turn, given: set[str]) -> None:
        if self.profile.unique_ids == "turn":
            given.clear()
        for call in turn.calls:
            wrong = call.id in given if call.id else self.shape.KEYED
            if not wrong and (is_good_id(call.id, self.profile) or not call.id):
                given.add(call.id)
                continue
            new = self._new_id()
            if not wrong and not is_good_id(new, self.profile):
                given.add(call.id)
                continue
            self.ids[call] = self._edit(call.index).ids[call.part] = new
            self._note("rename_call_id", call.index, call.id)

    def _new_id(self) -> str:
        """Return an id that is not in the history; nine letters and digits suit even the strictest provider."""
        while True:
            self.last_id += 1
            id = f"call{self.last_id:05}"
            if id not in self.taken:
                return id

    # ---- results

    def _late_answers(self, history: list[Turn], pairings: list[Pairing]) -> list[list[_Moved]]:
        """Return, for each turn, the results of its unanswered calls that stand in a later turn."""
        moved: list[list[_Moved]] = [[] for _ in pairings]
        waiting: dict[tuple[bool, str], tuple[int, deque[Call]]] = {}
        for number, (turn, pairing) in enumerate(zip(history, pairings, strict=True)):
            for result in () if _refers(turn) else pairing.orphans:
                place, calls = waiting.get(self._key(result), (0, deque[Call]()))
                if calls:
                    moved[place].append(_Moved(calls.popleft(), result))
            for call in pairing.unanswered:
                key = self._key(call)
                if key not in waiting or waiting[key][0] != number:
                    waiting[key] = (number, deque())
                waiting[key][1].append(call)
        return moved

    def _key(self, item: Call | Result) -> tuple[bool, str]:
        """What a late result has in common with its call; the name only where a shape has no ids."""
        return (True, item.id) if item.id or self.shape.KEYED else (False, item.name)

    def _rebuilt(
        self, turn: Turn, pairing: Pairing, late: list[_Moved], moved: set[Result]
    ) -> Iterator[tuple[Mapping[str, Any], int | None]]:
        yield from (item for view in turn.head for item in self._finished(view))
        damaged = bool(late) or any(True for _ in of_pairs(turn, pairing, self.shape, self.profile))
        # Calls with one id and one result are two calls and one result once their ids are told apart.
        if not damaged and not pairing.unanswered:
            self._rename_in_place(pairing)
            yield from (item for view in turn.tail for item in self._finished(view))
            return
        results = self._results(turn, pairing, late, moved)
        yield from self._packed(turn, results)

    def _rename_in_place(self, pairing: Pairing) -> None:
        for call, result in pairing.answers:
            if call in self.ids or call in self.names:
                answering = self._answering(call, result, self._stored(result))
                self._edit(result.index).results[result.part] = answering

    def _stored(self, result: Result) -> Mapping[str, Any]:
        """Return a result as it is stored, with a text if it must not stay without."""
        return self.worded.get(result) or self.shape.result(self.messages[result.index], result.part)

    def _answering(self, call: Call, result: Result, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a result with the id and the name of its call."""
        id, name = self.ids.get(call, call.id), self.names.get(call, call.name)
        new_id = id if id and id != result.id else None
        new_name = name if is_misnamed(name, result.name, self.shape) else None
        if new_id is None and new_name is None:
            return stored
        return self.shape.renamed(stored, new_id, new_name)

    def _results(self, turn: Turn, pairing: Pairing, late: list[_Moved], moved: set[Result]) -> list[_Placed]:
        """Return all results of a turn, in order, with the message each comes from."""
        placed = []
        answers = [*pairing.answers, *late]
        for call, result in answers:
            stored = self._stored(result)
            answering = self._answering(call, result, stored)
            if call not in self.ids and call not in self.names and answering is not stored:
                self._note("fill_result", result.index, call.id, stored)
            placed.append(_Placed(answering, result.index))
        for call, result in late:
            self._note("move_result", result.index, call.id)
        answered = {call for call, _ in answers}
        for call in pairing.unanswered:
            if call in answered:
                continue
            id, name = self.ids.get(call, call.id), self.names.get(call, call.name)
            placed.append(_Placed(self.shape.synthetic(self.messages[call.index], call, id, name, self.text), None))
            self._note("insert_result", call.index, id)
        for code, dropped in (("drop_orphan_result", pairing.orphans), ("drop_duplicate_result", pairing.duplicates)):
            for result in dropped:
                if result not in moved and not (code == "drop_orphan_result" and _refers(turn)):
                    stored = self.shape.result(self.messages[result.index], result.part)
                    self._note(code, result.index, result.id, stored)
        if _refers(turn):
            placed += [_Placed(self._stored(result), result.index) for result in pairing.orphans if result not in moved]
        return placed

    def _packed(self, turn: Turn, results: list[_Placed]) -> Iterator[tuple[Mapping[str, Any], int | None]]:
        """Yield the tail of a turn: its results, then everything else in its order."""
        carriers = [view for view in turn.tail if view.results]
        for view in carriers:
            self._edit(view.index).drop.update(result.part for result in view.results)
        if not self.shape.JOINED:
            self._note_order(turn, [placed.origin for placed in results if placed.origin is not None])
            yield from ((placed.result, placed.origin) for placed in results)
        elif results:
            stored = [placed.result for placed in results]
            first = next((view for view in turn.tail if not self._edit(view.index).gone), None)
            self._note_joined(turn, carriers)
            if first and (first.results or (not carriers and self.shape.takes_results(self.messages[first.index]))):
                self._edit(first.index).first += stored
            else:
                carrier = carriers[0].index if carriers else None
                yield self.shape.carrier(None if carrier is None else self.messages[carrier], stored), carrier
        yield from (item for view in turn.tail for item in self._finished(view))

    def _note_order(self, turn: Turn, indexes: list[int]) -> None:
        last = max((index for index in indexes if turn.tail and index <= turn.tail[-1].index), default=-1)
        for view in turn.tail:
            if not view.results and view.other and view.index < last:
                self._note("reorder", view.index)

    def _note_joined(self, turn: Turn, carriers: list[View]) -> None:
        for view in turn.tail:
            if carriers and not view.results and view.index < carriers[-1].index:
                self._note("reorder", view.index)
        for view in carriers:
            if view is not carriers[0] or any(result.late for result in view.results):
                self._note("reorder", view.index)

    def _finished(self, view: View) -> Iterator[tuple[Mapping[str, Any], int | None]]:
        message = self.messages[view.index]
        edit = self.edits.get(view.index)
        if not edit:
            yield message, view.index
            return
        changed = None if edit.gone else self.shape.edited(message, edit)
        if changed is not None:
            yield changed, view.index


class _Placed(NamedTuple):
    """A result as it will be stored, and the message it comes from, if from any."""

    result: Mapping[str, Any]
    origin: int | None


def _refers(turn: Turn) -> bool:
    return any(view.refers for view in turn.head)


def readable(raw: Any) -> dict[str, Any]:
    """Return arguments as an object: mended where there is one reading, else kept whole as text."""
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        return {}
    value = thawed(raw)
    for _ in range(2):  # JSON text of JSON text is common
        if not isinstance(value, str):
            break
        try:
            value, _ = mend_whole(value, ended=True)
        except StrictError:
            break
    if not isinstance(value, dict):
        value = {UNREADABLE: encodable(raw)[0] if isinstance(raw, str) else thawed(raw)}
    try:
        if state_of_text(json.dumps(value)) == "ok":
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    return {UNREADABLE: encodable(str(raw))[0]}


def thawed(value: Any) -> Any:
    """Return plain data without read-only views."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, list | tuple) else value
