"""Metrics: what is counted under which labels, how many labels there can be, and a real endpoint that is scraped."""

from __future__ import annotations

import io
import os
import re
import threading
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

if not os.environ.get("POLICYENGINE_NEEDS_TELEMETRY"):
    pytest.importorskip("prometheus_client", reason="the extra `prometheus` is not installed", exc_type=ImportError)

import prometheus_client
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from policyengine import Engine, Extension, ModelResponse, ToolCall, UsageError, call, hookimpl, say
from policyengine.cli import cli
from policyengine.hosts.core import HostRun
from policyengine.hosts.host import Host
from policyengine.messages import Usage
from policyengine.plugins.registry import discover
from policyengine.policy.load import load_policy_text
from policyengine.script import ScriptedCall, Turn, fail
from policyengine.telemetry.decision_log import DecisionLog
from policyengine.telemetry.metrics import OTHER, Metrics, Names
from policyengine.testing import ListedRegistry, ManualClock, play, policy, rule

POLICY = "apiVersion: policyengine/v1\nkind: Policy\nname: test\nextensions: {}\n"


def values(text: str) -> dict[tuple, float]:
    """Every sample of a scraped text, by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics | str, name: str, /, **labels: str) -> float:
    """The sum of all samples of one name that have these labels."""
    text = metrics if isinstance(metrics, str) else metrics.text()
    wanted = set(labels.items())
    found = [number for key, number in values(text).items() if key[0] == name and wanted <= set(key[1:])]
    return sum(found)


class Fails(Extension):
    """Raises, or takes a name from the tool."""

    name = "acme.fails"
    messages = {"acme.fails.deny": {}}
    templates = {"en": {"acme.fails.deny": "no"}}

    @hookimpl
    def before_tool_call(self, run, call):
        if call.name == "raise":
            raise KeyError("s3cret")
        return run.deny(call.name) if call.name.startswith("deny") else None


def test_decisions_answers_stops_and_outcomes_are_counted():
    engine = Engine()
    metrics = Metrics(engine)
    assert play(engine, [call("look")] * 8).outcome.status == "stopped"
    by = {"hook": "before_tool_call", "rule": "stall_detector", "mode": "enforce"}
    assert value(metrics, "policyengine_decisions_total", action="deny", **by) == 2
    assert value(metrics, "policyengine_decisions_total", action="stop", **by) == 1
    assert value(metrics, "policyengine_rule_answers_total", raw="hint", effective="hint", **by) == 1
    assert value(metrics, "policyengine_rule_answers_total", raw="deny", code="repeat", **by) == 2
    assert value(metrics, "policyengine_runs_ended_total", status="stopped") == 1
    assert value(metrics, "policyengine_stops_total", rule="stall_detector", code="repeat", action="stop") == 1
    calls = {status: value(metrics, "policyengine_tool_calls_total", tool="look", status=status) for status in
             ("ok", "denied", "not_run")}  # fmt: skip
    assert calls == {"ok": 4, "denied": 2, "not_run": 1}
    assert value(metrics, "policyengine_model_requests_total") == 7
    assert value(metrics, "policyengine_rule_seconds_count", rule="stall_detector") > 7


def test_a_rule_in_shadow_is_counted_by_what_it_wanted():
    engine = Engine(policy(rule("acme.fails", mode="shadow")), registry=ListedRegistry(Fails))
    metrics = Metrics(engine)
    play(engine, [call("deny"), say("done")])
    assert value(metrics, "policyengine_rule_answers_total", raw="deny", effective="allow", mode="shadow") == 1
    assert value(metrics, "policyengine_decisions_total", action="deny") == 0


def test_rules_that_fail_are_counted_by_kind():
    engine = Engine(policy(rule("acme.fails")), registry=ListedRegistry(Fails))
    metrics = Metrics(engine)
    play(engine, [call("raise"), say("done")])
    play(engine, [call("look"), say("done")], forced={"before_tool_call/acme.fails": "timeout"})
    assert value(metrics, "policyengine_rule_errors_total", rule="acme.fails", kind="error") == 1
    assert value(metrics, "policyengine_rule_errors_total", rule="acme.fails", kind="timeout") == 1
    assert "s3cret" not in metrics.text()


def test_tokens_cost_and_failed_requests_are_counted():
    engine = Engine()
    metrics = Metrics(engine, prices=lambda model, prompt, completion: 10**9 if model == "dear" else None)
    turns = [
        fail("rate_limit"),
        say("", usage=Usage(10, 2, 12), model="dear"),
        say("done", usage=Usage(5, None, None), model="unknown"),
    ]
    play(engine, turns)
    assert value(metrics, "policyengine_tokens_total", kind="prompt") == 15
    assert value(metrics, "policyengine_tokens_total", kind="completion") == 2
    assert value(metrics, "policyengine_cost_dollars_total") == 1
    assert value(metrics, "policyengine_provider_errors_total", code="rate_limit") == 1


def test_the_state_of_an_engine_is_looked_at_when_somebody_asks(tmp_path):
    clock = ManualClock()
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    closed = io.StringIO()
    closed.close()
    engine = Engine(file, clock=clock, sinks=[DecisionLog(closed)])
    metrics = Metrics(engine)
    run = engine.start_run()
    run.start("task")
    text = metrics.text()
    assert value(text, "policyengine_policy_info", name="test") == 1
    assert value(text, "policyengine_policy_generation") == 1
    assert value(text, "policyengine_runs_active") == value(text, "policyengine_runs_started_total") == 1
    assert value(text, "policyengine_kill_switch") == 0
    assert value(text, "policyengine_log_dropped_lines_total") == 2
    engine.kill()
    file.write_text(POLICY + "nonsense: 1\n")
    assert not engine.reload()
    clock.now += 10
    text = metrics.text()
    assert value(text, "policyengine_kill_switch") == value(text, "policyengine_policy_rejected") == 1
    assert value(text, "policyengine_policy_differs_seconds") == 10
    assert value(text, "policyengine_reloads_total", outcome="rejected") == 1
    file.write_text(POLICY + "revision: new\n")
    assert engine.reload()
    text = metrics.text()
    assert value(text, "policyengine_policy_info", revision="new") == 1
    assert value(text, "policyengine_policy_generation") == 2
    assert value(text, "policyengine_reloads_total", outcome="loaded") == 1


# ---- bounds


def test_names_beyond_a_number_are_other():
    names = Names(2)
    assert [names.learn(name) for name in "abcab"] == ["a", "b", OTHER, "a", "b"]
    assert (names.known("a"), names.known("c")) == ("a", OTHER)


def test_a_model_cannot_use_up_the_labels_with_names_of_its_own():
    engine = Engine(policy(rule("acme.fails")), registry=ListedRegistry(Fails))
    metrics = Metrics(engine, most_names=3)
    for number in range(50):
        denied = HostRun(engine, Host("test"))
        denied.begin("task")
        denied.call(ToolCall("1", f"deny{number}", "{}"))
        denied.end("completed")
    host = HostRun(engine, Host("test"), tools={"look"})
    host.begin("task")
    host.after_model("", [ToolCall("x", "no_such_tool", "{}")])
    host.call(ToolCall("1", "look", "{}"))
    host.answer("1", "ok")
    assert value(metrics, "policyengine_tool_calls_total", tool="look", status="ok") == 1
    assert value(metrics, "policyengine_tool_calls_total", tool=OTHER) == 51
    shown = set(re.findall(r'code="(\w+)"', metrics.text()))
    assert len(shown) <= 4
    assert not re.search(r'tool="(deny|no_such)', metrics.text())


def test_a_tool_that_was_offered_is_counted_by_name_even_if_it_never_runs():
    engine = Engine(policy(rule("acme.fails")), registry=ListedRegistry(Fails))
    metrics = Metrics(engine)
    play(engine, [call("deny"), say("done")])
    assert value(metrics, "policyengine_tool_calls_total", tool="deny", status="denied") == 1


# ---- engines and registries


def test_two_engines_are_told_apart():
    first, second = Engine(), Engine("cautious")
    metrics = Metrics(first, name="first")
    metrics.add(second, "second")
    play(first, [say("done")])
    assert value(metrics, "policyengine_runs_ended_total", engine="first") == 1
    assert value(metrics, "policyengine_runs_ended_total", engine="second") == 0
    assert value(metrics, "policyengine_policy_info", engine="second", name="cautious") == 1
    with pytest.raises(UsageError, match="'first' already"):
        metrics.add(second, "first")


def test_nothing_is_added_to_the_registry_of_the_host_unless_it_is_given():
    before = prometheus_client.generate_latest(prometheus_client.REGISTRY)
    own = Metrics(Engine())
    assert b"policyengine" not in prometheus_client.generate_latest(prometheus_client.REGISTRY)
    assert before
    shared = prometheus_client.CollectorRegistry()
    assert Metrics(Engine(), shared).registry is shared is not own.registry
    with pytest.raises(UsageError, match="use `add`"):
        Metrics(Engine(), shared)


def test_what_fails_while_counting_ends_no_run():
    engine = Engine()
    Metrics(engine, prices=lambda *_: 1 // 0)
    assert play(engine, [say("done", usage=Usage(1, 1, 2), model="m")]).outcome.status == "completed"


def test_runs_in_threads_are_all_counted():
    engine = Engine()
    metrics = Metrics(engine)

    def work() -> None:
        for _ in range(5):
            run = engine.start_run()
            run.start("task")
            for number in range(20):
                run.begin_iteration()
                run.before_tool_call(ToolCall(str(number), f"look{number}", "{}"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert value(metrics, "policyengine_decisions_total", hook="before_tool_call", action="allow") == 800


# ---- a real endpoint


def test_the_endpoint_is_scraped_on_loopback_and_gone_afterwards():
    engine = Engine()
    metrics = Metrics(engine)
    with metrics.serve() as address:
        assert address.startswith("http://127.0.0.1:")
        play(engine, [say("done")])
        with urllib.request.urlopen(address, timeout=30) as answer:
            text = answer.read().decode()
        assert value(text, "policyengine_runs_ended_total", status="completed") == 1
        with pytest.raises(UsageError, match="cannot serve metrics"), metrics.serve(int(address.split(":")[2][:-8])):
            pass
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=30)


def asking_for(engine, metrics, *responses):
    """Play responses to a host that knows no tools; every call runs."""
    run = HostRun(engine, Host("other"))
    run.begin("task")
    for response in responses:
        run.before_model()
        for ruling in run.after_model(response.text, response.tool_calls, usage=response.usage).rulings:
            run.answer(ruling.call.id, "ok")
    run.end()
    return metrics.text()


def test_names_and_numbers_of_a_model_that_nobody_can_send_end_no_metrics():
    engine = Engine()
    metrics = Metrics(engine)
    odd = ModelResponse("", (ToolCall("1", "to\ud800ol", "{}"),), usage=Usage(10**400, 3))
    text = asking_for(engine, metrics, odd, ModelResponse("done", usage=Usage(1, 1)))
    assert value(text, "policyengine_tool_calls_total", tool="to?ol", status="ok") == 1
    assert value(text, "policyengine_tokens_total", kind="completion") == 4
    assert value(text, "policyengine_runs_ended_total") == 1


def test_a_failed_request_counts_once_however_often_the_rules_are_asked_about_it():
    engine = Engine()
    metrics = Metrics(engine)
    play(engine, [call("look"), fail("context_overflow"), say("done")])
    assert value(metrics, "policyengine_provider_errors_total", code="context_overflow") == 1
    assert value(metrics, "policyengine_decisions_total", hook="after_provider_error") > 1


def test_a_failed_request_beside_the_main_one_is_counted():
    text = POLICY.replace("extensions: {}", "plan: {mode: steps, decompose: true}\nextensions: {}")
    engine = Engine(load_policy_text(text, registry=discover()), registry=discover())
    metrics = Metrics(engine)
    play(engine, [fail("server_error"), say("done")])
    assert value(metrics, "policyengine_provider_errors_total", code="server_error") == 1
    assert value(metrics, "policyengine_model_requests_total") == 2


@pytest.mark.parametrize("strategy", ["slide", "compact"])
def test_a_request_in_the_place_of_which_the_history_was_shortened_was_not_sent(strategy):
    rules = f"  context_compaction: {{with: {{window: 256, strategy: {strategy}}}}}"
    text = POLICY.replace("extensions: {}", f"extends: [default]\nextensions:\n{rules}")
    engine = Engine(load_policy_text(text, registry=discover()), registry=discover())
    metrics, asked = Metrics(engine), []
    engine.sinks.append(lambda report: asked.append(report.decision) if report.hook == "before_model_call" else None)
    turns = [
        Turn(calls=tuple(ScriptedCall("look", {"page": 3 * n + m}, result="page " * 60) for m in range(3)),
             usage=Usage(100 + 90 * n, 5))
        for n in range(4)
    ]  # fmt: skip
    play(engine, [*turns, Turn(text="a summary", usage=Usage(50, 5)), say("done"), say("done")])
    answered = value(metrics, "policyengine_decisions_total", hook="after_model_response")
    assert sum(decision.changed is not None for decision in asked) >= 1
    assert value(metrics, "policyengine_model_requests_total") == answered < len(asked)


TOOLS = """
import re, urllib.request
from pathlib import Path

