"""A loop written by hand with a guard around it: the model asks the same thing for ever, and the run ends.

Run it: `python examples/hosts/own_loop.py`. It needs no key and no network, because the model is a script.
"""

from __future__ import annotations

import json
from typing import Any

from policyengine import Guard, ModelRequest, Script, call
from policyengine.providers.scripted import ScriptedModel


def work(question: str, ask_model: Any, tools: dict[str, Any]) -> tuple[Any, list[Any]]:
    messages: list[Any] = [{"role": "user", "content": question}]
    with Guard("unattended", task=question, tools=tools) as guard:
        while guard.ready(messages):
            reply = ask_model(messages)
            messages.append(reply)
            turn = guard.response(reply)
            for wanted in turn.calls:
                turn.answer(wanted, tools[wanted.name](**wanted.args))
            messages += turn.messages()
    return guard.outcome, messages


class StubbornModel:
    """Stands for a model behind any client that speaks in chat messages."""

    def __init__(self) -> None:
        self.model = ScriptedModel(Script("", (call("lookup", {"query": "harbour museum"}),) * 20))

    def __call__(self, messages: list[Any]) -> dict[str, Any]:
        response = self.model.complete(ModelRequest(()))
        calls = [
            {"id": made.id, "type": "function", "function": {"name": made.name, "arguments": made.arguments}}
            for made in response.tool_calls
        ]
        return {"role": "assistant", "content": response.text, "tool_calls": calls}


def main() -> None:
    outcome, messages = work(
        "When is the harbour museum open?", StubbornModel(), {"lookup": lambda query: f"no entry for {query}"}
    )
    for message in messages:
        said = message["content"] or json.dumps(message["tool_calls"][0]["function"])
        print(f"{message['role']:>9}  {said}")
    print(f"\n{outcome.status}: {outcome.stop.message}")
    print(f"{outcome.calls} calls judged, {outcome.executed} run")


if __name__ == "__main__":
    main()
