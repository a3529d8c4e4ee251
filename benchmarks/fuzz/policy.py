"""What must hold for every policy file: a policy, or positioned problems, at once.

Knows: policies that are sound. Must not know: how one is read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.fuzz.mutate import as_json, damaged
from benchmarks.fuzz.source import Source, happens, pick
from policyengine.errors import ConfigError, ExtensionError
from policyengine.plugins.registry import Registry, builtin_registry
from policyengine.policy.explain import explain
from policyengine.policy.load import load_policy_text

ROOT = Path(__file__).parents[2]
SECRET = "hunter2-0c5d7f"
"""The value of the variable that the seeds name: nothing that is said of a policy may hold it."""

OWN = (
    b"""apiVersion: policyengine/v1
kind: Policy
name: mine
revision: "3"
extends: [default]
requires: {policyengine: ">=0", block: [acme*]}
defaults: {mode: warn, on_error: allow, timeout: 1s}
parsing: {mode: strict, max_retry: 1}
tools: {"a*": {effect: read, timeout: 5s, result_mask: ["x+", "took [0-9]+ ms"], failure: {text_prefix: [E]}}}
extensions:
  call_limit: {use: step_limit, mode: shadow, when: {tool: [a, "!b"], agent: x}, with: {limit: 3}}
  words: {use: repeat_message, with: {limit: 4}, order: {after: [call_limit]}}
log: {include: [arguments, results], mask: [/call/arguments/token, /result/text], sample: {allow: 0.5}}
reload: {pin: run, settle: 1s}
prompts: prompts
""",
    as_json(
        {
            "apiVersion": "policyengine/v1",
            "kind": "Policy",
            "name": "mine",
            "language": {"$env": "LANGUAGE_CODE", "default": "en"},
            "extensions": {"step_limit": {"with": {"limit": {"$env": "STEPS"}}}},
        }
    ),
)
ENV = {"LANGUAGE_CODE": SECRET, "STEPS": SECRET}


class Case(NamedTuple):
    """A file by its name and content."""

    name: str
    data: bytes


@cache
def registry() -> Registry:
    """Return the built-in extensions."""
    return builtin_registry()


@cache
def seeds() -> tuple[bytes, ...]:
    """Return policies that are sound: the shipped ones, and some that say more."""
    shipped = sorted((ROOT / "policies").glob("*.yaml"))
    return (*OWN, *OWN, *(path.read_bytes() for path in shipped))


def generate(source: Source) -> Case:
    """Return a case."""
    name = pick(source, ("policy.yaml", "policy.yaml", "policy.json5")) if happens(source, 2) else "policy.yaml"
    return Case(name, damaged(source, seeds()))


def check(case: Case) -> None:
    """Load the policy, and explain it.

    Raises:
        AssertionError: what is said of it shows the value of a variable.
    """
    try:
        policy = load_policy_text(case.data, case.name, registry=registry(), env=ENV)
    except (ConfigError, ExtensionError) as error:
        said = repr(vars(error)) + str(error)
    else:
        said = repr(explain(policy))
    assert SECRET not in said, "the value of a variable is shown"
