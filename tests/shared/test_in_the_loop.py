"""Shared pools in whole runs of our own loop: several agents on one ledger, saved, replayed, cancelled."""

from __future__ import annotations

import asyncio
import json
import threading

import msgspec
import pytest

from policyengine import Agent, Engine, Ledger, RequestError, Script, ScriptedCall, Usage, UsageError, batch, say
from policyengine.loop.advance import advance, effect_now
from policyengine.loop.state import Begin, CallModel, CallTools, Cancelled, Reserve, Reserved, Responded, ToolsDone
from policyengine.messages import Batch, ModelResponse, ProviderError, ToolCall, ToolResult
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.providers.scripted import ScriptedModel
from policyengine.replay import replay_journal
from policyengine.shared.pools import Pool
from policyengine.stores.memory import MemoryStore
from policyengine.telemetry.journal import JournalWriter
from policyengine.testing import ManualClock, assert_valid

REGISTRY = builtin_registry()
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: t\n"


def engine_of(body, **options):
    policy = load_policy_text(f"{HEAD}extensions:\n  team: {{use: shared_limit, {body}}}\n", registry=REGISTRY)
    return Engine(policy, registry=REGISTRY, **options)


def agent_of(engine, turns, ledger, **options):
    model = ScriptedModel(Script("task", tuple(turns)))
    return Agent(engine, model, model.tools(), ledger=ledger, sleep=lambda _: None, **options)


def ledger_of(clock=None):
    return Ledger(MemoryStore(clock=clock) if clock else MemoryStore())


def calls(number, tool="look"):
    return batch(*(ScriptedCall(tool, {"page": page}, f"page {page}") for page in range(number)))


def used(ledger, counts, limit=10, name="team", window_s=None):
    return ledger.used(Pool(name, counts, limit, window_s))


def test_two_runs_share_the_calls_and_what_is_refused_is_explained():
    engine, ledger = engine_of("with: {counts: tool_calls, limit: 5}"), ledger_of()
    first = agent_of(engine, [calls(3), say("done")], ledger).run("task")
    second = agent_of(engine, [calls(4), say("done")], ledger).run("task")
    assert (first.executed, second.executed) == (3, 2)
    refused = [message for message in second.messages if message.role == "tool"][2:]
    assert ["All 5 tool calls that are permitted together are used up" in message.text for message in refused] == [
        True
    ] * 2
    assert used(ledger, "tool_calls") == 5
    assert_valid(second.messages)


def test_requests_stop_the_run_before_one_too_many_is_sent_and_give_the_reason():
    engine, ledger = engine_of("with: {counts: requests, limit: 3}"), ledger_of()
    agent_of(engine, [calls(1), say("done")], ledger).run("task")
    outcome = agent_of(engine, [calls(1), calls(1), say("done")], ledger).run("task")
    assert outcome.status == "stopped"
    assert (outcome.stop.code, outcome.stop.rule, outcome.stop.observed, outcome.stop.limit) == (
        "shared_limit",
        "team",
        3,
        3,
    )
    assert outcome.iterations == 1
    assert used(ledger, "requests") == 3


def test_tokens_are_reserved_and_settled_with_what_the_request_took():
    engine, ledger = engine_of("with: {counts: tokens, limit: 1000, reserve: 300}"), ledger_of()
    turn = msgspec.structs.replace(calls(1), usage=Usage(100, 50, 150))
    outcome = agent_of(engine, [turn, turn, say("done", usage=Usage(10, 10, 20))], ledger).run("task")
    assert outcome.status == "completed"
    assert used(ledger, "tokens") == 320
    dear = msgspec.structs.replace(calls(1), usage=Usage(500, 500, 1000))
    outcome = agent_of(engine, [dear, dear], ledger).run("task")
    assert outcome.stop.code == "shared_limit"
    assert used(ledger, "tokens") == 1320  # one request in flight took 700 more than was reserved


def test_money_is_counted_in_billionths_and_told_in_dollars():
    body = "with: {counts: cost, limit: 1, reserve: 0.2, prices: {scripted: {input: 1, output: 1}}}"
    engine, ledger = engine_of(body), ledger_of()
    turn = msgspec.structs.replace(calls(1), usage=Usage(450_000, 450_000, 900_000))
    outcome = agent_of(engine, [turn, turn], ledger).run("task")
    assert (outcome.stop.observed, outcome.stop.limit) == (0.9, 1.0)
    assert used(ledger, "cost") == 900_000_000


