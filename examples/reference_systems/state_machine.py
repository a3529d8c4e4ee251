"""The state-machine article, and the same outputs here: one counter for all, no limit at all, a loop that is none.

Run it: `python examples/reference_systems/state_machine.py`. The first half of each part is the behaviour as we read
it, written again in our own words; the second half gives the same input to policyengine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from policyengine import Agent, Engine, Outcome, Script, ScriptedCall, Turn, call, check_history, say
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.providers.scripted import ScriptedModel, answer_text

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: demo\nprotocol: text\n"

# ---- as it was


class OldMachine:
    """Steps, one counter for every kind of failure, the last three actions."""

    def __init__(self, results: Iterable[str], max_steps: int = 5, max_failures: int = 3) -> None:
        self.results, self.max_steps, self.max_failures = list(results), max_steps, max_failures
        self.steps = self.failures = 0
        self.actions: list[str] = []
        self.halted = ""

    def step(self, output: str) -> str:
        """Take one output of the model; return why the machine halted, or nothing."""
        self.steps += 1
        if self.steps > self.max_steps:
            self.halted = "steps"
            return self.halted
        try:
            given = json.loads(output)
        except ValueError:
            return self._failed("parsing")
        self.actions.append(given["action"] + json.dumps(given["input"]))
        if len(self.actions) >= 3 and len(set(self.actions[-3:])) == 1:
            self.halted = "loop"
        elif given["action"] == "finish":
            self.halted = "finished"
        elif given["action"] != "look":
            self.failures += 1  # counted, and not compared with the limit
        elif self.results.pop(0).startswith("error"):
            return self._failed("tool")
        return self.halted

    def _failed(self, what: str) -> str:
        self.failures += 1
        if self.failures >= self.max_failures:
            self.halted = f"{what} failures"
        return self.halted


def old_run(turns: Sequence[Turn], max_steps: int = 5) -> str:
    """Give the turns to the machine, written in its format; say where it halted."""
    results = [item.result for turn in turns for item in turn.calls if item.tool == "look"]
    machine = OldMachine(results, max_steps)
    for turn in turns:
        action, args = next(((item.tool, item.args) for item in turn.calls), ("finish", {}))
        written = json.dumps({"action": action, "input": args}) if turn.calls or turn == DONE else turn.text
        if machine.step(written):
            break
    return f"halted at step {machine.steps}: {machine.halted} (counter: {machine.failures}, limit 3)"


# ---- here


def run(policy: str, turns: Sequence[Turn]) -> Outcome:
    """Run the turns through the loop. The only tool is `look`; its results come in the order of the script."""
    items = [item for turn in turns for item in turn.calls if item.tool == "look"]

    def look(page: int) -> str:
        """Look at a page."""
        item = items.pop(0)
        if item.status == "error":
            raise OSError(item.result)
        return item.result

    engine = Engine(load_policy_text(HEAD + policy, registry=builtin_registry()))
    script = Script("find it", tuple(turns), protocol="text")
    return Agent(engine, ScriptedModel(script), [look]).run(script.task)


def ended(outcome: Outcome) -> str:
    history = "history broken" if check_history(outcome.messages) else "history valid"
    stop = outcome.stop
    if stop is None:
        return f"{outcome.status} in round {outcome.iterations}: {outcome.output}; {history}"
    counted = f"observed {stop.observed:g}, limit {stop.limit:g}"
    return f"stopped in round {stop.iteration} by {stop.rule}: {stop.code} ({counted}); {history}"


# ---- the inputs

DONE = say(answer_text("found"))


def prose(number: int) -> Turn:
    return say(f"Let me think, thought {number}.")


def fails(page: int) -> Turn:
    return Turn((ScriptedCall("look", {"page": page}, f"error: no page {page}", "error"),))


def unknown(number: int) -> Turn:
    return call(f"guess_{number}", {"page": number})


ONE_OF_EACH = [prose(1), unknown(1), fails(1), DONE]
THREE_UNREADABLE = [prose(1), prose(2), prose(3), DONE]
ALWAYS_UNKNOWN = [unknown(number) for number in range(60)]
MOVING = [
    call("look", {"page": 7}, "20 %"),
    prose(1),
    call("look", {"page": 7}, "60 %"),
    call("look", {"page": 7}, "ok"),
]
STANDING = [call("look", {"page": 7}, "20 %")] * 4
COUNTERS = """
extensions:
  parse_failures: {with: {stop: 3}}
  unknown_tools: {with: {stop: 3}}
  tool_failures: {with: {stop: 3}}
  step_limit: {with: {max_steps: 50}}
"""
STALL = "extensions: {stall_detector: {with: {repeat: {deny: 3, stop: 4}}}}\n"
PARTS: dict[str, tuple[str, int, dict[str, list[Turn]]]] = {
    "1. One reply that cannot be read, one unknown tool, one failure of a tool": (
        COUNTERS,
        5,
        {"one of each": ONE_OF_EACH, "three unreadable": THREE_UNREADABLE},
    ),
    "2. A model that makes up tools, with 50 steps allowed": (COUNTERS, 50, {"unknown tools": ALWAYS_UNKNOWN}),
    "3. The same call three times, a reply that cannot be read in between": (
        STALL,
        5,
        {"a job that moves": [*MOVING, DONE], "a job that stands still": [*STANDING, DONE]},
    ),
}


def main() -> None:
    print("The state-machine article")
    for title, (policy, max_steps, inputs) in PARTS.items():
        print(f"\n{title}")
        for name, turns in inputs.items():
            print(f"   {name}\n     as it was: {old_run(turns, max_steps)}\n     here: {ended(run(policy, turns))}")


if __name__ == "__main__":
    main()
