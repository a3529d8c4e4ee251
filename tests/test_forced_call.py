"""A required call: bounded attempts, one notice at a time, one repair, and the typed failure itself at the end."""

import pytest

from policyengine import Message, ModelResponse, ToolCall, ToolSpec, Usage, UsageError, force_call

SUBMIT = ToolSpec(
    "submit", "Hand in", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
)
HANDLE = ToolSpec(
    "handle",
    "Use a tool",
    {
        "type": "object",
        "properties": {"tool_call": {"type": "object"}},
        "required": ["tool_call"],
    },
)
LOOK = ToolSpec("look", "Look", {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]})
TASK = (Message("user", 'Use "look" or "submit".'),)


class Answers:
    """A model that gives these answers in order and keeps the requests."""

    name = "answers"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    def complete(self, request):
        self.requests.append(request)
        return self.answers.pop(0)


def calls(name, arguments, **fields):
    return ModelResponse(tool_calls=(ToolCall("1", name, arguments),), usage=Usage(10, 2), **fields)


def notices(model):
    return [[message.text for message in request.messages[len(TASK) :]] for request in model.requests]


def test_t31_a_retry_sees_only_the_latest_notice_and_the_callers_messages_stay():
    model = Answers(calls("first", "{}"), calls("second", "{}"), calls("submit", '{"text": "x"}'))
    result = force_call(model, TASK, (SUBMIT,))
    assert result.call.args == {"text": "x"}
    first, second, third = notices(model)
    assert first == []
    assert ("first" in second[0], len(second)) == (True, 1)
    assert ("second" in third[0], "first" in third[0], len(third)) == (True, False, 1)
    assert (Message("user", 'Use "look" or "submit".'),) == TASK
    assert all("submit" in notice[0] for notice in (second, third))


@pytest.mark.parametrize(
    "empty", [ModelResponse("no call"), ModelResponse(raw={"function_call": None}), ModelResponse()]
)
def test_t32_a_missing_call_gets_feedback_and_ends_in_the_typed_failure_with_its_attempts(empty):
    model = Answers(empty, empty, empty)
    result = force_call(model, TASK, (SUBMIT,))
    assert (result.failure.code, result.failure.attempts, result.attempts) == ("missing_call", 3, 3)
    assert [len(notice) for notice in notices(model)] == [0, 1, 1]


def test_t33_arguments_against_the_schema_get_one_repair_call_of_that_function_alone():
    model = Answers(calls("submit", '{"text": 7}'), calls("submit", '{"text": "seven"}'))
    result = force_call(model, TASK, (SUBMIT, HANDLE))
    assert (result.call.args, result.attempts) == ({"text": "seven"}, 1)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (20, 4)
    repair = model.requests[1]
    assert ([tool.name for tool in repair.tools], repair.tool_choice, repair.purpose) == (
        ["submit"],
        "submit",
        "repair",
    )
    assert '{"text": 7}' in repair.messages[-1].text


def test_t33_what_is_still_invalid_is_retried_with_the_validators_words_and_then_the_typed_failure():
    wrong = calls("submit", '{"text": 7}')
    model = Answers(*[wrong] * 4)
    result = force_call(model, TASK, (SUBMIT,))
    assert (result.failure.code, result.failure.attempts, len(model.requests)) == ("invalid_arguments", 3, 4)
    assert result.failure.errors[0].path == "text"
    assert [request.purpose for request in model.requests] == ["main", "repair", "main", "main"]
    assert max(len(notice) for notice in notices(model)) == 1


def test_t33_empty_arguments_are_no_arguments():
    ping = ToolSpec("ping", "", {"type": "object", "properties": {}})
    assert force_call(Answers(calls("ping", "")), TASK, (ping,)).call.args == {}


def test_t34_a_tool_called_without_its_wrapper_is_understood_only_if_its_arguments_validate():
    wrapped = {"inner": (LOOK,), "wrapper": "handle"}
    result = force_call(Answers(calls("look", '{"page": 3}')), TASK, (SUBMIT, HANDLE), **wrapped)
    assert result.call.name == "handle"
    assert result.call.args == {"tool_call": {"tool_name": "look", "tool_input": {"page": 3}}}
    bad = calls("look", '{"page": "three"}')
    result = force_call(Answers(bad, bad, bad, bad), TASK, (SUBMIT, HANDLE), **wrapped)
    assert result.failure.code == "invalid_arguments"


def test_t34_a_word_that_is_only_quoted_in_the_prompt_is_no_tool():
    model = Answers(*[calls("look", '{"page": 3}')] * 3)
    assert force_call(model, TASK, (SUBMIT, HANDLE)).failure.code == "wrong_function"


def test_broken_arguments_are_repaired_as_text_however_they_came_and_whatever_was_said_before():
    as_mapping = ModelResponse(tool_calls=(ToolCall("1", "submit", "", {"text": 7}),))
    as_text = ModelResponse(tool_calls=(ToolCall("1", "submit", "{text"),))
    for broken, told in ((as_mapping, "7"), (as_text, "{text")):
        model = Answers(broken, calls("submit", '{"text": "x"}'))
        assert force_call(model, (), (SUBMIT,)).call.args == {"text": "x"}
        assert told in model.requests[1].messages[-1].text


def test_a_cut_off_answer_is_told_to_be_smaller():
    model = Answers(calls("submit", '{"text": "x', finish_reason="length"), calls("submit", '{"text": "x"}'))
    assert force_call(model, TASK, (SUBMIT,)).call is not None
    assert "smaller" in notices(model)[1][0]


def test_nothing_to_call_and_no_attempt_are_the_callers_mistakes():
    with pytest.raises(UsageError):
        force_call(Answers(), TASK, ())
    with pytest.raises(UsageError):
        force_call(Answers(), TASK, (SUBMIT,), max_attempts=0)
