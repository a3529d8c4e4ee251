"""No regular expression holds a process up: those of policies are judged before use, those of the package are tried."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import random
import re
import time
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import policyengine
from policyengine.errors import UsageError
from policyengine.patterns import PIECES, blows_up, compiled, degree, substituted, trouble_of

METHODS = {"match", "fullmatch", "search", "sub", "finditer", "findall", "split", "subn"}
SRE: Any = import_module("re._parser")

EXPONENTIAL = [
    *("(a+)+$", "(a|a)*b", "(a|aa)+$", "(a?a)*$", "(?:a?){30}a{30}", r"(\w\d|\d\w)*$", "([a-z]{1,9}){1,9}x"),
    *("(?:[a-z]+,)*", "(a*)*", "(?:a|b+)*c", "(?=(a+)+)b", "(.|\\s)*!", "(?:x|xx|y)*z", "(a{1,3})+b"),
]
STEEP = [".*.*.*.*x", "a.*b.*c.*d", r"\s*\s*\s*x", r"\w+\d+\w+\d+!"]
SOUND = [
    *(r"\d+ ms", r"took \d+ lines", r"(?:\.\d{1,3})*", "(?:ab?)*c", "(foo|bar)*x", r".*foo.*bar", r"\d+-\d+-\d+"),
    *(r"(\d+\.){3}\d+", r"(?:[0-9a-f]+:){7}[0-9a-f]+", r"\s+\w+\s+\w+\s+\w+", r"(\w+\s+){3}", r"([^,]*,){5}"),
    *(r"\s*,\s*", '"(?:[^"\\\\]|\\\\.)*"', r"[0-9]+(\.[0-9]+)?s", r"(?i)id=\w+", r"^\[.*\] ", "(?:a++)+b"),
]


@pytest.mark.parametrize("pattern", [*EXPONENTIAL, *STEEP])
def test_a_pattern_that_may_take_for_ever_is_refused(pattern):
    assert trouble_of(pattern) is None
    assert blows_up(pattern)


@pytest.mark.parametrize("pattern", SOUND)
def test_ordinary_patterns_are_taken(pattern):
    assert not blows_up(pattern)


ATOMS = st.sampled_from(["a", "b", "ab", ".", r"\d", r"\w", "[ab]", "[^a]", "1", " "])


@st.composite
def patterns(draw: Any, depth: int = 2) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        part = draw(ATOMS)
        if depth and draw(st.booleans()):
            part = "(?:" + "|".join(draw(patterns(depth=depth - 1)) for _ in range(draw(st.integers(1, 2)))) + ")"
        parts.append(part + draw(st.sampled_from(["", "", "?", "*", "+", "{1,3}", "{2,20}"])))
    return "".join(parts)


@given(pattern=patterns(), pump=st.sampled_from(["a", "b", "ab", "1", "a1", " ", "ba"]))
@settings(max_examples=100, deadline=None)
def test_what_is_taken_is_done_in_time_on_a_text_made_against_it(pattern, pump):
    assume(not blows_up(pattern + "!"))
    text = "a" + pump * 20_000 + "\x00"
    began = time.process_time()
    substituted(pattern + "!", "<mask>", text)
    assert time.process_time() - began < 5


def test_a_text_longer_than_a_piece_is_masked_as_if_it_were_whole_where_lines_end():
    line = "took 12 ms\n"
    text = line * 5_000
    assert substituted(r"\d+ ms", "<t>", text) == "took <t>\n" * 5_000
    assert degree(r"\d+ ms") == 1
    assert len(text) > PIECES[1][0]


def test_what_lies_beyond_the_last_piece_stays_as_it_is():
    most = PIECES[1][1]
    text = "7 ms\n" * (most // 5 + 10)
    found = substituted(r"\d+ ms", "<t>", text)
    assert found.endswith("7 ms\n")
    assert len(found.partition("7 ms")[2]) < 100


# ---- the patterns of the package


USED = {("policyengine.parsing.scan", "_FENCE_END[0]"): {"match"}}
"""How a pattern is used that another module is handed."""


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(policyengine.__path__, "policyengine."):
        if found.name.endswith("__main__") or ".hosts." in found.name or found.name.endswith((".on_ray", ".spans")):
            continue
        try:
            yield importlib.import_module(found.name)
        except (ImportError, UsageError):  # an extra that is not installed
            continue


@cache
def uses() -> dict[Path, dict[str, set[str]]]:
    """By file and name: the methods by which a pattern of that name is used there."""
    home = Path(policyengine.__file__).parent
    found: dict[Path, dict[str, set[str]]] = {}
    for path in [*home.rglob("*.py"), *(home.parent / "extensions").rglob("*.py")]:
        names = found.setdefault(path, {})
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Attribute) or node.attr not in METHODS:
                continue
            held = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            name = held.id if isinstance(held, ast.Name) else held.attr if isinstance(held, ast.Attribute) else ""
            if name != "re":
                names.setdefault(name if name.isupper() else "", set()).add(node.attr)
    return found


def used_with(module: Any, name: str) -> set[str]:
    """The methods by which a pattern is used in its own module, and elsewhere if it is no private one."""
    own = uses().get(Path(module.__file__), {}).get(name, set())
    if not name.startswith("_"):
        own = own.union(*(names.get(name, set()) for names in uses().values()))
    return own or uses().get(Path(module.__file__), {}).get("", set()) - {"sub", "split"} or {"match"}


def held(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from held(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from held(item)


@cache
def package_patterns() -> dict[tuple[str, str], tuple[re.Pattern[Any], set[str]]]:
    found: dict[tuple[str, str], tuple[re.Pattern[Any], set[str]]] = {}
    seen: set[int] = set()
    for module in modules():
        for name, value in vars(module).items():
            for number, pattern in enumerate(held(value)):
                if id(pattern) in seen:
                    continue
                seen.add(id(pattern))
                methods = USED.get((module.__name__, f"{name}[{number}]")) or used_with(module, name)
                found[module.__name__, f"{name}[{number}]"] = pattern, methods
    return found


def sample(tree: Any, rng: random.Random, *, most: int = 1) -> str:
    """A text that a pattern (or a part of one) matches, roughly."""
    out = []
    for operation, value in tree:
        name = str(operation)
        if name == "LITERAL":
            out.append(chr(value))
        elif name == "NOT_LITERAL":
            out.append("a" if value != ord("a") else "b")
        elif name == "ANY":
            out.append(rng.choice("a1 <"))
        elif name == "IN":
            out.append(member(value, rng))
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            out.append("".join(sample(value[2], rng) for _ in range(max(value[0], min(value[1], most)))))
        elif name == "SUBPATTERN":
            out.append(sample(value[3], rng, most=most))
        elif name == "ATOMIC_GROUP":
            out.append(sample(value, rng, most=most))
        elif name == "BRANCH":
            out.append(sample(rng.choice(value[1]), rng, most=most))
    return "".join(out)


def member(members: Any, rng: random.Random) -> str:
    negated = bool(members) and str(members[0][0]) == "NEGATE"
    if negated:
        return "a"
    name, value = rng.choice(list(members))
    kind = str(name)
    if kind == "LITERAL":
        return chr(value)
    if kind == "RANGE":
        return chr(value[0])
    category = str(value)
    return {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a"}.get(category, "-")


def bodies(tree: Any) -> Iterator[Any]:
    for operation, value in tree:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            if value[1] >= 20:
                yield value[2]
            yield from bodies(value[2])
        elif name == "POSSESSIVE_REPEAT":
            yield value[2]
            yield from bodies(value[2])
        elif name == "SUBPATTERN":
            yield from bodies(value[3])
        elif name == "ATOMIC_GROUP":
            yield from bodies(value)
        elif name == "BRANCH":
            for part in value[1]:
                yield from bodies(part)
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from bodies(value[1])


def pumps(pattern: re.Pattern[Any], rng: random.Random) -> list[tuple[str, str]]:
    """Beginnings and what is repeated after them."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = SRE.parse(text, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags)
    repeated = {sample(body, rng) for body in bodies(tree)} - {""}
    wholes = {sample(tree, rng)[:60] for _ in range(3)} - {""}
    openings = {whole[:cut] for whole in wholes for cut in (1, 3, 5, 7, 10, len(whole) // 2) if cut}
    found = {("", pump) for pump in (*repeated, *wholes, *openings)}
    found |= {(whole[:cut], pump) for whole in wholes for pump in repeated for cut in (1, len(whole) // 2, len(whole))}
    return sorted(found)[:60]


def spent(pattern: re.Pattern[Any], methods: set[str], text: str) -> float:
    data: Any = text.encode("utf-8", "replace") if isinstance(pattern.pattern, bytes) else text
    began = time.process_time()
    for method in sorted(methods):
        if method in ("sub", "subn"):
            pattern.sub(b"" if isinstance(data, bytes) else "", data)
        elif method in ("finditer", "findall"):
            for _ in pattern.finditer(data):
                pass
        else:
            getattr(pattern, method)(data)
    return time.process_time() - began


SMALL, FACTOR = 2_000, 8


def test_the_time_of_every_pattern_of_the_package_grows_about_as_its_text_does():
    """Eight times the text may take up to thirty times as long; the square would be sixty-four."""
    steep = []
    for place, (pattern, methods) in package_patterns().items():
        rng = random.Random(str(place))
        for head, pump in pumps(pattern, rng):
            small = head + pump * (SMALL // len(pump)) + "\x00"
            large = head + pump * (SMALL * FACTOR // len(pump)) + "\x00"
            if spent(pattern, methods, large) < 0.02:
                continue
            before = min(spent(pattern, methods, small) for _ in range(3))
            after = min(spent(pattern, methods, large) for _ in range(3))
            if after > 0.02 and after > before * FACTOR * 3.75:
                steep.append((place, sorted(methods), head[:30], pump[:30], round(before, 4), round(after, 4)))
                break
    assert steep == []


def test_there_are_patterns_to_try():
    assert len(package_patterns()) > 250


def test_compiled_patterns_are_silent_about_what_python_may_once_read_otherwise(recwarn):
    compiled("[[a]")
    assert not recwarn.list
