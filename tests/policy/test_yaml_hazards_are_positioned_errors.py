"""Every way in which YAML readers disagree or can be harmed is a positioned error or a documented value."""

from __future__ import annotations

import random
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.errors import ConfigError, UsageError
from policyengine.policy.nodes import Document, walk
from policyengine.policy.problems import Problem
from policyengine.policy.yamltext import read_yaml

LOADERS = ["pure", *(["c"] if yaml.__with_libyaml__ else [])]
both = pytest.mark.parametrize("loader", LOADERS)


def read(text: str | bytes, loader: str = "auto") -> Document:
    return read_yaml(text.encode() if isinstance(text, str) else text, "p.yaml", loader=loader)  # type: ignore[arg-type]


def problems(text: str | bytes, loader: str = "auto") -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        read(text, loader)
    return caught.value.problems


def places(text: str | bytes, loader: str) -> list[str]:
    return [f"{problem.code} {problem.position.line}:{problem.position.column}" for problem in problems(text, loader)]


@both
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "Y116 1:1"),
        ("# only a comment\n", "Y116 1:1"),
        ("---\n", "Y116 1:1"),
        ("null\n", "Y116 1:1"),
        ("a:1", "Y117 1:1"),
        ("a: 1\nb:2\n", "Y104 2:1"),
        ("- a\n", "Y117 1:1"),
        ("5\n", "Y117 1:1"),
        ("a: 1\nb: 2\na: 3\n", "Y112 3:1"),
        ("a: {x: 1, 'x': 2}\n", "Y112 1:11"),
        ("a: 010\n", "Y114 1:4"),
        ("a: -010\n", "Y114 1:4"),
        ("a: 0o17\n", "Y114 1:4"),
        ("a: 0x1F\n", "Y114 1:4"),
        ("a: 0b11\n", "Y114 1:4"),
        ("a: 12:30\n", "Y114 1:4"),
        ("a: 12:30:00\n", "Y114 1:4"),
        ("a: 190:20:30.15\n", "Y114 1:4"),
        ("a: 1_000\n", "Y114 1:4"),
        ("a: 1e3\n", "Y114 1:4"),
        ("a: 1.5e3\n", "Y114 1:4"),
        ("a: -.5\n", "Y114 1:4"),
        ("a: 007.5\n", "Y114 1:4"),
        ("a: .nan\n", "Y115 1:4"),
        ("a: .inf\n", "Y115 1:4"),
        ("a: -.INF\n", "Y115 1:4"),
        ("a: 1.0e+999\n", "Y115 1:4"),
        ("a: 9223372036854775808\n", "Y115 1:4"),
        ("a: " + "9" * 5000 + "\n", "Y115 1:4"),
        ("a: -" + "9" * 5000 + "\n", "Y115 1:4"),
        ("a: 2026-01-31\n", "Y114 1:4"),
        ("a: 2026-01-31T10:00:00Z\n", "Y114 1:4"),
        ("a: 2026-99-99\n", "Y114 1:4"),
        ("a: =\n", "Y114 1:4"),
        ("a: <<\n", "Y114 1:4"),
        ("1: a\n", "Y113 1:1"),
        ("true: a\n", "Y113 1:1"),
        ("null: a\n", "Y113 1:1"),
        ("~: a\n", "Y113 1:1"),
        ("2026-01-31: a\n", "Y113 1:1"),
        ("?\n: a\n", "Y113 1:2"),
        ("'': a\n", "Y113 1:1"),
        ("[a, b]: c\n", "Y113 1:1"),
        ("{a: b}: c\n", "Y113 1:1"),
        ("? [a]\n: c\n", "Y113 1:3"),
        ("a: &x 1\n", "Y108 1:4"),
        ("a: *x\n", "Y108 1:4"),
        ("a: !!str 1\n", "Y109 1:4"),
        ("a: !!bool maybe\n", "Y109 1:4"),
        ("a: !!python/object:os.system x\n", "Y109 1:4"),
        ("a: ! x\n", "Y109 1:4"),
        ("--- !!map\na: b\n", "Y109 1:5"),
        ("<<: {a: b}\n", "Y111 1:1"),
        ("a: 1\n---\nb: 2\n", "Y107 2:1"),
        ("%YAML 1.1\n---\na: b\n", "Y110 1:1"),
        ("%TAG ! tag:x,2026:\n---\na: b\n", "Y110 1:1"),
        ("a:\n\tb: 1\n", "Y118 2:1"),
        ("a: 1\n\tb: 1\n", "Y118 2:1"),
        ("a:\tb\n", "Y118 1:3"),
        ("a: b\t\n", "Y118 1:5"),
        ("a: b\tc\n", "Y118 1:5"),
        ("a: |\t\n  b\n", "Y118 1:5"),
        ("a: [1,\t2]\n", "Y118 1:7"),
        ("a: 'x'\tb\n", "Y118 1:7"),
        ("a: no\u00a0break\n", "Y103 1:4"),
        ("a\u00a0: b\n", "Y113 1:1"),
        ("a: b: c\n", "Y104 1:5"),
        ("a: [1, 2\n", "Y104 2:1"),
        ("a: @b\n", "Y104 1:4"),
        ("a: [read_?]\n", "Y104 1:10"),
        ("a: |#x\n  b\n", "Y104 1:5"),
        ("a: `b`\n", "Y104 1:4"),
        ("a: %b\n", "Y104 1:4"),
        ('a: "\\q"\n', "Y104 1:6"),
        ('a: "\\ud800"\n', "Y121 1:4"),
        ('"\\ud800": b\n', "Y121 1:1"),
        ('a: "\\UFFFFFFFF"\n', "Y104 1:7"),
        ("a: 1\n b: 2\n", "Y104 2:3"),
    ],
)
def test_a_text_hazard_is_refused_where_it_stands(text: str, expected: str, loader: str) -> None:
    assert expected in places(text, loader)


