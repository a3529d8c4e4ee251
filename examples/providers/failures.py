"""What happens when requests fail: the rules wait and ask again, and after two failures another provider is asked.

It needs the package `openai`, and no key: python examples/providers/failures.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # behind what is installed: the tests hold the server

from policyengine import Agent, Engine
from policyengine.providers import connect
from tests.providers import wire_server as wire

SLOW_DOWN = wire.Reply({"error": {"message": "Rate limit reached"}}, 429, {"retry-after": "2"})
CUT = wire.chat_stream(wire.chat("The key is in the drawer."), sent=3, end="closed")
ANSWER = wire.chat_stream(wire.chat("The key is in the drawer."))

with wire.serve(SLOW_DOWN, CUT) as first, wire.serve(ANSWER) as second:
    fallback = {
        "use": {"protocol": "openai_chat", "model": "small", "base_url": f"{second.url}/v1", "stream": True},
        "after": 2,
        "errors": ["rate_limit", "overloaded", "stream_cut", "timeout"],
    }
    model = connect(
        {
            "protocol": "openai_chat",
            "model": "large",
            "base_url": f"{first.url}/v1",
            "stream": True,
            "fallbacks": [fallback],
        }
    )
    # The policy `default` recovers from failed requests; a sleep of our own says how long it would wait.
    outcome = Agent(Engine("default"), model, sleep=lambda seconds: print(f"wait {seconds:.0f} s")).run("Where is it?")
    model.close()
print(f"{outcome.status}: {outcome.output}")
print(f"asked: large {len(first.requests)} times, {second.requests[0]['model']} {len(second.requests)} time")
