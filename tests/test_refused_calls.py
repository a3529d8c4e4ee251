"""A call that something refuses gives its place back before the next call of the batch is judged."""

from __future__ import annotations

import json

import pytest

from policyengine import Agent, Guard, Script, ScriptedCall, Turn, say
from policyengine.extension import Extension
from policyengine.hooks import hookimpl
from policyengine.messages import Batch, ModelResponse, ToolCall, ToolResult
from policyengine.providers.scripted import ScriptedModel
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, UserSaid
from policyengine.replay import replay, replay_journal
from policyengine.telemetry.journal import JournalWriter
from policyengine.testing import make_engine, play

FINE = [("look", {"page": page}) for page in range(4)]
NEVER = [("shell", {"n": 1}), ("shell", {"n": 2})]
ASKED = [("pay", {"n": 1})]


class Door(Extension):
    """Denies one tool and asks about another."""

    name = "acme.door"
    messages = {"closed.deny": {}, "closed.ask": {}}
    templates = {"en": {"closed.deny": "Closed.", "closed.ask": "May it?"}}

    def answers(self):
        return {"before_tool_call": ("deny", "ask")}

    @hookimpl
    def before_tool_call(self, run, call, batch):
        if call.name == "shell":
            return run.deny("closed")
        return run.ask("closed") if call.name == "pay" else None


def engine(first="acme.door", **limits):
    rules = {"acme.door": {}, "tool_call_limit": {"with": limits or {"calls": 3}}}
    names = [first, *(name for name in rules if name != first)]
    return make_engine({name: rules[name] for name in names}, extensions=[Door])


class Tools:
    def __init__(self):
        self.ran = []

    def functions(self):
        def look(page: int) -> str:
            self.ran.append(page)
            return f"page {page}"

        def shell(n: int) -> str:
            raise AssertionError("it is denied")

        def pay(n: int) -> str:
            self.ran.append("paid")
            return "paid"

        return [look, shell, pay]


def played(made, calls, **options):
    tools = Tools()
    turn = Turn(tuple(ScriptedCall(name, args) for name, args in calls))
    outcome = Agent(made, ScriptedModel(Script("t", (turn, say("done")))), tools.functions(), **options).run("t")
    return tools.ran, outcome


@pytest.mark.parametrize("first", ["acme.door", "tool_call_limit"])
@pytest.mark.parametrize("where", ["before", "between", "behind"])
def test_exactly_as_many_run_as_the_limit_says_whatever_another_rule_refused(first, where):
    order = {"before": NEVER + FINE, "between": FINE[:1] + NEVER + FINE[1:], "behind": FINE + NEVER}[where]
    ran, outcome = played(engine(first), order)
    assert ran == [0, 1, 2]
    said = [message.text for message in outcome.messages if message.role == "tool"]
    over = [text for text in said if "page" not in text and "Closed" not in text]
    # Where two rules refuse, the text is that of the first.
    assert len(over) == (3 if where == "behind" and first == "tool_call_limit" else 1)


def test_the_limit_of_a_tool_gets_its_places_back_too():
    class Even(Door):
        name = "acme.door"

        @hookimpl
        def before_tool_call(self, run, call, batch):
            return run.deny("closed") if (call.args or {}).get("page", 0) % 2 else None

    made = make_engine({"tool_call_limit": {"with": {"tools": {"lo*": 2}}}, "acme.door": {}}, extensions=[Even])
    assert played(made, FINE)[0] == [0, 2]


def test_calls_that_the_loop_itself_refuses_give_their_places_back():
    assert played(engine(), [("serach", {}), ("serach", {"page": 1}), *FINE])[0] == [0, 1, 2]


def test_a_call_about_which_a_human_is_asked_holds_its_place_until_the_answer():
    assert played(engine(), [*ASKED, *FINE], human=lambda question: False)[0] == [0, 1]
    assert sorted(map(str, played(engine(), [*ASKED, *FINE], human=lambda question: True)[0])) == ["0", "1", "paid"]


@pytest.mark.parametrize("refused", [NEVER, [("serach", {})], ASKED], ids=["denied", "unknown", "nobody to ask"])
def test_under_a_host_it_is_the_same(refused):
    tools = Tools()
    functions = {function.__name__: function for function in tools.functions()}
    with Guard(engine(), task="t", tools=functions) as guard:
        guard.ready()
        turn = guard.response("", [*refused, *FINE])
        turn.run(functions)
    assert tools.ran == [0, 1, 2]
    assert [ruling.code for ruling in turn.refused].count("call_limit") == 1


