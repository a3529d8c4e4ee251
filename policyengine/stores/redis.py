"""A store in a Redis server, for processes on many machines.

Knows: Redis' transactions, and what may be lost between sending one and hearing of it. Must not know: what a value
means, redis-py.

Every value is a hash (value, digest, time) under its own name, and every kind has an index, a sorted set of its keys by
time. `change` reads each key after it was watched (WATCH), and what it writes is sent at once (MULTI, EXEC), which the
server does as a whole, or not at all if anybody wrote what was watched: then `change` is called again, after a pause
that grows and is shortened by chance.

A connection that ends while EXEC is on its way leaves open whether it was done. So each transaction also writes a token
under a name of its connection, which is watched from the beginning. On a new connection the token is read and changed
in one transaction: if it is there, the work is kept; if not, what was sent can never be done any more, since its
watched name has changed, and `change` is called again. Only if the server cannot be reached for as long as that is
tried, nobody knows (`StoreError.unknown`).

**What the server keeps.** Redis answers before it writes to the disk, unless it is told otherwise. For what must
outlive its machine: `appendonly yes` and `appendfsync always`; with `everysec` a power cut takes the last second, and
without `appendonly` everything since the last snapshot. A replica that takes over lacks what was not sent to it yet.
Where `maxmemory` is set, `maxmemory-policy` must be `noeviction`: `allkeys-…` drops values, and `volatile-…` the tokens
that say what was done, which are all that has a time to live. A store refuses both.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Generic

from policyengine.errors import UsageError
from policyengine.stores import StoreError, T, check_key, digest_of
from policyengine.stores.redis_wire import Address, Command, Full, Lost, Wire

CONNECT_S = 2.0
COMMAND_S = 5.0
ATTEMPTS = 200
"""How often `change` is called at most, because somebody was faster."""
QUEUE_AFTER = 3
"""After so many attempts the threads of a process stand in a line instead of racing each other."""
LOOKS = 10
"""How often a lost server is asked whether a transaction was done."""
IDLE = 16
"""How many connections are kept for later."""
TOKEN_S = 86_400
AT_ONCE = 500
"""How many values are asked for in one round trip."""

_VERSION = b"2"
_EMPTY: tuple[Command, ...] = (("MULTI",), ("EXEC",))
_REMOVE = """
local at = 2
for _ = 1, tonumber(ARGV[1]) do
  if (redis.call(ARGV[at], ARGV[at + 1], ARGV[at + 2]) or '') ~= ARGV[at + 3] then return 0 end
  at = at + 4
end
while ARGV[at] do
  redis.call('DEL', ARGV[at])
  redis.call('ZREM', ARGV[at + 1], ARGV[at + 2])
  at = at + 3
