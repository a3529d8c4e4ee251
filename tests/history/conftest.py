"""Histories in every form: written as sketches, and generated whole with any damage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import strategies as st

SHAPES = ("openai_chat", "anthropic", "gemini", "openai_responses")
FINE = {"a": 1}

PROFILES: list[dict[str, Any]] = [
    {},
    {"strict_adjacency": True},
    {"unique_ids": "history"},
    {"id_pattern": "[a-zA-Z0-9]{9}"},
    {"empty_text": "allowed"},
    {"reasoning_content": "required"},
    {"reasoning_content": "required_on_tool_calls"},
    {"reasoning_content": "forbidden"},
    {"thinking": "enabled"},
    {"thinking": "disabled"},
    {"thinking": "forbidden"},
    {"thought_signature": "required"},
    {"thinking": "enabled", "strict_adjacency": True, "unique_ids": "history"},
]


class Writer:
    """Writes calls, results and texts in one shape."""

    def __init__(self, shape: str) -> None:
        self.shape = shape

    def user(self, text: str = "hello") -> list[dict[str, Any]]:
        if self.shape == "anthropic":
            return [{"role": "user", "content": [{"type": "text", "text": text}]}]
        if self.shape == "gemini":
            return [{"role": "user", "parts": [{"text": text}]}]
        return [{"role": "user", "content": text}]

    def says(self, text: str = "well") -> list[dict[str, Any]]:
        if self.shape == "anthropic":
            return [{"role": "assistant", "content": [{"type": "text", "text": text}]}]
        if self.shape == "gemini":
            return [{"role": "model", "parts": [{"text": text}]}]
        return [{"role": "assistant", "content": text}]

    def calls(self, *ids: str, name: str = "ls", arguments: Any = FINE) -> list[dict[str, Any]]:
        """One response with calls; in Gemini's form they have no ids and are told apart by name."""
        text = json.dumps(arguments) if not isinstance(arguments, str) else arguments
        if self.shape == "anthropic":
            blocks = [{"type": "tool_use", "id": id, "name": name, "input": arguments} for id in ids]
            return [{"role": "assistant", "content": blocks}]
        if self.shape == "gemini":
            named = [f"{name}_{id}" if name == "ls" else name for id in ids]
            return [{"role": "model", "parts": [{"functionCall": {"name": n, "args": arguments}} for n in named]}]
        if self.shape == "openai_responses":
            return [{"type": "function_call", "call_id": id, "name": name, "arguments": text} for id in ids]
        function = {"name": name, "arguments": text}
        calls = [{"id": id, "type": "function", "function": function} for id in ids]
        return [{"role": "assistant", "content": None, "tool_calls": calls}]

    def results(self, *ids: str, text: str = "done") -> list[dict[str, Any]]:
        """Results, in one message where the shape has them in one."""
        if self.shape == "anthropic":
            return [{"role": "user", "content": [self.result(id, text) for id in ids]}]
        if self.shape == "gemini":
            return [{"role": "user", "parts": [self.result(id, text) for id in ids]}]
        return [self.result(id, text) for id in ids]

    def result(self, id: str, text: str = "done") -> dict[str, Any]:
        if self.shape == "anthropic":
            return {"type": "tool_result", "tool_use_id": id, "content": text}
        if self.shape == "gemini":
            return {"functionResponse": {"name": f"ls_{id}", "response": {"o": text}}}
        if self.shape == "openai_responses":
            return {"type": "function_call_output", "call_id": id, "output": text}
        return {"role": "tool", "tool_call_id": id, "content": text}


@pytest.fixture(params=SHAPES)
def written(request: pytest.FixtureRequest) -> Writer:
    return Writer(request.param)


@pytest.fixture(scope="session")
def writers() -> dict[str, Writer]:
    return {shape: Writer(shape) for shape in SHAPES}


