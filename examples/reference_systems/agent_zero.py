"""Agent Zero, and the same replies here: its breaker, its repeat check, its reading of a stream.

Run it: `python examples/reference_systems/agent_zero.py`. The first half of each part is the behaviour as we read it,
written again in our own words; the second half gives the same input to policyengine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from policyengine import Agent, Engine, Outcome, Script, check_history, say
from policyengine.parsing import parse_chunks
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.providers.scripted import ScriptedModel, answer_text

WARNING = "Your reply is not the one JSON object that is asked for."
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: demo\nprotocol: text\n"


def ask(tool: str, **args: object) -> str:
    return json.dumps({"tool_name": tool, "tool_args": args})


# ---- as it was


def is_request(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and isinstance(value.get("tool_name"), str) and "tool_args" in value


class OldBreaker:
    """Counts a warning if it reads exactly like the known one, and if the round before had one, too."""

    def __init__(self, limit: int) -> None:
        self.limit, self.count, self.most, self.latest = limit, 0, 0, -1

    def trips(self, warning: str, number: int) -> bool:
        if warning == WARNING and number != self.latest:
            self.count = self.count + 1 if number == self.latest + 1 else 1
            self.most, self.latest = max(self.most, self.count), number
        return self.count >= self.limit


def old_loop(replies: Iterable[str], warning: str = WARNING, limit: int = 3) -> dict[str, int]:
    """Count what became of the replies; `row` is the longest row that the breaker counted."""
    breaker, before = OldBreaker(limit), ""
    seen = {"ran": 0, "refused": 0, "unusable": 0, "row": 0, "stopped": 0}
    for number, reply in enumerate(replies, 1):
        if reply == before:
            seen["refused"] += 1  # the very same bytes as the reply before: warned about, whatever the result was
        elif is_request(reply):
            seen["ran"] += 1
        else:
            seen["unusable"] += 1
            if breaker.trips(warning, number):
                seen["stopped"] = number
                break
        before = reply
    return {**seen, "row": breaker.most}


def old_stream(chunks: Iterable[str]) -> str:
    """Read a stream that is closed as soon as what has come so far is a request."""
    text = ""
    for chunk in chunks:
        text += chunk
        if is_request(text):
            return f"runs {json.loads(text)['tool_args']}"
    return "misformat"


# ---- here


def run(policy: str, replies: Iterable[str], results: Iterable[str] = ()) -> Outcome:
    answers = list(results)

    def look(page: int) -> str:
        """Look at a page."""
        return answers.pop(0) if answers else f"page {page}: nothing new"

    engine = Engine(load_policy_text(HEAD + policy, registry=builtin_registry()))
    script = Script("find it", tuple(say(reply) for reply in replies), protocol="text")
    return Agent(engine, ScriptedModel(script), [look]).run(script.task)


def ended(outcome: Outcome) -> str:
    history = "history broken" if check_history(outcome.messages) else "history valid"
    stop = outcome.stop
    if stop is None:
        return f"{outcome.status}, {outcome.executed} calls run; {history}"
    counted = f"observed {stop.observed:g}, limit {stop.limit:g}"
    return f"stopped in round {stop.iteration} by {stop.rule}: {stop.code} ({counted}); {history}"


# ---- the inputs

PROSE = [f"I will look into it, attempt {number}." for number in range(6)]
ALTERNATING = [reply for number in range(6) for reply in (PROSE[number], ask("look", page=number))]
CIRCLE = [ask("look", page=1), ask("look", page=2)] * 6
WAITING = [ask("look", page=7)] * 3
PROGRESS = ["20 % done", "60 % done", "100 % done"]
STREAMS = {
    "a request and a sentence": (ask("look", page=1), " Then I will report."),
    "two requests": (ask("look", page=1), ask("look", page=2)),
}
BREAKER = """
extensions:
  stop_unusable_response_loop: {with: {max_consecutive_unusable_responses: 3, window: {bad: 4, of: 8}}}
"""
STALL = "extensions: {stall_detector: {with: {repeat: {deny: 3}, cycle: {max_period: 3, deny: 3, stop: 4}}}}\n"


def main() -> None:
    print("Agent Zero\n\n1. Replies that cannot be used, with a usable one between them, and a reworded warning")
    old, reworded = old_loop(ALTERNATING), old_loop(PROSE, WARNING + " Reason: no object.")
    print("   as it was:")
    for what, seen in (("alternating", old), ("reworded", reworded)):
        end = f"stopped in round {seen['stopped']}" if seen["stopped"] else "never stopped"
        print(f"     {what}: {seen['unusable']} unusable, longest row counted {seen['row']}, limit 3: {end}")
    print(f"   here:\n     alternating: {ended(run(BREAKER, ALTERNATING))}")
    print(f"     reworded (in Chinese): {ended(run('language: zh' + BREAKER, PROSE))}")

    print("\n2. A, B, A, B ... goes round in a circle; asking again while a job makes progress does not")
    circle, waiting = old_loop(CIRCLE), old_loop(WAITING)
    print(f"   as it was:\n     circle: {circle['ran']} of {len(CIRCLE)} calls run, {circle['refused']} refused")
    print(f"     job: {waiting['ran']} of {len(WAITING)} calls run, {waiting['refused']} refused")
    print(f"   here:\n     circle: {ended(run(STALL, CIRCLE))}")
    print(f"     job: {ended(run(STALL, [*WAITING, answer_text('ready')], PROGRESS))}")

    print("\n3. One text, cut into pieces in three ways")
    for what, (first, rest) in STREAMS.items():
        cuts = {"whole": [first + rest], "in two": [first, rest], "letters": list(first + rest)}
        print(f"   {what}\n     as it was: " + ", ".join(f"{cut}: {old_stream(cuts[cut])}" for cut in cuts))
        print("     here: " + ", ".join(f"{cut}: {parse_chunks(cuts[cut], tools=['look']).kind}" for cut in cuts))


if __name__ == "__main__":
    main()
