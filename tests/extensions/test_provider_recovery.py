"""`provider_recovery`: one remedy after the other, in the order of the error, and an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine import Agent, Engine, ModelResponse, ProviderError, RequestError, ToolCall, call, fail, say
from policyengine.context import RunView
from policyengine.extensions.provider_recovery import ACTIONS, ProviderRecovery, fewer_tokens, share_of
from policyengine.loop.recovery import MAX_RECOVERIES
from policyengine.messages import UNDECLARED, Message, ModelRequest
from policyengine.providers.errors import ERROR_CLASSES, REMEDIES
from policyengine.runstate import RunState
from policyengine.testing import ListedRegistry, ManualClock, assert_valid, play, policy, rule

LARGE = {"model": "large", "window": 200_000}
SMALL = {"model": "small", "window": 8_000}


def error(code="overloaded", *remedies, **facts):
    return ProviderError(code, "the provider's words", remedies=remedies or REMEDIES.get(code, ()), **facts)


def asked(bench, *errors, model="primary", **options):
    """Return what the rule answers to one failure after the other in one round."""
    made = bench(ProviderRecovery, **options)
    made.hook("before_model_call", ModelRequest((Message("user", "t"),), model=model))
    return [answer_of(made, item) for item in errors]


def answer_of(made, item):
    answer = made.guard.after_provider_error(made.view, item)
    for action in answer or ():
        if action.kind:
            assert set(action.data) <= set(ProviderRecovery.messages[action.kind])
    return answer


def names(answers):
    """Name every answer by its remedy, its stop or its refusal."""
    found = []
    for answer in answers:
        for action in answer or (None,):
            remedy = getattr(action, "remedy", None)
            found.append(action and (remedy.name if remedy else f"{action.name} {action.code}"))
    return found


# ---- order


def test_the_same_error_again_moves_on_until_nothing_is_left(bench):
    assert names(asked(bench, *[error("context_overflow", limit=9_000)] * 4, fallback_models=[LARGE])) == [
        "compact",
        "truncate_results",
        "fallback_model",
        None,
    ]


def test_every_class_is_answered_in_the_order_of_its_remedies_and_comes_to_an_end(bench):
    for code in ERROR_CLASSES:
        found = names(asked(bench, *[error(code, limit=9_000)] * 12, fallback_models=[LARGE], waits=2))
        expected = []
        for remedy in REMEDIES[code]:
            loop = {"backoff": "wait", "fallback_provider": "fallback_model"}.get(remedy, remedy)
            if loop == "stop":
                expected += [f"stop {'provider_error' if code == 'unknown' else code}"] * 12
            else:
                expected += ["wait", "wait"] if loop == "wait" else [loop]
        assert found == (expected + [None] * 12)[:12]


def test_a_remedy_that_nobody_knows_is_passed_over(bench):
    assert names(asked(bench, error("odd", "acme.pray", "drop_media"))) == ["drop_media"]
    assert names(asked(bench, ProviderError("odd"))) == [None]


def test_only_what_is_allowed_is_done(bench):
    errors = [error("overloaded"), error("context_overflow", limit=5), error("quota_exhausted")]
    answers = asked(bench, *errors, allow=["truncate_results", "fallback_model"], fallback_models=[LARGE])
    assert names(answers) == ["fallback_model", "truncate_results", None]


def test_a_new_round_starts_afresh(bench):
    made = bench(ProviderRecovery)
    first = [answer_of(made, error("context_overflow")) for _ in range(3)]
    made.next_round()
    assert names([*first, answer_of(made, error("context_overflow"))]) == [
        "compact",
        "truncate_results",
        None,
        "compact",
    ]


@given(st.lists(st.sampled_from(ERROR_CLASSES), max_size=40), st.booleans())
def test_no_round_recovers_more_often_than_the_loop_allows_where_models_are_few(codes, fallback):
    options = {name: field["default"] for name, field in ProviderRecovery.options.items() if "default" in field}
    guard = ProviderRecovery({**options, "max": 1000, "fallback_models": [LARGE] if fallback else []})
    view = RunView(RunState("r", iteration=1), "rule", ProviderRecovery.state(), lambda name: UNDECLARED)
    found = names([guard.after_provider_error(view, error(code, limit=1, requested=9)) for code in codes])
    done = [name for name in found if name and " " not in name]
    assert done.count("wait") <= 3
    assert all(done.count(name) <= 1 for name in done if name != "wait")
    assert len(done) <= MAX_RECOVERIES


# ---- waiting


def waits(answers):
    return [action.remedy.wait_s for answer in answers for action in answer or ()]


def test_waits_grow_with_a_jitter_that_depends_on_the_run_alone(bench):
    options = {"waits": 5, "wait": {"first": "2s", "factor": 3, "max": "30s"}}
    found = waits(asked(bench, *[error("overloaded", "backoff")] * 5, **options))
    for wait, longest in zip(found, [2, 6, 18, 30, 30], strict=True):
        assert longest / 2 <= wait <= longest
    assert found == waits(asked(bench, *[error("overloaded", "backoff")] * 5, **options))
    other = bench(ProviderRecovery, **options)
    other.next_run("run-2")
    assert waits([answer_of(other, error("overloaded", "backoff"))]) != found[:1]


def test_the_time_that_the_provider_names_wins(bench):
    assert waits(asked(bench, error("rate_limit", retry_after_s=12.5))) == [12.5]
    assert waits(asked(bench, error("rate_limit", retry_after_s=0.0), wait={"first": "8s"})) != [0.0]


@pytest.mark.parametrize("told", [61.0, 1e9, float("inf")])
def test_who_wants_too_long_a_wait_is_not_waited_for(bench, told):
    errors = [error("rate_limit", retry_after_s=told)] * 2
    assert names(asked(bench, *errors, fallback_models=[LARGE])) == ["fallback_model", None]
    assert names(asked(bench, errors[0], wait={"max": "24h"})) == (["wait"] if told == 61.0 else [None])


def test_a_round_waits_no_more_often_than_it_may(bench):
    assert names(asked(bench, *[error("rate_limit")] * 3, waits=2)) == ["wait", "wait", None]
    assert names(asked(bench, error("rate_limit"), waits=0)) == [None]


@given(st.text(max_size=9))
def test_a_share_is_below_one_whatever_the_id_is(text):
    assert 0 <= share_of(text) < 1


# ---- other models


def test_the_models_are_asked_in_their_order_and_none_twice_in_a_round(bench):
    models = [{"model": "b"}, {"model": "c"}]
    answers = asked(bench, *[error("server_error", "fallback_model")] * 3, fallback_models=models)
    assert [action.remedy.model for answer in answers for action in answer or ()] == ["b", "c"]
    assert answers[-1] is None


def test_the_model_that_failed_is_not_asked_again(bench):
    answers = asked(bench, error("not_found"), model="b", fallback_models=[{"model": "b"}, {"model": "c"}])
    assert answers[0][0].remedy.model == "c"


def test_a_model_of_another_provider_is_a_model_too(bench):
    assert names(asked(bench, error("connection", "fallback_provider"), fallback_models=[{"model": "b"}])) == [
        "fallback_model"
    ]


def overflow(**facts):
    return error("context_overflow", "fallback_model", **facts)


def test_t35_an_overflow_never_moves_to_a_window_that_is_not_larger(bench):
    same = {"model": "same", "window": 16_000}
    answers = asked(bench, overflow(limit=16_000), overflow(), fallback_models=[SMALL, same, LARGE])
    assert answers[0][0].remedy.model == "large"
    assert answers[1] is None
    (refused,) = asked(bench, overflow(limit=16_000), fallback_models=[SMALL, same, {"model": "unknown"}])[0]
    assert (refused.name, refused.code, refused.limit) == ("record", "fallback_refused", 16_000)
    assert refused.data == {"reason": "no_larger_window", "model": "primary"}


def test_t35_without_a_known_window_no_other_model_is_asked_and_the_record_says_so(bench):
    (refused,) = asked(bench, overflow(), fallback_models=[LARGE])[0]
    assert (refused.name, refused.data["reason"]) == ("record", "window_not_known")


def test_the_window_of_a_listed_model_is_known(bench):
    assert asked(bench, overflow(), model="small", fallback_models=[SMALL, LARGE])[0][0].remedy.model == "large"


def test_a_refusal_is_recorded_beside_what_is_done_instead(bench):
    answers = asked(bench, error("context_overflow", "fallback_model", "stop"), fallback_models=[SMALL])
    assert names(answers) == ["record fallback_refused", "stop context_overflow"]


# ---- fewer tokens


@pytest.mark.parametrize(
    ("facts", "tokens"),
    [
        ({"limit": 8_192, "input_tokens": 7_000, "max_tokens": 4_000}, 1_192),
        ({"limit": 8_192, "requested": 9_000, "max_tokens": 8_000}, 7_192),
        ({"limit": 8_192, "tokens": 8_000}, 192),
        ({"limit": 4_096, "max_tokens": 32_000}, 4_096),
        ({"limit": 4_096, "input_tokens": 9_000, "max_tokens": 32_000}, 4_096),
        ({"limit": 1_200, "requested": 32_000}, 1_200),
        ({"max_tokens": 8_000}, 4_000),
        ({"requested": 9_001}, 4_500),
        ({"limit": 200_000, "max_tokens": 8_000}, 4_000),
        ({"max_tokens": 1}, None),
        ({}, None),
    ],
)
def test_the_answer_may_take_what_the_prompt_leaves_else_the_limit_else_half(facts, tokens):
    assert fewer_tokens(error("output_limit_too_large", **facts)) == tokens


def test_an_answer_that_cannot_be_made_shorter_is_no_remedy(bench):
    assert names(asked(bench, error("output_limit_too_large"))) == [None]


# ---- ends


@pytest.mark.parametrize("code", ["quota_exhausted", "authentication", "permission", "content_filter"])
def test_what_cannot_be_helped_stops_with_the_class_as_its_reason(bench, code):
    ((stop,),) = asked(bench, error(code))
    assert (stop.name, stop.code, stop.kind) == ("stop", code, "provider_error.stop")
    assert stop.data == {"failure": code, "detail": "the provider's words"}


def test_a_run_recovers_no_more_often_than_it_may(bench):
    made = bench(ProviderRecovery, max=3)
    found = []
    for _ in range(4):
        found.append(answer_of(made, error("server_error")))
        made.next_round()
    assert names(found) == ["wait", "wait", "wait", "stop provider_errors"]
    assert (found[-1][0].observed, found[-1][0].limit) == (3, 3)


def test_a_typed_stop_comes_before_the_cap(bench):
    made = bench(ProviderRecovery, max=1)
    answer_of(made, error("server_error"))
    made.next_round()
    assert names([answer_of(made, error("authentication"))]) == ["stop authentication"]


def test_state_survives_a_restart(bench):
    made = bench(ProviderRecovery)
    answer_of(made, error("context_overflow"))
    made.reload()
    assert names([answer_of(made, error("context_overflow"))]) == ["truncate_results"]


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"fallback_models": [LARGE, LARGE]}, "fallback_models"),
        ({"fallback_models": [LARGE], "allow": ["wait"]}, "fallback_models"),
        ({"wait": {"first": "2m"}}, "wait.first"),
        ({"wait": {"max": "10ms"}}, "wait.first"),
    ],
)
def test_options_that_can_never_take_effect_are_refused(faults, options, path):
    (problem,) = faults(ProviderRecovery, **options)
    assert problem.startswith(f"{path}:")


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({}, {*ACTIONS, "max"} - {"fallback_model"}),
        ({"fallback_models": [LARGE], "max": 7, "waits": 2}, {*ACTIONS, "max"}),
        ({"allow": ["compact"]}, {"compact"}),
        ({"waits": 0}, {*ACTIONS} - {"fallback_model", "wait"}),
    ],
    ids=["default", "with a model", "only one", "without waits"],
)
def test_every_remedy_is_proved_through_the_loop(proved, options, labels):
    found = proved(ProviderRecovery, **options)
    assert found.keys() == labels
    assert all(fired == "fires at 1" for label, fired in found.items() if label != "max")


# ---- through the loop


def engine(**options):
    full = {name: field["default"] for name, field in ProviderRecovery.options.items() if "default" in field}
    made = policy(rule("provider_recovery", {**full, **options}))
    return Engine(made, registry=ListedRegistry(), clock=ManualClock())


def test_a_run_survives_a_busy_provider_and_a_dead_one_ends_it_as_failed():
    busy = play(engine(), [call("a"), fail("overloaded"), fail("rate_limit", retry_after_s=3.0), say("done")])
    assert (busy.outcome.status, busy.outcome.output, busy.outcome.interventions) == ("completed", "done", 0)
    dead = play(engine(), [fail("overloaded", "busy")] * 9).outcome
    assert (dead.status, dead.error, dead.stop) == ("failed", "overloaded: busy", None)


def test_a_typed_stop_keeps_what_there_is_and_names_the_reason():
    words = "You exceeded your current quota"
    outcome = play(engine(), [call("a"), fail("quota_exhausted", words)]).outcome
    assert (outcome.status, outcome.stop.code, outcome.stop.rule) == ("stopped", "quota_exhausted", "provider_recovery")
    assert words in outcome.stop.message
    assert_valid(outcome.messages)


def test_a_rule_that_only_warns_or_watches_recovers_nothing():
    for mode in ("warn", "shadow"):
        full = {name: field["default"] for name, field in ProviderRecovery.options.items() if "default" in field}
        made = policy(rule("provider_recovery", full, mode=mode))
        played = play(Engine(made, registry=ListedRegistry()), [fail("overloaded", "busy"), say("done")])
        assert played.outcome.status == "failed"


class Narrow:
    """A model that refuses what is longer than its window."""

    name = "narrow"

    def __init__(self, window, rounds):
        self.window, self.rounds, self.asked, self.refused = window, rounds, 0, 0

    def complete(self, request):
        assert_valid(request.messages)
        size = sum(len(message.text) for message in request.messages)
        if size > self.window:
            self.refused += 1
            raise RequestError(ProviderError("context_overflow", "too long", 400, limit=self.window // 4))
        if request.purpose == "summary":
            return ModelResponse("What was found so far: nothing.")
        self.asked += 1
        if self.asked > self.rounds:
            return ModelResponse("done")
        return ModelResponse("", (ToolCall(f"c{self.asked}", "read", "{}"),))


@pytest.mark.parametrize(("size", "rounds"), [(900, 30), (7_000, 12)], ids=["many rounds", "long results"])
def test_a_long_run_in_a_small_window_ends_with_its_answer(size, rounds):
    model = Narrow(10_000, rounds)
    outcome = Agent(engine(max=100), model, {"read": lambda: "x" * size}).run("Read everything.")
    assert (outcome.status, outcome.output, outcome.executed) == ("completed", "done", rounds)
    assert model.refused > 1
    assert "Read everything." in outcome.messages[0].text
