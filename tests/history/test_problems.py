"""Every problem in every form that has it, what becomes of it, and what looks like one and is none."""

import json
from pathlib import Path

import pytest

from policyengine import Message, ToolCall, UsageError
from policyengine.history.check import PROBLEMS, check_history
from policyengine.history.profile import HistoryProfile
from policyengine.history.repair import INTERRUPTED, REPAIRS, SILENT, repair_history


def found(messages, shape="openai_chat", profile=None):
    return [(p.code, p.index, p.id) for p in check_history(messages, shape=shape, profile=profile)]


def mended(messages, shape="openai_chat", profile=None):
    """The repaired history, which must be valid, and the names of its repairs."""
    repaired = repair_history(messages, shape=shape, profile=profile)
    assert repaired.remaining == ()
    assert not repaired.disable_thinking
    return list(repaired.messages), [repair.code for repair in repaired.repairs]


def chat(*calls, content=None, **more):
    made = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, name, arguments in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": made, **more}


def answer(id, content="done", **more):
    return {"role": "tool", "tool_call_id": id, "content": content, **more}


def use(id, name="ls", input=None):
    return {"type": "tool_use", "id": id, "name": name, "input": {} if input is None else input}


def block(text):
    return {"type": "text", "text": text}


def fc(name="ls", args=None, **more):
    return {"functionCall": {"name": name, "args": args or {}}, **more}


def fr(name="ls", **more):
    return {"functionResponse": {"name": name, "response": {"o": 1}, **more}}


# ---- pairing, in every form


def test_a_whole_conversation_is_valid(written):
    messages = [
        *written.user(),
        *written.calls("a", "b"),
        *written.results("a", "b"),
        *written.says(),
        *written.user(),
        *written.calls("c"),
        *written.results("c"),
    ]
    assert found(messages, written.shape) == []
    repaired = repair_history(messages, shape=written.shape)
    assert all(new is old for new, old in zip(repaired.messages, messages, strict=True))


def test_text_beside_calls_is_valid():
    messages = [chat(("a", "ls", "{}"), ("b", "ls", "{}"), content="I look at both."), answer("a"), answer("b")]
    assert check_history([{"role": "user", "content": "Look."}, *messages]) == ()


def test_results_may_come_in_any_order(written):
    messages = [*written.user(), *written.calls("a", "b"), *written.results("b", "a")]
    assert found(messages, written.shape) == []


def test_ids_may_come_again_in_a_later_turn(written):
    turn = [*written.calls("a"), *written.results("a")]
    messages = [*written.user(), *turn, *written.says(), *written.user(), *turn, *turn]
    assert found(messages, written.shape) == []


def test_a_result_may_be_empty(written):
    assert found([*written.user(), *written.calls("a"), *written.results("a", text="")], written.shape) == []


def test_a_call_that_nothing_follows_has_no_result(written):
    for after in ([], written.user()):
        messages = [*written.user(), *written.calls("a"), *after]
        id = "" if written.shape == "gemini" else "a"
        assert found(messages, written.shape) == [("missing_result", 1, id)]
        repaired, repairs = mended(messages, written.shape)
        assert repairs == ["insert_result"]
        assert INTERRUPTED in json.dumps(repaired[2])
        assert repaired[0] is messages[0]


@pytest.mark.parametrize("shape", ["openai_chat", "anthropic", "gemini"])
def test_a_result_that_comes_after_the_model_spoke_again_goes_back_to_its_call(writers, shape):
    write = writers[shape]
    messages = [*write.user(), *write.calls("a"), *write.says(), *write.results("a"), *write.user()]
    id = "" if shape == "gemini" else "a"
    assert found(messages, shape) == [("missing_result", 1, id), ("orphan_result", 3, id)]
    repaired, repairs = mended(messages, shape)
    assert repairs == ["move_result"]
    assert repaired == [messages[0], messages[1], *write.results("a"), messages[2], messages[4]]


def test_items_of_one_response_stand_together(writers):
    write = writers["openai_responses"]
    messages = [*write.user(), *write.calls("a"), *write.says(), *write.results("a"), *write.user()]
    assert found(messages, write.shape) == []


@pytest.mark.parametrize("shape", ["openai_chat", "anthropic", "gemini"])
def test_a_set_of_ids_would_miss_calls_whose_results_stand_in_the_next_turn(writers, shape):
    write = writers[shape]
    messages = [*write.user(), *write.calls("a"), *write.calls("b"), *write.results("a", "b")]
    assert found(messages, shape)[0][:2] == ("missing_result", 1)
    repaired, repairs = mended(messages, shape)
    assert "move_result" in repairs
    order = [*write.calls("a"), *write.results("a"), *write.calls("b"), *write.results("b")]
    assert repaired == [*write.user(), *order]


