"""A running engine is asked and told over a unix socket, and nothing that a client does can hurt it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from policyengine import Agent, Engine, Script, StalePolicyError, ToolCall, ToolResult, UsageError, call, say
from policyengine.control.client import NoAnswerError, ask
from policyengine.control.place import MAX_PATH
from policyengine.control.server import Control
from policyengine.control.wire import (
    BUSY,
    MAX_ANSWER,
    MAX_REQUEST,
    Answer,
    KillRequest,
    LineError,
    ReloadRequest,
    StatusRequest,
    line_of,
    read_answer,
    read_line,
    read_request,
)
from policyengine.outcome import Outcome
from policyengine.plugins import imported
from policyengine.policy.problems import Position, Problem
from policyengine.policy.reload import Watch
from policyengine.providers.scripted import ScriptedModel

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: house\n"
RULES = "extensions: {stall_detector: {with: {repeat: {deny: 3}}}}\n"
GOOD = HEAD + 'revision: "1"\n' + RULES
BAD = HEAD + RULES + "extentions: {}\n"


@pytest.fixture(autouse=True)
def nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the packages that other tests pretended to install."""
    monkeypatch.setattr(imported, "_VERSIONS", {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def engine(file: Path) -> Engine:
    return Engine(file)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Return where a socket may be: the folders of tests can have paths that are too long for one."""
    with tempfile.TemporaryDirectory(prefix="pe-") as folder:
        yield Path(folder) / "s"


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO", format="{message}")
    yield lines
    logger.remove(sink)


class Moved:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def raw(place: Path, sent: bytes) -> bytes:
    """Send bytes as they are, say that nothing follows, and return all that comes back."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(place))
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65536), b""))


def denied(run) -> bool:
    call = ToolCall(f"call-{run.state.calls}", "look", "{}", {})
    decision = run.before_tool_call(call)
    run.after_tool_call(call, ToolResult(call.id, "the same"))
    return decision.action == "deny"


# ---- what is answered


def test_a_reload_over_the_socket_puts_new_files_in_force(engine, file, place):
    with engine.control(place):
        assert ask(place, ReloadRequest()).outcome == "unchanged"
        file.write_text(GOOD.replace('"1"', '"2"'))
        answer = ask(place, ReloadRequest())
    assert (answer.outcome, answer.status.revision, answer.status.generation) == ("replaced", "2", 2)
    assert engine.snapshot.generation == 2


def test_a_failing_reload_changes_no_verdict_and_is_logged_once(engine, file, place, log):
    run, twin = engine.start_run(), Engine(file).start_run()
    for each in (run, twin):
        each.start("t")
        each.begin_iteration()
    verdicts = [denied(run)]
    file.write_text(BAD)
    with engine.control(place):
        for _ in range(3):
            answer = ask(place, ReloadRequest())
            assert answer.outcome == "rejected"
            assert [(found.code, found.position.line) for found in answer.problems] == [("S204", 5)]
            verdicts.append(denied(run))
        status = ask(place, StatusRequest()).status
    assert verdicts == [denied(twin) for _ in range(4)]
    assert verdicts[-1]
    assert len([line for line in log if "rejected" in line]) == 1
    assert (status.generation, status.rejection.seen, status.rejection.problems) == (1, 3, answer.problems)


def test_the_kill_switch_reaches_a_run_under_way_at_its_next_call(engine, place):
    run = engine.start_run()
    run.start("t")
    run.begin_iteration()
    assert [denied(run) for _ in range(3)] == [False, False, True]
    with engine.control(place):
        status = ask(place, KillRequest()).status
        assert (status.killed, status.killed_by) == (True, ("hand",))
        assert not denied(run)
        assert not ask(place, KillRequest(on=False)).status.killed
        assert denied(run)


def test_status_says_what_is_in_force(file, place, tmp_path):
    (tmp_path / "guards").mkdir()
    clock, wall = Moved(), Moved()
    engine = Engine(file, folders=[tmp_path / "guards"], clock=clock, wall_clock=wall)
    wall.now += 60
    with engine.control(place), engine.watch(poll_s=30):
        status = ask(place, StatusRequest()).status
    assert (status.policy, status.revision, status.generation) == ("house", "1", 1)
    assert status.digest == engine.snapshot.digest
    assert (status.files, status.folders) == ((str(file),), (str(tmp_path / "guards"),))
    assert (status.loaded_at, status.age_s, status.pid) == (1000.0, 60.0, os.getpid())
    assert (status.watching, status.killed, status.killed_by) == (True, False, ())
    assert (status.differs_s, status.stale, status.rejection, status.restart_needed) == (None, False, None, ())
    assert not engine.status().watching


