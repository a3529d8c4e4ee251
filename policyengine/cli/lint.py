"""`policyengine lint`: find what a policy says that can hardly be meant.

Knows: how findings are reported, and which are left out. Must not know: how they are found.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime

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
from policyengine.policy.codes import CODES
from policyengine.policy.lint import OLD, SOON, lint
from policyengine.policy.problems import Format, Problem, problems_of, records, render
from policyengine.policy.wording import suggestion
from policyengine.visible import clean_line


class Linted(msgspec.Struct, frozen=True):
    """What came of one policy: whether it can be used at all, and every finding or problem."""

    source: str
    usable: bool
    problems: tuple[Problem, ...]


@click.command("lint")
@click.argument("policies", nargs=-1, metavar="POLICY...")
@layers
@host_option
@click.option("--ignore", "ignored", multiple=True, metavar="CODE,...", help="Leave these codes out; repeatable.")
@click.option(
    "--soon",
    type=click.IntRange(0, 3650),
    default=SOON,
    show_default=True,
    metavar="DAYS",
    help="Report exceptions that end within so many days.",
)
@click.option(
    "--old",
    type=click.IntRange(0, 3650),
    default=OLD,
    show_default=True,
    metavar="DAYS",
    help="Report trials and rollouts that have stood still for longer.",
)
@click.option("--today", type=click.DateTime(["%Y-%m-%d"]), metavar="DAY", help="The present day; default: in UTC.")
@form_option
@json_form_option
@strict_option
@allow_empty_option
def command(
    policies: tuple[str, ...],
    overlays: tuple[str, ...],
    folders: tuple[str, ...],
    host: str | None,
    ignored: tuple[str, ...],
    soon: int,
    old: int,
    today: datetime | None,
    form: Format,
    as_json: bool,
    strict: bool,
    allow_empty: bool,
) -> int:
    """Find what policies (shipped names or files) say that can hardly be meant; they load and work all the same.

    Exit code: 0 all can be used, 1 some cannot, 3 warnings and --strict, 4 no policy was given.
    """
    without = _codes(ignored)
    if not policies:
        say("nothing to look at: no policy given")
        return OK if allow_empty else NOTHING

    def look(source: str) -> Linted:
        try:
            loaded = load(source, overlays, folders)
            found = lint(
                loaded.policy,
                source,
                registry=loaded.registry,
                overlays=overlays,
                today=today.date() if today else None,
                soon=soon,
                old=old,
            )
            if host is not None:
                found = (*found, *require_named(loaded.snapshot, host))
        except (ConfigError, ExtensionError) as error:
            return Linted(source, False, problems_of(error, source))
        return Linted(source, True, tuple(one for one in found if one.code not in without))

    with aside(as_json or form in ("json", "github")):
        results = [look(source) for source in policies]
    if as_json or form == "json":
        _print_json(results)
    else:
        for item in results:
            _report(item, form)
    if not all(item.usable for item in results):
        return AT_FAULT
    warned = any(one.severity == "warning" for item in results for one in item.problems)
    return ONLY_WARNINGS if strict and warned else OK


def _codes(ignored: Sequence[str]) -> frozenset[str]:
    """Return the codes that are left out. Raises UsageError for one that is no finding."""
    codes = [code.strip().upper() for entry in ignored for code in entry.split(",") if code.strip()]
    for code in codes:
        if code not in CODES:
            raise UsageError(f"--ignore: there is no code {code!r}; {suggestion(code, _lint_codes(), 'codes')}")
    return frozenset(codes)


def _lint_codes() -> list[str]:
    return [code for code in CODES if code.startswith("L")]


def _report(item: Linted, form: Format) -> None:
    """Print what was found on stdout, which is the answer; problems of a policy that cannot be used on stderr."""
    if item.problems:
        print(render(item.problems, form), file=sys.stdout if item.usable or form == "github" else sys.stderr)
    if item.usable and form != "github":
        warnings = sum(one.severity == "warning" for one in item.problems)
        others = len(item.problems) - warnings
        count = f"{warnings} warning{'' if warnings == 1 else 's'}, {others} other finding{'' if others == 1 else 's'}"
        print(f"{clean_line(item.source)}: {count if item.problems else 'nothing found'}")


def _print_json(results: Sequence[Linted]) -> None:
    listed = [{"source": item.source, "ok": item.usable, "problems": records(item.problems)} for item in results]
    print_json({"ok": all(item.usable for item in results), "policies": listed})
