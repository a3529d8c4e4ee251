"""A store in a Redis server: conflicts, lost connections, servers that are not what they should be."""

import os
import re
import socket
import subprocess
import sys
import threading

import pytest

from policyengine.errors import UsageError
from policyengine.stores import StoreError, open_store
from tests.redis_server import RedisServer, need_redis, redis_proxy, redis_server  # noqa: F401
from tests.stores.places import count, get, put


class Pauses(list):
    """Stands for `sleep`: nobody waits."""

    def __call__(self, seconds):
        self.append(seconds)


def opened(url, **options):
    from policyengine.stores.redis import RedisStore

    options = {"sleep": Pauses(), "jitter": lambda: 1.0, "connect_s": 10.0, "command_s": 10.0} | options
    return RedisStore(url, **options)


@pytest.fixture
def started(tmp_path):
    """Start a server with options of its own; all are stopped at the end."""
    need_redis()
    servers = []

    def start(*options):
        servers.append(RedisServer(tmp_path, *options))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def store(redis_server):  # noqa: F811
    store = opened(redis_server.url())
    yield store
    store.close()


@pytest.fixture
def beside(redis_server):  # noqa: F811
    """The same store by another handle: somebody else."""
    store = opened(redis_server.url())
    yield store
    store.close()


@pytest.fixture
def far(redis_server, redis_proxy):  # noqa: F811
    """The same store behind a network that a test may break."""
    store = opened(redis_server.url(port=redis_proxy.port))
    yield store
    store.close()


@pytest.fixture
def hasty(redis_server, redis_proxy):  # noqa: F811
    """The same store behind that network; it waits for a moment only."""
    store = opened(redis_server.url(port=redis_proxy.port), command_s=1.0)
    yield store
    store.close()


def patiently(work):
    """Return what something returns in the end: a busy machine may be silent for a moment, too."""
    for _ in range(20):
        try:
            return work()
        except StoreError as error:
            if not error.transient:
                raise
    raise AssertionError("the store never answers")


def failure(work, match, *, transient=False, unknown=False):
    with pytest.raises(StoreError, match=match) as caught:
        work()
    assert (caught.value.transient, caught.value.unknown) == (transient, unknown), caught.value


# --- conflicts ------------------------------------------------------------------------------------------------------


def test_who_was_too_late_is_asked_again(store, beside):
    calls = []

    def change(values):
        number = int(values.get("number", "n") or b"0")
        calls.append(number)
        if len(calls) < 3:
            count(beside)
        values.put("number", "n", str(number + 1).encode())

    store.update(change)
    assert calls == [0, 1, 2]
    assert get(store, "number", "n") == b"3"


def test_somebody_who_writes_something_else_is_no_conflict(store, beside):
    calls = []

    def change(values):
        calls.append(values.get("number", "n"))
        count(beside, "other")
        values.put("number", "n", b"7")

    store.update(change)
    assert len(calls) == 1


def test_who_only_reads_in_an_update_is_alone_with_it_too(store, beside):
    put(store, "run", "a", b"0")
    put(store, "run", "b", b"0")

    def change(values):
        first = values.get("run", "a")
        if first == b"0":
            beside.update(lambda values: [values.put("run", name, b"1") for name in "ab"])
        return first, values.get("run", "b")

    assert store.update(change) == (b"1", b"1")


def test_a_change_that_fails_because_it_saw_half_of_another_one_is_asked_again(store, beside):
    for name in "ab":
        put(store, "run", name, b"0")

    def look(values):
        first = values.get("run", "a")
        if first == b"0":
            beside.update(lambda values: [values.put("run", name, b"1") for name in "ab"])
        if first != values.get("run", "b"):
            raise AssertionError("never to be seen")
        return first

    assert store.read(look) == b"1"
    beside.update(lambda values: [values.put("run", name, b"0") for name in "ab"])
    assert store.update(look) == b"1"


def test_who_is_always_too_late_is_told_so_after_pauses_that_grow(redis_server, beside):  # noqa: F811
    pauses = Pauses()
    store = opened(redis_server.url(), attempts=12, sleep=pauses)

    def change(values):
        values.get("number", "n")
        count(beside)
        values.put("number", "n", b"0")

    failure(lambda: store.update(change), "others were faster 12 times; try again later", transient=True)
    assert pauses == [0.002, 0.004, 0.008, 0.016, 0.032, *[0.05] * 6]
    assert get(store, "number", "n") == b"12"
    store.close()


