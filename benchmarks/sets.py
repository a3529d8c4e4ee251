"""The public sets of recordings, as evidence is taken from them.

Knows: which folders there are, and which hold outlines. Must not know: policies, figures.

Most sets are read as `policyengine backtest FOLDER` reads them. Of three, whole files are there for a few runs,
outlines of all (`compact`): these take part with their outlines, with the error flags that their harness declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks import compact
from policyengine.recordings.model import Recording, Unreadable
from policyengine.recordings.readers import Reader, read_recordings


class Set(NamedTuple):
    """A set, or a part of one: what it is called, where it is below the folder of all, how many broken lines it has."""

    name: str
    path: str
    unreadable: int = 0

    @property
    def is_outlines(self) -> bool:
        """Whether texts and arguments are hashes."""
        return self.path.endswith(".jsonl")


RANDOM, ENRICHED = "agentdojo, random", "agentdojo, enriched"

SETS = (
    Set(RANDOM, "agentdojo_raw/random"),
    Set(ENRICHED, "agentdojo_raw/enriched"),
    Set("tau_bench", "tau_bench"),
    Set("tau2_bench", "tau2_bench"),
    Set("mint", "mint"),
    Set("medagentbench", "medagentbench"),
    Set("openhands_litellm", "openhands_litellm"),
    Set("sweagent_claude35", "sweagent_claude35/compact.jsonl"),
    Set("mini_swe_agent", "mini_swe_agent/compact.jsonl"),
    Set("trae_iso_bench", "trae_iso_bench/compact.jsonl"),
    Set("claude_code_jsonl", "claude_code_jsonl"),
    Set("openhands_v1_events", "openhands_v1_events", unreadable=1),
    Set("pi_sessions", "pi_sessions", unreadable=1),
    Set("bfcl_malformed", "bfcl_malformed"),
)
"""Sets with labels first. `agentdojo_raw` is two sets: only the random part of it is representative."""

CODING = ("openhands_litellm", "sweagent_claude35", "mini_swe_agent", "trae_iso_bench")
"""Labelled sets of agents that write code: the longest runs."""


def read(root: Path) -> list[Recording]:
    """Return all runs of all sets, each with the name of its set.

    Raises:
        ValueError: a set has no run, or more that cannot be read than is known of it.
    """
    return [recording for found in SETS for recording in _read(root, found)]


def _read(root: Path, found: Set) -> Iterator[Recording]:
    readers: tuple[Reader, ...] | None = (compact.DECLARED,) if found.is_outlines else None
    path = root / found.path
    items = read_recordings([path]) if readers is None else read_recordings([path], readers)
    runs = unreadable = 0
    for item in items:
        if isinstance(item, Unreadable):
            unreadable += 1
            if unreadable > found.unreadable:
                raise ValueError(f"{item.source}:{item.line}: {item.reason}")
        elif isinstance(item, Recording):
            runs += 1
            yield msgspec.structs.replace(item, set=found.name)
    if not runs:
        raise ValueError(f"{path}: no recordings")
