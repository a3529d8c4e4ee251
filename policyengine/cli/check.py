"""`policyengine check`: validate policies the way a running engine would.

Knows: how problems are reported. Must not know: how they are found.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from policyengine.cli import AT_FAULT, NOTHING, OK, ONLY_WARNINGS
from policyengine.cli.loading import load
from policyengine.cli.options import (
    allow_empty_option,
    form_option,
    host_option,
    json_form_option,
    layers,
    require_named,
    strict_option,
)
from policyengine.cli.output import aside, print_json, say
from policyengine.errors import ConfigError, ExtensionError, UsageError
from policyengine.policy.load import load_policy
from policyengine.policy.model import Policy
from policyengine.policy.problems import Format, Problem, problems_of, records, render
from policyengine.visible import clean_line


class Checked(msgspec.Struct, frozen=True):
    """What came of checking one policy: the policy if it can be used, and every problem."""

    source: str
    policy: Policy | None
    problems: tuple[Problem, ...]


@click.command("check")
@click.argument("policies", nargs=-1, metavar="POLICY...")
@layers
@host_option
@click.option("--no-extensions", is_flag=True, help="Look no extension up: leave options and hooks of rules unchecked.")
@form_option
@json_form_option
@strict_option
@allow_empty_option
def command(
    policies: tuple[str, ...],
    overlays: tuple[str, ...],
    folders: tuple[str, ...],
    host: str | None,
    no_extensions: bool,
    form: Format,
    as_json: bool,
    strict: bool,
    allow_empty: bool,
) -> int:
    """Validate policies (shipped names or files): text, settings, layers, every rule's options, messages, a self-test.

    With --host also whether that framework can do what the rules may ask of it.

    Exit code: 0 all can be used, 1 some cannot, 3 only warnings and --strict, 4 no policy was given.
    """
    if host is not None and no_extensions:
        raise UsageError("--host needs the extensions: leave --no-extensions out")
    if not policies:
        say("nothing to check: no policy given")
        return OK if allow_empty else NOTHING
    machine = as_json or form in ("json", "github")
    with aside(machine):
        results = [
            check(source, overlays, folders, with_extensions=not no_extensions, host=host) for source in policies
        ]
    if as_json or form == "json":
        print_json({"ok": all(item.policy for item in results), "policies": [_described(item) for item in results]})
    else:
        for item in results:
            _report(item, form)
    if any(item.policy is None for item in results):
        return AT_FAULT
    return ONLY_WARNINGS if strict and any(item.problems for item in results) else OK


def check(
    source: str,
    overlays: Sequence[str],
    folders: Sequence[str],
    *,
    with_extensions: bool = True,
    host: str | None = None,
) -> Checked:
    """Return what came of checking one policy, also for a host if one is named."""
    warnings: tuple[Problem, ...] = ()
    try:
        if with_extensions:
            loaded = load(source, overlays, folders)
            policy = loaded.policy
            if host is not None:
                warnings = require_named(loaded.snapshot, host)
        else:
            policy = load_policy(source, registry=None, overlays=[Path(overlay) for overlay in overlays])
    except (ConfigError, ExtensionError) as error:
        return Checked(source, None, problems_of(error, source))
    return Checked(source, policy, (*policy.warnings, *warnings))


def _report(item: Checked, form: Format) -> None:
    """Print problems on stderr (annotations, which a program reads, on stdout) and the good news on stdout."""
    if item.problems:
        print(render(item.problems, form), file=sys.stdout if form == "github" else sys.stderr)
    if item.policy is not None and form != "github":
        rules = len(item.policy.rules)
        name, source = item.policy.name, clean_line(item.source)
        name = name if name == source else f"{source} ({name})"
        print(f"ok: {name}, {rules} rule{'' if rules == 1 else 's'}, digest {item.policy.digest[:12]}")


def _described(item: Checked) -> dict[str, Any]:
    policy = item.policy
    return {
        "source": item.source,
        "ok": policy is not None,
        "name": policy.name if policy else None,
        "revision": policy.revision if policy else None,
        "rules": len(policy.rules) if policy else None,
        "digest": policy.digest if policy else None,
        "problems": records(item.problems),
    }
