"""A coding agent that calls hooks, made up after what is known of the real ones: it feeds events and obeys answers."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import msgspec

from policyengine.hook.dialects import Dialect
from policyengine.hook.engine import Deciding
from policyengine.hook.verb import answer
from policyengine.hosts.core import HostRun
from policyengine.hosts.table import HOSTS
from policyengine.stores import RUNS
from policyengine.stores.sqlite import SqliteStore
from tests.hosts.scenarios import Scenario, Seen

NAMES = {
    "gemini-cli": {
        "UserPromptSubmit": "BeforeAgent",
        "PreToolUse": "BeforeTool",
        "PostToolUse": "AfterTool",
        "PostToolUseFailure": "AfterTool",
        "Stop": "AfterAgent",
    },
    "codex": {"PostToolUseFailure": "PostToolUse"},
    "openhands": {"PostToolUseFailure": "PostToolUse"},
}
SESSION = "session-1"


class Heard(msgspec.Struct):
    """What an answer means to a host."""

    refused: str | None = None
    asked: bool = False
    args: dict[str, Any] | None = None
    note: str = ""
    ended: bool = False
    result: str | None = None


def heard(dialect: Dialect, event: str, out: dict[str, Any]) -> Heard:
    """Read an answer as the host does: what it does not know there, it does not heed."""
    return {"claude-code": _claude, "codex": _codex, "gemini-cli": _gemini, "openhands": _openhands}[dialect.name](
        event, out
    )


def _claude(event: str, out: dict[str, Any]) -> Heard:
    own = out.get("hookSpecificOutput", {})
    assert own.get("hookEventName", event) == event
    assert out.keys() <= {"continue", "stopReason", "systemMessage", "hookSpecificOutput"}
    told = Heard(note=own.get("additionalContext", ""), ended=out.get("continue") is False)
    if event == "PreToolUse":
        decision = own.get("permissionDecision")
        assert decision in (None, "allow", "deny", "ask")
        told.refused = own["permissionDecisionReason"] if decision == "deny" else None
        told.asked, told.args = decision == "ask", own.get("updatedInput")
    told.result = own.get("updatedToolOutput", own.get("updatedMCPToolOutput"))
    return told


def _codex(event: str, out: dict[str, Any]) -> Heard:
    own = out.get("hookSpecificOutput", {})
    if event == "PreToolUse":
        # Anything else makes the answer invalid, and the call runs.
        assert out.keys() <= {"systemMessage", "hookSpecificOutput"}
        assert own.keys() <= {
            "hookEventName",
            "permissionDecision",
            "permissionDecisionReason",
            "updatedInput",
            "additionalContext",
        }
        decision = own.get("permissionDecision")
        assert decision in (None, "allow", "deny")
        assert (decision == "allow") == ("updatedInput" in own)
        assert decision != "deny" or own["permissionDecisionReason"].strip()
        refused = own["permissionDecisionReason"] if decision == "deny" else None
        return Heard(refused, args=own.get("updatedInput"), note=own.get("additionalContext", ""))
    assert out.keys() <= {"continue", "stopReason", "systemMessage", "hookSpecificOutput"}
    assert own.keys() <= {"hookEventName", "additionalContext"}
    return Heard(note=own.get("additionalContext", ""), ended=out.get("continue") is False)


def _gemini(event: str, out: dict[str, Any]) -> Heard:
    own = out.get("hookSpecificOutput", {})
    told = Heard(note=own.get("additionalContext", "") if event != "BeforeTool" else "")
    told.ended = out.get("continue") is False
    if event == "BeforeTool":
        told.refused = out["reason"] if out.get("decision") == "deny" else None
        told.asked = out.get("decision") == "ask"
        told.args = own.get("tool_input")
    elif event == "AfterTool" and out.get("decision") == "deny":
        told.result = out["reason"]
    return told


def _openhands(event: str, out: dict[str, Any]) -> Heard:
    assert out.keys() <= {"decision", "reason", "additionalContext"}
    told = Heard()
    if event == "PreToolUse" and out.get("decision") == "deny":
        told.refused = out["reason"]
    elif event == "UserPromptSubmit":
        told.note, told.ended = out.get("additionalContext", ""), out.get("decision") == "deny"
    return told


class Harness:
    """Sends events of a dialect to the function of the verb."""

    def __init__(self, dialect: Dialect, snapshot: Any, folder: Any, *, clock: Any = None) -> None:
        self.dialect = dialect
        self.engine = Deciding(snapshot, clock=clock or (lambda: 0.0))
        self.path = folder / "hooks.sqlite"

    def store(self) -> closing[SqliteStore]:
        """Return the store, which is closed at the end of the block: every event is another process."""
        return closing(SqliteStore(self.path, durable=False, clock=self.engine.clock))

    def event(self, name: str, **fields: Any) -> dict[str, Any]:
        """Return an event as the host spells it."""
        spelled = NAMES.get(self.dialect.name, {}).get(name, name)
        own = {self.dialect.event_key: spelled, "session_id": SESSION, "new_in_this_version": {"any": 1}, **fields}
        if not self.dialect.ids:
            own.pop("tool_use_id", None)
        if "prompt" in own and self.dialect.prompt_key != "prompt":
            own[self.dialect.prompt_key] = own.pop("prompt")
        return own

    def raw(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to an event."""
        read = self.dialect.read(event)
        with self.store() as store:
            return self.dialect.write(read, answer(self.dialect, self.engine, read, store))

    def tell(self, name: str, **fields: Any) -> Heard:
        """Return what the host makes of the answer to an event."""
        event = self.event(name, **fields)
        return heard(self.dialect, event[self.dialect.event_key], self.raw(event))

    def before(self, number: int | str, tool: str = "look", args: dict[str, Any] | None = None, **more: Any) -> Heard:
        """Report a call."""
        return self.tell("PreToolUse", tool_name=tool, tool_input=args or {}, tool_use_id=f"t-{number}", **more)

    def after(
        self,
        number: int | str,
        text: str = "same",
        tool: str = "look",
        args: dict[str, Any] | None = None,
        *,
        failed: bool = False,
        **more: Any,
    ) -> Heard:
        """Report a result."""
        name = "PostToolUseFailure" if failed else "PostToolUse"
        return self.tell(
            name,
            tool_name=tool,
            tool_input=args or {},
            tool_use_id=f"t-{number}",
            **self._response(text, failed),
            **more,
        )

    def _response(self, text: str, failed: bool) -> dict[str, Any]:
        match self.dialect.name:
            case "claude-code":
                return {"error": text} if failed else {"tool_response": text}
            case "gemini-cli":
                answered = {"llmContent": text, "returnDisplay": "shown"}
                return {"tool_response": answered | ({"error": {"message": text}} if failed else {})}
            case "openhands":
                return {"tool_response": {"content": [{"type": "text", "text": text}], "is_error": failed}}
            case _:
                return {"tool_response": {"output": text, "metadata": {"exit_code": int(failed)}}}

    def saved(self, agent: str = "") -> bytes | None:
        """Return the run as it is kept."""
        with self.store() as store:
            return store.read(lambda values: values.get(RUNS, f"{self.dialect.name}//{SESSION}/{agent}"))

    def run(self, agent: str = "") -> HostRun:
        """Return the run as it is kept."""
        saved = self.saved(agent)
        assert saved is not None
        return HostRun.resume(self.engine, HOSTS[self.dialect.host], saved)


