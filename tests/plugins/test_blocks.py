"""What is blocked is there for nobody: not for a policy that lists it, not for a layer above, not after a reload."""

from __future__ import annotations

import sys
from datetime import date

import pytest

from policyengine import ConfigError, Engine
from policyengine.plugins.blocks import VARIABLE, Block, process_blocks
from policyengine.plugins.registry import discover
from policyengine.policy.load import load_policy, load_policy_text
from policyengine.policy.stricter import compare, looking
from policyengine.testing import ListedRegistry

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: p\n"
OVER = "apiVersion: policyengine/v1\nkind: Overlay\ntarget: p\n"
LISTED = 'requires: {extensions: {acme-guards: "*"}}\n'


@pytest.fixture
def acme(site, extension_source):
    """Install a package with two extensions, and one that leaves a trace when it is imported."""
    source = extension_source("acme.spend", "Spend") + extension_source("acme.late", "Late")
    entries = {"acme.spend": "acme_blocked:Spend", "acme.late": "acme_blocked:Late"}
    site.install("acme-guards", entries, acme_blocked=source)


def load(tmp_path, policy: str, *overlays: str, **more):
    (tmp_path / "p.yaml").write_text(HEAD + policy)
    paths = [tmp_path / f"over-{number}.yaml" for number, _ in enumerate(overlays)]
    for path, text in zip(paths, overlays, strict=True):
        path.write_text(OVER + text)
    registry = more.pop("registry", None) or discover(env=more.pop("env", {}))
    return load_policy(tmp_path / "p.yaml", registry=registry, overlays=paths, **more)


def refused(tmp_path, *texts: str, **more):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, *texts, **more)
    return caught.value.problems


USES = LISTED + "extensions: {guard: {use: acme.spend}, steps: {use: step_limit}}\n"


@pytest.mark.parametrize("pattern", ["acme.spend", "acme.*", "acme-guards", "Acme_Guards", "acme-*", "*"])
def test_a_rule_that_uses_what_is_blocked_is_an_error_that_says_who_blocks_it(tmp_path, acme, pattern):
    first, *_ = refused(tmp_path, USES, f'requires: {{block: ["{pattern}"]}}\n')
    assert (first.code, first.path, first.position.line) == ("X410", "extensions.guard.use", 5)
    assert f"acme.spend is blocked by {pattern!r} of {tmp_path / 'over-0.yaml'}:4:20" in first.message
    assert "extensions: {guard: {$delete: true}}" in first.help
    assert "acme_blocked" not in sys.modules


def test_what_no_rule_uses_may_be_blocked_and_is_not_imported(tmp_path, acme):
    policy = load(tmp_path, USES, 'requires: {block: ["acme-*"]}\nextensions: {guard: {$delete: true}}\n')
    assert [rule.id for rule in policy.rules] == ["steps"]
    assert [str(block) for block in policy.blocks] == [f"'acme-*' of {tmp_path / 'over-0.yaml'}:4:20"]
    assert "acme_blocked" not in sys.modules


def test_one_extension_of_a_package_can_be_blocked_alone(tmp_path, acme):
    policy = load(tmp_path, USES, 'requires: {block: ["acme.late"]}\n')
    assert len(policy.rules) == 2


def test_built_in_extensions_can_be_blocked(tmp_path):
    (problem,) = refused(tmp_path, "extensions: {step_limit: {}}\n", "requires: {block: [step_limit]}\n")
    assert (problem.code, problem.path) == ("X410", "extensions.step_limit")


def test_a_drop_in_extension_is_blocked_by_its_name(tmp_path, extension_source):
    (tmp_path / "guards").mkdir()
    (tmp_path / "guards" / "one.py").write_text(extension_source("local.one"))
    registry = discover(entry_points=False, folders=[tmp_path / "guards"])
    policy = "requires: {block: [local.*]}\nextensions: {one: {use: local.one}}\n"
    (problem,) = refused(tmp_path, policy, registry=registry)
    assert problem.code == "X410"


def test_a_registry_that_knows_no_blocks_is_held_to_them_too(tmp_path, extension_source):
    scope: dict = {}
    exec(extension_source("given.guard"), scope)
    policy = "requires: {block: [given.*]}\nextensions: {one: {use: given.guard}}\n"
    (problem,) = refused(tmp_path, policy, registry=ListedRegistry(scope["Guard"]))
    assert problem.code == "X410"


def test_without_looking_extensions_up_a_blocked_name_is_still_refused():
    text = HEAD + "requires: {block: [acme.spend]}\nextensions: {one: {use: acme.spend}}\n"
    with pytest.raises(ConfigError, match="X410"):
        load_policy_text(text, registry=None)


