"""Processes that are killed for real, on real stores; `python -m benchmarks.kill_runs` does the same for longer."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import pytest

from benchmarks import kept_load, kill_runs

HAS_REDIS = shutil.which("redis-server") is not None and find_spec("redis") is not None
STORES = [
    "sqlite",
    pytest.param(
        "redis",
        marks=pytest.mark.skipif(
            not HAS_REDIS and not os.environ.get("POLICYENGINE_NEEDS_REDIS"),
            reason="no redis-server, or no extra redis",
        ),
    ),
]


@pytest.mark.parametrize("store", STORES)
def test_runs_whose_processes_are_killed_end_as_they_should_and_write_nothing_twice(store):
    assert kill_runs.main(["--runs", "20", "--kills", "2", "--store", store, "--check"]) == 0


@pytest.mark.parametrize("store", STORES)
def test_many_runs_at_once_in_one_process_and_in_many_lose_nothing(store):
    assert kept_load.main(["--runs", "40", "--processes", "4", "--each", "3", "--store", store, "--check"]) == 0
