"""A real MCP server, made with the SDK: over stdio, or over HTTP at the port that is given."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations

server = MCPServer("cellar")
marks = Path(sys.argv[1])


def mark(name: str) -> int:
    """Count a call where it can be counted after this process is gone."""
    path = marks / name
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    return len(path.read_text())


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look(place: str) -> str:
    """Look somewhere."""
    return f"a key lies {place}"


@server.tool(annotations=ToolAnnotations(destructive_hint=False, idempotent_hint=True))
def put(place: str) -> dict[str, str]:
    """Put the key somewhere."""
    return {"where": place}


@server.tool()
def burn(place: str) -> str:
    """Burn what is there."""
    raise ToolError(f"{place} is wet")


@server.tool()
def flagged() -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text="no such shelf")], is_error=True)


@server.tool()
def picture() -> list[TextContent | ImageContent]:
    return [TextContent(type="text", text="seen"), ImageContent(type="image", data="aGk=", mime_type="image/png")]


@server.tool()
async def sleep(seconds: float) -> str:
    mark("slept")
    try:
        await anyio.sleep(seconds)
    except BaseException:
        mark("cancelled")
        raise
    return "rested"


@server.tool(name="crash.now")
def crash() -> str:
    mark("crashed")
    os._exit(3)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def crash_once() -> str:
    """Crash the first time only."""
    if mark("once") == 1:
        time.sleep(0.05)
        os._exit(3)
    return "second time"


if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
