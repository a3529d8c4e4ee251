"""What is known of installed packages before anything of them is imported."""

from __future__ import annotations

import sys

import pytest

from policyengine.errors import ExtensionError
from policyengine.plugins.packages import engine_fit, engine_version, installed_packages
from policyengine.plugins.registry import Registry, discover, entry_point_sources
from policyengine.policy.load import load_policy_text

ENGINE = "agent-policyengine"


def installed() -> Registry:
    return Registry(sources=entry_point_sources())


def package(name: str):
    (found,) = (package for package in installed_packages() if package.name == name)
    return found


def load(requires: str, use: str = "acme.spend"):
    text = (
        "apiVersion: policyengine/v1\nkind: Policy\nname: p\n"
        f"requires: {{extensions: {{{requires}}}}}\nextensions: {{guard: {{use: {use}}}}}\n"
    )
    return load_policy_text(text, registry=discover())


def problems(requires: str, use: str = "acme.spend"):
    from policyengine.errors import ConfigError

    with pytest.raises(ConfigError) as caught:
        load(requires, use)
    return [(problem.code, str(problem.position), problem.message) for problem in caught.value.problems]


# ---- metadata alone


def test_name_version_summary_and_range_are_read_without_an_import(site):
    site.install(
        "Acme_Guards",
        {"acme.spend": "acme_crash:Spend"},
        "0.4",
        requires=["msgspec>=0.19", f"{ENGINE}>=0.1,<1", f'{ENGINE}[cost]>=9; extra == "all"'],
        acme_crash="raise SystemExit('imported')",
    )
    found = package("Acme_Guards")
    assert (found.version, found.summary, found.engine) == ("0.4", "Some guards.", ">=0.1,<1")
    assert [(entry.name, entry.value) for entry in found.entries] == [("acme.spend", "acme_crash:Spend")]
    assert "acme_crash" not in sys.modules


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        (f"{ENGINE}<1,>=0.1", "<1,>=0.1"),
        ("Agent_PolicyEngine (>=0.1)", ">=0.1"),
        (f'{ENGINE}>=0.1; python_version >= "3.11"', ">=0.1"),
        (ENGINE, ""),
        (f"{ENGINE}-tools>=2", None),
        ("other>=1", None),
        (f'{ENGINE}>=0.1; extra == "x"', None),
        ("???", None),
    ],
)
def test_the_range_of_engines_is_found_in_every_form_of_a_requirement(site, requirement, expected):
    site.install("acme", {"acme": "acme_x"}, requires=[requirement])
    assert package("acme").engine == expected


def test_a_distribution_without_extensions_is_none_of_ours(site):
    site.install("acme", {})
    info = site.install("other", {})
    (info / "entry_points.txt").write_text("[console_scripts]\nother = other:main\n")
    assert {"acme", "other"}.isdisjoint(found.name for found in installed_packages() if found.entries)


# ---- damage


@pytest.mark.parametrize("damage", ["no metadata", "no name", "no version", "odd entry points", "no utf-8"])
def test_damaged_metadata_is_a_fault_of_its_own_package_only(site, extension_source, damage):
    site.install("good", {"good.guard": "good_guard:Guard"}, good_guard=extension_source("good.guard"))
    info = site.install("bad", {"bad.guard": "bad_guard:Guard"}, bad_guard="IMPORTED = True")
    if damage == "no metadata":
        (info / "METADATA").unlink()
    elif damage == "no name":
        (info / "METADATA").write_text("Metadata-Version: 2.1\nVersion: 1.0\n")
    elif damage == "no version":
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\n")
    elif damage == "no utf-8":
        (info / "entry_points.txt").write_bytes(b"[policyengine.extensions]\n\xff\xfe = x\n")
    else:
        (info / "entry_points.txt").write_text("[policyengine.extensions]\nno equals sign\n")
    registry = installed()
    assert registry.get("good.guard") is not None
    assert all("bad" in problem.origin or "bad" in problem.extension for problem in registry.problems())
    assert "bad_guard" not in sys.modules or damage == "none"


# ---- the engine a package needs


