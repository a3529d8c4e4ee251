"""Compiling a policy: what pluggy is not allowed to do, and what is found wrong before a run."""

import pytest

from policyengine import ConfigError, Engine, Extension, hookimpl
from policyengine.policy.problems import Position
from policyengine.snapshot import build_snapshot
from policyengine.testing import ListedRegistry, policy, rule


class Guard(Extension):
    """Has a property that must not be evaluated."""

    name = "test.guard"

    @property
    def costly(self):
        """Raise."""
        raise RuntimeError("evaluated")

    @hookimpl
    def after_iteration(self, run, iteration):
        """Do nothing."""


def test_properties_of_an_extension_are_not_evaluated_when_it_is_registered():
    assert "test.guard" in build_snapshot(policy(rule("test.guard")), ListedRegistry(Guard)).extensions


def test_a_rule_whose_set_up_fails_is_a_positioned_problem():
    class Failing(Guard):
        name = "test.failing"

        def setup(self):
            raise ValueError("no licence")

        @hookimpl
        def after_iteration(self, run, iteration):
            """Do nothing."""

    with pytest.raises(ConfigError) as failure:
        build_snapshot(policy(rule("test.failing", line=7)), ListedRegistry(Failing))
    (problem,) = failure.value.problems
    assert (problem.code, problem.position) == ("X406", Position("test.yaml", 7, 1))
    assert "no licence" in problem.message


def test_a_message_without_a_template_is_a_problem_at_load():
    class Mute(Guard):
        name = "test.mute"
        messages = {"mute.stop": {"observed": 1}}

        @hookimpl
        def after_iteration(self, run, iteration):
            """Do nothing."""

    with pytest.raises(ConfigError, match=r"mute\.stop"):
        build_snapshot(policy(rule("test.mute")), ListedRegistry(Mute))


def test_a_rule_that_cannot_work_fails_its_self_test_at_load():
    class Typo(Guard):
        name = "test.typo"

        @hookimpl
        def after_iteration(self, run, iteration):
            return run.stop("x") if iteration.numbr > 3 else None

    with pytest.raises(ConfigError, match="self-test at after_iteration: AttributeError"):
        Engine(policy(rule("test.typo")), registry=ListedRegistry(Typo))


def test_an_instance_cannot_keep_state_of_its_own():
    class Keeping(Guard):
        name = "test.keeping"

        @hookimpl
        def after_iteration(self, run, iteration):
            self.count = iteration.number

    with pytest.raises(ConfigError, match=r"keep what changes during a run in run\.state"):
        Engine(policy(rule("test.keeping")), registry=ListedRegistry(Keeping))


def test_unknown_extensions_are_named():
    with pytest.raises(ConfigError, match=r"no extension named 'test\.absent'"):
        build_snapshot(policy(rule("test.absent")), ListedRegistry())
