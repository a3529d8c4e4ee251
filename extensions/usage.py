"""What the budgets of tokens and money share: how many tokens a request took, reported or estimated.

Knows: the usage that a provider reports, and the lengths of texts that hooks see. Must not know: limits, prices.
"""

from __future__ import annotations

import msgspec

from policyengine import (
    Action,
    Extension,
    HistoryWarning,
    ModelResponse,
    RunView,
    ToolCall,
    ToolResult,
    Usage,
    hookimpl,
)

COUNTS = ("total", "prompt", "completion")

_MOST = 10**12
"""More tokens than a request can have: what a broken provider reports must not end up as a number out of range."""


class Used(msgspec.Struct, frozen=True):
    """The tokens of one request. `guessed` names the counts that nobody reported."""

    prompt: int
    completion: int
    total: int
    guessed: tuple[str, ...] = ()


class Metered(msgspec.Struct):
    """`seen` are the tokens, by estimate, of the texts that the next request will hold."""

    seen: int = 0


class UsageBudget(Extension):
    """Base of rules that add up what requests take, auxiliary ones (repair, summary) and repeated ones included.

    Where the provider reports no usage, it is estimated from the texts that passed the hooks: the task, results,
    warnings and responses. Nothing looks at the history of a request, so an event costs the same however long a run
    gets, and a recording, whose requests are not rebuilt, gives the same numbers.
    """

    needs = frozenset({"after_model_response"})

    @hookimpl
    def run_start(self, run: RunView, task: str) -> Action | None:
        """Take note of the task."""
        run.state.seen += estimate(task)
        return None

    @hookimpl
    def after_model_response(self, run: RunView, response: ModelResponse) -> Action | None:
        """Add what the request took; say in the log where it had to be estimated."""
        state: Metered = run.state
        answer = estimate(response.text)
        answer += sum(estimate(call.name) + estimate(call.arguments) for call in response.tool_calls)
        used = used_by(response.usage, state.seen, answer + estimate(response.reasoning))
        state.seen += answer
        return self.spend(run, response, used)

    @hookimpl
    def after_tool_call(self, run: RunView, call: ToolCall, result: ToolResult) -> Action | None:
        """Take note of a result."""
        run.state.seen += estimate(result.text)
        return None

    @hookimpl
    def hist_add_warning_end(self, run: RunView, warning: HistoryWarning) -> Action | None:
        """Take note of a warning."""
        run.state.seen += estimate(warning.text)
        return None

    def spend(self, run: RunView, response: ModelResponse, used: Used) -> Action | None:
        """Add what a request took."""
        raise NotImplementedError


def used_by(usage: Usage | None, seen: int, written: int) -> Used:
    """Return the tokens of a request: as reported, as far as that follows from what is reported, else estimated.

    `seen` is the estimate of its prompt, `written` that of its answer. Zero counts as not reported: some servers
    report it for everything, and no prompt is empty.
    """
    usage = usage or Usage()
    prompt, completion, total = _known(usage.prompt_tokens), _known(usage.completion_tokens), _known(usage.total_tokens)
    if prompt is None and completion is not None and total is not None:
        prompt = max(0, total - completion)
    if completion is None and prompt is not None and total is not None:
        completion = max(0, total - prompt)
    if completion is None and usage.completion_tokens == 0 and not written:
        completion = 0
    guessed = [name for name, known in (("prompt", prompt), ("completion", completion)) if known is None]
    prompt = seen if prompt is None else prompt
    completion = written if completion is None else completion
    if total is None:
        total = prompt + completion
        guessed += ["total"] if guessed else []
    return Used(prompt, completion, total, tuple(guessed))


def estimate(text: str) -> int:
    """Return the tokens of a text, roughly: four letters of ASCII for a token, three bytes of anything else."""
    if text.isascii():
        return (len(text) + 3) // 4
    return (len(text.encode("utf-8", "surrogatepass")) + 2) // 3


def _known(tokens: int | None) -> int | None:
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens <= 0:
        return None
    return min(tokens, _MOST)