@pytest.mark.parametrize(
    ("wanted", "code", "text"),
    [
        (">=99", "X411", r"acme 1\.0\): the engine \(.*\) is too old: the package needs >=99"),
        ("<0.0.1", "X412", r"acme 1\.0\): the engine \(.*\) is too new: the package needs <0\.0\.1"),
    ],
)
def test_a_package_for_another_engine_is_refused_before_it_is_imported(site, wanted, code, text):
    requires = [f"{ENGINE}{wanted}"]
    site.install("acme", {"acme.spend": "acme_later:Guard"}, requires=requires, acme_later="IMPORTED = True")
    with pytest.raises(ExtensionError, match=text) as caught:
        installed().get("acme.spend")
    assert caught.value.code == code
    ((found, position, message),) = problems('acme: "*"')
    assert (found, position) == (code, "policy.yaml:5:27")
    assert "acme 1.0" in message
    assert "acme_later" not in sys.modules


@pytest.mark.parametrize("requires", [[f"{ENGINE}>=0.1"], [ENGINE], [f"{ENGINE} @ file:///x"], [], ["other>=1"]])
def test_a_range_that_fits_or_says_nothing_admits_the_engine(site, extension_source, requires):
    entries = {"acme.spend": "acme_fits:Guard"}
    site.install("acme", entries, requires=requires, acme_fits=extension_source("acme.spend"))
    assert installed().get("acme.spend") is not None


def test_an_engine_without_metadata_is_compared_with_nothing():
    assert engine_fit(">=99", "") == "ok"
    assert engine_fit(">=99", engine_version()) == "too old"
    assert engine_fit(None, "0.1") == "ok"
    assert engine_fit("nonsense", "0.1") == "ok"


# ---- the package a policy needs


@pytest.mark.parametrize(
    ("wanted", "code", "text"),
    [
        ('">=0.5"', "X404", "acme 0.4 is too old"),
        ('"<0.4"', "X405", "acme 0.4 is too new"),
        ('">=0.4,nonsense"', "X409", "is no version range"),
    ],
)
def test_a_package_outside_the_range_of_the_policy_is_too_old_or_too_new(site, extension_source, wanted, code, text):
    site.install("acme", {"acme.spend": "acme_range:Guard"}, "0.4", acme_range=extension_source("acme.spend"))
    ((found, position, message),) = problems(f"acme: {wanted}")
    assert (found, position) == (code, "policy.yaml:4:31")
    assert text in message


def test_a_package_that_is_not_there_is_missing(site, extension_source):
    site.install("acme", {"acme.spend": "acme_there:Guard"}, acme_there=extension_source("acme.spend"))
    ((code, _, message),) = problems('acme: "*", acme-more: ">=1"')
    assert (code, message) == ("X403", "the package acme-more is not installed")


# ---- one distribution twice


@pytest.mark.parametrize("second", ["1.0", "2.0"])
def test_of_one_distribution_installed_twice_the_first_on_the_path_counts(sites, extension_source, second):
    wheel, editable = sites("wheel"), sites("editable")  # the later one comes first on the path
    wheel.install("acme-guards", {"acme.spend": "acme_dup:Guard"}, second, acme_dup="1 / 0")
    source = extension_source("acme.spend")
    editable.install("Acme_Guards", {"acme.spend": "acme_dup:Guard"}, "1.0", acme_dup=source)
    found = installed().get("acme.spend")
    assert (found.distribution, found.version) == ("Acme_Guards", "1.0")
    assert installed().problems() == ()
    shadowed = package("Acme_Guards").shadowed
    assert shadowed == (() if second == "1.0" else (f"2.0 ({wheel.path})",))


def test_an_older_copy_without_extensions_hides_a_newer_one_as_import_does(sites):
    newer, older = sites("newer"), sites("older")
    newer.install("acme", {"acme.spend": "acme_hidden:Guard"}, "2.0")
    info = older.install("acme", {}, "1.0")
    (info / "entry_points.txt").unlink()
    assert [found for found in installed_packages() if found.name == "acme"] == []
