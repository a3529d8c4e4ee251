"""A run with a plan: steps in order, updates by the model, boundaries where notes and messages come in."""

import json

import msgspec
import pytest

from policyengine import (
    Agent,
    Engine,
    Extension,
    Mailbox,
    ModelResponse,
    Turn,
    Usage,
    UsageError,
    batch,
    call,
    hookimpl,
    say,
)
from policyengine.plans import Plan, Step
from policyengine.policy.model import Planning
from policyengine.providers.scripted import ScriptedModel
from policyengine.script import Script, ScriptedCall
from policyengine.testing import ListedRegistry, ManualClock, assert_valid, policy, rule

TWO = Plan((Step("find", "Find the tide table."), Step("tell", "Tell the tide.", ("find",))))


class Checking(ScriptedModel):
    """A scripted model that keeps its requests and refuses an invalid history."""

    def __init__(self, *turns):
        super().__init__(Script("t", turns))
        self.requests = []

    def complete(self, request):
        assert_valid(request.messages)
        self.requests.append(request)
        return super().complete(request)


def look(page: int = 1) -> str:
    """Look at a page."""
    return f"page {page}"


def planned(**settings):
    return msgspec.structs.replace(policy(), plan=Planning("steps", **{"decompose": False, **settings}))


def work(made, *turns, registry=None, **options):
    model = Checking(*turns)
    agent = Agent(Engine(made, registry=registry or ListedRegistry(), clock=ManualClock()), model, [look])
    return model, agent.run("Tell me the tide.", **options)


def done(step="", result="ok"):
    return call("update_step", {"action": "mark_done", **({"id": step} if step else {}), "result": result})


def notes(messages, rule="plan"):
    return [message.text for message in messages if message.origin == f"rule:{rule}"]


def test_steps_are_taken_in_order_and_the_last_answer_is_that_of_the_run():
    model, outcome = work(planned(), call("look"), done(), say("High at noon."), plan=TWO)
    assert (outcome.status, outcome.output) == ("completed", "High at noon.")
    assert [(step.id, step.state) for step in outcome.plan.steps] == [("find", "done"), ("tell", "done")]
    assert "update_step" in [tool.name for tool in model.requests[0].tools]
    assert len(notes(outcome.messages)) == 2  # the plan, and the plan again after it changed


def test_a_text_ends_the_step_it_belongs_to():
    _, outcome = work(planned(), say("Found it."), say("High at noon."), plan=TWO)
    assert (outcome.output, outcome.iterations) == ("High at noon.", 2)
    assert [step.result for step in outcome.plan.steps] == ["Found it.", "High at noon."]


def test_the_plan_is_shown_only_when_it_changed_and_only_between_steps():
    add = call("update_step", {"action": "add_step", "id": "check", "description": "Check it."})
    model, _ = work(planned(), call("look"), add, call("look", {"page": 2}), done(), say("a"), say("b"), plan=TWO)
    seen = [len(notes(request.messages)) for request in model.requests]
    assert seen == [1, 1, 1, 1, 2, 3]


def test_an_invalid_update_is_an_error_result_and_changes_nothing():
    wrong = call("update_step", {"action": "remove_step", "id": "find"})
    _, outcome = work(planned(), wrong, done(), say("x"), plan=TWO)
    refused, accepted = (message.text for message in outcome.messages if message.role == "tool")
    assert "current" in refused
    assert json.loads(accepted)["revision"] == 2
    assert len(outcome.plan.steps) == 2


def test_without_a_plan_of_its_own_the_task_is_one_step():
    _, outcome = work(planned(), call("look"), say("High at noon."))
    assert [(step.id, step.state) for step in outcome.plan.steps] == [("task", "done")]


def test_the_model_writes_the_plan_first():
    steps = [{"id": "a", "description": "First."}, {"id": "b", "description": "Second.", "depends_on": ["a"]}]
    model, outcome = work(planned(decompose=True), call("set_plan", {"steps": steps}), say("one"), say("two"))
    first = model.requests[0]
    assert (first.purpose, first.tool_choice, [tool.name for tool in first.tools]) == ("plan", "set_plan", ["set_plan"])
    assert [step.id for step in outcome.plan.steps] == ["a", "b"]
    assert outcome.output == "two"
    assert not any("set_plan" in message.text for message in outcome.messages)  # the request for it is not stored


