"""Drive a `Run` through a recording, or through a journal, and report what the engine would have done.

Knows: the order in which a live loop reports events; what counts as an intervention, a stop, a refused success.
Must not know: file formats of recordings, statistics over many runs.

The recording stands as it happened: recorded results are reported as results and the run goes on as if every
intervention had been ignored; the cap counts them all the same (docs/decisions/0010). Of what the engine says only the
part up to its first stop is an intervention: what follows would not have happened.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from policyengine.actions import EndStep, Hint, Record, Rewrite, Stop, WindDown
from policyengine.decision import Decision, Vote
from policyengine.identity import call_identity
from policyengine.messages import Batch, ModelRequest, ModelResponse, ToolCall, ToolResult, Usage
from policyengine.outcome import Outcome
from policyengine.parsing.guess import settle_guess
from policyengine.parsing.parse import parse_response
from policyengine.parsing.verdict import WARNING_KINDS, Verdict
from policyengine.recordings.loading import NotJsonError, decode
from policyengine.recordings.model import Event, ModelSaid, Recording, ToolAnswered, UserSaid
from policyengine.run import Run
from policyengine.runstate import Conversation
from policyengine.shared.alone import Alone
from policyengine.shared.pools import Need
from policyengine.telemetry.journal import RESUME, RUN, Content, Decoder, JournalError, Line, content

if TYPE_CHECKING:
    from policyengine.engine import Engine

NOT_STARTED = ("unknown_tool", "invalid_arguments")
"""Codes of the engine's own answers to calls that it could not run."""

REQUEST = ModelRequest(())
"""What `before_model_call` is given: rebuilding the history for every request would cost its length each time."""


class Intervention(msgspec.Struct, frozen=True):
    """Something the engine would have done. `call` is the number of the call judged, from 1 over the whole run.

    `at` is `file:line` of the rule.
    """

    iteration: int
    call: int | None
    hook: str
    action: str
    code: str
    rule: str
    observed: float | None
    limit: float | None
    message: str | msgspec.UnsetType = msgspec.UNSET
    at: str = ""


class Halt(msgspec.Struct, frozen=True):
    """Where the engine would have ended the run, and why."""

    code: str
    rule: str
    iteration: int
    call: int | None
    observed: float | None
    limit: float | None
    at: str = ""


class Wish(msgspec.Struct, frozen=True):
    """What a rule in mode `shadow` or `warn` would have done under `enforce`, at the beginning of each episode."""

    iteration: int
    call: int | None
    hook: str
    mode: str
    action: str
    code: str
    rule: str
    observed: float | None
    limit: float | None
    at: str = ""


class ReplayReport(msgspec.Struct, frozen=True):
    """What a policy makes of one recording.

    `iterations` and `calls` count the whole recording, `outcome` is how it ended. `stop` is the first decision that
    would have ended the run; a wind-down counts where it is decided, because without a reaction its refusal rounds end
    the run. `interventions` go up to that point, hints included, as does `denied_succeeded`: calls that would have been
    refused and had succeeded. `tokens` are those of all responses and `tokens_after_stop` those of later ones (and of
    the one that a stop before its request would have kept from being asked for), null without recorded usage.
    `new_calls_after_stop` counts the calls of later rounds that ran and were unlike every call before: the run was
    still at work. `recovered` counts the calls that the parser reads where the recording shows that nobody did.
    `policy` judged, `recorded_policy` is the one under which a journal was recorded, both as name and digest.
    """

    run: str
    source: str
    format: str
    iterations: int
    calls: int
    outcome: str
    first_intervention: Intervention | None
    stop: Halt | None
    interventions: tuple[Intervention, ...]
    label: bool | None
    tokens_after_stop: int | None
    denied_succeeded: int
    would: tuple[Wish, ...]
    new_calls_after_stop: int = 0
    recovered: int = 0
    tokens: int | None = None
    policy: str = ""
    recorded_policy: str = ""


Seen = Callable[[ModelResponse, Verdict], None]
"""Told of every round of a replay: the response, and the verdict whose calls were judged."""


