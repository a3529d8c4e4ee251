"""Refuse every tool whose name says that it deletes something.

A drop-in extension: put the file into a folder and name the folder when the engine starts. No package, no install.
Its name contains a dot, like that of any extension that does not ship with the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from policyengine import Action, Extension, Proof, RunView, ToolCall, call, hookimpl


class NoDelete(Extension):
    """Deny calls of tools whose names match one of `tools`."""

    name = "local.no_delete"
    options = {
        "tools": {
            "type": "list",
            "schema": {"type": "string"},
            "minlength": 1,
            "default": ["delete_*", "drop_*", "remove_*"],
            "meta": {"stricter": "superset"},
        },
    }
    messages = {"no_delete.deny": {"tool": "delete_user"}}
    templates = {
        "en": {"no_delete.deny": "{{ tool }} deletes data, which is not allowed here. Find a way that keeps it."},
        "zh": {"no_delete.deny": "{{ tool }} 会删除数据，此处不允许。请改用保留数据的方式。"},
    }

    def proofs(self) -> Iterable[Proof]:
        """Call one tool that matches."""
        yield Proof("tools", "deny", "no_delete", 1, (call(self.options.tools[0].replace("*", "it")),))

    @hookimpl
    def before_tool_call(self, run: RunView, call: ToolCall) -> Action | None:
        """Deny by name alone."""
        if any(fnmatchcase(call.name, pattern) for pattern in self.options.tools):
            return run.deny("no_delete", tool=call.name)
        return None
