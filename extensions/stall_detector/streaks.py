"""Counts of what repeats: how a unit of calls is gathered, and what it adds to the counts when it is finished.

Knows: units (all calls of one batch), their order, which of them are equal.
Must not know: options other than window sizes, what is done about a repeat.

A unit is open from its first call until something of another unit arrives; only then do its calls and results count.
So a decision never depends on whether a host reports the results of a batch one by one or together. A call whose result
is missing (refused, not run, not reported yet) is taken to have answered as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from .results import note_writes
from .state import (
    ANSWERED,
    MAX_LATE,
    MAX_OPEN,
    MAX_RECORDS,
    MAX_SEEN,
    MAX_TOOLS,
    OPEN,
    STAGNANT,
    Late,
    Record,
    Slot,
    StallState,
    ToolRecord,
    drop_oldest,
)

_MASK = (1 << 60) - 1


def begin_unit(state: StallState, batch: str, max_period: int, max_gap: int) -> None:
    """Finish the open unit and open the next one."""
    if state.open:
        finish_unit(state, max_period, max_gap)
    state.batch = batch


def admit(state: StallState, slot: Slot) -> Record:
    """Add a call to the open unit and return its record, with this call counted as open."""
    record = state.records.get(slot.identity)
    if record is None:
        if len(state.records) >= MAX_RECORDS:
            _drop_records(state)
        record = state.records[slot.identity] = Record()
    record.open += 1
    count = len(state.open)
    if count >= MAX_OPEN:
        state.key = state.ring_key = ""
        return record
    state.open.append(slot)
    if count:
        _extend_keys(state, slot, count)
    else:
        state.key = slot.identity
        state.ring_key = "" if slot.effect == "poll" else slot.identity
    return record


def readmit_all_but(state: StallState, call: str, index: int) -> None:
    """Take one call out of the open unit: it was rewritten and is about to be judged again."""
    keep = [slot for slot in state.open if slot.call != call or slot.index != index]
    _empty_open(state)
    for slot in keep:
        admit(state, slot)


def _extend_keys(state: StallState, slot: Slot, count: int) -> None:
    """Bring the keys of the open unit up to date: sums, so that the order of its calls does not matter."""
    if count == 1:
        first = state.open[0]
        state.total_sum, state.ring_sum, state.ring_size = _number(first.identity), 0, 0
        _extend_ring(state, first)
    state.total_sum = (state.total_sum + _number(slot.identity)) & _MASK
    state.key = f"{count + 1}:{state.total_sum:x}"
    _extend_ring(state, slot)


def _extend_ring(state: StallState, slot: Slot) -> None:
    if slot.effect == "poll":
        return
    state.ring_size += 1
    state.ring_sum = (state.ring_sum + _number(slot.identity)) & _MASK
    state.ring_key = slot.identity if state.ring_size == 1 else f"{state.ring_size}:{state.ring_sum:x}"


def _number(identity: str) -> int:
    return int(identity[:15], 16)


def alike_key(state: StallState) -> str:
    """Return a key that is equal for units made of the same one call, however many copies of it they hold."""
    if len(state.open) == 1:
        return state.ring_key
    identities = {slot.identity for slot in state.open if slot.effect != "poll"}
    return identities.pop() if len(identities) == 1 else state.ring_key


def finish_unit(state: StallState, max_period: int, max_gap: int) -> None:
    """Let the open unit count: its calls with their results, or with those of their predecessors."""
    slots, key, ring_key = state.open, state.key, state.ring_key
    if len(slots) == 1:
        slot = slots[0]
        record = state.records.get(slot.identity) or Record()
        results = slot.token or record.counted
        _advance(record, (slot.token,), state.unit, max_gap)
        alike = ring_key
    else:
        alike = alike_key(state)
        results = _finish_many(state, max_gap)
    last = state.last_results
    if key and key == state.last_key and (results == last or not results or not last):
        state.streak += 1
    else:
        state.streak, state.told = 1, 0
    state.last_key, state.last_results = key, results
    if ring_key:
        state.cycles.push(ring_key, results if ring_key == key else _ring_results(state), alike, max_period)
    _advance_tools(state, slots)
    for slot in slots:
        if slot.wrote and slot.identity not in state.writes:
            note_writes(state, {slot.identity for slot in slots if slot.wrote} - state.writes.keys())
            break
    for slot in slots:
        if slot.status == OPEN:
            _note_late(state, slot)
    if state.fired:
        state.fired = False
    elif state.stalled is not None:
        state.stalled, state.noted = None, False
    state.unit += 1
    state.open = []
    state.answered = state.ring_size = 0
    state.key = state.ring_key = ""


def _advance(record: Record, tokens: Sequence[str], unit: int, max_gap: int) -> None:
    """Count the copies of one call in a finished unit; `tokens` are their results, empty where unknown."""
    known, run, equal = record.counted, 0, True
    for token in tokens:
        if token and token != known:
            if known:
                equal, run = False, 0
            known = token
        run += 1
    since = unit - record.unit
    if equal and since == 1:
        record.count += run
    else:
        record.count = run
    if equal and since <= max_gap:
        record.total += run
        record.units += 1
        if since > 1:
            record.apart = True
    else:
        record.total, record.units, record.apart = run, 1, False
    if not equal:
        record.told = record.told_apart = 0
    record.counted, record.unit, record.open = known, unit, 0


def _finish_many(state: StallState, max_gap: int) -> str:
    """Count a unit of several calls and return a key of all their results, whatever their order."""
    copies: dict[str, list[str]] = {}
    for slot in state.open:
        copies.setdefault(slot.identity, []).append(slot.token)
    pairs: list[str] = []
    for identity, tokens in copies.items():
        record = state.records.get(identity) or Record()
        pairs += (f"{identity}={token or record.counted}" for token in tokens)
        _advance(record, tokens, state.unit, max_gap)
    return _results_key(pairs)


def _ring_results(state: StallState) -> str:
    """Return a key of the results of the calls that are not polls."""
    slots = [slot for slot in state.open if slot.effect != "poll"]
    answers = {slot.identity: state.records[slot.identity].counted for slot in slots if slot.identity in state.records}
    if len(slots) == 1:
        return slots[0].token or answers.get(slots[0].identity, "")
    return _results_key([f"{slot.identity}={slot.token or answers.get(slot.identity, '')}" for slot in slots])


def _results_key(pairs: list[str]) -> str:
    if all(pair.endswith("=") for pair in pairs):
        return ""
    return blake2b("\n".join(sorted(pairs)).encode(), digest_size=16).hexdigest()


def _advance_tools(state: StallState, slots: Sequence[Slot]) -> None:
    """Count, per tool, units that asked something new and got the same raw result. Writes and polls do not count.

    A refused call is taken to have answered like the one before it; one whose result is missing tells nothing.
    """
    if len(slots) == 1:
        slot = slots[0]
        if slot.status == ANSWERED and slot.effect in STAGNANT:
            _advance_tool(state, slot.tool, slot.raw, (slot.identity,))
            return
    asked: dict[str, list[Slot]] = {}
    for slot in slots:
        if slot.status != OPEN and slot.effect in STAGNANT:
            asked.setdefault(slot.tool, []).append(slot)
    for tool, made in asked.items():
        record = state.tools.get(tool)
        answers = [slot.raw for slot in made if slot.status == ANSWERED]
        if not answers and record is not None:
            answers = [record.raw]
        if len(set(answers)) > 1 and record is not None:
            record.raw = ""
        if answers:
            _advance_tool(state, tool, answers[-1], [slot.identity for slot in made])


def _advance_tool(state: StallState, tool: str, raw: str, identities: Sequence[str]) -> None:
    record = state.tools.get(tool)
    if record is None:
        if len(state.tools) >= MAX_TOOLS:
            drop_oldest(state.tools, {name: held.unit for name, held in state.tools.items()})
        record = state.tools[tool] = ToolRecord()
    record.unit = state.unit
    if raw != record.raw:
        record.raw, record.streak, record.seen, record.told = raw, 0, [], 0
    new = [identity for identity in identities if identity not in record.seen]
    if new:
        record.streak += 1
        record.seen += new
        del record.seen[:-MAX_SEEN]


def _note_late(state: StallState, slot: Slot) -> None:
    if not slot.call:
        return
    if len(state.late) >= MAX_LATE:
        drop_oldest(state.late, {call: held.unit for call, held in state.late.items()})
    state.late[slot.call] = Late(slot.identity, state.unit, slot.effect == "write")


def _empty_open(state: StallState) -> None:
    for slot in state.open:
        if slot.identity in state.records:
            state.records[slot.identity].open = 0
    state.open, state.answered, state.key, state.ring_key, state.ring_size = [], 0, "", "", 0


def _drop_records(state: StallState) -> None:
    drop_oldest(state.records, {name: state.unit if held.open else held.unit for name, held in state.records.items()})
