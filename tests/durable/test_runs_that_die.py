"""A worker may die at any point: nothing is lost, no write happens twice unasked, and the run ends as it would."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import Agent
from policyengine.stores import StoreError
from policyengine.stores.memory import MemoryStore
from tests.durable.clerk import ENGINE, Clerk, Clock, Died, Mortal, agent

BATCHES = st.lists(st.lists(st.sampled_from(["look", "poll", "book", "shell"]), min_size=1, max_size=3), max_size=5)


@pytest.mark.parametrize("asynchronous", [False, True])
@given(BATCHES, st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_run_that_dies_at_any_commit_ends_as_it_would_have_and_writes_nothing_twice(
    asynchronous, batches, deaths, approves
):
    undisturbed = Clerk(batches)
    wanted = Agent(ENGINE, undisturbed, undisturbed.tools()).run("book it")

    clock = Clock()
    kept, clerk, asked = MemoryStore(clock=clock), Clerk(batches), []

    def human(question: Any) -> bool:
        assert question.reason.code == "unknown_outcome"
        asked.extend(f"{call.name} {call.args['item']}" for call in question.calls)
        return approves

    outcome = None
    for at, after in [*deaths, (None, False)]:
        worker = agent(Mortal(kept, at, after=after), clerk, human)
        try:
            if asynchronous:
                outcome = asyncio.run(worker.arun("book it", run_id="r"))
            else:
                outcome = worker.run("book it", run_id="r")
            break
        except Died:
            clock.now += 61  # for this machine the worker is still alive
    assert outcome is not None
    assert outcome.status == wanted.status
    assert outcome.output == wanted.output
    assert len(outcome.messages) == len(wanted.messages)
    assert clerk.done.keys() <= undisturbed.done.keys()
    # A call that was about to run cannot be told from one that was running.
    assert undisturbed.done.keys() - clerk.done.keys() <= (set() if approves else set(asked))
    for call, times in clerk.done.items():
        if call.startswith(("book", "shell")):
            assert times <= 1 + (asked.count(call) if approves else 0)
    if not asked:
        assert outcome.messages == wanted.messages
        assert outcome.executed == wanted.executed
    assert agent(kept, clerk).run("book it", run_id="r") == outcome
    assert agent(kept, clerk).resume_run("r") == outcome


def test_a_call_that_was_running_is_asked_about_unless_its_tool_only_reads():
    for tool, repeated in (("look", True), ("poll", True), ("book", False), ("shell", False)):
        clock = Clock()
        kept, clerk = MemoryStore(clock=clock), Clerk([[tool]], die_in=f"{tool} 0.0")
        store = Mortal(kept, None)
        clerk.kill = store.kill
        with pytest.raises(Died):
            agent(store, clerk).run("go", run_id="r")
        clerk.die_in = ""
        clock.now += 61
        outcome = agent(kept, clerk).run("go", run_id="r")
        assert clerk.done[f"{tool} 0.0"] == (2 if repeated else 1)
        assert outcome.status == ("completed" if repeated else "waiting")
        assert (outcome.stop.code if outcome.stop else "") == ("" if repeated else "unknown_outcome")


@pytest.mark.parametrize("asynchronous", [False, True])
@given(BATCHES, st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_store_that_fails_now_and_then_loses_nothing_that_it_acknowledged(asynchronous, batches, failures):
    undisturbed = Clerk(batches)
    wanted = Agent(ENGINE, undisturbed, undisturbed.tools()).run("book it")
    clock = Clock()
    kept, clerk = MemoryStore(clock=clock), Clerk(batches)
    outcome = None
    for at, after in [*failures, (None, False)]:
        store = Mortal(kept, at, after=after, error=StoreError("the disk is full"))
        worker = agent(store, clerk, lambda question: False)
        try:
            if asynchronous:
                outcome = asyncio.run(worker.arun("book it", run_id="r"))
            else:
                outcome = worker.run("book it", run_id="r")
            break
        except StoreError as error:
            message = str(error)
        assert message in ("the disk is full", "run 'r' cannot be kept: the disk is full")
        clock.now += 61  # a commit that was written, and said to have failed, may have been the one that took the run
    assert outcome is not None
    assert (outcome.status, outcome.output) == (wanted.status, wanted.output)
    assert len(outcome.messages) == len(wanted.messages)
    assert all(times == 1 for call, times in clerk.done.items() if call.startswith(("book", "shell")))


@given(BATCHES, st.lists(st.integers(0, 40), max_size=4))
@settings(max_examples=25, deadline=None)
def test_a_run_that_is_cancelled_at_any_commit_can_be_resumed(batches, cancellations):
    kept, clerk = MemoryStore(), Clerk(batches)

    async def cancelled_after(commits: int) -> bool:
        store = Mortal(kept, None)
        task = asyncio.ensure_future(agent(store, clerk, lambda question: False).arun("book it", run_id="r"))
        store.left = commits
        store.instead = lambda: loop.call_soon_threadsafe(task.cancel)
        loop = asyncio.get_running_loop()
        try:
            await task
        except asyncio.CancelledError:
            return False
        return True

    for commits in cancellations:
        if asyncio.run(cancelled_after(commits)):
            break
    outcome = agent(kept, clerk, lambda question: False).run("book it", run_id="r")
    assert (outcome.status, outcome.output) == ("completed", "all done")
    assert all(times == 1 for call, times in clerk.done.items() if call.startswith(("book", "shell")))
