"""Many at once: 16 processes on one SQLite file and on one Redis, a thousand asynchronous runs, processes that die."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from policyengine import Agent, Engine, Ledger, Script, ScriptedCall, Usage, batch, say
from policyengine.messages import ModelResponse, ToolCall
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.providers.scripted import ScriptedModel
from policyengine.shared.pools import Need, Pool
from policyengine.stores import open_store
from policyengine.stores.memory import MemoryStore
from tests.redis_server import redis_server  # noqa: F401

PROCESSES, RUNS = 16, 6
CALLS_LIMIT, REQUESTS_LIMIT, TOKENS_LIMIT, RESERVE, DEAREST = 150, 130, 60_000, 500, 900

POLICY = f"""
apiVersion: policyengine/v1
kind: Policy
name: fleet
interventions: {{max: 1000}}
extensions:
  calls: {{use: shared_limit, with: {{counts: tool_calls, limit: {CALLS_LIMIT}, window: 24h, wait: 60s}}}}
  requests: {{use: shared_limit, with: {{counts: requests, limit: {REQUESTS_LIMIT}, wait: 60s}}}}
  tokens: {{use: shared_limit, with: {{counts: tokens, limit: {TOKENS_LIMIT}, reserve: {RESERVE}, wait: 60s}}}}
"""

WORKER = """
import json, sys
from policyengine import Agent, Engine, Ledger, Script, ScriptedCall, Turn, Usage, say
from policyengine.policy.load import load_policy_text
from policyengine.plugins.registry import builtin_registry
from policyengine.providers.scripted import ScriptedModel
from policyengine.stores import open_store

place, number, runs, dearest = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
registry = builtin_registry()
engine = Engine(load_policy_text(sys.stdin.read(), registry=registry), registry=registry)
ledger = Ledger(open_store(place))
done = {"calls": 0, "requests": 0, "tokens": 0, "codes": [], "down": 0}


class Counting(ScriptedModel):
    def complete(self, request):
        response = super().complete(request)
        done["requests"] += 1
        done["tokens"] += response.usage.total_tokens
        return response


def look(page: int) -> str:
    done["calls"] += 1
    return f"page {page}"


for run in range(runs):
    took = 100 + (number * 37 + run * 101) % (dearest - 100)
    turns = [
        Turn(tuple(ScriptedCall("look", {"page": page}) for page in range(3)), usage=Usage(took, 0, took)),
        say("done", usage=Usage(took, 0, took)),
    ]
    outcome = Agent(engine, Counting(Script("task", tuple(turns))), [look], ledger=ledger).run("task")
    done["codes"].append(outcome.stop.code if outcome.stop else "")