def test_a_result_without_a_call_goes_and_is_handed_over(written):
    messages = [*written.user(), *written.results("z"), *written.says(), *written.user()]
    assert found(messages, written.shape) == [("orphan_result", 1, "" if written.shape == "gemini" else "z")]
    repaired = repair_history(messages, shape=written.shape)
    assert list(repaired.messages) == [messages[0], messages[2], messages[3]]
    (repair,) = repaired.repairs
    assert (repair.code, repair.index, repair.before) == ("drop_orphan_result", 1, written.result("z"))


def test_a_steering_message_moves_behind_the_results(written):
    messages = [*written.calls("a", "b"), *written.user("only tmp!"), *written.results("a", "b")]
    at = len(written.calls("a", "b"))
    assert found(messages, written.shape) == [("interposed_message", at, "" if written.shape == "gemini" else "a")]
    repaired, repairs = mended(messages, written.shape)
    assert repairs == ["reorder"]
    assert repaired == [*written.calls("a", "b"), *written.results("a", "b"), *written.user("only tmp!")]


def test_a_message_between_two_results_is_interposed_before_the_second(writers):
    write = writers["openai_chat"]
    messages = [*write.calls("a", "b"), *write.results("a"), *write.user(), *write.results("b"), *write.user()]
    assert found(messages) == [("interposed_message", 2, "b")]


@pytest.mark.parametrize("shape", ["openai_chat", "anthropic", "openai_responses"])
def test_the_first_of_two_results_stays(writers, shape):
    write = writers[shape]
    messages = [*write.calls("a"), *write.results("a", text="1"), *write.results("a", text="2"), *write.user()]
    assert found(messages, shape) == [("duplicate_result", 2, "a")]
    repaired, repairs = mended(messages, shape)
    assert "drop_duplicate_result" in repairs
    assert repaired == [*write.calls("a"), *write.results("a", text="1"), *write.user()]


@pytest.mark.parametrize("shape", ["openai_chat", "anthropic", "openai_responses"])
def test_of_two_calls_with_one_id_the_second_is_renamed_with_its_result(writers, shape):
    write = writers[shape]
    messages = [*write.calls("a", "a"), *write.results("a", "a")]
    index = 1 if shape == "openai_responses" else 0
    assert found(messages, shape) == [("duplicate_call_id", index, "a")]
    repaired, repairs = mended(messages, shape)
    assert repairs == ["rename_call_id"]
    assert repaired == [*write.calls("a", "call00001"), *write.results("a", "call00001")]
    single = [*write.calls("a", "a"), *write.results("a")]
    assert found(single, shape) == [("duplicate_call_id", index, "a")]
    assert mended(single, shape)[1] == ["rename_call_id", "insert_result"]


@pytest.mark.parametrize("shape", ["openai_chat", "anthropic", "openai_responses"])
def test_calls_without_ids_get_some_and_so_do_their_results(writers, shape):
    write = writers[shape]
    messages = [*write.calls("", ""), *write.results("", "")]
    assert {code for code, _, _ in found(messages, shape)} == {"empty_call_id"}
    repaired, repairs = mended(messages, shape)
    assert repairs == ["rename_call_id", "rename_call_id"]
    assert repaired == [*write.calls("call00001", "call00002"), *write.results("call00001", "call00002")]


@pytest.mark.parametrize("shape", ["openai_chat", "anthropic", "openai_responses"])
def test_a_result_without_an_id_takes_that_of_the_open_call(writers, shape):
    write = writers[shape]
    messages = [*write.calls("a", "b"), *write.results("b", "")]
    ((code, _, id),) = found(messages, shape)
    assert (code, id) == ("empty_call_id", "")
    repaired, repairs = mended(messages, shape)
    assert repairs == ["fill_result"]
    assert repaired == [*write.calls("a", "b"), *write.results("b", "a")]


def test_ids_that_must_be_unique_in_the_whole_history(written):
    turn = [*written.calls("a"), *written.results("a")]
    if written.shape != "gemini":
        assert found(turn * 2, written.shape, {"unique_ids": "history"}) == [("duplicate_call_id", 2, "a")]
        repaired, _ = mended(turn * 2, written.shape, {"unique_ids": "history"})
        assert repaired == [*turn, *written.calls("call00001"), *written.results("call00001")]
    assert found(turn * 2, written.shape) == []


