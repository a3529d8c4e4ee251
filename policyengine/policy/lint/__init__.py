"""Find what a policy says that can hardly be meant: rules without work, old trials, limits out of reach, secrets.

Knows: every check. Must not know: how findings are shown, how extensions work.

A policy with findings loads and works. A check that cannot be sure says nothing: a false alarm costs more than a miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path

from policyengine.errors import ConfigError
from policyengine.policy.days import today as utc_today
from policyengine.policy.files import Reader
from policyengine.policy.layers import Merged
from policyengine.policy.lint.dates import old_rollouts, old_trials, soon_over
from policyengine.policy.lint.layering import empty_layers, extended_twice, given_twice, said_again
from policyengine.policy.lint.limits import (
    budget_below_compaction,
    longer_than_the_run,
    out_of_reach,
)
from policyengine.policy.lint.patterns import likely_typos, models_out_of_reach, odd_patterns
from policyengine.policy.lint.rules import (
    adds_nothing,
    disabled_from_the_start,
    exceptions_from_nothing,
    nothing_in_force,
    open_on_faults,
    shadows_of_themselves,
)
from policyengine.policy.lint.secrets import known_secrets, likely_secrets, veiled
from policyengine.policy.lint.settings import (
    forms_of_a_native_protocol,
    forms_twice,
    plan_without_steps,
    repairs_without_checks,
    text_that_is_never_read,
)
from policyengine.policy.lint.subject import Subject
from policyengine.policy.load import Registry
from policyengine.policy.model import Policy
from policyengine.policy.problems import Problem, in_order
from policyengine.policy.stricter import looking

Check = Callable[[Subject], Iterator[Problem]]

CHECKS: tuple[Check, ...] = (
    disabled_from_the_start,
    adds_nothing,
    shadows_of_themselves,
    nothing_in_force,
    open_on_faults,
    likely_typos,
    odd_patterns,
    models_out_of_reach,
    soon_over,
    exceptions_from_nothing,
    old_trials,
    old_rollouts,
    out_of_reach,
    longer_than_the_run,
    budget_below_compaction,
    forms_of_a_native_protocol,
    forms_twice,
    repairs_without_checks,
    text_that_is_never_read,
    plan_without_steps,
    known_secrets,
    likely_secrets,
    extended_twice,
    empty_layers,
    given_twice,
    said_again,
)
"""Every check."""

SOON, OLD = 14, 90
"""How many days before its end an exception is reported, and after how many a trial is."""


def lint(
    policy: Policy,
    source: str | Path,
    *,
    registry: Registry,
    overlays: Sequence[str | Path] = (),
    today: date | None = None,
    soon: int = SOON,
    old: int = OLD,
) -> tuple[Problem, ...]:
    """Return the warnings of loading a policy and every finding, sorted by file and line.

    `policy` is what loading `source` with `overlays` gave; the files are read again for what only they say. `today`
    stands for the present day in UTC. Raises ConfigError if the files cannot be read any more.
    """
    reader = Reader()
    reader.policy(source)
    for overlay in overlays:
        reader.overlay(Path(overlay))
    if reader.problems:
        raise ConfigError(in_order(reader.problems))
    subject = Subject(
        policy,
        tuple(reader.layers),
        Merged(reader.layers, reader.sources).root,
        reader.sources,
        looking(registry, policy),
        today or utc_today(),
        soon,
        old,
    )
    return in_order(veiled(subject, (*policy.warnings, *findings(subject))))


def findings(subject: Subject, checks: Iterable[Check] = CHECKS) -> Iterator[Problem]:
    """Yield what the checks find."""
    for check in checks:
        yield from check(subject)
