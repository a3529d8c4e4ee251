"""agent-patrol at its defaults: `PatrolMonitor.observe` after every call, told as its decorator tells it.

Knows: that package. Must not know: other guards, our engine.

Its decorator names a step by its function and the first 50 characters of each argument, and shows 200 of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.peers.model import Check, Made, Peer, Played, Turn

_ARGUMENT, _RESULT = 50, 200


class _Guard:
    def __init__(self, run: Played, *, critical: bool = False) -> None:
        from agent_patrol import PatrolMonitor

        self._monitor: Any = PatrolMonitor(task_description=run.task)
        self._critical = critical

    def checks(self, turn: Turn) -> Iterator[Check]:
        yield from (partial(self._ill, made) for made in turn.calls)

    def _ill(self, made: Made) -> bool:
        shown = ", ".join(str(value)[:_ARGUMENT] for value in made.args.values())
        report = self._monitor.observe(f"{made.call.name}({shown})", made.text[:_RESULT])
        if self._critical:
            return report.severity is not None and report.severity.value == "critical"
        return not report.is_healthy


PEERS = (
    Peer("agent-patrol", "agent-patrol", 'any report, as with `on_pathology="raise"`', _Guard, texts=True),
    Peer(
        "agent-patrol, critical",
        "agent-patrol",
        "a report of severity `critical`",
        partial(_Guard, critical=True),
        texts=True,
    ),
)
