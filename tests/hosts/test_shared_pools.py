"""Shared pools behind hosts: reserved before judging, settled afterwards, refused where there is no ledger."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress

import pytest

from policyengine import Guard, Ledger, ProviderError, ToolCall, Usage, UsageError
from policyengine.errors import ConfigError
from policyengine.hosts.able import check_host, require
from policyengine.hosts.core import HostRun
from policyengine.hosts.host import Host
from policyengine.hosts.table import HOSTS
from policyengine.shared.pools import Pool, all_down
from policyengine.stores.memory import MemoryStore
from policyengine.testing import make_engine

EVERYTHING = Host("everything")


def engine_of(**options):
    return make_engine({"team": {"use": "shared_limit", "with": options}})


def used(ledger, counts, limit=10, reserve=0):
    return ledger.used(Pool("team", counts, limit, reserve=reserve))


def look(number, name="look"):
    return ToolCall(f"c{number}", name, args={"page": number})


def begun(engine, ledger, **options):
    run = HostRun(engine, EVERYTHING, ledger=ledger, strict=True, **options)
    run.begin("task")
    return run


def test_runs_of_hosts_share_the_calls_of_a_pool():
    engine, ledger = engine_of(counts="tool_calls", limit=3), Ledger(MemoryStore())
    ran = []
    for _ in range(2):
        run = begun(engine, ledger)
        run.before_model()
        turn = run.after_model("", [look(1), look(2)])
        for ruling in turn.rulings:
            if ruling.runs:
                ran.append(ruling.call.id)
                run.answer(ruling.call.id, "x")
        run.end()
    assert len(ran) == 3
    assert used(ledger, "tool_calls") == 3


def test_calls_reported_one_by_one_and_answered_late_count_once_each():
    engine, ledger = engine_of(counts="tool_calls", limit=2), Ledger(MemoryStore())
    run = begun(engine, ledger)
    rulings = [run.call(look(number)) for number in range(4)]
    assert [ruling.runs for ruling in rulings] == [True, True, False, False]
    assert rulings[2].code == "shared_limit"
    run.answer("c1", "late")
    run.answer("c0", "later", "not_run")  # the host kept it from running
    assert used(ledger, "tool_calls") == 1
    run.end()


def test_a_request_that_is_refused_ends_the_run_and_gives_nothing_away():
    engine, ledger = engine_of(counts="requests", limit=1), Ledger(MemoryStore())
    assert begun(engine, ledger).before_model().action == "send"
    run = begun(engine, ledger)
    assert run.before_model().action == "end"
    assert run.stop.code == "shared_limit"
    assert used(ledger, "requests") == 1


def test_tokens_are_settled_when_the_response_comes_and_failures_take_none():
    engine, ledger = engine_of(counts="tokens", limit=1000, reserve=400), Ledger(MemoryStore())
    run = begun(engine, ledger)
    run.before_model()
    assert used(ledger, "tokens", 1000, 400) == 400
    run.provider_error(ProviderError("overloaded", "no"))
    assert used(ledger, "tokens", 1000, 400) == 0
    run.before_model()
    run.after_model("done", usage=Usage(70, 30, 100))
    assert used(ledger, "tokens", 1000, 400) == 100
    run.end()


def test_a_breaker_of_tools_hears_of_failures_that_a_host_reports():
    engine, ledger = engine_of(counts="tool_failures", limit=2, window="1h"), Ledger(MemoryStore())
    run = begun(engine, ledger)
    for number in range(2):
        assert run.call(look(number)).runs
        run.answer(f"c{number}", "no", "error")
    assert run.call(look(3)).code == "shared_breaker"
    assert begun(engine, ledger).call(look(1)).code == "shared_breaker"


def test_a_breaker_of_the_provider_hears_of_failures_that_a_host_reports():
    engine, ledger = engine_of(counts="provider_errors", limit=1, window="1h"), Ledger(MemoryStore())
    run = begun(engine, ledger)
    run.before_model()
    run.provider_error(ProviderError("overloaded", "no"))
    assert run.before_model().action == "end"
    assert run.stop.code == "shared_breaker"


def test_a_saved_run_goes_on_with_what_it_held():
    engine, ledger = engine_of(counts="tool_calls", limit=5), Ledger(MemoryStore())
    run = begun(engine, ledger)
    run.before_model()
    run.after_model("", [look(1), look(2)])
    again = HostRun.resume(engine, EVERYTHING, run.save(), ledger=ledger)
    again.answer("c1", "x")
    again.answer("c2", "x", "not_run")
    assert used(ledger, "tool_calls") == 1


class Down:
    def perform(self, needs, dues=(), run_id=""):
        return all_down(needs)


def test_while_the_store_is_down_a_host_does_what_the_rule_says():
    for when_down, runs in (("deny", False), ("allow", True)):
        run = begun(engine_of(counts="tool_calls", limit=5, when_down=when_down), Down())
        assert run.call(look(1)).runs is runs


def test_without_a_ledger_no_run_begins():
    engine = engine_of(counts="tool_calls", limit=5)
    with pytest.raises(UsageError, match=r"docs/fleets\.md"):
        HostRun(engine, EVERYTHING)
    with pytest.raises(UsageError, match="no ledger"):
        Guard(engine, task="task")
    saved = begun(engine, Down()).save()
    with pytest.raises(UsageError, match="no ledger"):
        HostRun.resume(engine, EVERYTHING, saved)


def test_a_loop_written_by_hand_shares_a_pool():
    engine, ledger = engine_of(counts="tool_calls", limit=1), Ledger(MemoryStore())
    with Guard(engine, task="task", ledger=ledger) as guard:
        turn = guard.response("", [("look", {}), ("look", {})])
        assert [call.name for call in turn.calls] == ["look"]
        turn.run({"look": lambda: "x"})


@pytest.mark.parametrize("mode", ["enforce", "warn", "shadow"])
def test_hooks_of_coding_agents_refuse_a_policy_that_counts_with_others(mode):
    engine = make_engine({"team": {"use": "shared_limit", "mode": mode, "with": {"counts": "tool_calls", "limit": 5}}})
    for name in ("claude_code", "codex", "gemini_cli", "openhands"):
        assert [problem.code for problem in check_host(engine.snapshot, HOSTS[name])] == ["R520"]
        with pytest.raises(ConfigError, match="no ledger to count in"):
            require(engine.snapshot, HOSTS[name])
    assert check_host(engine.snapshot, HOSTS["own_loop"]) == ()


def test_tokens_of_a_host_that_tells_nothing_of_responses_are_refused():
    engine = engine_of(counts="tokens", limit=1000, reserve=400)
    host = Host("quiet", silent=frozenset({"after_model_response"}))
    assert [problem.code for problem in check_host(engine.snapshot, host)] == ["R518"]
    assert check_host(engine_of(counts="requests", limit=5).snapshot, host) == ()


@pytest.mark.parametrize("again", [False, True])
def test_a_tool_that_is_interrupted_counts_and_the_calls_behind_it_do_not(again):
    engine, ledger = engine_of(counts="tool_calls", limit=9), Ledger(MemoryStore())
    ran = []

    def look(page):
        ran.append(page)
        if page == 2 and len(ran) == 2:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), Guard(engine, task="task", ledger=ledger) as guard:
        guard.ready()
        turn = guard.response("", calls=[("look", {"page": page}) for page in (1, 2, 3)])
        with suppress(KeyboardInterrupt) if again else nullcontext():
            turn.run({"look": look})
        turn.run({"look": look})
    assert used(ledger, "tool_calls", 9) == (3 if again else 2)
    assert len(ran) == (4 if again else 2)


def test_tools_that_are_cancelled_count_and_calls_that_waited_for_a_human_do_not():
    engine, ledger = engine_of(counts="tool_calls", limit=3), Ledger(MemoryStore())
    ran = []

    async def look(page):
        ran.append(page)
        raise asyncio.CancelledError

    async def one():
        async with Guard(engine, task="task", ledger=ledger) as guard:
            guard.ready()
            await guard.response("", calls=[("look", {"page": 1})]).arun({"look": look})

    for _ in range(5):
        with suppress(asyncio.CancelledError):
            asyncio.run(one())
    assert len(ran) == 3
    assert used(ledger, "tool_calls", 3) == 3
