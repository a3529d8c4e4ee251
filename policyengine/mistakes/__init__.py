"""One example for every problem code: files that cause it, and how to correct them.

Knows: the examples, which are data (the YAML files beside this one), and how their files are written out.
Must not know: how a policy is loaded (`play`), how an example is shown.

An entry stands under its code and has

* `files`: names and contents. `policy.*` is the policy, `overlay*` lie on it in order, `guards/*.py` is a folder of
  drop-in extensions, `packages/NAME-VERSION.py` stands for an installed package; other files are there to be extended.
  `*.test.yaml` are tests, which are read in the place of a policy;
* `later`: what the files become after the policy was loaded, for codes of a reload; an empty text removes a file;
* `fix`: what to do about it;  `fixed`: files of the same example that are in order;
* `unseen`: in the place of `files`, why no document can cause the code;
* `today`: the day on which it is looked at, where that matters;  `host`: the host for which it is checked;
* `env`: environment variables; there are no others;  `encoding`: in which the files are written;
* `raw: true`: no header is put before files without one.

A content is a text, or a list of texts and `{repeat: TEXT, times: N}`; a file with `{n}` in its name is
`{text: TEXT, times: N}` files. `{n}` counts from 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from policyengine.policy.yamltext import read_yaml

FAMILIES = {
    "Y": ("text", "Text of a file"),
    "S": ("schema", "Schema"),
    "M": ("layers", "Layers"),
    "X": ("extensions", "Extensions and packages"),
    "R": ("references", "References and reachability"),
    "L": ("lint", "Lint"),
    "E": ("environment", "Environment"),
    "T": ("tests", "Tests of policies"),
}
"""First letter of a code: the file that holds the examples, and what the family is called."""

POLICY_HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: {name}\n"
TESTS_HEAD = "apiVersion: policyengine/v1\nkind: PolicyTest\npolicy: default\n"
OVERLAY_HEAD = "apiVersion: policyengine/v1\nkind: Overlay\ntarget: example\n"

SHOWN = 2
"""How often a part that is repeated is shown."""


class Repeated(msgspec.Struct, frozen=True):
    """A part of a file that stands there many times."""

    repeat: str
    times: int


Part = str | Repeated


class File(msgspec.Struct, frozen=True):
    """One file of an example, as parts; `times` is how many of it there are."""

    name: str
    parts: tuple[Part, ...]
    times: int = 1

    def written(self) -> Iterator[tuple[str, str]]:
        """Yield the names and contents of the files."""
        for number in range(1, self.times + 1):
            yield _numbered(self.name, number), "".join(_whole(part, number) for part in self.parts)

    def shown(self) -> str:
        """Return the content as it is shown: what is repeated only a few times."""
        return "".join(map(_excerpt, self.parts))


class Mistake(msgspec.Struct, frozen=True):
    """The example of one code."""

    code: str
    fix: str
    files: tuple[File, ...] = ()
    later: tuple[File, ...] = ()
    fixed: tuple[File, ...] = ()
    unseen: str = ""
    encoding: str = "utf-8"
    env: dict[str, str] = {}
    today: str = ""
    host: str = ""


def mistake(code: str) -> Mistake | None:
    """Return the example of a code, or `None`."""
    return mistakes_of(code[0]).get(code) if code[:1] in FAMILIES else None


@cache
def mistakes_of(letter: str) -> Mapping[str, Mistake]:
    """Return the examples of a family by code."""
    name = f"{FAMILIES[letter][0]}.yaml"
    entries = read_yaml(files("policyengine.mistakes").joinpath(name).read_bytes(), name).root.data
    return {code: _mistake(code, entry) for code, entry in entries.items()}


def _mistake(code: str, entry: Mapping[str, Any]) -> Mistake:
    known = {"fix", "files", "later", "fixed", "unseen", "encoding", "env", "raw", "today", "host"}
    if not known.issuperset(entry):
        raise ValueError(f"{code}: {sorted(set(entry) - known)}")
    sets: dict[str, Any] = {
        name: tuple(_file(path, content, raw="raw" in entry) for path, content in entry.get(name, {}).items())
        for name in ("files", "later", "fixed")
    }
    return Mistake(
        code,
        entry["fix"].strip(),
        **sets,
        unseen=entry.get("unseen", "").strip(),
        encoding=entry.get("encoding", "utf-8"),
        env=dict(entry.get("env", {})),
        today=entry.get("today", ""),
        host=entry.get("host", ""),
    )


def _file(name: str, content: Any, *, raw: bool) -> File:
    times = content["times"] if isinstance(content, dict) else 1
    content = content["text"] if isinstance(content, dict) else content
    given = content if isinstance(content, list) else [content]
    parts = tuple(part if isinstance(part, str) else Repeated(**part) for part in given)
    first = parts[0] if isinstance(parts[0], str) else ""
    if not raw and name.endswith(".yaml") and any(parts) and "apiVersion" not in first:
        parts = (_head(name), *parts)
    return File(name, parts, times)


def _head(name: str) -> str:
    if name.startswith("overlay"):
        return OVERLAY_HEAD
    if name.endswith(".test.yaml"):
        return TESTS_HEAD
    stem = name.rpartition("/")[2].removesuffix(".yaml")
    return POLICY_HEAD.format(name="example" if stem == "policy" else stem)


def _numbered(text: str, number: int) -> str:
    return text.replace("{n}", str(number))


def _whole(part: Part, number: int) -> str:
    if isinstance(part, str):
        return _numbered(part, number)
    return "".join(_numbered(part.repeat, at) for at in range(1, part.times + 1))


def _excerpt(part: Part) -> str:
    if isinstance(part, str):
        return part
    start = "".join(_numbered(part.repeat, at) for at in range(1, SHOWN + 1))
    lines = part.repeat.endswith("\n")
    indent = part.repeat[: len(part.repeat) - len(part.repeat.lstrip())] if lines else ""
    return f"{start}{indent}... ({part.times:,} in all){chr(10) if lines else ' '}"
