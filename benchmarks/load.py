"""Runs that decide while the policy is reloaded, and what must be true of each of their decisions.

Knows: a policy whose every rule tells which version of the file it is from, runs under it, the checks.
Must not know: when the policy is reloaded, how long anything may take.

Version 1 of the file is generation 1 of the engine, and each reload puts the next version in force. So the limit that
a vote holds is the number of the generation that it was made under, and it can be compared with the one that the run
names.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from math import log2
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.scripted import step
from policyengine import Extension, hookimpl
from policyengine.actions import AnyAction
from policyengine.decision import Decision
from policyengine.engine import Engine
from policyengine.extension import Scope
from policyengine.messages import Batch, ModelRequest
from policyengine.outcome import Outcome
from policyengine.plugins.registry import builtin_registry
from policyengine.run import Run
from policyengine.runstate import Conversation
from policyengine.testing import ListedRegistry

ROUNDS = 25
"""How many rounds a run has. They are few, so that runs begin and end in every generation."""

MARKS = {
    "first": "mark, with: {generation: %d}",
    "second": "mark, with: {generation: %d}",
    "third": "mark, mode: warn, with: {generation: %d}",
    "fourth": "mark, mode: shadow, with: {generation: %d}",
    "searching": "mark, when: {tool: search}, with: {generation: %d}",
    "of_agent": "mark, when: {agent: loaded}, with: {generation: %d}",
    "of_conversation": "mark, with: {generation: %d, scope: conversation}",
    "of_step": "mark, with: {generation: %d, scope: step}",
    "of_iteration": "mark, with: {generation: %d, scope: iteration}",
    "foreign": "bench.mark, with: {generation: %d}",
    "of_conversation_foreign": "bench.mark, with: {generation: %d, scope: conversation}",
}
"""Rules that vote at every event, each with the number of the version and with its count of calls."""

FOREIGN = frozenset({"foreign", "of_conversation_foreign"})
"""Those of them that count as third-party."""

LIMIT = "calls"
"""A built-in rule beside them, whose limit changes with every version."""

REQUEST = ModelRequest(())


class Seen(msgspec.Struct):
    """How many calls a mark has judged."""

    calls: int = 0


class Mark(Extension):
    """Says at every event which version of the policy it belongs to, and how many calls it has judged."""

    name = "mark"
    options: Any = {
        "generation": {"type": "integer", "min": 1, "max": 1_000_000, "required": True},
        "scope": {"type": "string", "allowed": ["conversation", "run", "step", "iteration"], "default": "run"},
    }
    state = Seen

    def state_scope(self) -> Scope:
        """Return the scope that the options choose."""
        chosen: Scope = self.options.scope
        return chosen

    @hookimpl
    def before_model_call(self, run):
        """Tell version and count."""
        return run.record("mark", observed=run.state.calls, limit=self.options.generation)

    @hookimpl
    def before_tool_call(self, run):
        """Count the call; tell version and count."""
        run.state.calls += 1
        return run.record("mark", observed=run.state.calls, limit=self.options.generation)

    @hookimpl
    def after_tool_call(self, run):
        """Tell version and count."""
        return run.record("mark", observed=run.state.calls, limit=self.options.generation)

    @hookimpl
    def after_iteration(self, run):
        """Tell version and count."""
        return run.record("mark", observed=run.state.calls, limit=self.options.generation)


class ForeignMark(Mark):
    """The same as somebody else's rule: in another thread, on a copy of its state."""

    name = "bench.mark"


def registry() -> Any:
    """Return the built-in extensions and both marks."""
    trusted: Any = ListedRegistry(Mark, trusted=True, others=builtin_registry())
    return ListedRegistry(ForeignMark, others=trusted)


def calls_limit(version: int) -> int:
    """Return the limit of the rule `calls` in a version."""
    return 1 + version % 7


def marks_of(*, foreign: bool) -> tuple[str, ...]:
    """Return the rules of a policy, with or without those that count as third-party."""
    return tuple(name for name in MARKS if foreign or name not in FOREIGN)


