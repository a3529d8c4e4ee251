"""Reader for AgentDojo run files.

Knows: one run per file, content in blocks, call ids that are mostly missing, the harness's error field.
Must not know: other harnesses.

The user of AgentDojo speaks once. What follows under the role `user` is the harness: defences that send the task
again after every result, or that ask the model to choose its tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from policyengine.recordings.conversation import Failure, RawCall, events, raw_call
from policyengine.recordings.model import Document, Recording, Unreadable, ending, mapping, runs_of, string

NAME = "agentdojo"

KEYS = frozenset({"suite_name", "pipeline_name", "user_task_id", "messages", "utility"})


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like an AgentDojo run."""
    return isinstance(value, dict) and value.keys() >= KEYS


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield the run of a file."""
    return runs_of(document, _recording)


def _recording(value: Any, source: str, line: int) -> Recording:
    run = mapping(value, "a run")
    suite, task = string(run.get("suite_name"), "suite_name"), string(run.get("user_task_id"), "user_task_id")
    attack = string(run.get("attack_type"), "attack_type") or "none"
    injection = string(run.get("injection_task_id"), "injection_task_id") or "none"
    below = (suite, task, attack, f"{injection}.json")
    pipeline = _pipeline(source, below) or string(run.get("pipeline_name"), "pipeline_name")
    happened = events(run.get("messages"), read_call=_call, failure=_failure, injected=_injected)
    utility = run.get("utility")
    return Recording(
        id="/".join((pipeline, *below)),
        source=source,
        format=NAME,
        events=happened,
        ended=ending(happened),
        label=utility if isinstance(utility, bool) else None,
        group=pipeline,
        task=f"{suite}/{task}",
        error=string(run.get("error"), "error"),
        line=line,
    )


def _pipeline(source: str, below: tuple[str, ...]) -> str:
    # Runs of local models all call their pipeline "local"; the folder tells them apart.
    parts = PurePath(source).parts
    named = parts[-len(below) :] == below and len(parts) > len(below)
    return parts[-len(below) - 1] if named else ""


def _call(value: Any) -> RawCall:
    entry = mapping(value, "a tool call")
    return raw_call(entry.get("id"), entry.get("function"), entry.get("args"))


def _failure(message: Mapping[str, Any], text: str) -> Failure | None:
    error = string(message.get("error"), "error of a tool message")
    return Failure(text or error, error) if error else None


def _injected(text: str, task: str) -> bool:
    return True
