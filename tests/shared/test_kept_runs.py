"""Shared pools and runs that are kept: whatever step a process dies at, nothing is counted too little."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from time import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import Agent, Engine, Ledger, Script, ScriptedCall, Turn, Usage, say
from policyengine.loop.advance import advance, effect_now
from policyengine.loop.state import Begin, CallModel, CallTools, Finish, Reserve, Reserved, Responded, ToolsDone
from policyengine.messages import ModelResponse, ToolCall, ToolResult
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.providers.scripted import ScriptedModel
from policyengine.shared.alone import Alone
from policyengine.shared.pools import Pool, all_down
from policyengine.stores.memory import MemoryStore
from policyengine.stores.sqlite import SqliteStore
from policyengine.testing import assert_valid

REGISTRY = builtin_registry()
POLICY = """
apiVersion: policyengine/v1
kind: Policy
name: t
tools: {look: {effect: read}}
extensions:
  calls: {use: shared_limit, with: {counts: tool_calls, limit: 7}}
  requests: {use: shared_limit, with: {counts: requests, limit: 9}}
  tokens: {use: shared_limit, with: {counts: tokens, limit: 5000, reserve: 300}}
  breaker: {use: shared_limit, with: {counts: tool_failures, limit: 3, window: 1h, then: stop}}
"""


def engine():
    return Engine(load_policy_text(POLICY, registry=REGISTRY), registry=REGISTRY)


def used(ledger, name, counts, limit, **options):
    return ledger.used(Pool(name, counts, limit, **options))


class Dying:
    """A ledger whose process dies at its n-th transaction, before or after it went through.

    What a killed process leaves is the file as it is then: it is copied, and this process goes on unheard.
    """

    def __init__(self, ledger, at, path, *, after):
        self.ledger, self.at, self.path, self.after, self.dead = ledger, at, path, after, False

    def perform(self, needs, dues=(), run_id=""):
        self.at -= 1
        if self.dead:
            return all_down(needs)
        if self.at == 0 and not self.after:
            return self.die(needs)
        grants = self.ledger.perform(needs, dues, run_id)
        return self.die(needs) if self.at == 0 else grants

    def die(self, needs):
        self.dead = True
        with closing(sqlite3.connect(self.path)) as kept, closing(sqlite3.connect(f"{self.path}.left")) as left:
            kept.backup(left)
        return all_down(needs)


USAGE = Usage(100, 50, 150)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 12))
def test_a_run_whose_process_dies_while_it_reserves_goes_on_and_nothing_is_counted_too_little(tmp_path, at, after):
    path, ledger = tmp_path / "runs.db", Ledger(MemoryStore())
    ran, sent = [], []

    def agent(place, pools, **options):
        def look(page: int) -> str:
            if not getattr(pools, "dead", False):
                ran.append(page)
            return f"page {page}"

        class Counting:
            name = "m"

            def complete(self, request):
                if not getattr(pools, "dead", False):
                    sent.append(1)
                # Which turn it is follows from the history, as for a real model.
                turn = sum(message.role == "assistant" for message in request.messages)
                calls = (
                    ToolCall(f"c{turn}-{page}", "look", json.dumps({"page": page}), {"page": page}) for page in range(2)
                )
                return ModelResponse("done" if turn == 3 else "", tuple(calls) if turn < 3 else (), usage=USAGE)

        store = SqliteStore(place, durable=False, **options)
        return store, Agent(engine(), Counting(), [look], store=store, ledger=pools)

    dying = Dying(ledger, at, path, after=after)
    store, first = agent(path, dying)
    first.run("task", run_id="r")
    store.close()
    if not dying.dead:
        assert at > 6
        return
    store, second = agent(f"{path}.left", ledger, clock=lambda: time() + 3600)
    outcome = second.run("task", run_id="r")
    store.close()
    assert outcome.status in ("completed", "stopped")
    assert len(ran) <= used(ledger, "calls", "tool_calls", 7) <= 7
    assert len(sent) <= used(ledger, "requests", "requests", 9) <= 9
    assert used(ledger, "tokens", "tokens", 5000, reserve=300) >= 150 * len(sent)
    assert_valid(outcome.messages)


script = st.lists(
    st.lists(st.tuples(st.sampled_from(["look", "fails", "nowhere"]), st.integers(0, 3)), max_size=4), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(script, st.lists(st.booleans(), min_size=40, max_size=40))
def test_a_run_saved_and_resumed_at_any_step_decides_as_if_it_had_not_been(chosen, saves):
    responses = [
        Turn(tuple(ScriptedCall(name, {"page": page}) for name, page in turn), usage=Usage(200, 50 * len(turn), None))
        for turn in chosen
        if turn
    ]
    whole = play(responses, [False] * len(saves))
    assert play(responses, saves) == whole
    assert_valid(whole[1])


def play(responses, saves):
    """Run a script by hand; save and resume where that is said, but not while a reservation is under way."""
    model = ScriptedModel(Script("task", (*responses, say("done", usage=Usage(10, 10, 20)))))
    agent = Agent(engine(), model, model.tools(), ledger=Alone(lambda: 0.0))
    pools, loop = Alone(lambda: 0.0), agent.start(run_id="r")
    effect, seen = advance(loop, Begin("task")), []
    for number in range(400):
        if not isinstance(effect, Reserve) and saves[number % len(saves)]:
            loop = agent.resume(agent.save(loop))
            effect = effect_now(loop)
        match effect:
            case Reserve(needs, dues):
                grants = pools.perform(needs, dues)
                seen.append([(one.rule, one.granted, one.used) for one in grants])
                effect = advance(loop, Reserved(grants))
            case CallModel(request):
                effect = advance(loop, Responded(model.complete(request)))
            case CallTools(jobs):
                results = (ToolResult(job.call.id, "x", "error" if job.call.name == "fails" else "ok") for job in jobs)
                effect = advance(loop, ToolsDone(tuple(results)))
            case Finish(outcome):
                return outcome.status, outcome.messages, outcome.stop, seen
            case other:
                raise AssertionError(other)
    raise AssertionError("the run does not end")
