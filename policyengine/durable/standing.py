"""How a run stands where nobody works on it, and how it ends if nobody is to.

Knows: saved runs, the loop's state as plain data. Must not know: engines, drivers, whose run it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from policyengine.durable.record import STATES, Head, read_messages, read_results
from policyengine.errors import UsageError
from policyengine.history import build as history
from policyengine.loop.state import LoopState
from policyengine.messages import Message, ToolError, ToolResult
from policyengine.outcome import Outcome
from policyengine.run import read_driver, read_saved
from policyengine.runstate import Conversation, RunState
from policyengine.stores import StoreError, Values
from policyengine.templates import Templates


class Standing(msgspec.Struct, frozen=True):
    """What is kept of a run beside its head. `results` are those of calls under way, by their place in the batch."""

    run: RunState
    conversation: Conversation
    loop: LoopState
    messages: tuple[Message, ...]
    results: dict[int, ToolResult]


def read_standing(values: Values, head: Head, messages: Sequence[Message] | None = None) -> Standing | None:
    """Return how a run stands, or `None` if it had not begun; with `messages`, if they were read before.

    Raises StoreError.
    """
    body = values.get(STATES, head.run_id)
    if body is None:
        return None
    try:
        saved = read_saved(body)
        loop = read_driver(saved.loop, LoopState)
    except UsageError as error:
        raise StoreError(f"the state of run {head.run_id!r} cannot be read: {error}") from error
    results = read_results(values, head, len(loop.pending))
    found = messages if messages is not None else read_messages(values, head)
    return Standing(saved.state, saved.conversation, loop, tuple(found), results)


def given_up(standing: Standing | None, why: str) -> Outcome:
    """Return the outcome of a run that nobody goes on with; every call in its history is answered, truthfully.

    No rule is asked, so that it works without the policy, and the texts are those of the engine itself.
    """
    if standing is None:
        return Outcome("cancelled", error=why)
    loop, run = standing.loop, standing.run
    started = sum(item.result is None for item in loop.pending) if loop.phase == "tools" else 0
    return Outcome(
        status="cancelled",
        output=loop.last_text,
        error=why,
        iterations=loop.rounds,
        calls=run.calls,
        executed=loop.executed + started,
        interventions=run.interventions,
        prompt_tokens=loop.prompt_tokens,
        completion_tokens=loop.completion_tokens,
        messages=(*standing.messages, *_answers(standing)),
        failed_attempts=tuple(loop.failed),
        plan=loop.plan,
        undelivered=tuple(loop.inbox),
    )


def given_up_unread(messages: Sequence[Message], why: str) -> Outcome:
    """Return the outcome of a run whose state cannot be read: of its calls nothing is known but what was said."""
    from policyengine.history.repair import repair_history

    mended = repair_history(messages).messages
    whole = [*messages] == [*mended[: len(messages)]]
    return Outcome("cancelled", error=why, messages=tuple(mended if whole else messages))


def _answers(standing: Standing) -> Iterator[Message]:
    """Answer the calls of the batch under way, so that the history can be that of another run."""
    loop = standing.loop
    for place, item in enumerate(loop.pending):
        if item.answered:
            continue
        result = item.result or standing.results.get(place)
        if result is None:
            began = loop.phase == "tools" or item.unknown
            kind = "interrupted" if began else "cancelled"
            text = Templates().render(kind, {"tool": item.call.name})
            error = ToolError(kind, text, False)
            result = ToolResult(item.call.id, text, "error" if began else "not_run", error)
        yield history.tool(item.call, result, loop.protocol)