def search_code(query: str = "", **more: str) -> str:
    "Search."
    address = Path("where").read_text()
    with urllib.request.urlopen(address, timeout=30) as answer:
        Path("scraped").write_bytes(answer.read())
    return "found"
"""


def test_a_run_on_the_command_line_serves_its_metrics_meanwhile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scraping_tools.py").write_text(TOOLS)
    serve = Metrics.serve

    @contextmanager
    def told(self, *place):
        with serve(self, *place) as address:
            Path("where").write_text(address)
            yield address

    monkeypatch.setattr(Metrics, "serve", told)
    script = "task: t\nturns:\n- calls: [{tool: search_code, args: {query: x}}]\n- text: done\n"
    Path("script.yaml").write_text(script)
    arguments = ["run", "--script", "script.yaml", "--tools", "scraping_tools:search_code", "--metrics", "0"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    text = Path("scraped").read_text()
    assert value(text, "policyengine_model_requests_total") == 1
    assert value(text, "policyengine_runs_active") == 1


def test_a_port_that_is_taken_is_a_clear_error():
    with Metrics(Engine()).serve() as address:
        result = CliRunner().invoke(cli, ["run", "--metrics", address.split(":")[2].removesuffix("/metrics")])
    assert result.exit_code == 1
    assert "cannot serve metrics" in result.output