def test_ids_that_the_provider_refuses_are_replaced():
    messages = [chat(("ls:0", "ls", "{}")), answer("ls:0")]
    assert found(messages) == []
    strict = HistoryProfile(id_pattern="[a-zA-Z0-9]{9}")
    assert found(messages, profile=strict) == [("bad_call_id", 0, "ls:0")]
    repaired, _ = mended(messages, profile=strict)
    assert repaired[1]["tool_call_id"] == repaired[0]["tool_calls"][0]["id"] == "call00001"


def test_an_id_that_nothing_of_ours_matches_stays_a_problem():
    messages = [chat(("a", "ls", "{}")), answer("a")]
    repaired = repair_history(messages, profile={"id_pattern": "toolu_.*"})
    assert [problem.code for problem in repaired.remaining] == ["bad_call_id"]
    assert list(repaired.messages) == messages


# ---- names and arguments


@pytest.mark.parametrize("shape", ["openai_chat", "anthropic", "openai_responses", "gemini"])
@pytest.mark.parametrize(("bad", "good"), [("read file", "read_file"), ("", "unusable_call"), ("x" * 200, "x" * 64)])
def test_a_name_that_is_none_becomes_legal(writers, shape, bad, good):
    write = writers[shape]
    result = {"functionResponse": {"name": bad, "response": {}}} if shape == "gemini" else write.result("a")
    tail = [{"role": "user", "parts": [result]}] if shape == "gemini" else write.results("a")
    messages = [*write.calls("a", name=bad), *tail]
    assert found(messages, shape) == [("bad_tool_name", 0, "" if shape == "gemini" else "a")]
    repaired, repairs = mended(messages, shape)
    assert repairs == ["rename_tool"]
    assert repaired[:1] == write.calls("a", name=good)


def test_the_length_of_a_name_is_the_providers():
    for length, profile in ((64, {}), (65, {"name_pattern": "[a-z]{1,128}"})):
        assert found([chat(("a", "x" * length, "{}")), answer("a")], profile=profile) == []
    assert found([chat(("a", "x" * 65, "{}")), answer("a")]) == [("bad_tool_name", 0, "a")]


def test_gemini_names_may_hold_dots_but_not_begin_with_a_digit():
    legal = {"role": "model", "parts": [fc("fs.read:x-y")]}
    assert found([legal, {"role": "user", "parts": [fr("fs.read:x-y")]}], "gemini") == []
    messages = [{"role": "model", "parts": [fc("9ls")]}, {"role": "user", "parts": [fr("9ls")]}]
    assert found(messages, "gemini") == [("bad_tool_name", 0, "")]
    repaired, _ = mended(messages, "gemini")
    assert repaired[1]["parts"][0]["functionResponse"]["name"] == "unusable_call"


ARGUMENTS = [
    ("", "arguments_not_json", {}),
    (None, "arguments_not_json", {}),
    ('{"format": "%H:%M"', "arguments_not_json", {"format": "%H:%M"}),
    ("{'a': 1}", "arguments_not_json", {"a": 1}),
    ('{"a": "cut o', "arguments_not_json", {"unreadable_arguments": '{"a": "cut o'}),
    ("two words", "arguments_not_json", {"unreadable_arguments": "two words"}),
    ('{"a": NaN}', "arguments_not_json", {"unreadable_arguments": '{"a": NaN}'}),
    ({"a": 1}, "arguments_not_json", {"a": 1}),
    ("[1]", "input_not_object", {"unreadable_arguments": "[1]"}),
    ("null", "input_not_object", {"unreadable_arguments": "null"}),
    ('"{\\"a\\": 1}"', "input_not_object", {"a": 1}),
]


@pytest.mark.parametrize(("arguments", "code", "args"), ARGUMENTS)
@pytest.mark.parametrize("shape", ["openai_chat", "openai_responses"])
def test_arguments_that_have_to_be_text_become_an_object_as_json(shape, arguments, code, args):
    if shape == "openai_chat":
        messages = [chat(("a", "ls", arguments)), answer("a")]
    else:
        call = {"type": "function_call", "call_id": "a", "name": "ls", "arguments": arguments}
        messages = [call, {"type": "function_call_output", "call_id": "a", "output": "x"}]
    assert found(messages, shape) == [(code, 0, "a")]
    repaired = repair_history(messages, shape=shape)
    call = repaired.messages[0]
    text = call["arguments"] if shape == "openai_responses" else call["tool_calls"][0]["function"]["arguments"]
    assert json.loads(text) == args
    assert [(repair.code, repair.before) for repair in repaired.repairs] == [("rewrite_arguments", arguments)]
    assert repaired.messages[1] is messages[1]


def test_duplicate_keys_are_json_to_whoever_reads_a_history():
    assert found([chat(("a", "ls", '{"a": 1, "a": 2}')), answer("a")]) == []


