"""What an event of a session means to its run, and what is to be told.

Knows: `HostRun`, events and replies in our words. Must not know: how a host spells them, files, processes.

A session is a run, a subagent's part of it another one. A hook sees calls and never responses, so each call is a round
of its own ("40 rounds" are 40 calls), and a call that a human refused stays open until the user goes on. A stop ends
the run, and every later call is refused, until the user sends a prompt: that begins a new run in the same
conversation. Our hooks never keep an agent from stopping: a hook that did could go on for ever, so
`stop_hook_active` needs no answer.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from policyengine.hook.dialects import Dialect, Event, Reply, result_of
from policyengine.hook.entry import DEADLINE_S
from policyengine.hosts.core import HostRun
from policyengine.hosts.host import Host
from policyengine.hosts.state import with_place
from policyengine.hosts.table import HOSTS
from policyengine.messages import ToolCall, ToolError, ToolResult
from policyengine.outcome import Outcome
from policyengine.run import read_driver

TWICE_S = DEADLINE_S
"""Within what time an event that says the same again is taken for the same event: so long does a hook take at most."""

CANNOT_REMOVE = "This call was refused: it would have to run with fewer arguments, and the host cannot take one away."


class Session(msgspec.Struct):
    """What is kept beside a run: which run of the session it is, whether the agent gave its answer, and calls of hosts
    that name none, by what they are. `recorded` is the journal that has the run from its beginning, or from a state on.
    `judged` says of open calls what they are and when they were judged, by their ids.
    """

    number: int = 1
    answered: bool = False
    names: dict[str, list[str]] = {}
    recorded: str = ""
    judged: dict[str, tuple[str, float]] = {}


def judge(dialect: Dialect, engine: Any, event: Event, saved: bytes | None) -> tuple[Reply, bytes | None]:
    """Return what to tell the host about an event, and the run to keep (`None`: nothing is kept any more)."""
    if saved is None and event.kind not in ("prompt", "before"):
        return Reply(), None
    if event.kind == "agent_stop" and not event.agent:  # an older version does not say which: the session goes on
        return Reply(), saved
    run = _run(dialect, engine, event, saved)
    match event.kind:
        case "prompt":
            run, reply = _prompt(dialect, engine, event, run)
        case "before":
            reply = _before(dialect, event, run, engine.clock())
        case "after" | "failed":
            reply = _after(dialect, event, run)
        case "denied":
            reply = _denied(event, run)
        case "stop":
            reply = _stop(run)
        case "agent_stop":
            run.end("completed")
            return Reply(), None
        case "session_end":
            run.end("completed" if run.state.extra.answered else None)
            reply = Reply()
        case _:
            reply = Reply(notes=_notes(dialect, event, run))
    run.state.recent.clear()  # a host tells of each result once, and what calls hold may be whole files
    return reply, run.save()


def _host(dialect: Dialect) -> Host:
    host = HOSTS[dialect.host]
    # Where no note is heard between calls, the run makes it the text of a refusal.
    return host if dialect.hints else msgspec.structs.replace(host, can=host.can - {"hint"})


def _run(dialect: Dialect, engine: Any, event: Event, saved: bytes | None) -> HostRun:
    attended = not event.unattended
    if saved is not None:
        run = HostRun.resume(engine, _host(dialect), saved, attended=attended)
        session = run.state.extra = read_driver(run.state.extra or {}, Session)
        if engine.record and session.recorded != engine.record:
            engine.journal.resume(run.run.state.run_id, saved)
        session.recorded = engine.record
        return run
    return _new(dialect, engine, event, Session(), attended=attended)


def _new(dialect: Dialect, engine: Any, event: Event, session: Session, **options: Any) -> HostRun:
    name = f"{event.session}/{event.agent}" if event.agent else event.session
    name = name if session.number == 1 else f"{name}#{session.number}"
    run = HostRun(engine, _host(dialect), run_id=name, agent=event.agent_type or event.agent, **options)
    session.recorded = engine.record
    run.state.extra = session
    return run


def _prompt(dialect: Dialect, engine: Any, event: Event, run: HostRun) -> tuple[HostRun, Reply]:
    injected = _is_injected(dialect, event.text)
    if run.ended and not injected:
        again = Session(number=run.state.extra.number + 1)
        run = _new(dialect, engine, event, again, attended=run.attended, conversation=run.run.conversation)
    run.state.extra.answered = False
    if not run.run.state.started:
        run.begin(event.text)
    else:
        run.user_message(event.text, injected=injected)
    return run, Reply(notes=_notes(dialect, event, run), stop=_ended(run))


def _is_injected(dialect: Dialect, text: str) -> bool:
    """Return whether a harness sent a text in the user's name."""
    if dialect.host != "claude_code" or text[:1] not in ("<", "["):
        return False
    from policyengine.recordings.claude_code import HARNESS

    return text.startswith(HARNESS)


