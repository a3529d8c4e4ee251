"""Ask a running engine something.

Knows: how a request is sent and an answer awaited. Must not know: what is asked, how the answer is shown.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from time import monotonic, sleep

from policyengine.control.place import check_path
from policyengine.control.wire import (
    MAX_ANSWER,
    Answer,
    LineError,
    ReloadRequest,
    Request,
    line_of,
    read_answer,
    read_line,
)
from policyengine.errors import PolicyEngineError
from policyengine.visible import clean_line

RELOAD_S, ANSWER_S = 120.0, 10.0
"""How long an answer is awaited: a reload builds a whole policy and tests every rule."""

_PAUSE_S = 0.02


class NoAnswerError(PolicyEngineError):
    """No engine answers at the socket."""


def ask(path: str | os.PathLike[str], request: Request, timeout_s: float | None = None) -> Answer:
    """Send a request to the engine at a socket and return its answer.

    Raises:
        NoAnswerError: nobody answers there, not in time, or not as an engine does.
        UsageError: no socket can have this path.
    """
    place = os.fspath(path)
    check_path(place)
    if timeout_s is None:
        timeout_s = RELOAD_S if isinstance(request, ReloadRequest) else ANSWER_S
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            _check_owner(place)
            _connect(connection, place, timeout_s)
            with suppress(BrokenPipeError, ConnectionResetError):  # it may say why before it reads
                connection.sendall(line_of(request))
            return read_answer(read_line(connection, MAX_ANSWER, timeout_s))
    except (OSError, LineError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise NoAnswerError(f"no engine answers at {clean_line(place)}: {clean_line(why)}") from error


def _check_owner(place: str) -> None:
    """Refuse a socket that somebody else made: in a directory for all, anybody may be the first at a name."""
    owner = os.stat(place).st_uid
    if os.geteuid() not in (0, owner) and owner != 0:
        raise NoAnswerError(f"the socket {clean_line(place)} is of another user: what answers there may be anybody")


def _connect(connection: socket.socket, place: str, timeout_s: float) -> None:
    """Connect; where many clients come at once, Linux says "try again" instead of letting them wait."""
    deadline = monotonic() + timeout_s
    while True:
        try:
            return connection.connect(place)
        except BlockingIOError:
            if monotonic() >= deadline:
                raise
            sleep(_PAUSE_S)
