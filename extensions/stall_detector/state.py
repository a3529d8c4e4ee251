"""The memory of the stall detector: plain data, bounded, saved with the run.

Knows: what is remembered about calls, tools, cycles and texts, and how much of it.
Must not know: how any of it is counted.

When a collection is full, the entries used longest ago go.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .cycles import Cycles

LONG_AGO = -1_000_000
MAX_OPEN = 1024
MAX_RECORDS = 128
MAX_WRITES = 256
MAX_TOOLS = 64
MAX_LATE = 64
MAX_SEEN = 64
MAX_TEXTS = 24
TEXT_LIMIT = 2048
"""A result up to this length is kept to be masked when the call repeats; a longer one is masked at once."""

OPEN, ANSWERED, NOT_RUN = 0, 1, 2
STAGNANT = ("read", "exec")


class Slot(msgspec.Struct, omit_defaults=True, gc=False):
    """One call of the open unit. `token` stands for its result, `raw` for the result as it was."""

    call: str
    identity: str
    tool: str
    effect: str
    index: int = 0
    status: int = OPEN
    token: str = ""
    raw: str = ""
    wrote: bool = False


class Record(msgspec.Struct, omit_defaults=True, gc=False):
    """What is known about one identical call.

    `count` are its copies in the latest units in a row that hold it, `total` and `units` its copies and units within
    the window, all with the result `counted`; `apart` says that other units came between. `open` are its copies in the
    open unit, `unit` the last finished unit that holds it. `told` and `told_apart` are what the model was told: 1 hint,
    2 give up. `raw`, `text`, `masked` describe the latest result and `token` is the word for all results equal to it;
    `first_token` is that of the first result, the only one not named by its masked text.
    """

    unit: int = LONG_AGO
    count: int = 0
    total: int = 0
    units: int = 0
    open: int = 0
    apart: bool = False
    counted: str = ""
    told: int = 0
    told_apart: int = 0
    token: str = ""
    raw: str = ""
    masked: str = ""
    text: str | None = None
    first_masked: str = ""
    first_token: str = ""


class ToolRecord(msgspec.Struct, omit_defaults=True):
    """A tool's latest calls in a row with different arguments (`seen`) and the same raw result."""

    raw: str = ""
    unit: int = LONG_AGO
    streak: int = 0
    seen: list[str] = []
    told: int = 0


class Late(msgspec.Struct, omit_defaults=True, gc=False):
    """A call of a finished unit whose result may still come."""

    identity: str
    unit: int
    write: bool = False


class Stalled(msgspec.Struct, omit_defaults=True, gc=False):
    """The stall that the latest unit is in, for the note at the end of a step."""

    rung: str
    code: str
    pattern: str
    tool: str
    observed: int
    limit: int
    period: int = 0


class StallState(msgspec.Struct, omit_defaults=True):
    """Everything the stall detector remembers.

    `unit` numbers the open unit; `key` and `ring_key` say which calls it makes, the latter without polls. `last_key`
    and `last_results` describe the last finished unit and `streak` how often it came in a row. `told` is what the model
    was told about that: 1 hint, 2 give up. `noted` says whether the model was told anything about `stalled`.
    """

    batch: str = ""
    unit: int = 0
    open: list[Slot] = []
    answered: int = 0
    key: str = ""
    ring_key: str = ""
    ring_size: int = 0
    total_sum: int = 0
    ring_sum: int = 0
    fired: bool = False
    last_key: str = ""
    last_results: str = ""
    streak: int = 0
    told: int = 0
    records: dict[str, Record] = {}
    cycles: Cycles = msgspec.field(default_factory=Cycles)
    tools: dict[str, ToolRecord] = {}
    writes: dict[str, int] = {}
    late: dict[str, Late] = {}
    texts: list[str] = []
    text: str = ""
    text_count: int = 0
    text_told: int = 0
    stalled: Stalled | None = None
    noted: bool = False


def storable(text: str) -> str:
    """Return a name or id without lone surrogates, which cannot be saved."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def drop_oldest(entries: dict[str, Any], units: dict[str, int]) -> None:
    """Remove the quarter of the entries whose unit is longest ago. By unit, since saving may reorder keys."""
    oldest = sorted(entries, key=lambda name: (units[name], name))
    for name in oldest[: max(1, len(oldest) // 4)]:
        del entries[name]
