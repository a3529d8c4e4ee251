"""Tell files that were cut off from files that were meant to be shorter.

Knows: the bytes of the files in force, and of those that would follow them.
Must not know: what a file means, when to look, what follows.

What a truncated file holds is often a valid, shorter policy. Three things give it away: it is the beginning of the
file in force, it lacks the end mark that the file in force has, or rules are missing (which may be meant).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from policyengine.policy.problems import Position, Problem

END = b"..."
"""The line that ends a YAML document. A file that has it as its last line cannot lose its end unseen."""

_COMMENTS = (b"#", b"//")


def cut_off(before: Mapping[Path, bytes], after: Mapping[Path, bytes], *, lost: bool) -> list[Problem]:
    """Return a problem for every file that must be taken for a part of what it is to be.

    `lost` says that rules are missing. Where none is, whole lines at the end of a file may be taken away.
    """
    problems: list[Problem] = []
    for path, now in after.items():
        was, here = before.get(path, now), Position(str(path))
        if _begins(was, now) and (lost or not now.endswith(b"\n")):
            message = "the file is the beginning of the one in force: it was cut off"
            advice = "to take away what stands at the end, change something above it too, such as `revision`"
            problems.append(Problem("E812", message, here, help=advice))
        elif _is_marked(was) and not _is_marked(now):
            message = "the file does not end with the line `...`, as the one in force does: it was cut off"
            problems.append(Problem("E813", message, here, help="write `...` as its last line"))
    return problems


def is_doubtful(before: Mapping[Path, bytes], after: Mapping[Path, bytes], *, lost: bool) -> bool:
    """Return whether files may have been cut off: rules are gone, or lines at the end, or the end of a line."""
    pairs = [(before.get(path, now), now) for path, now in after.items()]
    return lost or any(_begins(was, now) or (was.endswith(b"\n") and not now.endswith(b"\n")) for was, now in pairs)


def loses_rules(before: Collection[str], after: Collection[str]) -> bool:
    """Return whether a rule that there was is missing, by the ids of all."""
    return not set(before) <= set(after)


def _begins(was: bytes, now: bytes) -> bool:
    """Return whether a file is the beginning of what it was, with more than comments missing."""
    return was != now and was.startswith(now) and _says_something(was[len(now) :])


def _says_something(rest: bytes) -> bool:
    lines = (line.strip() for line in rest.splitlines())
    return any(line and not line.startswith(_COMMENTS) for line in lines)


def _is_marked(content: bytes) -> bool:
    lines = [line.strip() for line in content.splitlines()[-5:] if line.strip()]
    return bool(lines) and lines[-1] == END