def test_what_is_written_anew_meanwhile_is_not_forgotten(store, beside):
    put(store, "run", "a", b"1")
    put(store, "run", "b", b"1")
    calls = []

    def change(values):
        forgotten = values.forget("run", values.now() if not calls else old)
        if not calls:
            put(beside, "run", "a", b"2")
        calls.append(forgotten)
        return forgotten

    old = store.read(lambda values: values.now())
    assert store.update(change) == 1
    assert calls == [2, 1]
    assert get(store, "run", "a") == b"2"
    assert store.read(lambda values: values.keys("run")) == ("a",)


# --- the network ----------------------------------------------------------------------------------------------------


def test_a_change_that_never_arrived_is_made_once(far, redis_proxy):  # noqa: F811
    redis_proxy.when(b"EXEC", "cut")
    assert count(far) == 1
    assert count(far) == 2
    assert get(far, "number", "n") == b"2"


@pytest.mark.parametrize("how", ["cut_answer", "swallow_answer"])
def test_a_change_whose_answer_is_lost_is_made_once(hasty, redis_proxy, how):  # noqa: F811
    calls = []

    def change(values):
        calls.append(values.get("number", "n"))
        values.put("number", "n", str(len(calls)).encode())
        return len(calls)

    redis_proxy.when(b"EXEC", how)
    assert hasty.update(change) == 1
    assert calls == [None]
    assert get(hasty, "number", "n") == b"1"


def test_also_the_question_whether_it_was_made_may_be_lost(hasty, redis_proxy):  # noqa: F811
    redis_proxy.when(b"EXEC", "cut_answer")
    redis_proxy.when(b"APPEND", "cut_answer")
    redis_proxy.when(b"APPEND", "cut")
    redis_proxy.when(b"APPEND", "swallow_answer")
    assert count(hasty) == 1
    assert count(hasty) == 2
    redis_proxy.when(b"EXEC", "cut")
    redis_proxy.when(b"APPEND", "cut_answer", times=3)
    assert count(hasty) == 3
    assert get(hasty, "number", "n") == b"3"


def test_a_change_that_arrives_late_is_not_made_twice(hasty, beside, redis_proxy):  # noqa: F811
    redis_proxy.when(b"EXEC", "hold")
    assert count(hasty) == 1  # the first time is still under way, the second one counts
    redis_proxy.release()
    assert get(beside, "number", "n") == b"1"


def test_a_change_that_arrives_when_it_is_already_made_again_is_too_late(hasty, beside, redis_proxy):  # noqa: F811
    calls = []

    def change(values):
        calls.append(1)
        if len(calls) == 2:
            redis_proxy.release()
        number = int(values.get("number", "n") or b"0") + 1
        values.put("number", "n", str(number).encode())
        return number

    redis_proxy.when(b"EXEC", "hold")
    assert hasty.update(change) == 1
    assert len(calls) == 2
    assert get(beside, "number", "n") == b"1"


def test_a_change_that_reads_nothing_and_arrives_late_undoes_nothing(hasty, beside, redis_proxy):  # noqa: F811
    redis_proxy.when(b"EXEC", "hold")
    put(hasty, "run", "a", b"old")
    put(beside, "run", "a", b"new")
    redis_proxy.release()
    assert get(beside, "run", "a") == b"new"


def test_if_the_server_cannot_be_asked_nobody_knows(far, beside, redis_proxy):  # noqa: F811
    count(far)
    redis_proxy.when(b"EXEC", "cut_answer")
    redis_proxy.when(b"APPEND", "cut", times=1000)
    failure(lambda: count(far), "nobody knows", unknown=True)
    assert get(beside, "number", "n") == b"2"
    redis_proxy._rules.clear()
    assert count(far) == 3


def test_a_network_that_swallows_everything_is_told_in_time(hasty, redis_proxy):  # noqa: F811
    redis_proxy.swallow()
    failure(lambda: count(hasty), "does not answer in time; try again later", transient=True)
    failure(lambda: get(hasty, "number", "n"), "does not answer in time", transient=True)
    redis_proxy.mend()
    assert patiently(lambda: count(hasty)) == 1
    redis_proxy.swallow()
    failure(lambda: count(hasty), "does not answer in time", transient=True)
    redis_proxy.mend()
    assert patiently(lambda: count(hasty)) == 2


def test_a_slow_network_is_no_failure(far, redis_proxy):  # noqa: F811
    redis_proxy.delay_s = 0.05
    assert [count(far) for _ in range(3)] == [1, 2, 3]


