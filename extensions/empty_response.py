"""Accept that the model says nothing where a tool said it already, or end with a text of the policy.

Knows: which tools give the user an answer, how many responses in a row were empty. Must not know: texts of warnings,
how often the model is asked again (that is `parsing.max_retry`), when empty responses stop a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from policyengine import (
    Action,
    Extension,
    OptionProblem,
    Proof,
    RunView,
    ToolCall,
    ToolResult,
    Verdict,
    call,
    hookimpl,
    say,
)

ANSWERED = "answered_by_a_tool"
FALLBACK = "fallback_text"
EMPTY = ("empty", "reasoning_only")


class Silence(msgspec.Struct):
    """Whether a tool gave the answer in this step, and how many responses in a row were empty."""

    answered: bool = False
    in_a_row: int = 0


class EmptyResponse(Extension):
    """Turn the verdict on an empty response into a final one, where that is what is meant or wanted.

    After a successful call of an `answered_by` tool in this step there is nothing left to say: an empty response, or
    one of reasoning only, ends the run as completed. Elsewhere, the empty response number `after` in a row ends it with
    the `fallback` text. That text is the policy's: it never enters the history, and the outcome names this rule.
    """

    name = "empty_response"
    options: Any = {
        "answered_by": {
            "type": "list",
            "maxlength": 100,
            "schema": {"type": "string", "minlength": 1, "maxlength": 200},
            "default": [],
        },
        "fallback": {"type": "string", "minlength": 1, "maxlength": 10_000},
        "after": {"type": "integer", "min": 1, "max": 1_000, "default": 3, "meta": {"stricter": "lower"}},
    }
    state = Silence
    scope = "step"

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report options that leave nothing to do, and a text of white space, which would be another empty answer."""
        text = options.get("fallback")
        if text is None and not options["answered_by"]:
            message = "set `answered_by` or `fallback`; write `mode: disabled` to switch the rule off"
            yield OptionProblem((), message)
        if text is not None and not text.strip():
            yield OptionProblem(("fallback",), "is empty but for white space")

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        return {"after_parse": ("rewrite",)}

    def proofs(self) -> Iterable[Proof]:
        """Return silence after a tool that answers, and as much silence as is put up with."""
        for pattern in self.options.answered_by[:1]:
            name = pattern.replace("*", "x").replace("?", "x")
            if fnmatchcase(name, pattern):
                yield Proof("answered_by", "rewrite", ANSWERED, 2, (call(name, {}, "sent"), say("")))
        if self.options.get("fallback") is not None:
            after: int = self.options.after
            yield Proof("fallback", "rewrite", FALLBACK, after, (say(""),) * after)

    @hookimpl
    def after_tool_call(self, run: RunView, call: ToolCall, result: ToolResult) -> Action | None:
        """Take note of a tool that gave the answer."""
        patterns: Sequence[str] = self.options.answered_by
        if patterns and result.status == "ok" and not run.failed(call, result):
            run.state.answered |= any(fnmatchcase(call.name, pattern) for pattern in patterns)
        return None

    @hookimpl
    def after_parse(self, run: RunView, verdict: Verdict, calls: Sequence[ToolCall]) -> Action | None:
        """Make an empty response final where nothing more is to be said, or nothing more to be waited for."""
        state: Silence = run.state
        if verdict.kind not in EMPTY:
            state.in_a_row = 0
            return None
        state.in_a_row += 1
        if state.answered:
            return self._final(run, ANSWERED)
        text = self.options.get("fallback")
        after: int = self.options.after
        if text is None or state.in_a_row < after:
            return None
        return msgspec.structs.replace(self._final(run, FALLBACK, text), observed=state.in_a_row, limit=after)

    def _final(self, run: RunView, reason: str, text: str = "") -> Action:
        return run.rewrite(reason, verdict=Verdict("ok", (), text, reason))