@pytest.mark.parametrize(
    ("input", "args"),
    [
        ("", {}),
        (None, {}),
        ('{"q": 1}', {"q": 1}),
        ("x", {"unreadable_arguments": "x"}),
        ([1], {"unreadable_arguments": [1]}),
    ],
)
def test_arguments_that_have_to_be_an_object_become_one(input, args):
    call = {"type": "tool_use", "id": "a", "name": "ls", "input": input}
    messages = [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
    ]
    assert found(messages, "anthropic") == [("input_not_object", 0, "a")]
    repaired, _ = mended(messages, "anthropic")
    assert repaired[0]["content"] == [{**call, "input": args}]
    if input is not None:
        parts = [{"functionCall": {"name": "ls", "args": input}}]
        messages = [{"role": "model", "parts": parts}, {"role": "user", "parts": [fr()]}]
        assert found(messages, "gemini") == [("input_not_object", 0, "")]
        assert mended(messages, "gemini")[0][0]["parts"][0]["functionCall"]["args"] == args


def test_a_call_without_arguments_is_one_of_gemini():
    assert (
        found(
            [{"role": "model", "parts": [{"functionCall": {"name": "ls"}}]}, {"role": "user", "parts": [fr()]}],
            "gemini",
        )
        == []
    )


def test_a_result_that_names_another_tool_takes_the_name_of_its_call():
    messages = [{"role": "model", "parts": [fc("ls"), fc("cat")]}, {"role": "user", "parts": [fr("ls"), fr("call_1")]}]
    assert found(messages, "gemini") == [("name_mismatch", 1, "")]
    repaired, repairs = mended(messages, "gemini")
    assert repairs == ["fill_result"]
    assert repaired[1]["parts"] == [fr("ls"), fr("cat")]
    messages = [chat(("a", "ls", "{}")), answer("a", name="cat")]
    assert found(messages) == [("name_mismatch", 1, "a")]
    assert mended(messages)[0][1]["name"] == "ls"
    assert found([chat(("a", "ls", "{}")), answer("a", name="ls")]) == []


