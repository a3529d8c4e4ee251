"""Code of extensions that ends the thread or never returns while a policy is loaded: the engine outlives it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from policyengine import ConfigError, Engine

POLICY = """\
apiVersion: policyengine/v1
kind: Policy
name: house
revision: "{revision}"
reload: {{settle: 50ms}}
extensions:
  guard: {{use: local.guard, timeout: 20ms}}
"""

GUARD = '''\
import asyncio, sys, time
from policyengine import Extension, hookimpl


class Fatal(BaseException):
    pass

{top}
class Guard(Extension):
    """A guard."""

    name = "local.guard"
{body}
    @hookimpl
    def before_tool_call(self, run, call, batch):
        {hook}
'''

BODIES = {
    "import exits": ({"top": "sys.exit(0)"}, "X406"),
    "import raises": ({"top": "raise Fatal"}, "X406"),
    "setup exits": ({"body": "    def setup(self):\n        sys.exit(0)\n"}, "X406"),
    "check_options exits": (
        {"body": "    @classmethod\n    def check_options(cls, options):\n        sys.exit(0)\n"},
        "X408",
    ),
    "state exits": ({"body": "    @staticmethod\n    def state():\n        sys.exit(0)\n"}, "X406"),
    "self-test exits": ({"hook": "sys.exit(0)"}, "X406"),
    "self-test is cancelled": ({"hook": "raise asyncio.CancelledError"}, "X406"),
    "self-test hangs": ({"hook": "time.sleep(3600)"}, "X406"),
}


def guard(top: str = "", body: str = "", hook: str = "return None") -> str:
    return GUARD.format(top=top, body=body, hook=hook)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "guards").mkdir()
    (tmp_path / "guards" / "guard.py").write_text(guard())
    (tmp_path / "policy.yaml").write_text(POLICY.format(revision=1))
    return tmp_path


def engine(folder: Path, **options) -> Engine:
    return Engine(folder / "policy.yaml", folders=[folder / "guards"], **options)


@pytest.mark.parametrize(("parts", "code"), BODIES.values(), ids=list(BODIES))
def test_code_that_ends_its_thread_is_a_problem_with_a_position(folder, parts, code):
    built = engine(folder)
    (folder / "guards" / "guard.py").write_text(guard(**parts))
    assert not built.reload()
    assert built.snapshot.generation == 1
    assert [problem.code for problem in built.rejected.problems] == [code]
    assert built.rejected.problems[0].position.file.endswith("policy.yaml")
    (folder / "guards" / "guard.py").write_text(guard() + "# repaired\n")
    assert built.reload()


def test_a_hook_that_never_returns_from_its_self_test_does_not_hold_up_the_start(folder):
    (folder / "guards" / "guard.py").write_text(guard(hook="time.sleep(3600)"))
    began = time.monotonic()
    with pytest.raises(ConfigError, match="timeout: no answer after 1 s"):
        engine(folder)
    assert time.monotonic() - began < 10


def test_a_first_call_that_is_only_slow_is_no_fault(folder):
    (folder / "guards" / "guard.py").write_text(guard(hook="time.sleep(0.1)"))
    assert engine(folder).snapshot.generation == 1


@pytest.mark.parametrize("does", ["sys.exit(3)", "raise Fatal", "time.sleep(3600)", "raise KeyboardInterrupt"])
def test_an_observer_that_ends_its_thread_or_hangs_undoes_no_reload(folder, does):
    built = engine(folder)
    observer = f"    @hookimpl\n    def on_policy_loaded(self, snapshot):\n        {does}\n"
    (folder / "guards" / "guard.py").write_text(guard(body=observer))
    assert built.reload()
    assert built.snapshot.generation == 2


@pytest.mark.parametrize("top", ["raise KeyboardInterrupt", "sys.exit(0)"])
def test_the_watch_goes_on_after_code_that_ends_its_thread(folder, top):
    built = engine(folder)

    def wait(happened) -> bool:
        until = time.monotonic() + 20
        while not happened() and time.monotonic() < until:
            time.sleep(0.02)
        return happened()

    with built.watch(poll_s=0.05):
        looking = next(thread for thread in threading.enumerate() if thread.name == "policyengine-watch")
        before = built.disk.fingerprint()
        (folder / "guards" / "guard.py").write_text(guard(top=top))
        assert built.disk.fingerprint() != before
        time.sleep(0.5)
        assert looking.is_alive()
        (folder / "guards" / "guard.py").write_text(guard() + "# repaired\n")
        assert wait(lambda: built.snapshot.generation == 2)


def test_a_listener_that_exits_undoes_no_reload(folder):
    def listener(event, subject):
        raise SystemExit(0)

    built = engine(folder, listeners=[listener])
    (folder / "policy.yaml").write_text(POLICY.format(revision=2))
    assert built.reload()


def test_a_builder_that_fails_in_an_unforeseen_way_leaves_the_old_policy_in_force(folder, monkeypatch):
    built = engine(folder)

    def exit(*args):
        raise SystemExit(0)

    monkeypatch.setattr("policyengine.engine.build_snapshot", exit)
    (folder / "policy.yaml").write_text(POLICY.format(revision=2))
    assert not built.reload()
    assert [problem.code for problem in built.rejected.problems] == ["E807"]
