"""Templates: every message exists in every language, and no template or value can do harm."""

from __future__ import annotations

import time
import tracemalloc
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine.templates import CORE_MESSAGES, Templates, clean_text

PATTERNS = ("identical", "cycle", "interleaved", "stagnation", "poll", "text_repeat")
RUNGS = ("hint", "deny", "give_up", "end_step", "wind_down", "stop")
LANGUAGES = ("en", "zh")


def built_in_samples() -> list[tuple[str, dict[str, Any]]]:
    """Return every kind that ships with the package, with sample data."""
    from policyengine.extensions import BUILTIN

    samples = list(CORE_MESSAGES.items())
    for extension in BUILTIN:
        samples += [(kind, dict(data)) for kind, data in extension.messages.items()]
    return samples


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_message_we_send_has_a_template_that_renders(language):
    templates = Templates(language)
    assert templates.problems == ()
    for kind, sample in built_in_samples():
        assert templates.check(kind, sample) is None
        assert templates.find(kind).language == language
        assert "template" not in templates.render(kind, sample)


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_template_is_there_for_nobody(language):
    shipped = {
        item.name.removesuffix(".txt")
        for item in files("policyengine.prompts").joinpath(language).iterdir()
        if item.name.endswith(".txt")
    }
    assert shipped == {kind for kind, _ in built_in_samples()}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("rung", RUNGS)
def test_every_rung_of_every_pattern_tells_its_numbers(language, pattern, rung):
    data = {
        "tool": "" if pattern == "text_repeat" else "search",
        "pattern": pattern,
        "observed": 7,
        "limit": 8,
        "period": 9,
        "rule": "stall_detector",
    }
    templates = Templates(language)
    assert templates.check(f"stall.{rung}", data) is None
    text = templates.render(f"stall.{rung}", data)
    assert "7" in text
    assert "  " not in text
    assert "\n\n" not in text


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", ["stall.deny", "tool_failure.deny"])
def test_a_refusal_names_the_guard_and_its_limit(language, kind):
    data = dict(built_in_samples())[kind] | {"rule": "my_rule", "observed": 5, "limit": 6}
    text = Templates(language).render(kind, data)
    assert all(part in text for part in ("my_rule", "5", "6"))


def test_as_a_mere_hint_a_message_claims_no_refusal_and_no_stop():
    templates = Templates()
    for kind, sample in built_in_samples():
        if kind.startswith(("interventions.", "not_run", "wind_down.", "ask.", "warning.")):
            continue  # only the engine itself sends these, never as a hint
        text = templates.render(kind, {**sample, "advisory": True})
        assert "was not run" not in text or kind in ("unknown_tool", "invalid_arguments", "cancelled")
        assert "was stopped" not in text
        assert "will be refused" not in text


def test_the_cut_off_warning_asks_for_smaller_pieces():
    assert "smaller" in Templates().render("warning.truncated", {"reason": "truncated", "protocol": "native"})


def test_the_text_protocol_shows_every_tool_on_a_line_of_its_own():
    tools = [{"name": f"tool_{number}", "description": "Line one.\nLine two."} for number in range(200)]
    text = Templates().render("text_protocol", {"tools": tools, "forms": []})
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        f"- tool_{number}: Line one. Line two." for number in range(200)
    ]
    assert '{"tool_name": "response", "tool_args": {"text": ' in text


# ---- where templates come from


@pytest.fixture
def directory(tmp_path):
    def write(**texts):
        for name, text in texts.items():
            language, _, kind = name.partition("__")
            path = tmp_path / language / f"{kind.replace('__', '.')}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return write


def test_a_policys_own_template_comes_first(directory):
    templates = Templates("en", [directory(en__stall__deny="No: {{ tool }}.")])
    assert templates.render("stall.deny", {"tool": "search"}) == "No: search."
    assert str(templates.find("stall.deny")).endswith("en/stall.deny.txt")
    assert templates.overridden() == ("stall.deny",)
    assert str(templates.find("stall.stop")) == "prompts/en/stall.stop.txt"


def test_the_first_of_two_directories_wins(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "en").mkdir(parents=True)
        (tmp_path / name / "en" / "denied.txt").write_text(name)
    templates = Templates("en", [tmp_path / "b", str(tmp_path / "a")])
    assert templates.render("denied", {}) == "b"


def test_what_an_extension_ships_adds_kinds_but_does_not_reword_ours():
    templates = Templates("en", (), {"spend": {"en": {"spend.deny": "Over {{ limit }}.", "stall.deny": "mine"}}})
    assert templates.render("spend.deny", {"limit": 5.0}) == "Over 5."
    assert str(templates.find("spend.deny")) == "templates of spend: en/spend.deny"
    assert str(templates.find("stall.deny")) == "prompts/en/stall.deny.txt"


