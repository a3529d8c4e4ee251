"""Files to which the processes of many events append: the decision log and the journal of hooks.

Knows: that a line has to be one write to a file opened for appending, so that lines of parallel processes never mix.
Must not know: what a line says.
"""

from __future__ import annotations

import os


class Lines:
    """An append-only file, opened when the first line comes. A line is one write; raises OSError where that fails."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1

    def write(self, text: str) -> int:
        """Append a line, with its end."""
        if self._file < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
        data = text.encode("utf-8", "surrogatepass")
        while data:  # more than once only where a disk is full or a signal came
            data = data[os.write(self._file, data) :]
        return len(text)

    def flush(self) -> None:
        """Do nothing: what was written is with the system."""