def test_status_is_answered_while_a_policy_is_being_built(engine, place):
    with engine.control(place), engine._lock:
        assert ask(place, StatusRequest()).status.generation == 1
        assert ask(place, KillRequest()).status.killed


def test_status_counts_runs_until_they_end_or_nobody_holds_them(engine):
    first, second, third = engine.start_run(), engine.start_run(), engine.start_run()
    first.start("t")
    first.end(Outcome("completed"))
    assert (engine.status().runs_started, engine.status().runs_active) == (3, 2)
    del second
    assert engine.status().runs_active == 1
    assert engine.resume_run(third.save())[0]
    assert engine.status().runs_started == 4


def test_a_rejection_is_told_with_since_when_and_how_often(file):
    wall = Moved()
    engine = Engine(file, wall_clock=wall)
    file.write_text(BAD)
    engine.reload()
    wall.now += 90
    engine.reload()
    found = engine.status().rejection
    assert (found.since, found.age_s, found.seen) == (1000.0, 90.0, 2)
    assert (found.problems[0].code, found.problems[0].position) == ("S204", Position(str(file), 5, 1))
    file.write_text(GOOD)
    engine.reload()
    assert engine.status().rejection is None


def test_status_names_packages_that_were_installed_anew_since_they_were_imported(engine, monkeypatch):
    monkeypatch.setattr(imported, "_VERSIONS", {"acme-guards": "1.2", "msgspec": importlib.metadata.version("msgspec")})
    installed = importlib.metadata.version

    def version(name: str) -> str:
        return "1.3" if name == "acme-guards" else installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert engine.status().restart_needed == (imported.Outdated("acme-guards", "1.2", "1.3"),)
    monkeypatch.undo()
    monkeypatch.setattr(imported, "_VERSIONS", {"acme-guards-gone": "1.2"})
    assert engine.status().restart_needed == (imported.Outdated("acme-guards-gone", "1.2", ""),)


def test_a_version_is_that_of_the_first_import(monkeypatch):
    monkeypatch.setattr(imported, "_VERSIONS", {})
    imported.note_import("acme-guards", "1.2")
    imported.note_import("acme-guards", "1.3")
    assert imported._VERSIONS == {"acme-guards": "1.2"}


def test_it_serves_an_asynchronous_program(engine, place):
    async def program() -> int:
        with engine.control(place):
            answers = await asyncio.gather(*(asyncio.to_thread(ask, place, StatusRequest()) for _ in range(4)))
        return sum(answer.status.generation for answer in answers)

    assert asyncio.run(program()) == 4


# ---- clients that misbehave


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "the connection ended"),
        (b'{"request":"status"}', "the connection ended"),
        (b"\n", "no request"),
        (b"hello\n", "no request"),
        (b"\xff\xfe\x00\n", "no request"),
        (b"[" * 4000 + b"\n", "no request"),
        (b'{"request":"stop"}\n', "no request"),
        (b'{"request":"kill","on":"yes"}\n', "no request"),
        (b'{"request":"kill","of":true}\n', "no request"),
        (b"x" * MAX_REQUEST, "longer than 4096 bytes"),
        (b"x" * MAX_REQUEST + b"\n", "no request"),
    ],
)
def test_what_is_no_request_is_answered_with_why_and_does_nothing(engine, place, sent, said):
    with engine.control(place):
        assert said in json.loads(raw(place, sent))["error"]
        assert not ask(place, StatusRequest()).status.killed


def test_a_huge_line_is_not_read_to_its_end(engine, place):
    with engine.control(place):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(str(place))
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                client.sendall(b"x" * (1 << 26))
        assert ask(place, StatusRequest()).status.generation == 1


def test_clients_that_say_nothing_keep_nobody_waiting_and_are_closed(engine, place):
    with Control(engine, place, timeout_s=1.0):
        silent = [socket.socket(socket.AF_UNIX) for _ in range(8)]
        for client in silent:
            client.settimeout(20)
            client.connect(str(place))
        assert ask(place, StatusRequest()).status.generation == 1
        for client in silent:
            assert b"no whole line within 1 s" in client.recv(65536)
            assert client.recv(65536) == b""
            client.close()


def test_a_client_that_goes_away_before_the_answer_hurts_nobody(engine, place):
    with engine.control(place):
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(place))
                client.sendall(b'{"request":"status"}\n')
        assert ask(place, StatusRequest()).status.generation == 1