def test_connections_that_were_cut_while_idle_are_made_again(far, redis_proxy):  # noqa: F811
    calls = []
    count(far)
    redis_proxy.cut()
    redis_proxy.mend()
    assert count(far) == 2
    redis_proxy.cut()
    redis_proxy.mend()
    far.read(calls.append)
    assert get(far, "number", "n") == b"2"


def test_a_cut_in_the_middle_of_a_change_writes_nothing_and_asks_again(far, redis_proxy):  # noqa: F811
    count(far)
    calls = []

    def change(values):
        calls.append(values.get("number", "n"))
        if len(calls) == 1:
            redis_proxy.cut()
            redis_proxy.mend()
        values.put("number", "n", str(int(values.get("number", "n")) + 1).encode())
        values.put("run", "a", b"1")

    far.update(change)
    assert calls == [b"1", b"1"]
    assert get(far, "number", "n") == b"2"


def test_who_overlooks_a_cut_in_the_middle_of_a_change_writes_nothing(redis_server, redis_proxy):  # noqa: F811
    store = opened(redis_server.url(port=redis_proxy.port))  # its first connection: there is no other one to go on by

    def change(values):
        values.get("number", "n")
        redis_proxy.cut()
        redis_proxy.mend()
        for name in "ab":
            with pytest.raises(StoreError):
                values.get("run", name)
        values.put("number", "n", b"1")

    failure(lambda: store.update(change), "lost in the middle|cannot be reached", transient=True)
    assert get(store, "number", "n") is None
    store.close()


def test_a_partition_that_comes_and_goes_loses_nothing(redis_server, redis_proxy):  # noqa: F811
    store = opened(redis_server.url(port=redis_proxy.port), command_s=5.0)
    kept, unknown, failed, over = [], [], [], threading.Event()

    def work():
        number = 0
        while not over.is_set():
            number += 1
            try:
                count(store)
                kept.append(1)
            except StoreError as error:
                (unknown if error.unknown else failed).append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(30):
        redis_proxy.when(b"EXEC", "cut_answer" if number % 2 else "cut")
        wanted = len(kept) + 20
        while len(kept) < wanted:
            over.wait(0.001)
        redis_proxy.cut()
        over.wait(0.002)
        redis_proxy.mend()
    over.set()
    for thread in threads:
        thread.join()
    store.close()
    store = opened(redis_server.url())
    assert len(kept) <= int(get(store, "number", "n")) <= len(kept) + len(unknown)
    assert all(error.transient for error in failed)
    store.close()


# --- the server -----------------------------------------------------------------------------------------------------


def test_a_server_that_is_gone_is_told_and_used_again_when_it_is_back(redis_server, store):  # noqa: F811
    assert count(store) == 1
    redis_server.kill()
    failure(lambda: count(store), "cannot be reached; try again later", transient=True)
    failure(lambda: get(store, "number", "n"), "cannot be reached; try again later", transient=True)
    redis_server.start()
    assert count(store) == 1  # it keeps nothing without appendonly


def test_a_server_that_writes_before_it_answers_loses_nothing_when_it_is_killed(tmp_path, started):
    server = started("--appendonly", "yes", "--appendfsync", "always")
    store = opened(server.url())
    for number in range(1, 4):
        assert [count(store) for _ in range(5)][-1] == number * 5
        server.kill()
        server.start()
    assert get(store, "number", "n") == b"15"
    store.close()


def test_a_server_that_is_killed_with_a_change_under_way_keeps_it_once(tmp_path, started):
    server = started("--appendonly", "yes", "--appendfsync", "always")
    again = threading.Thread(target=lambda: (server.kill(), server.start()))
    store = opened(server.url(), sleep=lambda seconds: again.join(60))

    def change(values):
        values.put("number", "n", b"%d" % (int(values.get("number", "n") or b"0") + 1))
        if not again.ident:
            again.start()

    try:
        store.update(change)
    except StoreError:  # it was down already when the change was sent
        again.join()
        store.update(change)
    again.join()
    assert get(store, "number", "n") == b"1"
    store.close()


