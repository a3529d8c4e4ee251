"""agent-loop-guard at its defaults: `LoopGuard.check` after every call, with the result.

Knows: that package. Must not know: other guards, our engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.peers.model import Check, Made, Peer, Played, Turn


class _Guard:
    def __init__(self, run: Played) -> None:
        from loop_guard import LoopGuard

        self._guard: Any = LoopGuard()

    def checks(self, turn: Turn) -> Iterator[Check]:
        yield from (partial(self._loops, made) for made in turn.calls)

    def _loops(self, made: Made) -> bool:
        output = None if made.result is None else made.text
        return bool(self._guard.check(made.call.name, made.args, output).is_loop)


PEERS = (Peer("agent-loop-guard", "agent-loop-guard", "`Decision.is_loop` (STOP or ESCALATE)", _Guard, texts=True),)