# ---- what one form has


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def said(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def done(id, content="x"):
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def test_anthropic_results_stand_first_in_their_message():
    messages = [said(use("a"), use("b")), user(block("look"), done("a"), done("b"))]
    assert found(messages, "anthropic") == [("text_before_result", 1, "a")]
    repaired, repairs = mended(messages, "anthropic")
    assert repaired == [messages[0], user(done("a"), done("b"), block("look"))]
    assert repairs == ["reorder"]
    assert found([said(use("a")), user(done("a"), block("and now"))], "anthropic") == []


def test_anthropic_results_over_two_messages_are_a_matter_of_how_strict_the_provider_is():
    messages = [said(use("a"), use("b")), user(done("a")), user(done("b"))]
    assert found(messages, "anthropic") == []
    strict = {"strict_adjacency": True}
    assert found(messages, "anthropic", strict) == [("split_results", 2, "b")]
    assert mended(messages, "anthropic", strict)[0] == [messages[0], user(done("a"), done("b"))]


def test_text_between_two_messages_of_results_is_split_for_everybody():
    messages = [said(use("a"), use("b")), user(done("a"), block("first")), user(done("b"))]
    assert found(messages, "anthropic") == [("split_results", 2, "b")]
    assert mended(messages, "anthropic")[0] == [messages[0], user(done("a"), done("b"), block("first"))]


def test_a_missing_anthropic_result_goes_in_front_of_what_the_user_says_next():
    messages = [said(block("Searching."), use("a")), {"role": "user", "content": "other topic", "x": 1}]
    repaired, _ = mended(messages, "anthropic")
    result, text = repaired[1]["content"]
    assert (result["tool_use_id"], result["is_error"], text, repaired[1]["x"]) == ("a", True, block("other topic"), 1)


@pytest.mark.parametrize("content", ["", None, [], [block("")], "missing"])
def test_an_anthropic_error_result_has_to_say_something(content):
    mute = {**done("a", content), "is_error": True}
    if content == "missing":
        del mute["content"]
    messages = [said(use("a"), use("b")), user(mute, done("b", "")), said(block("so"))]
    assert ("empty_error_result", 1, "a") in found(messages, "anthropic")
    repaired = repair_history(messages, shape="anthropic")
    assert repaired.messages[1]["content"] == [{**mute, "content": SILENT}, done("b", "")]
    assert [(repair.code, repair.index, repair.before) for repair in repaired.repairs] == [("word_error", 1, mute)]
    assert repaired.messages[0] is messages[0]
    assert repaired.remaining == ()
    assert found(messages, "anthropic", {"empty_text": "allowed"}) == []


def test_only_an_error_without_any_content_is_mute():
    image = {"type": "image", "source": {}}
    for result in (done("a", ""), {**done("a", ""), "is_error": False}, {**done("a", [image]), "is_error": True}):
        assert found([said(use("a")), user(result)], "anthropic") == []


def test_a_mute_error_result_gets_its_text_wherever_it_goes():
    mute = {**done("a", ""), "is_error": True}
    worded = {**mute, "content": SILENT}
    late = [said(use("a")), said(use("b")), user(mute, done("b"))]
    repaired, repairs = mended(late, "anthropic")
    assert repaired == [late[0], user(worded), late[1], user(done("b"))]
    assert repairs.count("word_error") == 1
    shared = [said(use("a"), use("a")), user(mute, done("a"))]
    repaired, repairs = mended(shared, "anthropic")
    assert repaired[1]["content"] == [worded, done("call00001")]
    assert repairs == ["word_error", "rename_call_id"]


def test_tools_that_the_provider_runs_are_no_business_of_ours():
    server = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    outcome = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    assert found([user(block("hi")), said(server, outcome, block("so"))], "anthropic") == []
    items = [{"type": "web_search_call", "id": "w"}, {"type": "computer_call", "call_id": "c"}]
    assert found([*items, {"type": "computer_call_output", "call_id": "c", "output": {}}], "openai_responses") == []


def test_what_a_reference_stands_for_may_be_a_call():
    items = [{"type": "item_reference", "id": "fc_1"}, {"type": "function_call_output", "call_id": "a", "output": ""}]
    assert found(items, "openai_responses") == []


def test_a_custom_call_has_free_text():
    call = {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "*** Begin"}
    assert found([call, {"type": "custom_tool_call_output", "call_id": "a", "output": ""}], "openai_responses") == []
    assert mended([call], "openai_responses")[0][1]["type"] == "custom_tool_call_output"
    custom = {"id": "a", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    assert found([{"role": "assistant", "content": None, "tool_calls": [custom]}, answer("a")]) == []


@pytest.mark.parametrize(
    "tail",
    [
        [[fr("ls")], [fr("cat")]],
        [[fr("ls")]],
        [[fr("ls"), fr("cat"), fr("cat")]],
    ],
)
def test_gemini_counts_the_responses_of_a_turn(tail):
    call = {"role": "model", "parts": [fc("ls"), fc("cat")]}
    messages = [call, *({"role": "user", "parts": parts} for parts in tail)]
    assert found(messages, "gemini") == [("result_count_mismatch", 1, "")]
    repaired, _ = mended(messages, "gemini")
    assert [part["functionResponse"]["name"] for part in repaired[1]["parts"]] == ["ls", "cat"]
    assert len(repaired) == 2


def test_gemini_ids_decide_where_there_are_some():
    calls = [{"functionCall": {"id": id, "name": "ls", "args": {}}} for id in "ab"]
    results = [{"functionResponse": {"id": id, "name": "ls", "response": {}}} for id in "ba"]
    head = {"role": "model", "parts": calls}
    assert found([head, {"role": "user", "parts": results}], "gemini") == []
    results[0]["functionResponse"]["id"] = "z"
    assert found([head, {"role": "function", "parts": results}], "gemini") == [
        ("missing_result", 0, "b"),
        ("orphan_result", 1, "z"),
    ]


def test_both_spellings_of_gemini_are_known():
    messages = [{"role": "model", "parts": [{"function_call": {"name": "ls", "args": {}}}]}]
    assert "function_response" in mended(messages, "gemini")[0][1]["parts"][0]


# ---- empty texts


def test_empty_texts_go_and_leave_the_calls():
    messages = [said(block(""), use("a")), user(done("a", ""), block(""))]
    assert found(messages, "anthropic") == [("empty_text_block", 0, ""), ("empty_text_block", 1, "")]
    assert mended(messages, "anthropic") == ([said(use("a")), user(done("a", ""))], ["drop_empty_text"] * 2)
    messages = [chat(("a", "ls", "{}"), content=""), answer("a", "")]
    assert found(messages) == [("empty_text_block", 0, "")]
    assert mended(messages)[0] == [chat(("a", "ls", "{}")), answer("a", "")]
    messages = [{"role": "model", "parts": [{"text": ""}, fc()]}, {"role": "user", "parts": [fr()]}]
    assert found(messages, "gemini") == [("empty_text_block", 0, "")]
    assert mended(messages, "gemini")[0][0] == {"role": "model", "parts": [fc()]}


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("openai_chat", {"role": "assistant", "content": ""}),
        ("openai_chat", {"role": "assistant", "content": None}),
        ("openai_chat", {"role": "user", "content": [{"type": "text", "text": ""}]}),
        ("anthropic", {"role": "assistant", "content": []}),
        ("anthropic", {"role": "user", "content": " \n"}),
        ("anthropic", {"role": "user", "content": [{"type": "text", "text": "\n"}]}),
        ("gemini", {"role": "model", "parts": []}),
        ("gemini", {"role": "user", "parts": [{"text": ""}]}),
    ],
)
def test_messages_of_nothing_go(writers, shape, message):
    messages = [*writers[shape].user(), message, *writers[shape].user()]
    assert found(messages, shape) == [("empty_text_block", 1, "")]
    assert mended(messages, shape)[0] == [messages[0], messages[2]]
    assert found(messages, shape, {"empty_text": "allowed"}) == []


