"""Write the parts of the documentation that the code already says: `python docs/generate.py`.

Knows: hookspecs, the table of codes and the example of each, the policy schema, options of extensions and of verbs,
verdicts, the headings of decision records.
Must not know: anything that is not in the code; prose belongs into the pages.

A page is generated whole, or between `<!-- generated: NAME -->` and `<!-- end -->`. `tests/test_docs.py` fails where a
page is not what this script makes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import click
import msgspec
import yaml
from loguru import logger

from policyengine import messages
from policyengine.actions import RANKS
from policyengine.cli import cli
from policyengine.cli.explain_error import described
from policyengine.extensions import BUILTIN
from policyengine.hooks import HOOKS, HookPoint, HookSpecs
from policyengine.ladder import RUNGS
from policyengine.mistakes import FAMILIES
from policyengine.outcome import Outcome
from policyengine.parsing.verdict import WARNING_KINDS, Verdict
from policyengine.policy.about import ABOUT
from policyengine.policy.codes import CODES
from policyengine.policy.model import Policy
from policyengine.policy.schema import (
    EXCEPTION,
    OVERLAY_HEADER,
    POLICY_HEADER,
    RULE,
    SETTINGS,
    TOOL,
    Schema,
)
from policyengine.runstate import StopReason
from policyengine.snapshot import PolicySnapshot
from policyengine.visible import clean

DOCS = Path(__file__).parent
PARTS = ("When", "What you get", "What your answer does", "If you raise", "Example")
"""The five parts of every hookspec, in their order."""

PAYLOADS: tuple[type[msgspec.Struct], ...] = (
    messages.ToolCall,
    messages.Batch,
    messages.ToolResult,
    messages.ToolError,
    messages.ToolFacts,
    messages.ModelRequest,
    messages.ModelResponse,
    messages.Usage,
    messages.ProviderError,
    Verdict,
    messages.HistoryWarning,
    messages.Iteration,
    messages.Message,
    messages.ToolSpec,
    StopReason,
    Outcome,
)
"""The types that hooks are handed, with what they hold."""


# ---- hooks.md


def hooks_page() -> str:
    """Return the reference of all hook points."""
    return "\n".join([HOOKS_HEAD.format(table=_hook_table()), *map(_hook, HOOKS.values()), _payloads()])


HOOKS_HEAD = """\
<!-- Written by docs/generate.py from policyengine/hooks.py; edit that and run the script. -->
<!-- setup
from policyengine import hookimpl
-->
# Hook points

A hook point is a moment of a run at which rules are asked.
An extension implements any of them as a method with the name below, marked with `@hookimpl`.
A method names only the arguments it needs; the order does not matter for what it gets, the names do.

In a policy (`at:`) a hook point is spelled with a dot where its name has a phase, as a method with `_` instead.

{table}

