"""Runs that are kept in a store, and the processes that work on them: for `kill_runs` and `kept_load`.

Knows: a model and tools whose every effect leaves a line in a file. Must not know: what is killed, what is timed.

A run makes batches of calls that read, write and execute; requests and calls take a random time of a few milliseconds.
A call that writes or executes appends one line to the folder's file `effects` when it takes effect, a human who is
asked about a call appends one to `asked` and says no.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from policyengine import Agent, Engine
from policyengine.loop.state import AskHuman
from policyengine.messages import ModelRequest, ModelResponse, ToolCall
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.stores import Store, open_store

POLICY = """
apiVersion: policyengine/v1
kind: Policy
name: kept
tools: {look: {effect: read}, book: {effect: write}}
extensions:
  stall_detector: {}
  step_limit: {with: {max_steps: 100}}
"""
BATCHES = (("look",), ("book",), ("look", "book", "shell"), ("shell",), ("look", "look"), ("book", "book"))
"""The calls of a run, batch by batch."""
WRITES = frozenset({"book", "shell"})
LEASE_S = 5.0


class Worker:
    """A model and its tools in one process; `pause_s` is the longest time a request or a call takes."""

    name = "clerk"

    def __init__(self, folder: Path, store: Store | None, pause_s: float) -> None:
        self.folder = folder
        self.pause_s = pause_s
        self.random = random.Random(os.getpid())
        tools = {"look": self.look, "book": self.book, "shell": self.shell}
        registry = builtin_registry()
        engine = Engine(load_policy_text(POLICY, registry=registry), registry=registry)
        self.agent = Agent(engine, self, tools, human=self.human, store=store, lease_s=LEASE_S)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer with the batch that is due by the history, or the final answer."""
        await self._take_time()
        task = next(message.text for message in request.messages if message.role == "user")
        number = sum(message.role == "assistant" for message in request.messages)
        if number >= len(BATCHES):
            return ModelResponse(f"{task} is done")
        calls = []
        for place, tool in enumerate(BATCHES[number]):
            item = f"{task}/{number}.{place}"
            calls.append(ToolCall(f"call-{place}", tool, f'{{"item": "{item}"}}', {"item": item}))
        return ModelResponse("", tuple(calls))

    async def look(self, item: str) -> str:
        """Read an item."""
        await self._take_time()
        return f"looked at {item}"

    async def book(self, item: str) -> str:
        """Write an item."""
        return await self._effect("book", item)

    async def shell(self, item: str) -> str:
        """Execute an item."""
        return await self._effect("shell", item)

    async def human(self, question: AskHuman) -> bool:
        """Say no, and take note of it."""
        for call in question.calls:
            note(self.folder / "asked", f"{call.name} {call.args['item']}")
        return False

    async def _effect(self, tool: str, item: str) -> str:
        await self._take_time()
        note(self.folder / "effects", f"{tool} {item}")
        await self._take_time()
        return f"did {item}"

    async def _take_time(self) -> None:
        await asyncio.sleep(self.random.random() * self.pause_s)


def note(file: Path, line: str) -> None:
    """Append a line in one write, which a process that dies has made or not."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def noted(file: Path) -> list[str]:
    """Return the lines of a file that may not be there."""
    return file.read_text("utf-8").splitlines() if file.exists() else []


def wanted(run_id: str) -> set[str]:
    """Return the effects of a run that is not disturbed."""
    return {
        f"{tool} {run_id}/{number}.{place}"
        for number, batch in enumerate(BATCHES)
        for place, tool in enumerate(batch)
        if tool in WRITES
    }


async def work(worker: Any, run_ids: Sequence[str]) -> list[str]:
    """Work on runs concurrently, each under its id, with the id as its task; return what went wrong."""
    ended = await asyncio.gather(*(worker.agent.arun(run, run_id=run) for run in run_ids), return_exceptions=True)
    faults = []
    for run_id, outcome in zip(run_ids, ended, strict=True):
        if isinstance(outcome, BaseException):
            faults.append(f"{run_id}: {type(outcome).__name__}: {outcome}")
        elif (outcome.status, outcome.output) != ("completed", f"{run_id} is done"):
            faults.append(f"{run_id}: {outcome.status} {outcome.output!r} {outcome.stop} {outcome.error}")
    return faults


def main(argv: Sequence[str] | None = None) -> int:
    """Work on the runs that are named, and say `ready` before the first and `done` after the last."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kept", description=__doc__)
    parser.add_argument("place")
    parser.add_argument("folder", type=Path)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--pause", type=float, default=0.004, help="seconds")
    parser.add_argument("--wait", action="store_true", help="begin when the input ends")
    options = parser.parse_args(argv)
    store = open_store(options.place)
    worker = Worker(options.folder, store, options.pause)
    print("ready", flush=True)
    if options.wait:
        sys.stdin.read()
    faults = asyncio.run(work(worker, options.runs))
    store.close()
    for fault in faults:
        print(fault)
    print("failed" if faults else "done", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
