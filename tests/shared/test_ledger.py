"""A ledger over every store: reserved together, settled later, and told truly while the store does not answer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from policyengine import Engine, Ledger, UsageError
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.shared.pools import Due, Need, Pool
from policyengine.stores import StoreError, open_store
from policyengine.stores.memory import MemoryStore
from tests.redis_server import redis_proxy, redis_server  # noqa: F401

CALLS = Pool("team", "tool_calls", 10, wait_s=20.0)
TOKENS = Pool("team", "tokens", 100, 3600.0, wait_s=20.0)


def need(pool, amount=1):
    return Need("rule", pool, pool.key(conversation="", agent=""), amount)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def ledger(request, tmp_path):
    if request.param == "redis":
        store = open_store(request.getfixturevalue("redis_server").url())
    else:
        store = open_store("memory:" if request.param == "memory" else str(tmp_path / "shared.db"))
    yield Ledger(store)
    store.close()


def test_all_needs_of_an_event_are_reserved_at_once_and_settled_one_by_one(ledger):
    calls, tokens = ledger.reserve((need(CALLS, 3), need(TOKENS, 40)), "run-1")
    assert (calls.granted, tokens.granted, calls.state) == (3, 40, "ok")
    assert calls.at > 1e9
    ledger.settle(CALLS, calls, 1)
    ledger.settle(TOKENS, tokens, 70)
    ledger.add(TOKENS, 5)
    assert (ledger.used(CALLS), ledger.used(TOKENS)) == (1, 75)


def test_threads_never_get_more_than_there_is(ledger):
    with ThreadPoolExecutor(8) as threads:
        grants = list(threads.map(lambda _: ledger.reserve((need(CALLS),))[0], range(40)))
    assert [grant.state for grant in grants] == ["ok"] * 40
    assert sum(grant.granted for grant in grants) == 10
    assert ledger.used(CALLS) == 10


def test_old_counts_can_be_forgotten(ledger):
    ledger.reserve((need(CALLS),))
    assert ledger.forget(3600) == 0
    assert ledger.forget(-3600) == 1
    assert ledger.used(CALLS) == 0


def test_what_a_pool_holds_is_found_by_the_rule_that_counts_in_it(ledger):
    text = """apiVersion: policyengine/v1
kind: Policy
name: t
extensions:
  searches: {use: shared_limit, with: {counts: tool_calls, limit: 10, pool: team}}
