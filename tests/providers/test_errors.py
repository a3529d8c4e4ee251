"""A table of wordings (tests/data/provider_errors.jsonl): class, first remedy and numbers of a failed request."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from policyengine import ProviderError
from policyengine.providers.errors import (
    ERROR_CLASSES,
    REMEDIES,
    RETRY_SAME_REQUEST,
    Remedy,
    classify_provider_error,
)

TABLE = Path(__file__).parents[1] / "data" / "provider_errors.jsonl"
ROWS = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
IN_TEXT = {"retry_after_s", "tokens", "limit", "requested", "max_tokens", "input_tokens", "ids", "position"}


def said(message: str, http: int = 400, **more: Any) -> dict[str, Any]:
    """Return a failure as most providers put it."""
    return {"status": http, "body": {"error": {"message": message, **more}}}


def name(row):
    return row["code"]


def differences(row, error, among=None):
    wanted = row.get("wanted", {})
    found = {field: json.loads(json.dumps(getattr(error, field))) for field in wanted if not among or field in among}
    return {field: value for field, value in found.items() if value != wanted[field]}


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_a_wording_is_classified_with_its_numbers(row):
    error = classify_provider_error(row["given"])
    assert error.code == row["code"], error
    assert error.remedies[0] == row.get("remedy", error.remedies[0])
    assert differences(row, error) == {}


@pytest.mark.parametrize(
    "row", [row for row in ROWS if isinstance(row["given"], dict) and "headers" not in row["given"]], ids=name
)
def test_a_wording_is_classified_alike_as_text_of_an_sdk(row):
    given = row["given"]
    body = given.get("body") or {key: given[key] for key in given if key not in ("headers", "status", "body")}
    start = f"Error code: {given['status']}" if "status" in given else "the request failed"
    error = classify_provider_error(RuntimeError(f"{start} - {body}"))
    assert error.code == row["code"], error
    assert differences(row, error, IN_TEXT) == {}


def test_every_class_has_five_wordings_and_every_remedy_is_known():
    counts = Counter(map(name, ROWS))
    assert set(counts) == set(ERROR_CLASSES)
    assert {code for code, count in counts.items() if count < 5} == set()
    assert set(REMEDIES) == set(ERROR_CLASSES)
    assert {remedy for remedies in REMEDIES.values() for remedy in remedies} <= set(get_args(Remedy))


def test_only_what_is_not_the_fault_of_the_request_may_be_sent_again():
    for row in ROWS:
        assert classify_provider_error(row["given"]).retry_same_request is (row["code"] in RETRY_SAME_REQUEST), row


# ---- which sign outranks which


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (said("Repetitive tool calls detected: `tool_use` ids were found without `tool_result`"), "repetitive_calls"),
        (
            said("Missing `reasoning_content` in the message before tool_call_id call_1 is not found"),
            "reasoning_replay",
        ),
        (said("tool_call_id call_1 is not found, check your billing: insufficient balance", 402), "invalid_history"),
        (said("Insufficient balance: Limit 10, Requested 20 tokens per minute", 429), "quota_exhausted"),
        (said("The server is overloaded. tokens per min: Limit 10, Requested 20", 503), "request_too_large"),
        (said("Rate limit: the model is overloaded", 429), "overloaded"),
        (said("Rate limit reached: too many tokens in the context window", 429), "rate_limit"),
        (said("The prompt is too long: the request is too large", 413), "context_overflow"),
        (said("This model's maximum context length is 100 tokens, you requested 120 tokens", 429), "context_overflow"),
    ],
)
def test_the_order_of_judgement(given, code):
    assert classify_provider_error(given).code == code


def test_an_offer_to_pay_more_is_no_empty_account():
    text = (
        "Rate limit reached (RPM): Limit 3, Used 3, Requested 1. Add a payment method at https://host/account/billing."
    )
    assert classify_provider_error(said(text, 429)).code == "rate_limit"


def test_the_same_sentence_is_an_empty_account_or_a_short_wait():
    text = "You exceeded your current quota, please check your plan and billing details."
    assert classify_provider_error(said(text, 429)).code == "quota_exhausted"
    short = classify_provider_error({"status": 429, "headers": {"retry-after": "8"}, "body": {"message": text}})
    assert (short.code, short.retry_after_s) == ("rate_limit", 8.0)


def test_a_request_that_waits_is_not_one_that_never_fits():
    text = "on tokens per min (TPM): Limit 12,000, Used 11,000, Requested {}"
    fits, never = (classify_provider_error(said(text.format(size), 429)) for size in ("11,999", "12,001"))
    assert (fits.code, fits.remedies[0], fits.requested) == ("rate_limit", "wait", 11999)
    assert (never.code, never.retry_same_request, never.requested) == ("request_too_large", False, 12001)


def test_room_for_the_answer_decides_between_a_shorter_answer_and_a_shorter_history():
    text = "input length and `max_tokens` exceed context limit: {} + 8192 > 100000, decrease input length"
    small, large, full = (classify_provider_error(said(text.format(size))) for size in (20000 + 75000, 97000, 99900))
    assert small.remedies == large.remedies == ("reduce_max_tokens", "compact")
    assert small.code == large.code == "output_limit_too_large"
    assert (full.code, full.remedies) == ("context_overflow", ("compact", "reduce_max_tokens"))
    assert large.requested == 105192


# ---- compatibility


def test_an_error_that_is_classified_already_is_returned_as_it_is():
    known = ProviderError("overloaded", "try later", 529)

    class Carrier(Exception):
        error = known

    assert classify_provider_error(known) is known
    assert classify_provider_error(Carrier()) is known


def test_the_first_four_fields_keep_their_places():
    error = ProviderError("rate_limit", "slow", 429, 2.5)
    assert (error.code, error.message, error.status, error.retry_after_s) == ("rate_limit", "slow", 429, 2.5)
    assert error.retry_same_request is None
    assert error.remedies == ()


def test_the_message_is_the_innermost_sentence_without_keys():
    inner = '{"error": {"message": "Incorrect key sk-abcdefgh12345678 given"}}'
    outer = {"error": {"message": "Provider returned error", "metadata": {"raw": inner}}}
    assert classify_provider_error(outer).message == "Incorrect key sk... given"
    assert len(classify_provider_error("word " * 10_000).message) == 2000
