"""`RunView`: what a hook sees of a run, and how it answers.

Knows: the read-only facts of a run and the constructors of actions.
Must not know: dispatch, the lattice, the loop, I/O.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from policyengine.actions import Ask, Deny, EndStep, Hint, Record, Remedy, Retry, Rewrite, Stop, WindDown
from policyengine.messages import ToolCall, ToolFacts, ToolResult

if TYPE_CHECKING:
    from policyengine.runstate import RunState
    from policyengine.shared.pools import Grant


def failed(result: ToolResult, facts: ToolFacts) -> bool:
    """Return whether a tool call failed, as a declared fact (docs/concepts.md, "Failure").

    Failure is an error or timeout status, a non-zero exit code, or a text that starts with one of the prefixes the
    policy declares for the tool. Words in the output never count; a refusal by a guard is not a failure.
    """
    if result.status in ("error", "timeout"):
        return True
    if result.status != "ok":
        return False
    if result.exit_code:
        return True
    prefixes = facts.failure.text_prefix
    return bool(prefixes) and result.text.lstrip().startswith(prefixes)


class RunView:
    """One rule's read-only view of a run, with that rule's own state.

    Attributes:
        state: the rule's state Struct (mutable, private to the rule), or `None`.
        rule: the id of the rule.
    """

    __slots__ = ("_run", "_tool", "rule", "state")

    def __init__(self, run: RunState, rule: str, state: Any, tool: Callable[[str], ToolFacts]) -> None:
        self._run = run
        self._tool = tool
        self.rule = rule
        self.state = state

    def fork(self) -> RunView:
        """Return a view with a copy of the state, for a call that may be given up."""
        return RunView(self._run, self.rule, copy.deepcopy(self.state), self._tool)

    def adopt(self, other: RunView) -> None:
        """Take over the state of a forked view, in place, so that whoever holds the state sees it.

        Raises:
            TypeError: what the rule left there is no state of its class.
        """
        if self.state is None:
            return
        if type(other.state) is not type(self.state):
            raise TypeError(f"`run.state` became a {type(other.state).__name__}")
        for field in self.state.__struct_fields__:
            setattr(self.state, field, getattr(other.state, field))

    @property
    def id(self) -> str:
        """The run's id."""
        return self._run.run_id

    @property
    def agent(self) -> str:
        """The agent's name; empty where nobody named it."""
        return self._run.agent

    @property
    def iteration(self) -> int:
        """Number of the current round, from 1 (0 before the first)."""
        return self._run.iteration

    @property
    def step(self) -> int:
        """Number of the current step, from 1."""
        return self._run.step

    @property
    def planned(self) -> bool:
        """Whether the run works along a plan and the tool `update_step` is on offer."""
        return self._run.planned

    @property
    def protocol(self) -> str:
        """`native` or `text`: how calls are written in this run."""
        return self._run.protocol

    @property
    def refused(self) -> Mapping[str, str]:
        """The calls of the batch under judgement that will not run, as far as that is known: the tool by id.

        Results come only after the whole batch was judged; a rule that counts calls as it judges them gives their
        places back. Refused is what any rule denied, or the driver itself (no such tool, nobody to ask).
        """
        return MappingProxyType(self._run.refused)

    @property
    def now(self) -> float:
        """Time of the current event in seconds, from the driver's clock (recorded in a replay)."""
        return self._run.now

    @property
    def grant(self) -> Grant | None:
        """What this rule's shared pool said before this request or batch; `None` where nobody asked it."""
        shared = self._run.shared
        return None if shared is None else shared.told.get(self.rule)

    @property
    def granted(self) -> bool:
        """Whether the call being judged has a place in this rule's shared pool."""
        shared = self._run.shared
        return shared is not None and shared.places.get(self.rule, False)

    def spend(self, amount: int) -> None:
        """Say what the request took of this rule's shared pool, in whole units, when its response comes."""
        shared = self._run.shared
        if shared is not None:
            shared.spent[self.rule] = amount

    def tool(self, name: str) -> ToolFacts:
        """Return what the policy declares about a tool."""
        return self._tool(name)

    def failed(self, call: ToolCall, result: ToolResult) -> bool:
        """Return whether the call failed; see `failed` in this module."""
        return failed(result, self._tool(call.name))

    def hint(
        self, code: str, kind: str = "", *, observed: float | None = None, limit: float | None = None, **data: Any
    ) -> Hint:
        """Add a note to the history. `kind` names its template (`<code>.hint` if not given)."""
        return Hint(code, kind or f"{code}.hint", observed, limit, data)

    def deny(
        self, code: str, kind: str = "", *, observed: float | None = None, limit: float | None = None, **data: Any
    ) -> Deny:
        """Refuse the call. `kind` names the template of the error result (`<code>.deny` if not given)."""
        return Deny(code, kind or f"{code}.deny", observed, limit, data)

    def ask(
        self, code: str, kind: str = "", *, observed: float | None = None, limit: float | None = None, **data: Any
    ) -> Ask:
        """Wait for a human before the call runs (`<code>.ask`)."""
        return Ask(code, kind or f"{code}.ask", observed, limit, data)

    def retry(
        self, code: str, kind: str = "", *, observed: float | None = None, limit: float | None = None, **data: Any
    ) -> Retry:
        """Ask the model again within the iteration, with one notice that is never stored (`<code>.retry`)."""
        return Retry(code, kind or f"{code}.retry", observed, limit, data)

    def recover(self, code: str, remedy: Remedy | None = None, **data: Any) -> Retry:
        """Repeat a request that failed, after `remedy`; a retry that the model does not hear of."""
        return Retry(code, "", None, None, data, remedy)

    def end_step(
        self, code: str, kind: str = "", *, observed: float | None = None, limit: float | None = None, **data: Any
    ) -> EndStep:
        """End the current step (`<code>.end_step`)."""
        return EndStep(code, kind or f"{code}.end_step", observed, limit, data)

    def wind_down(
        self, code: str, kind: str = "", *, observed: float | None = None, limit: float | None = None, **data: Any
    ) -> WindDown:
        """Ask for a final answer and refuse calls for a bounded number of rounds (`<code>.wind_down`)."""
        return WindDown(code, kind or f"{code}.wind_down", observed, limit, data)

    def stop(
        self, code: str, kind: str = "", *, observed: float | None = None, limit: float | None = None, **data: Any
    ) -> Stop:
        """End the run with a typed reason (`<code>.stop`)."""
        return Stop(code, kind or f"{code}.stop", observed, limit, data)

    def rewrite(self, code: str, **changes: Any) -> Rewrite:
        """Replace fields of the payload; each keyword is a field name and its new value."""
        return Rewrite(code, changes=changes)

    def record(self, code: str, *, observed: float | None = None, limit: float | None = None, **data: Any) -> Record:
        """Write to the decision log only."""
        return Record(code, "", observed, limit, data)
