"""`policyengine run`: work on a task under a policy and show what the guards do.

Knows: how an agent is put together from options. Must not know: the loop, any guard.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeVar

import click
import msgspec

from policyengine.agent import Agent, Model
from policyengine.cli import COULD_NOT, INTERRUPTED, OK, STOPPED, WAITING
from policyengine.cli.attending import call_lines, human_here
from policyengine.cli.keeping import MADE, Made, command_for, making, next_commands, shown_place, store_option
from policyengine.cli.options import json_option, load_format
from policyengine.cli.output import aside, print_json, say, terminal
from policyengine.durable import Head, KeptRuns
from policyengine.durable.standing import Standing
from policyengine.engine import Engine
from policyengine.errors import UsageError
from policyengine.messages import ModelRequest, ModelResponse
from policyengine.outcome import Outcome
from policyengine.policy.durations import seconds
from policyengine.policy.reload import takes_sighup
from policyengine.policy.wording import suggestion
from policyengine.private import for_us_alone
from policyengine.providers.scripted import ScriptedModel, answer_text, load_script
from policyengine.script import Script, Turn
from policyengine.shared.ledger import Ledger
from policyengine.stores import Store, StoreError, open_store
from policyengine.telemetry.decision_log import DecisionLog, policy_line
from policyengine.telemetry.journal import JournalWriter
from policyengine.telemetry.live import LiveView
from policyengine.telemetry.log_file import LogFile, size_of
from policyengine.toolset import Toolset, load_tools

F = TypeVar("F", bound=Callable[..., Any])

MODELS = ("scripted",)
EXIT_CODES = {"completed": OK, "stopped": STOPPED, "waiting": WAITING, "failed": COULD_NOT, "cancelled": INTERRUPTED}


def read_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Read `200ms` as 0.2 seconds."""
    if value is None:
        return None
    read = seconds(value)
    if read is None:
        raise click.BadParameter(f"{value!r} is no duration; write a number with a unit, such as 200ms or 2s")
    return read


class Rotation(NamedTuple):
    """When a new decision log is begun: beyond a number of bytes, after a number of seconds, or never."""

    size: int | None = None
    every_s: float | None = None


NEVER = Rotation()

LOGS_KEPT = 5
"""How many full decision logs are kept where nobody says."""


def read_rotation(ctx: click.Context, param: click.Parameter, value: str | None) -> Rotation:
    """Read `100MB` as a size and `24h` as a time."""
    if value is None:
        return Rotation()
    size, every_s = size_of(value), seconds(value)
    if size is None and (every_s is None or every_s < 1):
        raise click.BadParameter(f"{value!r} is neither a size such as 100MB nor a time from 1s to 24h")
    return Rotation(size, every_s)


def served(engine: Engine, port: int) -> AbstractContextManager[str]:
    """Serve metrics of an engine on loopback; only a run that does needs the library."""
    from policyengine.prices import bundled_prices
    from policyengine.telemetry.metrics import Metrics

    return Metrics(engine, prices=bundled_prices()).serve(port)


def shared_ledger(place: str | None, kept: Kept | None, files: ExitStack) -> Ledger | None:
    """Return the ledger at a place, else where the run is kept; `None` where there is neither."""
    if place is not None:
        return Ledger(files.enter_context(closing(open_store(place))))
    return None if kept is None else Ledger(kept.store)


@dataclass(frozen=True)
class How:
    """How a run is worked on here: what is shown, written and waited for. None of it is kept with the run."""

    log: str | None = None
    rotation: Rotation = NEVER
    log_keep: int | None = None
    log_full: Literal["block", "drop"] = "block"
    metrics: int | None = None
    record: str | None = None
    shared: str | None = None
    watch: bool = False
    control: str | None = None
    delay: float | None = None
    asynchronous: bool = False
    unattended: bool = False
    no_color: bool = False
    as_json: bool = False


