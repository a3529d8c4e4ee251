"""A store in a file: what goes wrong with files, and what is said then."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing

import pytest

from policyengine.errors import UsageError
from policyengine.stores import StoreError
from policyengine.stores.sqlite import SqliteStore
from tests.stores.places import count, get, put


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept.sqlite"


@pytest.fixture
def store(path):
    store = SqliteStore(path, durable=False)
    yield store
    store.close()


def failure(work, match, *, transient=False, unknown=False):
    with pytest.raises(StoreError, match=match) as caught:
        work()
    assert (caught.value.transient, caught.value.unknown) == (transient, unknown)
    assert "kept.sqlite" in str(caught.value)


def test_a_full_disk_is_told_and_loses_nothing(store):
    put(store, "run", "a", b"1")
    store._open.execute("PRAGMA max_page_count=20")
    failure(lambda: put(store, "run", "b", b"x" * 200_000), "full; make room")
    assert get(store, "run", "a") == b"1"
    assert get(store, "run", "b") is None
    put(store, "run", "a", b"2")
    store._open.execute("PRAGMA max_page_count=10000")
    put(store, "run", "b", b"x" * 200_000)
    assert store.check() == ""


def test_a_file_that_may_not_be_written_is_told(store):
    put(store, "run", "a", b"1")
    store._open.execute("PRAGMA query_only=ON")
    failure(lambda: put(store, "run", "a", b"2"), "may not be written")
    assert get(store, "run", "a") == b"1"


@pytest.fixture
def powerless():
    """A directory, in a process that may do no more than others."""
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)
    before = os.geteuid()
    if before == 0:
        os.chown(folder, 65534, -1)
        os.seteuid(65534)
    yield folder
    os.seteuid(before)
    os.chmod(folder, 0o755)
    shutil.rmtree(folder)


def test_directories_and_files_of_others_are_told(powerless):
    path = os.path.join(powerless, "kept.sqlite")
    os.chmod(powerless, 0o555)
    failure(lambda: SqliteStore(path), "Permission denied")
    os.chmod(powerless, 0o755)
    store = SqliteStore(path)
    put(store, "run", "a", b"1")
    store.close()
    os.chmod(path, 0o000)
    failure(lambda: SqliteStore(path), "see to their modes")
    os.chmod(path, 0o400)
    failure(lambda: put(SqliteStore(path), "run", "a", b"2"), "see to their modes")
    os.chmod(path, 0o600)
    os.chmod(powerless, 0o555)
    failure(lambda: put(SqliteStore(path), "run", "a", b"2"), "see to their modes")
    os.chmod(powerless, 0o755)
    store = SqliteStore(path)
    assert get(store, "run", "a") == b"1"
    store.close()


def test_a_directory_that_is_not_there_is_told(tmp_path):
    failure(lambda: SqliteStore(tmp_path / "no" / "kept.sqlite"), "No such file or directory")
    (tmp_path / "kept.sqlite").mkdir()
    failure(lambda: SqliteStore(tmp_path / "kept.sqlite"), "cannot be opened")


def test_a_file_that_another_process_holds_is_told_and_can_be_read(path):
    store = SqliteStore(path, busy_s=0.05)
    put(store, "run", "a", b"1")
    holding = sqlite3.connect(path, isolation_level=None)
    holding.execute("BEGIN IMMEDIATE")
    failure(lambda: count(store), "try again later", transient=True)
    assert get(store, "run", "a") == b"1"
    holding.execute("ROLLBACK")
    holding.close()
    assert count(store) == 1
    store.close()


def test_a_thread_that_takes_too_long_is_told_to_the_others(path):
    store = SqliteStore(path, busy_s=0.05)
    inside, over = threading.Event(), threading.Event()
    holding = threading.Thread(target=lambda: store.update(lambda values: (inside.set(), over.wait(30))))
    holding.start()
    inside.wait(30)
    failure(lambda: count(store), "another thread", transient=True)
    assert get(store, "run", "a") is None
    over.set()
    holding.join()
    assert count(store) == 1
    store.close()


@pytest.mark.parametrize("content", [b"no database" * 1000, b"SQLite format 3\0" + b"x" * 5000, b"x"])
def test_a_file_that_is_no_store_is_told_and_left_alone(path, content):
    path.write_bytes(content)
    failure(lambda: SqliteStore(path), "kept.sqlite")
    assert path.read_bytes() == content


def test_an_empty_file_and_the_database_of_another_program_are_no_stores(path):
    path.write_bytes(b"")
    failure(lambda: SqliteStore(path), "version 0")
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version=2")
    other.execute("CREATE TABLE theirs (a)")
    other.close()
    store = SqliteStore(path)
    failure(lambda: count(store), "no such table")
    store.close()


@pytest.mark.parametrize(("version", "said"), [(7, "newer"), (-1, "old one")])
def test_a_file_of_another_version_is_told(path, version, said):
    SqliteStore(path).close()
    changed = sqlite3.connect(path)
    changed.execute(f"PRAGMA user_version={version}")
    changed.close()
    failure(lambda: SqliteStore(path), f"version {version}, .*{said}")


def test_a_damaged_value_is_told_and_the_others_are_read(store):
    put(store, "run", "a", b"1234")
    put(store, "run", "b", b"1")
    store._open.execute("UPDATE kept SET value = x'31' WHERE key = 'a'")
    failure(lambda: get(store, "run", "a"), "damaged at run a")
    assert get(store, "run", "b") == b"1"
    put(store, "run", "a", b"2")
    assert get(store, "run", "a") == b"2"


def test_a_damaged_file_is_told(path):
    store = SqliteStore(path)
    store.update(lambda values: [values.put("run", str(number), b"x" * 3000) for number in range(50)])
    store.close()
    content = bytearray(path.read_bytes())
    content[4096 : 40 * 4096] = b"\xff" * (39 * 4096)
    path.write_bytes(content)
    store = SqliteStore(path)
    failure(lambda: [get(store, "run", str(number)) for number in range(50)], "damaged")
    failure(lambda: count(store), "damaged")
    assert store.check() != ""
    store.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_or_replaced_is_told_and_nothing_is_acknowledged(path, store, replaced):
    put(store, "run", "a", b"1")
    for name in path.parent.iterdir():
        name.unlink()
    if replaced:
        SqliteStore(path).close()
    failure(lambda: put(store, "run", "b", b"2"), "removed or replaced")
    failure(lambda: get(store, "run", "a"), "removed or replaced")
    store.close()
    again = SqliteStore(path)
    assert again.read(lambda values: values.keys("run")) == ()
    assert count(again) == 1
    again.close()


def test_a_file_that_is_removed_during_a_change_acknowledges_nothing(path, store):
    failure(lambda: store.update(lambda values: (values.put("run", "a", b"1"), path.unlink())), "removed or replaced")


def test_a_failure_to_keep_what_was_written_is_told(store):
    class Failing:
        def __init__(self, code):
            self.code = code

        def __getattr__(self, name):
            return getattr(opened, name)

        def execute(self, statement, *given):
            if statement == "COMMIT":
                error = sqlite3.OperationalError("told by a test")
                error.sqlite_errorcode = self.code
                raise error
            return opened.execute(statement, *given)

    opened = store._open
    store._open = Failing(sqlite3.SQLITE_IOERR_FSYNC)
    failure(lambda: count(store), "the disk failed", unknown=True)
    store._open = Failing(sqlite3.SQLITE_FULL)
    failure(lambda: count(store), "make room")
    store._open = opened
    assert count(store) == 1


def test_a_clock_that_is_set_back_forgets_nothing_new(path):
    times = [1000.0]
    store = SqliteStore(path, clock=lambda: times[0])
    put(store, "run", "a", b"1")
    times[0] = 10.0
    put(store, "run", "b", b"1")
    assert store.read(lambda values: values.now()) == 10.0
    times[0] = 1020.0
    assert store.update(lambda values: values.forget("run", values.now() - 50)) == 0
    put(store, "run", "b", b"2")
    assert store.update(lambda values: values.forget("run", 1020.0)) == 1
    assert store.read(lambda values: values.keys("run")) == ("b",)
    store.close()


def test_a_durable_store_waits_for_the_disk(path):
    for durable, level in ((True, 2), (False, 1)):
        store = SqliteStore(path, durable=durable)
        assert store._open.execute("PRAGMA synchronous").fetchone() == (level,)
        store.close()
    store = SqliteStore(path)
    assert store._open.execute("PRAGMA synchronous").fetchone() == (2,)
    assert path.stat().st_mode & 0o777 == 0o600
    store.close()


def test_many_may_make_the_file_at_once(path):
    failed, ready = [], threading.Barrier(20)

    def make():
        ready.wait(60)
        try:
            store = SqliteStore(path)
            count(store)
            store.close()
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = SqliteStore(path)
    assert (failed, get(store, "number", "n")) == ([], b"20")
    store.close()
    assert [name.name for name in path.parent.iterdir()] == ["kept.sqlite"]


FORKED = """
import os, sys
from policyengine.errors import UsageError
from policyengine.stores.sqlite import SqliteStore

