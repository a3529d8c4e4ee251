"""Tool results: failure is a declared fact, and whatever a tool returns, the model reads something that can be sent."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyengine import (
    Agent,
    Classified,
    Engine,
    Script,
    ToolCall,
    ToolError,
    ToolFacts,
    ToolResult,
    call,
    classify_tool_result,
    say,
    tool_result_envelope,
)
from policyengine.context import failed
from policyengine.messages import UNDECLARED, Failure
from policyengine.providers.scripted import ScriptedModel
from policyengine.results import NO_OUTPUT, as_result
from policyengine.results.plain import plain
from policyengine.testing import ListedRegistry, policy, rule
from policyengine.toolset import failure_of, result_of, timeout_of

TESTS = Path(__file__).parent
CASES = [
    json.loads(line)
    for name in ("public_cases.jsonl", "result_cases.jsonl")
    for line in (TESTS / "data" / name).read_text(encoding="utf-8").splitlines()
]
OURS = [case for case in CASES if case["class"] == "tool_result"]
CALL = ToolCall("c1", "probe")


def adapter():
    spec = importlib.util.spec_from_file_location("tool_result_adapter", TESTS / "conformance" / "tool_result.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ADAPTER = adapter()


def strict(text: str):
    """Return the value of JSON text that holds nothing but JSON."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in {text!r}"))


def sendable(seen: Classified) -> None:
    assert seen.content.strip()
    seen.content.encode()
    assert seen.ok == (not seen.reason)
    assert seen.ok or (seen.message and seen.code and seen.evidence)
    envelope = tool_result_envelope(seen, tool="probe", step=1, trace_id="t")
    json.dumps(envelope, allow_nan=False, ensure_ascii=False).encode()
    shaped(envelope)


def shaped(envelope: dict) -> None:
    """Check the one shape that everything has."""
    assert set(envelope) - {"partial", "truncated"} == {"status", "tool", "data", "error", "meta"}
    assert {"step", "trace_id"} <= set(envelope["meta"]) <= {"step", "trace_id", "notes"}
    if envelope["status"] == "ok":
        assert envelope["error"] is None
        assert isinstance(envelope["data"], dict)
    else:
        assert envelope["status"] == "error"
        assert set(envelope["error"]) == {"code", "message", "retryable"}
        assert envelope["error"]["code"]
        assert envelope["error"]["message"]
        assert envelope["data"] is None or envelope["partial"] is True


# ---- cases


@pytest.mark.parametrize("case", OURS, ids=lambda case: case["id"])
def test_every_case_of_the_class_comes_out_as_expected(case):
    assert ADAPTER.judge(case) == []


@pytest.mark.parametrize("case", OURS, ids=lambda case: case["id"])
def test_a_case_with_the_opposite_verdict_fails(case):
    assert ADAPTER.judge({**case, "expected": {"ok": not case["expected"]["ok"]}}) != []


# ---- what declares a failure


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"success": False}, "success_false"),
        ({"success": False, "rows": [1]}, "success_false"),
        ({"success": True, "error": "one of the mirrors is slow"}, ""),
        ({"ok": False, "error": "channel_not_found"}, "success_false"),
        ({"ok": False, "line": 3}, ""),
        ({"status": "error", "message": "no such page"}, "envelope_error"),
        ({"status": "error", "error": "no such page", "page": 3}, "envelope_error"),
        ({"status": "failed", "message": "no such page"}, "envelope_error"),
        ({"status": "failed"}, ""),
        ({"status": "timeout"}, "timeout"),
        ({"status": "cancelled", "order": 7}, ""),
        ({"status": "error", "job": 7, "log": "x"}, ""),
        ({"status": {"phase": "error"}}, ""),
        ({"error": {"code": 17, "message": "no"}}, "error_member"),
        ({"error": True}, "error_member"),
        ({"error": "", "data": 1}, ""),
        ({"error": "2 of 5 failed", "results": [1, 2, 3]}, ""),
        ({"data": None, "errors": [{"message": "no such field"}]}, "error_member"),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no such method"}}, "envelope_error"),
        ({"jsonrpc": "2.0", "id": 1, "result": {"isError": True, "content": []}}, "error_flag"),
        ({"timed_out": True, "stdout": "half"}, "timeout"),
        ({"interrupted": True}, "interrupted"),
        ({"exit_code": "2", "stdout": ""}, "exit_code"),
        ({"exit_code": True}, ""),
        ({"exit_code": None, "signal": "SIGKILL", "stdout": ""}, "interrupted"),
        ({"exit_code": 0, "signal": "", "stdout": "x"}, ""),
        ({"signal": "green"}, ""),
        ({"blocked": True, "url": "https://ex.test", "reason": "not allowed here"}, "blocked"),
        ({"blocked": True, "url": "https://ex.test", "category": "ads"}, ""),
        ([{"error": "no"}], ""),
    ],
)
def test_an_object_declares_its_own_failure_at_its_top_level(value, reason):
    for kind in ("python", "structured"):
        seen = classify_tool_result(value, kind=kind)
        assert (seen.ok, seen.reason) == (not reason, reason)
        sendable(seen)
    assert classify_tool_result(json.dumps(value), kind="json").reason == reason


