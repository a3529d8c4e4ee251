"""Recordings of which only the outlines are left: the `compact.jsonl` of a set, one run per line.

Knows: `{"id", "group", "task", "success", "term", "turns": [{text, calls, results, error?}]}`, where texts and
arguments are cut to their start and stand beside a hash of the whole.
Must not know: policies, figures.

Equal calls and equal texts stay equal, and that is all rules about repetition need: the arguments of a call are its
hash, a text is its start and its hash. Two results that differ only in times or ids have different hashes, so here they
differ; whole recordings say more. The error flag of a result is the set's own, which for SWE-agent was guessed from
words. A turn that only holds the error of a failed request, and the `exit_...` that SWE-agent writes in the place
of a command, are no turns, as in the readers of the whole files.

The command line does not read these files: nothing but statistics can be made of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from policyengine.messages import ModelResponse, Status, ToolCall, ToolResult
from policyengine.recordings import sweagent
from policyengine.recordings.model import (
    Document,
    Event,
    ModelSaid,
    Recording,
    ShapeError,
    ToolAnswered,
    Unreadable,
    UserSaid,
    ending,
    mapping,
    runs_of,
    sequence,
    string,
)
from policyengine.recordings.readers import Reader

NAME = "compact"

KEYS = frozenset({"id", "group", "task", "success", "term", "turns"})


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like the outline of a run."""
    return isinstance(value, dict) and value.keys() >= KEYS


def run_a_line(value: Any) -> bool:
    """Return true: every line is a run."""
    return True


def read(document: Document, *, guessed: bool = True) -> Iterator[Recording | Unreadable]:
    """Yield every run of a file; without `guessed`, failures that were guessed from words are none."""
    return runs_of(document, partial(_recording, guessed=guessed))


READER = Reader(NAME, sniff, read, run_a_line)
"""Takes every error flag as it stands."""
DECLARED = Reader(NAME, sniff, partial(read, guessed=False), run_a_line)
"""Takes only error flags that the harness itself declared, as the readers of whole files do."""


def _recording(value: Any, source: str, line: int, guessed: bool) -> Recording:
    run = mapping(value, "a run")
    task, label = string(run.get("task"), "task"), run.get("success")
    happened: list[Event] = [UserSaid(task)]
    error = ""
    for number, item in enumerate(sequence(run.get("turns"), "turns")):
        turn = mapping(item, "a turn")
        happened += _turn(turn, number, guessed)
        error = string(turn.get("error"), "error") or error
    return Recording(
        id=string(run.get("id"), "id"),
        source=source,
        format=NAME,
        events=tuple(happened),
        ended=ending(tuple(happened)),
        label=label if isinstance(label, bool) else None,
        group=string(run.get("group"), "group"),
        task=task,
        error=error,
        line=line,
    )


def _turn(turn: Mapping[str, Any], number: int, guessed: bool) -> Iterator[Event]:
    length, digest, start = _parts(turn.get("text"), 3, "a text")
    calls = [_parts(call, 3, "a call") for call in sequence(turn.get("calls"), "calls")]
    results = [_parts(result, 4, "a result") for result in sequence(turn.get("results"), "results")]
    if len(results) > len(calls):
        raise ShapeError("a turn has more results than calls")
    if (turn.get("error") and not length and not calls) or any(_given_up(call) for call in calls):
        return
    made = tuple(
        ToolCall(f"{number}-{place}", string(name, "name of a call"), args={"sha8": string(sha8, "hash of a call")})
        for place, (name, sha8, _) in enumerate(calls)
    )
    yield ModelSaid(ModelResponse(_text(length, digest, start), made))
    for call, (length, digest, is_error, start) in zip(made, results, strict=False):
        status: Status = "error" if is_error and (guessed or call.name != sweagent.TOOL) else "ok"
        yield ToolAnswered(call.id, ToolResult(call.id, _text(length, digest, start), status))


def _given_up(call: list[Any]) -> bool:
    name, _, start = call
    return bool(name == sweagent.TOOL and isinstance(start, str) and start.startswith(sweagent.GIVEN_UP))


def _text(length: Any, digest: Any, start: Any) -> str:
    return f"{string(start, 'start of a text')} {string(digest, 'hash of a text')}" if length else ""


def _parts(value: Any, count: int, what: str) -> list[Any]:
    parts = sequence(value, what)
    if len(parts) != count:
        raise ShapeError(f"{what} has {len(parts)} parts, not {count}")
    return parts
