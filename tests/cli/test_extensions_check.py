"""`policyengine extensions check`, `block`, and `list --no-import`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from policyengine.cli import AT_FAULT, NOTHING, OK, ONLY_WARNINGS

GOOD = """
    import msgspec
    from policyengine import Extension, Proof, call, hookimpl


    class Counted(msgspec.Struct):
        calls: int = 0


    class Guard(Extension):
        '''Refuse the second call.'''

        name = "acme.guard"
        options = {"word": {"type": "string", "minlength": 9, "required": True}}
        state = Counted
        messages = {"second.deny": {"tool": "t"}}
        templates = {"en": {"second.deny": "No {{ tool }}."}, "zh": {"second.deny": "{{ tool }}?"}}

        @hookimpl
        def before_tool_call(self, run, call):
            run.state.calls += 1
            return run.deny("second", tool=call.name) if run.state.calls > 1 else None

        def proofs(self):
            return [Proof("second", "deny", "second", 2, (call("t", {"n": 1}), call("t", {"n": 2})))]
"""

ENGINE = ["agent-policyengine>=0.1,<1"]


def install(site: Path, name: str, entry: str, version: str, source: str = "", requires=ENGINE) -> None:
    """Write the metadata of a package as an installer would, and its module if it has a source."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: Some guards.\n{needs}"
    (info / "METADATA").write_text(head)
    (info / "entry_points.txt").write_text(f"[policyengine.extensions]\n{entry}\n")
    if source:
        module = entry.partition("= ")[2].partition(":")[0]
        (site / f"{module}.py").write_text(dedent(source))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a maker of packages with one module `acme_checked` and the extension `acme.guard`."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path / "site")
    before = set(sys.modules)

    def make(source: str = GOOD, name: str = "acme-guards", requires=ENGINE, entry="acme.guard", cls="Guard") -> None:
        install(tmp_path / "site", name, f"{entry} = acme_checked:{cls}", "0.4", source, requires)

    yield make
    for name in set(sys.modules) - before:
        if name.startswith("acme_"):
            del sys.modules[name]


def check(run, *args: str):
    result = run("extensions", "check", "--format", "json", *args)
    assert result.stdout, result.stderr
    data = json.loads(result.stdout)
    found = [(problem["code"], problem["severity"], problem["line"], problem["path"]) for problem in data["problems"]]
    return result.exit_code, data, found


# ---- what is checked


@pytest.mark.parametrize("target", [[], ["acme.guard"], ["acme-guards"], ["Acme_Guards"]])
def test_a_sound_package_passes_with_its_hooks_and_proofs(run, installed, target):
    installed()
    result = run("extensions", "check", "--strict", *target)
    assert (result.exit_code, result.stderr) == (OK, "")
    assert result.stdout == "ok: acme.guard (acme-guards 0.4): before_tool_call; 1 proof\n"


def test_json_lists_what_was_checked(run, installed):
    installed()
    code, data, found = check(run, "acme.guard")
    assert (code, data["ok"], found) == (OK, True, [])
    assert data["extensions"] == [
        {
            "name": "acme.guard",
            "distribution": "acme-guards",
            "version": "0.4",
            "origin": "site/acme_checked.py",
            "hooks": ["before_tool_call"],
            "proofs": 1,
            "ok": True,
        }
    ]


