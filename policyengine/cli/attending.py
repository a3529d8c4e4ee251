"""A human at the terminal, who is asked there what a rule wants a human to decide.

Knows: terminals, how a question is put. Must not know: what asks, how a run goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

from policyengine.agent import Human
from policyengine.durable.record import Asked, asked_about
from policyengine.loop.resuming import UNKNOWN
from policyengine.loop.state import AskHuman
from policyengine.runstate import StopReason
from policyengine.telemetry.live import measured
from policyengine.visible import clean, clean_line

MOST = 4000
"""Characters of a call's arguments that are shown; how many more there are is said."""


def human_here(*, wanted: bool) -> Human | None:
    """Return who asks at this terminal, or `None` where nobody is there to be asked, or nobody wants it."""
    streams = (sys.stdin, sys.stderr)
    return _ask if wanted and all(stream is not None and stream.isatty() for stream in streams) else None


def _ask(question: AskHuman) -> bool | None:
    """Ask; an answer that is not yes is no, and none (the end of the input) leaves the run waiting."""
    asked = asked_about(question.calls, question.reason)
    for label, text in (*reason_lines(asked.reason, "asks"), *call_lines(asked, digests=False)):
        print(f"  {label:<11}{text}", file=sys.stderr)
    calls = "it" if len(asked.calls) == 1 else f"these {len(asked.calls)} calls"
    again = " again" if asked.reason.code == UNKNOWN else ""
    _forget_input()
    print(f"  Run {calls}{again}? [y/N] ", end="", file=sys.stderr, flush=True)
    said = sys.stdin.readline()
    if not said:
        print(file=sys.stderr)
        return None
    return said.strip().lower() in ("y", "yes")


def _forget_input() -> None:
    """Forget what was typed before: whoever had not seen the question has not answered it."""
    try:
        import termios
    except ImportError:  # not a Unix
        return
    with suppress(OSError, termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def call_lines(asked: Asked, *, digests: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the calls that are asked about, whole, as labels and texts that are safe to print."""
    for call in asked.calls:
        yield "call", _called(call.tool, call.arguments)
        if call.written:
            yield "", f"the model wrote {_called('', call.written)}"
        if digests:
            yield "", f"digest of the call {call.digest}"
    if digests:
        yield "digest", f"{asked.digest} (of the question)"


def reason_lines(reason: StopReason, label: str) -> Iterator[tuple[str, str]]:
    """Yield why a run stopped or asks, as labels and texts that are safe to print."""
    yield label, _reason(reason)
    for line in clean(reason.message).splitlines():
        yield "", line


def _reason(reason: StopReason) -> str:
    if reason.code == UNKNOWN:
        return (
            "calls were running when their process ended, or their results could not be kept; "
            "nobody knows what came of them (unknown_outcome)"
        )
    who = ", ".join(clean_line(part) for part in (reason.rule or "the engine", reason.at) if part)
    return f"{who}: {clean_line(reason.code)}{measured(reason.observed, reason.limit)}"


def _called(tool: str, arguments: str) -> str:
    more = len(arguments) - MOST
    cut = f" ... and {more} characters more" if more > 0 else ""
    return f"{clean_line(tool)} {clean_line(arguments[:MOST])}{cut}".lstrip()
