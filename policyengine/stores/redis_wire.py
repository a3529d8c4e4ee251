"""One connection to a Redis server, and what its failures mean.

Knows: the client library redis-py, its errors and those of the server. Must not know: what is kept, transactions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from policyengine.errors import UsageError
from policyengine.stores import StoreError

Command = tuple[str | bytes | int | float, ...]

_SAID = {
    "OOM": ("is full (maxmemory): make room, or give it more", False),
    "READONLY": ("is a read-only replica: give the address of the primary", True),
    "LOADING": ("still loads its data", True),
    "MASTERDOWN": ("is a replica that has lost its primary", True),
    "NOREPLICAS": ("has too few replicas to write", True),
    "TRYAGAIN": ("moves data", True),
    "BUSY": ("is busy with a script", True),
    "MISCONF": ("cannot save its data and refuses to write: see to its disk", False),
    "NOAUTH": ("wants a user and password", False),
    "WRONGPASS": ("refuses the user or password", False),
    "NOPERM": ("does not permit this user what a store needs", False),
    "MOVED": ("belongs to a cluster: give a server of its own", False),
    "CROSSSLOT": ("belongs to a cluster: give a server of its own", False),
    "CLUSTERDOWN": ("belongs to a cluster: give a server of its own", False),
    "WRONGTYPE": ("keeps something else under a name of the store: give the store another prefix", False),
}
"""What a server answers, by its first word: what that means, and whether it passes by itself."""


class Lost(StoreError):
    """A connection is gone, or silent for too long (`silent`): what was sent last may have been done."""

    def __init__(self, message: str, *, silent: bool) -> None:
        super().__init__(message, transient=True)
        self.silent = silent


class Full(StoreError):
    """A server has no room for anything more."""


class Address:
    """Where a server is, and how one connects to it. Nothing is connected yet.

    Raises:
        UsageError: the URL cannot be read, or redis-py is not installed.
    """

    def __init__(self, url: str, connect_s: float, command_s: float) -> None:
        try:
            import redis
        except ImportError as error:
            raise UsageError("the package redis is not installed: pip install 'agent-policyengine[redis]'") from error
        plain, _, query = url.partition("?")
        scheme = plain.partition(":")[0]
        options = dict(parse_qsl(query, keep_blank_values=True))
        self.prefix = options.pop("prefix", "policyengine")
        plain += f"?{urlencode(options)}" if options else ""
        try:
            if scheme != "unix" and not re.fullmatch(r"/?|/\d+", urlsplit(plain).path):
                raise ValueError("the path is no number of a database")  # redis-py would take database 0
            limits = {"socket_connect_timeout": connect_s, "socket_timeout": command_s}
            pool: Any = redis.ConnectionPool.from_url(plain, protocol=2, **limits)
            self._options = pool.connection_kwargs | {"decode_responses": False}
            self._make: Callable[..., Any] = pool.connection_class
            made = self.connection()
        except (ValueError, TypeError, redis.RedisError) as error:
            # What urllib says of a port may be a part of the password.
            why = str(error) if isinstance(error, TypeError) else "wanted: redis://USER:PASSWORD@HOST:PORT/DB"
            raise UsageError(f"the address of the Redis store cannot be read; {why}") from None
        self.errors: Any = redis.exceptions
        path = getattr(made, "path", "")
        place = path or f"{getattr(made, 'host', '')}:{getattr(made, 'port', '')}"
        self.place = f"{scheme}://{place}{'?db=' if path else '/'}{made.db}"

    def connection(self) -> Any:
        """Return a connection of redis-py that is not connected yet."""
        return self._make(**self._options)

    def error(self, error: Exception) -> StoreError:
        """Return an error of redis-py as one of ours."""
        errors = self.errors
        text = str(error).strip()
        # redis-py cuts the first word off where it has a class for it.
        word = getattr(error, "status_code", None) or _WORDS.get(type(error).__name__) or text.split(" ")[0]
        if "because of: OOM" in text:
            word = "OOM"
        if word in _SAID:
            means, transient = _SAID[word]
            kind = Full if word == "OOM" else StoreError
            return kind(f"the store {self.place} {means} ({text})", transient=transient)
        if isinstance(error, errors.AuthenticationError):
            means, _ = _SAID["NOAUTH" if "required" in text else "WRONGPASS"]
            return StoreError(f"the store {self.place} {means} ({text})")
        if "CERTIFICATE_VERIFY_FAILED" in text or "WRONG_VERSION_NUMBER" in text:
            return StoreError(
                f"the store {self.place} cannot be trusted, or speaks no TLS: see to its address ({text})"
            )
        if isinstance(error, errors.TimeoutError):
            return Lost(f"the store {self.place} does not answer in time; try again later ({text})", silent=True)
        if isinstance(error, errors.ConnectionError | OSError):
            return Lost(f"the store {self.place} cannot be reached; try again later ({text})", silent=False)
        if isinstance(error, errors.InvalidResponse):
            return StoreError(f"the store {self.place} does not speak the protocol of Redis ({text[:80]})")
        return StoreError(f"the store {self.place} refused a command: {text}")


_WORDS = {
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "BusyLoadingError": "LOADING",
    "MasterDownError": "MASTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "NoPermissionError": "NOPERM",
    "MovedError": "MOVED",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
}


class Wire:
    """A connection, for one thread at a time. It connects by itself, and again after it was dropped.

    `reused`: it has carried something before, so the server may have closed it since.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Any = None
        self.reused = False
        self.place = address.place

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as this side knows."""
        return self._connection is not None

    def call(self, *commands: Command) -> list[Any]:
        """Send commands at once and return their answers; the first refusal raises when all are read.

        Raises:
            Lost: nobody knows which of the commands were done.
            StoreError: the server refused one; those in a transaction were not done.
        """
        errors = self._address.errors
        answers: list[Any] = []
        try:
            if self._connection is None:
                self._connect()
            self._connection.send_packed_command(self._connection.pack_commands(commands))
            for _ in commands:
                try:
                    answers.append(self._connection.read_response())
                except errors.ResponseError as refused:
                    answers.append(refused)
        except (errors.RedisError, OSError) as error:
            raise self._address.error(error) from error
        finally:
            if len(answers) < len(commands):
                self.drop()  # what is still to come would be taken for the answer to something else
        for answer in answers:
            if isinstance(answer, errors.ResponseError):
                refusal = self._address.error(answer)
                if refusal.transient:  # by another connection one may reach another server: the new primary
                    self.drop()
                raise refusal from answer
        return answers

    def refusal(self, error: Exception) -> StoreError:
        """Return what a server refused inside a transaction as an error of ours."""
        return self._address.error(error)

    def drop(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection, self.reused = self._connection, None, False
        if connection is not None:
            connection.disconnect()

    def _connect(self) -> None:
        self._connection = self._address.connection()
        self._connection.connect()
        self._connection.send_command("INFO", "memory")
        try:
            said: Any = self._connection.read_response()
        except self._address.errors.NoPermissionError:
            return
        facts = dict(line.split(":", 1) for line in said.decode("utf-8", "replace").splitlines() if ":" in line)
        if facts.get("maxmemory", "0") != "0" and facts.get("maxmemory_policy", "noeviction") != "noeviction":
            self.drop()
            policy = f"it drops what is kept when it is full (maxmemory-policy {facts['maxmemory_policy']})"
            raise StoreError(f"the store {self._address.place} cannot be used: {policy}; set it to noeviction")
