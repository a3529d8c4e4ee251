"""Whether a tool call succeeded, why not, and what the model is given to read.

Knows: how tools hand over results: text, JSON, a process, a Python value, structured content of a protocol.
Must not know: guards, the loop, which rule asks.

Failure is a declared fact (docs/tool-results.md): an exit code, an error flag, the status of an envelope, a `success`
that is false, an exception, a time-out, or a text prefix that the policy declares. What a text says is content.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from policyengine.messages import UNDECLARED, Status, ToolError, ToolFacts, ToolResult
from policyengine.results.declared import SHORT, Declared, as_code, declared, payload
from policyengine.results.plain import attribute, dumped, encodable, plain, text_of, type_name
from policyengine.results.read import Kind, Read, marked_exit_code, read_json, read_result

NO_OUTPUT = "(succeeded, no output)"
"""What the model reads where a call succeeded and said nothing. Empty text reads like a failure, and is repeated."""

MATCHERS = frozenset(["grep", "egrep", "fgrep", "zgrep", "rg", "ripgrep", "ag", "ack", "ugrep", "pgrep", "findstr"])
COMPARERS = frozenset(["diff", "cmp"])
CONDITIONS = frozenset(["test", "["])
"""Programs whose exit code 1 is an answer ("nothing matched", "they differ"), as their manuals say."""

_CHAIN = re.compile(r"\|\||&&|[;|&\n]")


class Classified(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a tool call.

    `reason` is empty for a success, else one of `exception`, `timeout`, `interrupted`, `exit_code`, `error_flag`,
    `success_false`, `envelope_error`, `error_member`, `every_item_failed`, `blocked`, `text_prefix`, or the status of a
    call that never ran (`denied`, `not_run`). `evidence` says which fact it was; `message` are the tool's own words for
    the failure where it has some, else the evidence. `code` is the tool's own name for it where it gave one (then
    `declared` is true), else the reason.

    `content` is what the model reads: never empty, always encodable, and strict JSON where the result is data.
    `data` is the same as an object; with a failure it is what there is beside the error.
    """

    ok: bool
    content: str
    reason: str = ""
    evidence: str = ""
    message: str = ""
    code: str = ""
    declared: bool = False
    retryable: bool | None = None
    exit_code: int | None = None
    data: dict[str, Any] | None = None
    empty: bool = False
    """Whether the tool gave nothing: no text, or an empty object or list."""
    partial: bool = False
    """Whether the tool did only part of what was asked, or there is output beside the failure."""
    truncated: bool = False
    """Whether something is left out, by the tool or because the value was too large."""
    notes: tuple[str, ...] = ()
    """What could not be kept as it was, such as a number that is none."""


def classify_tool_result(
    value: Any,
    *,
    tool: str = "",
    kind: Kind = "content",
    exit_code: int | None = None,
    is_error: bool | None = None,
    command: str = "",
    facts: ToolFacts = UNDECLARED,
    limit: int | None = None,
) -> Classified:
    """Return what a tool call came to.

    Args:
        value: what the tool handed back: text, data, any Python value, an exception, or a finished `ToolResult`.
        tool: the tool's name.
        kind: how it was delivered. `content` is a document, whose text is never looked into; `json` is JSON text;
            `process` is the output of a command; `python` is a return value; `structured` is a protocol's result (MCP).
        exit_code: the exit code of the process, where there was one.
        is_error: the error flag of the carrier, where it has one.
        command: the command line that ran, where the tool is a shell; it tells "nothing matched" from a failure.
        facts: what the policy declares about the tool.
        limit: the most characters of output to keep; beginning and end are kept, and an exit code in any case. A text
            that the note about the cut would not leave shorter is kept whole.
    """
    if issubclass(type(value), ToolResult):
        return _of_result(value, facts)
    if issubclass(type(value), BaseException):
        return _raised(value)
    read, kind = read_result(value, kind)
    said = declared(read.body, poll=facts.effect == "poll") if isinstance(read.body, Mapping) else Declared()
    code = _exit_code(as_code(exit_code), said.exit_code, read.exit_code)
    answers = _answers(tool, command)
    reason = _reason(read, said, code, code in answers, is_error is True, facts)
    if limit is not None and len(shorter := _shortened(read.text, limit)) < len(read.text):
        read = read._replace(text=shorter, cut=True)
    if reason:
        return _failure(read, said, reason, code, kind)
    return _success(read, said, code, answers.get(code or 0, ""))


