"""Serve an engine at a unix socket.

Knows: threads, connections, what each request does to an engine. Must not know: policies, how an answer is shown.

A connection is one request and one answer. Each is served by a thread of its own, so that a reload, or a client that
says nothing, keeps nobody else waiting. Nothing that a client does can end the server.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from policyengine.control.place import Place
from policyengine.control.wire import (
    BUSY,
    MAX_REQUEST,
    Answer,
    KillRequest,
    LineError,
    ReloadRequest,
    Request,
    line_of,
    read_line,
    read_request,
)
from policyengine.errors import UsageError
from policyengine.log import log
from policyengine.workers import fault_text

if TYPE_CHECKING:
    from types import TracebackType

    from policyengine.engine import Engine

MOST_CLIENTS = 32
"""How many connections are served at a time.

A further one takes the place of one that has not said anything yet; where there is none, it is told so and closed."""

TIMEOUT_S = 5.0
"""How long a client may take to send its line, and how long to take the answer."""

_PAUSE_S = 0.1
_JOIN_S = 5.0


class Control:
    """Answers requests about an engine at a socket, in a daemon thread, for as long as its block lasts.

    The socket belongs to the user of the process alone. It can be used in an asynchronous program as it is: entering
    and leaving the block only make and remove files.
    """

    def __init__(
        self, engine: Engine, path: str | Path, *, timeout_s: float = TIMEOUT_S, most_clients: int = MOST_CLIENTS
    ) -> None:
        self.path = os.fspath(path)
        self._engine = engine
        self._timeout_s = timeout_s
        self._most_clients = most_clients
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, threading.Thread] = {}
        self._heard: set[socket.socket] = set()
        self._place: Place | None = None
        self._thread: threading.Thread | None = None
        self._stop: socket.socket | None = None

    def __enter__(self) -> Control:
        """Begin to answer.

        Raises:
            UsageError: the path cannot be used, or an engine answers there already.
        """
        if self._thread is not None:
            raise UsageError("the control socket is served already")
        self._place = Place(self.path)
        self._stop, stopped = socket.socketpair()
        serve = (self._place.socket, stopped)
        self._thread = threading.Thread(target=self._serve, args=serve, name="policyengine-control", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is None or self._stop is None or self._place is None:
            return
        self._stop.close()
        until = monotonic() + _JOIN_S
        thread.join(_JOIN_S)
        self._place.close()
        with self._lock:
            clients = dict(self._clients)
        for connection in clients:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # one that still asks; an answer under way is finished
        for client in clients.values():
            if client is not threading.current_thread():
                client.join(max(0.0, until - monotonic()))

    def _serve(self, listener: socket.socket, stopped: socket.socket) -> None:
        with stopped, selectors.DefaultSelector() as ready:
            ready.register(listener, selectors.EVENT_READ)
            ready.register(stopped, selectors.EVENT_READ)
            while True:
                if any(key.fileobj is stopped for key, _ in ready.select()):
                    return
                try:
                    connection, _ = listener.accept()
                except (BlockingIOError, ConnectionError):
                    continue
                except OSError as error:  # no file descriptors are left, for example
                    log().warning("a client of the control socket was not accepted: {}", error)
                    select.select([stopped], [], [], _PAUSE_S)
                    continue
                if _may_ask(connection):
                    self._begin(connection)
                else:
                    connection.close()

    def _begin(self, connection: socket.socket) -> None:
        client = threading.Thread(
            target=self._talk, args=(connection,), name="policyengine-control-client", daemon=True
        )
        with self._lock:
            full = len(self._clients) >= self._most_clients and not self._drop_silent()
            if not full:
                self._clients[connection] = client
        if full:
            with connection, suppress(OSError):
                connection.setblocking(False)
                connection.send(line_of(Answer(error=BUSY)))
            return
        try:
            client.start()
        except RuntimeError as error:
            log().warning("a client of the control socket was not served: {}", error)
            self._end(connection)

    def _drop_silent(self) -> bool:
        """Drop the client that has been silent for longest, if there is one; its thread ends by itself."""
        for connection in self._clients:
            if connection not in self._heard and _is_silent(connection):
                del self._clients[connection]
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def _talk(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError):  # the client went away
                answer = line_of(self._answer(connection))
                connection.settimeout(self._timeout_s)
                connection.sendall(answer)
        finally:
            self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        with self._lock:
            self._clients.pop(connection, None)
            self._heard.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket) -> Answer:
        try:
            until = monotonic() + self._timeout_s
            connection.settimeout(self._timeout_s)
            with suppress(TimeoutError):
                connection.recv(1, socket.MSG_PEEK)
                with self._lock:
                    self._heard.add(connection)
            request = read_request(read_line(connection, MAX_REQUEST, self._timeout_s, until))
        except LineError as error:
            return Answer(error=str(error))
        try:
            return perform(self._engine, request)
        except BaseException as error:  # noqa: BLE001 - a reload runs foreign code, and the client must hear of it
            log().error("a request at the control socket failed: {}", fault_text(error))
            return Answer(error=f"the request failed: {fault_text(error)}")


def _may_ask(connection: socket.socket) -> bool:
    """Return whether a client is of this user, or of the system's; the mode of the file says so too, to begin with."""
    asked = getattr(socket, "SO_PEERCRED", None)
    if asked is None:  # not on macOS
        return True
    try:
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, asked, struct.calcsize("3i")))
    except OSError:
        return False
    return user in (os.geteuid(), 0)


def _is_silent(connection: socket.socket) -> bool:
    """Return whether nothing waits to be read: its thread may not have looked yet."""
    ready = select.poll()
    ready.register(connection, select.POLLIN)
    return not ready.poll(0)


def perform(engine: Engine, request: Request) -> Answer:
    """Do what is asked for and return the answer."""
    if isinstance(request, KillRequest):
        engine.kill(request.on)
        return Answer(status=engine.status())
    if isinstance(request, ReloadRequest):
        outcome = engine.refresh()
        rejected = engine.rejected if outcome == "rejected" else None
        problems = rejected.as_problems(str(engine.source)) if rejected is not None else ()
        return Answer(outcome=outcome, problems=problems, status=engine.status())
    return Answer(status=engine.status())