def test_too_many_clients_at_a_time_are_told_so(engine, place):
    with Control(engine, place, most_clients=2):
        held = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for client in held:
            client.connect(str(place))
            client.sendall(b"{")
        assert ask(place, StatusRequest()).error == BUSY
        for client in held:
            client.close()


def test_clients_that_have_said_nothing_lose_their_place_first_and_oldest_first(engine, place):
    with Control(engine, place, most_clients=3):
        held = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for number, client in enumerate(held):
            client.connect(str(place))
            client.settimeout(20)
            if not number:
                client.sendall(b'{"request":')
        assert ask(place, KillRequest(on=True)).status.killed
        assert held[1].recv(10) == b"", "the oldest silent one was dropped"
        held[0].sendall(b'"status"}\n')
        assert b'"killed":true' in held[0].recv(65536)
        for client in held:
            client.close()


def test_many_clients_are_answered_at_once(engine, place):
    answers: list[Answer] = []

    def client(number: int) -> None:
        answers.append(ask(place, [StatusRequest(), ReloadRequest(), KillRequest(on=False)][number % 3], 60))

    with engine.control(place):
        threads = [threading.Thread(target=client, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert [answer.error for answer in answers] == [""] * 12


def test_a_request_that_fails_is_told_to_the_client(engine, place, monkeypatch):
    monkeypatch.setattr(engine, "refresh", lambda: 1 / 0)
    with engine.control(place):
        assert "ZeroDivisionError" in ask(place, ReloadRequest()).error
        assert ask(place, StatusRequest()).status.generation == 1


def test_a_client_that_waits_does_not_hold_up_the_end_of_the_block(engine, place):
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        with Control(engine, place, timeout_s=3600):
            client.connect(str(place))
            assert ask(place, StatusRequest()).status.generation == 1
        assert b"the connection ended" in client.recv(65536)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("policyengine-control")]


# ---- lines


@given(st.binary(max_size=200))
def test_any_line_is_a_request_or_an_error(line):
    with suppress(LineError):
        assert read_request(line)


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=8))
def test_a_line_may_come_in_any_pieces(pieces):
    whole = b"".join(pieces) + b"\n"
    near, far = socket.socketpair()
    with near, far:
        for piece in pieces:
            near.sendall(piece)
        near.sendall(b"\n")
        assert read_line(far, 1000, 20) == whole.partition(b"\n")[0]


@pytest.mark.parametrize("message", [ReloadRequest(), StatusRequest(), KillRequest(), KillRequest(on=False)])
def test_requests_are_read_as_they_were_written(message):
    assert read_request(line_of(message).rstrip(b"\n")) == message


def test_an_answer_that_is_too_long_is_shortened_and_still_an_answer():
    problem = Problem("S204", "m" * 9000, Position("p.yaml", 1, 1), source_line="x" * 9000)
    line = line_of(Answer(outcome="rejected", problems=(problem,) * 1000))
    assert len(line) < MAX_ANSWER
    answer = read_answer(line)
    assert (answer.outcome, answer.problems[0].code, len(answer.problems)) == ("rejected", "S204", 20)


# ---- where the socket is


def test_the_socket_is_for_its_owner_only_and_is_removed_at_the_end(engine, place):
    before = os.umask(0)
    try:
        with engine.control(place):
            assert stat.S_IMODE(place.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert list(place.parent.iterdir()) == []
    with pytest.raises(NoAnswerError, match="no engine answers"):
        ask(place, StatusRequest())


def test_a_block_can_be_entered_again_but_not_twice(engine, place):
    control = engine.control(place)
    for _ in range(2):
        with control:
            assert ask(place, StatusRequest()).status
            with pytest.raises(UsageError, match="served already"):
                control.__enter__()


def test_a_socket_of_a_living_process_is_refused(engine, place):
    with engine.control(place):
        with pytest.raises(UsageError, match=r"answers at .* already"), engine.control(place):
            pass
        assert ask(place, StatusRequest()).status


def test_a_socket_that_something_else_listens_at_is_refused(engine, place):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place))
        other.listen()
        with pytest.raises(UsageError, match="a process answers"), engine.control(place):
            pass
    assert place.is_socket()


def test_the_socket_of_a_dead_process_is_replaced(engine, file, place):
    code = (
        "import os, sys\n"
        "from policyengine import Engine\n"
        "Engine(sys.argv[1]).control(sys.argv[2]).__enter__()\n"
        "os._exit(9)\n"
    )
    dead = subprocess.run([sys.executable, "-c", code, str(file), str(place)], timeout=120, check=False)
    assert dead.returncode == 9
    assert place.is_socket()
    with pytest.raises(NoAnswerError, match="refused"):
        ask(place, StatusRequest())
    with engine.control(place):
        assert ask(place, StatusRequest()).status.pid == os.getpid()
    assert list(place.parent.iterdir()) == []


