"""`policyengine runs`: the verbs about runs, and `runs diff`, the first point at which two recorded ones differ.

Knows: how a difference is shown. Must not know: journals, what counts as a difference, runs that are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from policyengine.cli import AT_FAULT, COULD_NOT, OK
from policyengine.cli.options import json_option
from policyengine.cli.output import print_json, say, table, terminal
from policyengine.errors import UsageError
from policyengine.recordings.compare import (
    Answer,
    Comparison,
    Difference,
    Field,
    UnreadableRunError,
    compare_runs,
)
from policyengine.visible import clean, clean_line

SHORT = 72
"""Characters of a value that are shown without `--full`."""
BEFORE = 24
"""... of which so many stand before the first one that differs."""
NOTHING = "-"

KEPT = ("list", "show", "approve", "reject", "resume", "cancel", "export", "forget")
"""The verbs about runs that are kept in a store."""


class Runs(click.Group):
    """The verbs about runs; those about kept ones are imported only when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs about runs."""
        return [*KEPT, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb of a name."""
        if cmd_name not in KEPT:
            return super().get_command(ctx, cmd_name)
        from policyengine.cli.runs_kept import COMMANDS

        return next(verb for verb in COMMANDS if verb.name == cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke a verb. Whatever `diff` cannot do is 2, because 1 means that the runs differ."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            if ctx.invoked_subcommand in KEPT:
                raise
            error.show()
        except UsageError as error:
            if ctx.invoked_subcommand in KEPT:
                raise
            say(f"error: {error}")
        return COULD_NOT


@click.group("runs", cls=Runs)
def command() -> None:
    """Go on with runs that are kept, decide what they ask, and compare recorded ones."""


@command.command("diff")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--run", "chosen", multiple=True, metavar="RUN", help="Which run of both journals; given twice: of A, then of B."
)
@click.option("--exact", is_flag=True, help="Let ids, times, durations and everything else count.")
@click.option("--full", is_flag=True, help="Show values whole.")
@click.option("--no-color", is_flag=True, help="Print without colours.")
@json_option
def diff(a: Path, b: Path, chosen: tuple[str, ...], exact: bool, full: bool, no_color: bool, as_json: bool) -> int:
    """Find the first point at which two recorded runs differ (journals of `run --record`).

    Shown are that event in both runs, what was the same before it, and the last result before it: what a tool answered
    one step earlier, or how that answer looked, is often the cause.

    RUN is the id of a run, the beginning of it, or its number in the journal.

    Exit code: 0 the runs are equal, 1 they differ, 2 they cannot be compared.
    """
    if len(chosen) > 2:
        raise UsageError("--run is given once for both journals, or twice: for A and for B")
    run_a, run_b = (chosen[0], chosen[-1]) if chosen else ("", "")
    try:
        found = compare_runs(a, b, run_a, run_b, exact=exact)
    except UnreadableRunError as error:
        say(f"error: {error.reason}")
        if error.equal:
            say(f"  before that, {error.equal} events were the same")
        return COULD_NOT
    if as_json:
        print_json(described(found, a, b))
    else:
        show(terminal(no_color=no_color), found, (str(a), str(b)), full=full)
    return OK if found.difference is None else AT_FAULT


# ---- for machines


def described(found: Comparison, a: Path, b: Path) -> dict[str, Any]:
    """Return a comparison as plain data; values are whole."""
    seen = found.difference
    lines = (seen.line_a, seen.line_b) if seen else (None, None)
    answers = (seen.previous_a, seen.previous_b) if seen else (None, None)
    sides = zip((a, b), (found.run_a, found.run_b), lines, answers, strict=True)
    one, other = (
        {"source": str(path), "run": run, "line": line, "previous_result": _answer(answer)}
        for path, run, line, answer in sides
    )
    return {
        "equal": seen is None,
        "events_equal": found.events,
        "last_equal": {"event": found.last, "iteration": found.iteration} if found.events else None,
        "event": seen.event if seen else None,
        "iteration": seen.iteration if seen else None,
        "at": seen.at if seen else "",
        "fields": [{"name": f.name, "a": f.a, "b": f.b, "same": f.same} for f in seen.fields] if seen else [],
        "a": one,
        "b": other,
    }


