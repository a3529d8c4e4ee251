"""How the hosts spell events and answers: one table.

Knows: field names, exit codes and what each host ignores. Must not know: runs, policies.

What stands here was read in the hosts' own documentation and source (see docs/hook-dialects.md, which also says what
was not tried with the real program). Where a host would ignore an answer, a stricter one that it obeys is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

Kind = Literal["prompt", "before", "after", "failed", "denied", "stop", "agent_stop", "session_end", "session", "other"]
"""What an event is to us."""

KINDS: dict[str, Kind] = {
    "UserPromptSubmit": "prompt",
    "PreToolUse": "before",
    "PostToolUse": "after",
    "PostToolUseFailure": "failed",
    "PermissionDenied": "denied",
    "Stop": "stop",
    "StopFailure": "stop",
    "SubagentStop": "agent_stop",
    "SessionStart": "session",
    "SessionEnd": "session_end",
    "PreCompact": "other",
    "PostCompact": "other",
    "Notification": "other",
    "PermissionRequest": "other",
    "SubagentStart": "other",
}
"""The events of the Claude Code family. One that is not here changes nothing."""

NOBODY_ASKED = frozenset({"auto", "bypassPermissions", "dontAsk"})
"""Permission modes in which `ask` was seen to let through, or is never shown."""

_DURATIONS = frozenset({"durationMs", "totalDurationMs", "durationSeconds", "duration_seconds"})


class Event(msgspec.Struct, frozen=True):
    """One event, in our words. `response` is a tool's answer as the host gave it, `unattended` that nobody is asked."""

    kind: Kind
    name: str
    session: str = ""
    agent: str = ""
    agent_type: str = ""
    text: str = ""
    tool: str = ""
    args: dict[str, Any] = {}
    call_id: str = ""
    response: Any = None
    unattended: bool = False
    source: str = ""


class Reply(msgspec.Struct, frozen=True):
    """What a host is to be told, in our words.

    `verdict` is about a call; `text` says why. `args` are other arguments, `result` another text of a result. `notes`
    are for the model. `stop` ends the run, for the reason it gives. `message` is for the user.
    """

    verdict: Literal["", "deny", "ask", "rewrite"] = ""
    text: str = ""
    args: dict[str, Any] | None = None
    result: str | None = None
    notes: tuple[str, ...] = ()
    stop: str = ""
    message: str = ""


