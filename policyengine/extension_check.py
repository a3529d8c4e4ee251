"""Check extensions without a policy: metadata, import, contract, templates, state, self-test, proofs.

Knows: what an engine demands of an extension, and in which order.
Must not know: which extensions are meant, how problems are shown.

Every problem has the distribution and the file and line of the code it is about. An extension is tried with its
default options; what must be given has the smallest value that its schema allows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from policyengine.errors import ConfigError, ExtensionError
from policyengine.extension import Extension
from policyengine.jsontext import decode, encode
from policyengine.plugins.blocks import ENGINE
from policyengine.plugins.checks import display_name, faults_of, implemented_hooks, with_line
from policyengine.plugins.found import Found, class_origin
from policyengine.plugins.packages import Package
from policyengine.plugins.registry import Registry, Source, check_engine, misnamed
from policyengine.policy.load import load_policy_text
from policyengine.policy.problems import Position, Problem, in_order
from policyengine.policy.versions import clauses
from policyengine.prove import UNPROVEN, Proved, prove
from policyengine.selftest import self_test
from policyengine.snapshot import build_snapshot
from policyengine.workers import call_with_limit, fault_text

TRIAL_S = 60.0
"""How long trying one extension may take."""

RULE = "subject"
"""The id of the rule by which an extension is tried."""

_LINE = re.compile(r" \(line (\d+)\)")
_PLACE = re.compile(r"(?:.*, )?([^,]*\.py)(?::(\d+))?\Z", re.DOTALL)


class Checked(msgspec.Struct, frozen=True):
    """One extension and what was found about it. `proofs` is how many hold."""

    name: str
    distribution: str
    version: str
    origin: str
    hooks: tuple[str, ...] = ()
    proofs: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it can be used."""
        return all(problem.severity != "error" for problem in self.problems)


def check_package(package: Package) -> tuple[Problem, ...]:
    """Return what the metadata of a package tells: which engines it works with, whether it is there twice."""
    found = []
    place = Position(package.label)
    if package.fault:
        found.append(Problem("X406", f"its metadata cannot be read: {package.fault}", place, package.name))
    elif package.engine is None:
        help_text = f'depend on the engine with a range: `dependencies = ["{ENGINE}>=0.1,<1"]`'
        message = f"the package does not depend on {ENGINE}"
        found.append(Problem("X413", message, place, package.name, "warning", help=help_text))
    elif not package.engine or not clauses(package.engine):
        message = f"which versions of {ENGINE} it needs cannot be told: {package.engine or 'any'}"
        found.append(Problem("X413", message, place, package.name, "warning"))
    if package.shadowed:
        message = f"it is installed as {', '.join(package.shadowed)} too; {package.version} ({package.folder}) is used"
        found.append(Problem("X414", message, place, package.name, "warning"))
    try:
        check_engine(package, package.name)
    except ExtensionError as error:
        found.append(Problem(error.code, error.detail, place, package.name))
    return tuple(found)


def check_source(source: Source, only: str = "") -> tuple[Checked, ...]:
    """Import a source and return what is wrong with each of its extensions; with `only`, with the one of that name.

    A source that cannot be imported, or has none, is one entry with the reason.
    """
    package = source.package
    version = package.version if package else ""
    try:
        classes = source.classes() if source.classes is not None else tuple(found.cls for found in source.load())
    except ExtensionError as error:
        problem = Problem(error.code, error.detail, place_of(error.origin), _label(package, error.extension))
        return (
            Checked(source.provides or error.extension, source.distribution, version, source.label, (), 0, (problem,)),
        )
    wanted = [cls for cls in classes if not only or display_name(cls) == only]
    return tuple(_check_class(cls, source, package, version) for cls in wanted)


def check_builtin(found: Found) -> Checked:
    """Return what is wrong with a built-in extension."""
    return _tried(found, class_place(found.cls), found.name, ())


def _check_class(cls: type[Extension], source: Source, package: Package | None, version: str) -> Checked:
    name, place, origin = display_name(cls), class_place(cls), class_origin(cls)
    label = _label(package, name)
    problems = [Problem("X406", fault, _at_line(place, fault), label) for fault in faults_of(cls)]
    fault = misnamed(source.entry, name) if source.entry is not None else ""
    if fault:
        problems.append(Problem("X406", f"{fault}: {source.label}", place, label))
    if problems:
        return Checked(name, source.distribution, version, origin, (), 0, in_order(problems))
    found = Found(name, cls, origin, source.distribution, version, False, implemented_hooks(cls))
    return _tried(found, place, label, tuple(_state_problems(cls, place, label)))


def _label(package: Package | None, name: str) -> str:
    return f"{package.label}, {name}" if package else name


def class_place(cls: type[Extension]) -> Position:
    """Return file and line of a class."""
    return place_of(with_line(cls, class_origin(cls)))


def place_of(origin: str) -> Position:
    """Return the position in a text that ends with a file and its line; the whole text where it does not."""
    match = _PLACE.match(origin)
    return Position(match[1], int(match[2] or 0)) if match else Position(origin)


def _at_line(place: Position, fault: str) -> Position:
    """Return the line that a fault names, in the file of its class."""
    match = _LINE.search(fault)
    return Position(place.file, int(match[1])) if match and place.line else place


# ---- state


