"""Reader for tau-bench result files.

Knows: a list of `{task_id, trial, reward, info, traj}` where `traj` are chat messages; the harness's tools report
failure as a text that starts with "Error", the user is simulated and really speaks.
Must not know: other harnesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from policyengine.recordings.conversation import Failure, events
from policyengine.recordings.model import Document, Recording, ShapeError, Unreadable, ending, mapping, string

NAME = "tau_bench"

FAILED = "Error"
"""How the text of a failed call starts; the harness catches every exception of a tool and writes it so."""


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like tau-bench results."""
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and {"task_id", "traj", "reward"} <= first.keys()


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield every run of a result file."""
    for line, value in document.values:
        for run in value if isinstance(value, list) else [value]:
            try:
                yield _recording(run, document.source, line)
            except ShapeError as error:
                yield Unreadable(document.source, line, str(error))


def _recording(value: Any, source: str, line: int) -> Recording:
    run = mapping(value, "a run")
    task = string(run.get("task_id"), "task_id")
    info = run.get("info")
    happened = events(run.get("traj"), failure=_failure)
    return Recording(
        id=f"{task}/{string(run.get('trial', 0), 'trial')}",
        source=source,
        format=NAME,
        events=happened,
        ended=ending(happened),
        label=_label(run.get("reward")),
        group=PurePath(source).stem,
        task=task,
        error=info["error"] if isinstance(info, dict) and isinstance(info.get("error"), str) else "",
        line=line,
    )


def _label(reward: Any) -> bool | None:
    return reward == 1 if isinstance(reward, int | float) else None


def _failure(message: Mapping[str, Any], text: str) -> Failure | None:
    return Failure(text) if text.startswith(FAILED) else None