def test_a_model_without_a_price_costs_what_was_reserved():
    body = "with: {counts: cost, limit: 1, reserve: 0.2, prices: {big: {input: 1, output: 1}}}"
    engine, ledger = engine_of(body), ledger_of()
    agent_of(engine, [say("done", model="unheard-of")], ledger).run("task")
    assert used(ledger, "cost") == 200_000_000


def test_calls_that_do_not_run_give_their_places_back():
    policy = (
        "extensions:\n  other: {use: tool_call_limit, with: {calls: 1}}\n"
        "  team: {use: shared_limit, with: {counts: tool_calls, limit: 10}}\n"
    )
    engine, ledger = Engine(load_policy_text(HEAD + policy, registry=REGISTRY), registry=REGISTRY), ledger_of()
    outcome = agent_of(engine, [calls(3), say("done")], ledger).run("task")
    assert outcome.executed == 1
    assert used(ledger, "tool_calls") == 1


def test_unknown_tools_count_nowhere():
    engine, ledger = engine_of("with: {counts: tool_calls, limit: 10}"), ledger_of()
    model = ScriptedModel(Script("task", (calls(2, "no_such_tool"), say("done"))))
    Agent(engine, model, [], ledger=ledger).run("task")
    assert used(ledger, "tool_calls") == 0


def test_only_calls_of_the_named_tools_count_and_selectors_hold_too():
    engine = engine_of("when: {tool: ['*_web']}, with: {counts: tool_calls, limit: 1, tools: ['search_*']}")
    ledger = ledger_of()
    turn = batch(*(ScriptedCall(tool, {"page": 1}) for tool in ("search_web", "search_web", "search_mail", "look_web")))
    outcome = agent_of(engine, [turn, say("done")], ledger).run("task")
    assert outcome.executed == 3
    assert used(ledger, "tool_calls") == 1


def test_a_breaker_opens_for_everybody_and_closes_by_itself():
    clock = ManualClock()
    ledger = ledger_of(lambda: clock.now)
    engine = engine_of("with: {counts: tool_failures, limit: 2, window: 60s, tools: [flaky]}")
    failing = batch(*(ScriptedCall("flaky", {"page": page}, "no", status="error") for page in range(2)))
    assert agent_of(engine, [failing, say("done")], ledger).run("task").executed == 2
    other = batch(ScriptedCall("flaky", {"page": 3}), ScriptedCall("look", {"page": 3}))
    outcome = agent_of(engine, [other, say("done")], ledger).run("task")
    assert outcome.executed == 1
    assert "switched off for everybody" in next(m.text for m in outcome.messages if m.role == "tool")
    clock.now += 62
    assert agent_of(engine, [other, say("done")], ledger).run("task").executed == 2


def failing_model(code, name="m"):
    class Failing:
        def __init__(self):
            self.name = name

        def complete(self, request):
            raise RequestError(ProviderError(code, "no"))

    return Failing()


def test_failed_requests_open_a_breaker_unless_the_request_itself_was_wrong():
    engine, ledger = engine_of("with: {counts: provider_errors, limit: 2, window: 60s}"), ledger_of()
    for code in ("context_overflow", "overloaded", "overloaded", "overloaded"):
        outcome = Agent(engine, failing_model(code), ledger=ledger).run("task")
    assert outcome.status == "stopped"
    assert (outcome.stop.code, outcome.stop.observed) == ("shared_breaker", 2)


def test_a_failed_request_counts_as_a_request_and_takes_no_tokens():
    for counts, extra, expected in (("requests", "", 1), ("tokens", ", reserve: 100", 0)):
        engine, ledger = engine_of(f"with: {{counts: {counts}, limit: 1000{extra}}}"), ledger_of()
        Agent(engine, failing_model("overloaded"), ledger=ledger).run("task")
        assert used(ledger, counts) == expected