def test_a_full_server_is_told_and_values_can_be_removed_from_it(redis_server, store):  # noqa: F811
    for name in "abc":
        put(store, "run", name, b"x" * 1000)
    redis_server.say("CONFIG", "SET", "maxmemory", "1")
    failure(lambda: put(store, "run", "d", b"1"), r"full \(maxmemory\)")
    assert get(store, "run", "a") == b"x" * 1000

    def remove(values):
        found = values.get("run", "b")
        values.delete("run", "b")
        return found

    assert store.update(remove) == b"x" * 1000
    assert store.update(lambda values: values.delete("run", "a")) is None
    assert store.update(lambda values: values.forget("run", values.now() + 1)) == 1
    assert store.read(lambda values: values.keys("run")) == ()
    redis_server.say("CONFIG", "SET", "maxmemory", "0")
    put(store, "run", "d", b"1")
    assert store.read(lambda values: values.keys("run")) == ("d",)


def test_what_is_removed_from_a_full_server_is_what_was_looked_at(redis_server, store, beside):  # noqa: F811
    for name in "abc":
        put(store, "run", name, b"1")
    calls = []

    def change(values):
        calls.append((values.get("run", "a"), values.get("run", "b"), values.get("run", "never there")))
        if len(calls) == 1:
            beside.update(lambda values: values.delete("run", "b"))
            redis_server.say("CONFIG", "SET", "maxmemory", "1")
        values.delete("run", "a")

    store.update(change)
    assert calls == [(b"1", b"1", None), (b"1", None, None)]
    assert store.read(lambda values: values.keys("run")) == ("c",)


def test_a_removal_from_a_full_server_whose_answer_is_lost_is_told(redis_server, redis_proxy, hasty):  # noqa: F811
    put(hasty, "run", "a", b"1")
    redis_server.say("CONFIG", "SET", "maxmemory", "1")
    redis_proxy.when(b"EVAL", "swallow_answer")
    failure(lambda: hasty.update(lambda values: values.delete("run", "a")), "nobody knows", unknown=True)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl"])
def test_a_server_that_drops_what_is_kept_when_it_is_full_is_refused(redis_server, store, policy):  # noqa: F811
    redis_server.say("CONFIG", "SET", "maxmemory-policy", policy)
    assert count(store) == 1  # it is never full
    store._drop_idle()
    redis_server.say("CONFIG", "SET", "maxmemory", "100mb")
    failure(lambda: count(store), f"{policy}.*noeviction")
    redis_server.say("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert count(store) == 2


def test_many_values_are_one_round_trip_and_one_look(redis_server, store, beside):  # noqa: F811
    names = [str(number) for number in range(300)]
    store.update(lambda values: [values.put("run", name, b"1") for name in names])
    sent = []
    lane = store._idle[0].wire
    lane.call, call = lambda *commands: sent.append(commands) or call(*commands), lane.call

    def look(values):
        found = values.get_many("run", names)
        beside.update(lambda others: others.put("run", "7", b"2"))  # while somebody writes all the time
        return found

    assert set(store.read(look).values()) == {b"1"}
    assert len(sent) == 1
    sent.clear()

    def two(values):
        found = values.get_many("run", names), values.get_many("run", ["7"])
        if len(sent) < 3:
            beside.update(lambda others: others.put("run", "8", b"2"))
        return found, values.get("run", "never there")

    (found, again), _ = store.read(two)
    assert (found["8"], again) == (b"2", {"7": b"2"})


def test_many_values_that_are_to_be_written_are_watched(redis_server, store, beside):  # noqa: F811
    store.update(lambda values: [values.put("run", name, b"1") for name in "abc"])
    seen = []

    def change(values):
        seen.append(values.get_many("run", "abc"))
        if len(seen) == 1:
            beside.update(lambda others: others.put("run", "b", b"2"))
        values.put("run", "d", b"".join(seen[-1].values()))

    store.update(change)
    assert (len(seen), get(store, "run", "d")) == (2, b"121")


def test_what_stands_under_the_name_of_one_of_many_values_is_told(redis_server, store):  # noqa: F811
    put(store, "run", "a", b"1")
    redis_server.say("SET", f"{store._names.value('run', 'b')}", "x")
    failure(lambda: store.read(lambda values: values.get_many("run", "ab")), "keeps something else under a name")
    redis_server.say("DEL", f"{store._names.value('run', 'b')}")
    redis_server.say("HSET", f"{store._names.value('run', 'a')}", "v", "2")
    failure(lambda: store.read(lambda values: values.get_many("run", "ab")), "damaged at run a")


def test_a_replica_is_told(redis_server, store):  # noqa: F811
    count(store)
    redis_server.say("CONFIG", "SET", "replica-serve-stale-data", "yes")
    redis_server.say("REPLICAOF", "127.0.0.1", "1")
    assert get(store, "number", "n") == b"1"
    failure(lambda: count(store), "read-only replica", transient=True)
    redis_server.say("CONFIG", "SET", "replica-serve-stale-data", "no")
    failure(lambda: get(store, "number", "n"), "lost its primary", transient=True)
    redis_server.say("REPLICAOF", "NO", "ONE")
    assert count(store) == 2


def test_after_a_replica_the_store_connects_anew_and_may_find_the_primary(redis_server, redis_proxy, far):  # noqa: F811
    count(far)
    assert redis_proxy.connections == 1
    redis_server.say("REPLICAOF", "127.0.0.1", "1")
    failure(lambda: count(far), "read-only replica", transient=True)
    redis_server.say("REPLICAOF", "NO", "ONE")
    assert (count(far), redis_proxy.connections) == (2, 2)


def test_a_server_that_cannot_save_is_told(tmp_path, started):
    server = started("--stop-writes-on-bgsave-error", "yes")
    store = opened(server.url())
    server.say("CONFIG", "SET", "save", "3600 1000000")
    (tmp_path / "dump.rdb").mkdir()  # in its place nothing can be written
    server.say("BGSAVE")
    while server.say("INFO", "persistence")["rdb_bgsave_in_progress"]:
        continue
    failure(lambda: count(store), "cannot save its data")
    store.close()


def test_users_and_passwords_are_told_and_passwords_never(tmp_path, started):
    server = started()
    server.say("ACL", "SETUSER", "reader", "on", ">0pen", "+@read", "+@connection", "~*")
    server.say("CONFIG", "SET", "requirepass", "s3cret")
    place = f"127.0.0.1:{server.port}/0"
    for url, said in (
        (f"redis://{place}", "wants a user and password"),
        (f"redis://:wr0ng@{place}", "refuses the user or password"),
        (f"redis://nobody:wr0ng@{place}", "refuses the user or password"),
        (f"redis://reader:0pen@{place}", "does not permit"),
    ):
        store = opened(url)
        with pytest.raises(StoreError, match=said) as caught:
            count(store)
        assert (caught.value.transient, caught.value.unknown) == (False, False)
        assert not re.search("s3cret|wr0ng|0pen", str(caught.value) + store.place)
        store.close()
    store = opened(f"redis://:s3cret@{place}")
    assert count(store) == 1
    assert store.place == f"redis://{place}"
    store.close()


def test_a_port_of_something_else_is_told():
    need_redis()
    for said, match, transient in (
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the protocol", False),
        (b"220 mail.example ESMTP\r\n", "does not speak the protocol", False),
        (b"", "cannot be reached", True),
    ):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=_answers, args=(listening, said))
            thread.start()
            store = opened(f"redis://127.0.0.1:{listening.getsockname()[1]}/0")
            failure(lambda: count(store), match, transient=transient)  # noqa: B023
            thread.join()


