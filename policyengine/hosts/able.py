"""Whether a host can do what a policy may ask of it, before anything runs.

Knows: what rules declare that they answer, what hosts can do and tell.
Must not know: runs, adapters.

What a rule does not declare is decided when it happens: the run then does the nearest stricter thing that the host can
(`core`).
"""

from __future__ import annotations

from collections.abc import Iterator

from policyengine.errors import ConfigError
from policyengine.extension import Extension
from policyengine.hosts.host import ABILITIES, Host, needed
from policyengine.policy.disk import SHIPPED
from policyengine.policy.model import Rule
from policyengine.policy.problems import Problem, Severity, in_order
from policyengine.snapshot import PolicySnapshot

_HEARD = ("record", "hint")
"""What a rule in mode `warn` comes to."""


def check_host(snapshot: PolicySnapshot, host: Host) -> tuple[Problem, ...]:
    """Return what stands between a policy and a host, errors and warnings, in the order of the files."""
    found: list[Problem] = []
    for rule in snapshot.policy.rules:
        extension = snapshot.extensions.get(rule.id)
        if extension is None:
            continue
        if not host.shares and any(one.rule == rule.id for one in snapshot.shared):
            found.append(_alone(rule, host))
            continue
        if rule.mode == "shadow":
            continue
        hooks = [
            name for name, table in snapshot.tables.items() if any(one.rule.id == rule.id for one in table.entries)
        ]
        found += _problems(rule, extension, hooks, host)
    return in_order(found)


def require(snapshot: PolicySnapshot, host: Host) -> tuple[Problem, ...]:
    """Return the warnings about a policy on a host.

    Raises:
        ConfigError: the policy may ask for what the host cannot do, or holds a rule that can never fire there.
    """
    problems = check_host(snapshot, host)
    if any(problem.severity == "error" for problem in problems):
        raise ConfigError(problems)
    return problems


def _problems(rule: Rule, extension: Extension, hooks: list[str], host: Host) -> Iterator[Problem]:
    answers = extension.answers()
    heard = [hook for hook in hooks if hook not in host.silent]
    firing = heard if answers is None else [hook for hook in heard if answers.get(hook)]
    missing = sorted(extension.needs & host.silent)
    if missing or (not firing and any(hook in host.silent for hook in hooks)):
        yield _never(rule, host, missing or [hook for hook in hooks if hook in host.silent])
        return
    if answers is None:
        yield _unknown(rule, host)
        return
    wanted = [(action, hook) for hook in firing for action in answers[hook]]
    if rule.mode == "warn":
        wanted = [("hint", hook) for _, hook in wanted]
    unable = dict.fromkeys(action for action, hook in wanted if not host.able(action, hook))
    for action in unable:
        hook = next(hook for name, hook in wanted if name == action)
        yield _unable(rule, host, action, hook)


def _alone(rule: Rule, host: Host) -> Problem:
    message = f"the rule counts together with other processes, and the host {host.name} has no ledger to count in"
    advice = "set `mode: disabled` for this host in an overlay, or limit every run by itself (`tool_call_limit`)"
    return _problem("R520", message, rule, "error", advice)


def _unable(rule: Rule, host: Host, action: str, hook: str) -> Problem:
    message = (
        f"the rule may answer `{action}` at {hook}, and the host {host.name} cannot {ABILITIES[needed(action, hook)]}"
    )
    advice = f"take `{action}` out of the rule's options, set `mode: shadow` or `mode: disabled`, or use another host"
    return _problem("R517", message, rule, "error", advice)


def _never(rule: Rule, host: Host, hooks: list[str]) -> Problem:
    shipped = rule.position.file.startswith(SHIPPED)
    message = f"the rule can never fire: the host {host.name} reports nothing about {', '.join(hooks)}"
    advice = "set `mode: disabled` for this host in an overlay, or use a rule that looks at calls"
    note = "a warning only, because a shipped policy is for every host" if shipped else ""
    return _problem("R518", message, rule, "warning" if shipped else "error", advice, note)


def _unknown(rule: Rule, host: Host) -> Problem:
    message = (
        f"`{rule.use}` does not declare what it answers, so nobody can tell whether the host {host.name} can do it"
    )
    advice = "its author can add the method `answers`; at run time the nearest stricter action is taken"
    return _problem("R519", message, rule, "warning", advice)


def _problem(code: str, message: str, rule: Rule, severity: Severity, advice: str, note: str = "") -> Problem:
    return Problem(code, message, rule.position, f"extensions.{rule.id}", severity, advice, note)
