"""`policyengine reload`: have a running engine read its policy again, now.

Knows: how what came of it is told. Must not know: how a policy is built.
"""

from __future__ import annotations

import click

from policyengine.cli import COULD_NOT, OK, REFUSED
from policyengine.cli.asking import asked, socket_option
from policyengine.cli.options import load_format
from policyengine.cli.output import report, say
from policyengine.control.wire import ReloadRequest
from policyengine.errors import ConfigError
from policyengine.visible import clean_line


@click.command("reload")
@socket_option
@load_format()
def command(socket: str) -> int:
    """Have a running engine read the files of its policy now, without waiting for them to settle.

    Exit code: 0 the files are in force (as a new generation, or as before), 5 they were refused, 2 no engine answers.
    """
    answer = asked(socket, ReloadRequest())
    if answer is None or answer.status is None:
        return COULD_NOT
    status = answer.status
    if answer.outcome == "rejected":
        report(ConfigError(answer.problems))
        say(f"refused; policy {status.policy} generation {status.generation} stays in force")
        return REFUSED
    what = clean_line(f"policy {status.policy} revision {status.revision!r}")
    print(f"{answer.outcome}: {what}, generation {status.generation}, digest {status.digest[:12]}")
    return OK
