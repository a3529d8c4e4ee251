"""Every exception this package raises, named by whose fault it is.

Knows: facts about mistakes. Must not know: how they are printed or logged.

    PolicyEngineError
    ├── ConfigError      the policy author: one or more positioned problems
    ├── ExtensionError   the extension author: package, extension, hook
    ├── StalePolicyError the operator: edits have not come into force for too long
    ├── StoreError       the operator: state cannot be kept or read (policyengine.stores)
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

    As a text it says of each what the command line says, without the line of the source.

    `tried` are the files and directories that were looked for, as far as loading got; some of them may not exist.
    """

    def __init__(self, problems: Sequence[Problem], tried: Sequence[str] = ()) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.tried: tuple[str, ...] = tuple(tried)
        super().__init__("\n".join(problem.told() for problem in self.problems))


class ExtensionError(PolicyEngineError):
    """An extension breaks the contract of `policyengine.hooks` or `policyengine.extension`.

    Attributes: `extension` (its name), `origin` (module, file or distribution it came from), `detail`, `code` (the
    problem code under which it is reported).
    """

    def __init__(self, extension: str, origin: str, detail: str, code: str = "X406") -> None:
        self.extension = extension
        self.origin = origin
        self.detail = detail
        self.code = code
        super().__init__(f"extension {extension!r} ({origin}): {detail}")


class StalePolicyError(PolicyEngineError):
    """No new run starts: the files have differed from the policy in force for longer than `reload.max_staleness`.

    Attributes: `code` (always `policy_stale`), `policy` (its name), `generation` (the one in force), `differs_s`,
    `limit_s`, and `why`: the problems of the version that was refused last, empty where none was.
    """

    code = "policy_stale"

    def __init__(self, policy: str, generation: int, differs_s: float, limit_s: float, why: str = "") -> None:
        self.policy = policy
        self.generation = generation
        self.differs_s = differs_s
        self.limit_s = limit_s
        self.why = why
        # Without `why`: where a sub-agent cannot start a model reads this, and the policy is none of its business.
        super().__init__(
            f"policy {policy} is stale: its files have differed from generation {generation}, which is in force, for "
            f"{differs_s:.0f} s; reload.max_staleness is {limit_s:g} s, so no new run starts"
        )


class UsageError(PolicyEngineError):
    """The calling program used the engine out of order (for example reported a result for an unknown call)."""
