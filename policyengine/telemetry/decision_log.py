"""The decision log: one line of JSON for every decision, for audit.

Knows: the record (docs/decision-log.md), which of it is content, how it is written.
Must not know: how a decision is made, recordings; a decision log is not made to be replayed (see `telemetry.journal`).

Content-free by default: no arguments, results, texts of messages or exceptions. What a policy lists under
`log.include` is added, without what `log.mask` hides. Where no rule said anything, `log.sample` may leave a line out;
how many were is said at the end of the run. `raw` and `effective` are both kept, so that a rule in shadow shows what
it would have done.
A log that cannot be written never ends a run.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import msgspec

from policyengine.actions import ALLOW, Action, AnyAction, Deny
from policyengine.decision import Decision, Vote
from policyengine.identity import call_identity
from policyengine.log import log
from policyengine.messages import ToolCall, ToolResult
from policyengine.outcome import Outcome
from policyengine.policy.problems import Problem
from policyengine.run import HUMAN, Report, Run
from policyengine.snapshot import PolicySnapshot
from policyengine.telemetry.journal import Writable, writable
from policyengine.telemetry.log_file import LogFile
from policyengine.telemetry.masks import masked

VERSION = 1
_encoder = msgspec.json.Encoder()

MAX_NAME = 128
"""A tool's name comes from a model: longer ones are cut."""


class PolicyLine(msgspec.Struct, frozen=True):
    """The policy that was in force for the run."""

    name: str
    revision: str
    generation: int
    digest: str


class CallLine(msgspec.Struct, frozen=True):
    """The tool call that was judged. Equal calls have equal digests; `arguments` is content (`log.include`)."""

    tool: str
    args_digest: str
    args_bytes: int
    arguments: Any = msgspec.UNSET


class RuleLine(msgspec.Struct, frozen=True):
    """What one rule said: `raw` is what it wanted, `effective` what its mode left of it (`allow` where it is silent).

    `us` is its running time in microseconds; `error` the kind of its failure, with the text only where messages are
    included. `exception` is `file:line` of the exception for which the rule has no effect; else it is left out.
    """

    id: str
    use: str
    at: str
    mode: str
    raw: str
    effective: str
    code: str
    observed: float | None
    limit: float | None
    us: float
    error: str
    exception: str | msgspec.UnsetType = msgspec.UNSET


class Record(msgspec.Struct, frozen=True):
    """One line of the log.

    `type` is `run_start` and `run_end` for the decisions at these hooks, `reload` for a change of policy, `gap` where
    lines could not be written, else `decision`. `raw` is the strictest action that any rule wanted, before modes. At
    `run_end`, `code` is how the run ended and `decided_by` the rule that ended it; in a `reload` line, `code` is
    `policy_loaded` or `policy_rejected` and `message` lists code and position of what was wrong. In a `human` line
    `code` is what came of a question (`approved`, `refused`, `nobody`), and `decided_by` the rule that asked; `by` and
    `answered` say who answered and when, where that is known. `seq` counts the decisions of the run.
    `kill_switch` is there, and true, while it is on. `left_out` is there at `run_end` where lines of the run are not,
    and in a `gap` line, where it says how many lines are missing in its place.
    """

    v: int
    type: Literal["decision", "human", "reload", "run_start", "run_end", "gap"]
    ts: str
    run_id: str
    agent: str
    iteration: int
    step: int
    hook: str
    seq: int
    policy: PolicyLine
    call: CallLine | None
    decision: str
    raw: str
    decided_by: str
    code: str
    message: str
    rules: tuple[RuleLine, ...]
    latency_us: float
    trace_id: str | None
    result: Any = msgspec.UNSET
    kill_switch: bool | msgspec.UnsetType = msgspec.UNSET
    left_out: int | msgspec.UnsetType = msgspec.UNSET
    by: str | msgspec.UnsetType = msgspec.UNSET
    answered: str | msgspec.UnsetType = msgspec.UNSET


_OF_NO_RUN = Record(
    v=VERSION,
    type="gap",
    ts="",
    run_id="",
    agent="",
    iteration=0,
    step=0,
    hook="",
    seq=0,
    policy=PolicyLine("", "", 0, ""),
    call=None,
    decision=ALLOW,
    raw=ALLOW,
    decided_by="",
    code="",
    message="",
    rules=(),
    latency_us=0.0,
    trace_id=None,
)
"""What lines have in common that belong to no run."""