end
return 1
"""
"""A server that is full begins no transaction, but runs a script that removes."""


class RedisStore:
    """Values in a Redis server at a URL: `redis://`, `rediss://` (TLS) or `unix://`; `prefix=` in its query names them.

    Nothing is connected before the first use, and what was lost is connected again by the next one. Threads may share
    it, also after a fork. `sleep` and `jitter` are for tests.

    Raises:
        UsageError: the URL cannot be read, or the extra `redis` is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_s: float = CONNECT_S,
        command_s: float = COMMAND_S,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        self._address = Address(url, connect_s, command_s)
        self.place = self._address.place
        if not re.fullmatch(r"[A-Za-z0-9._-]+", self._address.prefix):
            raise UsageError("the prefix of a Redis store takes letters, digits, dots, dashes and underscores")
        self._names = _Names(self._address.prefix)
        self._attempts = attempts
        self._sleep = sleep
        self._jitter = jitter or random.Random().random
        self._closed = False
        self._begin()

    def update(self, change: Callable[[RedisValues], T]) -> T:
        """Return what `change` returns, which may be called again; see `Store`."""
        return self._until_done(lambda lane: self._update(lane, change))

    def read(self, look: Callable[[RedisValues], T]) -> T:
        """Return what `look` returns, which sees one state of the values it gets; see `Store`."""
        return self._until_done(lambda lane: self._read(lane, look))

    def close(self) -> None:
        """Let go of the server."""
        self._closed = True
        with self._lock:
            idle = self._idle[:]
            self._idle.clear()
        for lane in idle:
            lane.wire.drop()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._queue = threading.Lock()
        self._idle: list[_Lane] = []
        self._busy = threading.local()

    @contextmanager
    def _lane(self) -> Iterator[_Lane]:
        if self._pid != os.getpid():
            self._begin()  # the connections belong to the parent process
        if self._closed:
            raise UsageError(f"the store {self.place} is closed")
        if getattr(self._busy, "now", False):
            raise UsageError(f"the store {self.place} was used again inside its own update or read")
        with self._lock:
            lane = self._idle.pop() if self._idle else _Lane(Wire(self._address), self._names)
        self._busy.now = True
        over = False
        try:
            yield lane
            over = True
        except Exception:
            over = True
            raise
        finally:
            self._busy.now = False
            with self._lock:
                # Where it was interrupted, something may still be watched.
                kept = over and not self._closed and lane.wire.connected and len(self._idle) < IDLE
                if kept:
                    lane.wire.reused = True
                    self._idle.append(lane)
            if not kept:
                lane.wire.drop()

    def _until_done(self, attempt: Callable[[_Lane], _Done[T] | None]) -> T:
        with self._lane() as lane, _Line(self._queue) as line:
            for number in range(self._attempts):
                if number:
                    self._pause(number)
                if number == QUEUE_AFTER:
                    line.stand()
                reused = lane.wire.reused
                try:
                    done = attempt(lane)
                except Lost as error:
                    if not reused or error.silent:
                        raise
                    self._drop_idle()  # the server was restarted, or closes what is idle: nothing was done yet
                    done = attempt(lane)
                if done is not None:
                    return done.result
        text = f"others were faster {self._attempts} times; try again later"
        raise StoreError(f"the store {self.place} is busy: {text}", transient=True)

    def _update(self, lane: _Lane, change: Callable[[RedisValues], T]) -> _Done[T] | None:
        values = RedisValues(lane, self._names, writable=True)
        try:
            result = change(values)
        except Exception:
            # What it saw may have been half old and half new: then it did not fail, it was too late.
            if lane.wire.connected and values.began and lane.wire.call(*_EMPTY)[-1] is None:
                return None
            raise
        finally:
            values.over = True
        if not values.began or self._commit(lane, values):
            return _Done(result)
        return None

    def _read(self, lane: _Lane, look: Callable[[RedisValues], T]) -> _Done[T] | None:
        values = RedisValues(lane, self._names, writable=False)
        try:
            result = look(values)
        except Exception:
            if lane.wire.connected and not values.still_so():
                return None
            raise
        finally:
            values.over = True
        return _Done(result) if values.still_so() else None

    def _commit(self, lane: _Lane, values: RedisValues) -> bool:
        """Return whether what was written is kept; if not, somebody was faster."""
        values.still_connected()
        writes = values.writes()
        if not writes:
            return lane.wire.call(*_EMPTY)[-1] is not None
        token = os.urandom(12).hex().encode()
        try:
            answers = lane.wire.call(("MULTI",), ("SET", lane.name, token, "EX", TOKEN_S), *writes, ("EXEC",))
        except Lost:
            return self._was_done(lane, token)
        except Full:
            if not values.removes_only:
                raise
            return self._remove(lane, values)
        return self._kept(answers[-1])

    def _remove(self, lane: _Lane, values: RedisValues) -> bool:
        """Remove values from a server that is so full that it begins no transaction, and takes no token."""
        try:
            return bool(lane.wire.call(("EVAL", _REMOVE, 0, *values.removals()))[0])
        except Lost as error:
            raise self._nobody_knows() from error

    def _kept(self, answer: list[Any] | None) -> bool:
        for item in answer or ():
            if isinstance(item, Exception):
                raise StoreError(f"the store {self.place} is damaged: {item}", unknown=True) from item
        return answer is not None

    def _was_done(self, lane: _Lane, token: bytes) -> bool:
        """Return whether a transaction was done whose answer is lost; if not, it never will be."""
        # Added, not replaced: the answer to this may be lost, too, and the next look must still find the token.
        fence: tuple[Command, ...] = (("APPEND", lane.name, b"."), ("EXPIRE", lane.name, TOKEN_S))
        failed: StoreError | None = None
        for number in range(LOOKS):
            if number:
                self._pause(number, 0.02, 1.0)
            try:
                found = lane.wire.call(("MULTI",), ("GET", lane.name), *fence, ("EXEC",))[-1][0]
            except StoreError as error:
                lane.wire.drop()
                failed = error
                continue
            return bool((found or b"").startswith(token))
        lane.rename()
        raise self._nobody_knows() from failed

    def _nobody_knows(self) -> StoreError:
        text = "the connection was lost while a change was on its way, and the server cannot be asked"
        return StoreError(f"the store {self.place}: {text}; nobody knows whether it was made", unknown=True)

    def _pause(self, number: int, first: float = 0.001, most: float = 0.05) -> None:
        self._sleep(self._jitter() * min(most, first * 2 ** min(number, 10)))

    def _drop_idle(self) -> None:
        with self._lock:
            idle = self._idle[:]
            self._idle.clear()
        for lane in idle:
            lane.wire.drop()


