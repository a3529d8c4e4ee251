"""What each setting becomes, and that all problems of a phase are reported together, where they stand."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policyengine.errors import ConfigError
from policyengine.messages import Failure, ToolFacts
from policyengine.policy.load import load_policy_text
from policyengine.policy.model import Interventions, Log, Parsing, Policy, Reload, When
from policyengine.policy.problems import Position, Problem

Load = Callable[..., Policy]
Faults = Callable[..., tuple[Problem, ...]]


def test_a_policy_without_rules_changes_nothing_and_says_so(load: Load) -> None:
    policy = load("")
    assert policy.rules == ()
    assert [warning.code for warning in policy.warnings] == ["R507"]
    assert (policy.name, policy.protocol, policy.language, policy.wind_down_rounds) == ("mine", "auto", "en", 2)
    assert policy.interventions == Interventions(10, "hand_over", Position("default"))
    assert policy.reload == Reload("run", 0.3)


def test_every_setting_becomes_what_it_says(load: Load, tmp_path: Path) -> None:
    (tmp_path / "prompts" / "en").mkdir(parents=True)
    policy = load(
        """revision: "7"
requires: {policyengine: ">=0.0.1", extensions: {acme-guards: ">=0.4,<1"}}
prompts: [./prompts]
defaults: {mode: shadow, on_error: stop, timeout: 1s}
protocol: text
language: zh
parsing: {mode: strict, max_retry: 2}
interventions: {max: 3, then: stop}
wind_down: {rounds: 4}
tools:
  check_job: {effect: poll, timeout: 2m}
  "pay_*": {effect: write}
  read_log: {effect: read, result_mask: 'took \\d+', failure: {text_prefix: Error}}
extensions:
  call_limit:
    at: [before_tool_call]
    with: {limit: 5, tools: {"a*": {limit: 2}}}
    when: {tool: ["pay_*", "!pay_me"], agent: "!planner"}
  spend: {use: acme.spend, mode: enforce, on_error: allow, timeout: 250ms, order: {before: call_limit}}
