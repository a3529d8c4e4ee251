"""`locked`: every way in which a layer can loosen a rule is refused, through every kind of layer; tightening is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from policyengine import Batch, Engine, Extension, ToolCall, ToolResult, hookimpl
from policyengine.errors import ConfigError
from policyengine.policy.load import load_policy
from policyengine.policy.model import Policy
from policyengine.policy.problems import Problem
from policyengine.testing import ListedRegistry, ManualClock

HEAD = "apiVersion: policyengine/v1\nkind: Policy\n"
ENV = {"FIVE": "5", "NINE": "9", "TWO": "2", "WARN": "warn", "ENFORCE": "enforce", "ON": "true", "POLL": "poll"}
SAID = 'expires: "2099-12-31", owner: o, reason: x'
LOW = f"""name: low
tools:
  "pay_*": {{effect: exec, timeout: 10s, failure: {{text_prefix: [Error]}}}}
  look: {{effect: read, result_mask: [a, b]}}
  wait: {{effect: poll}}
interventions: {{max: 5}}
wind_down: {{rounds: 3}}
parsing: {{max_retry: 2}}
exceptions: [{{rule: r, when: {{tool: [old_*, older]}}, {SAID}}}]
extensions:
  first: {{use: step_limit}}
  r:
    use: stall_detector
    locked: true
    mode: enforce
    with:
      repeat: {{hint: 3, deny: 5, stop: 9}}
      cycle: {{max_period: 4, deny: 5}}
      interleaved: {{deny: 7}}
      poll: {{deny: 2, stop: 5}}
      tools: {{pay_bill: {{repeat: {{deny: 3}}, ignore_args: [a, b]}}}}
    when: {{tool: ["*", "!sleep", "!wait"], agent: [crawler, "planner"]}}
    order: {{after: first}}
    rollout: {{percent: 50, by: agent}}
  later: {{use: step_limit}}
