"""Discovery through entry points: nothing is imported before it is wanted, nothing is chosen silently."""

from __future__ import annotations

import sys

import pytest

from policyengine.errors import ExtensionError
from policyengine.plugins.registry import Registry, builtin_registry, discover, entry_point_sources


def installed(only=None) -> Registry:
    return Registry(sources=entry_point_sources(), only=only)


@pytest.fixture
def builtins(monkeypatch, extension_source):
    """Install a package of built-in extensions under a name of its own."""
    module = type(sys)("tests_builtins")
    exec(extension_source("step_limit"), vars(module))
    module.BUILTIN = (module.Guard,)
    monkeypatch.setitem(sys.modules, "tests_builtins", module)
    return module


def test_an_entry_point_to_a_class_is_found(site, extension_source):
    site.install("Acme-Guards", {"acme.spend": "acme_one:Guard"}, "0.4", acme_one=extension_source("acme.spend"))
    found = installed().get("acme.spend")
    assert (found.name, found.distribution, found.version, found.builtin) == ("acme.spend", "Acme-Guards", "0.4", False)
    assert (found.origin, found.hooks) == ("acme_one.py", ("after_iteration",))


def test_an_entry_point_to_a_module_gives_all_extensions_defined_in_it(site, extension_source):
    source = (
        extension_source("acme.one", "One")
        + extension_source("acme.two", "Two")
        + "class _Base(Extension):\n    pass\n\nfrom acme_other import Guard\n"
    )
    site.install("acme", {"acme": "acme_two"}, acme_two=source, acme_other=extension_source("acme.other"))
    assert [found.name for found in installed().all()] == ["acme.one", "acme.two"]
    assert installed().get("acme.other") is None


def test_a_package_may_define_its_extensions_in_submodules(site, extension_source):
    site.install("acme", {"acme": "acme_package"})
    (site.path / "acme_package").mkdir()
    (site.path / "acme_package" / "spend.py").write_text(extension_source("acme.spend"))
    (site.path / "acme_package" / "__init__.py").write_text("from acme_package.spend import Guard\n")
    assert installed().get("acme.spend").origin.endswith("spend.py")


def test_nothing_is_imported_before_a_policy_asks_for_it(site, extension_source):
    site.install(
        "acme",
        {"acme.spend": "acme_spend:Guard", "acme.trap": "acme_trap:Guard"},
        acme_spend=extension_source("acme.spend"),
        acme_trap="IMPORTED = True",
    )
    extensions = installed()
    assert extensions.names() == ("acme.spend", "acme.trap")
    assert [(source.distribution, source.provides) for source in extensions.sources] == [
        ("acme", "acme.spend"),
        ("acme", "acme.trap"),
    ]
    assert not {"acme_spend", "acme_trap"} & set(sys.modules)
    assert extensions.get("step_limit") is None
    assert extensions.get("acme.spend") is not None
    assert "acme_trap" not in sys.modules


def test_names_of_a_module_are_known_after_a_name_it_may_provide_was_asked_for(site, extension_source):
    site.install("acme", {"acme": "acme_lazy"}, acme_lazy=extension_source("acme.spend"))
    extensions = installed()
    assert extensions.names() == ()
    assert extensions.get("acme.spned") is None
    assert extensions.names() == ("acme.spend",)


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
@pytest.mark.parametrize("style", ["class", "module", "mixed"])
def test_one_name_in_two_distributions_is_an_error_naming_both_in_any_path_order(sites, extension_source, order, style):
    for name in order:
        by_class = style == "class" or (style == "mixed" and name == "one")
        entry = {"acme.spend": f"acme_{name}:Guard"} if by_class else {name: f"acme_{name}"}
        sites(name).install(f"dist-{name}", entry, **{f"acme_{name}": extension_source("acme.spend")})
    extensions = installed()
    with pytest.raises(ExtensionError, match=r"acme\.spend.*dist-one 1\.0.* and dist-two 1\.0.*more than once"):
        extensions.get("acme.spend")
    assert extensions.all() == ()
    assert len(extensions.problems()) == 1


def test_two_distributions_that_claim_one_name_conflict_even_if_one_is_broken(site, extension_source):
    site.install("good", {"acme.spend": "acme_good:Guard"}, acme_good=extension_source("acme.spend"))
    site.install("bad", {"acme.spend": "acme_bad:Guard"}, acme_bad="1 / 0")
    with pytest.raises(ExtensionError, match=r"bad 1\.0.* and good 1\.0"):
        installed().get("acme.spend")


def test_a_drop_in_file_does_not_shadow_an_installed_package(site, extension_source, tmp_path, builtins):
    site.install("acme", {"acme.spend": "acme_shadow:Guard"}, acme_shadow=extension_source("acme.spend"))
    (tmp_path / "dropin").mkdir()
    (tmp_path / "dropin" / "spend.py").write_text(extension_source("acme.spend"))
    extensions = discover(folders=[tmp_path / "dropin"], builtins="tests_builtins")
    with pytest.raises(ExtensionError, match=r"spend\.py and acme 1\.0"):
        extensions.get("acme.spend")


