"""`policyengine run`: work on a task under a policy and show what the guards do.

Knows: how an agent is put together from options. Must not know: the loop, any guard.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

import click
import msgspec

from policyengine.agent import Agent, Model
from policyengine.cli import COULD_NOT, INTERRUPTED, OK, STOPPED, WAITING
from policyengine.cli.options import json_option, load_format, policy_source
from policyengine.cli.output import aside, print_json, terminal
from policyengine.engine import Engine
from policyengine.errors import UsageError
from policyengine.messages import ModelRequest, ModelResponse
from policyengine.outcome import Outcome
from policyengine.policy.durations import seconds
from policyengine.policy.reload import takes_sighup
from policyengine.policy.wording import suggestion
from policyengine.providers.scripted import ScriptedModel, answer_text, load_script
from policyengine.script import Script, Turn
from policyengine.telemetry.decision_log import DecisionLog, policy_line
from policyengine.telemetry.journal import JournalWriter
from policyengine.telemetry.live import LiveView
from policyengine.toolset import Toolset, load_tools

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


@click.command("run")
@click.argument("task", required=False)
@policy_source
@click.option(
    "--model",
    default="scripted",
    show_default=True,
    metavar="NAME|PRESET:MODEL|FILE",
    help="Which model works on the task: the embedded one, openai:NAME and the like, or a provider in a YAML file.",
)
@click.option("--base-url", metavar="URL", help="Where the provider is, instead of its preset's place.")
@click.option("--api-key-env", metavar="NAME", help="The environment variable that holds the key; '' for no key.")
@click.option("--stream", is_flag=True, help="Ask the provider for streams.")
@click.option("--script", default="recovers", show_default=True, metavar="NAME|FILE", help="What `scripted` says.")
@click.option("--tools", metavar="MODULE:OBJECT", help="Python functions instead of the scripted tools.")
@click.option("--protocol", type=click.Choice(["native", "text"]), help="How calls are written; overrides the policy.")
@click.option("--log", metavar="FILE", help="Append the decision log to FILE (JSON lines, content-free).")
@click.option("--record", metavar="FILE", help="Write the journal to FILE (every event with content, for `replay`).")
@click.option("--watch", is_flag=True, help="Take edits of the policy between rounds, while the run goes on.")
@click.option("--control", metavar="PATH", help="Answer `status`, `reload` and `kill` at this unix socket meanwhile.")
@click.option("--delay", callback=read_duration, metavar="TIME", help="Wait so long before each request (200ms, 2s).")
@click.option("--async", "asynchronous", is_flag=True, help="Use the asyncio driver.")
@click.option("--no-color", is_flag=True, help="Print without colours.")
@load_format()
@json_option
def command(
    task: str | None,
    policy: str,
    overlays: tuple[str, ...],
    folders: tuple[str, ...],
    model: str,
    base_url: str | None,
    api_key_env: str | None,
    stream: bool,
    script: str,
    tools: str | None,
    protocol: Literal["native", "text"] | None,
    log: str | None,
    record: str | None,
    watch: bool,
    control: str | None,
    delay: float | None,
    asynchronous: bool,
    no_color: bool,
    as_json: bool,
) -> int:
    """Work on TASK under a policy and show what happens, and what the guards do about it and why.

    Without options the embedded model plays the script `recovers`: an agent that gets stuck and is brought back on
    track. It needs no key and no network. A model of a provider needs its SDK (extras `openai`, `anthropic`) and its
    key in the environment.

    Exit code: 0 completed, 6 stopped by a guard, 7 waiting for a human, 2 failed, 1 the input is at fault.
    """
    check_task(task)
    provided = provided_model(model, task, base_url=base_url, api_key_env=api_key_env, stream=stream or None)
    played = load_script(script)
    # With --json, stdout holds the one object and nothing else: the account goes to stderr.
    view = LiveView(terminal(stderr=as_json, no_color=no_color))
    with ExitStack() as files:
        decision_log = DecisionLog(files.enter_context(opened(log, "a"))) if log else None
        with aside(as_json):
            engine = Engine(
                policy,
                overlays=overlays,
                folders=folders,
                sinks=[decision_log, view] if decision_log else [view],
                listeners=[decision_log.heard, view.heard] if decision_log else [view.heard],
                pin="iteration" if watch or control else None,
            )
        spoken: str = protocol or engine.snapshot.policy.protocol
        with aside(as_json):
            if provided is not None:
                agent = make_agent(engine, provided, Toolset(()), tools, delay)
            else:
                declared = bool(engine.snapshot.policy.parsing_of(ScriptedModel.name).forms)
                played = as_protocol(played, spoken, declared=declared)
                spoken = played.protocol
                scripted = ScriptedModel(played)
                agent = make_agent(engine, scripted, scripted.tools(), tools, delay)
        watching = engine.watch(sighup=takes_sighup()) if watch else None
        if control:
            files.enter_context(engine.control(control))
        if record:
            # Only now: an earlier journal is not overwritten for a run that cannot begin.
            engine.journal = JournalWriter(files.enter_context(opened(record, "w")))
        if watching is not None:
            files.enter_context(watching)
        with aside(as_json):
            outcome = work(agent, task or played.task, spoken, provided, asynchronous=asynchronous)
        view.finish(outcome)
        if as_json:
            print_json(described(outcome, engine))
    return EXIT_CODES[outcome.status]


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
    """Open a file for one line after another; what cannot be written when it is closed was reported before."""
    try:
        file = Path(path).open(mode, encoding="utf-8", newline="\n")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield file
    finally:
        with suppress(OSError):
            file.close()


def make_agent(engine: Engine, model: Model, toolset: Toolset, tools: str | None, delay: float | None) -> Agent:
    """Return an agent with a model, its tools or Python ones, and a pause before each request."""
    if tools is not None:
        if "" not in sys.path:
            sys.path.insert(0, "")
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


def work(agent: Agent, task: str, protocol: str, provided: Model | None, *, asynchronous: bool) -> Outcome:
    """Run the agent with the driver that was asked for, and close the connections that a provider's model has open."""
    if asynchronous:
        return asyncio.run(_awork(agent, task, protocol, provided))
    try:
        return agent.run(task, protocol=protocol)
    finally:
        close = getattr(provided, "close", None)
        if close is not None:
            close()


async def _awork(agent: Agent, task: str, protocol: str, provided: Model | None) -> Outcome:
    try:
        return await agent.arun(task, protocol=protocol)
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


def described(outcome: Outcome, engine: Engine) -> dict[str, Any]:
    """Return an outcome as plain data, with the policy it was reached under; the history is the journal's."""
    stop = outcome.stop
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
        "policy": msgspec.to_builtins(policy_line(engine.snapshot)),
    }