def test_a_host_that_judges_single_calls_has_the_places_back_at_once():
    with Guard(engine(), task="t") as guard:
        allowed = []
        for name, args in [*NEVER, *FINE]:
            ruling = guard.allow(name, args)
            allowed += [args] if ruling.runs else []
            if ruling.runs:
                guard.answer(ruling.call, "x")
    assert len(allowed) == 3


def test_a_run_that_is_saved_within_the_batch_goes_on_with_the_same_places():
    made = engine()
    run = made.start_run()
    run.start("t")
    run.begin_iteration()
    answers = []
    for index, (name, args) in enumerate([*NEVER, *FINE]):
        run = made.resume_run(run.save())[0]
        decision = run.before_tool_call(ToolCall(f"c{index}", name, args=args), Batch("b", index))
        answers.append(decision.action)
    assert answers == ["deny", "deny", "allow", "allow", "allow", "deny"]
    assert decision.control.observed == 3
    for index, (name, args) in enumerate([*NEVER, *FINE]):
        status = "ok" if answers[index] == "allow" else "denied"
        run.after_tool_call(ToolCall(f"c{index}", name, args=args), ToolResult(f"c{index}", "x", status))
    counted = run.state.cells["tool_call_limit"].value
    assert (counted.all.done, counted.all.open, counted.admitted) == (3, 0, {})


def test_a_journal_replays_to_the_same_decisions_also_of_calls_that_the_loop_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    with path.open("w") as file:
        made = engine()
        made.journal = JournalWriter(file)
        assert played(made, [*NEVER, ("serach", {}), *ASKED, *FINE], human=lambda question: True)[0][:1] == ["paid"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["payload"]["code"] for line in lines if line["type"] == "set_aside"] == ["unknown_tool"]
    pairs = list(replay_journal(path, engine()))
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


def test_a_recording_is_judged_in_the_same_way():
    calls = [ToolCall(f"c{index}", name, args=args) for index, (name, args) in enumerate([*NEVER, *FINE[:3]])]
    answered = tuple(ToolAnswered(call.id, ToolResult(call.id, f"x {call.id}")) for call in calls)
    events = (UserSaid("t"), ModelSaid(ModelResponse("", tuple(calls))), *answered, ModelSaid(ModelResponse("done")))
    report = replay(Recording(id="r", source="r", format="f", events=events, ended="final_answer"), engine())
    assert [(one.call, one.rule) for one in report.interventions if one.action == "deny"] == [
        (1, "acme.door"),
        (2, "acme.door"),
    ]


def test_the_view_of_a_rule_names_what_is_refused_and_only_in_the_batch_under_judgement():
    seen = []

    class Looking(Door):
        name = "acme.looking"

        @hookimpl
        def before_tool_call(self, run, call, batch):
            seen.append(dict(run.refused))
            with pytest.raises(TypeError):
                run.refused["x"] = "y"
            return super().before_tool_call(run, call, batch)

    made = make_engine({"acme.looking": {}}, extensions=[Looking])
    seen.clear()  # an extension is tried when it is loaded
    run = made.start_run()
    run.start("t")
    run.begin_iteration()
    for index, name in enumerate(["shell", "look", "look"]):
        run.before_tool_call(ToolCall(f"c{index}", name), Batch("b1", index))
        if index == 1:
            run.set_aside(ToolCall("c1", "look"), "unknown_tool")
    run.before_tool_call(ToolCall("c9", "look"), Batch("b2"))
    assert seen == [{}, {"c0": "shell"}, {"c0": "shell", "c1": "look"}, {}]


@pytest.mark.parametrize("order", [NEVER + FINE, FINE + NEVER], ids=["before", "behind"])
def test_a_pool_that_runs_share_gets_its_places_back_too(order):
    rules = {"acme.door": {}, "team": {"use": "shared_limit", "with": {"counts": "tool_calls", "limit": 3}}}
    turn = Turn(tuple(ScriptedCall(name, args, "x") for name, args in order))
    outcome = play(make_engine(rules, extensions=[Door]), [turn, say("done")]).outcome
    assert outcome.executed == 3