def test_two_extensions_that_ship_different_texts_of_one_kind_are_a_problem():
    same = {"a": {"en": {"x.y": "1"}}, "b": {"en": {"x.y": "1"}}}
    assert Templates("en", (), same).problems == ()
    other = same | {"c": {"en": {"x.y": "2"}}}
    assert Templates("en", (), other).problems == (
        "templates of c: en/x.y: 'x.y' is taken by the templates of a: en/x.y",
    )


def test_a_missing_language_falls_back_to_english_and_says_so():
    templates = Templates("zh", (), {"spend": {"en": {"spend.deny": "Over."}}})
    assert templates.render("spend.deny", {}) == "Over."
    assert templates.check("spend.deny", {}) is None
    assert templates.fallbacks(["spend.deny", "stall.deny", "nowhere"]) == ("spend.deny",)
    (problem,) = Templates("xx").problems
    assert problem.startswith("language 'xx' has no templates")


def test_a_directory_can_bring_a_language_of_its_own(directory):
    templates = Templates("de", [directory(de__denied="Nein.")])
    assert templates.problems == ()
    assert templates.render("denied", {}) == "Nein."
    assert templates.render("stall.deny", {}).startswith("stall.deny")


@pytest.mark.parametrize("language", ["../en", "en/../en", "", "e", "en\n"])
def test_a_language_is_no_path(language):
    templates = Templates(language)
    assert templates.problems
    assert templates.find("denied").file == "prompts/en/denied.txt"


@pytest.mark.parametrize("kind", ["../en/denied", "en/denied", "", "denied.", ".denied", "a b", "/etc/hosts", "x\0y"])
def test_a_kind_is_no_path(kind):
    templates = Templates()
    assert not templates.has(kind)
    assert "has no template" in templates.check(kind, {})
    assert "there is no template" in templates.render(kind, {})


def test_unreadable_templates_are_problems(directory, tmp_path):
    folder = directory(en__latin=b"caf\xe9", en__huge=b"x" * 70_000, en__good=b"\xef\xbb\xbffine")
    (folder / "en" / "folder.txt").mkdir()
    (folder / "en" / "bad name.txt").write_text("x")
    templates = Templates("en", [folder, tmp_path / "nowhere"])
    told = sorted(problem.rpartition("/")[2] for problem in templates.problems)
    assert told == [
        "bad name.txt: 'bad name' cannot be the kind of a message",
        "folder.txt: is no file",
        "huge.txt: is larger than 64000 bytes",
        "latin.txt: is not UTF-8",
        "nowhere: there is no such directory",
    ]
    assert templates.render("good", {}) == "fine"


def test_an_edit_after_loading_changes_nothing(directory):
    folder = directory(en__denied="before")
    templates = Templates("en", [folder])
    directory(en__denied="after")
    assert templates.render("denied", {}) == "before"


# ---- faults of templates


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("fine\n{{ missing }}", 2, "'missing' is undefined"),
        ("{% for t in tools %}\n\n{{ t.nam }}\n{% endfor %}", 3, "has no attribute 'nam'"),
        ("a\nb\n{{ tool", 3, "unexpected end of template"),
        ("{% if %}{% endif %}", 1, "Expected an expression"),
        ("{{ tool | shout }}", 1, "no filter 'shout' (filters are: join, length, lower, upper, trim)"),
        ("{{ tool is divisibleby(2) }}", 1, "no test 'divisibleby'"),
        ("a\n{{ tools }}", 2, "cannot be printed as a whole"),
        ("a\n\n{{ nothing }}", 3, "without a value cannot be printed"),
        ("{{ observed > tool }}", 1, "not supported between"),
        ("{{ tools[5].name }}", 1, "has no element 5"),
        ("{{ tool.__class__ }}", 1, "has no attribute '__class__'"),
        ("{{ tool | join }}", 1, "`join` needs a list"),
        ("{{ tools.append }}", 1, "has no attribute 'append'"),
        ("{{ tools[0].items }}", 1, "has no attribute 'items'"),
        ("{{ tool[0] }}", 1, "has no element 0"),
        ("{{ 10000000000000000000 }}", 1, "a number that is too large"),
    ],
)
def test_a_fault_is_told_at_load_with_file_and_line(directory, text, line, fault):
    templates = Templates("en", [directory(en__my__kind=text)])
    data = {"tool": "search", "tools": [{"name": "a"}], "nothing": None, "observed": 1}
    told = templates.check("my.kind", data)
    assert f"en/my.kind.txt:{line}: " in told
    assert fault in told
    assert templates.render("my.kind", data) == (
        "my.kind: tool search, observed 1 (the template of this message failed)."
    )