@pytest.mark.parametrize("turn", [say("I would rather not."), say(""), call("set_plan", {"steps": []})])
def test_without_a_usable_plan_the_task_is_one_step(turn):
    _, outcome = work(planned(decompose=True), turn, say("High at noon."))
    assert [step.id for step in outcome.plan.steps] == ["task"]
    assert outcome.output == "High at noon."


class EndsSteps(Extension):
    """Ends the step at a given iteration."""

    name = "ends_steps"
    options = {"at": {"type": "integer", "min": 1, "max": 9, "default": 1}}
    messages = {"enough.end_step": {}}
    templates = {"en": {"enough.end_step": "Enough."}}

    @hookimpl
    def after_iteration(self, run, iteration):
        """End the step."""
        return run.end_step("enough") if iteration.number == self.options.at else None


class Endings(Extension):
    """Ends the run at step starts, counting them."""

    name = "counts_steps"
    seen: list[int] = []

    @hookimpl
    def step_start(self, run, step):
        """Note the step."""
        self.seen.append(step)

    @hookimpl
    def step_end(self, run, step):
        """Note its end."""
        self.seen.append(-step)


def test_a_rule_that_ends_a_step_fails_it_and_the_next_one_that_can_begin_does():
    plan = Plan((Step("a", "One."), Step("b", "Two."), Step("c", "Three.", ("a",))))
    made = msgspec.structs.replace(policy(rule("ends_steps", {"at": 1})), plan=Planning("steps", decompose=False))
    _, outcome = work(made, call("look"), say("b is done"), registry=ListedRegistry(EndsSteps, trusted=True), plan=plan)
    assert [step.state for step in outcome.plan.steps] == ["failed", "done", "blocked"]
    assert (outcome.status, outcome.output) == ("completed", "b is done")


def test_a_rule_that_ends_the_last_step_ends_the_run():
    made = msgspec.structs.replace(policy(rule("ends_steps", {"at": 1})), plan=Planning("steps", decompose=False))
    _, outcome = work(made, call("look"), registry=ListedRegistry(EndsSteps, trusted=True))
    assert (outcome.status, outcome.stop.code, outcome.stop.action) == ("stopped", "enough", "end_step")
    assert [step.state for step in outcome.plan.steps] == ["failed"]


def test_hooks_hear_of_every_step():
    made = msgspec.structs.replace(policy(rule("counts_steps")), plan=Planning("steps", decompose=False))
    work(made, done(), say("x"), registry=ListedRegistry(Endings, trusted=True), plan=TWO)
    assert Endings.seen[-4:] == [1, -1, 2, -2]  # before that the self-test called the hooks


def test_a_step_that_ended_without_a_result_is_summed_up():
    quiet = call("update_step", {"action": "mark_done"})
    model, outcome = work(planned(summaries=True), quiet, say("Table 7, page 3."), say("High at noon."), plan=TWO)
    assert [request.purpose for request in model.requests] == ["main", "step_summary", "main"]
    assert outcome.plan.steps[0].result == "Table 7, page 3."
    assert "Table 7" not in "".join(message.text for message in outcome.messages if message.role == "assistant")


@pytest.mark.parametrize("turn", [say(""), Turn(text="cut", finish_reason="length"), call("look")])
def test_a_summary_that_is_none_is_replaced_by_a_sentence(turn):
    quiet = call("update_step", {"action": "mark_done"})
    _, outcome = work(planned(summaries=True), quiet, turn, say("High at noon."), plan=TWO)
    assert outcome.plan.steps[0].result.startswith('Step "find"')
    assert outcome.output == "High at noon."


def test_messages_of_peers_come_in_where_a_step_begins_and_are_never_lost():
    mailbox = Mailbox()
    mailbox.post("scout", "The pier is closed.")

    class Busy(Checking):
        def complete(self, request):
            if len(self.requests) == 1:
                mailbox.post("scout", "It is open again.")
            if len(self.requests) == 3:
                mailbox.post("scout", "Too late.")
            return super().complete(request)

    model = Busy(call("look"), call("look", {"page": 2}), done(), say("High at noon."))
    agent = Agent(Engine(planned(), registry=ListedRegistry(), clock=ManualClock()), model, [look])
    outcome = agent.run("Tell me the tide.", plan=TWO, mailbox=mailbox)
    heard = [sum(message.origin == "peer:scout" for message in request.messages) for request in model.requests]
    assert heard == [1, 1, 1, 2]
    assert [message.text for message in outcome.undelivered] == ["Too late."]
    assert len(mailbox) == 0


