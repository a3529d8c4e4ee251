"""Look at how hooks are set up, and say what would not work.

Knows: settings, policy, store, executable, timing. Must not know: how any of it is mended.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, Literal

import msgspec

from policyengine.errors import PolicyEngineError
from policyengine.hook.entry import DEADLINE_S
from policyengine.hook.settings import BLOCKING, Entries, hooks_of, installed, read, usable

ROUNDS = 5
SLOW_S = 1.0
"""From what time for an event a person may notice."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    level: Literal["ok", "warn", "bad"]
    about: str
    text: str


def examine(path: str, entries: Entries) -> Iterator[Finding]:
    """Yield what is found, in the order in which one would mend it."""
    commands = yield from _settings(path, entries)
    yield from _executable(entries, commands)
    wanted = yield from _installed(entries, commands)
    for one in wanted:
        yield from _policy(one)
    yield from _store(wanted[0])
    for one in wanted:
        yield from _files(one)
    yield from _timing(wanted[0], commands)


def _settings(path: str, entries: Entries) -> Generator[Finding, None, dict[str, str]]:
    try:
        _, data = read(path)
        table = hooks_of(data, entries.dialect, path)
    except PolicyEngineError as error:
        yield Finding("bad", "settings", str(error))
        return {}
    if data.get("disableAllHooks"):
        yield Finding("bad", "settings", f"{path} has disableAllHooks, so the host starts no hook at all")
    commands: dict[str, str] = {}
    for key, groups in table.items():
        for group in groups if isinstance(groups, list) else ():
            hooks = group.get("hooks") if isinstance(group, dict) else None
            for hook in hooks if isinstance(hooks, list) else ():
                if isinstance(hook, dict) and entries.is_ours(hook.get("command")):
                    event = _event(key, entries)
                    commands[event] = hook["command"]
                    yield from _limits(event, group, hook, entries)
    missing = [event for event in entries.dialect.installed if event not in commands]
    if not commands:
        yield Finding("bad", "settings", f"{path} has no entry of ours; `policyengine hook install` writes them")
    elif missing:
        level: Literal["bad", "warn"] = "bad" if any(event in BLOCKING for event in missing) else "warn"
        yield Finding(level, "settings", f"{path} has no entry of ours for {', '.join(missing)}")
    else:
        yield Finding("ok", "settings", f"{path} has our entries for {len(commands)} events")
    return commands


def _event(key: str, entries: Entries) -> str:
    flat = key.replace("_", "").lower()
    return next((event for event in entries.dialect.installed if event.lower() == flat), key)


def _limits(event: str, group: dict[str, Any], hook: dict[str, Any], entries: Entries) -> Iterator[Finding]:
    timeout = hook.get("timeout")
    if isinstance(timeout, int | float):
        seconds = timeout / 1000 if entries.dialect.millis else timeout
        if seconds <= DEADLINE_S:
            text = f"the host gives up after {seconds:g} s and then lets through; we need up to {DEADLINE_S:g} s"
            yield Finding("bad", event, text)
    if event in BLOCKING:
        if not hook["command"].rstrip().endswith("|| exit 2"):
            yield Finding("warn", event, "without `|| exit 2` a hook that cannot be started lets through")
        if group.get("matcher") not in (None, "", "*", ".*"):
            yield Finding("warn", event, f"only tools that match {group['matcher']!r} are judged")


def _executable(entries: Entries, commands: dict[str, str]) -> Iterator[Finding]:
    found = shutil.which("policyengine")
    if found:
        yield Finding("ok", "PATH", f"policyengine is {found}")
    else:
        yield Finding("warn", "PATH", "policyengine is not on PATH; our entries name the interpreter, and need none")
    for program in sorted({shlex.split(command)[0] for command in commands.values()}):
        if shutil.which(program) is None:
            yield Finding("bad", "executable", f"{program} is there no more; install the hooks again")
        else:
            yield Finding("ok", "executable", program)