def replay(recording: Recording, engine: Engine, seen: Seen | None = None) -> ReplayReport:
    """Report what the engine's policy makes of a recording."""
    # Named after the run, so that a draw by conversation (`rollout`) falls out the same every time.
    alone = Conversation(recording.id)
    run = engine.start_run(run_id=recording.id, protocol=recording.protocol, conversation=alone)
    # A recording has no timings of rules: the speed of this machine must not decide anything.
    run.faults.enforce = False
    return _Replay(recording, run, seen).report()


class _Replay:
    """One recording on its way through a run."""

    def __init__(self, recording: Recording, run: Run, seen: Seen | None = None) -> None:
        self._recording = recording
        self._seen = seen
        self._run = run
        self._results = {e.call_id: e.result for e in recording.events if isinstance(e, ToolAnswered) and e.call_id}
        self._now = 0.0
        self._pools = Alone(lambda: self._now)
        self._taken = 0
        self._unread_until = -1
        self._ended = recording.ended
        self._calls = 0
        self._usages: list[Usage] = []
        self._tokens_after_stop = 0
        self._interventions: list[Intervention] = []
        self._would: list[Wish] = []
        self._halt: Halt | None = None
        self._denied_succeeded = 0
        self._recovered = 0
        self._judged: list[ToolCall] = []
        self._before_stop = 0

    def report(self) -> ReplayReport:
        """Drive the run from the first event to the last."""
        events = self._recording.events
        first = events[0] if events else None
        if not isinstance(first, UserSaid):
            self._start("")
        for place, event in enumerate(events):
            self._happened(event, place, is_task=event is first)
        self._run.end(self._outcome(), now=self._now)
        return ReplayReport(
            run=self._recording.id,
            source=self._recording.source,
            format=self._recording.format,
            iterations=self._run.state.iteration,
            calls=self._calls,
            outcome=self._ended,
            first_intervention=self._interventions[0] if self._interventions else None,
            stop=self._halt,
            interventions=tuple(self._interventions),
            label=self._recording.label,
            tokens_after_stop=self._tokens_after_stop if self._usages else None,
            denied_succeeded=self._denied_succeeded,
            would=tuple(self._would),
            new_calls_after_stop=self._new_calls_after_stop(),
            recovered=self._recovered,
            tokens=sum(map(tokens, self._usages)) if self._usages else None,
            policy=self._run.snapshot.named,
            recorded_policy=self._recording.policy,
        )

    def _new_calls_after_stop(self) -> int:
        if self._halt is None or self._before_stop == len(self._judged):
            return 0
        known = {call_identity(call.name, call.args) for call in self._judged[: self._before_stop]}
        later = [call for call in self._judged[self._before_stop :] if call.id in self._results]
        return sum(call_identity(call.name, call.args) not in known for call in later)

    def _happened(self, event: Event, place: int, *, is_task: bool) -> None:
        self._now = self._now if event.at is None else event.at
        if isinstance(event, ModelSaid):
            self._round(event.response, place)
        elif place < self._taken:
            pass  # the result of a call that only the policy read
        elif isinstance(event, ToolAnswered):
            if not event.call_id:  # others are reported with the batch of their call
                self._see(self._run.user_message(event.result.text, injected=True, now=self._now))
        elif is_task:
            self._start(event.text)
        else:
            # Where only the policy reads calls, the harness complains of what it could not read either.
            harness = event.injected or (self._recording.undecided and place == self._unread_until)
            self._see(self._run.user_message(event.text, injected=harness, now=self._now))

    def _start(self, task: str) -> None:
        self._see(self._run.start(task, now=self._now))

    def _round(self, response: ModelResponse, place: int) -> None:
        """Report one model response and everything it causes, in the order of a live loop."""
        run, now = self._run, self._now
        run.begin_iteration(now=now)
        self._reserve(run.needs_of_request())
        self._see(run.before_model_call(REQUEST, now=now))
        self._count(response.usage)
        self._see(run.after_model_response(response, now=now))
        verdict = self._parse(response)
        if self._recording.undecided and verdict.usable and verdict.calls and not response.tool_calls:
            verdict = self._with_results(verdict, place)
        decision = run.after_parse(verdict, now=now)
        self._see(decision)
        if decision.changed is not None and not self._executed(verdict.calls):
            verdict = decision.changed
        if self._recording.undecided:
            self._settle_ending(verdict, place)
        if self._seen is not None:
            self._seen(response, verdict)
        if not verdict.usable:
            _, decision = run.add_warning(WARNING_KINDS[verdict.kind], {"reason": verdict.reason}, now=now)
            self._see(decision)
            self._see(run.end_iteration(0, False, now=now))
        else:
            self._batch(verdict.calls)
            ended = run.end_iteration(len(verdict.calls), True, now=now)
            if verdict.calls:  # after a text no rule can stop the run any more: it has its answer
                self._see(ended)
        run.take_notes()

    def _parse(self, response: ModelResponse) -> Verdict:
        """Return the parser's verdict, except that calls which the recording shows to have run were usable."""
        snapshot = self._run.snapshot
        parsing = snapshot.policy.parsing_of(response.model)
        verdict = parse_response(
            response,
            protocol=self._recording.protocol,
            tools=None,
            mode=parsing.mode,
            text_fallback=parsing.text_fallback,
            forms=parsing.forms or self._recording.forms,
        )
        verdict = settle_guess(verdict, lambda name: snapshot.tool(name).effect)
        if verdict.usable or not self._executed(response.tool_calls):
            if verdict.usable and verdict.calls and self._halt is None:
                self._recovered += self._unread(verdict, response)
            return verdict
        return Verdict("ok", response.tool_calls, response.text)

    def _with_results(self, verdict: Verdict, place: int) -> Verdict:
        """Return a verdict on a text with unique ids for its calls, and take what follows the text for their results.

        One message for each call answers them in order; any other number answers all of them together.
        """
        texts: list[str] = []
        for event in self._recording.events[place + 1 :]:
            if isinstance(event, UserSaid) and not event.injected and not texts:
                texts.append(event.text)
                break
            if not isinstance(event, ToolAnswered) or event.call_id:
                break
            texts.append(event.result.text)
        self._taken = place + 1 + len(texts)
        number = self._run.state.iteration
        calls = tuple(msgspec.structs.replace(call, id=f"{call.id}-of-{number}") for call in verdict.calls)
        each = texts if len(texts) == len(calls) else ["\n".join(texts)] * len(calls)
        if texts:
            self._results |= {call.id: ToolResult(call.id, text) for call, text in zip(calls, each, strict=True)}
        return msgspec.structs.replace(verdict, calls=calls)

    def _settle_ending(self, verdict: Verdict, place: int) -> None:
        """Note what a reply was that only the policy reads, for the message behind it and for the end of the run."""
        last = len(self._recording.events) - 1
        if not verdict.usable:
            self._unread_until = place + 1
        if place == last:
            self._ended = "call" if verdict.calls else "final_answer" if verdict.usable else "empty"
        elif verdict.calls and self._taken > last:
            self._ended = "tool_result"

    def _unread(self, verdict: Verdict, response: ModelResponse) -> int:
        """Return how many of the parser's calls the recorded harness did not read: their text, or their arguments."""
        if not response.tool_calls:
            return 0 if self._recording.undecided else len(verdict.calls)
        if not verdict.repairs:
            return 0
        sent = {call.id: call for call in response.tool_calls}
        mended = [call.id for call in verdict.calls if call.id in sent and not isinstance(sent[call.id].args, dict)]
        return sum(call_id not in self._results or self._results[call_id].status != "ok" for call_id in mended)

    def _executed(self, calls: tuple[ToolCall, ...]) -> bool:
        return any(call.id in self._results for call in calls)

    def _batch(self, calls: tuple[ToolCall, ...]) -> None:
        run, now = self._run, self._now
        before = self._calls
        self._judged += calls
        if self._halt is None:
            self._before_stop = len(self._judged)  # a call of the batch that is stopped is not made afterwards
        refused = []
        self._reserve(run.needs_of_calls(calls))
        for index, call in enumerate(calls):
            self._calls += 1
            decision = run.before_tool_call(call, Batch(f"batch-{run.state.iteration}", index), now=now)
            refused.append(self._halt is None and decision.action == "deny")
            self._see(decision, self._calls)
            code = _set_aside(self._results.get(call.id))
            if code and decision.action != "deny":
                run.set_aside(call, code, now=now)
        for index, call in enumerate(calls):
            result = self._results.get(call.id) or ToolResult(call.id, "", "not_run")
            if refused[index] and result.ran and not run.failed(call, result):
                self._denied_succeeded += 1
            _, decision = run.after_tool_call(call, result, now=now)
            self._see(decision, before + index + 1)

    def _reserve(self, needs: tuple[Need, ...]) -> None:
        """Reserve of shared pools as if this run were alone: nobody knows what others used when it was recorded."""
        if needs:
            self._run.shared(self._pools.perform(needs, self._run.take_dues()), now=self._now)

    def _count(self, usage: Usage | None) -> None:
        if usage is None:
            return
        self._usages.append(usage)
        if self._halt is not None:
            self._tokens_after_stop += tokens(usage)

    def _outcome(self) -> Outcome:
        texts = (e.response.text for e in reversed(self._recording.events) if isinstance(e, ModelSaid))
        return Outcome(
            status="completed" if self._ended == "final_answer" else "cancelled",
            output=next(texts, ""),
            error=self._recording.error,
            iterations=self._run.state.iteration,
            calls=self._calls,
            executed=sum(result.ran for result in self._results.values()),
            interventions=self._run.state.interventions,
            prompt_tokens=sum(usage.prompt_tokens or 0 for usage in self._usages),
            completion_tokens=sum(usage.completion_tokens or 0 for usage in self._usages),
        )

    # ---- what the engine says

    def _see(self, decision: Decision, call: int | None = None) -> None:
        for vote in decision.votes:
            if vote.episode and _held_back(vote):
                self._would.append(self._wish(decision, vote, call))
        if self._halt is not None or (decision.control is None and not decision.notes):
            return
        self._note_hints(decision, call)
        control = decision.control
        if control is None:
            return
        action = decision.ending
        if not (isinstance(control, Rewrite) and decision.hook == "after_parse"):
            # A verdict that was reclassified changes nothing by itself: what follows from it is reported.
            self._add(decision, call, action, control, decision.decided_by, decision.message, at=decision.at)
        if isinstance(control, Stop | EndStep | WindDown):
            self._run.stopped(decision, call=call)
            iteration = self._run.state.iteration
            self._halt = Halt(
                control.code, decision.decided_by, iteration, call, control.observed, control.limit, decision.at
            )

    def _note_hints(self, decision: Decision, call: int | None) -> None:
        texts = iter(decision.notes)
        for vote in decision.votes:
            for action in vote.effective:
                note = next(texts, None) if isinstance(action, Hint) else None
                if note is not None:
                    self._add(decision, call, action.name, action, vote.rule, note.text, vote.hook, vote.at)

    def _add(
        self,
        decision: Decision,
        call: int | None,
        action: str,
        facts: Any,
        rule: str,
        message: str,
        hook: str = "",
        at: str = "",
    ) -> None:
        self._interventions.append(
            Intervention(
                iteration=self._run.state.iteration,
                call=call,
                hook=hook or decision.hook,
                action=action,
                code=facts.code,
                rule=rule,
                observed=facts.observed,
                limit=facts.limit,
                message=message or msgspec.UNSET,
                at=at,
            )
        )

    def _wish(self, decision: Decision, vote: Vote, call: int | None) -> Wish:
        action = max((action for action in vote.raw if not isinstance(action, Record)), key=lambda action: action.rank)
        return Wish(
            iteration=self._run.state.iteration,
            call=call,
            hook=vote.hook or decision.hook,
            mode=vote.mode,
            action=action.name,
            code=action.code,
            rule=vote.rule,
            observed=action.observed,
            limit=action.limit,
            at=vote.at,
        )


