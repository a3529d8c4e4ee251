"""Ask every rule at one hook point and combine what they answer.

Knows: isolation, time limits, modes, attribution.
Must not know: what any hook point means, the loop, history.

A rule that raises, answers nonsense or runs over its time gets its `on_error` action, capped by its mode; the other
rules are asked all the same. This is the only place where a guard's exception is caught. Rules that are not built in
run in another thread, see read-only views of the payload and a copy of their state, and their answer is copied.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from time import perf_counter_ns
from typing import Any

import msgspec

from policyengine.actions import CONTROL, REMEDIES, Action, AnyAction, Deny, Hint, Record, Remedy, Retry, Rewrite, Stop
from policyengine.context import RunView
from policyengine.decision import Decision, Mode, Note, Vote, cap, combine, hints
from policyengine.extension import Extension
from policyengine.hooks import HOOKS, HookPoint
from policyengine.killswitch import KillSwitch
from policyengine.messages import Compaction, freeze
from policyengine.policy.days import today
from policyengine.policy.model import Rule
from policyengine.rewrite import apply_rewrite, target_of
from policyengine.runstate import RuleErrors, RunState
from policyengine.snapshot import Entry, PolicySnapshot
from policyengine.workers import call_with_limit, fault_text

ALLOWED: dict[str, Decision] = {name: Decision(name) for name in HOOKS}
"""The shared "nobody objects" decision of every hook point."""

MAX_CONSECUTIVE_ERRORS = 3
"""A rule that cannot deny at a hook stops the run at this many errors in a row (docs/decisions/0004)."""

ERROR_CODE = "extension_error"
TIMEOUT = "timeout"
MAX_ACTIONS = 20
"""How many actions one answer may hold."""

_KINDS = frozenset({*CONTROL, Hint, Record})
_HINT = 0.5
"""How strict a hint is where episodes are told apart: more than nothing, less than any control action."""


KILLED, DAY = "kill_switch", "day"
"""Names under which `Faults` keeps that the kill switch was on, and the day on which a run needed to know it."""


class Faults(msgspec.Struct):
    """What came from outside at the last event, and what a replay forces. See `docs/journal.md`.

    Both map `hook/rule` to the fault of a rule that ran over its time, since one event may ask a rule at two hooks;
    `again` says that a rewritten call is being judged once more (`hook/rule/again`). The kill switch and the day stand
    beside them under their own names. `asked` is what the kill switch said at the event under way.
    """

    forced: Mapping[str, str] | None = None
    seen: dict[str, str] = {}
    enforce: bool = True
    again: bool = False
    switch: KillSwitch = msgspec.field(default_factory=KillSwitch)
    today: Callable[[], date] = today
    asked: bool | None = None

    def killed(self) -> bool:
        """Return whether the kill switch is on; the same for every rule at one event, whoever turns it meanwhile."""
        if self.asked is None:
            self.asked = self.switch.on if self.forced is None else KILLED in self.forced
        if self.asked:
            self.seen[KILLED] = "on"
        return self.asked

    def day(self, state: RunState) -> str:
        """Return the day that counts for a run: the one on which it first asked."""
        if not state.day:
            recorded = (self.forced or {}).get(DAY)
            state.day = self.seen[DAY] = recorded or self.today().isoformat()
        return state.day

    def key(self, hook: str, rule: str) -> str:
        """Return what stands for a rule at a hook."""
        return f"{hook}/{rule}/again" if self.again else f"{hook}/{rule}"


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
    point = HOOKS[hook]
    frozen: list[tuple[Any, ...]] = []
    for entry in entries:
        if entry.when is not None and not entry.when.admits(tool, agent):
            continue
        rule = entry.rule
        started = perf_counter_ns()
        try:
            if entry.inline:
                answer = entry.call(views[rule.id], *payload)
                if answer is None and not trace and rule.id not in errors:
                    continue  # what nearly every rule says to nearly everything
                raw, fault = check_answer(answer, point, payload, entry.extension)
            else:
                raw, fault = _isolated(entry, point, views[rule.id], payload, frozen, faults)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the one isolation point; SystemExit from a guard is a fault too
            raw, fault = (), fault_text(error)
        took = perf_counter_ns() - started
        if not raw and not fault and not trace and rule.id not in errors:
            continue
        votes.append(_vote(entry, point, payload, raw, fault, took / 1000, state, tool, faults))
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
    text = "" if isinstance(control, Rewrite) or not control.kind else render(control.kind, facts(winner.rule, control))
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


def _isolated(
    entry: Entry,
    point: HookPoint,
    view: RunView,
    payload: tuple[Any, ...],
    frozen: list[tuple[Any, ...]],
    faults: Faults,
) -> tuple[tuple[AnyAction, ...], str]:
    """Call a third-party implementation on a copy of its state; keep the copy if it answered properly and in time.

    `frozen` holds the read-only payload once it was made: all rules at this hook see the same one.
    """
    key = faults.key(point.name, entry.rule.id)
    if faults.forced is not None and faults.forced.get(key) == TIMEOUT:
        faults.seen[key] = TIMEOUT
        return (), TIMEOUT
    if not frozen:
        frozen.append(freeze(payload))
    trial = view.fork()
    timed = faults.enforce and faults.forced is None
    in_time, answer, fault = call_with_limit(
        lambda: entry.call(trial, *frozen[0]), entry.limit_ns / 1e9 if timed else None
    )
    if not in_time:
        faults.seen[key] = TIMEOUT
        return (), TIMEOUT
    if fault:
        return (), fault
    raw, fault = check_answer(answer, point, payload, entry.extension)
    if not fault:
        raw = tuple(_copied(action, target_of(point.name, payload)) for action in raw)
        view.adopt(trial)
    return raw, fault


def _copied(action: AnyAction, target: Any) -> AnyAction:
    """Return an action of which the rule keeps no part that it could still change."""
    if isinstance(action, Rewrite):
        new = apply_rewrite(target, action)
        changes = {name: new if name == "verdict" else getattr(new, name) for name in action.changes}
        return msgspec.structs.replace(action, data=_data(action.data), changes=changes)
    return msgspec.structs.replace(action, data=_data(action.data)) if action.data else action


def _data(value: Any, depth: int = 0) -> Any:
    """Return template variables as plain data; what is deep or no data is only named, as templates do."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if depth < 4 and isinstance(value, Mapping):
        return {_data(name, depth + 1): _data(item, depth + 1) for name, item in value.items()}
    if depth < 4 and isinstance(value, list | tuple):
        return [_data(item, depth + 1) for item in value]
    return f"({type(value).__name__})"


