"""`policyengine test`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

HEAD = "apiVersion: policyengine/v1\nkind: PolicyTest\npolicy: demo.yaml\nfolders: [guards]\ntests:\n"
GOOD = (
    HEAD
    + """\
  - name: the third call is refused
    turns: [{times: 4, calls: [{tool: look}]}, {text: done}]
    expect:
      - {at: [3, 4], rule: counting, action: deny}
      - {allow: counting, until: 1}
"""
)
BAD = GOOD.replace("[3, 4]", "2")


@pytest.fixture
def tested(run):
    """Run the verb on files of these texts."""

    def invoke(*args: str, **files: str):
        for name, text in files.items():
            Path(f"{name}.test.yaml").write_text(text)
        return run("test", *(args or ["."]))

    return invoke


def test_tests_that_pass_are_counted_by_file(tested):
    result = tested(good=GOOD)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "good.test.yaml (demo): 1 pass, 0 fail\n", "")


def test_a_test_that_fails_is_shown_with_its_line_and_what_happened_instead(tested):
    result = tested(bad=BAD, good=GOOD)
    assert result.exit_code == 1
    assert "FAILED the third call is refused\n" in result.stdout
    assert "bad.test.yaml:9:9: counting should deny in round 2, but does so in round 3, 4\n" in result.stdout
    assert "  round 3, before_tool_call (call 3 look): deny counting (observed 3, limit 3)\n" in result.stdout
    assert "good.test.yaml (demo): 1 pass, 0 fail\n" in result.stdout


def test_a_file_that_cannot_be_played_is_code_2_and_keeps_no_other_from_being_played(tested):
    result = tested(good=GOOD, typo=GOOD.replace("rule: counting", "rule: conting"), bad=BAD)
    assert result.exit_code == 2
    assert "typo.test.yaml:9:28: error[T901] tests[0].expect[0].rule: the policy has no rule 'conting'" in result.stderr
    assert 'did you mean "counting"?' in result.stderr
    assert "good.test.yaml (demo): 1 pass" in result.stdout


def test_a_file_that_is_missing_and_a_policy_that_is_broken_are_code_2(tested):
    assert tested("missing.test.yaml").exit_code == 2
    Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("hint", "hnit"))
    result = tested(good=GOOD)
    assert (result.exit_code, "demo.yaml:9:12: error[S204] extensions.counting.with.hnit" in result.stderr) == (2, True)


def test_no_tests_are_code_4_unless_that_is_allowed(tested):
    for sources in (["."], ["empty.test.yaml"], ["--json", "."]):
        assert tested(*sources, empty=HEAD.rstrip() + " []\n").exit_code == 4
        assert tested("--allow-empty", *sources).exit_code == 0
    assert tested("--allow-empty").exit_code == 0


def test_coverage_is_shown_by_rule_and_threshold(tested):
    result = tested("--coverage", ".", good=GOOD)
    assert result.exit_code == 0
    assert "coverage of demo: 87.5 % (7 of 8)" in result.stdout
    assert "counting.hint      2  yes    yes  -" in result.stdout
    assert "counting.deny      3  yes    yes  yes" in result.stdout


def test_too_little_coverage_fails(tested):
    result = tested("--fail-under", "100", ".", good=GOOD)
    assert result.exit_code == 1
    assert "the tests reach 87.5 % of the policy, less than 100 %" in result.stderr
    assert tested("--fail-under", "87.5", ".").exit_code == 0
    assert tested("--fail-under", "101", ".").exit_code == 1


def test_json_holds_everything(tested):
    result = tested("--json", "--coverage", ".", bad=BAD)
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["ok"], told["tests"], told["failed"], told["broken"]) == (False, 1, 1, [])
    (file,) = told["files"]
    assert (file["file"], file["policy"]["name"]) == ("bad.test.yaml", "demo")
    (test,) = file["tests"]
    assert (test["name"], test["line"], test["ok"]) == ("the third call is refused", 6, False)
    (failure,) = test["failures"]
    assert (failure["line"], failure["message"].split(",")[0]) == (9, "counting should deny in round 2")
    (rule,) = told["coverage"]["policies"][0]["rules"]
    assert (rule["rule"], rule["evaluated"], rule["thresholds"][0]["option"]) == ("counting", 1, "hint")


def test_json_names_the_files_that_could_not_be_played(tested):
    told = json.loads(tested("--json", "--coverage", ".", bad="kind: PolicyTest\n", good=GOOD).stdout)
    assert (told["ok"], told["coverage"], told["broken"][0]["file"]) == (False, None, "bad.test.yaml")
    assert told["broken"][0]["problems"][0]["code"] == "S203"


def test_the_short_form_has_one_line_for_each_failure_and_each_problem(tested):
    result = tested("--format", "short", "--coverage", ".", bad=BAD, good=GOOD)
    assert result.exit_code == 1
    assert result.stdout == (
        "bad.test.yaml (demo): 0 pass, 1 fail\n"
        "bad.test.yaml:9:9: the third call is refused: counting should deny in round 2, but does so in round 3, 4\n"
        "good.test.yaml (demo): 1 pass, 0 fail\n"
        "coverage of demo: 87.5 % (7 of 8)\n"
    )
    result = tested("--format", "short", ".", typo=GOOD.replace("rule: counting", "rule: conting"))
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "typo.test.yaml:9:28: error[T901] tests[0].expect[0].rule: the policy has no rule 'conting'"
    ]


def test_the_form_for_github_annotates_the_lines_and_prints_nothing_else(tested):
    result = tested(
        "--format", "github", ".", bad=BAD, good=GOOD, typo=GOOD.replace("allow: counting", "allow: conting")
    )
    assert (result.exit_code, result.stderr) == (2, "")
    failed, wrong = result.stdout.splitlines()
    assert failed.startswith(
        "::error file=bad.test.yaml,line=9,col=9,title=the third call is refused::"
        "counting should deny in round 2, but does so in round 3, 4%0A  round"
    )
    assert wrong.startswith(
        "::error file=typo.test.yaml,line=10,col=17,title=T901::tests[0].expect[1].allow: the policy"
    )
    assert tested("--format", "github", "good.test.yaml").stdout == ""


def test_the_form_json_is_the_option_json(tested):
    result = tested("--format", "json", ".", bad=BAD, good=GOOD, typo="kind: PolicyTest\n")
    assert (result.exit_code, result.stderr) == (2, "")
    assert json.loads(result.stdout)["broken"][0]["file"] == "typo.test.yaml"
    assert result.stdout == tested("--json", ".").stdout


def test_a_file_whose_kind_is_misspelt_is_not_passed_over(tested):
    result = tested(typo=GOOD.replace("PolicyTest", "PolicyTset"), good=GOOD)
    assert result.exit_code == 2
    assert "typo.test.yaml:2:7: error[S210] kind" in result.stderr
    assert 'did you mean "PolicyTest"?' in result.stderr


def test_a_policy_in_which_a_hook_an_extension_or_a_tool_is_misspelt_is_not_tested(tested):
    policy = Path("demo.yaml").read_text()
    for wrong, code in (
        (policy.replace("use: demo.counting", "use: demo.conting"), "X401"),
        (policy.replace("use: demo.counting", "use: demo.counting\n    at: before_tol_call"), "R501"),
        (policy.replace("use: demo.counting", "use: demo.counting\n    wehn: {tool: look}"), "S204"),
    ):
        assert wrong != policy
        Path("demo.yaml").write_text(wrong)
        result = tested(good=GOOD)
        assert (result.exit_code, f"error[{code}]" in result.stderr) == (2, True), result.stderr
    Path("demo.yaml").write_text(policy.replace("use: demo.counting", "use: demo.counting\n    when: {tool: lok}"))
    result = tested(good=GOOD)
    assert result.exit_code == 1
    assert "counting should allow this until round 1, but it is never asked: its selector is tool lok" in result.stdout


def test_a_directory_without_tests_is_code_4_for_every_form(tested):
    for form in ("full", "short", "json", "github"):
        result = tested("--format", form, ".")
        assert (result.exit_code, "no test found" in result.stderr) == (4, True)


def test_junit_has_a_case_for_every_test_and_every_file_that_could_not_be_played(tested):
    odd = BAD.replace("the third call is refused", '"a \\u0007 bell & <tag>"')
    result = tested("--junit", "out.xml", ".", bad=odd, good=GOOD, typo="kind: PolicyTest\n")
    assert result.exit_code == 2
    root = ElementTree.parse("out.xml").getroot()
    counts = {suite.get("name"): (suite.get("failures"), suite.get("errors")) for suite in root}
    assert counts == {"bad.test.yaml": ("1", "0"), "good.test.yaml": ("0", "0"), "typo.test.yaml": ("0", "1")}
    case = root.find("testsuite/testcase")
    assert (case.get("name"), case.get("line")) == ("a \\x07 bell & <tag>", "6")
    assert "but does so in round 3, 4" in case.find("failure").get("message")


def test_a_junit_file_that_cannot_be_written_is_said(tested):
    result = tested("--junit", "no/such/out.xml", ".", good=GOOD)
    assert (result.exit_code, "cannot write no/such/out.xml" in result.stderr) == (1, True)
