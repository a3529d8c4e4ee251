"""Load a policy: files to a validated, frozen `Policy`, or every problem with file and line.

Knows: the phases of loading and what each setting becomes. Must not know: where extensions come from (`Registry` is
all it sees of them), how anything is carried out.

Phases: read (text, header, `extends`), merge, check (settings, rules, references). All problems of a phase are
reported together, sorted by file and line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from policyengine.errors import ConfigError
from policyengine.extension import Extension
from policyengine.messages import Failure, ToolFacts
from policyengine.parsing.notation import Form
from policyengine.plugins.blocks import ENGINE, Block
from policyengine.policy.advice import advise
from policyengine.policy.days import today as utc_today
from policyengine.policy.defaults import fill
from policyengine.policy.durations import seconds
from policyengine.policy.environment import Environment, resolve, variable_of
from policyengine.policy.exceptions import read_exceptions
from policyengine.policy.files import LayerFile, Reader
from policyengine.policy.globs import covers, is_pattern
from policyengine.policy.layers import Merged, provenance
from policyengine.policy.locks import broken_locks, has_locks
from policyengine.policy.model import Interventions, Layer, Log, ModelFacts, Parsing, Planning, Policy, Reload, Rule
from policyengine.policy.nodes import Node, Sources, mapping
from policyengine.policy.pointers import included_by
from policyengine.policy.problems import Position, Problem, in_order
from policyengine.policy.rules import RuleReader, in_run_order, texts
from policyengine.policy.schema import MAX_RULES, SETTINGS
from policyengine.policy.stricter import Look, looking
from policyengine.policy.validate import validate
from policyengine.policy.validator import trusted
from policyengine.policy.versions import clauses, fit
from policyengine.policy.wording import dotted
from policyengine.policy.yamltext import YamlLoader


class Found(Protocol):
    """An extension as a registry knows it.

    `distribution` is empty for built-in extensions and for those of a drop-in folder; `hooks` are the hook points it
    implements, in policy spelling.
    """

    @property
    def cls(self) -> type[Extension]: ...  # noqa: D102
    @property
    def origin(self) -> str: ...  # noqa: D102
    @property
    def distribution(self) -> str: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102
    @property
    def builtin(self) -> bool: ...  # noqa: D102
    @property
    def hooks(self) -> tuple[str, ...]: ...  # noqa: D102


class Registry(Protocol):
    """Where extensions are looked up by name.

    If it also has `allowing(distributions) -> Registry`, rules are looked up in what that returns for the packages
    that the policy lists, so that no other package is imported; `blocking(blocks) -> Registry` does the same for those
    that the policy blocks.
    """

    def get(self, name: str) -> Found | None:
        """Return an extension, or `None`. Raises ExtensionError if it is there and cannot be loaded."""

    def names(self) -> tuple[str, ...]:
        """Return the names of all extensions."""


def load_policy(
    source: str | Path,
    *,
    registry: Registry | None,
    overlays: Sequence[str | Path] = (),
    yaml_loader: YamlLoader = "auto",
    root: Path | None = None,
    shipped: Traversable | None = None,
    env: Mapping[str, str] | None = None,
    today: date | None = None,
) -> Policy:
    """Load a shipped policy by name, or a policy file, with the overlays on top.

    A source is a file if it has a slash or a suffix (`./name` for a file without one); a shipped name always means
    the shipped policy. Files named inside the policy must lie in `root`
    (default: the directory of the policy). `shipped` replaces the folder of shipped policies. Without a registry
    (`None`) extensions and packages are not looked up: what only they can tell is left unchecked. `env` stands for
    the variables of the process, and `today` for the present day in UTC.
    Raises ConfigError with all problems of the first phase that has any.
    """
    reader = Reader(yaml_loader, root=root, shipped=shipped)
    return _load(reader, reader.policy(source), overlays, registry, Environment(env), today)


def load_policy_text(
    text: str | bytes,
    name: str = "policy.yaml",
    *,
    registry: Registry | None,
    overlays: Sequence[str | Path] = (),
    yaml_loader: YamlLoader = "auto",
    folder: Path | None = None,
    shipped: Traversable | None = None,
    env: Mapping[str, str] | None = None,
    today: date | None = None,
) -> Policy:
    """Load a policy given as text. `name` is its file in positions; a name in `.json5` or `.json` is read as such.

    Relative paths in the policy start at `folder`; without one they are refused.
    """
    reader = Reader(yaml_loader, shipped=shipped)
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return _load(reader, reader.text(content, name, folder), overlays, registry, Environment(env), today)


def _load(
    reader: Reader,
    own: LayerFile | None,
    overlays: Sequence[str | Path],
    registry: Registry | None,
    environment: Environment,
    today: date | None,
) -> Policy:
    above = [reader.overlay(Path(path)) for path in overlays]
    if own is not None:
        for overlay in above:
            _check_target(reader, overlay, own)
    try:
        _raise(reader.problems)
        assert own is not None
        merged = Merged(reader.layers, reader.sources)
        _raise(merged.problems)
        # What the topmost layer blocks must not be imported to compare the layers below it either.
        blocks = _blocks(merged.root)
        registry = _without_blocked(registry, blocks)
        day = today or utc_today()
        if has_locks(reader.layers):
            _raise(_broken_locks(reader, own, registry, environment, day, blocks))
        return _Checker(reader, merged, own, registry, environment, day, blocks).policy()
    except ConfigError as error:
        error.tried = tuple(dict.fromkeys(reader.tried))
        raise


def _broken_locks(
    reader: Reader,
    own: LayerFile,
    registry: Registry | None,
    environment: Environment,
    today: date,
    blocks: tuple[Block, ...],
) -> list[Problem]:
    def build(merged: Merged) -> Policy:
        return _Checker(reader, merged, own, registry, environment, today, blocks).lower()

    def look(policy: Policy) -> Look:
        return looking(registry, policy) if registry is not None else lambda name: None

    return broken_locks(reader.layers, reader.sources, build, look)


def _blocks(root: Node) -> tuple[Block, ...]:
    """Return what any layer blocks, as it was written: also where something else is wrong with the policy."""
    node = root.get("requires", "block")
    items = node.items if node is not None else ()
    return tuple(Block(item.data, str(item.at)) for item in items if isinstance(item.data, str))


def _without_blocked(registry: Registry | None, blocks: tuple[Block, ...]) -> Registry | None:
    narrow = getattr(registry, "blocking", None)
    without: Registry | None = narrow(blocks) if blocks and callable(narrow) else registry
    return without


def _check_target(reader: Reader, overlay: LayerFile | None, own: LayerFile) -> None:
    if overlay is None or overlay.header["target"] == own.header["name"]:
        return
    message = f"the overlay is for {overlay.header['target']!r}, but the policy is {own.header['name']!r}"
    node = overlay.root.fields["target"]
    reader.problems.append(reader.sources.at_value("M310", message, node, ("target",)))


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise ConfigError(in_order(problems))


class _Checker:
    """The last phase: settings, rules, references."""

    def __init__(
        self,
        reader: Reader,
        merged: Merged,
        own: LayerFile,
        registry: Registry | None,
        environment: Environment,
        today: date,
        blocks: tuple[Block, ...],
    ) -> None:
        self._reader = reader
        self._sources: Sources = reader.sources
        self._merged = merged
        self._own = own
        self._registry = registry
        self._environment = environment
        self._today = today
        self._root = merged.root
        self._blocks = blocks
        self._lower = False
        self._problems: list[Problem] = []
        self._warnings: list[Problem] = list(reader.warnings)

    def policy(self) -> Policy:
        """Return the policy, or raise ConfigError."""
        root, rules, tools = self._effective()
        prompts = self._prompts(root.fields["prompts"])
        if not self._written("extensions").fields:
            self._warn("R507", "the policy has no rules, so it changes nothing", self._own.root)
        if root.data["kill_switch"]:
            self._warn("R514", "no rule has an effect", root.fields["kill_switch"], ("kill_switch",))
        self._check_masks(root.fields["log"])
        _raise(self._problems)
        for name, text in sorted(self._environment.used.items()):
            self._reader.variable(name, text)
        return self._build(root, rules, tools, prompts)

    def lower(self) -> Policy:
        """Return the policy that only the lower layers make, without its prompts, or raise ConfigError."""
        self._lower = True
        root, rules, tools = self._effective()
        _raise(self._problems)
        return self._build(root, rules, tools, ())

    def _effective(self) -> tuple[Node, list[Rule], tuple[tuple[str, ToolFacts], ...]]:
        """Return the settings with all defaults, the rules in run order and the facts about tools."""
        resolved = resolve(SETTINGS, self._merged.root, self._sources, self._environment)
        self._problems += resolved.problems
        self._root = written = resolved.node
        rules_node = self._written("extensions")
        count = len(rules_node.fields)
        if count > MAX_RULES:
            _raise([self._sources.at_key("S214", f"{count} rules; at most {MAX_RULES}", rules_node, ("extensions",))])
        found = validate(SETTINGS, written, self._sources, prepared=trusted(SETTINGS))
        self._problems += [problem for problem in found if problem.path not in resolved.missing]
        self._check_engine()
        sound = _sound(written, self._problems)
        root = fill(SETTINGS, sound)
        rules, root = self._rules(root)
        return root, rules, self._tools(root.fields["tools"])

    def _written(self, name: str) -> Node:
        """Return a section as it was written; an empty mapping if it was not."""
        return self._root.fields.get(name) or Node({}, self._own.root.at, children={})

    def _build(
        self, root: Node, rules: list[Rule], tools: tuple[tuple[str, ToolFacts], ...], prompts: tuple[str, ...]
    ) -> Policy:
        data = root.data
        overlays = [layer for layer in self._reader.layers if layer.kind == "Overlay"]
        revised = [node for layer in (self._own, *overlays) if (node := layer.root.fields.get("revision"))]
        revisions = [node.data for node in revised]
        said = {"revision": tuple(Layer(node.data, node.at) for node in revised)} if revised else {}
        own_position = self._merged.root.fields.get("interventions")
        return Policy(
            name=self._own.header["name"],
            revision=revisions[-1] if revisions else "",
            rules=tuple(rules),
            tools=tools,
            protocol=data["protocol"],
            tool_results=data["tool_results"],
            language=data["language"],
            parsing=Parsing(**_parsing(data["parsing"])),
            models=tuple((name, _model(facts)) for name, facts in data["models"].items()),
            plan=Planning(**data["plan"]),
            interventions=Interventions(
                data["interventions"]["max"],
                data["interventions"]["then"],
                own_position.where if own_position else Position("default"),
            ),
            wind_down_rounds=data["wind_down"]["rounds"],
            kill_switch=data["kill_switch"],
            prompts=prompts,
            log=Log(tuple(data["log"]["include"]), tuple(data["log"]["mask"]), float(data["log"]["sample"]["allow"])),
            reload=_reload(data["reload"]),
            packages=dict(data["requires"]["extensions"]),
            blocks=self._blocks,
            digest=self._reader.digest,
            files=tuple(dict.fromkeys(self._reader.files)),
            provenance={**said, **provenance(root, self._merged.removed)},
            warnings=in_order(self._warnings),
        )

    def _warn(self, code: str, message: str, node: Node, path: tuple[str | int, ...] = (), **facts: Any) -> None:
        self._warnings.append(self._sources.at_key(code, message, node, path, severity="warning", **facts))

    def _check_masks(self, log: Node) -> None:
        """Warn of masks that can never hide anything, because what they are for is not written."""
        for index, node in enumerate(log.fields["mask"].items):
            include = included_by(node.data)
            if include and include not in log.data["include"]:
                message, advice = f"`log.include` has no {include}", f"write `include: [{include}]`, or remove the mask"
                path = ("log", "mask", index)
                warned = self._sources.at_value("R516", message, node, path, severity="warning", help=advice)
                self._warnings.append(warned)

    def _check_engine(self) -> None:
        """Check every layer's own range: a policy must not lift what the one it extends needs."""
        for layer in self._reader.layers:
            node = layer.settings.get("requires", "policyengine")
            if node is None or not isinstance(node.data, str):
                continue
            bounds, path = clauses(node.data), ("requires", "policyengine")
            if bounds is None:
                message = f"{node.data!r} is no version range"
                self._problems.append(self._sources.at_value("X409", message, node, path, help='write ">=0.1,<1"'))
                continue
            running = _engine_version()
            verdict = fit(running, bounds)
            if verdict != "ok":
                message = f"the engine ({running}) is {verdict}: the policy asks for {node.data}"
                self._problems.append(self._sources.at_value("E801", message, node, path))

    def _rules(self, root: Node) -> tuple[list[Rule], Node]:
        """Return the rules in run order, and the settings with the defaults of every rule filled in."""
        written, packages = root.fields["extensions"], root.fields["requires"].fields["extensions"]
        ids = list(self._written("extensions").fields)
        reader = RuleReader(
            self._registry,
            self._sources,
            root.fields["defaults"],
            packages,
            ids,
            self._environment,
            self._blocks,
            lower=self._lower,
        )
        rules: list[Rule] = []
        nodes: dict[str, Node] = {}
        for name, node in written.fields.items():
            rule, nodes[name] = reader.read(name, node)
            if rule is not None:
                rules.append(rule)
        if self._registry is not None:
            self._check_unused_packages(reader, packages)
        self._problems = [*advise(self._problems, self._written("extensions"), reader.options_of), *reader.problems]
        self._warnings += reader.warnings
        if len(rules) == len(ids):
            rules, circle = in_run_order(rules, nodes, self._sources)
            self._problems += circle
        exceptions = read_exceptions(root.fields["exceptions"], ids, rules, reader.hooks, self._today, self._sources)
        self._problems += exceptions.problems
        self._warnings += exceptions.warnings
        rules = [
            msgspec.structs.replace(rule, exceptions=exceptions.of[rule.id]) if rule.id in exceptions.of else rule
            for rule in rules
        ]
        return rules, mapping({**root.fields, "extensions": mapping(nodes, written)}, root)

    def _check_unused_packages(self, reader: RuleReader, packages: Node) -> None:
        """Check packages that are required and that no rule uses: required means installed, used or not."""
        for name, node in packages.fields.items():
            if reader.uses_package(name):
                continue
            try:
                running = installed_version(name)
            except PackageNotFoundError:
                path = ("requires", "extensions", name)
                message = f"the package {name} is not installed"
                self._problems.append(self._sources.at_key("X403", message, node, path))
            else:
                reader.check_version(name, running, node)

    def _tools(self, node: Node) -> tuple[tuple[str, ToolFacts], ...]:
        found: list[tuple[str, ToolFacts]] = []
        for pattern, tool in node.fields.items():
            self._check_masked(pattern, [name for name, _ in found], tool)
            prefixes = tool.get("failure", "text_prefix")
            for prefix in texts(prefixes):
                if prefixes is not None and prefix != prefix.lstrip():
                    path = ("tools", pattern, "failure", "text_prefix")
                    name = variable_of(prefixes) or next(filter(None, map(variable_of, prefixes.items)), None)
                    quoted = f"$env {name}" if name else repr(prefix)
                    message = f"{quoted} never matches: results are compared without leading blanks"
                    self._problems.append(self._sources.at_value("R509", message, prefixes, path))
            found.append((pattern, tool_facts(tool)))
        return tuple(found)

    def _check_masked(self, pattern: str, earlier: list[str], tool: Node) -> None:
        if not is_pattern(pattern):
            return
        masking = [other for other in earlier if covers(other, pattern)]
        if masking:
            message = f"never used: the earlier pattern {masking[0]!r} matches the same tools"
            advice = "put the more specific pattern first"
            self._warn("R508", message, tool, ("tools", pattern), help=advice)

    def _prompts(self, node: Node) -> tuple[str, ...]:
        folders: list[str] = []
        for index, entry in enumerate(node.items):
            path: tuple[str | int, ...] = ("prompts", index)
            folder = self._folder(entry, path)
            if folder is not None:
                folders.append(os.path.abspath(folder))
                self._reader.prompts(folder, str(entry.data))
        self._problems += self._reader.problems
        return tuple(folders)

    def _folder(self, entry: Node, path: tuple[str | int, ...]) -> Path | None:
        layer = next((layer for layer in self._reader.layers if layer.file == entry.at.file), None)
        if layer is None or layer.folder is None or "\0" in entry.data:
            message = "only a policy file can name directories"
            self._problems.append(self._sources.at_value("M303", message, entry, path))
            return None
        folder = layer.folder / str(entry.data)
        if Path(entry.data).is_absolute() or not self._reader.inside(folder, layer):
            message = f"{entry.data} lies outside the directory of the policy that is loaded"
            self._problems.append(self._sources.at_value("M303", message, entry, path))
            return None
        self._reader.look_for(folder)
        if not folder.is_dir():
            message = f"there is no directory {folder}"
            self._problems.append(self._sources.at_value("E803", message, entry, path))
            return None
        return folder


