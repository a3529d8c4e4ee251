"""The name of a tool, as a model wrote it: find the registered tool it is, or leave it alone.

Knows: which tools are offered, and what models and gateways put around a name.
Must not know: where a call was found, arguments of calls that are not about the name.

A name is only ever changed into one that is registered exactly so. Nothing is matched by likeness: running a tool with
arguments it never declared is worse than telling the model which tools there are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

MAX_NAME = 512
"""Longest text that is looked at as a name."""

MOST_NAMESPACES, LONGEST_NAMESPACE = 4, 100
"""How many namespaces may stand before a name, and the longest of one."""

NAMESPACES = frozenset({"api", "default", "default_api", "function", "functions", "mcp", "tool", "tools"})
"""Words before a name that mean nothing but "a tool"."""


class Tools:
    """The offered tools: their names, and the JSON schemas of their arguments where these are known.

    `names` is `None` where nobody knows what was offered (a recording).
    """

    __slots__ = ("names", "schemas")

    def __init__(self, tools: Collection[str] | Mapping[str, Any] | None) -> None:
        self.names: Collection[str] | None = tools
        self.schemas: Mapping[str, Any] = tools if isinstance(tools, Mapping) else {}

    def has(self, name: str) -> bool:
        """Return whether this tool is offered, as far as is known."""
        return self.names is None or name in self.names

    def registered(self, name: str) -> bool:
        """Return whether this tool is known to be offered."""
        return self.names is not None and name in self.names

    def properties(self, name: str) -> Mapping[str, Any] | None:
        """Return the declared arguments of a tool, or `None` where they are not known."""
        schema = self.schemas.get(name)
        found = schema.get("properties") if isinstance(schema, Mapping) else None
        return found if isinstance(found, Mapping) else None

    def required(self, name: str) -> tuple[str, ...] | None:
        """Return the names of the arguments a tool cannot do without, or `None` where they are not known."""
        schema = self.schemas.get(name)
        if not isinstance(schema, Mapping):
            return None
        found = schema.get("required")
        return tuple(str(item) for item in found) if isinstance(found, list | tuple) else ()


class Name(NamedTuple):
    """A name with what was taken off it. `legal` is false for what cannot be a name at all."""

    text: str
    repairs: tuple[str, ...] = ()
    legal: bool = True


def resolve(written: str, tools: Tools, args: Any = None) -> Name:
    """Return the registered name in `written`, or `written` itself.

    `args` are the arguments of the call: an unknown namespace is taken off only where they fit the tool's schema.
    """
    if tools.has(written):
        return Name(written, (), LEGAL.fullmatch(written) is not None or tools.registered(written))
    for reading in (_cleaned, _unrepeated, _without_namespace):
        found = reading(written[:MAX_NAME], tools, args)
        if found is not None:
            return found
    return Name(written, (), LEGAL.fullmatch(written) is not None)


def _cleaned(written: str, tools: Tools, _: Any) -> Name | None:
    """Take off control tokens and punctuation that belong to the notation around a name."""
    cut = _TOKEN.split(written, maxsplit=1)[0].strip(_AROUND)
    cut = cut.removesuffix("()")
    if not tools.registered(cut):
        return None
    return Name(cut, ("strip_control_tokens" if _TOKEN.search(written) else "strip_name",))


def _unrepeated(written: str, tools: Tools, _: Any) -> Name | None:
    """Take an exact repetition of one registered name for that name; some gateways send it with every chunk."""
    units = [name for name in tools.names or () if _repeats(written, name)]
    return Name(units[0], ("collapse_repeated_name",)) if len(units) == 1 else None


def _repeats(written: str, unit: str) -> bool:
    times, rest = divmod(len(written), len(unit)) if unit else (0, 1)
    return not rest and times > 1 and written == unit * times


def _without_namespace(written: str, tools: Tools, args: Any) -> Name | None:
    cut = _TOKEN.split(written, maxsplit=1)[0].strip(_AROUND)
    cut = _INDEX.sub("", cut)
    if tools.registered(cut):
        return Name(cut, ("strip_call_index",))
    space, name = _parted(cut)
    if not space or not tools.registered(name):
        return None
    if space.rstrip(".:/_").lower() in NAMESPACES or _fits(name, tools, args):
        return Name(name, ("strip_namespace",))
    return None


def _parted(written: str) -> tuple[str, str]:
    """Return the namespaces of a name, with what ends each, and the name itself; no namespace where there is none.

    No pattern does it: `__` ends a namespace and may be part of one, and 500 of them can be shared in countless ways.
    """
    ends = list(_NAMESPACE_END.finditer(written))
    if len(ends) > MOST_NAMESPACES:
        return "", written
    if ends:
        at = ends[-1].end()
        spaces = _NAMESPACE_END.split(written[: ends[-1].start()])
    else:
        found = written.rfind("__", 1, min(LONGEST_NAMESPACE + 2, len(written) - 1))
        at = found + 2
        spaces = [written[:found]] if found > 0 else [""]
    sound = all(len(space) <= LONGEST_NAMESPACE and _PLAIN.fullmatch(space) for space in spaces)
    return (written[:at], written[at:]) if sound and _PLAIN.fullmatch(written[at:]) else ("", written)


def _fits(name: str, tools: Tools, args: Any) -> bool:
    """Return whether arguments have every required and only declared names, and at least one of them."""
    properties, required = tools.properties(name), tools.required(name)
    if properties is None or required is None or not isinstance(args, Mapping) or not args:
        return False
    return set(required) <= set(args) <= set(properties)


LEGAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*")
"""What can be the name of a tool, registered or not."""

_TOKEN = re.compile("<[|\uff5c/]|\\[(?:ARGS|CALL_ID|TOOL_CALLS)\\]|<[a-z_]{1,40}>")
_AROUND = " \t\r\n\"'`*"
_INDEX = re.compile(r":[0-9]{1,6}\Z")
_NAMESPACE_END = re.compile(r"::?|[./]")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
