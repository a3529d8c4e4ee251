"""The live view: a readable account of a run on a terminal, as it happens.

Knows: which event of a run is worth a line, and how a decision is explained to a person.
Must not know: how a decision is made, the loop, files.

Texts of models and tools are shown cut, with control characters made visible: what an agent reads must not be able to
move the cursor of whoever watches it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from policyengine.actions import Action, Hint, Record, Rewrite
from policyengine.decision import Decision, Vote
from policyengine.messages import ModelResponse, ToolCall, ToolResult
from policyengine.outcome import Outcome
from policyengine.policy.changes import compare
from policyengine.policy.wording import shown
from policyengine.run import Report
from policyengine.snapshot import PolicySnapshot
from policyengine.visible import clean, clean_line

CUT = 160
"""How many characters of a call, a result or a reply are shown."""

STYLES = {
    "round": "bold",
    "call": "bold cyan",
    "hint": "bold yellow",
    "rewrite": "bold blue",
    "retry": "bold yellow",
    "ask": "bold magenta",
    "deny": "bold red",
    "wind_down": "bold red",
    "end_step": "bold red",
    "stop": "bold red",
    "unusable": "bold yellow",
    "broken": "bold red",
    "reload": "bold green",
    "completed": "bold green",
    "stopped": "bold red",
    "waiting": "bold magenta",
    "failed": "bold red",
    "cancelled": "bold red",
    "rejected": "bold red",
}

_LABEL = 11


class LiveView:
    """Prints what happens. It is both a sink (`Engine(sinks=[view])`) and a listener (`view.heard`)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._round = (0, 0)
        self._response = ModelResponse()
        self._calls = 0
        self._snapshot: PolicySnapshot | None = None

    def __call__(self, report: Report) -> None:
        """Print one event of a run and what the guards made of it."""
        with self._lock:
            self._event(report)
            for line in explain(report.decision):
                self._line(*line)

    def heard(self, event: str, subject: Any) -> None:
        """Print that a policy came into force or was refused."""
        with self._lock:
            if event == "policy_loaded":
                self._loaded(subject)
            elif event == "policy_rejected":
                generation = self._snapshot.generation if self._snapshot else 0
                kept = f"not put in force, generation {generation} stays"
                self._line("rejected", kept, "\n".join(_full(problem) for problem in subject))

    def tell(self, label: str, text: str, more: str = "") -> None:
        """Print a line that is about the run, but no event of it."""
        with self._lock:
            self._line(label, text, more)

    def finish(self, outcome: Outcome) -> None:
        """Print how the run ended."""
        with self._lock:
            self._console.print()
            facts = [
                number_of(outcome.iterations, "round"),
                f"{number_of(outcome.calls, 'call')} ({outcome.executed} run)",
                number_of(outcome.interventions, "intervention"),
            ]
            if outcome.prompt_tokens or outcome.completion_tokens:
                facts.append(f"{outcome.prompt_tokens} + {outcome.completion_tokens} tokens")
            self._line(outcome.status, ", ".join(facts))
            stop = outcome.stop
            if stop is not None:
                who = ", ".join(filter(None, (stop.rule or "the engine", stop.at)))
                self._line("by", f"{who}: {stop.code}{measured(stop.observed, stop.limit)}", stop.message)
            if outcome.error:
                self._line("error", clean(outcome.error))
            if outcome.output:
                self._line("answer" if outcome.status == "completed" else "so far", "", outcome.output)

    def _event(self, report: Report) -> None:
        subject = report.payload[0]
        match report.hook:
            case "run_start":
                self._line("task", short(subject))
            case "before_model_call":
                self._begin(report)
            case "after_model_response":
                self._response = subject
                if not report.decision.allowed:
                    self._said(subject.text)
            case "after_parse":
                self._said(subject.text if subject.usable else self._response.text)
                if not subject.usable:
                    self._line("unusable", f"{subject.kind}: {subject.reason}" if subject.reason else subject.kind)
            case "before_tool_call":
                self._calls += 1
                self._line("call", called(subject))
            case "after_tool_call":
                whose = f"{short(subject.name, 40)}: " if self._calls > 1 else ""
                self._line("result", whose + answered(report.payload[1]))
            case "human":
                self._line("human", f"{report.payload[1]}: {called(subject)}")
            case "hist_add_warning.end":
                self._line("warning", f"{subject.kind}, told to the model", subject.text)
            case "after_provider_error":
                self._line("failed", f"{subject.code}: {short(subject.message)}")

    def _begin(self, report: Report) -> None:
        """Head a round, or say that the model is asked again within it."""
        state = report.run.state
        before, self._round = self._round, (state.iteration, state.attempt)
        self._calls = 0
        if self._round[0] != before[0]:
            self._console.print(Text(f"round {state.iteration}", STYLES["round"]))
        elif self._round != before:
            self._line("again", f"attempt {state.attempt} in this round")

    def _said(self, text: str) -> None:
        if text.strip():
            self._line("says", short(text))

    def _loaded(self, snapshot: PolicySnapshot) -> None:
        policy = snapshot.policy
        revision = f" revision {clean(policy.revision)}" if policy.revision else ""
        rules = number_of(len(policy.rules), "rule")
        facts = f"{policy.name}{revision}, {rules}, generation {snapshot.generation}, digest {policy.digest[:12]}"
        before, self._snapshot = self._snapshot, snapshot
        if before is None:
            self._line("policy", facts)
        else:
            self._line("reload", facts, "\n".join([str(compare(before, snapshot)), *_new_values(before, snapshot)]))

    def _line(self, label: str, text: str, more: str = "") -> None:
        line = Text().append("  " + label.ljust(_LABEL), STYLES.get(label, "dim"))
        first, *rest = [*([clean_line(text)] if text else []), *clean(more).splitlines()] or [""]
        line.append(first)
        for item in rest:
            line.append("\n" + " " * (_LABEL + 2) + item, "dim")
        self._console.print(line, soft_wrap=True, highlight=False)


