"""What must hold for whatever is written to a control socket: one answer, and the next client gets one too.

Knows: the socket of an engine. Must not know: how it is served.
"""

from __future__ import annotations

import socket
from functools import cache
from typing import Any

from benchmarks.fuzz.mutate import damaged
from benchmarks.fuzz.place import folder
from benchmarks.fuzz.source import Source, happens
from policyengine.control.client import ask
from policyengine.control.server import Control
from policyengine.control.wire import LineError, StatusRequest, read_answer, read_request
from policyengine.engine import Engine

SEEDS = (
    b'{"request": "status"}\n',
    b'{"request": "kill", "on": true}\n',
    b'{"request": "kill", "on": false}\n',
    b'{"error": "x", "outcome": "rejected", "problems": [{"code": "Y1", "message": "m", "position": {"file": "f"}}]}\n',
)


@cache
def _served() -> tuple[Any, str]:
    path = str(folder() / "control.sock")
    control = Control(Engine("default"), path, timeout_s=0.2)
    control.__enter__()
    return control, path


def generate(source: Source) -> bytes:
    """Return a case."""
    return damaged(source, SEEDS, 20_000) + (b"\n" if happens(source, 2) else b"")


def check(case: bytes) -> None:
    """Send the bytes, then ask for the status.

    Raises:
        AssertionError: the answer is none, or there is no second one.
    """
    for read in (read_request, read_answer):
        try:
            read(case)
        except LineError:
            continue
    _, path = _served()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5)
        connection.connect(path)
        held = b""
        try:
            connection.sendall(case)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                held += part
        except (BrokenPipeError, ConnectionResetError):
            pass
        if held:
            read_answer(held.partition(b"\n")[0])
    assert ask(path, StatusRequest()).status is not None
