"""Where the script `policyengine` starts: events of hooks go the short way, everything else to the command line.

Knows: which words mean an event. Must not know: verbs. Nothing is imported here that an event does not need.
"""

from __future__ import annotations

import sys
from typing import NoReturn

SETTING_UP = frozenset({"install", "doctor"})
"""What follows `hook` where a person asks for something; anything else is a host whose event is to be answered."""


def begin() -> None:
    """Answer an event of a hook and end the process, if that is what it was started for."""
    words = sys.argv[1:]
    if words[:1] != ["hook"] or (words[1:] and words[1] in SETTING_UP) or {"-h", "--help"} & set(words):
        return
    from policyengine.hook.entry import main as answer

    answer(words[1:])


def main() -> NoReturn:
    """Run the script."""
    begin()
    from policyengine.cli import main as command_line

    command_line()
