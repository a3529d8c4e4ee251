"""What the verbs print with: a console, JSON, logging.

Knows: terminals and streams. Must not know: any verb.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any, Literal

import click

from policyengine.cli import FORMAT
from policyengine.errors import ConfigError, ExtensionError
from policyengine.log import set_up
from policyengine.policy.problems import Format, problems_of, render
from policyengine.visible import clean

if TYPE_CHECKING:
    from loguru import Logger
    from rich.console import Console
    from rich.table import Table

WIDE = 400
"""Width in columns where nobody's terminal limits it."""


def terminal(*, stderr: bool = False, no_color: bool = False) -> Console:
    """Return a console on stdout or stderr as they are now; what is no terminal is as wide as a table needs."""
    # rich is imported where something is drawn: it takes longer to import than a verb that draws nothing works.
    from policyengine.cli.console import Terminal

    file = sys.stderr if stderr else sys.stdout
    return Terminal(file=file, no_color=no_color or None, highlight=False, width=None if file.isatty() else WIDE)


def table(*columns: str) -> Table:
    """Return a plain table; columns whose name starts with `#` hold numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for index, name in enumerate(columns):
        justify: Literal["left", "right"] = "right" if name.startswith("#") else "left"
        made.add_column(name.lstrip("#"), justify=justify, overflow="fold", no_wrap=not index)
    return made


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON on stdout, in ASCII, so that no text of a model can break it."""
    sys.stdout.write(json.dumps(value, indent=indent, separators=None if indent else (",", ":")) + "\n")


def aside(as_json: bool) -> AbstractContextManager[Any]:
    """Return a block in which what guards and tools print goes to stderr: with `--json` stdout is one object."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def say(text: str) -> None:
    """Print a diagnostic on stderr."""
    print(clean(text), file=sys.stderr)


def report(error: ConfigError | ExtensionError) -> None:
    """Print why a policy cannot be used, in the form that `--format` asked for: one for programs on stdout."""
    context = click.get_current_context(silent=True)
    form: Format = context.meta.get(FORMAT, "full") if context else "full"
    text = render(problems_of(error), form)
    if form == "json":
        print_json({"ok": False, "problems": json.loads(text)})
    elif form == "github":
        print(text)
    else:
        say(text)


def configure_logging() -> None:
    """Show warnings of the library on stderr; nothing else is logged to the terminal."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    set_up(_show_warnings)


def _show_warnings(logger: Logger) -> None:
    logger.remove()
    # A function and not the stream itself: the stream may be replaced while the process lives.
    logger.add(_to_stderr, level="WARNING", format="{level.name}: {message}", filter=_is_news)


def _to_stderr(text: str) -> None:
    sys.stderr.write(clean(text))


def _is_news(record: Any) -> bool:
    """A refused policy is shown by the live view, with its problems; once is enough."""
    return not str(record["message"]).startswith("policy rejected,")