def _set_aside(result: ToolResult | None) -> str:
    """Return the code under which our loop would have refused a call before it judged the next one, if it would have.

    What a human refuses is not known by then.
    """
    if result is None or result.error is None or result.error.declared:
        return ""
    code = result.error.code
    refused = result.status == "denied" and code != "refused_by_human"
    return code if refused or (code in NOT_STARTED and result.duration_s is None) else ""


def _held_back(vote: Vote) -> bool:
    """Return whether mode or exception took something from a vote: hints are given in `warn` as in `enforce`."""
    return (
        vote.mode == "shadow"
        or bool(vote.exception)
        or (vote.mode == "warn" and any(action.rank for action in vote.raw))
    )


def tokens(usage: Usage) -> int:
    """Return all tokens of a request."""
    if usage.total_tokens is not None:
        return usage.total_tokens
    return (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)


def replay_journal(path: str | os.PathLike[str], engine: Engine) -> Iterator[tuple[Content, Content]]:
    """Replay every run of a journal; yield the recorded and the new content of each decision, in file order.

    The clock is the journal's, and a rule overran its time limit exactly where it did when the journal was written.
    A line that was cut off, as a crash leaves it, ends the replay; unless it goes on with a run that was resumed there.

    Raises:
        JournalError: a line cannot be read.
    """
    decoder = Decoder()
    driver = _Journaled(engine)
    for number, value in _values(Path(path)):
        line = decoder.line(value, number)
        if line.type == RUN or line.type == RESUME:
            driver.make(line, number)
            continue
        now = driver.report(line, decoder.arguments(line, number))
        yield line.decision or Content(now.hook), content(now)


