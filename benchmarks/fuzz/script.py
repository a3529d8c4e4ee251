"""What must hold for every script of the scripted model, and every file of a provider.

Knows: files that are sound. Must not know: how one is read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.fuzz.mutate import damaged
from benchmarks.fuzz.place import written
from benchmarks.fuzz.source import Source, happens
from policyengine.errors import UsageError
from policyengine.providers.config import as_provider
from policyengine.providers.scripted import load_script, read_turns

ROOT = Path(__file__).parents[2]
PROVIDER = (
    b"preset: openai\nmodel: m\nheaders: {x-team: a}\nfallbacks: [{model: n, after: 2}]\noptions: {temperature: 0}\n"
)
BOMB = b"task: t\nturns: &a\n- text: x\n- &b [%s]\n" % b", ".join([b"*a"] * 9)


class Case(NamedTuple):
    """A file, and whether it is that of a provider."""

    data: bytes
    provider: bool


@cache
def seeds() -> tuple[bytes, ...]:
    """Return the scripts of the package."""
    return (BOMB, *(path.read_bytes() for path in sorted((ROOT / "policyengine/providers/scripts").glob("*.yaml"))))


def generate(source: Source) -> Case:
    """Return a case."""
    provider = happens(source, 4)
    return Case(damaged(source, [PROVIDER] if provider else seeds()), provider)


def check(case: Case) -> None:
    """Read the file; everything that is wrong with it is a `UsageError`."""
    path = written("file.yaml", case.data)
    try:
        if case.provider:
            as_provider(str(path))
        else:
            script = load_script(str(path))
            read_turns(list(script.turns))
    except UsageError:
        return
