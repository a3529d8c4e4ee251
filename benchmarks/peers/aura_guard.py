"""aura-guard at its defaults: `check_tool` before every call, `record_result` after it, `check_output` of every text.

Knows: that package. Must not know: other guards, our engine.

It mostly refuses: only ESCALATE and FINALIZE end a run. Its first refusal is a row of its own. What it refuses goes on
in a recording, and is reported to it all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.peers.model import Check, Made, Peer, Played, Turn

_ENDS = frozenset({"escalate", "finalize"})
_KEY = b"a key for recordings"


class _Guard:
    def __init__(self, run: Played, *, refusals: bool = False) -> None:
        from aura_guard import AgentGuard

        # It warns of calls without a result; a warning costs more than a check.
        logging.getLogger("aura_guard").setLevel(logging.ERROR)
        self._guard: Any = AgentGuard(secret_key=_KEY)
        self._refusals = refusals

    def checks(self, turn: Turn) -> Iterator[Check]:
        if turn.response.text:
            yield partial(self._said, turn.response.text)
        for made in turn.calls:
            yield partial(self._called, made)

    def _said(self, text: str) -> bool:
        return self._ends(self._guard.check_output(text))

    def _called(self, made: Made) -> bool:
        decision = self._guard.check_tool(made.call.name, args=made.args)
        if self._ends(decision):
            return True
        if made.result is not None:
            self._guard.record_result(ok=not made.failed, payload=made.text)
        return False

    def _ends(self, decision: Any) -> bool:
        if decision is None or decision.action.value == "allow":
            return False
        return self._refusals or decision.action.value in _ENDS


PEERS = (
    Peer("aura-guard", "aura-guard", "ESCALATE or FINALIZE", _Guard, texts=True),
    Peer(
        "aura-guard, first refusal",
        "aura-guard",
        "the first BLOCK, CACHE, REWRITE or end: no stop, for comparison",
        partial(_Guard, refusals=True),
        texts=True,
        ends=False,
    ),
)
