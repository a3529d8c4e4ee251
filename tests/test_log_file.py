"""The file of a decision log: written off the deciding thread, rotated, shared by processes, never half a line."""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from policyengine import Engine, ToolCall, UsageError
from policyengine.cli import cli
from policyengine.script import call, say
from policyengine.telemetry import log_file
from policyengine.telemetry.decision_log import DecisionLog
from policyengine.telemetry.log_file import Appender, LogFile, size_of
from policyengine.testing import play

LINE = "x" * 9 + "\n"


def gap(count: int) -> str:
    return f"{count} missing\n"


def texts(path: Path) -> list[str]:
    """The lines of a file and of what was rotated out of it, oldest first."""
    rotated = sorted(path.parent.glob(f"{path.name}.*"), key=lambda found: -int(found.suffix[1:]))
    return [line for found in (*rotated, path) for line in found.read_text().splitlines()]


class Gate:
    """Stands in for `os.write`: lets nothing through until it is opened, and fails where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, shut: bool = True) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        self.left: int | None = None
        self._write = os.write
        if not shut:
            self.open.set()
        monkeypatch.setattr(log_file.os, "write", self)

    def __call__(self, fd: int, data: bytes) -> int:
        self.reached.set()
        assert self.open.wait(60)
        if self.left is None:
            return self._write(fd, data)
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = self._write(fd, bytes(data[: self.left]))
        self.left -= done
        return done


@pytest.fixture
def said():
    """What the library says meanwhile."""
    lines: list[str] = []
    handler = logger.add(lines.append, format="{message}")
    yield lines
    logger.remove(handler)


# ---- the queue


def test_lines_are_written_in_order_and_all_of_them_when_the_file_is_closed(tmp_path):
    path = tmp_path / "log"
    with LogFile(path) as file:
        for number in range(5_000):
            file.write(f"{number}\n")
    assert texts(path) == [str(number) for number in range(5_000)]
    assert file.dropped == 0


def test_a_deciding_thread_does_not_wait_for_the_file(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    file = LogFile(tmp_path / "log")
    for number in range(100):
        file.write(f"{number}\n")
    assert not file.drain(0)
    assert texts(tmp_path / "log") == []
    gate.open.set()
    assert file.drain()
    assert len(texts(tmp_path / "log")) == 100
    file.close()


def test_with_drop_a_full_queue_loses_lines_and_the_file_says_how_many_and_where(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    file = LogFile(tmp_path / "log", when_full="drop", most_lines=3, gap=gap)
    file.write("first\n")
    assert gate.reached.wait(60)
    for number in range(5):
        file.write(f"{number}\n")
    assert file.dropped == 2
    gate.open.set()
    assert file.drain()
    file.write("last\n")
    file.close()
    assert texts(tmp_path / "log") == ["first", "0", "1", "2", "2 missing", "last"]


def test_a_queue_is_full_by_bytes_too_and_one_line_always_has_room(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    file = LogFile(tmp_path / "log", when_full="drop", most_bytes=25, gap=gap)
    file.write("y" * 100 + "\n")
    assert gate.reached.wait(60)
    for _ in range(4):
        file.write(LINE)
    gate.open.set()
    file.close()
    assert texts(tmp_path / "log") == ["y" * 100, *[LINE.strip()] * 2, "2 missing"]


def test_with_block_a_writer_waits_for_room_and_nothing_is_lost(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    file = LogFile(tmp_path / "log", most_lines=2, patience_s=60, gap=gap)
    file.write("first\n")
    assert gate.reached.wait(60)
    writer = threading.Thread(target=lambda: [file.write(f"{number}\n") for number in range(20)])
    writer.start()
    gate.open.set()
    writer.join(60)
    file.close()
    assert texts(tmp_path / "log") == ["first", *map(str, range(20))]
    assert file.dropped == 0


def test_a_file_that_hangs_makes_nobody_wait_twice(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    file = LogFile(tmp_path / "log", most_lines=1, patience_s=0.01, gap=gap)
    file.write("first\n")
    assert gate.reached.wait(60)
    waited: list[float | None] = []
    wait_for = threading.Condition.wait_for

    def counted(self: threading.Condition, predicate, timeout=None):
        if timeout == 0.01:
            waited.append(timeout)
        return wait_for(self, predicate, timeout)

    monkeypatch.setattr(threading.Condition, "wait_for", counted)
    for number in range(10):
        file.write(f"{number}\n")
    assert len(waited) == 1
    assert file.dropped == 9
    gate.open.set()
    file.close()
    assert texts(tmp_path / "log") == ["first", "0", "9 missing"]


def test_a_closed_file_takes_no_line_and_can_be_closed_again(tmp_path):
    file = LogFile(tmp_path / "log")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.write(LINE)


def test_closing_does_not_wait_for_ever_and_says_what_is_lost(tmp_path, monkeypatch, said):
    gate = Gate(monkeypatch)
    file = LogFile(tmp_path / "log")
    file.write(LINE)
    assert gate.reached.wait(60)
    file.write(LINE)
    file.close(0.01)
    assert file.dropped == 1
    assert "1 lines" in said[0]
    gate.open.set()


def test_a_file_that_is_forgotten_is_written_and_its_thread_ends(tmp_path):
    file = LogFile(tmp_path / "log")
    file.write(LINE)
    del file
    gc.collect()
    assert texts(tmp_path / "log") == [LINE.strip()]


def test_what_waits_is_written_when_the_process_ends(tmp_path):
    path = tmp_path / "log"
    program = (
        "from policyengine.telemetry.log_file import LogFile\n"
        f"file = LogFile({str(path)!r})\n"
        "for number in range(1000): file.write(f'{number}\\n')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert len(texts(path)) == 1000


# ---- lines are whole


def test_what_a_crash_left_of_a_line_does_not_run_into_the_next_one(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"whole":1}\n{"half":')
    with LogFile(path) as file:
        file.write("next\n")
    assert path.read_text() == '{"whole":1}\n{"half":\nnext\n'


def test_a_full_disk_leaves_no_half_line_and_the_log_says_what_is_missing(tmp_path, monkeypatch, said):
    gate = Gate(monkeypatch, shut=False)
    path = tmp_path / "log"
    file = LogFile(path, gap=gap)
    file.write("before\n")
    assert file.drain()
    gate.left = 4
    for _ in range(3):
        file.write(LINE)
        assert file.drain()
    assert path.read_text() == "before\n"
    assert (file.dropped, len(said)) == (3, 1)
    gate.left = None
    file.write("after\n")
    file.close()
    assert texts(path) == ["before", "3 missing", "after"]


def test_lines_lost_at_the_very_end_are_said_if_the_file_takes_lines_again(tmp_path, monkeypatch):
    gate = Gate(monkeypatch, shut=False)
    file = LogFile(tmp_path / "log", gap=gap)
    gate.left = 0
    file.write(LINE)
    assert file.drain()
    gate.left = None
    file.close()
    assert texts(tmp_path / "log") == ["1 missing"]


# ---- rotation


def test_a_file_is_rotated_before_it_grows_too_large_and_so_many_are_kept(tmp_path):
    path = tmp_path / "log"
    appender = Appender(str(path), max_bytes=20, keep=2)
    for number in range(9):
        appender.append(f"{number:09d}\n".encode())
    appender.close()
    assert [found.name for found in sorted(tmp_path.iterdir())] == ["log", "log.1", "log.2"]
    assert [int(line) for line in texts(path)] == [4, 5, 6, 7, 8]


@given(sizes=st.lists(st.integers(1, 40), max_size=40), most=st.integers(1, 60))
def test_rotation_loses_no_line_and_no_file_is_larger_than_asked_for_unless_one_batch_is(tmp_path_factory, sizes, most):
    path = tmp_path_factory.mktemp("log") / "log"
    appender = Appender(str(path), max_bytes=most, keep=100)
    for number, size in enumerate(sizes):
        appender.append(f"{number}".encode().ljust(size, b".") + b"\n")
    appender.close()
    assert [int(line.rstrip(".")) for line in texts(path)] == list(range(len(sizes)))
    longest = max([len(str(len(sizes))), *sizes], default=0) + 1
    assert all(found.stat().st_size <= max(most, longest) for found in path.parent.iterdir())


def test_lines_that_waited_together_fill_no_file_beyond_its_size(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    with LogFile(tmp_path / "log", max_bytes=100, keep=100) as file:
        for number in range(50):
            file.write(f"{number:09d}\n")
        gate.open.set()
    assert [int(line) for line in texts(tmp_path / "log")] == list(range(50))
    assert all(found.stat().st_size <= 100 for found in tmp_path.iterdir())


def test_a_file_of_an_earlier_day_is_rotated(tmp_path):
    path = tmp_path / "log"
    day, now = 86400.0, 20_000 * 86400.0 + 100
    appender = Appender(str(path), every_s=day, clock=lambda: now)
    appender.append(b"yesterday\n")
    os.utime(path, (now - 200, now - 200))
    appender.append(b"today\n")
    os.utime(path, (now, now))
    appender.append(b"later\n")
    appender.close()
    assert (tmp_path / "log.1").read_text() == "yesterday\n"
    assert path.read_text() == "today\nlater\n"


def test_where_it_cannot_be_rotated_it_grows_on_and_that_is_said_once(tmp_path, monkeypatch, said):
    path = tmp_path / "log"
    appender = Appender(str(path), max_bytes=10)

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(log_file.os, "replace", refused)
    for _ in range(3):
        appender.append(LINE.encode())
    appender.close()
    assert path.read_text() == LINE * 3
    assert len(said) == 1


def test_a_file_that_another_program_renamed_is_left_and_a_new_one_begun(tmp_path):
    path = tmp_path / "log"
    file = LogFile(path)
    file.write("before\n")
    assert file.drain()
    path.rename(tmp_path / "log.old")
    file.write("after\n")
    file.close()
    assert ((tmp_path / "log.old").read_text(), path.read_text()) == ("before\n", "after\n")


def test_a_file_that_another_program_emptied_goes_on_from_its_beginning(tmp_path):
    path = tmp_path / "log"
    file = LogFile(path)
    file.write("before\n")
    assert file.drain()
    os.truncate(path, 0)
    file.write("after\n")
    file.close()
    assert path.read_text() == "after\n"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "data").mkdir()
    link = tmp_path / "log"
    link.symlink_to(tmp_path / "data" / "real")
    with LogFile(link, max_bytes=10) as file:
        file.write(LINE)
        assert file.drain()
        file.write(LINE)
    assert link.is_symlink()
    assert sorted(found.name for found in (tmp_path / "data").iterdir()) == ["real", "real.1"]


def test_what_is_no_regular_file_is_written_and_never_rotated():
    read, write = os.pipe()
    with LogFile(f"/dev/fd/{write}", max_bytes=1) as file:
        file.write("one\n")
        file.write("two\n")
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "one\ntwo\n"


# ---- processes


def append_many(path: str, who: int, start) -> None:
    start.wait()
    with LogFile(path, max_bytes=20_000, keep=1000) as file:
        for number in range(500):
            file.write(json.dumps({"who": who, "number": number, "filling": "z" * 50}) + "\n")
            if number % 50 == 0:
                file.drain()


def test_processes_that_append_and_rotate_at_once_lose_no_line_and_tear_none(tmp_path):
    path = tmp_path / "log"
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(4)
    others = [context.Process(target=append_many, args=(str(path), who, start)) for who in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join(120)
    assert [other.exitcode for other in others] == [0] * 4
    found = [(line["who"], line["number"]) for line in map(json.loads, texts(path))]
    for who in range(4):
        assert [number for by, number in found if by == who] == list(range(500))
    assert len(list(tmp_path.iterdir())) > 5


def test_a_forked_process_writes_its_own_lines_and_not_those_that_waited(tmp_path):
    path = tmp_path / "log"
    program = f"""
