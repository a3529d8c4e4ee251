"""rich's console, set up for verbs.

Knows: rich. Must not know: any verb, when something is drawn.
"""

from __future__ import annotations

from rich.console import Console


class Terminal(Console):
    """A console that lets a broken pipe end the process quietly instead of with rich's own exit code."""

    def on_broken_pipe(self) -> None:
        """Raise again the error that rich is handling while it calls this."""
        raise