_WORKING: tuple[Callable[[Any], Any], ...] = (
    click.option("--log", metavar="FILE", help="Append the decision log to FILE (JSON lines, content-free)."),
    click.option(
        "--log-rotate",
        "rotation",
        callback=read_rotation,
        metavar="SIZE|TIME",
        help="Begin a new decision log at this size (100MB) or after this time (24h).",
    ),
    click.option(
        "--log-keep",
        metavar="N",
        type=click.IntRange(1),
        help=f"Full decision logs to keep, with --log-rotate; {LOGS_KEPT} without this.",
    ),
    click.option(
        "--log-full",
        default="block",
        show_default=True,
        type=click.Choice(["block", "drop"]),
        help="Where the log cannot keep up: wait for a moment, or drop lines at once.",
    ),
    click.option(
        "--metrics", metavar="PORT", type=click.IntRange(0, 65535), help="Serve metrics on loopback meanwhile."
    ),
    click.option(
        "--record",
        metavar="FILE",
        help="Write the journal to FILE (every event with content, for `replay`).",
    ),
    click.option(
        "--shared",
        metavar="PLACE",
        help="Where rules count with other processes: a file (SQLite), redis://HOST; else where the run is kept.",
    ),
    click.option("--watch", is_flag=True, help="Take edits of the policy between rounds, while the run goes on."),
    click.option(
        "--control", metavar="PATH", help="Answer `status`, `reload` and `kill` at this unix socket meanwhile."
    ),
    click.option(
        "--delay",
        callback=read_duration,
        metavar="TIME",
        help="Wait so long before each request (200ms, 2s).",
    ),
    click.option("--async", "asynchronous", is_flag=True, help="Use the asyncio driver."),
    click.option("--unattended", is_flag=True, help="Ask nobody at this terminal: a run that asks waits."),
    click.option("--no-color", is_flag=True, help="Print without colours."),
    load_format(),
    json_option,
)
"""The options of `How`, in the order of the help."""


def working(verb: F) -> F:
    """Add the options of `How`."""
    for option in reversed(_WORKING):
        verb = option(verb)
    return verb


@click.command("run")
@click.argument("task", required=False)
@making(anew=True)
@store_option(required=False)
@click.option("--run-id", metavar="ID", help="The id of a run that is kept; the same again goes on with it.")
@click.option("--agent", default="", metavar="NAME", help="The name of the agent, in logs and lists of runs.")
@working
def command(task: str | None, store: str | None, run_id: str | None, agent: str, **options: Any) -> int:
    """Work on TASK under a policy and show what happens, and what the guards do about it and why.

    Without options the embedded model plays the script `recovers`: an agent that gets stuck and is brought back on
    track. It needs no key and no network. A model of a provider needs its SDK (extras `openai`, `anthropic`) and its
    key in the environment.

    With --store the run is kept at every step: whatever ends this command, `runs resume` goes on with it. At a
    terminal a human is asked there what a rule wants a human to decide; elsewhere, and with --unattended or --json,
    the run waits.

    Exit code: 0 completed, 6 stopped by a guard, 7 waiting for a human, 2 failed, 1 the input is at fault.
    """
    check_task(task)
    made = Made(**{name: options.pop(name) for name in MADE})
    how = How(**options)
    if not store:
        if run_id:
            raise UsageError("--run-id is the id of a run that is kept: say where, with --store PLACE")
        return perform(made, how, task, agent=agent)
    # Only a run that is kept pays for it.
    from policyengine.cli.going_on import begin

    return begin(store, run_id, made, how, task, agent)


@dataclass(frozen=True)
class Kept:
    """A run that is kept, and what its process has to know of it.

    `standing` is how it stands if it had begun, `before` how the run stands that it follows; `resumed`: without saying
    once more what its task is.
    """

    store: Store
    place: str
    run_id: str
    standing: Standing | None = None
    before: Standing | None = None
    resumed: bool = False

    @property
    def source(self) -> Standing | None:
        """What it goes on from."""
        return self.standing or self.before

    def head(self) -> Head:
        """Return its head as it is kept by now."""
        return KeptRuns(self.store).head(self.run_id, whole=True)


