"""One algorithm for `diff` and `locked`: every kind of change, and every way in which a layer can loosen a rule."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.errors import ConfigError
from policyengine.extension import Extension
from policyengine.extensions.cost_budget import CostBudget
from policyengine.extensions.stall_detector import StallDetector
from policyengine.extensions.tool_call_limit import ToolCallLimit
from policyengine.extensions.wall_clock import WallClock
from policyengine.policy.directions import changes
from policyengine.policy.globs import covers, is_pattern, overlap
from policyengine.policy.load import load_policy
from policyengine.policy.model import Policy
from policyengine.policy.problems import Problem
from policyengine.policy.stricter import compare, looking
from policyengine.policy.winners import pairs

Load = Callable[..., Policy]

TODAY = date(2026, 12, 1)
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: mine\n"
OVER = "apiVersion: policyengine/v1\nkind: Overlay\ntarget: mine\n"
FACTS = '"se?": {effect: poll}, marked: {result_mask: [a, b]}'
LOW = f"""tools: {{"pay_*": {{effect: exec, failure: {{text_prefix: [Error]}}}}, {FACTS}}}
extensions:
  r:
    use: call_limit
    when: {{tool: ["pay_*"], agent: "!planner"}}
    with: {{limit: 40, ladder: {{hint: 3, stop: 5}}, tools: {{a: {{limit: 7}}}}}}
  other: {{use: watch, with: {{word: x}}}}