def _before(dialect: Dialect, event: Event, run: HostRun, now: float) -> Reply:
    if not run.run.state.started:
        run.begin("")
    if event.call_id and any(item.call.id == event.call_id and not item.reported for item in run.state.open):
        what, then = run.state.extra.judged.get(event.call_id, ("", 0.0))
        if what == _what(event.tool, event.args) and 0 <= now - then < TWICE_S:
            return Reply()  # a host that has our hook twice: the call was judged, and what was said of it stands
        _unheard(event.call_id, run)
    if not dialect.hints:
        run.state.undelivered += run.run.take_notes()
    ruling = run.call(ToolCall(event.call_id, event.tool, args=event.args))
    call = ruling.call
    still = {item.call.id for item in run.state.open if not item.reported}
    judged = {name: known for name, known in run.state.extra.judged.items() if name in still}
    run.state.extra.judged = {**judged, event.call_id: (_what(event.tool, event.args), now)}
    if ruling.runs and ruling.changed and dialect.merges and event.args.keys() - (call.args or {}).keys():
        run.answer(call.id, CANNOT_REMOVE, "denied", error=ToolError("cannot_rewrite", CANNOT_REMOVE, False))
        return Reply("deny", CANNOT_REMOVE, notes=_notes(dialect, event, run), stop=_ended(run))
    if ruling.action in ("run", "ask") and not event.call_id:
        run.state.extra.names.setdefault(_what(event.tool, event.args), []).append(call.id)
        if ruling.changed:
            run.state.extra.names.setdefault(_what(call.name, call.args), []).append(call.id)
    if ruling.runs:
        args = dict(call.args or {})
        return Reply("rewrite", "policyengine changed the arguments", args) if ruling.changed else Reply()
    if ruling.action == "ask":
        return Reply("ask", ruling.shown)
    return Reply(
        "deny",
        with_place(ruling.text or "refused", ruling.rule, ruling.at),
        notes=_notes(dialect, event, run),
        stop=_ended(run),
    )


def _after(dialect: Dialect, event: Event, run: HostRun) -> Reply:
    call_id = event.call_id or _named(event, run)
    item = next((item for item in run.state.open if item.call.id == call_id and not item.reported), None)
    if item is None or item.result is not None or run.ended:
        # Hooks that were installed in the middle of a session, or a result that is told twice.
        return Reply(notes=_notes(dialect, event, run), stop=_ended(run))
    read = result_of(event)
    error = ToolError("error", read.text, False) if read.failed else None
    result = ToolResult(call_id, read.text, "error" if read.failed else "ok", error, read.exit_code)
    told = run.answer_result(call_id, result)
    changed = told.text if told.text != read.text and "rewrite_result" in run.host.can else None
    return Reply(result=changed, notes=_notes(dialect, event, run), stop=_ended(run))


def _denied(event: Event, run: HostRun) -> Reply:
    text = "refused by the host"
    if any(item.call.id == event.call_id and item.result is None and not item.reported for item in run.state.open):
        run.answer(event.call_id, text, "denied", error=ToolError("denied", text, False))
    return Reply(stop=_ended(run))


def _unheard(call_id: str, run: HostRun) -> None:
    """Close a call of which nothing was heard, because its id is used again: whether it ran, nobody knows."""
    text = "no result was reported"
    if any(call.id == call_id for call in run.open_calls):
        run.answer(call_id, text, "error", error=ToolError("no_result", text, None))


def _stop(run: HostRun) -> Reply:
    """The agent gave its answer. Where a rule had asked it for a last one, that ends the run."""
    run.state.extra.answered = True
    if run.state.winding_down is not None and not run.ended:
        run.end("completed")
    return Reply()


def _named(event: Event, run: HostRun) -> str:
    """Return the id of the oldest open call of this tool with these arguments, where the host names none."""
    names: dict[str, list[str]] = run.state.extra.names
    found = names.get(_what(event.tool, event.args), [])
    call_id = found[0] if found else ""
    for key in [key for key, ids in names.items() if call_id in ids]:
        names[key].remove(call_id)
        if not names[key]:
            del names[key]
    return call_id


def _what(tool: str, args: dict[str, Any] | None) -> str:
    from hashlib import sha256

    text = json.dumps([tool, args], sort_keys=True, default=str)
    return sha256(text.encode("ascii")).hexdigest()[:32]


def _notes(dialect: Dialect, event: Event, run: HostRun) -> tuple[str, ...]:
    """Return what waits for the model, where this event can carry it. Open calls do not matter: a host puts a note
    beside the result it belongs to.
    """
    heard = event.kind in dialect.contexts or (event.kind == "before" and dialect.hints)
    if not heard:
        return ()
    held, run.state.undelivered = run.state.undelivered, []
    return tuple(note.text for note in (*held, *run.run.take_notes()))


def _ended(run: HostRun) -> str:
    """Return why a run has ended, for the user; empty where it goes on."""
    outcome: Outcome | None = run.outcome
    if outcome is None:
        return ""
    stop = outcome.stop
    if stop is None:
        return "policyengine: the run has ended"
    said = stop.code if stop.action == "wind_down" else stop.message or stop.code
    return f"policyengine: {with_place(said, stop.rule, stop.at)}"
