"""What a model raises or returns: failed requests reach the rules, mistakes of the class are raised as they are."""

import asyncio

import pytest

from policyengine import Agent, Engine, ModelResponse, RequestError, UsageError
from policyengine.messages import ProviderError
from policyengine.testing import ListedRegistry, ManualClock, policy


class RateLimitError(Exception):
    """As an SDK has it: a status and a body."""

    status_code = 429
    body = {"error": {"message": "Rate limit reached for requests", "type": "requests", "code": "rate_limit_exceeded"}}


class Fails:
    """A model that does one thing."""

    name = "m"

    def __init__(self, does):
        self.does = does

    def complete(self, request):
        return self.does()


class FailsLater(Fails):
    """The same, asynchronously."""

    async def complete(self, request):
        return self.does()


def raises(error):
    def act():
        raise error

    return act


def run(does, is_async):
    engine = Engine(policy(), registry=ListedRegistry(), clock=ManualClock())
    agent = Agent(engine, FailsLater(does) if is_async else Fails(does))
    return asyncio.run(agent.arun("t")) if is_async else agent.run("t")


BOTH = pytest.mark.parametrize("is_async", [False, True])


@BOTH
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RateLimitError("429"), "rate_limit"),
        (ConnectionError("refused"), "connection"),
        (TimeoutError("timed out"), "timeout"),
        (RequestError(ProviderError("overloaded", "later")), "overloaded"),
    ],
)
def test_the_exceptions_of_providers_and_of_the_network_are_failed_requests(error, code, is_async):
    outcome = run(raises(error), is_async)
    assert outcome.status == "failed"
    assert outcome.error.startswith(f"{code}:")


@BOTH
@pytest.mark.parametrize("error", [KeyError("x"), AttributeError("no attribute"), UsageError("wrong")])
def test_a_mistake_of_the_model_class_is_raised_on(error, is_async):
    with pytest.raises(type(error)):
        run(raises(error), is_async)


@BOTH
@pytest.mark.parametrize("answer", ["text", None, {"text": "x"}])
def test_something_that_is_no_response_is_named(answer, is_async):
    with pytest.raises(UsageError, match=f"returned {type(answer).__name__}, not a ModelResponse"):
        run(lambda: answer, is_async)


def test_an_asynchronous_model_needs_the_asynchronous_driver():
    engine = Engine(policy(), registry=ListedRegistry())
    with pytest.raises(UsageError, match="arun"):
        Agent(engine, FailsLater(lambda: ModelResponse("x"))).run("t")
