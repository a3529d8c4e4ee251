"""Play the tests of a file and compare each run with what is expected of it.

Knows: how a test becomes a run, what each form of expectation means. Must not know: files, how results are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from time import perf_counter
from typing import Any

import msgspec

from policyengine.dispatch import DAY, TIMEOUT
from policyengine.hooks import HOOKS
from policyengine.policy.model import Rule
from policyengine.policy.rules import TOOL_HOOKS
from policyengine.policytest.model import Case, CaseResult, Expectation, Failure, Suite, SuiteResult
from policyengine.policytest.stand_in import stand_in, with_faults
from policyengine.snapshot import PolicySnapshot
from policyengine.testing import Played, play
from policyengine.witness import Answer, account, ended

BOOKKEEPING = frozenset({"run_start", "step_start", "step_end", "run_end", "on_stop"})
"""Hook points of which every run has one: that a rule hears of them does not mean that it judged anything."""


def play_suite(suite: Suite) -> SuiteResult:
    """Play every test of a file, each in a run of its own."""
    return SuiteResult(suite, tuple(play_case(suite, case) for case in suite.cases))


def play_case(suite: Suite, case: Case) -> CaseResult:
    """Play one test and return which expectations do not hold."""
    started = perf_counter()
    snapshot = suite.engine.snapshot
    questions: list[Any] = []
    played = run_case(suite, case, with_faults(snapshot, case.faults), questions)
    checks = [fault for expected in case.expect for fault in _check(expected, case, played, snapshot)]
    failures = (*checks, *_unexpected(case, played), *_unasked(case, questions))
    return CaseResult(case, played, failures, perf_counter() - started)


def run_case(suite: Suite, case: Case, snapshot: PolicySnapshot, questions: list[Any] | None = None) -> Played:
    """Play the turns of a test under a snapshot; the engine's own one stays in force.

    What the human of the test is asked is added to `questions`.
    What is different from run to run has no part in it: the kill switch is off, every rule is for this run, and the
    day is the one that the test names.
    """
    engine, kept = suite.engine, suite.engine.snapshot
    rules = tuple(msgspec.structs.replace(rule, rollout=None) for rule in kept.policy.rules)
    policy = msgspec.structs.replace(kept.policy, rules=rules, tools=(*case.tools, *kept.policy.tools))
    suite.clock.now = 0.0
    asked = [] if questions is None else questions

    def human(question: Any) -> bool:
        asked.append(question)
        return case.approves is True

    options: dict[str, Any] = {"agent": case.agent}
    if case.protocol:
        options["protocol"] = case.protocol
    engine.snapshot = stand_in(snapshot, policy)
    try:
        return play(
            engine,
            case.turns,
            task=case.task,
            human=None if case.approves is None else human,
            clock=suite.clock,
            pace_s=case.pace_s,
            forced=_forced(case),
            **options,
        )
    finally:
        engine.snapshot = kept


def _forced(case: Case) -> dict[str, str]:
    """Return the timeouts and the day as the dispatcher takes them; the former also for a call that is judged again."""
    slow = [rule for rule, fault in case.faults.items() if fault == "timeout"]
    keys = [f"{hook}/{rule}" for hook in HOOKS for rule in slow]
    forced = {key: TIMEOUT for name in keys for key in (name, f"{name}/again")}
    return {**forced, DAY: case.today} if case.today else forced


def judged(answers: tuple[Answer, ...], rule: Rule, extension_hooks: frozenset[str], tool: str = "") -> list[Answer]:
    """Return the events at which a rule really judged something.

    A rule with a selector of tools judges calls of these tools only, whatever else it hears of. What every run has is
    no judging, unless the rule has nothing else.
    """
    own = [answer for answer in answers if answer.vote.rule == rule.id]
    if tool:
        own = [answer for answer in own if answer.tool and fnmatchcase(answer.tool, tool)]
    if rule.when.tool and extension_hooks & TOOL_HOOKS:
        return [answer for answer in own if answer.tool]
    if extension_hooks <= BOOKKEEPING:
        return own
    return [answer for answer in own if answer.hook not in BOOKKEEPING]


def hooks_of(snapshot: PolicySnapshot, rule: str) -> frozenset[str]:
    """Return the hook points at which a rule is asked."""
    return frozenset(
        name for name, table in snapshot.tables.items() if any(entry.rule.id == rule for entry in table.entries)
    )


# ---- expectations


def _check(expected: Expectation, case: Case, played: Played, snapshot: PolicySnapshot) -> Iterator[Failure]:
    if expected.kind == "outcome":
        message = _outcome_fault(expected, played)
    elif expected.kind == "error":
        message = _error_fault(expected, played)
    elif expected.kind == "allow":
        message = _allow_fault(expected, played, snapshot)
    else:
        message = _answer_fault(expected, played, snapshot)
    if message:
        told = f"  the run: {ended(played.outcome)}"
        if expected.rule in snapshot.rules:
            told = account(played.answers, expected.rule, played.outcome)
        yield Failure(expected.position, message, told)


def _answer_fault(expected: Expectation, played: Played, snapshot: PolicySnapshot) -> str:
    rule = snapshot.rules[expected.rule]
    wanted, unit = (expected.at, "round") if expected.at else (expected.calls, "call")
    fired = sorted({
        answer.iteration if expected.at else answer.call
        for answer in played.answers
        if answer.vote.rule == rule.id and (expected.at or answer.call) and _is_answer(expected, answer)
    })  # fmt: skip
    if [number for number in fired if number <= wanted[-1]] == list(wanted):
        return ""
    verb = f"answer {expected.wants}" if expected.wants else expected.action
    what = f"{rule.id} should {verb}{f' ({expected.code})' if expected.code else ''} in {unit} {_listed(wanted)}"
    if fired:
        return f"{what}, but does so in {unit} {_listed(fired)}"
    if not judged(played.answers, rule, hooks_of(snapshot, rule.id), expected.tool):
        return f"{what}, but {_why_never(rule)}"
    return f"{what}, but never does"


def _is_answer(expected: Expectation, answer: Answer) -> bool:
    if expected.tool and not (answer.tool and fnmatchcase(answer.tool, expected.tool)):
        return False
    given = answer.vote.raw if expected.wants else answer.vote.effective
    name = expected.wants or expected.action
    return any(action.name == name and expected.code in ("", action.code) for action in given)


def _allow_fault(expected: Expectation, played: Played, snapshot: PolicySnapshot) -> str:
    rule = snapshot.rules[expected.rule]
    own = judged(played.answers, rule, hooks_of(snapshot, rule.id), expected.tool)
    until = f" until round {expected.until}" if expected.until else ""
    within = [answer for answer in own if not expected.until or answer.iteration <= expected.until]
    tripped = [answer for answer in within if answer.tripped]
    if tripped:
        return f"{rule.id} should allow this{until}, but does not in {tripped[0].place}"
    if all(answer.vote.error for answer in within):
        why = "it fails whenever it is asked" if within else _why_never(rule)
        return f"{rule.id} should allow this{until}, but {why}: that proves nothing"
    if expected.until > played.outcome.iterations:
        return f"{rule.id} should allow this{until}, but the run has only {played.outcome.iterations} rounds"
    return ""


def _error_fault(expected: Expectation, played: Played) -> str:
    failed = {a.iteration for a in played.answers if a.vote.rule == expected.rule and a.vote.error}
    if not failed:
        return f"{expected.rule} should fail, but does not"
    if expected.at and not failed.issuperset(expected.at):
        return f"{expected.rule} should fail in round {_listed(expected.at)}, but does so in {_listed(sorted(failed))}"
    return ""


def _outcome_fault(expected: Expectation, played: Played) -> str:
    outcome = played.outcome
    if outcome.status != expected.outcome:
        return f"the run should be {expected.outcome}, but is {outcome.status}"
    stop = outcome.stop
    for name in ("rule", "code"):
        wanted, found = getattr(expected, name), getattr(stop, name) if stop else "nobody"
        if wanted and wanted != found:
            return f"the run should be {expected.outcome} by {name} {wanted}, but is by {found}"
    if expected.executed is not None and outcome.executed != expected.executed:
        return f"{expected.executed} calls should run, but {outcome.executed} do"
    return ""


def _unexpected(case: Case, played: Played) -> Iterator[Failure]:
    """Yield faults of rules that the test does not speak of, and injected ones that were never met."""
    expected = {item.rule for item in case.expect if item.kind == "error"}
    # What a rule answers when it fails is expected in so many words, too, where the test makes it fail.
    expected |= {item.rule for item in case.expect if item.kind in ("answer", "outcome")} & set(case.faults)
    failed: dict[str, Answer] = {}
    for answer in played.answers:
        if answer.vote.error:
            failed.setdefault(answer.vote.rule, answer)
    for rule, answer in failed.items():
        if rule not in expected:
            yield Failure(case.position, f"{rule} fails in {answer.place}: {answer.vote.error}")
    for rule in case.faults:
        if rule not in failed:
            yield Failure(case.position, f"the fault of {rule} was never met: the rule was not asked")


def _unasked(case: Case, questions: list[Any]) -> Iterator[Failure]:
    """Yield a failure where the test has a human and nothing asked one."""
    if case.approves is not None and not questions:
        verb = "approves" if case.approves else "refuses"
        yield Failure(case.position, f"a human {verb}, but nothing asked one")


def _why_never(rule: Rule) -> str:
    if rule.mode == "disabled":
        return "the rule is disabled"
    if rule.when.tool or rule.when.agent:
        return f"it is never asked: its selector is {_selector(rule)}"
    return "it is never asked"


def _selector(rule: Rule) -> str:
    parts = [f"{name} {', '.join(patterns)}" for name in ("tool", "agent") if (patterns := getattr(rule.when, name))]
    return "; ".join(parts)


def _listed(numbers: Any) -> str:
    return ", ".join(map(str, numbers))
