"""An agent of pydantic-ai under a policy: it asks the same thing for ever, is told so, refused, and ended.

Run it: `pip install '.[pydantic-ai]'`, then `python examples/hosts/pydantic_ai_agent.py`. It needs no
key and no network, because the model is a function.
"""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from policyengine.hosts.pydantic_ai import PolicyCapability


def stubborn(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([ToolCallPart("lookup", {"query": "harbour museum"}, f"call-{len(messages)}")])


guard = PolicyCapability("unattended")
agent = Agent(FunctionModel(stubborn), capabilities=[guard])


@agent.tool_plain
def lookup(query: str) -> str:
    """Look something up."""
    return f"no entry for {query}"


def main() -> None:
    result = agent.run_sync("When is the harbour museum open?")
    for message in result.all_messages():
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                print(f"    model  {part.tool_name} {part.args}")
            elif isinstance(part, ToolReturnPart):
                print(f"     tool  {part.outcome}: {part.content}")
            elif isinstance(part, UserPromptPart | TextPart):
                print(f"{'user' if isinstance(part, UserPromptPart) else 'end':>9}  {part.content}")
    outcome = guard.outcome_of(result)
    print(f"\n{outcome.status}: {outcome.stop.code} by {outcome.stop.rule}")
    print(f"{outcome.calls} calls judged, {outcome.executed} run")


if __name__ == "__main__":
    main()