log: {include: [arguments]}
reload: {pin: iteration, settle: 1.5s}
""",
        folder=tmp_path,
    )
    spend, limit = policy.rules
    assert (spend.id, spend.use, spend.mode, spend.on_error, spend.timeout_s) == (
        "spend",
        "acme.spend",
        "enforce",
        "allow",
        0.25,
    )
    assert spend.before == ("call_limit",)
    assert (limit.use, limit.mode, limit.on_error, limit.timeout_s) == ("call_limit", "shadow", "stop", 1.0)
    assert limit.at == ("before_tool_call",)
    assert limit.when == When(("pay_*", "!pay_me"), ("!planner",))
    assert str(limit.position) == "p.yaml:18:3"
    assert limit.options == {
        "limit": 5,
        "tools": {"a*": {"limit": 2, "deep": 9}},
        "ladder": {"hint": 3, "stop": 5, "period": 7},
        "kinds": ["a", "b"],
    }
    assert policy.tools == (
        ("check_job", ToolFacts("poll", 120.0)),
        ("pay_*", ToolFacts("write")),
        ("read_log", ToolFacts("read", None, ("took \\d+",), Failure(("Error",)))),
    )
    assert policy.prompts == (str(tmp_path / "prompts"),)
    assert (policy.revision, policy.protocol, policy.language) == ("7", "text", "zh")
    assert (policy.parsing, policy.log, policy.reload) == (
        Parsing(max_retry=2),
        Log(("arguments",)),
        Reload("iteration", 1.5),
    )
    assert policy.interventions == Interventions(3, "stop", Position("p.yaml", 11, 1))
    assert (policy.wind_down_rounds, policy.packages) == (4, {"acme-guards": ">=0.4,<1"})
    assert policy.warnings == ()


def test_parsing_is_set_for_all_models_and_by_pattern_for_some(load: Load) -> None:
    policy = load(
        "parsing: {mode: fenced, max_retry: 1}\n"
        "models: {'qwen*': {parsing: {mode: repair, text_fallback: true}}, '*': {parsing: {max_retry: 3}}, plain: {}}\n"
        "extensions: {call_limit: {with: {limit: 1}}}"
    )
    assert policy.parsing_of("qwen3-32b") == Parsing("repair", 1, True)
    assert policy.parsing_of("gpt-5") == Parsing("fenced", 3)
    assert policy.parsing == Parsing("fenced", 1)


def test_a_json5_policy_is_the_same_policy(registry: Any, no_shipped: Path) -> None:
    text = (
        "{apiVersion: 'policyengine/v1', kind: 'Policy', name: 'mine', extensions: {call_limit: {with: {limit: 5}}},}"
    )
    policy = load_policy_text(text, "p.json5", registry=registry, shipped=no_shipped)
    assert policy.rules[0].options["limit"] == 5
    with pytest.raises(ConfigError) as caught:
        load_policy_text(text.replace("limit: 5", "limt: 5"), "p.json5", registry=registry, shipped=no_shipped)
    assert caught.value.problems[0].short() == "p.json5: error[S204] extensions.call_limit.with.limt: unknown setting"


def test_a_given_mapping_replaces_the_default_of_the_whole_field(load: Load) -> None:
    (rule,) = load("extensions: {call_limit: {with: {ladder: {hint: 2}}}}").rules
    assert rule.options["ladder"] == {"hint": 2, "period": 7}


def test_an_empty_mapping_is_a_given_mapping(load: Load) -> None:
    (rule,) = load("extensions: {call_limit: {with: {ladder: {}}}}").rules
    assert rule.options["ladder"] == {"period": 7}


def test_a_rule_may_be_an_empty_mapping_and_uses_its_id(load: Load) -> None:
    (rule,) = load("extensions: {call_limit: {}}").rules
    assert (rule.use, rule.at, rule.mode, rule.timeout_s) == ("call_limit", (), "enforce", 0.25)


@pytest.mark.parametrize(
    ("body", "code", "place", "path", "said"),
    [
        ("extensions: 5", "S201", "4:13", "extensions", "must be a mapping"),
        ("extensions:\n  - call_limit", "S201", "5:3", "extensions", "without leading dashes"),
        ("extensions: {call_limit: }", "M305", "4:14", "extensions.call_limit", "bare null"),
        ("extensions: {call_limit: {with: ~}}", "M305", "4:27", "extensions.call_limit.with", "bare null"),
        ("extension: {}", "S204", "4:1", "extension", 'did you mean "extensions"?'),
        ("extensions: {'a b': {use: watch}}", "S206", "4:14", 'extensions."a b"', "does not have the form"),
        ("extensions: {'a\\n': {use: watch}}", "S206", "4:14", 'extensions."a\\\\n"', "does not have the form"),
        ("extensions: {call_limt: {}}", "X401", "4:14", "extensions.call_limt", 'did you mean "call_limit"?'),
        ("extensions: {x: {use: call_limt}}", "X401", "4:23", "extensions.x.use", 'did you mean "call_limit"?'),
        ("extensions: {x: {use: broken.one}}", "X406", "4:23", "extensions.x.use", "cannot be imported"),
        ("extensions: {trap: {}}", "X407", "4:14", "extensions.trap", "not a valid schema"),
        ("extensions: {crashing: {}}", "X408", "4:14", "extensions.crashing", "RuntimeError: boom"),
        ("extensions: {x: {use: acme.spend}}", "X402", "4:23", "extensions.x.use", "requires.extensions"),
        ("extensions: {call_limit: {on: [x]}}", "S204", "4:27", "extensions.call_limit.on", "the key is `at`"),
        ("extensions: {call_limit: {with: {limt: 5}}}", "S204", "4:34", "extensions.call_limit.with.limt", '"limit"'),
        (
            "extensions: {call_limit: {with: {limit: true}}}",
            "S201",
            "4:41",
            "extensions.call_limit.with.limit",
            "not true",
        ),
        (
            "extensions: {call_limit: {with: {limit: '5'}}}",
            "S201",
            "4:41",
            "extensions.call_limit.with.limit",
            "whole number",
        ),
        (
            "extensions: {call_limit: {with: {limit: 0}}}",
            "S205",
            "4:41",
            "extensions.call_limit.with.limit",
            "mode: disabled",
        ),
        (
            "extensions: {call_limit: {with: {limit: -1}}}",
            "S205",
            "4:41",
            "extensions.call_limit.with.limit",
            "mode: disabled",
        ),
        (
            "extensions: {call_limit: {with: {limit: 1001}}}",
            "S205",
            "4:41",
            "extensions.call_limit.with.limit",
            "at most 1000",
        ),
        (
            "extensions: {call_limit: {with: {ladder:3}}}",
            "M305",
            "4:34",
            'extensions.call_limit.with."ladder:3"',
            "bare null",
        ),
        (
            "extensions: {call_limit: {with: {kinds: [a, d]}}}",
            "S202",
            "4:45",
            "extensions.call_limit.with.kinds[1]",
            "allowed: a, b, c",
        ),
        (
            "extensions: {call_limit: {with: {kinds: a}}}",
            "S201",
            "4:41",
            "extensions.call_limit.with.kinds",
            'write ["a"]',
        ),
        (
            "extensions: {call_limit: {with: {tools: {x: {limit: 0}}}}}",
            "S205",
            "4:53",
            "extensions.call_limit.with.tools.x.limit",
            "too small",
        ),
        (
            "extensions: {call_limit: {with: {ladder: {hint: 5, stop: 4}}}}",
            "R510",
            "4:58",
            "extensions.call_limit.with.ladder.stop",
            "after hint",
        ),
        ("extensions: {watch: {}}", "S203", "4:14", "extensions.watch.with.word", "missing"),
        ("extensions: {watch: {with: {}}}", "S203", "4:22", "extensions.watch.with.word", "missing"),
        (
            "extensions: {call_limit: {at: [before_tool_cal]}}",
            "R501",
            "4:32",
            "extensions.call_limit.at[0]",
            'did you mean "before_tool_call"?',
        ),
        (
            "extensions: {call_limit: {at: before_tool_cal}}",
            "R501",
            "4:31",
            "extensions.call_limit.at",
            'did you mean "before_tool_call"?',
        ),
        (
            "extensions: {call_limit: {at: [hist_add_warning_end]}}",
            "R501",
            "4:32",
            "extensions.call_limit.at[0]",
            'write "hist_add_warning.end"',
        ),
        (
            "extensions: {call_limit: {at: [run_end]}}",
            "R502",
            "4:32",
            "extensions.call_limit.at[0]",
            "it implements: before_tool_call",
        ),
        ("extensions: {call_limit: {at: []}}", "S206", "4:31", "extensions.call_limit.at", "must not be empty"),
        ("extensions: {call_limit: {when: {tol: x}}}", "S204", "4:34", "extensions.call_limit.when.tol", '"tool"'),
        (
            "extensions: {call_limit: {when: {tool: [5]}}}",
            "S201",
            "4:41",
            "extensions.call_limit.when.tool[0]",
            "must be a text",
        ),
        (
            "extensions: {call_limit: {when: {agent: '!*'}}}",
            "R505",
            "4:41",
            "extensions.call_limit.when.agent",
            "excludes everything",
        ),
        (
            "extensions: {call_limit: {at: before_tool_call, when: {tool: [a, '!*']}}}",
            "R505",
            "4:62",
            "extensions.call_limit.when.tool",
            "excludes everything",
        ),
        ("extensions: {call_limit: {mode: off}}", "S213", "4:33", "extensions.call_limit.mode", "mode: disabled"),
        ("extensions: {call_limit: {mode: 'Off'}}", "S213", "4:33", "extensions.call_limit.mode", "mode: disabled"),
        ("extensions: {call_limit: {mode: false}}", "S213", "4:33", "extensions.call_limit.mode", "mode: disabled"),
        (
            "extensions: {call_limit: {mode: enforced}}",
            "S202",
            "4:33",
            "extensions.call_limit.mode",
            'did you mean "enforce"?',
        ),
        (
            "extensions: {call_limit: {on_error: ignore}}",
            "S202",
            "4:37",
            "extensions.call_limit.on_error",
            "allowed: deny, stop, allow",
        ),
        ("extensions: {call_limit: {timeout: 250}}", "S207", "4:36", "extensions.call_limit.timeout", "write 250ms"),
        ("extensions: {call_limit: {timeout: 5 s}}", "S207", "4:36", "extensions.call_limit.timeout", "not a duration"),
        ("extensions: {call_limit: {timeout: 0s}}", "S207", "4:36", "extensions.call_limit.timeout", "not a duration"),
        ("extensions: {call_limit: {timeout: 25h}}", "S207", "4:36", "extensions.call_limit.timeout", "at most 24h"),
        ("extensions: {call_limit: {timeout: -5s}}", "S207", "4:36", "extensions.call_limit.timeout", "not a duration"),
        (
            "extensions: {call_limit: {order: {after: [wach]}}, watch: {with: {word: x}}}",
            "R503",
            "4:43",
            "extensions.call_limit.order.after[0]",
            'did you mean "watch"?',
        ),
        (
            "extensions: {call_limit: {order: {after: call_limit}}}",
            "R504",
            "4:42",
            "extensions.call_limit.order.after",
            "against itself",
        ),
        ("extensions: {call_limit: {locked: 1}}", "S201", "4:35", "extensions.call_limit.locked", "true or false"),
        (
            "extensions: {call_limit: {rollout: {by: agent}}}",
            "S203",
            "4:27",
            "extensions.call_limit.rollout.percent",
            "missing",
        ),
        (
            "extensions: {call_limit: {rollout: {percent: 101}}}",
            "S205",
            "4:46",
            "extensions.call_limit.rollout.percent",
            "at most 100",
        ),
        (
            "extensions: {call_limit: {rollout: {percent: 1, by: user}}}",
            "S202",
            "4:53",
            "extensions.call_limit.rollout.by",
            "allowed: run_id, agent, conversation",
        ),
        ("kill_switch: on", "S201", "4:14", "kill_switch", "write true"),
        ("models: {x: {reasoning: reply}}", "S202", "4:25", "models.x.reasoning", "replay"),
        ("models: {x: {parsing: {mode: loose}}}", "S202", "4:30", "models.x.parsing.mode", "allowed: strict"),
        ("models: {x: {parsing: {max_retries: 1}}}", "S204", "4:24", "models.x.parsing.max_retries", "max_retry"),
        ("reload: {max_staleness: 25h}", "S207", "4:25", "reload.max_staleness", "at most 24h"),
        ("log: {mask: [call/arguments]}", "S217", "4:14", "log.mask[0]", "begins with `/`"),
        ("log: {mask: [/call/arguments/a~2b]}", "S217", "4:14", "log.mask[0]", "`~` is written `~0`"),
        ("log: {mask: [/call/args/token]}", "S217", "4:14", "log.mask[0]", 'did you mean "/call/arguments"?'),
        ("log: {mask: [/result/text, /decision]}", "S217", "4:28", "log.mask[1]", "no content of a line stands there"),
        ("log: {mask: [/rules/01/error]}", "S217", "4:14", "log.mask[0]", "no content of a line stands there"),
        ("log: {mask: ['/call/arguments/to*']}", "S217", "4:14", "log.mask[0]", "stands alone in its part"),
        ("log: {mask: ['/call/arguments/**']}", "S217", "4:14", "log.mask[0]", "stands alone in its part"),
        ("log: {mask: ['/call/arguments/*/a*b']}", "S217", "4:14", "log.mask[0]", "stands alone in its part"),
        ("log: {mask: ['']}", "S217", "4:14", "log.mask[0]", "begins with `/`"),
        ("log: {mask: /message}", "S201", "4:13", "log.mask", 'write ["/message"]'),
        ("log: {sample: {allow: 5}}", "S205", "4:23", "log.sample.allow", "at most 1"),
        ("log: {sample: {deny: 0.5}}", "S204", "4:16", "log.sample.deny", "accepts: allow"),
        ("log: {include: [argument]}", "S202", "4:17", "log.include[0]", 'did you mean "arguments"?'),
        ("parsing: {text_fallback: 1}", "S201", "4:26", "parsing.text_fallback", "must be"),
        ("parsing: {mode: loose}", "S202", "4:17", "parsing.mode", "allowed: strict"),
        ("parsing: {max_retry: 11}", "S205", "4:22", "parsing.max_retry", "at most 10"),
        ("wind_down: {rounds: 0}", "S205", "4:21", "wind_down.rounds", "at least 1"),
        ("wind_down: {rounds: 11}", "S205", "4:21", "wind_down.rounds", "at most 10"),
        ("interventions: {max: 0}", "S205", "4:22", "interventions.max", "at least 1"),
        ("interventions: {then: ask}", "S202", "4:23", "interventions.then", "allowed: hand_over, stop"),
        ("protocol: json", "S202", "4:11", "protocol", "allowed: auto, native, text"),
        ("language: English", "S206", "4:11", "language", "does not have the form"),
        ("reload: {pin: step}", "S202", "4:15", "reload.pin", "allowed: run, iteration"),
        ("reload: {settle: 3}", "S207", "4:18", "reload.settle", "needs a unit"),
        ("tools: {a: {effect: rread}}", "S202", "4:21", "tools.a.effect", 'did you mean "read"?'),
        ("tools: {a: {result_mask: ['(']}}", "S208", "4:27", "tools.a.result_mask[0]", "regular expression"),
        ("tools: {a: {result_mask: 'a{9999999999}'}}", "S208", "4:26", "tools.a.result_mask", "regular expression"),
        ("tools: {a: {result_mask: " + "x" * 501 + "}}", "S206", "4:26", "tools.a.result_mask", "too long"),
        (
            "tools: {a: {failure: {text_prefix: ' Error'}}}",
            "R509",
            "4:36",
            "tools.a.failure.text_prefix",
            "never matches",
        ),
        (
            "tools: {a: {failure: {text_prefix: ''}}}",
            "S206",
            "4:36",
            "tools.a.failure.text_prefix",
            "must not be empty",
        ),
        ("tools: {a.b: {timeot: 5s}}", "S204", "4:15", 'tools."a.b".timeot', '"timeout"'),
        ("prompts: [./nowhere]", "M303", "4:11", "prompts[0]", "only a policy file"),
        ("requires: {policyengine: '>=99'}", "E801", "4:26", "requires.policyengine", "too old"),
        ("requires: {policyengine: '<0.0.1'}", "E801", "4:26", "requires.policyengine", "too new"),
        ("requires: {policyengine: latest}", "X409", "4:26", "requires.policyengine", "no version range"),
        (
            "requires: {extensions: {no-such-package-anywhere: '>=1'}}",
            "X403",
            "4:25",
            "requires.extensions.no-such-package-anywhere",
            "not installed",
        ),
        ("target: x", "M311", "4:1", "target", "no place in a file of kind Policy"),
        ("extends: [nothing]", "M301", "4:11", "extends", "no shipped policy"),
        ("extends: [./x.yaml]", "M303", "4:11", "extends", "only a policy file"),
    ],
)
def test_a_mistake_is_reported_where_it_stands(
    faults: Faults, body: str, code: str, place: str, path: str, said: str
) -> None:
    (problem,) = faults(body)
    assert (problem.code, f"{problem.position.line}:{problem.position.column}") == (code, place)
    assert problem.path == path
    assert said in problem.full()


@pytest.mark.parametrize(
    ("text", "code", "place", "said"),
    [
        ("kind: Policy\nname: a\n", "S203", "p.yaml:1:1", "write `apiVersion: policyengine/v1`"),
        ("apiVersion: policyengine/v2\nkind: Policy\nname: a\n", "S209", "p.yaml:1:13", "policyengine/v1"),
        ("apiVersion: policyengine/v1\nkind: policy\nname: a\n", "S210", "p.yaml:2:7", '"Policy"'),
        ("apiVersion: policyengine/v1\nkind: PolicyTest\nname: a\n", "S210", "p.yaml:2:7", "Policy"),
        ("apiVersion: policyengine/v1\nkind: Policy\n", "S203", "p.yaml:1:1", "name"),
        ("apiVersion: policyengine/v1\nkind: Policy\nname: a b\n", "S206", "p.yaml:3:7", "form"),
        ("apiVersion: policyengine/v1\nkind: Policy\nname: 5\n", "S201", "p.yaml:3:7", 'write "5"'),
        (
            "apiVersion: policyengine/v1\nkind: Policy\nname: a\nrevision: 1.10\n",
            "S201",
            "p.yaml:4:11",
            "must be a text",
        ),
    ],
)
def test_the_header_says_what_a_file_is(
    registry: Any, no_shipped: Path, text: str, code: str, place: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_policy_text(text, "p.yaml", registry=registry, shipped=no_shipped)
    (problem,) = caught.value.problems
    assert (problem.code, str(problem.position)) == (code, place)
    assert said in problem.full()


def test_problems_of_settings_rules_and_references_come_together_in_order(faults: Faults) -> None:
    found = faults(
        """wind_down: {rounds: 99}
