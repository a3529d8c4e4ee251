"""For tests of extensions, others' and our own: a registry of given classes, a policy in one line, a run, assertions.

Knows: how to put an extension into a real engine without files.
Must not know: pytest (its plugin is `policyengine.pytest_plugin`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec

from policyengine.agent import Agent
from policyengine.decision import Decision
from policyengine.dispatch import ERROR_CODE
from policyengine.engine import Engine
from policyengine.extension import Extension
from policyengine.loop.state import Begin
from policyengine.messages import Message, ModelRequest, ModelResponse
from policyengine.outcome import Outcome
from policyengine.plugins.found import make_found
from policyengine.plugins.registry import Registry, builtin_registry, discover
from policyengine.policy.load import Found, load_policy_text
from policyengine.policy.model import Policy, Rule
from policyengine.policy.problems import Position
from policyengine.policy.yamltext import read_yaml
from policyengine.providers.scripted import ScriptedModel, read_turns
from policyengine.run import Report
from policyengine.script import Script, Turn
from policyengine.shared.alone import Alone
from policyengine.witness import Answer, Witness, account


class ManualClock:
    """A clock that stands still until told otherwise; `now` is in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@cache
def _builtins() -> Registry:
    return builtin_registry()


class ListedRegistry:
    """The given classes, which count as third-party unless `trusted`, before all `others` (the built-in extensions)."""

    def __init__(self, *classes: type[Extension], trusted: bool = False, others: Registry | None = None) -> None:
        self._others: Registry = others or _builtins()
        self._listed = {cls.name: make_found(cls, builtin=trusted) for cls in classes}

    def get(self, name: str) -> Found | None:
        """Return the extension of this name, or `None`."""
        return self._listed.get(name) or self._others.get(name)

    def names(self) -> tuple[str, ...]:
        """Return all names."""
        return tuple(dict.fromkeys((*self._listed, *self._others.names())))


def rule(use: str, options: Mapping[str, Any] | None = None, *, id: str = "", line: int = 1, **fields: Any) -> Rule:
    """Return a rule as the loader would make it, except that `options` must be complete."""
    return Rule(id or use, use, Position("test.yaml", line, 1), options=dict(options or {}), **fields)


def policy(*rules: Rule, **fields: Any) -> Policy:
    """Return a policy of these rules."""
    return Policy("test", tuple(rules), "0" * 64, **fields)


