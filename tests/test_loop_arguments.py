"""Arguments against a tool's schema in the loop: repaired, corrected by one request, asked for again, or refused."""

import json

import pytest

from policyengine import Agent, Engine, ModelResponse, ToolCall, Usage
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.testing import ManualClock, assert_valid

REGISTRY = builtin_registry()
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: t\nextensions: {}\n"


def read_pages(pages: list, fast: bool = False) -> str:
    """Read pages."""
    return json.dumps([pages, fast])


class Answers:
    """A model that gives these answers in order and keeps the requests; every request must hold a valid history."""

    name = "answers"

    def __init__(self, *answers):
        self.answers = [*answers, ModelResponse("done")]
        self.requests = []

    def complete(self, request):
        assert_valid(request.messages)
        self.requests.append(request)
        return self.answers.pop(0)


def asks(arguments, name="read_pages"):
    return ModelResponse(tool_calls=(ToolCall("1", name, arguments),), usage=Usage(10, 1), raw={"kept": "verbatim"})


def work(parsing, *answers):
    policy = load_policy_text(f"{HEAD}parsing: {parsing}\n", registry=REGISTRY)
    model = Answers(*answers)
    outcome = Agent(Engine(policy, registry=REGISTRY, clock=ManualClock()), model, [read_pages]).run("task")
    assert_valid(outcome.messages)
    return model, outcome


def results(outcome):
    return [message.text for message in outcome.messages if message.role == "tool"]


def test_off_leaves_the_arguments_to_the_tool():
    _, outcome = work("{}", asks('{"pages": "[1, 2]", "fast": "false"}'))
    assert results(outcome) == ['["[1, 2]", "false"]']


def test_coerce_repairs_what_is_unambiguous_and_history_holds_what_ran():
    _, outcome = work("{arguments: coerce}", asks('{"pages": "[1, 2]", "fast": "false"}'))
    assert results(outcome) == ["[[1, 2], false]"]
    (call,) = outcome.messages[1].tool_calls
    assert json.loads(call.arguments) == {"pages": [1, 2], "fast": False}
    assert outcome.messages[1].raw is None


def test_what_fits_is_left_alone_with_the_providers_own_mapping():
    _, outcome = work("{arguments: coerce}", asks('{"pages": [1]}'))
    assert outcome.messages[1].raw == {"kept": "verbatim"}


@pytest.mark.parametrize("how", ["check", "coerce"])
def test_what_does_not_fit_is_refused_with_the_validators_words(how):
    _, outcome = work(f"{{arguments: {how}}}", asks('{"fast": true}'))
    (text,) = results(outcome)
    assert "pages" in text
    assert "required" in text
    assert outcome.executed == 0


def test_check_refuses_what_would_need_a_repair():
    _, outcome = work("{arguments: check}", asks('{"pages": [1], "fast": "false"}'))
    assert outcome.executed == 0


def test_t33_one_repair_request_offers_only_that_tool_and_leaves_no_trace():
    model, outcome = work("{arguments: coerce, repair_calls: 1}", asks('{"fast": true}'), asks('{"pages": [3]}'))
    assert results(outcome) == ["[[3], false]"]
    main, repair, last = model.requests
    assert ([tool.name for tool in repair.tools], repair.purpose, repair.tool_choice) == (
        ["read_pages"],
        "repair",
        "read_pages",
    )
    assert (repair.model, repair.messages[:-1]) == (main.model, main.messages)
    assert "required" in repair.messages[-1].text
    assert repair.messages[-1].text not in [message.text for message in last.messages]
    assert (outcome.prompt_tokens, outcome.iterations, outcome.calls) == (20, 1 + 1, 1)


def test_t33_a_failed_repair_is_not_repeated_without_end():
    wrong = asks('{"fast": true}')
    model, outcome = work("{arguments: coerce, repair_calls: 1}", wrong, ModelResponse("sorry"))
    assert [request.purpose for request in model.requests] == ["main", "repair", "main"]
    assert outcome.executed == 0


def test_a_retry_within_the_iteration_gets_the_words_in_one_notice_that_is_not_stored():
    model, outcome = work("{arguments: coerce, max_retry: 1}", asks('{"fast": true}'), asks('{"pages": [4]}'))
    assert results(outcome) == ["[[4], false]"]
    assert "required" in model.requests[1].messages[-1].text
    assert len([message for message in outcome.messages if message.role == "assistant"]) == 2


def test_a_run_saved_while_arguments_are_repaired_goes_on(tmp_path):
    from policyengine.loop.advance import advance, effect_now
    from policyengine.loop.state import Begin, Responded

    policy = load_policy_text(f"{HEAD}parsing: {{arguments: coerce, repair_calls: 1}}\n", registry=REGISTRY)
    agent = Agent(Engine(policy, registry=REGISTRY, clock=ManualClock()), Answers(), [read_pages])
    loop = agent.start()
    advance(loop, Begin("task"))
    effect = advance(loop, Responded(asks('{"fast": true}')))
    resumed = agent.resume(agent.save(loop))
    again = effect_now(resumed)
    assert (again.request.purpose, again.request.tool_choice) == ("repair", "read_pages")
    assert again == effect
    agent.model = Answers()
    assert results(agent.drive(resumed, Responded(asks('{"pages": [5]}')))) == ["[[5], false]"]


def test_settings_can_differ_by_model():
    policy = load_policy_text(
        HEAD + 'parsing: {mode: strict}\nmodels: {"deep*": {parsing: {mode: repair, arguments: coerce}}}\n',
        registry=REGISTRY,
    )
    assert (policy.parsing_of("deepseek-v4").mode, policy.parsing_of("other").mode) == ("repair", "strict")
    assert policy.parsing_of("deepseek-v4").max_retry == 0


def test_what_fits_only_after_a_repair_is_said_in_words():
    _, outcome = work("{arguments: check}", asks('{"pages": [4], "fast": "true"}'))
    (text,) = results(outcome)[:1]
    assert "fast (string to boolean)" in text
    assert "Repair(" not in text
