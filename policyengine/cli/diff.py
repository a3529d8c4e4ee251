"""`policyengine diff`: what one policy makes tighter or looser than another.

Knows: how differences are listed. Must not know: which direction is stricter (see `policyengine.policy.stricter`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click
import msgspec
from rich.text import Text

from policyengine.cli import AT_FAULT, COULD_NOT, OK
from policyengine.cli.loading import Loaded, load
from policyengine.cli.options import folder_option, json_option, load_format
from policyengine.cli.output import aside, print_json, report, say, table, terminal
from policyengine.errors import ConfigError, ExtensionError, UsageError
from policyengine.policy.days import today
from policyengine.policy.explain import shown_value
from policyengine.policy.problems import Position
from policyengine.policy.stricter import ABSENT, Difference, Verdict, compare, looking
from policyengine.visible import clean

VERDICTS: tuple[Verdict, ...] = ("looser", "tighter", "other")
_STYLES = {"looser": "bold red", "tighter": "green", "other": ""}


@click.command("diff")
@click.argument("old")
@click.argument("new")
@click.option("--old-overlay", "old_overlays", multiple=True, metavar="FILE", help="Overlay on OLD; repeatable.")
@click.option("--new-overlay", "new_overlays", multiple=True, metavar="FILE", help="Overlay on NEW; repeatable.")
@folder_option
@load_format()
@json_option
def command(
    old: str,
    new: str,
    old_overlays: tuple[str, ...],
    new_overlays: tuple[str, ...],
    folders: tuple[str, ...],
    as_json: bool,
) -> int:
    """Compare two policies as they are in force and say what is tighter, looser or neither in NEW.

    Exit code: 0 nothing is looser, 1 something is, 2 one of them cannot be used.
    """
    with aside(as_json):
        before, after = _loaded(old, old_overlays, folders), _loaded(new, new_overlays, folders)
    if before is None or after is None:
        return COULD_NOT
    look = looking(after.registry, before.policy, after.policy)
    found = compare(before.policy, after.policy, look, today())
    counts = Counter(difference.verdict for difference in found)
    if as_json:
        print_json({**{name: counts[name] for name in VERDICTS}, "differences": [_described(one) for one in found]})
    else:
        _show(found)
        say(", ".join(f"{counts[name]} {name}" for name in VERDICTS))
    return AT_FAULT if counts["looser"] else OK


def _loaded(source: str, overlays: Sequence[str], folders: Sequence[str]) -> Loaded | None:
    """Return a policy, or `None` after its problems were printed."""
    try:
        return load(source, overlays, folders)
    except ConfigError as error:
        report(error)
    except (ExtensionError, UsageError) as error:
        say(f"error: {error}")
    return None


def _show(found: Sequence[Difference]) -> None:
    listed = table("verdict", "setting", "old", "new", "where")
    for one in sorted(found, key=lambda difference: VERDICTS.index(difference.verdict)):
        where = " -> ".join(dict.fromkeys(str(place) for place in (one.old, one.new) if place))
        cells = (one.verdict, one.path, _value(one.before), _value(one.after), where)
        listed.add_row(*(Text(clean(cell), _STYLES[one.verdict]) for cell in cells))
    if found:
        terminal().print(listed)


def _value(value: Any) -> str:
    return "-" if value is ABSENT else shown_value(value)


def _described(one: Difference) -> dict[str, Any]:
    return {
        "path": one.path,
        "verdict": one.verdict,
        "before": None if one.before is ABSENT else msgspec.to_builtins(one.before),
        "after": None if one.after is ABSENT else msgspec.to_builtins(one.after),
        "old": _place(one.old),
        "new": _place(one.new),
    }


def _place(position: Position | None) -> dict[str, Any] | None:
    return None if position is None else {"file": position.file, "line": position.line, "column": position.column}
