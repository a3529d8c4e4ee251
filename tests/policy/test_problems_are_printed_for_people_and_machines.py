"""One format for people, three for tools; codes are stable and explained."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from policyengine import policy
from policyengine.mistakes import mistake
from policyengine.policy.codes import CODES, explain_code
from policyengine.policy.problems import Position, Problem, in_order, render
from policyengine.policy.wording import closest, dotted, shown, suggestion

PROBLEM = Problem(
    "S204",
    "unknown setting",
    Position("eu.yaml", 14, 7),
    "extensions.stall.with.similarty",
    help='did you mean "similarity"?',
    note="rule defined in default.yaml:22:3, extended here",
    source_line="      similarty: 0.9",
    length=9,
)


def test_the_full_form_shows_source_line_help_and_note() -> None:
    assert render([PROBLEM]).splitlines() == [
        "eu.yaml:14:7: error[S204] extensions.stall.with.similarty: unknown setting",
        "   14 |       similarty: 0.9",
        "      |       ^^^^^^^^^",
        '  help: did you mean "similarity"?',
        "  note: rule defined in default.yaml:22:3, extended here",
    ]


def test_the_short_form_is_one_line_each() -> None:
    assert render([PROBLEM, PROBLEM], "short").splitlines() == [PROBLEM.short()] * 2


def test_the_json_form_is_an_array_of_plain_records() -> None:
    (record,) = json.loads(render([PROBLEM], "json"))
    assert (record["code"], record["file"], record["line"], record["column"]) == ("S204", "eu.yaml", 14, 7)
    assert render([], "json") == "[]"


def test_the_github_form_escapes_what_would_end_the_command() -> None:
    problem = Problem("Y104", "50% of\nit", Position("a,b:c.yaml", 3), severity="warning")
    assert render([problem], "github") == "::warning file=a%2Cb%3Ac.yaml,line=3,title=Y104::50%25 of%0Ait"


def test_a_long_source_line_is_cut_around_the_problem() -> None:
    line = "x" * 5000 + "HERE" + "y" * 5000
    rows = Problem("Y104", "m", Position("a", 1, 5001), source_line=line, length=4).full().splitlines()
    assert len(rows[1]) < 200
    assert rows[1][rows[2].index("^") :].startswith("HEREy")
    assert rows[2].count("^") == 4


def test_the_caret_stands_below_wide_characters_and_tabs() -> None:
    rows = Problem("Y104", "m", Position("a", 1, 5), source_line="键:\t值x", length=1).full().splitlines()
    assert rows[2] == "      |       ^"


def test_problems_are_sorted_by_file_and_line() -> None:
    places = [Position("b", 1, 1), Position("a", 10, 1), Position("a", 2, 5), Position("a", 2, 1)]
    ordered = in_order([Problem("Y104", "m", place) for place in places])
    assert [str(problem.position) for problem in ordered] == ["a:2:1", "a:2:5", "a:10:1", "b:1:1"]


def test_every_code_in_use_is_explained_and_every_explained_code_is_in_use() -> None:
    package = Path(policy.__file__).parents[1]
    files = [path for path in package.rglob("*.py") if path.name != "codes.py"]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    used = {text for text in texts if re.fullmatch("[A-Z][0-9]{3}", text)}
    assert used == set(CODES)
    assert [code for code in used if mistake(code) is None] == []


@pytest.mark.parametrize("code", sorted(CODES))
def test_an_explanation_is_one_sentence(code: str) -> None:
    text = explain_code(code.lower())
    assert text is not None
    assert text.endswith(".")


def test_an_unknown_code_has_no_explanation() -> None:
    assert explain_code("Q999") is None


def test_key_paths_quote_what_would_be_ambiguous() -> None:
    assert (
        dotted(("extensions", "acme.spend", "with", "tools", "pay_*", 2))
        == 'extensions."acme.spend".with.tools.pay_*[2]'
    )
    assert dotted(("a b", "c\nd", "\ud800")) == '"a b"."c\\nd"."\\ud800"'


def test_values_are_shown_on_one_short_line() -> None:
    assert shown("a\nb") == '"a\\nb"'
    assert len(shown("x" * 10_000)) <= 60
    assert (shown({}), shown({"a": 1}), shown([1]), shown(None), shown(True)) == (
        "{}",
        "a mapping",
        "a list",
        "null",
        "true",
    )


def test_suggestions_name_the_closest_word_and_the_choice() -> None:
    assert closest("Stall-Detector", ["stall_detector", "other"]) == "stall_detector"
    assert suggestion("limt", ["limit", "word"]) == 'did you mean "limit"? (known: limit, word)'
    assert suggestion("zzz", ["limit"]) == "known: limit"
    assert suggestion("zzz", []) == ""
