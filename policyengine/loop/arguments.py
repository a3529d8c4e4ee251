"""The arguments of a response's calls against the schemas of their tools, before anything is judged.

Knows: repair requests, attempts. Must not know: schemas, what a valid call does.
"""

from __future__ import annotations

from policyengine.decision import Decision
from policyengine.draft import Draft, check_calls, corrected, repair_notice
from policyengine.errors import UsageError
from policyengine.history import build as history
from policyengine.loop import auxiliary, batch, ending, requests, settings, sharing
from policyengine.loop.state import Goto, Loop, Next
from policyengine.messages import HistoryWarning, ModelRequest, ModelResponse


def check(loop: Loop, draft: Draft) -> Next:
    """Repair arguments where the policy allows it; ask for a correction, ask again, or refuse the calls that remain."""
    state, run = loop.state, loop.run
    parsing = settings.parsing_of(loop, draft.response)
    draft = check_calls(draft, {tool.name: tool for tool in settings.offered(state)}, parsing.arguments)
    if draft.invalid and state.repairs < parsing.repair_calls:
        reserve = sharing.for_request(loop, Goto.REPAIR, draft)
        return _ask_for_repair(loop, draft) if reserve is None else reserve
    if draft.invalid and requests.may_ask_again(loop, draft.response):
        call, hint = draft.first_invalid()
        notice = run.snapshot.templates.render("call.invalid_arguments", {"tool": call.name, "problem": hint})
        return requests.ask_again(loop, draft.response, HistoryWarning("invalid_arguments", notice, {"problem": hint}))
    state.messages.append(history.assistant(draft.response, state.protocol))
    return batch.judge(loop, draft)


def ask_for_repair(loop: Loop) -> Next:
    """Ask for corrected arguments, now that the request is reserved for."""
    draft = sharing.draft_of(loop)
    sharing.for_request(loop, Goto.REPAIR)
    return _ask_for_repair(loop, draft)


def _ask_for_repair(loop: Loop, draft: Draft) -> Next:
    """Send one request that offers only the tool in question; its notice is never stored."""
    loop.state.repairs += 1
    asked = auxiliary.send(loop, repair_request(loop, draft))
    if isinstance(asked, Decision):
        return batch.unused(loop, draft.response, loop.run.stopped(asked))
    loop.state.draft = draft
    return asked


def repair_request(loop: Loop, draft: Draft) -> ModelRequest:
    """Return the request that offers only the tool in question; its notice is never stored."""
    call, hint = draft.first_invalid()
    notice = repair_notice(loop.run.snapshot.templates, call, hint)
    tools = tuple(tool for tool in settings.offered(loop.state) if tool.name == call.name)
    return auxiliary.request(loop, "repair", notice, by="repair", tools=tools, tool_choice=call.name)


def repaired(loop: Loop, response: ModelResponse) -> Next:
    """Take the corrected arguments if they are there; what still does not fit is refused."""
    state, run = loop.state, loop.run
    draft, state.draft = state.draft, None
    if draft is None:
        raise UsageError("no call is being repaired")
    seen = run.after_model_response(response)
    if ending.ends(seen):
        return batch.unused(loop, draft.response, run.stopped(seen))
    return check(loop, corrected(draft, response))


def not_repaired(loop: Loop, draft: Draft) -> Next:
    """No correction is to be had: the calls are refused as they are."""
    loop.state.draft = None
    loop.state.messages.append(history.assistant(draft.response, loop.state.protocol))
    return batch.judge(loop, draft)
