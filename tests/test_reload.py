"""Editing a policy while runs are under way: only whole, sound versions ever count, and no counter is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from itertools import pairwise, takewhile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from policyengine import Agent, Engine, Extension, ExtensionError, ToolCall, ToolResult, UsageError, call, hookimpl, say
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.changes import Changes, compare
from policyengine.policy.codes import CODES
from policyengine.policy.disk import Disk
from policyengine.policy.load import load_policy
from policyengine.policy.reload import Settler, Trigger, Watch
from policyengine.policy.whole import cut_off
from policyengine.providers.scripted import ScriptedModel
from policyengine.script import Script
from policyengine.testing import ListedRegistry, policy, rule

SETTLE_S = 0.3


def text(*, deny: int = 5, unusable: int = 5, pin: str = "iteration", more: str = "", header: str = "") -> str:
    return f"""\
apiVersion: policyengine/v1
kind: Policy
name: house
revision: "deny {deny}"
{header}reload: {{pin: {pin}, settle: 300ms}}
interventions: {{max: 100}}
extensions:
  stall_detector:
    with:
      repeat: {{deny: {deny}}}
      stagnation: {{}}
  stop_unusable_response_loop:
    with: {{max_consecutive_unusable_responses: {unusable}}}
{more}"""


class Desk:
    """A policy file, an engine that reads it, a watch without a thread, and a clock that the test moves."""

    def __init__(self, folder: Path, content: str = "", **options) -> None:
        self.file = folder / "policy.yaml"
        self.file.write_text(content or text())
        self.heard: list[str] = []
        self.engine = Engine(self.file, listeners=[lambda event, subject: self.heard.append(event)], **options)
        self.watch = Watch(self.engine)
        self.now = 100.0
        self.settle()
        self.heard.clear()

    @property
    def generation(self) -> int:
        return self.engine.snapshot.generation

    @property
    def codes(self) -> list[str]:
        rejected = self.engine.rejected
        return [getattr(problem, "code", "extension") for problem in rejected.problems] if rejected else []

    def look(self, later_s: float = 0.01) -> float:
        """Let the watch look once, a moment later."""
        self.now += later_s
        return self.watch.step(self.now)

    def settle(self) -> None:
        """Let the watch look often enough for any change to settle, also one of which files there are."""
        for _ in range(6):
            self.look(SETTLE_S + 0.05)

    def edit(self, content: str) -> None:
        self.file.write_text(content)
        self.settle()


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


@pytest.fixture
def log():
    """Return the log lines from `info` up, as they come."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO", format="{message}")
    yield lines
    logger.remove(sink)


class Count(msgspec.Struct):
    number: int = 0


class Work:
    """A run under way: each `again` is a round in which the model makes the same call and gets the same result."""

    def __init__(self, engine: Engine) -> None:
        self.run = engine.start_run()
        self.run.start("wait for the build")
        self.generations: list[int] = []

    def again(self) -> str:
        number = self.run.begin_iteration()
        self.generations.append(self.run.state.generation)
        made = ToolCall(f"call-{number}", "look", '{"at":"build"}', {"at": "build"})
        decision = self.run.before_tool_call(made)
        self.run.after_tool_call(made, ToolResult(made.id, "nothing new"))
        self.run.end_iteration(1)
        return decision.action

    def unusable(self) -> str:
        self.run.begin_iteration()
        _, decision = self.run.add_warning("misformat", {"reason": "unclosed_string"})
        self.run.end_iteration(0, usable=False)
        return decision.action


# ---- settling


def test_a_fingerprint_has_settled_when_it_is_seen_twice_far_enough_apart():
    settler = Settler(0.3)
    assert not settler.observe("a", 1.0)
    assert not settler.observe("a", 1.25)
    assert settler.remaining_s(1.25) == pytest.approx(0.05)
    assert settler.observe("a", 1.3)
    assert not settler.observe("a", 9.0)


def test_a_change_while_settling_starts_the_wait_anew():
    settler = Settler(0.3)
    assert not settler.observe("a", 1.0)
    assert not settler.observe("b", 1.2)
    assert not settler.observe("b", 1.4)
    assert settler.pending
    assert settler.observe("b", 1.5)
    assert not settler.pending


def test_a_change_that_is_taken_back_before_it_settled_is_none():
    settler = Settler(0.3)
    settler.observe("a", 0.0)
    assert settler.observe("a", 1.0)
    settler.observe("b", 1.1)
    assert not settler.observe("a", 1.2)
    assert not settler.pending
    assert not settler.observe("a", 2.0)


def test_what_was_forgotten_settles_once_more():
    settler = Settler(0.3)
    settler.observe("a", 0.0)
    assert settler.observe("a", 0.3)
    settler.forget()
    assert not settler.observe("a", 0.4)
    assert settler.observe("a", 0.8)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 0.4)), max_size=40))
def test_only_equal_looks_far_enough_apart_settle_and_never_the_same_twice_in_a_row(looks):
    settler, now, seen, reported = Settler(0.3), 0.0, [], []
    for fingerprint, later in looks:
        now += later
        seen.append((fingerprint, now))
        if settler.observe(fingerprint, now):
            reported.append(fingerprint)
            unchanged = list(takewhile(lambda look: look[0] == seen[-1][0], reversed(seen)))
            assert now - unchanged[-1][1] >= 0.3
    assert all(first != second for first, second in pairwise(reported))
    last = seen[-1][0] if seen else "a"
    settler.observe(last, now + 1)
    settler.observe(last, now + 2)
    assert not settler.pending


# ---- a run under way