def _vote(
    entry: Entry,
    point: HookPoint,
    payload: tuple[Any, ...],
    raw: tuple[AnyAction, ...],
    fault: str,
    us: float,
    state: RunState,
    tool: str | None,
    faults: Faults,
) -> Vote:
    rule = entry.rule
    if fault:
        raw = (_on_error(entry, point, payload, state),)
    elif rule.id in state.errors:
        state.errors[rule.id].consecutive.pop(point.name, None)
    episode = _episode(state, rule.id, point.name, raw)
    mode: Mode = "shadow" if faults.killed() else rule.mode
    exception = _exception(rule, state, tool, faults) if raw and rule.exceptions else ""
    effective = () if exception else cap(raw, mode, episode)
    return Vote(rule.id, rule.use, entry.at, mode, raw, effective, us, fault, episode, point.name, exception)


def _exception(rule: Rule, state: RunState, tool: str | None, faults: Faults) -> str:
    """Return where the exception stands that takes the effect of a rule from this event; empty where none does."""
    day = faults.day(state)
    for exception in rule.exceptions:
        if exception.covers(tool, state.agent, day):
            return f"{exception.position.file}:{exception.position.line}"
    return ""


def check_answer(
    answer: Any, point: HookPoint, payload: tuple[Any, ...], extension: Extension
) -> tuple[tuple[AnyAction, ...], str]:
    """Return the actions of an answer, or the reason why it is none."""
    if answer is None:
        return (), ""
    actions = tuple(answer) if isinstance(answer, list | tuple) else (answer,)
    if len(actions) > MAX_ACTIONS:
        return (), f"{point.name} returned {len(actions)} actions (at most {MAX_ACTIONS} are accepted)"
    for action in actions:
        fault = _action_fault(action, point, payload, extension)
        if fault:
            return (), fault
    return actions, ""


