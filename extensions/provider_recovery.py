"""Go on after a request to the model failed: wait, shorten, mend, ask for less, or ask another model.

Knows: the class of a failure and what helps against it, as the provider layer says. Must not know: how a failure is
classified, how a remedy is carried out, clocks, random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from policyengine import (
    Action,
    Compaction,
    Extension,
    ModelRequest,
    OptionProblem,
    Proof,
    ProviderError,
    Record,
    Remedy,
    Retry,
    RunView,
    Stop,
    Turn,
    call,
    fail,
    hookimpl,
    seconds,
)

CODE = "provider_recovery"
STOP_CODE = "provider_error"
CAP_CODE = "provider_errors"
REFUSED_CODE = "fallback_refused"
OVERFLOW = "context_overflow"
INFERRED = ("prompt_cut", "window_full")
"""What the engine says in the place of a provider where it infers an overflow from numbers; that ends no run."""

MEANS = {"backoff": "wait", "fallback_provider": "fallback_model"}
"""Remedies that the loop carries out under another name."""

ACTIONS = (
    "wait",
    "compact",
    "truncate_results",
    "fallback_model",
    "reduce_max_tokens",
    "disable_thinking",
    "restore_reasoning",
    "repair_history",
    "drop_media",
    "prune_duplicate_rounds",
    "stop",
)

WAIT: dict[str, Any] = {"first": "1s", "factor": 2, "max": "60s"}

# As often may a proof make a request fail; beyond that nobody would wait for it.
_LONGEST_PROOF = 1_000
# A provider's text can be long; the beginning says what it is about.
_DETAIL = 200


class Tried(msgspec.Struct):
    """What was done: `recoveries` in the run; in iteration number `iteration`, the remedies `done` and the `waits`.

    `model` is the one that is being asked, `asked` are those that were tried in this iteration.
    """

    recoveries: int = 0
    iteration: int = -1
    done: list[str] = []
    waits: int = 0
    model: str = ""
    asked: list[str] = []


class ProviderRecovery(Extension):
    """Answer a failed request with the first remedy that is allowed and was not tried yet in this round.

    The loop reports the same failure again when a remedy changed nothing, and the next failure when it changed
    something that did not help; both move on to the next remedy. Nothing but waiting and asking a further model is
    done twice in a round, so a round ends. Where no remedy is left the run fails with the provider's error.
    """

    name = "provider_recovery"
    options: Any = {
        "allow": {
            "type": "list",
            "schema": {"type": "string"},
            "allowed": list(ACTIONS),
            "default": list(ACTIONS),
        },
        "max": {"type": "integer", "min": 1, "max": 10_000, "default": 20, "meta": {"stricter": "lower"}},
        "waits": {"type": "integer", "min": 0, "max": 10, "default": 3, "meta": {"stricter": "lower"}},
        "wait": {
            "type": "dict",
            "schema": {
                "first": {"type": "string", "check_with": "duration", "default": WAIT["first"]},
                "factor": {"type": "number", "min": 1, "max": 10, "default": WAIT["factor"]},
                "max": {"type": "string", "check_with": "duration", "default": WAIT["max"]},
            },
            "default": WAIT,
        },
        "fallback_models": {
            "type": "list",
            "maxlength": 20,
            "schema": {
                "type": "dict",
                "schema": {
                    "model": {"type": "string", "minlength": 1, "required": True},
                    "window": {"type": "integer", "min": 1, "max": 10**9},
                },
            },
            "default": [],
        },
        "keep": {"type": "number", "min": 0, "max": 0.9, "default": 0.3},
    }
    state = Tried
    messages = {
        "provider_error.stop": {"failure": "quota_exhausted", "detail": "insufficient balance"},
        "provider_errors.stop": {"failure": "overloaded", "observed": 20, "limit": 20},
    }

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Report models that are named twice or never used, and a first wait that is never short enough."""
        names = [model["model"] for model in options["fallback_models"]]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            yield OptionProblem(("fallback_models",), f"the model {twice!r} is named twice")
        if names and "fallback_model" not in options["allow"]:
            message = "`allow` leaves out `fallback_model`, so that these models are never used"
            yield OptionProblem(("fallback_models",), message)
        first, most = (seconds(options["wait"].get(name) or WAIT[name]) for name in ("first", "max"))
        if first is not None and most is not None and first > most:
            yield OptionProblem(("wait", "first"), "must not be above wait.max, or nothing is ever waited for")

    def setup(self) -> None:
        """Look up what is allowed and how long to wait once."""
        wait = self.options.wait
        self.allowed = frozenset(self.options.allow)
        self.first_s = seconds(wait.get("first") or WAIT["first"]) or 0.0
        self.most_s = seconds(wait.get("max") or WAIT["max"]) or 0.0
        self.factor = float(wait.get("factor") or WAIT["factor"])
        self.windows: dict[str, int | None] = {
            model["model"]: model.get("window") for model in self.options.fallback_models
        }

    def answers(self) -> Mapping[str, Iterable[str]]:
        """Return what it can answer at which hook point."""
        return {"after_provider_error": ("retry", "stop")}

    def proofs(self) -> Iterable[Proof]:
        """Return, for every remedy that is allowed and can be proved, a failure against which only it helps."""
        for name in ACTIONS:
            if name not in self.allowed or (name == "fallback_model" and not self.windows):
                continue
            if name == "stop":
                yield Proof("stop", "stop", "quota_exhausted", 1, (fail("quota_exhausted", remedies=("stop",)),))
            elif name != "wait" or self.options.waits:
                limits: dict[str, Any] = {"limit": 1_000, "requested": 3_000} if name == "reduce_max_tokens" else {}
                yield Proof(name, "retry", f"{CODE}_{name}", 1, (fail("unknown", remedies=(name,), **limits),))
        yield from self._cap_proof()

    def _cap_proof(self) -> Iterable[Proof]:
        """Return rounds in which as many requests fail as a round may wait for, until the cap of the run is reached."""
        limit: int = self.options.max
        waits: int = self.options.waits if "wait" in self.allowed else 0
        if not waits or limit > _LONGEST_PROOF:
            return
        turns: list[Turn] = []
        for number in range(limit):
            turns.append(fail("overloaded", remedies=("wait",)))
            if number % waits == waits - 1:
                turns.append(call("probe", {"page": number}, f"page {number}"))
        yield Proof("max", "stop", CAP_CODE, limit // waits + 1, (*turns, fail("overloaded", remedies=("wait",))))

    @hookimpl
    def before_model_call(self, run: RunView, request: ModelRequest) -> Action | None:
        """Take note of the model that is asked."""
        if request.model:
            run.state.model = request.model
        return None

    @hookimpl
    def after_provider_error(self, run: RunView, error: ProviderError) -> tuple[Action, ...] | None:
        """Return the first remedy that may be tried now; a record where a further model had to be refused."""
        state: Tried = run.state
        if state.iteration != run.iteration:
            state.iteration = run.iteration
            state.waits = 0
            state.done, state.asked = [], []
        records: list[Record] = []
        for name in error.remedies:
            action = self._action(run, error, MEANS.get(name, name))
            if isinstance(action, Record):
                records.append(action)
            elif action is not None:
                capped = self._capped(run, error, action)
                return tuple(records) or None if capped is None else (*records, capped)
        return tuple(records) or None

    def _capped(self, run: RunView, error: ProviderError, action: Retry | Stop) -> Retry | Stop | None:
        """Count a remedy; past the cap of the run it becomes a stop, or nothing where no request failed."""
        state: Tried = run.state
        limit: int = self.options.max
        if isinstance(action, Stop):
            return action
        if state.recoveries >= limit and error.message in INFERRED:
            return None
        if state.recoveries >= limit:
            return run.stop(CAP_CODE, observed=state.recoveries, limit=limit, failure=error.code)
        state.recoveries += 1
        return action

    def _action(self, run: RunView, error: ProviderError, name: str) -> Retry | Stop | Record | None:
        """Return what a remedy comes to, or `None` where it is not allowed, was tried already or cannot be meant."""
        state: Tried = run.state
        if name not in self.allowed:
            return None
        if name == "stop":
            code = STOP_CODE if error.code in ("", "unknown") else error.code
            return run.stop(code, "provider_error.stop", failure=error.code, detail=error.message[:_DETAIL])
        if name == "wait":
            return self._wait(run, error)
        if name == "fallback_model":
            return self._fallback(run, error)
        remedy = Remedy(name)
        if name == "compact":
            remedy = Remedy(name, compaction=Compaction("compact", float(self.options.keep)))
        elif name == "reduce_max_tokens":
            remedy = Remedy(name, max_tokens=fewer_tokens(error))
            if remedy.max_tokens is None:
                return None
        if name in state.done:
            return None
        state.done = [*state.done, name]
        return self._recover(run, error, remedy)

    def _wait(self, run: RunView, error: ProviderError) -> Retry | None:
        """Wait as long as the provider says, else longer each time; what takes too long is not waited for."""
        state: Tried = run.state
        if state.waits >= self.options.waits:
            return None
        told = error.retry_after_s
        if told is not None and told > 0:
            if told > self.most_s:
                return None
            wait_s = told
        else:
            longest = min(self.first_s * self.factor**state.waits, self.most_s)
            wait_s = longest * (0.5 + 0.5 * share_of(f"{run.id}/{run.iteration}/{state.waits}"))
        state.waits += 1
        return self._recover(run, error, Remedy("wait", wait_s=wait_s))

    def _fallback(self, run: RunView, error: ProviderError) -> Retry | Record | None:
        """Ask the next model of the list; after an overflow only one with a larger window, and only once."""
        state: Tried = run.state
        names = [name for name in self.windows if name != state.model and name not in state.asked]
        if not names or (error.code == OVERFLOW and "fallback_model" in state.done):
            return None
        if error.code == OVERFLOW:
            state.done = [*state.done, "fallback_model"]
            window = self.windows.get(state.model) or error.limit
            if window is None:
                return run.record(REFUSED_CODE, reason="window_not_known", model=state.model)
            names = [name for name in names if (self.windows[name] or 0) > window]
            if not names:
                return run.record(REFUSED_CODE, limit=window, reason="no_larger_window", model=state.model)
        state.asked = [*state.asked, state.model, names[0]]
        state.model = names[0]
        return self._recover(run, error, Remedy("fallback_model", model=names[0]))

    def _recover(self, run: RunView, error: ProviderError, remedy: Remedy) -> Retry:
        return run.recover(f"{CODE}_{remedy.name}", remedy, failure=error.code)


def fewer_tokens(error: ProviderError) -> int | None:
    """Return how long the answer may be: what the prompt leaves of the limit, else the limit, else half of what was."""
    given = error.input_tokens or error.tokens
    if given is None and error.requested is not None and error.max_tokens is not None:
        given = error.requested - error.max_tokens
    tokens, asked = error.limit or 0, error.max_tokens or error.requested or 0
    if given is not None and 0 < given < tokens:
        tokens -= given
    if tokens < 1 or (error.max_tokens is not None and tokens >= error.max_tokens):
        tokens = asked // 2
    return tokens if tokens > 0 else None


def share_of(text: str) -> float:
    """Return a number from 0 up to 1 that depends on a text and nothing else: runs wait unequally, replays equally."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()) / 2**32
