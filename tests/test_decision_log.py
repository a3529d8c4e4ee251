"""The decision log: its record, what it leaves out, what cannot stop it."""

from __future__ import annotations

import contextlib
import io
import json
import re
from copy import deepcopy
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from policyengine.actions import Deny
from policyengine.decision import Vote
from policyengine.engine import Engine
from policyengine.extension import Extension
from policyengine.hooks import hookimpl
from policyengine.messages import ToolCall
from policyengine.outcome import Outcome
from policyengine.policy.load import load_policy_text
from policyengine.policy.model import Log
from policyengine.policy.pointers import CONTENT, POINTER, included_by, parts_of, pointer_trouble
from policyengine.policy.problems import Position, Problem
from policyengine.script import call, say
from policyengine.telemetry.decision_log import (
    MAX_NAME,
    DecisionLog,
    PolicyLine,
    Record,
    _dumped,
    _quickly,
    call_line,
    encode,
    rule_line,
)
from policyengine.telemetry.masks import MARK, masked
from policyengine.testing import ListedRegistry, ManualClock, play, policy, rule

FIELDS = [
    "v", "type", "ts", "run_id", "agent", "iteration", "step", "hook", "seq", "policy", "call", "decision", "raw",
    "decided_by", "code", "message", "rules", "latency_us", "trace_id",
]  # fmt: skip
RULE_FIELDS = ["id", "use", "at", "mode", "raw", "effective", "code", "observed", "limit", "us", "error"]

SECRETS = ("s3cret-argument", "s3cret-result", "s3cret-text", "s3cret-task")


class Named(Extension):
    """Does what the name of the tool says."""

    name = "named"
    messages = {f"named.{action}": {"text": "t"} for action in ("hint", "deny", "stop")}
    templates = {"en": dict.fromkeys(messages, "{{ text }}")}

    @hookimpl
    def before_tool_call(self, run, call):
        if call.name == "fail":
            raise KeyError("s3cret-text")
        if call.name == "both":
            return [run.record("named"), run.hint("named", observed=2, limit=2, text="s3cret-text")]
        if call.name == "odd":
            return run.deny("named", observed=float("nan"), limit="seven", text="")
        if call.name in ("hint", "deny", "stop"):
            return getattr(run, call.name)("named", observed=1, limit=1, text="s3cret-text")
        return None


def logged(*names: str, mode: str = "enforce", include: tuple[str, ...] = (), file=None, **settings) -> list[dict]:
    """Return the lines that a run with calls of these tools leaves."""
    file = file or io.StringIO()
    log = DecisionLog(file, clock=ManualClock(1_790_000_000.25))
    made = policy(rule("named", mode=mode), log=Log(include, **settings), revision="r7")
    engine = Engine(made, registry=ListedRegistry(Named, trusted=True), sinks=[log], listeners=[log.heard])
    turns = [call(name, {"key": "s3cret-argument"}, "s3cret-result") for name in names]
    outcome = play(engine, [*turns, say("s3cret-text")], task="s3cret-task", run_id="run-1", agent="planner").outcome
    assert outcome.status in ("completed", "stopped")
    return [json.loads(line) for line in file.getvalue().splitlines()]


def judged(lines: list[dict]) -> list[dict]:
    """Return the lines about calls that were judged."""
    return [line for line in lines if line["hook"] == "before_tool_call"]


def test_every_line_has_exactly_the_fields_of_the_record():
    lines = logged("look", "deny")
    assert all(list(line) == FIELDS for line in lines)
    assert all(list(item) == RULE_FIELDS for line in lines for item in line["rules"])
    assert all(list(line["policy"]) == ["name", "revision", "generation", "digest"] for line in lines)
    assert [list(line["call"]) for line in judged(lines)] == [["tool", "args_digest", "args_bytes"]] * 2


