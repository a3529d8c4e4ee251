"""The shape of policy files, as plain data for Cerberus.

Knows: every key of a Policy and an Overlay, its type, bounds and default. Must not know: how files are read or
validated, extensions and their options.

`meta.form` names what a text must be beside its type (`duration`, `regex`, `mode`); `default` is applied by
`policyengine.policy.defaults`, never by Cerberus.
"""

from __future__ import annotations

from typing import Any

from policyengine.hooks import HOOKS
from policyengine.plugins.blocks import PATTERN
from policyengine.policy.versions import RANGE

Schema = dict[str, Any]

API_VERSIONS = ("policyengine/v1",)
"""Versions of the policy format that this engine reads."""

MODES = ("enforce", "warn", "shadow", "disabled")
LOG_FIELDS = ("arguments", "results", "messages")
"""What `log.include` may add to the content-free decision log."""

ROLLOUT_BY = ("run_id", "agent", "conversation")
"""What keeps being in or out of a rollout."""

MAX_RULES = 1000

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z"
_TEXT: Schema = {"type": "string", "minlength": 1, "maxlength": 200}
_TEXTS: Schema = {"type": ["string", "list"], "minlength": 1, "maxlength": 200, "schema": _TEXT}
_NOBODY = r"^(?!!\*?$)"
_AGENTS: Schema = {**_TEXTS, "schema": {**_TEXT, "meta": {"pattern": _NOBODY}}, "meta": {"pattern": _NOBODY}}
"""Patterns of agents in the selector of a rule; one that excludes everybody is an error (R505)."""
_PREFIX = r"^(?!\s)"
_PREFIXES: Schema = {**_TEXTS, "schema": {**_TEXT, "meta": {"pattern": _PREFIX}}, "meta": {"pattern": _PREFIX}}
"""Results are compared without leading blanks, so that a prefix has none (R509)."""
_REGEX: Schema = {"type": "string", "minlength": 1, "maxlength": 500, "check_with": "regex"}
_DURATION: Schema = {"type": "string", "check_with": "duration", "meta": {"form": "duration"}}
_DAY: Schema = {"type": "string", "check_with": "day"}
_POINTER: Schema = {"type": "string", "maxlength": 500, "check_with": "pointer"}
_MODE: Schema = {"type": "string", "allowed": list(MODES), "meta": {"form": "mode"}}
_ON_ERROR: Schema = {"type": "string", "allowed": ["deny", "stop", "allow"]}

RULE: Schema = {
    "use": {"type": "string", "regex": _NAME},
    "at": {
        "type": ["string", "list"],
        "minlength": 1,
        "maxlength": 100,
        "schema": {"type": "string", "minlength": 1, "maxlength": 100},
        "meta": {"names": sorted(HOOKS)},
    },
    "with": {"type": "dict", "meta": {"about": "validated by the extension's own schema"}},
    "when": {"type": "dict", "schema": {"tool": _TEXTS, "agent": _AGENTS}},
    "mode": _MODE,
    "on_error": _ON_ERROR,
    "timeout": _DURATION,
    "order": {"type": "dict", "schema": {"after": _TEXTS, "before": _TEXTS}},
    "locked": {"type": "boolean"},
    "rollout": {
        "type": "dict",
        "schema": {
            "percent": {"type": "number", "min": 0, "max": 100, "required": True},
            "by": {"type": "string", "allowed": list(ROLLOUT_BY)},
            "salt": {"type": "string", "maxlength": 200},
        },
    },
}
"""One entry under `extensions:`."""

EXCEPTION: Schema = {
    "rule": {"type": "string", "regex": _NAME, "required": True},
    "when": {"type": "dict", "schema": {"tool": _TEXTS, "agent": _TEXTS}},
    "expires": {**_DAY, "required": True},
    "owner": {**_TEXT, "required": True},
    "reason": {**_TEXT, "required": True, "maxlength": 1000},
}
"""One entry under `exceptions:`."""

