"""The embedded model: it says what a script says, so that a run needs no key and no network.

Knows: scripts. Must not know: guards, the loop, real providers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from policyengine.agent import RequestError
from policyengine.errors import UsageError
from policyengine.messages import (
    Message,
    ModelRequest,
    ModelResponse,
    ProviderError,
    ToolCall,
    ToolError,
    ToolResult,
    ToolSpec,
    Usage,
)
from policyengine.parsing.parse import ANSWER_TOOL
from policyengine.policy.wording import suggestion
from policyengine.protocols import PROTOCOLS, check_choice
from policyengine.script import Script, ScriptedCall, Turn
from policyengine.toolset import Tool, Toolset
from policyengine.yamldata import YamlError, read


class ScriptedModel:
    """Answers the n-th request with the n-th turn of a script; past the end it says that the script is over.

    `turns` may be more than a run uses. `name` is what the run's records call the model. `played` is how many turns a
    run has had already, in another process.
    """

    name = "scripted"

    def __init__(self, script: Script, played: int = 0) -> None:
        self._script = script
        self._position = played

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the next turn as a response.

        Raises:
            RequestError: the script says that the request fails.
        """
        turns = self._script.turns
        position, self._position = self._position, self._position + 1
        if position >= len(turns):
            # Past the end there must be a usable answer: an unusable one would be asked for again for ever.
            over = f"The script ends after {len(turns)} turns."
            text = answer_text(over) if self._script.protocol == "text" else over
            return _response(Turn(text=text), position, self._script.protocol)
        error = turns[position].error
        if error is not None:
            raise RequestError(error)
        return _response(turns[position], position, self._script.protocol)

    def tools(self, messages: Sequence[Message] = (), results: Iterable[ToolResult] = ()) -> Toolset:
        """Return tools that give the results the script says, by tool name and arguments, in script order.

        `messages` and `results` are those that a run has already: what they hold was given by another process.
        """
        answers = ScriptedTools(self._script)
        answers.skip(messages, results)
        return Toolset(
            Tool(ToolSpec(name, about, {"type": "object"}), answers.function(name))
            for name, about in answers.names().items()
        )


class ScriptedTools:
    """Gives each call the result its place in the script says.

    Results are looked up by tool and arguments; equal calls get their results in script order, the last one again
    and again.
    """

    def __init__(self, script: Script) -> None:
        self._described = script.tools
        self._queues: dict[tuple[str, str], list[ScriptedCall]] = {}
        self._lock = threading.Lock()
        for turn in script.turns:
            for item in turn.calls:
                self._queues.setdefault((item.tool, _key(item.args)), []).append(item)

    def names(self) -> dict[str, str]:
        """Return every tool with its description."""
        return {**{name: "" for name, _ in self._queues if name}, **self._described}

    def function(self, name: str) -> Any:
        """Return the function of one tool."""
        return lambda **args: self.answer(name, args)

    def skip(self, messages: Sequence[Message], results: Iterable[ToolResult]) -> None:
        """Take the results as given that a history holds, and those of its last calls that are not in it yet."""
        calls: dict[str, ToolCall] = {}
        late = [result.call_id for result in results if result.ran]
        for message in messages:
            for call in (*message.tool_calls, *_calls_in(message)):
                calls[call.id] = call
            if message.role == "tool" and message.origin != "loop":
                self._given(calls.get(message.tool_call_id))
            elif message.origin == "tool" and "" in calls:
                self._given(calls.pop(""), message.text)
        for call_id in late:
            self._given(calls.get(call_id, calls.get("")))

    def _given(self, call: ToolCall | None, told: str | None = None) -> None:
        """Take the next result of a call as given; in the text protocol if that is what the model was `told`."""
        if call is None:
            return
        args = _json(call.arguments) if call.args is None else call.args
        queue = self._queues.get((call.name, _key(args)), [])
        if len(queue) > 1 and (told is None or json.dumps(queue[0].result, ensure_ascii=False)[1:-1] in told):
            queue.pop(0)

    def answer(self, name: str, args: dict[str, Any]) -> ToolResult:
        """Return the next scripted result of this call."""
        with self._lock:
            queue = self._queues.get((name, _key(args)), [])
            item = (queue.pop(0) if len(queue) > 1 else queue[0]) if queue else ScriptedCall(name)
        return ToolResult("", item.result, item.status, item.error, item.exit_code)


