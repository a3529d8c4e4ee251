"""Responses that look like an answer and are none: what they are, and what to do."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import ClassifiedResponse, ModelResponse, ToolCall, Usage, classify_response
from policyengine.responses import has_media, prompt_tokens, visible_text

TESTS = Path(__file__).parent
CASES = [
    json.loads(line)
    for name in ("public_cases.jsonl", "result_cases.jsonl")
    for line in (TESTS / "data" / name).read_text(encoding="utf-8").splitlines()
]
OURS = [case for case in CASES if case["class"] == "response"]
CALLS = (ToolCall("1", "look", '{"place": "drawer"}'),)


def adapter():
    spec = importlib.util.spec_from_file_location("response_adapter", TESTS / "conformance" / "response.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ADAPTER = adapter()


@pytest.mark.parametrize("case", OURS, ids=lambda case: case["id"])
def test_every_case_of_the_class_comes_out_as_expected(case):
    assert ADAPTER.judge(case) == []


@pytest.mark.parametrize("case", OURS, ids=lambda case: case["id"])
def test_a_case_with_another_verdict_fails(case):
    verdicts = {"breaker_open": "breaker_closed", "breaker_closed": "breaker_open", "complete": "empty"}
    other = verdicts.get(case["expected"]["verdict"], "complete")
    assert ADAPTER.judge({**case, "expected": {"verdict": other}}) != []


@pytest.mark.parametrize(
    ("response", "verdict", "action", "reason"),
    [
        (ModelResponse("14", finish_reason="stop"), "complete", "end", ""),
        (ModelResponse("", CALLS, finish_reason="tool_calls"), "calls", "run_calls", ""),
        (ModelResponse("", CALLS, finish_reason="stop"), "calls", "run_calls", ""),
        (ModelResponse("", CALLS, finish_reason="length"), "truncated", "retry_with_nudge", "length"),
        (ModelResponse("It is", finish_reason="max_tokens"), "truncated", "retry_with_nudge", "length"),
        (
            ModelResponse("", CALLS, finish_reason="UNEXPECTED_TOOL_CALL"),
            "malformed_call",
            "retry",
            "unexpected_tool_call",
        ),
        (ModelResponse("", (ToolCall("1", ""),)), "malformed_call", "retry_with_nudge", "name_missing"),
        (ModelResponse("", finish_reason="tool_use"), "malformed_call", "retry_with_nudge", "call_missing"),
        (ModelResponse(""), "empty", "retry_with_nudge", "empty"),
        (ModelResponse("", reasoning="hm"), "empty", "retry_with_nudge", "reasoning_only"),
        (ModelResponse("", finish_reason="max_tokens", reasoning="hm"), "empty", "retry_with_nudge", "output_limit"),
        (ModelResponse("", finish_reason="max_tokens"), "context_overflow", "compact_or_raise_window", "window_full"),
        (
            ModelResponse("14", finish_reason="model_context_window_exceeded"),
            "context_overflow",
            "compact_or_raise_window",
            "window_exceeded",
        ),
        (ModelResponse("", finish_reason="SAFETY"), "refused", "end", "safety"),
        (ModelResponse("", raw={"content": None, "refusal": "I cannot help."}), "refused", "end", "refusal"),
        (ModelResponse("It", finish_reason="error"), "failed", "retry", "error"),
    ],
)
def test_the_finish_reason_outranks_the_content_and_reasoning_is_not_visible(response, verdict, action, reason):
    seen = classify_response(response)
    assert (seen.verdict, seen.action, seen.reason) == (verdict, action, reason)
    assert seen.run_calls is (verdict == "calls")
    assert seen.counts_as_unusable is (verdict in ("empty", "malformed_call", "truncated"))


def test_the_text_protocol_is_judged_by_its_own_rules():
    assert classify_response(ModelResponse("I will look."), protocol="text").verdict == "malformed_call"
    answer = '{"tool_name": "response", "tool_args": {"text": "In the drawer."}}'
    assert classify_response(ModelResponse(answer), protocol="text").verdict == "complete"
    call = '{"tool_name": "look", "tool_args": {}}'
    assert classify_response(ModelResponse(f"<think>hm</think>{call}"), protocol="text").verdict == "calls"


def test_an_unknown_tool_is_a_call_and_no_unusable_response():
    seen = classify_response(ModelResponse("", CALLS), tools={"listen"})
    assert (seen.verdict, seen.counts_as_unusable) == ("calls", False)


@pytest.mark.parametrize(
    ("tokens", "estimate", "window", "verdict"),
    [
        (2051, 29_800, None, "context_overflow"),
        (14_900, 29_800, None, "complete"),
        (14_899, 29_800, None, "context_overflow"),
        (100, 600, None, "complete"),
        (0, 29_800, None, "complete"),
        (None, 29_800, None, "complete"),
        (2051, None, None, "complete"),
        (8_191, 11_000, 8_192, "context_overflow"),
        (8_191, 9_000, 8_192, "complete"),
        (9_500, 11_000, 8_192, "complete"),
    ],
)
def test_a_prompt_that_lost_half_of_itself_was_cut(tokens, estimate, window, verdict):
    response = ModelResponse("14", usage=Usage(tokens))
    seen = classify_response(response, estimated_prompt_tokens=estimate, context_window=window)
    assert (seen.verdict, seen.trust_usage) == (verdict, verdict == "complete")


def test_calls_made_on_a_cut_prompt_do_not_run():
    seen = classify_response(ModelResponse("", CALLS, usage=Usage(2000)), estimated_prompt_tokens=30_000)
    assert (seen.verdict, seen.run_calls) == ("context_overflow", False)


def test_cached_tokens_belong_to_the_prompt():
    raw = {"usage": {"cache_read_input_tokens": 900, "cache_creation_input_tokens": 90, "other": 5}}
    assert prompt_tokens(ModelResponse("", usage=Usage(10), raw=raw)) == 1000
    assert prompt_tokens(ModelResponse("", usage=Usage(0))) is None


def test_a_full_window_is_told_from_an_output_limit():
    def seen(prompt, written, window=None):
        response = ModelResponse("", finish_reason="length", usage=Usage(prompt, written))
        return classify_response(response, context_window=window).reason

    assert seen(32_767, 1) == "window_full"
    assert seen(900, 4_096) == "output_limit"
    assert seen(28_600, 4_096, 32_768) == "window_full"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<think>a</think> b", "b"),
        ("<thinking>a", ""),
        ("a</think>b", "b"),
        ("a <think>b</think> c", "a  c"),
        ("\u200b\ufeff \n", ""),
        ("thinking is hard", "thinking is hard"),
    ],
)
def test_thoughts_and_invisible_characters_are_not_visible(text, shown):
    assert visible_text(ModelResponse(text)) == shown


@pytest.mark.parametrize(
    ("raw", "media"),
    [
        ({"content": [{"type": "image", "source": {}}]}, True),
        ({"choices": [{"message": {"content": None, "images": [{"type": "image_url"}]}}]}, True),
        ({"candidates": [{"content": {"parts": [{"inlineData": {"data": "aGk="}}]}}]}, True),
        ({"choices": [{"message": {"audio": {"id": "a"}}}]}, True),
        ({"content": [{"type": "text", "text": ""}, {"thoughtSignature": "x"}]}, False),
        ({"content": "text"}, False),
        ({"choices": []}, False),
        (None, False),
    ],
)
def test_media_is_found_in_every_wire_format(raw, media):
    assert has_media(ModelResponse(raw=raw)) is media


def test_retries_end_in_what_the_caller_named_and_never_in_success():
    first = classify_response(ModelResponse(""), retries=1, max_retries=2, then="fallback_text")
    assert (first.action, first.max_retries, first.then) == ("retry_with_nudge", 2, "fallback_text")
    last = classify_response(ModelResponse(""), retries=2, max_retries=2, then="fallback_text")
    assert (last.verdict, last.action, last.then) == ("empty", "end", "fallback_text")
    assert classify_response(ModelResponse("14"), retries=9).max_retries is None


def test_an_empty_reply_after_a_tool_gave_the_answer_is_an_end():
    seen = classify_response(ModelResponse("", finish_reason="stop"), answered=True)
    assert (seen.verdict, seen.action, seen.reason) == ("complete", "end", "answered_by_a_tool")
    malformed = ModelResponse("", finish_reason="MALFORMED_FUNCTION_CALL")
    assert classify_response(malformed, answered=True).verdict == "malformed_call"


REASONS = st.sampled_from(["", "stop", "length", "tool_calls", "MALFORMED_FUNCTION_CALL", "OTHER", "end_turn", "error"])
TEXTS = st.text(max_size=30) | st.sampled_from(["<think>", "</think>a", "<think>" * 50, '{"tool_name"', "\ud800"])
RAW = st.recursive(
    st.none() | st.text(max_size=5) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "message", "choices", "type", "parts", "usage"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    TEXTS,
    TEXTS,
    REASONS,
    st.lists(st.builds(ToolCall, TEXTS, TEXTS, TEXTS), max_size=2),
    st.none() | st.dictionaries(st.sampled_from(["content", "choices", "message", "usage", "images"]), RAW),
    st.integers(-5, 50_000),
)
def test_every_response_has_a_verdict(text, reasoning, reason, calls, raw, tokens):
    response = ModelResponse(text, tuple(calls), reasoning, reason, Usage(tokens, tokens), raw=raw)
    for protocol in ("native", "text"):
        seen = classify_response(response, protocol=protocol, estimated_prompt_tokens=20_000, context_window=8_192)
        assert isinstance(seen, ClassifiedResponse)
        assert not (seen.run_calls and seen.verdict != "calls")
        if seen.verdict == "complete":
            assert visible_text(response) or has_media(response)
