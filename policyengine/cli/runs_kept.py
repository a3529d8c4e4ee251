"""`policyengine runs list`, `show`, `approve`, `reject`, `resume`, `cancel`, `export`, `forget`: runs that are kept.

Knows: how a kept run is shown, and what a person may do with it. Must not know: how it goes on, what a store is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import click
import msgspec

from policyengine.cli import OK
from policyengine.cli.attending import call_lines, reason_lines
from policyengine.cli.going_on import go_on, store_at
from policyengine.cli.keeping import MADE, command_for, making, next_commands, store_option
from policyengine.cli.options import json_option
from policyengine.cli.output import print_json, say, table, terminal
from policyengine.cli.run import How, working
from policyengine.cli.status import moment, span
from policyengine.durable import Head, KeptRuns
from policyengine.durable.kept import Damaged
from policyengine.durable.lease import is_free
from policyengine.durable.record import RunStatus, told
from policyengine.durable.standing import Standing
from policyengine.errors import UsageError
from policyengine.history.chat import as_mappings
from policyengine.messages import Message
from policyengine.stores import StoreError
from policyengine.telemetry.live import number_of, short
from policyengine.visible import clean, clean_line

STATUSES = get_args(RunStatus)
LABELS = {"succeeded": True, "failed": False}
SHOWN = 8
"""How many of the last messages are shown."""

RESULTS = {
    "kept": "its result is kept and will be used",
    "refused": "it was answered without being run",
    "unknown": "no result yet; if its worker is gone, resume runs it again where the policy declares its tool as read "
    "or poll, and asks a human otherwise",
}
"""What is said of a call under way, by what is known of its result."""

_AGE = re.compile(r"(\d{1,6})(s|m|h|d)\Z", re.ASCII)
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

store = store_option(required=True)
run_id_argument = click.argument("run_id", metavar="ID")


def read_age(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Read `30d` as seconds."""
    if value is None:
        return None
    match = _AGE.match(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no age; write a whole number with s, m, h or d, such as 30d")
    return float(int(match[1]) * _UNIT_S[match[2]])


# ---- look at them


@click.command("list")
@store
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only these; repeatable.")
@click.option("--no-color", is_flag=True, help="Print without colours.")
@json_option
def list_runs(store: str, statuses: tuple[str, ...], no_color: bool, as_json: bool) -> int:
    """List the runs that are kept, the latest first: how they stand, who works on them, what they wait for."""
    with store_at(store, there=True) as (_, runs):
        heads, damaged = runs.heads()
        now = runs.now()
    heads = [head for head in heads if not statuses or head.status in statuses]
    damaged = [] if statuses else damaged
    if as_json:
        found = [{**_of(head, now), "next": list(next_commands(head, store))} for head in heads]
        print_json({"runs": found, "damaged": msgspec.to_builtins(damaged)})
        return OK
    if heads or damaged:
        _print_list(heads, damaged, now, no_color=no_color)
    else:
        say("no run is kept there" if not statuses else "no such run is kept there")
    return OK


def _print_list(heads: Sequence[Head], damaged: Sequence[Damaged], now: float, *, no_color: bool) -> None:
    from rich.text import Text

    shown = table("run", "status", "agent", "#rounds", "#calls", "age", "worker", "waits for or ended by", "task")
    for head in heads:
        cells = (
            head.run_id,
            head.status,
            head.agent,
            str(head.iteration),
            str(head.calls),
            span(max(0.0, now - head.updated)),
            _worker(head, now),
            _why(head),
            short(head.task, 48),
        )
        shown.add_row(*(Text(clean_line(cell)) for cell in cells))
    for run in damaged:
        shown.add_row(*(Text(clean_line(cell)) for cell in (run.run_id, "damaged", "", "", "", "", "", run.problem)))
    terminal(no_color=no_color).print(shown)


@click.command("show")
@run_id_argument
@store
@click.option("--messages", "count", default=SHOWN, show_default=True, type=click.IntRange(0), help="So many messages.")
@json_option
def show(run_id: str, store: str, count: int, as_json: bool) -> int:
    """Show everything one needs to decide about a run: why it stopped or what it asks, and what comes next.

    ID is the id of a run, or the beginning of it.
    """
    with store_at(store, there=True) as (_, runs):
        seen = runs.seen(run_id)
    head, now, messages, standing, outcome = seen.head, seen.now, seen.messages, seen.standing, seen.outcome
    if as_json:
        print_json(
            {
                **_of(head, now),
                "task": _task(head, standing),
                "origin": head.origin,
                "answer": msgspec.to_builtins(head.answer),
                "answers": msgspec.to_builtins(head.answers),
                "under_way": [*_under_way(head, standing)],
                "output": outcome.output if outcome is not None else "",
                "messages": msgspec.to_builtins(messages),
                "problem": seen.problem,
                "next": list(next_commands(head, store)),
            }
        )
        return OK
    for label, text in _lines(head, standing, now):
        print(f"{label:<11}{text}".rstrip())
    if seen.problem:
        print(f"{'problem':<11}{clean_line(seen.problem)}")
    for label, text in _said(messages, count):
        print(f"{label:<11}{text}".rstrip())
    following = (line for line in next_commands(head, store) if not line.startswith("policyengine runs show "))
    for number, line in enumerate(following):
        print(f"{'' if number else 'next':<11}{line}")
    return OK


def _lines(head: Head, standing: Standing | None, now: float) -> Iterator[tuple[str, str]]:
    agent = f" of {clean_line(head.agent)}" if head.agent else ""
    yield "run", f"{clean_line(head.run_id)}{agent}: {head.status}"
    for number, line in enumerate(clean(_task(head, standing)).splitlines()):
        yield "" if number else "task", line
    if head.policy:
        yield "policy", f"{clean_line(head.policy)}, digest {head.digest[:12]}"
    begun = [*_under_way(head, standing)]
    open_ends = sum(call["result"] == "unknown" for call in begun)
    unknown = f", {open_ends} of them begun and without a known end" if open_ends else ""
    yield "work", f"{number_of(head.iteration, 'round')}, {number_of(head.calls, 'call')}{unknown}; phase {head.phase}"
    for number, call in enumerate(begun):
        yield "" if number else "under way", clean_line(f"{call['tool']} {short(call['arguments'])}")
        yield "", f"  {RESULTS[call['result']]}"
    yield "begun", moment(head.created)
    yield "updated", f"{moment(head.updated)}, {span(max(0.0, now - head.updated))} ago"
    worker = {"alive": f"alive: {head.owner.rpartition('/')[0]}", "gone": "gone; anybody may go on", "-": "nobody"}
    yield "worker", clean_line(worker[_worker(head, now)])
    if head.stop is not None:
        yield from reason_lines(head.stop, "ended by")
    if head.error:
        yield "error", clean_line(head.error)
    if head.asked is not None:
        yield from reason_lines(head.asked.reason, "asks")
        yield from call_lines(head.asked)
    for number, answer in enumerate(head.answers):
        tools = f" {', '.join(answer.tools)}" if answer.tools else ""
        said = f": {answer.text}" if answer.text else ""
        yield "" if number else "answered", clean_line(f"{told(answer)}{tools}{said}")


def _under_way(head: Head, standing: Standing | None) -> Iterator[dict[str, str]]:
    """Yield the calls that were about to run when the run was kept last, and what is known of their results."""
    if standing is None or head.ended or standing.loop.phase != "tools":
        return
    for place, item in enumerate(standing.loop.pending):
        if not item.answered:
            result = "refused" if item.result is not None else "kept" if place in standing.results else "unknown"
            arguments = item.call.arguments or json.dumps(item.call.args, ensure_ascii=False, default=str)
            yield {"id": item.call.id, "tool": item.call.name, "arguments": arguments, "result": result}


def _said(messages: Sequence[Message], count: int) -> Iterator[tuple[str, str]]:
    last = messages[len(messages) - count :] if count < len(messages) else messages
    if len(messages) > len(last):
        yield "messages", f"the last {len(last)} of {len(messages)}"
    for message in last:
        who = f"{message.role} ({clean_line(message.origin)})" if message.origin.startswith("rule:") else message.role
        said = short(message.text) if message.text.strip() else ""
        calls = (f"{call.name} {call.arguments or json.dumps(call.args)}" for call in message.tool_calls)
        lines = [*([said] if said else []), *(f"calls {short(call)}" for call in calls)] or ["(nothing)"]
        for number, line in enumerate(lines):
            yield "" if number else clean_line(who), line if number or len(who) < 11 else f" {line}"


def _of(head: Head, now: float) -> dict[str, Any]:
    """Return what is known of a run as plain data."""
    return {
        "run_id": head.run_id,
        "status": head.status,
        "ended": head.ended,
        "agent": head.agent,
        "task": head.task,
        "phase": head.phase,
        "iteration": head.iteration,
        "calls": head.calls,
        "policy": {"name": head.policy, "digest": head.digest},
        "created": head.created,
        "updated": head.updated,
        "age_s": max(0.0, now - head.updated),
        "worker": _worker(head, now),
        "asked": msgspec.to_builtins(head.asked),
        "answered": head.answer is not None,
        "stop": msgspec.to_builtins(head.stop),
        "error": head.error,
    }


def _task(head: Head, standing: Standing | None) -> str:
    """Return the task of a run, whole where it has begun."""
    return standing.run.task if standing is not None else head.task


def _worker(head: Head, now: float) -> str:
    """Return whether somebody works on a run: `alive`, `gone` (its process is, or has long said nothing) or `-`."""
    return "-" if not head.owner else "gone" if is_free(head, now) else "alive"


def _why(head: Head) -> str:
    if head.asked is not None:
        tools = ", ".join(dict.fromkeys(call.tool for call in head.asked.calls))
        state = "answered" if head.answer is not None else "approval"
        return f"{state}: {tools} ({head.asked.reason.code})"
    if head.stop is not None:
        return f"{head.stop.rule}: {head.stop.code}" if head.stop.rule else head.stop.code
    return short(head.error, 60)


# ---- answer them


replace_option = click.option(
    "--replace", is_flag=True, help="Also where somebody answered already, as long as nobody acted on it."
)


@click.command("approve")
@run_id_argument
@store
@click.option("--digest", metavar="D", help="Only if this is what it asks: the digest of `runs show`.")
@click.option("--by", default="", metavar="NAME", help="Who approves; kept with the run, and in logs.")
@replace_option
def approve(run_id: str, store: str, digest: str | None, by: str, replace: bool) -> int:
    """Let the calls run about which a run asks; it goes on when somebody resumes it."""
    return _answer(run_id, store, approved=True, digest=digest, by=by, replace=replace)


@click.command("reject")
@run_id_argument
@store
@click.option("--digest", metavar="D", help="Only if this is what it asks: the digest of `runs show`.")
@click.option("--say", "text", default="", metavar="TEXT", help="What the model is told beside the refusal.")
@click.option("--by", default="", metavar="NAME", help="Who rejects; kept with the run, and in logs.")
@replace_option
def reject(run_id: str, store: str, digest: str | None, text: str, by: str, replace: bool) -> int:
    """Do not let the calls run about which a run asks; it goes on when somebody resumes it."""
    return _answer(run_id, store, approved=False, digest=digest, text=text, by=by, replace=replace)


def _answer(run_id: str, place: str, *, approved: bool, **given: Any) -> int:
    with store_at(place, there=True) as (_, runs):
        head = runs.answer(run_id, approved=approved, **given)
    print(f"{'approved' if approved else 'rejected'}: {clean_line(head.run_id)}")
    for label, line in call_lines(head.asked, digests=False) if head.asked is not None else ():
        print(f"{label:<11}{line}")
    print(f"{'next':<11}{command_for('resume', head.run_id, place)}")
    return OK


# ---- go on with them, or not


@click.command("resume")
@run_id_argument
@store
@click.option(
    "--say", "text", metavar="TEXT", help="After a run that has ended: what to do next, in a run that follows."
)
@making(anew=False)
@working
def resume(run_id: str, store: str, text: str | None, **options: Any) -> int:
    """Go on with a run where it stands, with the options that it was begun with; those given here count instead.

    A run that has ended does not go on. With --say its conversation does: in a run of its own (`ID.2`, then `ID.3`),
    with the history and with what rules count per conversation.

    Exit code: as of `run`; 2 also where somebody else works on it.
    """
    given = {name: options.pop(name) for name in MADE}
    return go_on(store, run_id, given, How(**options), text)


@click.command("cancel")
@run_id_argument
@store
@click.option("--why", default="cancelled", metavar="TEXT", help="Kept with the run.", show_default=True)
def cancel(run_id: str, store: str, why: str) -> int:
    """End a run for good, whatever it waits for. Calls that are open are answered in its history as not run."""
    with store_at(store, there=True) as (_, runs):
        head = runs.cancel(run_id, why)
    print(f"cancelled: {clean_line(head.run_id)}")
    return OK


@click.command("forget")
@click.argument("run_ids", nargs=-1, metavar="ID...")
@store
@click.option("--before", "age", callback=read_age, metavar="AGE", help="All runs that are older, such as 30d or 12h.")
@click.option("--ended", is_flag=True, help="All runs that have ended; with --before, of those.")
def forget(run_ids: tuple[str, ...], store: str, age: float | None, ended: bool) -> int:
    """Forget runs, with all that is kept of them. One that somebody works on is not forgotten.

    How old a run is counts from the last time that it did something.
    """
    if bool(run_ids) == (age is not None or ended):
        raise UsageError("say which runs to forget: their ids, or --before AGE, --ended or both")

    def chosen(head: Head, now: float) -> bool:
        return (head.ended or not ended) and (age is None or head.updated < now - age)

    with store_at(store, there=True) as (_, runs):
        forgotten = (_forget(runs, run_id) for run_id in run_ids) if run_ids else runs.forget_where(chosen)
        for run_id in forgotten:
            print(f"forgotten: {clean_line(run_id)}")
    return OK


def _forget(runs: KeptRuns, run_id: str) -> str:
    try:
        return runs.forget(run_id).run_id
    except StoreError as error:
        if error.transient or run_id not in {run.run_id for run in runs.heads()[1]}:
            raise
        runs.forget_damaged(run_id)
        return run_id


# ---- take them along


@click.command("export")
@click.argument("run_ids", nargs=-1, required=True, metavar="ID...")
@store
@click.option(
    "--format",
    "form",
    type=click.Choice(["openai_chat", "messages"]),
    default="openai_chat",
    show_default=True,
    help="As a recording that `replay` and `backtest` read, or as the engine keeps messages.",
)
@click.option("--label", type=click.Choice(list(LABELS)), help="Whether the runs did their task, where you judged it.")
def export(run_ids: tuple[str, ...], store: str, form: str, label: str | None) -> int:
    """Print runs as recordings, one object a line: the messages, with the task, the model and how it ended."""
    with store_at(store, there=True) as (_, runs):
        for run_id in run_ids:
            seen = runs.seen(run_id)
            print_json(_recording(seen.head, seen.standing, seen.messages, form, LABELS.get(label or "")), indent=None)
    return OK


def _recording(
    head: Head, standing: Standing | None, messages: Sequence[Message], form: str, label: bool | None
) -> dict[str, Any]:
    return {
        "id": head.run_id,
        "task": _task(head, standing),
        "model": standing.loop.model if standing is not None else "",
        "label": label,
        "status": head.status,
        "stop": msgspec.to_builtins(head.stop),
        "error": head.error,
        "messages": msgspec.to_builtins(messages) if form == "messages" else _as_chat(messages),
    }


def _as_chat(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages in the form of chat completions; what no user said in the user's role is marked."""
    made = []
    for message, mapping in zip(messages, as_mappings(messages, "openai_chat"), strict=True):
        ours = message.role == "user" and message.origin not in ("", "tool")
        made.append({**mapping, "injected": True} if ours else dict(mapping))
    return made


COMMANDS = (list_runs, show, approve, reject, resume, cancel, export, forget)
"""The verbs about kept runs."""
