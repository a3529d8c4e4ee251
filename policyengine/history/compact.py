"""Shorten a history without breaking it: what goes, what stays, what is put in its place.

Knows: legal cuts, sizes in characters, that the task stays verbatim.
Must not know: when to compact, who writes the summary, providers.

Better than what the reference systems do (AmritaCore 1C.11, C13): the cut may stand anywhere but between a call and its
results, so notes and user messages of a harness do not matter; the task of the run is kept word for word; nothing is
left as two messages of the user where one will do; and what is put in is tagged (`origin` is `summary`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from policyengine.history.cuts import legal_cuts
from policyengine.messages import Message

SUMMARY = "summary"
"""The `origin` of a message that stands for older ones."""

PER_TOKEN = 4
"""Characters of a token, roughly, for English and code. Estimates only serve to see that far too much is gone."""


class Cut(msgspec.Struct, frozen=True):
    """Messages from `start` up to (not including) `end` go; what is before (system) and after stays."""

    start: int
    end: int


class Size(msgspec.Struct):
    """The length of a history in characters, brought up to date by its new messages only."""

    messages: int = 0
    characters: int = 0

    def update(self, messages: Sequence[Message]) -> int:
        """Return the characters of `messages`, of which the first `self.messages` were measured before."""
        if self.messages > len(messages):
            self.messages = self.characters = 0
        self.characters += sum(length(message) for message in messages[self.messages :])
        self.messages = len(messages)
        return self.characters

    def reset(self) -> None:
        """Forget what was measured: the history was rewritten."""
        self.messages = self.characters = 0


def length(message: Message) -> int:
    """Return the length of a message in characters: its text and the arguments of its calls."""
    return len(message.text) + sum(len(call.name) + len(call.arguments) for call in message.tool_calls)


def plan_cut(messages: Sequence[Message], keep: float) -> Cut | None:
    """Return what may go so that about the share `keep` of the history stays; `None` if nothing is to be gained.

    System messages at the beginning always stay. The cut is the legal one that is nearest to the wanted place on its
    later side, so that the result is no longer than asked for, or the last one before it.
    """
    start = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    sizes = [length(message) for message in messages]
    wanted, left = len(messages), sum(sizes[start:]) * keep
    while wanted > start and sizes[wanted - 1] <= left:
        wanted -= 1
        left -= sizes[wanted]
    # In the text protocol results are messages of the user: they stay with what asked for them, too.
    legal = [index for index in legal_cuts(tuple(messages)) if index >= start and messages[index].origin != "tool"]
    later = [index for index in legal if index >= wanted]
    spoken = (index for index in later if messages[index].role == "assistant")
    end = next(spoken, later[0] if later else legal[-1] if legal else start)
    # One message that is replaced by one message is no gain.
    return Cut(start, end) if end - start > 1 else None


def shortened(messages: Sequence[Message], cut: Cut, goal: str, instead: str) -> list[Message] | None:
    """Return the history with the cut part replaced by one message: the task, word for word, and what is `instead`.

    `None` if that would not be shorter: a long summary of little is no gain.
    """
    opening = Message("user", f"{goal}\n\n{instead}", origin=SUMMARY)
    if length(opening) >= sum(length(message) for message in messages[cut.start : cut.end]):
        return None
    return [*messages[: cut.start], opening, *messages[cut.end :]]


def part_to_summarise(messages: Sequence[Message], cut: Cut) -> tuple[Message, ...]:
    """Return the messages that a summary has to stand for, with the system messages before them."""
    return tuple(messages[: cut.end])