@pytest.fixture(scope="session")
def damaged() -> st.SearchStrategy[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    return st.sampled_from(SHAPES).flatmap(
        lambda shape: st.tuples(st.just(shape), st.sampled_from(PROFILES), st.lists(MESSAGES[shape], max_size=9))
    )


# ---- any history, however damaged

IDS = st.sampled_from(["a", "b", "c", "a:1", ""])
NAMES = st.sampled_from(["ls", "cat", "bad name", "", "9"])
TEXTS = st.sampled_from(["", " ", "text"])
OBJECTS = st.sampled_from([{}, {"p": "q"}, {"p": [1, {"q": None}]}])
ANY_OBJECT = st.one_of(OBJECTS, st.sampled_from(["", "x", '{"p": 1', None, [1], 5]))
ARGUMENTS = st.one_of(
    OBJECTS.map(json.dumps),
    st.sampled_from(["", "{", '{"a": "b"', '{"a": "cut', "[1]", "null", "NaN", '{"a":1,"a":2}', "\ud800", "{'a': 1}"]),
    OBJECTS,
    st.none(),
)
EXTRA = st.dictionaries(st.just("x_unknown"), st.just({"kept": True}))


def record(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda extra, given: {**given, **extra}, EXTRA, st.fixed_dictionaries(fields))


CHAT_CALL = record(
    id=IDS, type=st.just("function"), function=st.fixed_dictionaries({"name": NAMES, "arguments": ARGUMENTS})
)
CHAT_CONTENT = st.one_of(TEXTS, st.none(), st.lists(record(type=st.just("text"), text=TEXTS), max_size=2))
THINKING = st.one_of(
    record(type=st.just("thinking"), thinking=TEXTS, signature=st.sampled_from(["", "sig"])),
    record(type=st.just("redacted_thinking"), data=st.just("d")),
)
BLOCKS = st.lists(
    st.one_of(
        record(type=st.just("text"), text=TEXTS),
        record(type=st.just("tool_use"), id=IDS, name=NAMES, input=ANY_OBJECT),
        THINKING,
        record(type=st.just("image"), source=st.just({})),
    ),
    max_size=4,
)
ANSWERS = st.lists(
    st.one_of(
        record(type=st.just("text"), text=TEXTS),
        record(type=st.just("tool_result"), tool_use_id=IDS, content=TEXTS),
        record(type=st.just("tool_result"), tool_use_id=IDS),
        record(type=st.just("tool_result"), tool_use_id=IDS, content=TEXTS, is_error=st.booleans()),
    ),
    max_size=4,
)
OPTIONAL_ID = st.dictionaries(st.just("id"), st.sampled_from(["a", "b"]))
PARTS = st.lists(
    st.one_of(
        record(text=TEXTS),
        st.builds(
            lambda id, name, args, extra: {"functionCall": {**id, "name": name, "args": args}, **extra},
            OPTIONAL_ID,
            NAMES,
            ANY_OBJECT,
            st.dictionaries(st.just("thoughtSignature"), st.just("sig")),
        ),
    ),
    max_size=3,
)
GEMINI_ANSWERS = st.lists(
    st.one_of(
        record(text=TEXTS),
        st.builds(
            lambda id, name: {"functionResponse": {**id, "name": name, "response": {"o": 1}}}, OPTIONAL_ID, NAMES
        ),
    ),
    max_size=3,
)
SAID = record(role=st.sampled_from(["user", "system"]), content=CHAT_CONTENT)
MESSAGES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "openai_chat": st.one_of(
        SAID,
        record(role=st.just("assistant"), content=CHAT_CONTENT, tool_calls=st.lists(CHAT_CALL, min_size=1, max_size=3)),
        record(role=st.just("assistant"), content=CHAT_CONTENT, reasoning_content=st.sampled_from([None, "", "why"])),
        record(role=st.just("tool"), tool_call_id=IDS, content=TEXTS),
        record(role=st.just("tool"), tool_call_id=IDS, content=TEXTS, name=NAMES),
    ),
    "anthropic": st.one_of(
        record(role=st.just("user"), content=st.one_of(TEXTS, ANSWERS)),
        record(role=st.just("user"), content=ANSWERS),
        record(role=st.just("assistant"), content=st.one_of(TEXTS, BLOCKS)),
        record(role=st.just("assistant"), content=BLOCKS),
    ),
    "gemini": st.one_of(
        record(role=st.sampled_from(["user", "function"]), parts=GEMINI_ANSWERS),
        record(role=st.just("model"), parts=PARTS),
    ),
    "openai_responses": st.one_of(
        record(type=st.just("message"), role=st.sampled_from(["user", "assistant", "system"]), content=TEXTS),
        record(type=st.just("reasoning"), summary=st.just([])),
        record(type=st.just("function_call"), call_id=IDS, name=NAMES, arguments=ARGUMENTS),
        record(type=st.just("custom_tool_call"), call_id=IDS, name=NAMES, input=TEXTS),
        record(type=st.just("function_call_output"), call_id=IDS, output=TEXTS),
        record(type=st.just("item_reference"), id=st.just("i")),
        record(type=st.just("web_search_call"), id=st.just("i")),
    ),
}
