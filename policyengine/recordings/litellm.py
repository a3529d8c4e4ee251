"""Reader for LiteLLM completion logs, as OpenHands keeps them: the last completion of a run holds the whole run.

Knows: `{"messages", "response"}`: the conversation as chat messages, and the answer to it under `response`, which is
the run's last response. One run per value.
Must not know: other formats of OpenHands.

A log does not say whether a call failed, but the texts of OpenHands' own tools do: they start with "ERROR:" or end with
the exit code of the command, or with the sentence that an action could not be processed. Its "Please continue" is the
harness's. Only the last completion is known, so no tokens are counted: its own are not those of the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from policyengine.recordings.conversation import Failure, events
from policyengine.recordings.model import (
    Document,
    Recording,
    Unreadable,
    ending,
    mapping,
    runs_of,
    sequence,
    text_or_empty,
)

NAME = "litellm"

CONTINUE = "Please continue working on the task on whatever approach you think is suitable."
"""How OpenHands begins what it says in the user's name to a model that called nothing."""

_FAILED_END = re.compile(
    r"\[(?:Command finished with exit code [1-9][0-9]*|Error occurred in processing last action)\]\s*\Z"
)
_FAILED_START = "ERROR:\n"
_END = 80
"""How much of a text's end is searched: a text may be long, its last line is not."""


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like a LiteLLM completion with its conversation."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("messages"), list)
        and isinstance(answer := value.get("response"), dict)
        and isinstance(answer.get("choices"), list)
    )


def run_a_line(value: Any) -> bool:
    """Return true: every value is the last completion of a run."""
    return True


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield the run of every completion."""
    stem = PurePath(document.source).stem

    def recording(value: Any, source: str, line: int) -> Recording:
        return _recording(value, source, line, f"{stem}#{line}" if document.lines else stem)

    return runs_of(document, recording)


def _recording(value: Any, source: str, line: int, name: str) -> Recording:
    completion = mapping(value, "a completion")
    answer = mapping(completion.get("response"), "response")
    messages = list(sequence(completion.get("messages"), "messages"))
    for item in sequence(answer.get("choices"), "choices")[:1]:
        choice = mapping(item, "a choice")
        said = mapping(choice.get("message"), "the message of a choice")
        messages.append({**said, "role": "assistant", "finish_reason": choice.get("finish_reason")})
    happened = events(messages, failure=_failure, injected=_injected)
    return Recording(
        id=name,
        source=source,
        format=NAME,
        events=happened,
        ended=ending(happened),
        group=text_or_empty(answer.get("model")),
        task=name,
        line=line,
    )


def _failure(message: Mapping[str, Any], text: str) -> Failure | None:
    return Failure(text) if text.startswith(_FAILED_START) or _FAILED_END.search(text[-_END:]) else None


def _injected(text: str, task: str) -> bool:
    return text.startswith(CONTINUE)