def test_the_code_of_a_failure_is_declared_only_where_the_tool_names_one():
    named = classify_tool_result(
        {"success": False, "error": {"code": "gone", "message": "no page", "retryable": False}}
    )
    assert (named.code, named.declared, named.retryable, named.message) == ("gone", True, False, "no page")
    unnamed = classify_tool_result({"success": False, "error": "no page"})
    assert (unnamed.code, unnamed.declared, unnamed.retryable) == ("success_false", False, None)
    exited = classify_tool_result("", kind="process", exit_code=3)
    assert (exited.code, exited.declared, exited.exit_code) == ("exit_code", False, 3)


def test_a_polled_job_that_failed_is_a_successful_poll():
    poll = ToolFacts(effect="poll")
    for job in ({"status": "error", "message": "out of memory"}, {"exit_code": 1}, {"timed_out": True}):
        assert not classify_tool_result(job).ok
        assert classify_tool_result(job, facts=poll).ok
    for refused in ({"isError": True}, {"status": "error", "error": {"code": "no_job"}}, {"success": False}):
        assert not classify_tool_result(refused, facts=poll).ok


def test_text_is_looked_into_only_as_a_whole_and_never_in_a_document():
    text = '{"success": false, "error": "no"}'
    assert [classify_tool_result(text, kind=kind).ok for kind in ("content", "process")] == [True, True]
    assert [classify_tool_result(text, kind=kind).ok for kind in ("json", "python", "structured")] == [False] * 3
    assert classify_tool_result(f"the answer was {text}", kind="python").ok


def test_the_declared_exit_code_outranks_one_in_the_text():
    assert classify_tool_result("Exit code: 2", kind="process", exit_code=0).ok
    assert classify_tool_result("Exit code: 2", kind="process").exit_code == 2
    assert classify_tool_result("it says exit code 2 here", kind="process").ok
    assert classify_tool_result("Exit code: 2", kind="content").ok


@pytest.mark.parametrize(
    ("command", "ok"),
    [
        ("grep -rn x src", True),
        ("cat a | grep x", True),
        ("PAGER= git grep x", True),
        ("/usr/bin/grep x a;", True),
        ("[ -f a ]", True),
        ("grep x a && make", False),
        ("make", False),
        ("grep 'x", False),
        ("", False),
    ],
)
def test_exit_code_1_of_a_search_is_an_answer(command, ok):
    assert classify_tool_result("", tool="bash", kind="process", exit_code=1, command=command).ok is ok
    assert not classify_tool_result("", tool="bash", kind="process", exit_code=2, command=command).ok


def test_objects_that_carry_results_are_read_without_being_imported():
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print('half'); sys.exit(4)"], capture_output=True, check=False
    )
    seen = classify_tool_result(done, kind="python")
    assert (seen.reason, seen.exit_code, seen.content) == ("exit_code", 4, "half\n[exit code 4]")

    class Block:
        def model_dump(self):
            return {"type": "text", "text": "no such table"}

    carrier = SimpleNamespace(content=[Block()], isError=True, structuredContent=None)
    seen = classify_tool_result(carrier, kind="python")
    assert (seen.reason, seen.content) == ("error_flag", "no such table")


