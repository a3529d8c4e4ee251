"""The arithmetic of pools: windows, reservations, settling, clocks that jump."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.shared.alone import Alone
from policyengine.shared.pools import Due, Need, Pool
from policyengine.shared.reckon import BUCKETS, KIND, Tally, used_of

WINDOW = 60.0


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def pool(counts="tool_calls", limit=5, window_s=WINDOW, **options):
    return Pool("team", counts, limit, window_s, **options)


def need(of, amount=1, rule="rule"):
    return Need(rule, of, of.key(conversation="c", agent="a"), amount)


def reserve(kept, of, amount=1):
    return kept.perform((need(of, amount),))[0]


def settle(kept, of, grant, used):
    kept.perform((), (Due(of, grant.key, used - grant.granted, grant.at),))


def total(kept, of):
    return used_of(kept, of, need(of).key)


def test_places_are_granted_up_to_the_limit_and_a_batch_gets_what_is_left():
    kept = Alone(Clock())
    first, second, third = (reserve(kept, pool(), 2) for _ in range(3))
    assert [(grant.granted, grant.used) for grant in (first, second, third)] == [(2, 0), (2, 2), (1, 4)]
    assert reserve(kept, pool()).granted == 0
    assert total(kept, pool()) == 5


def test_of_tokens_all_is_granted_or_nothing():
    kept = Alone(Clock())
    tokens = pool("tokens", 100)
    assert [reserve(kept, tokens, 40).granted for _ in range(3)] == [40, 40, 0]
    assert reserve(kept, tokens, 20).granted == 20


def test_a_breaker_is_looked_at_and_never_reserved():
    kept = Alone(Clock())
    failures = pool("tool_failures", 2)
    kept.perform((), (Due(failures, need(failures).key, 1),) * 2)
    grant = reserve(kept, failures, 0)
    assert (grant.granted, grant.used, grant.limit) == (0, 2, 2)


def test_what_is_older_than_the_window_counts_no_more_and_nothing_is_forgotten_early():
    clock = Clock(1000.0)
    kept = Alone(clock)
    reserve(kept, pool(), 5)
    clock.now += WINDOW
    assert total(kept, pool()) == 5
    clock.now += WINDOW / BUCKETS
    assert total(kept, pool()) == 0
    assert reserve(kept, pool(), 5).granted == 5


def test_without_a_window_nothing_is_ever_forgotten():
    clock = Clock()
    kept = Alone(clock)
    forever = pool(window_s=None)
    reserve(kept, forever, 5)
    clock.now += 1e9
    assert reserve(kept, forever).granted == 0


def test_what_is_given_back_is_taken_from_where_it_was_reserved():
    clock = Clock()
    kept = Alone(clock)
    grant = reserve(kept, pool(), 3)
    clock.now += 30
    reserve(kept, pool(), 2)
    kept.perform((), (Due(pool(), grant.key, -3, grant.at),))
    assert total(kept, pool()) == 2
    clock.now += 31
    assert total(kept, pool()) == 2  # the younger ones


def test_nothing_can_be_given_back_that_does_not_count_any_more():
    clock = Clock()
    kept = Alone(clock)
    grant = reserve(kept, pool(), 3)
    clock.now += 2 * WINDOW
    reserve(kept, pool(), 2)
    kept.perform((), (Due(pool(), grant.key, -3, grant.at),) * 2)
    assert total(kept, pool()) == 2


def test_two_rules_on_one_pool_are_held_against_their_own_limits_and_counted_once():
    kept = Alone(Clock())
    low, high = pool(limit=2), pool(limit=4)
    grants = kept.perform((need(low, 3, "low"), need(high, 3, "high")))
    assert [grant.granted for grant in grants] == [2, 3]
    assert total(kept, high) == 3


def test_a_clock_set_back_a_little_stands_still():
    clock = Clock()
    kept = Alone(clock)
    reserve(kept, pool(), 3)
    clock.now -= WINDOW / 2
    grant = reserve(kept, pool(), 2)
    assert grant.granted == 2
    kept.perform((), (Due(pool(), grant.key, -2, grant.at),))
    assert total(kept, pool()) == 3
    clock.now += WINDOW / 2 + WINDOW
    assert total(kept, pool()) == 3
    clock.now += WINDOW / BUCKETS
    assert total(kept, pool()) == 0


def test_a_clock_set_back_by_years_does_not_lock_the_pool_for_years():
    clock = Clock(2e9)
    kept = Alone(clock)
    reserve(kept, pool(), 5)
    clock.now = 1e9
    assert reserve(kept, pool()).granted == 0
    clock.now += WINDOW + WINDOW / BUCKETS
    assert reserve(kept, pool(), 5).granted == 5


@pytest.mark.parametrize(("long", "short"), [(86_400.0, 60.0), (None, 60.0), (86_400.5, 86_400.0)])
def test_pools_of_one_name_with_other_windows_have_counts_of_their_own(long, short):
    clock = Clock()
    kept = Alone(clock)
    reserve(kept, pool(window_s=long), 5)
    clock.now += 7200
    assert reserve(kept, pool(window_s=short), 5).granted == 5
    assert total(kept, pool(window_s=long)) == 5
    assert reserve(kept, pool(window_s=long)).granted == 0


@pytest.mark.parametrize("used", [5, 0])
def test_after_a_clock_was_set_back_nothing_is_taken_from_what_was_reserved_later(used):
    clock = Clock(2e9)
    kept = Alone(clock)
    grant = reserve(kept, pool(), 5)
    if not used:  # all of it was given back
        settle(kept, pool(), grant, 0)
    clock.now -= 3 * WINDOW
    reserve(kept, pool())
    clock.now = 2e9
    later = reserve(kept, pool(), 5)
    settle(kept, pool(), grant, 0)
    assert total(kept, pool()) == 5
    clock.now += 2 * WINDOW  # from here on it is sure again
    settle(kept, pool(), reserve(kept, pool(), 4), 1)
    assert (later.granted, total(kept, pool())) == (5, 1)


def test_keys_tell_pools_conversations_and_agents_apart_and_stay_short():
    keys = [
        pool(per=per).key(conversation=c, agent=a) for per in ("", "conversation", "agent") for c in "xy" for a in "xy"
    ]
    assert len(set(keys)) == 1 + 2 + 2
    assert pool("tokens").key(conversation="", agent="") != pool("cost").key(conversation="", agent="")
    sly = Pool("team/agent/x", "tool_calls", 5, WINDOW)
    assert sly.key(conversation="", agent="") != pool(per="agent").key(conversation="", agent="x")
    strange = pool(per="agent").key(conversation="", agent="\ud800" * 1000)
    assert len(strange) < 100
    assert strange.isascii()


asked = st.lists(st.tuples(st.integers(0, 160), st.integers(1, 4)), min_size=1, max_size=40)


@settings(deadline=None)
@given(asked, st.integers(1, 12))
def test_in_no_window_is_more_granted_than_the_limit(happened, limit):
    clock = Clock()
    kept = Alone(clock)
    of = pool(limit=limit)
    granted = []
    for quarters, amount in happened:
        clock.now += quarters / 4
        grant = reserve(kept, of, amount)
        granted.append((clock.now, grant.granted))
        assert grant.granted == min(amount, limit - grant.used)
        within = sum(number for then, number in granted if then >= clock.now - WINDOW)
        assert within <= limit


events = st.lists(st.tuples(st.integers(-200, 200), st.integers(0, 5), st.integers(-5, 5)), min_size=1, max_size=40)


@settings(deadline=None)
@given(events, st.sampled_from([None, 1.0, WINDOW, 86400.0]))
def test_a_count_stays_small_and_never_negative_whatever_the_clock_does(happened, window_s):
    clock = Clock(0.0)
    kept = Alone(clock)
    of = pool(limit=20, window_s=window_s)
    grants = []
    for step, amount, change in happened:
        clock.now += step
        grants.append(reserve(kept, of, amount))
        kept.perform((), (Due(of, grants[0].key, change, grants[len(grants) // 2].at),))
        value = kept.get(KIND, grants[0].key)
        tally = Tally() if value is None else msgspec.json.decode(value, type=Tally)
        assert len(tally.parts) <= BUCKETS + 1
        assert all(part >= 0 for part in tally.parts.values())
        assert grants[-1].granted + grants[-1].used <= max(of.limit, grants[-1].used)
