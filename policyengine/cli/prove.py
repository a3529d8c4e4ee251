"""`policyengine prove`: prove that every rule can fire, alone and in the whole policy.

Knows: how proofs are shown. Must not know: how a proof is made, any extension.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec
from rich.text import Text

from policyengine.cli import AT_FAULT, NOTHING, OK, ONLY_WARNINGS
from policyengine.cli.loading import load
from policyengine.cli.options import allow_empty_option, json_option, layers, load_format, strict_option
from policyengine.cli.output import aside, print_json, say, table, terminal
from policyengine.prove import UNPROVEN, Proved, prove
from policyengine.visible import clean, clean_line


class Proofs(msgspec.Struct, frozen=True):
    """The proofs of one policy."""

    policy: str
    digest: str
    proofs: tuple[Proved, ...]


@click.command("prove")
@click.argument("policies", nargs=-1, metavar="POLICY...")
@layers
@strict_option
@allow_empty_option
@load_format()
@json_option
def command(
    policies: tuple[str, ...],
    overlays: tuple[str, ...],
    folders: tuple[str, ...],
    strict: bool,
    allow_empty: bool,
    as_json: bool,
) -> int:
    """Play, for every rung of every rule, a run that must trip it, through the real loop.

    Each proof is played twice: with the rule alone, and with the whole policy, where another rule may act first
    (`delayed`) or end the run before (`masked`). A rule whose extension declares no such run is `unproven`.

    Exit code: 0 everything fires, 1 something does not, 3 something is unproven and --strict.
    """
    if not policies:
        say("nothing to prove: no policy given")
        return OK if allow_empty else NOTHING
    with aside(as_json):
        results = [_proofs(name, overlays, folders) for name in policies]
    if as_json:
        print_json(msgspec.to_builtins(results))
    else:
        for result in results:
            _show(result)
    return exit_code([proved for result in results for proved in result.proofs], strict=strict)


def exit_code(proofs: Sequence[Proved], *, strict: bool) -> int:
    """Return 1 where a rung does not fire, 3 where one is unproven and that matters, else 0."""
    if any(not proved.ok for proved in proofs):
        return AT_FAULT
    unproven = any(proved.label == UNPROVEN for proved in proofs)
    return ONLY_WARNINGS if strict and unproven else OK


def _proofs(name: str, overlays: Sequence[str], folders: Sequence[str]) -> Proofs:
    loaded = load(name, overlays, folders)
    return Proofs(loaded.policy.name, loaded.policy.digest, tuple(prove(loaded.policy, loaded.registry)))


def _show(result: Proofs) -> None:
    console = terminal()
    shown = table("rule", "proof", "action", "code", "#expected", "alone", "in the policy", "")
    for proved in result.proofs:
        if proved.label == UNPROVEN:
            shown.add_row(proved.rule, "", "", "", "", "", "", Text("unproven", "yellow"))
            continue
        verdict = Text("ok", "green") if proved.ok else Text("FAILS", "bold red")
        expected = str(proved.expect)
        facts = (proved.rule, proved.label, proved.action, proved.code, expected, proved.alone, proved.whole)
        row = map(clean_line, facts)
        shown.add_row(*map(Text, row), verdict)
    failing = [proved for proved in result.proofs if not proved.ok]
    unproven = [proved for proved in result.proofs if proved.label == UNPROVEN]
    proven = len(result.proofs) - len(failing) - len(unproven)
    console.print(Text(f"{result.policy}: {proven} proven, {len(failing)} fail, {len(unproven)} unproven", "bold"))
    if result.proofs:
        console.print(shown, soft_wrap=False)
    for proved in failing:
        reason = clean(f"{proved.at}: {proved.rule} {proved.label}: {_reason(proved)}")
        console.print(Text(reason, "red"), soft_wrap=True)


def _reason(proved: Proved) -> str:
    if proved.fault:
        return proved.fault
    if proved.alone != f"fires at {proved.expect}":
        return f"alone it must fire at {proved.expect}, but: {proved.alone}"
    return f"it fires alone, but in the whole policy: {proved.whole}"
