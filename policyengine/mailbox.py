"""Messages from others than the user, kept until a step begins.

Knows: threads. Must not know: runs, when a message is delivered.
"""

from __future__ import annotations

import threading

from policyengine.errors import UsageError
from policyengine.outcome import PeerMessage

MAX_WAITING = 1_000
"""Most messages that wait in one mailbox."""


class Mailbox:
    """Where peers leave messages for a run (`Agent.run(task, mailbox=...)`). Any thread may post.

    A message is delivered when the next step of the plan begins, or at the beginning of a run, never in the middle of a
    step. What is not delivered when the run ends is in `Outcome.undelivered`; what comes later stays here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[PeerMessage] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def post(self, sender: str, text: str) -> None:
        """Leave a message.

        Raises:
            UsageError: it is empty, or so many wait that nobody seems to fetch them.
        """
        if not text.strip():
            raise UsageError("the message is empty; providers refuse empty messages")
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                raise UsageError(f"{MAX_WAITING} messages wait already: nobody fetches them")
            self._waiting.append(PeerMessage(sender, text))

    def take(self) -> list[PeerMessage]:
        """Return what waits, in the order in which it came, and keep nothing of it."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return waiting

    def give_back(self, messages: list[PeerMessage]) -> None:
        """Put back what was taken and is kept nowhere, ahead of what has come since."""
        with self._lock:
            self._waiting[:0] = messages
