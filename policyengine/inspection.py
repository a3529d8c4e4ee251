"""What is missing in an agent: its tools' schemas, its system prompt, and what a policy says about them.

Knows: tool specs as data, loaded policies, what providers refuse.
Must not know: how an agent is found, models, how findings are shown. Nothing here calls a model or a tool.

A finding is an *error* where a provider would refuse the request or the agent cannot work as it is declared, and a
*warning* where it works, but nothing bounds it or the model is not told enough.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from policyengine.arguments import SchemaError, check_schema
from policyengine.messages import ToolSpec
from policyengine.parsing.parse import ANSWER_TOOL
from policyengine.policy.model import Policy, Rule, matches
from policyengine.policy.wording import closest, dotted

Severity = Literal["error", "warning"]

STEP_CAPS = ("step_limit",)
BUDGETS = ("tool_call_limit", "token_budget", "cost_budget", "wall_clock")
BREAKERS = ("stop_unusable_response_loop", "parse_failures")
STALL_DETECTORS = ("stall_detector",)
"""Which built-in extensions give an agent what; `use` of a rule is compared with these names."""

PROMPT_WORDS = 12
"""A system prompt of fewer words, sentences about the role aside, is vague; a CJK character counts as half a word."""
ROLE_WORDS = 15
"""A longer sentence says more than a role, however it begins."""

MAX_DEPTH = 32
"""Parts of a schema that are nested deeper are not looked at."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME_START = re.compile(r"[A-Za-z_]")
_ROLE = re.compile(
    r"(?:you are|you're|you will be|act as|as an? |be |your (?:role|name) is|your job is to help)\b", re.I
)
_SENTENCE = re.compile(r"(?<=[.!?\n。！？])\s*")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
_PLACEHOLDER = re.compile(r"\{\{.{0,80}?\}\}|\{[a-z_][a-z0-9_]{0,40}\}|<[A-Z][A-Z0-9_ ]{1,40}>|\b(?:TODO|TBD|FIXME)\b")


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that is missing or wrong. `where` names the part of the agent, `help` what to do about it."""

    severity: Severity
    code: str
    where: str
    message: str
    help: str


def inspect_parts(
    tools: Sequence[ToolSpec], policy: Policy, system: str, *, text_protocol: bool = False
) -> list[Finding]:
    """Return everything that is missing in an agent with these tools and this system prompt under a policy."""
    return [
        *name_findings(tools, text_protocol=text_protocol),
        *(finding for tool in tools for finding in schema_findings(tool)),
        *policy_findings(tools, policy),
        *selector_findings(tools, policy),
        *prompt_findings(system),
    ]


# ---- names


def name_findings(tools: Sequence[ToolSpec], *, text_protocol: bool = False) -> Iterator[Finding]:
    """Yield what is wrong with the names of tools: what providers refuse, and what cannot be told apart."""
    counts = Counter(tool.name for tool in tools)
    folded: dict[str, str] = {}
    for name, count in counts.items():
        where = f"tool {name!r}"
        if not _NAME.fullmatch(name):
            message = "providers refuse this name"
            help_text = "use 1 to 64 of the letters A-Z and a-z, digits, `_` and `-`"
            yield Finding("error", "tool_name", where, message, help_text)
        elif not _NAME_START.match(name):
            message = "some providers refuse a name that does not begin with a letter or `_`"
            yield Finding("warning", "tool_name_start", where, message, "begin the name with a letter")
        if count > 1:
            message = f"{count} tools have this name; a call cannot say which is meant"
            yield Finding("error", "duplicate_tool", where, message, "give each tool a name of its own")
        other = folded.setdefault(re.sub(r"[-_]", "", name.casefold()), name)
        if other != name:
            message = f"differs from {other!r} only in case, `_` or `-`; models mix such names up"
            yield Finding("warning", "similar_names", where, message, "name the tools after what differs")
        if name == ANSWER_TOOL and text_protocol:
            message = "in the text protocol this name is the final answer, so the tool can never be called"
            yield Finding("error", "reserved_name", where, message, "give it another name")


# ---- schemas


def schema_findings(tool: ToolSpec) -> Iterator[Finding]:
    """Yield what a tool's description and the schema of its arguments leave open."""
    where = f"tool {tool.name!r}"
    if not tool.description.strip():
        message = "has no description; the model has to guess from its name what it does"
        yield Finding("warning", "no_description", where, message, "say in a sentence what it does and when to use it")
    schema = tool.parameters
    if not schema:
        message = "has no schema; the model is not told what it takes"
        yield Finding("warning", "no_schema", where, message, 'give `{"type": "object", "properties": {...}}`')
        return
    try:
        check_schema(schema, tool.name)
    except SchemaError as error:
        place = f" at {error.path}" if error.path else ""
        message = f"the schema is no JSON Schema{place}: {error.detail}"
        yield Finding("error", "invalid_schema", where, message, "correct it; no argument can be checked against it")
        return
    if schema.get("type") != "object" and not any(key in schema for key in ("$ref", "allOf", "anyOf", "oneOf")):
        message = f"the arguments are not declared as an object (type {schema.get('type')!r}); providers refuse that"
        yield Finding("error", "not_object", where, message, 'give `"type": "object"` at the top')
    yield from _part_findings(schema, where, "", required=False, depth=0)


