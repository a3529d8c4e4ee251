"""Compile a policy into a frozen snapshot: extension instances and one table of implementations per hook point.

Knows: pluggy's registration and how to read its registered implementations.
Must not know: runs, decisions, files.

pluggy checks the implementations; our own loop (`dispatch`) calls them, because pluggy's call aborts at the first
raising implementation and loses who answered (docs/decisions/0005).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import msgspec
import pluggy

from policyengine import workers
from policyengine.errors import ConfigError, ExtensionError
from policyengine.extension import Extension, is_shipped
from policyengine.hooks import HOOKS, PROJECT, HookPoint, HookSpecs
from policyengine.messages import ToolFacts
from policyengine.policy.model import Policy, Rule, When
from policyengine.policy.problems import Position, Problem
from policyengine.policy.wording import suggestion
from policyengine.shared.account import SharedRule
from policyengine.templates import CORE_MESSAGES, Templates, shipped_kinds
from policyengine.workers import call_within, fault_text

if TYPE_CHECKING:
    from policyengine.plugins.registry import Registry


class Found(Protocol):
    """What the registry knows about an extension."""

    @property
    def cls(self) -> type[Extension]:
        """The extension class."""
        raise NotImplementedError

    @property
    def builtin(self) -> bool:
        """Whether the extension ships with this package."""
        raise NotImplementedError

    @property
    def origin(self) -> str:
        """Where its code stands, for error messages."""
        raise NotImplementedError


class ExtensionSource(Protocol):
    """Where extension classes come from (see `policyengine.plugins.registry`)."""

    def get(self, name: str) -> Found | None:
        """Return the extension of this name, or `None`."""
        raise NotImplementedError


class Manager(pluggy.PluginManager):
    """pluggy 1.6 evaluates the properties of a plugin when it is registered, 1.7 does not; here neither does."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """Return the marker's options of a method; a property has none, and no hook point has a name like `__eq__`."""
        if name.startswith("__") or isinstance(getattr(type(plugin), name, None), property):
            return None
        return super().parse_hookimpl_opts(plugin, name)


class Entry(msgspec.Struct, frozen=True):
    """One rule's implementation of one hook, ready to be called as `call(view, *payload)`.

    `when` is `None` where the rule sees every event. `inline` implementations run in the deciding thread; others get
    a worker thread and are given up after `limit_s` seconds.
    """

    rule: Rule
    extension: Extension
    call: Callable[..., Any]
    when: When | None
    inline: bool
    limit_ns: int
    at: str


class Table(msgspec.Struct, frozen=True):
    """All implementations at one hook point, in policy order."""

    point: HookPoint
    entries: tuple[Entry, ...]
    rewriters: tuple[Entry, ...] = ()
    judges: tuple[Entry, ...] = ()