TOOL: Schema = {
    "effect": {"type": "string", "allowed": ["read", "write", "exec", "poll"]},
    "timeout": _DURATION,
    "result_mask": {**_REGEX, "type": ["string", "list"], "schema": _REGEX},
    "failure": {"type": "dict", "schema": {"text_prefix": _PREFIXES}},
}
"""One entry under `tools:`."""

_WORD: Schema = {"type": "string", "regex": r"[^\s<>()\[\]{}]{1,60}\Z"}

FORM: Schema = {
    "form": {"type": "string", "allowed": ["tag", "line", "call", "python", "prose"], "required": True},
    "word": _WORD,
    "argument": _WORD,
    "payload": _WORD,
    "tool": _WORD,
    "answer": {"type": "boolean"},
}
"""One entry under `parsing.forms`: one way to write a call in a declared text protocol (`policyengine.Form`)."""

PARSING: dict[str, tuple[Schema, Any]] = {
    "mode": ({"type": "string", "allowed": ["strict", "fenced", "lenient", "repair", "native"]}, "strict"),
    "max_retry": ({"type": "integer", "min": 0, "max": 10}, 0),
    "text_fallback": ({"type": "boolean"}, False),
    "arguments": ({"type": "string", "allowed": ["off", "check", "coerce"]}, "off"),
    "repair_calls": ({"type": "integer", "min": 0, "max": 3}, 0),
    "forms": ({"type": "list", "maxlength": 20, "schema": {"type": "dict", "schema": FORM, "check_with": "form"}}, []),
}
"""Settings of parsing with their defaults. Under `models:` they have none; what is not given there is general."""

SETTINGS: Schema = {
    "requires": {
        "type": "dict",
        "default": {},
        "schema": {
            "policyengine": {**_TEXT, "meta": {"pattern": RANGE}},
            "extensions": {
                "type": "dict",
                "default": {},
                "keysrules": {"type": "string", "regex": _NAME},
                "valuesrules": {"type": "string", "maxlength": 200, "meta": {"pattern": rf"^\s*\*?\s*$|{RANGE}"}},
            },
            "block": {
                "type": "list",
                "default": [],
                "maxlength": 1000,
                "schema": {"type": "string", "regex": rf"{PATTERN}\Z"},
            },
        },
    },
    "prompts": {"type": "list", "default": [], "maxlength": 20, "schema": _TEXT},
    "defaults": {
        "type": "dict",
        "default": {},
        "schema": {
            "mode": {**_MODE, "default": "enforce"},
            "on_error": {**_ON_ERROR, "default": "deny"},
            "timeout": {**_DURATION, "default": "250ms"},
        },
    },
    "protocol": {"type": "string", "allowed": ["auto", "native", "text"], "default": "auto"},
    "tool_results": {"type": "string", "allowed": ["text", "envelope"], "default": "text"},
    "language": {"type": "string", "regex": r"[a-z]{2,3}(-[A-Za-z0-9]{1,8})*\Z", "default": "en"},
    "parsing": {
        "type": "dict",
        "default": {},
        "schema": {name: {**rule, "default": default} for name, (rule, default) in PARSING.items()},
    },
    "models": {
        "type": "dict",
        "default": {},
        "maxlength": 200,
        "keysrules": {"type": "string", "minlength": 1, "maxlength": 200},
        "valuesrules": {
            "type": "dict",
            "schema": {
                "parsing": {"type": "dict", "schema": {name: rule for name, (rule, _) in PARSING.items()}},
                "window": {"type": "integer", "min": 256, "max": 100_000_000},
                "reasoning": {"type": "string", "allowed": ["replay", "with_calls", "drop"]},
            },
        },
    },
    "kill_switch": {"type": "boolean", "default": False},
    "plan": {
        "type": "dict",
        "default": {},
        "schema": {
            "mode": {"type": "string", "allowed": ["off", "steps"], "default": "off"},
            "decompose": {"type": "boolean", "default": True},
            "max_steps": {"type": "integer", "min": 1, "max": 50, "default": 30},
            "summaries": {"type": "boolean", "default": False},
        },
    },
    "interventions": {
        "type": "dict",
        "default": {},
        "schema": {
            "max": {"type": "integer", "min": 1, "max": 1000, "default": 10},
            "then": {"type": "string", "allowed": ["hand_over", "stop"], "default": "hand_over"},
        },
    },
    "wind_down": {
        "type": "dict",
        "default": {},
        "schema": {"rounds": {"type": "integer", "min": 1, "max": 10, "default": 2}},
    },
    "tools": {
        "type": "dict",
        "default": {},
        "maxlength": 1000,
        "keysrules": {"type": "string", "minlength": 1, "maxlength": 200},
        "valuesrules": {"type": "dict", "schema": TOOL},
    },
    "extensions": {
        "type": "dict",
        "default": {},
        "keysrules": {"type": "string", "regex": _NAME},
        "valuesrules": {"type": "dict", "schema": RULE},
    },
    "exceptions": {
        "type": "list",
        "default": [],
        "maxlength": 1000,
        "schema": {"type": "dict", "schema": EXCEPTION},
    },
    "log": {
        "type": "dict",
        "default": {},
        "schema": {
            "include": {"type": "list", "default": [], "schema": {"type": "string", "allowed": list(LOG_FIELDS)}},
            "mask": {"type": "list", "default": [], "maxlength": 100, "schema": _POINTER},
            "sample": {
                "type": "dict",
                "default": {},
                "schema": {"allow": {"type": "number", "min": 0, "max": 1, "default": 1}},
            },
        },
    },
    "reload": {
        "type": "dict",
        "default": {},
        "schema": {
            "pin": {"type": "string", "allowed": ["run", "iteration"], "default": "run"},
            "settle": {**_DURATION, "default": "300ms"},
            "max_staleness": _DURATION,
        },
    },
}
"""What a layer may set; merged from all layers before it is validated."""