"""
WITH_VARIABLES = (
    LOW.replace("deny: 5, stop: 9", "deny: {$env: FIVE}, stop: {$env: NINE}")
    .replace("mode: enforce", "mode: {$env: ENFORCE}")
    .replace("max: 5", "max: {$env: UNSET, default: 5}")
)
LOOSER = {
    "extensions: {r: {with: {repeat: {deny: 6}}}}": "extensions.r.with.repeat.deny",
    "extensions: {r: {with: {cycle: {max_period: 3}}}}": "extensions.r.with.cycle.max_period",
    "extensions: {r: {with: {interleaved: {max_gap: 2}}}}": "extensions.r.with.interleaved.max_gap",
    "extensions: {r: {with: {repeat: {end_step: 7}}}}": "extensions.r.with.repeat.end_step",
    "extensions: {r: {with: {cycle: {$delete: true}}}}": "extensions.r.with.cycle.deny",
    "extensions: {r: {with: {repeat: {hint: {$delete: true}}}}}": "extensions.r.with.repeat.hint",
    "extensions: {r: {with: {repeat: {stop: {$delete: true}, wind_down: 9}}}}": "extensions.r.with.repeat.stop",
    "extensions: {r: {with: {tools: {pay_bill: {repeat: {deny: 4}}}}}}": (
        "extensions.r.with.tools.pay_bill.repeat.deny"
    ),
    "extensions: {r: {with: {tools: {pay_bill: {repeat: {$delete: true}}}}}}": (
        "extensions.r.with.tools.pay_bill.repeat"
    ),
    "extensions: {r: {with: {tools: {pay_bill: {poll: {deny: 99}}}}}}": "extensions.r.with.tools.pay_bill.poll",
    "extensions: {r: {with: {tools: {pay_bill: {ignore_args: {$remove: [a]}}}}}}": (
        "extensions.r.with.tools.pay_bill.ignore_args"
    ),
    "extensions: {r: {with: {tools: {pay_bill: {ignore_args: {$append: [c]}}}}}}": (
        "extensions.r.with.tools.pay_bill.ignore_args"
    ),
    'extensions: {r: {with: {tools: {"pay_*": {repeat: {deny: 40}}}}}}': "extensions.r.with.tools.pay_*",
    "extensions: {r: {with: {tools: {poll_it: {repeat: {hint: 2, deny: 3, stop: 4}}}}}}": (
        "extensions.r.with.tools.poll_it"
    ),
    "extensions: {r: {with: {tools: {$delete: true}}}}": "extensions.r.with.tools.pay_bill",
    "extensions: {r: {with: {$delete: true}}}": "extensions.r.with.cycle.deny",
    "extensions: {r: {with: {scope: run}}}": "extensions.r.with.scope",
    "extensions: {r: {with: {repeat: {deny: {$env: NINE}, stop: {$delete: true}}}}}": "extensions.r.with.repeat.deny",
    "extensions: {r: {with: {repeat: {deny: {$env: UNSET, default: 8}}}}}": "extensions.r.with.repeat.deny",
    "extensions: {r: {mode: warn}}": "extensions.r.mode",
    "extensions: {r: {mode: {$env: WARN}}}": "extensions.r.mode",
    "extensions: {r: {mode: {$delete: true}}}\ndefaults: {mode: shadow}": "extensions.r.mode",
    "extensions: {r: {on_error: allow}}": "extensions.r.on_error",
    "defaults: {on_error: allow}": "extensions.r.on_error",
    "defaults: {on_error: {$env: UNSET, default: allow}}": "extensions.r.on_error",
    "defaults: {timeout: 9s}": "extensions.r.timeout",
    "extensions: {r: {timeout: 1ms}}": "extensions.r.timeout",
    "extensions: {r: {at: before_tool_call}}": "extensions.r.at",
    "extensions: {r: {when: {tool: {$remove: ['!sleep']}}}}": "extensions.r.when.tool",
    "extensions: {r: {when: {agent: {$append: [writer]}}}}": "extensions.r.when.agent",
    "extensions: {r: {when: {$delete: true}}}": "extensions.r.when.tool",
    "extensions: {r: {when: {tool: {$append: ['!pay_*']}}}}": "extensions.r.when.tool",
    "extensions: {r: {when: {tool: ['pay_*', '!sleep', '!wait']}}}": "extensions.r.when.tool",
    "extensions: {r: {when: {tool: ['!*', '*']}}}": "extensions.r.when.tool",
    "extensions: {r: {when: {agent: {$remove: [crawler]}}}}": "extensions.r.when.agent",
    "extensions: {r: {when: {agent: [other]}}}": "extensions.r.when.agent",
    "extensions: {r: {when: {agent: ['!crawler']}}}": "extensions.r.when.agent",
    "extensions: {r: {rollout: {percent: 49.5}}}": "extensions.r.rollout",
    "extensions: {r: {rollout: {percent: {$env: TWO}}}}": "extensions.r.rollout",
    "extensions: {r: {rollout: {salt: other}}}": "extensions.r.rollout",
    "extensions: {r: {rollout: {by: run_id}}}": "extensions.r.rollout",
    "extensions: {r: {$delete: true}}\nexceptions: []": "extensions.r",
    "extensions: {r: {locked: false}}": "extensions.r.locked",
    "extensions: {r: {locked: {$delete: true}}}": "extensions.r.locked",
    "extensions: {r: {use: step_limit}}": "extensions.r.use",
    "extensions: {r: {order: {after: [first, later]}}}": "extensions.r.order.after",
    "extensions: {r: {order: {before: later}}}": "extensions.r.order.before",
    "extensions: {r: {order: {$delete: true}}}": "extensions.r.order.after",
    "extensions: {later: {order: {before: r}}}": "extensions.later.order",
    "extensions: {new: {use: step_limit, order: {before: r}}}": "extensions.new.order",
    "extensions: {later: {order: {before: first}}}": "extensions.later.order",
    "extensions: {new: {use: acme.redact}}": "extensions.new",
    f"exceptions: [{{rule: r, {SAID}}}]": "exceptions",
    f"exceptions: {{$append: [{{rule: r, when: {{tool: pay_bill}}, {SAID}}}]}}": "exceptions",
    f"exceptions: [{{rule: r, {SAID.replace('2099', '2001')}}}]": "exceptions",
    f"exceptions: [{{rule: r, when: {{agent: planner}}, {SAID}}}]": "exceptions",
    "kill_switch: true": "kill_switch",
    "kill_switch: {$env: ON}": "kill_switch",
    'tools: {"pay_*": {effect: poll}}': "tools.pay_*.effect",
    'tools: {"pay_*": {effect: {$env: POLL}}}': "tools.pay_*.effect",
    "tools: {pay_bill: {effect: write}}": "tools.pay_bill.effect",
    'tools: {"*": {effect: write}}': "tools.*.effect",
    "tools: {fetch: {effect: read}}": "tools.fetch.effect",
    'tools: {"pay_*": {timeout: 11s}}': "tools.pay_*.timeout",
    'tools: {"pay_*": {timeout: {$delete: true}}}': "tools.pay_*.timeout",
    'tools: {"pay_*": {failure: {$delete: true}}}': "tools.pay_*.failure.text_prefix",
    'tools: {"pay_*": {failure: {text_prefix: [X]}}}': "tools.pay_*.failure.text_prefix",
    'tools: {"pay_*": {failure: {text_prefix: {$append: [Failed]}}}}': "tools.pay_*.failure.text_prefix",
    "tools: {wait: {effect: exec}}": "tools.wait.effect",
    "tools: {look: {result_mask: {$remove: [b]}}}": "tools.look.result_mask",
    "tools: {look: {result_mask: {$append: [c]}}}": "tools.look.result_mask",
    "tools: {$delete: true}": "tools.look.effect",
    "plan: {mode: steps}": "plan",
    "interventions: {max: 6}": "interventions.max",
    "interventions: {max: {$env: NINE}}": "interventions.max",
    "interventions: {$delete: true}": "interventions.max",
    "wind_down: {rounds: 4}": "wind_down.rounds",
}
"""Every way to loosen the rule, with the path that the problem names."""

TIGHTER = [
    "extensions: {r: {with: {repeat: {deny: 4}}}}",
    "extensions: {r: {with: {repeat: {wind_down: 6}}}}",
    "extensions: {r: {with: {repeat: {deny: {$env: UNSET, default: 4}}}}}",
    "extensions: {r: {with: {repeat: {deny: {$env: FIVE}}}}}",
    "extensions: {r: {with: {cycle: {max_period: 6, hint: 4}}}}",
    "extensions: {r: {with: {cycle: {max_period: {$delete: true}}}}}",
    "extensions: {r: {with: {interleaved: {max_gap: 60}}}}",
    "extensions: {r: {with: {tools: {pay_bill: {repeat: {deny: 3, stop: 6}}}}}}",
    "extensions: {r: {with: {tools: {pay_bill: {repeat: {deny: {$env: TWO}}}}}}}",
    "extensions: {r: {mode: {$delete: true}}}",
    "extensions: {r: {mode: {$env: ENFORCE}}}",
    "extensions: {r: {on_error: stop}}",
    "defaults: {on_error: stop}",
    "extensions: {r: {on_error: deny}}\ndefaults: {on_error: allow}",
    "extensions: {r: {timeout: 250ms}}\ndefaults: {timeout: 9s}",
    "extensions: {r: {when: {tool: ['!wait', '!sleep', '*']}}}",
    "extensions: {r: {rollout: {percent: 60}}}",
    "extensions: {r: {rollout: {$delete: true}}}",
    "extensions: {r: {locked: true}}",
    "extensions: {later: {order: {after: r}}}",
    "extensions: {later: {$delete: true}}",
    "extensions: {first: {mode: disabled}}",
    "extensions: {new: {use: tool_call_limit, with: {calls: 3}}}",
    "extensions: {new: {use: acme.redact, mode: shadow}}",
    "exceptions: []",
    f"exceptions: [{{rule: r, when: {{tool: older}}, {SAID}}}]",
    f"exceptions: {{$append: [{{rule: later, {SAID}}}]}}",
    "kill_switch: false",
    'tools: {"pay_*": {timeout: 9s}}',
    "interventions: {max: 4}",
    "interventions: {then: stop}",
    "wind_down: {rounds: {$env: TWO}}",
]
"""The other direction of each, and what is nobody's loosening."""

