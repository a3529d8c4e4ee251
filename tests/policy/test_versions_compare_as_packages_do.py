"""Ranges of versions admit what package managers would admit."""

from __future__ import annotations

import pytest

from policyengine.policy.versions import clauses, fit


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("0.4", ">=0.4,<1", "ok"),
        ("0.4.0", ">=0.4,<1", "ok"),
        ("0.3.9", ">=0.4,<1", "too old"),
        ("0.10", ">=0.9", "ok"),
        ("1.0", ">=0.4,<1", "too new"),
        ("1", ">=0.4,<1.0.0", "too new"),
        ("1.0rc1", ">=0.4,<1", "too new"),
        ("1.0.dev3", "<1", "too new"),
        ("1.0rc1", "<1.0rc2", "ok"),
        ("0.4rc1", ">=0.4", "too old"),
        ("0.4a1", ">=0.4.dev0", "ok"),
        ("0.4.post1", ">0.4", "ok"),
        ("1.2", "==1.2.0", "ok"),
        ("1.2.1", "==1.2", "too new"),
        ("1.2.1", "==1.2.*", "ok"),
        ("1.3", "==1.2.*", "too new"),
        ("1.1", "==1.2.*", "too old"),
        ("1.2.1", "!=1.2.*", "excluded"),
        ("1.2", "!=1.2", "excluded"),
        ("1.4.9", "~=1.4", "ok"),
        ("2.0", "~=1.4", "too new"),
        ("1.4.9", "~=1.4.2", "ok"),
        ("1.5", "~=1.4.2", "too new"),
        ("1.4.1", "~=1.4.2", "too old"),
        ("1.0+local.1", "==1.0", "ok"),
        ("1", "<=1", "ok"),
        ("2", "<=1", "too new"),
        ("1", ">1", "too old"),
        ("unknown", ">=1", "excluded"),
        ("1!2.0", ">=1", "excluded"),
    ],
)
def test_a_version_fits_or_lies_on_the_right_side(version: str, wanted: str, expected: str) -> None:
    bounds = clauses(wanted)
    assert bounds is not None
    assert fit(version, bounds) == expected


@pytest.mark.parametrize("text", ["", "1.0", ">=", ">=x", ">=1,,<2", "=>1", "~=1", ">=1.*", "^1.2", ">= 1 2", "≥1"])
def test_what_is_no_range_is_refused(text: str) -> None:
    assert clauses(text) is None
