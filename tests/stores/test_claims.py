"""What every store promises, asked of each of them."""

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from policyengine.errors import UsageError
from policyengine.stores import StoreError, open_store
from tests.redis_server import redis_server  # noqa: F401
from tests.stores.places import KINDS, Place, count, get, put


@pytest.fixture(params=KINDS)
def place(request, tmp_path):
    server = request.getfixturevalue("redis_server") if request.param == "redis" else None
    place = Place(request.param, tmp_path, server)
    yield place
    place.close()


def test_what_was_written_is_read_by_everybody_who_opens_the_place(place):
    store = place.open()
    assert get(store, "run", "a") is None
    put(store, "run", "a", b"1\x00\xff")
    assert get(place.open(), "run", "a") == b"1\x00\xff"
    store.close()
    assert get(place.open(), "run", "a") == b"1\x00\xff"


def test_update_returns_what_the_change_returns_also_none(place):
    store = place.open()
    assert store.update(lambda values: None) is None
    assert store.update(lambda values: values.put("run", "a", b"")) is None
    assert store.update(lambda values: 7) == 7
    assert get(store, "run", "a") == b""
    assert store.read(lambda values: None) is None


def test_what_raises_leaves_nothing(place):
    store = place.open()
    put(store, "run", "a", b"1")
    put(store, "run", "b", b"1")

    def failing(values):
        values.put("run", "a", b"2")
        values.put("run", "c", b"2")
        values.delete("run", "b")
        values.forget("run", float("inf"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.update(failing)
    assert store.read(lambda values: values.keys("run")) == ("a", "b")
    assert get(store, "run", "a") == b"1"
    assert count(store) == 1


def test_an_interrupted_change_leaves_nothing_and_the_store_goes_on(place):
    store = place.open()

    def interrupted(values):
        values.put("run", "a", b"2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.update(interrupted)

    def looking(values):
        values.get("run", "a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.read(looking)
    assert get(store, "run", "a") is None
    assert count(store) == 1


def test_a_change_reads_what_it_wrote(place):
    store = place.open()
    put(store, "run", "old", b"1")
    put(store, "run", "gone", b"1")

    def change(values):
        values.put("run", "new", b"2")
        values.put("run", "old", b"3")
        values.delete("run", "gone")
        values.delete("run", "never there")
        return values.get("run", "new"), values.get("run", "old"), values.get("run", "gone"), values.keys("run")

    assert store.update(change) == (b"2", b"3", None, ("new", "old"))
    assert store.read(lambda values: values.keys("run")) == ("new", "old")


def test_keys_are_those_of_one_kind_with_a_prefix_in_order(place):
    store = place.open()
    names = (
        "a/b",
        "a",
        "a/",
        "a/\U0001f600",
        "a/\uffff",
        "b",
        "A",
        "a:b",
        "",
        "a%b",
        "a\nb",
        "a*",
        "[a]",
        "a\x00b",
        "é",
    )
    store.update(lambda values: [values.put("run", name, name.encode()) for name in names])
    store.update(lambda values: [values.put(kind, "x", b"") for kind in ("ru", "run:a", "run:", "run%3A", "RUN", "")])
    assert store.read(lambda values: values.keys("run")) == tuple(sorted(names))
    for prefix in ("a", "a/", "a:", "", "z", "*", "a\0", "é"):
        wanted = tuple(sorted(name for name in names if name.startswith(prefix)))
        assert store.read(lambda values, prefix=prefix: values.keys("run", prefix)) == wanted
    for name in names:
        assert get(store, "run", name) == name.encode()
    for kind in ("ru", "run:a", "run:", "run%3A", "RUN", ""):
        assert store.read(lambda values, kind=kind: values.keys(kind)) == ("x",)


def test_a_key_that_is_no_text_is_refused(place):
    store = place.open()
    for use in (
        lambda values: values.put("run", "\ud800", b""),
        lambda values: values.get("run", "\ud800"),
        lambda values: values.keys("run", "\ud800"),
        lambda values: values.delete("\ud800", "a"),
        lambda values: values.forget("\ud800", 1.0),
    ):
        with pytest.raises(UsageError):
            store.update(use)
    assert count(store) == 1


def test_large_values_are_kept(place):
    store = place.open()
    large = os.urandom(1 << 20) * 8
    put(store, "run", "a", large)
    assert get(place.open(), "run", "a") == large


def test_time_stands_still_within_a_transaction(place):
    store = place.open()

    def look(values):
        before = values.now()
        place.time += 5
        return before, values.now()

    for way in (store.update, store.read):
        first, second = way(look)
        assert first == second
    assert store.read(lambda values: values.now()) > first or place.kind == "memory"


def test_what_is_older_is_forgotten(place):
    store = place.open()
    for name in ("a", "b", "c"):
        put(store, "run", name, b"1")
        place.time += 10
        written = store.read(lambda values: values.now())
    put(store, "other", "a", b"1")
    put(store, "run", "a", b"2")  # written anew
    assert store.update(lambda values: values.forget("run", written)) == 2
    assert store.read(lambda values: values.keys("run")) == ("a",)
    assert store.read(lambda values: values.keys("other")) == ("a",)
    assert store.update(lambda values: values.forget("run", float("-inf"))) == 0
    assert store.update(lambda values: values.forget("run", float("inf"))) == 1
    assert store.update(lambda values: values.forget("run", float("inf"))) == 0


def test_what_a_change_wrote_it_may_forget(place):
    store = place.open()
    put(store, "run", "a", b"1")

    def change(values):
        values.put("run", "b", b"1")
        values.put("run", "a", b"2")
        values.put("run", "c", b"1")
        values.delete("run", "c")
        return values.forget("run", values.now() + 60), values.keys("run"), values.get("run", "a")

    assert store.update(change) == (2, (), None)
    assert store.read(lambda values: values.keys("run")) == ()


def test_values_are_not_to_be_used_outside(place):
    store = place.open()
    kept = store.update(lambda values: values)
    looked = store.read(lambda values: values)
    for values in (kept, looked):
        for use in (
            lambda values: values.get("run", "a"),
            lambda values: values.put("run", "a", b""),
            lambda values: values.delete("run", "a"),
            lambda values: values.keys("run"),
            lambda values: values.forget("run", 1.0),
            lambda values: values.now(),
        ):
            with pytest.raises(UsageError):
                use(values)


def test_who_reads_cannot_write(place):
    store = place.open()
    for use in (
        lambda values: values.put("run", "a", b""),
        lambda values: values.delete("run", "a"),
        lambda values: values.forget("run", 1.0),
    ):
        with pytest.raises(UsageError):
            store.read(use)


def test_a_store_is_not_used_inside_itself(place):
    store = place.open()
    for outer in (store.update, store.read):
        for inner in (store.update, store.read):
            with pytest.raises(UsageError, match="inside its own"):
                outer(lambda values, inner=inner: inner(lambda values: None))
    assert count(store) == 1


def test_reading_holds_up_no_writer_and_sees_one_state(place):
    if place.kind == "memory":
        return  # there, they take turns
    store, other = place.open(), place.open()
    store.update(lambda values: [values.put("run", name, b"0") for name in "ab"])
    seen = []

    def look(values):
        first = values.get("run", "a")
        if len(seen) < 2:
            other.update(lambda values: [values.put("run", name, str(len(seen)).encode() * 3) for name in "ab"])
        seen.append((first, values.get("run", "b")))
        return seen[-1]

    first, second = store.read(look)
    assert first == second


def test_a_closed_store_says_so(place):
    store = place.open()
    count(store)
    store.close()
    store.close()
    if place.kind != "memory":
        with pytest.raises(UsageError, match="closed"):
            count(store)
        with pytest.raises(UsageError, match="closed"):
            store.read(lambda values: values.now())


@pytest.mark.parametrize("shared", [True, False], ids=["one store", "a store each"])
def test_a_hundred_threads_lose_no_update(place, shared):
    store = place.open()
    failed = []

    def work():
        mine = store if shared else place.open()
        try:
            for _ in range(5):
                count(mine)
                mine.read(lambda values: (values.get("number", "n"), values.keys("number")))
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert get(store, "number", "n") == b"500"


WRITER = """
import sys
from policyengine.stores import open_store
place, times = sys.argv[1:]
store = open_store(place)

def change(values):
    number = int(values.get("number", "n") or b"0") + 1
    for name in ("n", "copy"):
        values.put("number", name, str(number).encode())
    values.put("each", str(number), b"")
    return number

for _ in range(int(times)):
    print(store.update(change), flush=True)
"""


def writer(place, times, **how):
    command = [sys.executable, "-P", "-c", WRITER, place.text(), str(times)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, **how)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_sixteen_processes_lose_no_update(kind, tmp_path, request):
    place = Place(kind, tmp_path, request.getfixturevalue("redis_server") if kind == "redis" else None)
    started = [writer(place, 25) for _ in range(16)]
    said = [process.communicate(timeout=300)[0].split() for process in started]
    assert [process.returncode for process in started] == [0] * 16
    assert sorted(int(number) for numbers in said for number in numbers) == list(range(1, 401))
    assert get(place.open(), "number", "n") == b"400"
    place.close()


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_killed_writers_lose_nothing_that_was_acknowledged_and_leave_no_half(kind, tmp_path, request):
    place = Place(kind, tmp_path, request.getfixturevalue("redis_server") if kind == "redis" else None)
    store = place.open()
    least = 0
    for number in range(10):
        process = writer(place, 100_000)
        for _ in range(number % 5 + 1):
            line = process.stdout.readline()
        process.kill()  # at some point of the next ones
        rest = process.stdout.read().split()  # `communicate` would overlook what is buffered
        process.stdout.close()
        process.wait(60)
        least = int(rest[-1] if rest else line)
        while kind == "redis" and place.server.say("INFO", "clients")["connected_clients"] > 2:
            continue  # the server has not yet done all that was sent to it
        copies = store.read(lambda values: (values.get("number", "n"), values.get("number", "copy")))
        assert copies[0] == copies[1]
        assert least <= int(copies[0]) <= least + 1
        keys = store.read(lambda values: values.keys("each"))
        assert sorted(map(int, keys)) == list(range(1, int(copies[0]) + 1))
    place.close()


# --- against a model ------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(("a", "a/b", "a:b", "é", ""))
OF = st.sampled_from(("run", "run:x"))
LOOK = st.one_of(
    st.tuples(st.just("get"), OF, NAMES),
    st.tuples(st.just("keys"), OF, st.sampled_from(("", "a", "a/"))),
)
STEP = st.one_of(
    LOOK,
    st.tuples(st.just("put"), OF, NAMES, st.binary(max_size=4)),
    st.tuples(st.just("delete"), OF, NAMES),
    st.tuples(st.just("forget"), OF, st.sampled_from((float("-inf"), 0.0, float("inf")))),
)


class Model(dict):
    """What a store should hold: (kind, key) to (value, time)."""

    def apply(self, step, now):
        match step:
            case ("put", kind, key, value):
                self[kind, key] = value, now
            case ("delete", kind, key):
                self.pop((kind, key), None)
            case ("get", kind, key):
                return self.get((kind, key), (None, 0))[0]
            case ("keys", kind, prefix):
                return tuple(sorted(key for of, key in self if of == kind and key.startswith(prefix)))
            case ("forget", kind, before):
                old = [name for name, (_, at) in self.items() if name[0] == kind and at < now + before]
                for name in old:
                    del self[name]
                return len(old)
        return None


def applied(values, step):
    if step[0] == "forget":
        return values.forget(step[1], values.now() + step[2])
    return getattr(values, step[0])(*step[1:])


def machine_for(place):
    numbers = iter(range(10**9))

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.place = Place(place.kind, place.path.parent, place.server, f"m{next(numbers)}")
            self.store = self.place.open()
            self.model = Model()

        @rule(steps=st.lists(STEP, max_size=6), fails=st.booleans())
        def update(self, steps, fails):
            def change(values):
                model = Model(self.model)
                for step in steps:
                    assert applied(values, step) == model.apply(step, values.now())
                if fails:
                    raise ZeroDivisionError
                return model

            try:
                self.model = self.store.update(change)
            except ZeroDivisionError:
                assert fails
            self.place.time += 1

        @rule(steps=st.lists(LOOK, max_size=4))
        def read(self, steps):
            found = self.store.read(lambda values: [applied(values, step) for step in steps])
            assert found == [self.model.apply(step, 0.0) for step in steps]

        @rule()
        def open_again(self):
            self.store.close()  # memory goes on
            self.store = self.place.open()

        @invariant()
        def holds_what_the_model_holds(self):
            for kind in ("run", "run:x"):
                keys = self.store.read(lambda values, kind=kind: values.keys(kind))
                assert keys == self.model.apply(("keys", kind, ""), 0.0)

        def teardown(self):
            self.place.close()

    return Machine


def test_a_store_is_a_dictionary_with_times(place):
    slow = [HealthCheck.too_slow]
    how = settings(max_examples=30, stateful_step_count=15, deadline=None, suppress_health_check=slow)
    run_state_machine_as_test(machine_for(place), settings=how)


# --- places ---------------------------------------------------------------------------------------------------------


def test_a_place_says_which_store_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"memory:": "MemoryStore", "sqlite:a:b.sqlite": "SqliteStore", "c.sqlite": "SqliteStore"}
    names |= {str(tmp_path / "d:e.sqlite"): "SqliteStore", "./f:g": "SqliteStore", "h?i#j%20": "SqliteStore"}
    for place, name in names.items():
        store = open_store(place)
        assert type(store).__name__ == name
        assert count(store) == 1
        store.close()
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"a:b.sqlite", "c.sqlite", "d:e.sqlite", "f:g", "h?i#j%20"}


def test_two_memories_have_nothing_in_common():
    assert count(open_store("memory:")) == count(open_store("memory:")) == 1


@pytest.mark.parametrize("place", ["", "sqlite:", "postgres://h/d", "http://h", "redis:h", "memory:x", "a:b", "a\0b"])
def test_other_places_are_refused(place):
    with pytest.raises(UsageError, match="no store is known by"):
        open_store(place)


def test_a_store_error_says_whether_to_try_again():
    error = StoreError("x")
    assert (error.transient, error.unknown) == (False, False)


def test_many_values_are_got_at_once_as_each_would_be(place):
    store = place.open()
    store.update(lambda values: [values.put("run", str(number), b"%d" % number) for number in range(1200)])

    def change(values):
        values.put("run", "1", b"new")
        values.delete("run", "2")
        return values.get_many("run", ["0", "1", "2", "never there", "1199", "0"])

    wanted = {"0": b"0", "1": b"new", "1199": b"1199"}
    assert store.update(change) == wanted
    assert store.read(lambda values: values.get_many("run", iter(["0", "1", "2", "1199"]))) == wanted
    everything = store.read(lambda values: values.get_many("run", values.keys("run")))
    assert (len(everything), everything["700"]) == (1199, b"700")
    assert store.read(lambda values: values.get_many("run", [])) == {}
