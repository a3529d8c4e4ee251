"""`policyengine eval`: ask a policy about one event and show every rule's vote.

Knows: payloads as JSON, which reporting methods of a run lead to which hook.
Must not know: how a decision is made, any guard.

The event is reported to a real run, in a whole round around it, so that a rule which counts rounds, calls and results
sees what it would see live.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from policyengine.cli.options import json_option, load_format, policy_source
from policyengine.cli.output import aside, print_json, table, terminal
from policyengine.decision import Decision
from policyengine.engine import Engine
from policyengine.errors import UsageError
from policyengine.hooks import HOOKS
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
from policyengine.parsing.verdict import Verdict
from policyengine.policy.wording import suggestion
from policyengine.run import Report, Run
from policyengine.shared.alone import Alone
from policyengine.shared.pools import Need
from policyengine.telemetry.decision_log import policy_line, rule_line
from policyengine.telemetry.live import STYLES, explain, number
from policyengine.visible import clean, clean_line

CALL_ID = "eval-1"

PAYLOADS: dict[str, dict[str, Any]] = {
    "run_start": {"task": str},
    "step_start": {"step": int},
    "step_end": {"step": int},
    "before_model_call": {"request": ModelRequest},
    "after_model_response": {"response": ModelResponse},
    "after_parse": {"verdict": Verdict},
    "after_provider_error": {"error": ProviderError},
    "hist_add_warning.start": {"warning": HistoryWarning},
    "hist_add_warning.end": {"warning": HistoryWarning},
    "before_tool_call": {"call": ToolCall, "batch": Batch, "result": ToolResult},
    "after_tool_call": {"call": ToolCall, "result": ToolResult},
    "after_iteration": {"iteration": Iteration},
}
"""What the payload of every deciding hook may hold. The result of a call that is judged matters to `--repeat`."""

DEFAULTS: dict[str, Callable[[], Any]] = {
    "task": lambda: "",
    "step": lambda: 1,
    "request": lambda: ModelRequest(()),
    "iteration": lambda: Iteration(0),
    "batch": lambda: None,
    "result": lambda: ToolResult(CALL_ID, "ok"),
}
"""Parts of a payload that need not be given."""


class Evaluation(msgspec.Struct, frozen=True):
    """What the policy said to the event, the n-th time in a row that it happened."""

    n: int
    decision: Decision


@click.command("eval")
@policy_source
@click.option("--hook", required=True, metavar="HOOK", help="Hook point, in policy spelling.")
@click.option("--payload", "text", required=True, metavar="JSON|@FILE|-", help="The event, as a JSON object.")
@click.option("--agent", default="", metavar="NAME", help="The agent's name, for selectors.")
@click.option("--iteration", default=1, show_default=True, type=click.IntRange(1), help="Number of the first round.")
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1, 10_000), help="How often it happens.")
@click.option("--no-color", is_flag=True, help="Print without colours.")
@load_format()
@json_option
def command(
    policy: str,
    overlays: tuple[str, ...],
    folders: tuple[str, ...],
    hook: str,
    text: str,
    agent: str,
    iteration: int,
    repeat: int,
    no_color: bool,
    as_json: bool,
) -> int:
    """Ask a policy about one event, and show every rule's vote and the decision they make together.

    The payload is a JSON object with the hook's payload names, for example
    {"call": {"name": "search", "args": {"query": "x"}}, "result": {"text": "nothing found"}}.
    With --repeat the same event happens so many times in a row, one a round: that shows a rule's ladder.

    Exit code: 0 whatever the decision is, 1 the input is at fault.
    """
    check_hook(hook)
    payload = read_payload(hook, text)
    with aside(as_json):
        engine = Engine(policy, overlays=overlays, folders=folders, enforce_time=False)
        evaluations = evaluate(engine, hook, payload, agent=agent, iteration=iteration, repeat=repeat)
    if as_json:
        described = [_described(item) for item in evaluations]
        policy_facts = msgspec.to_builtins(policy_line(engine.snapshot))
        print_json({"hook": hook, "policy": policy_facts, "evaluations": described})
    else:
        _show(terminal(no_color=no_color), evaluations)
    return 0


def check_hook(hook: str) -> None:
    """Refuse what is no hook point, or one at which nothing is decided; raises `UsageError`."""
    if hook in PAYLOADS:
        return
    if hook in HOOKS:
        raise UsageError(f"{hook} is an observer: nothing is decided there; hooks that decide: {', '.join(PAYLOADS)}")
    raise UsageError(f"no hook point {hook!r}; {suggestion(hook, PAYLOADS)}")


def evaluate(
    engine: Engine, hook: str, payload: Mapping[str, Any], *, agent: str = "", iteration: int = 1, repeat: int = 1
) -> list[Evaluation]:
    """Let the event happen `repeat` times in a new run, one a round; return what was decided at `hook` each time."""
    heard: list[Report] = []
    engine.sinks.append(heard.append)
    run = engine.start_run(run_id="eval", agent=agent)
    engine.sinks.remove(heard.append)
    pools = Alone(lambda: run.state.now)
    evaluations = []
    if hook != "run_start":
        run.start("")
    for n in range(1, repeat + 1):
        del heard[:]
        run.state.iteration = iteration + n - 2
        _happen(run, hook, payload, pools)
        run.take_notes()
        evaluations.append(Evaluation(n, next(report.decision for report in heard if report.hook == hook)))
        if hook == "run_start":
            break  # a run starts once
    return evaluations


def _happen(run: Run, hook: str, payload: Mapping[str, Any], pools: Alone) -> None:
    """Report the event, and around it what a round has anyway."""
    if hook == "run_start":
        run.start(payload["task"])
        return
    if hook in ("step_start", "step_end"):
        run.state.step = payload["step"] - (hook == "step_start")
        run.user_message("")
        return
    run.begin_iteration()
    calls, usable = 0, True
    match hook:
        case "before_model_call":
            _reserve(run, run.needs_of_request(), pools)
            run.before_model_call(payload["request"])
        case "after_model_response":
            run.after_model_response(payload["response"])
        case "after_parse":
            run.after_parse(payload["verdict"])
            usable = payload["verdict"].usable
        case "after_provider_error":
            run.after_provider_error(payload["error"])
        case "hist_add_warning.start" | "hist_add_warning.end":
            run.add_warning(payload["warning"].kind, payload["warning"].data)
            usable = False
        case "before_tool_call" | "after_tool_call":
            _call(run, payload, pools)
            calls = 1
        case "after_iteration":
            calls, usable = payload["iteration"].calls, payload["iteration"].usable
    run.end_iteration(calls, usable)


def _call(run: Run, payload: Mapping[str, Any], pools: Alone) -> None:
    call, result = payload["call"], payload["result"]
    _reserve(run, run.needs_of_calls((call,)), pools)
    decision = run.before_tool_call(call, payload.get("batch"))
    if decision.action == "deny":
        result = ToolResult(call.id, decision.message, "denied")
    elif not decision.allowed:
        result = ToolResult(call.id, decision.message, "not_run")
    run.after_tool_call(decision.changed or call, result)


def _reserve(run: Run, needs: tuple[Need, ...], pools: Alone) -> None:
    """Reserve of pools that are shared with others as if this run were alone."""
    if needs:
        run.shared(pools.perform(needs, run.take_dues()))


# ---- reading a payload


def read_payload(hook: str, text: str) -> dict[str, Any]:
    """Return the typed payload of a hook from JSON text, `@FILE` or `-`.

    Raises:
        UsageError: it is no JSON, or not what the hook's payload consists of.
    """
    source, text = _fetch(text)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(_not_json(source, text, error)) from None
    except RecursionError:
        raise UsageError(f"{source}: nested too deeply") from None
    except ValueError as error:  # an integer with more digits than Python reads
        raise UsageError(f"{source}: {error}") from None
    names = PAYLOADS[hook]
    if not isinstance(value, dict):
        raise UsageError(f"{source}: the payload is a JSON object with: {', '.join(names)}")
    _known(source, "", value, names)
    payload = {}
    for name, kind in names.items():
        if name in value:
            payload[name] = _typed(source, name, value[name], kind)
        elif name in DEFAULTS:
            payload[name] = DEFAULTS[name]()
        else:
            raise UsageError(f"{source}: {name} is missing; the payload of {hook} has: {', '.join(names)}")
    return payload


def _fetch(text: str) -> tuple[str, str]:
    if text == "-":
        return "stdin", sys.stdin.read()
    if not text.startswith("@"):
        return "payload", text
    try:
        return text[1:], Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the payload {text[1:]}: {error}") from error


def _not_json(source: str, text: str, error: json.JSONDecodeError) -> str:
    line = text.split("\n")[error.lineno - 1]
    start = max(0, error.colno - 80)
    excerpt = line[start : start + 120].replace("\t", " ")
    return (
        f"{source}:{error.lineno}:{error.colno}: not JSON: {error.msg}\n"
        f"{error.lineno:>5} | {excerpt}\n      | {' ' * (error.colno - 1 - start)}^"
    )


def _known(source: str, place: str, value: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any]) -> None:
    for name in value:
        if name not in names:
            where = f"{place}.{name}" if place else name
            raise UsageError(f"{source}: {where}: unknown; {suggestion(name, names, 'accepts')}")


def _typed(source: str, name: str, value: Any, kind: Any) -> Any:
    if isinstance(value, dict) and issubclass(kind, msgspec.Struct):
        _known(source, name, value, kind.__struct_fields__)
        value = _completed(kind, value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        fault = str(error) if "`$" in str(error) else f"{error} - at `$`"
        raise UsageError(f"{source}: {fault.replace('`$', f'`{name}')}") from None


def _completed(kind: Any, value: dict[str, Any]) -> dict[str, Any]:
    """Fill in what a person need not write: ids, the text of arguments, the number that the engine gives a round."""
    if kind is ToolCall:
        return _completed_call(value)
    if kind is ToolResult:
        return {"call_id": CALL_ID, "text": "", **value}
    if kind is Iteration:
        return {"number": 0, **value}
    nested = {Verdict: "calls", ModelResponse: "tool_calls"}.get(kind)
    calls = value.get(nested) if nested else None
    if nested and isinstance(calls, list):
        return {**value, nested: [_completed_call(item) if isinstance(item, dict) else item for item in calls]}
    return value


def _completed_call(value: dict[str, Any]) -> dict[str, Any]:
    call = {"id": CALL_ID, **value}
    if "arguments" not in call:
        call["arguments"] = json.dumps(call.get("args", {}))
    if "args" not in call and isinstance(call["arguments"], str):
        try:
            call["args"] = json.loads(call["arguments"])
        except (ValueError, RecursionError):
            call["args"] = None
    return call


# ---- showing


def _described(item: Evaluation) -> dict[str, Any]:
    decision, control = item.decision, item.decision.control
    return {
        "n": item.n,
        "decision": decision.action,
        "decided_by": decision.decided_by,
        "at": decision.at,
        "code": control.code if control else "",
        "observed": control.observed if control else None,
        "limit": control.limit if control else None,
        "message": decision.message,
        "notes": [msgspec.to_builtins(note) for note in decision.notes],
        "rules": [msgspec.to_builtins(rule_line(vote, with_text=True)) for vote in decision.votes],
        "conflicts": list(decision.conflicts),
    }


def _show(console: Console, evaluations: Sequence[Evaluation]) -> None:
    """Print one line for each time the event happened, why where anybody objected, and the votes of the last."""
    for item in evaluations:
        head = f"{item.n}. " if len(evaluations) > 1 else ""
        action = item.decision.action
        console.print(Text(f"{head}{action}", STYLES.get(action, "bold green")))
        for label, text, more in explain(item.decision):
            console.print(Text(f"   {label.ljust(9)} {clean_line(text)}"), soft_wrap=True)
            for line in clean(more).splitlines():
                console.print(Text(f"             {line}", "dim"), soft_wrap=True)
    decision = evaluations[-1].decision
    if not decision.votes:
        console.print(Text("no rule is asked at this hook"))
        return
    console.print()
    shown = table("rule", "at", "mode", "wanted", "effective", "code", "#observed", "#limit")
    for vote in decision.votes:
        said = rule_line(vote)
        numbers = ("" if value is None else number(value) for value in (said.observed, said.limit))
        row = (said.id, said.at, said.mode, said.raw, said.effective, said.code, *numbers)
        shown.add_row(*map(Text, map(clean_line, row)))
    console.print(shown)
