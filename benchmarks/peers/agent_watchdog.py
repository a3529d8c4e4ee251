"""agent-watchdog at its defaults: `record_tool_call` for every call, inside `watch()`.

Knows: that package. Must not know: other guards, our engine.

Its limits of time and money need a clock and prices, which a recording has not; they are off, and no tokens reported.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.peers.model import Check, Made, Peer, Played, Turn


class _Guard:
    def __init__(self, run: Played) -> None:
        from agent_watchdog import AgentWatchdog
        from agent_watchdog.watchdog import WatchdogHalt

        self._halt: type[Exception] = WatchdogHalt
        self._watchdog: Any = AgentWatchdog(timeout_seconds=None)
        # Entered for the whole run: nothing has to be left, since there is no timer.
        self._watch = self._watchdog.watch()
        self._watch.__enter__()

    def checks(self, turn: Turn) -> Iterator[Check]:
        yield from (partial(self._halts, made) for made in turn.calls)

    def _halts(self, made: Made) -> bool:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._watchdog.record_tool_call(made.call.name, made.args, made.text)
        except self._halt:
            return True
        return False


PEERS = (Peer("agent-watchdog", "agent-watchdog", "`WatchdogHalt`", _Guard),)
