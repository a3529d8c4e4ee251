"""Recognise a response that only says what the previous one said.

Knows: the text of the previous response of the step, as a digest.
Must not know: calls and their results (that is `stall_detector`), what becomes of a repeated message.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from policyengine import (
    Action,
    Extension,
    Proof,
    RunView,
    ToolCall,
    Verdict,
    hookimpl,
    say,
)

CODE = "repeat"

# Two equal truncated texts say one thing twice, but "it was cut off" is the more useful complaint about both.
_OUTRANKED = ("truncated", "repeat")


class Previous(msgspec.Struct):
    """Digest of the text that the latest response without calls consisted of; empty where there is none."""

    digest: str = ""


class RepeatMessage(Extension):
    """Turn the verdict on a response that repeats the previous text into `repeat`, which makes it unusable.

    Texts are compared in normal form C without outer white space. Responses with calls are never judged, and a call
    ends a streak: the same remark beside two calls is no repeat. Empty texts are another kind of unusable response
    and are passed over, so the first response of a step is never a repeat. State lives per step: a final answer that
    equals the one given before the user's next message is an answer.
    """

    name = "repeat_message"
    options: Any = {
        "min_length": {"type": "integer", "min": 1, "max": 100_000, "default": 1, "meta": {"stricter": "lower"}},
    }
    state = Previous
    scope = "step"

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        return {"after_parse": ("rewrite",)}

    def proofs(self) -> Iterable[Proof]:
        """Return the same remark said twice, and then the final answer."""
        remark = "I will look into this next.".ljust(self.options.min_length, ".")
        answer = '{"tool_name": "response", "tool_args": {"text": "Done."}}'
        turns = (say(remark), say(f"\n{remark}\n"), say(answer))
        yield Proof("repeat", "rewrite", CODE, 2, turns, protocol="text")

    @hookimpl
    def after_parse(self, run: RunView, verdict: Verdict, calls: Sequence[ToolCall]) -> Action | None:
        """Compare the text with the previous one and rewrite the verdict if they are equal."""
        if calls or verdict.calls:
            run.state.digest = ""
            return None
        text = unicodedata.normalize("NFC", verdict.text.strip())
        if not text:
            return None
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        repeated = digest == run.state.digest and len(text) >= self.options.min_length
        run.state.digest = digest
        if not repeated or verdict.kind in _OUTRANKED:
            return None
        return run.rewrite(CODE, verdict=msgspec.structs.replace(verdict, kind="repeat", reason="same_text"))
