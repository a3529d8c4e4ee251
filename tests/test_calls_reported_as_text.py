"""A host may report the arguments of a call as text alone: rules, masks and replays see what the text says."""

from __future__ import annotations

import io
import json

import pytest

from policyengine import Deny, Engine, Extension, ToolCall, ToolResult, hookimpl
from policyengine.parsing.verdict import Verdict
from policyengine.policy.model import Log
from policyengine.replay import replay_journal
from policyengine.telemetry.decision_log import DecisionLog
from policyengine.telemetry.journal import JournalWriter
from policyengine.testing import ListedRegistry, policy, rule

SEEN: list[object] = []


class Sees(Extension):
    """Refuses calls with a path outside, and remembers the arguments that it is shown."""

    name = "sees"

    @hookimpl
    def after_parse(self, run, verdict, calls):
        """Look at what a response asks for."""
        SEEN.append([call.args for call in verdict.calls])
        assert calls == verdict.calls

    @hookimpl
    def before_tool_call(self, run, call):
        """Look at a call."""
        SEEN.append(call.args)
        if isinstance(call.args, dict) and str(call.args.get("path")).startswith(".."):
            return Deny("outside")
        return None

    @hookimpl
    def after_tool_call(self, run, call, result):
        """Look at a call that ran."""
        SEEN.append(call.args)


@pytest.fixture
def started():
    """Return a maker of a run that has begun, with these sinks and settings."""

    def make(sinks=(), journal=None, **settings):
        made = policy(rule("sees"), **settings)
        registry = ListedRegistry(Sees, trusted=True)
        run = Engine(made, registry=registry, sinks=list(sinks), journal=journal).start_run(run_id="r")
        run.start("do it")
        SEEN.clear()  # the self-test has asked the rule, too
        return run

    return make


def test_a_guard_sees_the_arguments_of_a_call_that_is_reported_as_text(started):
    run = started()
    call = ToolCall("1", "write_file", '{"path":"../x"}')
    run.after_parse(Verdict("ok", (call, ToolCall("2", "look"))))
    assert run.before_tool_call(call).action == "deny"
    run.after_tool_call(call, ToolResult("1", "no", "denied"))
    assert SEEN == [[{"path": "../x"}, None], {"path": "../x"}, {"path": "../x"}]


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ('{"path": "../x"', None),
        ('{"path": 1, "path": 2}', None),
        ('{"path": NaN}', None),
        ('{"path": "\\ud800"}', None),
        ('{"path": 1} and', None),
        ("[" * 300 + "]" * 300, None),
        ("", None),
        ("  ", None),
        ("null", None),
        ("[1]", [1]),
        (' {"a": {"b": 1}} ', {"a": {"b": 1}}),
    ],
)
def test_only_strict_json_is_read(started, text, args):
    started().before_tool_call(ToolCall("1", "look", text))
    assert [args] == SEEN


def test_arguments_that_came_parsed_are_what_they_are(started):
    args = {"path": "x"}
    started().before_tool_call(ToolCall("1", "look", '{"path": "y"}', args))
    assert [args] == SEEN


def test_a_mask_reaches_into_arguments_that_are_reported_as_text(started):
    file = io.StringIO()
    run = started([DecisionLog(file)], log=Log(("arguments",), ("/call/arguments/token",)))
    run.before_tool_call(ToolCall("1", "look", '{"token": "s3cret", "page": 1}'))
    (line,) = [line for text in file.getvalue().splitlines() if (line := json.loads(text))["call"]]
    assert line["call"]["arguments"] == {"token": "[masked]", "page": 1}


def test_a_journal_holds_what_was_reported_and_replays_to_the_same(started, tmp_path):
    file = io.StringIO()
    run = started(journal=JournalWriter(file))
    run.begin_iteration()
    run.before_tool_call(ToolCall("1", "write_file", '{"path":"../x"}'))
    (line,) = [
        line for text in file.getvalue().splitlines() if (line := json.loads(text))["type"] == "before_tool_call"
    ]
    assert "args" not in line["payload"]["call"]
    path = tmp_path / "journal.jsonl"
    path.write_text(file.getvalue())
    engine = Engine(policy(rule("sees")), registry=ListedRegistry(Sees, trusted=True))
    pairs = list(replay_journal(path, engine))
    assert all(recorded == now for recorded, now in pairs)
    assert "deny" in {recorded.action for recorded, _ in pairs}
