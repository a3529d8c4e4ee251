"""What becomes of a verdict after it was reached: the effect rule, and the response as history keeps it.

Knows: verdicts, declared effects of tools. Must not know: how a verdict is reached, the loop.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from policyengine.messages import ModelResponse, ToolCall
from policyengine.parsing.verdict import Verdict

GUESS = "guess"
"""The reason of a recovery that was not acted on."""


def settle_guess(verdict: Verdict, effect_of: Callable[[str], str]) -> Verdict:
    """Return the verdict that is acted on: where the recovery was a guess, only reading tools run.

    A call amid prose may have been meant, or shown. Running a read by mistake costs a request; running anything else
    by mistake cannot be undone, so the model is asked again in the right format. `effect_of` gives a tool's effect.
    """
    if not verdict.guess or all(effect_of(call.name) == "read" for call in verdict.calls):
        return verdict
    kind = "fenced" if "strip_fence" in verdict.repairs else "prose"
    return msgspec.structs.replace(verdict, kind=kind, reason=GUESS, unknown=())


def as_parsed(response: ModelResponse, verdict: Verdict, ids: str = "") -> tuple[ModelResponse, Verdict]:
    """Return a native response as it is to be stored, and the verdict with the same calls.

    Calls that were repaired are stored as they are run, calls recovered from the text as structured calls (with `ids`
    as the beginning of their ids), so that every result answers a call that stands in the history.
    """
    if not verdict.usable or not verdict.calls or (response.tool_calls and not verdict.repairs):
        return response, verdict
    calls = verdict.calls
    if not response.tool_calls:
        calls = tuple(_renamed(call, f"{ids}{index}") for index, call in enumerate(calls)) if ids else calls
        unknown = tuple(new.id for new, old in zip(calls, verdict.calls, strict=True) if old.id in verdict.unknown)
        verdict = msgspec.structs.replace(verdict, calls=calls, unknown=unknown)
        response = msgspec.structs.replace(response, text=verdict.text)
    return msgspec.structs.replace(response, tool_calls=calls, raw=None), verdict


def _renamed(call: ToolCall, id: str) -> ToolCall:
    return msgspec.structs.replace(call, id=id)
