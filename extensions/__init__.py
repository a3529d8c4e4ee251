"""The built-in extensions.

Knows: which classes ship with the package, in this one explicit list: it is deterministic and cannot be shadowed by
an installed package.
Must not know: policies, the engine. Every extension uses the public API only and none imports another one.

A module is imported when its extension is used: a policy seldom uses more than half of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

CLASSES: dict[str, str] = {
    "stop_unusable_response_loop": "StopUnusableResponseLoop",
    "stall_detector": "StallDetector",
    "failure_hint_injector": "FailureHintInjector",
    "repeat_message": "RepeatMessage",
    "step_limit": "StepLimit",
    "tool_access": "ToolAccess",
    "tool_call_limit": "ToolCallLimit",
    "token_budget": "TokenBudget",
    "cost_budget": "CostBudget",
    "shared_limit": "SharedLimit",
    "wall_clock": "WallClock",
    "parse_failures": "ParseFailures",
    "tool_failures": "ToolFailures",
    "unknown_tools": "UnknownTools",
    "tool_timeout": "ToolTimeout",
    "provider_recovery": "ProviderRecovery",
    "context_compaction": "ContextCompaction",
    "empty_response": "EmptyResponse",
}
"""The class of every built-in extension by its name, in the order in which they are listed to users.

The name is also that of the module it stands in."""


def __getattr__(name: str) -> Any:
    """Return `BUILTIN`, a tuple of all classes in their order."""
    if name != "BUILTIN":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return tuple(getattr(import_module(f".{module}", __name__), cls) for module, cls in CLASSES.items())
