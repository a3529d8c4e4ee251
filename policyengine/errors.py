"""Every exception this package raises, named by whose fault it is.

Knows: facts about mistakes. Must not know: how they are printed or logged.

    PolicyEngineError
    ├── ConfigError      the policy author: one or more positioned problems
    ├── ExtensionError   the extension author: package, extension, hook
    └── UsageError       the calling program drove the engine wrongly

A denial, a limit and a stop are values (see `actions`, `decision`), never exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policyengine.policy.problems import Problem


class PolicyEngineError(Exception):
    """Base of every error raised on purpose by this package."""


class ConfigError(PolicyEngineError):
    """A policy cannot be used. `problems` holds every problem found, sorted by file and line.

    `tried` are the files and directories that were looked for, as far as loading got; some of them may not exist.
    """

    def __init__(self, problems: Sequence[Problem], tried: Sequence[str] = ()) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.tried: tuple[str, ...] = tuple(tried)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ExtensionError(PolicyEngineError):
    """An extension breaks the contract of `policyengine.hooks` or `policyengine.extension`.

    Attributes: `extension` (its name), `origin` (module, file or distribution it came from), `detail`.
    """

    def __init__(self, extension: str, origin: str, detail: str) -> None:
        self.extension = extension
        self.origin = origin
        self.detail = detail
        super().__init__(f"extension {extension!r} ({origin}): {detail}")


class UsageError(PolicyEngineError):
    """The calling program used the engine out of order (for example reported a result for an unknown call)."""
