"""`python -m benchmarks.hook_replay --recordings DIR`: hooks decide as `replay` does.

Knows: how a recorded session becomes events of Claude Code's hooks, and how decisions are compared.
Must not know: how either decides.

A hook sees prompts, calls and results, and no responses, so a recording is replayed as the hooks see it: every call a
response of its own. Of the decisions under hooks, those up to the first refusal must be the ones of the recording, and
all of them (up to the first stop) the ones of what happened under the hooks. The shortest sessions are also played
through real processes, whose output must be that of the function.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.grids import Check, Grid, show, what_is_asked
from policyengine.actions import Hint
from policyengine.engine import Engine
from policyengine.hook.dialects import DIALECTS
from policyengine.hook.engine import Deciding
from policyengine.hook.verb import answer
from policyengine.messages import ModelResponse, ToolCall, ToolError, ToolResult
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, UserSaid
from policyengine.recordings.readers import read_recordings
from policyengine.replay import ReplayReport, replay
from policyengine.run import Report
from policyengine.stores.sqlite import SqliteStore

DIALECT = DIALECTS["claude-code"]
POLICIES = ("default", "cautious", "unattended")
PROCESSES = 40
"""How many events are played through processes."""

REFUSED = "refused by the host"
Decided = tuple[int, str, str, str, str, float | None, float | None, str]
"""Round, hook point, action, code, rule, observed, limit, text."""


class Played(msgspec.Struct, frozen=True):
    """What came of a recording under hooks: decisions up to the first stop, what happened, events and answers."""

    decided: tuple[Decided, ...]
    happened: Recording
    refused_at: int | None
    events: tuple[dict[str, Any], ...]
    answers: tuple[dict[str, Any], ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 0, or 1 if `--check` and what is asked does not hold."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hook_replay", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--recordings", required=True, metavar="DIR", help="recorded sessions of Claude Code")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every condition at the end holds")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    arguments = parser.parse_args(argv)
    recordings = recorded(arguments.recordings)
    rows, same_recorded, same_happened = [], 0, 0
    for policy in POLICIES:
        engine = Engine(policy)
        counts = [0, 0, 0, 0, 0]
        for recording in recordings:
            played = play(recording, engine)
            first, second = is_as_recorded(recording, played, engine), is_as_happened(played, engine)
            same_recorded += first
            same_happened += second
            figures = (len(played.events), len(played.decided), played.refused_at is not None, first, second)
            counts = [count + figure for count, figure in zip(counts, figures, strict=True)]
        rows.append((policy, str(len(recordings)), *map(str, counts)))
    total = len(recordings) * len(POLICIES)
    processes, alike = play_processes(recordings)
    columns = ("policy", "#sessions", "#events", "#decisions", "#with a refusal", "#as recorded", "#as happened")
    show(Grid("Hooks and replay", columns, tuple(rows)), markdown=arguments.markdown)
    checks = [
        Check(
            "sessions with the decisions of the recording, up to the first refusal",
            f"{same_recorded} of {total}",
            0 < total == same_recorded,
        ),
        Check(
            "sessions with the decisions of what happened, up to the first stop",
            f"{same_happened} of {total}",
            0 < total == same_happened,
        ),
        Check("events that processes answer as the function does", f"{alike} of {processes}", 0 < processes == alike),
    ]
    show(what_is_asked(checks), markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


def recorded(folder: str) -> list[Recording]:
    """Return the recorded sessions below a directory, shortest first."""
    found = [item for item in read_recordings([folder]) if isinstance(item, Recording) and item.format == "claude_code"]
    return sorted(found, key=lambda item: (len(item.events), item.id))


def seen_by_hooks(recording: Recording) -> Recording:
    """Return a recording as hooks see it: every call is a response of its own, followed by its result."""
    results = {item.call_id: item for item in recording.events if isinstance(item, ToolAnswered)}
    events: list[Any] = []
    for item in recording.events:
        if isinstance(item, UserSaid) and not item.injected:
            events.append(item)
        elif isinstance(item, ModelSaid):
            for call in item.response.tool_calls:
                answered = results.get(call.id)
                result = answered.result if answered is not None else ToolResult(call.id, "", "not_run")
                if not result.ran:
                    result = ToolResult(call.id, REFUSED, "denied", ToolError("denied", REFUSED, False))
                elif result.status == "error":
                    result = ToolResult(call.id, result.text, "error", ToolError("error", result.text, False))
                else:
                    result = ToolResult(call.id, result.text)
                events += [_said(call, item.at), ToolAnswered(call.id, result, item.at)]
    return msgspec.structs.replace(recording, events=tuple(events), ended="tool_result")


def _said(call: ToolCall, at: float | None) -> ModelSaid:
    args = call.args if isinstance(call.args, dict) else {}
    text = msgspec.json.encode(args).decode()
    return ModelSaid(ModelResponse("", (ToolCall(call.id, call.name, text, args),)), at)


class Told:
    """Collects decisions as `replay` reports interventions."""

    def __init__(self) -> None:
        self.run = ""
        self.decided: list[Decided] = []
        self.stopped = False

    def __call__(self, report: Report) -> None:
        """Take a decision; those after the first stop do not count."""
        decision, number = report.decision, report.run.state.iteration
        if self.stopped:
            return
        texts = iter(decision.notes)
        for vote in decision.votes:
            for action in vote.effective:
                note = next(texts, None) if isinstance(action, Hint) else None
                if note is not None:
                    facts = (action.name, action.code, vote.rule, action.observed, action.limit)
                    self.decided.append((number, vote.hook or decision.hook, *facts, note.text))
        control = decision.control
        if control is not None:
            facts = (decision.ending, control.code, decision.decided_by, control.observed, control.limit)
            self.decided.append((number, decision.hook, *facts, decision.message))
            self.stopped = decision.ending not in ("deny", "ask", "rewrite", "retry")


def play(recording: Recording, engine: Engine) -> Played:
    """Play a recording through the function of the verb, as Claude Code would: what is refused does not run."""
    told = Told()
    now = [0.0]
    deciding = Deciding(engine.snapshot, clock=lambda: now[0], sinks=(told,))
    results = {item.call_id: item.result for item in seen_by_hooks(recording).events if isinstance(item, ToolAnswered)}
    events, answers, happened, refused_at = [], [], [], None
    with TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "hooks.sqlite", durable=False, clock=lambda: now[0])

        def tell(event: dict[str, Any]) -> dict[str, Any]:
            read = DIALECT.read(event)
            reply = DIALECT.write(read, answer(DIALECT, deciding, read, store))
            events.append(event)
            answers.append(reply)
            return reply

        for item in seen_by_hooks(recording).events:
            now[0] = item.at if item.at is not None else now[0]
            if isinstance(item, UserSaid):
                tell({"session_id": recording.id, "hook_event_name": "UserPromptSubmit", "prompt": item.text})
                happened.append(item)
            elif isinstance(item, ModelSaid):
                (call,) = item.response.tool_calls
                before = len(told.decided)
                reply = tell(_about(recording, "PreToolUse", call))
                happened.append(item)
                own = reply.get("hookSpecificOutput", {})
                if own.get("permissionDecision") == "deny":
                    refused_at = before if refused_at is None else refused_at
                    text = own["permissionDecisionReason"]
                    made = ToolResult(call.id, text, "denied", ToolError("denied", text, False))
                    happened.append(ToolAnswered(call.id, made, item.at))
                    continue
                result = results[call.id]
                name, more = _answered(result)
                tell(_about(recording, name, call) | more)
                happened.append(ToolAnswered(call.id, result, item.at))
        store.close()
    made = msgspec.structs.replace(recording, events=tuple(happened), ended="tool_result")
    return Played(tuple(told.decided), made, refused_at, tuple(events), tuple(answers))


def _about(recording: Recording, name: str, call: ToolCall) -> dict[str, Any]:
    what = {"tool_name": call.name, "tool_input": call.args, "tool_use_id": call.id}
    return {"session_id": recording.id, "hook_event_name": name, **what}


def _answered(result: ToolResult) -> tuple[str, dict[str, Any]]:
    if result.status == "ok":
        return "PostToolUse", {"tool_response": result.text}
    return ("PostToolUseFailure", {"error": result.text}) if result.ran else ("PermissionDenied", {})


def decisions(report: ReplayReport) -> tuple[Decided, ...]:
    """Return the interventions of a replay."""
    return tuple(
        (item.iteration, item.hook, item.action, item.code, item.rule, item.observed, item.limit, item.message or "")
        for item in report.interventions
    )


def is_as_recorded(recording: Recording, played: Played, engine: Engine) -> bool:
    """Whether the decisions are those of the recording, the first refusal included; later ones depend on it."""
    wanted = decisions(replay(seen_by_hooks(recording), engine))
    end = len(played.decided) if played.refused_at is None else played.refused_at + 1
    found = played.decided[:end]
    return wanted[: len(found)] == found and (played.refused_at is not None or len(wanted) == len(found))


def is_as_happened(played: Played, engine: Engine) -> bool:
    """Whether the decisions are those of the replay of what happened under the hooks."""
    return decisions(replay(played.happened, engine)) == played.decided


def play_processes(recordings: Sequence[Recording]) -> tuple[int, int]:
    """Play the first events of the sessions through processes; return how many, and how many answered alike."""
    engine = Engine("default")
    total = alike = 0
    with TemporaryDirectory() as folder:
        for event, wanted in _first_events(recordings, engine):
            command = [sys.executable, "-P", "-m", "policyengine.hook", DIALECT.name, "--state", folder]
            environment = {key: value for key, value in os.environ.items() if key != "POLICYENGINE_POLICY"}
            done = subprocess.run(
                command, input=msgspec.json.encode(event), capture_output=True, check=False, env=environment
            )
            got = msgspec.json.decode(done.stdout) if done.stdout else {}
            total += 1
            alike += done.returncode == 0 and got == wanted
    return total, alike


def _first_events(recordings: Sequence[Recording], engine: Engine) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    left = PROCESSES
    for recording in recordings:
        played = play(recording, engine)
        for event, wanted in list(zip(played.events, played.answers, strict=True))[:left]:
            left -= 1
            yield event, wanted


if __name__ == "__main__":
    sys.exit(main())