@pytest.mark.parametrize(
    ("shape", "messages"),
    [
        ("anthropic", [said(block("\n"), use("a")), user(done("a"), block("\n\n"))]),
        ("anthropic", [said(use("a")), user({"type": "tool_result", "tool_use_id": "a"})]),
        ("gemini", [{"role": "model", "parts": [{"text": "", "thoughtSignature": "s"}]}]),
        ("openai_chat", [{"role": "user", "content": ""}, {"role": "assistant", "content": None, "refusal": "no"}]),
        ("openai_chat", [{"role": "assistant", "content": None, "audio": {"id": "x"}}]),
        ("openai_chat", [{"role": "assistant", "content": [{"type": "text", "content": "of another kind"}]}]),
    ],
)
def test_what_looks_empty_and_is_not(shape, messages):
    assert found(messages, shape) == []


# ---- reasoning


def test_reasoning_that_calls_need_is_missed_and_never_written():
    messages = [chat(("a", "ls", "{}")), answer("a"), {"role": "assistant", "content": "so"}]
    on_calls, always = {"reasoning_content": "required_on_tool_calls"}, {"reasoning_content": "required"}
    assert found(messages, profile=on_calls) == [("missing_reasoning", 0, "a")]
    assert found(messages, profile=always) == [("missing_reasoning", 0, "a"), ("missing_reasoning", 2, "")]
    repaired = repair_history(messages, profile=on_calls)
    assert repaired.messages == tuple(messages)
    assert (repaired.repairs, repaired.disable_thinking) == ((), True)
    assert [problem.code for problem in repaired.remaining] == ["missing_reasoning"]
    for kept in ("why", ""):
        assert found([chat(("a", "ls", "{}"), reasoning_content=kept), answer("a")], profile=on_calls) == []


def test_reasoning_that_must_not_come_back_goes():
    forbidden = {"reasoning_content": "forbidden"}
    messages = [chat(("a", "ls", "{}"), reasoning_content="why", x=1), answer("a")]
    assert found(messages, profile=forbidden) == [("forbidden_reasoning", 0, "")]
    assert mended(messages, profile=forbidden) == ([chat(("a", "ls", "{}"), x=1), answer("a")], ["drop_reasoning"])
    assert found([chat(("a", "ls", "{}"), reasoning_content=None), answer("a")], profile=forbidden) == []
    items = [{"type": "reasoning", "id": "r"}, {"type": "message", "role": "assistant", "content": "x"}]
    assert found(items, "openai_responses", forbidden) == [("forbidden_reasoning", 0, "")]
    assert mended(items, "openai_responses", forbidden)[0] == items[1:]
    blocks = [said({"type": "thinking", "thinking": "t", "signature": "s"}, block("x"))]
    for profile in (forbidden, {"thinking": "forbidden"}, {"thinking": "disabled"}):
        assert found(blocks, "anthropic", profile) == [("forbidden_reasoning", 0, "")]
        assert mended(blocks, "anthropic", profile)[0] == [said(block("x"))]
    assert found([*blocks, user(block("y"))], "anthropic", {"thinking": "disabled"}) == []


def test_one_reasoning_item_serves_all_calls_of_a_response(writers):
    write, rule = writers["openai_responses"], {"reasoning_content": "required_on_tool_calls"}
    steps = [*write.calls("a"), *write.results("a"), *write.calls("b"), *write.results("b")]
    assert found([*write.user(), {"type": "reasoning"}, *steps], write.shape, rule) == []
    assert found([*write.user(), *steps], write.shape, rule) == [
        ("missing_reasoning", 1, "a"),
        ("missing_reasoning", 3, "b"),
    ]


