"""The process of one hook event: standard input, standard output, exit code, time limit.

Knows: that an exit code other than 0 and 2 lets the host go on, so that every way to fail must end in one of the two.
Must not know: events, policies, hosts. Everything that can fail is imported where its failure is caught.

Exit code 2 blocks, with the reason on stderr; it is used where blocking means that something does not run, and 0 with
a message for the user elsewhere (`BLOCKING`). An event that cannot even be read blocks, unless `--event` says that it
is one of the others.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

DEADLINE_S = 20.0
"""After what time the process gives up; less than the time after which the hosts do, since they then let through."""

BLOCKING = frozenset({"PreToolUse", "BeforeTool", "PostToolUse", "PostToolUseFailure", "AfterTool"})
"""Events at which a failure exits with 2, by the names of all hosts; see docs/claude-code.md."""

BLOCKED = 2
MAX_INPUT = 64 * 1024 * 1024
"""How many bytes an event may have."""

MAX_REASON = 2_000
"""How long a reason may be: hosts put it before the model."""

USAGE = (
    "usage: policyengine hook HOST [--policy NAME] [--overlay FILE]... [--folder DIR]... [--state DIR] "
    "[--event NAME] [--deadline SECONDS] [--log FILE] [--record FILE]"
)


class Arguments:
    """What stands on the command line. Read by hand: argparse takes as long to import as an event to judge."""

    def __init__(self, words: list[str]) -> None:
        self.host = ""
        self.policy = os.environ.get("POLICYENGINE_POLICY", "") or "default"
        self.overlays: list[str] = []
        self.folders: list[str] = []
        self.state = ""
        self.event = ""
        self.log = ""
        self.record = ""
        self.deadline_s = DEADLINE_S
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if not word.startswith("-"):
                if self.host:
                    raise ValueError(f"one host, not {self.host!r} and {word!r}")
                self.host = word
                continue
            name, given, value = word.partition("=")
            if not given:
                if not rest:
                    raise ValueError(f"{name} needs a value")
                value = rest.pop(0)
            self._take(name, value)
        if not self.host:
            raise ValueError("no host is named")

    def _take(self, name: str, value: str) -> None:
        match name:
            case "--policy":
                self.policy = value
            case "--overlay":
                self.overlays.append(value)
            case "--folder":
                self.folders.append(value)
            case "--state":
                self.state = value
            case "--event":
                self.event = value
            case "--log":
                self.log = value
            case "--record":
                self.record = value
            case "--deadline":
                self.deadline_s = float(value)
                if not 0 < self.deadline_s < 1e6:
                    raise ValueError("--deadline takes seconds, more than 0")
            case _:
                raise ValueError(f"no option {name}")


class Ending:
    """How this process ends, whatever happens: `name` is the event, as far as it is known.

    Only what it writes reaches the host: what rules print goes to stderr, where it cannot spoil an answer.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.done = False
        self.out = 1
        with suppress(OSError):  # one of the two may be closed; what cannot be written later fails then
            self.out = os.dup(1)
            os.dup2(2, 1)

    def fail(self, why: str) -> NoReturn:
        """End the process because it failed: block where that makes sense, and else tell the user."""
        text = f"policyengine: {why}"[:MAX_REASON]
        if not self.name or self.name in BLOCKING:
            _write(2, f"{text}\nNothing was let through.\n")
            os._exit(BLOCKED)
        import json

        _write(2, f"{text}\n")
        _write(self.out, json.dumps({"systemMessage": text}))
        os._exit(0)

    def answer(self, out: str) -> NoReturn:
        """End the process with an answer."""
        self.done = True
        if out and not _write(self.out, out):
            self.fail("the answer could not be written")
        os._exit(0)

    def watch(self, deadline_s: float) -> None:
        """Fail when told to end, and when the time is over."""
        import threading

        def told(number: int, _frame: object) -> None:
            self.fail(f"ended by signal {number}")

        def waited() -> None:
            if not self.done:
                self.fail(f"no decision within {deadline_s:g} s")

        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            signal.signal(getattr(signal, name), told)
        timer = threading.Timer(deadline_s, waited)
        timer.daemon = True
        timer.start()


def main(words: list[str] | None = None) -> NoReturn:
    """Answer the event on standard input and end the process."""
    gc.disable()  # the process ends before it has garbage worth looking for
    ending = Ending()
    try:
        arguments = Arguments(sys.argv[1:] if words is None else words)
    except ValueError as error:
        ending.fail(f"{error}; {USAGE}")
    try:
        ending.name = arguments.event
        ending.watch(arguments.deadline_s)
        data = _read()
        _import_msgspec()

        from policyengine.hook.verb import event_name, reply_to

        ending.name = event_name(arguments, data) or arguments.event
        out = reply_to(arguments, data)
    except BaseException as error:  # noqa: BLE001 - any exit code but 0 and 2 lets the host go on
        ending.fail(_said(error))
    ending.answer(out)


def _import_msgspec() -> None:
    """Import msgspec without typing_extensions, which takes a third of that time.

    It asks for them, and takes what the standard library has where there are none.
    """
    name = "typing_extensions"
    if name in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment]  # what the import system takes for "is not there"
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules[name]


def _said(error: BaseException) -> str:
    text = str(error).strip()
    # By name: what failed may be the import of the very module that holds the class.
    names = {base.__name__ for base in type(error).__mro__}
    if text and names & {"PolicyEngineError", "ValueError"}:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _read() -> bytes:
    """Return what stands on standard input; raises ValueError for more than is taken."""
    parts, size = [], 0
    while part := os.read(0, 1 << 20):
        parts.append(part)
        size += len(part)
        if size > MAX_INPUT:
            raise ValueError(f"the event has more than {MAX_INPUT} bytes")
    return b"".join(parts)


def _write(descriptor: int, text: str) -> bool:
    """Write all of a text past Python's buffers; return whether that went well."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return False
    return True
