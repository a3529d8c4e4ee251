"""What is quoted, shown as an example or only offered does not run; what is announced does."""

import pytest

CALL = '<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>'
REQUEST = '{"tool_name": "search", "tool_args": {"q": "x"}}'

SHOWN = [
    "The notation is `{}`.",
    "`{}`",
    "It printed “{}” and stopped.",
    '"{}"',
    "> {}",
    "As they wrote:\n> {}\nand that was it.",
    "For example:\n{}",
    "For example:\n\n```\n{}\n```",
    "You could write\n{}",
    "An example of a call:\n\n{}",
    "If you'd like to search, tell me.\n\n{}",
    "Please let me know what to look for (e.g. a name).\n\n```\n{}\n```",
    "Would you like me to run this?\n{}",
    "Should I run this?\n{}",
    "Do not send {} again.",
    "The syntax is as follows:\n{}",
    "The log says:\n{}",
    "To look things up one would send {} to the server.",
    "{}\nis an example of a call.",
    "{} is how it looks.",
]


@pytest.mark.parametrize("around", SHOWN)
def test_a_call_that_is_only_shown_is_not_run(parse, around):
    answered = parse.answer(around.replace("{}", CALL))
    assert (answered.calls, answered.final) == ((), True)
    replied = parse.text(around.replace("{}", REQUEST))
    assert (replied.calls, replied.usable) == ((), False)


SAID = [
    "{}",
    "Let me look.\n{}",
    "I will search for it now.\n\n{}",
    "I will now call the function `search`.\n\n```\n{}\n```",
    "First I look.\n\n```\n{}\n```\n\nThen I will read the result.",
    'The mail says "let me know if you can come". I will search.\n{}',
    "Step 1:\n{}",
    "I don't have the data. I will get it.\n{}",
]


@pytest.mark.parametrize("around", SAID)
def test_a_call_that_is_announced_is_a_call(parse, calls_of, around):
    for verdict in (parse.answer(around.replace("{}", CALL)), parse.text(around.replace("{}", REQUEST))):
        assert calls_of(verdict) == [("search", {"q": "x"})]
        assert verdict.guess == (around != "{}")


def test_an_example_does_not_hide_the_call_that_follows_it(parse, calls_of):
    other = CALL.replace('"x"', '"y"')
    verdict = parse.answer(f"For example `{CALL}` looks for x.\n\nNow I look for y.\n{other}")
    assert calls_of(verdict) == [("search", {"q": "y"})]
    assert verdict.guess


def test_calls_in_several_fences_that_are_each_announced_are_all_found(parse, calls_of):
    fences = "\n\n".join(f'Step {n}.\n\n```\n<function=search>{{"q": "{n}"}}</function>\n```' for n in range(3))
    assert calls_of(parse.answer(fences)) == [("search", {"q": str(n)}) for n in range(3)]


@pytest.mark.parametrize("language", ["", "json", "xml", "tool_call", "JSON"])
def test_a_fence_with_a_call_may_name_what_it_is(parse, language):
    assert parse.answer(f"Now.\n```{language}\n{CALL}\n```").calls


@pytest.mark.parametrize("fence", ["```bash\n{}\n```", "```json\n// a comment\n{}\n```", "```\nsome code\n{}\n```"])
def test_a_fence_that_begins_with_something_else_is_code(parse, fence):
    assert parse.answer("Now.\n" + fence.replace("{}", CALL)).final


def test_a_call_in_reasoning_is_not_run(parse):
    assert parse.answer(f"<think>{CALL}</think>All done.").final
    assert parse.answer(f"so {CALL}\n</think>All done.").final
    assert parse.answer(f"<think>{CALL}").kind == "reasoning_only"


def test_the_end_of_reasoning_in_a_string_is_no_end_of_reasoning(parse, calls_of):
    text = '<tool_call>{"name": "write", "arguments": {"path": "a", "content": "x </think> y"}}</tool_call>'
    assert calls_of(parse.answer(text)) == [("write", {"path": "a", "content": "x </think> y"})]
