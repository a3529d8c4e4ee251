"""An MCP server and an agent that uses its tools, in one file: the agent starts the server as a command.

It needs the package `mcp`, and no key: python examples/providers/mcp_tools.py
"""

import sys

if "--serve" in sys.argv:
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    server = MCPServer("cellar")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def look(place: str) -> str:
        """Look somewhere."""
        return f"a key lies in the {place}"

    @server.tool()
    def crash() -> str:
        """End the server in the middle of a call."""
        sys.stdout.close()
        import os

        os._exit(1)

    server.run("stdio")
    sys.exit()

from policyengine import Agent, Engine, Script, call, say
from policyengine.providers.scripted import ScriptedModel
from policyengine.tools.mcp import McpServer

turns = (call("crash"), call("look", {"place": "drawer"}), say("It is in the drawer."))
with McpServer.over_stdio(sys.executable, [__file__, "--serve"], timeout_s=30) as server:
    tools = server.tools()
    for tool in tools:
        print(f"{tool.spec.name}: claims {tool.effect or 'nothing'}")
    outcome = Agent(Engine("default"), ScriptedModel(Script("Find the key.", turns)), tools).run("Find the key.")
for message in outcome.messages:
    if message.role == "tool":
        print(f"{message.name}: {message.text}")
print(f"{outcome.status}: {outcome.output}")
