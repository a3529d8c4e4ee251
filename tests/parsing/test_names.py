"""A name becomes a registered one exactly, or stays what it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.parsing.names import Tools, resolve

TOOLS = Tools({"search": {"properties": {"q": {}}, "required": ["q"]}, "read": {}, "read_file": {}, "a": {}, "aa": {}})


@pytest.mark.parametrize(
    ("written", "name", "repair"),
    [
        ("search", "search", ""),
        ("search<|channel|>commentary", "search", "strip_control_tokens"),
        ("search<|im_end|>", "search", "strip_control_tokens"),
        ("search\uff5c", "search\uff5c", ""),
        ("search<\uff5ctool\u2581sep\uff5c>", "search", "strip_control_tokens"),
        ("search[ARGS]", "search", "strip_control_tokens"),
        ("search</name>", "search", "strip_control_tokens"),
        (' "search"\n', "search", "strip_name"),
        ("search()", "search", "strip_name"),
        ("read_fileread_fileread_file", "read_file", "collapse_repeated_name"),
        ("functions.search", "search", "strip_namespace"),
        ("default_api:search", "search", "strip_namespace"),
        ("functions.search:0", "search", "strip_namespace"),
        ("search:12", "search", "strip_call_index"),
        ("functions.search<|channel|>x", "search", "strip_namespace"),
    ],
)
def test_what_stands_around_a_registered_name_is_taken_off(written, name, repair):
    found = resolve(written, TOOLS)
    assert (found.text, found.repairs) == (name, (repair,) if repair else ())


@pytest.mark.parametrize(
    "written",
    ["Search", "serach", "search_web", "read_fileread", "toolbox.lookup.ask", "web.search", "aaaa", "functions.", ""],
)
def test_nothing_is_matched_by_likeness_or_in_two_ways(written):
    assert resolve(written, TOOLS) == (written, (), bool(written))


def test_an_unknown_namespace_is_taken_off_only_where_the_arguments_fit():
    assert resolve("web.search", TOOLS, {"q": "x"}).text == "search"
    for args in ({}, {"z": 1}, {"q": 1, "z": 1}, None):
        assert resolve("web.search", TOOLS, args).text == "web.search"


@pytest.mark.parametrize("written", ["two words", '{"name": "search"}', "search\nnow", "\u00fc", "<tool>"])
def test_what_cannot_be_a_name_is_told_apart_from_an_unknown_one(written):
    assert not resolve(written, TOOLS).legal
    assert resolve("unknown.tool-1", TOOLS).legal


def test_where_nothing_is_known_to_be_offered_nothing_is_changed():
    assert resolve("searchsearch<|x|>", Tools(None)).text == "searchsearch<|x|>"


@given(st.text(st.sampled_from(list("searchd_file<|>.:()[]\n \"'")), max_size=40))
def test_a_changed_name_is_always_registered(written):
    found = resolve(written, TOOLS, {"q": 1})
    assert found.text == written or found.text in TOOLS.names
    assert bool(found.repairs) == (found.text != written)