def test_a_request_that_another_rule_stops_gives_back_what_it_held():
    policy = (
        "extensions:\n  clock: {use: wall_clock, with: {stop: 5s}}\n"
        "  team: {use: shared_limit, with: {counts: requests, limit: 10}}\n"
    )
    clock = ManualClock()
    engine = Engine(load_policy_text(HEAD + policy, registry=REGISTRY), registry=REGISTRY, clock=clock)
    ledger = ledger_of()

    def slow(page: int) -> str:
        clock.now += 10
        return "slow"

    model = ScriptedModel(Script("task", (calls(1, "slow"), say("done"))))
    outcome = Agent(engine, model, [slow], ledger=ledger).run("task")
    assert outcome.stop.code == "wall_clock"
    assert used(ledger, "requests") == 1


def test_a_rule_in_shadow_refuses_nothing_and_counts_what_was_used():
    engine, ledger = engine_of("mode: shadow, with: {counts: tool_calls, limit: 2}"), ledger_of()
    assert agent_of(engine, [calls(5), say("done")], ledger).run("task").executed == 5
    assert used(ledger, "tool_calls") == 5


def test_a_twin_in_shadow_with_a_lower_limit_counts_nothing_twice():
    policy = (
        "extensions:\n  trial: {use: shared_limit, mode: shadow, with: {counts: tool_calls, limit: 1, pool: p}}\n"
        "  team: {use: shared_limit, with: {counts: tool_calls, limit: 4, pool: p}}\n"
    )
    engine, ledger = Engine(load_policy_text(HEAD + policy, registry=REGISTRY), registry=REGISTRY), ledger_of()
    assert agent_of(engine, [calls(3), say("done")], ledger).run("task").executed == 3
    assert agent_of(engine, [calls(3), say("done")], ledger).run("task").executed == 1
    assert used(ledger, "tool_calls", name="p") == 4


def test_pools_of_agents_and_conversations_are_counted_apart():
    engine, ledger = engine_of("with: {counts: tool_calls, limit: 2, per: agent}"), ledger_of()
    ran = [agent_of(engine, [calls(2), say("done")], ledger).run("task", agent=name).executed for name in "aba"]
    assert ran == [2, 2, 0]


@pytest.mark.parametrize("then", ["deny", "stop", "wind_down", "ask"])
def test_every_rung_of_calls_is_carried_out(then):
    engine, ledger = engine_of(f"with: {{counts: tool_calls, limit: 1, then: {then}}}"), ledger_of()
    asked = []
    outcome = agent_of(
        engine, [calls(2), say("done")], ledger, human=lambda effect: asked.append(effect.reason.code) or False
    ).run("task")
    assert outcome.executed == {"deny": 1, "ask": 1}.get(then, 0)
    assert asked == (["shared_limit"] if then == "ask" else [])
    assert outcome.status == ("stopped" if then == "stop" else "completed")
    assert used(ledger, "tool_calls") == outcome.executed


def test_a_call_that_a_human_approves_beyond_the_limit_is_counted():
    engine, ledger = engine_of("with: {counts: tool_calls, limit: 1, then: ask}"), ledger_of()
    assert agent_of(engine, [calls(2), say("done")], ledger, human=lambda _: True).run("task").executed == 2
    assert used(ledger, "tool_calls") == 2


def test_a_wind_down_before_the_limit_leaves_room_for_the_final_answer():
    engine, ledger = engine_of("with: {counts: requests, limit: 4, wind_down_at: 2}"), ledger_of()
    outcome = agent_of(engine, [calls(1), calls(1), say("the answer")], ledger).run("task")
    assert (outcome.status, outcome.stop.action, outcome.output) == ("completed", "wind_down", "the answer")


def test_with_pools_and_no_ledger_nothing_starts():
    engine = engine_of("with: {counts: requests, limit: 3}")
    with pytest.raises(UsageError, match=r"share \(team\): give one as `ledger`"):
        agent_of(engine, [say("done")], None).run("task")
    assert engine.status().runs == ()


def test_without_pools_nothing_is_reserved_and_no_ledger_is_asked():
    class NoLedger:
        def perform(self, *_):
            raise AssertionError("asked")

    engine = Engine(load_policy_text(f"{HEAD}extensions: {{step_limit: {{}}}}\n", registry=REGISTRY), registry=REGISTRY)
    agent = agent_of(engine, [calls(2), say("done")], NoLedger())
    loop = agent.start()
    assert agent.drive(loop, Begin("task")).status == "completed"
    assert loop.run.state.shared is None


# ---- the store is down


