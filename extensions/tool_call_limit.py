"""Limit the rounds with tool calls, the calls of a run or conversation, and the calls of each tool.

Knows: which calls were admitted, and which of them ran. Must not know: arguments, what a call does, its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from policyengine import (
    Action,
    Batch,
    Extension,
    ModelRequest,
    OptionProblem,
    Proof,
    RunView,
    ScriptedCall,
    ToolCall,
    ToolResult,
    Turn,
    batch,
    hookimpl,
)

from .patterns import example

CODE = "call_limit"

NOT_STARTED = ("unknown_tool", "invalid_arguments")
"""Codes of the engine's own answers to calls that it could not run."""

# Tool names and call ids come from the model, so how much is remembered must not depend on them.
_MOST_NAMES = 256
_MOST_OPEN = 256
_OTHERS = ""
"""Stands for all tools beyond those that are remembered by name; no tool has this name."""

# Beyond these many turns, or calls in one batch, a proof would take longer than anybody waits for it.
_LONGEST_PROOF = 2_000
_LARGEST_BATCH = 300

_NUMBER: dict[str, Any] = {
    "type": "integer",
    "min": 1,
    "max": 100_000,
    "meta": {"stricter": "lower", "absent": "loosest"},
}


_FORBID = "a tool that may not be called at all is refused by `tool_access: {with: {deny: [NAME]}}`"


class Count(msgspec.Struct):
    """Calls that ran (`done`), and calls that were admitted and have no result yet (`open`)."""

    done: int = 0
    open: int = 0


class Calls(msgspec.Struct):
    """All counts of a run, or of a conversation.

    `rounds` are rounds in which a call ran, `round` names the latest of them. `batch` is the batch being judged.
    `admitted` are open calls by run and id, with their number; `unnamed` are open calls beyond those.
    """

    rounds: int = 0
    round: str = ""
    batch: str = ""
    all: Count = msgspec.field(default_factory=Count)
    tools: dict[str, Count] = {}
    admitted: dict[str, int] = {}
    unnamed: int = 0