def _state_problems(cls: type[Extension], place: Position, label: str) -> Iterator[Problem]:
    if cls.state is None:
        return
    try:
        fault = ", ".join(sorted(set(_custom(msgspec.inspect.type_info(cls.state)))))
        fault = fault and f"it holds what is no plain data: {fault}"
        state = cls.state()
        if not fault and msgspec.to_builtins(decode(encode(state, exact=False), cls.state)) != msgspec.to_builtins(
            state
        ):
            fault = "read again, it is not the same"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - types and defaults are the extension's own
        fault = fault_text(error)
    if fault:
        help_text = "a run is saved between any two events: use numbers, texts, lists, mappings and structs"
        yield Problem("X417", f"the state {cls.state.__name__} cannot be saved: {fault}", place, label, help=help_text)


def _custom(info: object, seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """Yield the types below one that can only be read with help."""
    if isinstance(info, msgspec.inspect.CustomType):
        yield getattr(info.cls, "__name__", str(info.cls))
    if id(info) in seen or not isinstance(info, msgspec.Struct):
        return
    for name in info.__struct_fields__:
        value = getattr(info, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field):
                yield from _custom(part, seen | {id(info)})


# ---- a trial


class _NoSampleError(Exception):
    """Nothing can be put in the place of an option that must be given."""


def sample_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the smallest value for every option that must be given and has no default."""
    needed = {name: rule for name, rule in schema.items() if rule.get("required") and "default" not in rule}
    return {name: _sample(name, rule) for name, rule in needed.items()}


def _sample(name: str, rule: Mapping[str, Any]) -> Any:
    kinds = rule["type"]
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if rule.get("allowed"):
        return [rule["allowed"][0]] if kind == "list" else rule["allowed"][0]
    if kind == "string":
        text = "10s" if rule.get("check_with") == "duration" else "sample".ljust(rule.get("minlength", 0), "x")
        text = text[: rule.get("maxlength", len(text))]
        if "regex" in rule and not re.match(rule["regex"], text):
            raise _NoSampleError(name)
        return text
    if kind == "list":
        return [_sample(name, rule["schema"])] * max(rule.get("minlength", 1), 1)
    if kind == "dict":
        if "schema" not in rule:
            raise _NoSampleError(name)
        return sample_options(rule["schema"])
    return {"boolean": True}.get(kind, rule.get("min", rule.get("max", 1)))


def _tried(found: Found, place: Position, label: str, problems: Iterable[Problem]) -> Checked:
    in_time, result, fault = call_with_limit(partial(_try, found, place, label), TRIAL_S)
    if not in_time:
        fault = f"it was given up after {TRIAL_S:g} s"
    proofs, more = (0, [Problem("X406", fault, place, label)]) if fault else result
    every = in_order((*problems, *more))
    return Checked(found.name, found.distribution, found.version, found.origin, found.hooks, proofs, every)


def _try(found: Found, place: Position, label: str) -> tuple[int, list[Problem]]:
    """Load a policy of this one rule as an engine does, in every language, and play the proofs."""
    registry = _registry(found)
    problems: list[Problem] = []
    proofs = 0
    for language in dict.fromkeys(("en", *found.cls.templates)):
        try:
            policy = load_policy_text(_policy(found, language), "policy.json", registry=registry)
        except _NoSampleError as error:
            message = f"not tried: nobody can guess a value for the option {error}"
            return 0, [_moved(Problem("X416", message, place, severity="warning", help=_HELP), place, label)]
        except ConfigError as error:
            return 0, [_refused(problem, place, label) for problem in error.problems]
        try:
            snapshot = build_snapshot(policy, registry)
            if language == "en":
                self_test(snapshot)
        except ConfigError as error:
            problems += [_moved(problem, place, label) for problem in error.problems if problem.path != "language"]
            continue
        if language == "en":
            proved = prove(policy, registry)
            proofs = sum(entry.ok for entry in proved if entry.label != UNPROVEN)
            problems += [problem for entry in proved for problem in _proof_problems(entry, place, label)]
    return proofs, list(dict.fromkeys(problems))


_HELP = "write a policy that uses it, and `policyengine prove` that"


def _registry(found: Found) -> Registry:
    if found.builtin:
        return Registry((found,))
    return Registry((), [Source(found.origin, lambda: (found,), found.name, found.distribution)])


def _policy(found: Found, language: str) -> str:
    rule = {"use": found.name, "with": sample_options(found.cls.options), "timeout": "10s"}
    packages = {found.distribution: "*"} if found.distribution and not found.builtin else {}
    head = {"apiVersion": "policyengine/v1", "kind": "Policy", "name": "check", "language": language}
    return json.dumps({**head, "requires": {"extensions": packages}, "extensions": {RULE: rule}})


def _moved(problem: Problem, place: Position, label: str) -> Problem:
    """Return a problem of the policy of a trial as one of the extension."""
    return msgspec.structs.replace(problem, position=place, path=label, source_line="", note="")


def _refused(problem: Problem, place: Position, label: str) -> Problem:
    """Sample options that an extension refuses are nobody's fault: nobody knows what they should be."""
    moved = _moved(problem, place, label)
    if problem.code[0] in "SR":
        message = f"not tried, because sample options are refused: {problem.path}: {problem.message}"
        return msgspec.structs.replace(moved, code="X416", message=message, severity="warning", help=_HELP)
    return moved


def _proof_problems(proved: Proved, place: Position, label: str) -> Iterator[Problem]:
    if proved.label == UNPROVEN:
        yield Problem("X416", "it declares no proof that it can fire", place, label, "warning")
    elif not proved.ok:
        fault = proved.fault or f"{proved.action} {proved.code} must come at {proved.expect}, but: {proved.alone}"
        yield Problem("X415", f"proof {proved.label}: {fault}", place, label)
