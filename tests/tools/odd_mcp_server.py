"""An MCP server written by hand: it counts its calls, gives answers that no SDK would send, and hangs for good."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

ANSWERS: dict[str, Any] = {
    "new_block": {"content": [{"type": "video", "data": "x"}]},
    "bad_structure": {"content": [{"type": "text", "text": "seven"}], "structuredContent": {"n": "seven"}},
}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def listed(name: str) -> dict[str, Any]:
    made = {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    return {**made, "outputSchema": NUMBER} if name == "bad_structure" else made


def answer_of(name: str, calls: int) -> dict[str, Any]:
    if name == "hang":
        time.sleep(1000)
    return ANSWERS.get(name) or {"content": [{"type": "text", "text": f"call {calls}"}]}


calls = 0
for line in sys.stdin:
    request = json.loads(line)
    method, result = request.get("method"), None
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
        result = {"protocolVersion": request["params"]["protocolVersion"], **about}
    elif method == "tools/list":
        result = {"tools": [listed(name) for name in ("count", "hang", *ANSWERS)]}
    elif method == "tools/call":
        calls += 1
        result = answer_of(request["params"]["name"], calls)
    if request.get("id") is not None:
        error = {"code": -32601, "message": "no such method"}
        said = {"error": error} if result is None else {"result": result}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}) + "\n")
        sys.stdout.flush()
