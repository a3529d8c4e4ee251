"""A response on its way: judged as it came, read, judged as it was read, and handed to what follows from it.

Knows: verdicts, what each of them leads to. Must not know: how text becomes a verdict (`parsing`), tools.
"""

from __future__ import annotations

from typing import Any

import msgspec

from policyengine.actions import Retry, Rewrite
from policyengine.decision import Decision, Note
from policyengine.draft import Draft
from policyengine.errors import UsageError
from policyengine.history import build as history
from policyengine.loop import arguments, batch, ending, recovery, requests, settings, steps
from policyengine.loop.state import Goto, Loop, Next
from policyengine.messages import HistoryWarning, ModelResponse
from policyengine.parsing.guess import as_parsed, settle_guess
from policyengine.parsing.notation import examples_of
from policyengine.parsing.parse import parse_response
from policyengine.parsing.verdict import ANSWERED, FALLBACK, WARNING_KINDS, Verdict
from policyengine.providers.errors.overflow import INFERRED
from policyengine.runstate import StopReason


def hear(loop: Loop, response: ModelResponse) -> Next:
    """Let a response be judged as it came, and look whether it hides that the request was too long."""
    run = loop.run
    response = history.with_ids(response, run.state.iteration)
    seen = run.after_model_response(response)
    if ending.ends(seen):
        return batch.unused(loop, response, run.stopped(seen))
    if isinstance(seen.control, Retry):
        return _retry(loop, response, seen.message)
    hidden = recovery.silent_overflow(loop, response)
    if hidden is None:
        return read(loop, response)
    # Where the provider does not say so itself, the overflow is inferred, and an inference must not end a run.
    loop.state.doubtful = response if hidden.message in INFERRED else None
    loop.state.failing = hidden
    return Goto.FAILED


def read_doubtful(loop: Loop) -> Next:
    """Take a response that only seemed to hide an overflow as it is."""
    response, loop.state.doubtful = loop.state.doubtful, None
    if response is None:
        raise UsageError("no response is in doubt")
    loop.state.failing = None
    return read(loop, response)


def read(loop: Loop, response: ModelResponse) -> Next:
    """Read a response, let the reading be judged, and act on it."""
    state, run = loop.state, loop.run
    response, verdict = _parsed(loop, response)
    decision = run.after_parse(verdict)
    verdict = decision.changed or verdict
    if ending.ends(decision):
        return batch.unused(loop, response, run.stopped(decision))
    if isinstance(decision.control, Retry):
        return _retry(loop, response, decision.message)
    ending.wind_down(loop, decision, run.state.iteration)
    if verdict.reason != FALLBACK:
        state.last_text = verdict.text or state.last_text
    if not verdict.usable:
        return _unreadable(loop, response, verdict)
    if verdict.final and verdict.reason in (ANSWERED, FALLBACK):
        return _answered_for(loop, decision, verdict)
    if verdict.final and not verdict.text.strip():
        return _unusable(loop, _without_calls(response), "empty", _problem(loop, response, "nothing_left"))
    if verdict.final:
        state.messages.append(history.assistant(_without_calls(response), state.protocol))
        return _say(loop, verdict.text)
    if decision.changed is not None and state.protocol == "native":
        response, verdict = _as_rewritten(loop, response, verdict)
    _note_recovery(loop, response, verdict)
    return arguments.check(loop, Draft(response, verdict))


def _answered_for(loop: Loop, decision: Decision, verdict: Verdict) -> Next:
    """End with what a tool said already, or with the words of a rule; the history holds neither as said by the model.

    Words that are not the model's are never reported without the rule that said them.
    """
    reason = _rewriter(loop, decision) if verdict.reason == FALLBACK else None
    text = loop.state.last_text if verdict.reason == ANSWERED else verdict.text
    return _say(loop, text, reason)


def _say(loop: Loop, text: str, reason: StopReason | None = None) -> Next:
    """Take a text without calls for what it is: the end of a step where there is a plan, else the answer of the run."""
    if loop.state.plan is not None:
        return steps.answered(loop, loop.state.plan, text, reason)
    return ending.answer(loop, text, reason)


def _rewriter(loop: Loop, decision: Decision) -> StopReason | None:
    """Return whose rewrite counted, as a reason; `None` where no rule but the parser gave the verdict."""
    votes = ((vote, action) for vote in decision.votes for action in vote.effective if isinstance(action, Rewrite))
    vote, action = next(votes, (None, None))
    if vote is None or action is None:
        return None
    reason = StopReason(
        code=action.code,
        rule=vote.rule,
        at=vote.at,
        action=action.name,
        observed=action.observed,
        limit=action.limit,
        iteration=loop.run.state.iteration,
    )
    loop.run.tell_stop(reason)
    return reason


