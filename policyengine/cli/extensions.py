"""`policyengine extensions`: what policies can use, whether it is sound, what they must not use, how to begin one.

Knows: how extensions are named, listed and reported. Must not know: any extension, how one is checked.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.text import Text

from policyengine.cli import AT_FAULT, NOTHING, OK, ONLY_WARNINGS
from policyengine.cli.options import (
    allow_empty_option,
    folder_option,
    form_option,
    json_form_option,
    json_option,
    strict_option,
)
from policyengine.cli.output import aside, print_json, say, table, terminal
from policyengine.errors import ConfigError, ExtensionError, UsageError
from policyengine.extension_check import Checked, check_builtin, check_package, check_source, place_of
from policyengine.plugins.blocks import BLOCKED, ENGINE, PATTERN, VARIABLE, Block, normalized
from policyengine.plugins.folder import extension_files
from policyengine.plugins.found import Found
from policyengine.plugins.registry import TWICE, Registry, Source, discover, file_source
from policyengine.policy.problems import Format, Position, Problem, in_order, records, render
from policyengine.policy.wording import suggestion
from policyengine.policy.yamltext import read_yaml
from policyengine.scaffold import scaffold
from policyengine.visible import clean, clean_line


@click.group("extensions")
def command() -> None:
    """Show, check and block the extensions that policies can use, or begin a package of your own."""


# ---- list


@command.command("list")
@folder_option
@click.option("--no-import", is_flag=True, help="Show what metadata and file names tell; import nothing.")
@json_option
def list_extensions(folders: tuple[str, ...], no_import: bool, as_json: bool) -> int:
    """List built-in extensions, those of installed packages and those of drop-in folders.

    Every source is imported for this, except what POLICYENGINE_BLOCK blocks. One that is broken is listed with the
    reason. Hooks and options are known after import only; --no-import leaves them out.

    Exit code: 0 all can be used, 1 some are broken.
    """
    registry = discover(folders=[Path(folder) for folder in folders])
    if no_import:
        return _list_metadata(registry, as_json)
    with aside(as_json):
        found, problems = registry.all(), registry.problems()
    blocked = registry.blocked()
    if as_json:
        listed = {"extensions": [_described(item) for item in found], "broken": [_broken(item) for item in problems]}
        print_json({**listed, "blocked": [{"source": source.label, "by": block.by} for source, block in blocked]})
    else:
        _show(found)
        for problem in problems:
            say(f"broken: {problem}")
        for source, block in blocked:
            say(f"blocked: {source.label}, by {block}")
    return AT_FAULT if problems else OK


def _list_metadata(registry: Registry, as_json: bool) -> int:
    blocks = dict(registry.blocked())
    sources = sorted([*registry.sources, *blocks], key=lambda source: (source.distribution, source.label))
    if as_json:
        builtins = [{"name": name, "distribution": ENGINE, "builtin": True} for name in _builtin_names(registry)]
        print_json({"extensions": [*builtins, *(_metadata(source, blocks.get(source)) for source in sources)]})
        return OK
    shown = table("name", "from", "entry point", "engine", "what it is")
    for name in _builtin_names(registry):
        shown.add_row(Text(name), Text("built in"), Text(""), Text(""), Text(""))
    for source in sources:
        facts = _metadata(source, blocks.get(source))
        where = f"{facts['distribution']} {facts['version']}".strip() or facts["origin"]
        about = f"blocked by {facts['blocked']}" if facts["blocked"] else facts["summary"]
        row = (facts["name"] or "?", where, facts["entry_point"], facts["engine"] or "", about)
        shown.add_row(*(Text(clean_line(str(cell))) for cell in row))
    terminal().print(shown)
    return OK


def _builtin_names(registry: Registry) -> tuple[str, ...]:
    return tuple(name for name in registry.names() if "." not in name)


def _metadata(source: Source, block: Block | None) -> dict[str, Any]:
    """Return what is known of a source without importing it; its name is empty where only importing tells."""
    package, entry = source.package, source.entry
    return {
        "name": source.provides,
        "distribution": source.distribution,
        "version": package.version if package else "",
        "entry_point": f"{entry.name} = {entry.value}" if entry else "",
        "engine": package.engine if package else None,
        "summary": package.summary if package else "",
        "origin": "" if package else source.label,
        "builtin": False,
        "blocked": str(block) if block else "",
    }


def _described(found: Found) -> dict[str, Any]:
    return {
        "name": found.name,
        "origin": found.origin,
        "distribution": found.distribution,
        "version": found.version,
        "builtin": found.builtin,
        "hooks": list(found.hooks),
        "options": sorted(found.cls.options),
        "summary": _summary(found),
    }


def _broken(error: ExtensionError) -> dict[str, str]:
    return {"name": error.extension, "origin": error.origin, "reason": error.detail}


def _summary(found: Found) -> str:
    return (inspect.getdoc(found.cls) or "").split("\n")[0]


def _show(found: tuple[Found, ...]) -> None:
    shown = table("name", "from", "hooks", "what it does")
    for item in found:
        package = f"{item.distribution} {item.version}".strip()
        source = "built in" if item.builtin else package or item.origin
        shown.add_row(*map(Text, (item.name, source, ", ".join(item.hooks), _summary(item))))
    terminal().print(shown)


# ---- check


class _Wanted(msgspec.Struct):
    """What is to be checked: sources (with the one name that is meant, if it is one), built-in ones, blocked ones."""

    sources: dict[Source, str] = {}
    builtins: dict[str, Found] = {}
    blocked: dict[str, str] = {}


@command.command("check")
@click.argument("targets", nargs=-1, metavar="[NAME|DISTRIBUTION|FILE|FOLDER]...")
@folder_option
@form_option
@json_form_option
@strict_option
@allow_empty_option
def check_extensions(
    targets: tuple[str, ...], folders: tuple[str, ...], form: Format, as_json: bool, strict: bool, allow_empty: bool
) -> int:
    """Check extensions without a policy: metadata, import, hooks, options, state, messages, self-test, proofs.

    Without a target all installed packages and the files of --folder are checked. Every problem is reported, with the
    distribution and the file and line of the code.

    Exit code: 0 all can be used, 1 some cannot, 3 only warnings and --strict, 4 there was nothing to check.
    """
    as_json = as_json or form == "json"
    with aside(as_json or form == "github"):
        registry = discover(folders=[Path(folder) for folder in folders])
        wanted = _wanted(registry, targets)
        checked, problems = _check(registry, wanted)
    for label, by in wanted.blocked.items():
        if targets:
            problems.append(Problem(BLOCKED, f"blocked by {by}, so it was not looked at", Position(label)))
        else:
            say(f"blocked, not looked at: {label}, by {by}")
    if not checked and not problems:
        if as_json:
            print_json({"ok": True, "extensions": [], "problems": []})
        say("nothing to check: no extension is installed" + ("" if folders else ", and no --folder was given"))
        return OK if allow_empty else NOTHING
    problems = list(in_order(dict.fromkeys([*problems, *(one for item in checked for one in item.problems)])))
    _report(checked, problems, "json" if as_json else form)
    if any(problem.severity == "error" for problem in problems):
        return AT_FAULT
    return ONLY_WARNINGS if strict and problems else OK


def _wanted(registry: Registry, targets: Sequence[str]) -> _Wanted:
    if not targets:
        blocked = {source.label: str(block) for source, block in registry.blocked()}
        return _Wanted(dict.fromkeys(registry.sources, ""), {}, blocked)
    wanted = _Wanted({}, {}, {})
    for target in targets:
        _add(wanted, registry, target)
    return wanted


def _add(wanted: _Wanted, registry: Registry, target: str) -> None:
    """Find what a target names: a distribution, an extension, or a file or folder."""
    by_path = os.sep in target or "/" in target or target.endswith(".py")
    for source, block in () if by_path else registry.blocked():
        if target == source.provides or normalized(target) == normalized(source.distribution):
            wanted.blocked[source.label] = str(block)
            return
    if not by_path and _add_known(wanted, registry, target):
        return
    path = Path(target)
    if path.is_dir():
        wanted.sources.update(dict.fromkeys(map(file_source, extension_files(path)), ""))
    elif path.is_file():
        wanted.sources[file_source(path)] = ""
    elif by_path:
        raise UsageError(f"there is no file or folder {target}")
    else:
        known = [*registry.names(), *{source.distribution for source in registry.sources if source.distribution}]
        raise UsageError(
            f"no extension, distribution, file or folder {target!r}; {suggestion(target, known)}".rstrip("; ")
        )


def _add_known(wanted: _Wanted, registry: Registry, target: str) -> bool:
    found = [source for source in registry.sources if source.provides == target]
    named = bool(found)
    if not found:
        found = [source for source in registry.sources if normalized(source.distribution) == normalized(target)]
    if not found and "." not in target:
        builtin = registry.get(target)
        if builtin is not None:
            wanted.builtins[target] = builtin
        return builtin is not None
    if not found:  # only importing tells what these provide
        open_ones = [source for source in registry.sources if not source.provides]
        found = [source for source in open_ones if any(item.name == target for item in check_source(source))]
        named = True
    for source in found:
        wanted.sources.setdefault(source, target if named else "")
    return bool(found)


def _check(registry: Registry, wanted: _Wanted) -> tuple[list[Checked], list[Problem]]:
    packages = {source.package.name: source.package for source in wanted.sources if source.package is not None}
    found = {name: check_package(package) for name, package in packages.items()}
    # A package that asks for another engine is not imported by an engine either.
    out = {name for name, problems in found.items() if any(problem.severity == "error" for problem in problems)}
    entries: dict[tuple[str, str, str], Checked] = {}
    for source, only in wanted.sources.items():
        if source.distribution not in out:
            for item in check_source(source, only):
                entries.setdefault((item.name, item.distribution, item.origin), item)
    checked = [*entries.values(), *map(check_builtin, wanted.builtins.values())]
    problems = [problem for group in found.values() for problem in group]
    return checked, problems + _twice(registry, checked)


def _twice(registry: Registry, checked: Iterable[Checked]) -> list[Problem]:
    """Return a problem for every name that another source claims too."""
    problems = []
    for name in dict.fromkeys(item.name for item in checked if "." in item.name):
        try:
            registry.get(name)
        except ExtensionError as error:
            if error.detail == TWICE:
                problems.append(Problem(error.code, f"{name} is {TWICE}: {error.origin}", place_of(error.origin), name))
    return problems


def _report(checked: Sequence[Checked], problems: Sequence[Problem], form: Format) -> None:
    if form == "json":
        listed: list[dict[str, Any]] = [{**msgspec.to_builtins(item), "ok": item.ok} for item in checked]
        for entry in listed:
            del entry["problems"]
        ok = all(problem.severity != "error" for problem in problems)
        print_json({"ok": ok, "extensions": listed, "problems": records(problems)})
        return
    if form == "github":
        if problems:
            print(render(problems, form))
        return
    if problems:
        say(render(problems, form))
    for item in checked:
        if item.ok:
            where = f"{item.distribution} {item.version}".strip() or item.origin
            count = f"{item.proofs} proof{'' if item.proofs == 1 else 's'}"
            print(clean_line(f"ok: {item.name} ({where}): {', '.join(item.hooks)}; {count}"))


# ---- block


@command.command("block")
@click.argument("patterns", nargs=-1, required=True, metavar="NAME|DISTRIBUTION...")
@folder_option
@click.option("--overlay", metavar="FILE", help="Write an overlay that blocks, or add to one that does nothing else.")
@click.option("--target", metavar="POLICY", help="The policy that a new overlay is for.")
def block_extensions(
    patterns: tuple[str, ...], folders: tuple[str, ...], overlay: str | None, target: str | None
) -> int:
    """Keep extensions or packages from being used, although they are installed, by name or pattern (acme.*).

    Prints the lines for a policy or an overlay. With --overlay it writes a file of its own; no other file is changed.
    What is blocked is not imported, and no layer can unblock it.

    Exit code: 0 printed or written, 1 that is no pattern, or the file holds more than blocks.
    """
    for pattern in patterns:
        if not re.fullmatch(PATTERN, pattern):
            raise UsageError(f"{pattern!r} is neither the name of an extension or a package nor a pattern of one")
    registry = discover(folders=[Path(folder) for folder in folders])
    if overlay is not None:
        _write_overlay(Path(overlay), target, patterns)
        print(clean(overlay), flush=True)
    else:
        print(_lines(list(dict.fromkeys(patterns))), end="", flush=True)
    for pattern in dict.fromkeys(patterns):
        _say_matches(registry, pattern)
    if overlay is not None:
        return OK
    # Quotes only where a shell needs them: what reads an env-file may take them for a part of the value.
    value = shlex.quote(",".join(dict.fromkeys(patterns)))
    say(f"add this to a policy or an overlay; for every policy of a process: {VARIABLE}={value}")
    return OK


def _say_matches(registry: Registry, pattern: str) -> None:
    block = Block(pattern, "")
    builtins = [name for name in _builtin_names(registry) if block.matches(name, ENGINE)]
    sources = [*registry.sources, *(source for source, _ in registry.blocked())]
    others = [source.label for source in sources if block.matches(source.provides, source.distribution)]
    matching = ", ".join([*builtins, *dict.fromkeys(others)])
    say(f"{pattern}: {matching or 'nothing that is known here without importing it'}")


def _lines(patterns: Sequence[str]) -> str:
    return f"requires:\n  block: {json.dumps(patterns)}\n"


def _overlay_text(target: str, patterns: Sequence[str]) -> str:
    return f"apiVersion: policyengine/v1\nkind: Overlay\ntarget: {target}\n{_lines(patterns)}"


def _write_overlay(path: Path, target: str | None, patterns: Sequence[str]) -> None:
    try:
        known: tuple[str, ...] = ()
        if path.exists():
            before, known = _read_overlay(path)
            if target not in (None, before):
                raise UsageError(f"{path} is an overlay for {before!r}, not for {target!r}")
            target = before
        elif target is None or not re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", target):
            raise UsageError("say with --target which policy the new overlay is for: its `name`")
        text = _overlay_text(str(target), list(dict.fromkeys([*known, *patterns])))
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _read_overlay(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return target and patterns of an overlay that this verb wrote; whatever holds more is left to its author."""
    content = path.read_bytes()
    try:
        data = read_yaml(content, str(path)).root.data
        target, patterns = data["target"], tuple(data["requires"]["block"])
        own = content.decode() == _overlay_text(target, patterns)
    except (ConfigError, KeyError, TypeError, ValueError):
        own = False
    if not own:
        raise UsageError(f"{path} holds more than blocks, so it is not changed; leave --overlay out for lines to add")
    return target, patterns


# ---- new


@command.command("new")
@click.argument("name")
@click.option("--output", default=".", show_default=True, metavar="DIR", help="In which folder it is made.")
def new_package(name: str, output: str) -> int:
    """Begin a package with one extension: options, messages, proofs, tests, a policy and a test of it.

    NAME is that of the package, for example acme-guard; its extension is then acme.guard.

    Exit code: 0 it is written, 1 the name is none, or the folder exists.
    """
    files = scaffold(name, Path(output))
    for file in files:
        print(clean(str(file)))
    say(f"next: cd {Path(output) / name}, pip install -e '.[test]', pytest; its README.md has the rest")
    return OK
