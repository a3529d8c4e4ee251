"""Ways to put a text or a structured call to the parser, and the tools that are on offer."""

from __future__ import annotations

from typing import Any

import pytest

from policyengine import ModelResponse, ToolCall, Verdict, parse_response


def tool(required: tuple[str, ...] = (), **properties: str) -> dict[str, Any]:
    kinds = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": kinds, "required": list(required)}


TOOLS = {
    "search": tool(("q",), q="string", limit="integer", exact="boolean", tags="array"),
    "write": tool(("path", "content"), path="string", content="string"),
    "read_file": tool(("path",), path="string"),
    "status": tool(),
}


class Parser:
    """Asks the parser, with `TOOLS` on offer and the repairing mode unless something else is said."""

    tools = TOOLS

    def text(self, text: str, mode: str = "repair", finish_reason: str = "stop", **options: Any) -> Verdict:
        """A reply in the one-object protocol."""
        options = {"protocol": "text", "tools": TOOLS, **options}
        return parse_response(ModelResponse(text, finish_reason=finish_reason), mode=mode, **options)

    def answer(self, text: str, mode: str = "repair", finish_reason: str = "stop", **options: Any) -> Verdict:
        """A native response without structured calls, whose text may be taken for calls."""
        options = {"tools": TOOLS, "text_fallback": True, **options}
        return parse_response(ModelResponse(text, finish_reason=finish_reason), mode=mode, **options)

    def native(
        self, name: str, arguments: str, mode: str = "repair", finish_reason: str = "tool_calls", **options: Any
    ) -> Verdict:
        """A structured call."""
        response = ModelResponse(tool_calls=(ToolCall("1", name, arguments),), finish_reason=finish_reason)
        return parse_response(response, mode=mode, **{"tools": TOOLS, **options})


@pytest.fixture(scope="session")
def parse() -> Parser:
    return Parser()


@pytest.fixture(scope="session")
def calls_of():
    return lambda verdict: [(call.name, call.args) for call in verdict.calls]
