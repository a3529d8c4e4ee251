"""Limits that nothing can reach, because another one comes first.

Knows: the names and options of the built-in limits. Must not know: how they count.

Only limits of the same unit are compared: what counts calls is not held against what counts rounds, because a round
may have many calls.
"""

from __future__ import annotations

from collections.abc import Iterator

from policyengine.policy.durations import seconds
from policyengine.policy.lint.subject import Subject, always
from policyengine.policy.problems import Problem

ROUNDS, CLOCK, TOKENS = "step_limit", "wall_clock", "token_budget"
BREAKER, COMPACTION = "stop_unusable_response_loop", "context_compaction"
IN_A_ROW = "max_consecutive_unusable_responses"


def out_of_reach(subject: Subject) -> Iterator[Problem]:
    """L631: a run has fewer rounds than are needed to reach a limit."""
    rounds = [subject.option(rule, "max_steps") for rule in subject.rules(ROUNDS) if always(rule)]
    most = min((number for number in rounds if number is not None), default=None)
    if most is None:
        return
    advice = f"choose at most {most}, or allow more rounds"
    for rule in subject.rules(BREAKER):
        number, path = subject.option(rule, IN_A_ROW), ("extensions", rule.id, "with", IN_A_ROW)
        node = subject.written(*path)
        if node is None or node.at.file.startswith("policy:"):
            continue  # a small limit on a shipped policy is no mistake
        in_one_run = subject.option(rule, "scope") == "run" and subject.option(rule, "count") == "once"
        if in_one_run and number is not None and number > most:
            message = f"never reached: a run has at most {most} rounds"
            yield subject.finding("L631", message, path, help=advice)
    node = subject.written("plan", "max_steps")
    if subject.policy.plan.mode == "steps" and node is not None and subject.policy.plan.max_steps > most:
        message = f"a plan of so many steps cannot be finished: a run has at most {most} rounds"
        yield subject.finding("L631", message, ("plan", "max_steps"), help=advice)


def longer_than_the_run(subject: Subject) -> Iterator[Problem]:
    """L632: a tool is given more time than the whole run has."""
    texts = [subject.option(rule, "stop") for rule in subject.rules(CLOCK) if always(rule)]
    limits = [limit for text in texts if text is not None and (limit := seconds(text)) is not None]
    if not limits:
        return
    for pattern, facts in subject.policy.tools:
        path = ("tools", pattern, "timeout")
        if facts.timeout_s is not None and facts.timeout_s > min(limits) and subject.written(*path) is not None:
            message = f"a call may take longer than the whole run, which has {min(limits):g} s"
            yield subject.finding("L632", message, path, help="give calls less time than `wall_clock` gives the run")


def budget_below_compaction(subject: Subject) -> Iterator[Problem]:
    """L633: the tokens of a run are used up before one request is as large as its compaction waits for."""
    budgets = [
        subject.option(rule, "run")
        for rule in subject.rules(TOKENS)
        if always(rule) and subject.option(rule, "scope") == "run" and subject.option(rule, "count") != "completion"
    ]
    most = min((number for number in budgets if number is not None), default=None)
    for rule in subject.rules(COMPACTION):
        window, trigger = subject.option(rule, "window"), subject.option(rule, "trigger")
        path = ("extensions", rule.id, "with", "window")
        if most is None or window is None or trigger is None or subject.written(*path) is None:
            continue
        if subject.option(rule, "strategy") != "none" and window * trigger >= most:
            message = f"no request becomes so large: the run has {most} tokens in all"
            advice = "choose a smaller window, or a larger budget"
            yield subject.finding("L633", message, path, severity="info", help=advice)
