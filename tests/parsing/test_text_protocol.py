"""The one-object protocol in every mode: what is accepted, mended, asked again."""

import json

import pytest

from policyengine.parsing import parse_chunks

GOOD = '{"tool_name": "search", "tool_args": {"q": "tide"}}'
OTHER = '{"tool_name": "search", "tool_args": {"q": "ebb"}}'
FENCED = f"```json\n{GOOD}\n```"
CALL = [("search", {"q": "tide"})]
MODES = ("strict", "fenced", "lenient", "repair")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", [GOOD, f"  \n{GOOD}\n ", f"\ufeff{GOOD}", f"\u200b{GOOD}\u200d\u2060"])
def test_t10_spaces_and_invisible_characters_around_a_request_do_not_matter(parse, calls_of, text, mode):
    assert calls_of(parse.text(text, mode)) == CALL


def test_t10_removed_invisible_characters_are_reported(parse):
    assert parse.text("\ufeff" + GOOD, "strict").repairs == ("strip_invisible",)


@pytest.mark.parametrize("mode", ["strict", "fenced"])
@pytest.mark.parametrize("text", [f"Next step.\n{GOOD}", f"{GOOD}\nThat is all.", f"Sure: {GOOD}"])
def test_t11_prose_around_a_request_is_prose_where_nothing_is_recovered(parse, text, mode):
    assert parse.text(text, mode).kind == "prose"


@pytest.mark.parametrize("mode", ["lenient", "repair"])
@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        (f"Next step.\n{GOOD}", ("leading_prose",)),
        (f"{GOOD}\nThat is all.", ("trailing_prose",)),
        (f"Sure: {GOOD}", ("leading_prose",)),
        (f"Next step.\n{GOOD}\n{GOOD}\nThat is all.", ("dedupe_concatenated", "leading_prose", "trailing_prose")),
    ],
)
def test_t11_one_distinct_request_amid_prose_is_recovered_and_named_a_guess(parse, calls_of, text, repairs, mode):
    verdict = parse.text(text, mode)
    assert (calls_of(verdict), verdict.repairs, verdict.guess) == (CALL, repairs, True)


@pytest.mark.parametrize("text", [FENCED, f"~~~\n{GOOD}\n~~~", f"```\n{GOOD}\n```\n", f"````json\n{GOOD}\n````"])
def test_t12_a_fence_around_everything_is_fenced_strictly_and_no_guess_otherwise(parse, calls_of, text):
    assert parse.text(text, "strict").kind == "fenced"
    for mode in MODES[1:]:
        verdict = parse.text(text, mode)
        assert (calls_of(verdict), verdict.repairs, verdict.guess) == (CALL, ("strip_fence",), False)


@pytest.mark.parametrize("mode", ["strict", "fenced"])
@pytest.mark.parametrize("text", [f"{FENCED}\n{FENCED}", f"Here:\n{FENCED}", f"{FENCED}\nDone.", f"```json\n{GOOD}"])
def test_t12_two_fences_or_a_fence_and_prose_are_unusable_where_nothing_is_recovered(parse, text, mode):
    verdict = parse.text(text, mode)
    assert (verdict.kind, verdict.calls) == ("fenced", ())


@pytest.mark.parametrize("mode", ["lenient", "repair"])
def test_a_fence_after_prose_is_recovered_as_a_guess(parse, calls_of, mode):
    verdict = parse.text(f"Here it comes.\n{FENCED}", mode)
    assert (calls_of(verdict), verdict.guess) == (CALL, True)
    assert verdict.repairs == ("strip_fence", "leading_prose")
    assert verdict.text == "Here it comes."


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", [GOOD + OTHER, f"{GOOD}\n\n{OTHER}", f"{GOOD} {OTHER}"])
def test_t13_two_different_requests_are_multiple_for_every_chunking(parse, text, mode):
    verdict = parse.text(text, mode, finish_reason="")
    assert (verdict.kind, verdict.calls) == ("multiple", ())
    brace = text.index("}}") + 2
    for pieces in (list(text), [text[:brace], text[brace:]], [text]):
        assert parse_chunks(pieces, tools=parse.tools, mode=mode) == verdict


@pytest.mark.parametrize("mode", ["strict", "fenced"])
def test_t13_the_same_request_twice_is_multiple_where_nothing_is_recovered(parse, mode):
    assert parse.text(GOOD + GOOD, mode).kind == "multiple"


@pytest.mark.parametrize("mode", MODES)
def test_t15_what_was_cut_off_is_truncated_and_nothing_else(parse, mode):
    for text in (GOOD[:30], GOOD[:-3], GOOD[:-8], '{"tool_name": "search", "tool_args": {"q": "tide",'):
        assert parse.text(text, mode, finish_reason="").kind == "truncated"
    assert parse.text(GOOD, mode, finish_reason="length").kind == "truncated"
    assert parse.text(f"Now:\n{GOOD}", mode, finish_reason="max_tokens").kind == "truncated"


def test_t15_an_open_string_is_truncated_whatever_the_finish_reason_says(parse):
    for reason in ("", "stop", "tool_calls"):
        assert (
            parse.text('{"tool_name": "write", "tool_args": {"content": "half', finish_reason=reason).kind
            == "truncated"
        )


def test_t15_missing_brackets_alone_are_added_where_the_model_ended_its_message_itself(parse, calls_of):
    verdict = parse.text(GOOD[:-1])
    assert (calls_of(verdict), verdict.repairs) == (CALL, ("close_containers",))
    assert parse.text(GOOD[:-1], finish_reason="").kind == "truncated"


