"""The providers' forms of messages, by name.

Knows: which there are. Must not know: how they are checked or repaired.
"""

from __future__ import annotations

from policyengine.errors import UsageError
from policyengine.history.shapes import anthropic, gemini, openai_chat, responses
from policyengine.history.views import Shape

SHAPES: dict[str, Shape] = {shape.NAME: shape for shape in (openai_chat, anthropic, gemini, responses)}


def shape_named(name: str) -> Shape:
    """Return a shape by its name.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in SHAPES:
        raise UsageError(f"no message shape named {name!r} (known: {', '.join(SHAPES)})")
    return SHAPES[name]
