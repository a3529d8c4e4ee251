"""Times of recordings: seconds since the first one, in whatever way they are written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policyengine.recordings.clock import Clock

TIMES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.datetimes().map(str), st.lists(st.none())
)


def test_times_count_from_the_first_one_in_any_spelling():
    clock = Clock()
    spelled = (None, "2025-05-01T10:00:00Z", "2025-05-01T12:00:01.5+02:00", 1746093603)
    assert [clock.at(value) for value in spelled] == [None, 0, 1.5, 3]


def test_a_time_without_a_zone_does_not_depend_on_this_machine():
    clock = Clock()
    clock.at("2025-03-30T00:30:00")
    assert clock.at("2025-03-30T03:30:00") == 3 * 3600


@given(st.lists(TIMES))
def test_no_value_raises_and_time_never_goes_back(values):
    clock = Clock()
    read = [at for at in map(clock.at, values) if at is not None]
    assert read == sorted(read)
    assert all(at >= 0 for at in read)