def test_a_run_under_way_follows_good_versions_only_and_loses_no_count(desk, log):
    work = Work(desk.engine)
    assert [work.again() for _ in range(2)] == ["allow", "allow"]

    desk.edit(text(deny=9))
    assert desk.generation == 2
    assert "generation 1 -> 2" in log[-1]
    assert "changed stall_detector" in log[-1]
    assert "state goes on: stall_detector, stop_unusable_response_loop" in log[-1]
    assert [work.again() for _ in range(2)] == ["allow", "allow"]

    desk.edit(text(deny=2).replace("repeat", "repaet"))
    assert (desk.generation, desk.codes) == (2, ["S204"])
    assert "policy rejected, generation 2 stays in force" in log[-1]
    assert "repaet" in log[-1]
    assert work.again() == "allow"

    desk.edit(text(deny=2)[:-70])
    assert desk.generation == 2
    assert work.again() == "allow"

    before = len(log)
    desk.edit(text(deny=7))
    assert desk.generation == 3
    assert desk.engine.rejected is None
    assert len(log) == before + 1
    assert "generation 2 -> 3" in log[-1]
    assert work.again() == "deny", "the seventh equal call, six of them made under other generations"
    assert work.generations == [1, 1, 2, 2, 2, 2, 3]


def test_a_breaker_goes_on_counting_over_a_reload(desk):
    work = Work(desk.engine)
    assert [work.unusable(), work.unusable()] == ["allow", "allow"]
    desk.edit(text(unusable=3))
    assert work.unusable() == "stop"


def test_a_file_that_is_being_written_is_never_read(desk, log):
    content = text(deny=6, more="  step_limit:\n    with: {max_steps: 40}\n")
    work = Work(desk.engine)
    for length in range(0, len(content), 7):
        desk.file.write_text(content[:length])
        desk.look()
    assert (desk.generation, desk.engine.rejected, log) == (1, None, [])
    desk.edit(content)
    assert (desk.generation, len(log)) == (2, 1)
    assert [work.again() for _ in range(6)] == ["allow"] * 5 + ["deny"]


def test_a_shorter_policy_that_is_valid_is_not_taken_while_it_grows(desk):
    shorter = text(deny=2, more="")
    desk.file.write_text(shorter)
    load_policy(desk.file, registry=builtin_registry())
    desk.look()
    desk.look(SETTLE_S - 0.05)
    work = Work(desk.engine)
    assert [work.again() for _ in range(3)] == ["allow"] * 3
    desk.edit(text(deny=9, more="  step_limit: {}\n"))
    assert desk.generation == 2
    assert [*desk.engine.snapshot.rules] == ["stall_detector", "stop_unusable_response_loop", "step_limit"]
    assert work.again() == "allow"


def test_whatever_a_truncated_file_settles_at_the_rules_never_get_lost(desk):
    content = text(deny=6)
    refused = 0
    for length in range(0, len(content), 11):
        desk.edit(content[:length])
        assert desk.engine.snapshot.rules
        if desk.engine.rejected is None:
            assert desk.engine.snapshot.digest == load_policy(desk.file, registry=builtin_registry()).digest
        else:
            refused += 1
    assert refused
    desk.edit(content)
    assert desk.engine.rejected is None
    assert desk.engine.snapshot.policy.revision == "deny 6"


def test_a_tool_that_edits_the_policy_changes_the_rest_of_the_run(desk):
    versions = [text(deny=9), "kind: [", text(deny=9)[:150], text(deny=3)]

    def look(at: str) -> str:
        """Edit the policy, and tell nothing new."""
        if versions:
            desk.edit(versions.pop(0))
        return "nothing new"

    turns = [call("look", {"at": "build"}) for _ in range(6)]
    outcome = Agent(desk.engine, ScriptedModel(Script("wait", (*turns, say("done")))), [look]).run("wait")
    assert desk.heard == ["policy_loaded", "policy_rejected", "policy_rejected", "policy_loaded"]
    assert outcome.executed == 4, "the fifth call is refused under the version that the fourth one wrote"
    assert outcome.calls == 6


def test_a_run_pinned_to_its_policy_shows_one_generation(tmp_path):
    desk = Desk(tmp_path, text(pin="run", deny=3))
    work = Work(desk.engine)
    work.again()
    desk.edit(text(pin="iteration", deny=9))
    assert desk.generation == 2
    assert [work.again(), work.again()] == ["allow", "deny"]
    assert set(work.generations) == {1}
    assert desk.engine.start_run().state.generation == 2


def test_the_pin_that_counts_is_that_of_the_policy_the_run_is_under(desk):
    work = Work(desk.engine)
    work.again()
    desk.edit(text(pin="run", deny=8))
    work.again()
    desk.edit(text(pin="iteration", deny=9))
    work.again()
    assert work.generations == [1, 2, 2]
    assert desk.generation == 3


def test_the_engine_can_override_the_pin_of_its_policy(tmp_path):
    desk = Desk(tmp_path, text(pin="run"), pin="iteration")
    work = Work(desk.engine)
    work.again()
    desk.edit(text(pin="run", deny=8))
    work.again()
    assert work.generations == [1, 2]


def test_a_call_and_its_result_are_judged_by_the_same_generation(desk):
    run = Work(desk.engine).run
    run.begin_iteration()
    made = ToolCall("call-1", "look", "{}", {})
    run.before_tool_call(made)
    desk.edit(text(deny=8))
    run.after_tool_call(made, ToolResult("call-1", "nothing"))
    assert run.state.generation == 1


def test_a_rule_that_uses_another_extension_starts_afresh_and_the_log_says_so(tmp_path, log):
    class Other(Extension):
        name = "acme.other"
        state = Count

        @hookimpl
        def run_start(self, run, task):
            return None

    desk = Desk(tmp_path, text(), registry=ListedRegistry(Other))
    work = Work(desk.engine)
    work.again()
    own = work.run.state.cells["stop_unusable_response_loop"].value
    with_other = text().replace(
        "  stop_unusable_response_loop:\n    with: {max_consecutive_unusable_responses: 5}",
        "  stop_unusable_response_loop:\n    use: acme.other",
    )
    desk.edit(with_other)
    assert "state starts afresh: stop_unusable_response_loop" in log[-1]
    work.again()
    assert work.run.state.cells["stop_unusable_response_loop"].value is not own
    assert "no longer fits" in log[-1]


# ---- ways to save a file


def in_place(file: Path, content: str):
    file.write_bytes(b"")
    yield
    file.write_text(content)