A hook returns one action, a list of actions, or `None` for "no opinion".
Actions come from the methods of `run` (`run.deny(...)`, `run.hint(...)`).
[write-an-extension.md](write-an-extension.md) shows how.
`record` writes to the decision log only and is accepted wherever something is decided.
Of all answers the strictest is carried out; see [concepts.md](concepts.md#which-answer-wins).

**If a rule fails**, its `on_error` is applied, capped by its mode.
A rule fails when it raises, returns something else than an action, an action that the hook point does not accept or one
with wrong values (`observed` and `limit` are finite numbers), or runs over its `timeout`; built-in rules have none.

* `deny` (the default): where the hook point accepts a refusal, the call is refused.
  Elsewhere the fault is recorded, and the third fault of the rule in a row at that hook stops the run.
* `stop`: the run is stopped at once.
* `allow`: the fault is recorded.

The other rules are asked all the same, and every fault is in the decision log.
At observers (no accepted actions) a fault is only recorded.
"""


def _hook_table() -> str:
    rows = ["| policy spelling | accepted actions |", "|---|---|"]
    rows += [f"| [`{point.name}`](#{_slug(_heading(point))}) | {_actions(point)} |" for point in HOOKS.values()]
    return "\n".join(rows)


def _hook(point: HookPoint) -> str:
    spec = getattr(HookSpecs, point.method)
    summary, parts = spec_parts(spec)
    arguments = ", ".join(arguments_of(point))
    body = re.sub(r"^(if .+?): (return .+)$", r"\1:\n    \2", parts["Example"], flags=re.MULTILINE)
    example = f"@hookimpl\ndef {point.method}(self, {arguments}):\n" + _indented(body)
    lines = [f"## {_heading(point)}", "", summary, ""]
    lines += [f"**{name}.** {_capital(parts[name])}\n" for name in PARTS[:-1]]
    lines += [f"**Accepted actions.** {_actions(point)}.\n", f"**Example.**\n\n```python\n{example}\n```\n"]
    return "\n".join(lines)


def _heading(point: HookPoint) -> str:
    signature = f"`{point.method}({', '.join(arguments_of(point))})`"
    return signature if point.name == point.method else f"{point.name}: {signature}"


def arguments_of(point: HookPoint) -> list[str]:
    """Return the names of the arguments of a hook, without `self`."""
    return list(inspect.signature(getattr(HookSpecs, point.method)).parameters)[1:]


def spec_parts(spec: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the summary of a hookspec and its five parts by name.

    Raises:
        ValueError: a part is missing, or the parts are not in their order.
    """
    summary, _, body = (inspect.getdoc(spec) or "").partition("\n\n")
    found = re.findall(r"^(\w[\w ]*):[ \n](.*?)(?=^\w[\w ]*:|\Z)", body, re.MULTILINE | re.DOTALL)
    if tuple(name for name, _ in found) != PARTS:
        raise ValueError(f"{spec.__name__}: the parts must be {', '.join(PARTS)}")
    parts = {name: " ".join(text.split()) for name, text in found}
    parts["Example"] = dedent(found[-1][1]).strip("\n")
    return summary, parts


def _actions(point: HookPoint) -> str:
    if not point.decides:
        return "none (observer)"
    ranked = sorted(point.actions, key=lambda name: (-RANKS.get(name, 0), name))
    return ", ".join(f"`{name}`" for name in ranked)


def _payloads() -> str:
    lines = [
        "## What hooks are handed",
        "",
        "All values are frozen; fields with a default may be left out in tests.",
        "A rule of yours sees read-only views of mappings in them, and tuples for lists; a `rewrite` may hold both.",
        "",
    ]
    for kind in PAYLOADS:
        fields = ", ".join(_field(field) for field in msgspec.structs.fields(kind))
        about = " ".join((inspect.getdoc(kind) or "").split())
        told = [f"`{name}` ({_first_line(item)})" for name, item in vars(kind).items() if isinstance(item, property)]
        more = f" Told by them: {', '.join(told)}." if told else ""
        lines += [f"### {kind.__name__}", "", about, "", f"Fields: {fields}.{more}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _first_line(item: property) -> str:
    text = (inspect.getdoc(item) or "").split("\n")[0].rstrip(".")
    return f"{text[:1].lower()}{text[1:]}"


def _field(field: msgspec.structs.FieldInfo) -> str:
    return f"`{field.name}`"


# ---- sections


def codes_section() -> str:
    """Return every problem code with its sentence, by family."""
    lines = []
    for letter, (_, title) in FAMILIES.items():
        lines += [f"**{title}**", "", "| code | meaning |", "|---|---|"]
        codes = {code: text for code, text in CODES.items() if code[0] == letter}
        lines += [f"| [`{code}`](errors.md#{code.lower()}) | {_cell(text)} |" for code, text in codes.items()]
        lines.append("")
    return "\n".join(lines).rstrip()


def settings_section() -> str:
    """Return every top-level setting with its type and default."""
    wide = {"tools", "extensions"}
    rows = [row for name, rule in SETTINGS.items() if name not in wide for row in _setting_rows((name,), rule)]
    return _table(("key", "type", "default"), rows)


def rule_section() -> str:
    """Return every key of an entry under `extensions:`."""
    return _table(("key", "type"), [row[:2] for name, rule in RULE.items() for row in _setting_rows((name,), rule)])


def tool_section() -> str:
    """Return every key of an entry under `tools:`."""
    return _table(("key", "type"), [row[:2] for name, rule in TOOL.items() for row in _setting_rows((name,), rule)])


def exception_section() -> str:
    """Return every key of an entry under `exceptions:`."""
    rows = [row[:2] for name, rule in EXCEPTION.items() for row in _setting_rows((name,), rule)]
    return _table(("key", "type"), rows)


def verdicts_section() -> str:
    """Return the table of verdicts and the warning each one becomes."""
    kinds = Verdict.__annotations__["kind"]
    names = re.findall(r'"(\w+)"', inspect.getsource(inspect.getmodule(Verdict)).partition("]")[0])
    assert kinds == "VerdictKind"
    rows = [(f"`{name}`", f"`{WARNING_KINDS[name]}`" if name in WARNING_KINDS else "none: usable") for name in names]
    return _table(("verdict", "warning"), rows)


def policy_section() -> str:
    """Return what a loaded policy and a snapshot hold."""
    fields = ", ".join(f"`{field.name}`" for field in msgspec.structs.fields(Policy))
    names = ", ".join(f"`{name}`" for name in sorted(PolicySnapshot.__slots__) if not name.startswith("_"))
    return f"`Policy`: {fields}.\n`PolicySnapshot`: {names}, `digest`."


def _setting_rows(path: tuple[str, ...], rule: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    nested = rule.get("schema") if rule.get("type") == "dict" else None
    if nested:
        for name, inner in nested.items():
            yield from _setting_rows((*path, name), inner)
        return
    yield f"`{'.'.join(path)}`", _type(rule), _default(rule)


def _type(rule: Mapping[str, Any]) -> str:
    form = (rule.get("meta") or {}).get("form")
    if form == "duration":
        return "duration"
    if "allowed" in rule:
        values = [f"`{value}`" for value in rule["allowed"]]
        return f"list of {', '.join(values)}" if rule["type"] == "list" else " or ".join(values)
    kinds = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
    names = {"string": "text", "integer": "whole number", "dict": "mapping", "list": "list of texts"}
    text = " or ".join(names.get(kind, kind) for kind in kinds)
    if "min" in rule:
        text += f", {rule['min']} to {rule['max']}"
    inner = rule.get("schema") or {}
    if "list" in kinds and "allowed" in inner:
        text = "list of " + ", ".join(f"`{value}`" for value in inner["allowed"])
    elif kinds == ["list"] and inner.get("type") == "dict":
        text = "list of mappings"
    return text


def _default(rule: Mapping[str, Any]) -> str:
    return f"`{_yaml(rule['default'])}`" if "default" in rule else ""


def _yaml(value: Any) -> str:
    """Return a value as a policy says it, on one line; a text as it is."""
    if isinstance(value, str):
        return value
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return text.removesuffix("...\n").strip()


# ---- settings.md


def settings_page() -> str:
    """Return every key of a policy file with what it means, and every option of the built-in extensions."""
    lines = [SETTINGS_HEAD]
    lines += ["## The head of a file", "", _keys((), {**POLICY_HEADER, **OVERLAY_HEADER, **_KINDS}), ""]
    plain = {name: rule for name, rule in SETTINGS.items() if not _inner(rule)}
    lines += ["## Single settings", "", _keys((), plain), ""]
    for name, rule in SETTINGS.items():
        if step := _inner(rule):
            lines += [f"## `{name}`", "", ABOUT[name], "", _keys((name, *step[0]), step[1]), ""]
    lines += [OPTIONS_HEAD]
    for cls in BUILTIN:
        lines += [f"### {cls.name}", "", f"{_summary(cls)} [More](extensions/{cls.name}.md)", ""]
        rows = list(_option_rows("", cls.options))
        lines += [_table(("option", "type", "default", "stricter"), rows) if rows else "It has no options.", ""]
    return "\n".join(lines).rstrip() + "\n"


SETTINGS_HEAD = """\
<!-- Written by docs/generate.py from policyengine/policy and the extensions; edit those and run the script. -->
# Settings

Every key of a policy file, from the schema that files are checked with.
[policy-format.md](policy-format.md) explains layers and what belongs together; here each key stands by itself.
`*` stands for any name, or for each item of a list.
A duration is a number with a unit: `250ms`, `10s`, `2m`, `1h`.
"""

OPTIONS_HEAD = """\
## Options of the built-in guards

What stands under `with:` of a rule that uses them; the page of each says what the options mean.
A ladder is a mapping of rungs to numbers ([concepts.md](concepts.md#the-ladder)).
*Stricter* is the direction in which a [locked](policy-format.md#locked-rules) rule may still be changed.
"""

_KINDS: Schema = {"kind": {"type": "string", "allowed": ["Policy", "Overlay"], "required": True}}


def _inner(rule: Mapping[str, Any]) -> tuple[tuple[str, ...], Mapping[str, Any]] | None:
    """Return the keys inside a setting with the steps that lead to them, or nothing where it is one value."""
    schema, each = rule.get("schema"), rule.get("valuesrules") or {}
    if rule.get("type") == "list" and schema and "schema" in schema:
        return ("*",), schema["schema"]
    if rule.get("type") == "dict" and (schema or each.get("schema")):
        return ((), schema) if schema else (("*",), each["schema"])
    return None


def _keys(path: tuple[str, ...], schema: Mapping[str, Any]) -> str:
    return _table(("key", "type", "default", "what it says"), list(_key_rows(path, schema)))


def _key_rows(path: tuple[str, ...], schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for name, rule in schema.items():
        here = (*path, name)
        key = ".".join(here)
        if here == ("models", "*", "parsing"):
            yield f"`{key}`", "mapping, as [`parsing`](#parsing)", "", ABOUT[key]
        elif step := _inner(rule):
            if step[0]:
                yield f"`{key}`", _type(rule), _default(rule), ABOUT[key]
            yield from _key_rows((*here, *step[0]), step[1])
        else:
            needed = "required" if rule.get("required") else _default(rule)
            yield f"`{key}`", _type(rule), needed, ABOUT[key]


def _option_rows(path: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for name, rule in schema.items():
        key = f"{path}{name}"
        needed = "required" if rule.get("required") else _default(rule)
        stricter = (rule.get("meta") or {}).get("stricter", "")
        step = _inner(rule)
        if step is None:
            yield f"`{key}`", _type(rule), needed, stricter
            continue
        rungs = [rung for rung in RUNGS if rung in step[1]]
        if len(rungs) > 1:
            number = step[1][rungs[0]]
            kind = f"ladder of {', '.join(f'`{rung}`' for rung in rungs)}: {_type(number)}"
            yield f"`{key}`", kind, needed, number.get("meta", {}).get("stricter", "")
        else:
            yield f"`{key}`", _type(rule), needed, stricter
            rungs = []
        rest = {inner: each for inner, each in step[1].items() if inner not in rungs}
        yield from _option_rows(".".join((key, *step[0], "")), rest)


def _summary(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


# ---- cli-options.md


def options_page() -> str:
    """Return every verb of the command line with all its options."""
    lines = [CLI_HEAD]
    context = click.Context(cli, info_name="policyengine")
    for name, command, inside in _verbs(cli, context):
        usage = " ".join(command.collect_usage_pieces(inside))
        lines += [f"## {name}", "", f"`policyengine {name} {usage}`", "", _summary_of(command), ""]
        rows = [_option(item, inside) for item in command.get_params(inside) if isinstance(item, click.Option)]
        lines += [_table(("option", "what it does"), [row for row in rows if "`--help`" not in row[0]]), ""]
    return "\n".join(lines).rstrip() + "\n"


CLI_HEAD = """\
<!-- Written by docs/generate.py from policyengine/cli; edit that and run the script. -->
# Options of the command line

Every verb with all its options, as `policyengine VERB --help` says them.
[cli.md](cli.md) has examples, exit codes and machine output.
"""


def _verbs(group: click.Group, context: click.Context, before: str = "") -> Iterator[tuple[str, click.Command, Any]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inside = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _verbs(command, inside, f"{before}{name} ")
        else:
            yield f"{before}{name}", command, inside


def _summary_of(command: click.Command) -> str:
    return " ".join((command.help or "").partition("\n\n")[0].split())


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    names, text = record if record else (", ".join(option.opts), "")
    return ", ".join(f"`{name}`" for name in names.split(", ")), " ".join(text.split())


# ---- errors.md


def errors_page() -> str:
    """Return every problem code with its example, what that prints and its correction."""
    logger.disable("policyengine")  # a refused reload is one of the examples
    try:
        codes = [described(code) for code in CODES]
    finally:
        logger.enable("policyengine")
    lines = [ERRORS_HEAD]
    for letter, (_, title) in FAMILIES.items():
        lines += [f"## {title}\n", *(_error(code) for code in codes if code["code"][0] == letter)]
    return "\n".join(lines)


ERRORS_HEAD = """\
<!-- Written by docs/generate.py from policyengine/policy/codes.py and policyengine/mistakes; edit those and run it. -->
# Problems and what to do about them

One example for every code of a [policy file](policy-format.md#errors): a document that causes it, what is printed, and
the document in order.
`policyengine explain-error S204` shows the same for one code.

Some documents are shortened, where a problem is one of size.
"""


def _error(code: Mapping[str, Any]) -> str:
    warning = {"warning": " (a warning)", "info": " (for your information)"}.get(code["severity"], "")
    lines = [f"### {code['code']}", "", f"{code['meaning']}{warning}", ""]
    lines += [code["unseen"], ""] if code["unseen"] else []
    lines += [f"With the environment variable `{name}={text}`:\n" for name, text in code["env"].items()]
    for title, files in (("", code["files"]), (", after it was loaded", code["later"])):
        lines += [_file(file, title, code["encoding"]) for file in files]
    lines += [f"prints\n\n```text\n{clean(code['printed'])}\n```\n"] if code["printed"] else []
    lines += [f"**What to do.** {' '.join(code['fix'].split())}", ""]
    lines += [_file(file, ", corrected") for file in code["fixed"]]
    return "\n".join(lines)


def _file(file: Mapping[str, Any], title: str, encoding: str = "utf-8") -> str:
    saved = f" (saved as {encoding.upper()})" if encoding != "utf-8" else ""
    many = f" ({file['times']} files, n from 1)" if file["times"] > 1 else ""
    head = f"`{file['name']}`{title}{saved}{many}"
    if not file["text"]:
        return f"{head}: removed.\n"
    language = {"py": "python", "json5": "json5"}.get(file["name"].rpartition(".")[2], "yaml")
    # What is a tab in the example is one here too; what nobody can see is written as an escape.
    return f"{head}:\n\n```{language}\n{clean(file['text']).rstrip()}\n```\n"


# ---- decisions/README.md


def decisions_page() -> str:
    """Return the list of decision records, by the heading of each."""
    lines = [
        "<!-- Written by docs/generate.py from the headings of the records. -->",
        "# Decision records",
        "",
        "One page for each decision that another competent builder might have taken differently.",
        "A record says what the problem was, what was decided, what was rejected and what follows.",
        "A decision is changed by a new record that names the old one.",
        "",
        "<!-- toctree: Records -->",
    ]
    for path in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
        lines.append(f"* [{title}]({path.name})")
    return "\n".join(lines) + "\n"


# ---- writing


PAGES: dict[str, Callable[[], str]] = {
    "hooks.md": hooks_page,
    "errors.md": errors_page,
    "settings.md": settings_page,
    "cli-options.md": options_page,
    "decisions/README.md": decisions_page,
}
"""Pages that are generated whole."""

SECTIONS: dict[str, dict[str, Callable[[], str]]] = {
    "policy-format.md": {
        "settings": settings_section,
        "rule": rule_section,
        "tool": tool_section,
        "exception": exception_section,
        "codes": codes_section,
    },
    "concepts.md": {"verdicts": verdicts_section},
    "tour.md": {"policy": policy_section},
}
"""Generated sections of pages that are otherwise written by hand."""


def generated() -> dict[Path, str]:
    """Return every page that is generated, whole or in part, as it should be."""
    pages = {DOCS / name: make() for name, make in PAGES.items()}
    for name, sections in SECTIONS.items():
        path = DOCS / name
        pages[path] = with_sections(path.read_text(encoding="utf-8"), sections)
    return pages


def with_sections(text: str, sections: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with its generated sections made anew.

    Raises:
        ValueError: the page lacks the marks of a section.
    """
    for name, make in sections.items():
        pattern = re.compile(rf"<!-- generated: {name} -->\n(?:.*?\n)??<!-- end -->", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"no section {name!r}")
        start, end = f"<!-- generated: {name} -->\n", "\n<!-- end -->"
        text = pattern.sub((start + make() + end).replace("\\", r"\\"), text)
    return text


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.split("\n"))


def _slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def main() -> None:
    """Write every page that differs."""
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
