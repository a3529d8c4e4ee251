"""The published cases of class `parse`, through the conformance adapter."""

import importlib.util
import json
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LINES = (TESTS / "data" / "public_cases.jsonl").read_text(encoding="utf-8").splitlines()
CASES = [case for case in map(json.loads, LINES) if case["class"] == "parse"]


def adapter():
    spec = importlib.util.spec_from_file_location("parse_adapter", TESTS / "conformance" / "parse.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ADAPTER = adapter()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_published_case_passes(case):
    assert ADAPTER.judge(case) == []
