"""Limit what many runs use together: calls, requests, tokens or money of a team, or failures that all of them see.

Knows: what the run was told of its pool before a request or a batch. Must not know: stores, who else uses the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from policyengine import (
    NANO,
    Action,
    Batch,
    Grant,
    HistoryWarning,
    ModelRequest,
    ModelResponse,
    OptionProblem,
    Pool,
    Proof,
    RunView,
    ScriptedCall,
    ToolCall,
    ToolResult,
    Turn,
    Usage,
    batch,
    call,
    hookimpl,
    seconds,
)

from .pricing import EMBEDDED, PRICES, Price, cheapest_way, price_by, price_problems
from .usage import Metered, UsageBudget, Used

CODE = "shared_limit"
BREAKER = "shared_breaker"
DOWN = "shared_down"
UNKNOWN = "unknown_price"

COUNTS = ("tool_calls", "requests", "tokens", "cost", "tool_failures", "provider_errors")
BEFORE_A_REQUEST = ("requests", "tokens", "cost", "provider_errors")
METERED = ("tokens", "cost")
BREAKERS = ("tool_failures", "provider_errors")

_MOST = 10**12
_AMOUNT: dict[str, Any] = {"type": "number", "min": 0.000001, "max": _MOST}

# Beyond these many turns, or calls in one batch, a proof would take longer than anybody waits for it.
_LONGEST_PROOF = 500
_LARGEST_BATCH = 300


class Asked(Metered):
    """`model` is the one that was asked last."""

    model: str = ""


class SharedLimit(UsageBudget):
    """Refuse what a pool has no room for; a pool is shared by all runs whose rules name it, in any process.

    The driver reserves of the pool before a request or a batch of calls, and the rule decides from what it was told.
    Pools of failures are breakers: open while the window holds as many failures as the limit, closed again by itself
    when they are older. A refused request is not sent, and that ends the run.
    """

    name = "shared_limit"
    options: Any = {
        "counts": {"type": "string", "allowed": list(COUNTS), "required": True},
        "limit": {**_AMOUNT, "required": True, "meta": {"stricter": "lower"}},
        "pool": {"type": "string", "minlength": 1, "maxlength": 100},
        "window": {"type": "string", "check_with": "duration", "meta": {"form": "duration"}},
        "per": {"type": "string", "allowed": ["all", "conversation", "agent"], "default": "all"},
        "tools": {
            "type": "list",
            "minlength": 1,
            "maxlength": 200,
            "schema": {"type": "string", "minlength": 1, "maxlength": 200},
        },
        "reserve": {**_AMOUNT, "meta": {"stricter": "higher", "absent": "loosest"}},
        "wind_down_at": {**_AMOUNT, "meta": {"stricter": "lower", "absent": "loosest"}},
        "then": {"type": "string", "allowed": ["deny", "wind_down", "stop", "ask"], "default": "deny"},
        "when_down": {"type": "string", "allowed": ["deny", "allow", "stop"], "default": "deny"},
        "wait": {"type": "string", "check_with": "duration", "default": "2s", "meta": {"form": "duration"}},
        "prices": dict(PRICES),
    }
    state = Asked
    needs: frozenset[str] = frozenset()
    messages = {
        **{
            f"shared_limit.{action}": {"counts": counts, "tool": tool, "window": "1h", "observed": 100, "limit": 100}
            for action, counts, tool in (
                ("deny", "tool_calls", "search"),
                ("ask", "tool_calls", "search"),
                ("wind_down", "tokens", ""),
                ("stop", "requests", ""),
            )
        },
        "shared_down.deny": {"counts": "tool_calls", "tool": "search"},
        "shared_down.stop": {"counts": "requests", "tool": ""},
    }

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report options that do not go with what is counted, and amounts that can never be reached or granted."""
        counts, limit = options["counts"], options["limit"]
        yield from _amount_problems(counts, options)
        yield from _fit_problems(counts, options)
        reserve, wind_down_at = options.get("reserve"), options.get("wind_down_at")
        if counts in METERED and reserve is not None and reserve > limit:
            yield OptionProblem(("reserve",), f"must not be above limit ({limit:g}), or nothing is ever granted")
        if wind_down_at is not None and counts in ("requests", *METERED):
            last = limit - (reserve or 0) if counts in METERED else limit - 1
            if wind_down_at > last:
                message = f"must not be above {last:g}, or the limit stops the run before it can take effect"
                yield OptionProblem(("wind_down_at",), message)
        if counts == "cost":
            yield from price_problems(options.get("prices"))

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        if self.counts in BEFORE_A_REQUEST:
            wind_down = ("wind_down",) if self.wind_down_at is not None else ()
            return {"before_model_call": ("stop", *wind_down)}
        down = () if self.options.when_down == "allow" else (self.options.when_down,)
        return {"before_tool_call": tuple(dict.fromkeys((self.options.then, *down)))}

    def pool(self) -> Pool:
        """Return what is counted, in whole units: money in billionths of a dollar."""
        return Pool(
            name=self.options.get("pool") or "",
            counts=self.options.counts,
            limit=self.limit,
            window_s=self.window_s,
            per="" if self.options.per == "all" else self.options.per,
            tools=tuple(self.options.get("tools") or ()),
            reserve=self._units(self.options.get("reserve") or 0),
            when_down=self.options.when_down,
            wait_s=seconds(self.options.wait) or 0.0,
        )

    def proofs(self) -> Iterable[Proof]:
        """Return what uses up the pool, by a run that has it for itself, and then one more.

        None for failures of requests: a run of which one fails ends with it, unless another rule goes on.
        """
        limit, action = self.limit, self.options.then
        turns: tuple[Turn, ...] = ()
        match self.counts:
            case "tool_calls" if limit < _LARGEST_BATCH:
                turn = batch(*(_probe(page, self._tool()) for page in range(limit + 1)))
                yield Proof("limit", action, CODE, 1, (turn,))
            case "tool_failures" if limit <= _LONGEST_PROOF:
                failing = (self._failing(page) for page in range(limit))
                yield Proof("limit", action, BREAKER, limit + 1, (*failing, self._failing(limit)))
            case "requests" if limit <= _LONGEST_PROOF:
                turns = tuple(batch(_probe(page)) for page in range(limit))
                if self.wind_down_at is not None:
                    early = turns[: self.wind_down_at]
                    yield Proof("wind_down_at", "wind_down", CODE, len(early) + 1, early)
                    return  # asked for its answer, a model stops calling before the limit is reached
                yield Proof("limit", "stop", CODE, limit + 1, turns)
            case "tokens" | "cost":
                yield from self._metered_proofs()

    def _metered_proofs(self) -> Iterable[Proof]:
        turn = self._turn(self.limit)
        if turn is not None:
            yield Proof("limit", "stop", CODE, 2, (turn,))
        early = self._turn(self.wind_down_at) if self.wind_down_at is not None and self.counts == "tokens" else None
        if early is not None:
            yield Proof("wind_down_at", "wind_down", CODE, 2, (early,))

    def _turn(self, amount: int) -> Turn | None:
        """Return a turn whose request takes so much, or, where that cannot be, just above."""
        probe = (_probe(1),)
        if self.counts == "tokens":
            return Turn(probe, usage=Usage(amount, None, amount))
        found = None if self.price is None else cheapest_way(self.price, self.options.get("prices"), amount)
        if found is None:
            return None
        tokens, model = found
        return Turn(probe, usage=Usage(tokens, tokens, 2 * tokens), model=model)

    def _tool(self) -> str:
        """Return the name of a tool whose calls count; empty where those of all do."""
        patterns = self.options.get("tools") or ()
        names = [pattern.replace("*", "x").replace("?", "x") for pattern in patterns]
        return next((name for name, pattern in zip(names, patterns, strict=True) if fnmatchcase(name, pattern)), "")

    def _failing(self, page: int) -> Turn:
        return call(self._tool() or f"probe_{page}", {"page": page}, f"page {page} cannot be read", status="error")

    def setup(self) -> None:
        """Look up what is counted once."""
        self.counts: str = self.options.counts
        self.limit = self._units(self.options.limit)
        wind_down_at = self.options.get("wind_down_at")
        self.wind_down_at = None if wind_down_at is None else self._units(wind_down_at)
        window = self.options.get("window")
        self.window_s = None if window is None else seconds(window)
        self.meters = self.counts in METERED
        if self.meters:
            self.needs = frozenset({"after_model_response"})
        self.price: Price | None = price_by(self.options.get("prices")) if self.counts == "cost" else None

    @hookimpl
    def before_model_call(self, run: RunView, request: ModelRequest) -> Action | None:
        """Stop before a request for which the pool has no room; wind down at `wind_down_at`."""
        if self.counts not in BEFORE_A_REQUEST:
            return None
        if request.model:
            run.state.model = request.model
        grant = run.grant
        if grant is None or grant.state == "down":
            return self._down(run, "stop", "")
        if self.counts == "provider_errors":
            return None if grant.used < grant.limit else run.stop(BREAKER, f"{CODE}.stop", **self._facts(grant))
        if grant.granted < grant.asked:
            return run.stop(CODE, **self._facts(grant))
        if self.wind_down_at is not None and grant.used >= self.wind_down_at:
            return run.wind_down(CODE, **self._facts(grant))
        return None

    @hookimpl
    def before_tool_call(self, run: RunView, call: ToolCall, batch: Batch) -> Action | None:
        """Refuse a call for which the pool has no place, or any call while the breaker is open."""
        if self.counts in BEFORE_A_REQUEST or not self._matches(call.name):
            return None
        grant = run.grant
        if grant is None or grant.state == "down":
            return self._down(run, self.options.when_down, call.name)
        if self.counts == "tool_calls":
            return None if run.granted else self._refuse(run, CODE, self._facts(grant, call.name))
        if grant.used < grant.limit:
            return None
        return self._refuse(run, BREAKER, self._facts(grant, call.name))

    @hookimpl
    def run_start(self, run: RunView, task: str) -> Action | None:
        """Take note of the task, where tokens have to be estimated."""
        return super().run_start(run, task) if self.meters else None

    @hookimpl
    def after_model_response(self, run: RunView, response: ModelResponse) -> Action | None:
        """Say what the request took, where that is counted."""
        return super().after_model_response(run, response) if self.meters else None

    @hookimpl
    def after_tool_call(self, run: RunView, call: ToolCall, result: ToolResult) -> Action | None:
        """Take note of a result, where tokens have to be estimated."""
        return super().after_tool_call(run, call, result) if self.meters else None

    @hookimpl
    def hist_add_warning_end(self, run: RunView, warning: HistoryWarning) -> Action | None:
        """Take note of a warning, where tokens have to be estimated."""
        return super().hist_add_warning_end(run, warning) if self.meters else None

    def spend(self, run: RunView, response: ModelResponse, used: Used) -> Action | None:
        """Say what a request took. Where a model has no price, what was reserved counts."""
        if self.price is None:
            run.spend(used.total)
            return None
        names = [name[:200] for name in (response.model, run.state.model) if name]
        cost = next((cost for name in names if (cost := self.price(name, used)) is not None), None)
        if cost is None and response.model == EMBEDDED:
            cost = 0
        if cost is None:
            return run.record(UNKNOWN, observed=used.total, model=names[0] if names else "")
        run.spend(cost)
        return None

    def _refuse(self, run: RunView, code: str, facts: Mapping[str, Any]) -> Action:
        match self.options.then:
            case "stop":
                return run.stop(code, f"{CODE}.stop", **facts)
            case "wind_down":
                return run.wind_down(code, f"{CODE}.wind_down", **facts)
            case "ask":
                return run.ask(code, f"{CODE}.ask", **facts)
        return run.deny(code, f"{CODE}.deny", **facts)

    def _down(self, run: RunView, action: str, tool: str) -> Action:
        """Return what is done while the store does not answer: a request can only be sent or not."""
        if self.options.when_down == "allow":
            return run.record(DOWN, counts=self.counts, tool=tool)
        if action == "stop":
            return run.stop(DOWN, counts=self.counts, tool=tool)
        return run.deny(DOWN, counts=self.counts, tool=tool)

    def _facts(self, grant: Grant, tool: str = "") -> dict[str, Any]:
        observed, limit = self._told(grant.used), self._told(grant.limit)
        window = self.options.get("window") or ""
        return {"observed": observed, "limit": limit, "counts": self.counts, "tool": tool, "window": window}

    def _matches(self, tool: str) -> bool:
        patterns = self.options.get("tools")
        return not patterns or any(fnmatchcase(tool, pattern) for pattern in patterns)

    def _units(self, amount: float) -> int:
        return round(amount * NANO) if self.options.counts == "cost" else int(amount)

    def _told(self, units: int) -> float:
        return units / NANO if self.counts == "cost" else float(units)