def _action_fault(action: Any, point: HookPoint, payload: tuple[Any, ...], extension: Extension) -> str:
    if inspect.iscoroutine(action):
        action.close()
    if type(action) not in _KINDS:
        return f"{point.name} returned {type(action).__name__}, which is no action"
    if action.name not in point.actions:
        granted = ", ".join(sorted(point.actions)) or "nothing"
        return f"{point.name} does not accept {action.name!r} (it accepts: {granted})"
    fault = _field_fault(action)
    if fault:
        return fault
    if isinstance(action, Retry) and action.remedy is not None:
        fault = _remedy_fault(action.remedy, point)
        if fault:
            return fault
    if not action.kind and not isinstance(action, Rewrite | Record) and point.name != "after_provider_error":
        return f"a {action.name} needs the `kind` of its message"
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


def _field_fault(action: Action) -> str:
    """Return what is wrong with the type of a field: Structs check none when they are made."""
    for name, value in (("code", action.code), ("kind", action.kind)):
        if type(value) is not str:
            return f"`{name}` of an action must be a text, not {type(value).__name__}"
    for name, number in (("observed", action.observed), ("limit", action.limit)):
        if number is not None and not _is_number(number):
            said = str(number) if type(number) is float else type(number).__name__
            return f"`{name}` of an action must be a finite number, not {said}"
    if type(action.data) is not dict or not all(type(name) is str for name in action.data):
        return "`data` of an action must be a dict with texts as keys"
    return ""


def _remedy_fault(remedy: Any, point: HookPoint) -> str:
    """Return what is wrong with a remedy."""
    if type(remedy) is not Remedy:
        return f"`remedy` must be a Remedy, not {type(remedy).__name__}"
    if point.name != "after_provider_error":
        return "a remedy belongs to after_provider_error"
    if remedy.name not in REMEDIES:
        return f"there is no remedy {str(remedy.name)[:40]!r} (there are: {', '.join(REMEDIES)})"
    if not _is_number(remedy.wait_s) or remedy.wait_s < 0 or type(remedy.model) is not str:
        return "`wait_s` of a remedy must be a number of seconds, `model` a text"
    if remedy.name == "fallback_model" and not remedy.model:
        return "the remedy `fallback_model` needs a `model`"
    if remedy.name == "reduce_max_tokens" and (type(remedy.max_tokens) is not int or remedy.max_tokens < 1):
        return "the remedy `reduce_max_tokens` needs `max_tokens` above 0"
    if remedy.compaction is not None and type(remedy.compaction) is not Compaction:
        return "`compaction` of a remedy must be a Compaction"
    return ""


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return isinstance(value, float) and math.isfinite(value)


def _on_error(entry: Entry, point: HookPoint, payload: tuple[Any, ...], state: RunState) -> AnyAction:
    rule = entry.rule
    errors = state.errors.setdefault(rule.id, RuleErrors())
    failed = errors.consecutive[point.name] = errors.consecutive.get(point.name, 0) + 1
    observed, limit = float(failed), float(MAX_CONSECUTIVE_ERRORS)
    if rule.on_error == "allow" or not point.decides:
        return Record(ERROR_CODE, "", observed)
    if rule.on_error == "stop":
        return Stop(ERROR_CODE, "extension_error.stop", observed, 1.0)
    if "deny" in point.actions:
        return Deny(ERROR_CODE, "extension_error.deny", observed, data={"tool": payload[0].name})
    if failed >= MAX_CONSECUTIVE_ERRORS:
        return Stop(ERROR_CODE, "extension_error.stop", observed, limit)
    return Record(ERROR_CODE, "", observed, limit)


def _episode(state: RunState, rule: str, hook: str, raw: tuple[AnyAction, ...]) -> bool:
    """Return whether this answer opens a new stretch of wanting a hint, or the same or a stricter action."""
    rank = max([_HINT if isinstance(action, Hint) else action.rank for action in raw], default=0)
    known = state.errors.get(rule)
    if known is None:
        if not rank:
            return False
        known = state.errors[rule] = RuleErrors()
    before = known.wanting.get(hook, 0.0)
    if rank:
        known.wanting[hook] = rank
    else:
        known.wanting.pop(hook, None)
        if not known.wanting and not known.consecutive:
            del state.errors[rule]
    return rank > 0 and (before <= _HINT < rank or before == 0 or rank < before)
