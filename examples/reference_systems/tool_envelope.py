"""The tool-envelope article, and the same model here: polling, re-asking, what a re-asked model gets to see.

Run it: `python examples/reference_systems/tool_envelope.py`. The first half of each part is the behaviour as we read
it, written again in our own words; the second half gives the same input to policyengine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from policyengine import (
    Agent,
    Engine,
    Message,
    ModelRequest,
    ModelResponse,
    Outcome,
    Script,
    ScriptedCall,
    Turn,
    Usage,
    call,
    check_history,
    say,
)
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.providers.scripted import ScriptedModel

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: demo\n"
TASK = "Wait for job 7, then say how it ended."


class Heard:
    """The scripted model, with every request that it was sent."""

    name = "scripted"

    def __init__(self, turns: Iterable[Turn], protocol: str = "native") -> None:
        self.inner = ScriptedModel(Script(TASK, tuple(turns), protocol=protocol))
        self.requests: list[ModelRequest] = []

    def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        return self.inner.complete(request)


# ---- as it was


def old_polling(calls: Iterable[tuple[str, dict[str, int]]], results: Iterable[str]) -> list[str]:
    """Run calls until one has the name and arguments of the one before it; return what happened."""
    happened: list[str] = []
    before = ""
    for (tool, args), result in zip(calls, results, strict=True):
        signature = tool + json.dumps(args, sort_keys=True)
        if signature == before:
            return [*happened, "stop: same_tool"]
        happened.append(result)
        before = signature
    return happened


def old_steps(model: Heard, max_steps: int = 4, max_retry: int = 2) -> list[str]:
    """Take steps; ask again inside a step, with the error and the raw text alone. Return the reasons to stop."""
    for _ in range(max_steps):
        messages: tuple[Message, ...] = (Message("system", "Answer as JSON."), Message("user", TASK))
        for _ in range(1 + max_retry):
            text = model.complete(ModelRequest(messages)).text
            try:
                json.loads(text)
                break
            except ValueError as error:
                messages = (Message("user", f"Not JSON: {error}. You wrote: {text!r}. Send JSON only."),)
        else:
            return ["parse_exhausted"]
    return []


# ---- here


def run(policy: str, model: Heard, results: Sequence[str] = ()) -> Outcome:
    answers = list(results)

    def check_job(id: int) -> str:
        """Say how far a job is."""
        return answers.pop(0) if answers else "queued"

    engine = Engine(load_policy_text(HEAD + policy, registry=builtin_registry()))
    return Agent(engine, model, [check_job]).run(TASK)


def ended(outcome: Outcome) -> str:
    history = "history broken" if check_history(outcome.messages) else "history valid"
    stop = outcome.stop
    if stop is None:
        return f"{outcome.status}: {outcome.output} ({outcome.executed} calls run; {history})"
    counted = f"observed {stop.observed:g}, limit {stop.limit:g}"
    return f"stopped in round {stop.iteration} by {stop.rule}: {stop.code} ({counted}); {history}"


# ---- the inputs

MOVING = ["queued", "running 40 %", "running 80 %", "done"]
STUCK = ["queued"] * 9
POLLS = [call("check_job", {"id": 7})] * 9
USED = Usage(100, 20, 120)
CLUMSY = [
    turn
    for number in range(4)
    for turn in (
        say(f"First I think about job {number}.", usage=USED),
        say(f"Then I think about it again, job {number}.", usage=USED),
        Turn((ScriptedCall("check_job", {"id": number}),), usage=USED),
    )
]
POLLING = """
tools: {check_job: {effect: poll}}
extensions: {stall_detector: {with: {poll: {hint: 4, deny: 6, stop: 7}}}}
"""
NO_RETRY = "protocol: text\nextensions: {step_limit: {with: {max_steps: 4}}}\n"
BUDGET = """
protocol: text
parsing: {max_retry: 2}
extensions: {step_limit: {with: {max_steps: 4}}, token_budget: {with: {run: 960}}}
"""


def main() -> None:
    print("The tool-envelope article\n\n1. Asking a job how far it is, again and again")
    calls = [("check_job", {"id": 7})]
    print("   as it was:")
    print(f"     a job that moves: {', '.join(old_polling(calls * len(MOVING), MOVING))}")
    print(f"     a job that is stuck: {', '.join(old_polling(calls * len(STUCK), STUCK))}")
    moving, stuck = Heard([*POLLS[: len(MOVING)], say("It is done.")]), Heard(POLLS)
    print("   here:")
    print(f"     a job that moves: {ended(run(POLLING, moving, MOVING))}")
    print(f"     a job that is stuck: {ended(run(POLLING, stuck))}")

    print("\n2. Every step needs three attempts; 4 steps are allowed")
    old, plain, budget = (Heard(CLUMSY, "text") for _ in range(3))
    reasons = old_steps(old)
    print(f"   as it was:\n     {len(old.requests)} requests; reasons to stop: {', '.join(reasons) or 'none given'}")
    print(f"   here, where nothing is asked again unless the policy says so:\n     {ended(run(NO_RETRY, plain))}")
    print(f"     {len(plain.requests)} requests")
    outcome = run(BUDGET, budget)
    print("   here, with two more attempts in a round and a budget of tokens:")
    print(f"     {ended(outcome)}\n     {len(budget.requests)} requests, each of 120 tokens")

    print("\n3. What the model sees when it is asked again")
    for title, model in (("as it was", old), ("here", budget)):
        again = model.requests[1].messages
        task = "with the task" if any(TASK in message.text for message in again) else "without the task"
        print(f"   {title}:\n     {task}; roles: {', '.join(message.role for message in again)}")
    kept = [message.text for message in outcome.messages if message.role == "assistant"]
    failed = [attempt.response.text for attempt in outcome.failed_attempts]
    print(f"     {len(failed)} failed attempts, {len(set(failed) & set(kept))} of them kept in the history")


if __name__ == "__main__":
    main()
