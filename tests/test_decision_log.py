"""The decision log: its record, what it leaves out, what cannot stop it."""

from __future__ import annotations

import io
import json

import pytest
from loguru import logger

from policyengine.actions import Deny
from policyengine.decision import Vote
from policyengine.engine import Engine
from policyengine.extension import Extension
from policyengine.hooks import hookimpl
from policyengine.messages import ToolCall
from policyengine.policy.model import Log
from policyengine.policy.problems import Position, Problem
from policyengine.script import call, say
from policyengine.telemetry.decision_log import MAX_NAME, DecisionLog, call_line, rule_line
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


def logged(*names: str, mode: str = "enforce", include: tuple[str, ...] = (), file=None) -> list[dict]:
    """Return the lines that a run with calls of these tools leaves."""
    file = file or io.StringIO()
    log = DecisionLog(file, clock=ManualClock(1_790_000_000.25))
    made = policy(rule("named", mode=mode), log=Log(include), revision="r7")
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