def _installed(entries: Entries, commands: dict[str, str]) -> Generator[Finding, None, list[Entries]]:
    """Return what is looked at: what the command line says, else what the installed commands do."""
    if entries.policy or entries.overlays or entries.folders or entries.state:
        return [entries]
    found: list[Entries] = []
    for event, command in sorted(commands.items(), key=lambda item: item[0] not in BLOCKING):
        one = installed(command, entries)
        if one is None:
            yield Finding("bad", event, f"`{command}` is not understood, so it blocks; install the hooks again")
        elif one not in found:
            found.append(one)
    if len(found) > 1:
        yield Finding("warn", "settings", "the entries of ours differ in their options; install the hooks again")
    return found or [entries]


def _policy(entries: Entries) -> Iterator[Finding]:
    name = entries.policy or os.environ.get("POLICYENGINE_POLICY", "") or "default"
    try:
        _, rules, warnings, builtin = usable(entries)
    except PolicyEngineError as error:
        yield Finding("bad", "policy", f"{name} cannot be used, so every call is blocked: {error}")
        return
    yield Finding("ok", "policy", f"{name}: {rules} rules")
    for problem in warnings:
        yield Finding("warn", "policy", f"{problem.code} {problem.path}: {problem.message}")
    if not builtin:
        yield Finding(
            "warn", "policy", "it uses extensions that are not built in, so it is loaded anew for every event"
        )


def _files(entries: Entries) -> Iterator[Finding]:
    for about, path in (("log", entries.log), ("record", entries.record)):
        if not path:
            continue
        place = path if os.path.exists(path) else os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path) or not os.access(place, os.W_OK):
            yield Finding("bad", about, f"{path} cannot be written; the events are judged, and leave nothing there")
        else:
            yield Finding("ok", about, path)


def _store(entries: Entries) -> Iterator[Finding]:
    from policyengine.hook.verb import STORE, state_folder
    from policyengine.stores.sqlite import SqliteStore

    try:
        folder = state_folder(entries.state)
        store = SqliteStore(os.path.join(folder, STORE), durable=False, busy_s=2.0)
        try:
            wrong = store.check()
            store.update(lambda values: values.now())
        finally:
            store.close()
    except PolicyEngineError as error:
        yield Finding("bad", "store", f"{error}; if it is damaged, remove it: sessions then begin afresh")
        return
    if wrong:
        yield Finding("bad", "store", f"{store.path} is damaged ({wrong}); remove it: sessions then begin afresh")
    else:
        yield Finding("ok", "store", store.path)


def _timing(entries: Entries, commands: dict[str, str]) -> Iterator[Finding]:
    """Time an event that changes nothing, in the way the host starts it."""
    before = next((event for event in entries.dialect.installed if event in BLOCKING), "")
    command = commands.get(before) or entries.command(before)
    words = _words(command, entries)
    if words is None:
        text = f"`{command}` is not started: it is not what this installation writes, or names folders not given here"
        yield Finding("warn", "timing", text)
        return
    session = {entries.dialect.event_key: "SessionStart", "session_id": "policyengine-doctor"}
    data = msgspec.json.encode(session)
    empty, taken = [], []
    for number in range(ROUNDS + 1):
        began = perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=False)
        middle = perf_counter()
        done = subprocess.run(words, input=data, capture_output=True, timeout=120, check=False)
        if done.returncode != 0 or done.stdout:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
            yield Finding("bad", "timing", f"`{command}` exits with {done.returncode}: {said}")
            return
        if number:
            empty.append(middle - began)
            taken.append(perf_counter() - middle)
    spent, base = median(taken), median(empty)
    text = f"{spent * 1e3:.0f} ms for an event; the interpreter alone takes {base * 1e3:.0f} ms"
    yield Finding("warn" if spent > SLOW_S else "ok", "timing", text)


def _words(command: str, entries: Entries) -> list[str] | None:
    """Return the words of an installed command, or `None` where it is not ours to run.

    The file of hooks may have come with somebody's project. So no shell sees what it says, only this interpreter is
    started, with our module, and no folder of code that whoever asks has not named.
    """
    try:
        words = shlex.split(command.removesuffix(" || exit 2"))
    except ValueError:
        return None
    own = shlex.split(entries.command("x"))[:4]
    rest = words[len(own) :]
    folders = {os.path.abspath(folder) for folder in entries.folders}
    named = {value for option, value in pairwise(rest) if option == "--folder"}
    hidden = any(word.startswith("--folder=") for word in rest)
    return words if words[: len(own)] == own and named <= folders and not hidden else None