def drive(scenario: Scenario, dialect: Dialect, folder: Any) -> Seen:
    """Play a scenario as the host would."""
    harness = Harness(dialect, scenario.engine().snapshot, folder)
    tools, executed, refused, told = scenario.tools(), [], [], []
    harness.tell("SessionStart", source="startup")
    note = harness.tell("UserPromptSubmit", prompt="task").note
    told += [note] if note else []
    requests, ended = 0, False
    while not ended:
        turn = scenario.turn(requests)
        requests += 1
        running = []
        for index, made in enumerate(turn.calls):
            if made.tool not in tools:  # the host answers that by itself, without a hook
                refused.append(made.tool)
                told.append("no such tool")
                continue
            name, args = f"{requests}-{index}", dict(made.args)
            said = harness.before(name, made.tool, args)
            ended = ended or said.ended
            if said.refused is not None:
                refused.append(made.tool)
                told.append(said.refused)
            elif said.asked and said.args is None and scenario.approve is not True:
                refused.append(made.tool)
                harness.tell("PermissionDenied", tool_name=made.tool, tool_input=args, tool_use_id=f"t-{name}")
            else:
                running.append((name, made.tool, args, said.args or args))
        for name, tool, args, given in running:
            executed.append((tool, given))
            try:
                text, failed = str(tools[tool](**given)), False
            except RuntimeError as error:
                text, failed = str(error), True
            said = harness.after(name, text, tool, args if dialect.name == "gemini-cli" else given, failed=failed)
            told += [said.note] if said.note else []
            ended = ended or said.ended
        if not turn.calls:
            harness.tell("Stop", stop_hook_active=False)
            break
        # What its hooks can only refuse ends here when the model gives up; these models do so at once.
        ended = ended or (dialect.name in ("openhands", "codex") and harness.run().ended)
    harness.tell("SessionEnd", reason="other")
    outcome = harness.run().outcome
    assert outcome is not None
    code = outcome.stop.code if outcome.stop and outcome.status != "completed" else ""
    return Seen(tuple(executed), tuple(refused), tuple(told), requests, outcome.status, code)