@both
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("5", 5),
        ("-5", -5),
        ("+5", 5),
        ("0", 0),
        ("9223372036854775807", 9223372036854775807),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-1.0e-3", -0.001),
        ("1.10", 1.1),
        ("1.2.3", "1.2.3"),
        ("250ms", "250ms"),
        ("10s", "10s"),
        ("12h30", "12h30"),
        ("a:1", "a:1"),
        ("http://x/y", "http://x/y"),
        ("a#b", "a#b"),
        ("a # b", "a"),
        ("'a # b'", "a # b"),
        ('"010"', "010"),
        ("'1_000'", "1_000"),
        ('"a\\tb"', "a\tb"),
        ("'a\tb'", "a\tb"),
        ("'2026-01-31'", "2026-01-31"),
        ("'.nan'", ".nan"),
        ("1-2", "1-2"),
        ("-", [None]),
        ("é𝄞", "é𝄞"),
        ("'\u00a0'", "\u00a0"),
    ],
)
def test_a_scalar_has_its_documented_value(written: str, value: object, loader: str) -> None:
    found = read(f"a:\n  {written}\n", loader).root.data["a"]
    assert found == value
    assert type(found) is type(value)


@both
def test_on_and_off_as_keys_are_strings(loader: str) -> None:
    assert read("on: 1\nno: {off: yes}\n", loader).root.data == {"on": 1, "no": {"off": "yes"}}


@both
def test_duplicate_keys_name_both_positions(loader: str) -> None:
    (problem,) = problems("a:\n  key: 1\n  other: 2\n  key: 3\n", loader)
    assert str(problem.position) == "p.yaml:4:3"
    assert "p.yaml:2:3" in problem.note
    assert problem.path == "a.key"
    assert problem.source_line == "  key: 3"
    assert problem.length == 3


@both
def test_all_problems_of_a_text_are_reported_in_order(loader: str) -> None:
    text = "a: 010\nb: *x\nc: 12:30\na: 1\nd: {1: 2}\n"
    assert places(text, loader) == ["Y114 1:4", "Y108 2:4", "Y114 3:4", "Y112 4:1", "Y113 5:5"]


@both
def test_a_comment_glued_to_its_mark_is_warned_about(loader: str) -> None:
    document = read("a: Error #1\nb: x # fine\nc: 5 #five\nd: 'q #1'\n", loader)
    assert [(warning.code, str(warning.position)) for warning in document.warnings] == [("Y120", "p.yaml:1:10")]
    assert document.root.data == {"a": "Error", "b": "x", "c": 5, "d": "q #1"}


