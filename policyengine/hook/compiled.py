"""A loaded policy, kept for the next process: data, and the digests of everything it was made of.

Knows: which files a policy depends on, and when a kept one may be used. Must not know: events, hosts' field names.

A hook is a new process for every event, and reading YAML and checking schemas takes longer than deciding. So what came
of that is kept in the state directory, mode 0600: the effective `Policy` as MessagePack (never code), under a SHA-256,
with every file it depends on. It is used if nothing of this changed: the files (a file whose size, times and inode are
as they were is not read again, unless it was written just before), the templates in its directories, the versions of
the engine, the interpreter and the decoder, the day. Anything else, and anything odd about the file itself, means that
the policy is loaded as everywhere else. Not kept are policies with extensions that are not built in (their code has to
be looked at each time), with values of the environment (they may be secret), and while `POLICYENGINE_BLOCK` is set.

Who may write the state directory may also change the policy in force; so it is the user's own.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import gmtime, time_ns

import msgspec

from policyengine import __version__
from policyengine.hook.engine import BUILTINS, Deciding, deciding
from policyengine.policy.model import Policy

MAGIC = b"policyengine-compiled-1\n"
MAX_BYTES = 64 * 1024 * 1024
FRESH_NS = 2_000_000_000
"""A file that was written so shortly before is read again: its times may not tell a second edit from the first."""

SHIPPED = "policy:"
NEVER = "R518"
"""The code of a rule that can never fire under a host (see `hosts.able`)."""

BLOCK = "POLICYENGINE_BLOCK"


class File(msgspec.Struct, frozen=True, array_like=True):
    """One file as it was: `digest` is empty for a file that is not there."""

    path: str
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    digest: bytes = b""


class Kept(msgspec.Struct, frozen=True):
    """What is kept: the policy and everything that must be as it was."""

    made_by: str
    day: str
    at_ns: int
    files: tuple[File, ...]
    folders: tuple[tuple[str, tuple[str, ...]], ...]
    policy: msgspec.Raw


class Wanted(msgspec.Struct, frozen=True):
    """Which policy is wanted, for which host (a name of `hosts.table`)."""

    policy: str
    host: str
    overlays: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def name(self) -> str:
        """Return the name of the file under which it is kept."""
        parts = (self.policy, *self.overlays, *self.folders)
        # A name without a slash or a suffix is that of a shipped policy, wherever one is.
        relative = any(not os.path.isabs(part) and ("/" in part or "." in part) for part in parts)
        digest = hashlib.sha256(os.fsencode(os.getcwd()) if relative else b"")
        for part in (self.policy, self.host, *self.overlays, "", *self.folders):
            data = os.fsencode(part)
            digest.update(len(data).to_bytes(8, "big") + data)
        return f"{digest.hexdigest()[:32]}.policy"


def engine_for(wanted: Wanted, folder: str) -> Deciding:
    """Return what decides under a policy: from what is kept in a directory, or loaded and kept there.

    Raises:
        ConfigError: the policy cannot be used, or asks for what the host cannot do.
        ExtensionError: an extension breaks the contract.
    """
    path = os.path.join(folder, wanted.name())
    policy = None if os.environ.get(BLOCK) else kept_policy(path)
    if policy is not None:
        return deciding(policy)
    return _load(wanted, path)


def kept_policy(path: str) -> Policy | None:
    """Return the policy that is kept in a file, if it is still the one that loading would give."""
    data = _own_bytes(path)
    if data is None or not data.startswith(MAGIC):
        return None
    start = len(MAGIC) + 32
    body = data[start:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : start]:
        return None
    try:
        kept = msgspec.msgpack.decode(body, type=Kept)
        if kept.made_by != made_by() or kept.day != _day():
            return None
        if not all(_is_same(file, kept.at_ns) for file in kept.files):
            return None
        if any(_templates(name) != there for name, there in kept.folders):
            return None
        return msgspec.msgpack.decode(kept.policy, type=Policy)
    except (msgspec.MsgspecError, OSError, ValueError):
        return None


def made_by() -> str:
    """Return what else a kept policy depends on: versions."""
    return f"{__version__} {sys.version} {msgspec.__version__} {sys.byteorder}"


# ---- loading


class _Watched(Mapping[str, str]):
    """The environment, which notes whether anybody asked for something of it."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return os.environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


