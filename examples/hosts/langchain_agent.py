"""An agent of LangChain under a policy: it asks the same thing for ever, is told so, refused, and ended.

Run it: `pip install '.[langchain]'`, then `python examples/hosts/langchain_agent.py`. It needs no key
and no network, because the model is a class of a few lines.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from policyengine.hosts.langchain import PolicyMiddleware


class Stubborn(BaseChatModel):
    """Makes the same call whatever it is told."""

    @property
    def _llm_type(self) -> str:
        return "stubborn"

    def bind_tools(self, tools: Any, **options: Any) -> Stubborn:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **more: Any
    ) -> ChatResult:
        wanted = {"name": "lookup", "args": {"query": "harbour museum"}, "id": f"call-{len(messages)}"}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[wanted]))])


def lookup(query: str) -> str:
    """Look something up."""
    return f"no entry for {query}"


agent = create_agent(Stubborn(), [lookup], middleware=[PolicyMiddleware("unattended")])


def main() -> None:
    result = agent.invoke({"messages": [{"role": "user", "content": "When is the harbour museum open?"}]})
    for message in result["messages"]:
        if isinstance(message, AIMessage) and message.tool_calls:
            print(f"    model  {message.tool_calls[0]['name']} {message.tool_calls[0]['args']}")
        elif isinstance(message, ToolMessage):
            print(f"     tool  {message.status}: {message.text}")
        else:
            print(f"{'end' if isinstance(message, AIMessage) else 'user':>9}  {message.text}")
    outcome = result["policy_outcome"]
    print(f"\n{outcome['status']}: {outcome['stop']['code']} by {outcome['stop']['rule']}")
    print(f"{outcome['calls']} calls judged, {outcome['executed']} run")


if __name__ == "__main__":
    main()