def _note_recovery(loop: Loop, response: ModelResponse, verdict: Verdict) -> None:
    """Tell the model that its call had to be found amid prose; once, until a clean call breaks the streak."""
    if verdict.guess and not loop.state.recovered:
        forms = examples_of(settings.parsing_of(loop, response).forms)
        text = loop.run.snapshot.templates.render("recovered", {"protocol": loop.state.protocol, "forms": forms})
        loop.run.queue_note(Note("parsing", "recovered", text))
    loop.state.recovered = verdict.guess


def _without_calls(response: ModelResponse) -> ModelResponse:
    """Return a final answer without the calls that a rule took out of it: nobody would answer them."""
    return msgspec.structs.replace(response, tool_calls=(), raw=None) if response.tool_calls else response


def _as_rewritten(loop: Loop, response: ModelResponse, verdict: Verdict) -> tuple[ModelResponse, Verdict]:
    """Store the calls that a rule put into the verdict, under ids of their own, so that each gets its answer."""
    if verdict.calls == response.tool_calls:
        return response, verdict
    changed = msgspec.structs.replace(response, tool_calls=verdict.calls, raw=None)
    changed = history.with_ids(changed, loop.run.state.iteration)
    names = {tool.name for tool in settings.offered(loop.state)}
    unknown = tuple(call.id for call in changed.tool_calls if call.name not in names)
    return changed, msgspec.structs.replace(verdict, calls=changed.tool_calls, unknown=unknown)


def _parsed(loop: Loop, response: ModelResponse) -> tuple[ModelResponse, Verdict]:
    """Return the response as history keeps it, and the verdict that is acted on."""
    state, run = loop.state, loop.run
    parsing = settings.parsing_of(loop, response)
    schemas = {tool.name: tool.parameters for tool in settings.offered(state)}
    verdict = parse_response(
        response,
        protocol=state.protocol,
        tools=schemas,
        mode=parsing.mode,
        text_fallback=parsing.text_fallback,
        forms=parsing.forms,
    )
    verdict = settle_guess(verdict, lambda name: run.snapshot.tool(name).effect)
    if state.protocol == "text":
        return response, verdict
    return as_parsed(response, verdict, f"call-{run.state.iteration}-")


def _retry(loop: Loop, response: ModelResponse, notice: str) -> Next:
    """Ask again within the iteration; once the cap is reached, the response is unusable."""
    if not requests.may_ask_again(loop, response):
        return _unusable(loop, response, "misformat", _problem(loop, response, "retries_exhausted"))
    return requests.ask_again(loop, response, HistoryWarning("retry", notice))


def _unreadable(loop: Loop, response: ModelResponse, verdict: Verdict) -> Next:
    """Ask again within the iteration, as often as the policy allows; then the response is unusable.

    The parse retry of the envelope article: the parser's own words and what was sent go with the request, on top of
    the whole history instead of in its place.
    """
    kind, data = WARNING_KINDS[verdict.kind], _problem(loop, response, verdict.reason)
    if not requests.may_ask_again(loop, response):
        return _unusable(loop, response, kind, data)
    variables = {"protocol": loop.state.protocol, "forms": (), **data}
    notice = loop.run.snapshot.templates.render(f"warning.{kind}", variables)
    return requests.ask_again(loop, response, HistoryWarning(kind, notice, data))


def _problem(loop: Loop, response: ModelResponse, reason: str) -> dict[str, Any]:
    """Return the data of a warning: the reason, and how a reply has to look where the policy declares it."""
    forms = settings.parsing_of(loop, response).forms if loop.state.protocol == "text" else ()
    return {"reason": reason, "forms": examples_of(forms)} if forms else {"reason": reason}


def _unusable(loop: Loop, response: ModelResponse, kind: str, data: dict[str, Any]) -> Next:
    """Keep the response in history, warn about it by kind, run nothing."""
    state, run = loop.state, loop.run
    warning, decision = run.add_warning(kind, data)
    state.messages += history.unusable(response, state.protocol, warning)
    if ending.ends(decision):
        state.ending = run.stopped(decision)
    return batch.end_iteration(loop, 0, False)
