"""Snapshots that differ from the one in force: facts about tools, a rule that fails, a rule with other options.

Knows: how the tables of a snapshot are made of entries. Must not know: tests, runs.

Compiling a policy anew for every test would take longer than to play it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from policyengine.extension import Extension
from policyengine.hooks import HookPoint
from policyengine.policy.model import Policy
from policyengine.policytest.model import Fault
from policyengine.snapshot import Entry, PolicySnapshot, Table, caller

Change = Callable[[Entry, HookPoint], Entry]


class InjectedFault(RuntimeError):
    """What a rule raises that a test lets fail."""


def stand_in(snapshot: PolicySnapshot, policy: Policy) -> PolicySnapshot:
    """Return a snapshot with other settings, whose rules are the same."""
    parts = (snapshot.tables, snapshot.extensions, snapshot.templates, snapshot.manager)
    return PolicySnapshot(policy, snapshot.generation, *parts)


def with_faults(snapshot: PolicySnapshot, faults: Mapping[str, Fault]) -> PolicySnapshot:
    """Return a snapshot in which rules fail whenever they are asked."""

    def change(entry: Entry, point: HookPoint) -> Entry:
        fault = faults.get(entry.rule.id)
        if fault is None:
            return entry
        if fault == "timeout":  # what is not inline is given up where the dispatcher is told so
            return msgspec.structs.replace(entry, inline=False)
        return msgspec.structs.replace(entry, call=_raise if fault == "raise" else _nonsense)

    return _changed(snapshot, change) if faults else snapshot


def with_options(snapshot: PolicySnapshot, rule: str, options: Mapping[str, Any]) -> PolicySnapshot:
    """Return a snapshot in which one rule has other options, which are not checked."""
    fresh = type(snapshot.extensions[rule])(options)

    def change(entry: Entry, point: HookPoint) -> Entry:
        if entry.rule.id != rule:
            return entry
        return msgspec.structs.replace(entry, extension=fresh, call=_call(fresh, point))

    return _changed(snapshot, change, {**snapshot.extensions, rule: fresh})


def _raise(view: Any, *payload: Any) -> Any:
    raise InjectedFault("injected by the test")


def _nonsense(view: Any, *payload: Any) -> Any:
    return "nonsense, injected by the test"


def _call(extension: Extension, point: HookPoint) -> Callable[..., Any]:
    method = getattr(extension, point.method)
    return caller(method, tuple(inspect.signature(method).parameters), point.payload)


def _changed(
    snapshot: PolicySnapshot, change: Change, extensions: Mapping[str, Extension] | None = None
) -> PolicySnapshot:
    tables = {}
    for name, table in snapshot.tables.items():
        groups = (table.entries, table.rewriters, table.judges)
        tables[name] = Table(table.point, *(tuple(change(entry, table.point) for entry in group) for group in groups))
    parts = (tables, extensions or snapshot.extensions, snapshot.templates, snapshot.manager)
    return PolicySnapshot(snapshot.policy, snapshot.generation, *parts)
