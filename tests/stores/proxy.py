"""A TCP proxy that loses, delays and cuts what goes through it: a network between a store and its server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from select import select
from typing import Literal

HOST = "127.0.0.1"
How = Literal["cut", "cut_answer", "swallow_answer", "hold"]


class Proxy:
    """Passes on what comes to `port` to a port of this machine, and back.

    `delay_s` holds up each answer, `swallow` takes everything and passes nothing on, `cut` ends all connections and
    every new one, until `mend`. `when` does so to one request:

    * `cut`: the server never gets it, and both sides lose the connection;
    * `cut_answer`: the server gets it and answers, and then both lose the connection;
    * `swallow_answer`: the server gets it, and the client never hears of it;
    * `hold`: it is under way until `release`, also if the client gives up meanwhile.
    """

    def __init__(self, target: int) -> None:
        self.delay_s = 0.0
        self.connections = 0
        self._target = target
        self._mode = ""
        self._rules: list[tuple[bytes, How]] = []
        self._held: list[tuple[socket.socket, bytes]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server((HOST, 0), backlog=256)
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """End all connections, and every new one."""
        self._mode = "cut"
        self._end_all()

    def swallow(self) -> None:
        """Take everything and pass nothing on."""
        self._mode = "swallow"

    def mend(self) -> None:
        """Pass everything on again."""
        self._mode = ""
        self.delay_s = 0.0

    def when(self, text: bytes, how: How, times: int = 1) -> None:
        """Do something to the next requests that contain a text."""
        self._rules += [(text, how)] * times

    def release(self) -> None:
        """Let what was held arrive, and wait until the server has answered; nobody hears its answer."""
        with self._lock:
            held, self._held = self._held, []
        for server, data in held:
            server.sendall(data)
            server.settimeout(30)
            server.recv(1 << 16)
            self._end(server)

    def close(self) -> None:
        """End everything."""
        self._ended.set()
        self._end(self._listening)
        self._end_all()
        for server, _ in self._held:
            self._end(server)
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            if self._mode == "cut":
                client.close()
                continue
            try:
                server = socket.create_connection((HOST, self._target), 10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            pair = _Pair(client, server)
            with self._lock:
                self._open |= {client, server}
            for work in (self._requests, self._answers):
                thread = threading.Thread(target=work, args=(pair,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _requests(self, pair: _Pair) -> None:
        while data := _received(pair.client):
            if self._mode == "swallow":
                continue
            how = self._rule(data)
            if how == "cut":
                break
            if how == "hold":
                pair.held = True
                with self._lock:
                    self._held.append((pair.server, data))
                    self._open.discard(pair.server)
                _received(pair.client)  # until the client gives up
                self._end(pair.client)
                return
            if how is not None:
                pair.lose = how
            try:
                pair.server.sendall(data)
            except OSError:
                break
        if pair.lose != "cut_answer":
            self._end(pair.client)
            self._end(pair.server)

    def _answers(self, pair: _Pair) -> None:
        while not pair.held and (data := _received(pair.server, pair)):
            if pair.lose == "cut_answer":
                break
            if pair.lose or self._mode == "swallow":
                continue
            if self.delay_s:
                self._ended.wait(self.delay_s)
            try:
                pair.client.sendall(data)
            except OSError:
                break
        if not pair.held:
            self._end(pair.client)
            self._end(pair.server)

    def _rule(self, data: bytes) -> How | None:
        with self._lock:
            for rule in self._rules:
                if rule[0] in data:
                    self._rules.remove(rule)
                    return rule[1]
        return None

    def _end_all(self) -> None:
        with self._lock:
            ending = set(self._open)
        for one in ending:
            self._end(one)

    def _end(self, one: socket.socket) -> None:
        with self._lock:
            self._open.discard(one)
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


class _Pair:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.lose: How | None = None
        self.held = False


def _received(one: socket.socket, pair: _Pair | None = None) -> bytes:
    """Return what comes next, nothing at the end; what is held is read by whoever releases it."""
    try:
        while pair is not None and not pair.held and not select([one], [], [], 0.05)[0]:
            continue
        return b"" if pair is not None and pair.held else one.recv(1 << 16)
    except (OSError, ValueError):
        return b""
