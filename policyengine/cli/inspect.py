"""`policyengine inspect`: call one tool and see what an agent would be given; see what is missing in an agent.

Knows: how findings are shown. Must not know: how a tool is probed, what a problem is.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from policyengine.cli import AT_FAULT, NOTHING, OK, ONLY_WARNINGS, inspect_agent
from policyengine.cli.options import allow_empty_option, json_option, strict_option
from policyengine.cli.output import print_json, say, terminal
from policyengine.cli.run import read_duration
from policyengine.errors import UsageError
from policyengine.probing import Inspected, Probe, inspect_tool, readable
from policyengine.toolset import Tool, load_tools


@click.group("inspect")
def command() -> None:
    """Look closely at one tool, or at a whole agent."""


command.add_command(inspect_agent.command)


@command.command("tool")
@click.argument("reference", metavar="MODULE:FUNCTION")
@click.option("--args", "texts", multiple=True, metavar="JSON", help="Arguments of a call, as an object; repeatable.")
@click.option("--no-run", is_flag=True, help="Look at the signature only; nothing is called.")
@click.option("--timeout", callback=read_duration, default="10s", show_default=True, help="How long one call may take.")
@click.option("--no-color", is_flag=True, help="Print without colours.")
@strict_option
@allow_empty_option
@json_option
def tool(
    reference: str,
    texts: tuple[str, ...],
    no_run: bool,
    timeout: float,
    no_color: bool,
    strict: bool,
    allow_empty: bool,
    as_json: bool,
) -> int:
    """Call a tool with sample arguments and show what an agent would be given.

    THE TOOL IS REALLY RUN, with all its effects, once for every --args. Without --args it is called with arguments that
    fit its signature, without the first required one, and with one of a wrong type. MODULE:LIST probes every tool of a
    list. What the tool prints goes to stderr.

    Shown are, for every call, the outcome and its envelope, which has one shape for successes and failures; reported is
    what the tool itself does not keep to.

    Exit code: 0 the tool keeps to one shape, 1 it does not, 3 there are only warnings and --strict.
    """
    samples = [read_args(text) for text in texts]
    if "" not in sys.path:
        sys.path.insert(0, "")
    with redirect_stdout(sys.stderr):  # the module, too, is foreign code
        tools = all_tools(reference)
    if not tools:
        say("nothing to inspect: the list holds no tool")
        return OK if allow_empty else NOTHING
    if samples and len(tools) > 1:
        raise UsageError(f"--args fit one tool, and {reference} holds {len(tools)}")
    with redirect_stdout(sys.stderr):
        found = [inspect_tool(item, samples, run=not no_run, timeout_s=timeout) for item in tools]
    if as_json:
        print_json({"ok": all(item.ok for item in found), "tools": [described(item) for item in found]})
    else:
        for item in found:
            show(terminal(no_color=no_color), item)
    return exit_code(found, strict=strict)


def all_tools(reference: str) -> list[Tool]:
    """Return the tools at a reference."""
    tools = load_tools(reference)
    return [found for spec in tools.specs if (found := tools.get(spec.name)) is not None]


def read_args(text: str) -> dict[str, Any]:
    """Return the arguments of one call."""
    try:
        args = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--args must be a JSON object: {error}") from error
    if not isinstance(args, dict):
        raise UsageError(f"--args must be a JSON object, not {type(args).__name__}")
    return args


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def exit_code(found: list[Inspected], *, strict: bool) -> int:
    """Return 1 where a tool does not keep to one shape, 3 where there are warnings and that matters, else 0."""
    if not all(item.ok for item in found):
        return AT_FAULT
    return ONLY_WARNINGS if strict and any(item.problems for item in found) else OK


def described(item: Inspected) -> dict[str, Any]:
    """Return what was found as plain data."""
    return {
        "tool": item.tool,
        "ok": item.ok,
        "description": item.description,
        "parameters": item.parameters,
        "ran": item.ran,
        "probes": [_described(probe) for probe in item.probes],
        "problems": msgspec.to_builtins(item.problems),
    }


def _described(probe: Probe) -> dict[str, Any]:
    seen = probe.outcome
    outcome = {name: getattr(seen, name) for name in seen.__struct_fields__ if name != "data"}
    outcome["notes"] = list(seen.notes)
    return {
        "probe": probe.name,
        "args": probe.args,
        "shape": probe.shape,
        "outcome": outcome,
        "envelope": probe.envelope,
    }


def show(console: Console, item: Inspected) -> None:
    """Print what was found, for people."""
    parameters = ", ".join(
        f"{name}: {_typed(schema)}" for name, schema in item.parameters.get("properties", {}).items()
    )
    console.print(Text(f"{item.tool}({parameters})", "bold"), soft_wrap=True)
    if item.description:
        console.print(Text(f"  {item.description}"), soft_wrap=True)
    for probe in item.probes:
        seen = probe.outcome
        verdict = Text("ok", "green") if seen.ok else Text(f"failed ({seen.code})", "yellow")
        console.print(Text(f"  {probe.name} {readable(probe.args)} -> {probe.shape}: ").append(verdict), soft_wrap=True)
        console.print(Text(f"    {readable(probe.envelope)}", "dim"), soft_wrap=True)
    for problem in item.problems:
        style = "red" if problem.level == "error" else "yellow"
        where = f"{problem.probe}: " if problem.probe else ""
        console.print(Text(f"  {problem.level}[{problem.code}] {where}{problem.message}", style), soft_wrap=True)
    console.print(Text("  " + _summary(item), "bold"), soft_wrap=True)


def _typed(schema: dict[str, Any]) -> str:
    return str(schema.get("type", "any"))


def _summary(item: Inspected) -> str:
    if not item.ran:
        return "nothing was called" if item.ok else "nothing was called; the signature is at fault"
    return "one shape" if item.ok else "not one shape"
