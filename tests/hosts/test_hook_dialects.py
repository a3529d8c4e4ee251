"""Every dialect of the verb `hook`: the scenarios of all hosts, field names, what a host cannot do."""

from __future__ import annotations

import msgspec
import pytest

from policyengine import ConfigError, Engine
from policyengine.hook.dialects import DIALECTS, Event, Reply, dialect_named, result_of
from policyengine.hosts.able import require
from policyengine.hosts.table import HOSTS
from tests.hosts.hook_harness import Harness, drive
from tests.hosts.scenarios import HEAD, REGISTRY, SCENARIOS, check, scenarios_for


def scenarios(dialect):
    host = HOSTS[dialect.host]
    return scenarios_for(host if dialect.hints else msgspec.structs.replace(host, can=host.can - {"hint"}))


CASES = [(dialect, scenario) for dialect in DIALECTS.values() for scenario in scenarios(dialect)]


@pytest.mark.parametrize(("dialect", "scenario"), CASES, ids=[f"{d.name}: {s.name}" for d, s in CASES])
def test_a_scenario_means_the_same_under_every_dialect(dialect, scenario, tmp_path):
    check(scenario, drive(scenario, dialect, tmp_path))


def test_claude_code_is_held_to_every_scenario():
    assert scenarios(DIALECTS["claude-code"]) == SCENARIOS


def stalling(rungs, extra=""):
    from policyengine.policy.load import load_policy_text

    text = f"{HEAD}{extra}extensions:\n  stall_detector: {{with: {{repeat: {rungs}}}}}\n"
    return Engine(load_policy_text(text, registry=REGISTRY), registry=REGISTRY).snapshot


def ruled(rules):
    from policyengine.policy.load import load_policy_text

    return Engine(load_policy_text(f"{HEAD}extensions:\n{rules}", registry=REGISTRY), registry=REGISTRY).snapshot


@pytest.fixture(params=DIALECTS.values(), ids=DIALECTS.keys())
def dialect(request):
    return request.param


def test_what_is_allowed_is_answered_with_nothing_so_that_the_host_asks_as_it_would(dialect, tmp_path):
    harness = Harness(dialect, stalling("{deny: 3}"), tmp_path)
    event = harness.event("PreToolUse", tool_name="look", tool_input={}, tool_use_id="t-1")
    assert harness.raw(event) == {}


def test_a_hint_reaches_the_model_or_becomes_the_text_of_a_refusal(dialect, tmp_path):
    harness = Harness(dialect, stalling("{hint: 2, deny: 9}"), tmp_path)
    said = []
    for number in range(3):
        before = harness.before(number)
        said.append(before.refused or "")
        if before.refused is None:
            said.append(harness.after(number).note)
    assert sum("times with the same arguments" in text for text in said) == 1
    assert (harness.run().state.executed == 3) is dialect.hints


def test_a_session_stays_stopped_until_the_user_goes_on(dialect, tmp_path):
    harness = Harness(dialect, stalling("{stop: 2}"), tmp_path)
    harness.before(1)
    harness.after(1)
    assert harness.before(2).refused is not None
    assert harness.before(3, "other").refused is not None
    assert not harness.tell("UserPromptSubmit", prompt="go on").ended
    assert harness.before(4, "other").refused is None
    run = harness.run()
    assert (run.run.state.run_id, run.run.state.calls) == ("session-1#2", 1)


def test_a_stop_ends_the_loop_where_the_host_heeds_that(dialect, tmp_path):
    harness = Harness(dialect, stalling("{stop: 2}"), tmp_path)
    harness.before(1)
    harness.after(1)
    told = harness.before(2)
    assert told.ended is (dialect.name in ("claude-code", "gemini-cli"))
    if dialect.name == "codex":
        assert harness.after(2).ended, "codex heeds it at a result only"


def test_our_hooks_never_keep_an_agent_from_stopping(dialect, tmp_path):
    harness = Harness(dialect, stalling("{hint: 2, stop: 3}"), tmp_path)
    for number in (1, 2):
        harness.before(number)
        harness.after(number)
    for active in (False, True):
        assert harness.raw(harness.event("Stop", stop_hook_active=active)) == {}
    assert harness.before(3).refused is not None
    for active in (False, True):
        assert harness.raw(harness.event("Stop", stop_hook_active=active)) == {}


