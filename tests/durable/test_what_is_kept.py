"""What is kept is the run as it stands, at a cost that does not grow with the run."""

from __future__ import annotations

import copy
import threading
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from policyengine import Agent
from policyengine.durable import KeptRuns, LeaseLostError
from policyengine.durable.keeper import Keeper
from policyengine.durable.record import read_head, write_head
from policyengine.errors import UsageError
from policyengine.messages import ModelRequest, ModelResponse, Usage
from policyengine.stores import StoreError
from policyengine.stores.memory import MemoryStore
from policyengine.testing import make_engine
from tests.durable.clerk import Clerk, Died, Mortal, agent


class Counting(Mortal):
    """A store that counts the bytes of each commit."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, None)
        self.sizes: list[int] = []

    def update(self, change: Any) -> Any:
        def counted(values: Any) -> Any:
            self.sizes.append(0)
            put = values.put

            def noted(kind: str, key: str, value: bytes) -> None:
                self.sizes[-1] += len(value)
                put(kind, key, value)

            values.put = noted
            return change(values)

        return super().update(counted)


def test_what_a_commit_writes_does_not_grow_with_the_run():
    store = Counting(MemoryStore())
    assert agent(store, Clerk([["look"]] * 100)).run("go", run_id="r").status == "completed"
    early, late = store.sizes[20:40], store.sizes[-40:-20]
    assert max(late) <= 1.5 * max(early)


def test_every_commit_holds_the_messages_as_they_are_also_when_they_were_shortened(monkeypatch):
    store, lengths = MemoryStore(), []
    keep = Keeper.keep

    def checked(self: Keeper, loop: Any, effect: Any) -> None:
        keep(self, loop, effect)
        kept = self.found()
        assert kept is not None
        assert kept.messages == loop.state.messages
        self._messages = loop.state.messages  # `found` is for a worker that goes on
        lengths.append(len(kept.messages))

    monkeypatch.setattr(Keeper, "keep", checked)

    class Full(Clerk):
        """After the eighth message the window is full, once."""

        full = True
        padding = " and so on" * 100

        def complete(self, request: ModelRequest) -> ModelResponse:
            answer = super().complete(request)
            if self.full and len(request.messages) > 8:
                self.full = False
                return msgspec.structs.replace(answer, usage=Usage(950, 5))
            return answer

    compaction = {"context_compaction": {"with": {"window": 1000, "strategy": "slide", "keep": 0.5}}}
    engine = make_engine(compaction, tools={"look": {"effect": "read"}})
    clerk = Full([["look"]] * 9)
    outcome = Agent(engine, clerk, clerk.tools(), store=store).run("go", run_id="r")
    assert outcome.status == "completed", outcome.error
    assert any(after < before for before, after in pairwise(lengths))
    again = Agent(engine, clerk, clerk.tools(), store=store).run("go", run_id="r")
    assert again == outcome


def test_an_outcome_is_kept_whole():
    store = MemoryStore()
    clerk = Clerk([["look"], ["book"]])
    outcome = agent(store, clerk).run("go \ud800 on", run_id="r")
    assert KeptRuns(store).outcome("r") == outcome
    assert tuple(KeptRuns(store).messages("r")) == outcome.messages


def test_what_is_damaged_is_told_and_nothing_is_guessed():
    for kind, key in (("run_state", "r"), ("run_messages", "r/0"), ("run_head", "r")):
        for value in (b"{", b"null", b'{"version": 1}', None):
            store = MemoryStore()
            clerk = Clerk([["look"], ["book"]], die_in="book 1.0")
            mortal = Mortal(store, None)
            clerk.kill = mortal.kill
            with pytest.raises(Died):
                agent(mortal, clerk).run("go", run_id="r")

            def damage(values: Any, kind: str = kind, key: str = key, value: bytes | None = value) -> None:
                head = read_head(values, "r")
                write_head(values, msgspec.structs.replace(head, owner=""))
                values.delete(kind, key) if value is None else values.put(kind, key, value)

            store.update(damage)
            with pytest.raises((StoreError, UsageError), match=r"damaged|is missing|not a saved run"):
                agent(store, clerk).run("go", run_id="r")


class Forgetful(Mortal):
    """A store that goes back by some commits, once, before the fourteenth."""

    def __init__(self, store: MemoryStore, back: int) -> None:
        super().__init__(store, None)
        self.back = back
        self.states: list[Any] = []

    def update(self, change: Any) -> Any:
        self.states.append(copy.deepcopy(self.store._kinds))
        if len(self.states) == 14:
            self.store._kinds = self.states[-1 - self.back]
        return super().update(change)


@pytest.mark.parametrize("back", range(1, 14))
def test_a_store_that_loses_its_latest_commits_is_given_them_again(back):
    store, clerk = MemoryStore(), Clerk([["look"], ["book"], ["look"], ["look"]])
    if back == 13:  # nothing of the run is left
        with pytest.raises(LeaseLostError):
            agent(Forgetful(store, back), clerk).run("go", run_id="r")
        return
    outcome = agent(Forgetful(store, back), clerk).run("go", run_id="r")
    assert outcome.status == "completed"
    assert KeptRuns(store).outcome("r") == outcome
    assert tuple(KeptRuns(store).messages("r")) == outcome.messages


def test_what_cannot_be_written_is_told_with_what_to_do():
    class Sdk(Clerk):
        def complete(self, request: ModelRequest) -> ModelResponse:
            return msgspec.structs.replace(super().complete(request), raw={"object": object()})

    with pytest.raises(UsageError, match=r"run 'r' cannot be kept: .*object.*`raw` must be plain data"):
        agent(MemoryStore(), Sdk([["look"]])).run("go", run_id="r")


def test_the_time_a_store_takes_is_not_the_tools():
    class Slow(Mortal):
        """A store that takes a while for the second call's result, longer than the tool may."""

        def update(self, change: Any) -> Any:
            found = super().update(change)
            if threading.current_thread() is not threading.main_thread():
                threading.Event().wait(0.3)
            return found

    engine = make_engine({}, tools={"look": {"effect": "read", "timeout": "150ms"}})
    clerk = Clerk([["look", "look"]])
    outcome = Agent(engine, clerk, clerk.tools(), store=Slow(MemoryStore(), None)).run("go", run_id="r")
    assert [message.text for message in outcome.messages if message.role == "tool"] == ["look 0.0", "look 0.1"]