@both
def test_tabs_are_welcome_in_quotes_block_texts_and_comments(loader: str) -> None:
    text = "a: 'x\ty'\nb: |\n  c\td\ne: 1 #\tcomment\n#\tcomment\nf: [1] #\tx\n"
    assert read(text, loader).root.data == {"a": "x\ty", "b": "c\td\n", "e": 1, "f": [1]}


@both
@pytest.mark.parametrize(
    ("char", "called"),
    [
        ("\x85", "0085"),
        ("\u2028", "2028"),
        ("\u2029", "2029"),
        ("\u202e", "202E"),
        ("\u2066", "2066"),
        ("\u200b", "200B"),
        ("\u200d", "200D"),
        ("\ufeff", "FEFF"),
        ("\u00ad", "00AD"),
        ("\x00", "0000"),
        ("\x1b", "001B"),
        ("\x7f", "007F"),
        ("\x0c", "000C"),
        ("\ufffe", "FFFE"),
        ("\U0001fffe", "1FFFE"),
        ("\U000e0041", "E0041"),
        ("\r", "000D"),
    ],
)
def test_invisible_characters_are_refused_where_they_stand(char: str, called: str, loader: str) -> None:
    (problem,) = problems(f"first: 1\n# note{char}hidden: true\n", loader)
    assert (problem.code, str(problem.position)) == ("Y103", "p.yaml:2:7")
    assert f"U+{called}" in problem.message
    assert char not in problem.full()


@both
def test_a_byte_order_mark_moves_no_position(loader: str) -> None:
    document = read(b"\xef\xbb\xbfa: 1\nb: 2\n", loader)
    assert document.root.data == {"a": 1, "b": 2}
    assert str(document.root.fields["a"].key_at) == "p.yaml:1:1"
    assert str(document.root.fields["a"].at) == "p.yaml:1:4"


@both
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_wide_encodings_are_refused(encoding: str, loader: str) -> None:
    assert places("a: b\n".encode(encoding), loader) == ["Y102 1:1"]


@both
def test_latin_1_is_refused_at_the_byte(loader: str) -> None:
    assert places("ä: 1\nname: é\n".encode() + "name: é\n".encode("latin-1"), loader) == ["Y102 3:7"]


@both
def test_windows_line_ends_are_ordinary(loader: str) -> None:
    document = read("a: 1\r\nb:\r\n  c: x\r\n", loader)
    assert document.root.data == {"a": 1, "b": {"c": "x"}}
    assert str(document.root.fields["b"].fields["c"].key_at) == "p.yaml:3:3"


@both
def test_positions_count_characters_not_bytes(loader: str) -> None:
    document = read("{é𝄞: [ü, {k: v}]}\n", loader)
    inner = document.root.fields["é𝄞"].items[1].fields["k"]
    assert (str(inner.key_at), str(inner.at)) == ("p.yaml:1:11", "p.yaml:1:14")


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


def merge_bomb(levels: int) -> str:
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, levels)]
    return "\n".join(lines)


@both
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[" * 120_000, "Y105"),
        ("{a: " * 120_000, "Y105"),
        ("[" * 120_000 + "]" * 120_000, "Y105"),
        ("a: " + "[" * 41 + "]" * 41, "Y105"),
        ("- " * 120_000, "Y105"),
        ("? " * 120_000, "Y105"),
        ("# " + "]" * 120_000 + "\n" + "[" * 120_000, "Y105"),
        ("a: '" + "]" * 120_000 + "'\nb: " + "[" * 120_000, "Y105"),
        ("\n".join(" " * n + "a:" for n in range(1000)), "Y105"),
        (bomb(20), "Y108"),
        (merge_bomb(20), "Y108"),
        (merge_bomb(20), "Y111"),
        (b"\xef\xbb\xbf", "Y116"),
        ("a" * (1024 * 1024 + 1), "Y101"),
        ("a: " + "'" * 400_001, "Y104"),
        ("%YAML " + "1" * 5000 + ".1\n---\na: b", "Y104"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) == 4 else "text",
)
def test_hostile_texts_are_refused_within_a_second(text: str | bytes, code: str, loader: str) -> None:
    start = time.process_time()
    found = problems(text, loader)
    assert time.process_time() - start < 1.0
    assert code in [problem.code for problem in found]
    assert all(problem.position.line for problem in found)