BROKEN = {
    "every fault of a class, with its line": (
        GOOD.replace("def before_tool_call(self, run, call):", "async def before_tool_call(self, run, *, call):")
        .replace('"minlength": 9', '"min_length": 9')
        .replace('name = "acme.guard"', 'name = "guard"'),
        [("X406", 10), ("X406", 10), ("X406", 10), ("X406", 19), ("X406", 19)],
    ),
    "state": (GOOD.replace("calls: int = 0", "calls: int = 0\n        at: complex = 0j"), [("X417", 11)]),
    "message": (GOOD.replace("No {{ tool }}", "No {{ tol }}"), [("R510", 10)]),
    "message in another language": (GOOD.replace("{{ tool }}?", "{{ tol }}?"), [("R510", 10)]),
    "self-test": (GOOD.replace("run.state.calls += 1", "raise SystemExit(7)"), [("X406", 10)]),
    "answer": (GOOD.replace("run.state.calls += 1", "return 'no'"), [("X406", 10)]),
    "proof": (GOOD.replace('"second", 2, (', '"second", 1, ('), [("X415", 10)]),
    "proof of what is not there": (GOOD.replace('Proof("second", "deny"', 'Proof("second", "stop"'), [("X415", 10)]),
    "proofs raise": (GOOD.replace("return [Proof(", "return 1 / 0 or [Proof("), [("X406", 10)]),
    "check of options": (
        GOOD + "\n        @classmethod\n        def check_options(cls, options):\n            raise ValueError\n",
        [("X408", 10)],
    ),
}


@pytest.mark.parametrize(("source", "expected"), BROKEN.values(), ids=BROKEN.keys())
def test_every_problem_has_its_package_and_the_file_and_line_of_the_code(run, installed, source, expected):
    installed(source)
    code, data, found = check(run, "acme-guards")
    errors = [(code, line) for code, severity, line, _ in found if severity == "error"]
    assert (code, sorted(errors)) == (AT_FAULT, sorted(expected)), data["problems"]
    for problem in data["problems"]:
        assert problem["file"] == "site/acme_checked.py"
        assert problem["path"].startswith("acme-guards 0.4, ")


def test_github_annotations_are_on_stdout_and_short_lines_on_stderr(run, installed):
    installed(BROKEN["proof"][0])
    annotated = run("extensions", "check", "--format", "github")
    assert annotated.stdout.startswith(
        "::error file=site/acme_checked.py,line=10,title=X415::acme-guards 0.4, acme.guard"
    )
    short = run("extensions", "check", "--format", "short").stderr
    assert short.startswith("site/acme_checked.py:10: error[X415] acme-guards 0.4, acme.guard: proof second: ")


@pytest.mark.parametrize(
    ("requires", "code", "severity", "exit_code"),
    [
        (["agent-policyengine>=99"], "X411", "error", AT_FAULT),
        (["agent-policyengine<0.0.1"], "X412", "error", AT_FAULT),
        ([], "X413", "warning", ONLY_WARNINGS),
        (["agent-policyengine"], "X413", "warning", ONLY_WARNINGS),
        (["agent-policyengine @ file:///x"], "X413", "warning", ONLY_WARNINGS),
    ],
)
def test_the_engine_that_a_package_needs_is_checked_first(run, installed, requires, code, severity, exit_code):
    installed(requires=requires)
    found_code, data, found = check(run, "--strict")
    assert found_code == exit_code
    assert found == [(code, severity, 0, "acme-guards")]
    assert data["problems"][0]["file"] == "acme-guards 0.4"
    assert ("acme_checked" in sys.modules) == (severity == "warning")


def test_a_second_copy_in_another_version_is_a_warning(run, installed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "older")
    install(tmp_path / "older", "acme-guards", "acme.guard = acme_checked:Guard", "0.3")
    installed()
    code, data, found = check(run, "--strict")
    assert (code, [entry[0] for entry in found]) == (ONLY_WARNINGS, ["X414"])
    assert "0.4 (" in data["problems"][0]["message"]


def test_a_name_that_two_packages_claim_is_an_error_of_both(run, installed, tmp_path, monkeypatch):
    installed()
    monkeypatch.syspath_prepend(tmp_path / "second")
    install(tmp_path / "second", "other", "acme.guard = acme_second:Guard", "1.0", GOOD)
    code, data, _ = check(run, "acme-guards")
    assert code == AT_FAULT
    assert "acme-guards 0.4, entry point" in data["problems"][0]["message"]
    assert "other 1.0, entry point" in data["problems"][0]["message"]


