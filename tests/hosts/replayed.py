"""Decisions of a live run against those of `replay` for the same events."""

from __future__ import annotations

import random

from policyengine import call, say
from policyengine.messages import ModelResponse, ToolCall, ToolError, ToolResult
from policyengine.parsing.strict import loads
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, UserSaid, ending
from policyengine.replay import replay

MANY_RULES = """extensions:
  stall_detector:
    with:
      repeat: {hint: 2, deny: 3, stop: 5}
      cycle: {hint: 2, deny: 3, wind_down: 4}
      interleaved: {hint: 3, deny: 4}
  failure_hint_injector: {with: {levels: {hint: 1, deny: 3}}}
  repeat_message: {}
  stop_unusable_response_loop: {with: {max_consecutive_unusable_responses: 3}}
  step_limit: {with: {max_steps: 9, wind_down_at: 8}}
  tool_call_limit: {with: {calls: 7, tools: {b: 4}}}
"""


def some_turns(seed):
    """Return turns of one call each, alike often enough that rules have something to say."""
    chance = random.Random(seed)
    made = [call(chance.choice("aab"), {"n": chance.randrange(2)}, chance.choice("xxy")) for _ in range(12)]
    return (*made, say("done"))


HALTS = ("stop", "wind_down", "end_step", "hand_over")


class Decisions:
    """A sink that keeps what was decided, as `(action, rule, iteration)`."""

    def __init__(self):
        self.found = []

    def __call__(self, report):
        control, number = report.decision.control, report.run.state.iteration
        self.found.extend(("hint", note.rule, number) for note in report.decision.notes)
        if control is not None and report.hook != "after_parse":
            self.found.append((report.decision.ending, report.decision.decided_by, number))

    def until_first_stop(self):
        halts = [at for at, (action, *_) in enumerate(self.found) if action in HALTS]
        return self.found[: halts[0] + 1] if halts else self.found


def recorded(messages):
    """Return chat messages as a recording; `ours` marks what the engine wrote, `status` how a call ended."""
    events = [UserSaid("task")]
    for message in messages[1:]:
        text = message.get("content") or ""
        if message["role"] == "tool":
            status = message["status"]
            error = ToolError("", text) if status in ("denied", "error") else None
            events.append(
                ToolAnswered(message["tool_call_id"], ToolResult(message["tool_call_id"], text, status, error))
            )
        elif message["role"] == "assistant" and not message.get("ours"):
            made = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
            calls = tuple(ToolCall(id, one["name"], one["arguments"], loads(one["arguments"])) for id, one in made)
            events.append(ModelSaid(ModelResponse(text, calls)))
    return Recording("r", "f", "t", tuple(events), ending(tuple(events)))


def assert_as_in_a_replay(decisions, engine, messages):
    """Assert that the live decisions up to the first stop are those of a replay under `engine`."""
    report = replay(recorded(messages), engine)
    told = sorted((entry.action, entry.rule, entry.iteration) for entry in report.interventions)
    assert told == sorted(decisions.until_first_stop())