class Broken:
    """A ledger whose store answers nothing."""

    def perform(self, needs, dues=(), run_id=""):
        from policyengine.shared.pools import all_down

        return all_down(needs)


@pytest.mark.parametrize(
    ("counts", "extra"),
    [("tool_calls", ""), ("requests", ""), ("tokens", ", reserve: 5"), ("tool_failures", ", window: 1h")],
)
@pytest.mark.parametrize("when_down", ["deny", "allow", "stop"])
def test_while_the_store_is_down_the_rule_does_what_it_says(counts, extra, when_down):
    engine = engine_of(f"with: {{counts: {counts}, limit: 10{extra}, when_down: {when_down}}}")
    outcome = agent_of(engine, [calls(2), say("done")], Broken()).run("task")
    of_calls = counts in ("tool_calls", "tool_failures")
    if when_down == "allow":
        assert (outcome.status, outcome.executed) == ("completed", 2)
    elif of_calls and when_down == "deny":
        assert (outcome.status, outcome.executed) == ("completed", 0)
        assert any("how much of a shared limit is left" in message.text for message in outcome.messages)
    else:
        assert (outcome.status, outcome.stop.code, outcome.executed) == ("stopped", "shared_down", 0)


# ---- events, journals, saves


def test_a_journal_gives_the_same_decisions_without_any_store(tmp_path):
    path = tmp_path / "journal.jsonl"
    body = "with: {counts: tool_calls, limit: 5}"
    with path.open("w") as file:
        engine, ledger = engine_of(body, journal=JournalWriter(file)), ledger_of()
        for _ in range(3):
            agent_of(engine, [calls(3), say("done")], ledger).run("task")
    shared = [json.loads(line) for line in path.read_text().splitlines() if json.loads(line)["type"] == "shared"]
    assert [line["payload"]["grants"][0].get("granted", 0) for line in shared] == [3, 2, 0]
    pairs = list(replay_journal(path, engine_of(body)))
    assert len(pairs) > 20
    assert all(recorded == again for recorded, again in pairs)


def perform(ledger, effect):
    return Reserved(ledger.perform(effect.needs, effect.dues))


def step(ledger, loop, effect, answer):
    """Answer an effect, after every reservation before it."""
    while isinstance(effect, Reserve):
        effect = advance(loop, perform(ledger, effect))
    return effect if answer is None else advance(loop, answer)


RESPONSE = ModelResponse(
    "", (ToolCall("c1", "look", "{}", {}), ToolCall("c2", "look", "{}", {})), usage=Usage(5, 5, 10)
)
BODY = "with: {counts: tool_calls, limit: 10}"


def test_a_run_saved_while_it_reserves_does_so_again_and_the_first_reservation_stays_counted():
    engine, ledger = engine_of(BODY), ledger_of()
    agent = agent_of(engine, [calls(1)], ledger)
    loop = agent.start()
    effect = advance(loop, Begin("task"))
    assert isinstance(effect, CallModel)
    effect = advance(loop, Responded(RESPONSE))
    assert isinstance(effect, Reserve)
    ledger.perform(effect.needs, effect.dues)
    again = agent.resume(agent.save(loop))
    effect = effect_now(again)
    assert isinstance(effect, Reserve)
    effect = step(ledger, again, effect, None)
    assert isinstance(effect, CallTools)
    assert len(effect.jobs) == 2
    assert used(ledger, "tool_calls") == 4


def test_what_a_resumed_run_gave_back_is_not_given_back_twice():
    engine, ledger = engine_of("with: {counts: tokens, limit: 100, reserve: 50}"), ledger_of()
    agent = agent_of(engine, [calls(1)], ledger)
    loop = agent.start()
    effect = step(ledger, loop, advance(loop, Begin("task")), Responded(RESPONSE))
    assert isinstance(effect, Reserve)
    assert [due.amount for due in effect.dues] == [-40]
    ledger.perform(effect.needs, effect.dues)
    again = agent.resume(agent.save(loop))
    effect = effect_now(again)
    assert isinstance(effect, Reserve)
    assert effect.dues == ()
    effect = advance(again, perform(ledger, effect))
    assert isinstance(effect, CallTools)
    assert used(ledger, "tokens") == 10


