"""One line about every key of a file of kind `PolicyTest`, for editors.

Knows: the keys by path (`*` for any key or item). Must not know: their types and bounds, which the shape has.
"""

from __future__ import annotations

from policyengine.policy.about import ABOUT

_TOOLS = {path: line for path, line in ABOUT.items() if path.startswith("tools.")}

_EXPECT = {
    "rule": "The rule that answers; beside `outcome`, the rule that ended the run.",
    "at": "The rounds in which it does, and in no other up to the last one named.",
    "call": "The same, counted in calls.",
    "action": "The answer as the rule's mode leaves it.",
    "wants": "The answer before its mode, for rules in `shadow` and `warn`.",
    "code": "The machine reason of the answer or of the end.",
    "tool": "Only calls of tools with this name or pattern count.",
    "allow": "The rule that is asked and has nothing against the run.",
    "until": "Up to this round; to the end where this is left out.",
    "error": "The rule that fails.",
    "outcome": "How the run ends.",
    "executed": "How many calls ran.",
}
_CALL = {
    "tool": "The name of the tool.",
    "args": "The arguments.",
    "arguments": "The arguments as text, as a model wrote them.",
    "result": "What the tool returns.",
    "status": "What became of the call.",
    "exit_code": "The exit code that the tool reports.",
    "error": "The failure that the tool reports.",
    "error.code": "The machine reason.",
    "error.message": "The text.",
    "error.retryable": "Whether to try again may help.",
    "error.declared": "Whether the tool itself says so.",
}
_ERROR = {
    "code": "The class of the failure.",
    "message": "The text.",
    "status": "The status of HTTP.",
    "retry_after_s": "How many seconds the provider asks to wait.",
    "retry_same_request": "Whether the same request may succeed later.",
    "remedies": "What may help, best first.",
    "ids": "The tool calls that it is about.",
    "request_id": "The provider's name of the request.",
    "tokens": "How many tokens were sent.",
    "limit": "The limit that was hit.",
    "requested": "How much was asked for.",
    "max_tokens": "How long the answer might have been.",
    "input_tokens": "How many tokens the input has.",
    "size_bytes": "How large the request was.",
    "limit_bytes": "How large it may be.",
    "message_index": "Which message is at fault, from 0.",
    "position": "Where in it.",
}
_TURN = {
    "times": "How often the turn is played.",
    "calls": "The calls that the model makes.",
    **{f"calls.*.{name}": line for name, line in _CALL.items()},
    "text": "What the model says.",
    "reasoning": "What it thinks.",
    "finish_reason": "Why the response ends.",
    "model": "The model that answers.",
    "usage": "What the response costs.",
    "usage.prompt_tokens": "Tokens of the request.",
    "usage.completion_tokens": "Tokens of the response.",
    "usage.total_tokens": "Both together.",
    "error": "The request fails in this way.",
    **{f"error.{name}": line for name, line in _ERROR.items()},
}
_TEST = {
    "name": "What is tested; unique in the file.",
    "task": "What the user asks for.",
    "agent": "The name of the agent, for selectors of rules.",
    "protocol": "How calls are made.",
    "pace": "How long each response takes.",
    "today": "The day on which exceptions of the policy expire.",
    "human": "What a human answers where a rule asks; without it the run waits.",
    "tools": "Facts about tools, before those of the policy. The turns may call no other tool.",
    **_TOOLS,
    "turns": "What the model does, turn by turn.",
    **{f"turns.*.{name}": line for name, line in _TURN.items()},
    "faults": "Rules that fail whenever they are asked, and how.",
    "expect": "What must hold.",
    **{f"expect.*.{name}": line for name, line in _EXPECT.items()},
}

ABOUT_TESTS: dict[str, str] = {
    "apiVersion": ABOUT["apiVersion"],
    "kind": ABOUT["kind"],
    "policy": "The policy that is tested: a shipped one by name, or a file beside this one.",
    "overlays": "Overlays on it, in order.",
    "folders": "Folders of drop-in extensions.",
    "tools": "Facts about tools for all tests. The turns may call no other tool.",
    **_TOOLS,
    "tests": "The tests; each is a run of its own.",
    **{f"tests.*.{name}": line for name, line in _TEST.items()},
}
"""The lines by key path."""