THOUGHT = {"type": "thinking", "thinking": "t", "signature": "s"}
HIDDEN = {"type": "redacted_thinking", "data": "d"}
BARE = {"type": "thinking", "thinking": "t"}
ENABLED = {"thinking": "enabled"}


@pytest.mark.parametrize("thought", [THOUGHT, HIDDEN])
def test_the_turn_in_progress_begins_with_thinking(thought):
    step = [said(use("b")), user(done("b"))]
    good = [user(block("hi")), said(thought, use("a")), user(done("a")), *step]
    assert found(good, "anthropic", ENABLED) == []
    bad = [user(block("hi")), said(block("well"), thought, use("a")), user(done("a"))]
    assert found(bad, "anthropic", ENABLED) == [("missing_thinking", 1, "a")]
    repaired = repair_history(bad, shape="anthropic", profile=ENABLED)
    assert repaired.messages == tuple(bad)
    assert repaired.disable_thinking
    assert found([*bad, user(block("next"))], "anthropic", ENABLED) == []
    assert found([user(block("hi")), said(block("no calls"))], "anthropic", ENABLED) == []


def test_thinking_without_a_signature_goes_and_thinking_has_to_be_disabled():
    messages = [user(block("hi")), said(BARE, use("a")), user(done("a"))]
    assert found(messages, "anthropic", ENABLED) == [("unsigned_thinking", 1, "")]
    assert found(messages, "anthropic") == []
    repaired = repair_history(messages, shape="anthropic", profile=ENABLED)
    assert repaired.messages == (messages[0], said(use("a")), messages[2])
    assert [problem.code for problem in repaired.remaining] == ["missing_thinking"]
    assert repaired.disable_thinking
    assert found(repaired.messages, "anthropic", {"thinking": "disabled"}) == []


def test_an_old_thought_without_a_signature_costs_no_thinking():
    messages = [user(block("hi")), said(BARE, block("x")), user(block("next"))]
    assert mended(messages, "anthropic", ENABLED)[1] == ["drop_unsigned_thinking"]


def test_thinking_that_calls_need_in_anthropics_form():
    rule = {"reasoning_content": "required_on_tool_calls"}
    assert found([said(use("a")), user(done("a"))], "anthropic", rule) == [("missing_thinking", 0, "a")]
    assert found([said(BARE, use("a")), user(done("a"))], "anthropic", rule) == []


SIGNED = {"thought_signature": "required"}


def test_the_first_call_of_each_step_is_signed():
    hi = {"role": "user", "parts": [{"text": "hi"}]}
    answered = {"role": "user", "parts": [fr(), fr()]}
    good = {"role": "model", "parts": [fc(thoughtSignature="s"), fc()]}
    snake = {"role": "model", "parts": [fc(thought_signature="s"), fc()]}
    bad = {"role": "model", "parts": [fc(), fc(thoughtSignature="s")]}
    assert found([hi, good, answered, snake, answered], "gemini", SIGNED) == []
    assert found([hi, good, answered, bad, answered], "gemini", SIGNED) == [("missing_thought_signature", 3, "")]
    assert found([hi, bad, answered, hi], "gemini", SIGNED) == []  # providers look at the turn in progress only
    repaired = repair_history([hi, bad, answered], shape="gemini", profile=SIGNED)
    assert repaired.messages == (hi, bad, answered)
    assert [problem.code for problem in repaired.remaining] == ["missing_thought_signature"]
    assert not repaired.disable_thinking