def test_a_file_in_its_place_is_never_removed(engine, place):
    place.write_text("precious")
    with pytest.raises(UsageError, match="no socket"), engine.control(place):
        pass
    assert place.read_text() == "precious"


def test_what_somebody_else_put_in_its_place_is_left_alone(engine, place):
    with engine.control(place):
        place.unlink()
        place.write_text("precious")
    assert place.read_text() == "precious"


def test_a_directory_that_everybody_can_write_is_refused_unless_it_is_sticky(engine, place):
    place.parent.chmod(0o777)
    with pytest.raises(UsageError, match="written by everybody"), engine.control(place):
        pass
    place.parent.chmod(0o1777)
    with engine.control(place):
        assert ask(place, StatusRequest()).status


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "must not be empty"),
        ("a\0b", "zero byte"),
        ("nowhere/s", "no directory"),
        ("x" * (MAX_PATH + 1), f"may have {MAX_PATH} bytes; this one has {MAX_PATH + 1}"),
        ("é" * 60, "this one has 120"),
    ],
)
def test_a_path_that_no_socket_can_have_is_refused_with_why(engine, tmp_path, monkeypatch, path, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said), engine.control(path):
        pass
    if "directory" not in said:
        with pytest.raises(UsageError, match=said):
            ask(path, StatusRequest())


def test_the_socket_is_removed_also_where_the_working_directory_changed(engine, place, monkeypatch):
    monkeypatch.chdir(place.parent)
    with engine.control("s"):
        monkeypatch.chdir("/")
        assert ask(place, StatusRequest()).status
    assert not place.exists()


def test_what_answers_like_no_engine_is_no_answer(place):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place))
        other.listen()
        with pytest.raises(NoAnswerError, match="no whole line"):
            ask(place, StatusRequest(), 0.05)
        other.accept()[0].close()

        def babble() -> None:
            with other.accept()[0] as client:
                client.recv(1000)
                client.sendall(b"220 ready\n")

        thread = threading.Thread(target=babble)
        thread.start()
        with pytest.raises(NoAnswerError, match="no answer"):
            ask(place, StatusRequest(), 20)
        thread.join(20)


# ---- files that have differed for too long


LIMITED = HEAD + "reload: {max_staleness: 10m, settle: 300ms}\n" + RULES


class Desk:
    """An engine with a limit on staleness, a watch without a thread, and one clock for both."""

    def __init__(self, file: Path, content: str = LIMITED) -> None:
        file.write_text(content)
        self.file = file
        self.clock = Moved()
        self.heard: list[str] = []
        self.engine = Engine(file, clock=self.clock, listeners=[lambda event, _: self.heard.append(event)])
        self.watch = Watch(self.engine, clock=self.clock)
        self.look()

    def look(self, later_s: float = 0.0) -> None:
        """Let the watch look often enough for a change to settle, the last time so much later."""
        for wait_s in (0.4, 0.4, 0.4, 0.4, later_s):
            self.clock.now += wait_s
            self.watch.step(self.clock.now)

    @property
    def stale(self) -> bool:
        try:
            self.engine.start_run()
        except StalePolicyError:
            return True
        return False


@pytest.mark.parametrize("content", [BAD, "", None])
def test_new_runs_are_refused_when_no_version_came_into_force_for_too_long(file, log, content):
    desk = Desk(file)
    under_way = desk.engine.start_run()
    under_way.start("t")
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    desk.look(500)
    assert not desk.stale
    desk.look(200)
    with pytest.raises(StalePolicyError, match="policy house is stale") as raised:
        desk.engine.start_run()
    error = raised.value
    assert (error.code, error.policy, error.generation, error.limit_s) == ("policy_stale", "house", 1, 600)
    assert 600 < error.differs_s < 800
    assert error.why == desk.engine.rejected.text
    assert error.why
    with pytest.raises(StalePolicyError):
        desk.engine.resume_run(under_way.save())
    under_way.begin_iteration()
    assert [denied(under_way) for _ in range(3)] == [False, False, True]
    status = desk.engine.status()
    assert (status.stale, status.max_staleness_s) == (True, 600)
    assert status.differs_s > 600
    for _ in range(3):
        desk.look(100)
    assert len([line for line in log if "is stale:" in line]) == 1
    assert desk.heard.count("policy_stale") == 1


