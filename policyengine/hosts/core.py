"""`HostRun`: the state machine that every adapter drives, so that an adapter only translates.

Knows: the order of a run, batches, late and missing answers, wind-down, what to do where a host cannot do something.
Must not know: any framework, how a model or a tool is called.

Decisions are those of `replay` for the same events up to the first stop. Results are reported as they come, which is
call order wherever the host runs one call after the other; the results of calls that do not run come in call order
between them. A host that knows of no responses reports each call by itself (`call`): a batch and a round of its own
(docs/decisions/0007), so "40 rounds" are 40 calls there.

Nothing here raises into a host: an exception of the engine, or wrong use by an adapter, is a refusal with the code
`adapter_failed` (see `closed`). With `strict`, wrong use raises `UsageError`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from policyengine.actions import Ask, Deny, EndStep, Retry, Rewrite, Stop, WindDown
from policyengine.decision import Decision, Note
from policyengine.errors import UsageError
from policyengine.hosts.closed import ADAPTER_FAILED, FAILED_TEXT, LATE_TEXT, WITHHELD_TEXT, fail_closed
from policyengine.hosts.host import Host
from policyengine.hosts.state import HostState, Move, OpenCall, Ruling, Turn, farewell
from policyengine.identity import call_identity
from policyengine.messages import (
    Batch,
    ModelRequest,
    ModelResponse,
    ProviderError,
    Status,
    ToolCall,
    ToolError,
    ToolResult,
    Usage,
)
from policyengine.outcome import Outcome, OutcomeStatus
from policyengine.parsing.verdict import ANSWERED, WARNING_KINDS, Verdict
from policyengine.run import HumanAnswer, Run, read_driver
from policyengine.runstate import StopReason
from policyengine.shared.account import check_ledger
from policyengine.shared.pools import Need, Reserving, all_down
from policyengine.workers import fault_text

if TYPE_CHECKING:
    from policyengine.engine import Engine

REQUEST = ModelRequest(())
"""Stands for a request of which the host tells nothing."""

PAUSED = "pause_turn"
"""Why a response ended that Anthropic wants to be sent back as it is, to go on with it: it is no answer yet."""

MOST_FAILURES = 3
"""The failure of our own at which a run ends: an engine that fails at every response must not be asked for ever."""

MOST_RECENT = 200
"""For how many answered calls a late result is still taken."""

_END_ACTIONS = Stop | EndStep


def _moved(error: Exception, host_run: HostRun, /, *_: Any, **__: Any) -> Move:
    return Move("end", stop=host_run.give_up(error).stop)


def _turned(error: Exception, host_run: HostRun, /, text: str = "", calls: Sequence[ToolCall] = (), **__: Any) -> Turn:
    rulings = tuple(_refused(call) for call in calls)
    stop = host_run.failed(error)
    if host_run.ended:
        return Turn("ended", rulings, stop=stop)
    return Turn("calls" if rulings else "unusable", rulings, stop=stop)


def _ruled(
    error: Exception, host_run: HostRun, /, call: ToolCall | str = "", *_: Any, call_id: str = "", **__: Any
) -> Ruling:
    host_run.failed(error)
    return _refused(call if isinstance(call, ToolCall) else ToolCall(call or call_id, ""))


def _withheld(error: Exception, host_run: HostRun, /, call_id: str, *_: Any, **__: Any) -> ToolResult:
    if not isinstance(error, UsageError):  # results of calls that were never judged come where a guard came late
        host_run.failed(error)
    elif host_run.strict:
        raise error
    return ToolResult(call_id, WITHHELD_TEXT, "error", ToolError(ADAPTER_FAILED, WITHHELD_TEXT, False))


def _refused(call: ToolCall) -> Ruling:
    return Ruling(call, "refuse", FAILED_TEXT, ADAPTER_FAILED)


class HostRun:
    """One run of a host under one engine. Thread-safe: hosts answer calls of a batch from several threads.

    A call that was let through and got no answer counts as started: nobody knows. An adapter that does know says so:
    `was_started` gets the id of such a call.

    Args:
        engine: whose policy decides.
        host: what can be done with a decision; what cannot becomes the nearest stricter thing that can.
        run: a run of the engine; by default a new one, made with `options` of `Engine.start_run`.
        attended: whether a human is there to be asked; if not, what would be asked is refused.
        tools: the names on offer; a call of another one is answered with an error. `None`: the host does that.
        strict: wrong use raises instead of refusing.
        ledger: reserves what rules count together with other processes. It waits for its store, in the thread that
            reports the event.

    Raises:
        UsageError: a rule of the policy counts in a shared pool, and there is no ledger.
    """

    def __init__(
        self,
        engine: Engine,
        host: Host,
        *,
        run: Run | None = None,
        state: HostState | None = None,
        attended: bool = True,
        tools: Collection[str] | None = None,
        strict: bool = False,
        ledger: Reserving | None = None,
        **options: Any,
    ) -> None:
        check_ledger((run.snapshot if run is not None else engine.snapshot).shared, ledger)
        self.engine = engine
        self.host = host
        self.run = run if run is not None else engine.start_run(**options)
        self.state = state if state is not None else HostState()
        self.attended = attended
        self.tools = tools
        self.strict = strict
        self.ledger = ledger
        self.was_started: Callable[[str], bool] | None = None
        self._lock = threading.RLock()

    @classmethod
    def resume(cls, engine: Engine, host: Host, saved: bytes, **options: Any) -> HostRun:
        """Return the run that `save` wrote, open calls included."""
        run, kept = engine.resume_run(saved)
        return cls(engine, host, run=run, state=read_driver(kept, HostState), **options)

    def save(self) -> bytes:
        """Return the run as JSON, at any point."""
        with self._lock:
            return self.run.save(self.state)

    # ---- what an adapter asks

    @property
    def ended(self) -> bool:
        """Whether the run is over, so that nothing may run any more."""
        return self.state.outcome is not None

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended, once it has."""
        return self.state.outcome

    @property
    def stop(self) -> StopReason | None:
        """Why the run ended, where a rule ended it."""
        return self.state.outcome.stop if self.state.outcome is not None else None

    @property
    def farewell(self) -> str:
        """What the user reads of a run that a rule ended; empty where none did."""
        return farewell(self.stop) if self.stop is not None else ""

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The calls that have no answer yet."""
        with self._lock:
            return tuple(item.call for item in self.state.open if item.result is None and not item.reported)

    def take_notes(self) -> tuple[Note, ...]:
        """Return the notes that wait, and forget them; none while a call of the batch has no answer.

        `before_model` returns them too: an adapter uses one of the two.
        """
        with self._lock:
            if self.state.open and not self.ended:
                return ()
            notes = self.run.take_notes()
            if notes and "hint" not in self.host.can:
                self.state.undelivered += notes
                return ()
            return notes

    # ---- events

    @fail_closed(_moved)
    def begin(self, task: str) -> Move:
        """Report that the run begins. A run that was begun already (a resumed one) hears a message of the user."""
        with self._lock:
            if self.run.state.started:
                return self.user_message(task)
            if self.tools:
                from policyengine.offered import warn

                warn(self.run.snapshot, self.tools)
            return self._move(self.run.start(task))

    @fail_closed(_moved)
    def user_message(self, text: str, *, injected: bool = False) -> Move:
        """Report a message of the user during the run; `injected` is text of the harness in the user's name."""
        with self._lock:
            if self.ended:
                return self._over()
            if not injected:  # what a harness says while calls are running ends none of them
                self._settle()
            if self.ended:
                return self._over()
            self.state.final = False
            return self._move(self.run.user_message(text, injected=injected))

    @fail_closed(_moved)
    def before_model(self, request: ModelRequest = REQUEST) -> Move:
        """Report a request that is about to be sent; the move says whether it is, and with which notes.

        A second request without a response between is another attempt of the same round.
        """
        with self._lock:
            state = self.state
            if self.ended:
                return self._over()
            if not state.in_round or state.responded:
                self._settle()
                if self.ended:
                    return self._over()
                self._begin_round()
            state.final = False
            state.attempt += 1
            changed = self._request(msgspec.structs.replace(request, attempt=state.attempt))
            if self.ended:
                return self._over()
            return Move("send", self.take_notes(), changed)

    @fail_closed(_moved)
    def provider_error(self, error: ProviderError) -> Move:
        """Report a failed request, classified (`classify_provider_error`)."""
        with self._lock:
            if self.ended:
                return self._over()
            if self.run.state.shared is not None:
                self.run.state.shared.failed(error.code)
                self._pay()
            decision = self.run.after_provider_error(error)
            if isinstance(decision.control, _END_ACTIONS):
                return self._end_now(decision)
            if isinstance(decision.control, Retry) and "recover" in self.host.can:
                return Move("again", remedy=decision.control.remedy)
            return Move("fail")

    @fail_closed(_turned)
    def after_model(
        self,
        text: str = "",
        calls: Sequence[ToolCall] = (),
        *,
        reasoning: str = "",
        finish_reason: str = "",
        usage: Usage | None = None,
        model: str = "",
    ) -> Turn:
        """Report a response with all its calls; every call is judged before any of them runs."""
        with self._lock:
            given = tuple(_whole(call) for call in calls)
            if self.ended:
                return self._ended_turn(given)
            self._open_response()
            response = ModelResponse(text, given, reasoning, finish_reason, usage, model)
            from policyengine.history import build as history  # many events of a hook need none of it

            response = history.with_ids(response, self.run.state.iteration)
            if self.ended:
                return self._ended_turn(response.tool_calls)
            self._count(usage)
            turn = self._read(response)
            self._pay()
            return turn

    @fail_closed(_ruled)
    def call(self, call: ToolCall) -> Ruling:
        """Report a call that is about to run, where nothing is known of the response: a batch and a round of its own.

        Calls reported before may still be running.
        """
        with self._lock:
            call = _whole(call)
            if not call.id:
                call = msgspec.structs.replace(call, id=f"call-{self.run.state.calls + 1}")
            if self.ended:
                return self._not_run(call)
            self._close_round()
            self._carry_out()
            if not self.ended:
                self._open_response(keep=True)
            if self.ended:
                return self._not_run(call)
            ruling = self._judge((call,), {call.id: call}).rulings[0]
            self._pay()
            return ruling

    @fail_closed(_ruled)
    def approve(self, call_id: str, approved: bool | None, digest: str | None = None, *, said: str = "") -> Ruling:
        """Report what a human answered about a call that was asked about; only `True` lets it run.

        `None`: nobody could be asked after all. With the `digest` of the ruling that was shown, an approval of another
        call counts as none. What the human `said` follows the text of a refusal.
        """
        with self._lock:
            item = self._find(call_id)
            if item is None or not item.ask:
                raise UsageError(f"nothing is being asked about call {call_id!r}")
            item.ask = False
            runs = approved is True and digest in (None, _identity(item.call))
            answer: HumanAnswer = "approved" if runs else "nobody" if approved is None else "refused"
            self.run.human_answered(item.call, answer, item.rule, text=said)
            if not runs:
                code = "nobody_to_ask" if approved is None else "refused_by_human"
                self._refuse(item, "denied", code, {"rule": item.rule}, said=said)
                ruling = self._ruling(item)
                self._report()
                return ruling
            return self._ruling(item)

    def answer(
        self,
        call_id: str,
        text: str = "",
        status: Status = "ok",
        *,
        error: ToolError | None = None,
        duration_s: float | None = None,
        exit_code: int | None = None,
    ) -> str:
        """Report the result of a call; return the text to give the model, which a rule may have changed."""
        return self.answer_result(call_id, ToolResult(call_id, text, status, error, exit_code, duration_s)).text

    @fail_closed(_withheld)
    def answer_result(self, call_id: str, result: ToolResult) -> ToolResult:
        """Report the result of a call; return the one to give the model.

        Answers may come in any order and from any thread. One that comes after its round was closed is judged all the
        same, one that comes after the end of the run is left out.
        """
        with self._lock:
            result = msgspec.structs.replace(result, call_id=call_id)
            if self.ended:
                return ToolResult(call_id, LATE_TEXT, "not_run", ToolError("late", LATE_TEXT, False))
            item = self._find(call_id)
            if item is None or item.reported:
                return self._late(call_id, result)
            if item.result is not None:
                raise UsageError(f"call {call_id!r} was refused, and has its answer")
            if item.ask:  # a host that does not tell what its human said: the call ran, so it was approved
                item.ask = False
                self.run.human_answered(item.call, "approved", item.rule)
            self._report(before=item)
            told = self._report_one(item, result)
            self._report()
            self._pay()
            return told

    @fail_closed(lambda error, host_run, /, *_, **__: host_run.give_up(error))
    def end(self, status: OutcomeStatus | None = None, *, output: str = "", error: str = "") -> Outcome:
        """Report that the host ends the run; return its outcome. A run that has ended keeps the one it has.

        Without a `status` it is `completed` if the last response was a final answer, else `cancelled`.
        """
        with self._lock:
            if self.state.outcome is None:
                self._settle()
            if self.state.outcome is not None:
                return self.state.outcome
            if status is None:
                status = "completed" if self.state.final or output else "cancelled"
            stop = self.state.winding_down if status in ("completed", "stopped") else None
            return self._finish(status, stop, output or self.state.text, error)

    # ---- failures of our own

    def failed(self, error: Exception) -> StopReason:
        """Return the typed reason of a failure of the adapter or the engine; wrong use raises where that is wanted."""
        if self.strict and isinstance(error, UsageError):
            raise error
        self.state.failures += 1
        iteration = self.run.state.iteration
        if self.state.failures < MOST_FAILURES:
            return StopReason(ADAPTER_FAILED, "", action="deny", message=FAILED_TEXT, iteration=iteration)
        stop = StopReason(ADAPTER_FAILED, "", action="stop", message=FAILED_TEXT, iteration=iteration)
        self._fail(stop, error)
        return stop

    def give_up(self, error: Exception) -> Outcome:
        """Return the outcome of a run whose end could not be reported."""
        self._fail(self.failed(error), error)
        assert self.state.outcome is not None
        return self.state.outcome

    def _fail(self, stop: StopReason, error: Exception) -> None:
        """End the run as failed, unless it has ended; observers and journal are told if they can be."""
        if self.state.outcome is None:
            self.state.outcome = Outcome(
                "failed", stop=stop, error=fault_text(error), calls=self.run.state.calls, executed=self.state.executed
            )
            self._tell_end(self.state.outcome)

    @fail_closed(lambda *_, **__: None)
    def _tell_end(self, outcome: Outcome) -> None:
        with self._lock:
            self.run.end(outcome)
            self._pay()

    # ---- rounds

    def _begin_round(self) -> None:
        state = self.state
        self.run.begin_iteration()
        state.in_round, state.responded, state.usable = True, False, True
        state.calls = state.attempt = state.asked_again = 0

    def _open_response(self, *, keep: bool = False) -> None:
        """Make sure that a round waits for a response: a host may have told nothing of the request.

        With `keep`, calls of earlier rounds stay open.
        """
        state = self.state
        if not state.in_round or state.responded:
            if not keep:
                self._settle()
            if self.ended:
                return
            self._begin_round()
            state.attempt = 1
            self._request(REQUEST)
        state.responded = True
        state.rounds = self.run.state.iteration

    def _request(self, request: ModelRequest) -> ModelRequest | None:
        """Have a request judged; return the changed one, if a rule changed it and the host can send it."""
        self._reserve(self.run.needs_of_request())
        decision = self.run.before_model_call(request)
        if isinstance(decision.control, _END_ACTIONS):
            if self.run.state.shared is not None:
                self.run.state.shared.unsent()
            self._end_now(decision)
        elif isinstance(decision.control, WindDown):
            self._wind_down(decision, self.run.state.iteration - 1)
            self._carry_out()
        elif decision.changed is not None and "rewrite_request" not in self.host.can:
            self._end_now(decision)
        else:
            changed: ModelRequest | None = decision.changed
            return changed
        return None

    def _settle(self) -> None:
        """Before something new: complete what was left unanswered, and close the round."""
        for item in self.state.open:
            if not item.reported and item.result is None:
                self._complete(item)
        self._report()
        self._close_round()
        self._carry_out()

    def _complete(self, item: OpenCall) -> None:
        """Answer a call of which nothing was heard: it counts as started, unless it waited or was left out for sure."""
        asked, item.ask = item.ask, False
        if "after_tool_call" in self.host.silent:
            self.state.executed += 1
            item.result = ToolResult(item.call.id, "")
        elif asked:
            self.run.human_answered(item.call, "nobody", item.rule)
            self._refuse(item, "cancelled", "cancelled", {})
        elif self.was_started is not None and not self.was_started(item.call.id):
            self._refuse(item, "cancelled", "cancelled", {})
        else:
            self.state.executed += 1
            self._refuse(item, "interrupted", "interrupted", {}, status="error")

    def _close_round(self) -> None:
        state = self.state
        if not state.in_round or not state.responded:
            return
        state.in_round = False
        decision = self.run.end_iteration(state.calls, state.usable)
        if state.final:
            return  # the model gave its answer, and no rule can stop it any more
        if isinstance(decision.control, _END_ACTIONS) and state.ending is None:
            state.ending = self.run.stopped(decision)
        else:
            self._wind_down(decision, self.run.state.iteration)
        if state.calls and state.winding_down is not None and self.run.state.iteration > state.wound_after:
            state.refusals_left -= 1
        self._carry_out()

    def _carry_out(self) -> None:
        """End the run if that was decided; called where nothing of the batch is open any more."""
        state = self.state
        if state.outcome is not None:
            return
        if state.ending is not None:
            self._finish("waiting" if state.ending.action == "hand_over" else "stopped", state.ending)
        elif state.winding_down is not None and state.refusals_left <= 0 and not state.in_round:
            self._finish("stopped", state.winding_down)

    def _wind_down(self, decision: Decision, after: int, call: int | None = None) -> None:
        state = self.state
        if not isinstance(decision.control, WindDown) or state.winding_down is not None:
            return
        if "wind_down" not in self.host.can:
            if state.ending is None:
                state.ending = self.run.stopped(decision, call=call)
            return
        reason = state.winding_down = self.run.stopped(decision, call=call)
        state.wound_after = after
        state.refusals_left = self.run.snapshot.policy.wind_down_rounds
        self.run.queue_note(Note(reason.rule, "wind_down", reason.message))

    # ---- responses

    def _read(self, response: ModelResponse) -> Turn:
        """Let a response be judged as it came and as it was read, and act on it."""
        silent = self.host.silent
        if "after_model_response" not in silent:
            seen = self.run.after_model_response(response)
            if isinstance(seen.control, _END_ACTIONS):
                return self._unused(response, seen)
            if isinstance(seen.control, Retry):
                return self._retry(response, seen.message)
        if "after_parse" in silent:
            verdict = Verdict("ok", response.tool_calls, response.text)
        else:
            verdict = self._parse(response)
            decision = self.run.after_parse(verdict)
            verdict = decision.changed or verdict
            if isinstance(decision.control, _END_ACTIONS):
                return self._unused(response, decision)
            if isinstance(decision.control, Retry):
                return self._retry(response, decision.message)
            self._wind_down(decision, self.run.state.iteration)
            if self.state.ending is not None:
                return self._stopped_turn(response)
        self.state.text = verdict.text or self.state.text
        if response.finish_reason == PAUSED and not verdict.calls:
            self._close_round()
            return Turn("ended" if self.ended else "calls", text=verdict.text, stop=self.stop)
        if not verdict.usable:
            return self._unusable(response, WARNING_KINDS[verdict.kind], verdict.reason)
        if verdict.final and not verdict.text.strip() and verdict.reason != ANSWERED:
            return self._unusable(response, "empty", "nothing_left")
        if verdict.final:
            return self._final(response, verdict.text or self.state.text)
        return self._judge(response.tool_calls, {call.id: call for call in verdict.calls})

    def _parse(self, response: ModelResponse) -> Verdict:
        from policyengine.parsing.parse import parse_response  # a host that tells nothing of responses needs none

        # Without `text_fallback`: what the host does not take for a call, nobody runs.
        mode = self.run.snapshot.policy.parsing_of(response.model).mode
        return parse_response(response, tools=self.tools, mode=mode)

    def _final(self, response: ModelResponse, text: str) -> Turn:
        """Take a text for the answer; calls that a rule took out of the response do not run."""
        items = [OpenCall(call) for call in response.tool_calls]
        for item in items:
            self._refuse(item, "not_run", "not_run", {"rule": "", "alone": True})
        self.state.final = True
        self._close_round()
        return Turn("final", tuple(map(self._ruling, items)), text)

    def _retry(self, response: ModelResponse, notice: str) -> Turn:
        """Ask again within the round, as often as the policy allows; then the response is unusable."""
        state = self.state
        cap = self.run.snapshot.policy.parsing_of(response.model).max_retry
        if "retry" not in self.host.can or state.asked_again >= cap:
            return self._unusable(response, "misformat", "retries_exhausted")
        state.asked_again += 1
        state.responded = False
        rulings = tuple(Ruling(call, "not_run", notice, "retry") for call in response.tool_calls)
        return Turn("retry", rulings, notice=notice)

    def _unusable(self, response: ModelResponse, kind: str, reason: str) -> Turn:
        """Warn about a response by kind; nothing of it runs."""
        warning, decision = self.run.add_warning(kind, {"reason": reason})
        self.run.queue_note(Note("parsing", f"warning.{warning.kind}", warning.text))
        if isinstance(decision.control, _END_ACTIONS):
            self.state.ending = self.run.stopped(decision)
        rulings = tuple(Ruling(call, "not_run", warning.text, warning.kind) for call in response.tool_calls)
        self.state.usable = False
        self._close_round()
        return Turn("ended" if self.ended else "unusable", rulings, stop=self.stop)

    def _unused(self, response: ModelResponse, decision: Decision) -> Turn:
        """A stop between response and batch: nothing runs, and every call has its answer."""
        self.state.ending = self.run.stopped(decision)
        self.state.text = response.text or self.state.text
        return self._stopped_turn(response)

    def _stopped_turn(self, response: ModelResponse) -> Turn:
        items = [OpenCall(call, round=self.run.state.iteration) for call in response.tool_calls]
        self.state.open += items
        self.state.calls = len(items)
        self._refuse_rest(items)
        rulings = tuple(map(self._ruling, items))
        self._report()
        return Turn("ended", rulings, stop=self.stop)

    # ---- calls

    def _judge(self, sent: tuple[ToolCall, ...], read: dict[str, ToolCall]) -> Turn:
        """Judge every call of a response, in call order, before anything runs.

        `sent` are the calls as the host has them, `read` the same as the policy reads them; what a rule took out of a
        response does not run.
        """
        state, run = self.state, self.run
        self._reserve(run.needs_of_calls(tuple(read.values())))
        run.state.batches += 1
        batch = f"batch-{run.state.batches}"
        items: list[OpenCall] = []
        asking = False
        for index, call in enumerate(sent):
            if call.id not in read:
                item = OpenCall(call)
                self._refuse(item, "not_run", "not_run", {"rule": "", "alone": True})
            else:
                judged = read[call.id] if "rewrite" in self.host.can else call
                decision = run.before_tool_call(judged, Batch(batch, index))
                item = self._judged(call, judged, decision)
                if isinstance(decision.control, _END_ACTIONS) and state.ending is None:
                    state.ending = run.stopped(decision, call=run.state.calls)
                elif isinstance(decision.control, WindDown):
                    self._wind_down(decision, run.state.iteration, run.state.calls)
                elif item.ask and not asking and state.ending is None:
                    asking = True
                    run.stopped(decision, call=run.state.calls)
            item.round = run.state.iteration
            items.append(item)
        state.open += items
        state.calls += len(items)
        if state.ending is not None or state.winding_down is not None:
            self._refuse_rest(items)
        rulings = tuple(map(self._ruling, items))
        self._report()
        return Turn("ended" if self.ended else "calls", rulings, text=state.text, stop=self.stop)

    def _judged(self, sent: ToolCall, judged: ToolCall, decision: Decision) -> OpenCall:
        call = decision.changed or judged
        changed = decision.changed is not None or _identity(judged) != _identity(sent)
        item = OpenCall(call, changed=changed, rule=decision.decided_by, at=decision.at)
        control = decision.control
        if isinstance(control, Deny):
            from policyengine.history.build import refusal

            error = ToolError(control.code, decision.message, False)
            item.result = ToolResult(call.id, refusal(decision), "denied", error)
        elif self.state.undelivered:
            self._tell_by_refusal(item)
        elif decision.changed is not None and "rewrite" not in self.host.can:
            self._refuse(item, "denied", "cannot_rewrite", {"rule": decision.decided_by})
        elif self.tools is not None and call.name not in self.tools:
            self._refuse(item, "unknown_tool", "unknown_tool", {"offered": sorted(self.tools)}, status="error")
        elif isinstance(control, Ask) and self.attended and "ask" in self.host.can:
            item.ask, item.question = True, decision.message
        elif isinstance(control, Ask):
            self._refuse(item, "denied", "nobody_to_ask", {"rule": decision.decided_by})
            self.run.human_answered(item.call, "nobody", item.rule)
        if item.result is not None and not isinstance(control, Deny) and item.result.error is not None:
            self.run.set_aside(item.call, item.result.error.code)
        return item

    def _tell_by_refusal(self, item: OpenCall) -> None:
        """Give notes that the host cannot add to the history as the answer to a call, which is refused for that."""
        notes, self.state.undelivered = self.state.undelivered, []
        text = "\n".join(note.text for note in notes)
        item.rule = notes[0].rule
        item.result = ToolResult(item.call.id, text, "denied", ToolError("note", text, True))

    def _refuse(
        self,
        item: OpenCall,
        kind: str,
        code: str,
        variables: dict[str, Any],
        status: Status | None = None,
        said: str = "",
    ) -> None:
        text = self.run.snapshot.templates.render(kind, {"tool": item.call.name, **variables})
        text = f"{text}\n{said}" if said.strip() else text
        status = status or ("denied" if kind == "denied" else "not_run")
        item.result = ToolResult(item.call.id, text, status, ToolError(code, text, False))

    def _refuse_rest(self, items: list[OpenCall]) -> None:
        """Nothing of the batch runs: answer every call that has no answer yet."""
        ending = self.state.ending
        for item in items:
            item.ask = False
            if item.result is not None or item.reported:
                continue
            if ending is not None:
                item.rule, item.at = ending.rule, ending.at
                self._refuse(item, "not_run", "not_run", {"rule": ending.rule, "alone": len(items) == 1})
            else:
                if self.state.winding_down is not None:
                    item.rule, item.at = self.state.winding_down.rule, self.state.winding_down.at
                self._refuse(item, "wind_down.refuse", "wind_down", {})

    def _ruling(self, item: OpenCall) -> Ruling:
        call, result = item.call, item.result
        digest = _identity(call)
        if result is None:
            action: Any = "ask" if item.ask else "run"
            text = item.question if item.ask else ""
            return Ruling(call, action, text, "", item.rule, item.changed, digest, item.at)
        code = result.error.code if result.error else ""
        action = "not_run" if result.status == "not_run" else "refuse"
        return Ruling(call, action, self._told(call, result).text, code, item.rule, item.changed, digest, item.at)

    def _not_run(self, call: ToolCall) -> Ruling:
        """Return the ruling on a call after the end of the run."""
        rule, at = (self.stop.rule, self.stop.at) if self.stop is not None else ("", "")
        text = self.run.snapshot.templates.render("not_run", {"tool": call.name, "rule": rule, "alone": True})
        return Ruling(call, "not_run", text, "not_run", rule, at=at)

    # ---- results

    def _report(self, before: OpenCall | None = None) -> None:
        """Report the results of calls that do not run: each in call order, after the results of those before it.

        With `before`, all that stand before that call in its batch. Without, the round is closed where nothing is open.
        """
        state = self.state
        running: set[int] = set()
        for item in state.open:
            if item is before:
                return
            if item.reported or (before is not None and item.round != before.round):
                continue
            if item.result is not None and item.round not in running:
                self._report_one(item, item.result)
            elif before is None:
                running.add(item.round)
        if not running:
            state.open = []
            self._close_round()

    def _report_one(self, item: OpenCall, result: ToolResult) -> ToolResult:
        item.reported = True
        recent = self.state.recent
        recent[item.call.id] = item.call
        if len(recent) > MOST_RECENT:
            del recent[next(iter(recent))]
        if result.ran and item.result is None:
            self.state.executed += 1
        return self._judge_result(item.call, result)

    def _judge_result(self, call: ToolCall, result: ToolResult) -> ToolResult:
        told, decision = self.run.after_tool_call(call, result)
        state = self.state
        unable = decision.changed is not None and "rewrite_result" not in self.host.can
        if state.ending is None and (isinstance(decision.control, _END_ACTIONS) or unable):
            state.ending = self._stopped(decision)
        return self._told(call, told)

    def _late(self, call_id: str, result: ToolResult) -> ToolResult:
        call = self.state.recent.get(call_id)
        if call is None:
            raise UsageError(f"a result for call {call_id!r}, which was never judged")
        told = self._judge_result(call, result)
        if not self.state.open and not self.state.in_round:
            self._carry_out()
        return told

    def _told(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """Return a result in the form the policy wants (`tool_results`), where the host can change its text."""
        shown = "rewrite_result" in self.host.can and not result.beside  # an envelope has no place for an image
        text = self.run.envelope(call, result) if shown else ""
        return msgspec.structs.replace(result, text=text) if text else result

    def _find(self, call_id: str) -> OpenCall | None:
        """Return the open call of this id; of several the first that has no answer."""
        found = [item for item in self.state.open if item.call.id == call_id]
        return next((item for item in found if not item.reported), found[0] if found else None)

    # ---- the end

    def _move(self, decision: Decision) -> Move:
        return self._end_now(decision) if isinstance(decision.control, _END_ACTIONS) else Move()

    def _end_now(self, decision: Decision) -> Move:
        if self.state.ending is None:
            self.state.ending = self._stopped(decision)
        self._carry_out()
        return self._over()

    def _stopped(self, decision: Decision) -> StopReason:
        """Return why the run ends; a rewrite that the host cannot carry out ends it, too."""
        reason = self.run.stopped(decision)
        return msgspec.structs.replace(reason, action="stop") if isinstance(decision.control, Rewrite) else reason

    def _over(self) -> Move:
        return Move("end", stop=self.stop)

    def _ended_turn(self, calls: Iterable[ToolCall]) -> Turn:
        return Turn("ended", tuple(map(self._not_run, calls)), stop=self.stop)

    def _count(self, usage: Usage | None) -> None:
        if usage is not None:
            self.state.prompt_tokens += usage.prompt_tokens or 0
            self.state.completion_tokens += usage.completion_tokens or 0

    def _finish(
        self, status: OutcomeStatus, stop: StopReason | None, output: str | None = None, error: str = ""
    ) -> Outcome:
        state, run = self.state, self.run
        for item in state.open:  # a run may end while calls of earlier rounds are still running
            if not item.reported:
                if item.result is None:
                    self._complete(item)
                item.reported = True
                run.after_tool_call(item.call, item.result or ToolResult(item.call.id, "", "not_run"))
        state.open = []
        outcome = Outcome(
            status=status,
            output=state.text if output is None else output,
            stop=stop,
            error=error,
            iterations=state.rounds,
            calls=run.state.calls,
            executed=state.executed,
            interventions=run.state.interventions,
            prompt_tokens=state.prompt_tokens,
            completion_tokens=state.completion_tokens,
        )
        # Before anybody is told: whatever an observer does, nothing runs from here on.
        state.outcome = outcome
        run.end(outcome)
        self._pay()
        return outcome

    # ---- shared pools

    def _reserve(self, needs: tuple[Need, ...]) -> None:
        """Reserve of shared pools what comes next, before the rules judge it."""
        if not needs:
            return
        if self.ledger is None:  # a policy that came into force during the run has pools, the one before had none
            self.run.shared(all_down(needs))
            return
        self.run.shared(self.ledger.perform(needs, self.run.take_dues(), self.run.state.run_id))

    def _pay(self) -> None:
        """Settle what the run owes to shared pools."""
        dues = self.run.take_dues()
        if dues and self.ledger is not None:
            self.ledger.perform((), dues, self.run.state.run_id)


def _identity(call: ToolCall) -> str:
    return call_identity(call.name, call.args, call.arguments)


def _whole(call: ToolCall) -> ToolCall:
    """Return a call with the text of its arguments, where a host has only what it says."""
    if call.arguments or call.args is None:
        return call
    return msgspec.structs.replace(call, arguments=json.dumps(call.args, ensure_ascii=False, default=str))
