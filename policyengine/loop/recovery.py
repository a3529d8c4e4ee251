"""A request that failed: what the rules want done about it, carried out.

Knows: remedies. Must not know: how failures are classified, which remedy is the right one.
"""

from __future__ import annotations

from policyengine.actions import Remedy, Retry
from policyengine.errors import UsageError
from policyengine.history.compact import PER_TOKEN
from policyengine.loop import compaction, ending
from policyengine.loop.state import Goto, Loop, Next, Wait
from policyengine.messages import Compaction, ModelResponse, ProviderError
from policyengine.providers.errors.overflow import find_silent_overflow
from policyengine.remedies import CHANGES

MAX_RECOVERIES = 12
"""How often an iteration may deal with a failed request; a rule that never gives up must not keep the run alive."""


def ask_rules(loop: Loop) -> Next:
    """Ask the rules what to do about the request that failed; without an opinion the run ends as failed.

    A response that only seems to hide an overflow is then taken as it is.
    """
    state, error = loop.state, loop.state.failing
    if error is None:
        raise UsageError("no request has failed")
    decision = loop.run.after_provider_error(error)
    if ending.ends(decision):
        return ending.end_now(loop, decision)
    if isinstance(decision.control, Retry) and state.recoveries < MAX_RECOVERIES:
        state.recoveries += 1
        return _recover(loop, decision.control.remedy)
    if state.doubtful is not None:
        return Goto.DOUBTFUL
    return ending.finish(loop, "failed", None, error=f"{error.code}: {error.message}")


def _recover(loop: Loop, remedy: Remedy | None) -> Next:
    """Carry out a remedy and send the request again; if it changes nothing, the rules are asked again."""
    state = loop.state
    changed = True
    match remedy:
        case None:
            pass
        case Remedy(name="wait"):
            state.phase = "waiting"
            state.wait_s = remedy.wait_s
            return Wait(remedy.wait_s)
        case Remedy(name="compact"):
            shorter = compaction.start(loop, remedy.compaction or Compaction())
            if shorter is not None:
                return shorter
            changed = False
        case Remedy(name="fallback_model"):
            changed = state.model != remedy.model
            state.model = remedy.model
        case Remedy(name="reduce_max_tokens"):
            changed = state.max_tokens is None or (remedy.max_tokens or 0) < state.max_tokens
            state.max_tokens = remedy.max_tokens
        case Remedy(name="disable_thinking"):
            changed, state.thinking = state.thinking, False
        case _:
            new = CHANGES[remedy.name](state.messages)
            changed = new != state.messages
            state.messages = new
            state.size.reset()
    return Goto.REQUEST if changed else Goto.FAILED


def silent_overflow(loop: Loop, response: ModelResponse) -> ProviderError | None:
    """Return the overflow that a response hides: most of the prompt was dropped, or no room left for an answer."""
    state = loop.state
    window = loop.run.snapshot.policy.model(response.model or state.model).window
    if window is None and response.usage is None:
        return None
    estimate = state.size.update(state.messages) // PER_TOKEN
    return find_silent_overflow(response, estimated_prompt_tokens=estimate, context_window=window)