def test_blocks_of_all_layers_add_up(tmp_path):
    policy = load(
        tmp_path,
        "requires: {block: [a.one]}\nextensions: {step_limit: {}}\n",
        "requires: {block: [b.two]}\n",
        "requires: {block: {$append: [c.three]}}\n",
        "requires: {block: []}\n",
    )
    assert [block.pattern for block in policy.blocks] == ["a.one", "b.two", "c.three"]
    assert policy.provenance["requires.block"][-1].value == ["a.one", "b.two", "c.three"]


@pytest.mark.parametrize(
    "above",
    [
        "requires: {block: {$remove: [acme.*]}}",
        "requires: {block: {$replace: []}}",
        "requires: {block: {$delete: true}}",
        "requires: {$delete: true}",
    ],
)
def test_no_layer_can_take_a_block_back(tmp_path, above):
    problems = refused(tmp_path, "requires: {block: [acme.*]}\nextensions: {step_limit: {}}\n", above + "\n")
    assert [problem.code for problem in problems] == ["M316"]
    assert problems[0].position.file.endswith("over-0.yaml")


@pytest.mark.parametrize(
    ("value", "code"),
    [("acme.*", "S201"), ("[7]", "S201"), ('["acme spend"]', "S206"), ("[{$env: X}]", "E811"), ("{$env: X}", "E811")],
)
def test_a_block_is_a_list_of_patterns_and_no_layer_mends_another_ones(tmp_path, value, code):
    problems = refused(tmp_path, f"requires: {{block: {value}}}\n", "requires: {block: [b.*]}\n")
    assert code in {problem.code for problem in problems}


def test_blocked_code_is_not_imported_while_something_else_is_wrong(tmp_path, acme):
    wrong = 'requires: {policyengine: 7, extensions: {acme-guards: "*"}, block: ["acme-*", 7]}\n'
    problems = refused(tmp_path, wrong + "extensions: {guard: {use: acme.spend}}\n")
    assert "X410" in {problem.code for problem in problems}
    assert "acme_blocked" not in sys.modules


def test_locked_rules_of_a_lower_layer_do_not_have_blocked_code_imported(tmp_path, acme):
    locked = LISTED + "extensions: {guard: {use: acme.spend}, steps: {use: step_limit, locked: true}}\n"
    over = 'requires: {block: ["acme-*"]}\nextensions: {guard: {$delete: true}}\n'
    assert [rule.id for rule in load(tmp_path, locked, over).rules] == ["steps"]
    assert "acme_blocked" not in sys.modules


# ---- the variable


