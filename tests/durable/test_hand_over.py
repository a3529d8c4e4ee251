"""What a run asks is answered by a human, wherever they are and whenever they do, and for exactly that question."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from policyengine import Agent, Extension, hookimpl
from policyengine.durable import KeptRuns, LeaseLostError, RunBusyError
from policyengine.durable.keeper import claim
from policyengine.durable.record import Head, read_head, write_head
from policyengine.errors import UsageError
from policyengine.loop.state import Answered
from policyengine.stores import Values
from policyengine.stores.memory import MemoryStore
from policyengine.testing import make_engine
from tests.durable.clerk import Clerk, Clock, Died, Mortal


class Careful(Extension):
    """Ask before anything is booked."""

    name = "acme.careful"
    messages = {"careful.ask": {}}
    templates = {"en": {"careful.ask": "Book it?"}}

    def answers(self) -> dict[str, Any]:
        return {"before_tool_call": ("ask",)}

    @hookimpl
    def before_tool_call(self, run: Any, call: Any, batch: Any) -> Any:
        return run.ask("careful", kind="careful.ask") if call.name == "book" else None


ENGINE = make_engine({"careful": {"use": "acme.careful"}}, extensions=[Careful], tools={"look": {"effect": "read"}})


def agent(store: Any, clerk: Clerk, human: Any = None) -> Agent:
    return Agent(ENGINE, clerk, clerk.tools(), store=store, human=human)


def asking(batches: list[list[str]] | None = None) -> tuple[MemoryStore, Clerk]:
    store, clerk = MemoryStore(), Clerk(batches or [["look"], ["book", "look"]])
    outcome = agent(store, clerk).run("go", run_id="r")
    assert outcome.status == "waiting"
    assert outcome.stop is not None
    assert (outcome.stop.code, outcome.stop.message) == ("careful", "Book it?")
    return store, clerk


def test_a_run_that_asks_says_why_and_about_what_and_nothing_of_its_batch_runs():
    store, clerk = asking()
    head = KeptRuns(store).head("r")
    assert (head.status, head.phase, head.ended, head.owner) == ("waiting", "human", False, "")
    assert head.asked is not None
    assert head.asked.reason.rule == "careful"
    assert [(call.tool, call.arguments) for call in head.asked.calls] == [("book", '{"item": "1.0"}')]
    assert clerk.done == {"look 0.0": 1}


@pytest.mark.parametrize("approved", [True, False])
def test_an_answer_counts_when_the_run_is_resumed(approved):
    store, clerk = asking()
    KeptRuns(store).answer("r", approved=approved, text="She is a customer.", by="ops")
    assert clerk.done == {"look 0.0": 1}
    outcome = agent(store, clerk).resume_run("r")
    assert outcome.status == "completed"
    assert clerk.done["book 1.0"] == approved
    assert clerk.done["look 1.1"] == 1
    texts = [message.text for message in outcome.messages if message.role == "tool"]
    assert ("She is a customer." in texts[1]) is not approved
    assert texts[2] == "look 1.1"


def test_without_an_answer_it_waits_on_and_a_human_at_hand_is_asked():
    store, clerk = asking()
    assert agent(store, clerk).resume_run("r").status == "waiting"
    assert agent(store, clerk, human=lambda question: None).resume_run("r").status == "waiting"
    assert agent(store, clerk, human=lambda question: True).resume_run("r").status == "completed"
    assert clerk.done["book 1.0"] == 1


def test_an_answer_survives_a_worker_that_dies_before_it_counts():
    store, clerk = asking()
    KeptRuns(store).answer("r", approved=True)
    for at in range(12):
        mortal = Mortal(store, at, after=at % 2 == 1)
        try:
            agent(mortal, clerk).resume_run("r")
        except Died:
            store.update(_free)
    outcome = agent(store, clerk, human=lambda question: question.reason.code == "careful").resume_run("r")
    assert outcome.status == "completed"
    assert clerk.done["book 1.0"] <= 1


def _free(values: Values) -> None:
    head = read_head(values, "r")
    assert head is not None
    write_head(values, msgspec.structs.replace(head, owner="", until=0.0))


def test_an_approval_of_another_call_is_none():
    store, clerk = asking()
    runs = KeptRuns(store)
    asked = runs.head("r").asked
    assert asked is not None
    with pytest.raises(UsageError, match=r"asks about something else by now: [0-9a-f]{32}, not 123; look at it again"):
        runs.answer("r", approved=True, digest="123")
    runs.answer("r", approved=True, digest=asked.digest)

    def tamper(values: Values) -> None:
        state = values.get("run_state", "r")
        assert state is not None
        assert b'"1.0"' in state
        values.put("run_state", "r", state.replace(b"1.0", b"9.9"))

    store.update(tamper)
    outcome = agent(store, clerk).resume_run("r")
    assert outcome.status == "waiting"
    assert clerk.done == {"look 0.0": 1}


def test_every_argument_and_the_tool_are_part_of_what_is_approved():
    digests = set()
    for batch in (["book"], ["book", "book"], ["look", "book"], ["book", "look"]):
        store, _ = asking([batch])
        asked = KeptRuns(store).head("r").asked
        assert asked is not None
        digests.add(asked.digest)
    assert len(digests) == 3  # what else is in the batch is not asked about, but the second call is another one


def test_what_asks_nothing_cannot_be_answered():
    store, clerk = asking()
    runs = KeptRuns(store)
    runs.answer("r", approved=True)
    agent(store, clerk).resume_run("r")
    with pytest.raises(UsageError, match="run 'r' asks nothing: it is completed"):
        runs.answer("r", approved=True)
    with pytest.raises(UsageError, match="no run 'other' is kept"):
        runs.answer("other", approved=True)


def test_a_run_somebody_works_on_is_not_answered_behind_their_back():
    store, _ = asking()
    claim(store, "r", None)
    with pytest.raises(RunBusyError):
        KeptRuns(store).answer("r", approved=True)
    with pytest.raises(RunBusyError):
        KeptRuns(store).forget("r")


def test_the_beginning_of_an_id_is_enough_where_it_names_one_run():
    store = MemoryStore()
    for run_id in ("abc", "abd", "x"):
        agent(store, Clerk([])).run("go", run_id=run_id)
    runs = KeptRuns(store)
    assert runs.head("abc").run_id == "abc"
    assert runs.head("x").run_id == "x"
    with pytest.raises(UsageError, match="2 runs begin with 'ab': abc, abd"):
        runs.head("ab")
    with pytest.raises(UsageError, match="no run '' is kept"):
        runs.head("")


def test_a_head_that_is_damaged_is_listed_as_such_and_the_others_are_there():
    store, _ = asking()
    store.update(lambda values: values.put("run_head", "bad", b'{"run_id": 3}'))
    store.update(lambda values: values.put("run_head", "new", b'{"run_id": "new", "version": 9}'))
    heads, damaged = KeptRuns(store).heads()
    assert [head.run_id for head in heads] == ["r"]
    assert [(item.run_id, item.problem.partition(":")[0]) for item in damaged] == [
        ("bad", "what is kept of run 'bad' is damaged"),
        ("new", "run 'new' was kept as version 9; this engine reads 1"),
    ]


def test_nothing_is_left_of_a_run_that_is_forgotten():
    store, clerk = asking()
    agent(store, clerk).run("go on", run_id="other")
    before = _everything(store)
    assert any("other" in key for key in before)
    KeptRuns(store).forget("other")
    assert _everything(store) == [key for key in before if "other" not in key]


def _everything(store: MemoryStore) -> list[str]:
    kinds = ("run_head", "run_state", "run_messages", "run_result", "run_outcome")
    return store.read(lambda values: [f"{kind} {key}" for kind in kinds for key in values.keys(kind)])


def test_a_head_says_what_a_list_shows():
    store, _ = asking()
    head = KeptRuns(store).head("r")
    assert isinstance(head, Head)
    assert (head.task, head.iteration, head.calls, head.policy) == ("go", 2, 3, ENGINE.snapshot.policy.name)
    assert head.created <= head.updated


def test_a_yes_that_comes_twice_answers_one_question():
    store, clerk = MemoryStore(), Clerk([["book"], ["book"]])
    again = Clerk.complete

    def same_ids(self: Clerk, request: Any) -> Any:
        response = again(self, request)
        calls = tuple(
            msgspec.structs.replace(call, arguments='{"item": "7"}', args={"item": "7"}) for call in response.tool_calls
        )
        return msgspec.structs.replace(response, tool_calls=calls)

    clerk.complete = same_ids.__get__(clerk)  # type: ignore[method-assign]
    assert agent(store, clerk).run("go", run_id="r").status == "waiting"
    runs = KeptRuns(store)
    first = runs.head("r").asked
    assert first is not None
    runs.answer("r", approved=True, digest=first.digest)
    assert agent(store, clerk).resume_run("r").status == "waiting"
    second = runs.head("r").asked
    assert second is not None
    assert second.calls == first.calls
    assert second.digest != first.digest
    with pytest.raises(UsageError, match="asks about something else by now"):
        runs.answer("r", approved=True, digest=first.digest)
    assert clerk.done == {"book 7": 1}


def test_asking_again_does_not_make_another_question():
    store, clerk = asking()
    before = KeptRuns(store).head("r").asked
    for _ in range(3):
        assert agent(store, clerk).resume_run("r").status == "waiting"
    assert KeptRuns(store).head("r").asked == before


def test_an_answer_is_not_lost_to_a_worker_that_is_overdue():
    store, clerk = asking()
    clock = Clock()
    store._clock = clock  # type: ignore[attr-defined]

    def overdue(question: Any) -> bool:
        clock.now += 61
        KeptRuns(store).answer("r", approved=True)
        return False

    with pytest.raises(LeaseLostError):
        agent(store, clerk, human=overdue).resume_run("r")
    assert agent(store, clerk).resume_run("r").status == "completed"
    assert clerk.done["book 1.0"] == 1


def test_who_answered_is_still_told_when_the_run_has_gone_on_and_ended():
    store, clerk = asking()
    runs = KeptRuns(store)
    runs.answer("r", approved=True, by="Ada")
    assert agent(store, clerk).resume_run("r").status == "completed"
    head = runs.head("r")
    assert (head.asked, head.answer) == (None, None)
    (answer,) = head.answers
    assert (answer.approved, answer.by, answer.tools) == (True, "Ada", ("book",))
    assert answer.at > 0


def test_a_question_that_was_answered_is_not_answered_again_by_mistake():
    store, clerk = asking()
    runs = KeptRuns(store)
    runs.answer("r", approved=True, by="Ada")
    with pytest.raises(UsageError, match=r"'r' was answered already: approved by Ada, .* UTC; say --replace"):
        runs.answer("r", approved=False, by="Bob")
    runs.answer("r", approved=False, by="Bob", replace=True)
    assert agent(store, clerk).resume_run("r").status == "completed"
    assert "book 1.0" not in clerk.done
    assert [(answer.by, answer.approved) for answer in runs.head("r").answers] == [("Ada", True), ("Bob", False)]


def test_of_many_answers_the_latest_are_kept():
    store, _ = asking()
    runs = KeptRuns(store)
    for number in range(30):
        runs.answer("r", approved=True, by=str(number), replace=True)
    assert [answer.by for answer in runs.head("r").answers] == [str(number) for number in range(10, 30)]


FORBIDS = make_engine(
    {"careful": {"use": "acme.careful"}, "tool_access": {"with": {"deny": ["book"]}}},
    extensions=[Careful],
    tools={"look": {"effect": "read"}},
)


@pytest.mark.parametrize("revoked", [False, True])
def test_what_was_approved_is_not_judged_anew_by_another_policy_and_can_be_revoked(revoked):
    store, clerk = asking()
    runs = KeptRuns(store)
    runs.answer("r", approved=True, by="Ada")
    if revoked:
        runs.answer("r", approved=False, by="Bob", replace=True)
    assert Agent(FORBIDS, clerk, clerk.tools(), store=store).resume_run("r").status == "completed"
    assert clerk.done["book 1.0"] == (not revoked)


def test_who_answered_at_once_is_told_too():
    clock = Clock()
    store, clerk = MemoryStore(clock=clock), Clerk([["book"], ["book"]])
    said = [True, Answered(False, "Not that one.", by="Ada", at=7.0)]
    assert agent(store, clerk, lambda question: said.pop(0)).run("go", run_id="r").status == "completed"
    first, second = KeptRuns(store).head("r").answers
    assert (first.approved, first.by, first.at, first.tools) == (True, "", clock.now, ("book",))
    assert (second.approved, second.by, second.at, second.text) == (False, "Ada", 7.0, "Not that one.")
    assert first.digest != second.digest