class Dialect(msgspec.Struct, frozen=True):
    """One host: `host` is its name in `hosts.table`, `events` its names of events where they are its own.

    `contexts` are the kinds of events at which it hands a note to the model. `ids` says whether it names calls.
    `hints` is whether a note reaches the model between calls; where it does not, the next call is refused with the
    note as the reason. `millis` says that it counts the time limit of a hook in milliseconds, `modes` that it has
    permission modes in which nobody is asked, `merges` that other arguments are merged into the call's, so that none
    can be taken away. `settings` is its file of hooks below the project, `installed` the events to install. `write`
    spells a reply.
    """

    name: str
    host: str
    write: Callable[[Event, Reply], dict[str, Any]]
    contexts: frozenset[str]
    installed: tuple[str, ...]
    settings: str
    event_key: str = "hook_event_name"
    prompt_key: str = "prompt"
    events: dict[str, Kind] = msgspec.field(default_factory=lambda: KINDS)
    ids: bool = True
    hints: bool = True
    millis: bool = False
    modes: bool = False
    merges: bool = False

    def kind(self, name: str) -> Kind:
        """Return what an event of this name is."""
        return self.events.get(name, "other")

    def read(self, raw: dict[str, Any]) -> Event:
        """Return an event; fields that are not known, or are of another type than expected, do not count.

        Raises:
            ValueError: it names no event, or is about a call and does not say which.
        """
        name = _text(raw.get(self.event_key))
        if not name:
            raise ValueError(f"the event has no `{self.event_key}`")
        kind = self.kind(name)
        session = _text(raw.get("session_id"))
        if not session and not self.ids and (folder := _text(raw.get("working_dir") or raw.get("cwd"))):
            session = f"folder:{folder}"
        tool, args = _text(raw.get("tool_name")), raw.get("tool_input")
        if kind in ("before", "after", "failed", "denied"):
            if not tool:
                raise ValueError(f"{name} without a tool_name")
            if not session:
                raise ValueError(f"{name} without a session_id")
        failed = kind == "failed"
        return Event(
            kind,
            name,
            session,
            _text(raw.get("agent_id")),
            _text(raw.get("agent_type")),
            _text(raw.get(self.prompt_key)),
            tool,
            args if isinstance(args, dict) else {} if args is None else {"input": args},
            _text(raw.get("tool_use_id")) if self.ids else "",
            raw.get("error") if failed else raw.get("tool_response", raw.get("tool_output")),
            self.modes and _text(raw.get("permission_mode")) in NOBODY_ASKED,
            _text(raw.get("source")),
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


# ---- results


class Result(msgspec.Struct, frozen=True):
    """The answer of a tool as a text, with what it says about failing."""

    text: str
    failed: bool = False
    exit_code: int | None = None


def result_of(event: Event) -> Result:
    """Return a tool's answer as the model is shown it, as far as a host says: text where there is text, else JSON.

    How long the call took is left out: equal results must be equal.
    """
    value = event.response
    if isinstance(value, dict):
        meta = value.get("metadata")
        code = value.get("exit_code", meta.get("exit_code") if isinstance(meta, dict) else None)
        failed = event.kind == "failed" or value.get("is_error") is True or bool(value.get("error"))
        return Result(_flat(value), failed, code if type(code) is int and code >= 0 else None)
    return Result(_flat(value), event.kind == "failed")


def _flat(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and value and all(isinstance(part, dict) and "text" in part for part in value):
        return "\n".join(str(part["text"]) for part in value)
    if isinstance(value, dict):
        for key in ("llmContent", "content", "output"):
            if value.get(key):
                return _flat(value[key])
        if "stdout" in value or "stderr" in value:
            streams = (value.get("stdout"), value.get("stderr"))
            return "\n".join(part for part in streams if isinstance(part, str) and part)
        value = {key: item for key, item in value.items() if key not in _DURATIONS}
    import json

    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


# ---- answers


def _claude(event: Event, reply: Reply) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if event.kind == "before":
        if reply.verdict == "deny":
            own |= {"permissionDecision": "deny", "permissionDecisionReason": _with_notes(reply)}
        elif reply.verdict == "ask":
            own |= {"permissionDecision": "ask", "permissionDecisionReason": reply.text}
        elif reply.verdict == "rewrite":
            # Never `allow` where somebody is asked: it would skip the question whether the tool may run at all.
            decision = "allow" if event.unattended else "ask"
            own |= {"permissionDecision": decision, "permissionDecisionReason": reply.text, "updatedInput": reply.args}
    if reply.result is not None:
        key = "updatedMCPToolOutput" if event.tool.startswith("mcp__") else "updatedToolOutput"
        own[key] = reply.result
    return _common({}, reply, own, event, _CLAUDE)


def _codex(event: Event, reply: Reply) -> dict[str, Any]:
    # Codex takes an answer with a field that it does not know there for no answer at all, and goes on.
    own: dict[str, Any] = {}
    if event.kind == "before":
        if reply.verdict == "deny" or reply.stop:
            own |= {"permissionDecision": "deny", "permissionDecisionReason": _with_notes(reply) or reply.stop}
        elif reply.verdict == "rewrite":
            own |= {"permissionDecision": "allow", "updatedInput": reply.args}
        out = {"hookSpecificOutput": {"hookEventName": event.name, **own}} if own else {}
        return out | ({"systemMessage": reply.message} if reply.message else {})
    return _common({}, reply, own, event, _CODEX)


def _gemini(event: Event, reply: Reply) -> dict[str, Any]:
    out: dict[str, Any] = {}
    own: dict[str, Any] = {}
    if event.kind == "before":
        if reply.verdict == "deny":
            out |= {"decision": "deny", "reason": _with_notes(reply)}
        elif reply.verdict == "ask":
            out |= {"decision": "ask", "reason": reply.text, "systemMessage": reply.text}
        elif reply.verdict == "rewrite":
            own["tool_input"] = reply.args
    if reply.result is not None:
        out |= {"decision": "deny", "reason": reply.result or "(empty)"}
    return _common(out, reply, own, event, _GEMINI)


def _openhands(event: Event, reply: Reply) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if event.kind == "before" and (reply.verdict or reply.stop):
        out |= {"decision": "deny", "reason": _with_notes(reply) or reply.stop}
    elif event.kind == "prompt":
        if reply.stop:
            out |= {"decision": "deny", "reason": reply.stop}
        if reply.notes:
            out["additionalContext"] = "\n\n".join(reply.notes)
    return out


def _with_notes(reply: Reply) -> str:
    return "\n\n".join((reply.text, *reply.notes)) if reply.verdict == "deny" else reply.text


def _common(
    out: dict[str, Any], reply: Reply, own: dict[str, Any], event: Event, contexts: frozenset[str]
) -> dict[str, Any]:
    if reply.notes and event.kind in contexts:
        own["additionalContext"] = "\n\n".join(reply.notes)
    if reply.stop:
        out |= {"continue": False, "stopReason": reply.stop}
    if reply.message:
        out["systemMessage"] = reply.message
    if own:
        out["hookSpecificOutput"] = {"hookEventName": event.name, **own}
    return out


_CLAUDE = frozenset({"prompt", "after", "failed", "session"})
_CODEX = frozenset({"prompt", "after", "session"})
_GEMINI = frozenset({"prompt", "after", "session"})
_OPENHANDS = frozenset({"prompt"})

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "claude-code",
            "claude_code",
            _claude,
            _CLAUDE,
            (
                "SessionStart",
                "UserPromptSubmit",
                "PreToolUse",
                "PostToolUse",
                "PostToolUseFailure",
                "PermissionDenied",
                "Stop",
                "SubagentStop",
                "SessionEnd",
            ),
            ".claude/settings.json",
            modes=True,
        ),
        Dialect(
            "codex",
            "codex",
            _codex,
            _CODEX,
            ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"),
            ".codex/hooks.json",
        ),
        Dialect(
            "gemini-cli",
            "gemini_cli",
            _gemini,
            _GEMINI,
            ("SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", "SessionEnd"),
            ".gemini/settings.json",
            events={
                "BeforeAgent": "prompt",
                "BeforeTool": "before",
                "AfterTool": "after",
                "AfterAgent": "stop",
                "SessionStart": "session",
                "SessionEnd": "session_end",
                "PreCompress": "other",
                "Notification": "other",
            },
            ids=False,
            millis=True,
            merges=True,
        ),
        Dialect(
            "openhands",
            "openhands",
            _openhands,
            _OPENHANDS,
            ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", "SessionEnd"),
            ".openhands/hooks.json",
            event_key="event_type",
            prompt_key="message",
            ids=False,
            hints=False,
        ),
    )
}
"""Every dialect by the name it has on the command line."""


def dialect_named(name: str) -> Dialect:
    """Return a dialect by its name; `_` counts as `-`. Raises ValueError: there is none of this name."""
    found = DIALECTS.get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise ValueError(f"there is no host {name!r} with hooks; there are {', '.join(DIALECTS)}")
    return found