def test_t15_an_extra_bracket_is_a_wrong_shape_unless_repairs_are_allowed(parse):
    for mode in MODES[:3]:
        assert parse.text(GOOD + "}", mode).kind == "wrong_shape"
    assert parse.text(GOOD + "}").repairs == ("extra_closer",)


@pytest.mark.parametrize("mode", MODES)
def test_t15_duplicate_keys_are_a_wrong_shape_in_every_mode(parse, mode):
    for text in ('{"tool_name": "search", "tool_args": {"q": 1, "q": 2}}', GOOD[:-1] + ', "tool_name": "write"}'):
        verdict = parse.text(text, mode)
        assert (verdict.kind, verdict.reason) == ("wrong_shape", "duplicate_key")


@pytest.mark.parametrize("mode", MODES)
def test_t16_a_surrogate_pair_becomes_one_character(parse, mode):
    (call,) = parse.text('{"tool_name": "search", "tool_args": {"q": "\\ud83d\\ude00"}}', mode).calls
    assert call.args == {"q": "\U0001f600"}
    call.args["q"].encode()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "text",
    [
        '{"tool_name": "search", "tool_args": {"q": ' + "[" * 3000 + "]" * 3000 + "}}",
        '{"tool_name": "search", "tool_args": {"q": "' + "x" * 5_000_000,
        "{'tool_name': 'search', 'tool_args': {'q': " + "[" * 3000 + "]" * 3000 + "}}",
        '{"tool_name": "search", "tool_args": {"q": ' + "9" * 6000 + "}}",
        "{" * 300_000,
        '{"tool_name":' * 20_000,
    ],
    ids=["deep", "5 MB", "deep and damaged", "long number", "braces", "nested"],
)
def test_t16_monstrous_texts_get_a_verdict(parse, text, mode):
    assert not parse.text(text, mode).usable


@pytest.mark.parametrize("mode", ["lenient", "repair"])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"<think>first {OTHER}</think>\n{GOOD}", "ok"),
        (f"first {OTHER} maybe\n</think>\n{GOOD}", "ok"),
        (f"<think>{GOOD}</think>", "reasoning_only"),
        (f"<think>so {GOOD}", "reasoning_only"),
    ],
)
def test_requests_inside_reasoning_are_not_run(parse, calls_of, text, kind, mode):
    verdict = parse.text(text, mode)
    assert verdict.kind == kind
    assert calls_of(verdict) == (CALL if kind == "ok" else [])
    assert not verdict.guess


def test_the_final_answer_is_recovered_from_little_prose_only(parse):
    answer = '{"tool_name": "response", "tool_args": {"text": "done"}}'
    assert parse.text(f"Here you are:\n{answer}").final
    assert parse.text(f"{'What I could say at the end of it all is this one thing. ' * 2}\n{answer}").kind == "prose"


@pytest.mark.parametrize(
    "text",
    [
        'Here is the manifest:\n{"name": "search", "version": 2}',
        'Config:\n{"tool_name": "delete_everything", "tool_args": {}}',
        "I will search now.",
    ],
)
def test_prose_with_other_data_is_prose(parse, text):
    assert parse.text(text).kind == "prose"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("around", ['{"config": %s}', '{"a": 1, "b": [%s]}', '{"config": {"inner": %s}, "c": 2}'])
@pytest.mark.parametrize("before", ["", "Look: ", "Look:\n"])
def test_an_object_inside_another_one_is_no_request_of_its_own(parse, around, before, mode):
    verdict = parse.text(before + around % GOOD, mode)
    assert (verdict.usable, verdict.calls) == (False, ())


@pytest.mark.parametrize("mode", MODES)
def test_a_request_that_was_swallowed_by_the_list_of_thoughts_is_no_call(parse, mode):
    swallowed = '{"thoughts": ["I look.", "headline\\": \\"x\\", \\"tool_name\\": \\"search\\", \\"tool_args\\": {}"]}'
    assert (parse.text(swallowed, mode).kind, parse.text(swallowed, mode).calls) == ("wrong_shape", ())


def test_an_array_of_exactly_one_request_is_unwrapped_only_where_recovery_is_allowed(parse, calls_of):
    assert parse.text(f"[{GOOD}]", "strict").kind == "wrong_shape"
    assert calls_of(parse.text(f"[{GOOD}]")) == CALL
    assert parse.text(f"[{GOOD}, {OTHER}]").kind == "multiple"


@pytest.mark.parametrize("mode", ["strict", "fenced"])
def test_foreign_markup_is_named_where_it_is_not_read(parse, mode):
    text = f"<tool_call>{json.dumps({'name': 'search', 'arguments': {'q': 'x'}})}</tool_call>"
    verdict = parse.text(text, mode)
    assert (verdict.kind, verdict.usable) == ("foreign_markup", False)


def test_a_call_that_may_hold_more_calls_than_allowed_is_multiple(parse):
    text = '<function=status>{}</function>\n<function=search>{"q": "x"}</function>'
    assert len(parse.text(text).calls) == 2
    assert parse.text(text, max_calls=1).kind == "multiple"


def test_a_request_that_was_encoded_once_too_often_is_read(parse, calls_of):
    text = json.dumps(GOOD)
    assert not parse.text(text, "lenient").usable
    assert calls_of(parse.text(text)) == CALL
    assert parse.text(text).repairs == ("unwrap_json_string",)
    assert parse.text('"just a string"').kind == "prose"
