"""AmritaCore, and the same run here: a hint inside a batch, signatures of raw text, changes to a plan.

Run it: `python examples/reference_systems/amritacore.py`. The first half of each part is the behaviour as we read it,
written again in our own words; the second half gives the same input to policyengine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from policyengine import (
    Agent,
    Engine,
    Message,
    Outcome,
    Plan,
    Script,
    ScriptedCall,
    Step,
    ToolCall,
    Turn,
    batch,
    check_history,
    legal_cuts,
    repair_history,
    say,
)
from policyengine.plans import ready, update_plan
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.providers.scripted import ScriptedModel

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: demo\n"
TASK = "Compare the three files."

# ---- as it was


def old_history(calls: Sequence[ScriptedCall]) -> list[Message]:
    """Append the results of a batch one by one, and after a failed one at once a hint as the user."""
    asked = tuple(ToolCall(f"c{number}", call.tool, "{}") for number, call in enumerate(calls))
    messages = [Message("user", TASK), Message("assistant", tool_calls=asked)]
    for call, one in zip(calls, asked, strict=True):
        messages.append(Message("tool", call.result, tool_call_id=one.id))
        if call.result.startswith("ERROR"):
            messages.append(Message("user", "A tool failed. Try once more, then change the plan."))
    return messages


def old_compaction(messages: Sequence[Message]) -> list[Message]:
    """Put a summary in the place of all that is before the newest message of the user."""
    newest = max(index for index, message in enumerate(messages) if message.role == "user")
    return [Message("user", "Summary: three files were opened."), *messages[newest:]]


def old_stall(turns: Iterable[Turn], threshold: int = 3) -> tuple[int, int]:
    """Return how many calls ran and how many were cancelled: the last signatures are equal, as raw text."""
    signatures: list[str] = []
    ran = 0
    for turn in turns:
        (call,) = turn.calls
        signatures.append(f"{call.tool}:{call.arguments}")
        ran += len(signatures) < threshold or len(set(signatures[-threshold:])) > 1
    return ran, len(signatures) - ran


def old_update(plan: dict[str, dict[str, Any]], args: dict[str, str]) -> str:
    """Change a plan as far as the arguments make sense, and report success in any case."""
    if args["action"] == "mark_done" and args["id"] in plan:
        plan[args["id"]]["done"] = True
    elif args["action"] == "remove_step":
        plan.pop(args["id"], None)
    return "success"


def old_ready(plan: dict[str, dict[str, Any]]) -> list[str]:
    done = {id for id, step in plan.items() if step["done"]}
    return [id for id, step in plan.items() if not step["done"] and set(step["needs"]) <= done]


# ---- here


def run(policy: str, turns: Iterable[Turn]) -> Outcome:
    engine = Engine(load_policy_text(HEAD + policy, registry=builtin_registry()))
    model = ScriptedModel(Script(TASK, tuple(turns)))
    return Agent(engine, model, model.tools()).run(TASK)


def ended(outcome: Outcome) -> str:
    history = "history broken" if check_history(outcome.messages) else "history valid"
    stop = outcome.stop
    if stop is None:
        return f"{outcome.status}, {outcome.executed} calls run; {history}"
    counted = f"observed {stop.observed:g}, limit {stop.limit:g}"
    return f"{outcome.executed} of {outcome.calls} run, stopped by {stop.rule}: {stop.code} ({counted}); {history}"


def said(messages: Sequence[Message]) -> str:
    return "; ".join(dict.fromkeys(str(problem) for problem in check_history(messages))) or "valid"


def roles(messages: Sequence[Message]) -> str:
    return " ".join(message.role for message in messages)


# ---- the inputs


def look(arguments: str, args: dict[str, int]) -> Turn:
    return Turn((ScriptedCall("look", args, "nothing", arguments=arguments),))


FILES = (
    ScriptedCall("open_a", result="12 lines"),
    ScriptedCall("open_b", result="ERROR: no such file", status="error"),
    ScriptedCall("open_c", result="7 lines"),
)
SPELLINGS = ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', '{"a":1,"b":2}', '{ "b": 2, "a": 1 }', '{"a": 1,"b":2}')
SAME = [look(text, {"a": 1, "b": 2}) for text in SPELLINGS]
CIRCLE = [look('{"page": 1}', {"page": 1}), look('{"page": 2}', {"page": 2})] * 5
STEPS: dict[str, tuple[str, ...]] = {"prices": (), "stock": (), "offer": ("prices", "stock")}
UPDATES = (
    {"action": "mark_done", "id": "price"},
    {"action": "finish", "id": "prices"},
    {"action": "remove_step", "id": "stock"},
    {"action": "mark_done", "id": "prices"},
)
STALL = "extensions: {stall_detector: {with: {repeat: {deny: 3, stop: 4}, cycle: {max_period: 3, deny: 3, stop: 4}}}}\n"


def main() -> None:
    print("AmritaCore\n\n1. Three calls at once, and the second one fails")
    broken = old_history(FILES)
    print(f"   as it was:\n     {roles(broken)}\n     {said(broken)}")
    print(f"     after a compaction: {said(old_compaction(broken))}")
    messages = run("extensions: {failure_hint_injector: {}}\n", [batch(*FILES), say("Done.")]).messages
    cuts = legal_cuts(messages)
    after = "valid" if not any(check_history(messages[cut:]) for cut in cuts) else "broken"
    print(f"   here:\n     {roles(messages)}\n     {said(messages)}; after a cut at any of {cuts}: {after}")
    mended = repair_history(tuple(broken))
    print(f"     the broken one, repaired ({', '.join(item.code for item in mended.repairs)}): {said(mended.messages)}")

    print("\n2. One call in five spellings; two calls in turn")
    for what, turns in (("spellings", SAME), ("in turn", CIRCLE)):
        ran, cancelled = old_stall(turns)
        print(f"   {what}\n     as it was: {ran} run, {cancelled} cancelled\n     here: {ended(run(STALL, turns))}")

    print("\n3. Changes to a plan: a wrong id, an unknown action, a step that another one needs, a good one")
    old = {id: {"needs": needs, "done": False} for id, needs in STEPS.items()}
    reported = [old_update(old, args) for args in UPDATES]
    print(f"   as it was:\n     {', '.join(reported)}")
    print(f"     left: {', '.join(old)}; ready: {', '.join(old_ready(old)) or 'none'}")
    plan = Plan(tuple(Step(id, f"See to {id}.", needs) for id, needs in STEPS.items()))
    codes = []
    for args in UPDATES:
        updated = update_plan(plan, args)
        plan = updated.plan
        codes.append(updated.code or "ok")
    print(f"   here:\n     {', '.join(codes)}")
    print(
        f"     left: {', '.join(step.id for step in plan.steps)}; ready: {', '.join(step.id for step in ready(plan))}"
    )


if __name__ == "__main__":
    main()