def _part_findings(part: Any, where: str, path: str, *, required: bool, depth: int) -> Iterator[Finding]:
    """Yield what one part of a schema leaves open, and what the parts inside it do."""
    if not isinstance(part, Mapping) or depth > MAX_DEPTH:
        return
    if path:
        yield from _value_findings(part, f"{where}, parameter {path}", required)
    yield from _object_findings(part, where, path)
    needed = part.get("required")
    needed = needed if isinstance(needed, Sequence) and not isinstance(needed, str) else ()
    properties = part.get("properties")
    for name, inner in properties.items() if isinstance(properties, Mapping) else ():
        below = f"{path}.{name}" if path else str(name)
        if isinstance(inner, Mapping) and not str(inner.get("description") or "").strip() and "$ref" not in inner:
            message = "has no description"
            help_text = "say what it means, in which unit or form, and what happens without it"
            yield Finding("warning", "no_parameter_description", f"{where}, parameter {below}", message, help_text)
        yield from _part_findings(inner, where, below, required=name in needed, depth=depth + 1)
    for inner, below in _inner(part, path):
        yield from _part_findings(inner, where, below, required=required, depth=depth + 1)


def _inner(part: Mapping[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    items = part.get("items")
    if isinstance(items, Mapping):
        yield items, f"{path}[]"
    for key in ("anyOf", "oneOf", "allOf"):
        branches = part.get(key)
        for branch in branches if isinstance(branches, list | tuple) else ():
            # What only adds a condition to the part around it leaves nothing open itself.
            if isinstance(branch, Mapping) and ("type" in branch or "properties" in branch):
                yield branch, path
    for key in ("$defs", "definitions"):
        named = part.get(key)
        for name, inner in named.items() if isinstance(named, Mapping) else ():
            yield inner, f"{path}#{name}"


def _types(part: Mapping[str, Any]) -> tuple[str, ...]:
    kind = part.get("type")
    return (kind,) if isinstance(kind, str) else tuple(map(str, kind)) if isinstance(kind, list | tuple) else ()


def _value_findings(part: Mapping[str, Any], where: str, required: bool) -> Iterator[Finding]:
    if any(key in part for key in ("enum", "const", "$ref")):
        return
    types = _types(part)
    if not types:
        if not any(key in part for key in ("anyOf", "oneOf", "allOf", "properties")):
            message = "has no type; any value fits"
            yield Finding("warning", "no_type", where, message, "give a `type` or an `enum`")
        return
    if {"integer", "number"} & set(types):
        missing = [
            name
            for name, other in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
            if name not in part and other not in part
        ]
        if missing:
            message = f"is a number without {' and '.join(missing)}; a model sends -1 and 10**9 too"
            yield Finding("warning", "no_range", where, message, "give the range that makes sense")
    if "string" in types and required and not _rules_empty_out(part):
        message = "is a required text that may be empty"
        help_text = "give `minLength: 1`, a `pattern`, a `format` or an `enum`"
        yield Finding("warning", "empty_string", where, message, help_text)
    if "array" in types:
        if "maxItems" not in part:
            message = "is a list of any length"
            yield Finding(
                "warning", "no_bounds", where, message, "give `maxItems`, and `minItems` where none is useless"
            )
        if not any(key in part for key in ("items", "prefixItems")):
            message = "is a list of anything; some providers refuse that"
            yield Finding("warning", "no_items", where, message, "give `items`")


def _rules_empty_out(part: Mapping[str, Any]) -> bool:
    length = part.get("minLength")
    return "pattern" in part or "format" in part or (isinstance(length, int) and length >= 1)


def _object_findings(part: Mapping[str, Any], where: str, path: str) -> Iterator[Finding]:
    if "object" not in _types(part):
        return
    place = f"{where}, parameter {path}" if path else where
    properties = part.get("properties")
    known = list(properties) if isinstance(properties, Mapping) else []
    closed = part.get("additionalProperties") is False or part.get("unevaluatedProperties") is False
    if not closed and not isinstance(part.get("additionalProperties"), Mapping):
        message = "takes arguments that are not declared; a misspelt one is dropped in silence"
        yield Finding("warning", "open_object", place, message, "give `additionalProperties: false`")
    needed = part.get("required")
    for name in needed if isinstance(needed, list | tuple) else ():
        if closed and name not in known:
            near = closest(str(name), known)
            message = f"{name!r} is required and not declared, so no call is valid"
            help_text = f"did you mean {near!r}?" if near else "declare it under `properties`, or do not require it"
            yield Finding("error", "unknown_required", place, message, help_text)


# ---- the policy


def policy_findings(tools: Sequence[ToolSpec], policy: Policy) -> Iterator[Finding]:
    """Yield what a policy does not say about these tools, and which bounds it lacks."""
    for tool in tools:
        where = f"tool {tool.name!r}"
        if not declares_effect(policy, tool.name):
            message = "the policy declares no effect, so it counts as `exec`"
            help_text = f"tools: {{{_key(tool.name)}: {{effect: read}}}} (or write, exec, poll)"
            yield Finding("warning", "no_effect", where, message, help_text)
        if policy.tool(tool.name).timeout_s is None:
            message = "has no time limit; a call that hangs holds the run up for ever"
            help_text = f"tools: {{{_key(tool.name)}: {{timeout: 30s}}}}"
            yield Finding("warning", "no_timeout", where, message, help_text)
    if tools and policy.parsing.arguments == "off":
        message = "arguments are not checked against the schemas (`parsing.arguments` is off)"
        yield Finding("warning", "arguments_unchecked", "policy", message, "parsing: {arguments: check} or coerce")
    for code, names, what in (
        ("no_step_cap", STEP_CAPS, "nothing limits the number of rounds"),
        ("no_budget", BUDGETS, "nothing limits calls, tokens, money or time"),
        ("no_breaker", BREAKERS, "nothing ends a run whose replies cannot be used"),
        ("no_stall_detector", STALL_DETECTORS, "nothing notices that the agent repeats itself"),
    ):
        yield from _lacking(policy, code, names, what)


def _lacking(policy: Policy, code: str, names: tuple[str, ...], what: str) -> Iterator[Finding]:
    present = [rule for rule in policy.rules if rule.use in names]
    if any(rule.mode == "enforce" for rule in present):
        return
    if present:
        what += f": rule {present[0].id!r} is in mode {present[0].mode}"
        yield Finding("warning", code, "policy", what, f"extensions: {{{present[0].id}: {{mode: enforce}}}}")
        return
    listed = names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    yield Finding("warning", code, "policy", what, f"add a rule that uses {listed}")


def declares_effect(policy: Policy, tool: str) -> bool:
    """Return whether the policy says what effect a tool has, be it `exec`."""
    if policy.tool(tool).effect != "exec":
        return True
    for pattern, _ in sorted(policy.tools, key=lambda entry: entry[0] != tool):
        if pattern == tool or matches((pattern,), tool):
            # The first entry that fits is the one in force; `exec` in it may be the default or be written there.
            return dotted(("tools", pattern, "effect")) in policy.provenance
    return False


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f'"{name}"'


def selector_findings(tools: Sequence[ToolSpec], policy: Policy) -> Iterator[Finding]:
    """Yield patterns of a policy that select none of the tools."""
    names = [tool.name for tool in tools]
    for pattern, _ in policy.tools:
        if not _selects(pattern, names):
            yield _selects_nothing(f"policy, tools.{pattern}", pattern, names)
    for rule in policy.rules:
        if rule.mode == "disabled":
            continue
        for place, pattern in _patterns(rule):
            if not _selects(pattern, names):
                yield _selects_nothing(f"policy, extensions.{rule.id}.{place}", pattern, names)


def _patterns(rule: Rule) -> Iterator[tuple[str, str]]:
    for pattern in rule.when.tool:
        yield "when.tool", pattern
    per_tool = rule.options.get("tools")
    for pattern in per_tool if isinstance(per_tool, Mapping) else ():
        yield "with.tools", str(pattern)


def _selects(pattern: str, names: Sequence[str]) -> bool:
    return any(matches((pattern.removeprefix("!"),), name) for name in names)


def _selects_nothing(where: str, pattern: str, names: Sequence[str]) -> Finding:
    near = closest(pattern.removeprefix("!"), names)
    help_text = f"did you mean {near!r}?" if near else f"the agent has: {', '.join(names[:12]) or 'no tools'}"
    return Finding("warning", "selects_no_tool", where, f"{pattern!r} selects none of the agent's tools", help_text)


# ---- the system prompt


def prompt_findings(system: str) -> Iterator[Finding]:
    """Yield what is wrong with a system prompt, by rules that anybody can check by hand.

    A prompt is *vague* if fewer than `PROMPT_WORDS` words are left once sentences are taken out that only give a role:
    those of at most `ROLE_WORDS` words that begin with "you are", "act as", "as a" and the like.
    """
    where = "system prompt"
    if not system.strip():
        message = "there is none; the model is told nothing but the task"
        help_text = "say what the agent is for, what it must not do, and when it is done"
        yield Finding("warning", "no_system_prompt", where, message, help_text)
        return
    count = instruction_words(system)
    if count < PROMPT_WORDS:
        message = f"is vague: {count} words are left beside the role, and {PROMPT_WORDS} are the least"
        help_text = "say what to do with which tool, what not to do, and when to stop"
        yield Finding("warning", "vague_prompt", where, message, help_text)
    placeholder = _PLACEHOLDER.search(system)
    if placeholder is not None:
        message = f"holds {placeholder.group()!r}, which looks like a place that nobody filled in"
        yield Finding("warning", "placeholder", where, message, "fill it in before the agent is made")


def instruction_words(system: str) -> int:
    """Return how many words of a prompt are more than a role."""
    counts = ((_ROLE.match(part.lstrip(" \t-*#>\"'")), _words(part)) for part in _SENTENCE.split(system))
    return sum(count for role, count in counts if not role or count > ROLE_WORDS)


def _words(text: str) -> int:
    return len(_WORD.findall(_CJK.sub(" ", text))) + len(_CJK.findall(text)) // 2
