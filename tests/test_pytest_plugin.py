"""The pytest plugin and the assertions for authors of extensions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from policyengine import ConfigError, Extension, UsageError, call, hookimpl, say
from policyengine.testing import assert_fires_at, assert_never_fires, make_engine, play

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[1] / "docs" / "write-an-extension.md"


class Seen(msgspec.Struct):
    calls: int = 0


class Counting(Extension):
    """Refuse calls from number `deny` on, stop at `stop`."""

    name = "tests.counting"
    options = {
        "deny": {"type": "integer", "min": 1, "max": 99, "default": 3},
        "stop": {"type": "integer", "min": 1, "max": 99},
    }
    state = Seen
    messages = {"many.deny": {}, "many.stop": {}}
    templates = {"en": {"many.deny": "no", "many.stop": "over"}}

    @hookimpl
    def before_tool_call(self, run, call):
        run.state.calls += 1
        for action in ("stop", "deny"):
            limit = self.options.get(action)
            if limit and run.state.calls >= limit:
                return getattr(run, action)("many", observed=run.state.calls, limit=limit)
        return None


class Failing(Extension):
    name = "tests.failing"

    @hookimpl
    def before_tool_call(self, run):
        if run.id != "self-test":
            raise ValueError("out of order")


def looks(count: int):
    return [*(call("look", {"n": n}) for n in range(count)), say("done")]


# ---- fixtures


def test_rules_as_data_are_played_with_an_extension_of_the_test(policyengine_play):
    played = policyengine_play({"tests.counting": {}}, looks(4), extensions=[Counting])
    assert played.actions() == ["allow", "allow", "deny", "deny"]
    assert (played.outcome.status, played.outcome.executed) == ("completed", 2)


@pytest.mark.parametrize(
    "rules",
    [
        "counting: {use: tests.counting, with: {deny: 2}}",
        "extensions:\n  counting: {use: tests.counting, with: {deny: 2}}",
        "apiVersion: policyengine/v1\nkind: Policy\nname: mine\nextensions:\n  tests.counting: {with: {deny: 2}}",
    ],
)
def test_rules_are_yaml_with_or_without_what_stands_around_them(policyengine_play, rules):
    turns = "- calls: [{tool: look, args: {n: 1}}]\n- calls: [{tool: look, args: {n: 2}}]\n- text: done\n"
    assert policyengine_play(rules, turns, extensions=[Counting]).actions() == ["allow", "deny"]


def test_options_are_validated_as_in_a_file(policyengine_play):
    with pytest.raises(ConfigError, match=r"extensions\.counting\.with\.dney"):
        policyengine_play("counting: {use: tests.counting, with: {dney: 2}}", looks(1), extensions=[Counting])


def test_a_misspelt_key_of_a_turn_is_an_error(policyengine_play):
    with pytest.raises(UsageError, match='did you mean "calls"'):
        policyengine_play({"step_limit": {}}, [{"cals": []}])


def test_settings_of_the_policy_are_keywords(policyengine_play):
    rules = {"stall_detector": {"with": {"repeat": {"deny": 3}, "poll": {"deny": 5}}}}
    turns = [call("check", {}, "running")] * 4
    assert policyengine_play(rules, turns).actions()[:4] == ["allow", "allow", "deny", "deny"]
    tools = {"check": {"effect": "poll"}}
    assert policyengine_play(rules, turns, tools=tools).actions()[:4] == ["allow"] * 4


def test_time_passes_on_the_clock_of_the_test_only(policyengine_play, policyengine_clock):
    rules = {"wall_clock": {"with": {"stop": "50s"}}}
    played = policyengine_play(rules, looks(5), pace_s=20)
    assert (played.outcome.status, played.outcome.stop.rule) == ("stopped", "wall_clock")
    assert policyengine_clock.now == 60


# ---- assertions


def test_a_rule_that_fires_as_said_passes_and_hands_out_the_run():
    played = assert_fires_at(Counting, looks(5), at=2, action="deny", code="many", options={"deny": 2})
    assert played.outcome.executed == 1
    assert_fires_at("step_limit", looks(5), at=3, action="stop", options={"max_steps": 2})
    assert_fires_at({"use": "tests.counting", "mode": "warn"}, looks(5), at=3, action="deny", extensions=[Counting])


def test_a_rule_that_fires_elsewhere_is_told_with_what_it_did():
    with pytest.raises(AssertionError) as told:
        assert_fires_at(Counting, looks(5), at=4, action="deny", options={"deny": 2, "stop": 4})
    text = str(told.value)
    assert "tests.counting should answer 'deny' in round 4: the first one came in round 2" in text
    assert "round 3, before_tool_call (call 3 look): deny many (observed 3, limit 2)" in text
    assert "round 4, before_tool_call (call 4 look): stop many (observed 4, limit 4)" in text
    assert "the run: stopped after 4 rounds by subject: many (observed 4, limit 4)" in text


def test_another_code_does_not_count():
    with pytest.raises(AssertionError, match="should answer 'deny few' in round 3: it never did"):
        assert_fires_at(Counting, looks(5), at=3, action="deny", code="few")


def test_a_rule_that_has_nothing_to_say_passes_and_one_that_was_never_asked_fails():
    assert_never_fires(Counting, looks(2))
    with pytest.raises(AssertionError, match="never asked, so this proves nothing"):
        assert_never_fires(Counting, [say("hello")])
    with pytest.raises(AssertionError, match="should have nothing against this"):
        assert_never_fires(Counting, looks(3))


def test_a_rule_that_fails_fails_every_assertion():
    for check in (assert_never_fires, lambda *args: assert_fires_at(*args, at=1, action="deny")):
        with pytest.raises(AssertionError, match=r"the rule failed at round 1, .*: ValueError: out of order"):
            check(Failing, looks(1))
    assert_fires_at(Failing, looks(1), at=1, action="deny", code="extension_error")


def test_a_forced_timeout_is_the_rules_on_error():
    engine = make_engine({"slow": {"use": "tests.counting", "on_error": "stop"}}, extensions=[Counting])
    played = play(engine, looks(1), forced={"before_tool_call/slow": "timeout"})
    assert (played.outcome.stop.code, played.answers[0].vote.error) == ("extension_error", "timeout")


# ---- in the test runs of others


def test_the_plugin_imports_nothing_of_the_engine():
    code = "import sys, policyengine.pytest_plugin; print(*[m for m in sys.modules if m.startswith('policyengine')])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == ["policyengine", "policyengine.pytest_plugin"]


def test_a_run_without_the_fixtures_imports_nothing_and_warns_of_nothing(pytester):
    pytester.makepyfile(
        early="import policyengine",
        test_other="""
            import sys

            def test_nothing_is_loaded():
                assert not [name for name in sys.modules if name.startswith("policyengine.") and "pytest" not in name]
        """,
    )
    pytester.syspathinsert()
    done = pytester.runpytest_subprocess("-q", "-W", "error", "-p", "early", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1)
    assert "warning" not in done.stdout.str().lower()


def test_the_fixtures_are_listed_with_what_they_do(pytester):
    listed = pytester.runpytest("--fixtures").stdout.str()
    assert re.search(r"policyengine_play\b.*\n +Play scripted turns under a policy", listed)
    assert "policyengine_clock" in listed


def test_a_failing_assertion_is_shown_at_the_line_of_the_test(pytester):
    pytester.makepyfile("""
        from policyengine import say
        from policyengine.testing import assert_fires_at

        def test_it():
            assert_fires_at("step_limit", [say("x")], at=1, action="stop")
    """)
    shown = pytester.runpytest("--tb=short", "-q").stdout.str()
    assert "AssertionError: step_limit should answer 'stop' in round 1: it never did" in shown
    assert "testing.py" not in shown


def documented(name: str) -> str:
    found = re.search(rf"<!-- file: {re.escape(name)} -->\n```\w+\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return found.group(1)


def test_the_documented_tests_of_the_documented_extension_pass(pytester):
    for name in ("guards/inside.py", "tests/test_inside.py"):
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(documented(name), encoding="utf-8")
    pytester.makefile(".ini", pytest="[pytest]\npythonpath = guards\naddopts = --import-mode=importlib\n")
    done = pytester.runpytest_subprocess("-q", "-W", "error", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=3)