def test_an_exception_is_a_failure_whatever_it_says_of_itself():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert classify_tool_result(ValueError("x")).content == "Error: ValueError: x"
    assert classify_tool_result(subprocess.CalledProcessError(5, "make")).exit_code == 5
    assert classify_tool_result(subprocess.TimeoutExpired("make", 3)).reason == "timeout"
    for error in (Mute(), KeyboardInterrupt(), SystemExit(3), TimeoutError(), ValueError("\ud800" * 9)):
        seen = classify_tool_result(error)
        assert not seen.ok
        sendable(seen)


# ---- what the model reads


@pytest.mark.parametrize(
    ("value", "options", "content"),
    [
        (None, {"kind": "python"}, NO_OUTPUT),
        (" \n", {}, NO_OUTPUT),
        ("", {"kind": "process"}, NO_OUTPUT),
        ("", {"kind": "process", "exit_code": 0}, "(succeeded, exit code 0, no output)"),
        ("", {"kind": "process", "exit_code": 2}, "(the command ended with exit code 2; no output)"),
        ("", {"tool": "rg", "kind": "process", "exit_code": 1}, "(succeeded: nothing matched, exit code 1)"),
        ("", {"is_error": True}, "(the tool set its error flag; no output)"),
    ],
)
def test_empty_output_says_whether_it_was_a_success(value, options, content):
    seen = classify_tool_result(value, **options)
    assert (seen.content, seen.empty) == (content, True)


def test_numbers_that_are_none_become_null_and_a_note():
    seen = classify_tool_result({"mean": float("nan"), "rows": [float("inf")], "n": 1e300}, kind="python")
    assert strict(seen.content) == {"mean": None, "rows": [None], "n": 1e300}
    assert seen.notes == (
        "mean: NaN is no JSON number; it is given as null",
        "rows[0]: Infinity is no JSON number; it is given as null",
    )
    assert tool_result_envelope(seen, tool="stats")["meta"]["notes"] == list(seen.notes)


@dataclass
class Point:
    x: float
    label: str


class Broken:
    def __str__(self):
        raise RuntimeError


class Unbound:
    """A proxy without anything behind it: it refuses to say even what it is."""

    def __getattribute__(self, name):
        raise RuntimeError("unbound")


class Posing:
    """An object that says it is of another kind, as mocks do."""

    def __init__(self, kind):
        self.kind = kind

    @property
    def __class__(self):
        return self.kind


class Refusing(type):
    """A class that refuses questions."""

    def __getattr__(cls, name):
        raise RuntimeError(name)


class Unasked(metaclass=Refusing):
    pass


class OwnText(str):
    """Text with methods of its own."""

    def encode(self, *_):
        raise RuntimeError

    def strip(self, *_):
        raise RuntimeError


class OddError(Exception):
    """An exception that cannot be shown, with an exit code that cannot be asked for."""

    returncode = property(lambda self: 1 / 0)

    def __str__(self):
        return 5


ODD = [
    *(Broken, Unbound, Unasked, OddError),
    *(partial(Posing, kind) for kind in (str, int, float, bytes, dict, list, ValueError, ToolResult, Classified)),
    lambda: OwnText("\ud800"),
    lambda: SimpleNamespace(isError=Unbound(), content=Unbound()),
    lambda: SimpleNamespace(isError=True, content=[Unbound()]),
]


class BrokenDict(dict):
    def items(self):
        raise RuntimeError


def nested(depth: int):
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def unfolding(depth: int):
    value: list = ["x" * 100]
    for _ in range(depth):
        value = [value, value]
    return value


def looped():
    value: dict = {"name": "a"}
    value["self"] = [value]
    return value


@pytest.mark.parametrize(
    "make",
    [
        looped,
        Broken,
        lambda: [Broken(), 1],
        lambda: BrokenDict(a=1),
        lambda: {Broken(): 1, (1, 2): 2, None: 3, 1: 4, "1": 5, False: 6},
        lambda: nested(100_000),
        lambda: unfolding(60),
        lambda: {"x" * 300_000: {n: n for n in range(100_000)}},
        lambda: list(range(1_000_000)),
        lambda: "x" * 3_000_000,
        lambda: {"text": "\ud800x" * 1_000_000},
        lambda: 10**10_000,
        lambda: {10**5_000: -(10**5_000)},
        lambda: b"\xff" * 1_000_000,
        lambda: (n for n in range(3)),
        lambda: type,
        lambda: memoryview(b"ab"),
        lambda: SimpleNamespace(a=unfolding(60)),
        lambda: deque([unfolding(60)]),
        lambda: ValueError(unfolding(60)),
        lambda: [KeyError({"a": unfolding(60)})],
        *ODD,
        *(partial(lambda make: [1, make()], make) for make in ODD),
    ],
)
def test_no_value_is_too_odd_or_too_large(make):
    value = make()
    began = time.process_time()
    for kind in ("python", "content", "json", "process", "structured"):
        sendable(classify_tool_result(value, kind=kind))
    assert time.process_time() - began < 30