def as_result(call_id: str, seen: Classified, duration_s: float | None = None) -> ToolResult:
    """Return a classified result as the result of a call."""
    error = None if seen.ok else ToolError(seen.code, seen.message, seen.retryable, seen.declared)
    status: Status = "ok" if seen.ok else "error"
    return ToolResult(call_id, seen.content, status, error, seen.exit_code, duration_s)


# ---- the decision


def _reason(read: Read, said: Declared, code: int | None, answer: bool, flag: bool, facts: ToolFacts) -> str:
    if said.reason == "timeout":
        return "timeout"
    if code and not answer:
        return "exit_code"
    if flag or read.flag:
        return "error_flag"
    if said.reason and not (said.reason == "exit_code" and answer):
        return said.reason
    prefixes = tuple(filter(None, facts.failure.text_prefix))
    return "text_prefix" if prefixes and read.text.lstrip().startswith(prefixes) else ""


def _failure(read: Read, said: Declared, reason: str, code: int | None, kind: Kind) -> Classified:
    text = read.text
    evidence = EVIDENCE.get(reason, "The tool reported a failure").format(code=code)
    words = said.message or ("" if isinstance(read.body, Mapping) or kind == "process" else _line(text))
    data = said.rest
    if not isinstance(read.body, Mapping) and (kind == "process" or len(text.strip()) > len(words)) and text.strip():
        data = {"text": encodable(text)}
    content = text if text.strip() else f"({evidence[0].lower()}{evidence[1:]}; no output)"
    if code and kind == "process" and text.strip() and marked_exit_code(text) is None:
        # Last, so that it is there even where only the end of a long output is kept.
        content = f"{text.rstrip()}\n[exit code {code}]"
    if reason in ("exit_code", "timeout", "text_prefix"):
        words = f"{evidence}: {words}" if words else ""
    return Classified(
        ok=False,
        content=encodable(content),
        reason=reason,
        evidence=f"{evidence}.",
        message=encodable(words or f"{evidence}."),
        code=encodable(said.code) if said.has_code else reason,
        declared=said.has_code,
        retryable=said.retryable,
        exit_code=code,
        data=data,
        empty=not text.strip(),
        partial=said.partial or data is not None,
        truncated=said.truncated or read.plain.truncated or read.cut,
        notes=read.plain.notes,
    )


EVIDENCE = {
    "exit_code": "The command ended with exit code {code}",
    "error_flag": "The tool set its error flag",
    "success_false": "The tool said success: false",
    "envelope_error": "The tool returned an error",
    "error_member": "The tool returned nothing but an error",
    "every_item_failed": "Every item of the result failed",
    "blocked": "The call was blocked",
    "text_prefix": "The text begins as the policy says that failures of this tool begin",
    "timeout": "The tool ran out of time",
    "interrupted": "The tool was interrupted",
}


def _success(read: Read, said: Declared, code: int | None, answer: str) -> Classified:
    text, body = read.text, read.body
    blank = not text.strip()
    if blank:
        text = NO_OUTPUT
        if answer:
            text = f"(succeeded: {answer}, exit code {code})"
        elif code is not None:
            text = f"(succeeded, exit code {code}, no output)"
    data = {"text": encodable(text)} if blank else _data(read, said)
    return Classified(
        ok=True,
        content=encodable(text),
        evidence=f"The command answered: {answer} (exit code {code})." if answer else "",
        exit_code=code,
        data=data,
        empty=blank or body in ({}, [], "") or data == {},
        partial=said.partial,
        truncated=said.truncated or read.plain.truncated or read.cut,
        notes=read.plain.notes,
    )


def _data(read: Read, said: Declared) -> dict[str, Any]:
    """Return what a successful call gave as an object."""
    body = read.body
    if isinstance(body, Mapping):
        return said.rest or {}
    if isinstance(body, list):
        return {"items": body}
    if body is None or isinstance(body, str):
        return {"text": encodable(read.text) if body is None else body}
    return {"value": body}


