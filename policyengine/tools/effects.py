"""What tools say themselves about their effect, where the policy says nothing.

Knows: policies and tools. Must not know: where a tool comes from.

Hints of a server are claims, not facts: they never change what a policy declares.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from policyengine.inspection import declares_effect
from policyengine.policy.model import Policy
from policyengine.toolset import Toolset


def with_effects(policy: Policy, tools: Toolset) -> Policy:
    """Return a policy in which tools have the effect they claim, unless the policy declares one for them.

    The digest changes with it: the same policy without these claims may decide otherwise.
    """
    claimed = []
    for tool in tools:
        if tool.effect is not None and not declares_effect(policy, tool.spec.name):
            facts = msgspec.structs.replace(policy.tool(tool.spec.name), effect=tool.effect)
            claimed.append((tool.spec.name, facts))
    if not claimed:
        return policy
    digest = sha256(policy.digest.encode() + msgspec.json.encode(claimed)).hexdigest()
    named = {name for name, _ in claimed}
    declared = tuple(entry for entry in policy.tools if entry[0] not in named)
    return msgspec.structs.replace(policy, tools=(*claimed, *declared), digest=digest)