def _answers(listening, said):
    connected, _ = listening.accept()
    connected.recv(1000)
    connected.sendall(said)
    connected.close()


def test_nobody_at_the_port_and_no_such_host_are_told(tmp_path):
    need_redis()
    for url in ("redis://127.0.0.1:1/0", "redis://no-such-host.invalid/0", f"unix://{tmp_path}/none.sock"):
        store = opened(url)
        failure(lambda: count(store), "cannot be reached; try again later", transient=True)  # noqa: B023


def test_a_server_without_tls_where_there_should_be_some_is_told(redis_server):  # noqa: F811
    store = opened(redis_server.url().replace("redis:", "rediss:"), connect_s=0.2, command_s=0.2)
    with pytest.raises(StoreError, match="rediss://") as caught:
        count(store)
    text = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"
    error = store._address.error(store._address.errors.ConnectionError(text))
    assert (error.transient, "cannot be trusted" in str(error)) == (False, True)
    assert caught.value.unknown is False
    store.close()


def test_a_server_by_its_socket_file_is_used(tmp_path, started):
    server = started("--unixsocket", str(tmp_path / "s"))
    store = open_store(f"unix://{tmp_path}/s?db=1&prefix=p")
    assert count(store) == 1
    store.close()
    store = open_store(f"redis://127.0.0.1:{server.port}/1?prefix=p&socket_timeout=5")
    assert count(store) == 2
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:port/0",
        "redis://h/0?prefix=",
        "redis://h/0?prefix=a:b",
        "redis://h/0?no_such=1",
        "redis://h/0?db=x",
        "redis://h/x",
        "redis://:/s3cret@h/0",
    ],
)
def test_an_address_that_cannot_be_read_is_refused(url):
    need_redis()
    with pytest.raises(UsageError, match="Redis store") as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


