"""The verb `hook`: an event in, an answer out, with the policy and the session's run between.

Knows: where state is kept, the order of doing things. Must not know: how the process reads, writes and fails.
"""

from __future__ import annotations

import os
import stat
from contextlib import closing, suppress
from time import time
from typing import Any, Protocol

import msgspec

from policyengine.hook.dialects import Dialect, Event, Reply, dialect_named
from policyengine.stores import RUNS, Store, StoreError, Values

KEEP_S = 14 * 86_400.0
"""For how long a session that nothing was heard of is kept."""

STORE = "hooks.sqlite"
_DRAFTS = (".new", ".new-wal", ".new-shm")


class Given(Protocol):
    """What the command line says; see `entry.Arguments`."""

    host: str
    policy: str
    overlays: list[str]
    folders: list[str]
    state: str
    event: str
    log: str
    record: str


def reply_to(given: Given, data: bytes) -> str:
    """Return what the host is told about an event as it came; empty where that is nothing.

    Raises:
        ValueError: the event or the command line cannot be read.
        PolicyEngineError: the policy or the store cannot be used.
    """
    dialect = dialect_named(given.host)
    event = dialect.read(_object(data))
    if event.kind == "other":
        return ""
    # What decides is imported where something is to be decided: most of the time of an event is import.
    from policyengine.hook.compiled import Wanted, engine_for, remove_old

    folder = state_folder(given.state)
    wanted = Wanted(given.policy, dialect.host, tuple(given.overlays), tuple(given.folders))
    engine = engine_for(wanted, folder)
    _watch(engine, given)
    with closing(_store(folder)) as store:
        reply = answer(dialect, engine, event, store, wanted.name())
    if event.kind == "session":
        remove_old(folder, _DRAFTS, time() - 3600)
        remove_old(folder, (".policy",), time() - KEEP_S)
    out = dialect.write(event, reply)
    return msgspec.json.encode(out).decode() if out else ""


def _watch(engine: Any, given: Given) -> None:
    """Have the files written that were asked for; what cannot be written is said on stderr."""
    if given.log:
        from policyengine.hook.records import Lines
        from policyengine.telemetry.decision_log import DecisionLog

        engine.sinks = (DecisionLog(Lines(given.log)),)
    if given.record:
        from policyengine.hook.records import Lines
        from policyengine.telemetry.journal import JournalWriter

        engine.journal, engine.record = JournalWriter(Lines(given.record)), os.path.abspath(given.record)


def answer(dialect: Dialect, engine: Any, event: Event, store: Store, mark: str = "") -> Reply:
    """Return the reply to an event, with the run as it is in a store before and after: one transaction.

    Hooks with different policies (`mark`) that a host has for one session have runs of their own.

    The store is one that never asks twice, as SQLite: sinks of the engine are told of decisions as they are made.

    Raises:
        StoreError: the store cannot be used; nothing of the event is kept.
    """
    from policyengine.hook.session import judge

    session = f"{dialect.name}/{mark}/{_quoted(event.session)}/"
    key = session + event.agent

    def change(values: Values) -> Reply:
        if event.kind == "session":
            values.forget(RUNS, values.now() - KEEP_S)
        if not event.session:
            return Reply()
        if event.kind == "session_end":
            for other in values.keys(RUNS, session):
                if other != key:
                    values.delete(RUNS, other)
        saved = values.get(RUNS, key)
        reply, kept = judge(dialect, engine, event, saved)
        if kept is not None:
            values.put(RUNS, key, kept)
        elif saved is not None:
            values.delete(RUNS, key)
        return reply

    return store.update(change)


def _quoted(name: str) -> str:
    """Return the name of a session in a form in which no other one begins with it."""
    return name.replace("%", "%25").replace("/", "%2F")


def event_name(given: Given, data: bytes) -> str:
    """Return what an event calls itself, as far as it can be read; empty where it cannot."""
    with suppress(ValueError):
        name = _object(data).get(dialect_named(given.host).event_key)
        return name if isinstance(name, str) else ""
    return ""


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as first:
        import json

        try:  # lone surrogates, which JSON allows and msgspec does not
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise ValueError(f"the event is not JSON: {first}") from None
    if not isinstance(value, dict):
        raise ValueError("the event is not a JSON object")
    return value


def state_folder(given: str = "") -> str:
    """Return the directory of the state, made with mode 0700 if it is not there.

    Raises:
        StoreError: it cannot be made, is not ours, or may be written by others.
    """
    home = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.expanduser("~/.local/state")
    folder = given or os.path.join(home, "policyengine")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        seen = os.stat(folder)
    except OSError as error:
        raise StoreError(f"the state directory {folder} cannot be made: {error.strerror}") from error
    if seen.st_uid != os.geteuid() or seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(f"the state directory {folder} may be written by others; give another with --state")
    return folder


def _store(folder: str) -> Store:
    from policyengine.stores.sqlite import SqliteStore

    # Whoever waits for a disk at every event pays for what a session that is cut short does not need.
    return SqliteStore(os.path.join(folder, STORE), durable=False)