@pytest.mark.parametrize("text", ["acme.spend,other.*", " other.*  acme.spend ", "acme-guards"])
def test_the_variable_blocks_for_every_policy_of_the_process(tmp_path, acme, monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    first, *_ = refused(tmp_path, USES, env=None)
    assert (first.code, first.path) == ("X410", "extensions.guard.use")
    assert f"of {VARIABLE}" in first.message
    assert "acme_blocked" not in sys.modules


def test_an_engine_reads_the_variable_from_its_own_environment(tmp_path, acme):
    (tmp_path / "p.yaml").write_text(HEAD + USES)
    with pytest.raises(ConfigError, match="X410"):
        Engine(tmp_path / "p.yaml", env={VARIABLE: "acme.*"})
    assert "acme_blocked" not in sys.modules
    assert Engine(tmp_path / "p.yaml", env={}).snapshot.generation == 1


def test_patterns_match_names_as_they_are_and_packages_as_indexes_do():
    assert process_blocks({}) == ()
    assert [block.pattern for block in process_blocks({VARIABLE: "a.b, c-d"})] == ["a.b", "c-d"]
    assert Block("acme.*", "x").matches("acme.spend")
    assert not Block("acme.*", "x").matches("Acme.spend")
    assert Block("acme_guards", "x").matches("", "Acme.Guards")
    assert not Block("acme", "x").matches("acme.spend", "acme-guards")


@pytest.mark.parametrize(
    "entry",
    ["'acme.patch'", '"acme.patch"', "acme.patch;", "acme.patch|x", "acme.{a,b}", "[", "acme.[", "a]", "a[]", "é"],
)
def test_an_entry_of_the_variable_that_would_block_nothing_is_an_error(tmp_path, acme, entry):
    (tmp_path / "p.yaml").write_text(HEAD + USES)
    env = {VARIABLE: f"other.thing, {entry}"}
    with pytest.raises(ConfigError) as caught:
        Engine(tmp_path / "p.yaml", env=env)
    first = caught.value.problems[0]
    assert (first.code, first.position.file) == ("E814", VARIABLE)
    assert ("quotes" in first.help) == ("'" in entry or '"' in entry)
    assert "acme_blocked" not in sys.modules
    if not {",", '"'} & set(entry):
        found = refused(tmp_path, USES, f'requires: {{block: ["{entry}"]}}\n')
        assert "S206" in {problem.code for problem in found}, "the same is refused in a policy"


def test_a_running_engine_keeps_its_policy_while_the_variable_cannot_be_read(tmp_path, acme):
    (tmp_path / "p.yaml").write_text(HEAD + USES)
    env: dict[str, str] = {}
    engine = Engine(tmp_path / "p.yaml", env=env)
    env[VARIABLE] = "'acme.spend'"
    assert not engine.reload()
    assert [problem.code for problem in engine.rejected.problems] == ["E814"]


@pytest.mark.parametrize("pattern", ["acme.sp[e]nd", "acme.[!x]*", "acme.s?end", "acme-[a-z]*"])
def test_what_a_shell_takes_for_a_pattern_is_one(pattern):
    (block,) = process_blocks({VARIABLE: pattern})
    assert block.matches("acme.spend", "acme-guards")


def test_what_only_importing_tells_is_found_out_for_names_and_never_for_a_blocked_package(site, extension_source):
    source = extension_source("acme.one", "One") + extension_source("acme.two", "Two")
    site.install("acme", {"acme": "acme_module"}, acme_module=source)
    site.install("other", {"other": "acme_other_module"}, acme_other_module="IMPORTED = True")
    registry = discover(env={VARIABLE: "acme.two other"})
    assert registry.get("acme.one") is not None
    with pytest.raises(Exception, match=r"blocked by 'acme\.two' of POLICYENGINE_BLOCK"):
        registry.get("acme.two")
    assert "acme.two" not in registry.names()
    assert [found.name for found in registry.all() if not found.builtin] == ["acme.one"]
    assert registry.problems() == ()
    assert [source.distribution for source, _ in registry.blocked()] == ["other"]
    assert "acme_other_module" not in sys.modules


def test_a_name_that_a_blocked_package_may_have_is_said_to_be_unknown_and_why(tmp_path, site):
    site.install("acme", {"acme": "acme_maybe"}, acme_maybe="IMPORTED = True")
    policy = 'requires: {extensions: {acme: "*"}, block: [acme]}\nextensions: {one: {use: acme.one}}\n'
    (problem,) = refused(tmp_path, policy)
    assert (problem.code, "blocked, and not looked at: acme" in problem.note) == ("X401", True)
    assert "acme_maybe" not in sys.modules


def test_a_name_claimed_twice_is_free_again_once_one_package_is_blocked(sites, extension_source):
    for name in ("one", "two"):
        module = f"acme_claim_{name}"
        sites(name).install(
            f"dist-{name}", {"acme.spend": f"{module}:Guard"}, **{module: extension_source("acme.spend")}
        )
    assert discover(env={VARIABLE: "dist-two"}).get("acme.spend").distribution == "dist-one"
    with pytest.raises(Exception, match="more than once"):
        discover(env={}).get("acme.spend")


# ---- reload


def test_a_block_that_comes_with_an_edit_rejects_the_policy_until_the_rule_is_gone(tmp_path, acme):
    (tmp_path / "p.yaml").write_text(HEAD + USES)
    over = tmp_path / "over.yaml"
    over.write_text(OVER + "language: en\n")
    engine = Engine(tmp_path / "p.yaml", overlays=[over], env={})
    over.write_text(OVER + 'requires: {block: ["acme-*"]}\n')
    assert not engine.reload()
    assert [problem.code for problem in engine.rejected.problems] == ["X410"]
    assert engine.snapshot.generation == 1
    over.write_text(OVER + 'requires: {block: ["acme-*"]}\nextensions: {guard: {$delete: true}}\n')
    assert engine.reload()
    assert [rule.id for rule in engine.snapshot.policy.rules] == ["steps"]


def test_the_variable_is_read_again_at_every_reload(tmp_path, acme):
    (tmp_path / "p.yaml").write_text(HEAD + USES)
    env: dict[str, str] = {}
    engine = Engine(tmp_path / "p.yaml", env=env)
    env[VARIABLE] = "acme.spend"
    assert not engine.reload()
    assert [problem.code for problem in engine.rejected.problems] == ["X410"]
    del env[VARIABLE]
    assert not engine.reload()  # the policy is as it was
    assert engine.rejected is None


def test_a_further_block_is_called_tighter_and_one_less_looser(tmp_path):
    less = load(tmp_path, "requires: {block: [a.b]}\nextensions: {step_limit: {}}\n")
    more = load(tmp_path, "requires: {block: [a.b, c-d]}\nextensions: {step_limit: {}}\n")
    look = looking(discover(env={}), less, more)
    today = date(2026, 1, 1)
    (found,) = compare(less, more, look, today)
    assert (found.path, found.verdict) == ("requires.block", "tighter")
    assert [found.verdict for found in compare(more, less, look, today)] == ["looser"]
