"""`Run`: the one object that the live loop, other people's loops and recordings drive.

Knows: which hook point belongs to which event, scopes, state cells, notes, the cap on the engine's own interventions.
Must not know: how a model or a tool is called, what a history looks like, files.

The driver reports events by calling methods and obeys the `Decision` each returns. Nothing here does I/O; sinks that
were registered (decision log, journal, live view) are told about every decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from time import monotonic
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from policyengine.actions import Deny, EndStep, Retry, Rewrite, Stop
from policyengine.context import RunView, failed
from policyengine.decision import Decision, Note, Vote, counted
from policyengine.dispatch import ALLOWED, Faults, decide, judge
from policyengine.errors import UsageError
from policyengine.extension import Extension, Scope
from policyengine.jsontext import converted, decode, encode, finite
from policyengine.killswitch import KillSwitch
from policyengine.log import log
from policyengine.messages import (
    Batch,
    HistoryWarning,
    Iteration,
    ModelRequest,
    ModelResponse,
    ProviderError,
    ToolCall,
    ToolResult,
)
from policyengine.outcome import Outcome
from policyengine.parsing.strict import StrictError, loads
from policyengine.parsing.verdict import Verdict
from policyengine.policy.days import today
from policyengine.rewrite import apply_rewrite, target_of
from policyengine.runstate import Cell, Conversation, RunState, StopReason
from policyengine.shared.account import Account, SharedRule, needs_of_calls, needs_of_request
from policyengine.shared.pools import OF_REQUESTS, Due, Grant, Need
from policyengine.snapshot import Entry, PolicySnapshot, Table, without
from policyengine.tally import RunTally
from policyengine.workers import fault_text

SAVE_VERSION = 1


class Report(msgspec.Struct, frozen=True):
    """One decision, as sinks (decision log, live view) are told of it.

    `seq` counts the decisions of the run; `us` is the rules' time in microseconds. What a human answered to a question
    comes as `hook` `human` with the call and the answer as `payload`; `decided_by` is the rule that asked.
    """

    run: Run
    hook: str
    payload: tuple[Any, ...]
    decision: Decision
    seq: int
    us: float


HumanAnswer = Literal["approved", "refused", "nobody"]
"""What came of a question to a human; `nobody`: there was none to ask, or no answer was ever heard of."""

HUMAN = "human"
"""Stands for the hook point where sinks are told of a human's answer."""

Sink = Callable[[Report], None]


class Journal(Protocol):
    """What records every event of a run, so that it can be replayed (see `telemetry.journal`)."""

    def begin(self, run_id: str, *, agent: str, protocol: str, conversation: str, policy: str) -> None:
        """Record how a new run was made, and under which policy (name and digest)."""
        raise NotImplementedError

    def resume(self, run_id: str, saved: bytes) -> None:
        """Record that a saved run goes on."""
        raise NotImplementedError

    def event(
        self, run_id: str, name: str, payload: tuple[Any, ...], now: float, faults: dict[str, str], decision: Decision
    ) -> None:
        """Record one reporting call with its complete content and the decision it led to."""
        raise NotImplementedError


T = TypeVar("T")


class SavedRun(msgspec.Struct, frozen=True):
    """A run as it is saved: its state, the conversation's, and whatever the driver keeps beside it (`loop`)."""

    version: int
    state: RunState
    conversation: Conversation
    loop: Any = None


def read_saved(saved: bytes) -> SavedRun:
    """Return what `Run.save` wrote.

    Raises:
        UsageError: the bytes are no saved run, or one of another version.
    """
    try:
        kept = decode(saved, SavedRun)
    except msgspec.DecodeError as error:
        raise UsageError(f"not a saved run: {error}") from error
    if kept.version != SAVE_VERSION:
        raise UsageError(f"the run was saved as version {kept.version}; this engine reads {SAVE_VERSION}")
    return kept


def read_driver(kept: Any, kind: type[T]) -> T:
    """Return what a driver kept beside a run (`SavedRun.loop`) as a `kind`.

    Raises:
        UsageError: it was kept by another driver, or is damaged.
    """
    try:
        return converted(kept, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"not a run that was saved here: {error}") from error


