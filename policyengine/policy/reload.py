"""Watch the files of a policy and reload it when they have settled.

Knows: when to look, when files have stopped changing, how to be woken up.
Must not know: what a file means, how a policy is built or refused (see `Engine.try_reload`), runs.

The content of the files decides; events only say when to look. Events get lost (a directory that was deleted and made
again, network file systems, too many watches), so that the files are looked at every `poll_s` seconds anyway.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from loguru import logger

from policyengine.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from watchfiles._rust_notify import RustNotify

    from policyengine.engine import Engine

POLL_S = 1.0
"""How often the files are looked at when nothing was reported."""

_DEBOUNCE_MS = 100
_STEP_MS = 50
_JOIN_S = 5.0  # a guard that never returns from its self-test must not keep the program from ending


class Settler:
    """Says when files have stopped changing: two equal fingerprints at least `settle_s` apart.

    A fingerprint is reported once. It is not reported again before another one was, or before `forget`. So a policy
    that was refused is not tried again until its files change.
    """

    def __init__(self, settle_s: float) -> None:
        self.settle_s = settle_s
        self._done: str | None = None
        self._candidate: str | None = None
        self._since = 0.0

    @property
    def pending(self) -> bool:
        """Whether a new fingerprint was seen that has not settled yet."""
        return self._candidate is not None

    def observe(self, fingerprint: str, now: float) -> bool:
        """Take note of the fingerprint at a moment; return whether it has settled and is new."""
        if fingerprint == self._done:
            self._candidate = None
            return False
        if fingerprint != self._candidate:
            self._candidate, self._since = fingerprint, now
            return False
        if now - self._since < self.settle_s:
            return False
        self._done, self._candidate = fingerprint, None
        return True

    def remaining_s(self, now: float) -> float:
        """Return how long the pending fingerprint must stay as it is to settle."""
        return max(0.0, self._since + self.settle_s - now)

    def forget(self) -> None:
        """Let the fingerprint that was reported last settle once more."""
        self._done = None


class Trigger:
    """Waits until something happens in one of some directories. It may miss things, and it never decides anything."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._armed: dict[str, tuple[int, int]] = {}
        self._notify: RustNotify | None = None

    def arm(self, directories: Iterable[Path]) -> None:
        """Watch these directories; anew where one is not the one that it was."""
        present = {str(directory): identity for directory in directories if (identity := _identity(directory))}
        if present == self._armed:
            return
        self.disarm()
        self._armed = present
        if not present:
            return
        from watchfiles._rust_notify import RustNotify  # a process that only asks for one decision never needs it

        try:
            self._notify = RustNotify(sorted(present), False, False, 300, False, True)
        except (OSError, RuntimeError) as error:
            if all(map(os.path.isdir, present)):
                logger.warning("changes of policy files are found by looking only, events are not available: {}", error)

    def wait(self, timeout_s: float) -> bool:
        """Return true as soon as something happened, false after `timeout_s` or when told to stop."""
        if self._notify is None:
            self._stop.wait(timeout_s)
            return False
        try:
            found = self._notify.watch(_DEBOUNCE_MS, _STEP_MS, max(1, int(timeout_s * 1000)), self._stop)
        except (OSError, RuntimeError):
            self.disarm()
            return False
        if not isinstance(found, set):
            return False
        if any(path in self._armed for _, path in found):
            # The directory itself is gone. A new one in its place may have the same inode number, but no watch.
            self.disarm()
        return True

    def disarm(self) -> None:
        """Stop watching."""
        if self._notify is not None:
            self._notify.close()
        self._notify = None
        self._armed = {}


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Watch:
    """Reloads an engine's policy when its files have changed and settled.

    Use it with `with`: a daemon thread looks until the block ends. Without the thread, call `step` yourself.

    Raises:
        UsageError: there are no files to watch (a shipped policy without overlays, or a `Policy` object).
    """

    def __init__(self, engine: Engine, *, poll_s: float = POLL_S, clock: Callable[[], float] = monotonic) -> None:
        if not engine.disk:
            raise UsageError("there is nothing to watch: the policy was not read from files that can be edited")
        self.poll_s = poll_s
        self._engine = engine
        self._clock = clock
        self._settler = Settler(engine.snapshot.policy.reload.settle_s)
        self._poked = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self, now: float) -> float:
        """Look at the files once and reload if they have settled; return after how many seconds to look again."""
        if self._poked:
            self._poked = False
            self._settler.forget()
        if self._settler.observe(self._engine.disk.fingerprint(), now) and self._engine.try_reload() == "moving":
            self._settler.forget()
        self._settler.settle_s = self._engine.snapshot.policy.reload.settle_s
        return self._settler.remaining_s(now) if self._settler.pending else self.poll_s

    def poke(self) -> None:
        """Try the files once more at the next look, changed or not. Safe to call from a signal handler."""
        self._poked = True

    def __enter__(self) -> Watch:
        if self._thread is not None:
            raise UsageError("the watch is running already")
        self._stop.clear()
        self._thread = threading.Thread(target=self._look, name="policyengine-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def _safe_step(self) -> float:
        """Take a step whatever it raises. Ctrl-C reaches the main thread only: here it is some extension's own."""
        try:
            return self.step(self._clock())
        except BaseException as error:  # noqa: BLE001 - a watch that ends silently would leave edits unseen for ever
            logger.error("looking at the policy's files failed: {}: {}", type(error).__name__, error)
            return self.poll_s

    def _look(self) -> None:
        trigger = Trigger(self._stop)
        try:
            while not self._stop.is_set():
                # Armed before looking: what changes after the look is reported.
                trigger.arm(self._engine.disk.directories())
                wait_s = self._safe_step()
                if self._settler.pending:
                    self._stop.wait(wait_s)
                else:
                    trigger.wait(wait_s)
        finally:
            trigger.disarm()
