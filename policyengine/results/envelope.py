"""One shape for everything that can become of a tool call.

Knows: classified results. Must not know: how they were classified, prompts, the loop.

The shape follows the tool-envelope idea: `status` is the only member to branch on, and success, a failure of the
business, an exception, a time-out and a refusal look the same. Unlike there, `data` may stand beside an error, but only
with `partial: true`.
"""

from __future__ import annotations

from typing import Any

from policyengine.messages import UNDECLARED, ToolFacts
from policyengine.results.classify import Classified, classify_tool_result
from policyengine.results.plain import encodable
from policyengine.results.read import Kind


def tool_result_envelope(
    outcome: Any,
    *,
    tool: str,
    step: int | None = None,
    trace_id: str | None = None,
    kind: Kind = "python",
    facts: ToolFacts = UNDECLARED,
) -> dict[str, Any]:
    """Return the envelope of a tool call as JSON data.

    `outcome` is a `Classified`, a `ToolResult` (refusals and time-outs included), an exception, or whatever a tool of
    this `kind` returned. `step` and `trace_id` are for logs and change nothing else.
    """
    seen = outcome
    if not issubclass(type(seen), Classified):
        seen = classify_tool_result(outcome, tool=tool, kind=kind, facts=facts)
    error = None
    if not seen.ok:
        error = {"code": seen.code or "error", "message": seen.message or seen.content, "retryable": seen.retryable}
    data = seen.data
    if data is None and seen.ok:
        data = {"text": seen.content}
    meta: dict[str, Any] = {"step": step, "trace_id": trace_id if trace_id is None else encodable(trace_id)}
    if seen.notes:
        meta["notes"] = list(seen.notes)
    envelope: dict[str, Any] = {
        "status": "ok" if seen.ok else "error",
        "tool": encodable(tool),
        "data": data,
        "error": error,
        "meta": meta,
    }
    if seen.partial or (error is not None and data is not None):
        envelope["partial"] = True
    if seen.truncated:
        envelope["truncated"] = True
    return envelope
