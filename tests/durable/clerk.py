"""A clerk who works off batches of calls, the store its runs are kept in, and a process that dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from policyengine import Agent, Engine
from policyengine.messages import ModelRequest, ModelResponse, ToolCall
from policyengine.policy.load import load_policy_text
from policyengine.stores import StoreError
from policyengine.stores.memory import MemoryStore

POLICY = """
apiVersion: policyengine/v1
kind: Policy
name: kept
tools:
  look: {effect: read}
  poll: {effect: poll}
  book: {effect: write}
extensions: {}
"""


ENGINE = Engine(load_policy_text(POLICY, registry=None))


class Died(BaseException):
    """The process was killed."""


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Mortal:
    """A store whose process dies at one of its commits, before it is written or right after.

    With an `error` that commit fails instead, once; with `instead` something else happens beside it.
    """

    def __init__(
        self, store: MemoryStore, at: int | None, *, after: bool = False, error: StoreError | None = None
    ) -> None:
        self.store = store
        self.left = at
        self.after = after
        self.error = error
        self.instead: Callable[[], object] | None = None
        self.dead = False

    def update(self, change: Any) -> Any:
        if self.dead:
            raise Died
        now, self.left = self.left == 0, None if self.left is None else self.left - 1
        if not now:
            return self.store.update(change)
        if self.instead is not None:
            self.instead()
            return self.store.update(change)
        self.dead = self.error is None
        if self.after:
            self.store.update(change)
        raise self.error or Died

    def read(self, look: Any) -> Any:
        if self.dead:
            raise Died
        return self.store.read(look)

    def kill(self) -> None:
        self.dead = True

    def close(self) -> None:
        self.store.close()


class Clerk:
    """A model that makes its batches of calls one after another, by what its history holds; and the tools it calls."""

    name = "clerk"
    padding = ""

    def __init__(self, batches: list[list[str]], die_in: str = "") -> None:
        self.batches = batches
        self.done: Counter[str] = Counter()
        self.die_in = die_in
        self.kill: Callable[[], None] = lambda: None

    def complete(self, request: ModelRequest) -> ModelResponse:
        number = sum(message.role == "assistant" for message in request.messages)
        if number >= len(self.batches):
            return ModelResponse("all done")
        calls = [
            ToolCall(f"call-{place}", tool, f'{{"item": "{number}.{place}"}}', {"item": f"{number}.{place}"})
            for place, tool in enumerate(self.batches[number])
        ]
        return ModelResponse("", tuple(calls))

    def tools(self) -> list[Any]:
        def tool(name: str) -> Any:
            def run(item: str) -> str:
                self.done[f"{name} {item}"] += 1
                if self.die_in == f"{name} {item}":
                    self.kill()
                return f"{name} {item}{self.padding}"

            run.__name__ = name
            run.__doc__ = f"Do {name}."
            return run

        return [tool(name) for name in ("look", "poll", "book", "shell")]


def agent(store: Any, clerk: Clerk, human: Any = None, **options: Any) -> Agent:
    return Agent(ENGINE, clerk, clerk.tools(), store=store, human=human, **options)