def write(path: Path, version: int, *, foreign: bool = True) -> None:
    """Put a version of the policy into its file, as a careful editor does: all at once."""
    rules = "".join(f"  {name}: {{use: {MARKS[name] % version}}}\n" for name in marks_of(foreign=foreign))
    text = f"""\
apiVersion: policyengine/v1
kind: Policy
name: load
revision: "{version}"
extends: [default]
defaults: {{timeout: 30s}}
extensions:
  step_limit: {{with: {{max_steps: {100 + version % 2}}}}}
  {LIMIT}: {{use: tool_call_limit, mode: shadow, with: {{calls: {calls_limit(version)}}}}}
{rules}"""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)


class Histogram:
    """Counts of times by size, about one per cent apart: as much memory for a million as for one."""

    def __init__(self) -> None:
        self.counts = [0] * 2600

    def add(self, ns: int) -> None:
        """Count a time in nanoseconds."""
        self.counts[int(log2(ns + 1) * 64)] += 1

    def merge(self, other: Histogram) -> None:
        """Add the counts of another one."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]

    @property
    def total(self) -> int:
        """How many times were counted."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Return the time in nanoseconds that `share` of all are not above, to about one per cent."""
        left = share * self.total
        for bucket, count in enumerate(self.counts):
            left -= count
            if left <= 0:
                return float(2 ** ((bucket + 1) / 64))
        return 0.0


class Load:
    """What drivers share: whether the policy is being reloaded, whether to stop, and everything they found.

    `idle` and `reloading` time the decisions on a call and on its result that were made meanwhile.
    """

    def __init__(self, *, foreign: bool = True) -> None:
        self.always = len(marks_of(foreign=foreign)) - 1  # one is asked about a single tool only
        self.busy = False
        self.stop = threading.Event()
        self.faults: list[str] = []
        self.idle = Histogram()
        self.reloading = Histogram()
        self.decisions = 0
        self.runs = 0
        self.moves = 0
        self._lock = threading.Lock()

    def fault(self, text: str) -> None:
        """Note that something is not as it must be; what is the same a thousand times is not kept a thousand times."""
        with self._lock:
            if len(self.faults) < 100:
                self.faults.append(text)

    def take(self, driver: Driver) -> None:
        """Add what a driver counted."""
        with self._lock:
            self.idle.merge(driver.idle)
            self.reloading.merge(driver.reloading)
            self.decisions += driver.decisions
            self.runs += driver.runs
            self.moves += driver.moves


