"""What must hold for every template of a message, and all values that are put into it.

Knows: templates, values. Must not know: how one is rendered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.fuzz.mutate import altered, damaged
from benchmarks.fuzz.source import Source, pick
from policyengine.templates import CORE_MESSAGES, LIMITS, Limits, Templates

ROOT = Path(__file__).parents[2]
PIECES = (
    *(
        b"{{ rule }} says no to {{ tool }}: {{ observed }} of {{ limit }}.\n",
        b"{% for t in offered %}{{ t }},{% endfor %}x",
    ),
    *(b"{{ offered | join(', ') }}", b"{% if observed is number and observed - 1 > 2 %}a{% else %}b{% endif %}"),
    *(b"{{ tool ~ rule ~ tool }}", b"{{ tool|upper|trim|length }}", b"{{ tools[0].name }}", b"{{ steps[0]['id'] }}"),
    *(b"{{ 'a' * 10**9 }}", b"{{ range(10**9) }}", b"{{ ''.__class__.__mro__ }}", b"{{ tool.__init__.__globals__ }}"),
    *(b"{{ self }}", b"{% set a = tool %}", b"{% include 'x' %}", b"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
    *(b"{% for a in offered %}{% for b in offered %}x{% endfor %}{% endfor %}", b"{{ '%s'|format(tool) }}"),
    *(b"{% if tool ~ tool ~ tool == rule %}{% endif %}" * 20, b"{% if offered|join == '' %}{% endif %}" * 20),
)


class Case(NamedTuple):
    """The text of a template for a kind of message, and the values."""

    kind: str
    text: str
    data: Any


def generate(source: Source) -> Case:
    """Return a case."""
    kind = pick(source, tuple(CORE_MESSAGES))
    shipped = (ROOT / "prompts" / "en" / f"{kind}.txt").read_bytes()
    text = damaged(source, (*PIECES, shipped), 20_000).decode("utf-8", "replace")
    data = altered(source, {"tool": "t", "rule": "r", "observed": 1, "limit": 2, **CORE_MESSAGES[kind]})
    return Case(kind, text, data)


def check(case: Case) -> None:
    """Judge the template, and render it.

    Raises:
        AssertionError: the text is too long, or holds what nobody gave to the template.
    """
    templates = Templates(extra={"mine": {"en": {case.kind + ".own": case.text}}})
    data = case.data if isinstance(case.data, dict) else {"tool": case.data}
    trouble = templates.check(case.kind + ".own", data)
    assert trouble is None or isinstance(trouble, str)
    text = templates.render(case.kind + ".own", data)
    assert text.strip(), "an empty text"
    assert len(text) <= LIMITS.get(case.kind + ".own", Limits()).text + 500, "a text that is too long"
    for inside in ("<class", "built-in", "__globals__': ", "0x7f"):
        assert inside not in text or inside in case.text or inside in str(data), "the inside of an object"
    text.encode("utf-8")
