"""What the parser makes of a response: one verdict, the same streamed or whole.

Knows: the kinds of verdicts and which warning each unusable kind becomes.
Must not know: how parsing works, guards, the loop.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from policyengine.messages import ToolCall

VerdictKind = Literal[
    "ok",
    "empty",
    "reasoning_only",
    "prose",
    "fenced",
    "multiple",
    "truncated",
    "wrong_shape",
    "foreign_markup",
    "unknown_tool",
    "repeat",
]

WARNING_KINDS: dict[str, str] = {
    "empty": "empty",
    "reasoning_only": "reasoning_only",
    "prose": "misformat",
    "fenced": "misformat",
    "multiple": "misformat",
    "wrong_shape": "misformat",
    "foreign_markup": "misformat",
    "truncated": "truncated",
    "repeat": "repeat",
}
"""Warning kind of every unusable verdict. `ok` and `unknown_tool` are usable: `unknown_tool` fails only that call."""

ANSWERED = "answered_by_a_tool"
"""Reason of a final verdict without text that a rule gives where a tool said everything already."""

FALLBACK = "fallback_text"
"""Reason of a final verdict whose text is a rule's own, because the model says nothing."""


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parser's answer.

    `calls` are the calls found (also those of an unusable response, which will not run). `text` is what the model
    says beside them; with `kind == "ok"` and no calls it is the final answer. `reason` is a content-free machine
    reason (`unclosed_string`, `name_missing`, ...). `unknown` are the ids of calls to tools that were not offered.
    `repairs` names everything that was mended. `guess` says that the calls stood amid prose, so that they may have
    been meant as an illustration (see `settle_guess`).
    """

    kind: VerdictKind
    calls: tuple[ToolCall, ...] = ()
    text: str = ""
    reason: str = ""
    unknown: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    guess: bool = False

    @property
    def usable(self) -> bool:
        """Whether the response may be acted on."""
        return self.kind not in WARNING_KINDS

    @property
    def final(self) -> bool:
        """Whether the response is the model's final answer."""
        return self.kind == "ok" and not self.calls