@pytest.mark.parametrize(
    ("entry", "cls", "text"),
    [
        ("acme.other", "Guard", "the entry point must have the extension's name 'acme.guard'"),
        ("acme.guard", "Counted", "leads neither to an Extension class nor to a module"),
        ("acme.guard", "Nothing", "has no attribute 'Nothing'"),
    ],
)
def test_an_entry_point_that_leads_elsewhere_is_reported(run, installed, entry, cls, text):
    installed(entry=entry, cls=cls)
    code, data, _ = check(run)
    assert (code, text in data["problems"][0]["message"]) == (AT_FAULT, True)


def test_what_cannot_be_tried_or_proven_is_a_warning(run, installed):
    unproven = GOOD.replace("def proofs", "def other_proofs")
    picky = unproven.replace('"minlength": 9', '"regex": "[0-9]+"')
    installed(picky)
    code, data, found = check(run)
    assert (code, [entry[:2] for entry in found]) == (OK, [("X416", "warning")])
    assert "not tried" in data["problems"][0]["message"]


def test_an_extension_without_proofs_is_a_warning(run, installed):
    installed(GOOD.replace("def proofs", "def other_proofs"))
    code, data, found = check(run, "--strict")
    assert (code, [entry[:2] for entry in found]) == (ONLY_WARNINGS, [("X416", "warning")])
    assert "no proof" in data["problems"][0]["message"]


# ---- what is meant


def test_files_and_folders_are_checked_too(run):
    Path("guards/bad.py").write_text("import no_such_module\n")
    code, data, _ = check(run, "guards/counting.py")
    assert [item["name"] for item in data["extensions"]] == ["demo.counting", "demo.broken"]
    code, data, _ = check(run, "guards")
    assert (code, data["problems"][0]["file"], data["problems"][0]["line"]) == (AT_FAULT, "guards/bad.py", 1)
    code, data, _ = check(run, "demo.counting", "--folder", "guards")
    assert [item["name"] for item in data["extensions"]] == ["demo.counting"]
    assert run("extensions", "check", "guards/nothing.py").exit_code == AT_FAULT


def test_every_built_in_extension_passes(run):
    listed = json.loads(run("extensions", "list", "--json").stdout)["extensions"]
    names = [item["name"] for item in listed if item["builtin"]]
    code, data, found = check(run, *names)
    assert (code, [entry for entry in found if entry[1] == "error"]) == (OK, [])
    assert {item["name"] for item in data["extensions"]} == set(names)


