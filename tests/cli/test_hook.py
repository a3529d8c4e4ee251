"""`policyengine hook` as processes: exit codes, parallel and killed processes, damaged stores, kept policies."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from policyengine.cli import cli as command_line
from policyengine.hook.dialects import DIALECTS
from policyengine.hook.entry import Arguments
from policyengine.hook.settings import Entries, install
from policyengine.hosts.core import HostRun
from policyengine.hosts.table import HOSTS
from policyengine.stores import RUNS
from policyengine.stores.sqlite import SqliteStore

HOOK = [sys.executable, "-P", "-m", "policyengine.hook"]
SCRIPT = [sys.executable, "-m", "policyengine", "hook"]
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: p\n"


@pytest.fixture
def cli():
    """Run the command line in this process."""
    return lambda *words: CliRunner().invoke(command_line, list(words), prog_name="policyengine")


DENY = HEAD + "extensions:\n  stall_detector: {with: {repeat: {deny: 3}}}\n"
CLAUDE = "claude-code"


def event(name="PreToolUse", number=1, session="s", **more) -> dict:
    call = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": f"t{number}"}
    return {"session_id": session, "hook_event_name": name, **call, **more}


@pytest.fixture
def state(tmp_path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def policy(tmp_path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(DENY)
    return path


def run(said, state, *options, host=CLAUDE, command=HOOK, **how):
    data = said if isinstance(said, bytes) else json.dumps(said).encode()
    words = [*command, host, "--state", str(state), *map(str, options)]
    return subprocess.run(words, input=data, capture_output=True, timeout=120, check=False, **how)


def answered(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else {}


def blocked(done, why=""):
    assert (done.returncode, done.stdout) == (2, b""), (done.returncode, done.stdout, done.stderr)
    assert why in done.stderr.decode()
    assert "Nothing was let through" in done.stderr.decode()


def key_of(values, key) -> str:
    """Return the whole key of `host/session/agent`: hooks with different policies have runs of their own."""
    host, _, rest = key.partition("/")
    (found,) = [name for name in values.keys(RUNS, f"{host}/") if name.endswith(f"/{rest}")]
    return found


def saved(state, key="claude-code/s/"):
    with closing(SqliteStore(state / "hooks.sqlite")) as store:
        return store.read(lambda values: values.get(RUNS, key_of(values, key)))


def calls(state, key="claude-code/s/") -> int:
    return json.loads(saved(state, key))["state"]["calls"]


# --- a session ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [HOOK, SCRIPT], ids=["module", "script"])
def test_state_lives_on_between_processes(command, state, policy):
    for number in (1, 2):
        assert answered(run(event(number=number), state, "--policy", policy, command=command)) == {}
        answered(run(event("PostToolUse", number, tool_response={"stdout": "a"}), state, "--policy", policy))
    own = answered(run(event(number=3), state, "--policy", policy, command=command))["hookSpecificOutput"]
    assert own["permissionDecision"] == "deny"
    assert 'rule "stall_detector"' in own["permissionDecisionReason"]
    assert answered(run(event(number=4, session="other"), state, "--policy", policy)) == {}


def test_the_state_is_nobody_elses_to_read(state, policy):
    run(event(), state, "--policy", policy)
    assert state.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in state.iterdir()} == {0o600}


def test_the_state_is_kept_where_the_system_keeps_state(tmp_path, policy):
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "xdg"), "POLICYENGINE_POLICY": str(policy)}
    done = subprocess.run([*HOOK, CLAUDE], input=json.dumps(event()).encode(), env=environment, check=False)
    assert done.returncode == 0
    assert (tmp_path / "xdg" / "policyengine" / "hooks.sqlite").exists()


def test_the_working_directory_is_no_place_for_modules(tmp_path, state, policy):
    for name in ("json", "msgspec", "sqlite3", "threading"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(0)\n")
    for command in (HOOK, [word for word in HOOK if word != "-P"]):
        run(event(), state, "--policy", policy, cwd=tmp_path, command=command)
    assert calls(state) == 1, "the same call, judged"


@pytest.mark.parametrize("host", DIALECTS)
def test_every_dialect_answers_its_own_events(host, state, policy):
    dialect = DIALECTS[host]
    before = next(name for name, kind in dialect.events.items() if kind == "before")
    for number in range(3):
        said = {dialect.event_key: before, "session_id": "s", "tool_name": "look", "tool_input": {"a": 1}}
        done = run({**said, "tool_use_id": f"t{number}"}, state, "--policy", policy, host=host)
        out = answered(done)
    assert "deny" in (out.get("decision"), out.get("hookSpecificOutput", {}).get("permissionDecision")) or not out
    assert calls(state, f"{host}/s/") == 3
    blocked(run(b"no JSON", state, host=host), "not JSON")


# --- failing closed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "no"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ({"hook_event_name": "PreToolUse"}, "without a tool_name"),
        ({"hook_event_name": "PreToolUse", "tool_name": "Bash"}, "without a session_id"),
        ({"session_id": "s", "tool_name": "Bash"}, "no `hook_event_name`"),
    ],
)
def test_an_event_that_cannot_be_read_blocks(said, why, state):
    blocked(run(said, state), why)


@pytest.mark.parametrize("options", [["--no-such"], ["--policy"], ["twice"], ["--deadline", "soon"], ["--deadline=0"]])
def test_a_command_line_that_cannot_be_read_blocks(options, state):
    blocked(run(event(), state, *options), "usage: policyengine hook")


def test_a_verb_without_a_host_blocks():
    for command in (HOOK, SCRIPT):
        blocked(subprocess.run(command, input=b"{}", capture_output=True, check=False), "no host is named")


def test_a_host_that_is_not_known_blocks(state):
    blocked(run(event(), state, host="cursor"), "claude-code, codex, gemini-cli, openhands")
    blocked(run(event(), state, host="cursor", command=SCRIPT), "claude-code")


def test_what_is_said_of_an_unreadable_event_is_believed(state):
    blocked(run(b"{", state, "--event", "PreToolUse"))
    done = run(b"{", state, "--event", "Stop")
    assert "not JSON" in answered(done)["systemMessage"]


@pytest.mark.parametrize(
    ("text", "why"),
    [("nonsense: [", "policy.yaml"), (HEAD + "extensions: {no_such: {}}\n", "no_such"), (None, "cannot be read")],
)
def test_a_policy_that_cannot_be_used_blocks_calls_and_tells_the_user_elsewhere(text, why, state, policy):
    if text is None:
        policy.unlink()
    else:
        policy.write_text(text)
    blocked(run(event(), state, "--policy", policy), why)
    blocked(run(event("PostToolUse", tool_response="a"), state, "--policy", policy), why)
    for name in ("UserPromptSubmit", "SessionStart", "Stop", "SubagentStop", "SessionEnd"):
        done = run(event(name), state, "--policy", policy)
        assert why in answered(done)["systemMessage"]
    assert answered(run(event("Notification"), state, "--policy", policy)) == {}


def test_a_policy_that_wants_more_than_the_host_can_is_refused(state, policy):
    policy.write_text(HEAD + "extensions:\n  provider_recovery: {}\n")
    blocked(run(event(), state, "--policy", policy), "R518")


def test_a_damaged_store_blocks(state, policy):
    run(event(), state, "--policy", policy)
    store = SqliteStore(state / "hooks.sqlite")
    store._open.execute("UPDATE kept SET value = CAST(substr(value, 1, 40) AS BLOB)")
    store.close()
    blocked(run(event(number=2), state, "--policy", policy), "damaged")
    for name in ("hooks.sqlite", "hooks.sqlite-wal", "hooks.sqlite-shm"):
        (state / name).unlink(missing_ok=True)
    (state / "hooks.sqlite").write_bytes(b"no database" * 1000)
    blocked(run(event(number=2), state, "--policy", policy), "hooks.sqlite")


def test_a_saved_run_that_means_nothing_blocks(state, policy):
    run(event(), state, "--policy", policy)
    store = SqliteStore(state / "hooks.sqlite")
    store.update(lambda values: values.put(RUNS, key_of(values, "claude-code/s/"), b"{}"))
    store.close()
    blocked(run(event(number=2), state, "--policy", policy), "not a saved run")


def test_a_store_that_somebody_holds_blocks_in_the_end(state, policy):
    run(event(), state, "--policy", policy)
    holding = sqlite3.connect(state / "hooks.sqlite", isolation_level=None)
    holding.execute("BEGIN IMMEDIATE")
    blocked(run(event(number=2), state, "--policy", policy, "--deadline", "1"), "no decision within 1 s")
    holding.execute("ROLLBACK")
    holding.close()
    assert answered(run(event(number=2), state, "--policy", policy)) == {}
    assert calls(state) == 2


def test_a_directory_that_cannot_be_written_blocks(tmp_path, policy):
    (tmp_path / "file").write_text("")
    blocked(run(event(), tmp_path / "file", "--policy", policy), "state directory")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    blocked(run(event(), tmp_path / "open", "--policy", policy), "written by others")


def test_a_read_only_directory_blocks(tmp_path, policy):
    folder = tmp_path / "readonly"
    folder.mkdir(mode=0o500)
    done = run(event(), folder, "--policy", policy, preexec_fn=_without_power)
    blocked(done)
    assert list(folder.iterdir()) == []


def _without_power() -> None:
    if os.geteuid() == 0:  # a file system is read-only for root, too, if no file may have a byte
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_a_full_disk_blocks_and_leaves_the_store_as_it_was(state, policy):
    run(event(), state, "--policy", policy)

    def full():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    before = saved(state)
    blocked(run(event(number=2), state, "--policy", policy, preexec_fn=full), "hooks.sqlite")
    assert saved(state) == before
    assert answered(run(event(number=2), state, "--policy", policy)) == {}


def test_being_told_to_end_blocks(state, policy):
    process = subprocess.Popen(
        [*HOOK, CLAUDE, "--state", str(state), "--event", "PreToolUse", "--policy", str(policy)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"{")
    process.stdin.flush()
    _wait_for_handler(process)
    process.terminate()
    assert process.wait(60) == 2
    assert b"signal 15" in process.stderr.read()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def _wait_for_handler(process) -> None:
    """Wait until a process handles SIGTERM, as the system tells; elsewhere until it has had time to."""
    status = Path(f"/proc/{process.pid}/status")
    for _ in range(5000 if status.exists() else 200):
        if status.exists():
            caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
            if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
                return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.01)


def test_an_event_that_never_ends_blocks_when_the_time_is_over(state):
    reading, writing = os.pipe()
    words = [*HOOK, CLAUDE, "--state", str(state), "--deadline", "0.5"]
    done = subprocess.run(words, stdin=reading, capture_output=True, timeout=60, check=False)
    os.close(reading)
    os.close(writing)
    blocked(done, "no decision within 0.5 s")


def test_an_answer_that_nobody_can_read_blocks(state, policy):
    for number in (1, 2):
        run(event(number=number), state, "--policy", policy)
    closed, writing = os.pipe()
    os.close(closed)
    words = [*HOOK, CLAUDE, "--state", str(state), "--policy", str(policy)]
    data = json.dumps(event(number=3)).encode()
    done = subprocess.run(words, input=data, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.returncode == 2


def test_a_broken_installation_blocks(tmp_path, state):
    (tmp_path / "msgspec.py").write_text("raise ImportError('no such luck')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    blocked(run(event(), state, env=environment), "no such luck")


# --- many processes, and processes that are killed ------------------------------------------------------------------


def start(said, state, policy):
    words = [*HOOK, CLAUDE, "--state", str(state), "--policy", str(policy), "--deadline", "100"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(said).encode())
    process.stdin.close()
    return process


def kill_after(process, seconds):
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()


def finish(process):
    code = process.wait(120)
    out, err = process.stdout.read(), process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    return code, out, err


def test_fifty_processes_of_one_session_lose_nothing(state, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(HEAD + "interventions: {max: 99}\nextensions:\n  tool_call_limit: {with: {tools: {Bash: 30}}}\n")
    started = [start(event(number=number, tool_input={"n": number}), state, policy) for number in range(50)]
    ended = [finish(process) for process in started]
    assert {code for code, _, _ in ended} == {0}, [err for code, _, err in ended if code]
    assert sum(b'"deny"' in out for _, out, _ in ended) == 20
    assert calls(state) == 50


def test_a_process_that_is_killed_leaves_the_store_sound(state, policy):
    run(event(), state, "--policy", policy)
    counted = 0
    for number in range(24):
        process = start(event(number=number, session="k", tool_input={"n": number}), state, policy)
        kill_after(process, number % 12 * 0.02)
        code, _, _ = finish(process)
        counted += code == 0
    store = SqliteStore(state / "hooks.sqlite")
    assert store.check() == ""
    store.close()
    done = run(event(number=99, session="k", tool_input={"n": 99}), state, "--policy", policy)
    assert answered(done) == {}
    assert counted + 1 <= calls(state, "claude-code/k/") <= 25


def test_a_process_that_is_killed_while_it_makes_the_store_leaves_nothing_half_made(tmp_path, policy):
    for number in range(8):
        folder = tmp_path / f"state-{number}"
        process = start(event(), folder, policy)
        kill_after(process, number * 0.02)
        finish(process)
        assert answered(run(event(number=2), folder, "--policy", policy)) == {}


def test_what_killed_processes_left_is_removed_when_a_session_begins(state, policy):
    run(event(), state, "--policy", policy)
    names = ("hooks.sqlite.1.ab.new", "hooks.sqlite.1.ab.new-wal", "x.policy.2.cd.new", "old.policy")
    for name in (*names, "young.new"):
        (state / name).write_text("")
    for name in names:
        os.utime(state / name, (1, 1))
    assert answered(run(event("SessionStart", session="another"), state, "--policy", policy)) == {}
    assert not any((state / name).exists() for name in names)
    assert (state / "young.new").exists()
    assert calls(state) == 1


# --- kept policies --------------------------------------------------------------------------------------------------


def kept(state) -> list[Path]:
    return sorted(state.glob("*.policy"))


def denies(state, policy, *options) -> bool:
    """Whether the third equal call of a new session is refused."""
    denies.number += 1
    session = f"d{denies.number}"
    for number in (1, 2, 3):
        out = answered(run(event(number=number, session=session), state, "--policy", policy, *options))
    return bool(out)


denies.number = 0


def test_a_policy_is_kept_and_an_edit_is_seen_at_the_next_event(state, policy):
    assert denies(state, policy)
    (file,) = kept(state)
    before = file.read_bytes()
    assert denies(state, policy)
    assert file.read_bytes() == before
    policy.write_text(DENY.replace("deny: 3", "deny: 4"))
    assert not denies(state, policy)
    assert file.read_bytes() != before


def test_an_edit_that_keeps_size_and_time_is_seen(state, policy):
    past = time.time() - 100
    os.utime(policy, (past, past))
    assert denies(state, policy)
    policy.write_text(DENY.replace("deny: 3", "deny: 4"))
    os.utime(policy, (past, past))
    assert not denies(state, policy)


def test_overlays_and_templates_count(state, policy, tmp_path):
    overlay = tmp_path / "over.yaml"
    overlay.write_text(
        "apiVersion: policyengine/v1\nkind: Overlay\ntarget: p\nextensions:\n"
        "  stall_detector: {with: {repeat: {deny: 3}}}\n"
    )
    prompts = tmp_path / "prompts" / "en"
    prompts.mkdir(parents=True)
    policy.write_text(DENY.replace("name: p\n", "name: p\nprompts: [prompts]\n").replace("deny: 3", "deny: 9"))
    assert denies(state, policy, "--overlay", overlay)
    overlay.write_text(overlay.read_text().replace("deny: 3", "deny: 8"))
    assert not denies(state, policy, "--overlay", overlay)
    (prompts / "denied.txt").write_text("{{ nobody }}")
    blocked(run(event(), state, "--policy", policy, "--overlay", overlay), "nobody")


@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "link", "readable", "other digest", "nonsense"])
def test_a_kept_policy_that_somebody_touched_is_made_anew(how, state, policy):
    assert denies(state, policy)
    (file,) = kept(state)
    data = file.read_bytes()
    other = data.replace(b"\xa4deny\x03", b"\xa4deny\x09")
    assert other != data
    match how:
        case "cut":
            file.write_bytes(data[:-10])
        case "flipped":
            file.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
        case "empty":
            file.write_bytes(b"")
        case "link":
            file.unlink()
            (state / "elsewhere").write_bytes(data)
            file.symlink_to(state / "elsewhere")
        case "readable":
            file.chmod(0o622)
        case "other digest":
            file.write_bytes(other)
        case "nonsense":
            file.write_bytes(b"policyengine-compiled-1\n" + os.urandom(500))
    assert denies(state, policy)
    assert file.read_bytes() != other
    assert file.stat(follow_symlinks=False).st_mode & 0o777 == 0o600


def test_values_of_the_environment_are_never_kept(state, policy):
    policy.write_text(DENY.replace("deny: 3", "deny: {$env: MOST}"))
    environment = {**os.environ, "MOST": "3"}
    for number in (1, 2, 3):
        out = answered(run(event(number=number), state, "--policy", policy, env=environment))
    assert out
    assert kept(state) == []


def test_a_policy_with_an_extension_of_ones_own_is_loaded_every_time(state, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "guard.py").write_text(
        "from policyengine import Extension, hookimpl\n\n\nclass Guard(Extension):\n    name = 'acme.guard'\n\n"
        "    @hookimpl\n    def before_tool_call(self, run, call, batch):\n"
        "        return run.deny('denied', tool=call.name) if call.name == 'Bash' else None\n"
    )
    policy = tmp_path / "policy.yaml"
    policy.write_text(HEAD + "extensions: {acme.guard: {}}\n")
    out = answered(run(event(), state, "--policy", policy, "--folder", tmp_path / "code"))
    assert out["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert kept(state) == []


def test_a_state_directory_that_takes_no_kept_policy_still_decides(state, policy):
    assert denies(state, policy)
    (file,) = kept(state)
    file.unlink()
    file.mkdir()
    assert denies(state, policy)


NEEDLESS = ("asyncio", "cerberus", "click", "jinja2", "json5", "logging", "loguru", "rich", "subprocess", "yaml")


def test_an_event_imports_nothing_that_it_does_not_need(state, policy):
    run(event(), state, "--policy", policy)
    words = [sys.executable, "-X", "importtime", *HOOK[1:], CLAUDE, "--state", str(state), "--policy", str(policy)]
    done = subprocess.run(words, input=json.dumps(event(number=2)).encode(), capture_output=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert "policyengine.hosts.core" in imported
    assert imported.isdisjoint({*NEEDLESS, "policyengine.engine", "policyengine.policy.load", "policyengine.cli"})


# --- install and doctor ---------------------------------------------------------------------------------------------


def entries(host=CLAUDE, **options) -> Entries:
    return Entries(DIALECTS[host], **options)


OTHERS = {
    "model": "m",
    "permissions": {"allow": ["Bash(ls:*)"]},
    "hooks": {
        "PreToolUse": [
            {"matcher": "Bash", "hooks": [{"type": "command", "command": "./check.sh", "timeout": 5}]},
            {"matcher": "Edit", "hooks": [], "more": 1},
        ],
        "Setup": [{"hooks": [{"type": "command", "command": "./setup.sh"}]}],
        "Odd": "kept",
    },
}


@pytest.mark.parametrize("host", DIALECTS)
def test_installing_twice_is_installing_once_and_removing_undoes_it(host, tmp_path):
    path = tmp_path / "new" / "settings.json"
    assert "+++" in install(str(path), entries(host))
    written = path.read_text()
    assert install(str(path), entries(host)) == ""
    assert path.read_text() == written
    assert set(json.loads(written)["hooks"]) == set(DIALECTS[host].installed)
    install(str(path), entries(host), remove=True)
    assert json.loads(path.read_text()) == {}


def test_entries_of_others_stay_where_they_are(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(OTHERS, indent=4))
    path.chmod(0o640)
    install(str(path), entries())
    data = json.loads(path.read_text())
    assert data["model"] == "m"
    assert data["hooks"]["PreToolUse"][:2] == OTHERS["hooks"]["PreToolUse"]
    assert len(data["hooks"]["PreToolUse"]) == 3
    assert data["hooks"]["Setup"] == OTHERS["hooks"]["Setup"]
    assert path.read_text().startswith('{\n    "model"')
    assert path.stat().st_mode & 0o777 == 0o640
    install(str(path), entries(policy="unattended"))
    again = json.loads(path.read_text())["hooks"]["PreToolUse"]
    assert len(again) == 3
    assert "--policy unattended" in again[2]["hooks"][0]["command"]
    install(str(path), entries(), remove=True)
    assert json.loads(path.read_text()) == OTHERS


def test_a_command_beside_ours_in_one_entry_stays(tmp_path):
    path = tmp_path / "settings.json"
    theirs = {"type": "command", "command": "./check.sh"}
    ours = {"type": "command", "command": "policyengine hook claude-code --policy old"}
    path.write_text(json.dumps({"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [theirs, ours]}]}}))
    install(str(path), entries())
    groups = json.loads(path.read_text())["hooks"]["PreToolUse"]
    assert [hook for group in groups for hook in group["hooks"]].count(theirs) == 1
    assert sum(entries().is_ours(hook["command"]) for group in groups for hook in group["hooks"]) == 1


@pytest.mark.parametrize(
    "text", ["{", "[1]", '// c\n{"hooks": {}}', '{"hooks": [1]}', '{"hooks": {"PreToolUse": 1}}', '{"a": 1, "a": 2}']
)
def test_a_file_that_is_not_as_expected_is_left_alone(text, tmp_path, cli):
    path = tmp_path / "settings.json"
    path.write_text(text)
    done = cli("hook", "install", CLAUDE, "--settings", str(path))
    assert done.exit_code == 1
    assert path.read_text() == text


def test_a_dry_run_shows_the_difference_and_writes_nothing(tmp_path, cli):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(OTHERS, indent=2))
    before = path.read_text()
    done = cli("hook", "install", CLAUDE, "--settings", str(path), "--dry-run")
    assert done.exit_code == 0
    assert "+++" in done.stdout
    assert "|| exit 2" in done.stdout
    assert path.read_text() == before


def test_openhands_keeps_the_spelling_and_the_shape_of_its_file(tmp_path):
    path = tmp_path / "hooks.json"
    theirs = {"pre_tool_use": [{"matcher": "terminal", "hooks": [{"command": "./check.sh"}]}]}
    path.write_text(json.dumps(theirs))
    install(str(path), entries("openhands"))
    data = json.loads(path.read_text())
    assert "hooks" not in data
    assert "PreToolUse" not in data
    assert data["pre_tool_use"][0] == theirs["pre_tool_use"][0]
    assert len(data["pre_tool_use"]) == 2
    install(str(path), entries("openhands"), remove=True)
    assert json.loads(path.read_text()) == theirs


def test_limits_are_in_the_unit_of_the_host_and_longer_than_ours():
    assert entries().entry("PreToolUse")["hooks"][0]["timeout"] == 60
    assert entries("gemini-cli").entry("BeforeTool")["hooks"][0]["timeout"] == 60_000
    assert Arguments([CLAUDE]).deadline_s < 60


def test_what_is_installed_runs_from_anywhere_and_blocks_when_it_cannot(tmp_path, state, policy):
    made = entries(policy=str(policy), state=str(state))
    for number in (1, 2, 3):
        data = json.dumps(event(number=number)).encode()
        done = subprocess.run(
            made.command("PreToolUse"), shell=True, input=data, capture_output=True, cwd="/", check=False
        )
        out = answered(done)
    assert out["hookSpecificOutput"]["permissionDecision"] == "deny"
    broken = Entries(DIALECTS[CLAUDE], python=str(tmp_path / "gone"))
    done = subprocess.run(broken.command("PreToolUse"), shell=True, input=b"{}", capture_output=True, check=False)
    assert done.returncode == 2
    done = subprocess.run(broken.command("Stop"), shell=True, input=b"{}", capture_output=True, check=False)
    assert done.returncode == 127


def test_the_doctor_says_what_does_not_work(tmp_path, state, policy, cli):
    path = tmp_path / "settings.json"
    options = ("--settings", str(path), "--policy", str(policy), "--state", str(state))
    done = cli("hook", "doctor", CLAUDE, *options)
    assert done.exit_code == 1
    assert "has no entry of ours" in done.stdout
    cli("hook", "install", CLAUDE, *options)
    done = cli("hook", "doctor", CLAUDE, *options)
    assert done.exit_code == 0, done.stdout
    assert "ms for an event" in done.stdout
    data = json.loads(path.read_text())
    (entry,) = data["hooks"]["PreToolUse"]
    command = entry["hooks"][0]["command"]
    entry["matcher"] = "Bash"
    entry["hooks"][0] |= {"timeout": 3, "command": command.replace(" || exit 2", "")}
    path.write_text(json.dumps(data))
    policy.write_text("nonsense: [")
    (state / "hooks.sqlite").write_bytes(b"no database" * 1000)
    done = cli("hook", "doctor", CLAUDE, *options)
    assert done.exit_code == 1
    for part in (
        "lets through; we need",
        "without `|| exit 2`",
        "only tools that match",
        "bad   policy",
        "bad   store",
    ):
        assert part in done.stdout


def test_the_doctor_finds_an_interpreter_that_is_gone(tmp_path, state, cli):
    path = tmp_path / "settings.json"
    gone = Entries(DIALECTS[CLAUDE], state=str(state), python=str(tmp_path / "gone"))
    install(str(path), gone)
    done = cli("hook", "doctor", "--settings", str(path), "--state", str(state))
    assert done.exit_code == 1
    assert "is there no more" in done.stdout
    assert shlex.split(gone.command("Stop"))[0] == str(tmp_path / "gone")


def test_help_tells_of_the_verb(cli):
    done = cli("hook", "--help")
    assert done.exit_code == 0
    assert "claude-code" in done.stdout


def test_hosts_of_dialects_are_hosts_of_the_table():
    assert {dialect.host for dialect in DIALECTS.values()} <= HOSTS.keys()
    assert all(isinstance(HostRun, type) and dialect.contexts for dialect in DIALECTS.values())
