"""The stall detector: notices that an agent repeats itself without getting anywhere, and escalates.

Knows: which counts are judged against which ladder, and what the model is told.
Must not know: how counts are kept (`streaks`, `cycles`), how a policy is read.

Five kinds of stall between calls are told apart, and one without calls: the same call with the same result again and
again (`identical`), a block of calls that repeats (`cycle`), a call that keeps coming back between others
(`interleaved`), different questions that always get the same answer (`stagnation`), and the same text instead of a call
(`text_repeat`). Calls of polling tools are judged by their own ladder. See docs/extensions/stall_detector.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal

import msgspec

from policyengine import (
    Action,
    Batch,
    Extension,
    Iteration,
    Ladder,
    OptionProblem,
    Proof,
    RunView,
    ToolCall,
    ToolResult,
    Verdict,
    call_identity,
    hookimpl,
    raw_fingerprint,
)

from .options import MAX_GAP, MAX_PERIOD, SCHEMA, Plan, make_plan, option_problems, rungs_used
from .proofs import all_proofs
from .results import take_result
from .state import NOT_RUN, Record, Slot, Stalled, StallState, storable
from .streaks import admit, alike_key, begin_unit, readmit_all_but

Scope = Literal["conversation", "run", "step"]

HINTED, GAVE_UP = 1, 2
STRICTNESS = {"hint": 0, "deny": 1, "wind_down": 2, "end_step": 3, "stop": 4}
"""Rungs as the engine ranks their actions; within one ladder the highest rung reached counts instead."""

_SAMPLE = {"tool": "read_file", "pattern": "identical", "observed": 5, "limit": 5, "period": 0}


class Finding(msgspec.Struct):
    """One rung that a call reaches. `holder.flag` remembers what the model was told in this episode."""

    stall: Stalled
    holder: msgspec.Struct
    flag: str

    @property
    def told(self) -> int:
        """What the model was told in this episode: 1 hint, 2 give up."""
        return int(getattr(self.holder, self.flag))


class StallDetector(Extension):
    """Hint at, refuse or stop work that repeats itself without a new result."""

    name = "stall_detector"
    options = SCHEMA
    state = StallState
    scope = "step"
    messages: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"stall.{kind}": _SAMPLE for kind in ("hint", "deny", "give_up", "end_step", "wind_down", "stop")
    }

    def setup(self) -> None:
        """Compile the ladders; those of a tool are made when it is first seen."""
        options = self.options
        self.max_period = int((options.get("cycle") or {}).get("max_period") or MAX_PERIOD)
        self.max_gap = int((options.get("interleaved") or {}).get("max_gap") or MAX_GAP)
        self.text = Ladder.of(options.get("text"))
        self.plan: Callable[[str], Plan]
        if options.get("tools"):
            self.plan = lru_cache(maxsize=512)(lambda tool: make_plan(options, tool))
        else:
            every = make_plan(options, "")
            self.plan = lambda tool: every

    def state_scope(self) -> Scope:
        """Return the scope that the options choose."""
        chosen: Scope = self.options.get("scope") or "step"
        return chosen

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Return rungs that can never fire."""
        return option_problems(options)

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        calls, texts = rungs_used(self.options)
        late = [rung for rung in (*calls, *texts) if rung != "deny"]
        note = ("hint",) if "deny" in calls else ()
        return {"before_tool_call": (*calls, *note), "after_parse": (*late, *note), "step_end": ("hint",)}

    def proofs(self) -> Iterable[Proof]:
        """Return a sequence for every rung of every kind, and of every override."""
        return all_proofs(self.options)

    @hookimpl
    def run_start(self, run: RunView, task: str) -> None:
        """Close what another run of the conversation left open: batch ids are unique only within a run."""
        self._begin(run.state, "")

    @hookimpl
    def step_start(self, run: RunView, step: int) -> None:
        """Forget the last text: the same words after a new step or a new question are no repeat."""
        _forget_text(run.state)

    @hookimpl
    def step_end(self, run: RunView, step: int) -> Action | None:
        """Give the note that the model did not get, if the step ends in a stall."""
        state = run.state
        self._begin(state, "")
        stall = state.stalled
        if stall is None or state.noted or stall.rung == "stop":
            return None
        state.noted = True
        return _note(run, stall)

    @hookimpl
    def before_tool_call(self, run: RunView, call: ToolCall, batch: Batch) -> Any:
        """Judge a call before it runs."""
        state = run.state
        if batch.id != state.batch or not batch.id:
            begin_unit(state, batch.id, self.max_period, self.max_gap)
        elif call.id:
            _take_back(state, storable(call.id), batch.index)
        if state.text:
            _forget_text(state)
        findings = self._judge(run, call, batch.index)
        return _answers(run, findings, can_deny=True) if findings else None

    @hookimpl
    def after_tool_call(self, run: RunView, call: ToolCall, result: ToolResult) -> None:
        """Note the result of a call."""
        facts = run.tool(call.name)
        results = self.plan(storable(call.name)).results
        take_result(run.state, storable(call.id), result, run.failed(call, result), facts.result_mask, results)

    @hookimpl
    def after_parse(self, run: RunView, verdict: Verdict, calls: Sequence[ToolCall]) -> Any:
        """Judge responses without calls, and calls of an unusable response, which will not run."""
        state = run.state
        if not calls:
            return self._judge_text(run, verdict.text.strip())
        _forget_text(state)
        if verdict.usable:
            return None
        self._begin(state, f"unusable {state.unit}")
        findings: list[Finding] = []
        for index, call in enumerate(calls):
            findings += self._judge(run, call, index)
        for slot in state.open:
            slot.status = NOT_RUN
        return _answers(run, findings, can_deny=False) if findings else None

    @hookimpl
    def after_iteration(self, run: RunView, iteration: Iteration) -> None:
        """Let the calls of the round count."""
        self._begin(run.state, "")

    def _begin(self, state: StallState, batch: str) -> None:
        begin_unit(state, batch, self.max_period, self.max_gap)

    def _judge(self, run: RunView, call: ToolCall, index: int) -> list[Finding]:
        """Add a call to the open unit and return the rungs it reaches."""
        state: StallState = run.state
        name = storable(call.name)
        plan = self.plan(name)
        identity = call_identity(call.name, call.args, call.arguments, plan.ignore)
        effect = run.tool(name).effect
        record = admit(state, Slot(storable(call.id), identity, name, effect, index))
        found: list[Finding] = []
        if record.total or record.open > 1:
            found += self._identical(state, plan, record, name, effect)
            if effect != "poll":
                found += self._cycle(state, plan, name)
                found += self._interleaved(state, plan, record, name)
        tool = state.tools.get(name)
        if tool is not None and effect in plan.stagnation:
            reached = plan.stagnation[effect].reached(tool.streak + 1)
            if reached is not None and identity not in tool.seen:
                found.append(_finding(reached, "stagnation", "stagnation", name, tool.streak + 1, tool, "told"))
        if found:
            state.fired = True
        return found

    def _identical(self, state: StallState, plan: Plan, record: Record, tool: str, effect: str) -> Iterator[Finding]:
        code = "poll" if effect == "poll" else "repeat"
        consecutive = record.unit == state.unit - 1
        if record.open == 1 and not consecutive:
            record.told = 0
        copies = (record.count if consecutive else 0) + record.open
        deny = plan.identical(effect).deny
        if copies >= deny:
            yield _finding(("deny", deny), code, "identical", tool, copies, record, "told")
        if state.key and state.key == state.last_key:
            ordinal = state.streak + 1
            reached = _strictest(slot_plan.rest.reached(ordinal) for slot_plan in self._unit_rungs(state, plan, effect))
            if reached is not None:
                yield _finding(reached, code, "identical", tool, ordinal, state, "told")

    def _unit_rungs(self, state: StallState, plan: Plan, effect: str) -> list[Any]:
        """Return the ladders for identical calls of all tools in the open unit."""
        if len(state.open) == 1:
            return [plan.identical(effect)]
        tools = {slot.tool: slot.effect for slot in state.open}
        return [self.plan(tool).identical(tool_effect) for tool, tool_effect in tools.items()]

    def _cycle(self, state: StallState, plan: Plan, tool: str) -> Iterator[Finding]:
        cycles = state.cycles
        for period, count in cycles.repetitions(state.ring_key, alike_key(state), self.max_period):
            reached = plan.cycle.reached(count)
            if reached is not None:
                yield _finding(reached, "cycle", "cycle", tool, count, cycles, "told", period)
                return

    def _interleaved(self, state: StallState, plan: Plan, record: Record, tool: str) -> Iterator[Finding]:
        since = state.unit - record.unit
        if since > self.max_gap:
            record.told_apart = 0
            return
        if not record.apart and since == 1:
            return
        copies = record.total + record.open
        if copies >= plan.interleaved.deny:
            limit = plan.interleaved.deny
            yield _finding(("deny", limit), "interleaved", "interleaved", tool, copies, record, "told_apart")
        reached = plan.interleaved.rest.reached(record.units + 1)
        if reached is not None:
            yield _finding(reached, "interleaved", "interleaved", tool, record.units + 1, record, "told_apart")

    def _judge_text(self, run: RunView, text: str) -> Any:
        """Judge a text without calls. An empty response is no text; other guards count those."""
        if not text:
            return None
        state: StallState = run.state
        self._begin(state, "")
        fingerprint = raw_fingerprint(text)
        if fingerprint != state.text:
            _forget_text(state)
            state.text = fingerprint
            state.stalled, state.noted = None, False
        state.text_count += 1
        reached = self.text.reached(state.text_count)
        if reached is None:
            return None
        finding = _finding(reached, "text_repeat", "text_repeat", "", state.text_count, state, "text_told")
        return _answers(run, [finding], can_deny=False)


