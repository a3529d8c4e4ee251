"""An agent of the OpenAI Agents SDK under a policy: it asks the same thing for ever, is told so, refused, and ended.

Run it: `pip install '.[openai-agents]'`, then `python examples/hosts/openai_agents_agent.py`. It needs
no key and no network, because the model is the SDK's own scripted one.
"""

from __future__ import annotations

from agents import Agent, RunConfig, function_tool
from agents.testing import ScriptedModel, function_call

from policyengine.hosts.openai_agents import PolicyRun


@function_tool
def lookup(query: str) -> str:
    """Look something up."""
    return f"no entry for {query}"


turns = [[function_call("lookup", {"query": "harbour museum"}, call_id=f"call-{number}")] for number in range(1, 20)]
agent = Agent(name="helper", model=ScriptedModel(turns), tools=[lookup])


def main() -> None:
    run = PolicyRun(agent, "unattended")
    config = RunConfig(tracing_disabled=True)
    result = run.run_sync("When is the harbour museum open?", run_config=config, max_turns=30)
    for item in result.to_input_list():
        if item.get("type") == "function_call":
            print(f"    model  {item['name']} {item['arguments']}")
        elif item.get("type") == "function_call_output":
            print(f"     tool  {item['output']}")
    print(f"      end  {result.final_output}")
    outcome = run.outcome
    print(f"\n{outcome.status}: {outcome.stop.code} by {outcome.stop.rule}")
    print(f"{outcome.calls} calls judged, {outcome.executed} run")


if __name__ == "__main__":
    main()