def like_vim(file: Path, content: str):
    probe, backup, swap = file.with_name("4913"), file.with_name("policy.yaml~"), file.with_name(".policy.yaml.swp")
    swap.write_bytes(b"b0VIM")
    yield
    probe.touch()
    yield
    probe.unlink()
    os.rename(file, backup)
    yield
    file.write_text(content[:40])
    yield
    file.write_text(content)
    yield
    backup.unlink()
    swap.unlink()


def like_emacs(file: Path, content: str):
    lock = file.with_name(".#policy.yaml")
    os.symlink("someone@somewhere.1", lock)
    yield
    shutil.copy(file, file.with_name("policy.yaml~"))
    file.write_text(content)
    yield
    lock.unlink()


def moved_over_it(file: Path, content: str):
    fresh = file.with_name("policy.yaml.new")
    fresh.write_text(content)
    yield
    os.replace(fresh, file)


def deleted_and_made_again(file: Path, content: str):
    file.unlink()
    yield
    file.write_text(content)


SAVES = [in_place, like_vim, like_emacs, moved_over_it, deleted_and_made_again]


@pytest.mark.parametrize("save", SAVES)
def test_every_way_of_saving_is_seen_exactly_once(desk, log, save):
    for _ in save(desk.file, text(deny=8)):
        desk.look()
    desk.settle()
    assert (desk.generation, desk.heard, len(log)) == (2, ["policy_loaded"], 1)
    for _ in save(desk.file, text(deny=8)):
        desk.look()
    desk.settle()
    assert (desk.generation, len(log)) == (2, 1)


def test_what_editors_leave_behind_is_no_part_of_a_policy(tmp_path):
    (tmp_path / "prompts" / "en").mkdir(parents=True)
    (tmp_path / "guards").mkdir()
    desk = Desk(tmp_path, text(header="prompts: [./prompts]\n"), folders=[tmp_path / "guards"])
    before = desk.engine.disk.fingerprint()
    for folder in (tmp_path, tmp_path / "prompts" / "en", tmp_path / "guards"):
        for name in ("policy.yaml~", ".policy.yaml.swp", "4913", ".#x.txt", ".#x.py", "..data.txt", "x.txt~", "x.py~"):
            (folder / name).write_text("left behind")
    assert desk.engine.disk.fingerprint() == before


# ---- what is refused


def test_a_vanished_file_is_refused_and_the_last_good_policy_stays(desk, log):
    content = desk.file.read_text()
    desk.file.unlink()
    desk.settle()
    assert (desk.generation, desk.codes, len(log)) == (1, ["E804"], 1)
    desk.edit(content)
    assert (desk.generation, desk.codes) == (1, [])
    assert "as it was, generation 1 stays in force" in log[-1]
    desk.edit(text(deny=8))
    assert desk.generation == 2


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "Y116"),
        ("# nothing\n", "Y116"),
        (text().partition("extensions:")[0], "E805"),
        (text().partition("extensions:")[0] + "extensions: {}\n", "E805"),
        ("kind: [", "Y104"),
        ("a: \x01", "Y103"),
    ],
)
def test_content_that_loses_the_rules_is_refused_with_its_own_code(desk, content, code):
    desk.edit(content)
    assert (desk.generation, desk.heard) == (1, ["policy_rejected"])
    assert code in desk.codes
    assert code in CODES


def test_a_policy_without_rules_is_fine_where_there_were_none(tmp_path):
    content = text().partition("extensions:")[0]
    desk = Desk(tmp_path, content)
    desk.edit(content + "language: en\n")
    assert desk.generation == 2


def test_each_failing_content_is_tried_and_logged_once(desk, log):
    desk.edit("kind: [")
    assert len(log) == 1
    os.utime(desk.file)
    (desk.file.parent / "unrelated.yaml").write_text("kind: [")
    desk.settle()
    assert desk.engine.reload() is False
    assert desk.engine.reload() is False
    assert (len(log), desk.heard) == (1, ["policy_rejected"])
    desk.edit("kind: {")
    assert len(log) == 2
    desk.edit(text(deny=8))
    assert (len(log), desk.generation) == (3, 2)


def test_a_failing_content_is_not_built_again(tmp_path):
    registry = Counting()
    desk = Desk(tmp_path, registry=registry)
    desk.edit(text().replace("repeat", "repaet"))
    asked = registry.asked
    desk.settle()
    assert registry.asked == asked
    desk.watch.poke()
    desk.settle()
    assert registry.asked > asked
    assert desk.heard == ["policy_rejected"]


class Counting:
    """The built-in registry, which counts questions and can do something when it is asked."""

    def __init__(self, act=lambda: None) -> None:
        self.inner = builtin_registry()
        self.act = act
        self.asked = 0

    def get(self, name: str):
        self.asked += 1
        self.act()
        return self.inner.get(name)

    def names(self):
        return self.inner.names()


def test_whatever_goes_wrong_while_building_the_last_good_policy_stays(tmp_path):
    def fail():
        raise RuntimeError("out of order")

    registry = Counting()
    desk = Desk(tmp_path, registry=registry)
    registry.act = fail
    desk.edit(text(deny=8))
    assert (desk.generation, desk.codes, desk.heard) == (1, ["E807"], ["policy_rejected"])
    registry.act = lambda: None
    desk.edit(text(deny=9))
    assert desk.generation == 2


def test_a_listener_that_fails_undoes_nothing(tmp_path, log):
    desk = Desk(tmp_path)

    def fail(event: str, subject: object) -> None:
        raise RuntimeError("pager is out")

    desk.engine.listeners.insert(0, fail)
    desk.edit(text(deny=8))
    assert (desk.generation, desk.heard) == (2, ["policy_loaded"])
    assert "pager is out" in log[-1]


# ---- files that change while they are read


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path, log):
    registry = Counting()
    desk = Desk(tmp_path, registry=registry)

    def once() -> None:
        registry.act = lambda: None
        desk.file.write_text(text(deny=9))

    log.clear()
    registry.act = once
    desk.file.write_text(text(deny=8))
    assert desk.engine.try_reload() == "moving"
    assert (desk.generation, desk.engine.rejected, log) == (1, None, [])
    registry.act = once
    desk.file.write_text(text(deny=7))
    assert desk.engine.reload() is True
    assert desk.engine.snapshot.policy.revision == "deny 9"


