"""A file that several processes append lines to, written off the thread that says something.

Knows: a bounded queue and what happens when it is full, rotation, locks between processes.
Must not know: what a line says.

* A line that was taken is written whole or not at all: what a crash or a full disk leaves of it never runs into the
  next one.
* Every process that appends holds a lock on the file (`flock`) for as long as it writes and while it rotates. A file
  that somebody renamed is noticed before the next line, so that programs such as logrotate need to send no signal.
* Nobody waits for long. A queue that is full makes a writer wait for at most `patience_s`, once, until the file takes
  lines again (`block`), or not at all (`drop`). What was not written is counted, and said in the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal
from weakref import finalize

from policyengine.errors import UsageError
from policyengine.log import log

if TYPE_CHECKING:
    from types import TracebackType

WhenFull = Literal["block", "drop"]

MOST_LINES, MOST_BYTES = 10_000, 64 << 20
"""How much waits to be written."""

CLOSE_S = 10.0
"""How long `close`, and the end of the process, wait for what is not written yet."""

_BATCH = 1 << 20
_ATTEMPTS = 100


class LogFile:
    """Appends lines to a file in a thread of its own. Give it to a `DecisionLog` in the place of an open file.

    Args:
        path: the file; it is made if it is not there. What is no regular file (`/dev/stderr`) is never rotated.
        max_bytes: rotate before the file grows beyond this.
        every_s: rotate where the last line was written in an earlier period of so many seconds since 1970.
        keep: how many rotated files are kept, as `NAME.1` (the latest) and so on.
        when_full: what happens where `most_lines` or `most_bytes` wait already: `block` or `drop` (see above).
        patience_s: how long `block` waits.
        gap: makes the line that says how many lines are missing in its place.
        clock: seconds since 1970.

    Close it, or use it as a context manager; what waits is written then, or at the end of the process.

    Raises:
        UsageError: the file cannot be opened or locked, or a setting makes no sense.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        every_s: float | None = None,
        keep: int = 5,
        when_full: WhenFull = "block",
        most_lines: int = MOST_LINES,
        most_bytes: int = MOST_BYTES,
        patience_s: float = 2.0,
        gap: Callable[[int], str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name, number in {
            "max_bytes": max_bytes,
            "every_s": every_s,
            "keep": keep,
            "most_lines": most_lines,
        }.items():
            if number is not None and number < 1:
                raise UsageError(f"`{name}` of a log file must be 1 or more, not {number}")
        if when_full not in ("block", "drop"):
            raise UsageError(f"`when_full` of a log file is `block` or `drop`, not {when_full!r}")
        self.path = os.fspath(path)
        self.gap = gap
        batch = min(_BATCH, max_bytes or _BATCH)  # what is written at once is in one file
        self._make = partial(_Queue, self.path, when_full, most_lines, most_bytes, patience_s, batch)
        self._open = partial(Appender, self.path, max_bytes=max_bytes, every_s=every_s, keep=keep, clock=clock)
        self._guard = threading.Lock()
        try:
            self._queue = self._make(self._open())
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror or error}") from error
        self._finish = finalize(self, self._queue.close, CLOSE_S)

    @property
    def dropped(self) -> int:
        """How many lines were not written, and will not be."""
        return self._queue.dropped

    def write(self, text: str) -> int:
        """Take one line, with its end; it is written soon.

        Raises:
            ValueError: the file was closed.
            OSError: there can be no thread to write it.
        """
        queue = self._queue
        if queue.pid != os.getpid():
            queue = self._forked()
        queue.put(text.encode("utf-8", "surrogatepass"), self.gap)
        return len(text)

    def flush(self) -> None:
        """Do nothing: lines are written soon anyway, and nobody is to wait for that. See `drain`."""

    def drain(self, timeout_s: float = CLOSE_S) -> bool:
        """Wait until everything taken so far is written or lost; return whether it is."""
        return self._queue.drain(timeout_s)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what waits and close the file. What cannot be written within the time is counted and logged."""
        self._finish.detach()
        self._queue.close(timeout_s)

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forked(self) -> _Queue:
        """Return the queue of a child process: what waited is written by the parent, and no lock of it counts here."""
        with self._guard:
            if self._queue.pid != os.getpid():
                self._queue.leave()
                self._queue = self._make(self._open())
                self._finish.detach()
                self._finish = finalize(self, self._queue.close, CLOSE_S)
            return self._queue


class _Queue:
    """Lines that wait, and the thread that writes them. A number stands for lines that were dropped in its place."""

    def __init__(
        self,
        path: str,
        when_full: WhenFull,
        most_lines: int,
        most_bytes: int,
        patience_s: float,
        batch: int,
        file: Appender,
    ) -> None:
        self.pid = os.getpid()
        self.dropped = 0
        self._path = path
        self._blocks = when_full == "block"
        self._most_lines = most_lines
        self._most_bytes = most_bytes
        self._patience_s = patience_s
        self._batch = batch
        self._file = file
        # Reentrant: a file that is forgotten may be collected, and so closed, wherever the lock is held.
        self._lock = threading.RLock()
        self._more, self._less = threading.Condition(self._lock), threading.Condition(self._lock)
        self._items: deque[bytes | int] = deque()
        self._lines = self._bytes = self._owed = 0
        self._patient, self._busy, self._closing, self._failed = True, False, False, False
        self._gap: Callable[[int], str] | None = None
        self._thread: threading.Thread | None = None

    def put(self, line: bytes, gap: Callable[[int], str] | None) -> None:
        """Take a line, or count it as dropped."""
        with self._lock:
            if self._closing:
                raise ValueError(f"{self._path} is closed")
            self._gap = gap
            if self._thread is None:
                self._start()
            if self._full(line) and self._blocks and self._patient:
                self._patient = self._less.wait_for(lambda: not self._full(line) or self._closing, self._patience_s)
            if self._full(line) or self._closing:
                self._drop()
                return
            self._items.append(line)
            self._lines += 1
            self._bytes += len(line)
            self._more.notify()

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing waits."""
        with self._lock:
            return self._less.wait_for(lambda: not self._items and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what waits, and end the thread."""
        if self.pid != os.getpid():
            return
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._more.notify_all()
            self._less.notify_all()
            thread = self._thread
        if thread is None:
            self._file.close()
        elif thread is not threading.current_thread():
            thread.join(timeout_s)
            if thread.is_alive():
                with self._lock:
                    self.dropped += self._lines
                log().error("{} lines of {} were not written in time", self._lines, self._path)

    def leave(self) -> None:
        """Close the file in a process that was forked; whose thread it was writes on."""
        self._file.close()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="policyengine-log", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error
        self._thread = thread

    def _full(self, line: bytes) -> bool:
        return self._lines > 0 and (self._lines >= self._most_lines or self._bytes + len(line) > self._most_bytes)

    def _drop(self) -> None:
        self.dropped += 1
        if self._items and isinstance(self._items[-1], int):
            self._items[-1] += 1
        else:
            self._items.append(1)
            self._more.notify()

    # ---- in the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                self._more.wait_for(lambda: self._items or self._closing)
                batch = self._take()
                if not batch:
                    break
                self._busy = self._patient = True
                self._less.notify_all()
            self._write(batch)
            with self._lock:
                self._busy = False
                self._less.notify_all()
        if self._owed:
            self._write([])
        self._file.close()

    def _take(self) -> list[bytes | int]:
        taken: list[bytes | int] = []
        size = 0
        while self._items:
            item = self._items[0]
            if isinstance(item, bytes):
                if size and size + len(item) > self._batch:
                    break
                size += len(item)
                self._lines -= 1
            taken.append(self._items.popleft())
        self._bytes -= size
        return taken

    def _write(self, batch: list[bytes | int]) -> None:
        items = [self._owed, *batch] if self._owed else batch
        try:
            self._file.append(b"".join(item if isinstance(item, bytes) else self._missing(item) for item in items))
        except OSError as error:
            lost = sum(isinstance(item, bytes) for item in batch)
            self._owed += lost + sum(item for item in batch if isinstance(item, int))
            with self._lock:
                self.dropped += lost
            if not self._failed:
                log().error("the decision log cannot be written: {}", error)
            self._failed = True
        else:
            self._owed, self._failed = 0, False

    def _missing(self, count: int) -> bytes:
        return self._gap(count).encode() if self._gap is not None else b""


class Appender:
    """Appends whole lines to a file, and rotates it, whoever else does so at the same time. For one thread."""

    def __init__(
        self,
        path: str,
        *,
        max_bytes: int | None = None,
        every_s: float | None = None,
        keep: int = 5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        # A link is followed once and for all: what is renamed is the file that it names.
        self._path = os.path.realpath(path) if not os.path.exists(path) or os.path.isfile(path) else path
        self._max_bytes = max_bytes
        self._every_s = every_s
        self._keep = keep
        self._clock = clock
        self._fd: int | None = None
        self._regular = True
        self._stuck = False
        self._check()

    def append(self, data: bytes) -> None:
        """Append lines, all of them or none.

        Raises:
            OSError: they could not be written.
        """
        for _ in range(_ATTEMPTS):
            fd = self._opened()
            if not self._regular:
                return _write_all(fd, data)
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                held = os.fstat(fd)
                if self._is_at_its_place(held) and not (self._due(held, len(data)) and self._rotate()):
                    return self._write(fd, held.st_size, data)
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)
            self.close()
        raise OSError(errno.EAGAIN, "the file is renamed again and again", self._path)

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _check(self) -> None:
        fd = self._opened()
        if not self._regular:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(fd, fcntl.LOCK_UN)
        except BlockingIOError:
            return  # somebody is writing
        except OSError as error:
            self.close()
            raise OSError(error.errno, "the file system has no locks, which a log file needs", self._path) from error

    def _opened(self) -> int:
        if self._fd is None:
            flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            try:
                self._fd = os.open(self._path, flags | os.O_RDWR, 0o600)
            except PermissionError:
                self._fd = os.open(self._path, flags | os.O_WRONLY, 0o600)
            self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
        return self._fd

    def _is_at_its_place(self, held: os.stat_result) -> bool:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def _due(self, held: os.stat_result, more: int) -> bool:
        if not held.st_size:
            return False
        if self._max_bytes is not None and held.st_size + more > self._max_bytes:
            return True
        every = self._every_s
        return every is not None and held.st_mtime // every < self._clock() // every

    def _rotate(self) -> bool:
        """Rename the file and those before it; return whether that was possible. The lock of the file is held."""
        names = [f"{self._path}.{number}" for number in range(1, self._keep + 1)]
        try:
            for older, newer in zip(reversed(names), reversed([self._path, *names[:-1]]), strict=True):
                with suppress(FileNotFoundError):
                    os.replace(newer, older)
        except OSError as error:
            if not self._stuck:
                log().error("the decision log cannot be rotated and grows on: {}", error)
            self._stuck = True
            return False
        self._stuck = False
        return True

    def _write(self, fd: int, size: int, data: bytes) -> None:
        """Write behind `size` bytes; take back what was written of it where the rest cannot be."""
        if size and not _ends_a_line(fd, size):
            data = b"\n" + data
        try:
            _write_all(fd, data)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, size)
            raise


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _ends_a_line(fd: int, size: int) -> bool:
    try:
        return os.pread(fd, 1, size - 1) == b"\n"
    except OSError:
        return True  # it may be written and not read


SIZES = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def size_of(text: str) -> int | None:
    """Return what `100MB` means in bytes; `None` where it is no size."""
    text = text.strip().lower()
    for unit in sorted(SIZES, key=len, reverse=True):
        number = text.removesuffix(unit).strip()
        if number != text and number.isascii() and number.isdigit() and len(number) < 10:
            return int(number) * SIZES[unit] or None
    return None
