"""Repairs touch structure only, are named, and never guess; what is beyond one reading is refused."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policyengine.parsing.repair import JSON5_LIMIT, MENDABLE, Allowance, mend, mend_whole
from policyengine.parsing.strict import StrictError, dumps, loads

REPAIRED = [
    ("{'a': 'x'}", {"a": "x"}, "single_quotes"),
    ("{'a': True, 'b': None, 'c': False}", {"a": True, "b": None, "c": False}, "single_quotes python_literals"),
    ('{a: 1, _b2: "x"}', {"a": 1, "_b2": "x"}, "unquoted_keys"),
    ('{"a": [1, 2,], }', {"a": [1, 2]}, "trailing_comma"),
    ('{"a": [1, 2}', {"a": [1, 2]}, "close_containers"),
    ('{"a": 1}}]', {"a": 1}, "extra_closer"),
    ('{"a": \\n[1]\\n\\n}', {"a": [1]}, "escaped_whitespace"),
    ('{"a": \\"x y\\"}', {"a": "x y"}, "unescape_structural_quotes"),
    ('{\\"a\\": \\"x\\\\ny \\\\\\"q\\\\\\"\\"}', {"a": 'x\ny "q"'}, "unescape_structural_quotes"),
    ("{\u201ca\u201d: \u201cx\u2013y\u201d}", {"a": "x\u2013y"}, "curly_quotes"),
    ('{"a"\uff1a 1\uff0c "b": 2}', {"a": 1, "b": 2}, "fullwidth_punctuation"),
    ('{"a":\u00a01}', {"a": 1}, "odd_whitespace"),
    ('{"a": 1 "b": 2}', {"a": 1, "b": 2}, "missing_comma"),
    ('{"a": "x\ty\nz"}', {"a": "x\ty\nz"}, "raw_control_characters"),
    ('{"a": "it\\\'s"}', {"a": "it's"}, "escaped_apostrophe"),
    ('{"a": "\\d+\\.py"}', {"a": "\\d+\\.py"}, "literal_backslash"),
    ('{"a": "C:\\Users\\docs"}', {"a": "C:\\Users\\docs"}, "literal_backslash"),
    ('{"a": "x \\ud83d!"}', {"a": "x \ufffd!"}, "lone_surrogate"),
    ('{"a": "\ud83d"}', {"a": "\ufffd"}, "lone_surrogate"),
]


@pytest.mark.parametrize(("text", "value", "repairs"), REPAIRED)
def test_damage_with_one_reading_is_mended_and_named(text, value, repairs):
    assert mend_whole(text, ended=True) == (value, tuple(repairs.split()))


REFUSED = [
    ('{"a": "say "hi" now"}', "not_json"),
    ('{"a": "x" "b": "y"}', "not_json"),
    ("{'a': 'it's'}", "not_json"),
    ('{"a": "x", \\"b\\": \\"y\\\\n\\"}', "mixed_escapes"),
    ("{'a': 'x\\\\t', " + '\\"b\\": 1}', "mixed_escapes"),
    ('{\\"b\\": 1, \u201ca\u201d: \u201cx\\\\t\u201d}', "mixed_escapes"),
    ("{'a': 'x', " + '\\"b\\": \\"y\\\\n\\"}', "mixed_escapes"),
    ('{"a": "\\d\\n"}', "invalid_escape"),
    ('{"a": "caf\\uu00e9"}', "invalid_escape"),
    ('{"a": "\\x41"}', "invalid_escape"),
    ('{"a": "x\\\ny"}', "invalid_escape"),
    ('{"a": 1, "a": 2}', "duplicate_key"),
    ("{'a': 1, 'a': 2}", "duplicate_key"),
    ('{"a": NaN}', "not_finite"),
    ("{'a': -Infinity}", "not_finite"),
    ("{'a': inf}", "not_finite"),
    ("{'a': 1e999}", "not_finite"),
    ('{"a": 1e999}', "not_finite"),
    ("{'a': " + "9" * 6000 + "}", "number_too_long"),
    ("{'a': " + "[" * 300 + "]" * 300 + "}", "nested_too_deep"),
    ("{'a': [1,,2]}", "not_json"),
    ("{'a': undefined}", "not_json"),
    ("{'a': b}", "not_json"),
    ("{'a': 1} and more", "trailing_text"),
    ('{"a": \\"x\\\\y\\", "b": 1}', "mixed_escapes"),
    ("no object", "not_json"),
    ("", "truncated"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_damage_with_more_than_one_reading_is_refused_with_a_reason(text, reason):
    with pytest.raises(StrictError) as caught:
        mend_whole(text, ended=True)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "x',
        "{'a': 'x",
        '{"a": "x\\',
        '{"a": ["b", "c',
        '{"a": 1,',
        '{"a":',
        '{"a',
        "{",
        '{"a": tru',
        '{"a": "x\\"}',
    ],
)
def test_a_text_that_ends_inside_a_value_is_truncated_even_if_the_model_ended_it(text):
    with pytest.raises(StrictError) as caught:
        mend_whole(text, ended=True)
    assert caught.value.reason == "truncated"


@pytest.mark.parametrize(
    ("text", "value"), [('{"a": ["x", "y"', {"a": ["x", "y"]}), ('{"a": {"b": 1}', {"a": {"b": 1}})]
)
def test_brackets_are_added_only_where_the_text_is_known_to_be_complete(text, value):
    assert mend_whole(text, ended=True) == (value, ("close_containers",))
    with pytest.raises(StrictError) as caught:
        mend_whole(text, ended=False)
    assert caught.value.reason == "truncated"


def test_strict_json_is_never_repaired():
    text = '{"code": "while(x){a()}{b()}", "t": "True, None, \\u201cx\\u201d, // no comment,]"}'
    assert mend_whole(text, ended=False) == (json.loads(text), ())


def test_json5_reads_what_only_json5_knows_within_its_allowance():
    text = '{"a": 0x10, /* why */ "b": +2, // more\n"c": .5}'
    allowance = Allowance()
    assert mend_whole(text, ended=True, allowance=allowance) == ({"a": 16, "b": 2, "c": 0.5}, ("json5",))
    assert allowance.left == 2 * JSON5_LIMIT - len(text)
    for given_to in (None, Allowance(3)):
        with pytest.raises(StrictError):
            mend_whole(text, ended=True, allowance=given_to)


@pytest.mark.parametrize("text", ['{"a": 0x1, "b": "\\d"}', '{"a": 0x1, "a": 2}', '{"a": +Infinity}', "[0x1]"])
def test_json5_does_not_get_what_it_would_change_or_let_pass(text):
    with pytest.raises(StrictError):
        mend_whole(text, ended=True, allowance=Allowance())


def test_texts_beyond_the_limit_are_read_strictly_only():
    long = "x" * MENDABLE
    assert mend_whole(json.dumps({"a": long}), ended=True) == ({"a": long}, ())
    with pytest.raises(StrictError) as caught:
        mend_whole("{'a': '" + long + "'}", ended=True)
    assert caught.value.reason == "too_long_to_mend"


def test_mending_says_where_a_value_ends_and_what_is_open():
    assert mend("x {'a': 1} y", 2)[:2] == ({"a": 1}, 10)
    read = mend("{'a': {'b': 'c'</tool_call>")
    assert (read.value, read.open, read.end) == ({"a": {"b": "c"}}, 2, 15)


# ---- properties

NASTY = st.text(
    st.sampled_from(list("{}[]:,\"'\\/ntu \n\t<>`\u201c\u201dTrueNone\x00\ufeff\u00e9\U0001f600")), max_size=20
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | NASTY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(NASTY, VALUES, min_size=1, max_size=4)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^"]', re.DOTALL)


def _structure(text: str, change) -> str:
    """Change what stands outside strings."""
    return "".join(token if token[0] == '"' else change(token) for token in TOKEN.findall(text))


DAMAGE = {
    "escaped breaks": lambda text: _structure(text, lambda token: token + "\\n" if token in ",:" else token),
    "odd spaces": lambda text: _structure(text, lambda token: "\u00a0" if token == " " else token),
    "trailing commas": lambda text: (
        _structure(text, lambda token: f",{token}" if token in "}]" else token)
        .replace("{,}", "{}")
        .replace("[,]", "[]")
    ),
    "fullwidth": lambda text: _structure(text, lambda token: {",": "\uff0c", ":": "\uff1a"}.get(token, token)),
    "missing end": lambda text: text[:-1],
    "extra end": lambda text: text + "}",
}


def _has_empty(value) -> bool:
    if isinstance(value, dict):
        return not value or any(map(_has_empty, value.values()))
    return isinstance(value, list) and (not value or any(map(_has_empty, value)))


@given(OBJECTS, st.sampled_from(sorted(DAMAGE)))
@example({"a": "}{"}, "trailing commas")
def test_damage_to_the_structure_leaves_every_string_as_it_is(value, kind):
    if kind == "trailing commas" and _has_empty(value):
        return
    found, _ = mend_whole(DAMAGE[kind](json.dumps(value, ensure_ascii=False)), ended=True)
    assert found == value


@given(OBJECTS)
def test_a_python_dictionary_is_read_as_what_it_says(value):
    try:
        found, _ = mend_whole(repr(value), ended=True)
    except StrictError as error:
        assert error.reason == "invalid_escape"  # noqa: PT017 - Python writes some characters as \x escapes
    else:
        assert found == value


@given(OBJECTS)
def test_an_object_escaped_once_too_often_is_read_as_what_it_says(value):
    text = json.dumps(json.dumps(value))[1:-1]
    assert mend_whole(text, ended=True)[0] == value


@given(OBJECTS, st.data())
def test_no_prefix_of_an_object_becomes_a_smaller_object_without_a_known_end(value, data):
    text = json.dumps(value)
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(StrictError):
        mend_whole(text[:cut], ended=False)


@given(st.text(st.sampled_from(list("{}[]:,\"'\\ antrue01.-\n\u201c\u201d<>")), max_size=60))
def test_whatever_is_mended_is_strict_afterwards(text):
    try:
        value, _ = mend_whole(text, ended=True, allowance=Allowance())
    except StrictError:
        return
    assert loads(dumps(value)) == value


@given(OBJECTS)
def test_reading_strictly_agrees_with_the_standard_module(value):
    spaced = _structure(json.dumps(value, indent=1), lambda token: " \n:" if token == ":" else token)
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False), spaced):
        assert loads(text) == value


PAIRS = st.recursive(
    st.integers(0, 3).map(str) | st.sampled_from(['":', "a", '"a":1']).map(json.dumps),
    lambda inner: st.lists(st.tuples(st.sampled_from("abc"), inner), max_size=3).map(
        lambda pairs: (
            "{" + ",".join(f'"{key}" :{item}' if key == "c" else f'"{key}":{item}' for key, item in pairs) + "}"
        )
    ),
    max_leaves=6,
)


def _has_duplicates(text: str) -> bool:
    found = []
    json.loads(text, object_pairs_hook=lambda pairs: found.append(len(dict(pairs)) != len(pairs)))
    return any(found)


@given(PAIRS)
@example('{"a" :1,"a" :2,"x":"\\":"}')
def test_duplicate_keys_are_found_wherever_they_are_and_nowhere_else(text):
    if _has_duplicates(text):
        with pytest.raises(StrictError) as caught:
            loads(text)
        assert caught.value.reason == "duplicate_key"
    else:
        assert loads(text) == json.loads(text)