def refused(work):
    try:
        work()
    except UsageError as error:
        return "fork" in str(error)
    return False

path = sys.argv[1]
store = SqliteStore(path)
store.update(lambda values: values.put("run", "a", b"1"))
child = os.fork()
if child == 0:
    held = [refused(lambda: store.update(lambda values: None)), refused(lambda: store.read(lambda values: None))]
    held.append(refused(lambda: SqliteStore(path)))
    store.close()
    os._exit(0 if all(held) else 1)
assert os.waitpid(child, 0)[1] == 0
assert store.read(lambda values: values.get("run", "a")) == b"1"
store.close()
child = os.fork()
if child == 0:
    opened = SqliteStore(path)
    opened.update(lambda values: values.put("run", "a", b"2"))
    opened.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert SqliteStore(path).read(lambda values: values.get("run", "a")) == b"2"
"""


def test_a_forked_process_opens_its_own(path):
    subprocess.run([sys.executable, "-P", "-c", FORKED, str(path)], check=True, timeout=60)


def test_a_path_stays_the_same_when_the_directory_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("kept.sqlite")
    assert count(store) == 1
    monkeypatch.chdir("/")
    assert count(store) == 2
    assert get(store, "number", "n") == b"2"
    store.close()


def test_an_older_file_without_an_index_is_used(path):
    SqliteStore(path).close()
    older = sqlite3.connect(path)
    older.execute("DROP INDEX written")
    older.close()
    store = SqliteStore(path)
    assert count(store) == 1
    assert store.update(lambda values: values.forget("number", values.now() + 1)) == 1
    store.close()


def test_a_closed_store_is_no_failure_of_the_file(path):
    store = SqliteStore(path)
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.check()


def test_a_value_that_stands_under_another_key_is_damaged(tmp_path):
    path = tmp_path / "s.db"
    with closing(SqliteStore(path)) as store:
        store.update(lambda values: [values.put("kind", key, b"value") for key in ("a", "b")])
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE kept SET key = 'c' WHERE key = 'a'")
        raw.execute("UPDATE kept SET kind = 'other' WHERE key = 'b'")
        raw.commit()
    with closing(SqliteStore(path)) as store:
        for kind, key in (("kind", "c"), ("other", "b")):
            with pytest.raises(StoreError, match=f"damaged at {kind} {key}"):
                store.read(lambda values, kind=kind, key=key: values.get(kind, key))


def test_a_line_of_threads_is_no_thread_that_takes_too_long(path):
    store = SqliteStore(path, durable=False, busy_s=0.2)
    now, failed = [0.0], []

    def one():
        try:
            count(store)
        except StoreError as error:
            failed.append(error)

    def slow(values):
        for thread in threads:
            thread.start()
        while len(store._writing._line) < len(threads):
            pass

    threads = [threading.Thread(target=one) for _ in range(40)]
    with pytest.MonkeyPatch.context() as patched:
        # With each look at the clock time goes on: all of them together wait for longer than the bound.
        patched.setattr("policyengine.stores.monotonic", lambda: now.__setitem__(0, now[0] + 0.004) or now[0])
        store.update(slow)
        for thread in threads:
            thread.join(60)
    assert (failed, get(store, "number", "n")) == ([], b"40")
    assert now[0] > 0.2
    store.close()


def test_threads_have_their_turns_in_the_order_in_which_they_came(path):
    store, came = SqliteStore(path, durable=False), []

    def first(values):
        for number in range(10):
            threads[number].start()
            while len(store._writing._line) <= number:
                pass

    threads = [
        threading.Thread(target=lambda number=number: store.update(lambda values: came.append(number)))
        for number in range(10)
    ]
    store.update(first)
    for thread in threads:
        thread.join(60)
    assert came == list(range(10))
    store.close()


# ---- a log that was left


def killed(path, name, transactions):
    """Write values in a process that is killed, so that its log stays."""
    script = (
        "import os, signal, sys; from policyengine.stores.sqlite import SqliteStore\n"
        "store = SqliteStore(sys.argv[1], durable=False)\n"
        "for number in range(int(sys.argv[3])):\n"
        "    key = sys.argv[2] + str(number)\n"
        "    store.update(lambda values: [values.put('run', f'{key}-{n}', os.urandom(3000)) for n in range(4)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path), name, str(transactions)], check=False, timeout=60)
    assert path.with_name(f"{path.name}-wal").stat().st_size


def keys(path):
    store = SqliteStore(path, durable=False)
    try:
        assert store.check() == ""
        return store.read(lambda values: values.keys("run"))
    finally:
        store.close()


@pytest.mark.parametrize("transactions", [3, 150])
def test_the_log_of_a_file_that_was_removed_is_not_taken_for_that_of_a_new_one(path, transactions):
    killed(path, "old", transactions)
    assert len(keys(path)) == 4 * transactions  # it counts as long as its file is there
    killed(path, "more", 1)
    path.unlink()
    assert keys(path) == ()
    assert [name.name for name in path.parent.iterdir()] == ["kept.sqlite"]


def test_a_log_goes_with_its_file_to_another_place(path):
    killed(path, "old", 40)
    moved = path.parent / "moved.sqlite"
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).rename(moved.with_name(moved.name + end))
    killed(moved, "new", 40)
    assert len(keys(moved)) == 320


def test_a_store_is_opened_again_and_again_while_others_write_and_are_killed(path):
    SqliteStore(path, durable=False).close()
    for _ in range(4):
        script = (
            "import sys; from policyengine.stores.sqlite import SqliteStore\n"
            "store = SqliteStore(sys.argv[1], durable=False)\n"
            "print('ready', flush=True)\n"
            "while True: store.update(lambda values: values.put('run', 'a', b'x' * 50_000))\n"
        )
        with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            for _ in range(60):
                with closing(SqliteStore(path, durable=False)) as store:
                    store.read(lambda values: values.get("run", "a"))
            writer.kill()
    assert keys(path) == ("a",)


def test_what_is_to_be_removed_is_all_of_a_damaged_store(path):
    store = SqliteStore(path, durable=False)
    store.update(lambda values: [values.put("run", str(number), b"x" * 5000) for number in range(50)])
    store.close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\0" * (len(content) - 4096))
    failure(lambda: get(SqliteStore(path), "run", "7"), rf"rm -f \S*{path.name} \S*{path.name}-wal \S*{path.name}-shm")
