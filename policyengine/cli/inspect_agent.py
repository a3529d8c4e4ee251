"""`policyengine inspect agent`: what is missing in an agent, found without running anything of it.

Knows: how findings are shown. Must not know: what a finding is, how an agent works.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from policyengine.agent import Agent
from policyengine.cli import AT_FAULT, OK, ONLY_WARNINGS
from policyengine.cli.loading import load
from policyengine.cli.options import json_option, layers, load_format, strict_option
from policyengine.cli.output import print_json, terminal
from policyengine.errors import UsageError
from policyengine.inspection import Finding, inspect_parts
from policyengine.policy.model import Policy
from policyengine.toolset import load_object, made_by
from policyengine.visible import clean_line


@click.command("agent")
@click.argument("reference", metavar="MODULE:ATTR")
@click.option("--policy", "-p", metavar="NAME|PATH", help="Judge it under this policy instead of its own.")
@layers
@click.option("--no-color", is_flag=True, help="Print without colours.")
@strict_option
@load_format()
@json_option
def command(
    reference: str,
    policy: str | None,
    overlays: tuple[str, ...],
    folders: tuple[str, ...],
    no_color: bool,
    strict: bool,
    as_json: bool,
) -> int:
    """Report what is missing in an agent: ranges, descriptions, effects, limits, a system prompt that says something.

    MODULE:ATTR is an `Agent`, or a function that returns one; the module is imported and the function called. No model
    and no tool is ever called.

    Exit code: 0 nothing worse than warnings, 1 errors, 3 only warnings and --strict.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    if policy is None and (overlays or folders):
        raise UsageError("--overlay and --folder need a --policy; the agent's own has its layers already")
    with redirect_stdout(sys.stderr):  # the module is foreign code, and stdout is ours
        agent = load_agent(reference)
        judged = load(policy, overlays, folders).policy if policy is not None else agent.engine.snapshot.policy
    found = inspect_parts(agent.tools.specs, judged, agent.system, text_protocol=judged.protocol == "text")
    if as_json:
        print_json(described(reference, agent, judged, found))
    else:
        show(terminal(no_color=no_color), reference, agent, judged, found)
    if any(finding.severity == "error" for finding in found):
        return AT_FAULT
    return ONLY_WARNINGS if strict and found else OK


def load_agent(reference: str) -> Agent:
    """Return the agent at `module:attribute`, made by the function there if it is one.

    Raises:
        UsageError: there is no agent.
    """
    found = load_object(reference, "an agent")
    if not isinstance(found, Agent) and callable(found):
        found = made_by(found, reference)
    if not isinstance(found, Agent):
        raise UsageError(f"{reference} is no Agent and no function that returns one, but {type(found).__name__}")
    return found


def described(reference: str, agent: Agent, policy: Policy, found: list[Finding]) -> dict[str, Any]:
    """Return what was found as plain data."""
    return {
        "ok": all(finding.severity != "error" for finding in found),
        "agent": reference,
        "policy": {"name": policy.name, "revision": policy.revision, "digest": policy.digest},
        "tools": [tool.name for tool in agent.tools.specs],
        "findings": msgspec.to_builtins(found),
    }


def show(console: Console, reference: str, agent: Agent, policy: Policy, found: list[Finding]) -> None:
    """Print what was found, for people."""
    tools = len(agent.tools.specs)
    head = f"{reference}: {tools} tool{'' if tools == 1 else 's'}, policy {policy.name}"
    console.print(Text(clean_line(head), "bold"), soft_wrap=True)
    for finding in found:
        style = "red" if finding.severity == "error" else "yellow"
        line = f"  {finding.severity}[{finding.code}] {finding.where}: {finding.message}"
        console.print(Text(clean_line(line), style), soft_wrap=True)
        console.print(Text(clean_line(f"    {finding.help}"), "dim"), soft_wrap=True)
    errors = sum(finding.severity == "error" for finding in found)
    told = f"{errors} errors, {len(found) - errors} warnings" if found else "nothing is missing"
    console.print(Text(f"  {told}", "bold"), soft_wrap=True)
