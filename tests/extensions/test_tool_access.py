"""`tool_access`: which tools may be called at all, and before which a human is asked."""

from __future__ import annotations

from datetime import date

import pytest

from policyengine import Agent, ConfigError, Guard, Script, ScriptedCall, Turn, say
from policyengine.extensions.tool_access import ToolAccess
from policyengine.messages import Batch, ToolCall
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.policy.stricter import compare, looking
from policyengine.providers.scripted import ScriptedModel
from policyengine.testing import make_engine

REGISTRY = builtin_registry()


def answers(rule, *tools):
    made = [rule.hook("before_tool_call", ToolCall("c", tool), Batch("b")) for tool in tools]
    return ["" if answer is None else f"{answer.name} {answer.code}" for answer in made]


def test_what_is_denied_comes_first_then_what_is_asked_about_then_what_is_allowed(bench):
    rule = bench(ToolAccess, deny=["shell", "mcp__evil__*"], ask=["delete_*", "sh*"], allow=["read_*", "delete_row"])
    assert answers(rule, "shell", "mcp__evil__x", "delete_row", "show", "read_file", "write_file") == [
        "deny tool_denied",
        "deny tool_denied",
        "ask tool_approval",
        "ask tool_approval",
        "",
        "deny tool_denied",
    ]


def test_without_an_allow_list_everything_else_may_be_called(bench):
    assert answers(bench(ToolAccess, deny=["shell"]), "Shell", "shells", "", "x") == [""] * 4
    assert answers(bench(ToolAccess, allow=["shell"]), "Shell", "") == ["deny tool_denied"] * 2


def test_the_text_says_whether_the_tool_is_listed():
    made = make_engine({"tool_access": {"with": {"deny": ["shell"], "allow": ["look"]}}})
    with Guard(made, task="t") as guard:
        texts = [guard.allow(name).text for name in ("shell", "other")]
    assert 'The tool "shell" is not permitted' in texts[0]
    assert 'The tool "other" is not among those that are permitted' in texts[1]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_its_texts_render_in_every_language_and_mode(language):
    for mode in ("enforce", "warn"):
        rule = {"mode": mode, "with": {"deny": ["shell"], "ask": ["pay"]}}
        with Guard(make_engine({"tool_access": rule}, language=language), task="t", approve=lambda *_: True) as guard:
            guard.ready()
            guard.response("", [("shell", {}), ("pay", {})]).run({"shell": lambda: "x", "pay": lambda: "y"})
            messages = []
            guard.ready(messages)
        assert len(messages) == (2 if mode == "warn" else 0)


def test_nothing_that_is_denied_runs_in_the_loop_and_nobody_is_asked_about_it():
    ran, asked = [], []

    def shell(n: int) -> str:
        ran.append("shell")
        return "x"

    def pay(n: int) -> str:
        ran.append("pay")
        return "x"

    made = make_engine({"tool_access": {"with": {"deny": ["shell"], "ask": ["*"]}}})
    turn = Turn((ScriptedCall("shell", {"n": 1}), ScriptedCall("pay", {"n": 1})))
    model = ScriptedModel(Script("t", (turn, say("done"))))

    def human(question):
        asked.extend(call.name for call in question.calls)
        return True

    outcome = Agent(made, model, [shell, pay], human=human).run("t")
    assert (outcome.status, ran, asked) == ("completed", ["pay"], ["pay"])


def test_every_entry_is_proved_that_is_not_covered_by_another(proved):
    assert proved(ToolAccess, deny=["shell", "mcp__*"], ask=["shell", "delete_?"], allow=["something_else"]) == {
        "deny[shell]": "fires at 1",
        "deny[mcp__*]": "fires at 1",
        "ask[delete_?]": "fires at 1",
        "allow": "fires at 1",
    }


def test_entries_without_effect_are_pointed_out(faults):
    assert faults(ToolAccess, deny=["a*", "ab"], ask=["ab", "x"], allow=["x", "y"]) == [
        "deny: 'ab' is never used: 'a*' matches the same tools, and stands there already",
        "ask: 'ab' is never used: 'a*' matches the same tools, and `deny` comes first",
        "allow: 'x' is never used: 'x' matches the same tools, and `ask` comes first",
    ]
    assert faults(ToolAccess) == [": set `deny`, `ask` or `allow`; write `mode: disabled` to switch the rule off"]


HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: t\nextensions: {tool_access: {with: {"


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("deny: [a]", "deny: [a, b]", "tighter"),
        ("deny: [a, b]", "deny: [a]", "looser"),
        ("deny: [a]", "deny: [b]", "other"),
        ("ask: [x]", "ask: [x], deny: [a]", "tighter"),
        ("ask: [x], deny: [a]", "ask: [x]", "looser"),
        ("allow: [a, b]", "allow: [a]", "tighter"),
        ("allow: [a]", "allow: [a, b]", "looser"),
        ("deny: [x]", "deny: [x], allow: [a]", "tighter"),
        ("ask: [a]", "ask: [a, b]", "other"),  # beside an allow list it would be looser
        ("ask: [a, b]", "ask: [a]", "looser"),
    ],
)
def test_which_of_two_lists_is_stricter(before, after, verdict):
    one, other = (
        load_policy_text(f"{HEAD}{options}}}}}}}\n", registry=REGISTRY, today=date(2026, 12, 1))
        for options in (before, after)
    )
    found = compare(one, other, looking(REGISTRY, one, other), date(2026, 12, 1))
    assert [difference.verdict for difference in found] == [verdict]


def test_a_limit_of_no_calls_says_what_to_write():
    text = HEAD.replace("tool_access", "tool_call_limit") + "tools: {shell: 0}}}}\n"
    with pytest.raises(ConfigError, match="tool_access") as raised:
        load_policy_text(text, registry=REGISTRY)
    assert "tool_access" in raised.value.problems[0].help
