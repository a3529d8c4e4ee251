"""`policyengine kill`: turn the kill switch of a running engine on or off.

Knows: how its state is told. Must not know: what the switch does to a run.
"""

from __future__ import annotations

import click

from policyengine.cli import COULD_NOT, OK
from policyengine.cli.asking import asked, socket_option
from policyengine.control.wire import KillRequest


@click.command("kill")
@socket_option
@click.option("--off", is_flag=True, help="Give rules their effect back.")
def command(socket: str, off: bool) -> int:
    """Take the effect of every rule in a running engine: from the next event of every run, rules only observe.

    The process goes on, and so do its runs. The switch stays on where the policy in force says `kill_switch`.

    Exit code: 0 it was done, 2 no engine answers.
    """
    answer = asked(socket, KillRequest(on=not off))
    if answer is None or answer.status is None:
        return COULD_NOT
    if off and answer.status.killed:
        print("the kill switch stays on: the policy in force says so")
    else:
        effect = "rules have their effect" if off else "no rule has an effect until it is off"
        print(f"the kill switch is {'off' if off else 'on'}: {effect}")
    return OK
