"""Reloading while threads and asynchronous runs decide: nothing fails, nothing mixes, nothing is lost or kept."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType

import msgspec
import pytest

from benchmarks.load import Driver, Histogram, Load, registry, write
from benchmarks.reload_load import edited_guard, under_load, what_holds
from policyengine import Agent, Engine, Script, say
from policyengine.plugins.folder import load_file
from policyengine.providers.scripted import ScriptedModel


def test_reloads_under_load_lose_nothing_and_mix_nothing(tmp_path):
    found = under_load(tmp_path, 60, 12, threads=4, tasks=40, pauses_s=(0.001, 0.02), block=6, rest=False)
    assert [check for check in what_holds(found) if not check.holds] == []
    assert found.load.reloading.total > 0


def drive(engine: Engine, load: Load, *, between) -> None:
    """Have one run, and call `between` wherever a model or a tool would work."""
    for index, _ in enumerate(Driver(load, engine, 1).play()):
        between(index)
        if index == 9:
            load.stop.set()


def test_what_the_load_checks_is_noticed_where_it_is_not_so(tmp_path):
    file = tmp_path / "policy.yaml"
    write(file, 1)
    engine = Engine(file, registry=registry(), pin="iteration")
    load = Load()

    def skip_one(index: int) -> None:  # what the file says no longer is the generation
        write(file, index + 5)
        engine.reload()

    drive(engine, load, between=skip_one)
    assert any("is of generation" in fault for fault in load.faults)
    assert any("used limit" in fault for fault in load.faults)


def test_a_run_that_is_pinned_and_moves_is_noticed(tmp_path):
    file = tmp_path / "policy.yaml"
    write(file, 1)
    engine = Engine(file, registry=registry(), pin="iteration")
    load = Load()

    def edit(index: int) -> None:
        engine.pin = "iteration"
        write(file, index + 2)
        engine.reload()
        engine.pin = "run"  # what the engine claims

    drive(engine, load, between=edit)
    assert any("a run pinned per run went from" in fault for fault in load.faults)


def test_a_histogram_tells_quantiles_to_about_one_per_cent():
    times = Histogram()
    for ns in range(1, 10_001):
        times.add(ns)
    for share in (0.5, 0.95, 0.99, 0.999):
        assert times.quantile(share) == pytest.approx(share * 10_000, rel=0.02)


# ---- code in drop-in folders


def test_a_guard_that_is_edited_again_and_again_leaves_nothing_behind(tmp_path):
    early, late, faults = edited_guard(tmp_path / "guards", 30, 10)
    assert faults == []
    assert late.modules <= early.modules
    assert (early.snapshots, late.snapshots) == (0, 0)


GUARD = """\
from __future__ import annotations
import msgspec
from policyengine import Extension, hookimpl

class Seen(msgspec.Struct):
    by_tool: dict[str, Count] = {}

class Count(msgspec.Struct):
    value: int = 0

class Guard(Extension):
    name = "local.guard"
    state = Seen

    @hookimpl
    def before_tool_call(self, run, call):
        return None
"""


def test_a_module_stays_known_as_long_as_one_of_its_classes_is_used(tmp_path):
    (tmp_path / "guard.py").write_text(GUARD)
    (found,) = load_file(tmp_path / "guard.py")
    name = found.cls.__module__
    gc.collect()
    assert sys.modules[name].Guard is found.cls
    # The annotations are looked up only now.
    assert msgspec.convert({"by_tool": {"x": {"value": 2}}}, found.cls.state).by_tool["x"].value == 2
    gone = weakref.ref(found.cls)
    del found
    gc.collect()
    assert gone() is None
    assert name not in sys.modules


def test_nobody_is_handed_a_file_that_is_still_running(tmp_path, monkeypatch):
    gate = ModuleType("tests_gate")
    gate.running, gate.go_on = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, "tests_gate", gate)
    wait = "from tests_gate import go_on, running\nrunning.set()\ngo_on.wait(30)\n"
    (tmp_path / "guard.py").write_text(GUARD.replace("import msgspec\n", "import msgspec\n" + wait))
    found = []
    threads = [threading.Thread(target=lambda: found.extend(load_file(tmp_path / "guard.py"))) for _ in range(2)]
    threads[0].start()
    assert gate.running.wait(30)
    threads[1].start()
    threads[1].join(0.1)  # long enough to be handed what there is
    gate.go_on.set()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0].cls is found[1].cls


# ---- what was found on the way

POLICY = """\
apiVersion: policyengine/v1
kind: Policy
name: house
revision: "{revision}"
protocol: {protocol}
extends: [default]
"""


def test_an_agent_takes_protocol_and_rules_from_one_generation(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY.format(revision=1, protocol="text"))

    class Hasty(Engine):
        """Replaces its policy whenever a run is about to start."""

        def start_run(self, **options):
            file.write_text(POLICY.format(revision=2, protocol="native"))
            self.reload()
            return super().start_run(**options)

    engine = Hasty(file)
    loop = Agent(engine, ScriptedModel(Script("test", (say("done"),))), []).start()
    assert engine.snapshot.generation == 2
    assert (loop.run.snapshot.policy.protocol, loop.run.state.protocol) == ("text", "text")


class HandOver:
    """A lock after which somebody else gets their turn, once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.then: list[Callable[[], object]] = []

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        if self.then:
            self.then.pop()()


def test_an_earlier_refusal_does_not_outlive_a_later_success(tmp_path, monkeypatch):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY.format(revision=1, protocol="native"))
    engine = Engine(file)
    lock = HandOver()
    monkeypatch.setattr(engine, "_lock", lock)

    def mend() -> None:
        file.write_text(POLICY.format(revision=2, protocol="native"))
        assert engine.try_reload() == "replaced"

    lock.then.append(mend)
    file.write_text(POLICY.format(revision=2, protocol="smoke"))
    assert engine.try_reload() == "rejected"
    assert (engine.snapshot.generation, engine.rejected) == (2, None)
