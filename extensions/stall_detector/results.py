"""Results: which two count as equal, and what a result that comes late corrects.

Knows: fingerprints, masks, failures with declared codes. Must not know: streaks, ladders.
"""

from __future__ import annotations

from policyengine import ToolResult, masked_fingerprint, raw_fingerprint

from .state import (
    ANSWERED,
    MAX_TEXTS,
    MAX_WRITES,
    NOT_RUN,
    OPEN,
    TEXT_LIMIT,
    Record,
    Slot,
    StallState,
    drop_oldest,
    storable,
)


def take_result(
    state: StallState, call: str, result: ToolResult, failed: bool, masks: tuple[str, ...], compare: str = "compare"
) -> None:
    """Note the result of a call, in the open unit or a finished one; `compare` is the option `results`."""
    slot = _find_slot(state, call)
    if slot is None:
        _take_late(state, call, result, failed, masks, compare)
        return
    if not result.ran:
        slot.status = NOT_RUN
        return
    slot.status = ANSWERED
    slot.raw = ("!" if failed else "") + raw_fingerprint(result.compared)
    slot.wrote = slot.effect == "write" and not failed
    record = state.records.get(slot.identity)
    if record is not None:
        raw = _as_compared(slot.raw, result, failed, compare)
        slot.token = _token(state, slot.identity, record, raw, result, failed, masks)


def _find_slot(state: StallState, call: str) -> Slot | None:
    """Return the first unanswered slot of a call; results usually come in call order."""
    slots = state.open
    start = state.answered
    if start < len(slots):
        slot = slots[start]
        if slot.call == call and slot.status == OPEN:
            state.answered = start + 1
            return slot
    return next((slot for slot in slots if slot.status == OPEN and slot.call == call), None)


def _as_compared(raw: str, result: ToolResult, failed: bool, compare: str) -> str:
    """Return what stands for a result: its fingerprint, or a word beginning with `#` where its text does not count."""
    if compare == "ignore":
        return "#"
    if not failed:
        return raw
    if compare == "compare_successes":
        return "#!"
    error = result.error
    if error is not None and error.declared:
        # The tool says itself what went wrong; what it says beside that does not count.
        return "#" + raw_fingerprint(error.code)
    return raw


def _token(
    state: StallState, identity: str, record: Record, raw: str, result: ToolResult, failed: bool, masks: tuple[str, ...]
) -> str:
    """Return the word for this result: equal results of one call get the same word.

    Masking costs far more than hashing. So the first result of a call is named by its hash, and kept to be masked when
    the call repeats with another hash; only a text that cannot be kept is masked at once.
    """
    if raw == record.raw:
        return record.token
    if record.raw and not record.masked and record.text is not None:
        record.masked = _masked(record.text, record.raw.startswith("!"), masks)
        record.first_masked, record.first_token = record.masked, record.token
    text, masked = result.compared, ""
    if raw.startswith("#"):
        masked = raw
    elif record.raw or len(text) > TEXT_LIMIT or storable(text) != text:
        masked = _masked(text, failed, masks)
    if not masked:
        record.token = raw
    elif masked != record.masked:
        record.token = record.first_token if masked == record.first_masked else masked
    record.raw, record.masked = raw, masked
    _keep_text(state, identity, record, None if masked else text)
    return record.token


def _masked(text: str, failed: bool, masks: tuple[str, ...]) -> str:
    return ("!~" if failed else "~") + masked_fingerprint(text, masks)


def _keep_text(state: StallState, identity: str, record: Record, text: str | None) -> None:
    record.text = text
    if text is None:
        return
    state.texts.append(identity)
    if len(state.texts) > MAX_TEXTS:
        oldest = state.texts.pop(0)
        if oldest in state.records and oldest not in state.texts:
            state.records[oldest].text = None


def _take_late(
    state: StallState, call: str, result: ToolResult, failed: bool, masks: tuple[str, ...], compare: str
) -> None:
    """Correct what was assumed about a call of a finished unit: a different result ends what was counted on it."""
    late = state.late.pop(call, None)
    if late is None or not result.ran:
        return
    if late.write and not failed and late.identity not in state.writes:
        note_writes(state, {late.identity})
    record = state.records.get(late.identity)
    if record is None:
        return
    raw = _as_compared(("!" if failed else "") + raw_fingerprint(result.compared), result, failed, compare)
    token = _token(state, late.identity, record, raw, result, failed, masks)
    if record.counted and token != record.counted:
        record.count = record.total = record.units = 1
        record.apart, record.told, record.told_apart = False, 0, 0
        state.cycles.break_off()
        if state.last_key == late.identity:
            state.streak, state.told = 1, 0
    record.counted = token


def note_writes(state: StallState, new: set[str]) -> None:
    """Let successful writes not seen before reset what is counted about all other calls."""
    for identity in sorted(new):
        if len(state.writes) >= MAX_WRITES:
            drop_oldest(state.writes, state.writes)
        state.writes[identity] = state.unit
    # Cycles need no reset of their own: a call never seen before fits no cycle and ends all of them.
    state.records = {identity: record for identity, record in state.records.items() if identity in new}
    state.texts = [identity for identity in state.texts if identity in new]
    state.tools.clear()
