"""Blocks of pages on watching that the tests of the documentation cannot run: they need an extra, or a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
MARKED = re.compile(r"<!-- no-test: [^\n]* runs it -->\n```python\n(.*?)```", re.DOTALL)
BLOCKS = MARKED.findall(PAGE.read_text(encoding="utf-8"))
NEEDS = {"telemetry.metrics": "prometheus_client", "telemetry.traces": "opentelemetry.sdk", "import logging": "logging"}


def block(part: str) -> str:
    """The block that uses a part."""
    (found,) = [text for text in BLOCKS if part in text]
    return found


@pytest.mark.parametrize("part", NEEDS)
def test_a_block_holds(part, tmp_path):
    if not os.environ.get("POLICYENGINE_NEEDS_TELEMETRY"):
        pytest.importorskip(NEEDS[part], exc_type=ImportError)
    body = block(part)
    if part == "import logging":
        body = f"{body}\nlogger.warning('heard')\nlogging.getLogger().handlers[0].flush()\n"
        body = f"import logging\nlogging.basicConfig(format='%(name)s %(levelname)s %(message)s')\n{body}"
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if part == "import logging":
        assert done.stderr == "policyengine WARNING heard\n"
    elif part == "telemetry.traces":
        assert "execute_tool lookup" in done.stdout
    else:
        assert int(done.stdout) > 0


def test_no_block_is_forgotten():
    assert len(BLOCKS) == len(NEEDS)


def test_everything_works_together_as_documented(tmp_path):
    if not os.environ.get("POLICYENGINE_NEEDS_TELEMETRY"):
        for needed in ("prometheus_client", "opentelemetry.sdk"):
            pytest.importorskip(needed, exc_type=ImportError)
    page = (PAGE.parent / "in-production.md").read_text(encoding="utf-8").partition("## Everything together")[2]
    policy, program, printed = (
        re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)[1] for language in ("yaml", "python", "text")
    )
    (tmp_path / "worker.yaml").write_text(policy, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "POLICYENGINE_STORE"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
    assert (tmp_path / "decisions.jsonl").stat().st_mode & 0o777 == 0o600