class RedisValues:
    """What may be done inside `RedisStore.update`; see `Values`."""

    def __init__(self, lane: _Lane, names: _Names, *, writable: bool) -> None:
        self.over = False
        self.began = False
        self._lane = lane
        self._names = names
        self._writable = writable
        self._now = 0.0
        self._new = False
        self._looked: list[tuple[str, Command, Any]] = []
        self._looks = 0
        self._got: dict[tuple[str, str], bytes | None] = {}
        self._newest: dict[str, float] = {}
        self._staged: dict[tuple[str, str], tuple[bytes, float] | None] = {}

    def now(self) -> float:
        """Return the time of the server."""
        self._check()
        self._ask()
        return self._now

    def get(self, kind: str, key: str) -> bytes | None:
        """Return a value, or `None`."""
        self._check(kind, key)
        name = (kind, key)
        if name in self._staged:
            staged = self._staged[name]
            return staged[0] if staged is not None else None
        if name not in self._got:
            self._got[name] = self._fetch(kind, key)
        return self._got[name]

    def get_many(self, kind: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return those of the values that are there, by their keys; several are one round trip, and one look."""
        names = tuple(keys)
        for key in names:
            self._check(kind, key)
        unknown = [key for key in dict.fromkeys(names) if not {(kind, key)} & (self._staged.keys() | self._got.keys())]
        for start in range(0, len(unknown), AT_ONCE):
            self._fetch_all(kind, unknown[start : start + AT_ONCE])
        return {key: value for key in names if (value := self.get(kind, key)) is not None}

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Keep a value."""
        self._check(kind, key, writes=True)
        if kind not in self._newest:
            self._learn_newest(kind, self._ask(self._ask_newest(kind))[0])
        self._staged[kind, key] = (bytes(value), self._newest[kind])

    def delete(self, kind: str, key: str) -> None:
        """Forget a value."""
        self._check(kind, key, writes=True)
        self._ask()
        self._staged[kind, key] = None

    def keys(self, kind: str, prefix: str = "") -> tuple[str, ...]:
        """Return the keys of a kind that start with a text, in order; others may change them meanwhile."""
        self._check(kind, prefix)
        found = {key.decode() for key in self._ask(("ZRANGE", self._names.index(kind), 0, -1))[0]}
        for (of, key), staged in self._staged.items():
            if of == kind:
                (found.discard if staged is None else found.add)(key)
        return tuple(sorted(key for key in found if key.startswith(prefix)))

    def forget(self, kind: str, before: float) -> int:
        """Forget what was written before that time."""
        self._check(kind, writes=True)
        index = self._names.index(kind)
        found = self._ask(("ZRANGEBYSCORE", index, "-inf", f"({before!r}"))[0]
        old = [key for key in map(bytes.decode, found) if (kind, key) not in self._staged]
        gone = [name for name, kept in self._staged.items() if name[0] == kind and kept and kept[1] < before]
        for start in range(0, len(old), 1000):
            part = old[start : start + 1000]
            # Watched first and looked at then: what somebody writes anew meanwhile is not old any more.
            scores: list[Command] = [("ZSCORE", index, key) for key in part]
            names = [self._names.value(kind, key) for key in part]
            answers = self._ask(("WATCH", *names), *scores)[1:]
            for key, name, command, score in zip(part, names, scores, answers, strict=True):
                self._looked.append((name, command, score))
                if score is not None and float(score) < before:
                    gone.append((kind, key))
        self._staged.update(dict.fromkeys(gone))
        return len(gone)

    @property
    def removes_only(self) -> bool:
        """Whether the server needs no room for what is written."""
        return not any(self._staged.values())

    def writes(self) -> list[Command]:
        """Return the commands that write what is to be kept."""
        commands: list[Command] = []
        if self._new and not self.removes_only:
            commands.append(("SET", self._names.version, _VERSION))
        for (kind, key), staged in self._staged.items():
            name, index = self._names.value(kind, key), self._names.index(kind)
            commands.append(("DEL", name))  # whatever is there: in a transaction, nothing may fail
            if staged is None:
                commands.append(("ZREM", index, key))
            else:
                value, stamp = staged
                commands.append(("HSET", name, "v", value, "d", digest_of(kind, key, value), "t", repr(stamp)))
                commands.append(("ZADD", index, repr(stamp), key))
        return commands

    def still_so(self) -> bool:
        """Return whether all that was looked at was there at one time; a single look was."""
        if self._looks < 2:
            return True
        return bool(self._lane.wire.call(("MULTI",), *self._commands(), ("EXEC",))[-1] == self._answers())

    def removals(self) -> Command:
        """Return what the script `_REMOVE` is told: what was looked at, with what was found, and what to remove."""
        words: list[str | bytes | int | float] = [len(self._looked)]
        for _, command, answer in self._looked:
            words += [*command, answer if answer is not None else b""]
        for kind, key in self._staged:
            words += [self._names.value(kind, key), self._names.index(kind), key]
        return tuple(words)

    def still_connected(self) -> None:
        """Refuse to go on by another connection, on which nothing is watched. Raises StoreError."""
        if self._writable and not self._lane.wire.connected:
            raise Lost(f"the store {self._lane.wire.place} was lost in the middle of a change", silent=False)

    def _commands(self) -> list[Command]:
        return [command for _, command, _ in self._looked]

    def _answers(self) -> list[Any]:
        return [answer for _, _, answer in self._looked]

    def _fetch(self, kind: str, key: str) -> bytes | None:
        name = self._names.value(kind, key)
        wanted: Command = ("HMGET", name, "v", "d")
        if not self._writable:
            value, digest = self._ask(wanted)[0]
        elif kind in self._newest:
            value, digest = self._ask(("WATCH", name), wanted)[1]
        else:
            _, (value, digest), newest = self._ask(("WATCH", name), wanted, self._ask_newest(kind))
            self._learn_newest(kind, newest)
        self._looks += 1
        return self._found(kind, key, value, digest)

    def _fetch_all(self, kind: str, keys: list[str]) -> None:
        """Ask for several values at once. Without anything watched, only a transaction sees them as of one time."""
        names = [self._names.value(kind, key) for key in keys]
        wanted: list[Command] = [("HMGET", name, "v", "d") for name in names]
        answers: list[Any]
        if not self._writable:
            answers = self._ask(("MULTI",), *wanted, ("EXEC",))[-1]
            self._looks += 1
        elif kind in self._newest:
            answers = self._ask(("WATCH", *names), *wanted)[1:]
        else:
            _, *answers, newest = self._ask(("WATCH", *names), *wanted, self._ask_newest(kind))
            self._learn_newest(kind, newest)
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, Exception):
                raise self._lane.wire.refusal(answer) from answer
            self._got[kind, key] = self._found(kind, key, *answer)

    def _found(self, kind: str, key: str, value: bytes | None, digest: bytes | None) -> bytes | None:
        """Return a value that was answered, and remember what was seen."""
        name = self._names.value(kind, key)
        self._looked.append((name, ("HGET", name, "d"), digest))
        if value is None and digest is None:
            return None
        if value is None or digest_of(kind, key, value) != digest:
            raise StoreError(f"the store {self._lane.wire.place} is damaged at {kind} {key}")
        return bytes(value)

    def _ask_newest(self, kind: str) -> Command:
        return ("ZREVRANGE", self._names.index(kind), 0, 0, "WITHSCORES")

    def _learn_newest(self, kind: str, answer: list[bytes]) -> None:
        self._newest[kind] = max(self._now, float(answer[1]) if answer else -inf)

    def _ask(self, *commands: Command) -> list[Any]:
        """Return the answers of the server; the first question begins the transaction."""
        if self.began:
            self.still_connected()
            return self._lane.wire.call(*commands) if commands else []
        first: list[Command] = [("TIME",), ("GET", self._names.version)]
        if self._writable:
            first.append(("WATCH", self._lane.name))
        try:
            answers = self._lane.wire.call(*first, *commands)
        except StoreError:
            self._lane.wire.drop()  # what it watches by now is none of the next transaction's business
            raise
        self.began = True
        (seconds, micros), version = answers[:2]
        self._now = int(seconds) + int(micros) / 1e6
        self._new = version is None
        if version not in (None, _VERSION):
            about = f"has version {version.decode('ascii', 'replace')}, this engine reads {_VERSION.decode()}"
            raise StoreError(f"the store {self._lane.wire.place} {about}; use that engine, or another prefix")
        return answers[len(first) :]

    def _check(self, kind: str = "", key: str = "", *, writes: bool = False) -> None:
        if self.over or (writes and not self._writable):
            raise UsageError("values of a store are used while its update runs, and written in an update only")
        check_key(kind, key)