class Driver:
    """Has one conversation of many runs, one after the other, and checks every decision."""

    def __init__(self, load: Load, engine: Engine, name: int) -> None:
        self.load = load
        self.engine = engine
        self.name = name
        self.conversation = Conversation()
        self.all_calls = 0
        self.counted = 0.0
        self.decisions = self.runs = self.moves = 0
        self.idle = Histogram()
        self.reloading = Histogram()

    def play(self) -> Iterator[None]:
        """Have runs until the load is stopped; yield wherever a model or a tool would work."""
        while not self.load.stop.is_set():
            yield from self._run()

    def _run(self) -> Iterator[None]:
        run = self.engine.start_run(agent="loaded", conversation=self.conversation)
        run.start("Find out where the symbols are defined.")
        self.runs += 1
        began, shown = run.state.generation, run.state.generation
        self.counted = 0.0
        for number in range(1, ROUNDS + 1):
            if self.load.stop.is_set():
                break
            now = step(self.name, number)
            run.begin_iteration()
            at = run.state.generation
            if at < shown or (self.engine.pin == "run" and at != began):
                self.load.fault(f"a run pinned per {self.engine.pin} went from generation {shown} to {at}")
            self.moves += at != shown
            shown = at
            self._look(run, run.before_model_call(REQUEST), number - 1, 0, now.call.name)
            yield
            self.all_calls += 1
            started = self._begin()
            decision = run.before_tool_call(now.call, Batch(f"batch-{number}"))
            self._end(started)
            self._look(run, decision, number, 1, now.call.name)
            yield
            started = self._begin()
            _, decision = run.after_tool_call(now.call, now.result)
            self._end(started)
            self._look(run, decision, number, 1, now.call.name)
            yield
            self._look(run, run.end_iteration(1, True), number, 1, now.call.name)
            if run.state.generation != at:
                self.load.fault(f"a round went from generation {at} to {run.state.generation}")
        run.end(Outcome("completed", "found"))

    def _begin(self) -> tuple[bool, int]:
        return self.load.busy, time.perf_counter_ns()

    def _end(self, started: tuple[bool, int]) -> None:
        took = time.perf_counter_ns() - started[1]
        (self.reloading if started[0] or self.load.busy else self.idle).add(took)

    def _look(self, run: Run, decision: Decision, calls: int, now: int, tool: str) -> None:
        """Check a decision in a run that has made so many `calls`, and in its round `now` of them."""
        self.decisions += 1
        fault, generation = self.load.fault, run.state.generation
        counts = {"of_conversation": self.all_calls, "of_conversation_foreign": self.all_calls, "of_iteration": now}
        marks = 0
        for vote in decision.votes:
            if vote.error:
                fault(f"{vote.rule} failed at {vote.hook}: {vote.error}")
            elif vote.raw and vote.rule == LIMIT:
                self._look_at_limit(vote.raw[0], generation)
            elif vote.raw and vote.rule in MARKS:
                marks += 1
                observed, limit = vote.raw[0].observed, vote.raw[0].limit
                if limit != generation:
                    fault(f"{vote.rule} is of generation {limit} in a run of {generation}")
                if vote.rule != "searching" and observed != counts.get(vote.rule, calls):
                    fault(f"{vote.rule} counts {observed} at call {calls} of {self.all_calls}")
        searches = tool == "search" or decision.hook not in ("before_tool_call", "after_tool_call")
        if marks != self.load.always + searches:
            fault(f"{marks} of {self.load.always + searches} rules answered at {decision.hook}")
        if run.snapshot.generation != generation or run.snapshot.digest != run.state.digest:
            fault(f"a run names generation {generation} and uses {run.snapshot.generation}")
        if not decision.allowed or decision.notes:
            fault(f"a harmless event is objected to: {decision.action} by {decision.decided_by}")

    def _look_at_limit(self, action: AnyAction, generation: int) -> None:
        if action.limit != calls_limit(generation):
            self.load.fault(f"{LIMIT} used limit {action.limit} in generation {generation}")
        if action.observed is None or action.observed < self.counted:
            self.load.fault(f"{LIMIT} counted {self.counted}, then {action.observed}")
        self.counted = action.observed or 0.0


def start(load: Load, engines: list[Engine], threads: int, tasks: int, pauses_s: tuple[float, float]) -> list[Any]:
    """Let `threads` threads and, in one more, `tasks` asynchronous drivers decide; return the threads to join.

    `pauses_s` is how long a thread and a task wait at each place where a model or a tool would work.
    """

    def alone(driver: Driver) -> None:
        try:
            for _ in driver.play():
                time.sleep(pauses_s[0])
        except BaseException as error:  # noqa: BLE001 - that nothing is raised is what is checked
            load.fault(f"raised: {type(error).__name__}: {error}")
        load.take(driver)

    async def one_of_many(driver: Driver) -> None:
        try:
            for _ in driver.play():
                await asyncio.sleep(pauses_s[1])
        except BaseException as error:  # noqa: BLE001 - as above
            load.fault(f"raised: {type(error).__name__}: {error}")
        load.take(driver)

    async def together() -> None:
        first = len(engines) * threads
        await asyncio.gather(
            *(one_of_many(Driver(load, engines[name % len(engines)], first + name)) for name in range(tasks))
        )

    drivers = [Driver(load, engines[name % len(engines)], name) for name in range(threads)]
    workers = [threading.Thread(target=alone, args=(driver,)) for driver in drivers]
    workers.append(threading.Thread(target=lambda: asyncio.run(together())))
    for worker in workers:
        worker.start()
    return workers
