"""The file of a control socket: who may have it, and that only one process at a time does.

Knows: paths, modes, locks. Must not know: what is said over the socket.

A lock on `PATH.lock`, held for as long as the socket is, tells a living process from a dead one: the kernel gives it
up with the process, however that ends. The socket is not listening before its mode is set.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from contextlib import ExitStack, suppress

from policyengine.errors import UsageError
from policyengine.visible import clean_line

MAX_PATH = 107 if sys.platform == "linux" else 103
"""How many bytes the path of a socket may have: 108 (or 104) with the zero byte at its end."""

_BACKLOG = 128
_PROBE_S = 1.0


def check_path(path: str) -> None:
    """Refuse a path that no unix socket can have, and a platform without such sockets; raises `UsageError`."""
    if not hasattr(socket, "AF_UNIX"):
        raise UsageError("this platform has no unix sockets")
    size = len(os.fsencode(path))
    if not path or "\0" in path:
        raise UsageError("the path of a control socket must not be empty and must not hold a zero byte")
    if size > MAX_PATH:
        shown = clean_line(path)
        raise UsageError(f"the path of a control socket may have {MAX_PATH} bytes; this one has {size}: {shown}")


class Place:
    """A listening socket at a path, for this user only. `close` removes what it made.

    Raises:
        UsageError: the path cannot be used, or a process answers there already.
    """

    def __init__(self, path: str) -> None:
        check_path(path)
        self.shown = clean_line(path)
        self._path = os.path.abspath(path)  # to be found again where the working directory changes
        self._check_directory()
        self._lock = self._locked()
        with ExitStack() as undone:
            undone.callback(self._unlock)
            self.socket = self._bound(path)
            undone.pop_all()
        self._own = _identity(self._path)

    def close(self) -> None:
        """Stop listening and remove the files, unless somebody put others in their place."""
        self.socket.close()
        if self._own is not None and _identity(self._path) == self._own:
            with suppress(OSError):
                os.unlink(self._path)
        self._unlock()

    def _check_directory(self) -> None:
        directory = os.path.dirname(self._path)
        try:
            mode = os.stat(directory).st_mode
        except OSError as error:
            raise UsageError(f"no directory for the control socket {self.shown}: {error.strerror}") from error
        if not stat.S_ISDIR(mode):
            raise UsageError(f"no directory for the control socket {self.shown}: not a directory")
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise UsageError(
                f"the directory of the control socket {self.shown} can be written by everybody, who could put another "
                "socket in its place; take that right away, or use another directory"
            )

    def _locked(self) -> int:
        import fcntl  # not on Windows, which `check_path` refused

        path = f"{self._path}.lock"
        while True:
            try:
                held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise UsageError(f"cannot write {clean_line(path)}: {error.strerror}") from error
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(held)
                raise UsageError(f"an engine answers at {self.shown} already") from error
            found = os.fstat(held)
            if _identity(path) == (found.st_dev, found.st_ino):
                return held
            os.close(held)  # its owner ended and removed it between the two calls

    def _unlock(self) -> None:
        # Removed while it is held: whoever opened it meanwhile sees that it is not the file of that name any more.
        with suppress(OSError):
            os.unlink(f"{self._path}.lock")
        os.close(self._lock)

    def _bound(self, path: str) -> socket.socket:
        with ExitStack() as undone:
            listener = undone.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                with suppress(OSError):  # Linux gives the file the mode of its socket: nobody else's for no moment
                    os.fchmod(listener.fileno(), 0o600)
                self._bind(listener, path)
                os.chmod(path, 0o600)
                listener.listen(_BACKLOG)
            except OSError as error:
                raise UsageError(f"cannot make the control socket {self.shown}: {error.strerror or error}") from error
            listener.setblocking(False)
            undone.pop_all()
        return listener

    def _bind(self, listener: socket.socket, path: str) -> None:
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            self._remove_dead()
            listener.bind(path)

    def _remove_dead(self) -> None:
        if not stat.S_ISSOCK(os.lstat(self._path).st_mode):
            raise UsageError(f"{self.shown} is there already, and is no socket")
        if _answers(self._path):
            raise UsageError(f"a process answers at {self.shown} already")
        os.unlink(self._path)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # too busy, of another kind, of somebody else: not for us to remove
            return True
    return True


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
