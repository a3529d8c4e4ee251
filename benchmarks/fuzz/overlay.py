"""What must hold for every overlay on a sound policy.

Knows: overlays that are sound. Must not know: how layers merge.
"""

from __future__ import annotations

from benchmarks.fuzz import policy
from benchmarks.fuzz.mutate import damaged
from benchmarks.fuzz.place import written
from benchmarks.fuzz.source import Source
from policyengine.errors import ConfigError, ExtensionError
from policyengine.policy.explain import explain
from policyengine.policy.load import load_policy

HEAD = b"apiVersion: policyengine/v1\nkind: Overlay\ntarget: default\n"
SEEDS = (
    HEAD + b"extensions:\n  step_limit: {with: {limit: 3}, mode: warn}\n",
    HEAD + b"extensions:\n  mine: {use: step_limit, with: {limit: {$env: STEPS, default: 4}}}\n",
    HEAD
    + b"requires: {block: {$append: [acme*]}}\nlog: {mask: {$append: [/call/arguments/a]}, include: [arguments]}\n",
    HEAD + b"extensions: {stall_detector: {$delete: true}}\nrevision: '2'\ntools: {x: {effect: write}}\n",
)


def generate(source: Source) -> bytes:
    """Return a case."""
    return damaged(source, SEEDS)


def check(case: bytes) -> None:
    """Load the shipped policy with the overlay on top.

    Raises:
        AssertionError: what is said of it shows the value of a variable.
    """
    path = written("overlay.yaml", case)
    try:
        loaded = load_policy("default", registry=policy.registry(), overlays=[path], env=policy.ENV)
    except (ConfigError, ExtensionError) as error:
        said = repr(vars(error)) + str(error)
    else:
        said = repr(explain(loaded))
    assert policy.SECRET not in said, "the value of a variable is shown"