extensions:
  call_limit:
    locked: yes
    at: [nowhere]
    with: {limt: 1, limit: yes}
  watch: {order: {after: nobody}}
  other: {use: 5, with: {free: 1}}
protocl: text
"""
    )
    assert [f"{problem.code} {problem.position.line}" for problem in found] == [
        "S205 4",
        "S201 7",
        "R501 8",
        "S204 9",
        "S201 9",
        "S203 10",
        "R503 10",
        "S201 11",
        "S204 12",
    ]


def test_rules_run_as_written_except_where_ordered(load: Load) -> None:
    body = """extensions:
  one: {use: call_limit, order: {after: [four]}}
  two: {use: call_limit}
  three: {use: call_limit, order: {before: [two]}}
  four: {use: call_limit}
"""
    assert [rule.id for rule in load(body).rules] == ["three", "two", "four", "one"]


def test_a_circle_of_rules_is_named(faults: Faults) -> None:
    body = """extensions:
  one: {use: call_limit, order: {after: [three]}}
  two: {use: call_limit, order: {after: [one]}}
  three: {use: call_limit, order: {after: [two]}}
  four: {use: call_limit}
"""
    (problem,) = faults(body)
    assert problem.code == "R504"
    assert "one before two before three before one" in problem.message


def test_a_package_is_allowed_by_name_and_range(load: Load, faults: Faults) -> None:
    rule = "extensions: {x: {use: acme.spend}}\n"
    assert load(rule + "requires: {extensions: {Acme_Guards: '>=0.5,<1'}}").rules
    (problem,) = faults(rule + "requires: {extensions: {acme-guards: '>=0.6'}}")
    assert (problem.code, problem.path) == ("X404", "requires.extensions.acme-guards")
    (problem,) = faults(rule + "requires: {extensions: {acme-guards: '<0.5'}}")
    assert problem.code == "X405"
    (problem,) = faults(rule + "requires: {extensions: {acme-guards: newest}}")
    assert problem.code == "X409"


def test_extensions_of_a_folder_need_no_permission(load: Load) -> None:
    assert load("extensions: {x: {use: folder.spend}}").rules


def test_a_registry_that_can_be_narrowed_is_asked_only_for_listed_packages(registry: Any, no_shipped: Path) -> None:
    asked: list[tuple[str, ...]] = []

    class Narrowing:
        def __init__(self, allowed: tuple[str, ...] = ()) -> None:
            self.allowed = allowed

        def allowing(self, allowed: tuple[str, ...]) -> Narrowing:
            asked.append(allowed)
            return Narrowing(allowed)

        def get(self, name: str) -> Any:
            found = registry.get(name)
            return found if found.builtin or found.distribution in self.allowed else None

        def names(self) -> tuple[str, ...]:
            return ("call_limit",)

    head = "apiVersion: policyengine/v1\nkind: Policy\nname: a\nextensions: {x: {use: acme.spend}}\n"
    with pytest.raises(ConfigError) as caught:
        load_policy_text(head, registry=Narrowing(), shipped=no_shipped)
    assert "only packages that the policy lists" in caught.value.problems[0].note
    allowed = head + "requires: {extensions: {acme-guards: '>=0'}}\n"
    assert load_policy_text(allowed, registry=Narrowing(), shipped=no_shipped).rules
    assert asked == [(), ("acme-guards",)]


def test_doubtful_settings_are_warnings(load: Load) -> None:
    body = """extensions:
  call_limit: {with: {limit: 901}}
  watch: {with: {word: x}, when: {tool: pay}}
  other: {use: call_limit, when: {tool: "!*"}}