def perform(made: Made, how: How, task: str | None, kept: Kept | None = None, *, agent: str = "") -> int:
    """Let an agent that is made so work on a task, show what happens, and return the exit code."""
    source = kept.source if kept is not None else None
    asked = task or (source.run.task if source is not None else None)
    provided = provided_model(
        made.model, asked, base_url=made.base_url, api_key_env=made.api_key_env, stream=made.stream or None
    )
    played = load_script(made.script)
    as_json = how.as_json
    # With --json, stdout holds the one object and nothing else: the account goes to stderr.
    view = LiveView(terminal(stderr=as_json, no_color=how.no_color))
    with ExitStack() as files:
        decision_log = log_of(how, files)
        with aside(as_json):
            engine = Engine(
                made.policy,
                overlays=made.overlays,
                folders=made.folders,
                sinks=[decision_log, view] if decision_log else [view],
                listeners=[decision_log.heard, view.heard] if decision_log else [view.heard],
                pin="iteration" if how.watch or how.control else None,
            )
        if how.metrics is not None:
            print(f"metrics: {files.enter_context(served(engine, how.metrics))}", file=sys.stderr)
        spoken: str = source.loop.protocol if source is not None else made.protocol or engine.snapshot.policy.protocol
        with aside(as_json):
            toolset = Toolset(())
            model: Model | None = provided
            if model is None:
                declared = bool(engine.snapshot.policy.parsing_of(ScriptedModel.name).forms)
                played = as_protocol(played, spoken, declared=declared)
                spoken = played.protocol
                model, toolset = scripted(played, made, kept)
            worker = make_agent(engine, model, toolset, made.tools, how.delay, made.folder)
            worker.human = human_here(wanted=not (how.unattended or as_json))
            if kept is not None:
                worker.store, worker.origin = kept.store, made.origin()
            if engine.snapshot.shared:
                worker.ledger = shared_ledger(how.shared, kept, files)
        watching = engine.watch(sighup=takes_sighup()) if how.watch else None
        if how.control:
            files.enter_context(engine.control(how.control))
        if how.record:
            # Only now: an earlier journal is not overwritten for a run that cannot begin.
            mode = "a" if kept is not None and kept.standing is not None else "w"
            engine.journal = JournalWriter(files.enter_context(opened(how.record, mode)))
        if watching is not None:
            files.enter_context(watching)
        if kept is not None:
            view.tell("run", f"{kept.run_id}, kept in {shown_place(kept.place)}")
        with aside(as_json), telling(kept):
            call = call_of(task or played.task, spoken, agent, kept)
            outcome = work(worker, call, provided, asynchronous=how.asynchronous)
        view.finish(outcome)
        head = kept.head() if kept is not None else None
        if kept is not None and head is not None and not as_json:
            tell_next(view, head, kept.place)
        if kept is None and outcome.status == "waiting":
            say("nothing of this run is kept; with --store PLACE it can be answered later, and goes on from there")
        if as_json:
            policy = msgspec.to_builtins(policy_line(engine.snapshot))
            print_json(described(outcome, policy, head, kept.place if kept is not None else ""))
    return EXIT_CODES[outcome.status]


def log_of(how: How, files: ExitStack) -> DecisionLog | None:
    """Return the decision log that was asked for."""
    if how.log_keep is not None and how.rotation == NEVER:
        say("warning: --log-keep has no effect without --log-rotate: the log is one file that grows")
    if not how.log:
        return None
    size, every_s = how.rotation
    keep = how.log_keep or LOGS_KEPT
    file = LogFile(how.log, max_bytes=size, every_s=every_s, keep=keep, when_full=how.log_full)
    return DecisionLog(files.enter_context(file))


