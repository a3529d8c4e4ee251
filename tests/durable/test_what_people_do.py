"""What people do with kept runs hits the run they mean, and works where a run itself can no longer go on."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from policyengine import Agent, Mailbox
from policyengine.durable import KeptRuns, RunBusyError
from policyengine.durable.keeper import claim
from policyengine.durable.record import HEADS, MESSAGES, RESULTS, STATES, Head, asked_about, write_head
from policyengine.errors import UsageError
from policyengine.history.chat import as_mappings
from policyengine.history.check import check_history
from policyengine.jsontext import decode, encode
from policyengine.messages import ModelResponse, ToolCall
from policyengine.runstate import StopReason
from policyengine.stores import StoreError
from policyengine.stores.memory import MemoryStore
from tests.durable.clerk import ENGINE, Clerk, Clock, Died, Mortal, agent
from tests.durable.test_hand_over import ENGINE as ASKS

# ---- which run is meant


def test_what_changes_a_run_takes_its_whole_id_and_says_which_there_are():
    store = MemoryStore()
    runs = KeptRuns(store)
    for run_id in ("may", "may.2"):
        agent(store, Clerk([])).run("go", run_id=run_id)
    runs.forget("may")
    for change in (runs.forget, runs.cancel, lambda run_id: runs.answer(run_id, approved=True)):
        with pytest.raises(UsageError, match=r"no run 'may' is kept .*; there is 'may\.2'; give the whole id"):
            change("may")
    assert runs.head("may").run_id == "may.2"  # whoever only looks may be brief
    with pytest.raises(UsageError, match="give the whole id"):
        runs.head("may", whole=True)


def test_runs_that_are_chosen_are_looked_at_again_when_they_are_forgotten():
    store = MemoryStore()
    runs = KeptRuns(store)
    for run_id in ("a", "b", "c"):
        agent(store, Clerk([])).run("go", run_id=run_id)
    claim(store, "busy", "go")
    forgotten = runs.forget_where(lambda head, now: head.ended)
    assert next(forgotten) == "c"
    runs.forget("b")  # somebody else was faster, and there is a new run of that name
    claim(store, "b", "go").release()  # type: ignore[union-attr]
    assert [*forgotten] == ["a"]
    assert {head.run_id for head in runs.heads()[0]} == {"b", "busy"}


@pytest.mark.parametrize("name", ["jobs/{}", "jobs%2F{}", "jobs/{}/0"])
def test_forgetting_a_run_leaves_results_and_messages_of_runs_whose_ids_begin_like_its_keys(name):
    clock = Clock()
    store = MemoryStore(clock=clock)
    runs = KeptRuns(store)
    agent(store, Clerk([["look"]])).run("go", run_id="jobs")
    other = name.format(runs.head("jobs").turn)
    clerk = Clerk([["look", "shell"]], die_in="shell 0.1")
    mortal = Mortal(store, None)
    clerk.kill = mortal.kill
    with pytest.raises(Died):
        agent(mortal, clerk).run("go", run_id=other)

    def kept() -> list[str]:
        return store.read(lambda values: [*values.keys(RESULTS), *values.keys(MESSAGES)])

    runs.forget("jobs")
    left = kept()
    store.update(lambda values: values.put(HEADS, "jobs", b"junk"))
    runs.forget_damaged("jobs")
    assert kept() == left
    assert left
    clock.now += 61
    runs.forget(other)
    assert kept() == []


# ---- what is asked


@pytest.mark.parametrize(
    ("arguments", "args", "shown", "written"),
    [
        ('{"amount": 7}', {"amount": 7000}, '{"amount": 7000}', '{"amount": 7}'),
        ('{"amount":7}', {"amount": 7}, '{"amount": 7}', ""),
        ('{"amount": 7.0}', {"amount": 7}, '{"amount": 7}', ""),
        ('{"amount": 1, "amount": 2}', {"amount": 1}, '{"amount": 1}', '{"amount": 1, "amount": 2}'),
        ("", {"amount": inf}, '{"amount": Infinity}', ""),
        ("{'amount': 7}", None, "{}", "{'amount': 7}"),
        ("", None, "{}", ""),
    ],
)
def test_a_human_is_shown_the_arguments_that_run_and_told_where_the_model_wrote_others(arguments, args, shown, written):
    reason = StopReason("careful", "careful")
    asked = asked_about((ToolCall("c", "pay", arguments, args),), reason)
    assert (asked.calls[0].arguments, asked.calls[0].written) == (shown, written)
    same = asked_about((ToolCall("c", "pay", "", args),), reason)
    assert same.digest == asked.digest  # of what runs, not of how it was written


def test_an_infinite_argument_runs_as_it_was_approved():
    booked: list[Any] = []

    def book(item: float) -> str:
        """Book."""
        booked.append(item)
        return "booked"

    class Model:
        name = "m"

        def complete(self, request: Any) -> ModelResponse:
            if any(message.role == "tool" for message in request.messages):
                return ModelResponse("done")
            return ModelResponse("", (ToolCall("c", "book", "", {"item": inf}),))

    store = MemoryStore()
    Agent(ASKS, Model(), [book], store=store).run("go", run_id="r")
    asked = KeptRuns(store).head("r").asked
    assert asked is not None
    assert asked.calls[0].arguments == '{"item": Infinity}'
    KeptRuns(store).answer("r", approved=True, digest=asked.digest)
    assert Agent(ASKS, Model(), [book], store=store).resume_run("r").status == "completed"
    assert booked == [inf]


# ---- runs that cannot go on


@pytest.fixture
def newer() -> MemoryStore:
    """A run that waits, whose state a newer engine wrote."""
    store, clerk = MemoryStore(), Clerk([["look"], ["book"]])
    assert Agent(ASKS, clerk, clerk.tools(), store=store).run("go", run_id="r").status == "waiting"

    def change(values: Any) -> None:
        state = decode(values.get(STATES, "r"), dict[str, Any])
        values.put(STATES, "r", encode({**state, "version": 99}))

    store.update(change)
    return store


def test_a_run_of_another_version_can_be_looked_at_and_cancelled_with_a_valid_history(newer):
    runs = KeptRuns(newer)
    seen = runs.seen("r")
    assert (seen.standing, "version 99" in seen.problem, len(seen.messages)) == (None, True, 4)
    assert runs.cancel("r").status == "cancelled"
    outcome = runs.outcome("r")
    assert outcome is not None
    assert "version 99" in outcome.error
    assert outcome.messages[-1].role == "tool"
    assert not check_history(as_mappings(outcome.messages, "openai_chat"))


def test_a_run_of_another_version_can_be_forgotten(newer):
    runs = KeptRuns(newer)
    runs.forget("r")
    assert runs.heads() == ([], [])


def test_a_head_of_another_version_can_be_forgotten_once_nobody_holds_it():
    clock = Clock()
    store = MemoryStore(clock=clock)
    runs = KeptRuns(store)
    agent(store, Clerk([["look"]])).run("go", run_id="r")
    head = Head("r", version=99, owner="elsewhere:1:1/x", until=clock.now + 60, lease_s=60)
    store.update(lambda values: write_head(values, head))
    (damaged,) = runs.heads()[1]
    assert "version 99" in damaged.problem
    with pytest.raises(RunBusyError):
        runs.forget_damaged("r")
    clock.now += 61
    runs.forget_damaged("r")
    assert store.read(lambda values: [values.keys(kind) for kind in (HEADS, STATES, MESSAGES)]) == [(), (), ()]


# ---- many of them


class Counted:
    """A store that counts how often each way of reading is asked."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.asked: list[str] = []
        self.reads = 0

    def read(self, look: Any) -> Any:
        self.reads += 1

        def counted(values: Any) -> Any:
            asked = self.asked

            class Values:
                def get(self, kind: str, key: str) -> Any:
                    asked.append(kind)
                    return values.get(kind, key)

                def get_many(self, kind: str, keys: Any) -> Any:
                    asked.append(kind)
                    return values.get_many(kind, keys)

                def __getattr__(self, name: str) -> Any:
                    return getattr(values, name)

            return look(Values())

        return self.store.read(counted)


