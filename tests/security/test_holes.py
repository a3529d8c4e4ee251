"""What was once possible and must not be again: one test for each hole that a search or a look at the code found."""

from __future__ import annotations

import ast
import json
import os
import shlex
import socket
import stat
import sys
import time
from pathlib import Path

import msgspec
import pytest

import policyengine
from policyengine import UsageError
from policyengine.errors import ExtensionError
from policyengine.hook.dialects import DIALECTS
from policyengine.hook.doctor import _words
from policyengine.hook.settings import Entries
from policyengine.jsontext import decode, encode
from policyengine.masking import keep_secret, trace_of, without_secrets
from policyengine.parsing.names import _parted
from policyengine.plugins.folder import extension_files
from policyengine.private import for_us_alone
from policyengine.providers.config import Provider
from policyengine.providers.errors.classify import classify_provider_error
from policyengine.providers.scripted import load_script, read_turns
from policyengine.run import SavedRun, read_saved
from policyengine.sandbox import TemplateFault, compile_template
from policyengine.workers import fault_text
from policyengine.yamldata import YamlError, read

HOME = Path(policyengine.__file__).parent
FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
EXEC = {"plugins/folder.py": "a drop-in file is code, and is named by whoever starts the engine"}


def test_nothing_of_the_package_unpickles_evaluates_or_starts_a_shell():
    found, runs = [], set()
    for path in [*HOME.rglob("*.py"), *(HOME.parent / "extensions").rglob("*.py")]:
        short = path.relative_to(HOME).as_posix() if path.is_relative_to(HOME) else path.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                found += [f"{short}:{node.lineno} {name}" for name in names if name.split(".")[0] in FORBIDDEN]
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "exec":
                runs.add(short)
            shell = any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords)
            unsafe = called in ("eval", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load")
            if shell or unsafe or called.endswith("mktemp"):
                found.append(f"{short}:{node.lineno} {called}")
    assert found == []
    assert runs == set(EXEC)


def test_a_known_secret_is_in_no_text_of_a_failure():
    keep_secret("correct-horse-battery", "$env HORSE")
    at = "https://me:pass@host/x?v=1&api_key=letmein&n=2 (redis://h/0?password=letmein)"
    at += " redis://app:let@me@in@cache:6379/0"
    error = ValueError(f"no access with correct-horse-battery at {at}, sk-abcdefghijklmnop")
    for text in (
        fault_text(error),
        trace_of(error),
        without_secrets(str(error)),
        classify_provider_error(error).message,
    ):
        assert "correct-horse" not in text
        assert "me:pass" not in text
        assert "letmein" not in text
        assert "me@in" not in text
        assert "abcdefghijk" not in text


def test_a_provider_is_shown_without_its_headers():
    shown = repr(Provider("openai_chat", "m", "https://u:p@h/v1", headers={"Authorization": "Bearer abc"}))
    assert "abc" not in shown
    assert "u:p" not in shown


def test_a_traceback_in_the_log_has_no_values_of_variables(capfd):
    code = (
        "from policyengine.hosts.closed import fail_closed\n"
        "@fail_closed(lambda error, *a: 'no')\n"
        "def judge(token):\n    raise ValueError('x')\n"
        "print(judge('hidden' + '-value-of-a-variable'))\n"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "no\n"
    assert "failed and refuses" in done.stderr
    assert "hidden-value" not in done.stderr


def test_yaml_that_multiplies_is_refused_at_once(tmp_path):
    bomb = "a: &a [x]\n" + "".join(f"k{n}: &k{n} [{', '.join([f'*k{n - 1}' if n else '*a'] * 9)}]\n" for n in range(9))
    for text in (bomb, "[" * 100_000, "x: " + "9" * 5_000, "d: 2025-99-99"):
        with pytest.raises(YamlError):
            read(text)
        (tmp_path / "s.yaml").write_text(text)
        with pytest.raises(UsageError):
            load_script(str(tmp_path / "s.yaml"))
        with pytest.raises(UsageError):
            read_turns(text)


@pytest.mark.parametrize("name", ["_" * 512, "A__" * 170, "a." * 256, "A::" * 170])
def test_the_name_of_a_tool_is_taken_apart_at_once(name):
    began = time.process_time()
    _parted(name + "\x00")
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("functions.look", ("functions.", "look")),
        ("a::b__look", ("a::", "b__look")),
        ("mcp__files__look", ("mcp__files__", "look")),
        ("a/b.c:look", ("a/b.c:", "look")),
        ("look", ("", "look")),
        ("a..look", ("", "a..look")),
        ("a.b.c.d.look", ("a.b.c.d.", "look")),
    ],
)
def test_namespaces_are_the_same_as_before(name, parts):
    assert _parted(name) == parts


