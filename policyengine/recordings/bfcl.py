"""Reader for the raw results of BFCL (`BFCL_v4_*_result.json`): one test a line, calls in a text protocol.

Knows: `{"id", "result"}` where `result` is a reply, a list with one for each turn of the user, or a list of lists with
the replies to each; the model writes `[search(q="x"), ...]`, and prose is an answer. Must not know: other benchmarks.

The file holds neither prompts nor results of calls. What a user said has no text, and no call is known to have run:
the calls of a reply that keeps to the protocol are in `tool_calls`, without results. As the harness does, the reader
takes off a fence without a language, and adds brackets that are missing around calls. There is no label and no model:
an index has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from policyengine.messages import ModelResponse, ToolCall
from policyengine.parsing.notation import Form
from policyengine.parsing.parse import parse_response
from policyengine.recordings.conversation import Pairing, RawCall, usage_of
from policyengine.recordings.model import (
    Document,
    Event,
    ModelSaid,
    Recording,
    ShapeError,
    Unreadable,
    UserSaid,
    mapping,
    runs_of,
    string,
    text_ending,
)

NAME = "bfcl"

FORMS = (Form("python"), Form("prose", answer=True))
"""The protocol that the prompts declare."""

_ID = re.compile(
    r"(?:live_|exec_)?(?:simple|multiple|parallel|parallel_multiple|irrelevance|relevance|multi_turn|memory|web_search"
    r"|java|javascript|rest|sql|format_sensitivity)_\w*\d[\w:.-]*"
)


def sniff(value: Any) -> bool:
    """Return whether a decoded value looks like a BFCL result."""
    if not isinstance(value, dict) or "result" not in value or not isinstance(name := value.get("id"), str):
        return False
    return _ID.match(name) is not None and isinstance(value["result"], str | list)


def run_a_line(value: Any) -> bool:
    """Return true: every line is a test of its own."""
    return True


def read(document: Document) -> Iterator[Recording | Unreadable]:
    """Yield the test of every line."""
    return runs_of(document, _recording)


def _recording(value: Any, source: str, line: int) -> Recording:
    test = mapping(value, "a test")
    name = string(test.get("id"), "id")
    turns = _turns(test.get("result"))
    pairing = Pairing()
    happened: list[Event] = []
    tokens = {"input_tokens": test.get("input_token_count"), "output_tokens": test.get("output_token_count")}
    usage = usage_of(tokens) if isinstance(test.get("result"), str) else None
    answered = False
    for replies in turns:
        happened.append(UserSaid(""))
        for text in replies:
            calls, answered = _read(text)
            batch = pairing.batch(RawCall("", call.name, call.arguments, call.args) for call in calls)
            happened.append(ModelSaid(ModelResponse(text, batch, usage=usage)))
    return Recording(
        id=name,
        source=source,
        format=NAME,
        events=tuple(happened),
        ended=text_ending(tuple(happened), answered=answered),
        task=name,
        protocol="text",
        error=string(test.get("traceback"), "traceback"),
        line=line,
        forms=FORMS,
    )


def _read(text: str) -> tuple[tuple[ToolCall, ...], bool]:
    """Return the calls of a reply, and whether it is an answer."""
    bare = text.strip("`\n ")
    listed = f"[{bare}]" if bare.endswith(")") and not bare.startswith("[") else bare
    for read in dict.fromkeys((listed, text)):
        verdict = parse_response(ModelResponse(read), protocol="text", forms=FORMS)
        if verdict.usable and (verdict.calls or read == text):
            return verdict.calls, not verdict.calls
    return (), False


def _turns(result: Any) -> list[list[str]]:
    """Return the replies to each turn of the user."""
    if isinstance(result, str):
        return [[result]]
    if not isinstance(result, list):
        raise ShapeError("result is neither a reply nor a list of replies")
    return [
        [string(reply, "a reply") for reply in turn] if isinstance(turn, list) else [string(turn, "a reply")]
        for turn in result
    ]
