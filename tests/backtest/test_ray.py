"""The engine `ray`: what it gives, and what becomes of workers that die. Needs the extra `ray`."""

from __future__ import annotations

import os
import sys

import pytest
from click.testing import CliRunner

from policyengine.backtest.run import backtest
from policyengine.cli import cli
from policyengine.errors import UsageError

if os.environ.get("POLICYENGINE_NEEDS_RAY"):
    import ray
else:
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed", exc_type=ImportError)

POLICIES = {"policies": ["default", "cautious"], "baseline": "unattended", "by_task": True}


@pytest.fixture
def relative(runs, monkeypatch):
    """Paths below the working directory, which is not that of a worker."""
    monkeypatch.chdir(runs.parent)
    return runs.relative_to(runs.parent)


def test_ray_gives_the_local_result_starts_and_ends_itself_and_leaves_no_trace(
    relative, figures, small_units, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", "/tmp" if os.path.isdir("/tmp") else str(tmp_path))
    environment = dict(os.environ)
    policy = relative.parent / "mine.yaml"
    policy.write_text("apiVersion: policyengine/v1\nkind: Policy\nname: mine\nextends: default\n", encoding="utf-8")
    arguments = {**POLICIES, "policies": ["default", "peers/openhands", str(policy)]}
    alone = backtest([relative], **arguments)
    assert figures(backtest([relative], engine="ray", **arguments)) == figures(alone)
    assert not ray.is_initialized()
    assert dict(os.environ) == environment
    assert capfd.readouterr() == ("", "")


def test_workers_that_die_are_replaced_and_a_unit_that_always_kills_them_is_named(
    runs, mortal, figures, small_units, tmp_path
):
    mark = tmp_path / "mark"
    once = mortal(tmp_path / "once.json", str(mark))
    mark.touch()
    undisturbed = figures(backtest([runs, once]))
    mark.unlink()
    assert figures(backtest([runs, once], engine="ray")) == undisturbed
    assert mark.exists()
    with pytest.raises(UsageError, match=r"worked on \S+always\.json died 3 times"):
        backtest([mortal(tmp_path / "always.json", ""), runs], engine="ray")
    assert not ray.is_initialized()


def test_a_ray_that_runs_already_is_used_and_left_running_and_errors_of_workers_are_those_of_the_backtest(
    runs, figures, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    alone = figures(backtest([runs]))
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        address = ray.get_runtime_context().gcs_address
        assert figures(backtest([runs], engine="ray")) == alone
        assert figures(backtest([runs], engine="ray", address=address)) == alone
        assert ray.is_initialized()
        one = tmp_path / "one.yaml"
        one.write_text("apiVersion: policyengine/v1\nkind: Policy\nname: one\n", encoding="utf-8")

        def edit(done, whole):
            one.write_text(one.read_text(encoding="utf-8") + "extends: default\n", encoding="utf-8")

        with pytest.raises(UsageError, match=r"^the policy one was changed while the backtest was running$"):
            backtest([runs], [str(one)], engine="ray", progress=edit)
    finally:
        ray.shutdown()


def test_an_address_nobody_answers_at_is_an_error_of_the_command_line(runs):
    result = CliRunner().invoke(cli, ["backtest", str(runs), "--engine", "ray", "--address", "nonsense"])
    assert result.exit_code == 1
    assert "Ray does not begin at nonsense" in result.stderr


def test_without_the_extra_the_command_to_install_it_is_named(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'agent-policyengine\[ray\]'"):
        backtest([runs], engine="ray")
