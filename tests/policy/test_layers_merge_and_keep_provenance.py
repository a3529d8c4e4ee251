"""What several files make together, what each may do, and where every value came from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policyengine.errors import ConfigError
from policyengine.policy.explain import explain
from policyengine.policy.load import load_policy, load_policy_text
from policyengine.policy.model import Policy
from policyengine.policy.problems import Problem

HEAD = "apiVersion: policyengine/v1\n"
BASE = """extensions:
  first:
    use: call_limit
    with: {limit: 10, kinds: [a, b], tools: {x: {limit: 1}}}
    when: {tool: [pay]}
  second: {use: watch, with: {word: w}}
tools: {"*": {effect: read}}
"""


def policy_text(name: str, body: str) -> str:
    return f"{HEAD}kind: Policy\nname: {name}\n{body}"


def overlay_text(target: str, body: str) -> str:
    return f"{HEAD}kind: Overlay\ntarget: {target}\n{body}"


@pytest.fixture
def build(tmp_path: Path, registry: Any) -> Callable[..., Policy]:
    """Write files, load the first one with those whose name starts with `over` on top."""
    shipped = tmp_path / "shipped"
    shipped.mkdir()

    def build(files: dict[str, str], source: str = "", **facts: Any) -> Policy:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        overlays = [tmp_path / name for name in files if Path(name).name.startswith("over")]
        start: str | Path = source or tmp_path / next(iter(files))
        return load_policy(start, registry=registry, overlays=overlays, shipped=shipped, **facts)

    return build


@pytest.fixture
def refuse(build: Callable[..., Policy]) -> Callable[..., tuple[Problem, ...]]:
    def refuse(files: dict[str, str], source: str = "", **facts: Any) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as caught:
            build(files, source, **facts)
        return caught.value.problems

    return refuse


Build = Callable[..., Policy]
Refuse = Callable[..., tuple[Problem, ...]]


def two(upper: str, lower: str = BASE) -> dict[str, str]:
    return {"p.yaml": policy_text("mine", "extends: [./base.yaml]\n" + upper), "base.yaml": policy_text("base", lower)}


def over(body: str, lower: str = BASE) -> dict[str, str]:
    return {"p.yaml": policy_text("mine", lower), "over.yaml": overlay_text("mine", body)}


def test_maps_merge_scalars_replace_lists_replace(build: Build) -> None:
    upper = """extensions:
  first: {with: {limit: 20, kinds: [c], tools: {y: {limit: 2}}}, mode: warn}
  third: {use: watch, with: {word: v}}
