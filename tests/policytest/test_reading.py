"""Files of kind `PolicyTest`: what is misspelt is an error with its place, never a test that passes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import ConfigError
from policyengine.policytest.read import find_files, read_suite

HEAD = "apiVersion: policyengine/v1\nkind: PolicyTest\npolicy: default\n"
TEST = """\
tests:
  - name: a test
    turns:
      - {times: 2, calls: [{tool: look, args: {at: 1}}]}
    expect:
      - {allow: stall_detector}
"""


@pytest.fixture
def problems(tmp_path, monkeypatch):
    """Return the problems of a file, as `line code help`."""
    monkeypatch.chdir(tmp_path)

    def read(text: str, name: str = "a.test.yaml") -> list[str]:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as raised:
            read_suite(path)
        return [f"{item.position.line} {item.code} {item.path} {item.help}" for item in raised.value.problems]

    return read


def with_expectation(text: str) -> str:
    return HEAD + TEST.replace("{allow: stall_detector}", text)


def test_a_test_is_read_with_what_it_says(tmp_path):
    path = tmp_path / "a.test.yaml"
    path.write_text(
        HEAD + "tools: {look: {effect: poll, timeout: 2s, result_mask: 'x+', failure: {text_prefix: no}}}\n" + TEST
        + "    pace: 2s\n    human: refuses\n    agent: crawler\n    protocol: text\n    task: Look.\n"
    )  # fmt: skip
    suite = read_suite(path)
    (case,) = suite.cases
    assert (len(case.turns), case.turns[0].calls[0].args) == (2, {"at": 1})
    assert (case.pace_s, case.approves, case.agent, case.protocol, case.task) == (2, False, "crawler", "text", "Look.")
    ((pattern, facts),) = case.tools
    assert (pattern, facts.effect, facts.timeout_s, facts.failure.text_prefix) == ("look", "poll", 2, ("no",))
    assert (case.position.line, case.expect[0].position.line) == (6, 10)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD.replace("policy:", "polcy:") + TEST, '3 S204 polcy did you mean "policy"?'),
        (HEAD.replace("PolicyTest", "Policytest") + TEST, '2 S210 kind did you mean "PolicyTest"?'),
        (HEAD + TEST.replace("expect", "expects"), '8 S204 tests[0].expects did you mean "expect"?'),
        (HEAD + TEST.replace("tool: look", "tol: look"), '7 S204 tests[0].turns[0].calls[0].tol did you mean "tool"?'),
        (with_expectation("{alow: x}"), '9 S204 tests[0].expect[0].alow did you mean "allow"?'),
        (with_expectation("{at: 1, rule: x, action: denny}"), '9 S202 tests[0].expect[0].action did you mean "deny"?'),
        (with_expectation("{at: [1, 0], rule: step_limit, action: deny}"), "9 S205 tests[0].expect[0].at[1]"),
        (with_expectation("{allow: true}"), "9 S201 tests[0].expect[0].allow"),
        (with_expectation("{allow: ''}"), "9 S206 tests[0].expect[0].allow"),
        (with_expectation("allow"), "9 S201 tests[0].expect[0]"),
        (with_expectation("{outcome: complete}"), '9 S202 tests[0].expect[0].outcome did you mean "completed"?'),
        (HEAD + TEST + "    faults: {step_limit: rais}\n", '10 S202 tests[0].faults.step_limit did you mean "raise"?'),
    ],
)  # fmt: skip
def test_what_is_misspelt_in_the_form_is_an_error_with_a_suggestion(problems, text, problem):
    assert any(found.startswith(problem) for found in problems(text)), problems(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (with_expectation("{allow: stal_detector}"), '9 T901 tests[0].expect[0].allow did you mean "stall_detector"?'),
        (with_expectation("{error: steplimit}"), '9 T901 tests[0].expect[0].error did you mean "step_limit"?'),
        (with_expectation("{at: 1, rule: steps, action: deny}"), "9 T901 tests[0].expect[0].rule rules of the policy:"),
        (with_expectation("{outcome: stopped, rule: step_lmit}"), "9 T901 tests[0].expect[0].rule did you mean"),
        (with_expectation("{allow: step_limit, tool: lok}"), '9 T902 tests[0].expect[0].tool did you mean "look"?'),
        (HEAD + TEST + "    faults: {step_limt: raise}\n", "10 T901 tests[0].faults.step_limt did you mean"),
        (HEAD + "tools: {lok: {}, look: {}}\n" + TEST, '4 T902 tools.lok did you mean "look"?'),
        (HEAD + TEST + "    tools: {lok: {}}\n", '7 T902 tests[0].turns[0].calls[0].tool did you mean "lok"?'),
        (HEAD + TEST + TEST.removeprefix("tests:\n"), "10 T904 tests[1].name"),
    ],
)  # fmt: skip
def test_a_name_that_nothing_has_is_an_error_with_a_suggestion(problems, text, problem):
    assert any(found.startswith(problem) for found in problems(text)), problems(text)


@pytest.mark.parametrize(
    "expectation",
    [
        "{at: 1}",
        "{until: 3}",
        "{at: 1, rule: step_limit}",
        "{rule: step_limit, action: deny}",
        "{at: 1, call: 1, rule: step_limit, action: deny}",
        "{at: 1, rule: step_limit, action: deny, wants: deny}",
        "{at: 1, rule: step_limit, action: deny, until: 3}",
        "{allow: step_limit, at: 3}",
        "{tool: look}",
        "{allow: step_limit, code: repeat}",
        "{outcome: completed, at: 3}",
    ],
)
def test_an_expectation_says_one_thing_and_all_of_it(problems, expectation):
    assert any(found.startswith("9 T903 tests[0].expect[0]") for found in problems(with_expectation(expectation)))


def test_all_problems_of_a_file_are_reported_together_in_order(problems):
    found = problems(with_expectation("{allow: nobody}") + "      - {error: nobody}\n    faults: {nobody: raise}\n")
    assert [item[:7] for item in found] == ["9 T901 ", "10 T901", "11 T901"]


def test_a_policy_that_cannot_be_used_is_reported_at_its_own_place(tmp_path):
    (tmp_path / "house.yaml").write_text("apiVersion: policyengine/v1\nkind: Policy\nname: house\nextensons: {}\n")
    path = tmp_path / "a.test.yaml"
    path.write_text(HEAD.replace("default", "./house.yaml") + TEST)
    with pytest.raises(ConfigError) as raised:
        read_suite(path)
    (problem,) = raised.value.problems
    assert (problem.position.file, problem.position.line) == (str(tmp_path / "house.yaml"), 4)


MISSPELT = (
    ("PolicyTest\n", "PolicyTst\n", "S210", 'did you mean "PolicyTest"?'),
    ("policy: default", "policy: defualt", "M301", 'did you mean "default"?'),
    ("calls:", "call:", "S204", 'did you mean "calls"?'),
    ("effect: poll", "effect: pol", "S202", 'did you mean "poll"?'),
    ("{look: {effect", "{lok: {effect", "T902", 'did you mean "lo'),
    ("tool: look,", "tool: lok,", "T902", 'did you mean "look"?'),
    ("allow: stall_detector", "alow: stall_detector", "S204", 'did you mean "allow"?'),
    ("allow: stall_detector", "allow: stal_detector", "T901", 'did you mean "stall_detector"?'),
    ("rule: step_limit", "rule: step_limt", "T901", 'did you mean "step_limit"?'),
    ("action: stop", "action: stp", "S202", 'did you mean "stop"?'),
    ("outcome: completed", "outcome: complete", "S202", 'did you mean "completed"?'),
    ("faults: {step_limit", "faults: {step_limt", "T901", 'did you mean "step_limit"?'),
    ("step_limit: raise", "step_limit: rise", "S202", 'did you mean "raise"?'),
    ("pace: 2s", "pace: 2 s", "S207", "write 250ms"),
)


@pytest.mark.parametrize(("right", "wrong", "code", "advice"), MISSPELT)
def test_no_misspelt_name_of_a_whole_file_is_passed_over(problems, right, wrong, code, advice):
    assert WHOLE.count(right)
    assert any(f" {code} " in found and advice in found for found in problems(WHOLE.replace(right, wrong, 1)))


@pytest.mark.parametrize("selector", ["lok", "loo", "Look", "look?", "[look]x", "l*d"])
def test_an_expectation_about_calls_that_no_turn_makes_is_an_error(problems, selector):
    for form in ("allow: step_limit", "at: 1, rule: step_limit, action: stop"):
        (found,) = problems(with_expectation(f"{{{form}, tool: '{selector}'}}"))
        assert found.startswith("9 T902 tests[0].expect[0].tool")


def test_json_is_read_too(problems):
    assert problems('{"kind": "PolicyTest"}', "a.json")[0].endswith("apiVersion write `apiVersion: policyengine/v1`")


def test_a_file_that_is_named_like_tests_is_read_unless_it_is_a_policy(tmp_path):
    kinds = {"a": "kind: PolicyTset", "b": "kind: Policy", "c": 'kind: "Overlay"', "d": "knid: PolicyTest", "e": ""}
    for name, text in kinds.items():
        (tmp_path / f"{name}.test.yaml").write_text(f"apiVersion: policyengine/v1\n{text}\n")
    assert [path.name[0] for path in find_files([str(tmp_path)])] == ["a", "d", "e"]


def test_below_a_directory_only_files_of_the_kind_are_found(tmp_path):
    for name in ("b.test.yaml", "deep/a.yml", "c.json5", ".hidden/x.yaml", "policy.yaml", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("kind: Policy\n" if name == "policy.yaml" else "# x\nkind: PolicyTest\n")
    (tmp_path / "broken.yaml").write_bytes(b"\xff\xfe: [")
    (tmp_path / "d.json").write_text('{"apiVersion": "policyengine/v1", "kind": "PolicyTest"}')
    found = find_files([str(tmp_path), str(tmp_path / "b.test.yaml"), "missing.yaml"])
    assert [path.name for path in found] == ["b.test.yaml", "c.json5", "d.json", "a.yml", "missing.yaml"]


WHOLE = (
    HEAD + "tools: {look: {effect: poll}}\n" + TEST + "      - {at: [1, 2], rule: step_limit, action: stop}\n"
    "      - {outcome: completed, executed: 2}\n    faults: {step_limit: raise}\n    pace: 2s\n"
)


@given(st.data())
@settings(max_examples=60)
def test_a_damaged_file_is_read_or_refused_with_positions(tmp_path_factory, data):
    start = data.draw(st.integers(0, len(WHOLE) - 1))
    end = data.draw(st.integers(start, min(len(WHOLE), start + 40)))
    put = data.draw(st.sampled_from(["", "x", "null", "[", "{", "- ", ": ", "1", "true", "\n", "''", "{a: 1}", "[2]"]))
    path = tmp_path_factory.mktemp("damaged") / "a.test.yaml"
    path.write_text(WHOLE[:start] + put + WHOLE[end:], encoding="utf-8")
    try:
        read_suite(path)
    except ConfigError as error:
        assert all(problem.position.file for problem in error.problems)  # noqa: PT017 - either way is fine
