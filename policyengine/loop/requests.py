"""The request for the next response: built, judged, sent, and sent once more where the answer was of no use.

Knows: attempts, what goes with a request and is never stored. Must not know: responses, auxiliary requests.
"""

from __future__ import annotations

from policyengine.history import build as history
from policyengine.loop import compaction, ending, settings, sharing
from policyengine.loop.state import CallModel, Goto, Loop, Next
from policyengine.messages import HistoryWarning, ModelRequest, ModelResponse
from policyengine.outcome import FailedAttempt

KEPT_ATTEMPTS = 20
"""How many failed attempts an outcome holds; the journal holds all."""


def send(loop: Loop) -> Next:
    """Build the next request, let it be judged, and send it."""
    state = loop.state
    reserve = sharing.for_request(loop, Goto.REQUEST)
    if reserve is not None:
        return reserve
    ending.flush_notes(loop)
    state.changes = state.doubtful = state.failing = None
    state.attempt += 1
    decision = loop.run.before_model_call(build(loop))
    if ending.ends(decision):
        sharing.unsent(loop)
        return ending.end_now(loop, decision)
    ending.wind_down(loop, decision, loop.run.state.iteration - 1)
    ending.flush_notes(loop)
    wanted = decision.changed.compaction if decision.changed is not None else None
    if wanted is not None and state.compacted_in != loop.run.state.iteration:
        shorter = compaction.start(loop, wanted)
        if shorter is not None:
            return shorter
    state.phase = "model"
    state.changes = decision.changed
    return CallModel(build(loop))


def build(loop: Loop) -> ModelRequest:
    """Return the request for the model's next response, as the rules left it."""
    state = loop.state
    source = state.changes or state
    messages = (*settings.passed(loop, state.messages, source.model), *state.aside)
    return ModelRequest(
        messages,
        source.tools,
        state.attempt,
        "main",
        source.model,
        max_tokens=state.max_tokens,
        thinking=state.thinking,
    )


def may_ask_again(loop: Loop, response: ModelResponse) -> bool:
    """Return whether the policy permits one more attempt in this iteration."""
    return loop.state.asked_again < settings.parsing_of(loop, response).max_retry


def ask_again(loop: Loop, response: ModelResponse, problem: HistoryWarning) -> Next:
    """Make one more attempt. The failed one goes with it, and with it only: history never holds it."""
    state, iteration = loop.state, loop.run.state.iteration
    state.failed.append(FailedAttempt(iteration, state.attempt, problem.kind, problem.data, response))
    del state.failed[:-KEPT_ATTEMPTS]
    state.asked_again += 1
    state.aside = tuple(history.unusable(response, state.protocol, problem))
    return Goto.REQUEST