def _raised(error: BaseException) -> Classified:
    """Return the result of a tool that raised."""
    name, words = type_name(error), plain(text_of(error)).value
    code = as_code(plain(attribute(error, "returncode")).value)
    reason = "exception"
    if issubclass(type(error), TimeoutError) or name == "TimeoutExpired":
        reason = "timeout"
    elif code:
        reason = "exit_code"
    elif name == "CancelledError":
        reason = "interrupted"
    content = f"Error: {name}: {words}" if words.strip() else f"Error: {name}"
    message = f"{name}: {words}" if words.strip() else name
    evidence = f"The tool raised {name}."
    return Classified(False, content, reason, evidence, message[:2000], reason, exit_code=code or None)


def _of_result(result: ToolResult, facts: ToolFacts) -> Classified:
    """Return a finished result as it classifies itself; only its exit code and a declared prefix are still read."""
    error, text = result.error, _words(result.text)
    if result.status == "ok" and error is None:
        read = read_json(text) if text.lstrip()[:1] in ("{", "[") else Read(text)
        said = Declared(rest=payload(read.body)) if isinstance(read.body, Mapping) else Declared()
        reason = _reason(read, Declared(), result.exit_code, False, False, facts)
        if reason:
            return _failure(read._replace(body=None), Declared(), reason, result.exit_code, "content")
        return _success(read, said, result.exit_code, "")
    reason = result.status if result.status not in ("ok", "error") else "error_flag"
    if error is not None and result.status == "error":
        own = error.code if error.code in EVIDENCE or error.code == "exception" else "error_flag"
        reason = "envelope_error" if error.declared else own
    content = text if text.strip() else f"({reason}; no output)"
    message, code = (_words(error.message), _words(error.code)) if error else ("", "")
    message = message if message.strip() else _line(content)
    more = bool(text.strip()) and result.ran and message not in text
    return Classified(
        ok=False,
        content=content,
        reason=reason,
        evidence=f"The result has the status {result.status}.",
        message=message,
        code=code if code.strip() else reason,
        declared=error.declared if error else False,
        retryable=error.retryable if error else None,
        exit_code=result.exit_code,
        data={"text": text} if more else None,
        empty=not text.strip(),
        partial=more,
    )


# ---- exit codes


def _answers(tool: str, command: str) -> dict[int | None, str]:
    """Return the exit codes that are an answer and no failure, by what they say."""
    program = tool
    if command:
        try:
            words = shlex.split(_CHAIN.split(command.strip().rstrip(";&"))[-1])
        except ValueError:
            words = []
        words = [word for word in words if "=" not in word]
        if words[:1] == ["git"] and len(words) > 1:
            words = words[1:]
        program = words[0].rsplit("/", 1)[-1] if words else ""
    program = program.lower()
    if program in MATCHERS:
        return {1: "nothing matched"}
    if program in COMPARERS:
        return {1: "different"}
    return {1: "false"} if command and program in CONDITIONS else {}


def _words(value: Any) -> str:
    """Return the text in a result that a tool made; nobody has checked that it is text."""
    found = plain(value).value
    return found if type(found) is str else "" if found is None else dumped(found)


def _line(text: str) -> str:
    """Return a text as one line that fits a message."""
    return " ".join(text[: SHORT * 4].split())[:SHORT]


def _exit_code(given: int | None, said: int | None, marked: int | None) -> int | None:
    """Return the exit code that counts: one that was declared before one that was read off the text."""
    declared_codes = [code for code in (given, said) if code is not None]
    return next(filter(None, declared_codes), declared_codes[0] if declared_codes else marked)


def _shortened(text: str, limit: int) -> str:
    """Return beginning and end of a text, with a line in between that says how much is missing.

    That line has a length of its own: a text that would not become shorter is better left whole (Agent Zero A14).
    """
    head = max(limit, 0) * 2 // 3
    tail = max(limit, 0) - head
    left_out = f"\n[... {len(text) - head - tail} characters left out ...]\n"
    return text[:head] + left_out + (text[-tail:] if tail else "")