def test_events_and_fields_that_nobody_knows_change_nothing(dialect, tmp_path):
    harness = Harness(dialect, stalling("{deny: 3}"), tmp_path)
    for name in ("PreCompact", "PreCompress", "Notification", "PermissionRequest", "Setup", "SomethingNew"):
        read = dialect.read({dialect.event_key: name, "anything": [1]})
        assert read.kind == "other"
    assert harness.raw(harness.event("SessionStart")) == {}
    assert harness.saved() is None


@pytest.mark.parametrize(
    "event",
    [{}, {"hook_event_name": 3}, {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": ["look"]}],
)
def test_an_event_that_says_too_little_is_refused(event):
    with pytest.raises(ValueError, match=r"no `|without a"):
        DIALECTS["claude-code"].read(event)


def test_a_call_of_a_host_without_sessions_belongs_to_its_directory():
    raw = {"event_type": "PreToolUse", "tool_name": "terminal", "tool_input": {}, "working_dir": "/w"}
    assert DIALECTS["openhands"].read(raw).session == "folder:/w"


def test_calls_without_a_name_are_told_apart_by_what_they_are(tmp_path):
    harness = Harness(DIALECTS["gemini-cli"], stalling("{deny: 9}"), tmp_path)
    for args in ({"a": 1}, {"a": 2}, {"a": 1}):
        harness.before("", args=args)
    harness.after("", args={"a": 2})
    assert [call.args for call in harness.run().open_calls] == [{"a": 1}, {"a": 1}]
    harness.after("", args={"a": 1})
    harness.after("", args={"a": 1})
    harness.after("", args={"a": 1})
    run = harness.run()
    assert (run.open_calls, run.state.executed, run.state.extra["names"]) == ((), 3, {})


def test_gemini_cannot_take_an_argument_away_so_the_call_is_refused(tmp_path):
    harness = Harness(DIALECTS["gemini-cli"], ruled("  at_most_ten: {}\n"), tmp_path)
    event = harness.event("PreToolUse", tool_name="pay", tool_input={"amount": 50})
    assert harness.raw(event) == {"hookSpecificOutput": {"hookEventName": "BeforeTool", "tool_input": {"amount": 10}}}


def test_claude_code_asks_where_arguments_are_changed_unless_nobody_is_asked_anything(tmp_path):
    harness = Harness(DIALECTS["claude-code"], ruled("  at_most_ten: {}\n"), tmp_path)
    own = {}
    for number, mode in enumerate(("default", "bypassPermissions")):
        event = harness.event(
            "PreToolUse", tool_name="pay", tool_input={"amount": 50}, tool_use_id=f"t{number}", permission_mode=mode
        )
        own[mode] = harness.raw(event)["hookSpecificOutput"]
    assert own["default"]["permissionDecision"] == "ask"
    assert own["bypassPermissions"]["permissionDecision"] == "allow"
    assert own["default"]["updatedInput"] == own["bypassPermissions"]["updatedInput"] == {"amount": 10}


@pytest.mark.parametrize("mode", ["auto", "bypassPermissions", "dontAsk"])
def test_where_nobody_is_asked_a_question_is_a_refusal(mode, tmp_path):
    harness = Harness(DIALECTS["claude-code"], ruled("  approval: {}\n"), tmp_path)
    assert harness.before(1, "pay", permission_mode=mode).refused is not None
    assert harness.before(2, "pay", permission_mode="default").asked


def test_a_policy_that_wants_more_than_a_host_can_is_refused_at_load():
    with pytest.raises(ConfigError, match="R517") as caught:
        require(ruled("  approval: {}\n"), HOSTS["codex"])
    assert "codex" in str(caught.value)
    with pytest.raises(ConfigError, match="rewrite"):
        require(ruled("  at_most_ten: {}\n"), HOSTS["openhands"])
    assert require(ruled("  approval: {}\n"), HOSTS["claude_code"]) == ()


# --- spelling --------------------------------------------------------------------------------------------------------

BEFORE = Event("before", "PreToolUse", "s", tool="look", args={"a": 1}, call_id="t")
AFTER = Event("after", "PostToolUse", "s", tool="look", call_id="t")


@pytest.mark.parametrize(
    ("name", "event", "reply", "wanted"),
    [
        (
            "claude-code",
            BEFORE,
            Reply("deny", "no", notes=("n",), stop="over"),
            {
                "continue": False,
                "stopReason": "over",
                "hookSpecificOutput": {
                    "hookEventName": "PreToolUse",
                    "permissionDecision": "deny",
                    "permissionDecisionReason": "no\n\nn",
                },
            },
        ),
        (
            "claude-code",
            AFTER,
            Reply(result="short", notes=("n", "m")),
            {
                "hookSpecificOutput": {
                    "hookEventName": "PostToolUse",
                    "updatedToolOutput": "short",
                    "additionalContext": "n\n\nm",
                }
            },
        ),
        (
            "claude-code",
            msgspec.structs.replace(AFTER, tool="mcp__a__b"),
            Reply(result="short"),
            {"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedMCPToolOutput": "short"}},
        ),
        (
            "codex",
            BEFORE,
            Reply("deny", "no", stop="over"),
            {
                "hookSpecificOutput": {
                    "hookEventName": "PreToolUse",
                    "permissionDecision": "deny",
                    "permissionDecisionReason": "no",
                }
            },
        ),
        (
            "codex",
            BEFORE,
            Reply("rewrite", "why", {"a": 2}),
            {
                "hookSpecificOutput": {
                    "hookEventName": "PreToolUse",
                    "permissionDecision": "allow",
                    "updatedInput": {"a": 2},
                }
            },
        ),
        ("codex", AFTER, Reply(stop="over"), {"continue": False, "stopReason": "over"}),
        (
            "gemini-cli",
            BEFORE,
            Reply("deny", "no", stop="over"),
            {"decision": "deny", "reason": "no", "continue": False, "stopReason": "over"},
        ),
        ("gemini-cli", BEFORE, Reply("ask", "ok?"), {"decision": "ask", "reason": "ok?", "systemMessage": "ok?"}),
        ("gemini-cli", AFTER, Reply(result="short"), {"decision": "deny", "reason": "short"}),
        ("openhands", BEFORE, Reply("deny", "no", stop="over"), {"decision": "deny", "reason": "no"}),
        ("openhands", AFTER, Reply(notes=("n",), stop="over"), {}),
        (
            "openhands",
            Event("prompt", "UserPromptSubmit", "s"),
            Reply(notes=("n",)),
            {"additionalContext": "n"},
        ),
    ],
)
def test_a_reply_is_spelled_as_the_host_reads_it(name, event, reply, wanted):
    assert DIALECTS[name].write(event, reply) == wanted


@pytest.mark.parametrize(
    ("response", "text", "failed", "code"),
    [
        ("plain", "plain", False, None),
        ({"stdout": "a", "stderr": "b", "interrupted": False}, "a\nb", False, None),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb", False, None),
        ({"content": [{"type": "text", "text": "a"}], "is_error": True}, "a", True, None),
        ({"llmContent": "a", "returnDisplay": "b"}, "a", False, None),
        ({"llmContent": "a", "error": {"message": "m"}}, "a", True, None),
        ({"output": "a", "metadata": {"exit_code": 2, "duration_seconds": 0.1}}, "a", False, 2),
        ({"b": 1, "a": 2, "durationMs": 17}, '{"a": 2, "b": 1}', False, None),
        (None, "", False, None),
        (3, "3", False, None),
    ],
)
def test_a_result_is_the_text_that_the_model_is_shown(response, text, failed, code):
    read = result_of(msgspec.structs.replace(AFTER, response=response))
    assert (read.text, read.failed, read.exit_code) == (text, failed, code)


def test_a_dialect_is_found_by_its_name():
    assert dialect_named("Gemini_CLI").name == "gemini-cli"
    with pytest.raises(ValueError, match="claude-code, codex, gemini-cli, openhands"):
        dialect_named("cursor")