_HEADER: Schema = {
    "apiVersion": {"type": "string", "required": True, "allowed": list(API_VERSIONS)},
    "kind": {"type": "string", "required": True},
    "revision": {"type": "string", "maxlength": 200},
}
POLICY_HEADER: Schema = {
    **_HEADER,
    "kind": {"type": "string", "required": True, "allowed": ["Policy"]},
    "name": {"type": "string", "required": True, "regex": _NAME},
    "extends": {"type": ["string", "list"], "minlength": 1, "maxlength": 500, "schema": {**_TEXT, "maxlength": 500}},
}
"""Keys of a policy file that say what the file is; they are not inherited."""

OVERLAY_HEADER: Schema = {
    **_HEADER,
    "kind": {"type": "string", "required": True, "allowed": ["Overlay"]},
    "target": {"type": "string", "required": True, "regex": _NAME},
}
"""Keys of an overlay file that say what the file is."""

POLICY: Schema = {**POLICY_HEADER, **SETTINGS}
"""A whole policy file."""

OVERLAY: Schema = {**OVERLAY_HEADER, **SETTINGS}
"""A whole overlay file, before its operators are applied."""

FIXED: tuple[tuple[str, ...], ...] = (
    ("requires", "*"),
    ("requires", "*", "*"),
    ("prompts", "*"),
    ("exceptions", "*", "rule"),
    ("extensions", "*", "use"),
    ("extensions", "*", "locked"),
    ("extensions", "*", "at"),
    ("extensions", "*", "at", "*"),
    ("extensions", "*", "order", "*"),
    ("extensions", "*", "order", "*", "*"),
)
"""What may not come from an environment variable: which code a policy is made of and how it is put together."""


def is_fixed(path: tuple[str | int, ...]) -> bool:
    """Return whether a setting may not come from an environment variable."""
    return _listed_in(FIXED, path)


def is_options(path: tuple[str | int, ...]) -> bool:
    """Return whether this is the place of a rule's options."""
    return _listed_in((("extensions", "*", "with"),), path)


def _listed_in(places: tuple[tuple[str, ...], ...], path: tuple[str | int, ...]) -> bool:
    return any(
        len(path) == len(known) and all(mark in ("*", key) for mark, key in zip(known, path, strict=True))
        for known in places
    )
