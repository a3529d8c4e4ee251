"""A Redis server for tests: on a free port of this machine, in a directory of its own, stopped at the end.

Import the fixtures you need (`redis_proxy` needs `redis_server` beside it). They skip where the program `redis-server`
or the extra `redis` is missing, unless POLICYENGINE_NEEDS_REDIS says that both must be there.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.stores.proxy import Proxy

HOST = "127.0.0.1"


class RedisServer:
    """A server, which can be stopped, killed and started again on the same port with what it saved."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it takes commands."""
        for _ in range(10):
            self.port = self.port or free_port()
            if self._started():
                return
            self.port = 0  # somebody else was faster
        raise AssertionError("redis-server does not start")

    def stop(self) -> None:
        """End it in an orderly way."""
        if self._process is not None:
            self._process.terminate()
        self._ended()

    def kill(self) -> None:
        """End it as a power cut would, but for what the system has in its buffers."""
        if self._process is not None:
            self._process.kill()
        self._ended()

    def url(self, prefix: str = "t", *, port: int = 0) -> str:
        """Return the place of a store."""
        return f"redis://{HOST}:{port or self.port}/0?prefix={prefix}"

    def say(self, *words: str | bytes) -> Any:
        """Return the answer to a command, sent past all stores."""
        import redis

        with redis.Redis(host=HOST, port=self.port) as client:
            return client.execute_command(*words)

    def _started(self) -> bool:
        command = ["redis-server", "--port", str(self.port), "--bind", HOST, "--dir", str(self.folder), "--save", ""]
        self._process = subprocess.Popen([*command, *self.options], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if b"Ready to accept connections" in line:
                # Nobody reads what it says from here on: the pipe must not fill up.
                with socket.create_connection((HOST, self.port), 10) as said:
                    said.sendall(b"CONFIG SET loglevel warning\r\n")
                    said.recv(100)
                return True
        self._ended()
        return False

    def _ended(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()


def free_port() -> int:
    """Return a port of this machine on which nobody listens now."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port: int = taken.getsockname()[1]
        return port


def need_redis() -> None:
    """Skip the test where there is no Redis, unless there must be."""
    found = {"the program redis-server": shutil.which("redis-server"), "the extra redis": find_spec("redis")}
    missing = [name for name, where in found.items() if where is None]
    if not missing:
        return
    text = f"missing: {' and '.join(missing)}"
    if os.environ.get("POLICYENGINE_NEEDS_REDIS"):
        pytest.fail(text)
    pytest.skip(text)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """Return a server that runs and is empty."""
    need_redis()
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def redis_proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """Return a proxy before the server, which can lose and delay what is sent."""
    proxy = Proxy(redis_server.port)
    try:
        yield proxy
    finally:
        proxy.close()