def test_a_stale_policy_is_fresh_again_when_a_version_of_its_files_is_in_force(file, log):
    desk = Desk(file)
    file.write_text(BAD)
    desk.look(700)
    assert desk.stale
    file.write_text(LIMITED + "# edited\n")
    desk.look()
    assert not desk.stale
    assert (desk.engine.snapshot.generation, desk.engine.status().differs_s) == (2, None)
    file.write_text(BAD)
    desk.look(700)
    assert desk.stale
    file.write_text(LIMITED + "# edited\n")
    assert not desk.stale, "the files are those of the policy in force, whether anybody reloads them or not"
    assert len([line for line in log if "is stale:" in line]) == 2
    assert len([line for line in log if "stale no longer" in line]) == 2


def test_files_that_never_settle_make_a_policy_stale(file):
    desk = Desk(file)
    for number in range(700):
        file.write_text(f"{LIMITED}# {number}\n")
        desk.clock.now += 1.0
        desk.watch._settler.settle_s = 5.0
        desk.watch.step(desk.clock.now)
    assert desk.engine.snapshot.generation == 1
    assert desk.stale


def test_the_time_counts_from_the_first_version_that_was_not_taken(file):
    desk = Desk(file)
    for number in range(7):
        assert not desk.stale
        file.write_text(f"{BAD}# {number}\n")
        desk.look(95)
    assert desk.stale


def test_an_extra_file_of_a_refused_version_does_not_count(file):
    desk = Desk(file)
    file.write_text(LIMITED + "extends: [./more.yaml]\n")
    desk.look(100)
    assert desk.engine.rejected
    file.write_text(LIMITED)
    assert desk.engine.status().differs_s is None


def test_a_sub_agent_is_a_new_run_and_fails_as_a_tool_while_its_parent_goes_on(file):
    desk = Desk(file)
    helper = Agent(desk.engine, ScriptedModel(Script("help", (say("helped"),))), [], system="You help.")

    def spoil() -> str:
        """Break the policy, and let time pass."""
        file.write_text(BAD)
        desk.look(700)
        return "spoiled"

    turns = (call("helper", {"task": "help"}), call("spoil", {}), call("helper", {"task": "help"}), say("done"))
    agent = Agent(desk.engine, ScriptedModel(Script("t", turns)), [spoil, helper.as_tool("helper", "Helps.")])
    outcome = agent.run("t")
    assert (outcome.status, outcome.output) == ("completed", "done")
    first, _, second = [message.text for message in outcome.messages if message.role == "tool"]
    assert "helped" in first
    assert "policy house is stale" in second
    assert "S204" not in second
    with pytest.raises(StalePolicyError):
        agent.run("t")


def test_without_a_limit_a_policy_is_never_too_old(file, log):
    desk = Desk(file, GOOD)
    file.write_text(BAD)
    desk.look(10_000_000)
    assert not desk.stale
    assert desk.engine.status().differs_s > 9_000_000
    assert not [line for line in log if "stale" in line]


def test_without_a_watch_the_time_counts_from_the_first_look(file):
    clock = Moved()
    file.write_text(LIMITED)
    engine = Engine(file, clock=clock)
    file.write_text(BAD)
    clock.now += 5000
    assert engine.start_run()
    clock.now += 599
    assert engine.start_run()
    clock.now += 2
    with pytest.raises(StalePolicyError) as raised:
        engine.start_run()
    assert raised.value.why == ""


def test_the_limit_that_counts_is_that_of_the_policy_in_force(file):
    desk = Desk(file)
    file.write_text(BAD + "reload: {max_staleness: 24h}\n")
    desk.look(700)
    assert desk.stale


def test_a_policy_without_files_is_never_stale():
    engine = Engine()
    assert engine.status().differs_s is None
    assert not engine.watches


def test_a_file_that_changed_while_the_first_version_was_read_counts_as_different(file, monkeypatch):
    build = Engine._build

    def disturbed(engine: Engine, generation: int):
        snapshot = build(engine, generation)
        file.write_text(LIMITED + "# edited meanwhile\n")
        return snapshot

    monkeypatch.setattr(Engine, "_build", disturbed)
    engine = Engine(file)
    monkeypatch.undo()
    assert engine.status().differs_s is not None
    assert engine.reload()
    assert engine.status().differs_s is None


def test_a_status_is_plain_data(engine):
    status = engine.status()
    assert msgspec.json.decode(msgspec.json.encode(status), type=type(status)) == status