def _load(wanted: Wanted, path: str) -> Deciding:
    from policyengine.engine import Engine
    from policyengine.hosts.able import require
    from policyengine.hosts.table import HOSTS

    def engine() -> Engine:
        return Engine(wanted.policy, overlays=wanted.overlays, folders=wanted.folders, env=env)

    env = _Watched()
    at_ns = time_ns()
    snapshot = engine().snapshot
    warnings = require(snapshot, HOSTS[wanted.host])
    idle = frozenset(problem.path.removeprefix("extensions.") for problem in warnings if problem.code == NEVER)
    builtin = all("." not in rule.use for rule in snapshot.policy.rules)
    if builtin and not env.asked - {BLOCK} and not os.environ.get(BLOCK):
        with suppress(OSError):  # whoever cannot keep it loads it again
            _keep(path, snapshot.policy, at_ns, lambda: engine().snapshot.policy, idle)
    return Deciding(snapshot, enforce_time=not builtin)


def _keep(path: str, policy: Policy, at_ns: int, again: Callable[[], Policy], idle: frozenset[str]) -> None:
    """Keep a policy, without what deciding needs none of: where settings are from, and rules that can never fire."""
    files = tuple(file for name in _files(policy) if (file := _look(name)))
    folders = tuple((os.path.abspath(name), _templates(os.path.abspath(name))) for name in policy.prompts)
    # What was read must be what was looked at: a file may have changed in between.
    if again() != policy:
        return
    rules = tuple(rule for rule in policy.rules if rule.id not in idle)
    policy = msgspec.structs.replace(policy, rules=rules, provenance={}, warnings=())
    data = msgspec.msgpack.encode(policy)
    if msgspec.msgpack.decode(data, type=Policy) != policy:
        return
    kept = Kept(made_by(), _day(), at_ns, files, folders, msgspec.Raw(data))
    body = msgspec.msgpack.encode(kept)
    _write(path, MAGIC + hashlib.sha256(body).digest() + body)


def _files(policy: Policy) -> Iterable[str]:
    """Yield every file that a policy depends on: its own, shipped ones, and the code of its extensions."""
    from importlib.resources import files

    shipped = str(files("policyengine.policies"))
    for name in policy.files:
        yield os.path.join(shipped, f"{name.removeprefix(SHIPPED)}.yaml") if name.startswith(SHIPPED) else name
    for use in sorted({rule.use for rule in policy.rules}):
        module = sys.modules.get(f"{BUILTINS}.{use}")
        if module is not None and module.__file__:
            yield module.__file__


def _look(name: str) -> File:
    path = os.path.abspath(name)
    try:
        with open(path, "rb") as stream:
            digest = hashlib.sha256(stream.read()).digest()
            seen = os.fstat(stream.fileno())
    except OSError:
        return File(path)
    return File(path, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, digest)


def _is_same(file: File, at_ns: int) -> bool:
    try:
        seen = os.stat(file.path)
    except OSError:
        return not file.digest
    facts = (seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)
    settled = max(file.mtime_ns, file.ctime_ns) < at_ns - FRESH_NS
    if settled and facts == (file.size, file.mtime_ns, file.ctime_ns, file.inode):
        return True
    return _look(file.path).digest == file.digest != b""


def _templates(folder: str) -> tuple[str, ...]:
    """Return the names of what a directory of templates holds, two levels deep."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            found.append(entry.name)
            with suppress(OSError):
                found += [f"{entry.name}/{name}" for name in os.listdir(entry.path)]
    return tuple(sorted(found))


def _day() -> str:
    now = gmtime()
    return f"{now.tm_year:04}-{now.tm_mon:02}-{now.tm_mday:02}"


# ---- the file itself


def _own_bytes(path: str) -> bytes | None:
    """Return the bytes of a file that is nobody else's to write; else `None`."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        seen = os.fstat(opened)
        private = stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o077
        if not private or seen.st_size > MAX_BYTES:
            return None
        data = os.read(opened, seen.st_size + 1)
        return data if len(data) == seen.st_size else None
    except OSError:
        return None
    finally:
        os.close(opened)


def _write(path: str, data: bytes) -> None:
    """Put a file in its place as a whole; raises OSError."""
    draft = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.new"
    opened = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(opened, rest) :]
        finally:
            os.close(opened)
        os.replace(draft, path)
    finally:
        with suppress(OSError):  # where all went well it is there no more
            os.unlink(draft)


def remove_old(folder: str, names: Sequence[str], before: float) -> None:
    """Remove what nobody has written for long from a directory: kept policies and drafts of killed processes."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.endswith(tuple(names)):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < before:
                        os.unlink(entry.path)
