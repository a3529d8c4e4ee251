"""Watch the files of a policy and reload it when they have settled.

Knows: when to look, when files have stopped changing, how to be woken up.
Must not know: what a file means, how a policy is built or refused (see `Engine.try_reload`), runs.

The content of the files decides; events only say when to look. Events get lost (a directory that was deleted and made
again, network file systems, too many watches), so that the files are looked at every `poll_s` seconds anyway.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from policyengine.errors import UsageError
from policyengine.log import log

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from watchfiles._rust_notify import RustNotify

    from policyengine.engine import Engine

POLL_S = 1.0
"""How often the files are looked at when nothing was reported."""

PATIENCE = 5
"""For how many times `settle_s` a version must stay as it is that may have been cut off."""

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
        self._doubted = False

    @property
    def sure(self) -> bool:
        """Whether the fingerprint that was reported last has been waited for in doubt already."""
        return self._doubted

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
            self._candidate, self._since, self._doubted = fingerprint, now, False
            return False
        if self.remaining_s(now) > 0:
            return False
        self._done, self._candidate = fingerprint, None
        return True

    def remaining_s(self, now: float) -> float:
        """Return how long the pending fingerprint must stay as it is to settle."""
        needed = self.settle_s * PATIENCE if self._doubted else self.settle_s
        return max(0.0, needed - (now - self._since))

    def doubt(self) -> None:
        """Let the fingerprint that was reported last settle for longer: what it stands for may have been cut off."""
        self._done, self._candidate, self._doubted = None, self._done, True

    def forget(self) -> None:
        """Let the fingerprint that was reported last settle once more."""
        self._done = None


class Trigger:
    """Waits until something happens in one of some directories. It may miss things, and it never decides anything."""

    def __init__(self, stop: threading.Event, woken: Callable[[], bool] = lambda: False) -> None:
        self._stop = stop
        self._woken = woken
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
                log().warning("changes of policy files are found by looking only, events are not available: {}", error)

    def wait(self, timeout_s: float) -> bool:
        """Return true as soon as something happened, false after `timeout_s` or when told to stop."""
        if self._notify is None:
            self._stop.wait(timeout_s)
            return False
        try:
            found = self._notify.watch(_DEBOUNCE_MS, _STEP_MS, max(1, int(timeout_s * 1000)), self)
        except (OSError, RuntimeError):
            self.disarm()
            return False
        if not isinstance(found, set):
            return False
        if any(path in self._armed for _, path in found):
            # The directory itself is gone. A new one in its place may have the same inode number, but no watch.
            self.disarm()
        return True

    def is_set(self) -> bool:
        """Whether waiting is to end: asked by what waits for events, every few milliseconds."""
        return self._stop.is_set() or self._woken()

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


def takes_sighup() -> bool:
    """Return whether a handler for SIGHUP can be installed here: the platform has it, and this is the main thread."""
    return hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread()


class Hangup:
    """A handler of SIGHUP that calls something, and then the handler that there was before."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._before: Any = None

    def install(self) -> None:
        """Handle the signal from now on.

        Raises:
            UsageError: there is no such signal on this platform, or this is not the main thread.
        """
        if not takes_sighup():
            raise UsageError("SIGHUP can be handled in the main thread only, and not on Windows")
        self._before = signal.signal(signal.SIGHUP, self._handle)

    def remove(self) -> None:
        """Put the earlier handler back, unless somebody has put another one in place since."""
        if not takes_sighup():
            log().warning("the handler of SIGHUP stays: a watch must end in the main thread for it to be removed")
        elif signal.getsignal(signal.SIGHUP) == self._handle:
            signal.signal(signal.SIGHUP, signal.SIG_DFL if self._before is None else self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._act()
        if callable(self._before):  # neither of the two defaults is
            self._before(number, frame)


class Watch:
    """Reloads an engine's policy when its files have changed and settled.

    Use it with `with`: a daemon thread looks until the block ends. Without the thread, call `step` yourself.
    With `sighup` the block handles that signal by `poke`, and calls the handler that there was before.

    Raises:
        UsageError: there are no files to watch (a shipped policy without overlays, or a `Policy` object).
    """

    def __init__(
        self,
        engine: Engine,
        *,
        poll_s: float = POLL_S,
        clock: Callable[[], float] = monotonic,
        sighup: bool = False,
    ) -> None:
        if not engine.disk:
            raise UsageError("there is nothing to watch: the policy was not read from files that can be edited")
        self.poll_s = poll_s
        self._engine = engine
        self._clock = clock
        self._settler = Settler(engine.snapshot.policy.reload.settle_s)
        self._poked = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._signal = Hangup(self.poke) if sighup else None

    @property
    def alive(self) -> bool:
        """Whether its thread is looking."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def step(self, now: float) -> float:
        """Look at the files once and reload if they have settled; return after how many seconds to look again."""
        if self._poked:
            self._poked = False
            self._settler.forget()
        seen = self._engine.disk.fingerprint()
        settled = self._settler.observe(seen, now)
        if settled:
            attempt = self._engine.try_reload(sure=self._settler.sure)
            if attempt == "moving":
                self._settler.forget()
            elif attempt == "doubtful":
                self._settler.doubt()
                more_s = self._settler.remaining_s(now)
                log().info("the policy may have been cut off: it counts if it stays as it is for {:.1f} s more", more_s)
        self._engine.staleness(None if settled else seen)
        self._settler.settle_s = self._engine.snapshot.policy.reload.settle_s
        if not self._settler.pending:
            return self.poll_s
        return min(self._settler.remaining_s(now), self._settler.settle_s)  # what is doubted may be made whole sooner

    def poke(self) -> None:
        """Try the files once more at the next look, changed or not. Safe to call from a signal handler."""
        self._poked = True

    def __enter__(self) -> Watch:
        if self._thread is not None:
            raise UsageError("the watch is running already")
        if self._signal is not None:
            self._signal.install()
        self._stop.clear()
        self._thread = threading.Thread(target=self._look, name="policyengine-watch", daemon=True)
        self._thread.start()
        self._engine.watches.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.watches.discard(self)
        if self._signal is not None:
            self._signal.remove()
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def _safe_step(self) -> float:
        """Take a step whatever it raises. Ctrl-C reaches the main thread only: here it is some extension's own."""
        try:
            return self.step(self._clock())
        except BaseException as error:  # noqa: BLE001 - a watch that ends silently would leave edits unseen for ever
            log().error("looking at the policy's files failed: {}: {}", type(error).__name__, error)
            return self.poll_s

    def _look(self) -> None:
        trigger = Trigger(self._stop, lambda: self._poked)
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
