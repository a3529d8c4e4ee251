"""`policyengine status`, `reload` and `kill`, and `run --control`."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import threading
from pathlib import Path

import pytest
from loguru import logger

from policyengine import Agent, Engine, StalePolicyError, ToolCall, ToolResult
from policyengine.cli import asking, guarded
from policyengine.cli.status import lines, moment, span
from policyengine.control.client import ask
from policyengine.control.wire import ReloadRequest, StatusRequest
from policyengine.plugins import imported
from policyengine.plugins.imported import Outdated
from policyengine.status import EngineStatus, RunStatus, StopStatus

BROKEN = "    with: {hnit: 2, deny: 3}\n"


@pytest.fixture
def place():
    """Return where a socket may be: the folders of tests can have paths that are too long for one."""
    with tempfile.TemporaryDirectory(prefix="pe-") as folder:
        yield str(Path(folder) / "s")


@pytest.fixture
def engine(run, place, monkeypatch):
    """Return an engine that answers at `place`."""
    monkeypatch.setattr(imported, "_VERSIONS", {})  # other tests pretend to install packages
    made = Engine("demo.yaml", folders=["guards"])
    with made.control(place):
        yield made


def edit(old: str, new: str) -> None:
    text = Path("demo.yaml").read_text()
    assert old in text
    Path("demo.yaml").write_text(text.replace(old, new))


def third_call(run) -> str:
    """Return what becomes of the third call of a run that began before."""
    call = ToolCall(f"call-{run.state.calls}", "look", "{}", {})
    decision = run.before_tool_call(call)
    run.after_tool_call(call, ToolResult(call.id, "nothing"))
    return decision.action


def test_a_reload_is_told_in_one_line_and_exits_with_0(run, engine, place):
    unchanged = run("reload", "--socket", place)
    assert (unchanged.exit_code, unchanged.stderr) == (0, "")
    assert unchanged.stdout.startswith("unchanged: policy demo revision '7', generation 1, digest ")
    edit('"7"', '"8"')
    replaced = run("reload", "--socket", place)
    assert (replaced.exit_code, replaced.stderr) == (0, "")
    assert replaced.stdout.startswith("replaced: policy demo revision '8', generation 2, digest ")


def test_a_refused_reload_exits_with_5_changes_no_verdict_and_is_logged_once(run, engine, place, monkeypatch):
    log: list[str] = []
    sink = logger.add(lambda message: log.append(message.record["message"]), level="INFO", format="{message}")
    # The verbs and the engine share a process here: a verb must not set up the log of the engine.
    monkeypatch.setattr("policyengine.cli.output.configure_logging", lambda: None)
    work = engine.start_run()
    work.start("t")
    work.begin_iteration()
    verdicts = [third_call(work) for _ in range(3)]
    edit("    with: {hint: 2, deny: 3}\n", BROKEN)
    refused, wanted = run("reload", "--socket", place), run("check", "demo.yaml", "--folder", "guards")
    again = [run("reload", "--socket", place) for _ in range(2)]
    logged = [len(log)]
    edit(BROKEN, "    with: {hint: 2, dney: 3}\n")
    again += [run("reload", "--socket", place) for _ in range(2)]
    logged.append(len(log))
    logger.remove(sink)
    assert logged == [1, 2]
    assert all(line.startswith("policy rejected, generation 1 stays in force:\n") for line in log)
    assert (refused.exit_code, refused.stdout) == (5, "")
    assert "error[S204]" in wanted.stderr
    assert refused.stderr == f"{wanted.stderr}refused; policy demo generation 1 stays in force\n"
    assert [result.exit_code for result in again] == [5] * 4
    assert verdicts == ["allow", "allow", "deny"]
    assert third_call(work) == "deny"
    assert engine.rejected.seen == 2
    assert engine.snapshot.generation == 1


@pytest.mark.parametrize("form", ["short", "json", "github"])
def test_problems_are_printed_in_the_form_that_was_asked_for(run, engine, place, form):
    edit("    with: {hint: 2, deny: 3}\n", BROKEN)
    result, wanted = (run(*verb, "--format", form) for verb in (("reload", "--socket", place), DEMO_CHECK))
    assert result.exit_code == 5
    if form == "json":
        found = json.loads(wanted.stdout)["policies"][0]["problems"]
        assert json.loads(result.stdout) == {"ok": False, "problems": found}
    elif form == "github":
        assert result.stdout == wanted.stdout
    else:
        assert result.stderr.startswith(wanted.stderr)


DEMO_CHECK = ("check", "demo.yaml", "--folder", "guards")


def test_status_tells_what_is_in_force_and_what_was_refused(run, engine, place):
    told = run("status", "--socket", place)
    assert told.exit_code == 0
    assert "policy     demo revision '7', generation 1, digest " in told.stdout
    assert "files      demo.yaml\nfolders    guards\nwatching   no\nstale      no\nkilled     no\n" in told.stdout
    edit("    with: {hint: 2, deny: 3}\n", BROKEN)
    run("reload", "--socket", place)
    refused = run("status", "--socket", place).stdout
    assert "tried once, first " in refused
    assert "\n           demo.yaml:9:12: error[S204] extensions.counting.with.hnit: unknown setting\n" in refused
    assert "stale      the files have differed for " in refused


def test_status_as_json_is_the_status_of_the_engine(run, engine, place):
    told = json.loads(run("status", "--socket", place, "--json").stdout)
    assert set(told) == set(EngineStatus.__struct_fields__)
    assert (told["policy"], told["generation"], told["digest"]) == ("demo", 1, engine.snapshot.digest)
    assert (told["rejection"], told["restart_needed"], told["differs_s"]) == (None, [], None)


def test_everything_that_is_wrong_is_told_in_a_line():
    status = EngineStatus(
        pid=1,
        policy="house",
        revision="7",
        generation=3,
        digest="d" * 64,
        files=(),
        folders=(),
        loaded_at=0.0,
        age_s=93784.0,
        killed=True,
        killed_by=("hand", "policy"),
        watching=True,
        differs_s=7300.0,
        max_staleness_s=3600.0,
        stale=True,
        runs_started=9,
        runs_active=2,
        restart_needed=(Outdated("acme-guards", "1.2", "1.3"), Outdated("acme-more", "2.0", "")),
        runs=(
            RunStatus("7f3a", "helper", "human", iteration=4, step=1, calls=9, silent_s=61.0),
            RunStatus("c0de", "", "model", iteration=1, step=1, calls=0, silent_s=0.0),
        ),
        decisions={"stop": 1, "hint": 7, "deny": 2},
        last_stop=StopStatus("beef", 0.0, 5.0, "repeat", "stall_detector", "p.yaml:3", "stop", 7.0, 7.0, 11),
        log_dropped=3,
    )
    told = list(lines(status))
    assert told[1:] == [
        ("loaded", "1970-01-01 00:00:00 UTC, 1 d 2 h ago"),
        ("files", "none"),
        ("watching", "yes"),
        ("stale", "yes, no new run starts: the files have differed for 2 h 1 min (at most 1 h)"),
        ("killed", "by hand and by the policy in force"),
        ("runs", "2 under way, 9 begun"),
        ("", "7f3a of helper: human, iteration 4, 9 calls, silent for 1 min 1 s"),
        ("", "c0de: model, iteration 1, 0 calls, silent for 0 s"),
        ("decided", "2 deny, 7 hint, 1 stop"),
        ("last stop", "stop by stall_detector: repeat (observed 7, limit 7), run beef, iteration 11, 5 s ago"),
        ("log", "3 lines could not be written"),
        ("process", "1"),
        ("restart", "needed for acme-guards: 1.2 was imported, 1.3 is installed"),
        ("restart", "needed for acme-more: 2.0 was imported, it is not installed any more"),
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (0.25, "0.2 s"), (59.6, "60 s"), (61, "1 min 1 s"), (3600, "1 h"), (90061, "1 d 1 h")],
)
def test_lengths_of_time_are_told_in_two_units(seconds, said):
    assert span(seconds) == said


def test_moments_are_told_in_utc():
    assert moment(1_000_000_000.9) == "2001-09-09 01:46:40 UTC"


def test_the_kill_switch_is_turned_on_and_off(run, engine, place):
    on = run("kill", "--socket", place)
    assert (on.exit_code, engine.killed) == (0, True)
    assert on.stdout == "the kill switch is on: no rule has an effect until it is off\n"
    off = run("kill", "--socket", place, "--off")
    assert (off.exit_code, engine.killed) == (0, False)
    assert off.stdout == "the kill switch is off: rules have their effect\n"


def test_the_kill_switch_stays_on_where_the_policy_says_so(run, engine, place):
    edit("extensions:\n", "kill_switch: true\nextensions:\n")
    assert run("reload", "--socket", place).exit_code == 0
    off = run("kill", "--socket", place, "--off")
    assert (off.exit_code, off.stdout) == (0, "the kill switch stays on: the policy in force says so\n")
    assert engine.killed


@pytest.mark.parametrize("verb", ["status", "reload", "kill"])
def test_where_no_engine_answers_the_exit_code_is_2(run, place, verb):
    result = run(verb, "--socket", place)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: no engine answers at {place}: No such file or directory\n"


def test_an_engine_that_has_too_many_clients_is_asked_again_for_a_while(run, place, monkeypatch):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(place)
        other.listen()

        def refuse() -> None:
            for _ in range(2):
                with other.accept()[0] as client:
                    client.recv(1000)
                    client.sendall(b'{"error":"too many clients at a time; try again"}\n')

        moments = iter([0.0, 1.0, 9.0])
        monkeypatch.setattr(asking, "monotonic", lambda: next(moments))
        thread = threading.Thread(target=refuse)
        thread.start()
        result = run("kill", "--socket", place)
        thread.join(20)
    assert result.exit_code == 2
    assert result.stderr == f"error: the engine at {place} did nothing: too many clients at a time; try again\n"


@pytest.mark.parametrize("verb", ["status", "reload", "kill"])
def test_the_socket_is_named_by_an_option_or_the_environment(run, engine, place, verb, monkeypatch):
    monkeypatch.delenv("POLICYENGINE_SOCKET", raising=False)
    result = run(verb)
    assert result.exit_code == 1
    assert "--socket" in result.stderr
    assert "POLICYENGINE_SOCKET" in result.stderr
    monkeypatch.setenv("POLICYENGINE_SOCKET", place)
    assert run(verb).exit_code == 0


def test_a_path_that_is_too_long_is_the_fault_of_the_input(run):
    result = run("status", "--socket", "x" * 200)
    assert result.exit_code == 1
    assert "this one has 200" in result.stderr


def test_a_run_answers_while_it_is_under_way_and_takes_what_was_reloaded(play, place, monkeypatch):
    heard = []
    ending = Agent.run

    def asked_first(agent: Agent, *args, **options):
        heard.append(ask(place, StatusRequest()).status)
        edit("{hint: 2, deny: 3}", "{hint: 2, deny: 2}")
        heard.append(ask(place, ReloadRequest()).outcome)
        return ending(agent, *args, **options)

    monkeypatch.setattr(Agent, "run", asked_first)
    result = play("--control", place)
    assert result.exit_code == 0
    assert (heard[0].policy, heard[0].watching, heard[1]) == ("demo", False, "replaced")
    assert not Path(place).exists()


def test_a_run_with_a_watch_handles_sighup_until_it_ends(play, monkeypatch):
    handlers = []
    ending, before = Agent.run, signal.getsignal(signal.SIGHUP)

    def asked_first(agent: Agent, *args, **options):
        handlers.append(signal.getsignal(signal.SIGHUP))
        os.kill(os.getpid(), signal.SIGHUP)
        return ending(agent, *args, **options)

    monkeypatch.setattr(Agent, "run", asked_first)
    assert play("--watch").exit_code == 0
    assert callable(handlers[0])
    assert signal.getsignal(signal.SIGHUP) == before


def test_a_run_that_may_not_begin_under_a_stale_policy_could_not_be_done(capsys):
    def work():
        raise StalePolicyError("house", 3, 700.0, 600.0)

    assert guarded(work) == 2
    assert capsys.readouterr().err.startswith("error: policy house is stale: ")


def test_a_run_cannot_begin_where_an_engine_answers_already(run, play, engine, place):
    result = play("--control", place)
    assert result.exit_code == 1
    assert "round 1" not in result.stdout
    assert f"an engine answers at {place} already" in result.stderr