@pytest.mark.parametrize(
    "data", [b"\xff", b"[" * 100_000, b'{"\\ud800": 1}', b'{"version": 1, "state": {"\\ud800": 1}}']
)
def test_bytes_that_are_no_saved_run_are_a_mistake_of_the_caller(data):
    with pytest.raises(UsageError):
        read_saved(data)
    with pytest.raises(msgspec.DecodeError):
        decode(data, SavedRun)


def test_numbers_and_texts_that_msgspec_refuses_are_written():
    assert json.loads(encode({"a": 10**30, "b": "\ud800"})) == {"a": 10**30, "b": "\ud800"}


@pytest.mark.parametrize(
    "text", ["{{ ''.x ~ 'y' }}", "{{ 1e999 }}", "{{ a|trim }}" * 101, "{{ a" + " ~ a" * 101 + " }}"]
)
def test_a_template_that_cannot_be_or_copies_too_much_is_refused(text):
    with pytest.raises(TemplateFault):
        compile_template(text, "t")


def test_an_event_whose_mode_is_no_text_is_read():
    event = {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "t", "permission_mode": {"a": 1}}
    assert not DIALECTS["claude-code"].read(event).unattended


def test_files_of_runs_are_made_for_this_user_alone(tmp_path):
    before = os.umask(0)
    try:
        with open(tmp_path / "log", "a", opener=for_us_alone):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


@pytest.mark.parametrize("what", ["folder", "file", "target"])
def test_code_that_everybody_can_write_is_not_run(tmp_path, what):
    folder, other = tmp_path / "guards", tmp_path / "other"
    folder.mkdir(mode=0o755)
    other.mkdir(mode=0o755)
    (other / "b.py").write_text("x = 1\n")
    (folder / "a.py").write_text("x = 1\n")
    (folder / "b.py").symlink_to(other / "b.py")
    assert len(extension_files(folder)) == 2
    {"folder": folder, "file": folder / "a.py", "target": other}[what].chmod(0o777)
    with pytest.raises(ExtensionError, match="written by everybody"):
        extension_files(folder)


def test_a_config_map_goes_on_working(tmp_path):
    data = tmp_path / "..2026"
    data.mkdir(mode=0o755)
    (data / "a.py").write_text("x = 1\n")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "a.py").symlink_to("..data/a.py")
    assert [path.name for path in extension_files(tmp_path)] == ["a.py"]


@pytest.mark.parametrize(
    "command",
    ["{} ; touch x", "touch x; {}", "/bin/sh -P -m policyengine.hook.entry claude-code", "{} --folder /evil", "'"],
)
def test_the_doctor_starts_nothing_but_what_was_installed(command):
    entries = Entries(DIALECTS["claude-code"])
    ours = entries.command("PreToolUse")
    assert _words(ours, entries) == shlex.split(ours.removesuffix(" || exit 2"))
    words = _words(command.format(ours.removesuffix(" || exit 2")), entries)
    assert words is None or ";" in words or words[-2:] == [";", "touch"] or ";" in " ".join(words)
    if "folder" in command or not command.startswith("{}"):
        assert words is None


def test_a_control_socket_is_for_its_user_alone(tmp_path):
    from policyengine.control.place import Place

    before = os.umask(0)
    try:
        place = Place(str(tmp_path / "s"))
    finally:
        os.umask(before)
    try:
        found = os.stat(tmp_path / "s").st_mode
        assert stat.S_ISSOCK(found)
        assert stat.S_IMODE(found) == 0o600
    finally:
        place.close()


def test_the_client_of_another_user_is_not_served(monkeypatch):
    from policyengine.control import server

    one, other = socket.socketpair()
    with one, other:
        assert server._may_ask(one)
        if hasattr(socket, "SO_PEERCRED"):
            monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
            assert server._may_ask(one) == (os.getuid() == 0)
