"""Where an extra is not installed, whoever asks for it is told what to install, and nobody else notices."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDDEN = "import sys\nsys.modules['opentelemetry'] = sys.modules['prometheus_client'] = None\n"


def run(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", HIDDEN + body], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("module", "extra"), [("metrics", "prometheus"), ("traces", "otel")])
def test_a_module_says_which_extra_it_needs(module, extra):
    done = run(f"import policyengine.telemetry.{module}\n")
    assert done.returncode == 1
    assert f"UsageError: {'metrics' if extra == 'prometheus' else 'spans'} need" in done.stderr
    assert f"pip install 'agent-policyengine[{extra}]'" in done.stderr


def test_a_run_without_metrics_needs_nothing_and_one_with_them_says_what():
    command = "from policyengine.cli import main\nsys.argv = {}\nmain()\n"
    assert run(command.format(["policyengine", "run"])).returncode == 0
    done = run(command.format(["policyengine", "run", "--metrics", "0"]))
    assert done.returncode == 1
    assert "error: metrics need prometheus_client: pip install 'agent-policyengine[prometheus]'" in done.stderr