def _sound(root: Node, problems: list[Problem]) -> Node:
    """Return the settings without the parts that have problems, so that the rest can still be checked."""
    return _pruned(root, (), {problem.path for problem in problems}) if problems else root


def _pruned(node: Node, path: tuple[str, ...], wrong: set[str]) -> Node:
    """Drop what is wrong, down to the fields of a rule; a rule that does not say what it uses is dropped whole."""
    fields: dict[str, Node] = {}
    for key, child in node.fields.items():
        start = dotted((*path, key))
        below = any(problem.startswith((f"{start}.", f"{start}[")) for problem in wrong)
        if start in wrong or f"{start}.use" in wrong:
            continue
        if not below:
            fields[key] = child
        elif child.fields and len(path) < 2:
            fields[key] = _pruned(child, (*path, key), wrong)
    return mapping(fields, node)


def _parsing(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of parsing with its forms as values of their own."""
    given = dict(settings)
    if "forms" in given:
        given["forms"] = tuple(Form(**form) for form in given["forms"])
    return given


def _model(facts: Mapping[str, Any]) -> ModelFacts:
    return ModelFacts(**{**facts, "parsing": _parsing(facts.get("parsing", {}))})


def _reload(data: dict[str, Any]) -> Reload:
    limit = data.get("max_staleness")
    return Reload(data["pin"], _seconds(data["settle"]), None if limit is None else _seconds(limit))


def tool_facts(node: Node) -> ToolFacts:
    """Return the facts about a tool that a sound entry of `tools:` states."""
    return ToolFacts(
        effect=node.data.get("effect", "exec"),
        timeout_s=_seconds(node.data["timeout"]) if "timeout" in node.data else None,
        result_mask=texts(node.fields.get("result_mask")),
        failure=Failure(texts(node.get("failure", "text_prefix"))),
    )


def _seconds(text: str) -> float:
    value = seconds(text)
    assert value is not None
    return value


def _engine_version() -> str:
    try:
        return installed_version(ENGINE)
    except PackageNotFoundError:
        return "0"