"""
    engine = Engine(load_policy_text(text, registry=builtin_registry()))
    ledger.reserve((need(CALLS, 3),))
    assert ledger.used(engine, "searches") == ledger.used(engine.snapshot, "searches") == 3
    with pytest.raises(UsageError, match="no rule 'search' counts in a pool; those that do: searches"):
        ledger.used(engine, "search")
    with pytest.raises(UsageError, match="give a Pool"):
        ledger.used("searches")


def test_no_store_is_said_at_once():
    with pytest.raises(UsageError, match="a ledger needs a store"):
        Ledger("redis://somewhere")  # type: ignore[arg-type]


# ---- a store that does not answer


class Ticking:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Flaky(MemoryStore):
    """Fails as often as it is told to, before or after it did its work."""

    def __init__(self):
        super().__init__()
        self.failing: list[str] = []
        self.asked = 0

    def update(self, change):
        self.asked += 1
        how = self.failing.pop(0) if self.failing else ""
        if how == "before":
            raise StoreError("out of reach", transient=True)
        result = super().update(change)
        if how == "after":
            raise StoreError("no answer", transient=True, unknown=True)
        return result


def flaky():
    clock, store = Ticking(), Flaky()
    return clock, store, Ledger(store, retry_s=1.0, clock=clock)


def test_a_store_that_fails_is_told_as_down_and_not_asked_again_for_a_while():
    clock, store, ledger = flaky()
    store.failing = ["before"]
    assert [ledger.reserve((need(CALLS),))[0].state for _ in range(3)] == ["down"] * 3
    assert store.asked == 1
    clock.now = 1.0
    assert ledger.reserve((need(CALLS),))[0].state == "ok"
    assert ledger.used(CALLS) == 1


def test_what_could_not_be_settled_is_settled_with_the_next_transaction():
    clock, store, ledger = flaky()
    grant = ledger.reserve((need(TOKENS, 40),))[0]
    store.failing = ["before"]
    ledger.perform((), (Due(TOKENS, grant.key, -30, grant.at), Due(TOKENS, grant.key, 7)))
    ledger.perform((), (Due(TOKENS, grant.key, 3),))
    assert ledger.owed == 2
    assert ledger.used(TOKENS) == 40
    clock.now = 1.0
    assert ledger.reserve((need(TOKENS, 10),))[0].used == 20
    assert ledger.owed == 0


def test_what_may_have_been_settled_is_never_given_back_twice():
    clock, store, ledger = flaky()
    grant = ledger.reserve((need(TOKENS, 40),))[0]
    store.failing = ["after"]
    ledger.perform((), (Due(TOKENS, grant.key, -30, grant.at), Due(TOKENS, grant.key, 5)))
    clock.now = 1.0
    ledger.reserve((need(TOKENS, 10),))
    assert ledger.used(TOKENS) == 40 - 30 + 5 + 5 + 10  # what was added may count twice


def test_a_reservation_that_comes_too_late_is_given_back():
    class Slow(MemoryStore):
        def __init__(self):
            super().__init__()
            self.go, self.done = threading.Event(), threading.Event()

        def update(self, change):
            self.go.wait(30)
            try:
                return super().update(change)
            finally:
                self.done.set()

    clock, store = Ticking(), Slow()
    ledger = Ledger(store, clock=clock)
    hurried = Pool("team", "tool_calls", 10, wait_s=0.05)
    assert ledger.reserve((need(hurried, 4),))[0].state == "down"
    store.go.set()
    assert store.done.wait(30)
    for _ in range(1000):
        if ledger.owed:
            break
        threading.Event().wait(0.01)
    clock.now = 10.0
    assert ledger.reserve((need(CALLS, 1),))[0].used == 0


def test_a_damaged_count_is_down_and_does_not_count_from_nothing():
    _, store, ledger = flaky()
    key = need(CALLS).key
    store.update(lambda values: values.put("pool", key, b"\xff damaged"))
    assert ledger.reserve((need(CALLS),))[0].state == "down"


def test_what_is_owed_stays_bounded(monkeypatch):
    monkeypatch.setattr("policyengine.shared.ledger.MOST_OWED", 3)
    _, store, ledger = flaky()
    store.failing = ["before"]
    ledger.perform((), tuple(Due(CALLS, f"key-{number}", 1) for number in range(10)))
    assert ledger.owed == 3


# ---- Redis behind a network that fails


class Watched:
    """A store that knows who is still inside, so that no test leaves a thread behind that was given up."""

    def __init__(self, store):
        self.store, self.inside, self.changed = store, 0, threading.Condition()

    def update(self, change):
        with self.changed:
            self.inside += 1
        try:
            return self.store.update(change)
        finally:
            with self.changed:
                self.inside -= 1
                self.changed.notify_all()

    def close(self):
        with self.changed:
            assert self.changed.wait_for(lambda: not self.inside, 60)
        self.store.close()


def test_redis_slow_gone_and_back(redis_server, redis_proxy):  # noqa: F811
    clock = Ticking()
    store = Watched(open_store(redis_server.url(port=redis_proxy.port)))
    ledger = Ledger(store, clock=clock)
    patient, hurried = (Pool("team", "tool_calls", 10, wait_s=wait_s) for wait_s in (30.0, 0.2))
    assert ledger.reserve((need(patient, 2),))[0].granted == 2

    redis_proxy.delay_s = 0.5
    assert ledger.reserve((need(patient),))[0].state == "ok"
    assert ledger.reserve((need(hurried),))[0].state == "down"
    clock.now += 1
    redis_proxy.mend()
    assert ledger.reserve((need(patient, 0),))[0].state == "ok"

    redis_proxy.cut()
    grant = ledger.reserve((need(patient, 3),))[0]
    assert (grant.state, grant.granted) == ("down", 0)
    ledger.perform((), (Due(patient, grant.key, 2),))  # ran all the same: `when_down: allow`
    clock.now += 1
    redis_proxy.mend()
    grant = ledger.reserve((need(patient, 100),))[0]
    assert grant.state == "ok"
    assert grant.used >= 2 + 1 + 2
    assert grant.used + grant.granted == 10
    store.close()


@pytest.mark.parametrize("how", ["cut", "cut_answer", "swallow_answer", "hold"])
def test_whatever_the_network_does_to_a_reservation_no_more_is_granted_than_there_is(redis_server, redis_proxy, how):  # noqa: F811
    clock = Ticking()
    store = Watched(open_store(redis_server.url(port=redis_proxy.port)))
    ledger = Ledger(store, clock=clock)
    pool = Pool("team", "tool_calls", 6, wait_s=0.5)
    granted = ledger.reserve((need(pool, 2),))[0].granted
    redis_proxy.when(b"EXEC", how)
    granted += ledger.reserve((need(pool, 2),))[0].granted
    redis_proxy.release()
    for _ in range(5):
        clock.now += 1
        granted += ledger.reserve((need(pool, 2),))[0].granted
    assert granted <= 6
    store.close()


def test_settling_waits_no_longer_than_the_rule_says():
    class Hanging(MemoryStore):
        def update(self, change):
            threading.Event().wait(30)

    waits = []

    def limited(function, limit):
        waits.append(limit)
        return False, None, None

    ledger = Ledger(Hanging())
    hurried = Pool("team", "tool_calls", 10, wait_s=0.05)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("policyengine.shared.ledger.call_with_limit", limited)
        ledger.perform((), (Due(hurried, need(hurried).key, 1),))
    assert waits == [0.05]