def scripted(script: Script, made: Made, kept: Kept | None) -> tuple[ScriptedModel, Toolset]:
    """Return the embedded model and its tools, where a run of another process has come to with them."""
    if kept is None or kept.source is None:
        model = ScriptedModel(script)
        return model, model.tools()
    own = kept.standing.loop.requests if kept.standing is not None else 0
    model = ScriptedModel(script, made.played + own)
    return model, model.tools(kept.source.messages, kept.source.results.values())


@contextmanager
def telling(kept: Kept | None) -> Iterator[None]:
    """Say how a run that is kept goes on, if somebody interrupts it here or its store fails.

    Raises StoreError as it was, with the run and the command that goes on with it in its text.
    """
    try:
        yield
    except StoreError as error:
        if kept is None:
            raise
        following = command_for("resume", kept.run_id, kept.place)
        text = f"{error}; what is kept of run {kept.run_id!r} goes on with: {following}"
        raise StoreError(text, transient=error.transient, unknown=error.unknown) from error
    except KeyboardInterrupt:
        if kept is not None:
            say(f"interrupted; the run is kept. It goes on with: {command_for('resume', kept.run_id, kept.place)}")
        raise


def tell_next(view: LiveView, head: Head, place: str) -> None:
    """Print what a run asks, whole, and which commands go on with it."""
    if head.asked is not None:
        for label, text in call_lines(head.asked):
            view.tell(label, text)
    for number, line in enumerate(next_commands(head, place)):
        view.tell("" if number else "next", line)


def check_task(task: str | None) -> None:
    """Refuse a task that is the name of a policy file: it was meant as `--policy`, and the run would ignore it."""
    if task and Path(task).suffix in (".yaml", ".yml", ".json5") and Path(task).is_file():
        raise UsageError(f"{task} is a file; did you mean `--policy {task}`? (a task is a sentence)")


def provided_model(name: str, task: str | None, **fields: Any) -> Model | None:
    """Return the model of a provider, or `None` for the scripted one.

    Raises:
        UsageError: there is no such model or provider, its SDK or key is missing, or there is no task for it.
    """
    given = {field: value for field, value in fields.items() if value is not None}
    if name in MODELS:
        if given:
            option = next(iter(given)).replace("_", "-")
            raise UsageError(f"--{option} is for the model of a provider, such as --model openai:NAME")
        return None
    if ":" not in name and not name.endswith((".yaml", ".yml")):
        raise UsageError(f"no model named {name!r}; {suggestion(name, MODELS)}; or preset:model, such as openai:NAME")
    # Only a run with a provider pays for it.
    from policyengine.providers.registry import connect

    model = connect(name, **given)
    if not task:
        raise UsageError(f"say what {name} is to do: policyengine run --model {name} TASK")
    return model


@contextmanager
def opened(path: str, mode: str) -> Iterator[IO[str]]:
    """Open a file for one line after another; what cannot be written when it is closed was reported before.

    A last line that was cut off when a process was killed is ended first, so that it stays the only one that is broken.
    """
    try:
        cut_off = mode == "a" and _ends_within_a_line(path)
        file = open(path, mode, encoding="utf-8", newline="\n", opener=for_us_alone)  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    try:
        if cut_off:
            with suppress(OSError):  # as for every other line, the writer tells
                file.write("\n")
        yield file
    finally:
        with suppress(OSError):
            file.close()