def test_grants_that_answer_something_else_are_refused():
    engine, ledger = engine_of(BODY), ledger_of()
    loop = agent_of(engine, [calls(1)], ledger).start()
    advance(loop, Begin("task"))
    advance(loop, Responded(RESPONSE))
    with pytest.raises(UsageError, match="do not answer what was asked for"):
        advance(loop, Reserved())
    with pytest.raises(UsageError, match="does not fit phase"):
        advance(loop, ToolsDone((ToolResult("c1", "x"),)))


def test_a_run_given_up_while_it_reserves_leaves_a_valid_history():
    for body in (BODY, "with: {counts: requests, limit: 5}", "with: {counts: tokens, limit: 500, reserve: 50}"):
        engine, ledger = engine_of(body), ledger_of()
        loop = agent_of(engine, [calls(1)], ledger).start()
        effect = advance(loop, Begin("task"))
        if isinstance(effect, CallModel) or body == "with: {counts: tokens, limit: 500, reserve: 50}":
            effect = step(ledger, loop, effect, Responded(RESPONSE))
        assert isinstance(effect, Reserve)
        outcome = advance(loop, Cancelled()).outcome
        assert outcome.status == "cancelled"
        assert_valid(outcome.messages)


def test_a_run_that_only_has_to_settle_has_ended_even_if_it_is_given_up():
    engine, ledger = engine_of("with: {counts: tokens, limit: 500, reserve: 50}"), ledger_of()
    loop = agent_of(engine, [calls(1)], ledger).start()
    effect = step(
        ledger, loop, advance(loop, Begin("task")), Responded(ModelResponse("the answer", usage=Usage(5, 5, 10)))
    )
    assert isinstance(effect, Reserve)
    assert advance(loop, Cancelled()).outcome.output == "the answer"


def test_auxiliary_requests_are_reserved_for_too():
    policy = (
        "plan: {mode: steps, decompose: true, summaries: true}\n"
        "extensions:\n  team: {use: shared_limit, with: {counts: requests, limit: 100}}\n"
    )
    engine, ledger = Engine(load_policy_text(HEAD + policy, registry=REGISTRY), registry=REGISTRY), ledger_of()
    asked = []

    class Counting:
        name = "m"

        def complete(self, request):
            asked.append(request.purpose)
            if request.purpose == "plan":
                steps = [{"id": "a", "description": "first"}, {"id": "b", "description": "second", "after": ["a"]}]
                return ModelResponse("", (ToolCall("p", "set_plan", json.dumps({"steps": steps}), {"steps": steps}),))
            return ModelResponse("said")

    outcome = Agent(engine, Counting(), ledger=ledger).run("task")
    assert outcome.status == "completed"
    assert "plan" in asked
    assert used(ledger, "requests", limit=100) == len(asked)


def test_a_summary_and_the_request_it_makes_room_for_count_once_each():
    policy = (
        "extensions:\n  shorter: {use: context_compaction, with: {window: 300, trigger: 0.5}}\n"
        "  team: {use: shared_limit, with: {counts: requests, limit: 100}}\n"
    )
    engine, ledger = Engine(load_policy_text(HEAD + policy, registry=REGISTRY), registry=REGISTRY), ledger_of()
    asked = []

    def look(page: int) -> str:
        return "word " * 200

    class Counting:
        name = "m"

        def complete(self, request):
            asked.append(request.purpose)
            number = len(asked)
            if request.purpose == "main" and number < 8:
                call = ToolCall(f"c{number}", "look", json.dumps({"page": number}), {"page": number})
                return ModelResponse("", (call,), usage=Usage(100 * number, 5))
            return ModelResponse("short", usage=Usage(50, 5, 55))

    outcome = Agent(engine, Counting(), [look], ledger=ledger).run("task")
    assert outcome.status == "completed"
    assert "summary" in asked
    assert used(ledger, "requests", limit=100) == len(asked)


def test_asynchronous_runs_reserve_beside_the_loop_of_events():
    engine, ledger = engine_of("with: {counts: tool_calls, limit: 7}"), ledger_of()

    async def all_of_them():
        agents = [agent_of(engine, [calls(2), say("done")], ledger) for _ in range(6)]
        return await asyncio.gather(*(agent.arun("task") for agent in agents))

    outcomes = asyncio.run(all_of_them())
    assert sum(outcome.executed for outcome in outcomes) == 7


