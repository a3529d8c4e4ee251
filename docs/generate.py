"""Write the parts of the documentation that the code already says: `python docs/generate.py`.

Knows: hookspecs, the table of codes and the example of each, the policy schema, verdicts, the headings of decision
records.
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

import msgspec
from loguru import logger

from policyengine import messages
from policyengine.actions import RANKS
from policyengine.cli.explain_error import described
from policyengine.hooks import HOOKS, HookPoint, HookSpecs
from policyengine.mistakes import FAMILIES
from policyengine.outcome import Outcome
from policyengine.parsing.verdict import WARNING_KINDS, Verdict
from policyengine.policy.codes import CODES
from policyengine.policy.model import Policy
from policyengine.policy.schema import EXCEPTION, LATER, LATER_VALUES, RULE, SETTINGS, TOOL
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
        lines += [f"### {kind.__name__}", "", about, "", f"Fields: {fields}.", ""]
    return "\n".join(lines).rstrip() + "\n"


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


def later_section() -> str:
    """Return the keys and values that are refused because they do not work yet."""
    keys = [f"* `{'.'.join(path).replace('*', 'ID')}`" for path in LATER]
    values = [f"* `{'.'.join(path)}: {value}`" for path, known in LATER_VALUES.items() for value in known]
    return "\n".join([*keys, *values])


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
        return " or ".join(f"`{value}`" for value in rule["allowed"])
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
    if "default" not in rule:
        return ""
    value = rule["default"]
    return f"`{str(value) if not isinstance(value, str) else value}`"


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
    warning = " (a warning)" if code["severity"] == "warning" else ""
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
    ]
    for path in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
        lines.append(f"* [{title}]({path.name})")
    return "\n".join(lines) + "\n"


# ---- writing


PAGES: dict[str, Callable[[], str]] = {
    "hooks.md": hooks_page,
    "errors.md": errors_page,
    "decisions/README.md": decisions_page,
}
"""Pages that are generated whole."""

SECTIONS: dict[str, dict[str, Callable[[], str]]] = {
    "policy-format.md": {
        "settings": settings_section,
        "rule": rule_section,
        "tool": tool_section,
        "exception": exception_section,
        "later": later_section,
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