def load_script(name: str) -> Script:
    """Return an embedded script by name, or one from a YAML or JSON file.

    Raises:
        UsageError: there is no such script, or it has the wrong shape.
    """
    path = Path(name)
    embedded = files("policyengine.providers").joinpath("scripts", f"{name}.yaml")
    if path.suffix in (".yaml", ".yml", ".json"):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read script {name}: {error}") from error
    elif embedded.is_file():
        text = embedded.read_text(encoding="utf-8")
    else:
        near = suggestion(name, embedded_scripts(), "embedded")
        raise UsageError(f"no script named {name!r}; {near}; or give a file")
    try:
        value = read(text)
        _check_keys(value, name)
        script = msgspec.convert(value, Script)
        check_choice(script.protocol, PROTOCOLS, "protocol")
        for turn in script.turns:
            for item in turn.calls:
                json.dumps(item.args)
    except (YamlError, msgspec.ValidationError) as error:
        raise UsageError(f"script {name}: {error}") from error
    except (TypeError, ValueError, RecursionError) as error:  # YAML knows dates and bytes, a call does not
        raise UsageError(f"script {name}: args must be what JSON can say: {error}; put it in quotes") from error
    return script


def read_turns(value: Any) -> tuple[Turn, ...]:
    """Return turns that are given as `Turn`, as data of the form they have in a script, or as YAML.

    Raises:
        UsageError: they have another form.
    """
    try:
        items = read(value) if isinstance(value, str) else value
    except YamlError as error:
        raise UsageError(f"turns: {error}") from error
    if isinstance(items, Turn | dict):
        items = [items]
    if not isinstance(items, list | tuple):
        raise UsageError(f"turns are a list, not {type(items).__name__}")
    turns = []
    for number, item in enumerate(items, 1):
        if not isinstance(item, Turn):
            place = f"turns[{number}]"
            _check_keys(item, place, Turn)
            try:
                item = msgspec.convert(item, Turn)
            except msgspec.ValidationError as error:
                raise UsageError(f"{place}: {error}") from error
        turns.append(item)
    return tuple(turns)


_PARTS: dict[type[msgspec.Struct], dict[str, type[msgspec.Struct]]] = {
    Script: {"turns": Turn},
    Turn: {"calls": ScriptedCall, "usage": Usage, "error": ProviderError},
    ScriptedCall: {"error": ToolError},
}
"""Which members of a script's parts are parts themselves, or lists of them."""


def _check_keys(value: Any, path: str, kind: type[msgspec.Struct] = Script) -> None:
    """Refuse keys that no part of a script has: one that is misspelt would be ignored."""
    if isinstance(value, list):
        for number, item in enumerate(value, 1):
            _check_keys(item, f"{path}[{number}]", kind)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        if key not in kind.__struct_fields__:
            hint = suggestion(str(key), kind.__struct_fields__)
            raise UsageError(f"script {path}: there is no {key!r} here; {hint}")
        part = _PARTS.get(kind, {}).get(key)
        if part is not None:
            _check_keys(item, f"{path}: {key}" if kind is Script else f"{path}.{key}", part)


def embedded_scripts() -> tuple[str, ...]:
    """Return the names of the embedded scripts."""
    folder = files("policyengine.providers").joinpath("scripts")
    return tuple(sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml")))


def _calls_in(message: Message) -> tuple[ToolCall, ...]:
    """Return the call that a message in the text protocol makes; it has no id."""
    said = _json(message.text) if message.role == "assistant" and not message.tool_calls else None
    if not isinstance(said, dict) or not isinstance(said.get("tool_name"), str):
        return ()
    return (ToolCall("", said["tool_name"], args=said.get("tool_args")),)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _key(args: Any) -> str:
    return json.dumps(args, sort_keys=True, default=str)


def _response(turn: Turn, position: int, protocol: str) -> ModelResponse:
    if protocol == "text":
        return _text_response(turn)
    calls = tuple(ToolCall(f"{position}-{index}", item.tool, _arguments(item)) for index, item in enumerate(turn.calls))
    return ModelResponse(turn.text, calls, turn.reasoning, turn.finish_reason, turn.usage, _model(turn))


def _text_response(turn: Turn) -> ModelResponse:
    """Write a turn in the text protocol: one object for one call; several are what the protocol forbids."""
    text = turn.text
    if turn.calls:
        text = "\n".join(json.dumps({"tool_name": item.tool, "tool_args": item.args}) for item in turn.calls)
    return ModelResponse(text, (), turn.reasoning, turn.finish_reason, turn.usage, _model(turn))


def _model(turn: Turn) -> str:
    return turn.model or ScriptedModel.name


def answer_text(text: str) -> str:
    """Return a final answer in the text protocol."""
    return json.dumps({"tool_name": ANSWER_TOOL, "tool_args": {"text": text}})


def _arguments(item: ScriptedCall) -> str:
    return item.arguments if item.arguments is not None else json.dumps(item.args)
