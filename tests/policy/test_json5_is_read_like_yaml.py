"""A JSON5 file with the same structure is the same policy; its hazards are errors with a line or a key path."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.errors import ConfigError
from policyengine.policy.json5text import MAX_JSON5_CHARS, read_json5
from policyengine.policy.problems import Position, Problem


def read(text: str | bytes) -> object:
    return read_json5(text.encode() if isinstance(text, str) else text, "p.json5").root.data


def problems(text: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return caught.value.problems


def test_json5_comments_bare_keys_and_trailing_commas_are_read() -> None:
    text = "// a policy\n{name: 'x', /* why */ list: [1, +2, 0x10, .5,], 'on': true, deep: {a: null,},}\n"
    assert read(text) == {"name": "x", "list": [1, 2, 16, 0.5], "on": True, "deep": {"a": None}}


def test_plain_json_is_read_without_the_slow_parser() -> None:
    text = json.dumps({f"key{n}": {"a": [1, 2.5e3, "x", True]} for n in range(5000)})
    start = time.process_time()
    assert len(text) > MAX_JSON5_CHARS
    assert read(text) == json.loads(text)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{a: 1,\n  b:: 2}", "p.json5:2:5"),
        ("{a: }", "p.json5:1:5"),
        ("{'a': 'x}", "p.json5:1:10"),
        ("{a: 1}}", "p.json5:1:7"),
        ("/* open", "p.json5:1:8"),
        ("{a: 1 b: 2}", "p.json5:1:7"),
    ],
)
def test_syntax_errors_have_line_and_column(text: str, place: str) -> None:
    (problem,) = problems(text)
    assert (problem.code, str(problem.position)) == ("Y104", place)


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        ('{"a": {"b": 1, "b": 2}}', "Y112", "a.b"),
        ("{a: {b: 1, 'b': 2}}", "Y112", "a.b"),
        ('{"a": {"x.y": 1, "x.y": 2}}', "Y112", 'a."x.y"'),
        ('{"a": [1, NaN]}', "Y115", "a[1]"),
        ("{a: [1, Infinity]}", "Y115", "a[1]"),
        ("{a: -Infinity}", "Y115", "a"),
        ('{"a": 1e999}', "Y115", "a"),
        ('{"a": ' + "9" * 5000 + "}", "Y115", "a"),
        ("{a: " + "9" * 5000 + "}", "Y115", "a"),
        ("{a: 0x" + "F" * 17 + "}", "Y115", "a"),
        ('{"a": {"": 1}}', "Y113", "a"),
        ('{"a": "\\ud800"}', "Y121", "a"),
        ("[1]", "Y117", ""),
        ('"text"', "Y117", ""),
    ],
)
def test_other_problems_have_the_key_path(text: str, code: str, path: str) -> None:
    assert [(problem.code, problem.path, problem.position.file) for problem in problems(text)] == [
        (code, path, "p.json5")
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "Y116"),
        (" \n", "Y116"),
        ("[" * 120_000, "Y105"),
        ("{a:" * 120_000, "Y105"),
        ("[" * 41 + "]" * 41, "Y105"),
        ("'" * 400_001, "Y119"),
        ("/*" * 400_000, "Y119"),
        ("{a: 'x'," + " " * MAX_JSON5_CHARS + "}", "Y119"),
        ("{}" + " " * (1024 * 1024), "Y101"),
        ("{'a\u2028': 1}", "Y103"),
        ("{}".encode("utf-16"), "Y102"),
        ("{'é': 1}".encode("latin-1"), "Y102"),
        (random.Random(7).randbytes(1024 * 1024), "Y102"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) == 4 else "text",
)
def test_hostile_texts_are_refused_within_a_second(text: str | bytes, code: str) -> None:
    start = time.process_time()
    assert [problem.code for problem in problems(text)] == [code]
    assert time.process_time() - start < 1.0


def test_forty_levels_are_accepted_and_brackets_in_texts_and_comments_do_not_count() -> None:
    assert read("{a: " + "[" * 39 + "]" * 39 + "}")
    brackets = "[{" * 100
    assert read(f'{{a: \'{brackets}\\\'\', "b": "{brackets}", // {brackets}\n /* {brackets} */ c: 1}}')


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.just("x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), VALUES, max_size=4), st.booleans())
def test_what_json_writes_is_read_back_unchanged(data: dict[str, object], commented: bool) -> None:
    assert read(("// c\n" if commented else "") + json.dumps(data)) == data


JSONISH = st.lists(st.sampled_from([*"{}[]:,'\"ab01-+.eE/*\\ \n", "//", "/*", "*/", "NaN", "null"]), max_size=25).map(
    "".join
)


@settings(max_examples=300, deadline=None)
@given(
    JSONISH.map(str.encode)
    | st.binary(max_size=100)
    | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))
)
def test_arbitrary_bytes_raise_nothing_but_config_errors(data: bytes) -> None:
    found = [Problem("Y104", "none", Position("p.json5"))]
    try:
        read(data)
    except ConfigError as error:
        found = list(error.problems)
    assert found
    assert all(problem.full() for problem in found)
