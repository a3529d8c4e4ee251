"""A policy of ours as a guard like the others, to time it beside them.

Knows: which events of a round a loop reports to a run. Must not know: other guards, what counts as a stop (`outcomes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.peers.model import Check, Guard, Played, Turn
from policyengine.actions import EndStep, Stop, WindDown
from policyengine.engine import Engine
from policyengine.messages import Batch, ModelRequest, ToolResult
from policyengine.parsing.verdict import Verdict

_REQUEST = ModelRequest(())
_ENDS = (Stop, EndStep, WindDown)


def starter(policy: str) -> Callable[[Played], Guard]:
    """Return what starts a run under a policy, which is the name of a shipped one or a path."""
    return partial(_Guard, Engine(policy, enforce_time=False))


class _Guard:
    def __init__(self, engine: Engine, run: Played) -> None:
        self._run = engine.start_run()
        self._run.start(run.task)

    def checks(self, turn: Turn) -> Iterator[Check]:
        for text in turn.said if turn.number > 1 else ():
            self._run.user_message(text)
        yield partial(self._round, turn)

    def _round(self, turn: Turn) -> bool:
        """Report a whole round with everything but the reading of the response, which no other guard does."""
        run = self._run
        number = run.begin_iteration()
        decisions = [
            run.before_model_call(_REQUEST),
            run.after_model_response(turn.response),
            run.after_parse(Verdict("ok", turn.response.tool_calls, turn.response.text)),
        ]
        for index, made in enumerate(turn.calls):
            decisions.append(run.before_tool_call(made.call, Batch(f"batch-{number}", index)))
        for made in turn.calls:
            result = made.result or ToolResult(made.call.id, "", "not_run")
            decisions.append(run.after_tool_call(made.call, result)[1])
        decisions.append(run.end_iteration(len(turn.calls), True))
        run.take_notes()
        return any(isinstance(decision.control, _ENDS) for decision in decisions)