def test_a_decision_is_attributed():
    (line,) = judged(logged("deny"))
    expected = {
        "v": 1, "type": "decision", "ts": "2026-09-21T14:13:20.250Z", "run_id": "run-1", "agent": "planner",
        "iteration": 1, "step": 1, "decision": "deny", "raw": "deny", "decided_by": "named", "code": "named",
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert line["policy"] == {"name": "test", "revision": "r7", "generation": 1, "digest": "0" * 64}
    (vote,) = line["rules"]
    assert (vote["at"], vote["observed"], vote["limit"], vote["error"]) == ("test.yaml:1", 1, 1, "")
    assert line["latency_us"] == vote["us"] > 0


def test_decisions_are_counted_within_the_run():
    lines = [line for line in logged("look", "deny") if line["run_id"]]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert (lines[0]["type"], lines[-1]["type"]) == ("run_start", "run_end")


@pytest.mark.parametrize("name", ["look", "hint", "deny", "stop", "fail", "both"])
def test_nothing_of_the_content_is_written_by_default(name):
    text = json.dumps(logged(name))
    assert [secret for secret in SECRETS if secret in text] == []


def test_a_failing_rule_is_named_with_the_kind_of_its_failure():
    (line,) = judged(logged("fail"))
    assert line["rules"][0]["error"] == "KeyError"


def test_what_is_included_is_written_and_nothing_else():
    (line,) = judged(logged("deny", include=("arguments",)))
    assert line["call"]["arguments"] == {"key": "s3cret-argument"}
    assert line["message"] == ""
    (line,) = judged(logged("deny", include=("messages",)))
    assert line["message"] == "s3cret-text"
    assert "arguments" not in line["call"]
    results = [line["result"] for line in logged("look", include=("results",)) if "result" in line]
    assert results == [{"status": "ok", "exit_code": None, "text": "s3cret-result"}]


def test_a_hint_is_a_message_too_and_an_exception_has_a_text():
    assert judged(logged("hint", include=("messages",)))[0]["message"] == "s3cret-text"
    assert judged(logged("fail", include=("messages",)))[0]["rules"][0]["error"] == "KeyError: 's3cret-text'"


@pytest.mark.parametrize(("mode", "effective"), [("enforce", "deny"), ("warn", "hint"), ("shadow", "allow")])
def test_what_a_rule_wanted_is_kept_apart_from_what_its_mode_left(mode, effective):
    (line,) = judged(logged("deny", mode=mode))
    (vote,) = line["rules"]
    assert (vote["mode"], vote["raw"], vote["effective"]) == (mode, "deny", effective)
    assert (line["raw"], line["decision"]) == ("deny", "deny" if mode == "enforce" else "allow")


def test_of_several_actions_the_strictest_is_named():
    (line,) = judged(logged("both"))
    assert (line["raw"], line["rules"][0]["raw"], line["rules"][0]["observed"]) == ("hint", "hint", 2)


def test_the_end_says_how_it_ended_and_who_ended_it():
    end = logged("look")[-1]
    assert (end["type"], end["code"], end["decided_by"]) == ("run_end", "completed", "")
    end = logged("stop")[-1]
    assert (end["type"], end["code"], end["decided_by"]) == ("run_end", "stopped", "named")


def test_numbers_that_json_cannot_say_are_null():
    odd = Deny("named", "named.deny", float("nan"), "seven")  # no rule gets this far; who builds a vote may
    line = rule_line(Vote("named", "named", "f:1", "enforce", (odd,), (odd,)))
    assert (line.observed, line.limit) == (None, None)


def test_a_rule_that_observes_no_number_failed():
    (line,) = judged(logged("odd"))
    assert line["code"] == "extension_error"
    assert line["rules"][0]["error"] == "`observed` of an action must be a finite number, not nan"


def test_equal_calls_have_equal_digests():
    def digest(arguments: str) -> str:
        return call_line(ToolCall("1", "look", arguments, json.loads(arguments))).args_digest

    assert digest('{"a": 1, "b": [2]}') == digest('{"b":[2],"a":1.0}')
    assert digest('{"a": 1}') != digest('{"a": 2}')


def test_a_call_that_no_text_can_hold_is_still_a_line():
    line = call_line(ToolCall("1", "\ud800" + "x" * 500, '"\ud800"', "\ud800"), with_arguments=True)
    assert len(line.tool) == MAX_NAME
    assert line.args_bytes == 5
    assert json.loads(json.dumps(logged("\ud800")))


def test_the_policy_that_comes_into_force_is_a_line_and_so_is_one_that_is_refused():
    file = io.StringIO()
    log = DecisionLog(file, clock=ManualClock())
    Engine(policy(), registry=ListedRegistry(), listeners=[log.heard])
    log.heard("policy_rejected", [Problem("S204", "s3cret-text", Position("p.yaml", 3, 5))])
    loaded, rejected = map(json.loads, file.getvalue().splitlines())
    assert list(loaded) == list(rejected) == FIELDS
    assert (loaded["type"], loaded["code"], loaded["message"]) == ("reload", "policy_loaded", "")
    assert (rejected["code"], rejected["message"]) == ("policy_rejected", "S204 p.yaml:3:5")
    assert rejected["policy"] == loaded["policy"]


class Failing(io.StringIO):
    """A file that cannot be written some of the times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def write(self, text: str) -> int:
        if self.failures > 0:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_a_log_that_cannot_be_written_is_reported_once_and_never_ends_the_run():
    reported: list[str] = []
    handler = logger.add(reported.append, format="{message}", level="ERROR")
    try:
        lines = logged("look", "deny", file=Failing(5))
    finally:
        logger.remove(handler)
    assert len([text for text in reported if "decision log cannot be written" in text]) == 1
    assert lines[-1]["type"] == "run_end"


def test_a_closed_file_does_not_end_the_run_either():
    file = io.StringIO()
    file.close()
    log = DecisionLog(file)
    engine = Engine(policy(), registry=ListedRegistry(), sinks=[log])
    assert play(engine, [say("done")]).outcome.status == "completed"


# ---- masks

ALL = ("arguments", "results", "messages")


def test_what_a_mask_points_at_is_hidden_and_nothing_else():
    whole = logged("deny", "look", include=ALL)
    lines = logged("deny", "look", include=ALL, mask=("/call/arguments/key", "/message"))
    assert [line["call"]["arguments"] for line in judged(lines)] == [{"key": MARK}] * 2
    assert [line["message"] for line in judged(lines)] == [MARK, ""]
    for line, unmasked in zip(judged(lines), judged(whole), strict=True):
        line["call"]["arguments"], line["message"] = {"key": "s3cret-argument"}, unmasked["message"]
        for item in (line, unmasked):
            del item["latency_us"], item["rules"]
        assert line == unmasked


def test_a_mask_hides_in_every_line_in_which_its_content_stands():
    masks = ("/call/arguments", "/result/text", "/message", "/rules/*/error")
    text = json.dumps(logged("look", "deny", "fail", "hint", include=ALL, mask=masks))
    assert [secret for secret in SECRETS if secret in text] == []
    assert text.count(MARK) > 6


def test_the_payload_of_the_run_is_not_changed_by_a_mask():
    file = io.StringIO()
    seen: list[ToolCall] = []
    sinks = [DecisionLog(file), lambda report: seen.extend(p for p in report.payload if isinstance(p, ToolCall))]
    made = policy(log=Log(("arguments",), ("/call/arguments/key",)))
    engine = Engine(made, registry=ListedRegistry(), sinks=sinks)
    play(engine, [call("look", {"key": ["s3cret-argument"]}), say("done")])
    assert {str(item.args) for item in seen} == {"{'key': ['s3cret-argument']}"}
    assert "s3cret" not in file.getvalue()


@pytest.mark.parametrize(
    ("value", "pointer", "expected"),
    [
        ({"a": {"token": "x", "b": 1}}, "/a/token", {"a": {"token": MARK, "b": 1}}),
        ({"a": [{"t": 1, "u": 2}, {"u": 3}]}, "/a/*/t", {"a": [{"t": MARK, "u": 2}, {"u": 3}]}),
        ({"a": {"x": {"t": 1}, "y": {"t": 2}}}, "/a/*/t", {"a": {"x": {"t": MARK}, "y": {"t": MARK}}}),
        ({"a": [1, 2, 3]}, "/a/1", {"a": [1, MARK, 3]}),
        ({"a": [1]}, "/a/7", {"a": [1]}),
        ({"a/b": 1, "a~b": 2}, "/a~1b", {"a/b": MARK, "a~b": 2}),
        ({"a/b": 1, "a~b": 2}, "/a~0b", {"a/b": 1, "a~b": MARK}),
        ({"": 1, "b": 2}, "/", {"": MARK, "b": 2}),
        ({"*": 1}, "/*", {"*": MARK}),
        ({"b": 1}, "/a/token", {"b": 1}),
        ({"a": None, "b": ""}, "/*", {"a": None, "b": ""}),
    ],
)
def test_a_pointer_means_what_it_says(value, pointer, expected):
    assert masked(value, [pointer]) == expected


@pytest.mark.parametrize("value", ["token=s3cret", 17, ["token", "s3"], [{"token": "s3"}], '{"token": "s3'])
def test_what_has_another_form_than_the_pointer_expects_is_hidden_whole(value):
    line = {"call": {"tool": "look", "arguments": value}}
    assert masked(line, ["/call/arguments/token"]) == {"call": {"tool": "look", "arguments": MARK}}


def test_arguments_that_are_no_json_are_hidden_whole():
    file = io.StringIO()
    engine = Engine(policy(log=Log(("arguments",), ("/call/arguments/key",))), sinks=[DecisionLog(file)],
                    registry=ListedRegistry())  # fmt: skip
    run = engine.start_run()
    run.start("t")
    run.begin_iteration()
    run.before_tool_call(ToolCall("1", "look", '{"key": "s3cret'))
    (line,) = judged([json.loads(text) for text in file.getvalue().splitlines()])
    assert line["call"]["arguments"] == MARK


def record(**facts) -> Record:
    """Return a line with all content."""
    (line,) = judged(logged("fail", include=ALL))
    made = msgspec.convert({**line, "result": {"text": "s3cret"}, "message": "s3cret"}, Record)
    return msgspec.structs.replace(made, **facts)


@pytest.mark.parametrize("content", [float("nan"), {"a": {1, float("inf")}}, {("a",): 1}])
def test_content_that_cannot_be_masked_is_dropped_with_all_other_content_and_the_record_is_not(content):
    whole = record(result=content)
    line = json.loads(encode(whole, ("/message",)))
    assert [secret for secret in (*SECRETS, "s3cret") if secret in json.dumps(line)] == []
    assert "result" not in line
    assert "arguments" not in line["call"]
    assert (line["message"], line["rules"][0]["error"], line["seq"]) == ("", "KeyError", whole.seq)


def test_keys_that_are_no_texts_are_masked_as_they_are_written():
    line = json.loads(encode(record(result={7: "s3cret", 8: "y"}), ("/result/7", "/message", "/call/arguments")))
    assert line["result"] == {"7": MARK, "8": "y"}


@pytest.mark.parametrize(("place", "include"), CONTENT)
def test_every_place_that_can_be_masked_is_one_of_a_line_with_that_content(place, include):
    lines = logged("deny", "fail", "look", include=(include,))
    for line in lines:
        if "result" in line:
            line["result"]["exit_code"] = 1
    assert any(masked(line, [place]) != line for line in lines)
    assert pointer_trouble(place) == ""


def pointer_of(parts):
    """Return the pointer with these parts."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


KEYS = st.text(max_size=6) | st.sampled_from(["*", "0", "a/b", "~", "~1", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(KEYS.filter(lambda key: "*" not in key or key == "*"), max_size=5))
def test_any_parts_make_a_pointer_that_is_read_again(parts):
    pointer = "/call/arguments" + pointer_of(tuple(parts))
    assert parts_of(pointer) == ("call", "arguments", *parts)
    assert (pointer_trouble(pointer), included_by(pointer)) == ("", "arguments")


@given(st.text(max_size=30) | st.text("/~*01acelmrstu", max_size=20).map("/call/arguments".__add__))
def test_any_text_is_a_mask_or_refused_and_the_schema_for_editors_agrees(text):
    assert (pointer_trouble(text) == "") is (re.search(POINTER.removesuffix("$") + r"\Z", text, re.DOTALL) is not None)


@given(VALUES, st.data())
def test_a_pointer_to_anything_hides_it_and_leaves_the_rest(value, data):
    parts, inner = [], value
    while isinstance(inner, dict | list) and inner and (not parts or data.draw(st.booleans())):
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        parts.append(key)
        inner = inner[key]
    before = deepcopy(value)
    hidden = masked(value, [pointer_of(tuple(map(str, parts)))])
    assert value == before
    if "*" in parts:
        return
    if not parts:
        assert hidden == (value if value in (None, "") else MARK)
        return
    at_old, at_new = value, hidden
    for key in parts[:-1]:
        at_old, at_new = at_old[key], at_new[key]
    assert at_new[parts[-1]] == (inner if inner is None or inner == "" else MARK)
    at_new[parts[-1]] = inner
    assert hidden == value


@given(VALUES, st.lists(KEYS, max_size=4))
def test_no_mask_fails_at_plain_data(value, parts):
    hidden = masked({"call": {"arguments": value}}, ["/call/arguments" + pointer_of(tuple(parts))])
    assert list(hidden) == ["call"]


# ---- samples


def test_only_decisions_at_which_no_rule_said_anything_are_left_out():
    names = ("look", "hint", "deny", "fail", "both", "look", "stop")
    whole, some = logged(*names), logged(*names, sample_allow=0.0)
    kept = [line for line in whole if line["type"] != "decision" or any(
        vote["raw"] != "allow" or vote["code"] or vote["error"] for vote in line["rules"])]  # fmt: skip
    assert [line["seq"] for line in some] == [line["seq"] for line in kept]
    assert [line["call"]["tool"] for line in judged(some)] == ["hint", "deny", "fail", "both", "stop"]
    assert (some[0]["type"], some[1]["type"], some[-1]["type"]) == ("reload", "run_start", "run_end")
    assert some[-1]["left_out"] == len(whole) - len(some) > 0


@pytest.mark.parametrize("mode", ["shadow", "warn"])
def test_what_a_rule_in_shadow_wanted_is_never_left_out(mode):
    lines = judged(logged("look", "deny", "stop", mode=mode, sample_allow=0.0))
    assert [(line["raw"], line["decision"]) for line in lines] == [("deny", "allow"), ("stop", "allow")]


def test_a_bare_record_is_never_left_out():
    class Noting(Named):
        @hookimpl
        def before_tool_call(self, run, call):
            return run.record("named")

    file = io.StringIO()
    made = policy(rule("named"), log=Log(sample_allow=0.0))
    engine = Engine(made, registry=ListedRegistry(Noting, trusted=True), sinks=[DecisionLog(file)])
    play(engine, [call("look", {}), say("done")])
    assert len(judged([json.loads(line) for line in file.getvalue().splitlines()])) == 1


def test_the_same_run_leaves_the_same_lines_out_and_a_larger_share_keeps_more():
    names = ["look"] * 60
    sizes = []
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        lines = logged(*names, sample_allow=share)
        assert [line["seq"] for line in lines] == [line["seq"] for line in logged(*names, sample_allow=share)]
        sizes.append({line["seq"] for line in lines})
    assert all(less <= more for less, more in pairwise(sizes))
    whole = len(sizes[-1])
    assert 0.4 * whole < len(sizes[2]) < 0.6 * whole


def test_another_run_leaves_other_lines_out():
    settings = Log(sample_allow=0.5)
    chosen = {run: tuple(settings.keeps(run, seq) for seq in range(200)) for run in ("run-1", "run-2")}
    assert chosen["run-1"] != chosen["run-2"]


def test_nothing_is_said_of_what_was_left_out_where_nothing_was():
    assert all("left_out" not in line for line in logged("look", "deny"))


def test_what_each_run_left_out_is_counted_for_itself():
    file = io.StringIO()
    engine = Engine(policy(log=Log(sample_allow=0.0)), registry=ListedRegistry(), sinks=[DecisionLog(file)])
    runs = [engine.start_run(run_id=name) for name in ("a", "b")]
    for run in runs:
        run.start("t")
    for _ in range(3):
        runs[1].begin_iteration()
        runs[1].end_iteration()
    for run in runs:
        run.end(Outcome("completed"))
    a, b = [json.loads(line) for line in file.getvalue().splitlines() if '"run_end"' in line]
    for line in (a, b):
        written = sum(f'"run_id":"{line["run_id"]}"' in text for text in file.getvalue().splitlines())
        assert line["left_out"] + written == line["seq"]
    assert b["left_out"] > a["left_out"]


# ---- in a policy


def loaded(text: str):
    head = "apiVersion: policyengine/v1\nkind: Policy\nname: p\nextensions: {}\n"
    return load_policy_text(head + text, registry=None)


def test_masks_and_samples_are_read_from_a_policy():
    made = loaded("log: {include: [arguments], mask: [/call/arguments/token], sample: {allow: 0.05}}\n")
    assert made.log == Log(("arguments",), ("/call/arguments/token",), 0.05)
    assert loaded("").log == Log((), (), 1.0)


def test_a_mask_of_what_is_not_included_is_warned_of():
    made = loaded("log: {include: [results], mask: [/result/text, /call/arguments/token]}\n")
    (problem,) = [problem for problem in made.warnings if problem.code != "R507"]
    assert (problem.code, problem.path, problem.position.column) == ("R516", "log.mask[1]", 48)
    assert problem.message == "`log.include` has no arguments"


@given(st.text(), st.text(), st.floats() | st.integers() | st.none(), st.booleans())
def test_the_quick_way_to_write_a_line_and_the_careful_one_say_the_same(name, message, observed, with_arguments):
    vote = Vote(name, "use", "at", "enforce", (Deny("code", "kind", observed, 1.0),), error=message)
    subject = ToolCall("1", name, "{}", {"x": observed})
    line = Record(
        v=1, type="decision", ts="", run_id=name, agent="", iteration=1, step=1, hook="before_tool_call", seq=1,
        policy=PolicyLine("p", name, 1, ""), call=call_line(subject, with_arguments), decision="deny", raw="deny",
        decided_by=name, code="", message=message, rules=(rule_line(vote, True),), latency_us=0.1, trace_id=None,
    )  # fmt: skip
    quick, careful = _quickly(line), ""
    with contextlib.suppress(ValueError):
        careful = _dumped(line)
    assert (not quick) if with_arguments or not careful else json.loads(quick or careful) == json.loads(careful)
    assert encode(line).isascii()
