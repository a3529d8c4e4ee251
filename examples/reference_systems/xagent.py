"""XAgent, and the same answers here: notices that stay, the error that is hidden, words that become tools.

Run it: `python examples/reference_systems/xagent.py`. The first half of each part is the behaviour as we read it,
written again in our own words; the second half gives the same answers to `force_call`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from policyengine import (
    ForcedResult,
    Message,
    ModelRequest,
    ModelResponse,
    Script,
    ToolSpec,
    Turn,
    call,
    force_call,
    say,
)
from policyengine.providers.scripted import ScriptedModel


class Heard:
    """The scripted model, with every request that it was sent."""

    name = "scripted"

    def __init__(self, turns: Iterable[Turn]) -> None:
        self.inner = ScriptedModel(Script("submit it", tuple(turns)))
        self.requests: list[ModelRequest] = []

    def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        return self.inner.complete(request)

    def added(self, before: int) -> list[list[str]]:
        """Return for each request the texts that follow the caller's own messages."""
        return [[message.text for message in request.messages[before:]] for request in self.requests]


# ---- as it was


class SchemaError(Exception):
    """The answer holds no call of an offered function."""


class RetriesOver(Exception):
    """What a retry library raises in the end; the caller waits for `SchemaError`."""


def old_call(model: Heard, messages: list[Message], offered: tuple[str, ...], attempts: int = 3) -> dict[str, Any]:
    """Ask up to three times, always with the caller's own list."""
    for _ in range(attempts):
        try:
            return old_refine(model.complete(ModelRequest(tuple(messages))), messages, offered)
        except SchemaError:
            continue
    raise RetriesOver(f"{attempts} attempts")


def old_refine(response: ModelResponse, sent: list[Message], offered: tuple[str, ...]) -> dict[str, Any]:
    if not response.tool_calls:
        raise SchemaError("no call")  # and nothing is told to the model
    name = response.tool_calls[0].name
    if name in offered:
        return {"name": name}
    if f'"{name}"' in sent[0].text:
        return {"tool_call": {"tool_name": name, "tool_input": response.tool_calls[0].arguments}}
    if sent[-1].text.startswith("There is no"):
        sent = sent[:-1]  # another list from here on: what is appended to it nobody will see
    sent.append(Message("system", f"There is no {name}; there are {', '.join(offered)}."))
    raise SchemaError(name)


def old_end(model: Heard, messages: list[Message]) -> str:
    try:
        return f"accepted: {old_call(model, messages, tuple(tool.name for tool in OUTER))}"
    except SchemaError as error:
        return f"SchemaError: {error}"
    except RetriesOver as error:
        return f"RetriesOver: {error}"


# ---- here


def new_end(result: ForcedResult) -> str:
    if result.call is not None:
        return f"accepted: {result.call.name} {result.call.arguments}"
    assert result.failure is not None
    return f"{result.failure.code} after {result.failure.attempts} attempts: {result.failure.message}"


def named(notices: Iterable[Iterable[str]]) -> str:
    """Say which of the wrong names each request is told about."""
    told = [" and ".join(name for name in WRONG for text in texts if name in text) or "none" for texts in notices]
    return ", ".join(f"request {number}: {names}" for number, names in enumerate(told, 1))


# ---- the inputs

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
PAGE = {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}
OUTER = (ToolSpec("submit", "Hand in", TEXT), ToolSpec("handle", "Use a tool", {"type": "object"}))
INNER = (ToolSpec("look", "Look at a page", PAGE),)
PROMPT = (Message("system", 'You are "careful". Tools: "look". Submit or handle.'), Message("user", "Find the page."))
WRONG = ("finish_task", "end_task", "close_task")
WRONG_NAMES = [call(name) for name in WRONG]
NO_CALL = [say("The page is 3.")] * 3
QUOTED = [call("careful", {"anything": "goes"})] * 3
MISFIT = [call("look", {"page": "third"}), call("look", {"page": 3})]


def both(turns: Iterable[Turn]) -> tuple[Heard, list[Message], str, Heard, str]:
    """Give the same answers to both; return the models, what became of the old caller's list, and both ends."""
    old, new, messages = Heard(turns), Heard(turns), list(PROMPT)
    old_says = old_end(old, messages)
    return old, messages, old_says, new, new_end(force_call(new, PROMPT, OUTER, inner=INNER, wrapper="handle"))


def main() -> None:
    before = len(PROMPT)
    print("XAgent\n\n1. Three functions that do not exist")
    old, messages, _, new, _ = both(WRONG_NAMES)
    print(f"   as it was, told about:\n     {named(old.added(before))}")
    print(f"     caller's messages: {before} before, {len(messages)} after")
    print(f"   here, told about:\n     {named(new.added(before))}")
    print(f"     at most {max(map(len, new.added(before)))} notice in a request")

    print("\n2. Three answers without a call")
    old, _, old_says, new, new_says = both(NO_CALL)
    print(f"   as it was:\n     {old_says}; {sum(map(len, old.added(before)))} notices told to the model")
    print(f"   here:\n     {new_says}; {sum(map(len, new.added(before)))} notices")

    print(
        "\n3. A quoted word of the prompt called as a tool; a real tool with arguments that do not fit, then repaired"
    )
    for what, turns in (("quoted word", QUOTED), ("real tool", MISFIT)):
        _, _, old_says, _, new_says = both(turns)
        print(f"   {what}\n     as it was: {old_says}\n     here: {new_says}")


if __name__ == "__main__":
    main()
