"""`policyengine hook`: answer the hooks of coding agents, install them, look at how they are set up.

Knows: the words of the verb. Must not know: how an event is answered (`policyengine.hook`), which never comes here:
`policyengine.start` takes the short way for it.
"""

from __future__ import annotations

import click

from policyengine.cli import AT_FAULT, OK
from policyengine.hook.dialects import DIALECTS

_HOST = click.Choice(list(DIALECTS))
_POLICY = click.option(
    "--policy", default="", metavar="NAME|FILE", help="the policy in force (default: $POLICYENGINE_POLICY, or default)"
)
_OVERLAYS = click.option(
    "--overlay", "overlays", multiple=True, metavar="FILE", help="an overlay on top; may be repeated"
)
_FOLDERS = click.option("--folder", "folders", multiple=True, metavar="DIR", help="a drop-in folder of extensions")
_STATE = click.option("--state", default="", metavar="DIR", help="where state is kept (default: in $XDG_STATE_HOME)")
_LOG = click.option("--log", default="", metavar="FILE", help="append the decision log to this file")
_RECORD = click.option("--record", default="", metavar="FILE", help="append the journal, which holds everything")
_SETTINGS = click.option(
    "--settings", default="", metavar="FILE", help="the host's file of hooks (default: the project's)"
)


@click.group("hook")
def command() -> None:
    """Answer the hooks of coding agents, and install them.

    `policyengine hook HOST` reads one event on standard input and answers on standard output. HOST is claude-code,
    codex, gemini-cli or openhands. Options: --policy, --overlay, --folder, --state as below, --event NAME (what a
    message that cannot be read counts as), --deadline SECONDS (default: 20), --log FILE and --record FILE (append the
    decision log, the journal). It exits with 0 or 2, never anything else: 2 blocks. See docs/claude-code.md.
    """


@command.command()
@click.argument("host", type=_HOST)
@_SETTINGS
@_POLICY
@_OVERLAYS
@_FOLDERS
@_STATE
@_LOG
@_RECORD
@click.option("--dry-run", is_flag=True, help="show what would change, and change nothing")
@click.option("--remove", is_flag=True, help="take our entries out again")
def install(
    host: str,
    settings: str,
    policy: str,
    overlays: tuple[str, ...],
    folders: tuple[str, ...],
    state: str,
    log: str,
    record: str,
    dry_run: bool,
    remove: bool,
) -> int:
    """Write our entries into a host's file of hooks; those of others stay as they are.

    A policy that cannot be used, or wants more than the host can, is not installed: it would block every call.
    """
    from policyengine.hook.settings import Entries, install, usable
    from policyengine.visible import clean

    dialect = DIALECTS[host]
    path = settings or dialect.settings
    entries = Entries(dialect, policy, overlays, folders, state, log, record)
    for problem in () if remove else usable(entries)[2]:
        click.echo(clean(str(problem)), err=True)
    diff = install(path, entries, remove=remove, dry_run=dry_run)
    if diff:
        click.echo(diff, nl=False)
    what = "nothing to change" if not diff else "not written (--dry-run)" if dry_run else "written"
    click.echo(f"{path}: {what}", err=True)
    return OK


@command.command()
@click.argument("host", type=_HOST, default="claude-code")
@_SETTINGS
@_POLICY
@_OVERLAYS
@_FOLDERS
@_STATE
def doctor(
    host: str, settings: str, policy: str, overlays: tuple[str, ...], folders: tuple[str, ...], state: str
) -> int:
    """Look at settings, policy, store, executable and timing; exit 1 if something does not work."""
    from policyengine.hook.doctor import examine
    from policyengine.hook.settings import Entries
    from policyengine.visible import clean

    dialect = DIALECTS[host]
    entries = Entries(dialect, policy, overlays, folders, state)
    findings = list(examine(settings or dialect.settings, entries))
    for finding in findings:
        click.echo(clean(f"{finding.level:<5} {finding.about}: {finding.text}"))
    return AT_FAULT if any(finding.level == "bad" for finding in findings) else OK