def test_one_odd_item_does_not_hide_the_others():
    assert plain([1, Unbound(), Posing(str)]).value[0] == 1
    assert plain({"a": Unbound(), "b": 2}).value["b"] == 2


@pytest.mark.parametrize(
    "fact",
    [{"success": False}, {"status": "error", "error": {"code": "e"}}, {"exit_code": 2}, {"isError": True}],
    ids=["success", "error", "exit code", "flag"],
)
@pytest.mark.parametrize("data", ["x" * 2_000_000, list(range(300_000))], ids=["text", "list"])
def test_a_declared_failure_counts_however_much_stands_before_it(data, fact):
    for value, kind in (({"data": data, **fact}, "python"), (json.dumps({"data": data, **fact}), "json")):
        seen = classify_tool_result(value, kind=kind)
        assert not seen.ok
        assert seen.truncated
        assert not classify_tool_result({"stdout": data, "message": "x" * 2_000_000, **fact}).ok


def test_members_keep_their_order_and_those_that_come_first_leave_room_for_others():
    assert list(plain({"b": 1, "success": True, "a": 2}, ("success",)).value) == ["b", "success", "a"]
    kept = plain({"message": "x" * 1_500_000, "code": 5, "data": 1}, ("message", "code")).value
    assert kept["code"] == 5
    assert kept["message"].startswith("x")


@pytest.mark.parametrize("code", [2**40, -(2**40), 1e300, "99999999999", True, 10**4000])
def test_what_no_process_can_end_with_is_no_exit_code(code):
    seen = classify_tool_result({"exit_code": code, "stdout": "x"})
    assert (seen.ok, seen.exit_code) == (True, None)
    assert msgspec.json.encode(as_result("c1", seen))


@pytest.mark.parametrize("words", ["", " ", None, b"\xff", 5, "\ud800"])
def test_a_result_made_by_a_tool_may_hold_anything_as_its_words(words):
    for error in (None, ToolError(words, words)):
        seen = classify_tool_result(ToolResult("c1", words, "error", error))
        sendable(seen)
        assert seen.code.strip()
        assert tool_result_envelope(ToolResult("c1", words, "error", error), tool="t")["error"]["code"].strip()


@pytest.mark.parametrize("content", [{"a": 1}, {}, "text", 5, [5]])
def test_structured_content_beside_content_that_is_none_is_data(content):
    seen = classify_tool_result({"structuredContent": {"x": 1}, "content": content}, kind="structured")
    assert strict(seen.content) == {"structuredContent": {"x": 1}, "content": content}
    assert not classify_tool_result({"structuredContent": 1, "content": content, "isError": True}).ok


def test_what_json_has_no_form_for_is_shown_by_its_members_or_its_text():
    assert plain([Point(1.0, "a"), {3, 1}, b"ab", Path("x")]).value == [{"x": 1.0, "label": "a"}, [1, 3], "ab", "x"]
    assert plain({1: "a", "1": "b", None: "c"}).value == {"1": "a", "1 (1)": "b", "null": "c"}


def test_a_long_text_keeps_its_beginning_its_end_and_its_exit_code():
    seen = classify_tool_result("a" * 500 + "z" * 500, kind="process", exit_code=2, limit=30)
    assert seen.content == "a" * 20 + "\n[... 970 characters left out ...]\n" + "z" * 10 + "\n[exit code 2]"
    assert seen.truncated
    assert not classify_tool_result("short", limit=30).truncated


@pytest.mark.parametrize("length", [10, 11, 40, 41, 45, 100, 1_000])
@pytest.mark.parametrize("limit", [0, 10, 40])
def test_cutting_a_text_never_makes_it_longer(length, limit):
    seen = classify_tool_result("x" * length, limit=limit)
    assert len(seen.content) <= length
    assert seen.truncated == (seen.content != "x" * length)


