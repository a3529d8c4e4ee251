"""What must hold for every journal: a replay, or the line that cannot be read.

Knows: a journal. Must not know: how it is replayed.
"""

from __future__ import annotations

from functools import cache

from benchmarks.fuzz.mutate import altered, as_json, damaged
from benchmarks.fuzz.place import written
from benchmarks.fuzz.recording import samples
from benchmarks.fuzz.source import Source, happens
from policyengine.engine import Engine
from policyengine.errors import PolicyEngineError
from policyengine.replay import replay_journal
from policyengine.telemetry.journal import JournalError


@cache
def _engine() -> Engine:
    return Engine("default", enforce_time=False)


def generate(source: Source) -> bytes:
    """Return a case."""
    lines = samples()["journal"]
    if happens(source, 2):
        lines = altered(source, lines)
    data = b"\n".join(map(as_json, lines if isinstance(lines, list) else [lines])) + b"\n"
    return damaged(source, [data]) if happens(source, 2) else data


def check(case: bytes) -> None:
    """Replay the journal."""
    path = written("journal.jsonl", case)
    try:
        for _ in replay_journal(path, _engine()):
            pass
    except (JournalError, PolicyEngineError):
        return
