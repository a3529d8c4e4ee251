"""Requests that fail and histories that are too long: every remedy through the loop, and nothing goes on for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import (
    Agent,
    Compaction,
    Engine,
    Extension,
    Message,
    ModelResponse,
    ProviderError,
    Remedy,
    RequestError,
    ToolCall,
    Usage,
    check_history,
    fail,
    hookimpl,
    say,
)
from policyengine.actions import REMEDIES
from policyengine.loop.advance import advance, effect_now
from policyengine.loop.recovery import MAX_RECOVERIES
from policyengine.loop.state import Begin, CallModel, Finish, RequestFailed, Wait
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.policy.model import ModelFacts
from policyengine.providers.errors.remedies import REMEDIES as BY_CLASS
from policyengine.providers.errors.remedies import with_remedies
from policyengine.providers.scripted import ScriptedModel
from policyengine.remedies import CHANGES, LONGEST_RESULT, drop_media, prune_duplicate_rounds, truncate_results
from policyengine.replay import replay_journal
from policyengine.script import Script
from policyengine.telemetry.journal import JournalWriter
from policyengine.testing import ListedRegistry, ManualClock, assert_valid, policy, rule

TASK = "Compare 'north' with 'south' \u2014 every row."
OVERLOADED = ProviderError("overloaded", "try later", 529)
OVERFLOW = ProviderError("context_overflow", "too long", 400)


class Medic(Extension):
    """Answers failed requests, and rounds, as the test says."""

    name = "medic"
    remedies: list[Any] = []
    compactions: dict[int, Compaction] = {}
    errors: list[ProviderError] = []
    tokens: list[tuple[int | None, int | None]] = []

    @hookimpl
    def after_provider_error(self, run, error):
        if run.id == "self-test":
            return None
        self.errors.append(error)
        remedy = self.remedies.pop(0) if self.remedies else "none"
        if remedy == "none":
            return None
        return run.recover("again", remedy)

    @hookimpl
    def before_model_call(self, run, request):
        if run.id == "self-test" or request.purpose != "main" or run.iteration not in self.compactions:
            return None
        return run.rewrite("shorter", compaction=self.compactions[run.iteration])

    @hookimpl
    def after_model_response(self, run, response):
        if run.id != "self-test" and response.usage is not None:
            self.tokens.append((response.usage.prompt_tokens, response.usage.completion_tokens))


class Faulty:
    """Gives responses, or fails, in order; refuses an invalid history. `summary` is what it says to a summary."""

    name = "primary"

    def __init__(self, *answers: ModelResponse | ProviderError, summary: Any = None) -> None:
        self.answers = list(answers)
        self.summary = ModelResponse("the short of it", usage=Usage(50, 5)) if summary is None else summary
        self.requests: list[Any] = []

    def complete(self, request):
        assert_valid(request.messages)
        assert check_history(request.messages) == ()
        self.requests.append(request)
        answer = self.summary if request.purpose == "summary" else self.answers.pop(0)
        if isinstance(answer, ProviderError):
            raise RequestError(answer)
        return answer

    def of(self, purpose):
        return [request for request in self.requests if request.purpose == purpose]


class FaultyLater(Faulty):
    """The same, asynchronous."""

    async def complete(self, request):
        await asyncio.sleep(0)
        return super().complete(request)


def look(page: int) -> str:
    """Look at a page."""
    return f"page {page}: " + "north and south. " * 40


def calls(*pages, **facts):
    made = tuple(ToolCall(f"c{page}", "look", f'{{"page":{page}}}') for page in pages)
    return ModelResponse("Looking.", made, **facts)


DONE = ModelResponse("done")


@pytest.fixture
def medic():
    """Return a function that makes an agent whose failed requests are answered with these remedies."""

    def make(model, *remedies, compactions=None, models=(), tools=(look,)):
        class Own(Medic):
            pass

        Own.remedies, Own.errors, Own.tokens = list(remedies), [], []
        Own.compactions = compactions or {}
        made = policy(rule("medic"), models=tuple(models))
        engine = Engine(made, registry=ListedRegistry(Own, trusted=True), clock=ManualClock())
        slept: list[float] = []

        async def asleep(seconds):
            slept.append(seconds)

        agent = Agent(engine, model, list(tools), sleep=slept.append, asleep=asleep)
        agent.slept, agent.medic = slept, Own
        return agent

    return make


def run(agent, driver, task=TASK, **options):
    return asyncio.run(agent.arun(task, **options)) if driver == "arun" else agent.run(task, **options)


# ---- every remedy, end to end

both = pytest.mark.parametrize(("driver", "kind"), [("run", Faulty), ("arun", FaultyLater)])


@both
def test_a_wait_is_slept_and_the_same_request_goes_out_again(medic, driver, kind):
    model = kind(calls(1), OVERLOADED, OVERLOADED, DONE)
    agent = medic(model, Remedy("wait", wait_s=1.5), Remedy("wait", wait_s=3))
    outcome = run(agent, driver)
    assert (outcome.status, outcome.output, agent.slept) == ("completed", "done", [1.5, 3])
    _, first, second, third = model.requests
    assert first.messages == second.messages == third.messages
    assert [first.attempt, second.attempt, third.attempt] == [1, 2, 3]
    assert (outcome.iterations, outcome.interventions) == (2, 0)


@both
def test_a_fallback_model_answers_and_goes_on_answering(medic, driver, kind):
    model = kind(calls(1), OVERLOADED, calls(2), calls(3), DONE)
    outcome = run(medic(model, Remedy("fallback_model", model="second")), driver)
    assert outcome.status == "completed"
    assert [request.model for request in model.requests] == ["primary", "primary", "second", "second", "second"]


@both
@pytest.mark.parametrize("strategy", ["compact", "slide"])
def test_a_history_that_is_too_long_is_shortened_and_sent_again(medic, driver, kind, strategy):
    model = kind(calls(1), calls(2), calls(3), OVERFLOW, DONE)
    outcome = run(medic(model, Remedy("compact", compaction=Compaction(strategy, 0.3))), driver)
    assert outcome.status == "completed"
    before, after = model.of("main")[-2:]
    assert len(after.messages) < len(before.messages)
    assert after.messages[0].text.startswith(TASK)
    assert after.messages[0].origin == "summary"
    assert ("the short of it" in after.messages[0].text) == (strategy == "compact")
    assert len(model.of("summary")) == (strategy == "compact")
    assert after.messages[1:] == before.messages[-len(after.messages) + 1 :]


@both
def test_the_answer_is_capped_at_fewer_tokens_for_the_rest_of_the_run(medic, driver, kind):
    model = kind(OVERFLOW, calls(1), DONE)
    run(medic(model, Remedy("reduce_max_tokens", max_tokens=900)), driver)
    assert [request.max_tokens for request in model.requests] == [None, 900, 900]


@both
def test_thinking_is_switched_off_for_the_rest_of_the_run(medic, driver, kind):
    model = kind(ProviderError("reasoning_replay"), calls(1), DONE)
    run(medic(model, Remedy("disable_thinking")), driver)
    assert [request.thinking for request in model.requests] == [True, False, False]


@both
def test_long_results_are_cut_in_their_middle(medic, driver, kind):
    def look(page: int) -> str:
        """Look."""
        return "a" * 5000 + "b" * 5000

    model = kind(calls(1), OVERFLOW, DONE)
    outcome = run(medic(model, Remedy("truncate_results"), tools=[look]), driver)
    (result,) = (message.text for message in outcome.messages if message.role == "tool")
    assert "6000 characters left out" in result
    assert result.startswith("aaa")
    assert result.endswith("bbb")
    assert len(result) < LONGEST_RESULT + 100


@both
def test_pictures_give_way_to_a_word(medic, driver, kind):
    picture = {"type": "image_url", "image_url": {"url": "data:..."}}
    raw = {"role": "user", "content": [{"type": "text", "text": "see"}, picture], "x_unknown": 1}
    model = kind(ProviderError("payload_too_large"), DONE)
    earlier = [Message("user", "see", raw=raw), Message("assistant", "I see.")]
    outcome = run(medic(model, Remedy("drop_media")), driver, history=earlier)
    assert outcome.status == "completed"
    sent = model.requests[-1].messages[0].raw
    assert [part["type"] for part in sent["content"]] == ["text", "text"]
    assert sent["x_unknown"] == 1
    assert raw["content"][1] is picture


@both
def test_rounds_that_repeat_are_pruned_to_the_first_and_the_last(medic, driver, kind):
    same = [ModelResponse("", (ToolCall(f"c{number}", "look", '{"page":1}'),)) for number in range(5)]
    model = kind(*same, ProviderError("repetitive_calls"), DONE)
    outcome = run(medic(model, Remedy("prune_duplicate_rounds")), driver)
    assert outcome.status == "completed"
    assert [len(message.tool_calls) for message in model.requests[-1].messages] == [0, 1, 0, 1, 0]
    assert [message.tool_calls[0].id for message in outcome.messages if message.tool_calls] == ["c0", "c4"]


@both
def test_a_history_of_somebody_else_is_mended(medic, driver, kind):
    damaged = [
        Message("user", "earlier"),
        Message("assistant", "", (ToolCall("x", "look", "{}"), ToolCall("y", "look", "{}"))),
        Message("tool", "found", tool_call_id="x", name="look"),
        Message("assistant", "So."),
    ]

    class Lenient(kind):
        def complete(self, request):
            if request.attempt == 1:  # what the provider refuses
                raise RequestError(ProviderError("invalid_history"))
            return super().complete(request)

    model = Lenient(DONE)
    outcome = run(medic(model, Remedy("repair_history")), driver, history=damaged)
    assert outcome.status == "completed"
    assert [message.tool_call_id for message in outcome.messages if message.role == "tool"] == ["x", "y"]


@both
def test_a_retry_without_a_remedy_sends_the_same_request_again(medic, driver, kind):
    model = kind(OVERLOADED, DONE)
    assert run(medic(model, None), driver).status == "completed"
    assert model.requests[0].messages == model.requests[1].messages


@pytest.mark.parametrize(
    "remedy",
    [
        Remedy("restore_reasoning"),
        Remedy("repair_history"),
        Remedy("truncate_results"),
        Remedy("drop_media"),
        Remedy("prune_duplicate_rounds"),
        Remedy("compact"),
        Remedy("compact", compaction=Compaction("slide")),
        Remedy("fallback_model", model="primary"),
    ],
    ids=lambda remedy: remedy.name,
)
def test_a_remedy_that_changes_nothing_sends_nothing_and_asks_again_for_the_same_error(medic, remedy):
    model = Faulty(OVERFLOW)
    agent = medic(model, remedy)
    outcome = agent.run(TASK)
    assert (outcome.status, outcome.error) == ("failed", "context_overflow: too long")
    assert [error.code for error in agent.medic.errors] == ["context_overflow"] * 2
    assert len(model.requests) == 1


@pytest.mark.parametrize("remedy", [Remedy("reduce_max_tokens", max_tokens=500), Remedy("disable_thinking")])
def test_the_same_reduction_twice_changes_nothing(medic, remedy):
    model = Faulty(OVERFLOW, OVERFLOW)
    agent = medic(model, remedy, remedy)
    assert agent.run(TASK).status == "failed"
    assert len(model.requests) == 2
    assert len(agent.medic.errors) == 3


def test_every_remedy_is_one_that_a_test_here_carries_out():
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in REMEDIES if f'Remedy("{name}"' not in source] == []


def test_what_a_recovery_repeats_is_no_intervention_and_an_outcome_counts_every_token(medic):
    used = {"usage": Usage(100, 10)}
    model = Faulty(calls(1, **used), calls(2, **used), OVERFLOW, ModelResponse("done", **used))
    agent = medic(model, Remedy("compact"))
    outcome = agent.run(TASK)
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (350, 35)  # three requests, and the summary
    assert agent.medic.tokens == [(100, 10), (100, 10), (50, 5), (100, 10)]
    assert outcome.interventions == 0


# ---- an end is always reached


@pytest.mark.parametrize("remedy", [Remedy("wait", wait_s=1), None, Remedy("truncate_results")], ids=str)
def test_a_rule_that_never_gives_up_does_not_keep_the_run_alive(medic, remedy):
    model = Faulty(*[OVERLOADED] * 99)
    agent = medic(model, *[remedy] * 99)
    outcome = agent.run(TASK)
    assert outcome.status == "failed"
    assert len(agent.medic.errors) == MAX_RECOVERIES + 1
    assert len(model.requests) <= MAX_RECOVERIES + 1


def test_the_count_of_recoveries_is_one_of_the_round(medic):
    rounds = [item for page in range(4) for item in (*[OVERLOADED] * 5, calls(page))]
    model = Faulty(*rounds, DONE)
    assert medic(model, *[None] * 20).run(TASK).status == "completed"


REMEDY = st.sampled_from(
    [
        "none",
        None,
        Remedy("wait", wait_s=1),
        Remedy("compact"),
        Remedy("compact", compaction=Compaction("slide", 0.1)),
        Remedy("fallback_model", model="second"),
        Remedy("reduce_max_tokens", max_tokens=100),
        Remedy("disable_thinking"),
        *(Remedy(name) for name in CHANGES),
    ]
)
ANSWER = st.one_of(
    st.just(OVERFLOW),
    st.just(OVERLOADED),
    st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True).map(lambda pages: calls(*pages)),
    st.just(ModelResponse("", usage=Usage(9_000, 0), finish_reason="length")),
)
SUMMARY = st.sampled_from(
    [
        ModelResponse("the short of it"),
        ModelResponse(""),
        ModelResponse("cut", finish_reason="length"),
        OVERLOADED,
        ModelResponse("x", (ToolCall("c", "look", "{}"),)),
    ]
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(ANSWER, max_size=10),
    st.lists(REMEDY, max_size=14),
    st.dictionaries(st.integers(1, 6), st.builds(Compaction, st.sampled_from(["compact", "slide"])), max_size=3),
    SUMMARY,
)
def test_whatever_fails_and_whatever_is_done_about_it_the_history_is_valid_and_the_run_ends(
    answers, remedies, compactions, summary
):
    class Own(Medic):
        pass

    Own.remedies, Own.errors, Own.tokens, Own.compactions = list(remedies), [], [], compactions
    made = policy(rule("medic"), models=(("*", ModelFacts(window=10_000)),))
    engine = Engine(made, registry=ListedRegistry(Own, trusted=True), clock=ManualClock())
    model = Faulty(*answers, *[DONE] * 30, summary=summary)
    outcome = Agent(engine, model, [look], sleep=lambda seconds: None).run(TASK)
    assert outcome.status in ("completed", "failed")
    assert_valid(outcome.messages)
    assert sum(TASK in message.text for message in outcome.messages) == 1


# ---- summaries


BAD_SUMMARIES = [
    ModelResponse(""),
    ModelResponse("  \n "),
    ModelResponse("", reasoning="I only think."),
    ModelResponse("<think>only thoughts</think>"),
    ModelResponse("what was asked is", finish_reason="length"),
    ModelResponse("", (ToolCall("c", "look", "{}"),)),
    ModelResponse("so much longer " * 500),
    OVERLOADED,
]
bad = pytest.mark.parametrize(
    "summary", BAD_SUMMARIES, ids=["empty", "blank", "reasoning", "thoughts", "cut", "call", "long", "error"]
)


@bad
def test_t36_a_summary_that_is_none_leaves_the_history_as_it_is_to_the_letter(medic, summary):
    model = Faulty(calls(1), calls(2, 3), calls(4), DONE, summary=summary)
    agent = medic(model, compactions={4: Compaction()})
    outcome = agent.run(TASK)
    plain = medic(Faulty(calls(1), calls(2, 3), calls(4), DONE)).run(TASK)
    assert msgspec.json.encode(outcome.messages) == msgspec.json.encode(plain.messages)
    assert (outcome.status, len(model.of("summary"))) == ("completed", 1)


@bad
def test_t36_a_summary_that_is_none_moves_on_to_the_next_remedy(medic, summary):
    model = Faulty(calls(1), calls(2), OVERFLOW, DONE, summary=summary)
    agent = medic(model, Remedy("compact"), Remedy("fallback_model", model="large"))
    outcome = agent.run(TASK)
    assert outcome.status == "completed"
    assert [error.code for error in agent.medic.errors] == ["context_overflow"] * 2
    assert model.requests[-1].model == "large"
    assert len(model.of("summary")) == 1
    assert model.of("main")[-1].messages == model.of("main")[-2].messages


@bad
def test_t36_nothing_left_after_a_summary_that_is_none_ends_the_run_with_the_first_error(medic, summary):
    model = Faulty(calls(1), calls(2), OVERFLOW, summary=summary)
    outcome = medic(model, Remedy("compact")).run(TASK)
    assert (outcome.status, outcome.error) == ("failed", "context_overflow: too long")


def test_t36_a_rule_that_always_wants_it_shorter_gets_it_once_a_round(medic):
    compactions = dict.fromkeys(range(1, 99), Compaction())
    model = Faulty(*(calls(page) for page in range(8)), DONE, summary=ModelResponse(""))
    outcome = medic(model, compactions=compactions).run(TASK)
    assert outcome.status == "completed"
    assert len(model.of("main")) == 9
    assert len(model.of("summary")) <= 9


def test_t36_parallel_calls_at_the_boundary_keep_their_results(medic):
    model = Faulty(calls(1, 2, 3), calls(4, 5), calls(6, 7, 8), OVERFLOW, DONE)
    for keep in (0.0, 0.2, 0.4, 0.6, 0.8):
        model.answers = [calls(1, 2, 3), calls(4, 5), calls(6, 7, 8), OVERFLOW, DONE]
        outcome = medic(model, Remedy("compact", compaction=Compaction("compact", keep))).run(TASK)
        assert outcome.status == "completed"
        assert check_history(outcome.messages) == ()
        assert outcome.messages[0].text.startswith(TASK)


@pytest.mark.parametrize("strategy", ["compact", "slide"])
def test_t36_the_task_stays_word_for_word_over_several_compactions(medic, strategy):
    how = Compaction(strategy, 0.2)
    model = Faulty(*(calls(page) for page in range(12)), DONE)
    outcome = medic(model, compactions={4: how, 7: how, 10: how, 12: how}).run(TASK)
    assert outcome.status == "completed"
    for request in model.of("main"):
        assert sum(TASK in message.text for message in request.messages) == 1
        assert request.messages[0].text.startswith(TASK)
    assert len(outcome.messages) < 12


def test_a_summary_request_asks_for_text_and_never_enters_the_history(medic):
    model = Faulty(calls(1), calls(2), OVERFLOW, DONE)
    outcome = medic(model, Remedy("compact")).run(TASK)
    (request,) = model.of("summary")
    assert (request.tools, request.tool_choice) == ((), "")
    assert request.messages[0].text == TASK
    notice = request.messages[-1].text
    assert all(notice not in message.text for message in outcome.messages)


def test_the_conversation_before_is_summed_up_and_the_task_of_this_run_is_kept(medic):
    earlier = [Message("user", "first task"), Message("assistant", "first answer " * 30)]
    model = Faulty(calls(1), calls(2), OVERFLOW, DONE)
    outcome = medic(model, Remedy("compact", compaction=Compaction("compact", 0.2))).run(TASK, history=earlier)
    assert outcome.messages[0].text.startswith(TASK)
    assert "first task" in str(model.of("summary")[0].messages)


# ---- saving


def test_a_run_saved_while_it_waits_waits_again_and_ends_the_same(medic):
    agent = medic(Faulty(OVERLOADED, DONE), Remedy("wait", wait_s=7.5))
    loop = agent.start(run_id="r")
    effect = advance(loop, Begin(TASK))
    effect = advance(loop, agent._perform(loop, effect, []))
    assert isinstance(effect, Wait)
    other = medic(Faulty(DONE))
    resumed = other.resume(agent.save(loop))
    assert effect_now(resumed) == effect
    assert other.drive(resumed).status == "completed"
    assert other.slept == [7.5]


@pytest.mark.parametrize("why", ["rule", "error"])
def test_a_run_saved_while_a_summary_is_open_asks_for_it_again_and_ends_the_same(medic, why):
    answers = [calls(1), calls(2), *([OVERFLOW] if why == "error" else []), DONE]
    how = {"remedies": [Remedy("compact")], "compactions": {}} if why == "error" else {"compactions": {3: Compaction()}}

    def made(answers):
        return medic(Faulty(*answers), *how.get("remedies", []), compactions=how["compactions"])

    whole = made(answers).run(TASK, run_id="r")
    agent = made(answers)
    loop = agent.start(run_id="r")
    effect = advance(loop, Begin(TASK))
    while not (isinstance(effect, CallModel) and effect.request.purpose == "summary"):
        effect = advance(loop, agent._perform(loop, effect, []))
    other = made([DONE])
    resumed = other.resume(agent.save(loop))
    again = effect_now(resumed)
    assert (again.request.purpose, again.request.messages) == ("summary", effect.request.messages)
    outcome = other.drive(resumed)
    assert msgspec.to_builtins(outcome.messages) == msgspec.to_builtins(whole.messages)
    assert outcome.status == whole.status == "completed"


def test_a_run_saved_after_a_fallback_stays_with_that_model(medic):
    agent = medic(Faulty(OVERLOADED, DONE), Remedy("fallback_model", model="second"))
    loop = agent.start()
    effect = advance(loop, Begin(TASK))
    effect = advance(loop, agent._perform(loop, effect, []))
    other = medic(Faulty(DONE))
    resumed = other.resume(agent.save(loop))
    assert effect_now(resumed).request.model == effect.request.model == "second"


# ---- overflow that no error reports


def long_history():
    return [Message("user", "earlier " * 900), Message("assistant", "answer " * 900)]


CUT = ModelResponse("What should I do?", usage=Usage(900, 5))


def test_a_prompt_that_the_server_cut_is_shortened_by_us_instead(medic):
    model = Faulty(CUT, DONE)
    agent = medic(model, Remedy("compact", compaction=Compaction("slide", 0.1)))
    outcome = agent.run(TASK, history=long_history())
    assert (outcome.status, outcome.output) == ("completed", "done")
    (error,) = agent.medic.errors
    assert (error.code, error.message) == ("context_overflow", "prompt_cut")
    assert "What should I do?" not in str(outcome.messages)
    assert outcome.prompt_tokens == 900


@pytest.mark.parametrize("remedies", [(), (Remedy("truncate_results"),)], ids=["no opinion", "nothing changes"])
def test_an_overflow_that_is_only_inferred_does_not_end_a_run(medic, remedies):
    agent = medic(Faulty(CUT), *remedies)
    outcome = agent.run(TASK, history=long_history())
    assert (outcome.status, outcome.output) == ("completed", "What should I do?")
    assert len(agent.medic.errors) == 1 + len(remedies)


def test_an_inferred_overflow_whose_summary_fails_leaves_the_answer_standing(medic):
    model = Faulty(CUT, summary=ModelResponse(""))
    outcome = medic(model, Remedy("compact")).run(TASK, history=long_history())
    assert (outcome.status, outcome.output) == ("completed", "What should I do?")


def test_an_overflow_that_the_provider_names_ends_the_run_if_nothing_is_done(medic):
    named = ModelResponse("The rows are", finish_reason="model_context_window_exceeded", usage=Usage(900, 5))
    outcome = medic(Faulty(named)).run(TASK)
    assert (outcome.status, outcome.error) == ("failed", "context_overflow: window_exceeded")


def test_t35_a_prompt_that_leaves_no_room_is_an_overflow_and_an_answer_cut_at_its_own_limit_is_not(medic):
    models = [("primary", ModelFacts(window=10_000))]
    full = ModelResponse("", finish_reason="length", usage=Usage(9_990, 2))
    agent = medic(Faulty(calls(1), calls(2), full, DONE), Remedy("compact"), models=models)
    assert agent.run(TASK).output == "done"
    assert [error.message for error in agent.medic.errors] == ["window_full"]
    cut = ModelResponse("The rows are", finish_reason="length", usage=Usage(200, 4_000))
    agent = medic(Faulty(cut, DONE), Remedy("compact"), models=models)
    outcome = agent.run(TASK)
    assert agent.medic.errors == []
    assert any(message.origin == "warning:truncated" for message in outcome.messages)


def test_a_run_saved_with_a_doubtful_answer_takes_it_if_no_summary_comes(medic):
    agent = medic(Faulty(CUT), Remedy("compact"))
    loop = agent.start(long_history())
    effect = advance(loop, Begin(TASK))
    effect = advance(loop, agent._perform(loop, effect, []))
    assert effect.request.purpose == "summary"
    resumed = agent.resume(agent.save(loop))
    ended = advance(resumed, RequestFailed(OVERLOADED))
    assert isinstance(ended, Finish)
    assert (ended.outcome.status, ended.outcome.output) == ("completed", "What should I do?")


# ---- records


def test_a_journal_of_a_run_that_failed_waited_and_was_shortened_replays_to_the_same_decisions(tmp_path):
    text = (
        "apiVersion: policyengine/v1\nkind: Policy\nname: t\nextensions:\n"
        "  provider_recovery: {with: {fallback_models: [{model: second, window: 99000}]}}\n"
        "  context_compaction: {with: {window: 1000}}\n"
        "  empty_response: {with: {fallback: Sorry., after: 1}}\n"
    )
    registry = builtin_registry()
    made = load_policy_text(text, registry=registry)
    path = tmp_path / "journal.jsonl"
    limited = ProviderError("context_overflow", "too long", 400, limit=1_000)
    answers = [calls(1), OVERLOADED, calls(2), calls(3, usage=Usage(950, 5)), limited, calls(4)]
    with path.open("w") as file:
        engine = Engine(made, registry=registry, journal=JournalWriter(file), clock=ManualClock())
        model = Faulty(*answers, ModelResponse(""))
        outcome = Agent(engine, model, [look], sleep=lambda seconds: None).run(TASK)
    assert (outcome.status, outcome.output, outcome.stop.rule) == ("completed", "Sorry.", "empty_response")
    assert model.requests[-1].model == "second"
    pairs = list(replay_journal(path, Engine(made, registry=registry)))
    assert all(then == now for then, now in pairs)
    assert {"retry", "rewrite"} <= {getattr(now, "action", "") for _, now in pairs}


# ---- reasoning


def reasoned(pages, text=""):
    """A response as a provider sends it, with reasoning and fields that nobody knows."""
    made = tuple(ToolCall(f"c{page}", "look", f'{{"page":{page}}}') for page in pages)
    raw = {
        "role": "assistant",
        "content": text or None,
        "reasoning_content": f"because {text}{pages}",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "=="}],
        "x_unknown": {"kept": [1, None]},
    }
    if made:
        raw["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}, "x_index": 0}
            for c in made
        ]
    return ModelResponse(text, made, "because", raw=raw)


def reasons_sent(request):
    return ["reasoning_content" in (message.raw or {}) for message in request.messages if message.role == "assistant"]


@pytest.mark.parametrize(
    ("how", "sent"), [("replay", [True, True, True]), ("with_calls", [False, True, True]), ("drop", [False] * 3)]
)
def test_t37_reasoning_goes_back_as_the_rule_of_the_model_says_and_stored_messages_never_change(medic, how, sent):
    first, answer = reasoned((1,)), reasoned((), "first answer")
    earlier = [Message("user", "before"), Message("assistant", "first answer", raw=answer.raw)]
    kept = msgspec.json.encode([earlier, first])
    model = Faulty(first, reasoned((2, 3)), DONE)
    outcome = medic(model, models=[("primary", ModelFacts(reasoning=how))]).run(TASK, history=earlier)
    assert reasons_sent(model.requests[-1]) == sent
    assert msgspec.json.encode([earlier, first]) == kept
    stored = [message.raw for message in outcome.messages if message.role == "assistant" and message.raw]
    assert stored == [answer.raw, first.raw, reasoned((2, 3)).raw]
    for request in model.requests:
        unknown = [message.raw["x_unknown"] for message in request.messages if message.raw]
        assert unknown == [{"kept": [1, None]}] * len(unknown)


def test_t37_reasoning_follows_the_rule_of_the_model_that_is_asked_now(medic):
    models = [("primary", ModelFacts(reasoning="replay")), ("second", ModelFacts(reasoning="drop"))]
    model = Faulty(reasoned((1,)), OVERLOADED, DONE)
    outcome = medic(model, Remedy("fallback_model", model="second"), models=models).run(TASK)
    assert [reasons_sent(request) for request in model.requests] == [[], [True], [False]]
    assert "reasoning_content" in outcome.messages[1].raw


@pytest.mark.parametrize("end", ["cancel", "error", "compaction", "remedies"])
def test_t37_unknown_fields_round_trip_through_every_end(medic, end):
    answers = {
        "cancel": [reasoned((1,)), reasoned((2,))],
        "error": [reasoned((1,)), reasoned((2,)), OVERLOADED],
        "compaction": [reasoned((0,)), reasoned((1,)), reasoned((2,)), OVERFLOW, DONE],
        "remedies": [reasoned((1,)), reasoned((2,)), *[OVERFLOW] * 4, DONE],
    }[end]
    remedies = {
        "compaction": [Remedy("compact", compaction=Compaction("slide", 0.6))],
        "remedies": [
            Remedy("repair_history"),
            Remedy("restore_reasoning"),
            Remedy("drop_media"),
            Remedy("prune_duplicate_rounds"),
            Remedy("truncate_results"),
            Remedy("disable_thinking"),
            Remedy("reduce_max_tokens", max_tokens=9),
            Remedy("fallback_model", model="second"),
            None,
        ],
    }.get(end, [])

    def look(page: int) -> str:
        """Look."""
        if end == "cancel" and page == 2:
            raise KeyboardInterrupt
        return "found " * 30

    ended = []
    agent = medic(Faulty(*answers), *remedies, tools=[look])
    agent.engine.sinks.append(lambda report: ended.append(report.payload[0]) if report.hook == "run_end" else None)
    if end == "cancel":
        with pytest.raises(KeyboardInterrupt):
            agent.run(TASK)
    else:
        agent.run(TASK)
    outcome = ended[-1]
    stored = [message.raw for message in outcome.messages if message.raw is not None]
    expected = [reasoned((1,)).raw, reasoned((2,)).raw]
    assert stored[-2:] == expected if end != "compaction" else stored[-1] == expected[1]
    assert_valid(outcome.messages)


# ---- errors made by hand, and in scripts


@pytest.mark.parametrize("code", sorted(BY_CLASS))
def test_an_error_without_remedies_has_those_of_its_class(code):
    error = with_remedies(ProviderError(code))
    assert error.remedies == BY_CLASS[code]
    assert error.retry_same_request is not None


def test_an_error_that_says_something_itself_is_left_alone():
    for error in (
        ProviderError("overloaded", remedies=("stop",)),
        ProviderError("overloaded", retry_same_request=False),
        ProviderError("acme.odd"),
    ):
        assert with_remedies(error) is error


def test_rules_see_the_remedies_of_an_error_that_an_adapter_made_by_hand(medic):
    agent = medic(Faulty(OVERLOADED))
    agent.run(TASK)
    assert agent.medic.errors[0].remedies == ("backoff", "fallback_model")


def test_a_scripted_request_can_fail(medic):
    model = ScriptedModel(Script("t", (fail("overloaded", "busy", retry_after_s=2.0), say("done"))))
    agent = medic(model, None)
    assert agent.run(TASK).output == "done"
    assert (agent.medic.errors[0].code, agent.medic.errors[0].retry_after_s) == ("overloaded", 2.0)


def test_a_script_file_can_hold_a_failure(tmp_path):
    from policyengine import UsageError
    from policyengine.providers.scripted import load_script

    path = tmp_path / "s.yaml"
    path.write_text("task: t\nturns:\n- error: {code: rate_limit, retry_after_s: 3}\n- text: done\n")
    assert load_script(str(path)).turns[0].error == ProviderError("rate_limit", retry_after_s=3.0)
    path.write_text("task: t\nturns:\n- error: {code: rate_limit, retry_after: 3}\n")
    with pytest.raises(UsageError, match="retry_after"):
        load_script(str(path))


# ---- what remedies do to histories


@given(st.integers(0, 9_000), st.sampled_from(["tool", "user", "assistant"]))
def test_cutting_results_never_makes_one_longer_and_cuts_once(size, role):
    text = "".join(chr(97 + number % 26) for number in range(size))
    messages = [Message(role, text, tool_call_id="x" if role == "tool" else "")]
    once = truncate_results(messages)
    assert len(once[0].text) <= len(text)
    assert truncate_results(once) == once
    if role != "tool":
        assert once == messages


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), max_size=10))
def test_pruning_leaves_no_more_than_two_of_equal_rounds_and_loses_no_other(rounds):
    messages = [Message("user", "go")]
    for number, (query, found) in enumerate(rounds):
        call = ToolCall(str(number), "look", f'{{"q":"{query}"}}')
        messages += [Message("assistant", "", (call,)), Message("tool", found, tool_call_id=str(number), name="look")]
    kept = prune_duplicate_rounds(messages)
    assert check_history(tuple(kept)) == ()
    left = [
        (kept[index].tool_calls[0].arguments[6], kept[index + 1].text)
        for index in range(len(kept))
        if kept[index].tool_calls
    ]
    assert all(not left[i] == left[i + 1] == left[i + 2] for i in range(len(left) - 2))
    squeezed = [item for index, item in enumerate(left) if index == 0 or item != left[index - 1]]
    assert squeezed == [item for index, item in enumerate(rounds) if index == 0 or item != rounds[index - 1]]
    assert prune_duplicate_rounds(kept) == kept


def test_only_media_are_dropped_wherever_they_stand():
    parts = [
        {"type": "text", "text": "see"},
        {"type": "input_image", "image_url": "x"},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}]},
    ]
    (message,) = drop_media([Message("user", "see", raw={"role": "user", "content": parts})])
    first, second, third = message.raw["content"]
    assert first == parts[0]
    assert second["type"] == "input_text"
    assert third["content"][0]["type"] == "text"
    assert third["tool_use_id"] == "t"
    assert parts[2]["content"][0]["type"] == "image"
