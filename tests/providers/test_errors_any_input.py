"""No input breaks the classifier or keeps it busy; what overflows silently is seen."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import ModelResponse, ProviderError, Usage
from policyengine.jsontext import encode
from policyengine.providers.errors import ERROR_CLASSES, classify_provider_error, find_silent_overflow

WORDS = (
    *(
        "tool_call_id ",
        "`tool_use` ids ",
        "immediately after: ",
        "exceeds ",
        "maximum ",
        "context length ",
        "is ",
        "> ",
        "+ ",
    ),
    *(
        "max_tokens ",
        "limit ",
        "requested ",
        "1,000 ",
        "12 ",
        "999999999999999999 ",
        "0 ",
        "per minute ",
        "try again in ",
    ),
    *(
        "1h",
        "2m",
        "3s ",
        "{",
        "}",
        "[",
        '"',
        "'",
        "\\",
        ":",
        ",",
        "message",
        "error",
        "status",
        "\n",
        "429 ",
        "position ",
    ),
    *(
        "messages.3",
        "messages[",
        "]",
        "\ud800",
        "\0",
        "\u0660",
        "\u00b2",
        "request_id: ",
        "retry-after: ",
        "bytes ",
        "5 MB ",
    ),
)
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
KEYS = st.sampled_from(
    [
        *(
            "error",
            "message",
            "status",
            "code",
            "type",
            "headers",
            "body",
            "retryDelay",
            "retry_after",
            "n_ctx",
            "details",
        ),
        *("request_id", "param", "response", "resets_in_seconds", "n_prompt_tokens", "retry_after_ms"),
    ]
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.binary(), st.sampled_from([200, 400, 413, 429, 503])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=12,
)


def is_sound(error):
    assert error.code in ERROR_CLASSES
    assert error.remedies
    assert error.retry_same_request in (True, False)
    assert len(error.message) <= 2000
    for field in ("tokens", "limit", "requested", "max_tokens", "input_tokens", "size_bytes", "limit_bytes"):
        value = getattr(error, field)
        assert value is None or (isinstance(value, int) and value >= 0), field
    assert error.retry_after_s is None or 0 <= error.retry_after_s <= 366 * 86400
    assert encode(error)
    assert hash(error.remedies)


@given(VALUES)
@settings(max_examples=300, deadline=None)
def test_no_value_breaks_it(value):
    is_sound(classify_provider_error(value))


@given(TEXTS, VALUES, st.one_of(st.none(), st.integers()))
@settings(max_examples=200, deadline=None)
def test_no_exception_breaks_it(text, value, status):
    error = RuntimeError(text)
    vars(error).update(body=value, response=value, headers=value, status_code=value)
    is_sound(classify_provider_error(error, status=status, headers=value))


@given(st.dictionaries(TEXTS, TEXTS, max_size=6), st.lists(TEXTS, max_size=4))
@settings(max_examples=100, deadline=None)
def test_no_header_breaks_it(headers, order):
    named = {
        f"{start}{key}": value for key, value in headers.items() for start in ("", "x-ratelimit-reset-", "retry-after")
    }
    error = classify_provider_error({"status": 429}, headers=named | {"date": "x"}, request_id_headers=order, now=1e12)
    is_sound(error)


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_it_says_the_same_every_time(value):
    first, second = classify_provider_error(value), classify_provider_error(value)
    assert encode(first) == encode(second)


def test_depth_and_size_are_bounded():
    deep: object = "rate limit"
    for _ in range(5000):
        deep = {"error": deep}
    is_sound(classify_provider_error(deep))
    is_sound(classify_provider_error('{"error":' * 50_000))
    is_sound(classify_provider_error([{"message": "x"}] * 100_000))
    is_sound(classify_provider_error({str(number): "x " * 500 for number in range(20_000)}))
    late = classify_provider_error("x" * 300_000 + " rate limit")
    assert late.code == "unknown"
    big = classify_provider_error({"error": {"input": "x" * 100_000, "message": "rate limit"}})
    assert big.code == "rate_limit"


@pytest.mark.parametrize(
    "unit", [*WORDS, "tools ", "model ", "no ", "message ", "a, ", "tool call ", "1 > ", "thinking "]
)
def test_repeated_words_take_no_time_worth_mentioning(unit):
    text = unit * (400_000 // len(unit))
    begun = process_time()
    is_sound(classify_provider_error({"a": text, "b": text, "c": text}))
    assert process_time() - begun < 2.0


# ---- silent overflow


def test_a_prompt_that_the_server_cut_is_an_overflow():
    response = ModelResponse("What should I do with it?", finish_reason="stop", usage=Usage(2051, 12))
    error = find_silent_overflow(response, estimated_prompt_tokens=29_800, context_window=4096)
    assert error is not None
    assert (error.code, error.status, error.retry_same_request) == ("context_overflow", 200, False)
    assert (error.remedies[0], error.tokens, error.limit) == ("compact", 29_800, 4096)


def test_an_empty_reply_at_the_length_limit_is_an_overflow():
    response = ModelResponse("", finish_reason="length", usage=Usage(8190, 2))
    error = find_silent_overflow(response, context_window=8192)
    assert error is not None
    assert (error.message, error.tokens) == ("window_full", 8190)


@pytest.mark.parametrize(
    "response",
    [
        ModelResponse("Done.", finish_reason="stop", usage=Usage(28_000, 12)),
        ModelResponse("Done.", finish_reason="stop"),
        ModelResponse("The beginning of a long", finish_reason="length", usage=Usage(28_000, 4096)),
        ModelResponse("", reasoning="Hm.", finish_reason="length", usage=Usage(28_000, 4096)),
    ],
)
def test_an_ordinary_response_is_no_overflow(response):
    assert find_silent_overflow(response, estimated_prompt_tokens=29_800) is None


def test_an_error_can_be_compared_and_hashed():
    assert isinstance(classify_provider_error("x"), ProviderError)
    assert classify_provider_error("x") == classify_provider_error("x")