"""

TIGHTER = [
    ("extensions: {r: {with: {limit: 39}}}", "extensions.r.with.limit"),
    ("extensions: {r: {with: {limit: {$env: LIMIT}}}}", "extensions.r.with.limit"),
    ("extensions: {r: {with: {ladder: {hint: 2}}}}", "extensions.r.with.ladder.hint"),
    ("extensions: {r: {with: {tools: {a: {limit: 6}}}}}", "extensions.r.with.tools.a.limit"),
    ("extensions: {r: {with: {tools: {b: {limit: 5}}}}}", "extensions.r.with.tools.b"),
    ('extensions: {r: {with: {tools: {"a*": {limit: 30}}}}}', "extensions.r.with.tools.a*"),
    ("extensions: {r: {on_error: stop}}", "extensions.r.on_error"),
]
LOOSER = [
    ("extensions: {r: {with: {limit: 41}}}", "extensions.r.with.limit"),
    ("extensions: {r: {with: {limit: {$env: MORE}}}}", "extensions.r.with.limit"),
    ("extensions: {r: {with: {limit: {$env: UNSET, default: 50}}}}", "extensions.r.with.limit"),
    ("extensions: {r: {with: {ladder: {stop: {$delete: true}}}}}", "extensions.r.with.ladder.stop"),
    ("extensions: {r: {with: {tools: {b: {limit: 99}}}}}", "extensions.r.with.tools.b"),
    ("extensions: {r: {with: {tools: {a: {limit: 8}}}}}", "extensions.r.with.tools.a.limit"),
    ('extensions: {r: {with: {tools: {"?": {limit: 41}}}}}', "extensions.r.with.tools.?"),
    ("extensions: {r: {with: {tools: {$delete: true}}}}", "extensions.r.with.tools.a"),
    ("extensions: {r: {mode: warn}}", "extensions.r.mode"),
    ("defaults: {mode: shadow}", "extensions.r.mode"),
    ("defaults: {mode: {$env: MODE}}", "extensions.r.mode"),
    ("extensions: {r: {mode: disabled}}", "extensions.r.mode"),
    ("extensions: {r: {on_error: allow}}", "extensions.r.on_error"),
    ("defaults: {on_error: allow}", "extensions.r.on_error"),
    ("extensions: {r: {timeout: 1s}}", "extensions.r.timeout"),
    ("defaults: {timeout: 1s}", "extensions.r.timeout"),
    ("extensions: {r: {at: before_tool_call}}", "extensions.r.at"),
    ("extensions: {r: {when: {tool: {$append: ['!pay_x']}}}}", "extensions.r.when.tool"),
    ("extensions: {r: {when: {agent: {$replace: ['!planner', '!x']}}}}", "extensions.r.when.agent"),
    ("extensions: {r: {rollout: {percent: 99}}}", "extensions.r.rollout"),
    ("extensions: {r: {rollout: {percent: {$env: PERCENT}}}}", "extensions.r.rollout"),
    ("extensions: {r: {$delete: true}}", "extensions.r"),
    ('exceptions: [{rule: r, expires: "2026-12-01", owner: o, reason: r}]', "exceptions"),
    ('tools: {"pay_*": {effect: poll}}', "tools.pay_*.effect"),
    ('tools: {"pay_*": {failure: {text_prefix: [X, Error]}, effect: write}}', "tools.pay_*.effect"),
    ('tools: {"p*": {effect: exec}}', "tools.p*.failure.text_prefix"),
    ("tools: {pay_me: {effect: write}}", "tools.pay_me.effect"),
    ('tools: {"se*": {effect: poll}}', "tools.se*.effect"),
    ("kill_switch: true", "kill_switch"),
    ("tools: {marked: {$delete: true}}", "tools.marked.result_mask"),
]
OTHER = [
    ("extensions: {r: {use: watch, with: {word: y}}}", "extensions.r.use"),
    ("extensions: {r: {with: {kinds: [c]}}}", "extensions.r.with.kinds"),
    ("extensions: {r: {with: {unsaid: 5}}}", "extensions.r.with.unsaid"),
    ("extensions: {r: {with: {hosts: {b: 5}}}}", "extensions.r.with.hosts.b"),
    ("extensions: {r: {when: {tool: [sql]}}}", "extensions.r.when.tool"),
    ("extensions: {r: {when: {tool: {$append: [sql]}}}}", "extensions.r.when.tool"),
    ("extensions: {r: {when: {agent: {$delete: true}}}}", "extensions.r.when.agent"),
    ('tools: {"pay_*": {failure: {text_prefix: {$append: [Failed]}}}}', "tools.pay_*.failure.text_prefix"),
    ('tools: {"se?": {effect: exec}}', "tools.se?.effect"),
    ("extensions: {r: {order: {after: other}}}", "extensions.r.order.after"),
    ("tools: {look: {effect: read}}", "tools.look.effect"),
    ("extensions: {r: {timeout: 10ms}}", "extensions.r.timeout"),
    ("tools: {marked: {result_mask: {$prepend: [c]}}}", "tools.marked.result_mask"),
    ("tools: {marked: {result_mask: [b, a]}}", "tools.marked.result_mask"),
    ("plan: {mode: steps}", "plan"),
]
ENV = {"LIMIT": "30", "MORE": "60", "MODE": "warn", "PERCENT": "12"}


@pytest.fixture
def layered(tmp_path: Path, registry: Any, no_shipped: Path) -> Callable[..., Policy]:
    """Load a policy with overlays on top."""

    def layered(low: str, *overlays: str, **facts: Any) -> Policy:
        (tmp_path / "low.yaml").write_text(HEAD + low)
        paths = [tmp_path / f"over{number}.yaml" for number, _ in enumerate(overlays)]
        for path, text in zip(paths, overlays, strict=True):
            path.write_text(OVER + text)
        facts = {"env": ENV, "today": TODAY, **facts}
        return load_policy(tmp_path / "low.yaml", registry=registry, overlays=paths, shipped=no_shipped, **facts)

    return layered


@pytest.fixture
def refused(layered: Callable[..., Policy]) -> Callable[..., tuple[Problem, ...]]:
    def refused(*texts: str, **facts: Any) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as caught:
            layered(*texts, **facts)
        return caught.value.problems

    return refused


LOCKED = LOW.replace("  r:\n", "  r:\n    locked: true\n")
SHIFTED = "extensions: {r: {mode: shadow}}"


@pytest.mark.parametrize(
    ("body", "path", "verdict"),
    [
        *((*entry, "tighter") for entry in TIGHTER),
        *((*entry, "looser") for entry in LOOSER),
        *((*entry, "other") for entry in OTHER),
    ],
)
def test_every_difference_has_a_verdict_and_a_place(
    layered: Callable[..., Policy], registry: Any, body: str, path: str, verdict: str
) -> None:
    before, after = layered(LOW), layered(LOW, body)
    found = compare(before, after, looking(registry, before, after), TODAY)
    (one,) = [difference for difference in found if difference.path == path]
    assert one.verdict == verdict
    assert one.new is not None
    assert Path(one.new.file).name == "over0.yaml"
    if path not in ("exceptions", "kill_switch", "plan") and not path.startswith("tools."):
        assert one.rule == "r"


@pytest.mark.parametrize(("body", "path"), TIGHTER)
def test_turned_around_what_was_tighter_is_looser(
    layered: Callable[..., Policy], registry: Any, body: str, path: str
) -> None:
    before, after = layered(LOW, body), layered(LOW)
    verdicts = {one.path: one.verdict for one in compare(before, after, looking(registry, before, after), TODAY)}
    assert verdicts[path] == "looser"


@pytest.mark.parametrize(("body", "path"), [*TIGHTER, *LOOSER, *OTHER])
def test_nothing_differs_from_itself(layered: Callable[..., Policy], registry: Any, body: str, path: str) -> None:
    policy = layered(LOW, body)
    assert compare(policy, layered(LOW, body), looking(registry, policy), TODAY) == []


@pytest.mark.parametrize(("body", "path"), TIGHTER)
def test_a_locked_rule_may_be_tightened(layered: Callable[..., Policy], body: str, path: str) -> None:
    assert layered(LOCKED, body).provenance[path]


@pytest.mark.parametrize(("body", "path"), [*LOOSER, *OTHER])
def test_every_way_to_loosen_a_locked_rule_names_both_files(
    refused: Callable[..., tuple[Problem, ...]], body: str, path: str
) -> None:
    found = refused(LOCKED, body)
    assert {problem.code for problem in found} == {"M314"}
    (one,) = [problem for problem in found if problem.path == path]
    assert Path(one.position.file).name == "over0.yaml"
    assert one.position.line == 4
    assert "low.yaml:7:13" in one.message
    for value in ENV.values() if "$env" in body else ():
        assert f" {value}" not in one.full()


@pytest.mark.parametrize(("body", "path"), LOOSER[:6])
def test_a_layer_two_steps_above_the_lock_is_held_to_the_layer_between(
    refused: Callable[..., tuple[Problem, ...]], layered: Callable[..., Policy], body: str, path: str
) -> None:
    between = "extensions: {r: {with: {limit: 20}}}"
    found = refused(LOCKED, between, body)
    assert "M314" in {problem.code for problem in found}
    assert {Path(problem.position.file).name for problem in found} == {"over1.yaml"}
    back = refused(LOCKED, between, "extensions: {r: {with: {limit: 40}}}")
    assert "20 -> 40" in back[0].message
    assert layered(LOCKED, between, "extensions: {r: {with: {limit: 20}}}").rules


def test_a_lock_cannot_be_taken_off(refused: Callable[..., tuple[Problem, ...]]) -> None:
    (problem,) = refused(LOCKED, "extensions: {r: {locked: false}}")
    assert (problem.code, problem.path) == ("M314", "extensions.r.locked")
    (problem,) = refused(LOCKED, "extensions: {r: {locked: {$delete: true}}}")
    assert problem.code == "M314"
    (problem,) = refused(LOCKED, "extensions: {r: {locked: {$env: LOCK}}}", env={**ENV, "LOCK": "true"})
    assert problem.code in ("E811", "M314")


def test_an_overlay_may_lock_and_holds_those_above_it(
    refused: Callable[..., tuple[Problem, ...]], layered: Callable[..., Policy]
) -> None:
    lock = "extensions: {r: {locked: true, with: {limit: 90}}}"
    assert layered(LOW, lock).rules[0].options["limit"] == 90
    (problem,) = refused(LOW, lock, "extensions: {r: {with: {limit: 91}}}")
    assert "over0.yaml:4:26" in problem.message


def test_rules_that_nobody_locked_are_free(layered: Callable[..., Policy]) -> None:
    over = "extensions: {other: {mode: disabled}, more: {use: watch, with: {word: z}}}\nlanguage: zh\n"
    assert len(layered(LOCKED, over).rules) == 3


def test_a_locked_rule_in_shadow_may_be_enforced_and_not_weakened(
    refused: Callable[..., tuple[Problem, ...]], layered: Callable[..., Policy]
) -> None:
    low = LOCKED.replace("locked: true", "locked: true\n    mode: shadow")
    assert layered(low, "extensions: {r: {mode: enforce, with: {limit: 39}}}").rules[0].mode == "enforce"
    (problem,) = refused(low, "extensions: {r: {mode: enforce, with: {limit: 41}}}")
    assert problem.path == "extensions.r.with.limit"


def test_removing_or_narrowing_an_exception_of_a_locked_rule_is_allowed(
    refused: Callable[..., tuple[Problem, ...]], layered: Callable[..., Policy]
) -> None:
    def exception(when: str, expires: str) -> str:
        return f'exceptions: [{{rule: r, when: {when}, expires: "{expires}", owner: o, reason: r}}]\n'

    low = LOCKED + exception('{tool: ["pay_*", b]}', "2027-01-01")
    assert layered(low, "exceptions: []").rules[0].exceptions == ()
    assert layered(low, exception('{tool: "pay_*", agent: a}', "2026-12-31")).rules[0].exceptions
    for wider in (
        exception('{tool: "*"}', "2027-01-01"),
        exception("{tool: b}", "2027-01-02"),
        exception("{}", "2026-12-02"),
        exception("{}", "2026-11-30"),  # a run that is taken up again may still be in that day
    ):
        assert {problem.code for problem in refused(low, wider)} == {"M314"}


def test_layers_that_lock_must_be_complete_without_those_above(refused: Callable[..., tuple[Problem, ...]]) -> None:
    low = LOCKED.replace("with: {word: x}", "mode: shadow")
    (problem,) = refused(low, "extensions: {other: {with: {word: x}}}")
    assert (problem.code, problem.position.line) == ("M315", 7)
    assert "low.yaml:11" in problem.note


@pytest.mark.parametrize(
    ("low", "over", "path"),
    [
        ("rollout: {percent: {$env: PERCENT}, salt: {$env: SALT}}", "rollout: {by: agent}", "extensions.r.rollout"),
        ("with: {tools: {b: {limit: {$env: PERCENT}}}}", "with: {tools: {b: {deep: 3}}}", "extensions.r.with.tools.b"),
    ],
)
def test_a_mapping_with_a_variable_of_a_lower_layer_is_not_shown(
    layered: Callable[..., Policy], registry: Any, low: str, over: str, path: str
) -> None:
    rule = "extensions: {{r: {{use: call_limit, {}}}}}"
    env = {"PERCENT": "12", "SALT": "s3cret"}
    before = layered(rule.format("mode: enforce"))
    after = layered(rule.format(low), f"extensions: {{r: {{{over}}}}}", env=env)
    (one,) = compare(before, after, looking(registry, before), TODAY)
    assert (one.path, one.after) == (path, "(not shown)")


def test_a_broken_lock_does_not_show_a_variable_of_a_lower_layer(refused: Callable[..., tuple[Problem, ...]]) -> None:
    rule = "use: call_limit, locked: true, rollout: {percent: {$env: PERCENT}, salt: {$env: SALT}}"
    low, over = f"extensions: {{r: {{{rule}}}}}", "extensions: {r: {rollout: {by: agent}}}"
    (problem,) = refused(low, over, env={"PERCENT": "12", "SALT": "s3cret"})
    assert '{percent: $env PERCENT, salt: $env SALT} -> "(not shown)"' in problem.message


def test_the_fact_of_another_pattern_that_is_a_variable_is_not_shown(
    layered: Callable[..., Policy], registry: Any
) -> None:
    low = 'tools: {"a*": {failure: {text_prefix: {$env: PREFIX}}}}\nextensions: {r: {use: call_limit}}'
    before = layered(low, "tools: {z: {effect: exec}}", env={"PREFIX": "s3cret"})
    after = layered(low, 'tools: {"ab*": {effect: read}}', env={"PREFIX": "s3cret"})
    found = compare(before, after, looking(registry, before), TODAY)
    assert [(one.path, one.before, one.after) for one in found if one.path.startswith("tools.ab")] == [
        ("tools.ab*.effect", "exec", "read"),
        ("tools.ab*.failure.text_prefix", "(not shown)", []),
    ]


def test_a_rule_without_effect_makes_nothing_looser(layered: Callable[..., Policy], registry: Any) -> None:
    low = LOW.replace("  r:\n", "  r:\n    mode: shadow\n")
    before, after = layered(low), layered(low, "extensions: {r: {with: {limit: 90}}}")
    assert [one.verdict for one in compare(before, after, looking(registry, before), TODAY)] == ["other"]


def test_rules_that_come_and_go(layered: Callable[..., Policy], registry: Any) -> None:
    with_more = "extensions: {more: {use: watch, with: {word: z}}}"
    before, after = layered(LOW), layered(LOW, with_more)
    look = looking(registry, before, after)
    assert [(one.path, one.verdict) for one in compare(before, after, look, TODAY)] == [("extensions.more", "tighter")]
    assert [one.verdict for one in compare(after, before, look, TODAY)] == ["looser"]
    off = layered(LOW, with_more.replace("use: watch", "use: watch, mode: disabled"))
    assert [one.verdict for one in compare(before, off, look, TODAY)] == ["other"]


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("{percent: 10}", "{percent: 20}", "tighter"),
        ("{percent: 20}", "{percent: 10}", "looser"),
        ("{percent: 20}", "{percent: 20, salt: z}", "other"),
        ("{percent: 20, by: agent}", "{percent: 90}", "other"),
        ("{percent: 0}", "{percent: 1, salt: z}", "tighter"),
        ("{percent: 1}", "{percent: 100, salt: z}", "tighter"),
        ("{percent: 100}", "{percent: 0, salt: z}", "looser"),
    ],
)
def test_a_rollout_to_more_runs_is_tighter(
    layered: Callable[..., Policy], registry: Any, old: str, new: str, verdict: str
) -> None:
    before, after = (layered(LOW, f"extensions: {{r: {{rollout: {text}}}}}") for text in (old, new))
    assert [one.verdict for one in compare(before, after, looking(registry, before), TODAY)] == [verdict]


PATTERN = st.text("ab*?", max_size=6)
NAMES = ["".join(letters) for size in range(7) for letters in itertools.product("ab", repeat=size)]


@given(PATTERN, PATTERN)
def test_patterns_overlap_where_a_name_matches_both(one: str, other: str) -> None:
    common = any(fnmatchcase(name, one) and fnmatchcase(name, other) for name in NAMES)
    if common:
        assert overlap(one, other)
    if overlap(one, other) and sum(len(text.replace("*", "")) for text in (one, other)) <= 6:
        assert common


def test_a_class_counts_as_any_character() -> None:
    assert overlap("[a-c]x", "?x")
    assert overlap("pay_[ab]*", "pay_z")
    assert not overlap("pay_[ab]", "pay_zz")


@given(st.text("ab*?[]!", max_size=6), st.text("ab*?[]!", max_size=6))
def test_a_pattern_that_covers_another_matches_all_its_names(one: str, other: str) -> None:
    if covers(one, other):
        assert all(fnmatchcase(name, one) for name in NAMES if fnmatchcase(name, other))


KEYS = st.lists(st.text("ab*?[]!", min_size=1, max_size=4), unique=True, max_size=4).map(tuple)


def held(name: str, keys: tuple[str, ...]) -> str | None:
    return name if name in keys else next((key for key in keys if fnmatchcase(name, key)), None)


@given(KEYS, KEYS)
def test_no_pair_of_entries_that_hold_for_one_name_is_missing(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    found = {*pairs(one, other), (None, None)}
    patterns = {key for key in (*one, *other) if is_pattern(key)}
    assert {(held(name, one), held(name, other)) for name in NAMES if name not in patterns} <= found


@given(KEYS)
def test_mappings_with_the_same_keys_in_the_same_order_hold_the_same(keys: tuple[str, ...]) -> None:
    assert all(one == other for one, other in pairs(keys, keys))


LIMITS = st.dictionaries(st.text("ab*?", min_size=1, max_size=3), st.integers(1, 4), min_size=1, max_size=4)
NONE = 9


def limit(name: str, limits: dict[str, int]) -> int:
    key = held(name, tuple(limits))
    return NONE if key is None else limits[key]


@given(LIMITS, LIMITS)
def test_limits_by_pattern_are_judged_by_what_is_in_force_for_every_name(
    old: dict[str, int], new: dict[str, int]
) -> None:
    """Of all names that only the patterns tell apart, those with up to six letters are a sample."""
    schema = ToolCallLimit.options
    verdicts = {change.verdict for change in changes(schema, {"tools": old}, {"tools": new}, ())}
    patterns = {key for key in (*old, *new) if is_pattern(key)}
    in_force = [(limit(name, old), limit(name, new)) for name in NAMES if name not in patterns]
    if any(now > was for was, now in in_force):
        assert "looser" in verdicts
    if any(now < was for was, now in in_force):
        assert verdicts & {"tighter", "looser"}
    if verdicts and not verdicts & {"looser", "other"}:
        assert all(now <= was for was, now in in_force)


@pytest.mark.parametrize(
    ("rule", "old", "new", "found"),
    [
        (ToolCallLimit, {"a*": 1}, {"ab": 50, "a*": 1}, {("tools.ab", "looser")}),
        (ToolCallLimit, {"ab": 50, "a*": 1}, {"a*": 1}, {("tools.ab", "tighter")}),
        (ToolCallLimit, {"a*": 9}, {"ab": 5, "a*": 9}, {("tools.ab", "tighter")}),
        (ToolCallLimit, {"a*": 9}, {"ab": 9, "a*": 9}, set()),
        (ToolCallLimit, {"pay_*": 1, "*_now": 50}, {"*_now": 50, "pay_*": 1}, {("tools", "looser")}),
        (ToolCallLimit, {"*_now": 50, "pay_*": 1}, {"pay_*": 1, "*_now": 50}, {("tools", "tighter")}),
        (ToolCallLimit, {"pay_*": 1, "get_*": 50}, {"get_*": 50, "pay_*": 1}, set()),
        (ToolCallLimit, {"*": 5}, {"a": 4, "b": 6, "*": 5}, {("tools.a", "tighter"), ("tools.b", "looser")}),
        (
            StallDetector,
            {"pay_*": {"repeat": {"deny": 2}}, "*_now": {"repeat": {"deny": 9}}},
            {"*_now": {"repeat": {"deny": 9}}, "pay_*": {"repeat": {"deny": 2}}},
            {("tools", "looser")},
        ),
        (
            StallDetector,
            {"pay_*": {"results": "ignore"}, "*_now": {"results": "compare"}},
            {"*_now": {"results": "compare"}, "pay_*": {"results": "ignore"}},
            {("tools", "other")},
        ),
        (
            CostBudget,
            {"a*": {"input": 1, "output": 2}, "*b": {"input": 3, "output": 4}},
            {"*b": {"input": 3, "output": 4}, "a*": {"input": 1, "output": 2}},
            {("prices", "other")},
        ),
    ],
)
def test_the_first_pattern_that_matches_is_in_force(
    rule: type[Extension], old: dict[str, Any], new: dict[str, Any], found: set[tuple[str, str]]
) -> None:
    name = "prices" if rule is CostBudget else "tools"
    told = list(changes(rule.options, {name: old}, {name: new}, ()))
    assert {(".".join(map(str, change.path)), change.verdict) for change in told} == found


def test_a_mapping_whose_keys_may_mean_anything_is_not_tighter_in_another_order(
    layered: Callable[..., Policy], registry: Any
) -> None:
    low = "extensions: {r: {use: call_limit, with: {hosts: {HOSTS}}}}"
    before, after = layered(low.replace("HOSTS", "a: 1, b: 2")), layered(low.replace("HOSTS", "b: 2, a: 1"))
    found = compare(before, after, looking(registry, before), TODAY)
    assert [(one.path, one.verdict) for one in found] == [("extensions.r.with.hosts", "other")]


@pytest.mark.parametrize(
    ("setting", "one", "other", "verdict"),
    [
        ("tools", '"pay_*": {timeout: 1s}', '"*_now": {timeout: 9s}', "looser"),
        ("tools", '"*_now": {timeout: 9s}', '"pay_*": {timeout: 1s}', "tighter"),
        ("tools", '"pay_*": {effect: read}', '"*_now": {effect: exec}', "other"),
        ("models", '"small-*": {window: 900}', '"*-now": {window: 90000}', "other"),
    ],
)
def test_patterns_of_settings_in_another_order_are_a_difference(
    layered: Callable[..., Policy], registry: Any, setting: str, one: str, other: str, verdict: str
) -> None:
    rule = "extensions: {r: {use: call_limit}}"
    before = layered(f"{setting}: {{{one}, {other}}}\n{rule}")
    after = layered(f"{setting}: {{{other}, {one}}}\n{rule}")
    found = compare(before, after, looking(registry, before), TODAY)
    assert [(difference.path, difference.verdict) for difference in found] == [(setting, verdict)]


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [("10m", "20m", "looser"), ("20m", "10m", "tighter"), ("90s", "1m", "tighter"), ("60s", "1m", None)],
)
def test_a_duration_is_compared_as_a_time(old: str, new: str, verdict: str | None) -> None:
    found = changes(WallClock.options, {"stop": old}, {"stop": new}, ())
    assert [(change.path, change.verdict) for change in found] == ([(("stop",), verdict)] if verdict else [])


def test_an_option_whose_absence_means_something_unknown_is_neither_tighter_nor_looser() -> None:
    schema = {"n": {"type": "integer", "min": 1, "max": 9, "meta": {"stricter": "higher"}}}
    assert [change.verdict for change in changes(schema, {}, {"n": 2}, ())] == ["other"]
    assert [change.verdict for change in changes(schema, {"n": 2}, {}, ())] == ["other"]


@pytest.mark.parametrize(("one", "other"), [("*a*", "[!a]*"), ("se?", "se*"), ("*", "x"), ("a*", "a?[b]")])
def test_a_letter_of_a_class_is_not_a_letter_of_the_name(one: str, other: str) -> None:
    assert covers(one, other) == (one in ("*", "a*"))