FREE = [
    "parsing: {mode: lenient, max_retry: 0, text_fallback: true, arguments: coerce}",
    'models: {"small-*": {parsing: {max_retry: 5}, window: 9000}}',
    "protocol: text",
    "tool_results: envelope",
    "language: zh",
    "prompts: [./texts]",
    "log: {include: [arguments]}",
    "reload: {pin: iteration, settle: 1s}",
    'requires: {policyengine: ">=0"}',
    "extensions: {new: {use: acme.rewarn}}",
]
"""What a lock leaves alone: what is taken for an event, and how things are said."""


class Redact(Extension):
    name = "acme.redact"
    rewrites_calls = True

    @hookimpl
    def before_tool_call(self, run: Any, call: Any, batch: Any) -> Any:
        return run.rewrite("redacted", args={})


class Rewarn(Extension):
    name = "acme.rewarn"

    @hookimpl
    def hist_add_warning_start(self, run: Any, warning: Any) -> Any:
        return run.rewrite("calm", kind="calm")


REGISTRY = ListedRegistry(Redact, Rewarn)
Load = Callable[..., Policy]


class Desk:
    """Writes files side by side and loads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "texts" / "en").mkdir(parents=True)
        (folder / "texts" / "en" / "stall.deny.txt").write_text("Never mind.")

    def write(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    def policy(self, name: str, text: str, *extends: str) -> Path:
        above = f"extends: [{', '.join(f'./{file}' for file in extends)}]\n" if extends else ""
        return self.write(name, HEAD + above + text)

    def overlay(self, name: str, text: str, target: str = "low") -> Path:
        return self.write(name, f"apiVersion: policyengine/v1\nkind: Overlay\ntarget: {target}\n{text}\n")

    def load(self, policy: Path, *overlays: Path) -> Policy:
        return load_policy(policy, registry=REGISTRY, overlays=overlays, env=ENV, today=date(2026, 12, 1))

    def refused(self, policy: Path, *overlays: Path) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as caught:
            self.load(policy, *overlays)
        return caught.value.problems


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def _overlay(desk: Desk, body: str) -> list[Path]:
    return [desk.policy("low.yaml", LOW), desk.overlay("top.yaml", body)]


def _extending(desk: Desk, body: str) -> list[Path]:
    desk.policy("low.yaml", LOW)
    return [desk.policy("top.yaml", f"name: top\n{body}\n", "low.yaml")]


def _overlay_of_an_overlay(desk: Desk, body: str) -> list[Path]:
    between = desk.overlay("between.yaml", 'tools: {"pay_*": {timeout: 10s}}\nlog: {include: [messages]}')
    return [desk.policy("low.yaml", LOW), between, desk.overlay("top.yaml", body)]


def _overlay_of_an_extending_policy(desk: Desk, body: str) -> list[Path]:
    desk.policy("low.yaml", LOW)
    return [
        desk.policy("mid.yaml", "name: mid\nlanguage: en\n", "low.yaml"),
        desk.overlay("top.yaml", body, target="mid"),
    ]


def _extending_side_by_side(desk: Desk, body: str) -> list[Path]:
    desk.policy("low.yaml", LOW)
    desk.policy("top.yaml", f"name: beside\n{body}\n")
    return [desk.policy("house.yaml", "name: house\n", "low.yaml", "top.yaml")]


def _over_variables(desk: Desk, body: str) -> list[Path]:
    return [desk.policy("low.yaml", WITH_VARIABLES), desk.overlay("top.yaml", body)]


VEHICLES = [
    _overlay,
    _extending,
    _overlay_of_an_overlay,
    _overlay_of_an_extending_policy,
    _extending_side_by_side,
    _over_variables,
]


@pytest.mark.parametrize("vehicle", VEHICLES)
@pytest.mark.parametrize("body", LOOSER)
def test_every_way_to_loosen_it_is_refused_and_both_files_are_named(
    desk: Desk, body: str, vehicle: Callable[[Desk, str], list[Path]]
) -> None:
    found = desk.refused(*vehicle(desk, body))
    assert {problem.code for problem in found} == {"M314"}
    one = next(problem for problem in found if problem.path == LOOSER[body])
    assert one.position.file == str(desk.folder / "top.yaml")
    assert (desk.folder / "top.yaml").read_text().split("\n")[one.position.line - 1] in body.split("\n")
    line = next(number for number, text in enumerate((HEAD + LOW).split("\n"), 1) if "locked: true" in text)
    assert f"is locked at {desk.folder / 'low.yaml'}:{line}:" in one.message


@pytest.mark.parametrize("vehicle", VEHICLES)
@pytest.mark.parametrize("body", [*TIGHTER, *FREE])
def test_what_tightens_it_and_what_does_not_touch_it_is_allowed(
    desk: Desk, body: str, vehicle: Callable[[Desk, str], list[Path]]
) -> None:
    (rule,) = [rule for rule in desk.load(*vehicle(desk, body)).rules if rule.id == "r"]
    assert rule.locked


BETWEEN = [("pay", {"q": 1}, "no"), ("note", {}, "ok")]
GAPS = [("search", {"q": 1}, "no"), ("a", {}, "x"), ("b", {}, "x"), ("c", {}, "x")]
BYPASSES = [
    ("use: stall_detector, with: {interleaved: {deny: 5}}", "with: {interleaved: {max_gap: 2}}", GAPS),
    ("use: stall_detector, with: {cycle: {deny: 3}}", "with: {cycle: {max_period: 3}}", GAPS),
    ("use: stall_detector, when: {tool: pay}, with: {repeat: {deny: 3}}", "when: {tool: [pay, note]}", BETWEEN),
    ("use: tool_failures, when: {tool: pay}, with: {stop: 3}", "when: {tool: [pay, note]}", BETWEEN),
    ("use: tool_failures, when: {tool: pay}, with: {stop: 3}", "when: {$delete: true}", BETWEEN),
    ("use: tool_failures, when: {tool: '!note'}, with: {stop: 3}", "when: {$delete: true}", BETWEEN),
    ("use: tool_call_limit, with: {tools: {'a*': 1}}", "with: {tools: {ab: 50}}", [("ab", {"q": 1}, "x")]),
    (
        "use: stall_detector, with: {repeat: {deny: 9}, poll: {deny: 8, stop: 10}}",
        "with: {tools: {poll_it: {repeat: {deny: 8}}}}",
        [("poll_it", {}, "x")],
    ),
]
"""Locked rules, layers over them, and rounds of calls that a rule answers weaker with the layer."""


def _strictness(policy: Policy, rounds: list[tuple[str, dict[str, Any], str]]) -> list[int]:
    engine = Engine(policy, registry=REGISTRY, clock=ManualClock())
    run, found = engine.start_run(run_id="r"), []
    run.start("task")
    for number, (tool, args, text) in enumerate(rounds * 12):
        run.begin_iteration()
        call = ToolCall(str(number), tool, json.dumps(args), args)
        decisions = [run.before_tool_call(call, Batch(str(number), 0))]
        decisions.append(run.after_tool_call(call, ToolResult(call.id, text, "error" if text == "no" else "ok"))[1])
        decisions.append(run.end_iteration(1, True))
        found += [decision.control.rank if decision.control else 0 for decision in decisions]
    return found


@pytest.mark.parametrize(("rule", "change", "rounds"), BYPASSES)
def test_a_layer_that_would_weaken_the_answers_of_a_run_is_refused(
    desk: Desk, rule: str, change: str, rounds: list[tuple[str, dict[str, Any], str]]
) -> None:
    low = f"name: low\ntools: {{poll_it: {{effect: poll}}}}\nextensions: {{r: {{{rule}}}}}\n"
    over = desk.overlay("top.yaml", f"extensions: {{r: {{{change}}}}}")
    free = desk.policy("low.yaml", low)
    before, after = (_strictness(policy, rounds) for policy in (desk.load(free), desk.load(free, over)))
    assert any(now < then for then, now in zip(before, after, strict=True))
    found = desk.refused(desk.policy("low.yaml", low.replace("{r: {", "{r: {locked: true, ")), over)
    assert {problem.code for problem in found} == {"M314"}


@pytest.mark.parametrize(
    ("rule", "change", "path"),
    [
        ("at: before_tool_call", "at: [before_tool_call, after_tool_call]", "at"),
        ("at: before_tool_call", "at: {$delete: true}", "at"),
        ("with: {scope: conversation}, rollout: {percent: 50, by: agent}", "rollout: {percent: 60}", "rollout"),
        ("with: {scope: conversation}, rollout: {percent: 50}", "rollout: {$delete: true}", "rollout"),
    ],
)
def test_a_rule_that_is_shown_more_may_begin_to_count_anew(desk: Desk, rule: str, change: str, path: str) -> None:
    low = f"name: low\nextensions: {{r: {{use: stall_detector, locked: true, {rule}}}}}\n"
    over = desk.overlay("top.yaml", f"extensions: {{r: {{{change}}}}}")
    assert [problem.path for problem in desk.refused(desk.policy("low.yaml", low), over)] == [f"extensions.r.{path}"]


@pytest.mark.parametrize(
    ("rollout", "scope"),
    [("{percent: 50, by: conversation}", "conversation"), ("{percent: 0}", "conversation"), ("{percent: 50}", "run")],
)
def test_more_runs_may_take_part_where_none_counts_for_another(desk: Desk, rollout: str, scope: str) -> None:
    rule = f"use: stall_detector, locked: true, with: {{scope: {scope}}}, rollout: {rollout}"
    low = desk.policy("low.yaml", f"name: low\nextensions: {{r: {{{rule}}}}}\n")
    assert desk.load(low, desk.overlay("top.yaml", "extensions: {r: {rollout: {percent: 60}}}")).rules[0].locked


@pytest.mark.parametrize(
    ("low", "top", "loose"),
    [
        ("usd: 400", "usd: 400.0", False),
        ("usd: 400.0", "usd: 400", False),
        ("usd: 400", "usd: 400.5", True),
        ("usd: 400.5", "usd: 400", False),
    ],
)
def test_a_number_is_the_same_with_and_without_a_point(desk: Desk, low: str, top: str, loose: bool) -> None:
    rule = f"use: cost_budget, locked: true, with: {{{low}, scope: run}}"
    policy = desk.policy("low.yaml", f"name: low\nextensions: {{r: {{{rule}}}}}\n")
    files = policy, desk.overlay("top.yaml", f"extensions: {{r: {{with: {{{top}}}}}}}")
    if loose:
        assert [problem.code for problem in desk.refused(*files)] == ["M314"]
    else:
        assert desk.load(*files).rules


REWRITING = """name: low
extensions:
  rewriter: {use: acme.redact}
  r: {use: USE, locked: true}
