"""`policyengine explain-error`, and the examples behind it: each causes the code it stands under, and no other."""

from __future__ import annotations

import json

import pytest

from policyengine.mistakes import FAMILIES, File, Repeated, mistake, mistakes_of
from policyengine.mistakes.play import play
from policyengine.policy.codes import CODES

EXAMPLES = {code: example for letter in FAMILIES for code, example in mistakes_of(letter).items()}
SEEN = [code for code, example in EXAMPLES.items() if not example.unseen]


# ---- the examples


def test_every_code_has_an_entry_in_the_file_of_its_family_and_no_entry_lacks_a_code():
    assert set(EXAMPLES) == set(CODES)
    assert all(code[0] == letter for letter in FAMILIES for code in mistakes_of(letter))


@pytest.mark.parametrize("code", SEEN)
def test_an_example_yields_exactly_its_code(code):
    assert [problem.code for problem in play(EXAMPLES[code])] == [code]


@pytest.mark.parametrize("code", [code for code in SEEN if EXAMPLES[code].fixed])
def test_a_corrected_example_has_no_problem_at_all(code):
    assert play(EXAMPLES[code], fixed=True) == ()


def test_only_what_no_document_can_cause_has_no_example_and_only_what_is_too_long_has_no_correction():
    assert set(CODES) - set(SEEN) == {"X407", "E806", "E807", "E814"} | {f"X41{digit}" for digit in range(1, 8)}
    unfixed = {code for code in SEEN if not EXAMPLES[code].fixed}
    assert unfixed == {"Y101", "Y102", "Y105", "Y106", "Y119", "S214", "M313", "E804", "E805", "E812", "E813"}


@pytest.mark.parametrize("code", CODES)
def test_every_entry_says_what_to_do(code):
    assert EXAMPLES[code].fix.rstrip(".").count(" ") >= 2
    assert EXAMPLES[code].unseen or EXAMPLES[code].files


def test_problems_name_files_as_the_example_does():
    (problem,) = play(mistake("M306"))
    assert (problem.position.file, problem.position.line) == ("overlay.yaml", 4)
    (broken,) = play(mistake("X406"))
    assert "(guards/spend.py:2)" in broken.message


def test_what_is_repeated_is_written_whole_and_shown_in_part():
    file = File("part-{n}.yaml", ("a\n", Repeated("  - {n}\n", 3), "b {n}\n"), 2)
    assert list(file.written())[1] == ("part-2.yaml", "a\n  - 1\n  - 2\n  - 3\nb 2\n")
    assert file.shown() == "a\n  - 1\n  - 2\n  ... (3 in all)\nb {n}\n"


def test_an_unknown_code_has_no_example():
    assert mistake("S299") is mistake("Q1") is mistake("") is None


# ---- the verb


def test_a_code_is_explained_with_a_document_what_it_prints_and_a_corrected_one(run):
    result = run("explain-error", "S204")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"S204  {CODES['S204']}\nSchema; an error\n\npolicy.yaml\n\n    apiVersion:")
    assert "prints\n\n    policy.yaml:5:23: error[S204] extensions.step_limit.with.max_step: unknown" in result.stdout
    assert '      help: did you mean "max_steps"?' in result.stdout
    assert result.stdout.endswith("\n      step_limit: {with: {max_steps: 40}}\n")


def test_codes_may_be_written_as_they_are_printed(run):
    assert run("explain-error", "[s204]").stdout == run("explain-error", "S204").stdout


def test_several_codes_are_explained_in_order_and_each_once(run):
    result = run("explain-error", "E805", "Y112", "E805")
    heads = [line for line in result.stdout.split("\n") if line[:4] in CODES]
    assert [head[:4] for head in heads] == ["E805", "Y112"]
    assert "policy.yaml, after it was loaded" in result.stdout


def test_a_warning_is_called_one(run):
    assert "References and reachability; a warning\n" in run("explain-error", "R506").stdout


def test_a_code_that_no_document_causes_says_why(run):
    assert "No document causes this" in run("explain-error", "E806").stdout


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("S2O4", 'did you mean "S204"?; S has S201 to '),
        ("204", 'did you mean "S204"?'),
        ("S999", "there is no code 'S999'"),
        ("ZZZZ", f"codes start with {', '.join(FAMILIES)} (--list shows all)"),
        ("", "there is no code ''"),
    ],
)
def test_an_unknown_code_is_at_fault_and_told_what_there_is(run, code, said):
    result = run("explain-error", code)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr


def test_without_a_code_one_is_asked_for(run):
    result = run("explain-error")
    assert result.exit_code == 1
    assert "which code?" in result.stderr


def test_the_list_has_every_code_or_those_of_a_beginning(run):
    listed = [line.split(" ")[0] for line in run("explain-error", "--list").stdout.splitlines()]
    assert listed == ["code", *CODES]
    some = json.loads(run("explain-error", "--list", "--json", "m30").stdout)
    assert [item["code"] for item in some] == [code for code in CODES if code.startswith("M30")]
    assert some[0]["meaning"] == CODES["M301"]
    assert run("explain-error", "--list", "Q").exit_code == 1


def test_json_holds_everything_that_is_shown(run):
    (told,) = json.loads(run("explain-error", "M313", "--json").stdout)
    assert (told["code"], told["family"], told["severity"]) == ("M313", "Layers", "error")
    assert [(file["name"], file["times"]) for file in told["files"]] == [("policy.yaml", 1), ("part-{n}.yaml", 64)]
    assert told["printed"].startswith("policy.yaml:68:5: error[M313] extends:")
    assert told["fix"]
    (variable,) = json.loads(run("explain-error", "E809", "--json").stdout)
    assert variable["env"] == {"MAX_STEPS": "many"}
    assert variable["fixed"][0]["text"].startswith("apiVersion:")


def test_an_invisible_character_is_shown_as_an_escape(run):
    assert "plan\\u200bner" in run("explain-error", "Y103").stdout
    assert "policy.yaml (saved as UTF-16)" in run("explain-error", "Y102").stdout
