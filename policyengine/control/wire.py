"""The lines of control: what may be asked, what is answered, how much of a line is read and for how long.

Knows: requests, answers, limits. Must not know: engines, where a socket is.
"""

from __future__ import annotations

import socket
from time import monotonic
from typing import Literal

import msgspec

from policyengine.errors import PolicyEngineError
from policyengine.policy.problems import Problem
from policyengine.status import EngineStatus

MAX_REQUEST = 4096
"""How many bytes a request may have, its line end included."""

MAX_ANSWER = 1 << 20
"""How many bytes an answer may have, its line end included."""

_FEWER, _SHORTER = 20, 500


class ReloadRequest(msgspec.Struct, frozen=True, tag="reload", tag_field="request", forbid_unknown_fields=True):
    """Read the files now and put them in force if they are sound."""


class StatusRequest(msgspec.Struct, frozen=True, tag="status", tag_field="request", forbid_unknown_fields=True):
    """Say what is in force."""


class KillRequest(msgspec.Struct, frozen=True, tag="kill", tag_field="request", forbid_unknown_fields=True):
    """Turn the kill switch on or off."""

    on: bool = True


Request = ReloadRequest | StatusRequest | KillRequest


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a request.

    `error` is why a request was not carried out. `outcome` and `problems` are of a reload; `status` is that of the
    engine afterwards.
    """

    error: str = ""
    outcome: Literal["", "replaced", "unchanged", "rejected"] = ""
    problems: tuple[Problem, ...] = ()
    status: EngineStatus | None = None


class LineError(PolicyEngineError):
    """What arrived is no line of control."""


BUSY = "too many clients at a time; try again"
"""The error of an answer to one client too many: nothing was done, and a moment later there may be room."""


def read_line(connection: socket.socket, most: int, timeout_s: float, until: float | None = None) -> bytes:
    """Return the first line, without its end.

    Raises:
        LineError: no whole line of at most `most` bytes came within the time, counted from now, or up to `until`.
        OSError: the connection failed.
    """
    deadline, held = monotonic() + timeout_s if until is None else until, bytearray()
    while True:
        left_s = deadline - monotonic()
        if left_s <= 0:
            raise LineError(f"no whole line within {timeout_s:g} s")
        connection.settimeout(left_s)
        try:
            piece = connection.recv(min(1 << 16, most + 1 - len(held)))
        except TimeoutError:
            continue
        held += piece
        if b"\n" in piece:
            return bytes(held[: held.index(b"\n")])
        if len(held) >= most:
            raise LineError(f"the line is longer than {most} bytes")
        if not piece:
            raise LineError("the connection ended before the line did")


def read_request(line: bytes) -> Request:
    """Return what a line asks for; raises `LineError`."""
    try:
        return msgspec.json.decode(line, type=Request)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise LineError(f"no request: {error}") from error


def read_answer(line: bytes) -> Answer:
    """Return what a line answers; raises `LineError`."""
    try:
        return msgspec.json.decode(line, type=Answer)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise LineError(f"no answer: {error}") from error


def line_of(message: Request | Answer) -> bytes:
    """Return a message as one line; of an answer that is too long only what can be shown is kept."""
    line = msgspec.json.encode(message) + b"\n"
    if isinstance(message, Answer) and len(line) > MAX_ANSWER:
        line = msgspec.json.encode(_shortened(message)) + b"\n"
    return line


def _shortened(answer: Answer) -> Answer:
    status = answer.status
    if status is not None:
        rejection = status.rejection
        if rejection is not None:
            rejection = msgspec.structs.replace(rejection, problems=_fewer(rejection.problems))
        files, folders = status.files[:_FEWER], status.folders[:_FEWER]
        status = msgspec.structs.replace(status, rejection=rejection, files=files, folders=folders)
    return msgspec.structs.replace(answer, problems=_fewer(answer.problems), status=status)


def _fewer(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    return tuple(
        msgspec.structs.replace(
            problem, source_line="", message=problem.message[:_SHORTER], help=problem.help[:_SHORTER], note=""
        )
        for problem in problems[:_FEWER]
    )