def without(tables: Mapping[str, Table], rules: frozenset[str]) -> Mapping[str, Table]:
    """Return the tables without some rules: those for which a run is outside their rollout."""

    def kept(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        return tuple(entry for entry in entries if entry.rule.id not in rules)

    return {
        name: Table(table.point, kept(table.entries), kept(table.rewriters), kept(table.judges))
        for name, table in tables.items()
    }


class PolicySnapshot:
    """A policy in force: immutable, numbered, with its own plugin manager.

    Attributes: `policy`, `generation` (from 1, grows with each reload), `tables` (by hook point), `extensions` (by
    rule id, disabled rules excluded), `templates`, `manager`, `rollouts` (of rules that are not for every run),
    `shared` (rules that count in pools that many processes share).
    """

    __slots__ = (
        "__weakref__",
        "_facts",
        "extensions",
        "generation",
        "manager",
        "policy",
        "rollouts",
        "rules",
        "shared",
        "tables",
        "templates",
    )

    def __init__(
        self,
        policy: Policy,
        generation: int,
        tables: Mapping[str, Table],
        extensions: Mapping[str, Extension],
        templates: Templates,
        manager: pluggy.PluginManager,
    ) -> None:
        self.policy = policy
        self.generation = generation
        self.tables = tables
        self.extensions = extensions
        self.templates = templates
        self.manager = manager
        self.rules = {rule.id: rule for rule in policy.rules}
        self.rollouts = tuple(
            (rule.id, rule.rollout) for rule in policy.rules if rule.rollout and rule.id in extensions
        )
        self.shared = tuple(_shared_rules(policy, extensions))
        self._facts: dict[str, ToolFacts] = {}

    @property
    def named(self) -> str:
        """The policy's name and the beginning of its digest, as journals and replays say which one it was."""
        return f"{self.policy.name} {self.policy.digest[:12]}"

    @property
    def digest(self) -> str:
        """SHA-256 of everything the policy was read from."""
        return self.policy.digest

    def tool(self, name: str) -> ToolFacts:
        """Return what the policy declares about a tool."""
        facts = self._facts.get(name)
        if facts is None:
            facts = self.policy.tool(name)
            if len(self._facts) < 1024:  # names come from a model: the cache must not grow with them
                self._facts[name] = facts
        return facts


def build_snapshot(
    policy: Policy, source: ExtensionSource, generation: int = 1, *, checked: bool = False
) -> PolicySnapshot:
    """Make instances of every rule that is not disabled, check them and compile the hook tables.

    `checked` says that a snapshot of the same policy was built before, with the same templates: they are not looked
    at again.

    Raises:
        ConfigError: an extension cannot be constructed or a message cannot be rendered with its sample data.
        ExtensionError: an implementation breaks the hook contract.
    """
    source = source.allowing(policy.packages).blocking(policy.blocks) if _is_registry(source) else source
    manager = Manager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    problems: list[Problem] = []
    extensions: dict[str, Extension] = {}
    trusted: set[str] = set()
    # One rule of each class is registered for all of them: what pluggy checks is the same for every instance, and it
    # goes through all that was registered before, so that its time would grow with the square of the number of rules.
    registered: dict[type[Extension], str] = {}
    named: dict[str, str] = {}
    for rule in policy.rules:
        if rule.mode == "disabled":
            continue
        found = source.get(rule.use)
        if found is None:
            problems.append(Problem("R501", f"no extension named {rule.use!r}", rule.position, f"extensions.{rule.id}"))
            continue
        try:
            extensions[rule.id] = found.cls(rule.options) if found.builtin else _made(found.cls, rule)
            if found.cls not in registered:
                registered[found.cls] = manager.register(extensions[rule.id], name=rule.id) or rule.id
            named[rule.id] = registered[found.cls]
        except pluggy.PluginValidationError as error:
            raise ExtensionError(rule.use, found.origin, str(error)) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - third-party code; becomes a positioned problem
            # What it says may quote an option, and the value of an environment variable is never shown.
            names = ", ".join(rule.variables)
            hidden = f"{type(error).__name__}: (its text is not shown: options come from $env {names})"
            said = hidden if names else fault_text(error)
            detail = f"{rule.use} ({found.origin}) cannot be set up with these options: {said}"
            problems.append(Problem("X406", detail, rule.position, f"extensions.{rule.id}.with"))
            continue
        if found.builtin:
            trusted.add(rule.id)
    manager.check_pending()
    templates = Templates(
        policy.language, policy.prompts, {rule_id: extension.templates for rule_id, extension in extensions.items()}
    )
    nowhere = Position(policy.files[-1] if policy.files else policy.name)
    problems += [_fault(policy, fault, nowhere) for fault in templates.problems]
    problems += _pool_problems(policy, _shared_rules(policy, extensions))
    if not checked:
        own = (templates.check(kind, sample, ours=True) for kind, sample in CORE_MESSAGES.items())
        problems += [_fault(policy, fault, nowhere) for fault in own if fault]
        problems += _message_problems(policy, extensions, templates)
        problems += _unsent_problems(extensions, templates, source, nowhere)
    if problems:
        raise ConfigError(problems)
    tables = {name: _table(point, policy, extensions, manager, named, trusted) for name, point in HOOKS.items()}
    return PolicySnapshot(policy, generation, tables, extensions, templates, manager)


def _shared_rules(policy: Policy, extensions: Mapping[str, Extension]) -> Iterator[SharedRule]:
    """Yield the rules that count in shared pools; a pool without a name has that of its rule."""
    for rule in policy.rules:
        pool = extensions[rule.id].pool() if rule.id in extensions else None
        if pool is not None:
            pool = pool if pool.name else msgspec.structs.replace(pool, name=rule.id)
            yield SharedRule(rule.id, pool, rule.when if rule.when != When() else None)


def _pool_problems(policy: Policy, shared: Iterable[SharedRule]) -> Iterator[Problem]:
    """Report rules that name one pool and do not mean the same count by it."""
    rules = {rule.id: rule for rule in policy.rules}
    first: dict[tuple[str, str], SharedRule] = {}
    for one in shared:
        other = first.setdefault((one.pool.counts, one.pool.name), one)
        if not one.pool.same_count(other.pool):
            what = "another window, `per`, `tools` or `reserve`"
            message = f"{other.rule!r} counts otherwise in the pool {one.pool.name!r}: {what}"
            help_text = "make them equal, or give this rule a pool of its own"
            yield Problem("R510", message, rules[one.rule].position, f"extensions.{one.rule}", help=help_text)


def _is_registry(source: ExtensionSource) -> TypeGuard[Registry]:
    """Return whether a source is the registry; where nobody imported that module, none is, and this does not either."""
    module = sys.modules.get("policyengine.plugins.registry")
    return module is not None and isinstance(source, module.Registry)


def _made(cls: type[Extension], rule: Rule) -> Extension:
    """Return an instance of a class that is not ours; its constructor is given up after a time."""

    instance: Extension = call_within(lambda: cls(rule.options), workers.SETUP_S)
    return instance


def _message_problems(policy: Policy, extensions: Mapping[str, Extension], templates: Templates) -> list[Problem]:
    problems = []
    for rule in policy.rules:
        extension = extensions.get(rule.id)
        if extension is None:
            continue
        ours = is_shipped(type(extension))
        for kind, sample in extension.messages.items():
            fault = templates.check(kind, {**sample, "rule": rule.id}, ours=ours)
            if fault:
                problems.append(Problem("R510", fault, rule.position, f"extensions.{rule.id}"))
    return problems


def _unsent_problems(
    extensions: Mapping[str, Extension], templates: Templates, source: ExtensionSource, position: Position
) -> list[Problem]:
    """Report templates of the policy whose kind nobody sends: most likely a misspelt one, which changes no message.

    A kind of an extension that this policy does not use is fine, since policies may share a directory.
    """
    if not templates.overridden():
        return []
    known = {*CORE_MESSAGES, *shipped_kinds(), *templates.shipped_by_extensions()}
    for extension in extensions.values():
        known |= extension.messages.keys()
    if known.issuperset(templates.overridden()):
        return []
    if _is_registry(source):
        known |= {kind for found in source.all() for kind in found.cls.messages}
    problems = []
    for kind in templates.overridden():
        if kind not in known:
            message = f"{templates.find(kind)}: there is no message of the kind {kind!r}"
            help_text = suggestion(kind, sorted(known))
            problems.append(Problem("R510", message, position, "prompts", help=help_text))
    return problems


def _fault(policy: Policy, fault: str, nowhere: Position) -> Problem:
    """Return what is wrong with the templates; what is wrong with their language stands where that was set."""
    layers = policy.provenance.get("language")
    if fault.startswith("language ") and layers:
        return Problem("R510", fault, layers[-1].position, "language")
    return Problem("R510", fault, nowhere, "prompts")


def _table(
    point: HookPoint,
    policy: Policy,
    extensions: Mapping[str, Extension],
    manager: pluggy.PluginManager,
    named: Mapping[str, str],
    trusted: set[str],
) -> Table:
    """Return the implementations at one hook point; `named` says under which name each rule's class is registered."""
    implementations = {impl.plugin_name: impl for impl in getattr(manager.hook, point.method).get_hookimpls()}
    entries = []
    for rule in policy.rules:
        impl = implementations.get(named.get(rule.id, ""))
        if impl is None or (rule.at and point.name not in rule.at):
            continue
        entries.append(
            Entry(
                rule=rule,
                extension=extensions[rule.id],
                call=caller(getattr(extensions[rule.id], point.method), impl.argnames, point.payload),
                when=rule.when if rule.when != When() else None,
                inline=rule.id in trusted,
                limit_ns=int(rule.timeout_s * 1e9),
                at=f"{rule.position.file}:{rule.position.line}",
            )
        )
    rewriters = tuple(entry for entry in entries if entry.extension.rewrites_calls)
    judges = tuple(entry for entry in entries if not entry.extension.rewrites_calls)
    return Table(point, tuple(entries), rewriters, judges)


def caller(function: Callable[..., Any], argnames: tuple[str, ...], payload: tuple[str, ...]) -> Callable[..., Any]:
    """Return a hook that is handed exactly the arguments it names."""
    available = ("run", *payload)
    if argnames == available:
        return function
    picks = tuple(available.index(name) for name in argnames)
    return lambda *values: function(*[values[pick] for pick in picks])