class _Done(Generic[T]):
    """What a transaction returned, which may be `None`."""

    def __init__(self, result: T) -> None:
        self.result = result


class _Names:
    """The names a store uses on the server."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.version = f"{prefix}:version"

    def value(self, kind: str, key: str) -> str:
        """Return where a value is."""
        return f"{self._prefix}:value:{_quoted(kind)}:{key}"

    def index(self, kind: str) -> str:
        """Return where the keys of a kind are."""
        return f"{self._prefix}:kind:{_quoted(kind)}"

    def token(self) -> str:
        """Return a new name for tokens."""
        return f"{self._prefix}:token:{os.urandom(9).hex()}"


def _quoted(kind: str) -> str:
    return kind.replace("%", "%25").replace(":", "%3A")


class _Lane:
    """A connection, and the name of its tokens."""

    def __init__(self, wire: Wire, names: _Names) -> None:
        self.wire = wire
        self._names = names
        self.name = names.token()

    def rename(self) -> None:
        """Leave a token behind of which nobody knows what becomes."""
        self.name = self._names.token()


class _Line:
    """Lets a thread stand in a line, for as long as it is useful, and leave it at the end."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._standing = False

    def __enter__(self) -> _Line:
        return self

    def stand(self) -> None:
        """Wait until it is our turn; who waits for long goes on without."""
        self._standing = self._lock.acquire(timeout=1.0)

    def __exit__(self, *_: object) -> None:
        if self._standing:
            self._lock.release()