def test_a_version_that_was_disturbed_while_it_was_read_gets_another_chance(tmp_path):
    registry = Counting()
    desk = Desk(tmp_path, registry=registry)

    def disturb() -> None:
        registry.act = lambda: None
        desk.file.write_text("kind: [")

    desk.file.write_text(text(deny=8))
    desk.look()
    registry.act = disturb
    desk.look(SETTLE_S + 0.05)
    desk.edit(text(deny=8))
    assert (desk.generation, desk.heard) == (2, ["policy_loaded"])


def test_two_files_are_never_mixed_from_two_versions(tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text(text(deny=4).replace("name: house", "name: base"))
    registry = Counting()
    own = "apiVersion: policyengine/v1\nkind: Policy\nname: house\nextends: [./base.yaml]\nrevision: "
    desk = Desk(tmp_path, f"{own}old\n", registry=registry)
    desk.file.write_text(f"{own}new\n")
    desk.look()

    def deploy() -> None:
        registry.act = lambda: None
        base.write_text(text(deny=6).replace("name: house", "name: base"))

    registry.act = deploy
    desk.look(SETTLE_S + 0.05)
    assert desk.generation == 1
    desk.settle()
    assert desk.generation == 2
    snapshot = desk.engine.snapshot
    assert snapshot.policy.revision == "new"
    assert snapshot.rules["stall_detector"].options["repeat"]["deny"] == 6


def test_files_that_never_hold_still_are_refused_by_an_immediate_reload(tmp_path):
    registry = Counting()
    desk = Desk(tmp_path, registry=registry)
    registry.act = lambda: desk.file.write_text(text(deny=7, unusable=registry.asked % 900 + 1))
    desk.file.write_text(text(deny=7))
    assert desk.engine.reload() is False
    assert (desk.generation, desk.codes) == (1, ["E806"])


def test_an_edit_between_loading_and_watching_is_not_missed(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(text())
    engine = Engine(file)
    file.write_text(text(deny=8))
    watch = Watch(engine)
    watch.step(0.0)
    watch.step(0.4)
    assert engine.snapshot.generation == 2


# ---- what belongs to a policy


def test_parents_overlays_prompts_and_guards_are_watched(tmp_path):
    guard = """
        from policyengine import Extension, hookimpl

        class Quiet(Extension):
            name = "acme.quiet"
            limit = 1

            @hookimpl
            def run_start(self, run, task):
                return None
    """.replace("\n        ", "\n")
    (tmp_path / "guards").mkdir()
    (tmp_path / "prompts" / "en").mkdir(parents=True)
    (tmp_path / "parts").mkdir()
    parts = {
        tmp_path / "parts" / "base.yaml": text(more="  acme.quiet: {}\n").replace("name: house", "name: base"),
        tmp_path / "over.yaml": "apiVersion: policyengine/v1\nkind: Overlay\ntarget: house\n",
        tmp_path / "prompts" / "en" / "warning.empty.txt": "Say something.",
        tmp_path / "guards" / "quiet.py": guard,
    }
    for path, content in parts.items():
        path.write_text(content)
    own = "apiVersion: policyengine/v1\nkind: Policy\nname: house\nextends: [./parts/base.yaml]\nprompts: [./prompts]\n"
    desk = Desk(tmp_path, own, overlays=[tmp_path / "over.yaml"], folders=[tmp_path / "guards"])
    watched = desk.engine.disk.directories()
    digests = {desk.engine.snapshot.digest}
    for number, (path, content) in enumerate(parts.items(), start=2):
        assert path.parent in watched
        path.write_text(f"{content}\n# edited\n")
        desk.settle()
        assert desk.generation == number, path
        digests.add(desk.engine.snapshot.digest)
    assert len(digests) == 5
    (tmp_path / "prompts" / "en" / "warning.repeat.txt").write_text("Say something else.")
    desk.settle()
    assert desk.generation == 6
    assert desk.engine.start_run().snapshot.templates.render("warning.repeat", {}) == "Say something else."


def test_an_edited_guard_is_the_code_that_runs(tmp_path):
    source = """
from policyengine import Extension, hookimpl

class Greeter(Extension):
    name = "acme.greeter"
    messages = {{"not_now.stop": {{}}}}
    templates = {{"en": {{"not_now.stop": "Not now."}}}}

    @hookimpl
    def before_tool_call(self, run, call, batch):
        return run.{answer}("not_now")
"""
    guards = tmp_path / "guards"
    guards.mkdir()
    (guards / "greeter.py").write_text(source.format(answer="record"))
    desk = Desk(tmp_path, text(more="  acme.greeter: {}\n"), folders=[guards])
    work = Work(desk.engine)
    assert work.again() == "allow"
    (guards / "greeter.py").write_text(source.format(answer="nonsense"))
    desk.settle()
    assert desk.generation == 1
    (guards / "greeter.py").write_text("raise RuntimeError('broken')")
    desk.settle()
    assert (desk.generation, desk.heard[-1]) == (1, "policy_rejected")
    (guards / "greeter.py").write_text(source.format(answer="stop"))
    desk.settle()
    assert desk.generation == 2
    assert work.again() == "stop"
    shutil.rmtree(guards)
    desk.settle()
    assert desk.generation == 2
    assert isinstance(desk.engine.rejected.problems[0], ExtensionError)


def test_a_parent_that_was_missing_or_broken_is_waited_for(desk):
    extra = desk.file.with_name("extra.yaml")
    desk.edit(text(header="extends: [./extra.yaml]\n"))
    assert desk.codes == ["M302"]
    extra.write_text("kind: [")
    desk.settle()
    assert (desk.generation, desk.codes) == (1, ["Y104"])
    extra.write_text("apiVersion: policyengine/v1\nkind: Policy\nname: extra\nextensions:\n  step_limit: {}\n")
    desk.settle()
    assert desk.generation == 2
    assert "step_limit" in desk.engine.snapshot.rules


def test_a_directory_of_prompts_that_was_missing_is_waited_for(desk):
    desk.edit(text(header="prompts: [./texts]\n"))
    assert desk.codes == ["E803"]
    (desk.file.parent / "texts" / "en").mkdir(parents=True)
    desk.settle()
    assert (desk.generation, desk.codes) == (2, [])


def test_a_config_map_swap_is_one_reload(tmp_path):
    def publish(name: str, deny: int) -> None:
        version = tmp_path / name
        version.mkdir()
        (version / "base.yaml").write_text(text(deny=deny).replace("name: house", "name: base"))
        own = f"apiVersion: policyengine/v1\nkind: Policy\nname: house\nextends: [./base.yaml]\nrevision: {name[2:]}\n"
        (version / "policy.yaml").write_text(own)
        os.symlink(name, tmp_path / "..data_tmp")
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")

    publish("..v1", 4)
    for name in ("policy.yaml", "base.yaml"):
        os.symlink(f"..data/{name}", tmp_path / name)
    heard: list[str] = []
    engine = Engine(tmp_path / "policy.yaml", listeners=[lambda event, subject: heard.append(event)])
    watch = Watch(engine)
    for now in range(4):
        watch.step(now)
    publish("..v2", 6)
    watch.step(5)
    shutil.rmtree(tmp_path / "..v1")
    for now in range(6, 10):
        watch.step(now)
    assert heard == ["policy_loaded", "policy_loaded"]
    assert engine.snapshot.policy.revision == "v2"
    assert engine.snapshot.rules["stall_detector"].options["repeat"]["deny"] == 6
    assert tmp_path in engine.disk.directories()


def test_a_link_to_a_device_in_the_place_of_one_to_nowhere_is_told_as_what_it_is(desk, tmp_path):
    desk.file.unlink()
    desk.file.symlink_to(tmp_path / "nowhere.yaml")
    desk.settle()
    assert desk.codes == ["E804"]
    desk.file.unlink()
    desk.file.symlink_to("/dev/zero")
    desk.settle()
    assert desk.codes == ["E802"]
    assert "not a regular file" in desk.engine.rejected.text


def test_a_directory_that_is_deleted_and_made_again_is_seen(tmp_path):
    folder = tmp_path / "config"
    folder.mkdir()
    desk = Desk(folder)
    shutil.rmtree(folder)
    desk.settle()
    assert desk.codes == ["E804"]
    folder.mkdir()
    desk.edit(text(deny=8))
    assert (desk.generation, desk.codes) == (2, [])


def test_a_file_behind_a_link_is_watched_where_it_is(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "house.yaml").write_text(text())
    os.symlink(tmp_path / "shared" / "house.yaml", tmp_path / "policy.yaml")
    desk = Desk(tmp_path)
    assert {tmp_path, tmp_path / "shared"} <= desk.engine.disk.directories()
    (tmp_path / "shared" / "house.yaml").write_text(text(deny=8))
    desk.settle()
    assert desk.generation == 2


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "policy.yaml")
    Disk([tmp_path / "policy.yaml"]).fingerprint()


@pytest.mark.parametrize("source", ["default", policy(rule("step_limit", {"max_steps": 3}))])
def test_without_files_there_is_nothing_to_watch(source):
    engine = Engine(source, registry=ListedRegistry())
    with pytest.raises(UsageError, match="nothing to watch"):
        engine.watch()
    assert engine.reload() is False


def test_overlays_of_a_shipped_policy_are_watched(tmp_path):
    overlay = tmp_path / "over.yaml"
    overlay.write_text("apiVersion: policyengine/v1\nkind: Overlay\ntarget: default\n")
    engine = Engine("default", overlays=[overlay])
    assert engine.watch()
    overlay.write_text(overlay.read_text() + "interventions: {max: 3}\n")
    assert engine.reload() is True
    assert engine.snapshot.policy.interventions.max == 3
    overlay.unlink()
    assert engine.reload() is False
    assert engine.snapshot.generation == 2


# ---- what a reload changed


def test_changes_are_told_by_rule_and_setting(desk):
    first = desk.engine.snapshot
    desk.edit("\n\n" + text())
    assert compare(first, desk.engine.snapshot) == Changes(
        kept=("stall_detector", "stop_unusable_response_loop"),
    )
    assert "comments or texts" in str(compare(first, desk.engine.snapshot))
    second = desk.engine.snapshot
    more = "  step_limit: {}\n  failure_hint_injector: {mode: shadow}\ntools: {look: {effect: read}}\n"
    desk.edit(text(unusable=4, more=more))
    third = desk.engine.snapshot
    changes = compare(second, third)
    assert changes.added == ("step_limit", "failure_hint_injector")
    assert changes.changed == ("stop_unusable_response_loop",)
    assert changes.settings == ("tools",)
    assert str(changes).startswith(
        "added step_limit, failure_hint_injector; changed stop_unusable_response_loop; settings tools; state goes on"
    )
    back = compare(third, second)
    assert back.removed == ("step_limit", "failure_hint_injector")
    swapped = text(unusable=4, more=more).replace("  step_limit: {}\n  failure_hint_injector: {mode: shadow}\n", "")
    desk.edit(swapped.replace("extensions:\n", "extensions:\n  step_limit: {}\n"))
    assert compare(third, desk.engine.snapshot).reordered


def test_state_that_moves_to_the_conversation_starts_afresh(desk):
    first = desk.engine.snapshot
    desk.edit(text().replace("responses: 5}", "responses: 5, scope: conversation}"))
    assert compare(first, desk.engine.snapshot).reset == ("stop_unusable_response_loop",)


# ---- the thread


def test_an_edit_wakes_the_thread(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(text().replace("300ms", "20ms"))
    loaded, rejected = threading.Event(), threading.Event()
    events = {"policy_loaded": loaded, "policy_rejected": rejected}
    engine = Engine(file, listeners=[lambda event, subject: events[event].set()])
    loaded.clear()
    with engine.watch(poll_s=10):
        file.write_text("kind: [")
        assert rejected.wait(20)
        file.write_text(text(deny=8).replace("300ms", "20ms"))
        assert loaded.wait(20)
    assert engine.snapshot.generation == 2


def test_the_thread_ends_with_the_block_and_can_be_started_again(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(text())
    watch = Engine(file).watch(poll_s=30)
    for _ in range(2):
        with watch, pytest.raises(UsageError, match="already"), watch:
            pass
        names = [thread.name for thread in threading.enumerate()]
        assert "policyengine-watch" not in names


def test_poking_wakes_the_thread_although_no_file_changed(tmp_path):
    registry, loaded, rejected = Counting(), threading.Event(), threading.Event()
    events = {"policy_loaded": loaded, "policy_rejected": rejected}
    file = tmp_path / "policy.yaml"
    file.write_text(text().replace("300ms", "20ms"))
    engine = Engine(file, registry=registry, listeners=[lambda event, subject: events[event].set()])
    loaded.clear()
    with engine.watch(poll_s=3600) as watch:
        registry.act = lambda: 1 / 0
        file.write_text(text(deny=8).replace("300ms", "20ms"))
        assert rejected.wait(20)
        registry.act = lambda: None
        watch.poke()
        assert loaded.wait(20)
    assert engine.snapshot.generation == 2


# ---- SIGHUP


@pytest.fixture
def hangups():
    """Handle SIGHUP so that the tests survive it; return a list that grows by one for each."""
    found: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGHUP, before)


def test_sighup_has_the_files_tried_once_more(tmp_path, hangups):
    registry, loaded, rejected = Counting(), threading.Event(), threading.Event()
    events = {"policy_loaded": loaded, "policy_rejected": rejected}
    file = tmp_path / "policy.yaml"
    file.write_text(text().replace("300ms", "20ms"))
    engine = Engine(file, registry=registry, listeners=[lambda event, subject: events[event].set()])
    loaded.clear()
    with engine.watch(poll_s=3600, sighup=True):
        registry.act = lambda: 1 / 0
        file.write_text(text(deny=8).replace("300ms", "20ms"))
        assert rejected.wait(20)
        registry.act = lambda: None
        os.kill(os.getpid(), signal.SIGHUP)
        assert loaded.wait(20)
    assert engine.snapshot.generation == 2
    assert hangups == [signal.SIGHUP], "the handler of the program is called too"


def test_the_handler_of_sighup_is_put_back_at_the_end(desk, hangups):
    own = signal.getsignal(signal.SIGHUP)
    watch = desk.engine.watch(sighup=True)
    assert signal.getsignal(signal.SIGHUP) is own
    for _ in range(2):
        with watch:
            assert signal.getsignal(signal.SIGHUP) is not own
        assert signal.getsignal(signal.SIGHUP) is own
    with desk.engine.watch():
        assert signal.getsignal(signal.SIGHUP) is own


@pytest.mark.parametrize("default", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_default_of_sighup_is_not_called_and_put_back(desk, hangups, default):
    signal.signal(signal.SIGHUP, default)
    with desk.engine.watch(sighup=True):
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is default


def test_watches_chain_and_a_handler_installed_since_stays(desk, hangups):
    def other(number: int, frame: object) -> None:
        raise AssertionError("not called")

    with desk.engine.watch(sighup=True), desk.engine.watch(sighup=True):
        os.kill(os.getpid(), signal.SIGHUP)
        signal.signal(signal.SIGHUP, other)
    assert hangups == [signal.SIGHUP]
    assert signal.getsignal(signal.SIGHUP) is other


def test_sighup_is_refused_outside_the_main_thread(desk):
    raised: list[UsageError] = []

    def enter() -> None:
        with pytest.raises(UsageError, match="main thread") as error, desk.engine.watch(sighup=True):
            pass
        raised.append(error.value)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(20)
    assert raised
    assert not desk.engine.watches


def test_a_watch_that_ends_in_another_thread_says_that_its_handler_stays(desk, hangups, log):
    watch = desk.engine.watch(sighup=True)
    watch.__enter__()
    thread = threading.Thread(target=watch.__exit__, args=(None, None, None))
    thread.start()
    thread.join(20)
    assert "SIGHUP stays" in log[-1]
    os.kill(os.getpid(), signal.SIGHUP)
    assert hangups == [signal.SIGHUP]


def test_events_are_reported_also_after_the_directory_was_made_again(tmp_path):
    folder, stop = tmp_path / "config", threading.Event()
    folder.mkdir()
    trigger = Trigger(stop)
    trigger.arm([folder])
    (folder / "policy.yaml").write_text("1")
    assert trigger.wait(20)
    shutil.rmtree(folder)
    folder.mkdir()
    assert trigger.wait(20)
    trigger.arm([folder])
    (folder / "policy.yaml").write_text("2")
    assert trigger.wait(20)
    trigger.disarm()


def test_a_trigger_without_directories_only_waits(tmp_path):
    trigger = Trigger(threading.Event())
    trigger.arm([tmp_path / "nowhere"])
    assert not trigger.wait(0.001)


def test_a_saved_run_goes_on_under_the_policy_in_force(desk):
    work = Work(desk.engine)
    for _ in range(3):
        work.again()
    saved = work.run.save()
    assert json.loads(saved)["state"]["generation"] == 1
    desk.edit(text(deny=4))
    work.run, _ = desk.engine.resume_run(saved)
    assert work.again() == "deny"
    assert work.generations[-1] == 2


# ---- files that were cut off


def rules_text(count: int, *, deny: int, end: str = "", revision: str = "1") -> str:
    """Return a policy of many rules, one a line."""
    rules = "".join(
        f"  r{number:02}: {{use: stall_detector, with: {{repeat: {{deny: {deny + number % 3}}}}}}}  # {number}\n"
        for number in range(count)
    )
    head = f'apiVersion: policyengine/v1\nkind: Policy\nname: many\nrevision: "{revision}"\n'
    return f"{head}reload: {{pin: iteration, settle: 300ms}}\nextensions:\n{rules}{end}"


OLD, NEW = (rules_text(50, deny=4), rules_text(50, deny=6, revision="2"))


def ids(engine: Engine) -> list[str]:
    return list(engine.snapshot.rules)


@pytest.mark.parametrize("step", [1, 64])
@pytest.mark.parametrize("new", [NEW, rules_text(52, deny=4), rules_text(40, deny=6, revision="2")])
def test_a_file_that_grows_byte_by_byte_is_installed_whole_or_not_at_all(tmp_path, new, step):
    """Whatever is valid on the way, and however often it is looked at, as long as it grows within `settle`."""
    desk = Desk(tmp_path, OLD)
    before, whole = desk.engine.snapshot.digest, new.encode()
    with desk.file.open("wb", buffering=0) as stream:
        for start in range(0, len(whole), step):
            stream.write(whole[start : start + step])
            desk.look(SETTLE_S / 100)
            if start % (step * 25) == 0:
                desk.look(SETTLE_S - 0.02)
            assert desk.engine.snapshot.digest == before
    desk.settle()
    assert (desk.generation, desk.heard) == (2, ["policy_loaded"])
    assert ids(desk.engine) == [f"r{number:02}" for number in range(new.count("use:"))]


def test_no_byte_prefix_of_the_file_in_force_is_taken_for_a_new_version():
    was, name = OLD.encode(), Path("policy.yaml")
    for length in range(len(was)):
        rest = was[length:].strip()
        problems = cut_off({name: was}, {name: was[:length]}, lost=True)
        only_comment = b"\n" not in rest and rest[:1] in (b"", b"#")
        assert [problem.code for problem in problems] == ([] if only_comment else ["E812"])
        kept = cut_off({name: was}, {name: was[:length]}, lost=False)
        assert kept == ([] if was[:length].endswith(b"\n") else problems)
    assert cut_off({name: was}, {name: was}, lost=False) == []
    assert cut_off({name: was}, {name: b"# nothing else\n" + was[:-70]}, lost=True) == []


def test_no_byte_prefix_of_a_new_file_is_taken_where_the_one_in_force_has_an_end_mark():
    was, now, name = rules_text(50, deny=4, end="...\n"), rules_text(50, deny=6, revision="2", end="...\n"), Path("p")
    for length in range(len(now) - 1):
        assert cut_off({name: was.encode()}, {name: now[:length].encode()}, lost=False)
    assert cut_off({name: was.encode()}, {name: now.encode()}, lost=True) == []


CUTS = sorted({*(len(NEW[:end]) for end in range(0, len(NEW), 401)), *list(range(len(NEW) - 75, len(NEW)))[::9]})
LINES = [index + 1 for index, character in enumerate(NEW) if character == "\n"]


@pytest.mark.parametrize("version", ["old", "new", "new with an end mark"])
def test_a_file_that_is_cut_off_and_left_so_installs_no_fewer_rules(tmp_path, log, version):
    """The beginning of the old file is never taken; that of a new one, only after much longer, or with a mark never."""
    mark = "...\n" if version == "new with an end mark" else ""
    desk = Desk(tmp_path, OLD + mark)
    content = (OLD if version == "old" else NEW) + mark
    valid = 0
    for length in sorted({*CUTS, *LINES[::6], *LINES[-3:-1]}):
        desk.file.write_text(content[:length])
        desk.look()
        for _ in range(4):
            desk.look(SETTLE_S + 0.05)
        assert len(ids(desk.engine)) == 50
        if version == "new":
            valid = sum("may have been cut off" in line for line in log)
        else:
            valid += desk.codes[0] in ("E812", "E813")
            desk.settle()
            assert desk.generation == 1
    assert valid > 5
    desk.edit(content)
    assert desk.generation == (1 if version == "old" else 2)


def test_a_version_that_loses_rules_counts_when_it_stays_for_much_longer(tmp_path, log):
    desk = Desk(tmp_path, OLD)
    desk.file.write_text(NEW[: LINES[30]])
    desk.look()
    for _ in range(4):
        desk.look(SETTLE_S + 0.05)
    assert (desk.generation, desk.heard) == (1, [])
    assert sum("may have been cut off" in line for line in log) == 1
    desk.look(SETTLE_S + 0.05)
    assert (desk.generation, len(ids(desk.engine))) == (2, LINES.index(LINES[30]) - 5)


def test_an_immediate_reload_takes_a_version_that_loses_rules_and_not_one_that_was_cut_off(tmp_path):
    desk = Desk(tmp_path, OLD)
    desk.file.write_text(OLD[: LINES[30]])
    assert desk.engine.reload() is False
    assert desk.codes == ["E812"]
    desk.file.write_text(OLD[: LINES[30]].replace('revision: "1"', 'revision: "2"'))
    assert desk.engine.reload() is True
    assert len(ids(desk.engine)) == 25


def test_settings_at_the_end_may_be_taken_away_and_are_waited_for(tmp_path):
    desk = Desk(tmp_path, OLD + "kill_switch: true\n")
    desk.file.write_text(OLD)
    desk.look()
    desk.look(SETTLE_S + 0.05)
    assert (desk.generation, desk.codes) == (1, [])
    desk.settle()
    assert (desk.generation, desk.engine.killed) == (2, False)
    desk.file.write_text(OLD + "kill_switch: true\n")
    assert desk.engine.reload() is True
    desk.file.write_text(OLD)
    assert desk.engine.reload() is True


def test_a_line_that_lost_its_end_is_waited_for(tmp_path):
    desk = Desk(tmp_path, text(deny=5))
    desk.file.write_text(text(unusable=55).rstrip("\n")[:-2] + "}")
    desk.look()
    desk.look(SETTLE_S + 0.05)
    assert (desk.generation, desk.codes) == (1, [])
    desk.settle()
    assert desk.generation == 2


def test_an_overlay_that_was_cut_off_is_refused(tmp_path):
    overlay = tmp_path / "over.yaml"
    head = "apiVersion: policyengine/v1\nkind: Overlay\ntarget: house\n"
    overlay.write_text(f"{head}extensions:\n  step_limit: {{use: step_limit}}\n  more: {{use: tool_failures}}\n")
    desk = Desk(tmp_path, overlays=[overlay])
    overlay.write_text(f"{head}extensions:\n  step_limit: {{use: step_limit}}\n")
    desk.settle()
    assert (desk.generation, desk.codes) == (1, ["E812"])
    assert desk.engine.rejected.problems[0].position.file == str(overlay)


# ---- links that are swapped, and what runs under way take over


def publish(mount: Path, version: str, files: dict[str, str]) -> None:
    """Mount a version as Kubernetes does: links into `..data`, which is a link that is replaced in one step."""
    for name, content in files.items():
        (mount / version / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / version / name).write_text(content)
    os.symlink(version, mount / "..data_tmp")
    os.replace(mount / "..data_tmp", mount / "..data")
    for name in {name.split("/")[0] for name in files}:
        if not os.path.lexists(mount / name):
            os.symlink(f"..data/{name}", mount / name)


def test_links_that_are_swapped_between_two_reads_never_mix_two_versions(tmp_path):
    own = "apiVersion: policyengine/v1\nkind: Policy\nname: house\nextends: [./base.yaml]\nrevision: "

    def version(number: int) -> None:
        base = text(deny=number).replace("name: house", "name: base")
        publish(tmp_path, f"..v{number}", {"policy.yaml": f"{own}v{number}\n", "base.yaml": base})

    version(4)
    registry = Counting()
    engine = Engine(tmp_path / "policy.yaml", registry=registry)
    seen = []
    for number in range(5, 9):
        version(number)

        def swap(number: int = number) -> None:
            registry.act = lambda: None
            version(number + 10)

        registry.act = swap
        assert engine.try_reload() == "moving"
        assert engine.reload() is True
        policy = engine.snapshot.policy
        seen.append((policy.revision, policy.rules[0].options["repeat"]["deny"]))
    assert seen == [(f"v{number + 10}", number + 10) for number in range(5, 9)]


GREETER = """
from policyengine import Extension, hookimpl

class Greeter(Extension):
    name = "acme.greeter"
    messages = {{"not_now.stop": {{}}}}
    templates = {{"en": {{"not_now.stop": "Not now."}}}}

    @hookimpl
    def before_tool_call(self, run, call, batch):
        return run.{answer}("not_now")
"""


def test_a_swapped_folder_of_extensions_is_one_reload_and_reaches_runs_under_way(tmp_path):
    guards = tmp_path / "guards"
    guards.mkdir()
    publish(guards, "..v1", {"greeter.py": GREETER.format(answer="record")})
    desk = Desk(tmp_path, text(more="  acme.greeter: {}\n"), folders=[guards])
    work = Work(desk.engine)
    assert work.again() == "allow"
    publish(guards, "..v2", {"greeter.py": GREETER.format(answer="stop")})
    desk.look()
    shutil.rmtree(guards / "..v1")
    desk.settle()
    assert (desk.generation, desk.heard) == (2, ["policy_loaded"])
    assert work.again() == "stop"


@pytest.mark.parametrize("mounted", ["prompts/en", "prompts"])
def test_a_swapped_folder_of_texts_is_one_reload_and_reaches_runs_under_way(tmp_path, mounted):
    (tmp_path / mounted).mkdir(parents=True)
    name = "warning.empty.txt" if mounted == "prompts/en" else "en/warning.empty.txt"
    publish(tmp_path / mounted, "..v1", {name: "Say something."})
    desk = Desk(tmp_path, text(header="prompts: [./prompts]\n"))
    run = desk.engine.start_run()
    run.start("task")
    run.begin_iteration()
    assert run.add_warning("empty")[0].text == "Say something."
    publish(tmp_path / mounted, "..v2", {name: "Say anything."})
    desk.look()
    shutil.rmtree(tmp_path / mounted / "..v1")
    desk.settle()
    assert (desk.generation, desk.heard) == (2, ["policy_loaded"])
    assert run.add_warning("empty")[0].text == "Say something."
    run.begin_iteration()
    assert run.add_warning("empty")[0].text == "Say anything."


def test_directories_of_texts_and_extensions_that_vanish_and_are_made_again_are_seen(tmp_path):
    guards, prompts = tmp_path / "guards", tmp_path / "prompts"

    def make(answer: str, words: str) -> None:
        guards.mkdir()
        (guards / "greeter.py").write_text(GREETER.format(answer=answer))
        (prompts / "en").mkdir(parents=True)
        (prompts / "en" / "warning.empty.txt").write_text(words)

    make("record", "Say something.")
    content = text(header="prompts: [./prompts]\n", more="  acme.greeter: {}\n")
    desk = Desk(tmp_path, content, folders=[guards])
    work = Work(desk.engine)
    shutil.rmtree(guards)
    shutil.rmtree(prompts)
    desk.settle()
    assert (desk.generation, desk.heard) == (1, ["policy_rejected"])
    assert work.again() == "allow"
    make("stop", "Say anything.")
    desk.settle()
    assert desk.generation == 2
    assert work.again() == "stop"
    assert work.run.add_warning("empty")[0].text == "Say anything."


def test_a_run_pinned_to_its_policy_keeps_its_texts_and_its_code(tmp_path):
    guards, prompts = tmp_path / "guards", tmp_path / "prompts" / "en"
    guards.mkdir()
    prompts.mkdir(parents=True)
    (guards / "greeter.py").write_text(GREETER.format(answer="record"))
    (prompts / "warning.empty.txt").write_text("Say something.")
    content = text(pin="run", header="prompts: [./prompts]\n", more="  acme.greeter: {}\n")
    desk = Desk(tmp_path, content, folders=[guards])
    work = Work(desk.engine)
    (guards / "greeter.py").write_text(GREETER.format(answer="stop"))
    (prompts / "warning.empty.txt").write_text("Say anything.")
    desk.settle()
    assert desk.generation == 2
    assert work.again() == "allow"
    assert work.run.add_warning("empty")[0].text == "Say something."
    assert work.generations == [1]