def test_without_the_extra_the_store_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UsageError, match=r"pip install 'agent-policyengine\[redis\]'"):
        open_store("redis://127.0.0.1/0")


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_prefixes_keep_stores_apart(redis_server, store):  # noqa: F811
    other = opened(redis_server.url("other"))
    count(store)
    assert get(other, "number", "n") is None
    assert count(other) == 1
    other.update(lambda values: values.forget("number", values.now() + 1))
    assert get(store, "number", "n") == b"1"
    other.close()
    default = opened(f"redis://127.0.0.1:{redis_server.port}")
    count(default)
    assert redis_server.say("EXISTS", "policyengine:value:number:n") == 1
    default.close()


def test_a_damaged_value_is_told_and_the_others_are_read(redis_server, store):  # noqa: F811
    for name in "abc":
        put(store, "run", name, b"1")
    redis_server.say("HSET", "t:value:run:a", "v", "2")
    redis_server.say("HDEL", "t:value:run:b", "d")
    for name in "ab":
        failure(lambda: get(store, "run", name), f"damaged at run {name}")  # noqa: B023
    assert get(store, "run", "c") == b"1"
    put(store, "run", "a", b"3")
    assert get(store, "run", "a") == b"3"


def test_what_others_keep_under_our_names_is_told_or_replaced_and_never_half_written(redis_server, store):  # noqa: F811
    redis_server.say("SET", "t:value:run:a", "theirs")
    failure(lambda: get(store, "run", "a"), "another prefix")
    store.update(lambda values: (values.put("run", "a", b"1"), values.put("run", "b", b"1")))
    assert get(store, "run", "a") == b"1"
    redis_server.say("SET", "t:kind:other", "theirs")
    failure(lambda: store.update(lambda v: (v.put("run", "c", b"1"), v.put("other", "a", b"1"))), "another prefix")
    assert get(store, "run", "c") is None


def test_a_store_of_another_version_is_told(redis_server, store):  # noqa: F811
    count(store)
    redis_server.say("SET", "t:version", "7")
    failure(lambda: count(store), "version 7, this engine reads 2")
    failure(lambda: get(store, "number", "n"), "version 7")


def test_a_server_whose_clock_is_set_back_forgets_nothing_new(redis_server, store):  # noqa: F811
    put(store, "run", "a", b"1")
    ahead = store.read(lambda values: values.now()) + 1000
    redis_server.say("ZADD", "t:kind:run", str(ahead), "a")  # written when the clock was ahead
    put(store, "run", "b", b"1")
    store.update(lambda values: (values.put("run", "c", b"1"), values.put("other", "a", b"1")))
    assert store.update(lambda values: values.forget("run", ahead - 1)) == 0
    assert store.update(lambda values: values.forget("other", ahead - 1)) == 1
    assert store.read(lambda values: values.keys("run")) == ("a", "b", "c")


def test_nothing_is_left_on_the_server_but_values_and_a_token(redis_server, store):  # noqa: F811
    for name in "abc":
        put(store, "run", name, b"1")
    store.update(lambda values: [values.delete("run", name) for name in "abc"])
    left = sorted(name.decode().rsplit(":", 1)[0] for name in redis_server.say("KEYS", "*"))
    assert left == ["t", "t:token"]
    (token,) = redis_server.say("KEYS", "t:token:*")
    assert 0 < redis_server.say("TTL", token) <= 86_400


def test_a_burst_of_threads_leaves_few_connections(redis_server, store):  # noqa: F811
    threads = [threading.Thread(target=count, args=(store, str(number))) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert redis_server.say("INFO", "clients")["connected_clients"] <= 17
    assert len(store.read(lambda values: values.keys("number"))) == 50


FORKED = """
import os, sys
from policyengine.stores import open_store

def count(values):
    number = int(values.get("number", "n") or b"0") + 1
    values.put("number", "n", str(number).encode())
    return number

store = open_store(sys.argv[1])
store.update(count)
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        for _ in range(25):
            store.update(count)
        os._exit(0)
    children.append(child)
for _ in range(25):
    store.update(count)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
assert store.update(count) == 127
"""


def test_forked_processes_use_connections_of_their_own(redis_server):  # noqa: F811
    command = [sys.executable, "-P", "-c", FORKED, redis_server.url()]
    subprocess.run(command, check=True, timeout=120, env=os.environ | {"PYTHONWARNINGS": "ignore"})
