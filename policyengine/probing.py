"""Probe one tool: call it with sample arguments and see whether its results have one shape.

Knows: functions and their signatures, classified results.
Must not know: the loop, policies, how findings are shown.

What an agent makes of a tool is decided by what its results look like when something goes wrong. So a probe is made
with arguments that fit and with arguments that do not, and the results are compared.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import queue
import re
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from policyengine.messages import ToolResult
from policyengine.results import Classified, classify_tool_result, tool_result_envelope
from policyengine.results.plain import attribute, plain, type_name
from policyengine.toolset import Tool

Level = Literal["error", "warning"]


class Problem(msgspec.Struct, frozen=True):
    """Something that will confuse an agent. `probe` names the probe that showed it; empty for the signature."""

    code: str
    level: Level
    message: str
    probe: str = ""


class Probe(msgspec.Struct, frozen=True):
    """One call and what came of it. `shape` is what the function itself gave: text, object, nothing, raised, ..."""

    name: str
    args: dict[str, Any]
    shape: str
    outcome: Classified
    envelope: dict[str, Any]


class Inspected(msgspec.Struct, frozen=True):
    """All that was found out about a tool. `ran` is false where only its signature was looked at."""

    tool: str
    description: str
    parameters: dict[str, Any]
    ran: bool
    probes: tuple[Probe, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing worse than a warning was found."""
        return all(problem.level != "error" for problem in self.problems)


class Sample(msgspec.Struct, frozen=True):
    """Arguments to call a tool with."""

    name: str
    args: dict[str, Any]


def inspect_tool(
    tool: Tool, samples: Sequence[Mapping[str, Any]] = (), *, run: bool = True, timeout_s: float = 10.0
) -> Inspected:
    """Call a tool with `samples` (derived from its signature if there are none) and return what was found.

    The function is really called, in a thread of its own; one that takes longer than `timeout_s` is left to itself.
    """
    problems = list(signature_problems(tool))
    probes: list[Probe] = []
    if run:
        given = [Sample(f"args {number}", dict(args)) for number, args in enumerate(samples, 1)]
        for sample in given or derived_samples(tool):
            value = call(tool, sample.args, timeout_s)
            probe = probed(tool, sample, value)
            probes.append(probe)
            problems += result_problems(probe, value)
        problems += shape_problems(probes)
    spec = tool.spec
    return Inspected(spec.name, spec.description, spec.parameters, run, tuple(probes), tuple(problems))


# ---- the signature


def signature_problems(tool: Tool) -> Iterator[Problem]:
    """Yield what a model is not told about a tool."""
    if not tool.spec.description:
        yield Problem("no_docstring", "warning", "the function has no docstring, so the model is not told what it does")
    for name, schema in tool.spec.parameters.get("properties", {}).items():
        if not schema:
            yield Problem("untyped_parameter", "warning", f"the model is not told the type of {name!r}")
    for parameter in _parameters(tool):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield Problem("open_signature", "warning", f"what {parameter} takes is not offered to the model")
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            yield Problem("positional_only", "error", f"{parameter.name!r} cannot be given by name, as calls do")