def _amount_problems(counts: str, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
    """Report amounts that are no whole numbers where only whole ones are counted."""
    if counts == "cost":
        return
    for name in ("limit", "reserve", "wind_down_at"):
        amount = options.get(name)
        if amount is not None and amount != int(amount):
            yield OptionProblem((name,), f"{counts} are counted in whole numbers")


def _fit_problems(counts: str, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
    """Report options that mean nothing for what is counted, or lack for it."""
    if counts in METERED and options.get("reserve") is None:
        message = "set it: what a request takes is known only afterwards, so something has to be reserved for it"
        yield OptionProblem(("reserve",), message)
    if counts not in METERED and options.get("reserve") is not None:
        yield OptionProblem(("reserve",), f"is for tokens and cost; {counts} are known beforehand")
    if counts not in ("requests", *METERED) and options.get("wind_down_at") is not None:
        yield OptionProblem(("wind_down_at",), "is for requests, tokens and cost; write `then: wind_down`")
    if counts in BEFORE_A_REQUEST and options.get("tools") is not None:
        yield OptionProblem(("tools",), f"is for tool_calls and tool_failures; {counts} are of no tool")
    if counts in BEFORE_A_REQUEST and options["then"] in ("ask", "wind_down"):
        message = f"a request that is refused is not sent, so the run stops; `{options['then']}` is for calls"
        advice = "; set `wind_down_at` below the limit" if options["then"] == "wind_down" else ""
        yield OptionProblem(("then",), message + (advice if counts != "provider_errors" else ""))
    if counts in BREAKERS and options.get("window") is None:
        yield OptionProblem(("window",), "set it, or the breaker would never close again")
    if counts != "cost" and options.get("prices") is not None:
        yield OptionProblem(("prices",), "is for `counts: cost`")


def _probe(page: int, tool: str = "") -> ScriptedCall:
    return ScriptedCall(tool or f"probe_{page}", {"page": page}, f"page {page}")