class DecisionLog:
    """Writes decisions, one line each: to an open text file, flushed at once, or to a `LogFile`, in another thread.

    It is both a sink (`Engine(sinks=[log])`) and a listener (`Engine(listeners=[log.heard])`). `clock` gives the time
    of day in seconds since 1970. A failure to write is logged once; every later line is tried again. `dropped` counts
    the lines that could not be written.
    """

    def __init__(self, file: Writable, *, clock: Callable[[], float] = time.time, trace_id: str | None = None) -> None:
        self._file = writable(file, "a decision log")
        self._clock = clock
        self._trace_id = trace_id
        self._lock = threading.Lock()
        self._writing = self._lock if not isinstance(file, LogFile) else nullcontext()
        self._failed = False
        self._unwritten = 0
        if isinstance(file, LogFile):
            file.gap = partial(gap_line, clock)
        self._policy = _OF_NO_RUN.policy
        self._left_out: WeakKeyDictionary[Run, int] = WeakKeyDictionary()

    def __call__(self, report: Report) -> None:
        """Write one decision, unless it is one of those that the policy leaves out."""
        settings = report.run.snapshot.policy.log
        if is_plain(report) and not settings.keeps(report.run.state.run_id, report.seq):
            with self._lock:
                self._left_out[report.run] = self._left_out.get(report.run, 0) + 1
            return
        self._write(self._record(report), settings.mask)

    @property
    def dropped(self) -> int:
        """How many lines could not be written, and will not be."""
        return self._unwritten + (self._file.dropped if isinstance(self._file, LogFile) else 0)

    def heard(self, event: str, subject: Any) -> None:
        """Write that a policy came into force (`policy_loaded`) or was refused (`policy_rejected`)."""
        if event == "policy_loaded":
            self.reload(subject)
        elif event == "policy_rejected":
            self.reload(tuple(subject))

    def reload(self, subject: PolicySnapshot | Sequence[Any]) -> None:
        """Write that `subject` came into force, or the problems for which the last good policy stays in force."""
        if isinstance(subject, PolicySnapshot):
            self._policy = policy_line(subject)
            code, message = "policy_loaded", ""
        else:
            code, message = "policy_rejected", "; ".join(_where(problem) for problem in subject)
        self._write(
            msgspec.structs.replace(
                _OF_NO_RUN,
                type="reload",
                ts=self._time(),
                hook=f"on_{code}",
                policy=self._policy,
                code=code,
                message=message,
                trace_id=self._trace_id,
            )
        )

    def _record(self, report: Report) -> Record:
        state, decision, snapshot = report.run.state, report.decision, report.run.snapshot
        include = snapshot.policy.log.include
        decided_by, code = _reason(report)
        by, at, said = report.payload[2:] if report.hook == HUMAN else ("", 0.0, "")
        return Record(
            v=VERSION,
            type=_type(report.hook),
            ts=self._time(),
            run_id=state.run_id,
            agent=state.agent,
            iteration=state.iteration,
            step=state.step,
            hook=report.hook,
            seq=report.seq,
            policy=policy_line(snapshot),
            call=call_line(report.payload[0], "arguments" in include),
            decision=_action(report),
            raw=_strictest([action for vote in decision.votes for action in vote.raw]),
            decided_by=decided_by,
            code=code,
            message=(said or _message(decision)) if "messages" in include else "",
            rules=tuple(rule_line(vote, "messages" in include) for vote in decision.votes),
            latency_us=round(report.us, 1),
            trace_id=self._trace_id,
            result=_result(report.payload) if "results" in include else msgspec.UNSET,
            kill_switch=True if report.run.killed else msgspec.UNSET,
            left_out=self._missing(report),
            by=by[:MAX_NAME] or msgspec.UNSET,
            answered=moment(at) if at else msgspec.UNSET,
        )

    def _missing(self, report: Report) -> int | msgspec.UnsetType:
        if report.hook != "run_end":
            return msgspec.UNSET
        with self._lock:
            return self._left_out.pop(report.run, msgspec.UNSET)

    def _time(self) -> str:
        return moment(self._clock())

    def _write(self, record: Record, masks: Sequence[str] = ()) -> None:
        text = encode(record, masks)
        with self._writing:
            try:
                self._file.write(text + "\n")
                self._file.flush()
            except (OSError, ValueError) as error:  # ValueError: the file was closed
                self._unwritten += 1
                if not self._failed:
                    log().error("the decision log cannot be written: {}", error)
                self._failed = True


