"""The least that decides: a policy in force for one event, and the run it belongs to.

Knows: snapshots, runs and how one is saved. Must not know: files, hosts.

`Engine` watches files, answers questions about itself and serves many runs; importing it takes longer than an event may
cost. What decides is the same `Run` here and there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from time import time
from typing import Any

import msgspec

from policyengine.extension import Extension
from policyengine.policy.model import Policy
from policyengine.run import Journal, Run, Sink, read_saved
from policyengine.runstate import Conversation, RunState
from policyengine.snapshot import PolicySnapshot, build_snapshot

BUILTINS = "policyengine.extensions"
"""The package that lists the built-in extensions; it is imported by name, since the core depends on none."""


class Deciding:
    """What `HostRun` needs of an engine: the snapshot in force, and runs under it.

    `enforce_time` is for rules that are not built in: a process that has just begun is slow the first time. The clock
    is that of the world, since a run outlives processes and boots. `record` names the file of the `journal`.
    """

    def __init__(
        self,
        snapshot: PolicySnapshot,
        *,
        enforce_time: bool = False,
        clock: Callable[[], float] = time,
        sinks: Sequence[Sink] = (),
        journal: Journal | None = None,
        record: str = "",
    ) -> None:
        self.snapshot = snapshot
        self.enforce_time = enforce_time
        self.clock = clock
        self.sinks = sinks
        self.journal = journal
        self.record = record

    def start_run(self, *, run_id: str = "", agent: str = "", conversation: Conversation | None = None) -> Run:
        """Return a new run."""
        state, shared = RunState(run_id or os.urandom(16).hex(), agent), conversation or Conversation()
        if self.journal is not None:
            named = self.snapshot.named
            self.journal.begin(state.run_id, agent=agent, protocol=state.protocol, conversation=shared.id, policy=named)
        return self._run(state, shared)

    def resume_run(self, saved: bytes) -> tuple[Run, Any]:
        """Return the run that `Run.save` wrote, and the driver's part of it.

        The journal is not told: it is the same one that another process wrote to before, unless `session` says so.

        Raises:
            UsageError: the bytes are no saved run, or one of another version.
        """
        kept = read_saved(saved)
        return self._run(kept.state, kept.conversation), kept.loop

    def _run(self, state: RunState, conversation: Conversation) -> Run:
        return Run(
            self.snapshot,
            state,
            conversation=conversation,
            sinks=self.sinks,
            journal=self.journal,
            clock=self.clock,
            enforce_time=self.enforce_time,
        )


class BuiltIn(msgspec.Struct, frozen=True):
    """A built-in extension, as `build_snapshot` wants it."""

    cls: type[Extension]
    builtin: bool = True
    origin: str = "policyengine"


class BuiltIns:
    """The built-in extensions by name; each is imported when it is asked for."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = import_module(BUILTINS).CLASSES

    def get(self, name: str) -> BuiltIn | None:
        """Return the extension of this name, or `None`."""
        cls = self._classes.get(name)
        return None if cls is None else BuiltIn(getattr(import_module(f"{BUILTINS}.{name}"), cls))


def deciding(policy: Policy) -> Deciding:
    """Return what decides under a policy that was loaded and checked before, and uses built-in extensions only."""
    return Deciding(build_snapshot(policy, BuiltIns(), checked=True))
