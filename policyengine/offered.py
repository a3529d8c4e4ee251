"""Names of tools in a policy that meet none of the tools on offer: most often a prefix is missing.

Knows: where a policy names tools. Must not know: who offers tools, how.

A rule about a tool that is not there says nothing, and nobody notices: tools of MCP servers have other names in every
host (`mcp__server__tool`, `server_tool`). So a run warns once, when it is known what is on offer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from threading import Lock
from typing import Any

from policyengine.policy.globs import is_pattern
from policyengine.policy.model import Policy
from policyengine.snapshot import PolicySnapshot

_told: set[tuple[str, frozenset[str]]] = set()
_lock = Lock()
MOST_TOLD = 1_000
"""For how many policies and sets of tools it is remembered that they were told of."""


def warn(snapshot: PolicySnapshot, offered: Iterable[str]) -> tuple[str, ...]:
    """Say in the log which names of a policy meet no tool on offer, once for each set of tools; return them."""
    names = frozenset(offered)
    key = (snapshot.digest, names)
    with _lock:
        if key in _told:
            return ()
        if len(_told) >= MOST_TOLD:
            _told.clear()
        _told.add(key)
    found = tuple(unmet(snapshot, names))
    if found:
        from policyengine.log import log

        for text in found:
            log().warning("policy {}: {}", snapshot.policy.name, text)
    return found


def unmet(snapshot: PolicySnapshot, offered: frozenset[str]) -> Iterator[str]:
    """Yield a sentence for each place where a tool is named that is not on offer.

    Patterns count only under `tools:`: one of a rule may be meant for tools of other agents.
    """
    for where, name in _named(snapshot):
        if not any(fnmatchcase(tool, name) for tool in offered):
            near = [tool for tool in sorted(offered) if tool.endswith(name) and not is_pattern(name)]
            help = f"; on offer is {near[0]!r}" if near else ""
            yield f"{where} names {name!r}, which is none of the {len(offered)} tools on offer{help}"


def _named(snapshot: PolicySnapshot) -> Iterator[tuple[str, str]]:
    policy: Policy = snapshot.policy
    yield from (("`tools:`", pattern) for pattern, _ in policy.tools)
    for rule in policy.rules:
        if rule.id not in snapshot.extensions:
            continue  # it is disabled
        place = f"rule {rule.id!r} ({rule.position.file}:{rule.position.line})"
        names = [name.removeprefix("!") for name in rule.when.tool]
        schema = type(snapshot.extensions[rule.id]).options
        for option, value in rule.options.items():
            meta = (schema.get(option) or {}).get("meta") or {}
            if (option == "tools" or meta.get("of") == "tools") and not rule.variables:
                names += _texts(value)
        yield from ((place, name) for name in dict.fromkeys(names) if not is_pattern(name))


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, Mapping | list | tuple) else []