def moment(at: float) -> str:
    """Return a time of day as lines have it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def gap_line(clock: Callable[[], float], count: int) -> str:
    """Return the line that says how many lines are missing in its place."""
    line = msgspec.structs.replace(_OF_NO_RUN, ts=moment(clock()), code="lines_lost", left_out=count)
    return encode(line) + "\n"


def policy_line(snapshot: PolicySnapshot) -> PolicyLine:
    """Return the facts that identify the policy of a snapshot."""
    policy = snapshot.policy
    return PolicyLine(policy.name, policy.revision, snapshot.generation, policy.digest)


def call_line(subject: Any, with_arguments: bool = False) -> CallLine | None:
    """Return the facts of a tool call, or `None` where the hook is about something else."""
    if not isinstance(subject, ToolCall):
        return None
    arguments: Any = msgspec.UNSET
    if with_arguments:
        arguments = subject.args if subject.args is not None else subject.arguments
    return CallLine(
        tool=subject.name[:MAX_NAME],
        args_digest=call_identity("", subject.args, subject.arguments),
        args_bytes=len(subject.arguments.encode("utf-8", "surrogatepass")),
        arguments=arguments,
    )


def rule_line(vote: Vote, with_text: bool = False) -> RuleLine:
    """Return what one rule said. Of several actions of a rule the strictest is named."""
    main = strictest(vote.raw)
    return RuleLine(
        id=vote.rule,
        use=vote.use,
        at=vote.at,
        mode=vote.mode,
        raw=main.name if main else ALLOW,
        effective=_strictest(vote.effective),
        code=main.code if main else "",
        observed=_finite(main.observed) if main else None,
        limit=_finite(main.limit) if main else None,
        us=round(vote.us, 1),
        error=vote.error if with_text else _kind(vote.error),
        exception=vote.exception or msgspec.UNSET,
    )


def strictest(actions: Sequence[AnyAction]) -> AnyAction | None:
    """Return the strictest of several actions; a hint is stricter than a record, and any control action than both."""
    return max(actions, key=_strength) if actions else None


def is_plain(report: Report) -> bool:
    """Return whether a decision is one at which no rule said anything, so that it may be left out.

    The beginning and the end of a run never are, nor is anything that a rule wanted, recorded or failed at, whatever
    its mode left of it.
    """
    decision = report.decision
    silent = not any(vote.raw or vote.effective or vote.error for vote in decision.votes)
    return _type(report.hook) == "decision" and decision.control is None and not decision.notes and silent


def encode(record: Record, masks: Sequence[str] = ()) -> str:
    """Return a record as one line of ASCII JSON, with what `masks` point at hidden.

    Content that cannot be written or masked is dropped, the record never is.
    """
    if not masks:
        text = _quickly(record)
        if text:
            return text
    try:
        text = _dumped(record)
        # Masked is what would be written: by now every key is a text.
        return _dumped(masked(json.loads(text), masks)) if masks else text
    except (RecursionError, TypeError, ValueError):
        return _dumped(without_content(record))


def without_content(record: Record) -> Record:
    """Return a record without what `log.include` may add to it."""
    return msgspec.structs.replace(
        record,
        call=msgspec.structs.replace(record.call, arguments=msgspec.UNSET) if record.call is not None else None,
        message=record.message if record.type == "reload" else "",
        rules=tuple(msgspec.structs.replace(rule, error=_kind(rule.error)) for rule in record.rules),
        result=msgspec.UNSET,
    )


def _quickly(record: Record) -> str:
    """Return a record as `_dumped` would, in a fraction of the time; empty where that takes more care.

    msgspec writes NaN as null and fails on lone surrogates; only arguments may hold the one, any text the other.
    """
    if record.call is not None and record.call.arguments is not msgspec.UNSET:
        return ""
    try:
        written = _encoder.encode(record)
    except (RecursionError, TypeError, ValueError, msgspec.MsgspecError):
        return ""
    return written.decode() if written.isascii() else ""


def _dumped(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value, enc_hook=_plain), separators=(",", ":"), allow_nan=False)


def _strength(action: Action) -> tuple[int, bool]:
    return action.rank, action.name == "hint"


def _strictest(actions: Sequence[AnyAction]) -> str:
    """Name the strictest action; a record leaves no trace in what happens, so it counts as `allow`."""
    main = strictest(actions)
    return main.name if main is not None and main.name != "record" else ALLOW


def _type(hook: str) -> Literal["decision", "human", "run_start", "run_end"]:
    if hook == "run_start":
        return "run_start"
    if hook == HUMAN:
        return "human"
    return "run_end" if hook == "run_end" else "decision"


def _reason(report: Report) -> tuple[str, str]:
    """Return the rule that decided and the machine reason."""
    subject, decision = report.payload[0], report.decision
    if isinstance(subject, Outcome):
        return (subject.stop.rule if subject.stop else ""), subject.status
    if report.hook == HUMAN:
        return decision.decided_by, report.payload[1]
    return decision.decided_by, decision.control.code if decision.control else ""


def _action(report: Report) -> str:
    if report.hook == HUMAN:
        return ALLOW if report.payload[1] == "approved" else Deny.name
    return report.decision.action


def _message(decision: Decision) -> str:
    texts = [note.text for note in decision.notes]
    return "\n".join([decision.message, *texts] if decision.message else texts)


def _result(payload: tuple[Any, ...]) -> Any:
    result = payload[1] if len(payload) > 1 else None
    if not isinstance(result, ToolResult):
        return msgspec.UNSET
    return {"status": result.status, "exit_code": result.exit_code, "text": result.text}


def _kind(error: str) -> str:
    """Return the part of a fault that holds no content: the name of the exception, or our own words before a value."""
    return error.partition(":")[0].partition(" (")[0]


def _where(problem: Any) -> str:
    if isinstance(problem, Problem):
        return f"{problem.code} {problem.position}"
    return type(problem).__name__


def _finite(number: Any) -> float | None:
    """Return a number that JSON can say; what a rule claims to have observed is not checked anywhere else."""
    return number if isinstance(number, int | float) and math.isfinite(number) else None


def _plain(value: Any) -> Any:
    return str(value)
