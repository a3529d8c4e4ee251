"""`policyengine explain`: which value is in force, and where each layer set it.

Knows: how provenance is listed. Must not know: how layers merge.
"""

from __future__ import annotations

import click
from rich.console import Console
from rich.text import Text

from policyengine.cli.loading import load
from policyengine.cli.options import json_option, layers, load_format
from policyengine.cli.output import aside, print_json, terminal
from policyengine.errors import UsageError
from policyengine.policy.explain import Explained, explain
from policyengine.policy.model import Policy
from policyengine.policy.wording import suggestion
from policyengine.visible import clean


@click.command("explain")
@click.argument("policy")
@click.argument("path", required=False)
@layers
@click.option("--no-color", is_flag=True, help="Print without colours.")
@load_format()
@json_option
def command(
    policy: str, path: str | None, overlays: tuple[str, ...], folders: tuple[str, ...], no_color: bool, as_json: bool
) -> int:
    """Show every value of a policy that is in force, with the file and line of every layer that set it.

    PATH is a dotted key path, such as extensions.stall_detector.with.repeat; without one the whole policy is shown.
    """
    with aside(as_json):
        loaded = load(policy, overlays, folders).policy
    found = explain(loaded, path)
    if not found:
        raise UsageError(_unknown(loaded, path or ""))
    if as_json:
        print_json([_described(item) for item in found])
    else:
        _show(terminal(no_color=no_color), found)
    return 0


def _unknown(policy: Policy, path: str) -> str:
    """Say where a path leaves the policy, and what there is at that place."""
    keys = path.split(".")
    for length in range(len(keys) - 1, -1, -1):
        start = ".".join(keys[:length])
        known = [name.removeprefix(f"{start}.").split(".")[0] for name in policy.provenance if _below(name, start)]
        if known:
            place = f" under {start}" if start else ""
            return f"no setting {path!r} in {policy.name}; {suggestion(keys[length], dict.fromkeys(known))}{place}"
    return f"no setting {path!r} in {policy.name}"


def _below(name: str, start: str) -> bool:
    return not start or name.startswith(f"{start}.")


def _described(item: Explained) -> dict[str, object]:
    return {
        "path": item.path,
        "value": None if item.removed else item.value,
        "removed": item.removed,
        "layers": [
            {
                "value": layer.value,
                "file": layer.position.file,
                "line": layer.position.line,
                "column": layer.position.column,
            }
            for layer in item.layers
        ],
    }


def _show(console: Console, found: list[Explained]) -> None:
    for item in found:
        head, *rows = clean(item.text()).split("\n")
        console.print(Text(head, "bold"), soft_wrap=True)
        for row in rows:
            console.print(Text(row, "" if row.endswith("(in force)") else "dim"), soft_wrap=True)
