"""Ask every rule at one hook point and combine what they answer.

Knows: isolation, time limits, modes, attribution.
Must not know: what any hook point means, the loop, history.

A rule that raises, answers nonsense or runs over its time gets its `on_error` action, capped by its mode; the other
rules are asked all the same. This is the only place where a guard's exception is caught.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import msgspec

from policyengine.actions import Action, AnyAction, Deny, Record, Rewrite, Stop
from policyengine.context import RunView
from policyengine.decision import Decision, Note, Vote, cap, combine, hints
from policyengine.extension import Extension
from policyengine.hooks import HOOKS, HookPoint
from policyengine.messages import ToolCall, freeze
from policyengine.rewrite import apply_rewrite, target_of
from policyengine.runstate import RuleErrors, RunState
from policyengine.snapshot import Entry, PolicySnapshot
from policyengine.workers import call_with_limit

ALLOWED: dict[str, Decision] = {name: Decision(name) for name in HOOKS}
"""The shared "nobody objects" decision of every hook point."""

MAX_CONSECUTIVE_ERRORS = 3
"""A rule that cannot deny at a hook stops the run at this many errors in a row (docs/decisions/0004)."""

ERROR_CODE = "extension_error"
TIMEOUT = "timeout"


class Faults(msgspec.Struct):
    """Rules that ran over their time at the last hook, and what a replay forces. See `docs/journal.md`."""

    forced: Mapping[str, str] | None = None
    seen: dict[str, str] = {}
    enforce: bool = True


def judge(
    hook: str,
    entries: Sequence[Entry],
    payload: tuple[Any, ...],
    tool: str | None,
    state: RunState,
    views: Mapping[str, RunView],
    faults: Faults,
    trace: bool,
) -> list[Vote]:
    """Return the votes of `entries` at `hook`, in policy order.

    With `trace`, rules that had no opinion vote too (for the decision log); otherwise only rules that answered.
    """
    votes: list[Vote] = []
    agent = state.agent
    errors = state.errors
    for entry in entries:
        if entry.when is not None and not entry.when.admits(tool, agent):
            continue
        rule = entry.rule
        started = perf_counter_ns()
        answer, fault = _ask(entry, views[rule.id], payload, faults)
        took = perf_counter_ns() - started
        if not fault and faults.enforce and faults.forced is None and took > entry.limit_ns:
            fault = TIMEOUT
        if answer is None and not fault and not trace and rule.id not in errors:
            continue
        votes.append(_vote(entry, HOOKS[hook], payload, answer, fault, took / 1000, state, faults))
    return votes


def decide(snapshot: PolicySnapshot, hook: str, votes: list[Vote]) -> Decision:
    """Combine votes into a decision, with the texts of its control action and hints rendered."""
    if not votes:
        return ALLOWED[hook]
    control, winner, conflicts = combine(votes)
    render = snapshot.templates.render
    notes = tuple(Note(rule, action.kind, render(action.kind, facts(rule, action))) for rule, action in hints(votes))
    if control is None or winner is None:
        return Decision(hook, notes=notes, votes=tuple(votes), conflicts=conflicts)
    text = "" if isinstance(control, Rewrite) else render(control.kind, facts(winner.rule, control))
    return Decision(hook, control.name, control, winner.rule, winner.at, text, notes, tuple(votes), conflicts)


def facts(rule: str, action: Action) -> dict[str, Any]:
    """Return the template variables of an action."""
    return {
        **action.data,
        "rule": rule,
        "code": action.code,
        "observed": _plain(action.observed),
        "limit": _plain(action.limit),
    }


def _plain(number: float | None) -> float | int | None:
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _ask(entry: Entry, view: RunView, payload: tuple[Any, ...], faults: Faults) -> tuple[Any, str]:
    """Call one implementation; return its answer and a fault text (empty if none)."""
    forced = faults.forced.get(entry.rule.id, "") if faults.forced else ""
    try:
        if entry.inline:
            return entry.call(view, payload), forced
        if forced == TIMEOUT:
            return None, forced
        frozen = tuple(_frozen(value) for value in payload)
        if not faults.enforce or faults.forced is not None:
            return entry.call(view, frozen), ""
        return _limited(entry, view, frozen)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the one isolation point; SystemExit from a guard is a fault too
        return None, f"{type(error).__name__}: {error}"[:500]


def _limited(entry: Entry, view: RunView, payload: tuple[Any, ...]) -> tuple[Any, str]:
    """Call a third-party implementation on a copy of its state; keep the copy if it answered in time."""
    trial = view.fork()
    in_time, answer, fault = call_with_limit(lambda: entry.call(trial, payload), entry.limit_ns / 1e9)
    if not in_time:
        return None, TIMEOUT
    view.adopt(trial)
    return answer, fault


def _frozen(value: Any) -> Any:
    if isinstance(value, ToolCall):
        return msgspec.structs.replace(value, args=freeze(value.args))
    return value


def _vote(
    entry: Entry,
    point: HookPoint,
    payload: tuple[Any, ...],
    answer: Any,
    fault: str,
    us: float,
    state: RunState,
    faults: Faults,
) -> Vote:
    rule = entry.rule
    raw: tuple[AnyAction, ...] = ()
    if not fault:
        raw, fault = check_answer(answer, point, payload, entry.extension)
    if fault:
        if fault == TIMEOUT:
            faults.seen[rule.id] = TIMEOUT
        raw = (_on_error(entry, point, payload, state),)
    elif rule.id in state.errors:
        state.errors[rule.id].consecutive = 0
    episode = _episode(state, rule.id, point.name, raw)
    return Vote(rule.id, rule.use, entry.at, rule.mode, raw, cap(raw, rule.mode), us, fault, episode)


def check_answer(
    answer: Any, point: HookPoint, payload: tuple[Any, ...], extension: Extension
) -> tuple[tuple[AnyAction, ...], str]:
    """Return the actions of an answer, or the reason why it is none."""
    if answer is None:
        return (), ""
    actions = tuple(answer) if isinstance(answer, list | tuple) else (answer,)
    for action in actions:
        fault = _action_fault(action, point, payload, extension)
        if fault:
            return (), fault
    return actions, ""


def _action_fault(action: Any, point: HookPoint, payload: tuple[Any, ...], extension: Extension) -> str:
    if inspect.iscoroutine(action):
        action.close()
    if not isinstance(action, Action):
        return f"{point.name} returned {type(action).__name__}, which is no action"
    if action.name not in point.actions:
        granted = ", ".join(sorted(point.actions)) or "nothing"
        return f"{point.name} does not accept {action.name!r} (it accepts: {granted})"
    if action.kind and action.kind not in extension.messages:
        return f"message kind {action.kind!r} is not declared in `messages`"
    if not isinstance(action, Rewrite):
        return ""
    if point.name == "before_tool_call" and not extension.rewrites_calls:
        return "a rule that rewrites calls must declare `rewrites_calls = True`"
    try:
        apply_rewrite(target_of(point.name, payload), action)
    except ValueError as error:
        return f"rewrite refused: {error}"
    return ""


def _on_error(entry: Entry, point: HookPoint, payload: tuple[Any, ...], state: RunState) -> AnyAction:
    rule = entry.rule
    errors = state.errors.setdefault(rule.id, RuleErrors())
    errors.consecutive += 1
    observed, limit = float(errors.consecutive), float(MAX_CONSECUTIVE_ERRORS)
    if rule.on_error == "allow" or not point.decides:
        return Record(ERROR_CODE, "", observed)
    if rule.on_error == "stop":
        return Stop(ERROR_CODE, "extension_error.stop", observed, 1.0)
    if "deny" in point.actions:
        return Deny(ERROR_CODE, "extension_error.deny", observed, data={"tool": payload[0].name})
    if errors.consecutive >= MAX_CONSECUTIVE_ERRORS:
        return Stop(ERROR_CODE, "extension_error.stop", observed, limit)
    return Record(ERROR_CODE, "", observed, limit)


def _episode(state: RunState, rule: str, hook: str, raw: tuple[AnyAction, ...]) -> bool:
    """Return whether this answer opens a new stretch of wanting the same or a stricter action."""
    rank = max((action.rank for action in raw), default=0)
    known = state.errors.get(rule)
    if known is None:
        if not rank:
            return False
        known = state.errors[rule] = RuleErrors()
    before = known.wanting.get(hook, 0)
    if rank:
        known.wanting[hook] = rank
    else:
        known.wanting.pop(hook, None)
        if not known.wanting and not known.consecutive:
            del state.errors[rule]
    return rank > 0 and (before == 0 or rank < before)