def _take_back(state: StallState, call: str, index: int) -> None:
    """Forget that a call was judged, if it was: it is a rewritten call, and counts only as what it is now."""
    if any(slot.call == call and slot.index == index for slot in state.open):
        readmit_all_but(state, call, index)


def _forget_text(state: StallState) -> None:
    state.text, state.text_count, state.text_told = "", 0, 0


def _finding(
    reached: tuple[str, int],
    code: str,
    pattern: str,
    tool: str,
    observed: int,
    holder: msgspec.Struct,
    flag: str,
    period: int = 0,
) -> Finding:
    return Finding(Stalled(reached[0], code, pattern, tool, observed, reached[1], period), holder, flag)


def _strictest(reached: Iterable[tuple[str, int] | None]) -> tuple[str, int] | None:
    found = [step for step in reached if step is not None]
    return max(found, key=lambda step: STRICTNESS[step[0]]) if found else None


def _answers(run: RunView, findings: Sequence[Finding], *, can_deny: bool) -> Any:
    """Return the strictest finding as an answer; of equally strict ones the first, which is the plainest kind.

    A hint is given once per episode, a note to give up with the first refusal of an episode.
    """
    state: StallState = run.state
    winner = max(findings, key=lambda finding: STRICTNESS[finding.stall.rung])
    stall = winner.stall
    state.stalled = stall
    told = max(finding.told for finding in findings if finding.stall.rung == stall.rung)
    for finding in findings:
        level = {"hint": HINTED, "deny": GAVE_UP}.get(finding.stall.rung, 0)
        setattr(finding.holder, finding.flag, max(finding.told, level))
    if stall.rung == "hint":
        if told >= HINTED:
            return None
        state.noted = True
        return _act(run, stall)
    if stall.rung != "deny":
        return _act(run, stall)
    notes = () if told >= GAVE_UP else (_note(run, stall),)
    state.noted = True
    return (_act(run, stall), *notes) if can_deny else notes or None


def _act(run: RunView, stall: Stalled) -> Action:
    action: Action = getattr(run, stall.rung)(
        stall.code,
        f"stall.{stall.rung}",
        observed=stall.observed,
        limit=stall.limit,
        tool=stall.tool,
        pattern=stall.pattern,
        period=stall.period,
    )
    return action


def _note(run: RunView, stall: Stalled) -> Action:
    return run.hint(
        stall.code,
        "stall.give_up",
        observed=stall.observed,
        limit=stall.limit,
        tool=stall.tool,
        pattern=stall.pattern,
        period=stall.period,
    )
