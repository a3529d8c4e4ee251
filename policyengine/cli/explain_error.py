"""`policyengine explain-error`: what a problem code means, an example of it, and how to correct it.

Knows: how an example is shown. Must not know: the examples (`policyengine.mistakes`), how a policy is loaded.
"""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.text import Text

from policyengine.cli.options import json_option
from policyengine.cli.output import print_json, table, terminal
from policyengine.errors import UsageError
from policyengine.mistakes import FAMILIES, File, Mistake, mistake
from policyengine.policy.codes import CODES
from policyengine.policy.problems import Problem
from policyengine.policy.wording import closest
from policyengine.visible import clean


@click.command("explain-error")
@click.argument("codes", nargs=-1, metavar="CODE...")
@click.option("--list", "listing", is_flag=True, help="List all codes, or those that begin with CODE.")
@click.option("--no-color", is_flag=True, help="Print without colours.")
@json_option
def command(codes: tuple[str, ...], listing: bool, no_color: bool, as_json: bool) -> int:
    """Explain problem codes such as S204: what they mean, a document that causes them, how to correct it.

    What is shown as printed is printed now, by this version, for the document that is shown.
    """
    wanted = [code.strip().strip("[]").upper() for code in codes]
    if listing:
        _list(_starting(wanted), as_json=as_json, no_color=no_color)
        return 0
    if not wanted:
        raise UsageError("which code? For example: policyengine explain-error S204 (--list shows all)")
    unknown = [code for code in wanted if code not in CODES]
    if unknown:
        raise UsageError("; ".join(map(_unknown, unknown)))
    found = [described(code) for code in dict.fromkeys(wanted)]
    if as_json:
        print_json(found)
        return 0
    console = terminal(no_color=no_color)
    for index, code in enumerate(found):
        if index:
            console.print()
        _show(console, code)
    return 0


def described(code: str) -> dict[str, Any]:
    """Return all that is known about a code as plain data."""
    example = mistake(code)
    problems = _problems(example)
    return {
        "code": code,
        "family": FAMILIES[code[0]][1] if code[0] in FAMILIES else "",
        "severity": problems[0].severity if problems else "error",
        "meaning": CODES[code],
        "unseen": example.unseen if example else "",
        "encoding": example.encoding if example else "utf-8",
        "env": example.env if example else {},
        "files": _files(example.files) if example else [],
        "later": _files(example.later) if example else [],
        "printed": "\n".join(problem.full() for problem in problems),
        "fix": example.fix if example else "",
        "fixed": _files(example.fixed) if example else [],
    }


def _problems(example: Mistake | None) -> tuple[Problem, ...]:
    if example is None or not example.files:
        return ()
    from policyengine.mistakes.play import play

    return play(example)


def _files(files: tuple[File, ...]) -> list[dict[str, Any]]:
    return [{"name": file.name, "text": file.shown(), "times": file.times} for file in files]


def _starting(starts: list[str]) -> list[str]:
    found = [code for code in CODES if not starts or code.startswith(tuple(starts))]
    if not found:
        raise UsageError(f"no code starts with {' or '.join(starts)}; codes start with {', '.join(FAMILIES)}")
    return found


def _unknown(code: str) -> str:
    # A letter for a digit, and the digits alone, which only one family has.
    digits = code[1:].translate(str.maketrans("OIL", "011"))
    near = next((known for known in CODES if known in (code[:1] + digits, f"{known[0]}{code}")), closest(code, CODES))
    same = [known for known in CODES if known.startswith(code[:1])] if code[:1] in FAMILIES else []
    family = f"; {code[0]} has {same[0]} to {same[-1]}" if same else f"; codes start with {', '.join(FAMILIES)}"
    meant = f'; did you mean "{near}"?' if near else ""
    return f"there is no code {code!r}{meant}{family} (--list shows all)"


def _list(codes: list[str], *, as_json: bool, no_color: bool) -> None:
    if as_json:
        print_json([{"code": code, "meaning": CODES[code]} for code in codes])
        return
    shown = table("code", "meaning")
    for code in codes:
        shown.add_row(code, Text(CODES[code]))
    terminal(no_color=no_color).print(shown)


_SEVERITIES = {"error": "an error", "warning": "a warning", "info": "for your information"}


def _show(console: Console, code: dict[str, Any]) -> None:
    def line(text: str, style: str = "") -> None:
        console.print(Text(clean(text), style), soft_wrap=True)

    line(f"{code['code']}  {code['meaning']}", "bold")
    line(f"{code['family']}; {_SEVERITIES[code['severity']]}", "dim")
    if code["unseen"]:
        line(f"\n{code['unseen']}")
    for name, text in code["env"].items():
        line(f"\n  environment: {name}={text}", "cyan")
    for title, files in (("", code["files"]), (", after it was loaded", code["later"])):
        for file in files:
            _document(console, file, title, code["encoding"])
    if code["printed"]:
        line("\nprints\n")
        line(_indented(code["printed"]), "red" if code["severity"] == "error" else "yellow")
    line("\nto correct it\n")
    line(_indented(code["fix"]))
    for file in code["fixed"]:
        _document(console, file, ", corrected")


def _document(console: Console, file: dict[str, Any], title: str, encoding: str = "utf-8") -> None:
    saved = f" (saved as {encoding.upper()})" if encoding != "utf-8" else ""
    many = f" ({file['times']} files, n from 1)" if file["times"] > 1 else ""
    console.print(Text(f"\n{file['name']}{title}{saved}{many}", "cyan"))
    text = clean(file["text"].rstrip("\n")) if file["text"] else "(removed)"
    console.print(Text(f"\n{_indented(text)}"), soft_wrap=True)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))