def explain(decision: Decision) -> Iterator[tuple[str, str, str]]:
    """Yield what the guards did and why, as `(label, text, further text)`; nothing where nobody objected."""
    texts = iter(decision.notes)
    for vote in decision.votes:
        if vote.error:
            yield "broken", f"{_who(vote)} failed: {clean(vote.error)}", ""
        for action in vote.effective:
            note = next(texts, None) if isinstance(action, Hint) else None
            if note is not None:
                yield action.name, f"{_who(vote)}: {_why(action)}", note.text
        if vote.mode != "enforce" and vote.episode:
            yield from _wished(vote)
    control = decision.control
    if control is None:
        return
    changed = called(decision.changed) if isinstance(decision.changed, ToolCall) else ""
    if not isinstance(control, Rewrite) or changed:
        where = f"{decision.decided_by}, {clean_line(decision.at)}"
        yield control.name, f"{where}: {_why(control)}", decision.message or changed
    for vote in decision.votes:
        if vote.rule != decision.decided_by and any(action.rank for action in vote.effective):
            wanted = [f"{action.name} {_why(action)}" for action in vote.effective if action.rank]
            yield "also", f"{_who(vote)}: {', '.join(wanted)}", ""
    if decision.conflicts:
        yield "conflict", f"rewrites of {', '.join(decision.conflicts)} were not used", ""


def measured(observed: float | None, limit: float | None) -> str:
    """Return what was measured against which limit, as the end of a sentence."""
    known = (("observed", observed), ("limit", limit))
    facts = [f"{name} {number(value)}" for name, value in known if value is not None]
    return f" ({', '.join(facts)})" if facts else ""


def number(value: float) -> str:
    """Return a number without a needless fraction."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def called(call: ToolCall) -> str:
    """Return a call on one line."""
    if call.args is None:
        return short(f"{call.name or '(no name)'} {call.arguments}")
    return short(f"{call.name or '(no name)'} {json.dumps(call.args, ensure_ascii=False, default=str)}")


def answered(result: ToolResult) -> str:
    """Return a result on one line; the text of a refusal was shown where it was decided."""
    if result.status == "denied":
        return "refused"
    if result.status == "not_run":
        return "not run"
    status = "" if result.status == "ok" else f"{result.status}: "
    code = f"exit code {result.exit_code}: " if result.exit_code else ""
    return f"{status}{code}{short(result.text)}"


def short(text: str, limit: int = CUT) -> str:
    """Return a text on one line, cut to `limit` characters."""
    line = " ".join(clean(text[: limit * 4]).split())
    return line if len(line) <= limit and len(text) <= limit * 4 else f"{line[: limit - 3]}..."


def _wished(vote: Vote) -> Iterator[tuple[str, str, str]]:
    wanted: Sequence[Action] = [action for action in vote.raw if not isinstance(action, Record)]
    if wanted:
        action = max(wanted, key=lambda item: item.rank)
        yield vote.mode, f"{_who(vote)} would {action.name.replace('_', ' ')}: {_why(action)}", ""


def _new_values(before: PolicySnapshot, after: PolicySnapshot) -> Iterator[str]:
    """Yield every setting that is another one now, with both values."""
    old, new = before.policy.provenance, after.policy.provenance
    for path in dict.fromkeys((*old, *new)):
        values = [shown(layers[path][-1].value) if path in layers else "not set" for layers in (old, new)]
        if values[0] != values[1]:
            yield f"{path}: {values[0]} -> {values[1]}"


def _who(vote: Vote) -> str:
    return f"{vote.rule}, {clean_line(vote.at)}"


def _why(action: Action) -> str:
    return f"{clean_line(action.code)}{measured(action.observed, action.limit)}"


def _full(problem: Any) -> str:
    return str(problem.full()) if hasattr(problem, "full") else str(problem)


def number_of(value: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{value} {noun}" if value == 1 else f"{value} {noun}s"