class Played(msgspec.Struct, frozen=True):
    """What a scripted run did: its outcome, every decision with the round it was made in, every rule's answers."""

    outcome: Outcome
    reports: tuple[Report, ...]
    decisions: tuple[tuple[int, Decision], ...]
    answers: tuple[Answer, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history at the end."""
        return self.outcome.messages

    def actions(self, hook: str = "before_tool_call") -> list[str]:
        """Return the control action of every decision at one hook point, in order."""
        return [decision.action for _, decision in self.decisions if decision.hook == hook]

    def fired(self, action: str, rule_id: str = "") -> list[int]:
        """Return the iterations in which a rule got its way with `action` (hints included)."""
        return [
            iteration
            for iteration, decision in self.decisions
            for vote in decision.votes
            for wanted in vote.effective
            if wanted.name == action and (not rule_id or vote.rule == rule_id)
        ]


class _PacedModel(ScriptedModel):
    """The scripted model; each of its responses takes `pace_s` seconds on the given clock."""

    def __init__(self, script: Script, clock: ManualClock, pace_s: float) -> None:
        super().__init__(script)
        self._clock = clock
        self._pace_s = pace_s

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Let the time of one response pass, and return it."""
        self._clock.now += self._pace_s
        return super().complete(request)


def play(
    engine: Engine,
    turns: Sequence[Turn],
    *,
    task: str = "test",
    human: Callable[[Any], bool] | None = None,
    clock: ManualClock | None = None,
    pace_s: float = 0.0,
    forced: Mapping[str, str] | None = None,
    **run: Any,
) -> Played:
    """Run a script through the real loop under `engine` and return everything that happened.

    With a `clock`, which should be the engine's, each response takes `pace_s` seconds, and waiting moves it. `forced`
    are faults of rules as `policyengine.dispatch.Faults` has them; all other rules get as long as they take.
    """
    reports: list[Report] = []
    decisions: list[tuple[int, Decision]] = []
    witness = Witness()

    def note(report: Report) -> None:
        reports.append(report)
        decisions.append((report.run.state.iteration, report.decision))
        witness(report)

    clock = clock or ManualClock()
    engine.sinks.append(note)
    try:
        protocol = run.get("protocol") or engine.snapshot.policy.protocol
        script = Script(task, tuple(turns), protocol="text" if protocol == "text" else "native")
        model = _PacedModel(script, clock, pace_s)
        pools = Alone(lambda: clock.now)
        agent = Agent(engine, model, model.tools(), human=human, sleep=partial(_wait, clock), ledger=pools)
        loop = agent.start(**run)
        loop.run.faults.forced = forced
        loop.run.played = True
        outcome = agent.drive(loop, Begin(task))
    finally:
        engine.sinks.remove(note)
    return Played(outcome, tuple(reports), tuple(decisions), tuple(witness.answers))


def _wait(clock: ManualClock, seconds: float) -> None:
    clock.now += seconds


# ---- a policy from a few lines, and what it does

RULE = "subject"
"""The id of the rule that the assertions below play."""

_HEADER = {"apiVersion": "policyengine/v1", "kind": "Policy", "name": "test"}


def make_engine(
    rules: Mapping[str, Any] | str,
    *,
    extensions: Iterable[type[Extension]] = (),
    folders: Iterable[str | Path] = (),
    clock: ManualClock | None = None,
    **settings: Any,
) -> Engine:
    """Return an engine with a policy that is read as a file is: options are validated, defaults filled in.

    `rules` is what stands under `extensions:`, or a whole policy (with `extensions:` or `apiVersion:`), as data or as
    YAML. `settings` are further ones of the policy. Extensions are the given classes, the built-in ones, those of
    `folders` and installed ones; a policy without `apiVersion:` may use them all. Rules have no time limit, so that a
    busy machine changes nothing.

    Raises:
        ConfigError: the policy cannot be used.
    """
    listed = tuple(extensions)
    others = discover(folders=[Path(folder) for folder in folders])
    registry = ListedRegistry(*listed, others=others)
    text = dedent(rules) if isinstance(rules, str) else ""
    data: Mapping[str, Any] = read_yaml(text.encode(), "policy.yaml").root.data if isinstance(rules, str) else rules
    if not isinstance(rules, str) or settings or "apiVersion" not in data:
        data = _completed(data, settings, registry)
        loaded = load_policy_text(json.dumps(data), "policy.json", registry=registry)
    else:
        loaded = load_policy_text(text, registry=registry)
    return Engine(loaded, registry=registry, clock=clock or ManualClock(), enforce_time=False)  # type: ignore[arg-type]


def _completed(data: Mapping[str, Any], settings: Mapping[str, Any], registry: ListedRegistry) -> dict[str, Any]:
    """Return a whole policy; one without a header may use every package that its rules need."""
    if "apiVersion" in data:
        return {**data, **settings}
    whole = {**_HEADER, **(data if "extensions" in data else {"extensions": dict(data)}), **settings}
    if "requires" not in whole:
        entries = whole["extensions"] if isinstance(whole["extensions"], Mapping) else {}
        names = [entry.get("use", id) if isinstance(entry, Mapping) else id for id, entry in entries.items()]
        found = [registry.get(name) for name in names if isinstance(name, str)]
        packages = {item.distribution: "*" for item in found if item and item.distribution and not item.builtin}
        whole["requires"] = {"extensions": packages}
    return whole


def assert_fires_at(
    subject: Any,
    turns: Sequence[Any] | str,
    *,
    at: int,
    action: str,
    code: str | None = None,
    options: Mapping[str, Any] | None = None,
    **how: Any,
) -> Played:
    """Assert that one rule answers with `action` (and `code`) for the first time in round `at`; return the run.

    `subject` is an extension class, the name of an extension, or a rule as it stands in a policy
    (`{"use": ..., "with": ..., "mode": ...}`); `options` are its `with:`. What counts is what the rule itself answers,
    before its mode. `how` is what `make_engine` and `play` take beside the rules.

    Raises:
        AssertionError: it does not; the text says what the rule did instead.
    """
    __tracebackhide__ = True
    played = _play_alone(subject, turns, options, how)
    _check_sound(played, code)
    fired = [
        answer.iteration
        for answer in played.answers
        for given in answer.vote.raw
        if answer.vote.rule == RULE and given.name == action and code in (None, given.code)
    ]
    if not fired or fired[0] != at:
        what = f"{action} {code}" if code else action
        found = f"the first one came in round {fired[0]}" if fired else "it never did"
        raise AssertionError(f"{_name(subject)} should answer {what!r} in round {at}: {found}\n{_account(played)}")
    return played


def assert_never_fires(
    subject: Any, turns: Sequence[Any] | str, *, options: Mapping[str, Any] | None = None, **how: Any
) -> Played:
    """Assert that one rule is asked and has nothing against these turns; return the run.

    The arguments are those of `assert_fires_at`.

    Raises:
        AssertionError: it answers something, fails, or is never asked, which would prove nothing.
    """
    __tracebackhide__ = True
    played = _play_alone(subject, turns, options, how)
    _check_sound(played, None)
    own = [answer for answer in played.answers if answer.vote.rule == RULE]
    if not own:
        raise AssertionError(f"{_name(subject)} was never asked, so this proves nothing\n{_account(played)}")
    if any(answer.tripped for answer in own):
        raise AssertionError(f"{_name(subject)} should have nothing against this\n{_account(played)}")
    return played


def _play_alone(subject: Any, turns: Sequence[Any] | str, options: Mapping[str, Any] | None, how: Any) -> Played:
    entry = dict(subject) if isinstance(subject, Mapping) else {"use": getattr(subject, "name", subject)}
    if options is not None:
        entry["with"] = dict(options)
    playing = {name: how.pop(name) for name in ("task", "human", "pace_s", "agent") if name in how}
    classes = [*how.pop("extensions", ()), *([subject] if isinstance(subject, type) else [])]
    clock = how.pop("clock", None) or ManualClock()
    settings = {"interventions": {"max": 1000}, **how}
    engine = make_engine({RULE: entry}, extensions=classes, clock=clock, **settings)
    return play(engine, read_turns(turns), clock=clock, **playing)


def _check_sound(played: Played, code: str | None) -> None:
    """A rule that fails answers too, with its `on_error`: that is never what a test of the rule means."""
    __tracebackhide__ = True
    if code == ERROR_CODE:
        return
    for answer in played.answers:
        if answer.vote.error:
            raise AssertionError(f"the rule failed at {answer.place}: {answer.vote.error}\n{_account(played)}")


def _name(subject: Any) -> str:
    if isinstance(subject, Mapping):
        return str(subject.get("use", "the rule"))
    return str(getattr(subject, "name", subject))


def _account(played: Played) -> str:
    return account(played.answers, RULE, played.outcome)


def assert_valid(messages: tuple[Message, ...], protocol: str = "native") -> None:
    """Assert that a history may be sent: every call answered directly after its message, once, in call order.

    Names are legal, arguments are JSON objects, no message is empty.

    Raises:
        AssertionError: the first fault.
    """
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        assert message.role != "tool", "a result without its call"
        if message.role == "assistant":
            assert message.text.strip() or message.tool_calls, "an empty assistant message"
        assert protocol == "native" or not message.tool_calls
        ids = [item.id for item in message.tool_calls]
        assert len(set(ids)) == len(ids)
        for item in message.tool_calls:
            assert item.name
            assert isinstance(json.loads(item.arguments or "{}"), dict)
        for wanted in ids:
            answer = messages[index]
            index += 1
            assert answer.role == "tool"
            assert answer.tool_call_id == wanted
            assert answer.text.strip()


__all__ = [
    "ListedRegistry",
    "ManualClock",
    "Played",
    "assert_fires_at",
    "assert_never_fires",
    "assert_valid",
    "make_engine",
    "play",
    "policy",
    "read_turns",
    "rule",
]
