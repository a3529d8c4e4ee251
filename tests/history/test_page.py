"""The page on histories names every problem, every repair and every rule, and no others."""

import re
from pathlib import Path

from policyengine.history.check import PROBLEMS
from policyengine.history.profile import HistoryProfile
from policyengine.history.repair import REPAIRS
from policyengine.history.shapes import SHAPES

PAGE = (Path(__file__).parents[2] / "docs" / "history.md").read_text(encoding="utf-8")


def table(after):
    """The first column of the first table after a heading."""
    text = PAGE.split(f"\n## {after}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `([a-z_]+)`", text, re.MULTILINE)


def test_every_shape_problem_repair_and_rule_is_on_the_page():
    assert table("Shapes")[1:] == list(SHAPES)
    assert table("What is checked") == list(PROBLEMS)
    assert table("What a repair does") == list(REPAIRS)
    assert table("Profiles") == list(HistoryProfile.__struct_fields__)


def test_a_problem_is_mended_by_repairs_that_exist_or_by_none():
    rows = re.findall(r"^\| `([a-z_]+)` \|.*\| ([^|]*) \|$", PAGE, re.MULTILINE)
    mends = {code: re.findall(r"`([a-z_]+)`", cell) for code, cell in rows if code in PROBLEMS}
    assert mends.keys() == PROBLEMS.keys()
    assert {repair for repairs in mends.values() for repair in repairs} == REPAIRS.keys()