def test_flags_that_the_tool_sets_are_passed_on():
    seen = classify_tool_result(
        {"status": "ok", "data": {"rows": [1]}, "error": None, "partial": True, "truncated": True}
    )
    assert (seen.ok, seen.partial, seen.truncated, seen.data) == (True, True, True, {"rows": [1]})


# ---- the envelope


def test_success_failure_exception_timeout_refusal_and_silence_have_one_shape():
    outcomes = [
        {"rows": [1]},
        [1, 2],
        "text",
        5,
        None,
        {"success": False, "error": "no"},
        ValueError("x"),
        TimeoutError(),
        ToolResult("c1", "refused", "denied", ToolError("step_limit", "refused", False)),
        ToolResult("c1", "", "not_run", ToolError("not_run")),
        ToolResult("c1", "", "timeout", ToolError("timeout", "too slow")),
        ToolResult("c1", "boom", "error"),
        ToolResult("c1", '{"rows": [1]}'),
        ToolResult("c1", "boom", exit_code=2),
    ]
    made = [tool_result_envelope(outcome, tool="probe", step=4, trace_id="t-1") for outcome in outcomes]
    for envelope in made:
        shaped(envelope)
        assert envelope["tool"] == "probe"
        assert (envelope["meta"]["step"], envelope["meta"]["trace_id"]) == (4, "t-1")
    assert [envelope["status"] for envelope in made] == ["ok"] * 5 + ["error"] * 7 + ["ok", "error"]
    codes = [envelope["error"]["code"] for envelope in made if envelope["error"]]
    assert codes == [
        "success_false",
        "exception",
        "timeout",
        "step_limit",
        "not_run",
        "timeout",
        "error_flag",
        "exit_code",
    ]
    assert [made[index]["data"] for index in (0, 1, 2, 3, 12)] == [
        {"rows": [1]},
        {"items": [1, 2]},
        {"text": "text"},
        {"value": 5},
        {"rows": [1]},
    ]


def test_data_stands_beside_an_error_only_as_partial():
    beside = tool_result_envelope({"success": False, "error": "disk full", "written": ["a"]}, tool="save")
    assert (beside["data"], beside["partial"]) == ({"written": ["a"]}, True)
    alone = tool_result_envelope({"success": False, "error": "disk full"}, tool="save")
    assert alone["data"] is None
    assert "partial" not in alone
    half = tool_result_envelope(classify_tool_result("compiling", kind="process", exit_code=2), tool="make")
    assert (half["data"], half["partial"]) == ({"text": "compiling"}, True)


def test_a_result_that_finished_as_ok_stays_ok_except_for_declared_facts():
    told = ToolResult("c1", '{"success": false}')
    assert classify_tool_result(told).ok
    legacy = ToolFacts(failure=Failure(("ERR:",)))
    for result in (ToolResult("c1", "ERR: no"), ToolResult("c1", "fine"), ToolResult("c1", "x", exit_code=1)):
        assert classify_tool_result(result, facts=legacy).ok is not failed(result, legacy)


# ---- in the loop


def test_text_and_plain_data_reach_the_model_unchanged():
    for text in ("Error: is a word", '{"a": NaN}', "ünïcode\x00", '{"success": true}', "  spaced  "):
        assert result_of(CALL, text) == ToolResult("c1", text)
    for value in ({"b": [1, 2.5, None, True], "ä": "ö"}, [], {}, 0, False, 1.0):
        assert result_of(CALL, value).text == json.dumps(value, ensure_ascii=False)


def test_a_python_tool_that_returns_a_failure_fails():
    result = result_of(
        CALL, {"status": "error", "error": {"code": "gone", "message": "no page", "retryable": False}}, 0.5
    )
    assert (result.status, result.duration_s) == ("error", 0.5)
    assert result.error == ToolError("gone", "no page", False, True)
    assert failed(result_of(CALL, {"success": False}), UNDECLARED)
    assert result_of(CALL, {"returncode": 2}).exit_code == 2
    assert not failed(result_of(CALL, {"results": [], "error": None}), UNDECLARED)


def test_a_result_made_by_the_tool_is_taken_as_it_is():
    made = ToolResult("", '{"success": false}', exit_code=0)
    assert result_of(CALL, made, 0.1) == ToolResult("c1", '{"success": false}', exit_code=0, duration_s=0.1)


