"""At any time one worker decides a run, and what a worker that was overtaken does is not kept."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
from typing import Any

import pytest

from policyengine.durable import KeptRuns, LeaseLostError, RunBusyError
from policyengine.durable.heartbeat import holding
from policyengine.durable.keeper import Keeper, claim
from policyengine.durable.lease import is_gone, new_owner
from policyengine.durable.record import read_head
from policyengine.errors import UsageError
from policyengine.outcome import Outcome
from policyengine.stores import StoreError
from policyengine.stores.memory import MemoryStore
from tests.durable.clerk import Clerk, Clock, agent


def taken(store: Any, run_id: str = "r", task: str = "go", lease_s: float = 60.0) -> Keeper:
    keeper = claim(store, run_id, task, lease_s=lease_s)
    assert isinstance(keeper, Keeper)
    return keeper


def owner(store: MemoryStore, run_id: str = "r") -> str:
    head = store.read(lambda values: read_head(values, run_id))
    assert head is not None
    return head.owner


def test_a_run_that_is_being_worked_on_is_refused_with_who_and_until_when():
    clock = Clock()
    store = MemoryStore(clock=clock)
    taken(store)
    clock.now += 20
    with pytest.raises(RunBusyError, match=r"run 'r' is being worked on \(.+:\d+:\d*\); .* free in 40 s"):
        claim(store, "r", "go")


def test_a_lease_that_lapsed_may_be_taken_and_its_worker_can_write_no_more():
    clock = Clock()
    store = MemoryStore(clock=clock)
    clerk = Clerk([["book"], ["book"]])
    slow = agent(store, clerk)

    def overtaken() -> None:
        if clerk.done["book 0.0"] == 1 and not clerk.done["book 1.0"]:
            clock.now += 61
            other = agent(store, Clerk([]), human=lambda question: False)
            assert other.run("go", run_id="r").output == "all done"

    clerk.kill, clerk.die_in = overtaken, "book 0.0"
    with pytest.raises(LeaseLostError, match="not this worker's any more"):
        slow.run("go", run_id="r")
    assert clerk.done == {"book 0.0": 1}
    assert KeptRuns(store).head("r").status == "completed"


@pytest.mark.parametrize("step", [-1e6, 1e6])
def test_a_clock_that_jumps_never_lets_two_workers_write(step):
    clock = Clock()
    store = MemoryStore(clock=clock)
    first = taken(store)
    clock.now += step
    try:
        second = taken(store)
    except RunBusyError:
        first.renew()
        return
    second.renew()
    with pytest.raises(LeaseLostError):
        first.renew()


def test_a_worker_that_died_on_this_machine_is_seen_at_once():
    program = "from policyengine.durable.lease import new_owner; print(new_owner())"
    dead = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert is_gone(dead)
    mine = new_owner()
    assert not is_gone(mine)
    machine, pid, began = mine.partition("/")[0].rsplit(":", 2)
    assert is_gone(f"{machine}:{pid}:1{began}/x")  # the number was used again
    assert not is_gone(f"elsewhere:{pid}:1{began}/x")
    for strange in ("", "/", "a", ":::", f"{machine}:x:1/y", f"{machine}:{10**30}:1/y", f"{machine}:-1:1/y"):
        assert not is_gone(strange)


def test_a_lease_is_renewed_while_a_call_takes_its_time():
    clock, renewed = Clock(), threading.Event()
    store = MemoryStore(clock=clock)
    keeper = taken(store, lease_s=0.02)
    renew = keeper.renew

    def noted() -> None:
        renew()
        renewed.set()

    keeper.renew = noted  # type: ignore[method-assign]
    with holding(keeper):
        clock.now += 10
        assert renewed.wait(20)
        with pytest.raises(RunBusyError):
            claim(store, "r", "go")
    assert owner(store) == ""


def test_a_lease_that_cannot_be_renewed_is_tried_again():
    store, tried = MemoryStore(), threading.Event()
    keeper = taken(store, lease_s=0.02)
    failures = [StoreError("locked", transient=True)] * 2

    def renew() -> None:
        if failures:
            raise failures.pop()
        tried.set()

    keeper.renew = renew  # type: ignore[method-assign]
    with holding(keeper):
        assert tried.wait(20)


def test_a_run_that_waits_belongs_to_nobody():
    store = MemoryStore()
    clerk = Clerk([["book"]], die_in="book 0.0")
    clerk.kill = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        agent(store, clerk).run("go", run_id="r")
    assert owner(store) == ""
    assert agent(store, Clerk([["book"]])).run("go", run_id="r").status == "waiting"
    assert owner(store) == ""


def test_an_id_stands_for_one_task():
    store = MemoryStore()
    assert agent(store, Clerk([])).run("go", run_id="r").output == "all done"
    with pytest.raises(UsageError, match="run 'r' is about another task: 'go'; give this one an id of its own"):
        agent(store, Clerk([])).run("come", run_id="r")


@pytest.mark.parametrize("run_id", ["", "x" * 501, "a\nb", "\x1b[2J", "a\x00"])
def test_an_id_that_is_none_is_refused(run_id):
    if run_id:
        with pytest.raises(UsageError, match="is no id of a run"):
            agent(MemoryStore(), Clerk([])).run("go", run_id=run_id)
    with pytest.raises(UsageError, match=r"is no id of a run|no run"):
        agent(MemoryStore(), Clerk([])).resume_run(run_id)


@pytest.mark.parametrize("run_id", ["a/1", "a", "a/1/0", "a:b", "日本"])
def test_ids_that_look_like_parts_of_others_stay_apart(run_id):
    store = MemoryStore()
    for other in ("a", "a/1", "a/1/0", "a:b", "日本"):
        assert agent(store, Clerk([["look"], ["look"]])).run(other, run_id=other).status == "completed"
    runs = KeptRuns(store)
    assert next(message.text for message in runs.messages(run_id)) == run_id
    runs.forget(run_id)
    for other in {"a", "a/1", "a/1/0", "a:b", "日本"} - {run_id}:
        outcome = agent(store, Clerk([])).run(other, run_id=other)
        assert isinstance(outcome, Outcome)
        assert outcome.output == "all done"


def test_a_run_without_an_id_is_kept_under_a_new_one():
    store = MemoryStore()
    agent(store, Clerk([])).run("go")
    agent(store, Clerk([])).run("go")
    heads, damaged = KeptRuns(store).heads()
    assert len(heads) == 2
    assert damaged == []


def test_an_agent_without_a_store_has_nothing_to_resume():
    with pytest.raises(UsageError, match="this agent has no store"):
        agent(None, Clerk([])).resume_run("r")
    with pytest.raises(UsageError, match="lease_s must be a number of seconds, 1 or more, not 0"):
        agent(MemoryStore(), Clerk([]), lease_s=0)
    with pytest.raises(UsageError, match="1 or more, not inf"):
        agent(MemoryStore(), Clerk([]), lease_s=math.inf)


FORKS = """
import os, sys
from policyengine.stores.memory import MemoryStore
from tests.durable.clerk import Clerk, agent

