"""Have the history shortened before it fills the window of the model.

Knows: the size of the latest prompt as the provider reports it, how many messages were added. Must not know: histories,
how one is shortened, what is kept of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from policyengine import (
    Action,
    Compaction,
    Extension,
    HistoryWarning,
    Iteration,
    ModelRequest,
    ModelResponse,
    OptionProblem,
    Proof,
    RunView,
    ScriptedCall,
    ToolCall,
    ToolResult,
    Turn,
    Usage,
    batch,
    hookimpl,
)

CODE = "context_compaction"
MESSAGES_CODE = "context_compaction_messages"

GROWTH = 0.05
"""After a compaction that brought nothing, the prompt must grow by this share of the window before the next one."""

# Beyond this many messages nobody would wait for the proof; each of its rounds makes so many calls.
_LONGEST_PROOF = 5_000
_BATCH = 20


class Filled(msgspec.Struct):
    """How full the window is.

    `tokens` is the latest reported prompt (0: nothing reported since), `bar` what it must reach after a compaction that
    brought nothing. `messages` were added since the latest compaction, in iteration `compacted`. `main` says that the
    open request is one for the next step of the model's work.
    """

    tokens: int = 0
    bar: float = 0.0
    messages: int = 0
    compacted: int = -1
    main: bool = True


class ContextCompaction(Extension):
    """Ask for a shorter history once the latest prompt fills `trigger` of the window.

    Where the provider reports no usage, messages are counted instead: one for each task, response, result and warning.
    Whatever becomes of a compaction, the count starts afresh, and a prompt that is as long as before it does not bring
    the next one: an attempt that failed would only be paid for again.
    """

    name = "context_compaction"
    options: Any = {
        "window": {"type": "integer", "min": 256, "max": 10**9, "default": 65_536, "meta": {"stricter": "lower"}},
        "trigger": {"type": "number", "min": 0.05, "max": 1, "default": 0.9, "meta": {"stricter": "lower"}},
        "messages": {"type": "integer", "min": 0, "max": 100_000, "default": 200},
        "strategy": {"type": "string", "allowed": ["compact", "slide", "none"], "default": "compact"},
        "keep": {"type": "number", "min": 0, "max": 0.9, "default": 0.3},
    }
    state = Filled

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report a share that is kept and fills the window again at once."""
        if options["strategy"] != "none" and options["keep"] >= options["trigger"]:
            message = f"must be below trigger ({options['trigger']}), or nothing becomes shorter"
            yield OptionProblem(("keep",), message)

    def setup(self) -> None:
        """Compute the threshold once."""
        window: int = self.options.window
        self.threshold = window * float(self.options.trigger)
        self.growth = window * GROWTH

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        return {"before_model_call": ("rewrite",)}

    def proofs(self) -> Iterable[Proof]:
        """Return a prompt that fills the window, and messages without any usage."""
        if self.options.strategy == "none":
            return
        full = Usage(int(self.threshold) + 1, 1)
        yield Proof("window", "rewrite", CODE, 2, (msgspec.structs.replace(_pages(0), usage=full),))
        limit: int = self.options.messages
        if 0 < limit <= _LONGEST_PROOF:
            rounds = (limit - 1) // (_BATCH + 1) + 1
            yield Proof("messages", "rewrite", MESSAGES_CODE, rounds + 1, tuple(map(_pages, range(rounds))))

    @hookimpl
    def step_start(self, run: RunView, step: int) -> Action | None:
        """Count the task, or the message of the user that opens a step."""
        run.state.messages += 1
        return None

    @hookimpl
    def after_tool_call(self, run: RunView, call: ToolCall, result: ToolResult) -> Action | None:
        """Count a result."""
        run.state.messages += 1
        return None

    @hookimpl
    def hist_add_warning_end(self, run: RunView, warning: HistoryWarning) -> Action | None:
        """Count a warning."""
        run.state.messages += 1
        return None

    @hookimpl
    def after_iteration(self, run: RunView, iteration: Iteration) -> Action | None:
        """Count the response of the round: of several attempts only one is kept."""
        run.state.messages += 1
        return None

    @hookimpl
    def after_model_response(self, run: RunView, response: ModelResponse) -> Action | None:
        """Take note of the size of the prompt; that of an auxiliary request says nothing about the next one."""
        state: Filled = run.state
        if not state.main:
            return None
        prompt = response.usage.prompt_tokens if response.usage is not None else None
        state.tokens = prompt if prompt is not None and prompt > 0 else 0
        if 0 < state.tokens < self.threshold:
            state.bar = 0.0
        return None

    @hookimpl
    def before_model_call(self, run: RunView, request: ModelRequest) -> Action | None:
        """Ask for a shorter history, at most once in a round, before a request for the next step of the work."""
        state: Filled = run.state
        state.main = request.purpose == "main"
        if not state.main or self.options.strategy == "none" or state.compacted == run.iteration:
            return None
        tokens, messages, limit = state.tokens, state.messages, self.options.messages
        if tokens and tokens >= max(self.threshold, state.bar):
            state.bar = tokens + self.growth
            return self._shorten(run, CODE, tokens, self.threshold)
        if not tokens and 0 < limit < messages:
            return self._shorten(run, MESSAGES_CODE, messages, limit)
        return None

    def _shorten(self, run: RunView, code: str, observed: float, limit: float) -> Action:
        """Return the rewrite, with what was measured, and start to count afresh."""
        state: Filled = run.state
        state.tokens = state.messages = 0
        state.compacted = run.iteration
        how = Compaction(self.options.strategy, float(self.options.keep))
        return msgspec.structs.replace(run.rewrite(code, compaction=how), observed=observed, limit=limit)


def _pages(number: int) -> Turn:
    pages = range(number * _BATCH, (number + 1) * _BATCH)
    return batch(*(ScriptedCall("probe", {"page": page}, f"page {page}") for page in pages))
