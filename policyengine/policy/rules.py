"""Turn the entries under `extensions:` into rules.

Knows: extensions by name, their options, hook points, run order. Must not know: files, how layers merged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import cerberus

from policyengine import workers
from policyengine.errors import ExtensionError
from policyengine.extension import Extension, OptionProblem, Options, is_shipped
from policyengine.hooks import BY_METHOD, HOOKS
from policyengine.plugins.blocks import BLOCKED, ENGINE, Block, blocking
from policyengine.policy.defaults import fill
from policyengine.policy.durations import seconds
from policyengine.policy.environment import Environment, redacted, resolve, unresolved
from policyengine.policy.model import Rollout, Rule, When
from policyengine.policy.nodes import BUILT_IN, Node, Sources, built_in, mapping
from policyengine.policy.order import arrange
from policyengine.policy.problems import Problem
from policyengine.policy.validate import validate
from policyengine.policy.validator import prepare, trusted
from policyengine.policy.versions import clauses, fit
from policyengine.policy.wording import KeyPath, closest, listed, suggestion
from policyengine.workers import call_within

if TYPE_CHECKING:
    from policyengine.policy.load import Found, Registry

TOOL_HOOKS = frozenset({"before_tool_call", "after_tool_call"})


class Unchecked:
    """Stands for every extension where none is looked up: it has all hook points and nobody knows its options."""

    cls = Extension
    origin = ""
    distribution = ""
    version = ""
    builtin = True
    hooks = tuple(HOOKS)


UNCHECKED = Unchecked()


class RuleReader:
    """Reads rules one by one and keeps every problem found on the way."""

    def __init__(
        self,
        registry: Registry | None,
        sources: Sources,
        defaults: Node,
        packages: Node,
        ids: Iterable[str],
        environment: Environment,
        blocks: Sequence[Block] = (),
        *,
        lower: bool = False,
    ) -> None:
        self._registry: Registry | None = registry
        self._blocks = blocks
        self._lower = lower
        self._sources = sources
        self._defaults = defaults
        self._packages = {_normal(name): child for name, child in packages.fields.items()}
        self._ids = dict.fromkeys(ids)
        self._environment = environment
        self._values: dict[str, str] = {}
        self.hooks: dict[str, tuple[str, ...]] = {}
        self._prepared: dict[str, Any] = {}
        # A registry that can be narrowed does not even import what the policy does not list.
        narrow = getattr(registry, "allowing", None)
        self._allowed: Registry | None = narrow(tuple(packages.fields)) if callable(narrow) else registry
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._used_packages: set[str] = set()

    def read(self, id: str, node: Node) -> tuple[Rule | None, Node]:
        """Return the rule (`None` if it has problems) and its node with all defaults filled in."""
        before, path = len(self.problems), ("extensions", id)
        self._values = {}
        found, use = self._found(id, node, path)
        if found is None:
            return None, node
        options = self._options(found, use, node, path)
        at = self._at(found, use, node, path)
        self.hooks[id] = at or found.hooks
        when = self._when(node, self.hooks[id], path)
        after, before_ids = (self._order(id, node, part, path) for part in ("after", "before"))
        fields = {name: self._setting(node, name) for name in ("mode", "on_error", "timeout")}
        timeout = seconds(fields["timeout"].data)
        filled = mapping({"use": Node(use, node.layers[0].position), **node.fields, **fields, "with": options}, node)
        if "at" not in node.fields:
            filled = mapping({**filled.fields, "at": built_in(found.hooks)}, node)
        if len(self.problems) > before or timeout is None:
            return None, filled
        rollout = self._rollout(id, node, path)
        if rollout is not None:  # what is not written of it is in force all the same, and is explained
            parts = {name: built_in(getattr(rollout, name)) for name in ("by", "salt")}
            whole = mapping({**parts, **node.fields["rollout"].fields}, node.fields["rollout"])
            filled = mapping({**filled.fields, "rollout": whole}, node)
        position = node.layers[-1].position  # the topmost file that says something about the rule
        mode, on_error = cast(Any, fields["mode"].data), cast(Any, fields["on_error"].data)
        hidden = tuple(self._values)
        rule = Rule(
            id,
            use,
            position,
            at,
            options.data,
            mode,
            on_error,
            timeout,
            when,
            after,
            before_ids,
            hidden,
            rollout=rollout,
            locked="locked" in node.fields and node.fields["locked"].data,
        )
        return rule, filled

    def _report(
        self, code: str, message: str, node: Node, path: KeyPath, *, warning: bool = False, **facts: Any
    ) -> None:
        severity = "warning" if warning else "error"
        problem = self._sources.at_value(code, message, node, path, severity=severity, **facts)
        (self.warnings if warning else self.problems).append(problem)

    def _setting(self, rule: Node, name: str) -> Node:
        """Return a setting of the rule over the one in `defaults:`."""
        default, own = self._defaults.fields[name], rule.fields.get(name)
        if own is None:
            return default
        return Node(own.data, own.at, own.length, own.key_at, own.key_length, None, (*default.layers, *own.layers))

    # --- the extension -------------------------------------------------------------------------------------------

    def _found(self, id: str, node: Node, path: KeyPath) -> tuple[Found | None, str]:
        use_node = node.fields.get("use")
        use = id if use_node is None else str(use_node.data)
        place, where = (node, path) if use_node is None else (use_node, (*path, "use"))
        block = blocking(self._blocks, use)
        if block is not None:
            return self._blocked(id, use, f"blocked by {block}", place, where), use
        if self._registry is None or self._allowed is None:
            return UNCHECKED, use
        try:
            found = self._allowed.get(use)
        except ExtensionError as error:
            if error.code == BLOCKED:
                return self._blocked(id, use, error.detail, place, where), use
            hidden = use in self._registry.names() and use not in self._allowed.names()
            self._report("X402" if hidden else error.code, str(error), place, where)
            return None, use
        if found is None:
            note = "" if use_node is not None else "`use` defaults to the id of the rule"
            blocked = getattr(self._allowed, "blocked", None) if "." in use else None
            if "." in use:
                note = "only packages that the policy lists under `requires.extensions` are looked at"
            advice = suggestion(use, self._registry.names())
            if "." in use and closest(use, self._registry.names()) is None:
                advice = "if it is a file of a drop-in folder, name the folder: `--folder DIR`"
            out = sorted({source.distribution for source, _ in blocked()}) if callable(blocked) else []
            note += f"; blocked, and not looked at: {', '.join(out)}" if any(out) else ""
            self._report("X401", f"there is no extension {use!r}", place, where, help=advice, note=note)
            return None, use
        block = blocking(self._blocks, use, ENGINE if found.builtin else found.distribution)
        if block is not None:  # a registry that can be asked for it did not even look
            return self._blocked(id, use, f"blocked by {block}", place, where), use
        if not found.builtin and found.distribution:
            self._check_package(found, use, place, where)
        return found, use

    def _blocked(self, id: str, use: str, detail: str, place: Node, where: KeyPath) -> Found | None:
        """Report a rule that uses what is blocked; while only lower layers are looked at, a layer above may drop it."""
        if self._lower:
            return UNCHECKED
        advice = f"no layer can unblock it; to do without the rule: `extensions: {{{id}: {{$delete: true}}}}`"
        self._report(BLOCKED, f"{use} is {detail}", place, where, help=advice)
        return None

    def _check_package(self, found: Found, use: str, place: Node, where: KeyPath) -> None:
        name = found.distribution
        wanted = self._packages.get(_normal(name))
        self._used_packages.add(_normal(name))
        if wanted is None:
            advice = f'add `{name}: ">={found.version}"` under `requires.extensions` to allow this package'
            message = f"{use} comes from the package {name}, which the policy does not list"
            self._report("X402", message, place, where, help=advice)
            return
        self.check_version(name, found.version, wanted)

    def uses_package(self, name: str) -> bool:
        """Return whether any rule read so far comes from this package."""
        return _normal(name) in self._used_packages

    def options_of(self, use: str) -> tuple[str, ...]:
        """Return the names of an extension's options; none where it cannot be looked up."""
        try:
            found = self._allowed.get(use) if self._allowed is not None else None
        except ExtensionError:
            found = None
        return tuple(found.cls.options) if found is not None else ()

    def check_version(self, name: str, version: str, wanted: Node) -> None:
        """Report a package whose version is not in the range the policy asks for."""
        path = ("requires", "extensions", name)
        bounds = clauses(wanted.data) if wanted.data.strip() not in ("", "*") else []
        if bounds is None:
            self._report_once("X409", f"{wanted.data!r} is no version range", wanted, path, help='write ">=0.4,<1"')
            return
        verdict = fit(version, bounds)
        if verdict != "ok":
            code = "X404" if verdict == "too old" else "X405"
            message = f"{name} {version} is {verdict}: the policy asks for {wanted.data}"
            self._report_once(code, message, wanted, path)

    def _report_once(self, code: str, message: str, node: Node, path: KeyPath, help: str = "") -> None:
        problem = self._sources.at_value(code, message, node, path, help=help)
        if problem not in self.problems:
            self.problems.append(problem)

    # --- options -------------------------------------------------------------------------------------------------

    def _options(self, found: Found, use: str, rule: Node, path: KeyPath) -> Node:
        schema = found.cls.options
        node = rule.fields.get("with") or Node({}, BUILT_IN, children={})
        if found is UNCHECKED:
            return unresolved(node)
        shown_at = node if "with" in rule.fields else Node({}, rule.at, 1, rule.key_at, rule.key_length, {})
        below = (*path, "with")
        try:
            if use not in self._prepared:
                self._prepared[use] = trusted(schema) if is_shipped(found.cls) else prepare(schema)
            facts: dict[str, Any] = {"owner": use, "defined": rule.layers[0].position, "prepared": self._prepared[use]}
            resolved = resolve(schema, shown_at, self._sources, self._environment, below, use)
            found_wrong = validate(schema, resolved.node, self._sources, below, **facts)
            problems = resolved.problems + [one for one in found_wrong if one.path not in resolved.missing]
        except cerberus.SchemaError as error:
            message = f"the options of {use} ({found.origin}) are not a valid schema: {error}"
            self._report("X407", message, rule, path)
            return node
        self.problems += problems
        if problems:
            return node
        filled = fill(schema, resolved.node if "with" in rule.fields else node)
        self._values = resolved.values
        self._check_options(found, use, filled, rule, below)
        return filled

    def _check_options(self, found: Found, use: str, options: Node, rule: Node, path: KeyPath) -> None:
        def check() -> list[OptionProblem]:
            return list(found.cls.check_options(Options(options.data)))

        try:
            reported = check() if is_shipped(found.cls) else call_within(check, workers.SETUP_S)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - code of an extension: whatever it raises is its author's problem
            text = redacted(_said(error), self._values)
            message = f"check_options() of {use} ({found.origin}) raised {type(error).__name__}: {text}"
            self._report("X408", message, rule, path[:-1])
            return
        for problem in reported:
            node, known = options.find(problem.path)
            written = node if known and node.where.file != BUILT_IN.file else rule.fields.get("with", rule)
            note = "" if written is node else "the value comes from a default"
            code = "R510" if problem.fatal else "R511"
            where = (*path, *problem.path)
            message = redacted(problem.message, self._values)
            self._report(code, message, written, where, warning=not problem.fatal, note=note)

    # --- where and when ------------------------------------------------------------------------------------------

    def _at(self, found: Found, use: str, rule: Node, path: KeyPath) -> tuple[str, ...]:
        names: list[str] = []
        for node, where in _texts(rule.fields.get("at"), (*path, "at")):
            name = str(node.data)
            if name not in HOOKS:
                dotted_name = BY_METHOD[name].name if name in BY_METHOD else None
                advice = f'write "{dotted_name}"' if dotted_name else suggestion(name, found.hooks or HOOKS)
                self._report("R501", f"there is no hook point {name!r}", node, where, help=advice)
            elif name not in found.hooks:
                advice = f"it implements: {listed(found.hooks)}"
                self._report("R502", f"{use} does not implement {name}", node, where, help=advice)
            elif name not in names:
                names.append(name)
        return tuple(names)

    def _when(self, rule: Node, hooks: tuple[str, ...], path: KeyPath) -> When:
        patterns: dict[str, tuple[str, ...]] = {}
        for selector in ("tool", "agent"):
            place = rule.get("when", selector)
            nodes = _texts(place, (*path, "when", selector))
            patterns[selector] = tuple(str(node.data) for node, _ in nodes)
            if place is None:
                continue
            if any(pattern in ("!", "!*") for pattern in patterns[selector]):
                nothing = selector == "agent" or TOOL_HOOKS.issuperset(hooks)
                message = "the selector excludes everything" if nothing else "the selector excludes every tool"
                self._report("R505", message, place, (*path, "when", selector), warning=not nothing)
        tools = rule.get("when", "tool")
        if tools is not None and hooks and not TOOL_HOOKS & set(hooks):
            message = "the selector has no effect: none of the rule's hook points has a tool"
            self._report("R506", message, tools, (*path, "when", "tool"), warning=True)
        return When(**patterns)

    def _rollout(self, id: str, rule: Node, path: KeyPath) -> Rollout | None:
        node = rule.fields.get("rollout")
        if node is None:
            return None
        rollout = Rollout(node.data["percent"], node.data.get("by", "run_id"), node.data.get("salt", id))
        if not rollout.percent:
            message = "the rule is never called: no run is in a rollout of 0 percent"
            self._report("R515", message, node.fields["percent"], (*path, "rollout", "percent"), warning=True)
        return rollout

    def _order(self, id: str, rule: Node, part: str, path: KeyPath) -> tuple[str, ...]:
        names: list[str] = []
        for node, where in _texts(rule.get("order", part), (*path, "order", part)):
            name = str(node.data)
            if name == id:
                self._report("R504", "the rule is ordered against itself", node, where)
            elif name not in self._ids:
                others = [other for other in self._ids if other != id]
                self._report("R503", f"there is no rule {name!r}", node, where, help=suggestion(name, others, "rules"))
            else:
                names.append(name)
        return tuple(dict.fromkeys(names))


