"""What spans of runs hold: names and attributes in the GenAI conventions, and content where the policy wants it.

Knows: names of attributes, which of them are content, masks. Must not know: spans, OpenTelemetry.

Content is what `log.include` of the policy lists, without what `log.mask` hides and without known secrets:
`arguments` and `results` of calls, and with `messages` what is said to the model and by it. Of the messages of a
request only those after the last response are kept: each request holds all earlier ones again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from policyengine.decision import Vote
from policyengine.masking import without_known
from policyengine.messages import Message, ModelRequest, ModelResponse, ToolCall, ToolResult
from policyengine.outcome import Outcome
from policyengine.policy.model import Log
from policyengine.run import Report
from policyengine.runstate import StopReason
from policyengine.telemetry.decision_log import MAX_NAME, rule_line, strictest
from policyengine.telemetry.masks import MARK, masked

COMMON = ("gen_ai.conversation.id", "gen_ai.agent.name", "policyengine.run.id")
"""Attributes that every span of a run has."""

HARNESS = "policyengine"
"""The `name` of messages in the user's role that are of the loop or a rule, and not of the user."""

MOST = 2**63 - 1
"""The largest number that an exporter can send."""

Attributes = dict[str, Any]

_CODE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def encodable(text: str) -> str:
    """Return a text that can be sent: half of a surrogate pair cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def sendable(attributes: Attributes) -> Attributes:
    """Return attributes that can be sent, whatever a model or provider said: no half characters, no huge numbers."""
    return {key: _sendable(value) for key, value in attributes.items()}


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        return [_sendable(item) for item in value]
    return max(-MOST, min(MOST, value)) if isinstance(value, int) and not isinstance(value, bool) else value


def run_begun(report: Report) -> tuple[str, Attributes]:
    """Return name and attributes of the span of a run."""
    run, policy = report.run, report.run.snapshot.policy
    agent = run.state.agent
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": run.conversation.id,
        **({"gen_ai.agent.name": agent} if agent else {}),
        "policyengine.run.id": run.state.run_id,
        "policyengine.policy.name": policy.name,
        "policyengine.policy.revision": policy.revision,
        "policyengine.policy.generation": run.snapshot.generation,
        "policyengine.policy.digest": run.snapshot.digest,
        **({"policyengine.resumed": True} if report.hook != "run_start" else {}),
    }
    return f"invoke_agent {agent}".strip(), attributes


def run_ended(outcome: Outcome) -> Attributes:
    """Return what the span of a run says of its end."""
    return {
        "policyengine.outcome": outcome.status,
        "policyengine.iterations": outcome.iterations,
        "policyengine.calls": outcome.calls,
        "policyengine.executed": outcome.executed,
        "policyengine.interventions": outcome.interventions,
        **({"gen_ai.usage.input_tokens": outcome.prompt_tokens} if outcome.prompt_tokens else {}),
        **({"gen_ai.usage.output_tokens": outcome.completion_tokens} if outcome.completion_tokens else {}),
        **({f"policyengine.stop.{key}": value for key, value in _facts(outcome.stop)} if outcome.stop else {}),
    }


def why(outcome: Outcome) -> str:
    """Return the machine reason of a run that did not complete; a text that is none may be content."""
    code = outcome.stop.code if outcome.stop is not None else outcome.error.partition(":")[0]
    return code if _CODE.fullmatch(code) else outcome.status


def stopped(reason: StopReason) -> Attributes:
    """Return the attributes of the event that tells a stop."""
    return {f"policyengine.{key}": value for key, value in _facts(reason)}


def _facts(reason: StopReason) -> Iterator[tuple[str, Any]]:
    for key in ("code", "rule", "at", "action", "observed", "limit"):
        value = getattr(reason, key)
        if value not in (None, ""):
            yield key, value


def decided(report: Report) -> Iterator[Attributes]:
    """Yield the attributes of an event for every rule that wanted something or failed."""
    decision = report.decision
    common = {
        "policyengine.hook": report.hook,
        "policyengine.decision": decision.action,
        **({"policyengine.decided_by": decision.decided_by} if decision.decided_by else {}),
        "policyengine.seq": report.seq,
        **({"policyengine.kill_switch": True} if report.run.killed else {}),
    }
    said = [vote for vote in decision.votes if vote.raw or vote.error]
    with_text = "messages" in report.run.snapshot.policy.log.include
    for vote in said:
        yield {**common, **_vote(vote, with_text)}
    # The cap on interventions belongs to no rule.
    if decision.control is not None and all(vote.rule != decision.decided_by for vote in said):
        control = decision.control
        numbers = {"policyengine.observed": control.observed, "policyengine.limit": control.limit}
        known = {key: number for key, number in numbers.items() if number is not None}
        facts = {"policyengine.rule": decision.decided_by, "policyengine.action": control.name}
        yield {**common, **facts, "policyengine.code": control.code, "policyengine.at": decision.at, **known}


def _vote(vote: Vote, with_text: bool) -> Attributes:
    line = rule_line(vote, with_text)
    found = {
        "rule": line.id,
        "at": line.at,
        "mode": line.mode,
        "action": line.effective,
        "raw": line.raw,
        "code": line.code,
        "observed": line.observed,
        "limit": line.limit,
        "error": line.error,
        "exception": vote.exception,
    }
    main = strictest(vote.effective)
    if main is not None and main.name == "record":
        found["action"] = "record"
    return {f"policyengine.{key}": value for key, value in found.items() if value not in (None, "")}


def request(request: ModelRequest) -> tuple[str, Attributes]:
    """Return name and attributes of the span of a request."""
    attributes: Attributes = {"gen_ai.operation.name": "chat"}
    if request.model:
        attributes["gen_ai.request.model"] = request.model
    if request.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = request.max_tokens
    if request.purpose != "main":
        attributes["policyengine.purpose"] = request.purpose
    if request.attempt != 1:
        attributes["policyengine.attempt"] = request.attempt
    return f"chat {request.model}".strip(), attributes


def response(response: ModelResponse) -> Attributes:
    """Return what the span of a request says of the response."""
    attributes: Attributes = {}
    if response.model:
        attributes["gen_ai.response.model"] = response.model
    if response.finish_reason:
        attributes["gen_ai.response.finish_reasons"] = [response.finish_reason]
    usage = response.usage
    if usage is not None and usage.prompt_tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
    if usage is not None and usage.completion_tokens is not None:
        attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
    return attributes


def call(call: ToolCall) -> Attributes:
    """Return the attributes of the span of a call."""
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name[:MAX_NAME],
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
    }


def answered(result: ToolResult) -> Attributes:
    """Return what the span of a call says of its result."""
    return {
        "policyengine.tool.status": result.status,
        **({"policyengine.tool.duration_s": result.duration_s} if result.duration_s is not None else {}),
        **({"policyengine.tool.exit_code": result.exit_code} if result.exit_code is not None else {}),
    }


def kind_of(result: ToolResult) -> str:
    """Return the machine reason of a result that is none; a code of the tool's own may be content, and is left out."""
    error = result.error
    return error.code if error is not None and not error.declared else result.status