class Run:
    """The work on one user task, under one policy snapshot.

    Attributes: `state` (plain data, see `RunState`), `snapshot`, `conversation`, `shares` (the rules in force that
    count in shared pools); `last_event` is the event that was reported last, and `last_stop` the last reason that was
    made of a decision; `played` says that its tools are made up, so that nobody is told which names meet none.
    Not thread-safe: one run is decided by one thread at a time.
    """

    def __init__(
        self,
        snapshot: PolicySnapshot,
        state: RunState,
        *,
        conversation: Conversation | None = None,
        sinks: Sequence[Sink] = (),
        journal: Journal | None = None,
        clock: Callable[[], float] = monotonic,
        latest: Callable[[], PolicySnapshot] | None = None,
        enforce_time: bool = True,
        switch: KillSwitch | None = None,
        today: Callable[[], date] = today,
        tally: RunTally | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.state = state
        self.conversation = conversation if conversation is not None else Conversation()
        self.sinks = tuple(sinks)
        self.journal = journal
        self.clock = clock
        self.faults = Faults(
            enforce=enforce_time, switch=switch or KillSwitch(by_policy=snapshot.policy.kill_switch), today=today
        )
        self._latest = latest
        self.played = False
        self.last_event = ""
        self.last_stop: StopReason | None = None
        self._tally = tally
        self._tables: Mapping[str, Table] = {}
        self._views: dict[str, RunView] = {}
        self.shares: tuple[SharedRule, ...] = ()
        self._scopes: dict[str, list[str]] = {}
        self._bind(snapshot)

    # ---- events, in the order in which a run has them

    def start(self, task: str, *, now: float | None = None) -> Decision:
        """Report that the run begins with `task`, and with it the first step."""
        self._tick(now, begun=False)
        if self.state.started:
            raise UsageError(f"run {self.state.run_id!r} was started already")
        self.state.started = True
        self.state.task = task
        first = self._judge("run_start", (task,))
        return self._done("start", (task,), _merge(first, self._begin_step()))

    def user_message(self, text: str, *, injected: bool = False, now: float | None = None) -> Decision:
        """Report a message of the user during the run: it closes the implicit step and opens the next.

        Text that a harness injects in the user's name (`injected`) closes nothing.
        """
        self._tick(now)
        decision = ALLOWED["step_end"]
        if not injected:
            ended = self._judge("step_end", (self.state.step,))
            decision = _merge(ended, self._begin_step())
        return self._done("user_message", (text, injected), decision)

    def plan(self, *, active: bool, now: float | None = None) -> Decision:
        """Report that the run works along a plan from now on, or no longer."""
        self._tick(now)
        self.state.planned = active
        return self._done("plan", (active,), ALLOWED["step_end"])

    def next_step(self, *, now: float | None = None) -> Decision:
        """Report that the current step of the plan ended and the next one begins."""
        self._tick(now)
        ended = self._judge("step_end", (self.state.step,))
        return self._done("next_step", (), _merge(ended, self._begin_step()))

    def begin_iteration(self, *, now: float | None = None) -> int:
        """Open the next round and return its number, from 1. Here a run may take a newer policy (`reload.pin`)."""
        self._tick(now)
        self._repin()
        self.state.iteration += 1
        self.state.attempt = 0
        if "iteration" in self._scopes:
            self._reset("iteration")
        self._done("begin_iteration", (), ALLOWED["before_model_call"])
        return self.state.iteration

    def before_model_call(self, request: ModelRequest, *, now: float | None = None) -> Decision:
        """Report a request that is about to be sent; `decision.changed` is the rewritten request, if any."""
        self._tick(now)
        if request.tools and self.state.iteration == 1 and self.faults.forced is None and not self.played:
            from policyengine.offered import warn

            warn(self.snapshot, (tool.name for tool in request.tools))
        self.state.attempt = request.attempt
        decision = self._judge("before_model_call", (request,))
        if self.state.shared is not None:
            self.state.shared.asked()
        return self._done("before_model_call", (request,), decision)

    def after_model_response(self, response: ModelResponse, *, now: float | None = None) -> Decision:
        """Report a response, before it is parsed."""
        self._tick(now)
        decision = self._judge("after_model_response", (response,))
        if self.state.shared is not None:
            self.state.shared.answered(self.shares)
        return self._done("after_model_response", (response,), decision)

    def after_provider_error(self, error: ProviderError, *, now: float | None = None) -> Decision:
        """Report a failed request, classified."""
        self._tick(now)
        return self._done("after_provider_error", (error,), self._judge("after_provider_error", (error,)))

    def auxiliary_failed(self, error: ProviderError) -> None:
        """Tell sinks that have a `request_failed` of a failed auxiliary request; no rule is asked about it."""
        for sink in self.sinks:
            heard = getattr(sink, "request_failed", None)
            if heard is not None and not _told(partial(heard, self), error, "request_failed"):
                self.sinks = tuple(other for other in self.sinks if other is not sink)

    def after_parse(self, verdict: Verdict, *, now: float | None = None) -> Decision:
        """Report what the parser made of the response; `decision.changed` is the rewritten verdict, if any."""
        self._tick(now)
        read = verdict
        for call in verdict.calls:
            if call.args is None and call.arguments:
                read = msgspec.structs.replace(verdict, calls=tuple(map(_read, verdict.calls)))
                break
        return self._done("after_parse", (verdict,), self._judge("after_parse", (read, read.calls)))

    def add_warning(
        self, kind: str, data: dict[str, Any] | None = None, *, now: float | None = None
    ) -> tuple[HistoryWarning, Decision]:
        """Report that an unusable response is warned about; return the warning to add to the history.

        Its text is the template `warning.<kind>`, unless a rule rewrites it.
        """
        self._tick(now)
        data = data or {}
        variables = {"protocol": self.state.protocol, "reason": "", "forms": (), **data}
        text = self.snapshot.templates.render(f"warning.{kind}", variables)
        before = self._judge("hist_add_warning.start", (HistoryWarning(kind, text, data),))
        warning = before.changed or HistoryWarning(kind, text, data)
        after = self._judge("hist_add_warning.end", (warning,))
        return warning, self._done("add_warning", (kind, data), _merge(before, after))

    def before_tool_call(self, call: ToolCall, batch: Batch | None = None, *, now: float | None = None) -> Decision:
        """Report a call that is about to run; `decision.changed` is the rewritten call, if any.

        A host that knows which calls came in one response says so with `batch`; without it each call is its own.
        Where only the text of the arguments is reported, rules are shown what it says (`args`), if it is strict JSON.
        """
        self._tick(now)
        state = self.state
        state.calls += 1
        if batch is None:
            state.batches += 1
            batch = Batch(f"call-{state.batches}")
        if batch.id != state.judging:
            state.judging, state.refused = batch.id, {}
        table = self._tables["before_tool_call"]
        read = _read(call) if call.args is None and call.arguments else call
        if state.shared is not None:
            state.shared.admit(read, self.shares, state.agent)
        if table.rewriters:
            decision = self._judge_twice(table, read, batch)
        else:
            decision = self._judge("before_tool_call", (read, batch), call.name)
        if isinstance(decision.control, Deny):
            self._refused(call)
        return self._done("before_tool_call", (call, batch), decision)

    def set_aside(self, call: ToolCall, code: str, *, now: float | None = None) -> None:
        """Report that the driver itself will not run a call that was just judged, whatever the rules said of it.

        `code` says why (`unknown_tool`, `nobody_to_ask`). The rules learn of it in `RunView.refused`, so that the next
        call of the batch has the place; the result is reported as that of any call.
        """
        self._tick(now)
        self._refused(call)
        self._done("set_aside", (call, code), ALLOWED["before_tool_call"])

    def _refused(self, call: ToolCall) -> None:
        self.state.refused[call.id] = call.name
        if self.state.shared is not None:
            self.state.shared.refused(call)

    def human_answered(
        self,
        call: ToolCall,
        answer: HumanAnswer,
        rule: str = "",
        *,
        by: str = "",
        at: float = 0.0,
        text: str = "",
        now: float | None = None,
    ) -> None:
        """Report what came of a rule's question: a human `approved` or `refused` the call, or `nobody` answered.

        `by`, `at` (seconds since 1970) and `text` say who answered, when and what they said, where that is known.
        No rule is asked about it; sinks and journal are told. A call that did not run gets its result as any other.
        """
        self._tick(now)
        self._tell(HUMAN, (call, answer, by, at, text), Decision("before_tool_call", decided_by=rule), ())
        self._done("human_answered", (call, answer, rule, by, at, text), ALLOWED["before_tool_call"])

    def after_tool_call(
        self, call: ToolCall, result: ToolResult, *, now: float | None = None
    ) -> tuple[ToolResult, Decision]:
        """Report the result of a call, also of one that never ran; return the result to put into the history."""
        self._tick(now)
        read = _read(call) if call.args is None and call.arguments else call
        decision = self._judge("after_tool_call", (read, result), call.name)
        if self.state.shared is not None:
            self.state.shared.ended(call, result, failed=self.failed(call, result))
        self._done("after_tool_call", (call, result), decision)
        return decision.changed or result, decision

    def end_iteration(self, calls: int = 0, usable: bool = True, *, now: float | None = None) -> Decision:
        """Report the end of a round with the number of `calls` it made."""
        self._tick(now)
        decision = self._judge("after_iteration", (Iteration(self.state.iteration, calls, usable),))
        return self._done("end_iteration", (calls, usable), decision)

    def end(self, outcome: Outcome, *, now: float | None = None) -> None:
        """Report the end of the run. It can be reported once; nothing may be reported afterwards."""
        self._tick(now, begun=False)
        if self.state.started:
            self._judge("step_end", (self.state.step,))
        if self.state.shared is not None:
            self.state.shared.sent()
        self._judge("run_end", (outcome,))
        self._done("end", (outcome,), ALLOWED["run_end"])
        self.state.ended = True
        if self._tally is not None:
            self._tally.end(self)

    def stopped(self, decision: Decision, *, call: int | None = None) -> StopReason:
        """Turn a decision to stop, end the step, wind down or ask into the typed reason.

        It is told to `on_stop` observers. `call` is the number of the tool call that was being judged, if any.

        Raises:
            UsageError: the decision holds no control action.
        """
        control = decision.control
        if control is None:
            raise UsageError(f"the decision at {decision.hook!r} stops nothing")
        reason = StopReason(
            code=control.code,
            rule=decision.decided_by,
            at=decision.at,
            action=decision.ending,
            observed=control.observed,
            limit=control.limit,
            message=decision.message,
            iteration=self.state.iteration,
            call=call,
        )
        self.tell_stop(reason)
        return reason

    def tell_stop(self, reason: StopReason) -> Decision:
        """Tell `on_stop` observers of a stop; `stopped` does so, and the replay of a journal."""
        self.last_stop = reason
        if self._tally is not None:
            self._tally.stopped(self, reason)
        return self._done("stopped", (reason,), self._judge("on_stop", (reason,)))

    # ---- pools that many processes share: the driver reserves what is needed, and settles what is owed

    def needs_of_request(self) -> tuple[Need, ...]:
        """Return what has to be reserved before a request is reported; nothing where no rule has a shared pool."""
        return needs_of_request(self.shares, self.state.agent, self.conversation.id) if self.shares else ()

    def needs_of_calls(self, calls: Sequence[ToolCall]) -> tuple[Need, ...]:
        """Return what has to be reserved before the calls of a batch are reported, one by one."""
        return needs_of_calls(self.shares, calls, self.state.agent, self.conversation.id) if self.shares else ()

    def shared(self, grants: Sequence[Grant], *, now: float | None = None) -> Decision:
        """Report what the pools said to what was needed: rules decide from that about what comes next."""
        self._tick(now)
        grants = tuple(grants)
        if self.state.shared is None:
            self.state.shared = Account()
        self.state.shared.take(grants, {one.rule: one.pool for one in self.shares})
        before = any(grant.counts in OF_REQUESTS for grant in grants)
        return self._done("shared", (grants,), ALLOWED["before_model_call" if before else "before_tool_call"])

    def take_dues(self) -> tuple[Due, ...]:
        """Return what is owed to shared pools, and forget it."""
        account = self.state.shared
        if account is None or not account.dues:
            return ()
        dues, account.dues = tuple(account.dues), []
        return dues

    # ---- what a driver asks

    @property
    def killed(self) -> bool:
        """Whether the kill switch is on, so that no rule has an effect at the next event."""
        return self.faults.switch.on

    def take_notes(self) -> tuple[Note, ...]:
        """Return the queued notes and empty the queue. Call it only where every tool call is answered."""
        notes = tuple(self.state.notes)
        self.state.notes = []
        return notes

    def queue_note(self, note: Note) -> None:
        """Queue a note of the driver's own (a wind-down notice)."""
        self.state.notes = [*self.state.notes, note]

    def failed(self, call: ToolCall, result: ToolResult) -> bool:
        """Return whether a call failed, as a declared fact."""
        return failed(result, self.snapshot.tool(call.name))

    def envelope(self, call: ToolCall, result: ToolResult) -> str:
        """Return a result in the form the policy wants (`tool_results`); empty where it wants it as it is."""
        if self.snapshot.policy.tool_results != "envelope":
            return ""
        from policyengine.results.envelope import tool_result_envelope

        facts, step, trace_id = self.snapshot.tool(call.name), self.state.iteration, self.state.run_id
        made = tool_result_envelope(result, tool=call.name, step=step, trace_id=trace_id, facts=facts)
        return encode(made).decode()

    def save(self, loop: Any = None) -> bytes:
        """Return the run as JSON: load it with `Engine.resume_run`, in this process or another one.

        Raises:
            UsageError: the state of a rule cannot be written as JSON; the message names the rule.
        """
        exact = True
        for cells in (self.state.cells, self.conversation.cells):
            for rule, cell in cells.items():
                exact = _checked_cell(rule, cell) and exact
        # An infinity among the arguments of a call must be read back as it was, or another call would run.
        exact = exact and finite([item.call.args for item in getattr(loop, "pending", ())])
        return encode(SavedRun(SAVE_VERSION, self.state, self.conversation, loop), exact=exact)

    # ---- judging

    def _judge(self, hook: str, payload: tuple[Any, ...], tool: str | None = None) -> Decision:
        entries = self._tables[hook].entries
        watched = bool(self.sinks)
        votes: list[Vote] = []
        if entries:
            votes = judge(hook, entries, payload, tool, self.state, self._views, self.faults, watched)
        if not votes and not watched:
            return ALLOWED[hook]
        return self._settle(hook, payload, votes, target_of(hook, payload))

    def _judge_twice(self, table: Table, call: ToolCall, batch: Batch) -> Decision:
        """Ask the rules that may rewrite first; if one does, all rules judge the changed call, and only that."""
        hook, payload = "before_tool_call", (call, batch)
        first = self._votes(hook, table.rewriters, payload, call.name)
        rewrite = _rewrite(first)
        if rewrite is None:
            votes = first + self._votes(hook, table.judges, payload, call.name)
            return self._settle(hook, payload, votes, call)
        changed = apply_rewrite(call, rewrite)
        self.faults.again = True
        try:
            again = self._votes(hook, table.entries, (changed, batch), call.name)
        finally:
            self.faults.again = False
        votes = [_only(vote, True) for vote in first] + [_only(vote, False) for vote in again]
        return self._settle(hook, payload, votes, call)

    def _votes(self, hook: str, entries: Sequence[Entry], payload: tuple[Any, ...], tool: str | None) -> list[Vote]:
        return judge(hook, entries, payload, tool, self.state, self._views, self.faults, bool(self.sinks))

    def _settle(self, hook: str, payload: tuple[Any, ...], votes: list[Vote], target: Any) -> Decision:
        decision = decide(self.snapshot, hook, votes)
        if decision.control is not None or decision.notes:
            decision = self._carry_out(decision, target)
            if self._tally is not None:
                self._tally.decided(decision)
        if self.sinks:
            self._tell(hook, payload, decision, votes)
        return decision

    def _tell(self, hook: str, payload: tuple[Any, ...], decision: Decision, votes: Sequence[Vote]) -> None:
        """Tell all sinks; one that fails is not told again."""
        if not self.sinks:
            return
        self.state.seq += 1
        report = Report(self, hook, payload, decision, self.state.seq, sum(vote.us for vote in votes))
        for sink in self.sinks:
            if not _told(sink, report, hook):
                self.sinks = tuple(other for other in self.sinks if other is not sink)

    def _carry_out(self, decision: Decision, target: Any) -> Decision:
        """Count, queue and apply what a decision brings beside its control action."""
        # A request that is repeated after a failure is nothing that reaches the model.
        told = isinstance(decision.control, Deny | Retry) and decision.hook != "after_provider_error"
        if told or (decision.notes and counted(decision.votes)):
            decision = self._count_intervention(decision)
        if decision.notes:
            self.state.notes = [*self.state.notes, *decision.notes]
        rewrite = _rewrite(decision.votes)
        if rewrite is not None:
            decision = msgspec.structs.replace(decision, changed=apply_rewrite(target, rewrite))
        return decision

    def _done(self, method: str, payload: tuple[Any, ...], decision: Decision) -> Decision:
        """Close a reporting call: the journal holds it with its payload, its decision and its faults."""
        if self.journal is not None:
            seen = dict(self.faults.seen)
            self.journal.event(self.state.run_id, method, payload, self.state.now, seen, decision)
        self.last_event = method
        faults = self.faults
        if faults.seen:
            faults.seen.clear()
        faults.asked = None
        return decision

    def _count_intervention(self, decision: Decision) -> Decision:
        """Count a hint, deny or retry that reaches the model; past the cap it becomes a stop (or a hand-over)."""
        cap = self.snapshot.policy.interventions
        self.state.interventions += 1
        stronger = decision.control is not None and decision.control.rank >= EndStep.rank
        if self.state.interventions <= cap.max or stronger:
            return decision
        kind = f"interventions.{cap.then}"
        control = Stop("interventions", kind, float(self.state.interventions), float(cap.max))
        text = self.snapshot.templates.render(kind, {"observed": self.state.interventions, "limit": cap.max})
        return msgspec.structs.replace(
            decision,
            action=control.name,
            control=control,
            decided_by="interventions",
            at=f"{cap.position.file}:{cap.position.line}",
            message=text,
            notes=(),
            hand_over=cap.then == "hand_over",
        )

    # ---- scopes and state

    def _tick(self, now: float | None, *, begun: bool = True) -> None:
        if self.state.ended:
            raise UsageError(f"run {self.state.run_id!r} has ended; start a new one")
        if begun and not self.state.started:
            raise UsageError(f"run {self.state.run_id!r} was not started; call start(task) first")
        self.state.now = self.clock() if now is None else now

    def _begin_step(self) -> Decision:
        self._reset("step")
        self.state.step += 1
        return self._judge("step_start", (self.state.step,))

    def _repin(self) -> None:
        if self._latest is None or self.snapshot.policy.reload.pin != "iteration":
            return
        latest = self._latest()
        if latest is not self.snapshot:
            self.snapshot = latest
            self._bind(latest)

    def _bind(self, snapshot: PolicySnapshot) -> None:
        """Give every rule of `snapshot` a view with its state, new or carried over."""
        self.state.generation = snapshot.generation
        self.state.digest = snapshot.digest
        self._views = {}
        self._scopes = {}
        outside = self._outside(snapshot) if snapshot.rollouts else frozenset()
        self._tables = without(snapshot.tables, outside) if outside else snapshot.tables
        self.shares = snapshot.shared
        if outside and self.shares:
            self.shares = tuple(one for one in self.shares if one.rule not in outside)
        for rule_id, extension in snapshot.extensions.items():
            if rule_id in outside:
                continue
            scope = extension.state_scope()
            cell = self._cell(rule_id, snapshot.rules[rule_id].use, extension, scope)
            self._views[rule_id] = RunView(self.state, rule_id, cell.value if cell else None, snapshot.tool)
            if cell:
                self._scopes.setdefault(scope, []).append(rule_id)

    def _outside(self, snapshot: PolicySnapshot) -> frozenset[str]:
        """Return the rules for which this run is outside the rollout: they are not called, as if they were disabled."""
        names = {"run_id": self.state.run_id, "agent": self.state.agent, "conversation": self.conversation.id}
        return frozenset(rule for rule, rollout in snapshot.rollouts if not rollout.includes(names[rollout.by]))

    def _cell(self, rule_id: str, use: str, extension: Extension, scope: Scope) -> Cell | None:
        if extension.state is None:
            return None
        cells = self.conversation.cells if scope == "conversation" else self.state.cells
        kept = cells.get(rule_id)
        value = _carried(kept, use, extension)
        if value is None:
            if kept is not None:
                log().warning("state of rule {} ({}) no longer fits and starts afresh", rule_id, use)
            value = extension.state()
        cell = Cell(use, extension.state_version, scope, value)
        cells[rule_id] = cell
        return cell

    def _reset(self, scope: str) -> None:
        for rule_id in self._scopes.get(scope, ()):
            fresh = self.snapshot.extensions[rule_id].state()  # type: ignore[misc]  # only rules with state are listed
            self.state.cells[rule_id].value = fresh
            self._views[rule_id].state = fresh


def _read(call: ToolCall) -> ToolCall:
    """Return a call with its arguments parsed, where it has only their text: rules look at `args`.

    The journal holds what was reported; a replay reads it in the same way.
    """
    if call.args is not None or not call.arguments:
        return call
    try:
        args = loads(call.arguments)
    except StrictError:
        return call
    return ToolCall(call.id, call.name, call.arguments, args)


def _carried(cell: Cell | None, use: str, extension: Extension) -> msgspec.Struct | None:
    """Return the saved or running state of a rule if it still fits the extension, else `None`."""
    if cell is None or cell.use != use or cell.version != extension.state_version or extension.state is None:
        return None
    if type(cell.value) is extension.state:
        return cell.value
    try:
        return msgspec.convert(msgspec.to_builtins(cell.value), extension.state)
    except (msgspec.ValidationError, TypeError, UnicodeError, RecursionError):
        return None


def _checked_cell(rule: str, cell: Cell) -> bool:
    """Return whether JSON proper can hold a rule's state: NaN and infinity take its extended form."""
    try:
        encode(cell)
        return finite(msgspec.to_builtins(cell))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise UsageError(f"the state of rule {rule!r} ({cell.use}) cannot be saved: {error}") from error


def _merge(first: Decision, second: Decision) -> Decision:
    """Return two decisions made at one event as one: the stricter control, the notes and votes of both."""
    if not (second.votes or second.notes or second.control):
        return first
    rank = first.control.rank if first.control else 0
    stricter = second if second.control is not None and second.control.rank > rank else first
    return msgspec.structs.replace(stricter, notes=first.notes + second.notes, votes=first.votes + second.votes)


def _told(sink: Callable[[Any], None], what: Any, hook: str) -> bool:
    """Tell a sink; return whether it took the report. One that raises is logged and not told again in this run."""
    try:
        sink(what)
    except KeyboardInterrupt:  # somebody wants the program to end, and a sink only was at work at that moment
        raise
    except BaseException as error:  # noqa: BLE001 - what watches a run must not be able to end it
        log().error("a sink failed at {} and is not told of this run any more: {}", hook, fault_text(error))
        return False
    return True


def _rewrite(votes: Sequence[Vote]) -> Rewrite | None:
    """Return the first effective rewrite: policy order settles which of two wins."""
    return next((action for vote in votes for action in vote.effective if isinstance(action, Rewrite)), None)


def _only(vote: Vote, rewrites: bool) -> Vote:
    """Return a vote with only its rewrites, or with everything else."""
    kept = tuple(action for action in vote.effective if isinstance(action, Rewrite) is rewrites)
    return msgspec.structs.replace(vote, effective=kept)
