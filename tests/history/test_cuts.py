"""Where a history may be cut: anywhere but between a call and its results."""

import pytest

from policyengine.history.cuts import legal_cuts, nearest_cuts


def sketch(*kinds):
    """Messages written as `user`, `says`, `calls:a,b` and `result:a`."""
    messages = []
    for kind in kinds:
        word, _, ids = kind.partition(":")
        if word == "calls":
            function = {"name": "ls", "arguments": "{}"}
            calls = [{"id": id, "type": "function", "function": function} for id in ids.split(",")]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        elif word == "result":
            messages.append({"role": "tool", "tool_call_id": ids, "content": "x"})
        else:
            messages.append({"role": "user" if word == "user" else "assistant", "content": "x"})
    return messages


WHOLE = sketch("user", "calls:a,b", "result:a", "result:b", "says", "user", "calls:c", "result:c")


def test_a_cut_may_stand_anywhere_but_on_a_result():
    assert legal_cuts(WHOLE) == (0, 1, 4, 5, 6)


@pytest.mark.parametrize(
    ("at", "cuts"),
    [
        (0, (0,)),
        (1, (1,)),
        (2, (1, 4)),
        (3, (1, 4)),
        (4, (4,)),
        (5, (5,)),
        (7, (6,)),
        (8, (6,)),
        (99, (6,)),
        (-3, (0,)),
    ],
)
def test_a_proposal_is_kept_or_moved_to_either_side_of_the_whole_group(at, cuts):
    assert nearest_cuts(WHOLE, at) == cuts


def test_without_a_proposal_as_much_as_possible_goes():
    assert nearest_cuts(WHOLE) == (6,)
    assert nearest_cuts([]) == ()


def test_a_call_that_is_still_running_is_not_cut_off():
    messages = sketch("user", "calls:z", "result:z", "calls:cmp", "user")
    assert nearest_cuts(messages) == (4,)
    assert nearest_cuts(messages, pending=["cmp"]) == (3,)
    assert legal_cuts(messages, pending=["cmp"]) == (0, 1, 3)


def test_an_interposed_message_is_no_cut():
    assert legal_cuts(sketch("calls:a", "user", "result:a", "user")) == (0, 3)


def test_items_of_one_response_are_not_parted():
    call = {"type": "function_call", "call_id": "a", "name": "ls", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": "x"}
    items = [{"role": "user", "content": "x"}, {"type": "reasoning"}, call, output, {**call, "call_id": "b"}]
    assert legal_cuts(items, shape="openai_responses") == (0, 1, 4)
    required = {"reasoning_content": "required_on_tool_calls"}
    assert legal_cuts(items, shape="openai_responses", profile=required) == (0, 1)
    other = [{"type": "computer_call", "call_id": "c"}, {"type": "computer_call_output", "call_id": "c"}]
    assert legal_cuts(other, shape="openai_responses") == (0,)


def test_a_turn_that_began_with_thinking_is_cut_only_before_thinking():
    thought = {"type": "thinking", "thinking": "t", "signature": "s"}

    def step(id, *first):
        use = {"type": "tool_use", "id": id, "name": "ls", "input": {}}
        done = {"type": "tool_result", "tool_use_id": id, "content": "x"}
        return [{"role": "assistant", "content": [*first, use]}, {"role": "user", "content": [done]}]

    messages = [{"role": "user", "content": "x"}, *step("a", thought), *step("b"), *step("c", thought)]
    assert legal_cuts(messages, shape="anthropic") == (0, 1, 3, 5)
    assert legal_cuts(messages, shape="anthropic", profile={"thinking": "enabled"}) == (0, 1, 5)