def test_a_policy_that_gets_pools_during_a_run_without_a_ledger_counts_as_down(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(f"{HEAD}reload: {{pin: iteration}}\nextensions: {{step_limit: {{}}}}\n")
    engine = Engine(path)

    def look(page: int) -> str:
        limited = "extensions: {shared_limit: {with: {counts: requests, limit: 5}}}\n"
        path.write_text(f"{HEAD}reload: {{pin: iteration}}\n{limited}")
        assert engine.reload()
        return "x"

    model = ScriptedModel(Script("task", (calls(1), say("done"))))
    outcome = Agent(engine, model, [look]).run("task")
    assert outcome.stop.code == "shared_down"


# ---- runs that are given up


def test_a_run_that_is_given_up_while_a_human_is_asked_gives_its_places_back():
    engine = engine_of("with: {counts: tool_calls, limit: 10}}\n  asking: {use: tool_access, with: {ask: [look]}")
    for failure in (KeyboardInterrupt, RuntimeError, asyncio.CancelledError):
        ledger = ledger_of()

        def human(question, failure=failure):
            raise failure

        agent = agent_of(engine, [calls(3), say("done")], ledger, human=human)
        with pytest.raises(failure):
            agent.run("task")
        with pytest.raises(failure):
            asyncio.run(agent_of(engine, [calls(3), say("done")], ledger, human=human).arun("task"))
        assert used(ledger, "tool_calls") == 0


def test_a_call_that_was_running_when_its_run_was_given_up_is_counted():
    engine, ledger = engine_of("with: {counts: tool_calls, limit: 10}"), ledger_of()

    async def look(page: int) -> str:
        raise asyncio.CancelledError if page == 2 else RuntimeError

    model = ScriptedModel(Script("task", (calls(3), say("done"))))

    async def cancelled() -> None:
        task = asyncio.ensure_future(Agent(engine, model, [look], ledger=ledger).arun("task"))
        await asyncio.sleep(0)
        await asyncio.wait({task})

    asyncio.run(cancelled())
    assert used(ledger, "tool_calls") == 3


class Held:
    """A store whose first transaction waits until it is let go."""

    def __init__(self):
        self.store, self.asked, self.go = MemoryStore(), threading.Event(), threading.Event()

    def update(self, change):
        self.asked.set()
        assert self.go.wait(30)
        return self.store.update(change)

    def read(self, look):
        return self.store.read(look)


def test_a_reservation_that_comes_after_its_run_was_cancelled_is_given_back():
    engine, store = engine_of("with: {counts: tool_calls, limit: 10, wait: 20s}"), Held()
    ledger = Ledger(store)

    async def cancelled() -> None:
        task = asyncio.ensure_future(agent_of(engine, [calls(3), say("done")], ledger).arun("task"))
        await asyncio.to_thread(store.asked.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.go.set()

    asyncio.run(cancelled())
    for _ in range(200):  # the thread that reserves it gives it back, whoever waits
        if used(ledger, "tool_calls") == 0 and not ledger.owed:
            break
        threading.Event().wait(0.05)
    ledger.perform(())
    assert used(ledger, "tool_calls") == 0
    assert agent_of(engine, [calls(10), say("done")], ledger).run("task").executed == 10


@pytest.mark.parametrize("refused", [["look"], ["other"]])
def test_calls_of_one_id_have_a_place_each_whichever_of_them_is_refused(refused):
    ledger = ledger_of()
    engine = engine_of(f"with: {{counts: tool_calls, limit: 2}}}}\n  no: {{use: tool_access, with: {{deny: {refused}}}")
    ran = 0
    for _ in range(4):
        run = engine.start_run()
        run.start("task")
        run.begin_iteration()
        asked = tuple(ToolCall("same", name, "{}") for name in ("look", "other"))
        run.shared(ledger.perform(run.needs_of_calls(asked), run.take_dues()))
        decisions = [run.before_tool_call(call, Batch("b", place)) for place, call in enumerate(asked)]
        for call, decision in zip(asked, decisions, strict=True):
            runs = decision.action == "allow"
            ran += runs
            run.after_tool_call(call, ToolResult("same", "x", "ok" if runs else "denied"))
        ledger.perform((), run.take_dues())
    assert ran == 2
    assert used(ledger, "tool_calls") == 2
