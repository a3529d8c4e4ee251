"""Say which tools may be called at all, and before which calls a human is asked.

Knows: names of tools. Must not know: arguments, what a call does, who is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from policyengine import Action, Batch, Extension, OptionProblem, Proof, RunView, ToolCall, call, hookimpl

from .patterns import example

DENIED = "tool_denied"
APPROVAL = "tool_approval"

_SOMETHING_ELSE = ("something_else", "no_such_name", "zzz")
"""Names for the proof of `allow`: the first that no list matches."""


def _patterns(**meta: Any) -> dict[str, Any]:
    return {
        "type": "list",
        "minlength": 1,
        "maxlength": 200,
        "schema": {"type": "string", "minlength": 1, "maxlength": 200},
        "meta": {**meta, "of": "tools"},
    }


class ToolAccess(Extension):
    """Refuse calls of the tools in `deny`, and of all that `allow` does not list; ask a human before those in `ask`.

    `deny` comes before `ask`, and `ask` before `allow`: what is asked about need not be allowed besides. Entries are
    names of tools or patterns (`mcp__*`); upper and lower case differ.
    """

    name = "tool_access"
    options: Any = {
        "deny": _patterns(stricter="superset", absent="loosest"),
        # Beside `allow`, a tool that is asked about would be refused otherwise.
        "ask": _patterns(stricter="superset", absent="loosest", surely=False),
        "allow": _patterns(stricter="subset", absent="loosest"),
    }
    messages = {
        f"{DENIED}.deny": {"tool": "shell", "listed": True},
        f"{APPROVAL}.ask": {"tool": "delete_user"},
    }

    def setup(self) -> None:
        """Look up the lists once."""
        self.deny: tuple[str, ...] = tuple(self.options.get("deny") or ())
        self.ask: tuple[str, ...] = tuple(self.options.get("ask") or ())
        allow = self.options.get("allow")
        self.allow: tuple[str, ...] | None = None if allow is None else tuple(allow)

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report that nothing is said, and entries that one before them covers."""
        if not any(options.get(name) for name in ("deny", "ask", "allow")):
            yield OptionProblem((), "set `deny`, `ask` or `allow`; write `mode: disabled` to switch the rule off")
        before: list[tuple[str, str]] = []
        for name in ("deny", "ask", "allow"):
            for pattern in options.get(name) or ():
                other = next((one for one in before if _covers(one[1], pattern)), None)
                if other is not None:
                    where = "stands there already" if other[0] == name else f"`{other[0]}` comes first"
                    message = f"{pattern!r} is never used: {other[1]!r} matches the same tools, and {where}"
                    yield OptionProblem((name,), message, fatal=False)
                before.append((name, pattern))

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        denies = bool(self.deny) or self.allow is not None
        return {"before_tool_call": (("deny",) if denies else ()) + (("ask",) if self.ask else ())}

    def proofs(self) -> Iterable[Proof]:
        """Return a call of a tool of each entry, and of one that no list names."""
        for action, code, patterns in (("deny", DENIED, self.deny), ("ask", APPROVAL, self.ask)):
            for pattern in patterns:
                tool = example(pattern)
                if self._answer(tool) == action:
                    yield Proof(f"{action}[{pattern}]", action, code, 1, (call(tool),))
        if self.allow is not None:
            other = next((name for name in _SOMETHING_ELSE if self._answer(name) == "deny"), None)
            if other is not None:
                yield Proof("allow", "deny", DENIED, 1, (call(other),))

    @hookimpl
    def before_tool_call(self, run: RunView, call: ToolCall, batch: Batch) -> Action | None:
        """Refuse the call, ask about it, or have no opinion."""
        answer = self._answer(call.name)
        if answer == "deny":
            return run.deny(DENIED, tool=call.name, listed=_matches(call.name, self.deny))
        return run.ask(APPROVAL, tool=call.name) if answer == "ask" else None

    def _answer(self, tool: str) -> str:
        if _matches(tool, self.deny):
            return "deny"
        if _matches(tool, self.ask):
            return "ask"
        return "" if self.allow is None or _matches(tool, self.allow) else "deny"


def _matches(tool: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


def _covers(pattern: str, other: str) -> bool:
    """Return whether a pattern surely matches all that another one matches."""
    return pattern == other or pattern == "*" or (other == example(other) and fnmatchcase(other, pattern))
