"""What the rules share whose options hold names or patterns (`mcp__*`): of tools, or of models.

Knows: patterns. Must not know: what they name, what is done about it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase


def example(pattern: str) -> str:
    """Return a name that a pattern matches; the pattern itself where it is a name, or too clever."""
    name = pattern.replace("*", "x").replace("?", "x")
    return name if fnmatchcase(name, pattern) else pattern
