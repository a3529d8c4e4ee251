"""The built-in extensions.

Knows: which classes ship with the package, in this one explicit list: it is deterministic and cannot be shadowed by
an installed package.
Must not know: policies, the engine. Every extension uses the public API only and none imports another one.
"""

from .failure_hint_injector import FailureHintInjector
from .repeat_message import RepeatMessage
from .stall_detector import StallDetector
from .step_limit import StepLimit
from .stop_unusable_response_loop import StopUnusableResponseLoop

BUILTIN = (StopUnusableResponseLoop, StallDetector, FailureHintInjector, RepeatMessage, StepLimit)
"""Every built-in extension class, in the order in which they are listed to users."""