def in_run_order(rules: list[Rule], nodes: dict[str, Node], sources: Sources) -> tuple[list[Rule], list[Problem]]:
    """Return the rules in run order, or a problem if they are ordered in a circle."""
    by_id = {rule.id: rule for rule in rules}
    after: dict[str, list[str]] = {rule.id: list(rule.after) for rule in rules}
    for rule in rules:
        for other in rule.before:
            after[other].append(rule.id)
    ordered, circle = arrange(list(by_id), after)
    if not circle:
        return [by_id[name] for name in ordered], []
    first = circle[0]
    message = f"the rules are ordered in a circle: {' before '.join(circle)}"
    node = nodes[first].fields.get("order", nodes[first])
    return rules, [sources.at_key("R504", message, node, ("extensions", first, "order"))]


def _texts(node: Node | None, path: KeyPath) -> list[tuple[Node, KeyPath]]:
    """Return a text or a list of texts as nodes with their paths."""
    if node is None:
        return []
    if isinstance(node.children, tuple):
        return [(item, (*path, index)) for index, item in enumerate(node.children)]
    return [(node, path)]


def texts(node: Node | None) -> tuple[str, ...]:
    """Return a text or a list of texts as a tuple of texts."""
    return tuple(str(item.data) for item, _ in _texts(node, ()))


def _said(error: BaseException) -> str:
    """Return the whole text of an exception: what is hidden in it must not be cut in two before."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - `__str__` of a foreign exception is foreign code
        return "(its text cannot be shown)"


def _normal(name: str) -> str:
    """Return the name of a package as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