def _answer(answer: Answer | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    return {
        "line": answer.line,
        "iteration": answer.iteration,
        "tool": answer.call.name,
        "args": answer.call.arguments if answer.call.args is None else answer.call.args,
        "status": answer.result.status,
        "shape": answer.shape,
        "text": answer.result.text,
    }


# ---- for people


def show(console: Console, found: Comparison, names: tuple[str, str], *, full: bool) -> None:
    """Print a comparison."""
    seen = found.difference
    if seen is None:
        console.print(Text(f"equal: {_counted(found)}", "green"), soft_wrap=True)
        return
    console.print(Text(clean_line(f"different in round {seen.iteration}: {_what(seen)}"), "bold red"), soft_wrap=True)
    if seen.at:
        console.print(Text(clean_line(f"  at {_short(seen.at, 0, full)}")), soft_wrap=True)
    places = [f"{name}:{line}" if line else name for name, line in zip(names, (seen.line_a, seen.line_b), strict=True)]
    _print_fields(console, seen.fields, places, full)
    before = f"the same before it: {_counted(found)}" if found.events else "nothing was the same before it"
    console.print(Text(before), soft_wrap=True)
    _print_previous(console, seen, names, full)


def _counted(found: Comparison) -> str:
    if not found.events:
        return "no events"
    return f"{found.events} events, the last one in round {found.iteration} ({found.last})"


def _what(seen: Difference) -> str:
    differing = [field.name for field in seen.fields if not field.same]
    if seen.event in ("next event", "length"):
        return {"next event": "another event comes next", "length": "one run goes on and the other does not"}[
            seen.event
        ]
    return f"{seen.event} ({', '.join(differing)})"


def _print_previous(console: Console, seen: Difference, names: tuple[str, str], full: bool) -> None:
    one, other = seen.previous_a, seen.previous_b
    if one is None or other is None:
        console.print(Text("no tool had answered before it"), soft_wrap=True)
        return
    console.print(Text(f"the result before it (round {one.iteration}, the same but for ids, times and durations):"))
    told = []
    for name in ("tool", "status", "shape", "text"):
        a, b = ((_answer(answer) or {})[name] for answer in (one, other))
        told.append(Field(name, a, b, True))
    _print_fields(console, tuple(told), [f"{names[0]}:{one.line}", f"{names[1]}:{other.line}"], full)


def _print_fields(console: Console, fields: tuple[Field, ...], places: list[str], full: bool) -> None:
    shown = table("", "", f"A {clean_line(places[0])}", f"B {clean_line(places[1])}")
    for field in fields:
        a, b = _value(field.a), _value(field.b)
        if a == b == NOTHING:
            continue
        start = _first_difference(a, b)
        mark = "*" if not field.same else " " if field.identical else "~"
        style = "bold" if not field.same else ""
        cells = (Text(clean(_short(text, start, full)), style) for text in (a, b))
        shown.add_row(Text(mark, "red"), Text(clean_line(field.name)), *cells)
    console.print(shown)


def _value(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _first_difference(a: str, b: str) -> int:
    if a == b:
        return 0
    low, high = 0, min(len(a), len(b))
    while low < high:  # the longest common beginning, by halving
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low


def _short(text: str, start: int, full: bool) -> str:
    """Return a text whole, or on one line around the character at which it begins to differ."""
    if full:
        return text
    first = max(0, start - BEFORE) if start > SHORT - BEFORE else 0
    part = text[first : first + SHORT]
    head, tail = "..." if first else "", "..." if first + SHORT < len(text) else ""
    return clean_line(f"{head}{part}{tail}").replace("\\n", " ")