def test_a_mailbox_refuses_what_nobody_could_read_or_fetch():
    mailbox = Mailbox()
    with pytest.raises(UsageError, match="empty"):
        mailbox.post("a", " ")
    for number in range(1_000):
        mailbox.post("a", str(number))
    with pytest.raises(UsageError, match="fetches"):
        mailbox.post("a", "one more")
    assert [message.text for message in mailbox.take()] == [str(number) for number in range(1_000)]


def test_a_run_with_a_plan_saved_anywhere_goes_on():
    turns = (
        call("set_plan", {"steps": [{"id": "a", "description": "One."}, {"id": "b", "description": "Two."}]}),
        call("look"),
        call("update_step", {"action": "mark_done"}),
        say("summary"),
        batch(ScriptedCall("look", {"page": 3}), ScriptedCall("update_step", {"action": "mark_done", "result": "x"})),
        say("end"),
    )
    engine = Engine(planned(decompose=True, summaries=True), registry=ListedRegistry(), clock=ManualClock())
    straight = Agent(engine, Checking(*turns), [look]).run("Tell me.", run_id="r")
    from policyengine.loop.advance import advance, effect_now
    from policyengine.loop.state import Begin, Finish

    model = Checking(*turns)
    agent = Agent(engine, model, [look])
    loop = agent.start(run_id="r")
    effect = advance(loop, Begin("Tell me."))
    while not isinstance(effect, Finish):
        loop = agent.resume(agent.save(loop))
        assert effect_now(loop) == effect
        answer = agent._perform(loop, effect, [])
        effect = advance(loop, answer)
    assert effect.outcome.plan == straight.plan
    assert effect.outcome.messages == straight.messages


def test_t21_after_a_stall_the_plan_can_be_changed_and_the_answer_be_given():
    options = {"repeat": {"deny": 3}, "cycle": {}, "interleaved": {}, "text": {}}
    made = msgspec.structs.replace(policy(rule("stall_detector", options)), plan=Planning("steps", decompose=False))
    again = call("look", {"page": 1})
    _, outcome = work(made, again, again, again, done("find"), say("High at noon."), plan=TWO)
    results = [message.text for message in outcome.messages if message.role == "tool"]
    assert "stall_detector" in results[2]
    assert json.loads(results[3])["steps"]["find"] == "done"
    assert (outcome.status, outcome.output, outcome.executed) == ("completed", "High at noon.", 2)


@pytest.mark.parametrize(("run", "requests"), [(100, 3), (130, 4)])
def test_requests_for_the_plan_and_for_summaries_are_counted_by_the_budget(run, requests):
    usage = Usage(40, 0, 40)
    steps = [{"id": "a", "description": "One."}, {"id": "b", "description": "Two."}]
    turns = [
        Turn((ScriptedCall("set_plan", {"steps": steps}),), usage=usage),
        Turn((ScriptedCall("update_step", {"action": "mark_done"}),), usage=usage),
        Turn(text="One is done.", usage=usage),
        Turn(text="Two is done.", usage=usage),
    ]
    made = msgspec.structs.replace(
        policy(rule("token_budget", {"run": run, "check": "after", "scope": "run", "count": "total"})),
        plan=Planning("steps", decompose=True, summaries=True),
    )
    model, outcome = work(made, *turns)
    assert [request.purpose for request in model.requests] == ["plan", "main", "step_summary", "main"][:requests]
    assert outcome.status == ("stopped" if requests == 3 else "completed")


def test_the_tool_of_a_plan_is_offered_only_where_there_is_one():
    model, _ = work(policy(), say("High at noon."))
    assert [tool.name for tool in model.requests[0].tools] == ["look"]


def test_a_tool_of_that_name_is_refused():
    def update_step() -> str:
        """Nothing."""
        return ""

    agent = Agent(Engine(planned(), registry=ListedRegistry()), Checking(say("x")), [update_step])
    with pytest.raises(UsageError, match="update_step"):
        agent.run("t")
    assert ModelResponse
