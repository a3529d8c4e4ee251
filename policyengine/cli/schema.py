"""`policyengine schema`: the JSON Schema of policy files and of their tests, for editors.

Knows: where the schema is written. Must not know: how it is made.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from policyengine.cli import AT_FAULT, OK
from policyengine.cli.options import folder_option
from policyengine.cli.output import say
from policyengine.errors import UsageError
from policyengine.plugins.registry import Registry, discover
from policyengine.policy.files import shipped_policies
from policyengine.policy.jsonschema import file_schema, options_schema
from policyengine.policy.wording import suggestion
from policyengine.policytest.jsonschema import suite_schema


@click.command("schema")
@folder_option
@click.option(
    "--package", "packages", multiple=True, metavar="NAME",
    help="Allow this installed package only; repeatable. Without it all are allowed, and imported.",
)  # fmt: skip
@click.option("--extension", metavar="NAME", help="The options of one extension instead.")
@click.option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
def command(folders: tuple[str, ...], packages: tuple[str, ...], extension: str | None, output: str | None) -> int:
    """Print the JSON Schema (2020-12) of policies, overlays and their tests, with the options of every extension.

    An editor that knows it completes keys, shows what they mean, and marks mistakes while one types. It knows one
    file at a time, so it never replaces `policyengine check`.

    Exit code: 0 written, 1 an extension is broken (what it declares is then left out).
    """
    registry = discover(folders=[Path(folder) for folder in folders], only=packages or None)
    if extension is None:
        made = file_schema(registry.all(), shipped_policies(), {"PolicyTest": suite_schema()})
    else:
        made = _one(registry, extension)
    text = json.dumps(made, indent=2) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            Path(output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{output} cannot be written: {error.strerror}") from error
    broken = registry.problems() if extension is None else ()
    for problem in broken:
        say(f"left out: {problem}")
    return AT_FAULT if broken else OK


def _one(registry: Registry, name: str) -> dict[str, object]:
    found = registry.get(name)
    if found is None:
        known = [item.cls.name for item in registry.all()]
        raise UsageError(f"there is no extension {name!r}; {suggestion(name, known, 'extensions')}")
    return options_schema(found.cls)