import os
from policyengine.telemetry.log_file import LogFile
file = LogFile({str(path)!r})
file.write("before\\n")
file.drain()
child = os.fork()
file.write("child\\n" if child == 0 else "parent\\n")
file.close()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
    assert sorted(texts(path)) == ["before", "child", "parent"]


# ---- what is refused


@pytest.mark.parametrize(
    "options", [{"max_bytes": 0}, {"every_s": 0}, {"keep": 0}, {"most_lines": 0}, {"when_full": "wait"}]
)
def test_settings_that_make_no_sense_are_refused(tmp_path, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        LogFile(tmp_path / "log", **options)


def test_a_file_that_cannot_be_opened_is_refused_at_once(tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        LogFile(tmp_path / "missing" / "log")


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(log_file.fcntl, "flock", refused)
    with pytest.raises(UsageError, match="has no locks"):
        LogFile(tmp_path / "log")


@pytest.mark.parametrize(
    ("text", "size"),
    [("100MB", 100_000_000), ("1 KiB", 1024), ("2gb", 2_000_000_000), ("0MB", None), ("5", None), ("-1MB", None),
     ("1d", None), ("", None), ("1.5MB", None)],
)  # fmt: skip
def test_sizes_are_written_with_a_unit(text, size):
    assert size_of(text) == size


# ---- as the file of a decision log


def test_a_decision_log_in_a_file_of_its_own_has_every_line_and_says_what_was_dropped(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    path = tmp_path / "log"
    file = LogFile(path, when_full="drop", most_lines=4)
    decisions = DecisionLog(file, clock=lambda: 0.0)
    run = Engine(sinks=[decisions]).start_run()
    run.start("task")
    assert gate.reached.wait(60)
    for number in range(10):
        run.begin_iteration()
        run.before_tool_call(ToolCall(str(number), "look", "{}"))
    assert decisions.dropped > 0
    gate.open.set()
    file.close()
    lines = [json.loads(line) for line in texts(path)]
    (missing,) = [line for line in lines if line["type"] == "gap"]
    assert (missing["left_out"], missing["code"]) == (decisions.dropped, "lines_lost")
    assert {*missing} - {"left_out"} == {*lines[0]}


def test_a_log_that_was_closed_never_ends_a_run(tmp_path):
    file = LogFile(tmp_path / "log")
    decisions = DecisionLog(file)
    file.close()
    outcome = play(Engine(sinks=[decisions]), [call("look"), say("done")]).outcome
    assert outcome.status == "completed"
    assert decisions.dropped > 0


# ---- on the command line


def test_a_run_rotates_its_decision_log_and_keeps_so_many(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        assert (
            CliRunner().invoke(cli, ["run", "--log", "log", "--log-rotate", "20KB", "--log-keep", "2"]).exit_code == 0
        )
    assert sorted(found.name for found in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert all(json.loads(line)["v"] == 1 for line in texts(tmp_path / "log"))


@pytest.mark.parametrize("value", ["100", "0MB", "10ms", "1d", "MB"])
def test_what_is_neither_a_size_nor_a_time_is_refused(value):
    result = CliRunner().invoke(cli, ["run", "--log", "x", "--log-rotate", value])
    assert result.exit_code == 1
    assert "neither a size such as 100MB nor a time" in result.output
