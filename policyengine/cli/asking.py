"""What the verbs share that ask a running engine: where it is, and what is said where none answers.

Knows: the option `--socket`. Must not know: what is asked.
"""

from __future__ import annotations

from time import monotonic, sleep

import click

from policyengine.cli.output import say
from policyengine.control.client import NoAnswerError, ask
from policyengine.control.wire import BUSY, Answer, Request

SOCKET = "POLICYENGINE_SOCKET"
"""The environment variable that says where an engine answers."""

PATIENCE_S = 8.0
"""For how long an engine with too many clients is asked again: those that say nothing are gone after 5 s."""

_PAUSE_S = 0.1

socket_option = click.option(
    "--socket",
    required=True,
    envvar=SOCKET,
    show_envvar=True,
    metavar="PATH",
    help="Where the engine answers: what `run --control` or `Engine.control` was given.",
)


def asked(socket: str, request: Request) -> Answer | None:
    """Return what the engine answered, or `None` where none did or it did nothing; the reason was printed then."""
    until = monotonic() + PATIENCE_S
    try:
        answer = ask(socket, request)
        while answer.error == BUSY and monotonic() < until:
            sleep(_PAUSE_S)
            answer = ask(socket, request)
    except NoAnswerError as error:
        say(f"error: {error}")
        return None
    if answer.error or answer.status is None:
        say(f"error: the engine at {socket} did nothing: {answer.error or 'it gave no status'}")
        return None
    return answer
