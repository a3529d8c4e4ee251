"""The shape of `PolicyTest` files, as plain data for Cerberus.

Knows: every key, its type and bounds. Must not know: how files are read, what a test does.
"""

from __future__ import annotations

from policyengine.actions import RANKS
from policyengine.policy.schema import API_VERSIONS, TOOL, Schema
from policyengine.policytest.model import FAULTS

ACTIONS = (*(name for name in RANKS if name != "allow"), "hint", "record")
OUTCOMES = ("completed", "stopped", "waiting", "failed", "cancelled")
STATUSES = ("ok", "error", "timeout", "denied", "not_run")

_TEXT: Schema = {"type": "string", "maxlength": 100_000}
_NAME: Schema = {"type": "string", "minlength": 1, "maxlength": 200}
_NUMBER: Schema = {"type": "integer", "min": 0}
_NUMBERS: Schema = {
    "type": ["integer", "list"],
    "min": 1,
    "minlength": 1,
    "schema": {"type": "integer", "min": 1, "max": 100_000},
}
_PATHS: Schema = {"type": "list", "maxlength": 50, "schema": {"type": "string", "minlength": 1, "maxlength": 1000}}

CALL: Schema = {
    "tool": {"type": "string", "required": True, "maxlength": 200},
    "args": {"nullable": True},
    "arguments": _TEXT,
    "result": _TEXT,
    "status": {"type": "string", "allowed": list(STATUSES)},
    "exit_code": {"type": "integer"},
    "error": {
        "type": "dict",
        "schema": {
            "code": {"type": "string", "required": True},
            "message": _TEXT,
            "retryable": {"type": "boolean"},
            "declared": {"type": "boolean"},
        },
    },
}

PROVIDER_ERROR: Schema = {
    "code": {"type": "string", "required": True},
    "message": _TEXT,
    "status": {"type": "integer"},
    "retry_after_s": {"type": "number", "min": 0},
    "retry_same_request": {"type": "boolean"},
    "remedies": {"type": "list", "schema": {"type": "string"}},
    "ids": {"type": "list", "schema": {"type": "string"}},
    "request_id": _TEXT,
    **{
        name: {"type": "integer"}
        for name in (
            *("tokens", "limit", "requested", "max_tokens", "input_tokens"),
            *("size_bytes", "limit_bytes", "message_index", "position"),
        )
    },
}

TURN: Schema = {
    "times": {"type": "integer", "min": 1, "max": 1000},
    "calls": {"type": "list", "maxlength": 1000, "schema": {"type": "dict", "schema": CALL}},
    "text": _TEXT,
    "reasoning": _TEXT,
    "finish_reason": _TEXT,
    "model": _TEXT,
    "usage": {
        "type": "dict",
        "schema": dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _NUMBER),
    },
    "error": {"type": "dict", "schema": PROVIDER_ERROR},
}
"""A turn of a script, which may be played several times."""

EXPECT: Schema = {
    "at": _NUMBERS,
    "call": _NUMBERS,
    "rule": _NAME,
    "action": {"type": "string", "allowed": list(ACTIONS)},
    "wants": {"type": "string", "allowed": list(ACTIONS)},
    "code": _NAME,
    "tool": _NAME,
    "allow": _NAME,
    "until": {"type": "integer", "min": 1, "max": 100_000},
    "error": _NAME,
    "outcome": {"type": "string", "allowed": list(OUTCOMES)},
    "executed": {"type": "integer", "min": 0, "max": 100_000},
}

FORMS: dict[str, tuple[str, ...]] = {
    "outcome": ("outcome", "executed", "rule", "code"),
    "allow": ("allow", "until", "tool"),
    "error": ("error", "at"),
    "rule": ("rule", "at", "call", "action", "wants", "code", "tool"),
}
"""Which keys an expectation of each form may have; the form is that of the first of these keys it has."""

TOOLS: Schema = {
    "type": "dict",
    "maxlength": 1000,
    "keysrules": {"type": "string", "minlength": 1, "maxlength": 200},
    "valuesrules": {"type": "dict", "schema": TOOL},
}
CASE: Schema = {
    "name": {"type": "string", "required": True, "minlength": 1, "maxlength": 200},
    "task": _NAME,
    "agent": _NAME,
    "protocol": {"type": "string", "allowed": ["native", "text"]},
    "pace": {"type": "string", "check_with": "duration", "meta": {"form": "duration"}},
    "today": {"type": "string", "check_with": "day"},
    "human": {"type": "string", "allowed": ["approves", "refuses"]},
    "tools": TOOLS,
    "turns": {
        "type": "list",
        "required": True,
        "minlength": 1,
        "maxlength": 10_000,
        "schema": {"type": "dict", "schema": TURN},
    },
    "faults": {
        "type": "dict",
        "keysrules": {"type": "string"},
        "valuesrules": {"type": "string", "allowed": list(FAULTS)},
    },
    "expect": {
        "type": "list",
        "required": True,
        "minlength": 1,
        "maxlength": 1000,
        "schema": {"type": "dict", "schema": EXPECT},
    },
}
FILE: Schema = {
    "apiVersion": {"type": "string", "required": True, "allowed": list(API_VERSIONS)},
    "kind": {"type": "string", "required": True, "allowed": ["PolicyTest"]},
    "policy": {"type": "string", "required": True, "minlength": 1, "maxlength": 1000},
    "overlays": _PATHS,
    "folders": _PATHS,
    "tools": TOOLS,
    "tests": {"type": "list", "required": True, "maxlength": 10_000, "schema": {"type": "dict", "schema": CASE}},
}
"""A whole file of kind `PolicyTest`."""