tools:
  "read_*": {effect: read}
  "read_log*": {effect: read}
  read_log: {effect: read}
language: en #english
"""
    found = [f"{warning.code} {warning.position.line}:{warning.path}" for warning in load(body).warnings]
    assert found == [
        "R511 5:extensions.call_limit.with.limit",
        "R506 6:extensions.watch.when.tool",
        "R505 7:extensions.other.when.tool",
        "R508 10:tools.read_log*",
        "Y120 12:language",
    ]


def test_a_problem_of_a_default_points_to_the_rule(faults: Faults) -> None:
    (problem,) = faults("extensions: {call_limit: {with: {ladder: {hint: 6, stop: 6}}}}")
    assert problem.position.column == 58
    (problem,) = faults("extensions:\n  call_limit: {with: {ladder: {hint: 100, period: 2, stop: 1}}}")
    assert problem.code == "R510"


def test_a_thousand_and_one_rules_are_too_many(faults: Faults) -> None:
    body = "extensions:\n" + "".join(f"  rule{n}: {{use: call_limit}}\n" for n in range(1001))
    assert [problem.code for problem in faults(body)] == ["S214"]


def test_a_large_file_of_nothing_but_mistakes_gets_every_problem_in_time_that_grows_with_it(faults: Faults) -> None:
    def cost(count: int) -> float:
        body = "tools:\n" + "".join(f"  t{n}: {{effect: reed}}\n" for n in range(count))
        start = time.process_time()
        assert len(faults(body)) == count + (count > 1000)  # the one more: too many tools
        return time.process_time() - start

    # Four times as many mistakes: far from the 64 times of cubic growth, whatever the machine does meanwhile.
    assert cost(1500) < 40 * max(cost(375), 0.01)