def test_failures_and_time_outs_keep_their_texts():
    assert failure_of(CALL, ValueError("x")).text == "Error: ValueError: x"
    assert failure_of(CALL, TimeoutError("slow")).error.code == "timeout"
    assert timeout_of(CALL, "gave up", 2.0).status == "timeout"


def test_a_declared_failure_brings_the_note_after_failures_in_a_real_run():
    def probe(page: int) -> dict:
        """Read a page."""
        return {"success": page == 1, "error": None if page == 1 else "no such page"}

    levels = {"levels": {"hint": 1}, "scope": "tool", "count": "consecutive"}
    made = policy(rule("failure_hint_injector", levels))
    turns = (call("probe", {"page": 1}), call("probe", {"page": 2}), say("done"))
    engine = Engine(made, registry=ListedRegistry())
    outcome = Agent(engine, ScriptedModel(Script("task", turns)), [probe]).run("task")
    origins = [message.origin for message in outcome.messages]
    assert origins.count("rule:failure_hint_injector") == 1
    noted = origins.index("rule:failure_hint_injector")
    assert outcome.messages[noted - 1].text == '{"success": false, "error": "no such page"}'


# ---- properties

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec=None), max_size=20),
    st.binary(max_size=10),
    st.sampled_from([Path("x"), 10**4000, ValueError("\udfff")]),
    st.sampled_from([make for make in ODD if make is not Unbound]).map(lambda make: make()),
)
KEYS = st.one_of(
    st.sampled_from(["status", "success", "ok", "error", "data", "results", "isError", "exit_code", "content", "code"]),
    st.text(st.characters(codec=None), max_size=5),
    st.integers(),
    st.none(),
)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["error", "failed", "timeout", "ok", "Exit code: 2"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5) | st.tuples(inner),
    max_leaves=12,
)
KINDS = st.sampled_from(["content", "json", "process", "python", "structured"])


@settings(deadline=None)
@given(VALUES, KINDS, st.none() | st.integers(-300, 300), st.none() | st.booleans(), st.none() | st.integers(0, 50))
def test_whatever_is_handed_over_something_can_be_sent(value, kind, exit_code, is_error, limit):
    seen = classify_tool_result(value, kind=kind, exit_code=exit_code, is_error=is_error, limit=limit)
    sendable(seen)
    if exit_code or is_error:
        assert not seen.ok
    if seen.ok and limit is None and isinstance(value, dict | list) and kind == "python":
        strict(seen.content)


@settings(deadline=None)
@given(VALUES | VALUES.map(ValueError), KINDS, st.sampled_from(["", "t", "\ud800"]))
def test_an_envelope_has_its_one_shape_whatever_it_is_made_of(value, kind, tool):
    envelope = tool_result_envelope(value, tool=tool, kind=kind)
    assert strict(json.dumps(envelope, allow_nan=False, ensure_ascii=False).encode().decode()) == envelope
    members = ["status", "tool", "data", "error", "meta", "partial", "truncated"]
    assert list(envelope) == [name for name in members if name in envelope]
    assert set(members[:5]) <= set(envelope)
    assert (envelope["status"] == "ok") == (envelope["error"] is None)
    assert isinstance(envelope["data"], dict) or (envelope["data"] is None and envelope["error"])
    if envelope["error"]:
        assert list(envelope["error"]) == ["code", "message", "retryable"]
        assert envelope["error"]["code"].strip()
        assert envelope["error"]["message"].strip()
        assert envelope["data"] is None or envelope["partial"] is True


@settings(deadline=None)
@given(st.text(st.characters(codec=None)), KINDS)
def test_text_never_becomes_a_failure_by_its_words(text, kind):
    seen = classify_tool_result(f"x{text}", kind=kind, exit_code=0)
    assert seen.ok
    if not re.search("[\ud800-\udfff]", text):
        assert seen.content == f"x{text}"


@settings(deadline=None)
@given(VALUES)
def test_an_envelope_read_again_is_the_same_envelope(value):
    once = tool_result_envelope(value, tool="probe", kind="python")
    again = tool_result_envelope(json.loads(json.dumps(once)), tool="probe", kind="python")
    assert (again["status"], again["data"], again.get("partial")) == (once["status"], once["data"], once.get("partial"))
    if once["error"]:
        assert again["error"]["code"] == once["error"]["code"]
