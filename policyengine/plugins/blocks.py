"""Blocks: extensions and packages that must not be used, although they are there.

Knows: patterns for names of extensions and of distributions, the variable that blocks for a whole process.
Must not know: policies, where extensions come from.

The allow-list of a policy (`requires.extensions`) is its author's; a block is an operator's and wins over it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import msgspec

from policyengine.errors import ConfigError
from policyengine.policy.problems import Position, Problem

VARIABLE = "POLICYENGINE_BLOCK"
"""Patterns that hold for every policy of a process, separated by commas or blanks."""

ENGINE = "agent-policyengine"
"""The distribution of the engine, which the built-in extensions come from."""

BLOCKED = "X410"
"""The problem code of what is blocked."""

PATTERN = r"(?:[A-Za-z0-9_.*?-]|\[!?[A-Za-z0-9_.-]{1,100}\]){1,200}"
"""What a pattern may look like: a name, or a shell glob of one."""


class Block(msgspec.Struct, frozen=True):
    """One pattern, and who says so: a place in a file, or the variable."""

    pattern: str
    by: str

    def matches(self, name: str, distribution: str = "") -> bool:
        """Return whether an extension of this name, or of this distribution, is blocked."""
        if name and fnmatchcase(name, self.pattern):
            return True
        return bool(distribution) and fnmatchcase(normalized(distribution), normalized(self.pattern))

    def __str__(self) -> str:
        return f"{self.pattern!r} of {self.by}"


def blocking(blocks: Iterable[Block], name: str, distribution: str = "") -> Block | None:
    """Return the first block that an extension or its distribution falls under, or `None`."""
    return next((block for block in blocks if block.matches(name, distribution)), None)


def process_blocks(env: Mapping[str, str] | None = None) -> tuple[Block, ...]:
    """Return the blocks of the environment variable; `env` stands for the variables of the process.

    Raises:
        ConfigError: an entry is no pattern. It would block nothing, and whoever set it would not know.
    """
    text = (os.environ if env is None else env).get(VARIABLE, "")
    patterns = [pattern for pattern in re.split(r"[\s,]+", text) if pattern]
    where = Position(VARIABLE)
    wrong = [
        Problem("E814", f"{pattern[:200]!r} is neither a name nor a pattern of one", where, help=_advice(pattern))
        for pattern in dict.fromkeys(patterns)
        if not re.fullmatch(PATTERN, pattern)
    ]
    if wrong:
        raise ConfigError(wrong)
    return tuple(Block(pattern, VARIABLE) for pattern in patterns)


def _advice(pattern: str) -> str:
    if "'" in pattern or '"' in pattern:
        return "write it without quotes: a shell takes them away, but what reads an env-file need not"
    return "separate entries by commas or blanks; a pattern has *, ? and [abc]"


def normalized(distribution: str) -> str:
    """Return a distribution name as package indexes compare it (`Acme_Guards` equals `acme-guards`)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
