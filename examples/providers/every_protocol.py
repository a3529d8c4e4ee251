"""The same task over three protocols, whole and as streams, against a server on this machine that plays the provider.

It needs the packages `openai` and `anthropic`, and no key: python examples/providers/every_protocol.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # behind what is installed: the tests hold the server

from policyengine import Agent, Engine
from policyengine.providers import connect
from tests.providers import wire_server as wire

ARGUMENTS = '{"place": "drawer"}'
TOLD = {
    "openai_chat": (
        wire.chat(None, [("a", "look", ARGUMENTS)], reasoning_content="The drawer?"),
        wire.chat("Found it."),
    ),
    "openai_responses": (
        wire.response(wire.thought("The drawer?", "opaque"), wire.called("a", "look", ARGUMENTS)),
        wire.response(wire.said("Found it.")),
    ),
    "anthropic_messages": (
        wire.message(wire.thinking_block("The drawer?", "signed"), wire.use_block("a", "look", {"place": "drawer"})),
        wire.message(wire.text_block("Found it.")),
    ),
}
STREAMED = {
    "openai_chat": wire.chat_stream,
    "openai_responses": wire.response_stream,
    "anthropic_messages": wire.message_stream,
}


def look(place: str) -> str:
    """Look somewhere."""
    return f"a key lies in the {place}"


for protocol, replies in TOLD.items():
    for stream in (False, True):
        with wire.serve(*(STREAMED[protocol](reply) if stream else reply for reply in replies)) as server:
            base = server.url if protocol == "anthropic_messages" else f"{server.url}/v1"
            model = connect({"protocol": protocol, "model": "m", "base_url": base, "stream": stream})
            outcome = Agent(Engine("default"), model, [look]).run("Find the key.")
            model.close()
        sent = server.requests[-1]
        kept = "opaque" in str(sent) or "signed" in str(sent) or "reasoning_content" in str(sent)
        how = "stream" if stream else "whole"
        print(f"{protocol} {how}: {outcome.status}, {outcome.output} reasoning sent back: {kept}")