@both
def test_a_megabyte_of_noise_is_refused_within_a_second(loader: str) -> None:
    noise = random.Random(7).randbytes(1024 * 1024)
    start = time.process_time()
    assert problems(noise, loader)[0].position.line
    assert time.process_time() - start < 1.0


def test_the_number_of_elements_is_limited() -> None:
    assert places("- a\n" * 200_001, "auto") == ["Y106 1:1"]


@both
def test_brackets_in_quotes_and_comments_are_not_depth(loader: str) -> None:
    brackets = "[{" * 700
    text = f"a: '{brackets}'\n# {brackets}\nb: |\n  {brackets}\nc: x{brackets}\n"
    assert read(text, loader).root.data == {"a": brackets, "b": brackets + "\n", "c": "x" + brackets}


@both
def test_forty_levels_are_accepted(loader: str) -> None:
    assert read("a: " + "[" * 39 + "]" * 39, loader).root.data["a"]


def test_the_c_loader_can_be_asked_for_only_where_it_is() -> None:
    if yaml.__with_libyaml__:
        assert read("a: 1", "c").root.data == {"a": 1}
    else:
        with pytest.raises(UsageError):
            read("a: 1", "c")


def outcome(data: bytes, loader: str) -> object:
    """Everything that can be told apart about reading a text."""
    try:
        document = read(data, loader)
    except ConfigError as error:
        return [(problem.full(), problem.position) for problem in error.problems]
    nodes = [
        (path, node.data, node.at, node.length, node.key_at, node.key_length) for path, node in walk(document.root)
    ]
    return nodes, document.warnings


YAMLISH = st.lists(
    st.sampled_from(
        [
            *"ab01:-?[]{},#&*!|>'\"%@`~=<. \n\t",
            "a: ",
            "- ",
            "\n  ",
            "\n",
            "---\n",
            "...\n",
            "b: 1\n",
            " #c",
            "\\",
            "<<",
            "|\n ",
            ">-\n ",
        ]
    ),
    max_size=25,
).map("".join)


@settings(max_examples=400, deadline=None)
@given(YAMLISH)
def test_both_loaders_agree_on_anything_like_yaml(text: str) -> None:
    outcomes = [outcome(text.encode(), loader) for loader in LOADERS]
    assert outcomes[0] == outcomes[-1]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_arbitrary_bytes_raise_nothing_but_config_errors(data: bytes) -> None:
    outcomes = [outcome(data, loader) for loader in LOADERS]
    assert outcomes[0] == outcomes[-1]


FILLERS = "\u115f\u1160\u3164\uffa0"
KEYS = st.text(
    st.characters(
        codec="utf-8", exclude_categories=["Cc", "Cf", "Cn", "Co", "Cs", "Mn", "Zl", "Zp"], exclude_characters=FILLERS
    ),
    min_size=1,
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | KEYS
)
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(KEYS, DATA, min_size=1, max_size=5), st.booleans(), st.sampled_from(LOADERS))
def test_what_pyyaml_dumps_is_read_back_unchanged(data: dict[str, object], flow: bool, loader: str) -> None:
    """Texts are quoted here, because PyYAML leaves some bare that other readers take for numbers (`1e3`)."""

    class Quoting(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))
    dumped = yaml.dump(data, Dumper=Quoting, allow_unicode=True, default_flow_style=flow, sort_keys=False)
    assert read(dumped, loader).root.data == data


@pytest.mark.parametrize(
    "value", ["plain", "two words", "on", "yes", "1_000", "010", "2026-01-31", "12:30", "a # b", "x: y", ""]
)
def test_texts_that_pyyaml_dumps_bare_or_quoted_stay_texts(value: str) -> None:
    assert read(yaml.safe_dump({"a": value})).root.data == {"a": value}