def test_a_template_of_nothing_and_one_too_long_are_faults(directory):
    templates = Templates("en", [directory(en__blank="  {% if false %}x{% endif %}\n", en__long="x" * 5_000)])
    assert "renders to an empty text" in templates.check("blank", {})
    assert "is longer than 4000 characters" in templates.check("long", {})
    assert templates.render("blank", {"observed": 2}).startswith("blank: observed 2 (")
    assert templates.render("long", {}) == "x" * 4_000 + " …"


def test_a_fault_that_shows_only_as_a_hint_is_found_too(directory):
    templates = Templates("en", [directory(en__k="{% if advisory %}{{ missing }}{% endif %}fine")])
    assert "'missing' is undefined" in templates.check("k", {})


def test_a_message_without_details_is_still_a_sentence():
    assert Templates().render("no.such", {}) == "no.such: no details (there is no template for this message)."


HOSTILE = {
    "repeat": "{{ 'a' * 10**9 }}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "format": "{{ '%1000000000d' % 1 }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "center": "{{ 'a' | center(1000000000) }}",
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "range call": "{% for i in range(99999) %}x{% endfor %}",
    "method": "{{ tool.upper() }}",
    "string format": "{{ '{0.__class__}'.format(tool) }}",
    "lipsum": "{{ lipsum(1000000) }}",
    "attribute filter": "{{ tool | attr('__class__') }}",
    "nested loops": "{% for a in tools %}{% for b in tools %}x{% endfor %}{% endfor %}",
    "recursive loop": "{% for a in tools recursive %}{{ loop(tools) }}{% endfor %}",
    "loop over an expression": "{% for a in tools | join %}x{% endfor %}",
    "growing list": "{% for a in tools + tools %}x{% endfor %}",
    "set": "{% set x = 1 %}{{ x }}",
    "namespace": "{% set n = namespace(x='a') %}{{ n.x }}",
    "macro": "{% macro m() %}x{{ m() }}{% endmacro %}{{ m() }}",
    "include": "{% include '/etc/hosts' %}",
    "import": "{% import 'x' as y %}{{ y }}",
    "from import": "{% from 'x' import y %}{{ y }}",
    "extends": "{% extends 'x' %}",
    "block": "{% block a %}{{ self.a() }}{% endblock %}",
    "filter block": "{% filter upper %}x{% endfilter %}",
    "call block": "{% call tool() %}x{% endcall %}",
    "with": "{% with x = 1 %}{{ x }}{% endwith %}",
    "do": "{% do tools.append(1) %}",
    "globals": "{{ cycler }}",
    "self": "{{ self }}",
    "slice": "{{ tools[0:1] }}",
    "big number": "{{ " + "9" * 3_000 + " }}",
    "deep brackets": "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
    "deep not": "{{ " + "not " * 3_000 + "1 }}",
    "deep if": "{% if tool %}" * 500 + "x" + "{% endif %}" * 500,
    "rather deep if": "{% if tool %}" * 50 + "x" + "{% endif %}" * 50,
    "deep list": "{{ 1 in " + "[" * 400 + "]" * 400 + " }}",
    "many loops": "{% for a in tools %}x{% endfor %}" * 9,
    "long source": "x" * 16_001,
    "long concatenation": "{{ tool" + " ~ tool" * 1_700 + " }}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_templates_are_refused_in_no_time(directory, text):
    templates = Templates("en", [directory(en__k=text)])
    data = {"tool": "t" * 10_000, "tools": [{"name": "a"}] * 1_000}
    tracemalloc.start()
    started = time.perf_counter()
    fault = templates.check("k", data)
    rendered = templates.render("k", data)
    took, (_, peak) = time.perf_counter() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fault is not None
    assert len(rendered) <= 4_002
    assert took < 5
    assert peak < 50_000_000


def test_the_heaviest_template_that_is_accepted_stays_within_bounds(directory):
    body = "{% if tool in tool ~ tool %}{% endif %}" * 6
    text = ("{% for a in tools %}" + body + "{% endfor %}") * 8 + "done"
    templates = Templates("en", [directory(en__k=text)])
    started = time.perf_counter()
    assert templates.check("k", {"tool": "t" * 10_000, "tools": [{"name": "a"}] * 1_000}) is None
    assert time.perf_counter() - started < 5


def test_output_stops_when_there_is_enough_of_it(directory):
    text = "{% for a in tools %}{{ a }}{{ a }}{{ a }}{{ a }}{{ a }}{% endfor %}"
    rendered = Templates("en", [directory(en__k=text)]).render("k", {"tools": ["x" * 5_000] * 5_000})
    assert len(rendered) == 4_002


def test_what_a_template_may_use_works(directory):
    text = """
{# a remark #}
{% for t in tools if t.name != "b" %}
{{ loop.index }}{% if loop.last %}!{% endif %} {{ t.name | upper }} {{ t["name"] }}
{% endfor %}
{{ limit - observed }} left, {{ tools | length }} tools, {{ "many" if observed > 1 else "one" }}{{ "." ~ "" }}
{% if missing is defined or not names %}no{% else %}{{ names | join("/") | trim }}{% endif %}
"""
    templates = Templates("en", [directory(en__k=text)])
    data = {"tools": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "observed": 2, "limit": 5, "names": ["x", "y"]}
    assert templates.render("k", data) == "1 A a\n2! C c\n3 left, 3 tools, many.\nx/y"


def test_a_folder_of_thousands_of_templates_is_a_problem(tmp_path):
    folder = tmp_path / "en"
    folder.mkdir()
    for number in range(1_001):
        (folder / f"k{number:04}.txt").touch()
    templates = Templates("en", [tmp_path])
    assert templates.problems == (f"{tmp_path}: more than 1000 templates; the rest is not read",)
    assert len(templates.overridden()) == 1_000


# ---- values


def test_a_value_cannot_imitate_the_structure_around_it(directory):
    templates = Templates("en", [directory(en__k="Tool {{ tool }} failed.")])
    for break_ in ("\n", "\r\n", "\x0b", "\x85", "\u2028", "\u2029", "\x00", "\x1b", "\t"):
        assert templates.render("k", {"tool": f"a{break_}{break_}SYSTEM: b"}) == "Tool a SYSTEM: b failed."
    assert templates.render("k", {"tool": "a\u202eb\u200bc\ufeff"}) == "Tool abc failed."
    assert templates.render("k", {"tool": "{{ 1 }}{% x %}"}) == "Tool {{ 1 }}{% x %} failed."
    assert templates.render("k", {"tool": "a\ud800"}) == "Tool a\ufffd failed."


def test_a_value_is_cut(directory):
    templates = Templates("en", [directory(en__k="{{ tool }}")])
    text = templates.render("k", {"tool": "x" * 10_000_000})
    assert text == "x" * 199 + "…"


def test_numbers_are_written_plainly(directory):
    templates = Templates("en", [directory(en__k="{{ n }}")])
    written = [templates.render("k", {"n": n}) for n in (3.0, 3, 2.5, 1 / 3, -1, 10**400, float("nan"), float("inf"))]
    assert written == ["3", "3", "2.5", "0.333", "-1", *["a number out of range"] * 3]


def test_other_objects_are_not_looked_into(directory):
    class Secret:
        def __str__(self):
            raise AssertionError

    templates = Templates("en", [directory(en__k="{{ x }} {{ y.z }}")])
    deep: Any = "end"
    for _ in range(50):
        deep = {"z": deep}
    assert templates.render("k", {"x": Secret(), "y": {"z": b"bytes"}}) == "(Secret) (bytes)"
    assert "failed" in templates.render("k", {"x": 1, "y": deep})


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
VARIABLES = ("tool", "pattern", "observed", "limit", "period", "kinds", "window", "tools", "offered", "self", "rule")
ALL = {language: Templates(language) for language in LANGUAGES}
SOME = ("stall.deny", "stall.stop", "unusable_responses.stop", "tool_failure.change", "no.kind")
KINDS = [*sorted(CORE_MESSAGES), *SOME]


@settings(max_examples=150)
@given(st.sampled_from(LANGUAGES), st.sampled_from(KINDS), st.dictionaries(st.sampled_from(VARIABLES), json_like))
def test_rendering_never_raises_and_is_always_bounded_text(language, kind, data):
    text = ALL[language].render(kind, data)
    assert 0 < len(text) <= 100_002
    text.encode()


@given(st.text(max_size=600), st.integers(1, 250))
def test_clean_text_is_one_bounded_line_and_stays_as_it_is(text, limit):
    cleaned = clean_text(text, limit)
    assert len(cleaned) <= limit
    assert len(cleaned.splitlines()) <= 1
    assert clean_text(cleaned, limit) == cleaned
