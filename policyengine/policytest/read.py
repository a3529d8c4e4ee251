"""Read `PolicyTest` files: text to tests, or every problem with file and line.

Knows: the form of such a file, and which rules and tools it may name. Must not know: how a test is played.

A name that nothing has would make a test pass for the wrong reason, so each one is looked up: rules in the policy,
tools among those that the test calls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from policyengine.engine import Engine
from policyengine.errors import ConfigError
from policyengine.policy.durations import seconds
from policyengine.policy.files import SUFFIXES, is_path
from policyengine.policy.json5text import read_json5
from policyengine.policy.load import tool_facts
from policyengine.policy.nodes import Document, Node, Sources
from policyengine.policy.problems import Position, Problem, in_order
from policyengine.policy.text import MAX_BYTES
from policyengine.policy.validate import validate
from policyengine.policy.wording import KeyPath, suggestion
from policyengine.policy.yamltext import read_yaml
from policyengine.policytest.model import Case, Expectation, Suite
from policyengine.policytest.shape import FILE, FORMS
from policyengine.script import Turn
from policyengine.testing import ManualClock

_KIND = re.compile(rb"""(?:^|[{,])\s*['"]?kind['"]?\s*:\s*['"]?PolicyTest\b""", re.MULTILINE)
_OTHER = re.compile(rb"""(?:^|[{,])\s*['"]?kind['"]?\s*:\s*['"]?(?:Policy|Overlay)\b(?!Test)""", re.MULTILINE)
ENGINE_RULES = ("interventions",)
"""What may end a run beside the rules of the policy."""


def find_files(sources: Iterable[str]) -> Iterator[Path]:
    """Yield the given files, and all files of tests below the given directories, each once.

    That are those of kind `PolicyTest`, and those whose name ends in `.test` before its suffix and that are no policy:
    where their kind is misspelt, to pass them over would look like success.
    """
    seen: set[str] = set()
    for source in sources:
        path = Path(source)
        found = _below(path) if path.is_dir() else [path]
        for file in found:
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                yield file


def _below(folder: Path) -> list[Path]:
    """Return the test files below a directory in a fixed order; hidden files and directories do not count."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and path.is_file()]
    shown = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    return [path for path in shown if _holds_tests(path)]


def _holds_tests(path: Path) -> bool:
    content = _content(path)
    return bool(_KIND.search(content)) or (path.stem.endswith(".test") and not _OTHER.search(content))


def read_suite(path: Path) -> Suite:
    """Return the tests of a file, with its policy loaded.

    Raises:
        ConfigError: the file or its policy cannot be used.
        ExtensionError: an extension of the policy breaks the contract.
    """
    document = _document(path)
    sources = Sources()
    sources.add(document.source)
    problems = validate(FILE, document.root, sources)
    if problems:
        raise ConfigError(in_order(problems))
    root, folder = document.root.data, path.parent
    clock = ManualClock()
    engine = Engine(
        _beside(folder, root["policy"]) if is_path(root["policy"]) else root["policy"],
        overlays=[_beside(folder, overlay) for overlay in root.get("overlays", ())],
        folders=[_beside(folder, entry) for entry in root.get("folders", ())],
        clock=clock,
        enforce_time=False,
    )
    reader = _Reader(str(path), sources, [rule.id for rule in engine.snapshot.policy.rules], document.root)
    cases = tuple(reader.cases())
    if reader.problems:
        raise ConfigError(in_order(reader.problems))
    return Suite(str(path), engine, clock, cases)


def _beside(folder: Path, name: str) -> str:
    return os.path.normpath(os.path.join(folder, name))


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError:
        return b""


def _document(path: Path) -> Document:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError([Problem("E802", f"cannot be read: {error.strerror}", Position(str(path)))]) from error
    reading = read_json5 if path.suffix in (".json", ".json5") else read_yaml
    return reading(content, str(path))


class _Reader:
    """Makes tests of a file that has the right shape, and keeps every problem found on the way."""

    def __init__(self, file: str, sources: Sources, rules: Sequence[str], root: Node) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._sources = sources
        self._rules = rules
        self._root = root

    def cases(self) -> Iterator[Case]:
        """Yield every test."""
        common, called = self._root.fields.get("tools"), set[str]()
        names: set[str] = set()
        for index, node in enumerate(self._root.fields["tests"].items):
            path: KeyPath = ("tests", index)
            name = node.fields["name"]
            if name.data in names:
                self._report("T904", f"there are two tests named {name.data!r}", name, (*path, "name"))
            names.add(name.data)
            tools = set(_called(node))
            called |= tools
            own = node.fields.get("tools")
            self._check_tools(node, path, own, common)
            self._check_used(own, tools, (*path, "tools"))
            yield self._case(node, path, (own, common), tools)
        self._check_used(common, called, ("tools",))

    def _case(self, node: Node, path: KeyPath, tools: tuple[Node | None, ...], called: set[str]) -> Case:
        data = node.data
        for name, child in _fields(node.fields.get("faults")):
            self._check_rule(name, child, (*path, "faults", name), at_key=True)
        expect = node.fields["expect"].items
        return Case(
            name=data["name"],
            position=node.fields["name"].at,
            turns=tuple(_turns(data["turns"])),
            expect=tuple(
                found
                for index, item in enumerate(expect)
                if (found := self._expectation(item, (*path, "expect", index), called)) is not None
            ),
            task=data.get("task", "test"),
            agent=data.get("agent", ""),
            protocol=data.get("protocol", ""),
            pace_s=seconds(data.get("pace", "")) or 0.0,
            today=data.get("today", ""),
            approves={"approves": True, "refuses": False}.get(data.get("human", "")),
            tools=tuple((name, tool_facts(child)) for part in tools for name, child in _fields(part)),
            faults=dict(data.get("faults", {})),
        )

    # ---- expectations

    def _expectation(self, node: Node, path: KeyPath, called: set[str]) -> Expectation | None:
        data = node.data
        form = next((key for key in FORMS if key in data), None)
        if form is None:
            self._report("T903", "an expectation names a `rule`, or what it must `allow`, or the `outcome`", node, path)
            return None
        before = len(self.problems)
        for key in data:
            if key not in FORMS[form]:
                message = f"`{key}` means nothing beside `{form}`"
                self._report("T903", message, node.fields[key], (*path, key), f"{form} takes: {', '.join(FORMS[form])}")
        subject = node.fields.get("rule" if form == "outcome" else form)
        if subject is not None and not (form == "outcome" and subject.data in ENGINE_RULES):
            self._check_rule(subject.data, subject, (*path, "rule" if form == "outcome" else form))
        if "tool" in data and not any(fnmatchcase(name, data["tool"]) for name in called):
            self._unknown_tool(data["tool"], node.fields["tool"], (*path, "tool"), called)
        self._check_answer(node, form, path)
        if len(self.problems) > before:
            return None
        return Expectation(
            kind={"rule": "answer"}.get(form, form),  # type: ignore[arg-type]
            position=node.at,
            rule=data.get("rule", "") if form == "outcome" else data.get(form, ""),
            at=_numbers(data.get("at")),
            calls=_numbers(data.get("call")),
            **{name: data[name] for name in ("action", "wants", "code", "tool", "until", "outcome", "executed")
               if name in data},
        )  # fmt: skip

    def _check_answer(self, node: Node, form: str, path: KeyPath) -> None:
        """An expectation of an answer says which answer, and when."""
        if form != "rule":
            return
        for keys, what in ((("action", "wants"), "which answer"), (("at", "call"), "in which round or call")):
            given = [key for key in keys if key in node.data]
            if len(given) != 1:
                message = f"say {what}: either `{keys[0]}` or `{keys[1]}`"
                self._report("T903", message, node.fields[given[1]] if given else node, path)

    # ---- names

    def _check_rule(self, name: str, node: Node, path: KeyPath, *, at_key: bool = False) -> None:
        if name not in self._rules:
            advice = suggestion(name, self._rules, "rules of the policy")
            message = f"the policy has no rule {name!r}"
            report = self._sources.at_key if at_key else self._sources.at_value
            self.problems.append(report("T901", message, node, path, help=advice))

    def _check_tools(self, node: Node, path: KeyPath, own: Node | None, common: Node | None) -> None:
        """Where tools are listed, the turns may call no other."""
        if own is None and common is None:
            return
        known = [name for part in (own, common) for name, _ in _fields(part)]
        for place, call in _calls(node, path):
            name = call.fields["tool"]
            if name.data and not any(fnmatchcase(name.data, pattern) for pattern in known):
                self._unknown_tool(name.data, name, (*place, "tool"), known)

    def _check_used(self, tools: Node | None, called: set[str], path: KeyPath) -> None:
        """A pattern that no call matches says nothing, so it is most likely misspelt."""
        for pattern, child in _fields(tools):
            if not any(fnmatchcase(name, pattern) for name in called):
                message = f"no turn calls a tool {pattern!r}"
                advice = suggestion(pattern, sorted(called), "called")
                self.problems.append(self._sources.at_key("T902", message, child, (*path, pattern), help=advice))

    def _unknown_tool(self, name: str, node: Node, path: KeyPath, known: Iterable[str]) -> None:
        self._report("T902", f"there is no tool {name!r} in this test", node, path, suggestion(name, sorted(known)))

    def _report(self, code: str, message: str, node: Node, path: KeyPath, help: str = "") -> None:
        self.problems.append(self._sources.at_value(code, message, node, path, help=help))


def _fields(node: Node | None) -> Iterable[tuple[str, Node]]:
    return () if node is None else node.fields.items()


def _calls(case: Node, path: KeyPath) -> Iterator[tuple[KeyPath, Node]]:
    for index, turn in enumerate(case.fields["turns"].items):
        calls = turn.fields.get("calls")
        for number, call in enumerate(calls.items if calls else ()):
            yield (*path, "turns", index, "calls", number), call


def _called(case: Node) -> Iterator[str]:
    return (call.data["tool"] for _, call in _calls(case, ()) if call.data["tool"])


def _turns(turns: Sequence[dict[str, Any]]) -> Iterator[Turn]:
    for turn in turns:
        parts = dict(turn)
        times = parts.pop("times", 1)
        yield from [msgspec.convert(parts, Turn)] * times


def _numbers(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(sorted(set(value))) if isinstance(value, list) else (value,)