def test_nothing_to_check_is_said_with_a_code_of_its_own(run, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    assert run("extensions", "check").exit_code == NOTHING
    assert run("extensions", "check", "--allow-empty").exit_code == OK
    assert json.loads(run("extensions", "check", "--json").stdout) == {"ok": True, "extensions": [], "problems": []}


def test_a_name_that_is_none_is_an_error_with_a_suggestion(run, installed):
    installed()
    result = run("extensions", "check", "acme.gard")
    assert result.exit_code == AT_FAULT
    assert "acme.guard" in result.stderr


def test_what_is_blocked_is_not_looked_at(run, installed, monkeypatch):
    installed("raise SystemExit(9)\n")
    monkeypatch.setenv("POLICYENGINE_BLOCK", "acme-*")
    result = run("extensions", "check", "--allow-empty")
    assert (result.exit_code, "blocked, not looked at: acme-guards 0.4" in result.stderr) == (OK, True)
    code, _, found = check(run, "acme.guard")
    assert (code, found[0][0]) == (AT_FAULT, "X410")
    listed = json.loads(run("extensions", "list", "--json").stdout)
    assert [item["by"] for item in listed["blocked"]] == ["POLICYENGINE_BLOCK"]


# ---- list --no-import


def test_metadata_is_listed_of_packages_whose_import_would_crash(run, installed):
    installed("from pathlib import Path\n\nPath('touched').touch()\nraise SystemExit(9)\n")
    Path("guards/worse.py").write_text("from pathlib import Path\n\nPath('touched').touch()\n1 / 0\n")
    result = run("extensions", "list", "--no-import", "--folder", "guards", "--json")
    assert (result.exit_code, result.stderr) == (OK, "")
    listed = json.loads(result.stdout)["extensions"]
    (entry,) = [item for item in listed if item["distribution"] == "acme-guards"]
    assert entry == {
        "name": "acme.guard",
        "distribution": "acme-guards",
        "version": "0.4",
        "entry_point": "acme.guard = acme_checked:Guard",
        "engine": ">=0.1,<1",
        "summary": "Some guards.",
        "origin": "",
        "builtin": False,
        "blocked": "",
    }
    assert [item["origin"] for item in listed if item.get("origin")] == ["guards/counting.py", "guards/worse.py"]
    assert "step_limit" in {item["name"] for item in listed}
    assert "acme_checked" not in sys.modules
    assert not Path("touched").exists()
    shown = run("extensions", "list", "--no-import").stdout
    assert "acme-guards 0.4" in shown
    assert ">=0.1,<1" in shown


# ---- block


def test_the_lines_to_add_are_printed_and_what_they_meet_is_said(run, installed):
    installed("raise SystemExit(9)\n")
    result = run("extensions", "block", "acme.*", "acme-later", "step_limit")
    assert (result.exit_code, result.stdout) == (OK, 'requires:\n  block: ["acme.*", "acme-later", "step_limit"]\n')
    assert "acme.*: acme-guards 0.4, entry point acme.guard = acme_checked:Guard" in result.stderr
    assert "acme-later: nothing that is known here" in result.stderr
    assert "step_limit: step_limit" in result.stderr
    assert "POLICYENGINE_BLOCK='acme.*,acme-later,step_limit'" in result.stderr
    plain = run("extensions", "block", "acme-guards", "step_limit")
    assert "POLICYENGINE_BLOCK=acme-guards,step_limit\n" in plain.stderr
    assert "acme_checked" not in sys.modules


def test_an_overlay_of_blocks_is_begun_and_extended_and_holds(run):
    for pattern in ("demo.*", "acme-guards", "demo.*"):
        result = run("extensions", "block", pattern, "--overlay", "blocks.yaml", "--target", "demo")
        assert (result.exit_code, result.stdout) == (OK, "blocks.yaml\n")
    assert Path("blocks.yaml").read_text() == (
        'apiVersion: policyengine/v1\nkind: Overlay\ntarget: demo\nrequires:\n  block: ["demo.*", "acme-guards"]\n'
    )
    assert run("extensions", "block", "b.c", "--overlay", "blocks.yaml").exit_code == OK
    refused = run("check", "demo.yaml", "--folder", "guards", "--overlay", "blocks.yaml")
    assert refused.exit_code == AT_FAULT
    assert (
        "error[X410] extensions.counting.use: demo.counting is blocked by 'demo.*' of blocks.yaml:5:" in refused.stderr
    )
    assert sorted(path.name for path in Path().iterdir() if path.name.startswith((".b", "b"))) == ["blocks.yaml"]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["demo.*", "--overlay", "new.yaml"], "say with --target"),
        (["demo.*", "--overlay", "demo.yaml"], "holds more than blocks"),
        (["demo.*", "--overlay", "mine.yaml"], "holds more than blocks"),
        (["demo.*", "--overlay", "broken.yaml"], "holds more than blocks"),
        (["demo.*", "--overlay", "blocks.yaml", "--target", "other"], "is an overlay for 'demo'"),
        (["demo.*", "--overlay", "none/new.yaml", "--target", "demo"], "cannot be written"),
        (["de mo"], "neither the name"),
        ([""], "neither the name"),
    ],
)
def test_no_file_that_holds_anything_else_is_changed(run, args, reason):
    assert run("extensions", "block", "a.b", "--overlay", "blocks.yaml", "--target", "demo").exit_code == OK
    Path("mine.yaml").write_text(Path("blocks.yaml").read_text() + "# mine\n")
    Path("broken.yaml").write_text("a: [")
    before = {path.name: path.read_bytes() for path in Path().glob("*.yaml")}
    result = run("extensions", "block", *args)
    assert (result.exit_code, reason in result.stderr) == (AT_FAULT, True), result.stderr
    assert {path.name: path.read_bytes() for path in Path().glob("*.yaml")} == before