def _values(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        broken: JournalError | None = None
        for number, text in enumerate(file, start=1):
            try:
                value = decode(text)
            except NotJsonError as error:
                if broken is not None:
                    raise broken from None
                if text.endswith(b"\n"):
                    broken = JournalError(number, str(error))
                continue
            if broken is not None and not (isinstance(value, dict) and value.get("type") == RESUME):
                raise broken
            broken = None
            yield number, value
        if broken is not None:
            raise broken


class _Journaled:
    """The runs of a journal while they are replayed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runs: dict[str, Run] = {}
        self._conversations: dict[str, Conversation] = {}

    def make(self, line: Line, number: int) -> None:
        """Make the run that a `run` or `resume` line describes."""
        if line.type == RESUME:
            run = self._runs[line.run] = self._engine.resume_run(_saved(line, number))[0]
            self._conversations[run.conversation.id] = run.conversation
            return
        facts = [line.payload.get(key, value) for key, value in _RUN_FACTS.items()]
        if not all(isinstance(fact, str) for fact in facts):
            raise JournalError(number, "the facts of a run are texts")
        agent, protocol, name = facts
        shared = self._conversations.setdefault(name, Conversation(name)) if name else None
        self._runs[line.run] = self._engine.start_run(
            run_id=line.run,
            agent=agent,
            protocol=protocol,
            conversation=shared,
        )

    def report(self, line: Line, arguments: dict[str, Any]) -> Decision:
        """Report one recorded event to its run."""
        run = self._runs.get(line.run)
        if run is None:
            run = self._runs[line.run] = self._engine.start_run(run_id=line.run)
        run.faults.forced = line.faults
        if line.type == "stopped":
            return run.tell_stop(**arguments)
        answer = getattr(run, line.type)(**arguments, now=line.now)
        run.take_notes()
        run.take_dues()
        if line.type == "end":
            del self._runs[line.run]
        if isinstance(answer, tuple):
            answer = answer[1]
        return answer if isinstance(answer, Decision) else Decision(_SILENT[line.type])


_RUN_FACTS = {"agent": "", "protocol": "native", "conversation": ""}
"""What a line says of how a run was made, and what it means where it says nothing."""

_SILENT = {
    "begin_iteration": "before_model_call",
    "set_aside": "before_tool_call",
    "human_answered": "before_tool_call",
    "end": "run_end",
}
"""The hook that the journal names for the methods of `Run` that return no decision."""


def _saved(line: Line, number: int) -> bytes:
    try:
        return base64.b64decode(line.payload["saved"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise JournalError(number, "the saved run cannot be read") from None
