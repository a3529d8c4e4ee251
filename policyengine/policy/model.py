"""A validated, layered policy as frozen data.

Knows: what a policy says after loading. Must not know: YAML, Cerberus, files, extensions' code.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Literal

import msgspec

from policyengine.decision import Mode, OnError
from policyengine.messages import UNDECLARED, ToolFacts
from policyengine.parsing.notation import Form
from policyengine.plugins.blocks import Block
from policyengine.policy.problems import Position, Problem


class Layer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value a setting had, and where it came from (`position.file` is `default` for a built-in default)."""

    value: Any
    position: Position


class When(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which events a rule sees. Patterns are shell globs; `!` negates; empty means all.

    An event without a tool (an iteration) passes the `tool` selector.
    """

    tool: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()

    def admits(self, tool: str | None, agent: str) -> bool:
        """Return whether an event of this tool and agent is shown to the rule."""
        return (tool is None or matches(self.tool, tool)) and matches(self.agent, agent)


def matches(patterns: tuple[str, ...], value: str) -> bool:
    """Return whether `value` matches: any positive pattern (or none given), and no negated one."""
    positive = [pattern for pattern in patterns if not pattern.startswith("!")]
    if any(fnmatchcase(value, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return not positive or any(fnmatchcase(value, pattern) for pattern in positive)


class Rollout(msgspec.Struct, frozen=True, omit_defaults=True):
    """For which part of all runs a rule is not `disabled`.

    A run is in or out by the hash of `salt` and of what `by` names, so it is the same for every run with that name, in
    every process. A run that is in stays in when `percent` rises.
    """

    percent: float
    by: Literal["run_id", "agent", "conversation"] = "run_id"
    salt: str = ""

    def includes(self, name: str) -> bool:
        """Return whether the run, agent or conversation of this name is in."""
        return _is_among(self.salt, name, round(self.percent * _SLICES / 100))


_SLICES = 1_000_000
"""Into how many equal parts a rollout divides all runs, and sampling all decisions."""


def _is_among(salt: str, name: str, slices: int) -> bool:
    digest = sha256(f"{salt}\0{name}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % _SLICES < slices


class Exemption(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry under `exceptions:`: for these events its rule has no effect, to the end of the day `expires` (UTC).

    The rule is asked all the same, so that its state counts. Where `when` names tools, no event without one is meant.
    """

    expires: str
    owner: str
    reason: str
    position: Position
    when: When = When()

    def covers(self, tool: str | None, agent: str, day: str) -> bool:
        """Return whether an event of this tool and agent is excepted on a day (`2026-12-31`)."""
        if day > self.expires or (tool is None and self.when.tool):
            return False
        return self.when.admits(tool, agent)


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry under `extensions:`.

    `position` is where the topmost layer that says something about the rule says it. `at` are hook points in policy
    spelling (empty = every hook the extension implements). `options` is the complete
    `with:` mapping, defaults filled in. `timeout_s` is in seconds. `variables` are the environment variables that
    options come from: their values may be secret. `exceptions` are those from its effect.
    `rollout` is `None` where the rule is for every run. Layers above one that says `locked` may only tighten the rule.
    """

    id: str
    use: str
    position: Position
    at: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    mode: Mode = "enforce"
    on_error: OnError = "deny"
    timeout_s: float = 0.25
    when: When = When()
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    exceptions: tuple[Exemption, ...] = ()
    rollout: Rollout | None = None
    locked: bool = False


class Parsing(msgspec.Struct, frozen=True, omit_defaults=True):
    """How responses are read.

    `mode` is how text becomes a call (docs/parsing.md). `max_retry` caps retries within one iteration. With
    `text_fallback`, calls in the text of a native response without structured calls are taken for calls. `arguments`
    says what is done about a call whose arguments do not fit the tool's schema: `off` nothing, `check` it is refused,
    `coerce` it is repaired where that is unambiguous and else refused. `repair_calls` is how many requests per
    iteration may ask the model to correct such arguments before the call is refused. `forms` declare a text protocol
    of its own in place of the one JSON object.
    """

    mode: Literal["strict", "fenced", "lenient", "repair", "native"] = "strict"
    max_retry: int = 0
    text_fallback: bool = False
    arguments: Literal["off", "check", "coerce"] = "off"
    repair_calls: int = 0
    forms: tuple[Form, ...] = ()


class ModelFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the policy says about the models that match one pattern under `models:`.

    `parsing` holds the settings that differ from the general ones. `window` is the context window in tokens, input and
    output together. `reasoning` says which reasoning fields of earlier responses go back to the provider: all as they
    came (`replay`), those of responses with calls (`with_calls`), or none (`drop`).
    """

    parsing: dict[str, Any] = {}
    window: int | None = None
    reasoning: Literal["replay", "with_calls", "drop"] = "replay"


UNKNOWN_MODEL = ModelFacts()


class Planning(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether our loop works step by step (docs/plans.md).

    With `mode` `steps` a run has a plan of at most `max_steps` steps, which the model writes first (`decompose`) or
    which is one step, and the tool `update_step`. `summaries` asks for a summary of each step that ended without one.
    """

    mode: Literal["off", "steps"] = "off"
    decompose: bool = True
    max_steps: int = 30
    summaries: bool = False


class Interventions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Cap on the engine's own hints, denies and retries per run; `then` is what the next one becomes."""

    max: int = 10
    then: Literal["hand_over", "stop"] = "hand_over"
    position: Position = Position("default")


class Log(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the decision log holds besides its content-free record.

    `mask` are JSON pointers to what is hidden in the content. `sample_allow` is the share of decisions that is written
    where no rule said anything.
    """

    include: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    sample_allow: float = 1.0

    def keeps(self, run_id: str, seq: int) -> bool:
        """Return whether a decision at which no rule said anything is written.

        That only depends on which decision of which run it is, so the same run always gives the same lines.
        """
        return self.sample_allow >= 1 or _is_among(run_id, str(seq), round(self.sample_allow * _SLICES))


class Reload(msgspec.Struct, frozen=True, omit_defaults=True):
    """When runs in flight take a new generation (`run`: never, `iteration`: at iteration boundaries).

    `max_staleness_s` is for how long the files may differ from the policy in force before no new run starts.
    """

    pin: Literal["run", "iteration"] = "run"
    settle_s: float = 0.3
    max_staleness_s: float | None = None


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """A complete policy: rules in run order, facts about tools, settings of the loop.

    `files` are all files it was read from (shipped ones as `policy:NAME`), with `digest` the SHA-256 over their
    content. `tool_results` says whether the model reads a result as its text, or as one JSON envelope that has the
    same shape for success and every failure. `models` are facts and settings by model pattern. `provenance` maps
    every dotted key path to its layers, lowest first; the last one is in force. `packages` may be used, what falls
    under `blocks` may not. `warnings` did not prevent loading. With `kill_switch` no rule has an effect in any run of
    the engine.
    """

    name: str
    rules: tuple[Rule, ...]
    digest: str
    revision: str = ""
    tools: tuple[tuple[str, ToolFacts], ...] = ()
    protocol: Literal["auto", "native", "text"] = "auto"
    tool_results: Literal["text", "envelope"] = "text"
    language: str = "en"
    parsing: Parsing = Parsing()
    models: tuple[tuple[str, ModelFacts], ...] = ()
    plan: Planning = Planning()
    interventions: Interventions = Interventions()
    wind_down_rounds: int = 2
    kill_switch: bool = False
    prompts: tuple[str, ...] = ()
    log: Log = Log()
    reload: Reload = Reload()
    packages: dict[str, str] = {}
    blocks: tuple[Block, ...] = ()
    files: tuple[str, ...] = ()
    provenance: Mapping[str, tuple[Layer, ...]] = {}
    warnings: tuple[Problem, ...] = ()

    def parsing_of(self, model: str) -> Parsing:
        """Return the settings of parsing for a model: those of the first pattern under `models:` that matches."""
        if not self.models:
            return self.parsing
        settings = self.model(model).parsing
        return msgspec.structs.replace(self.parsing, **settings) if settings else self.parsing

    def model(self, name: str) -> ModelFacts:
        """Return what is said about a model: under the first pattern of `models:` that matches."""
        return next((facts for pattern, facts in self.models if fnmatchcase(name, pattern)), UNKNOWN_MODEL)

    def tool(self, name: str) -> ToolFacts:
        """Return the facts about a tool: an exact entry first, then the first pattern that matches."""
        for pattern, facts in self.tools:
            if pattern == name:
                return facts
        for pattern, facts in self.tools:
            if fnmatchcase(name, pattern):
                return facts
        return UNDECLARED