"""
    policy = build(two(upper))
    assert [rule.id for rule in policy.rules] == ["first", "second", "third"]
    first = policy.rules[0]
    assert first.options["limit"] == 20
    assert first.options["kinds"] == ["c"]
    assert list(first.options["tools"]) == ["x", "y"]
    assert (first.mode, first.when.tool) == ("warn", ("pay",))
    assert (policy.name, first.position.file.endswith("base.yaml")) == ("mine", False)


def test_later_tool_patterns_are_asked_first(build: Build) -> None:
    policy = build(two('tools: {"pay_*": {effect: write}, "*": {timeout: 1s}}'))
    assert policy.tool("pay_me").effect == "write"
    assert (policy.tool("other").effect, policy.tool("other").timeout_s) == ("read", 1.0)


def test_name_and_revision_are_not_inherited(build: Build) -> None:
    files = two("")
    files["base.yaml"] = policy_text("base", 'revision: "9"\n' + BASE)
    assert (build(files).name, build(files).revision) == ("mine", "")


def test_an_overlay_may_carry_a_revision(build: Build) -> None:
    assert build(over('revision: "8"\nextensions: {first: {mode: warn}}')).revision == "8"


def test_an_overlay_changes_only_what_it_says_and_explain_shows_both(build: Build) -> None:
    policy = build(over("extensions: {first: {with: {limit: 50}}}"))
    (setting,) = explain(policy, "extensions.first.with.limit")
    assert setting.value == 50
    assert [(layer.value, str(layer.position).rpartition("/")[2]) for layer in setting.layers] == [
        (40, "default"),
        (10, "p.yaml:7:19"),
        (50, "over.yaml:4:36"),
    ]
    assert setting.text().splitlines()[1].endswith("over.yaml:4:36  (in force)")


def test_overlays_apply_in_the_order_given(build: Build) -> None:
    files = over("extensions: {first: {with: {limit: 50}}}")
    files["over2.yaml"] = overlay_text("mine", "extensions: {first: {with: {limit: 60}}}")
    assert build(files).rules[0].options["limit"] == 60


@pytest.mark.parametrize("make", [two, over])
def test_delete_removes_a_rule_or_a_key(build: Build, make: Callable[[str], dict[str, str]]) -> None:
    policy = build(
        make("extensions: {second: {$delete: true}, first: {when: {$delete: true}, with: {limit: {$delete: true}}}}")
    )
    assert [rule.id for rule in policy.rules] == ["first"]
    assert policy.rules[0].when.tool == ()
    assert policy.rules[0].options["limit"] == 40
    (setting,) = explain(policy, "extensions.second")
    assert setting.removed
    assert setting.text().startswith("extensions.second: removed")


def test_list_operators_change_the_list_below(build: Build) -> None:
    options, selector = "kinds: {$append: [c], $remove: [a]}", "tool: {$prepend: ['!x'], $append: [get]}"
    first = build(over(f"extensions: {{first: {{with: {{{options}}}, when: {{{selector}}}}}}}")).rules[0]
    assert first.options["kinds"] == ["b", "c"]
    assert first.when.tool == ("!x", "pay", "get")


def test_replace_is_the_list_itself(build: Build) -> None:
    upper = "extensions: {first: {with: {kinds: {$replace: [c]}}}, second: {when: {tool: {$replace: [z]}}}}"
    first, second = build(over(upper)).rules
    assert (first.options["kinds"], second.when.tool) == (["c"], ("z",))


def test_items_of_a_changed_list_keep_their_places(refuse: Refuse) -> None:
    (problem,) = refuse(over("extensions: {first: {with: {kinds: {$append: [d]}}}}"))
    assert (problem.code, str(problem.position).rpartition("/")[2]) == ("S202", "over.yaml:4:47")


def test_a_rule_that_uses_another_extension_starts_anew(build: Build) -> None:
    policy = build(over("extensions: {first: {use: watch, with: {word: now}}}"))
    assert policy.rules[0].options == {"word": "now"}
    assert policy.rules[0].position.file.endswith("over.yaml")
    assert policy.rules[0].when.tool == ("pay",)


@pytest.mark.parametrize("make", [two, over])
@pytest.mark.parametrize(
    ("body", "code", "path", "said"),
    [
        ("extensions: {first: ~}", "M305", "extensions.first", "$delete: true"),
        ("extensions: {first: {with: {limit: }}}", "M305", "extensions.first.with.limit", "null"),
        ("extensions: {first: {with: {kinds: [~]}}}", "M305", "extensions.first.with.kinds[0]", "null"),
        ("extensions: {frist: {$delete: true}}", "M307", "extensions.frist", 'did you mean "first"?'),
        ("extensions: {first: {$delete: false}}", "M308", "extensions.first.$delete", "alone"),
        ("extensions: {first: {$delete: true, mode: warn}}", "M308", "extensions.first.$delete", "mixed"),
        ("extensions: {first: {$delet: true}}", "M308", "extensions.first.$delet", 'did you mean "$delete"?'),
        ("extensions: {first: {with: {kinds: {$append: c}}}}", "M308", "extensions.first.with.kinds.$append", "list"),
        (
            "extensions: {first: {with: {kinds: {$replace: [c], $append: [a]}}}}",
            "M308",
            "extensions.first.with.kinds.$replace",
            "alone",
        ),
        (
            "extensions: {first: {with: {kinds: [{$delete: true}]}}}",
            "M308",
            "extensions.first.with.kinds[0].$delete",
            "cannot stand here",
        ),
        (
            "extensions: {first: {with: {kinds: {$remove: [c]}}}}",
            "M312",
            "extensions.first.with.kinds.$remove[0]",
            "entries: a, b",
        ),
        ("extensions: {first: {at: {$append: [before_tool_call]}}}", "M309", "extensions.first.at", "whole list"),
        ("extensions: {first: {with: {limit: {$append: [1]}}}}", "M309", "extensions.first.with.limit", "no list"),
        (
            "extensions: {first: {with: {limit: {$env: X, x: 1}}}}",
            "M308",
            "extensions.first.with.limit.x",
            "{$env: NAME",
        ),
    ],
)
def test_a_wrong_operator_is_refused(
    refuse: Refuse, make: Callable[[str], dict[str, str]], body: str, code: str, path: str, said: str
) -> None:
    (problem,) = refuse(make(body))
    assert (problem.code, problem.path) == (code, path)
    assert said in problem.full()


def test_operators_need_a_lower_layer(refuse: Refuse) -> None:
    (problem,) = refuse({"p.yaml": policy_text("mine", "extensions: {x: {use: watch, when: {tool: {$append: [a]}}}}")})
    assert problem.code == "M309"


def test_an_overlay_must_say_what_a_new_rule_uses(refuse: Refuse, build: Build) -> None:
    (problem,) = refuse(over("extensions: {call_limit: {}}"))
    assert (problem.code, problem.path) == ("M306", "extensions.call_limit")
    (problem,) = refuse(over("extensions: {frist: {mode: warn}}"))
    assert 'did you mean "first"?' in problem.help
    assert [rule.id for rule in build(over("extensions: {call_limit: {use: call_limit}}")).rules][-1] == "call_limit"


def test_a_policy_that_extends_may_add_rules_by_id(build: Build) -> None:
    assert [rule.id for rule in build(two("extensions: {call_limit: {}}")).rules][-1] == "call_limit"


def test_an_overlay_for_another_policy_is_refused(refuse: Refuse) -> None:
    files = over("extensions: {first: {mode: warn}}")
    files["over.yaml"] = overlay_text("base", "extensions: {first: {mode: warn}}")
    (problem,) = refuse(files)
    assert (problem.code, problem.position.line) == ("M310", 3)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (policy_text("mine", ""), "S210"),
        (overlay_text("mine", "extends: [x]"), "M311"),
        (overlay_text("mine", "name: x"), "M311"),
        (overlay_text("mine", "revison: x"), "S204"),
        (HEAD + "kind: Overlay\n", "S203"),
    ],
)
def test_an_overlay_is_a_file_of_its_own_kind(refuse: Refuse, text: str, code: str) -> None:
    files = over("")
    files["over.yaml"] = text
    assert [problem.code for problem in refuse(files)] == [code]


def test_a_problem_of_an_extended_rule_names_where_it_was_defined(refuse: Refuse) -> None:
    (problem,) = refuse(two("extensions: {first: {with: {limt: 5}}}"))
    assert (problem.code, problem.position.line) == ("S204", 5)
    assert problem.note.endswith("base.yaml:5:3, extended here")
    assert problem.note.startswith("rule defined in ")


def test_problems_of_all_files_are_reported_together(refuse: Refuse) -> None:
    files = two("a: 010\n")
    files["base.yaml"] += "a: 12:30\n"
    files["over.yaml"] = HEAD + "kind: Overlay\n"
    found = [(os.path.basename(problem.position.file), problem.code) for problem in refuse(files)]
    assert found == [("over.yaml", "S203"), ("p.yaml", "Y114")]
    files["p.yaml"] = files["p.yaml"].replace("a: 010\n", "")
    found = [(os.path.basename(problem.position.file), problem.code) for problem in refuse(files)]
    assert found == [("base.yaml", "Y114"), ("over.yaml", "S203")]


def test_shipped_policies_are_extended_by_name(build: Build, refuse: Refuse) -> None:
    files = {
        "p.yaml": policy_text("mine", "extends: strict\nextensions: {first: {mode: shadow}}"),
        "shipped/strict.yaml": policy_text("strict", "extends: [base]"),
        "shipped/base.yaml": policy_text("base", BASE),
    }
    policy = build(files)
    assert (policy.rules[0].mode, policy.rules[0].position.file) == ("shadow", policy.files[0])
    assert policy.files[1:] == ("policy:strict", "policy:base")
    assert build(files, "strict").name == "strict"
    (problem,) = refuse(files, "strickt")
    assert (problem.code, 'did you mean "strict"?' in problem.help) == ("M301", True)
    files["p.yaml"] = policy_text("mine", "extends: [bse]")
    (problem,) = refuse(files)
    assert (problem.code, problem.position.line) == ("M301", 4)


def test_a_shipped_policy_reaches_no_files(refuse: Refuse) -> None:
    files = {
        "shipped/bad.yaml": policy_text("bad", "extends: [./base.yaml]"),
        "shipped/base.yaml": policy_text("base", BASE),
    }
    assert [problem.code for problem in refuse(files, "bad")] == ["M303"]


def test_a_file_reached_twice_is_one_layer(build: Build) -> None:
    files = {
        "p.yaml": policy_text("mine", "extends: [./left.yaml, ./right.yaml]"),
        "left.yaml": policy_text("left", "extends: [./base.yaml]\nextensions: {first: {with: {limit: 11}}}"),
        "right.yaml": policy_text("right", "extends: [./base.yaml]\nextensions: {second: {mode: warn}}"),
        "base.yaml": policy_text("base", BASE),
    }
    policy = build(files)
    assert policy.rules[0].options["limit"] == 11
    assert policy.rules[1].mode == "warn"
    assert len(policy.files) == 4


def test_circles_are_errors_that_name_the_way(refuse: Refuse) -> None:
    files = {
        "p.yaml": policy_text("mine", "extends: [./a.yaml]"),
        "a.yaml": policy_text("a", "extends: [./b.yaml]"),
        "b.yaml": policy_text("b", "extends: [./a.yaml]"),
    }
    (problem,) = refuse(files)
    assert (problem.code, os.path.basename(problem.position.file), problem.position.line) == ("M304", "b.yaml", 4)
    assert problem.message.count(" -> ") == 2
    (problem,) = refuse({"p.yaml": policy_text("mine", "extends: [./p.yaml]")})
    assert problem.code == "M304"


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ("../outside.yaml", "M303"),
        ("sub/../../outside.yaml", "M303"),
        ("{tmp}/outside.yaml", "M303"),
        ("./link.yaml", "M303"),
        ("./missing.yaml", "M302"),
        ("missing.yaml", "M302"),
        ("./sub", "E802"),
        ("./loop.yaml", "M302"),
        ('"./a\\0.yaml"', "M303"),
        ("./" + "x" * 300 + ".yaml", "E802"),
        ("..\\outside.yaml", "M302"),
    ],
)
def test_files_are_found_below_the_policy_only(refuse: Refuse, tmp_path: Path, entry: str, code: str) -> None:
    (tmp_path / "outside.yaml").write_text(policy_text("out", ""), encoding="utf-8")
    folder = tmp_path / "team"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    (folder / "loop.yaml").symlink_to(folder / "loop.yaml")
    written = entry.replace("{tmp}", str(tmp_path))
    (problem,) = refuse({"team/p.yaml": policy_text("mine", f"extends: [{written}]")})
    assert (problem.code, problem.position.line) == (code, 4)


def test_a_wider_root_can_be_given(build: Build, tmp_path: Path) -> None:
    files = {"team/p.yaml": policy_text("mine", "extends: [../base.yaml]"), "base.yaml": policy_text("base", BASE)}
    assert build(files, root=tmp_path).rules


def test_links_inside_the_directory_are_followed(build: Build, tmp_path: Path) -> None:
    """As in a mounted ConfigMap: every file is a link into a directory that is a link itself."""
    real = tmp_path / "..2026_01"
    real.mkdir()
    for name, text in two("").items():
        (real / name).write_text(text, encoding="utf-8")
        (tmp_path / name).symlink_to(Path("..data") / name)
    (tmp_path / "..data").symlink_to(real.name)
    assert build({}, str(tmp_path / "p.yaml")).rules


def test_a_chain_of_too_many_files_is_refused(refuse: Refuse) -> None:
    files = {"p.yaml": policy_text("mine", "extends: [./f0.yaml]")}
    files |= {f"f{n}.yaml": policy_text("x", f"extends: [./f{n + 1}.yaml]") for n in range(80)}
    assert [problem.code for problem in refuse(files)] == ["M313"]


@pytest.mark.parametrize("source", ["no/such.yaml", "such.yaml", "./x\0.yaml", "x" * 300 + ".yaml"])
def test_a_policy_that_is_not_there_is_one_problem(refuse: Refuse, source: str) -> None:
    (problem,) = refuse({}, source)
    assert (problem.code, problem.position.file) == ("E802", source)


def test_a_json5_file_can_be_extended_and_be_an_overlay(build: Build) -> None:
    head = "apiVersion: 'policyengine/v1', kind:"
    files = {
        "p.yaml": policy_text("mine", "extends: [./base.json5]"),
        "base.json5": f"{{{head} 'Policy', name: 'b', extensions: {{first: {{use: 'call_limit'}}}}}}",
        "over.json5": f"{{{head} 'Overlay', target: 'mine', extensions: {{first: {{with: {{limit: 3}}}}}}}}",
    }
    policy = build(files)
    assert policy.rules[0].options["limit"] == 3
    (setting,) = explain(policy, "extensions.first.with.limit")
    assert str(setting.layers[-1].position).endswith("over.json5")


def test_the_range_of_an_extended_policy_cannot_be_lifted(refuse: Refuse) -> None:
    files = two("requires: {policyengine: '>=0'}", "requires: {policyengine: '>=99'}\n" + BASE)
    (problem,) = refuse(files)
    assert (problem.code, os.path.basename(problem.position.file)) == ("E801", "base.yaml")


def test_both_yaml_loaders_give_the_same_policy(build: Build) -> None:
    files = over("extensions: {first: {with: {limit: 50}}}")
    assert build(files, yaml_loader="pure") == build(files)


def test_explain_lists_every_setting_once_with_defaults(build: Build) -> None:
    policy = build(over("extensions: {second: {mode: warn}}"))
    paths = [setting.path for setting in explain(policy)]
    assert len(paths) == len(set(paths))
    assert "wind_down.rounds" in paths
    assert "extensions.first.with" not in paths
    below = [setting.path for setting in explain(policy, "extensions.second")]
    assert below
    assert all(path.startswith("extensions.second.") for path in below)
    (mode,) = explain(policy, "extensions.second.mode")
    assert [layer.value for layer in mode.layers] == ["enforce", "warn"]
    (word,) = explain(policy, "extensions.second.with.word")
    assert word.value == "w"
    assert explain(policy, "extensions.third") == []


def test_quotes_in_an_explained_path_may_be_left_out(build: Build) -> None:
    body = 'extensions: {folder.spend: {with: {limit: 3}}}\ntools: {"a.b": {effect: read}}'
    policy = build({"p.yaml": policy_text("mine", body)})
    assert [setting.value for setting in explain(policy, "extensions.folder.spend.with")] == [3]
    assert [setting.value for setting in explain(policy, 'tools."a.b".effect')] == ["read"]


def test_an_overlay_can_be_laid_over_a_text(tmp_path: Path, registry: Any) -> None:
    path = tmp_path / "over.yaml"
    path.write_text(overlay_text("mine", "wind_down: {rounds: 3}"), encoding="utf-8")
    policy = load_policy_text(policy_text("mine", BASE), registry=registry, overlays=[path], shipped=tmp_path)
    assert policy.wind_down_rounds == 3


def test_a_file_says_only_what_its_author_wrote(build: Build, tmp_path: Path) -> None:
    files = over("extensions: {first: {mode: warn}}")
    build(files)
    assert {name: (tmp_path / name).read_text(encoding="utf-8") for name in files} == files
