"""Rules that do no work: disabled, masked, doubled, without effect as a whole.

Knows: modes, options and their direction. Must not know: what an extension does with its options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from policyengine.policy.lint.subject import Subject, asked
from policyengine.policy.model import Policy, Rule
from policyengine.policy.problems import Problem, Severity
from policyengine.policy.stricter import compare
from policyengine.policy.wording import KeyPath, dotted

INERT = ("shadow", "disabled")
_COMPARED = 40
"""How many rules of one extension and selection are compared with each other; nobody writes so many by hand."""


def disabled_from_the_start(subject: Subject) -> Iterator[Problem]:
    """L601: the file that adds a rule disables it. A layer that disables the rule of another one means to."""
    for rule in subject.policy.rules:
        path: KeyPath = ("extensions", rule.id, "mode")
        node = subject.written(*path)
        if rule.mode != "disabled" or node is None:
            continue
        first = subject.policy.provenance[dotted(path[:2])][0].position.file
        if node.at.file == first:
            message = "the rule is disabled where it is added, and no layer enables it"
            advice = "remove the rule, or try it with `mode: shadow`"
            yield subject.finding("L601", message, path, severity="info", help=advice)


def adds_nothing(subject: Subject) -> Iterator[Problem]:
    """L602: another rule of the same extension is at least as strict wherever this one is asked."""
    # What is counted in a row depends on what a rule is shown, so that only the same selection can be compared.
    alike: dict[tuple[object, ...], list[Rule]] = {}
    for rule in subject.policy.rules:
        if asked(rule) and subject.mode_is_written(rule) and not rule.variables:
            alike.setdefault((rule.use, rule.at, rule.when, rule.on_error), []).append(rule)
    for rules in alike.values():
        for index, rule in enumerate(rules[:_COMPARED]):
            mask = _mask(subject, rules[:_COMPARED], index)
            if mask is not None:
                message = f"the rule adds nothing: {mask.id} is made of the same extension and is as strict or stricter"
                advice = f"remove the rule, or give it other options than {mask.id}"
                yield subject.finding("L602", message, ("extensions", rule.id), help=advice)


def _mask(subject: Subject, rules: Sequence[Rule], index: int) -> Rule | None:
    """Return a rule that masks the one at a place; of two that mask each other the later one is masked."""
    rule = rules[index]
    for place, other in enumerate(rules):
        if place != index and _masks(subject, other, rule) and (place < index or not _masks(subject, rule, other)):
            return other
    return None


def _masks(subject: Subject, one: Rule, other: Rule) -> bool:
    if one.mode != "enforce" or one.rollout is not None or one.exceptions:
        return False
    if one.options == other.options:
        return True
    if subject.look(one.use) is None:
        return False
    before, after = (_alone(subject.policy, rule) for rule in (other, one))
    return all(difference.verdict == "tighter" for difference in compare(before, after, subject.look, subject.today))


def _alone(policy: Policy, rule: Rule) -> Policy:
    """Return a policy of one rule of which only the options count."""
    plain = Rule("rule", rule.use, rule.position, rule.at, rule.options)
    return replace(policy, rules=(plain,), provenance={})


def shadows_of_themselves(subject: Subject) -> Iterator[Problem]:
    """L603: a rule in shadow records what another rule, which is in force, does anyway."""
    for rule in subject.policy.rules:
        if rule.mode != "shadow" or rule.variables or not subject.mode_is_written(rule):
            continue
        same = (rule.use, rule.at, rule.options, rule.when)
        for other in subject.policy.rules:
            if other.variables or not subject.mode_is_written(other):
                continue
            if other.mode == "enforce" and (other.use, other.at, other.options, other.when) == same:
                message = f"the rule in shadow is the same as {other.id}, which is enforced"
                advice = "give it the options that are to be tried, or remove it"
                yield subject.finding("L603", message, ("extensions", rule.id), help=advice)
                break


def nothing_in_force(subject: Subject) -> Iterator[Problem]:
    """L604: `defaults.mode` leaves no rule with an effect."""
    rules, path = subject.policy.rules, ("defaults", "mode")
    node = subject.written(*path)
    if node is None or node.data not in INERT or not rules:
        return
    if any(rule.mode not in INERT or not subject.mode_is_written(rule) for rule in rules):
        return
    severity: Severity = "warning" if node.data == "disabled" else "info"
    message = f"no rule of the policy has an effect: all are {node.data if node.data == 'disabled' else 'in shadow'}"
    yield subject.finding(
        "L604", message, path, severity=severity, help="say `mode: enforce` for rules that are to act"
    )


def open_on_faults(subject: Subject) -> Iterator[Problem]:
    """L605: a rule that is enforced lets everything through when it fails."""
    for rule in subject.policy.rules:
        if rule.mode != "enforce" or rule.on_error != "allow" or not subject.mode_is_written(rule):
            continue
        path: KeyPath = ("extensions", rule.id, "on_error")
        if subject.written(*path) is not None:
            message = "the rule is enforced, and lets everything through when it fails"
            advice = "without `on_error` a failing rule refuses (`deny`); `stop` ends the run"
            yield subject.finding("L605", message, path, severity="info", help=advice)
    path = ("defaults", "on_error")
    node = subject.written(*path)
    if node is not None and node.data == "allow" and any(_inherits(subject, rule) for rule in subject.policy.rules):
        message = "rules that are enforced let everything through when they fail"
        advice = "leave it out, and write `on_error: allow` for the rules that are only to help"
        yield subject.finding("L605", message, path, severity="info", help=advice)


def _inherits(subject: Subject, rule: Rule) -> bool:
    if rule.mode != "enforce" or not subject.mode_is_written(rule):
        return False
    return subject.root.get("extensions", rule.id, "on_error") is None


def exceptions_from_nothing(subject: Subject) -> Iterator[Problem]:
    """L612: an exception from a rule that has no effect anyway."""
    modes = {rule.id: rule.mode for rule in subject.policy.rules if subject.mode_is_written(rule)}
    node = subject.root.get("exceptions")
    for index, entry in enumerate(node.items if node else ()):
        name = entry.fields["rule"].data
        if modes.get(name) in INERT:
            message = f"the exception changes nothing: the rule {name} has no effect by its mode"
            advice = "remove the exception; add it again when the rule is enforced"
            path = ("exceptions", index, "rule")
            yield subject.finding("L612", message, path, severity="info", help=advice)
