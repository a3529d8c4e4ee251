"""Settings without effect, because another setting leaves them nothing to do.

Knows: which settings of the core need which. Must not know: rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from policyengine.parsing.forms import Form
from policyengine.policy.lint.subject import Subject
from policyengine.policy.model import Parsing
from policyengine.policy.problems import Problem
from policyengine.policy.wording import KeyPath

READS_TEXT = ("lenient", "repair")
"""The modes in which the text of a native response is looked into."""


def forms_of_a_native_protocol(subject: Subject) -> Iterator[Problem]:
    """L641: forms are declared for text, and calls are made natively."""
    if subject.policy.protocol != "native" or subject.written("protocol") is None:
        return
    for path, parsing in _places(subject):
        if parsing.forms and subject.written(*path, "forms") is not None:
            message = "no reply is read by these forms: `protocol` is native"
            yield subject.finding("L641", message, (*path, "forms"), help="write `protocol: text`, or leave them out")


def forms_twice(subject: Subject) -> Iterator[Problem]:
    """L642: two forms look the same, so that nobody can tell which was meant."""
    for path, parsing in _places(subject):
        node = subject.written(*path, "forms")
        seen: list[Form] = []
        for index, form in enumerate(parsing.forms if node is not None else ()):
            if any((form.form, form.word) == (other.form, other.word) for other in seen):
                named = f"`{form.form}`" + (f" with the word {form.word!r}" if form.word else "")
                message = f"there is a form {named} already"
                place = (*path, "forms", index)
                yield subject.finding("L642", message, place, help="give it a word of its own, or remove it")
            seen.append(form)


def repairs_without_checks(subject: Subject) -> Iterator[Problem]:
    """L643: arguments are to be asked for again, and nobody looks whether they fit."""
    for path, parsings in _with_all(subject):
        wanted = subject.written(*path, "repair_calls")
        if wanted is not None and wanted.data and all(parsing.arguments == "off" for parsing in parsings):
            message = "nothing is asked for again: arguments are not checked"
            advice = "write `arguments: check` or `arguments: coerce`, or leave it out"
            yield subject.finding("L643", message, (*path, "repair_calls"), help=advice)


def text_that_is_never_read(subject: Subject) -> Iterator[Problem]:
    """L644: calls in text are to count, in a mode that never looks into the text of a native response."""
    for path, parsings in _with_all(subject):
        wanted = subject.written(*path, "text_fallback")
        if wanted is None or wanted.data is not True:
            continue
        if subject.policy.protocol == "text":
            message, advice = "only native responses have a fallback: `protocol` is text", "leave it out"
        elif not any(parsing.mode in READS_TEXT for parsing in parsings):
            message = "the mode of parsing never looks into the text of a native response"
            advice = "write `mode: lenient` or `mode: repair`, or leave it out"
        else:
            continue
        yield subject.finding("L644", message, (*path, "text_fallback"), help=advice)


def plan_without_steps(subject: Subject) -> Iterator[Problem]:
    """L645: a plan is described, and there are no plans."""
    node = subject.written("plan")
    if node is None or subject.policy.plan.mode != "off" or subject.root.get("plan", "mode") is not None:
        return
    for name in node.fields:
        message = "there are no plans: `plan.mode` is off"
        yield subject.finding("L645", message, ("plan", name), help="write `mode: steps`, or leave it out")
        return


def _places(subject: Subject) -> Iterator[tuple[KeyPath, Parsing]]:
    """Yield where settings of parsing stand, each with what is in force there."""
    policy = subject.policy
    yield ("parsing",), policy.parsing
    for pattern, facts in policy.models:
        yield ("models", pattern, "parsing"), replace(policy.parsing, **facts.parsing)


def _with_all(subject: Subject) -> Iterator[tuple[KeyPath, list[Parsing]]]:
    """Yield where settings of parsing stand, each with all that it may be in force together with."""
    places = list(_places(subject))
    for index, (path, parsing) in enumerate(places):
        yield path, [found for _, found in places] if not index else [parsing]
