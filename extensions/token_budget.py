"""Stop a run, or end a step, whose requests took too many tokens.

Knows: what requests took, and the size of the latest prompt. Must not know: histories, prices, models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from policyengine import (
    Action,
    Iteration,
    ModelRequest,
    ModelResponse,
    OptionProblem,
    Proof,
    RunView,
    ScriptedCall,
    Turn,
    Usage,
    hookimpl,
)

from .usage import COUNTS, Metered, UsageBudget, Used

CODE = "token_budget"
ESTIMATED = "token_estimate"

_TOKENS: dict[str, Any] = {
    "type": "integer",
    "min": 1,
    "max": 10**12,
    "meta": {"stricter": "lower", "absent": "loosest"},
}

# A proof is played turn by turn. Beyond this many turns it would take longer than anybody waits for it.
_LONGEST_PROOF = 500


class Spent(Metered):
    """Tokens of the run (or the conversation) and of step number `step_number`; `guessed` of them are estimates.

    `latest` is what the latest request had in its prompt, as far as prompts are counted.
    """

    run: int = 0
    step: int = 0
    step_number: int = 0
    guessed: int = 0
    latest: int = 0


class TokenBudget(UsageBudget):
    """Stop before a request once the tokens of the run are used up; end the step once those of the step are.

    With `check: before` the next request is expected to hold at least the latest prompt again, and is not sent if the
    budget has no room for that. With `check: after` it is sent as long as anything is left. The budget of the run
    belongs to the run: no new step and no message of the user starts it afresh.
    """

    name = "token_budget"
    options: Any = {
        "run": dict(_TOKENS),
        "step": dict(_TOKENS),
        "wind_down_at": dict(_TOKENS),
        "count": {"type": "string", "allowed": list(COUNTS), "default": "total"},
        "check": {"type": "string", "allowed": ["before", "after"], "default": "before"},
        "scope": {"type": "string", "allowed": ["run", "conversation"], "default": "run"},
    }
    state = Spent
    messages = {
        f"token_budget.{action}": {
            "scope": scope,
            "count": "total",
            "guessed": 5000,
            "needs": 20000,
            "observed": 90000,
            "limit": 100000,
        }
        for action, scope in (("stop", "run"), ("end_step", "step"), ("wind_down", "run"))
    }

    def state_scope(self) -> Literal["conversation", "run"]:
        """Return the scope that the option of that name chooses."""
        return "conversation" if self.options.scope == "conversation" else "run"

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report that nothing is limited, and limits that come only when the run has been stopped already."""
        run, step, wind_down_at = (options.get(name) for name in ("run", "step", "wind_down_at"))
        if run is None and step is None and wind_down_at is None:
            message = "set `run`, `step` or `wind_down_at`; write `mode: disabled` to switch the rule off"
            yield OptionProblem((), message)
        if step is not None and options["scope"] == "conversation":
            yield OptionProblem(
                ("step",), "a step belongs to one run; limit it by a rule of its own, with `scope: run`"
            )
        for name, value in (("step", step), ("wind_down_at", wind_down_at)):
            if run is not None and value is not None and value >= run:
                yield OptionProblem((name,), f"must be below run ({run}), or it can never take effect")

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        run, step, wind_down_at = (self.options.get(name) is not None for name in ("run", "step", "wind_down_at"))
        before = (("stop",) if run or step else ()) + (("wind_down",) if wind_down_at else ())
        after = (("end_step",) if step else ()) + (("stop",) if step and run else ())
        return {"before_model_call": before, "after_iteration": after}

    def proofs(self) -> Iterable[Proof]:
        """Return a request that uses a budget up, and requests that use up what the wind-down leaves."""
        run, step = self.options.get("run"), self.options.get("step")
        turns = self._step_turns()
        if turns:
            yield Proof("step", "end_step", CODE, len(turns), turns)
        if run is not None:
            # With a budget of the step the end of the round is judged already, else the next request.
            yield Proof("run", "stop", CODE, 2 if step is None else 1, (self._turn(1, run),))
        turns = self._wind_down_turns()
        if turns:
            yield Proof("wind_down_at", "wind_down", CODE, len(turns) + 1, turns)

    def _step_turns(self) -> tuple[Turn, ...]:
        """Return requests that use up the step, each small enough for the run to have room for another one."""
        step, run, wind_down_at = (self.options.get(name) for name in ("step", "run", "wind_down_at"))
        if step is None:
            return ()
        size = min(step, run - step) if run is not None and self._expects() else step
        number = step // size if self._expects() else 1
        asked_to_answer = wind_down_at is not None and (number - 1) * size >= wind_down_at
        if number > _LONGEST_PROOF or asked_to_answer:
            return ()
        return tuple(self._turn(page, size) for page in range(number))

    def _wind_down_turns(self) -> tuple[Turn, ...]:
        """Return requests up to the wind-down, each small enough for the budget to have room for another one."""
        target = self.options.get("wind_down_at")
        limits = [limit for name in ("run", "step") if (limit := self.options.get(name)) is not None]
        if target is None or min(limits, default=target + 1) <= target:
            return ()
        most = min([target, *(limit - target for limit in limits if self._expects())])
        full, rest = divmod(target, most)
        sizes = [most] * full + ([rest] if rest else [])
        if len(sizes) > _LONGEST_PROOF:
            return ()
        return tuple(self._turn(number, size) for number, size in enumerate(sizes))

    def _turn(self, number: int, tokens: int) -> Turn:
        usage = Usage(1, tokens, tokens + 1) if self.options.count == "completion" else Usage(tokens, None, tokens)
        return Turn((ScriptedCall("probe", {"page": number}, f"page {number}"),), usage=usage)

    @hookimpl
    def before_model_call(self, run: RunView, request: ModelRequest) -> Action | None:
        """Stop before a request for which the budget has no room; wind down at `wind_down_at`."""
        state = self._entered(run)
        if request.purpose == "summary":
            # What is summarised is not the whole history, nobody knows how much of it. Of the state itself nothing is
            # forgotten: if there is no summary in the end, the next prompt is as long as the latest.
            state = msgspec.structs.replace(state, latest=0)
        over = self._over_run(run, state) or self._over_step(run, state)
        if over is not None:
            return run.stop(CODE, **over)
        wind_down_at = self.options.get("wind_down_at")
        if wind_down_at is not None and state.run >= wind_down_at:
            limit = self.options.get("run") or wind_down_at
            return run.wind_down(CODE, **self._facts(self.options.scope, state, state.run, limit))
        return None

    @hookimpl
    def after_iteration(self, run: RunView, iteration: Iteration) -> Action | None:
        """End the step, or stop, where the budget has no room for a further round. A final answer stands."""
        if self.options.get("step") is None or (iteration.usable and not iteration.calls):
            return None
        state = self._entered(run)
        over = self._over_run(run, state)
        if over is not None:
            return run.stop(CODE, **over)
        over = self._over_step(run, state)
        return None if over is None else run.end_step(CODE, **over)

    def spend(self, run: RunView, response: ModelResponse, used: Used) -> Action | None:
        """Add what a request took."""
        state = self._entered(run)
        count: str = self.options.count
        tokens: int = getattr(used, count)
        state.run += tokens
        state.step += tokens
        state.latest = used.prompt if count != "completion" else 0
        if count not in used.guessed:
            return None
        state.guessed += tokens
        return run.record(ESTIMATED, observed=tokens, prompt=used.prompt, completion=used.completion)

    def _entered(self, run: RunView) -> Spent:
        """Return the state, with the counter of the current step."""
        state: Spent = run.state
        if state.step_number != run.step:
            state.step_number = run.step
            state.step = 0
        return state

    def _expects(self) -> bool:
        return bool(self.options.check == "before" and self.options.count != "completion")

    def _over_run(self, run: RunView, state: Spent) -> dict[str, Any] | None:
        return self._over(self.options.scope, state, state.run, self.options.get("run"))

    def _over_step(self, run: RunView, state: Spent) -> dict[str, Any] | None:
        return self._over("step", state, state.step, self.options.get("step"))

    def _over(self, scope: str, state: Spent, spent: int, limit: int | None) -> dict[str, Any] | None:
        """Return the facts of a budget that has no room for a further request, or `None`."""
        if limit is None or (spent < limit and spent + (state.latest if self._expects() else 0) <= limit):
            return None
        return self._facts(scope, state, spent, limit)

    def _facts(self, scope: str, state: Spent, spent: int, limit: int) -> dict[str, Any]:
        needs = state.latest if spent < limit else 0
        guessed = min(state.guessed, spent)
        facts = {"scope": scope, "count": self.options.count, "guessed": guessed, "needs": needs}
        return {"observed": spent, "limit": limit, **facts}