clerk, mine = Clerk([["book"], ["book"]], die_in="book 0.0"), os.getpid()

def forked():
    if os.fork() == 0:
        sys.exit()  # which the driver takes for what the tool raised

clerk.kill = forked
try:
    ended = agent(MemoryStore(), clerk).run("go", run_id="r").status
except Exception as error:
    ended = type(error).__name__
print("parent" if os.getpid() == mine else "child", ended, sum(clerk.done.values()), flush=True)
if os.getpid() != mine:
    os._exit(0)
os.wait()
"""


def test_a_process_that_was_forked_in_a_tool_goes_on_with_nothing():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert sorted(done.stdout.splitlines()) == ["child LeaseLostError 1", "parent completed 2"], done.stderr


@pytest.mark.parametrize("failure", [StoreError("locked", transient=True), UsageError("the store is closed")])
def test_the_thread_that_renews_leases_outlives_what_a_store_raises(failure):
    store, renewed = MemoryStore(), threading.Event()
    broken, sound = taken(store, "broken", lease_s=0.02), taken(store, "sound", lease_s=0.02)

    def renew() -> None:
        raise failure

    broken.renew = renew  # type: ignore[method-assign]
    with holding(broken):
        renewed.wait(0.1)
        sound.renew = renewed.set  # type: ignore[method-assign]
        with holding(sound):
            assert renewed.wait(20)


def test_a_store_that_hangs_costs_no_run_in_another_store_its_lease():
    hangs, renewed, over = threading.Event(), threading.Event(), threading.Event()
    slow, sound = taken(MemoryStore(), lease_s=0.02), taken(MemoryStore(), lease_s=0.02)

    def hang() -> None:
        hangs.set()
        over.wait(30)

    slow.renew, sound.renew = hang, renewed.set  # type: ignore[method-assign]
    try:
        with holding(slow):
            assert hangs.wait(20)
            with holding(sound):
                assert renewed.wait(20)
    finally:
        over.set()


def test_a_process_that_gets_no_thread_works_all_the_same(monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = MemoryStore()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert agent(store, Clerk([["look"]])).run("go", run_id="r").status == "completed"
    assert owner(store) == ""


def test_a_clock_that_was_years_ahead_blocks_no_run():
    clock = Clock()
    store = MemoryStore(clock=clock)
    clock.now += 5 * 365 * 86_400
    first = taken(store)
    clock.now -= 5 * 365 * 86_400
    taken(store).renew()
    with pytest.raises(LeaseLostError):
        first.renew()


def test_waiting_tools_and_humans_do_not_keep_other_runs_from_being_kept():
    store = MemoryStore()

    async def everything() -> str:
        blocked = threading.Event()
        waiting = [asyncio.create_task(asyncio.to_thread(blocked.wait, 30)) for _ in range(64)]
        try:
            outcome = await asyncio.wait_for(agent(store, Clerk([["look"]])).arun("go", run_id="r"), 20)
        finally:
            blocked.set()
            await asyncio.gather(*waiting)
        return outcome.status

    # Its tool runs in a thread of its own.
    assert asyncio.run(everything()) == "completed"