done["owed"] = ledger.owed
print(json.dumps(done))
"""


def run_fleet(place):
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, place, str(number), str(RUNS), str(DEAREST)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(POLICY)
        worker.stdin.close()
        worker.stdin = None
    told = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * PROCESSES
    return [json.loads(text) for text in told]


def used(ledger, counts, limit, name, window_s=None, reserve=0):
    return ledger.used(Pool(name, counts, limit, window_s, reserve=reserve))


def check_fleet(place):
    done = run_fleet(place)
    codes = [code for one in done for code in one["codes"]]
    ran, sent, tokens = (sum(one[name] for one in done) for name in ("calls", "requests", "tokens"))
    assert set(codes) <= {"", "shared_limit"}, "no run met a store that was down"
    assert sum(one["owed"] for one in done) == 0
    # Never more than the limit, and all of it where that is what ended the runs.
    assert ran <= CALLS_LIMIT
    assert sent <= REQUESTS_LIMIT
    assert sent == REQUESTS_LIMIT or tokens >= TOKENS_LIMIT - RESERVE * PROCESSES
    # For tokens: by at most what a request took beyond its reservation, for each one in flight.
    assert tokens <= TOKENS_LIMIT + PROCESSES * (DEAREST - RESERVE)
    store = open_store(place)
    ledger = Ledger(store)
    assert used(ledger, "tool_calls", CALLS_LIMIT, "calls", 86400.0) == ran
    assert used(ledger, "requests", REQUESTS_LIMIT, "requests") == sent
    assert used(ledger, "tokens", TOKENS_LIMIT, "tokens", reserve=RESERVE) == tokens
    store.close()


def test_sixteen_processes_on_one_sqlite_file_never_exceed_a_budget_and_lose_no_update(tmp_path):
    check_fleet(str(tmp_path / "shared.db"))


def test_sixteen_processes_on_one_redis_never_exceed_a_budget_and_lose_no_update(redis_server):  # noqa: F811
    check_fleet(redis_server.url())


@pytest.mark.parametrize("counts", ["tool_calls", "requests"])
def test_a_thousand_asynchronous_runs_share_a_budget_to_the_last_unit(counts):
    registry = builtin_registry()
    body = f"extensions: {{team: {{use: shared_limit, with: {{counts: {counts}, limit: 1234}}}}}}\n"
    text = f"apiVersion: policyengine/v1\nkind: Policy\nname: t\n{body}"
    engine = Engine(load_policy_text(text, registry=registry), registry=registry)
    ledger = Ledger(MemoryStore())
    ran, sent = [], []

    class Counting(ScriptedModel):
        def complete(self, request):
            sent.append(1)
            return super().complete(request)

    async def look(page: int) -> str:
        ran.append(1)
        return "x"

    async def all_of_them():
        turns = (batch(ScriptedCall("look", {"page": 1}), ScriptedCall("look", {"page": 2})), say("done"))
        agents = [Agent(engine, Counting(Script("task", turns)), [look], ledger=ledger) for _ in range(1000)]
        return await asyncio.gather(*(agent.arun("task") for agent in agents))

    outcomes = asyncio.run(all_of_them())
    assert {outcome.status for outcome in outcomes} == (
        {"completed"} if counts == "tool_calls" else {"completed", "stopped"}
    )
    assert len(ran if counts == "tool_calls" else sent) == 1234
    assert used(ledger, counts, 1234, "team") == 1234


DYING = """
import os, sys
from policyengine import Ledger
from policyengine.shared.pools import Need, Pool
from policyengine.stores import open_store
pool = Pool("team", "tool_calls", 10, wait_s=60.0)
need = Need("rule", pool, pool.key(conversation="", agent=""), 4)
assert Ledger(open_store(sys.argv[1])).reserve((need,))[0].granted == 4
os.kill(os.getpid(), 9)
"""


def test_what_a_process_held_when_it_died_stays_counted(tmp_path):
    place = str(tmp_path / "shared.db")
    assert subprocess.run([sys.executable, "-c", DYING, place], timeout=60, check=False).returncode == -9
    store = open_store(place)
    pool = Pool("team", "tool_calls", 10, wait_s=60.0)
    grant = Ledger(store).reserve((Need("rule", pool, pool.key(conversation="", agent=""), 10),))[0]
    assert (grant.used, grant.granted) == (4, 6)
    store.close()


def test_tokens_in_flight_exceed_the_limit_by_no_more_than_the_difference_to_what_was_reserved():
    """The bound is reached: as many requests as fit in by their reservations, and each takes more."""
    registry = builtin_registry()
    body = "extensions: {team: {use: shared_limit, with: {counts: tokens, limit: 1000, reserve: 100}}}\n"
    text = f"apiVersion: policyengine/v1\nkind: Policy\nname: t\n{body}"
    engine = Engine(load_policy_text(text, registry=registry), registry=registry)
    ledger = Ledger(MemoryStore())
    in_flight, most = set(), [0]

    class Waiting:
        name = "m"

        async def complete(self, request):
            in_flight.add(id(request))
            for _ in range(2000):  # until everybody else was refused or is in flight too
                await asyncio.sleep(0)
            most[0] = max(most[0], len(in_flight))
            in_flight.discard(id(request))
            call = ToolCall("c1", "look", '{"page": 1}', {"page": 1})
            return ModelResponse("", (call,), usage=Usage(300, 0, 300))

    async def look(page: int) -> str:
        return "x"

    async def all_of_them():
        return await asyncio.gather(*(Agent(engine, Waiting(), [look], ledger=ledger).arun("task") for _ in range(40)))

    outcomes = asyncio.run(all_of_them())
    assert {outcome.stop.code for outcome in outcomes} == {"shared_limit"}
    spent = used(ledger, "tokens", 1000, "team", reserve=100)
    assert spent <= 1000 + 10 * (300 - 100)
    assert most[0] <= 10
