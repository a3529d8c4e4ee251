"""Where a failure is found: nested JSON, exceptions with causes, attributes of SDKs, headers, request ids."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from policyengine.providers.errors import REQUEST_ID_HEADERS, classify_provider_error, find_request_id

LONG = {"error": {"type": "invalid_request_error", "message": "prompt is too long: 211904 tokens > 200000 maximum"}}


def is_overflow(error):
    assert (error.code, error.tokens, error.limit) == ("context_overflow", 211904, 200000), error
    return True


class FromSdk(Exception):
    """An exception as SDKs raise them."""

    def __init__(self, text="the request failed", **attributes):
        super().__init__(text)
        vars(self).update(attributes)


# ---- JSON inside strings


def wrapped(times):
    body = json.dumps(LONG)
    for _ in range(times):
        body = json.dumps({"error": {"code": 400, "message": body}})
    return body


@pytest.mark.parametrize("times", range(5))
def test_json_inside_strings_is_unwrapped(times):
    assert is_overflow(classify_provider_error(wrapped(times)))
    assert is_overflow(classify_provider_error(f"500 upstream said: {wrapped(times)} (attempt 3)"))
    assert is_overflow(classify_provider_error(wrapped(times).encode()))


@pytest.mark.parametrize(
    "text",
    [
        f"BadRequestError: SomeException - {json.dumps(LONG).encode()!r}",
        f"Error code: 400 - {LONG!r}",
        f"event: error\ndata: {json.dumps(LONG)}\n\n",
        json.dumps([LONG]),
        json.dumps(json.dumps(LONG)),
        json.dumps(LONG)[:-3],
        "[{'error': {'code': 400, 'message': '" + json.dumps(LONG).replace('"', '\\"') + "'}}]",
    ],
)
def test_a_body_is_read_in_whatever_it_is_written(text):
    assert is_overflow(classify_provider_error(text))


def test_words_of_the_request_that_a_body_repeats_say_nothing():
    echo = {"error": {"message": "Failed to call a function.", "failed_generation": "rate limit, prompt is too long"}}
    assert classify_provider_error({"status": 400, "body": echo}).code == "malformed_output"
    refused = {
        "detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": "overloaded"}]
    }
    assert classify_provider_error({"status": 422, "body": refused}).code == "invalid_request"


def test_the_status_may_be_missing_or_200():
    for given in (
        {"status": 200, "body": LONG},
        {"body": LONG},
        LONG,
        {"status": 200, "event": {"type": "error", **LONG}},
    ):
        assert is_overflow(classify_provider_error(given))
    assert (
        classify_provider_error({"status": 200, "body": {"error": {"code": 429, "message": "no"}}}).code == "rate_limit"
    )
    assert classify_provider_error({"status": 200, "body": LONG}).status == 200
    assert classify_provider_error({"error": {"code": 429, "message": "no"}}).status == 429
    assert classify_provider_error("Error code: 429 - no", status=503).status == 503


# ---- exceptions


@pytest.mark.parametrize(
    "error",
    [
        FromSdk(status_code=400, body=LONG),
        FromSdk(status_code=400, body=json.dumps(LONG)),
        FromSdk(
            status_code=400, response=SimpleNamespace(status_code=400, headers={}, _content=json.dumps(LONG).encode())
        ),
        FromSdk(response=SimpleNamespace(status=400, text=json.dumps(LONG))),
        FromSdk(response={"Error": {"Code": "ValidationException", "Message": LONG["error"]["message"]}}),
        FromSdk(error=LONG["error"], code=400),
        FromSdk(details=[LONG]),
        FromSdk(str(LONG)),
        ExceptionGroup("several", [ValueError("first"), FromSdk(body=LONG)]),
    ],
    ids=str,
)
def test_attributes_of_an_sdk_are_read_by_name(error):
    assert is_overflow(classify_provider_error(error))


def chained(link):
    try:
        try:
            raise FromSdk(status_code=400, body=LONG)
        except FromSdk as inner:
            link(inner)
    except RuntimeError as outer:
        return outer


def test_causes_and_contexts_are_followed():
    def caused(inner):
        raise RuntimeError("the agent failed") from inner

    def happened(inner):
        raise RuntimeError("the agent failed")

    def hidden(inner):
        raise RuntimeError("the agent failed") from None

    assert is_overflow(classify_provider_error(chained(caused)))
    assert is_overflow(classify_provider_error(chained(happened)))
    assert classify_provider_error(chained(hidden)).code == "unknown"


def test_a_circle_of_causes_ends():
    first, second = RuntimeError("one"), RuntimeError("rate limit")
    first.__cause__, second.__cause__ = second, first
    assert classify_provider_error(first).code == "rate_limit"


class RateLimitError(FromSdk):
    pass


class APITimeoutError(FromSdk):
    pass


class AuthenticationError(FromSdk):
    pass


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RateLimitError(), "rate_limit"),
        (APITimeoutError(), "timeout"),
        (AuthenticationError(), "authentication"),
        (TimeoutError(), "timeout"),
        (TimeoutError("cancelled"), "timeout"),
        (ConnectionRefusedError(111, "refused"), "connection"),
        (ConnectionResetError(), "connection"),
        (RateLimitError("You have no money: insufficient_quota", status_code=429), "quota_exhausted"),
        (ValueError("something else"), "unknown"),
    ],
    ids=repr,
)
def test_the_name_of_an_exception_counts_where_its_text_says_nothing(error, code):
    assert classify_provider_error(error).code == code


def test_an_exception_that_breaks_when_it_is_read_is_still_classified():
    class Broken(Exception):
        status_code = 429

        @property
        def body(self):
            raise KeyError("gone")

        @property
        def response(self):
            raise RuntimeError("not read")

        def __str__(self):
            raise ValueError("no text")

    assert classify_provider_error(Broken()).code == "rate_limit"


def test_a_response_that_was_not_read_is_not_read_now():
    class Response:
        status_code = 503
        headers = {"retry-after": "2"}

        @property
        def text(self):
            raise AssertionError("reading goes to the network")

        content = text

    error = classify_provider_error(FromSdk(response=Response()))
    assert (error.code, error.status, error.retry_after_s) == ("overloaded", 503, 2.0)


# ---- waiting


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 7.66s.", 7.66),
        ("Please try again in 6m0s.", 360.0),
        ("try again in 1h2m3.5s", 3723.5),
        ("Please try again in 120ms.", 0.12),
        ("Please retry after 20 seconds.", 20.0),
        ("retry in 1 minute and 5 seconds", 65.0),
        ("Please wait 3600 seconds before retrying", 3600.0),
        ("(reset after 30s)", 30.0),
        ("retry_after: 12", 12.0),
        ("retry_delay { seconds: 33 }", 33.0),
        ("Please try again later. It holds 5 s of sound", None),
        ("try again in 99999999 days", None),
    ],
)
def test_waiting_times_in_texts(text, seconds):
    assert classify_provider_error({"status": 429, "body": text}).retry_after_s == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "17"}, 17.0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"}, 360.0),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "9"}, None),
        (
            {
                "anthropic-ratelimit-requests-reset": "2026-10-21T07:28:09Z",
                "anthropic-ratelimit-requests-remaining": "0",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            9.0,
        ),
    ],
)
def test_waiting_times_in_headers(headers, seconds):
    assert classify_provider_error({"status": 429}, headers=headers).retry_after_s == seconds


def test_a_date_is_measured_from_now_where_the_caller_says_when_that_is():
    headers = {"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}
    assert classify_provider_error({"status": 429, "headers": headers}, now=60.0).retry_after_s == 40.0
    assert classify_provider_error({"status": 429, "headers": headers}, now=160.0).retry_after_s == 0.0


# ---- request ids


def test_request_ids_are_asked_in_order():
    headers = {name: name.upper() for name in reversed(REQUEST_ID_HEADERS)}
    for name in REQUEST_ID_HEADERS:
        assert find_request_id(headers) == name.upper()
        del headers[name]
    assert find_request_id(headers) == ""


def test_the_order_of_headers_is_the_callers():
    headers = {"X-Request-Id": "one", "My-Id": "two", "x-ds-trace-id": " "}
    assert classify_provider_error({"status": 500, "headers": headers}).request_id == "one"
    error = classify_provider_error({"status": 500}, headers=headers, request_id_headers=("my-id", "x-request-id"))
    assert error.request_id == "two"


def test_without_a_header_the_body_the_text_and_the_caller_are_asked():
    body = {"type": "error", "error": {"type": "api_error", "message": "no"}, "request_id": "req_123"}
    assert classify_provider_error({"status": 500, "body": body}, internal_id="mine").request_id == "req_123"
    text = "The server had an error (request id: 2026-ab.c). Sorry about that!"
    assert classify_provider_error(text, internal_id="mine").request_id == "2026-ab.c"
    assert classify_provider_error("no", internal_id="mine").request_id == "mine"
    assert classify_provider_error(FromSdk(request_id="req_9")).request_id == "req_9"


def test_headers_may_be_anything_with_items():
    class Headers:
        def items(self):
            return [(b"X-Request-Id", b"one"), ("set-cookie", ["a", "b"]), (3, 4), "odd"]

    assert classify_provider_error({"status": 500}, headers=Headers()).request_id == "one"
    assert classify_provider_error({"status": 500}, headers=[("x-request-id", "two")]).request_id == "two"
    assert classify_provider_error({"status": 500}, headers=7).request_id == ""