class Content:
    """What of the content of a run its spans hold, as text of JSON."""

    def __init__(self, settings: Log) -> None:
        self._include = frozenset(settings.include)
        self._masks = settings.mask

    def call(self, call: ToolCall) -> Attributes:
        """Return the arguments of a call."""
        if "arguments" not in self._include:
            return {}
        return _attribute("gen_ai.tool.call.arguments", self._arguments(call))

    def result(self, result: ToolResult) -> Attributes:
        """Return the text of a result."""
        if "results" not in self._include:
            return {}
        return {"gen_ai.tool.call.result": without_known(encodable(self._result(result.text)))}

    def text(self, text: str) -> str:
        """Return a text for a person, where messages are included."""
        return without_known(encodable(self._said(text))) if "messages" in self._include else ""

    def request(self, request: ModelRequest, *, whole: bool) -> Attributes:
        """Return the messages of a request, all of them or those after the last response."""
        if "messages" not in self._include:
            return {}
        messages = request.messages
        found: Attributes = {}
        if whole:
            system = [_text(self._said(message.text)) for message in messages if message.role == "system"]
            found = _attribute("gen_ai.system_instructions", system) if system else {}
        else:
            said = [place for place, message in enumerate(messages) if message.role == "assistant"]
            messages = messages[said[-1] + 1 :] if said else messages
        told = [self._message(message) for message in messages if message.role != "system"]
        return {**found, **_attribute("gen_ai.input.messages", told)}

    def response(self, response: ModelResponse) -> Attributes:
        """Return a response as a message."""
        if "messages" not in self._include:
            return {}
        parts = [{"type": "reasoning", "content": self._said(response.reasoning)}] if response.reasoning else []
        parts += self._parts(response.text, response.tool_calls)
        message = {"role": "assistant", "parts": parts, "finish_reason": response.finish_reason or "stop"}
        return _attribute("gen_ai.output.messages", [message])

    def _message(self, message: Message) -> dict[str, Any]:
        if message.role == "tool":
            return {"role": "tool", "parts": [self._answer(message)]}
        if message.role == "user" and message.origin == "tool":  # the text protocol has results in the user's role
            text = self._result(message.text) if "results" in self._include else ""
            return {"role": "user", "name": HARNESS, "parts": [_text(text)]}
        parts = self._parts(message.text, message.tool_calls)
        return {"role": message.role, **({"name": HARNESS} if message.origin else {}), "parts": parts}

    def _parts(self, text: str, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        parts = [_text(self._said(text))] if text else []
        return [*parts, *map(self._call_part, calls)]

    def _call_part(self, call: ToolCall) -> dict[str, Any]:
        part = {"type": "tool_call", "id": call.id, "name": call.name[:MAX_NAME]}
        return {**part, "arguments": self._arguments(call)} if "arguments" in self._include else part

    def _answer(self, message: Message) -> dict[str, Any]:
        text = self._result(message.text) if "results" in self._include else ""
        return {"type": "tool_call_response", "id": message.tool_call_id, "response": text}

    # ---- masks: they begin at a line of the decision log

    def _arguments(self, call: ToolCall) -> Any:
        value = call.args if call.args is not None else call.arguments
        if not self._masks:
            return value
        try:
            plain = _plain_data(value)
        except (RecursionError, TypeError, ValueError, msgspec.MsgspecError):
            return MARK  # what cannot be written cannot be searched, either
        return self._hidden({"call": {"arguments": plain}}, "call", "arguments")

    def _result(self, text: str) -> Any:
        return self._hidden({"result": {"text": text}}, "result", "text") if self._masks and text else text

    def _said(self, text: str) -> Any:
        return self._hidden({"message": text}, "message") if self._masks and text else text

    def _hidden(self, line: Any, *names: str) -> Any:
        line = masked(line, self._masks)
        for name in names:
            line = line[name] if isinstance(line, dict) else line
        return line


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _plain_data(value: Any) -> Any:
    return json.loads(json.dumps(msgspec.to_builtins(value, enc_hook=str), allow_nan=False))


def _attribute(name: str, value: Any) -> Attributes:
    """Return a value as text of ASCII JSON; content that cannot be written is left out."""
    try:
        text = json.dumps(msgspec.to_builtins(value, enc_hook=str), separators=(",", ":"), allow_nan=False)
    except (RecursionError, TypeError, ValueError):
        return {}
    return {name: without_known(text)}
