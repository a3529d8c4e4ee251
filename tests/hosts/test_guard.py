"""`Guard`: the shapes it reads, and what a loop written by hand may do with it."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from policyengine import ConfigError, Engine, Guard, GuardStopped, ModelResponse, ToolCall, Usage, UsageError
from policyengine.extension import Extension
from policyengine.hooks import hookimpl
from policyengine.hosts.shapes import read_reply
from policyengine.testing import make_engine
from tests.hosts.own_rules import Asking

EXAMPLE = Path(__file__).parents[2] / "examples" / "hosts" / "own_loop.py"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"page": 1}'}}
LOOK = ToolCall("c1", "look", '{"page": 1}', {"page": 1})


def limited(**options):
    return Guard(make_engine({"step_limit": {"with": {"max_steps": 5}}}), task="t", **options)


# ---- shapes


@pytest.mark.parametrize(
    "reply",
    [
        {"role": "assistant", "content": "hm", "tool_calls": [CALL]},
        SimpleNamespace(
            role="assistant",
            content="hm",
            tool_calls=[SimpleNamespace(id="c1", function=SimpleNamespace(name="look", arguments='{"page": 1}'))],
        ),
        {
            "content": [{"type": "text", "text": "hm"}],
            "tool_calls": [{"id": "c1", "name": "look", "input": {"page": 1}}],
        },
        {"content": "hm", "tool_calls": [("c1", "look", {"page": 1})]},
        {"choices": [{"finish_reason": "tool_calls", "message": {"content": "hm", "tool_calls": [CALL]}}]},
        ModelResponse("hm", (LOOK,)),
    ],
    ids=["chat message", "object", "parts", "plain values", "completion", "our own"],
)
def test_replies_are_read_in_every_shape_that_people_hold_them_in(reply):
    read = read_reply(reply)
    assert (read.text, read.calls) == ("hm", (LOOK,))


def test_a_completion_tells_its_tokens_and_why_it_ended():
    message = {"role": "assistant", "content": "x", "reasoning_content": "so"}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    read = read_reply({"choices": [{"finish_reason": "stop", "message": message}], "usage": usage, "model": "m"})
    assert read.facts == {"usage": Usage(3, 4, 7), "finish_reason": "stop", "model": "m", "reasoning": "so"}


def test_what_is_no_reply_is_said_to_be_none():
    with pytest.raises(UsageError, match="not int"):
        read_reply(7)
    with pytest.raises(UsageError, match="a call is"), limited() as guard:
        guard.response("", [7])


def test_arguments_that_are_no_json_stay_a_text():
    assert (
        read_reply({"content": "", "tool_calls": [{"id": "c", "name": "look", "arguments": "{pa"}]}).calls[0].args
        is None
    )


# ---- the loop


def test_the_guard_of_the_example_takes_ten_lines_and_ends_the_run():
    (function,) = (node for node in ast.parse(EXAMPLE.read_text()).body if getattr(node, "name", "") == "work")
    assert function.end_lineno - function.lineno == 10
    example = runpy.run_path(str(EXAMPLE))
    outcome, messages = example["work"]("q", example["StubbornModel"](), {"lookup": lambda query: "no entry"})
    assert (outcome.status, outcome.stop.code) == ("stopped", "repeat")
    assert 0 < outcome.executed < outcome.calls < 20
    calls = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == calls


def test_the_example_runs_without_key_and_network():
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=True)
    assert re.search(r"\nstopped: .*\d calls judged, \d run\n$", done.stdout, re.DOTALL)
    assert done.stderr == ""


def test_a_final_text_completes_the_run():
    with limited() as guard:
        assert guard.ready()
        turn = guard.response("done")
        assert (turn.kind, turn.text, turn.messages()) == ("final", "done", [])
        assert not guard.ready()
        assert guard.outcome is None
    assert (guard.outcome.status, guard.outcome.output) == ("completed", "done")


def test_a_tool_that_raises_is_a_result_and_an_empty_one_is_not_empty_to_the_model():
    def look(page):
        if page == 1:
            raise ValueError("no such page")
        return ""

    with limited() as guard:
        guard.ready()
        turn = guard.response("", [("look", {"page": 1}), ("look", {"page": 2})]).run({"look": look})
        assert "no such page" in turn.messages()[0]["content"]
        assert turn.messages()[1]["content"].strip()
        assert [result.status for result in turn.results()] == ["error", "ok"]


def test_a_batch_runs_concurrently_under_asyncio():
    order = []

    async def look(page):
        for _ in range(3 - page):
            await asyncio.sleep(0)
        order.append(page)
        return str(page)

    async def work():
        async with limited() as guard:
            guard.ready()
            turn = await guard.response("", [("look", {"page": page}) for page in (1, 2)]).arun({"look": look})
            return turn.results()

    assert [result.text for result in asyncio.run(work())] == ["1", "2"]
    assert order == [2, 1]


def test_answers_that_are_missing_or_of_another_response_are_mistakes():
    with limited() as guard:
        guard.ready()
        turn = guard.response("", [LOOK])
        with pytest.raises(UsageError, match="no answer yet: c1"):
            turn.messages()
        with pytest.raises(UsageError, match="none of this response"):
            turn.answer("c9", "x")
        assert turn.answer("c1", {"rows": 2}) == json.dumps({"rows": 2})


def test_a_guard_that_raises_says_why_it_ended():
    guard = Guard(make_engine({"step_limit": {"with": {"max_steps": 1}}}), task="t", raising=True)

    def work():
        with guard:
            while guard.ready():
                guard.response("", [LOOK]).run({"look": lambda page: "x"})

    with pytest.raises(GuardStopped, match="max_steps") as caught:
        work()
    assert caught.value.outcome is guard.outcome
    assert guard.outcome.stop.limit == 1


def test_an_exception_in_the_block_ends_the_run_as_failed_and_an_interrupt_as_cancelled():
    for error, status in ((ValueError("x"), "failed"), (KeyboardInterrupt(), "cancelled")):
        guard = limited()
        with pytest.raises(type(error)), guard:
            raise error
        assert guard.outcome.status == status
        assert type(error).__name__ in guard.outcome.error


def test_a_message_of_the_user_during_the_run_begins_a_new_step():
    with limited() as guard:
        guard.ready()
        guard.response("done")
        assert guard.user("and now?") == {"role": "user", "content": "and now?"}
        assert guard.run.run.state.step == 2
        assert guard.ready()


def test_several_guards_share_an_engine_and_each_has_its_own_run():
    engine = Engine("unattended")
    for _ in range(2):
        with Guard(engine, task="t") as guard:
            assert [guard.allow("look", {"n": n}).action for n in range(3)] == ["run"] * 3
            assert guard.run.open_calls
        assert guard.outcome.calls == 3


def test_a_policy_with_a_rule_that_can_never_fire_in_a_loop_of_ones_own_is_refused(tmp_path):
    (tmp_path / "p.yaml").write_text(
        "apiVersion: policyengine/v1\nkind: Policy\nname: p\nextensions: {provider_recovery: {}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        Guard(tmp_path / "p.yaml")
    (problem,) = caught.value.problems
    assert (problem.code, problem.position.line) == ("R518", 4)
    assert [problem.code for problem in Guard("default").warnings] == ["R518"]


# ---- single tools


class Rules(Extension):
    name = "acme.rules"
    messages = {"acme.no": {}}
    templates = {"en": {"acme.no": "Not this one."}}
    rewrites_calls = True

    @hookimpl
    def before_tool_call(self, run, call, batch):
        if call.args.get("page") == 13:
            return run.deny("no", "acme.no")
        return run.rewrite("other", args={**call.args, "page": 1}) if call.args.get("page") == 2 else None

    @hookimpl
    def after_tool_call(self, run, call, result):
        return run.rewrite("mask", text="masked") if "secret" in result.text else None


def test_a_tool_by_itself_is_judged_rewritten_refused_and_its_result_masked():
    with Guard(make_engine({"acme.rules": {}}, extensions=[Rules]), task="t") as guard:

        @guard.tool
        def look(page, *, deep=False, **more):
            """Look a page up."""
            if page == 3:
                raise LookupError("gone")
            return "a secret" if page == 4 else {"page": page, **more}

        assert look.__doc__ == "Look a page up."
        assert look(2, color="red") == {"page": 1, "color": "red"}
        assert look(13) == "Not this one."
        assert look(page=4) == "masked"
        with pytest.raises(LookupError):
            look(3)
    assert (guard.outcome.calls, guard.outcome.executed) == (4, 3)


def test_an_asynchronous_tool_by_itself_is_awaited():
    async def work():
        async with Guard(make_engine({"acme.rules": {}}, extensions=[Rules]), task="t") as guard:

            @guard.tool
            async def look(page):
                if page == 3:
                    raise LookupError("gone")
                return f"page {page}"

            assert await look(1) == "page 1"
            assert await look(13) == "Not this one."
            with pytest.raises(LookupError):
                await look(3)
        return guard.outcome.executed

    assert asyncio.run(work()) == 2


# ---- humans


def test_only_true_from_a_human_lets_a_call_run():
    asked = []

    def approve(call, question):
        asked.append((call.name, question))
        return {"a": True, "b": "yes"}.get(call.name)

    with Guard(make_engine({"acme.asking": {}}, extensions=[Asking]), task="t", approve=approve) as guard:
        guard.ready()
        turn = guard.response("", [(name, {}) for name in "abc"])
        assert [call.name for call in turn.calls] == ["a"]
        assert [ruling.code for ruling in turn.refused] == ["refused_by_human"] * 2
        turn.run({"a": lambda: "x"})
        assert len(turn.messages()) == 3
    assert asked == [(name, "May it?") for name in "abc"]
