"""The built-in extensions.

Knows: which classes ship with the package, in this one explicit list: it is deterministic and cannot be shadowed by
an installed package.
Must not know: policies, the engine. Every extension uses the public API only and none imports another one.
"""

from .context_compaction import ContextCompaction
from .cost_budget import CostBudget
from .empty_response import EmptyResponse
from .failure_hint_injector import FailureHintInjector
from .parse_failures import ParseFailures
from .provider_recovery import ProviderRecovery
from .repeat_message import RepeatMessage
from .stall_detector import StallDetector
from .step_limit import StepLimit
from .stop_unusable_response_loop import StopUnusableResponseLoop
from .token_budget import TokenBudget
from .tool_call_limit import ToolCallLimit
from .tool_failures import ToolFailures
from .tool_timeout import ToolTimeout
from .unknown_tools import UnknownTools
from .wall_clock import WallClock

BUILTIN = (
    StopUnusableResponseLoop,
    StallDetector,
    FailureHintInjector,
    RepeatMessage,
    StepLimit,
    ToolCallLimit,
    TokenBudget,
    CostBudget,
    WallClock,
    ParseFailures,
    ToolFailures,
    UnknownTools,
    ToolTimeout,
    ProviderRecovery,
    ContextCompaction,
    EmptyResponse,
)
"""Every built-in extension class, in the order in which they are listed to users."""
