"""Random samples of recorded turns that break their text protocol: `mint`, `bfcl_malformed`, `medagentbench`.

Knows: where the turns of each set are, what its own harness takes for well-formed, how a sample is drawn.
Must not know: how this project parses anything.

A sample is the same on every machine: all malformed turns of a set in the order of their files, then drawn with a seed
that is the name of the set.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

SIZE = 100
"""How many turns are drawn; a set with fewer malformed turns is taken whole."""


class Turn(NamedTuple):
    """One recorded turn: where it stands (`file:line:turn`, all counted from 0) and what the model wrote."""

    where: str
    text: str

    @property
    def digest(self) -> str:
        """The key of its label: the first 16 hex digits of the SHA-256 of the text in UTF-8."""
        return sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def sample(recordings: Path, name: str) -> list[Turn]:
    """Return the sample of a set.

    Raises:
        OSError: the set cannot be read.
        KeyError: the set is none of `SETS`.
    """
    turns = list(malformed(recordings, name))
    return turns if len(turns) <= SIZE else random.Random(name).sample(turns, SIZE)


def malformed(recordings: Path, name: str) -> Iterator[Turn]:
    """Yield every turn of a set that its own harness could not read."""
    turns, well_formed = SETS[name]
    for turn in turns(recordings / name):
        if not well_formed(turn.text):
            yield turn


def _mint(folder: Path) -> Iterator[Turn]:
    path = folder / "results_sample.jsonl"
    for line, run in _lines(path):
        history = run["state"]["history"]
        said = (item["content"] for item in history if item["role"] == "assistant")
        yield from (Turn(f"{path.name}:{line}:{number}", text) for number, text in enumerate(said))


def _bfcl(folder: Path) -> Iterator[Turn]:
    for path in sorted(folder.glob("*_result.json")):
        for line, test in _lines(path):
            result = test["result"]
            said = _flat(result)
            yield from (Turn(f"{path.name}:{line}:{number}", text) for number, text in enumerate(said))


def _medagentbench(folder: Path) -> Iterator[Turn]:
    for path in sorted(folder.glob("*_runs.jsonl")):
        for line, run in _lines(path):
            history = (run.get("output") or {}).get("history") or []
            said = (item["content"] for item in history if item["role"] == "agent")
            yield from (Turn(f"{path.name}:{line}:{number}", text) for number, text in enumerate(said))


def _flat(result: Any) -> Iterator[str]:
    if isinstance(result, str):
        yield result
    else:
        for part in result:
            yield from _flat(part)


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if line.strip():
                yield number, json.loads(line)


def _is_tagged(text: str) -> bool:
    return _PAIR.search(text) is not None


def _is_python_calls(text: str) -> bool:
    """Return whether a text is a Python list of calls, or has no brackets and so is no attempt at one."""
    if not _BRACKETS.search(text):
        return True
    try:
        value = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return isinstance(value, ast.List) and all(isinstance(item, ast.Call) for item in value.elts)


def _is_command(text: str) -> bool:
    return text.strip().startswith(("GET ", "POST ", "FINISH("))


_PAIR = re.compile(r"<execute>.*?</execute>|<solution>.*?</solution>", re.DOTALL)
_BRACKETS = re.compile(r"[\[\]]")

SETS: dict[str, tuple[Callable[[Path], Iterator[Turn]], Callable[[str], bool]]] = {
    "mint": (_mint, _is_tagged),
    "bfcl_malformed": (_bfcl, _is_python_calls),
    "medagentbench": (_medagentbench, _is_command),
}
