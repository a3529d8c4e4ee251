"""policyengine: a config-driven policy engine for LLM agent loops.

This module is the public API and nothing else: what is not named in `__all__` may change without notice. Names are
imported when they are first used, so that a process that needs one guard does not pay for the rest.

PYTEST_DONT_REWRITE: pytest would warn whoever imported this package before its plugins were loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policyengine.actions import (
        Action,
        Ask,
        Deny,
        EndStep,
        Hint,
        Record,
        Remedy,
        Retry,
        Rewrite,
        Stop,
        WindDown,
    )
    from policyengine.agent import Agent, Model, RequestError
    from policyengine.arguments import ArgumentError, Arguments, validate_arguments
    from policyengine.context import RunView, failed
    from policyengine.decision import Decision, Note, Vote
    from policyengine.engine import Engine
    from policyengine.errors import ConfigError, ExtensionError, PolicyEngineError, StalePolicyError, UsageError
    from policyengine.extension import Extension, OptionProblem, Options, Proof
    from policyengine.forced_call import CallFailure, ForcedResult, force_call
    from policyengine.history.check import HistoryProblem, check_history
    from policyengine.history.cuts import legal_cuts, nearest_cuts
    from policyengine.history.profile import HistoryProfile
    from policyengine.history.repair import HistoryRepair, Repaired, repair_history
    from policyengine.hooks import HOOKS, hookimpl
    from policyengine.hosts.guard import Guard, GuardStopped
    from policyengine.identity import call_identity, masked_fingerprint, raw_fingerprint
    from policyengine.ladder import RUNGS, Ladder, ladder_option, ladder_problems
    from policyengine.mailbox import Mailbox
    from policyengine.messages import (
        Batch,
        Compaction,
        Failure,
        HistoryWarning,
        Iteration,
        Message,
        ModelRequest,
        ModelResponse,
        ProviderError,
        ToolCall,
        ToolError,
        ToolFacts,
        ToolResult,
        ToolSpec,
        Usage,
    )
    from policyengine.outcome import FailedAttempt, Outcome, PeerMessage
    from policyengine.parsing import Form, Verdict, parse_response
    from policyengine.plans import UPDATE_STEP, Plan, Step
    from policyengine.policy.durations import seconds
    from policyengine.prices import NANO, bundled_prices, has_bundled_prices
    from policyengine.providers.errors import classify_provider_error, find_silent_overflow
    from policyengine.responses import ClassifiedResponse, classify_response
    from policyengine.results import Classified, classify_tool_result, tool_result_envelope
    from policyengine.run import Run
    from policyengine.runstate import Conversation, StopReason
    from policyengine.script import Script, ScriptedCall, Turn, batch, call, fail, say
    from policyengine.shared.ledger import Ledger
    from policyengine.shared.pools import Grant, Pool
    from policyengine.status import EngineStatus
    from policyengine.toolset import Tool, Toolset, as_tools

__version__ = "0.1.0"

_HOMES = {
    "Action": "policyengine.actions",
    "Agent": "policyengine.agent",
    "ArgumentError": "policyengine.arguments",
    "Arguments": "policyengine.arguments",
    "Ask": "policyengine.actions",
    "Batch": "policyengine.messages",
    "CallFailure": "policyengine.forced_call",
    "Classified": "policyengine.results",
    "ClassifiedResponse": "policyengine.responses",
    "Compaction": "policyengine.messages",
    "ConfigError": "policyengine.errors",
    "Conversation": "policyengine.runstate",
    "Decision": "policyengine.decision",
    "Deny": "policyengine.actions",
    "EndStep": "policyengine.actions",
    "Engine": "policyengine.engine",
    "EngineStatus": "policyengine.status",
    "Extension": "policyengine.extension",
    "ExtensionError": "policyengine.errors",
    "FailedAttempt": "policyengine.outcome",
    "Failure": "policyengine.messages",
    "ForcedResult": "policyengine.forced_call",
    "Form": "policyengine.parsing",
    "Grant": "policyengine.shared.pools",
    "Guard": "policyengine.hosts.guard",
    "GuardStopped": "policyengine.hosts.guard",
    "HOOKS": "policyengine.hooks",
    "Hint": "policyengine.actions",
    "HistoryProblem": "policyengine.history.check",
    "HistoryProfile": "policyengine.history.profile",
    "HistoryRepair": "policyengine.history.repair",
    "HistoryWarning": "policyengine.messages",
    "Iteration": "policyengine.messages",
    "Ladder": "policyengine.ladder",
    "Ledger": "policyengine.shared.ledger",
    "Mailbox": "policyengine.mailbox",
    "Message": "policyengine.messages",
    "Model": "policyengine.agent",
    "NANO": "policyengine.prices",
    "ModelRequest": "policyengine.messages",
    "ModelResponse": "policyengine.messages",
    "Note": "policyengine.decision",
    "OptionProblem": "policyengine.extension",
    "Options": "policyengine.extension",
    "Outcome": "policyengine.outcome",
    "PeerMessage": "policyengine.outcome",
    "Plan": "policyengine.plans",
    "Pool": "policyengine.shared.pools",
    "PolicyEngineError": "policyengine.errors",
    "Proof": "policyengine.extension",
    "ProviderError": "policyengine.messages",
    "RUNGS": "policyengine.ladder",
    "Record": "policyengine.actions",
    "Remedy": "policyengine.actions",
    "Repaired": "policyengine.history.repair",
    "RequestError": "policyengine.agent",
    "Retry": "policyengine.actions",
    "Rewrite": "policyengine.actions",
    "Run": "policyengine.run",
    "RunView": "policyengine.context",
    "Script": "policyengine.script",
    "ScriptedCall": "policyengine.script",
    "StalePolicyError": "policyengine.errors",
    "Step": "policyengine.plans",
    "Stop": "policyengine.actions",
    "StopReason": "policyengine.runstate",
    "Tool": "policyengine.toolset",
    "ToolCall": "policyengine.messages",
    "ToolError": "policyengine.messages",
    "ToolFacts": "policyengine.messages",
    "ToolResult": "policyengine.messages",
    "ToolSpec": "policyengine.messages",
    "Toolset": "policyengine.toolset",
    "Turn": "policyengine.script",
    "UPDATE_STEP": "policyengine.plans",
    "Usage": "policyengine.messages",
    "UsageError": "policyengine.errors",
    "Verdict": "policyengine.parsing",
    "Vote": "policyengine.decision",
    "WindDown": "policyengine.actions",
    "as_tools": "policyengine.toolset",
    "batch": "policyengine.script",
    "bundled_prices": "policyengine.prices",
    "call": "policyengine.script",
    "call_identity": "policyengine.identity",
    "check_history": "policyengine.history.check",
    "classify_provider_error": "policyengine.providers.errors",
    "classify_response": "policyengine.responses",
    "classify_tool_result": "policyengine.results",
    "fail": "policyengine.script",
    "failed": "policyengine.context",
    "find_silent_overflow": "policyengine.providers.errors",
    "force_call": "policyengine.forced_call",
    "has_bundled_prices": "policyengine.prices",
    "hookimpl": "policyengine.hooks",
    "ladder_option": "policyengine.ladder",
    "ladder_problems": "policyengine.ladder",
    "legal_cuts": "policyengine.history.cuts",
    "masked_fingerprint": "policyengine.identity",
    "nearest_cuts": "policyengine.history.cuts",
    "parse_response": "policyengine.parsing",
    "raw_fingerprint": "policyengine.identity",
    "repair_history": "policyengine.history.repair",
    "say": "policyengine.script",
    "seconds": "policyengine.policy.durations",
    "tool_result_envelope": "policyengine.results",
    "validate_arguments": "policyengine.arguments",
}

__all__ = [
    "HOOKS",
    "NANO",
    "RUNGS",
    "UPDATE_STEP",
    "Action",
    "Agent",
    "ArgumentError",
    "Arguments",
    "Ask",
    "Batch",
    "CallFailure",
    "Classified",
    "ClassifiedResponse",
    "Compaction",
    "ConfigError",
    "Conversation",
    "Decision",
    "Deny",
    "EndStep",
    "Engine",
    "EngineStatus",
    "Extension",
    "ExtensionError",
    "FailedAttempt",
    "Failure",
    "ForcedResult",
    "Form",
    "Grant",
    "Guard",
    "GuardStopped",
    "Hint",
    "HistoryProblem",
    "HistoryProfile",
    "HistoryRepair",
    "HistoryWarning",
    "Iteration",
    "Ladder",
    "Ledger",
    "Mailbox",
    "Message",
    "Model",
    "ModelRequest",
    "ModelResponse",
    "Note",
    "OptionProblem",
    "Options",
    "Outcome",
    "PeerMessage",
    "Plan",
    "PolicyEngineError",
    "Pool",
    "Proof",
    "ProviderError",
    "Record",
    "Remedy",
    "Repaired",
    "RequestError",
    "Retry",
    "Rewrite",
    "Run",
    "RunView",
    "Script",
    "ScriptedCall",
    "StalePolicyError",
    "Step",
    "Stop",
    "StopReason",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolFacts",
    "ToolResult",
    "ToolSpec",
    "Toolset",
    "Turn",
    "Usage",
    "UsageError",
    "Verdict",
    "Vote",
    "WindDown",
    "as_tools",
    "batch",
    "bundled_prices",
    "call",
    "call_identity",
    "check_history",
    "classify_provider_error",
    "classify_response",
    "classify_tool_result",
    "fail",
    "failed",
    "find_silent_overflow",
    "force_call",
    "has_bundled_prices",
    "hookimpl",
    "ladder_option",
    "ladder_problems",
    "legal_cuts",
    "masked_fingerprint",
    "nearest_cuts",
    "parse_response",
    "raw_fingerprint",
    "repair_history",
    "say",
    "seconds",
    "tool_result_envelope",
    "validate_arguments",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'policyengine' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
