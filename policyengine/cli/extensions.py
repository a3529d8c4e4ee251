"""`policyengine extensions`: what policies can use, and the skeleton of a package that adds to it.

Knows: how extensions are listed. Must not know: any extension, what a skeleton holds.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from policyengine.cli import AT_FAULT, OK
from policyengine.cli.options import folder_option, json_option
from policyengine.cli.output import print_json, say, table, terminal
from policyengine.errors import ExtensionError
from policyengine.plugins.found import Found
from policyengine.plugins.registry import discover
from policyengine.scaffold import scaffold
from policyengine.visible import clean


@click.group("extensions")
def command() -> None:
    """Show the extensions that policies can use, or begin a package of your own."""


@command.command("list")
@folder_option
@json_option
def list_extensions(folders: tuple[str, ...], as_json: bool) -> int:
    """List built-in extensions, those of installed packages and those of drop-in folders.

    Every source is imported for this. One that is broken is listed with the reason.

    Exit code: 0 all can be used, 1 some are broken.
    """
    registry = discover(folders=[Path(folder) for folder in folders])
    found, problems = registry.all(), registry.problems()
    if as_json:
        print_json({"extensions": [_described(item) for item in found], "broken": [_broken(item) for item in problems]})
    else:
        _show(found)
        for problem in problems:
            say(f"broken: {problem}")
    return AT_FAULT if problems else OK


@command.command("new")
@click.argument("name")
@click.option("--output", default=".", show_default=True, metavar="DIR", help="In which folder it is made.")
def new_package(name: str, output: str) -> int:
    """Begin a package with one extension: options, messages, proofs, tests, a policy and a test of it.

    NAME is that of the package, for example acme-guard; its extension is then acme.guard.

    Exit code: 0 it is written, 1 the name is none, or the folder exists.
    """
    files = scaffold(name, Path(output))
    for file in files:
        print(clean(str(file)))
    say(f"next: cd {Path(output) / name}, pip install -e '.[test]', pytest; its README.md has the rest")
    return OK


def _described(found: Found) -> dict[str, Any]:
    return {
        "name": found.name,
        "origin": found.origin,
        "distribution": found.distribution,
        "version": found.version,
        "builtin": found.builtin,
        "hooks": list(found.hooks),
        "options": sorted(found.cls.options),
        "summary": _summary(found),
    }


def _broken(error: ExtensionError) -> dict[str, str]:
    return {"name": error.extension, "origin": error.origin, "reason": error.detail}


def _summary(found: Found) -> str:
    return (inspect.getdoc(found.cls) or "").split("\n")[0]


def _show(found: tuple[Found, ...]) -> None:
    shown = table("name", "from", "hooks", "what it does")
    for item in found:
        package = f"{item.distribution} {item.version}".strip()
        source = "built in" if item.builtin else package or item.origin
        shown.add_row(*map(Text, (item.name, source, ", ".join(item.hooks), _summary(item))))
    terminal().print(shown)
