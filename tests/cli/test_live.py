"""The live view: what is shown of a run, and what cannot get through it."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from policyengine.engine import Engine
from policyengine.extension import Extension
from policyengine.hooks import hookimpl
from policyengine.messages import ToolCall
from policyengine.policy.model import Interventions
from policyengine.policy.problems import Position, Problem
from policyengine.script import Script, ScriptedCall, batch, call, say
from policyengine.telemetry.live import LiveView, called, short
from policyengine.testing import ListedRegistry, play, policy, rule
from policyengine.visible import clean


class Named(Extension):
    """Does what the name of the tool says."""

    name = "named"
    messages = {f"named.{action}": {"tool": "t"} for action in ("hint", "deny", "stop", "ask", "wind_down")}
    templates = {"en": {kind: kind + " for {{ tool }}" for kind in messages}}
    rewrites_calls = True

    @hookimpl
    def before_tool_call(self, run, call):
        if call.name == "fail":
            raise ValueError("no such key")
        if call.name == "rewrite":
            return run.rewrite("named", args={"safe": True}) if call.args != {"safe": True} else None
        if call.name in ("hint", "deny", "stop", "wind_down"):
            return getattr(run, call.name)("named", observed=1.5, limit=2, tool=call.name)
        return None


def account(*turns, rules=None, **fields) -> str:
    """Return what the view prints of a run, runs of blanks as one."""
    text = io.StringIO()
    view = LiveView(Console(file=text, width=200))
    rules = rules or [rule("named")]
    engine = Engine(
        policy(*rules, **fields), registry=ListedRegistry(Named, trusted=True), sinks=[view], listeners=[view.heard]
    )
    view.finish(play(engine, turns).outcome)
    return re.sub(" +", " ", text.getvalue())


def test_the_policy_comes_first_and_the_end_last():
    shown = account(call("look"), say("done"))
    assert shown.startswith(" policy test, 1 rule, generation 1, digest 000000000000\n task test\nround 1\n")
    assert shown.endswith("\n completed 2 rounds, 1 call (1 run), 0 interventions\n answer done\n")


def test_a_decision_names_rule_line_and_what_was_measured():
    shown = account(call("deny"), say("done"))
    assert "deny named, test.yaml:1: named (observed 1.5, limit 2)\n named.deny for deny\n result refused" in shown


def test_results_of_a_batch_say_whose_they_are():
    shown = account(batch(ScriptedCall("a", result="one"), ScriptedCall("b", result="two")), say("done"))
    assert "result a: one\n result b: two" in shown


def test_a_rule_that_fails_is_shown_with_its_error():
    shown = account(call("fail"), say("done"))
    assert "broken named, test.yaml:1 failed: ValueError: no such key" in shown


def test_a_rewritten_call_is_shown_as_it_will_run():
    assert 'rewrite named, test.yaml:1: named\n rewrite {"safe": true}' in account(call("rewrite"), say("done"))


@pytest.mark.parametrize("mode", ["shadow", "warn"])
def test_a_rule_that_may_not_act_shows_once_per_episode_what_it_would_do(mode):
    shown = account(call("deny"), call("deny"), say("done"), rules=[rule("named", mode=mode)])
    assert shown.count(f"{mode} named, test.yaml:1 would deny: named") == 1
    assert "refused" not in shown


def test_a_second_rule_that_objects_is_not_lost():
    shown = account(call("deny"), say("done"), rules=[rule("named"), rule("named", id="other", line=4)])
    assert "also other, test.yaml:4: deny named (observed 1.5, limit 2)" in shown


def test_a_hand_over_says_what_the_limit_was():
    shown = account(call("hint"), call("hint"), say("done"), interventions=Interventions(max=1))
    assert "waiting 2 rounds" in shown
    assert "interventions (observed 2, limit 1)" in shown


def test_an_unusable_reply_is_shown_with_the_warning_it_caused():
    shown = account(say(""), say("done"))
    assert "unusable empty" in shown
    assert "warning empty, told to the model" in shown


def test_a_refused_policy_is_shown_with_its_problems():
    text = io.StringIO()
    view = LiveView(Console(file=text, width=200))
    problem = Problem("S204", "unknown setting", Position("p.yaml", 3, 5), source_line="    x: 1")
    view.heard("policy_rejected", [problem])
    assert "p.yaml:3:5: error[S204] unknown setting" in text.getvalue()
    assert "    3 |     x: 1" in text.getvalue()


def test_text_of_a_model_cannot_control_the_terminal():
    shown = account(call("look", {"q": "\x1b[2J[red]x[/red]"}, "\x1b]0;title\x07\u202eevil"), say("\x9b31m"))
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    assert "\u202e" not in shown
    assert "[red]x[/red]" in shown


def test_long_text_is_cut_to_one_line():
    assert short("a\nb " * 100, 20) == "a b a b a b a b a..."
    assert short("x" * 10_000_000, 20) == "x" * 17 + "..."
    assert short("short") == "short"


def test_line_breaks_stay_and_other_controls_are_written_out():
    assert clean("a\r\nb\tc\x00\ud800") == "a\nb\tc\\x00\\ud800"


def test_a_call_without_json_arguments_is_shown_as_it_was_sent():
    assert called(ToolCall("1", "look", "{oops")) == "look {oops"
    assert called(ToolCall("1", "", "")) == "(no name)"


def test_two_views_of_one_script_are_equal():
    script = Script("t", (call("hint"), say("done")))
    assert account(*script.turns) == account(*script.turns)
