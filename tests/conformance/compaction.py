"""Class `compaction`: a history, and from which message on it may be kept.

Messages are sketches (role, ids of calls, id of a result); without a proposal as much as possible is cut off. Every cut
that we offer must be one that the case allows.
"""

from __future__ import annotations

from typing import Any

from policyengine.history.cuts import legal_cuts, nearest_cuts


def judge(case: dict[str, Any]) -> list[str]:
    """Return what is wrong with our outcome; an empty list means the case passes."""
    given, expected = case["input"], case["expected"]
    messages = [_message(sketch) for sketch in given["messages"]]
    pending = [given["pending_call"]] if "pending_call" in given else []
    cuts = nearest_cuts(messages, given.get("proposed_keep_from"), pending=pending)
    allowed = expected.get("keep_from_any_of", cuts)
    if not set(cuts) <= set(allowed) or (allowed and not cuts):
        return [f"offered {cuts}, allowed {allowed}"]
    refused = [index for index in expected.get("must_not", []) if isinstance(index, int)]
    wrong = set(legal_cuts(messages, pending=pending)) & set(refused)
    return [f"{sorted(wrong)} count as legal"] if wrong else []


def _message(sketch: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": sketch["role"], "content": sketch.get("content", sketch["role"])}
    if sketch.get("calls"):
        function = {"name": "work", "arguments": "{}"}
        message["content"] = None
        message["tool_calls"] = [{"id": id, "type": "function", "function": function} for id in sketch["calls"]]
    if "id" in sketch:
        message["tool_call_id"] = sketch["id"]
    return message