def test_a_run_is_read_at_once_however_long_it_is():
    store = MemoryStore()
    agent(store, Clerk([["look"]] * 30)).run("go", run_id="r")
    counted = Counted(store)
    seen = KeptRuns(counted).seen("r")  # type: ignore[arg-type]
    assert len(seen.messages) == 62
    assert seen.outcome is not None
    assert seen.outcome.messages == tuple(seen.messages)
    assert (counted.reads, counted.asked.count(MESSAGES)) == (1, 1)


def test_many_heads_are_read_in_parts_and_a_damaged_one_costs_no_other():
    store = MemoryStore()
    store.update(lambda values: [write_head(values, Head(f"r{number:03}")) for number in range(450)])
    store.update(lambda values: values.put(HEADS, "r007", b"junk"))
    counted = Counted(store)
    heads, damaged = KeptRuns(counted).heads()  # type: ignore[arg-type]
    assert (len(heads), [run.run_id for run in damaged]) == (449, ["r007"])
    assert counted.reads < 300


# ---- messages of peers


@pytest.mark.parametrize("at", range(1, 5))
def test_what_a_peer_left_is_delivered_though_a_commit_failed(at):
    store, box, clerk = MemoryStore(), Mailbox(), Clerk([["look"]])
    box.post("peer", "the meeting is off")
    failing = Mortal(store, at, error=StoreError("locked", transient=True))
    worker = Agent(ENGINE, clerk, clerk.tools(), store=failing)
    try:
        outcome = worker.run("go", run_id="r", mailbox=box)
    except StoreError:
        outcome = worker.run("go", run_id="r", mailbox=box)
    assert outcome.status == "completed"
    assert sum("the meeting is off" in message.text for message in outcome.messages) == 1
