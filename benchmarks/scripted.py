"""A scripted run of any length: the calls and results that the timings are taken over.

Knows: payloads. Must not know: policies, clocks.

Every call has about 200 bytes of arguments, every result 1 KB. Calls are distinct, except as in a run that works: one
call in eleven is made a second time four steps later and answers as before (a file is read again), one in
twenty-three is made again two steps later and answers differently (tests run again after an edit). No rule of a
shipped policy objects to that, so what is timed is the usual case, a call that may run.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from policyengine.messages import ModelResponse, ToolCall, ToolResult

TOOLS = ("read_file", "search", "run_tests", "edit_file", "list_files")
RESULT_BYTES = 1024


class Step(NamedTuple):
    """One round: the model's response with its one call, and the result of that call."""

    response: ModelResponse
    call: ToolCall
    result: ToolResult


def step(run: int, number: int) -> Step:
    """Return round `number` of run `run`; runs differ in all their calls, and in which of their rounds repeat one."""
    position = run + number
    asked, answered = number, number
    if position % 11 == 0 and number > 4:
        asked = answered = number - 4
    elif position % 23 == 8 and number > 2:
        asked = number - 2
    arguments = _arguments(run, asked)
    text = json.dumps(arguments, separators=(",", ":"))
    call = ToolCall(f"call_{run}_{number}", TOOLS[asked % len(TOOLS)], text, arguments)
    response = ModelResponse("I will look at the next part.", (call,), finish_reason="tool_calls")
    return Step(response, call, ToolResult(call.id, _result(run, answered)))


def _arguments(run: int, number: int) -> dict[str, Any]:
    return {
        "path": f"src/package_{run}_{number % 97}/module_{number}.py",
        "query": f"where is symbol number {number} defined, and who uses it",
        "options": {"recursive": True, "case": False, "kinds": ["class", "function"]},
        "first_line": number,
        "last_line": number + 40,
    }


def _result(run: int, number: int) -> str:
    line = f"module {number} of package {run}: a line of text that the tool returns\n"
    return (line * (RESULT_BYTES // len(line) + 1))[:RESULT_BYTES]
