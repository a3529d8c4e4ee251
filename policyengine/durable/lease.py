"""Whose run it is: at any time one worker decides it.

Knows: how a worker is named, when its lease has lapsed. Must not know: what is kept of a run.

A lease is a name and a time in the head of a run. Who holds it renews it while it works; a worker that died on this
machine is seen at once, one elsewhere when its time is over. Time only decides when another worker may begin: every
commit looks at the name, so a worker that was slow and was overtaken can no longer write, whatever any clock says.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

from policyengine.durable.record import Head
from policyengine.errors import PolicyEngineError

_SLACK_S = 5.0


class RunBusyError(PolicyEngineError):
    """Somebody else works on the run."""

    def __init__(self, head: Head, now: float) -> None:
        self.run_id = head.run_id
        where = head.owner.rpartition("/")[0]
        left = max(0.0, head.until - now)
        super().__init__(
            f"run {head.run_id!r} is being worked on ({where}); if that worker is gone, it is free in {left:.0f} s"
        )


class LeaseLostError(PolicyEngineError):
    """The run is not this worker's any more: another one has taken it, it was answered, cancelled or forgotten, or
    this is a copy of the process that has it. What it did since its last commit is not kept.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id!r} is not this worker's any more; nothing more of what it does is kept")


def new_owner() -> str:
    """Return a name for a worker in this process: `machine:pid:began/unique`."""
    return f"{_machine()}:{os.getpid()}:{_stat(os.getpid())[1]}/{uuid4().hex}"


def is_free(head: Head, now: float) -> bool:
    """Return whether a run may be taken: nobody holds it, its time is over, or its process here is gone."""
    if not head.owner or head.until <= now or is_gone(head.owner):
        return True
    return head.until > now + head.lease_s + _SLACK_S  # nobody takes a run for so long: the clock was set back


def is_gone(owner: str) -> bool:
    """Return whether the process of a worker ran on this machine and runs no longer."""
    machine, _, process = owner.partition("/")[0].partition(":")
    pid, _, began = process.partition(":")
    if machine != _machine() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    state, now_began = _stat(int(pid))
    return state in ("Z", "X") or (bool(began) and now_began not in ("", began))


@lru_cache(maxsize=1)
def _machine() -> str:
    """Return what tells machines apart whose processes cannot see each other: containers and boots, too."""
    parts = [socket.gethostname()]
    for place in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            path = Path(place)
            parts.append(path.readlink().name if path.is_symlink() else path.read_text(encoding="ascii").strip())
        except OSError:
            continue
    return "-".join(parts).replace(":", "_").replace("/", "_")


def _stat(pid: int) -> tuple[str, str]:
    """Return the state of a process and when it began, so that a number that was used again is not taken for it.

    Both are empty where the system does not say.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    fields = stat.rpartition(")")[2].split()
    return fields[0], fields[19]