"""


@pytest.mark.parametrize(
    ("use", "body", "path"),
    [
        ("stall_detector", "extensions: {rewriter: {$delete: true}}", "extensions.rewriter"),
        ("stall_detector", "extensions: {rewriter: {mode: shadow}}", "extensions.rewriter.mode"),
        ("tool_failures", "extensions: {rewriter: {when: {tool: x}}}", "extensions.rewriter.when.tool"),
        ("stop_unusable_response_loop", "extensions: {new: {use: acme.rewarn}}", "extensions.new"),
        ("parse_failures", "extensions: {new: {use: acme.rewarn, at: hist_add_warning.start}}", "extensions.new"),
    ],
)
def test_what_another_rule_may_make_of_an_event_is_held_too(desk: Desk, use: str, body: str, path: str) -> None:
    low = desk.policy("low.yaml", REWRITING.replace("USE", use))
    (problem,) = desk.refused(low, desk.overlay("top.yaml", body))
    assert (problem.code, problem.path, problem.position.line) == ("M314", path, 4)
    assert "may rewrite" in problem.message


@pytest.mark.parametrize(
    ("use", "body"),
    [
        ("step_limit", "extensions: {rewriter: {$delete: true}}"),
        ("step_limit", "extensions: {new: {use: acme.redact}}"),
        ("stall_detector", "extensions: {new: {use: acme.rewarn}}"),
        ("stop_unusable_response_loop", "extensions: {new: {use: acme.redact}, more: {use: acme.rewarn, mode: warn}}"),
    ],
)
def test_rules_that_rewrite_what_no_locked_rule_is_shown_are_free(desk: Desk, use: str, body: str) -> None:
    assert desk.load(desk.policy("low.yaml", REWRITING.replace("USE", use)), desk.overlay("top.yaml", body)).rules


def test_a_variable_of_the_locking_file_decides_what_is_looser_and_is_not_shown(desk: Desk) -> None:
    low = desk.policy("low.yaml", WITH_VARIABLES)
    top = desk.overlay("top.yaml", "extensions: {r: {with: {repeat: {deny: 6}}}}")
    (problem,) = desk.refused(low, top)
    assert "$env FIVE -> 6" in problem.message
    desk.overlay("top.yaml", "extensions: {r: {with: {repeat: {deny: {$env: NINE}, stop: 12}}}}")
    assert "$env FIVE -> $env NINE" in desk.refused(low, top)[0].message


def test_a_lock_holds_the_rule_as_it_stands_with_what_the_locking_file_is_laid_over(desk: Desk) -> None:
    """Whoever chooses what lies below a lock is trusted; the first file of `extends` is the lowest."""
    desk.policy("company.yaml", "name: company\nextensions: {step_limit: {with: {max_steps: 50}, locked: true}}\n")
    desk.policy("team.yaml", "name: team\ndefaults: {on_error: allow}\n")
    house = desk.policy("house.yaml", "name: house\n", "company.yaml", "team.yaml")
    assert [problem.path for problem in desk.refused(house)] == ["extensions.step_limit.on_error"]
    below = desk.policy("house.yaml", "name: house\n", "team.yaml", "company.yaml")
    assert desk.load(below).rules[0].on_error == "allow"


def test_a_layer_above_cannot_let_another_version_of_the_engine_or_a_package_in(desk: Desk) -> None:
    low = LOW.replace("name: low\n", 'name: low\nrequires: {policyengine: "<0.0.1"}\n')
    found = desk.refused(desk.policy("low.yaml", low), desk.overlay("top.yaml", 'requires: {policyengine: ">=0"}'))
    assert {problem.code for problem in found} <= {"E801", "M315"}
    low = LOW.replace("name: low\n", 'name: low\nrequires: {extensions: {hypothesis: "<0.0.1"}}\n')
    over = desk.overlay("top.yaml", 'requires: {extensions: {hypothesis: "*"}}')
    (problem,) = desk.refused(desk.policy("low.yaml", low), over)
    assert problem.code == "M315"
    assert "too new" in problem.note
