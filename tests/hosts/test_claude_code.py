"""Sessions of Claude Code through hooks: runs, subagents, parallel calls, refusals by humans, equality with replay."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.hook_replay import is_as_happened, is_as_recorded, play, seen_by_hooks
from policyengine import Engine
from policyengine.hook.dialects import DIALECTS
from policyengine.hook.verb import KEEP_S
from policyengine.messages import ModelResponse, ToolCall, ToolError, ToolResult
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, UserSaid
from policyengine.stores import RUNS
from tests.hosts.hook_harness import Harness
from tests.hosts.scenarios import HEAD

CLAUDE = DIALECTS["claude-code"]


def engine(rules: str) -> Engine:
    return Engine(load_policy_text(HEAD + rules, registry=builtin_registry()))


def stalling(rungs: str, extra: str = "") -> Engine:
    return engine(f"{extra}extensions:\n  stall_detector: {{with: {{repeat: {rungs}}}}}\n")


def harness(policy: Engine, folder, **options) -> Harness:
    return Harness(CLAUDE, policy.snapshot, folder, **options)


def test_the_prompt_is_the_task_and_the_next_one_a_step(tmp_path):
    host = harness(stalling("{deny: 3}"), tmp_path)
    host.tell("UserPromptSubmit", prompt="find it")
    host.before(1)
    host.after(1)
    host.tell("UserPromptSubmit", prompt="and now?")
    state = host.run().run.state
    assert (state.run_id, state.task, state.step, state.calls) == ("session-1", "find it", 2, 1)


def test_a_text_of_the_harness_begins_no_step(tmp_path):
    host = harness(stalling("{deny: 3}"), tmp_path)
    host.tell("UserPromptSubmit", prompt="find it")
    host.tell("UserPromptSubmit", prompt="<task-notification>done</task-notification>")
    assert host.run().run.state.step == 1


def test_a_note_stands_beside_the_result_it_belongs_to_though_other_calls_are_open(tmp_path):
    host = harness(stalling("{hint: 2}"), tmp_path)
    host.before(1)
    host.after(1)
    host.before(2)
    host.before("other", args={"page": 2})
    assert "arguments" in host.after(2).note or "arguments" in host.after("other", args={"page": 2}).note


def test_a_subagent_has_a_run_of_its_own_that_ends_with_it(tmp_path):
    host = harness(stalling("{deny: 2}"), tmp_path)
    host.before(1)
    host.after(1)
    assert host.before(2, agent_id="a1", agent_type="explorer").refused is None
    host.after(2, agent_id="a1", agent_type="explorer")
    assert host.before(3).refused is not None
    assert host.before(4, agent_id="a1", agent_type="explorer").refused is not None
    run = host.run("a1").run.state
    assert (run.run_id, run.agent) == ("session-1/a1", "explorer")
    host.tell("SubagentStop", agent_id="a1", stop_hook_active=False)
    assert host.saved("a1") is None
    assert host.saved() is not None


def test_the_end_of_a_subagent_that_is_not_named_ends_nothing(tmp_path):
    host = harness(stalling("{deny: 3}"), tmp_path)
    host.before(1)
    host.tell("SubagentStop", stop_hook_active=False)
    assert [call.id for call in host.run().open_calls] == ["t-1"]


def test_a_session_whose_name_begins_like_another_one_is_left_alone_when_that_ends(tmp_path):
    host = harness(stalling("{deny: 3}"), tmp_path)
    for name in ("a", "a/b", "a%2Fb", "ab"):
        host.before(1, session_id=name)
    host.raw(host.event("SessionEnd", session_id="a", reason="other"))
    with host.store() as store:
        assert len(store.read(lambda values: values.keys(RUNS))) == 4
    assert host.before(2, session_id="a/b").refused is None


def test_the_end_of_a_session_ends_its_runs_and_it_can_be_resumed(tmp_path):
    host = harness(stalling("{deny: 3}"), tmp_path)
    host.tell("UserPromptSubmit", prompt="find it")
    host.before(1, agent_id="a1")
    host.before(2)
    host.tell("Stop", stop_hook_active=False)
    host.tell("SessionEnd", reason="other")
    assert host.saved("a1") is None
    assert host.run().outcome.status == "completed"
    host.tell("SessionStart", source="resume")
    host.tell("UserPromptSubmit", prompt="once more")
    assert host.run().run.state.run_id == "session-1#2"
    assert host.before(3).refused is None


def test_a_call_that_was_refused_is_no_run_and_one_that_nobody_told_of_counts_when_the_user_goes_on(tmp_path):
    host = harness(stalling("{deny: 3}"), tmp_path)
    host.before(1)
    host.before(2, args={"page": 2})
    host.tell("PermissionDenied", tool_name="look", tool_input={}, tool_use_id="t-1")
    assert [call.id for call in host.run().open_calls] == ["t-2"]
    host.tell("UserPromptSubmit", prompt="not that")
    run = host.run()
    assert (run.open_calls, run.state.executed) == ((), 1)


def test_a_call_that_is_asked_about_twice_counts_once(tmp_path):
    host = harness(stalling("{deny: 3}"), tmp_path)
    for _ in range(5):
        assert host.before(1).refused is None
    assert host.run().run.state.calls == 1


def test_results_of_calls_that_nobody_judged_change_nothing(tmp_path):
    host = harness(stalling("{deny: 3}"), tmp_path)
    assert host.after(1) == host.after(2)
    assert host.saved() is None
    host.before(3)
    host.after(3)
    before = host.saved()
    host.after(3)
    host.after("never")
    assert host.saved() == before


def test_a_wind_down_lets_the_agent_answer_and_ends_the_run_with_its_answer(tmp_path):
    host = harness(stalling("{wind_down: 2}"), tmp_path)
    host.tell("UserPromptSubmit", prompt="find it")
    host.before(1)
    host.after(1)
    told = host.before(2)
    assert told.refused is not None
    assert "final answer" in told.refused
    assert not told.ended
    host.tell("Stop", stop_hook_active=False)
    outcome = host.run().outcome
    assert (outcome.status, outcome.stop.code) == ("completed", "repeat")


def test_our_own_interventions_are_capped_over_all_processes(tmp_path):
    host = harness(stalling("{deny: 2}", "interventions: {max: 3, then: stop}\n"), tmp_path)
    host.before(0)
    host.after(0)
    said = [host.before(number) for number in range(1, 6)]
    assert [told.ended for told in said] == [False, False, False, True, True]
    assert all(told.refused is not None for told in said)


def test_forty_rounds_are_forty_calls(tmp_path):
    host = harness(engine("extensions:\n  step_limit: {with: {max_steps: 4}}\n"), tmp_path)
    ran = 0
    for number in range(9):
        said = host.before(number, args={"n": number})
        if said.refused is None:
            ran += 1
            host.after(number, f"{number}", args={"n": number})
    assert ran == 4


def test_a_result_is_rewritten_where_the_policy_wants_envelopes(tmp_path):
    host = harness(engine("tool_results: envelope\nextensions: {}\n"), tmp_path)
    host.before(1)
    told = host.after(1, "what it found")
    assert isinstance(msgspec.json.decode(told.result), dict)
    assert "what it found" in told.result


def test_what_a_call_wrote_is_not_kept(tmp_path):
    host = harness(stalling("{deny: 3}"), tmp_path)
    secret = "x" * 5_000
    host.before(1, "Write", {"content": secret})
    assert secret.encode() in host.saved()
    host.after(1, secret, "Write", {"content": secret})
    assert secret.encode() not in host.saved()


def test_old_sessions_are_forgotten_when_another_one_begins(tmp_path):
    now = [1e9]
    host = harness(stalling("{deny: 3}"), tmp_path, clock=lambda: now[0])
    host.before(1)
    now[0] += KEEP_S + 1
    host.raw({"session_id": "another", "hook_event_name": "SessionStart"})
    with host.store() as store:
        assert store.read(lambda values: values.keys(RUNS)) == ()


def test_an_engine_that_fails_refuses(tmp_path, monkeypatch):
    host = harness(stalling("{deny: 3}"), tmp_path)
    host.before(1)
    monkeypatch.setattr("policyengine.run.Run.before_tool_call", lambda *_, **__: 1 / 0)
    assert "guard itself failed" in host.before(2).refused


# --- equality with replay -------------------------------------------------------------------------------------------

POLICIES = {
    "hints only": "extensions:\n  stall_detector: {with: {repeat: {hint: 2}, cycle: {hint: 2}}}\n",
    "refusals": "extensions:\n  stall_detector: {with: {repeat: {hint: 2, deny: 3, stop: 5}, text: {}}}\n"
    "  tool_failures: {}\n",
    "wind-down": "extensions:\n  stall_detector: {with: {repeat: {wind_down: 3}}}\n"
    "  step_limit: {with: {max_steps: 9}}\n",
    "shipped": "extends: [default]\n",
}


def recording(steps) -> Recording:
    """Return a session: numbers are calls (the number is their arguments), `!` fails, `?` is refused, `>` a prompt."""
    events = [UserSaid("find it", at=0.0)]
    for index, step in enumerate(steps):
        at = float(index)
        if step == ">":
            events.append(UserSaid("go on", at=at))
            continue
        call = ToolCall(f"c{index}", "look", f'{{"page":{step[0]}}}', {"page": int(step[0])})
        events.append(ModelSaid(ModelResponse("I look.", (call,)), at))
        if step.endswith("?"):
            result = ToolResult(call.id, "no", "denied")
        elif step.endswith("!"):
            result = ToolResult(call.id, "broken", "error", ToolError("error", "broken", False))
        else:
            result = ToolResult(call.id, f"page {step[0]}")
        events.append(ToolAnswered(call.id, result, at))
    return Recording("made-up", "made-up.jsonl", "claude_code", tuple(events), "tool_result")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "steps",
    [
        "1 1 1 1 1 1 1 1",
        "1 2 1 2 1 2 1 2 1 2 1 2",
        "1! 1! 1! 2! 3! 1!",
        "1 1 > 1 1 > 1 1 1 1",
        "1? 1? 1 1 2? 1 1",
        "1 2 3 4 5 6 7 8 9 1 2 3",
    ],
)
def test_hooks_decide_as_replay_does(policy, steps):
    loaded = engine(POLICIES[policy])
    made = recording(steps.split())
    played = play(made, loaded)
    assert is_as_recorded(made, played, loaded)
    assert is_as_happened(played, loaded)


def test_the_comparison_is_about_something():
    played = play(recording(["1"] * 8), engine(POLICIES["refusals"]))
    actions = [item[2] for item in played.decided]
    assert {"hint", "deny"} < set(actions)
    assert actions[-1] == "stop"
    assert played.refused_at is not None
    assert len(seen_by_hooks(recording(["1", ">"])).events) == 4


STEPS = st.lists(st.sampled_from(["1", "1", "2", "3", "1!", "2?", ">"]), max_size=25)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, policy=st.sampled_from(sorted(POLICIES)))
def test_hooks_decide_as_replay_does_whatever_happens(steps, policy):
    loaded = engine(POLICIES[policy])
    made = recording(steps)
    played = play(made, loaded)
    assert is_as_recorded(made, played, loaded)
    assert is_as_happened(played, loaded)
