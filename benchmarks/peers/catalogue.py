"""Which guards there are: those that are driven here, and those that cannot be.

Knows: names of modules and of packages. Must not know: how a guard is driven.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from benchmarks.peers.model import Peer

MODULES = ("openhands", "langchain", "agent_loop_guard", "agent_patrol", "agent_watchdog", "aura_guard")

POLICIES = (
    "peers/openhands",
    "peers/gemini_cli",
    "peers/roo_code",
    "peers/cline",
    "peers/hermes",
    "peers/langchain",
)
"""Our restatements of rules, as policies."""


class Undriven(NamedTuple):
    """A guard that is not run here, and why."""

    name: str
    why: str


UNDRIVEN = (
    Undriven(
        "agent-vitals 1.19.0",
        "it installs, but every step must say how much of the task is covered (`coverage_score`, 0 to 1), which no "
        "recording knows; without that (0, as its own LangChain callback says) it takes nearly every run for stuck at "
        "its third or fourth step",
    ),
    Undriven("gemini-cli", "TypeScript inside a product; its rules are the policy peers/gemini_cli"),
    Undriven("Roo-Code", "TypeScript inside an editor's extension; its rules are the policy peers/roo_code"),
    Undriven("Cline", "TypeScript; its rules are the policy peers/cline"),
    Undriven("Hermes", "a module inside an agent, not a package; its rules are the policy peers/hermes"),
)


def peers() -> tuple[Peer, ...]:
    """Return every guard that is driven here, installed or not."""
    return tuple(peer for name in MODULES for peer in import_module(f"benchmarks.peers.{name}").PEERS)