def test_two_entry_points_to_one_class_of_one_distribution_are_one_extension(site, extension_source):
    entries = {"acme.spend": "acme_twice:Guard", "acme": "acme_twice"}
    site.install("acme", entries, acme_twice=extension_source("acme.spend"))
    assert installed().get("acme.spend") is not None
    assert installed().problems() == ()


def test_a_package_cannot_take_the_name_of_a_built_in_extension(site, extension_source, builtins):
    site.install("evil", {"step_limit": "evil_step:Guard"}, evil_step=extension_source("step_limit"))
    extensions = discover(builtins="tests_builtins")
    assert extensions.get("step_limit").cls is builtins.Guard
    (problem,) = extensions.problems()
    assert (problem.extension, "must have the form" in problem.detail) == ("step_limit", True)
    assert "evil 1.0, evil_step.py:5" in problem.origin


def test_a_broken_package_is_an_error_only_for_what_it_provides(site, extension_source):
    site.install("acme", {"acme.spend": "acme_fine:Guard"}, acme_fine=extension_source("acme.spend"))
    site.install("broken", {"broken.guard": "broken_guard:Guard"}, "2.1", broken_guard="import re\n\nre.compile('(')\n")
    extensions = installed()
    assert extensions.get("acme.spend") is not None
    with pytest.raises(ExtensionError) as caught:
        extensions.get("broken.guard")
    assert caught.value.origin == "broken 2.1, broken_guard.py:3"
    assert "cannot be imported" in caught.value.detail
    assert [found.name for found in extensions.all()] == ["acme.spend"]
    assert len(extensions.problems()) == 1


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("acme_odd:Missing", "has no attribute"),
        ("acme_odd:value", "neither to an Extension class nor to a module"),
        ("acme_odd:Extension", "neither to an Extension class nor to a module"),
        ("acme_absent:Guard", "No module named"),
        ("acme_odd:Other", r"the entry point must have the extension's name 'acme\.other'"),
        ("acme_odd:Late", "hooks are synchronous"),
    ],
)
def test_a_wrong_entry_point_is_reported_with_its_distribution(site, extension_source, target, expected):
    source = extension_source("acme.other", "Other") + (
        "value = 3\n\n\nclass Late(Extension):\n    name = 'acme.odd'\n\n"
        "    @hookimpl\n    async def on_stop(self, stop): pass\n"
    )
    site.install("odd", {"acme.odd": target}, acme_odd=source)
    with pytest.raises(ExtensionError, match=expected) as caught:
        installed().get("acme.odd")
    assert "odd 1.0" in caught.value.origin


def test_a_module_without_extensions_is_reported(site):
    site.install("empty", {"empty": "acme_empty"}, acme_empty="")
    with pytest.raises(ExtensionError, match=r"'acme\.x' \(empty 1\.0.*the module defines no extension"):
        installed().get("acme.x")


def test_several_broken_sources_are_all_named(site):
    site.install("one", {"one": "acme_broken_one"}, acme_broken_one="1 / 0")
    site.install("two", {"two": "acme_broken_two"}, acme_broken_two="1 / 0")
    with pytest.raises(ExtensionError, match=r"one 1\.0, acme_broken_one\.py:1.*two 1\.0, acme_broken_two\.py:1"):
        installed().get("acme.x")


def test_the_allow_list_keeps_other_distributions_from_being_imported(site, extension_source):
    site.install("Acme_Guards", {"acme.spend": "acme_listed:Guard"}, acme_listed=extension_source("acme.spend"))
    site.install("stranger", {"stranger": "acme_stranger"}, acme_stranger="IMPORTED = True")
    site.install("named", {"named.guard": "acme_named:Guard"}, acme_named="IMPORTED = True")
    extensions = installed().allowing(["acme-guards"])
    assert extensions.get("acme.spend").distribution == "Acme_Guards"
    assert extensions.get("acme.other") is None
    assert extensions.problems() == ()
    with pytest.raises(ExtensionError, match=r"named is installed, but the policy does not list it under requires"):
        extensions.get("named.guard")
    assert not {"acme_stranger", "acme_named"} & set(sys.modules)
    assert installed(only=()).names() == ()


def test_built_in_extensions_come_first_and_in_the_order_of_the_list(site, extension_source, builtins):
    site.install("acme", {"a.first": "acme_a:Guard"}, acme_a=extension_source("a.first"))
    exec(extension_source("another", "Another"), vars(builtins))
    builtins.BUILTIN = (builtins.Guard, builtins.Another)
    assert builtin_registry("tests_builtins").names() == ("step_limit", "another")
    assert discover(builtins="tests_builtins").names() == ("step_limit", "another", "a.first")
    assert discover(entry_points=False, builtins="tests_builtins").names() == ("step_limit", "another")
    assert builtin_registry("tests_builtins").get("another").builtin


def test_a_built_in_extension_listed_twice_is_an_error(builtins):
    builtins.BUILTIN = (builtins.Guard, builtins.Guard)
    with pytest.raises(ExtensionError, match="listed more than once"):
        builtin_registry("tests_builtins")


def test_the_shipped_extensions_keep_the_contract():
    registry = builtin_registry()
    assert registry.names()
    for name in registry.names():
        found = registry.get(name)
        assert (found.builtin, found.distribution) == (True, "agent-policyengine")
        assert "extensions" in found.origin
