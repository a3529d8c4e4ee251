"""Prove that every rung of every rule can fire: alone, and in the whole policy, through the real loop.

Knows: the sequences that extensions declare, how a script is played.
Must not know: any particular extension, files, how results are printed.

Five public products shipped loop rules that could not fire as configured or as wired (field reports 63, 64, 85, 86);
their unit tests bypassed the wiring. So a proof drives `Agent` (see `testing.play`), not the extension.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from policyengine.decision import Vote
from policyengine.dispatch import facts
from policyengine.engine import Engine
from policyengine.extension import Proof
from policyengine.outcome import Outcome
from policyengine.plugins.registry import Registry
from policyengine.policy.model import Interventions, Planning, Policy, Rule, When
from policyengine.run import Report
from policyengine.snapshot import build_snapshot
from policyengine.testing import ManualClock, play

UNPROVEN = "unproven"


class Proved(msgspec.Struct, frozen=True):
    """What came of one proof.

    `alone` is `fires at N` or `never`; `whole` further `delayed to M by RULE` or `masked by RULE` (N and M are
    iterations). `fault` is what was wrong with the rule itself meanwhile: it raised, or a message of it could not be
    rendered. `ok` is false where the rung does not fire alone as declared, or not at all in the whole policy, or where
    there was a fault. A rule whose extension declares no sequence has one entry, labelled `unproven`.

    The selectors (`when`) and exceptions of the rule being proved are left out: the sequences use tools of their own.
    So are the kill switch, and every rollout: the policy is proved for a run that all rules are for.
    """

    rule: str
    at: str
    label: str
    action: str = ""
    code: str = ""
    expect: int = 0
    alone: str = ""
    whole: str = ""
    fault: str = ""
    ok: bool = True


class _Fired(msgspec.Struct, frozen=True):
    iteration: int | None
    outcome: Outcome
    others: tuple[str, ...]
    fault: str


def prove(policy: Policy, registry: Registry) -> list[Proved]:
    """Return the proofs of every rule that is not disabled, in policy order.

    Raises:
        ConfigError: the policy cannot be compiled.
    """
    extensions = build_snapshot(policy, registry).extensions
    proved: list[Proved] = []
    for rule in policy.rules:
        if rule.id not in extensions:
            continue
        at = f"{rule.position.file}:{rule.position.line}"
        entries = [_prove(policy, registry, rule, at, proof) for proof in extensions[rule.id].proofs()]
        proved += entries or [Proved(rule.id, at, UNPROVEN)]
    return proved


def _prove(policy: Policy, registry: Registry, rule: Rule, at: str, proof: Proof) -> Proved:
    tools = (*proof.tools.items(), *policy.tools)
    rule = msgspec.structs.replace(rule, when=When(), exceptions=(), rollout=None)
    rules = tuple(
        rule if other.id == rule.id else msgspec.structs.replace(other, rollout=None) for other in policy.rules
    )
    # The turns of a proof are rounds: asking again within one, or for a plan first, would take turns away.
    parsing = msgspec.structs.replace(policy.parsing, max_retry=0, repair_calls=0, forms=())
    whole = msgspec.structs.replace(
        policy,
        rules=rules,
        tools=tools,
        protocol=proof.protocol,
        parsing=parsing,
        models=(),
        plan=Planning(),
        kill_switch=False,
    )
    unlimited = Interventions(max=10_000, then="stop")
    alone = msgspec.structs.replace(whole, rules=(rule,), interventions=unlimited)
    single, full = _drive(alone, registry, rule, proof), _drive(whole, registry, rule, proof)
    return Proved(
        rule=rule.id,
        at=at,
        label=proof.label,
        action=proof.action,
        code=proof.code,
        expect=proof.expect,
        alone="never" if single.iteration is None else f"fires at {single.iteration}",
        whole=_in_whole(single, full),
        fault=single.fault or full.fault,
        ok=single.iteration == proof.expect and full.iteration is not None and not (single.fault or full.fault),
    )


def _in_whole(single: _Fired, full: _Fired) -> str:
    if full.iteration is None:
        by = full.outcome.stop.rule if full.outcome.stop else (full.others[0] if full.others else "")
        return f"masked by {by}" if by else "never"
    if single.iteration is not None and full.iteration > single.iteration:
        return f"delayed to {full.iteration} by {full.others[0] if full.others else 'the policy'}"
    return f"fires at {full.iteration}"


def _drive(policy: Policy, registry: Registry, rule: Rule, proof: Proof) -> _Fired:
    """Run the sequence under `policy`; return at which iteration the rung first fired, and who else intervened.

    Only the responses of the model move the clock: how fast this machine is proves nothing.
    """
    clock = ManualClock()
    engine = Engine(policy, registry=registry, clock=clock)
    played = play(engine, proof.turns, task="prove", clock=clock, pace_s=proof.pace_s)
    fired: list[int] = []
    others: list[str] = []
    faults: list[str] = []
    for report, (iteration, decision) in zip(played.reports, played.decisions, strict=True):
        own = [vote for vote in decision.votes if vote.rule == rule.id]
        faults += [fault for vote in own for fault in _faults(report, vote)]
        if any((action.name, action.code) == (proof.action, proof.code) for vote in own for action in vote.raw):
            fired.append(iteration)
        if not fired and decision.decided_by and decision.decided_by != rule.id:
            others.append(decision.decided_by)
    return _Fired(fired[0] if fired else None, played.outcome, tuple(others), faults[0] if faults else "")


def _faults(report: Report, vote: Vote) -> Iterator[str]:
    """Yield what is wrong with a vote: the rule failed, or what it says cannot be rendered with the data it gave."""
    if vote.error:
        yield f"the rule failed at {report.hook}: {vote.error}"
        return
    templates = report.run.snapshot.templates
    for action in vote.raw:
        fault = templates.check(action.kind, facts(vote.rule, action)) if action.kind else None
        if fault:
            yield fault


def failures(proved: list[Proved]) -> Iterator[Proved]:
    """Yield the proofs that do not hold."""
    return (entry for entry in proved if not entry.ok)
