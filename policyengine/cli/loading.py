"""Load a policy exactly as a running engine does, without putting it in force.

Knows: the order of loading. Must not know: verbs, how problems are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from policyengine.plugins.registry import Registry, discover
from policyengine.policy.disk import code_digest, with_code
from policyengine.policy.load import load_policy
from policyengine.policy.model import Policy
from policyengine.selftest import self_test
from policyengine.snapshot import PolicySnapshot, build_snapshot


class Loaded(msgspec.Struct, frozen=True):
    """A policy that passed everything an engine demands at start-up."""

    policy: Policy
    registry: Registry
    snapshot: PolicySnapshot


def load(policy: str, overlays: Sequence[str] = (), folders: Sequence[str] = ()) -> Loaded:
    """Load, compile and self-test a policy.

    Raises:
        ConfigError: the policy cannot be used.
        ExtensionError: an extension breaks the contract.
    """
    code = code_digest([Path(folder) for folder in folders])
    registry = discover(folders=[Path(folder) for folder in folders])
    loaded = load_policy(policy, registry=registry, overlays=[Path(overlay) for overlay in overlays])
    loaded = with_code(loaded, code)
    snapshot = build_snapshot(loaded, registry)
    self_test(snapshot)
    return Loaded(loaded, registry, snapshot)