class ToolCallLimit(Extension):
    """Let exactly `rounds` rounds with calls and exactly `calls` calls run, and of each tool as many as `tools` says.

    A call is counted when its result comes, if it ran; until then it holds its place, so that a parallel batch cannot
    run past a limit. What another rule refuses gives its place back. Once `rounds` or `calls` are used up the model is
    asked for its final answer before the next request; a batch that straddles `calls` is refused call by call from
    there on. A limit of a tool only refuses.
    """

    name = "tool_call_limit"
    options: Any = {
        "rounds": dict(_NUMBER),
        "calls": dict(_NUMBER),
        "tools": {
            "type": "dict",
            "minlength": 1,
            "maxlength": 200,
            "keysrules": {"type": "string", "minlength": 1, "maxlength": 200},
            "valuesrules": {**_NUMBER, "meta": {**_NUMBER["meta"], "below": _FORBID}},
            "meta": {"keys": "patterns"},
        },
        "scope": {"type": "string", "allowed": ["run", "conversation"], "default": "run"},
    }
    state = Calls
    messages = {
        "call_limit.wind_down": {"of": "rounds", "observed": 10, "limit": 10},
        "call_limit.deny": {"of": "calls", "tool": "search", "observed": 30, "limit": 30},
    }

    def state_scope(self) -> Literal["conversation", "run"]:
        """Return the scope that the option of that name chooses."""
        return "conversation" if self.options.scope == "conversation" else "run"

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report that nothing is limited, and limits that another one never lets be reached."""
        rounds, calls, tools = (options.get(name) for name in ("rounds", "calls", "tools"))
        if rounds is None and calls is None and tools is None:
            yield OptionProblem((), "set `rounds`, `calls` or `tools`; write `mode: disabled` to switch the rule off")
        if rounds is not None and calls is not None and rounds > calls:
            message = f"must not be above calls ({calls}): every counted round has a call, so it can never take effect"
            yield OptionProblem(("rounds",), message)
        seen: list[str] = []
        for pattern, number in (tools or {}).items():
            if calls is not None and number >= calls:
                message = f"must be below calls ({calls}), or it can never take effect"
                yield OptionProblem(("tools", pattern), message)
            tool = example(pattern)
            before = next((other for other in seen if fnmatchcase(tool, other)), None)
            if before is not None and tool != pattern:
                message = f"is never used: {before!r} stands before it and matches the same tools"
                yield OptionProblem(("tools", pattern), message, fatal=False)
            seen.append(pattern)

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        whole = self.rounds is not None or self.calls is not None
        single = self.calls is not None or bool(self.tools)
        before_call = (("wind_down",) if whole else ()) + (("deny",) if single else ())
        return {"before_model_call": ("wind_down",) if whole else (), "before_tool_call": before_call}

    def proofs(self) -> Iterable[Proof]:
        """Return rounds, a batch and calls of one tool that go past their limit by one.

        Every call is one of a tool of its own, except where the limit of a tool is proved.
        """
        if self.rounds is not None and self.rounds <= _LONGEST_PROOF:
            turns = tuple(batch(_probe(page)) for page in range(self.rounds))
            yield Proof("rounds", "wind_down", CODE, self.rounds + 1, turns)
        if self.calls is not None and self.calls < _LARGEST_BATCH:
            turn = batch(*map(_probe, range(self.calls + 1)))
            yield Proof("calls", "deny", CODE, 1, (turn,))
            yield Proof("calls, next request", "wind_down", CODE, 2, (turn,))
        for pattern, number in self.tools.items():
            name = example(pattern)
            if number < _LARGEST_BATCH and self._limit_of(name) == number:
                turn = Turn(tuple(_probe(page, name) for page in range(number + 1)))
                yield Proof(f"tools[{pattern}]", "deny", CODE, 1, (turn,))

    def setup(self) -> None:
        """Look up the limits once."""
        self.rounds: int | None = self.options.get("rounds")
        self.calls: int | None = self.options.get("calls")
        self.tools: dict[str, int] = dict(self.options.get("tools") or {})

    @hookimpl
    def before_model_call(self, run: RunView, request: ModelRequest) -> Action | None:
        """Ask for the final answer once rounds or calls are used up."""
        state: Calls = run.state
        if self.rounds is not None and state.rounds >= self.rounds:
            return run.wind_down(CODE, observed=state.rounds, limit=self.rounds, of="rounds")
        if self.calls is not None and state.all.done >= self.calls:
            return run.wind_down(CODE, observed=state.all.done, limit=self.calls, of="calls")
        return None

    @hookimpl
    def before_tool_call(self, run: RunView, call: ToolCall, batch: Batch) -> Action | None:
        """Refuse a call that has no place any more; an admitted one holds its place until its result comes."""
        state: Calls = run.state
        state.batch = batch.id
        self._give_back(run)
        limit = self._limit_of(call.name)
        over = self._over_run(run, call) or self._over_tool(run, call, limit)
        if over is not None:
            return over
        state.all.open += 1
        if limit is not None:
            _count_of(state, call.name).open += 1
        place = _place(run, call.id)
        state.admitted[place] = state.admitted.get(place, 0) + 1
        if len(state.admitted) > _MOST_OPEN:
            state.unnamed += state.admitted.pop(next(iter(state.admitted)))
        return None

    @hookimpl
    def after_tool_call(self, run: RunView, call: ToolCall, result: ToolResult) -> Action | None:
        """Give back the place of the call, and count it if it ran."""
        state: Calls = run.state
        held, started = int(_held(run, call, result)), int(_started(result))
        state.all.open -= held
        state.all.done += started
        if self._limit_of(call.name) is not None:
            _settle(state, call.name, held, started)
        if not started:
            return None
        this_round = _round(run)
        if state.round != this_round:
            state.round = this_round
            state.rounds += 1
        return None

    def _give_back(self, run: RunView) -> None:
        """Give back the places of calls of the batch that something else refused: their results come later."""
        state: Calls = run.state
        if not state.admitted:
            return
        for call_id, tool in run.refused.items():
            place = _place(run, call_id)
            if state.admitted.get(place) == 1:  # of several of one id the result gives the place back
                del state.admitted[place]
                state.all.open -= 1
                if self._limit_of(tool) is not None:
                    _settle(state, tool, 1, 0)

    def _over_run(self, run: RunView, call: ToolCall) -> Action | None:
        """Return the answer to a call for which the run has no place.

        Before the first call of a round nothing is open: nothing of that round may run, so the model is asked for its
        answer. Within a batch single calls are refused, because those before them run.
        """
        state: Calls = run.state
        if self.rounds is not None and state.rounds >= self.rounds and state.round != _round(run):
            return run.wind_down(CODE, observed=state.rounds, limit=self.rounds, of="rounds")
        taken = state.all.done + state.all.open
        if self.calls is None or taken < self.calls:
            return None
        if state.all.done >= self.calls:
            return run.wind_down(CODE, observed=state.all.done, limit=self.calls, of="calls")
        return run.deny(CODE, observed=taken, limit=self.calls, of="calls", tool=call.name)

    def _over_tool(self, run: RunView, call: ToolCall, limit: int | None) -> Action | None:
        if limit is None:
            return None
        count = run.state.tools.get(_key(run.state, call.name))
        taken = 0 if count is None else count.done + count.open
        return None if taken < limit else run.deny(CODE, observed=taken, limit=limit, of="tool", tool=call.name)

    def _limit_of(self, tool: str) -> int | None:
        """Return the limit of a tool: that of its exact entry, else of the first pattern that matches."""
        if tool in self.tools:
            return self.tools[tool]
        return next((number for pattern, number in self.tools.items() if fnmatchcase(tool, pattern)), None)


def _round(run: RunView) -> str:
    """Return a name of the current round; where a host counts no rounds, every batch is one."""
    return f"{run.id}/{run.iteration or run.state.batch}"


def _key(state: Calls, tool: str) -> str:
    """Return the name under which a tool is counted.

    Tools beyond those that are remembered share one count, so that none escapes its limit; once there is one, every
    new tool belongs to it.
    """
    if tool in state.tools or (_OTHERS not in state.tools and len(state.tools) < _MOST_NAMES - 1):
        return tool
    return _OTHERS


def _count_of(state: Calls, tool: str) -> Count:
    return state.tools.setdefault(_key(state, tool), Count())


def _settle(state: Calls, tool: str, held: int, started: int) -> None:
    """Take the result of a call of a limited tool into its count; a count of nothing is forgotten."""
    count = _count_of(state, tool)
    count.open = max(0, count.open - held)
    count.done += started
    if not (count.open or count.done):
        del state.tools[_key(state, tool)]


def _place(run: RunView, call_id: str) -> str:
    """Return a name of an open call: runs that share the state (sub-agents) may use the same ids."""
    return f"{run.id}/{call_id}"


def _held(run: RunView, call: ToolCall, result: ToolResult) -> bool:
    """Return whether a call held a place; it does not any more."""
    state: Calls = run.state
    place = _place(run, call.id)
    number = state.admitted.pop(place, 0)
    if number > 1:
        state.admitted[place] = number - 1
    if number:
        return True
    if state.unnamed and call.id not in run.refused and _held_till_now(result):
        state.unnamed -= 1
        return True
    return False


def _held_till_now(result: ToolResult) -> bool:
    """Return whether a call may have held a place until its result came: a rule's refusal gave it back before."""
    return result.status != "denied" or result.error is None or result.error.code == "refused_by_human"


def _started(result: ToolResult) -> bool:
    """Return whether the tool was started: neither a rule nor the engine itself kept the call from running."""
    error = result.error
    if error is not None and error.code in NOT_STARTED and not error.declared and result.duration_s is None:
        return False
    return result.ran


def _probe(page: int, tool: str = "") -> ScriptedCall:
    return ScriptedCall(tool or f"probe_{page}", {"page": page}, f"page {page}")
