"""Exceptions that end soon, and trials that go on for long.

Knows: `expires`, and the day in the `revision` of a file. Must not know: clocks; the present day is handed in.

A rule has no date. The day on which a trial began is taken from the `revision` of the file that set its mode or its
rollout, if there is a day in it. Where a file has none nothing is said; when a file was changed on disk means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

from policyengine.policy.days import day
from policyengine.policy.lint.subject import Subject
from policyengine.policy.problems import Problem
from policyengine.policy.wording import KeyPath

_DAY = re.compile(r"(?<![0-9])[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])")


def soon_over(subject: Subject) -> Iterator[Problem]:
    """L611: an exception ends within some days. One that is over already is R512."""
    node = subject.root.get("exceptions")
    for index, entry in enumerate(node.items if node else ()):
        path = ("exceptions", index, "expires")
        last = subject.written(*path)
        end = day(str(last.data)) if last is not None else None
        if end is None or not 0 <= (end - subject.today).days <= subject.soon:
            continue
        left = (end - subject.today).days
        when = {0: "today", 1: "tomorrow"}.get(left, f"in {left} days")
        message = f"the exception from {entry.fields['rule'].data} ends {when}"
        advice = "remove what needs it, or ask its owner for a later day"
        yield subject.finding("L611", message, path, help=advice)


def old_trials(subject: Subject) -> Iterator[Problem]:
    """L621: a rule is in shadow, or only warns, by a file of long ago."""
    modes: dict[KeyPath, str] = {}
    for rule in subject.policy.rules:
        own: KeyPath = ("extensions", rule.id, "mode")
        modes[own if subject.root.get(*own) is not None else ("defaults", "mode")] = rule.mode
    for path, mode in modes.items():
        found = _since(subject, path) if mode in ("shadow", "warn") and subject.written(*path) is not None else None
        if found is not None:
            whose = "rules without a mode of their own" if path[0] == "defaults" else "the rule"
            message = f"`{mode}` for {whose} since {found.isoformat()}, {_age(subject, found)} days ago"
            advice = "enforce it, remove it, or look at it again and renew the day in `revision`"
            yield subject.finding("L621", message, path, help=advice)


def old_rollouts(subject: Subject) -> Iterator[Problem]:
    """L622: a rollout has been at the same share for long."""
    for rule in subject.policy.rules:
        path = ("extensions", rule.id, "rollout", "percent")
        node = subject.written(*path)
        if node is None or rule.rollout is None or not 0 < rule.rollout.percent < 100:
            continue
        found = _since(subject, path)
        if found is not None:
            message = f"at {rule.rollout.percent:g} percent since {found.isoformat()}, {_age(subject, found)} days ago"
            advice = "raise the share, remove the rule, or renew the day in `revision`"
            yield subject.finding("L622", message, path, help=advice)


def _since(subject: Subject, path: KeyPath) -> date | None:
    """Return the day in the revision of the file that said something, if it is long ago."""
    layer = subject.layer(path)
    days = _DAY.findall(str(layer.header.get("revision", ""))) if layer else []
    found = day(days[0]) if len(days) == 1 else None
    return found if found is not None and _age(subject, found) > subject.old else None


def _age(subject: Subject, since: date) -> int:
    return (subject.today - since).days
