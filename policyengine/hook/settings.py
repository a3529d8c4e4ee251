"""Write our entries into a host's file of hooks, and take them out again.

Knows: the JSON that the hosts read hooks from. Must not know: how an event is answered.

Every entry of others stays as it is, in its place. What is ours is told by its command. A file that cannot be read as
JSON, or whose hooks have another shape than expected, is left alone: the error says why.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import sys
from contextlib import suppress
from typing import Any

import msgspec

from policyengine.errors import UsageError
from policyengine.hook.dialects import Dialect
from policyengine.policy.problems import Problem

TIMEOUT_S = 60
"""After what time the host gives the hook up; it then lets through, so it is far more than we take."""

MODULE = "policyengine.hook"
BLOCKING = ("PreToolUse", "BeforeTool")
"""Events whose command ends in `|| exit 2`: whatever the shell cannot start, or somebody kills, blocks too."""


class Entries(msgspec.Struct, frozen=True):
    """What is to be installed."""

    dialect: Dialect
    policy: str = ""
    overlays: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    state: str = ""
    log: str = ""
    record: str = ""
    python: str = sys.executable

    def command(self, event: str) -> str:
        """Return the shell command for an event; paths in it are absolute, since hosts start it anywhere."""
        words = [self.python, "-P", "-m", MODULE, self.dialect.name]
        if self.policy:
            from policyengine.policy.files import is_path

            words += ["--policy", os.path.abspath(self.policy) if is_path(self.policy) else self.policy]
        for option, values in (("--overlay", self.overlays), ("--folder", self.folders)):
            for value in values:
                words += [option, os.path.abspath(value)]
        for option, place in (("--state", self.state), ("--log", self.log), ("--record", self.record)):
            if place:
                words += [option, os.path.abspath(place)]
        words += ["--event", event]
        return shlex.join(words) + (" || exit 2" if event in BLOCKING else "")

    def entry(self, event: str) -> dict[str, Any]:
        """Return the entry for an event, as all hosts write it."""
        timeout = TIMEOUT_S * 1000 if self.dialect.millis else TIMEOUT_S
        return {"hooks": [{"type": "command", "command": self.command(event), "timeout": timeout}]}

    def is_ours(self, command: Any) -> bool:
        """Return whether a command is one that we installed for this host, with whatever options, and nothing else."""
        words = _words(command) if isinstance(command, str) else []
        if words[-3:] == ["||", "exit", "2"]:
            words = words[:-3]
        if any(word and not word.strip("();<>|&") for word in words):
            return False  # somebody's own command, which may start ours
        program = os.path.basename(words[0]).removesuffix(".exe") if words else ""
        own = [program, *words[1:]]
        ways = (["policyengine", "hook"], [program, "-m", MODULE], [program, "-P", "-m", MODULE])
        return any(own[: len(way) + 1] == [*way, self.dialect.name] for way in ways)


def _words(command: str) -> list[str]:
    """Return the words of a shell command, operators on their own; nothing where it cannot be read."""
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:
        return []


def installed(command: str, entries: Entries) -> Entries | None:
    """Return what an installed command asks for; `None` where it cannot be read."""
    from policyengine.hook.entry import Arguments

    try:
        words = shlex.split(command)
        first = next(at for at, word in enumerate(words) if word in (MODULE, "hook")) + 1
        end = words.index("||") if "||" in words else len(words)
        said = Arguments(words[first:end])
    except (StopIteration, ValueError):
        return None
    return msgspec.structs.replace(
        entries,
        policy=said.policy,
        overlays=tuple(said.overlays),
        folders=tuple(said.folders),
        state=said.state,
        log=said.log,
        record=said.record,
    )


def usable(entries: Entries) -> tuple[str, int, tuple[Problem, ...], bool]:
    """Return the policy that hooks would use: name, number of rules, warnings, whether all rules are built in.

    Raises:
        ConfigError: it cannot be loaded, or asks for what the host cannot do.
        ExtensionError: an extension breaks the contract.
    """
    from policyengine.engine import Engine
    from policyengine.hosts.able import require
    from policyengine.hosts.table import HOSTS

    name = entries.policy or os.environ.get("POLICYENGINE_POLICY", "") or "default"
    snapshot = Engine(name, overlays=entries.overlays, folders=entries.folders).snapshot
    warnings = require(snapshot, HOSTS[entries.dialect.host])
    builtin = not any("." in rule.use for rule in snapshot.policy.rules)
    return name, len(snapshot.policy.rules), tuple(warnings), builtin


def install(path: str, entries: Entries, *, remove: bool = False, dry_run: bool = False) -> str:
    """Bring a file of hooks up to date, and return what changes as a unified diff (empty: nothing).

    Raises:
        UsageError: the file cannot be read or written, or is not what a host would read.
    """
    path = os.path.realpath(path)
    before, data = read(path)
    merge(data, entries, path, remove=remove)
    after = before if json.loads(before or "{}") == data else _text(data, before)
    diff = difflib.unified_diff(before.splitlines(True), after.splitlines(True), path, path)
    shown = "".join(line if line.endswith("\n") else f"{line}\n" for line in diff)
    if after != before and not dry_run:
        _write(path, after)
    return shown


def read(path: str) -> tuple[str, dict[str, Any]]:
    """Return a file of hooks as text and as data; nothing where there is none. Raises UsageError."""
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            text = stream.read()
    except FileNotFoundError:
        return "", {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    try:
        data = json.loads(text, object_pairs_hook=_no_twice) if text.strip() else {}
    except ValueError as error:
        raise UsageError(f"{path} is not JSON, so it is left as it is: {error}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no JSON object, so it is left as it is")
    return text, data


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands there twice, and one of the two would be lost")
    return made


def merge(data: dict[str, Any], entries: Entries, path: str, *, remove: bool = False) -> None:
    """Put our entries into the data of a file, in place of those that are there. Raises UsageError."""
    table = hooks_of(data, entries.dialect, path)
    wanted = {} if remove else {_key(table, event, entries): event for event in entries.dialect.installed}
    for key in [*table, *(key for key in wanted if key not in table)]:
        groups = table.get(key, [])
        if not isinstance(groups, list):
            if key in wanted:
                raise UsageError(f"{path}: hooks.{key} is no list, so the file is left as it is")
            continue
        kept, place = _without_ours(groups, entries)
        if key in wanted:
            kept.insert(place, entries.entry(wanted[key]))
        if kept:
            table[key] = kept
        elif groups:
            del table[key]
    if not table and data.get("hooks") is table and remove:
        del data["hooks"]


def hooks_of(data: dict[str, Any], dialect: Dialect, path: str) -> dict[str, Any]:
    """Return the mapping of events in the data of a file, made if it is not there. Raises UsageError."""
    if dialect.name == "openhands" and "hooks" not in data and data:
        return data  # without the wrapper, and with it the rest of the file would count for nothing
    table = data.setdefault("hooks", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: `hooks` is no mapping, so the file is left as it is")
    return table


def _key(table: dict[str, Any], event: str, entries: Entries) -> str:
    """Return how a file spells an event: OpenHands takes two spellings, and refuses a file with both."""
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", event).lower()
    return snake if entries.dialect.name == "openhands" and snake in table else event


def _without_ours(groups: list[Any], entries: Entries) -> tuple[list[Any], int]:
    """Return the groups of an event without our commands, and where the first of them stood (at the end: none)."""
    kept: list[Any] = []
    place = -1
    for group in groups:
        hooks = group.get("hooks") if isinstance(group, dict) else None
        if not isinstance(hooks, list) or not any(_is_ours(hook, entries) for hook in hooks):
            kept.append(group)
            continue
        place = len(kept) if place < 0 else place
        others = [hook for hook in hooks if not _is_ours(hook, entries)]
        if others:
            kept.append({**group, "hooks": others})
    return kept, len(kept) if place < 0 else place


def _is_ours(hook: Any, entries: Entries) -> bool:
    return isinstance(hook, dict) and entries.is_ours(hook.get("command"))


def _text(data: dict[str, Any], before: str) -> str:
    found = re.search(r"\n([ \t]+)\S", before)
    indent: str | int = found[1] if found else 2
    return json.dumps(data, indent=indent, ensure_ascii=False) + "\n"


def _write(path: str, text: str) -> None:
    """Put the file in its place as a whole, with the mode it had."""
    draft = f"{path}.{os.getpid()}.new"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        mode = 0o600
        with suppress(FileNotFoundError):
            mode = os.stat(path).st_mode & 0o777
        opened = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        try:
            with open(opened, "w", encoding="utf-8", newline="") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(draft, mode)
            os.replace(draft, path)
        finally:
            with suppress(OSError):  # where all went well it is there no more
                os.unlink(draft)
    except (OSError, UnicodeEncodeError) as error:
        raise UsageError(f"{path} cannot be written: {error}") from error