def derived_samples(tool: Tool) -> list[Sample]:
    """Return arguments that fit the signature, and arguments that do not."""
    hints = _hints(tool.function)
    needed = [
        parameter
        for parameter in _parameters(tool)
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    fitting = {parameter.name: sample_of(hints.get(parameter.name, str)) for parameter in needed}
    samples = [Sample("valid", fitting)]
    if fitting:
        first, *rest = fitting
        samples.append(Sample(f"without {first}", {name: fitting[name] for name in rest}))
        samples.append(Sample(f"wrong type of {first}", {**fitting, first: wrong_for(fitting[first])}))
    else:
        samples.append(Sample("unknown argument", {"no_such_argument": "sample"}))
    return samples


def sample_of(hint: Any) -> Any:
    """Return a value that fits a type annotation; text where the type says nothing that JSON could hold."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return parts[0]
    if origin in (Union, types.UnionType):
        return sample_of(next(part for part in parts if part is not type(None)))
    if origin is not None and getattr(hint, "__metadata__", None):
        return sample_of(parts[0])
    kind = origin or hint
    if isinstance(kind, type):
        if issubclass(kind, Enum):
            return next((member.value for member in kind), "sample")
        for plain_type, sample in _SAMPLES:
            if issubclass(kind, plain_type):
                return sample
    return "sample"


_SAMPLES: tuple[tuple[Any, Any], ...] = (
    (bool, True),
    (int, 1),
    (float, 1.0),
    (str, "sample"),
    (Mapping, {}),
    ((list, tuple, set, frozenset), []),
)


def wrong_for(fitting: Any) -> Any:
    """Return a value of a type that does not fit where `fitting` does."""
    return "not an object" if isinstance(fitting, dict) else {"unexpected": True}


# ---- the calls


def call(tool: Tool, args: Mapping[str, Any], timeout_s: float) -> Any:
    """Return what the function gave, or the exception it raised; a `TimeoutError` if it took too long."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    work = threading.Thread(target=lambda: answers.put(_called(tool, args)), daemon=True)
    work.start()
    try:
        return answers.get(timeout=timeout_s)
    except queue.Empty:
        return TimeoutError(f"no answer after {timeout_s:g} s")


def _called(tool: Tool, args: Mapping[str, Any]) -> Any:
    try:
        value = tool.function(**args)
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises is what the probe is to find out
        return error


async def _awaited(value: Any) -> Any:
    return await value


def probed(tool: Tool, sample: Sample, value: Any) -> Probe:
    """Return what an agent would be given for a value."""
    outcome = classify_tool_result(value, tool=tool.spec.name, kind="python")
    envelope = tool_result_envelope(outcome, tool=tool.spec.name)
    return Probe(sample.name, sample.args, shape_of(value), outcome, envelope)


def shape_of(value: Any) -> str:
    """Return the shape of what a function gave."""
    if value is None:
        return "nothing"
    for kinds, name in _SHAPES:
        if isinstance(value, kinds):
            return name
    return "object" if isinstance(plain(value).value, dict) else type_name(value)


_SHAPES: tuple[tuple[Any, str], ...] = (
    (BaseException, "raised"),
    (ToolResult, "ToolResult"),
    (bool, "boolean"),
    (str, "text"),
    (Mapping, "object"),
    ((list, tuple, set, frozenset), "list"),
    ((int, float), "number"),
    ((bytes, bytearray), "bytes"),
)


# ---- what is wrong with the results

TOLD_IN_PROSE = re.compile(
    r"\W*(error|exception|traceback|fail(ed|ure)?|fatal|invalid|cannot|could not)\b", re.IGNORECASE
)
"""How texts begin in which people are told of a failure. Good enough for a question to the author, for nothing else."""


def result_problems(probe: Probe, value: Any) -> Iterator[Problem]:
    """Yield what is wrong with one result."""
    if isinstance(value, BaseException):
        found = _raised_problems(probe, value)
    elif isinstance(value, ToolResult):
        return
    elif value is None or (isinstance(value, str | bytes) and not value.strip()):
        message = f"it returned nothing; the model reads {probe.outcome.content!r}"
        yield Problem("empty_output", "warning", message, probe.name)
        return
    elif isinstance(value, str):
        found = _text_problems(probe, value)
    else:
        found = _data_problems(probe, value)
    for code, level, message in found:
        yield Problem(code, level, message, probe.name)


Found = Iterator[tuple[str, Level, str]]


def _raised_problems(probe: Probe, error: BaseException) -> Found:
    if not isinstance(error, Exception):
        yield "raises_base_exception", "error", f"it raised {type_name(error)}, which ends the process that calls it"
    elif probe.outcome.reason == "timeout":
        yield "timeout", "error", probe.outcome.message


def _text_problems(probe: Probe, text: str) -> Found:
    if probe.outcome.ok and TOLD_IN_PROSE.match(text):
        message = "the text begins like a failure, but declares none: raise, or return an object with an error"
        yield "free_text_failure", "error", message


def _data_problems(probe: Probe, value: Any) -> Found:
    found = plain(value)
    if found.not_finite:
        yield "not_finite", "error", f"JSON has no such number: {'; '.join(found.notes)}"
    if callable(attribute(value, "__next__")) or callable(attribute(value, "__anext__")):
        yield "iterator", "error", "it returned an iterator, which nobody runs; return a list"
    elif found.converted:
        yield "not_json", "error", f"JSON has no form for {', '.join(found.converted)}; it is converted"
    elif found.notes and not found.not_finite:
        yield "not_json", "error", "; ".join(found.notes)
    if not probe.outcome.ok and not probe.outcome.declared:
        message = "the failure has no code, so two different ones look alike: give `error` a `code` and a `message`"
        yield "undeclared_code", "warning", message


def shape_problems(probes: Sequence[Probe]) -> Iterator[Problem]:
    """Yield what differs between results that should look the same."""
    good = {probe.shape: probe.name for probe in probes if probe.outcome.ok and probe.shape != "ToolResult"}
    if len(good) > 1:
        seen = ", ".join(f"{shape} ({name})" for shape, name in good.items())
        yield Problem("different_shapes", "error", f"successes have different shapes: {seen}")
    bad = {probe.shape: probe.name for probe in probes if not probe.outcome.ok and probe.shape != "raised"}
    if len(bad) > 1:
        seen = ", ".join(f"{shape} ({name})" for shape, name in bad.items())
        yield Problem("different_shapes", "error", f"failures have different shapes: {seen}")
    only = next(iter(good), None)
    for shape, name in bad.items():
        if only is not None and len(good) == 1 and shape not in (only, "ToolResult"):
            message = f"a success is {_an(only)}, a failure {_an(shape)}"
            yield Problem("different_shapes", "error", message, name)


def _an(shape: str) -> str:
    return shape if shape in ("nothing", "text", "bytes") else f"{'an' if shape[0] in 'aeiou' else 'a'} {shape}"


def _parameters(tool: Tool) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(tool.function).parameters.values())
    except (TypeError, ValueError):
        return []


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


def readable(args: Mapping[str, Any]) -> str:
    """Return arguments as one line of JSON."""
    return json.dumps(args, ensure_ascii=False)