def test_a_signature_may_travel_in_a_chat_message():
    call = chat(("a", "ls", "{}"))
    assert found([call, answer("a")], profile=SIGNED) == [("missing_thought_signature", 0, "a")]
    call["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "s"}}
    assert found([call, answer("a")], profile=SIGNED) == []


# ---- our own messages, and what is given wrongly


def test_our_own_messages_are_checked_and_come_back_as_such():
    history = (
        Message("user", "hi", origin="rule:x"),
        Message("assistant", "", (ToolCall("a", "ls", "{}", {}), ToolCall("b", "ls", '{"p": 1', None))),
        Message("tool", "done", tool_call_id="a", name="ls"),
        Message("user", "go on"),
    )
    assert found(history) == [("arguments_not_json", 1, "b"), ("missing_result", 1, "b")]
    repaired, _ = mended(history)
    assert (repaired[0], repaired[2], repaired[4]) == (history[0], history[2], history[3])
    assert repaired[1].tool_calls[1] == ToolCall("b", "ls", '{"p": 1}', {"p": 1})
    assert repaired[3] == Message("tool", INTERRUPTED, tool_call_id="b", origin="loop")


def test_the_providers_own_mapping_is_what_is_checked_and_kept():
    raw = chat(("a", "ls", "{}"), content="", x_kept=1)
    history = [
        Message("assistant", "", (ToolCall("a", "ls", "{}", {}),), raw=raw),
        Message("tool", "x", tool_call_id="a"),
    ]
    assert found(history) == [("empty_text_block", 0, "")]
    repaired, _ = mended(history)
    assert repaired[0].raw == {**raw, "content": None}
    assert history[0].raw["content"] == ""
    whole = Message("assistant", "", history[0].tool_calls, raw={"choices": [], "usage": {}})
    assert found([whole, history[1]]) == []


def test_our_messages_in_another_form_need_that_form():
    raw = said(use("a"))
    assert found([Message("assistant", raw=raw)], "anthropic") == [("missing_result", 0, "a")]
    repaired, _ = mended([Message("assistant", raw=raw)], "anthropic")
    assert repaired[1].raw["content"][0]["tool_use_id"] == "a"
    with pytest.raises(UsageError, match="no raw mapping"):
        check_history([Message("user", "x")], shape="gemini")


def test_frozen_histories_are_read_too():
    from policyengine.messages import freeze

    messages = freeze([chat(("a", "ls", {"p": [1, {"q": None}]})), answer("a")])
    assert found(messages) == [("arguments_not_json", 0, "a")]
    assert json.loads(mended(messages)[0][0]["tool_calls"][0]["function"]["arguments"]) == {"p": [1, {"q": None}]}


@pytest.mark.parametrize(
    ("messages", "options", "words"),
    [
        ([], {"shape": "cohere"}, "known: openai_chat, anthropic, gemini, openai_responses"),
        (["hello"], {}, "message 0 is a str"),
        ([], {"profile": {"thinkin": "enabled"}}, "thinkin"),
        ([], {"profile": {"thinking": "perhaps"}}, "perhaps"),
        ([], {"profile": {"id_pattern": "("}}, "history profile"),
    ],
)
def test_what_is_given_wrongly_is_said(messages, options, words):
    for function in (check_history, repair_history):
        with pytest.raises(UsageError, match=words):
            function(messages, **options)


@pytest.mark.parametrize(
    "message", [{}, {"role": "assistant", "tool_calls": [None, 5]}, {"role": "tool"}, {"content": 5}]
)
def test_a_message_of_no_known_kind_breaks_nothing(message):
    shapes = ("openai_chat",) if "tool" in str(message) else ("openai_chat", "anthropic", "gemini", "openai_responses")
    for shape in shapes:
        repaired = repair_history([message, message], shape=shape)
        assert repaired.remaining == ()


def test_a_problem_reads_as_a_sentence():
    (problem,) = check_history([answer("z")])
    assert str(problem) == f"messages[0]: orphan_result (z): {PROBLEMS['orphan_result']}"


def test_unknown_fields_stay():
    call = chat(("a", "bad name", "{"), x_message=1)
    call["tool_calls"][0]["x_call"] = 2
    call["tool_calls"][0]["function"]["x_function"] = 3
    result = answer("a", name="bad name", x_result=4)
    (asked, answered), repairs = mended([call, result])
    assert set(repairs) == {"rename_tool", "rewrite_arguments"}
    (made,) = asked["tool_calls"]
    assert (asked["x_message"], made["x_call"], made["function"]["x_function"], answered["x_result"]) == (1, 2, 3, 4)
    assert answered["name"] == "bad_name"


def test_every_repair_is_documented_and_every_code_tested():
    source = Path(__file__).read_text(encoding="utf-8")
    assert [code for code in PROBLEMS if f'"{code}"' not in source] == []
    assert [code for code in REPAIRS if f'"{code}"' not in source] == []


@pytest.mark.parametrize(
    ("message", "shape", "looks"),
    [
        ({"role": "assistant", "tool_calls": []}, "anthropic", "openai_chat"),
        ({"role": "tool", "tool_call_id": "a", "content": "x"}, "gemini", "openai_chat"),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}, "openai_chat", "anthropic"),
        ({"role": "model", "parts": [{"text": "x"}]}, "openai_chat", "gemini"),
        ({"type": "function_call", "call_id": "a", "name": "n", "arguments": "{}"}, "openai_chat", "openai_responses"),
    ],
)
def test_a_history_in_another_shape_is_a_mistake_of_the_caller_and_loses_nothing(message, shape, looks):
    for work in (check_history, repair_history):
        with pytest.raises(UsageError, match=looks):
            work([message], shape=shape)


@pytest.mark.parametrize("messages", [{"role": "user"}, "text"])
def test_a_history_is_a_list(messages):
    with pytest.raises(UsageError, match="list of messages"):
        check_history(messages)
