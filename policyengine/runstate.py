"""The plain, serialisable state of a run. Data only.

Knows: what must survive a restart. Must not know: how anything of it is computed.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec

from policyengine.decision import Note
from policyengine.shared.account import Account


class Cell(msgspec.Struct):
    """One rule's state: `value` is its state Struct (a plain mapping while saved)."""

    use: str
    version: int
    scope: str
    value: Any = None


class StopReason(msgspec.Struct, frozen=True, omit_defaults=True):
    """The typed end of a run: machine `code`, the `rule` that decided it and where it stands, observed against limit.

    `call` is the number of the tool call being judged, from 1 over the whole run, where a call was being judged.
    """

    code: str
    rule: str
    at: str = ""
    action: str = "stop"
    observed: float | None = None
    limit: float | None = None
    message: str = ""
    iteration: int = 0
    call: int | None = None


class RuleErrors(msgspec.Struct):
    """By hook: how often a rule failed in a row, and how strict an action it has been wanting (for episodes)."""

    consecutive: dict[str, int] = {}
    wanting: dict[str, float] = {}


class Conversation(msgspec.Struct):
    """State shared by all runs of one message history (scope `conversation`). Without an `id` it is given one."""

    id: str = ""
    cells: dict[str, Cell] = {}

    def __post_init__(self) -> None:
        """Name it, so that a journal can tell which runs shared it."""
        if not self.id:
            self.id = uuid4().hex


class RunState(msgspec.Struct):
    """Everything the engine remembers about one run; the loop's own state is `loop.LoopState`.

    `calls` counts tool calls judged, `batches` batches seen; `interventions` are the engine's own hints, denies and
    retries; `now` is the time of the current event in seconds. `planned` says that the run works along a plan, so that
    a rule's note may point to its tool. `day` is the day (`2026-12-31`, UTC) on which the run first needed to know
    whether an exception had expired; it counts for the whole run. `judging` is the batch under judgement, `refused`
    those of its calls that will not run, as far as that is known: the tool by id. `shared` is what the run
    holds of pools that many processes share; `None` where no rule has one.
    """

    run_id: str
    agent: str = ""
    task: str = ""
    protocol: str = "native"
    iteration: int = 0
    step: int = 0
    attempt: int = 0
    calls: int = 0
    batches: int = 0
    now: float = 0.0
    seq: int = 0
    interventions: int = 0
    generation: int = 0
    digest: str = ""
    planned: bool = False
    day: str = ""
    judging: str = ""
    refused: dict[str, str] = {}
    started: bool = False
    ended: bool = False
    cells: dict[str, Cell] = {}
    errors: dict[str, RuleErrors] = {}
    notes: list[Note] = []
    shared: Account | None = None