def _ends_within_a_line(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # there is none, or it is empty
        return False


def make_agent(
    engine: Engine, model: Model, toolset: Toolset, tools: str | None, delay: float | None, folder: str = ""
) -> Agent:
    """Return an agent with a model, its tools or Python ones, and a pause before each request.

    Python tools are looked for in `folder`, too: the current one if it is empty.
    """
    if tools is not None:
        if folder not in sys.path:
            sys.path.insert(0, folder)
        toolset = load_tools(tools)
    return Agent(engine, model if delay is None else Paced(model, delay), toolset)


class Paced:
    """A model that takes its time before it answers."""

    def __init__(self, model: Model, delay_s: float, sleep: Callable[[float], Any] = time.sleep) -> None:
        self.name = model.name
        self._model = model
        self._delay_s = delay_s
        self._sleep = sleep

    def complete(self, request: ModelRequest) -> ModelResponse | Awaitable[ModelResponse]:
        """Wait, then answer."""
        self._sleep(self._delay_s)
        return self._model.complete(request)


Call = tuple[str, tuple[Any, ...], dict[str, Any]]
"""What an agent is to do: a method (that of asyncio begins with an `a`) and its arguments."""


def call_of(task: str, protocol: str, agent: str, kept: Kept | None) -> Call:
    """Return what an agent is to do: begin a run, or go on with one that is kept."""
    if kept is not None and kept.resumed:
        return "resume_run", (kept.run_id,), {}
    options: dict[str, Any] = {"protocol": protocol} | ({"agent": agent} if agent else {})
    if kept is not None:
        options["run_id"] = kept.run_id
    if kept is not None and kept.before is not None:
        options |= {"history": kept.before.messages, "conversation": kept.before.conversation}
    return "run", (task,), options


def work(agent: Agent, call: Call, provided: Model | None, *, asynchronous: bool) -> Outcome:
    """Run the agent with the driver that was asked for, and close the connections that a provider's model has open."""
    name, arguments, options = call
    if asynchronous:
        return asyncio.run(_awork(agent, call, provided))
    try:
        outcome: Outcome = getattr(agent, name)(*arguments, **options)
        return outcome
    finally:
        close = getattr(provided, "close", None)
        if close is not None:
            close()


async def _awork(agent: Agent, call: Call, provided: Model | None) -> Outcome:
    name, arguments, options = call
    try:
        outcome: Outcome = await getattr(agent, f"a{name}")(*arguments, **options)
        return outcome
    finally:
        aclose = getattr(provided, "aclose", None)
        if aclose is not None:
            await aclose()


def as_protocol(script: Script, protocol: str, *, declared: bool = False) -> Script:
    """Return a script that speaks `protocol` (`auto`: its own).

    A native script becomes a text one by making its calls one at a time, which is all that protocol allows, and by
    writing its answer as the protocol wants it. A script written for the text protocol is deliberate down to the
    letter: in the native protocol its texts are said as they are. So are those of any script where the policy declares
    a text protocol of its own: nobody else knows how a call is written in it.
    """
    if protocol in ("auto", script.protocol):
        return script
    if declared and protocol == "text":
        return msgspec.structs.replace(script, protocol=protocol)
    turns = script.turns
    if protocol == "text":
        turns = tuple(part for turn in turns for part in _text_turns(turn))
    return msgspec.structs.replace(script, protocol=protocol, turns=turns)


def _text_turns(turn: Turn) -> tuple[Turn, ...]:
    if not turn.calls:
        return (msgspec.structs.replace(turn, text=answer_text(turn.text)) if turn.text else turn,)
    return tuple(msgspec.structs.replace(turn, calls=(call,)) for call in turn.calls)


def described(outcome: Outcome, policy: Any, head: Head | None = None, place: str = "") -> dict[str, Any]:
    """Return an outcome as plain data, with the policy it was reached under; the history is the journal's.

    A run that is kept has its id beside it, what it asks, and the commands that go on with it.
    """
    stop = outcome.stop
    kept: dict[str, Any] = {}
    if head is not None:
        asked = msgspec.to_builtins(head.asked)
        kept = {"run_id": head.run_id, "asked": asked, "next": list(next_commands(head, place))}
    return {
        "status": outcome.status,
        "output": outcome.output,
        "stop": {name: getattr(stop, name) for name in stop.__struct_fields__} if stop else None,
        "error": outcome.error,
        "iterations": outcome.iterations,
        "calls": outcome.calls,
        "executed": outcome.executed,
        "interventions": outcome.interventions,
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "policy": policy,
        **kept,
    }
