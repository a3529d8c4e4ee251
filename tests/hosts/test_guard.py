"""`Guard`: the shapes it reads, and what a loop written by hand may do with it."""

from __future__ import annotations

import ast
import asyncio
import functools
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
from policyengine.run import Run
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
    assert asked == [(name, "May it? (acme.asking, policy.json:0)") for name in "abc"]


def asking(approve):
    return Guard(make_engine({"acme.asking": {}}, extensions=[Asking]), task="t", approve=approve)


async def slow_yes(call, question):
    await asyncio.sleep(0)
    return call.name == "a"


def test_an_asynchronous_question_is_awaited_where_calls_run_concurrently():
    async def work():
        async with asking(slow_yes) as guard:
            guard.ready()
            turn = guard.response("", [("a", {}), ("b", {})])
            await turn.arun({"a": lambda: "x", "b": lambda: "y"})
            return [call.name for call in turn.calls], [ruling.call.name for ruling in turn.refused], turn.messages()

    ran, refused, messages = asyncio.run(work())
    assert (ran, refused, messages[0]["content"]) == (["a"], ["b"], "x")


@pytest.mark.parametrize("use", [lambda turn: turn.calls, lambda turn: turn.run({}), lambda turn: turn.messages()])
def test_an_asynchronous_question_elsewhere_is_an_error_and_nothing_runs(use):
    with asking(slow_yes) as guard:
        guard.ready()
        turn = guard.response("", [("a", {}), ("b", {})])
        for _ in range(2):
            with pytest.raises(UsageError, match="arun"):
                use(turn)
        with pytest.raises(UsageError, match="arun"):
            guard.allow("a")
    assert guard.outcome.executed == 0


def test_an_asynchronous_function_awaits_its_question():
    async def work():
        with asking(slow_yes) as guard:

            @guard.tool
            async def a():
                return "x"

            @guard.tool
            def b():
                return "y"

            assert await a() == "x"
            with pytest.raises(UsageError, match="arun"):
                b()

    asyncio.run(work())


# ---- the form of Anthropic


BLOCKS = [
    {"type": "thinking", "thinking": "hm hm"},
    {"type": "text", "text": "hm"},
    {"type": "tool_use", "id": "c1", "name": "look", "input": {"page": 1}},
]


@pytest.mark.parametrize(
    "reply",
    [
        {
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": BLOCKS,
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 7, "output_tokens": 2},
        },
        SimpleNamespace(
            type="message",
            role="assistant",
            model="m",
            content=[SimpleNamespace(**block) for block in BLOCKS],
            stop_reason="tool_use",
            usage=SimpleNamespace(input_tokens=7, output_tokens=2),
        ),
    ],
    ids=["mapping", "object"],
)
def test_calls_that_are_blocks_of_the_content_are_judged_and_answered_as_blocks(reply):
    read = read_reply(reply)
    assert (read.text, read.calls) == ("hm", (LOOK,))
    facts = {"usage": Usage(7, 2), "model": "m", "finish_reason": "tool_use", "reasoning": "hm hm"}
    assert read.facts == facts
    with limited() as guard:
        guard.ready()
        messages = guard.response(reply).run({"look": lambda page: f"page {page}"}).messages()
    block = {"type": "tool_result", "tool_use_id": "c1", "content": "page 1"}
    assert messages == [{"role": "user", "content": [block]}]


def test_a_message_with_blocks_alone_is_read_too_and_a_refusal_is_an_error_block():
    with Guard(make_engine({"tool_access": {"with": {"deny": ["look"]}}}), task="t") as guard:
        guard.ready()
        turn = guard.response({"role": "assistant", "content": BLOCKS[1:]})
        (message,) = turn.run({"look": lambda page: "x"}).messages()
    assert (turn.calls, turn.refused[0].code, turn.refused[0].rule) == ((), "tool_denied", "tool_access")
    assert turn.refused[0].at.endswith(":0")
    assert message["content"][0]["is_error"] is True


def test_calls_beside_blocks_that_repeat_them_count_once():
    reply = {"content": BLOCKS, "tool_calls": [{"id": "c1", "name": "look", "args": {"page": 1}}]}
    read = read_reply(reply)
    assert (read.calls, read.blocks) == ((LOOK,), False)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"role": "assistant", "content": [{"type": "function_call", "name": "look"}]}, "'function_call'"),
        ({"role": "assistant", "content": [{"functionCall": {"name": "look"}}]}, "may be a call"),
        ({"role": "assistant", "content": {"type": "text"}}, "list of parts"),
        ({"role": "assistant", "content": "", "toolCalls": [{"name": "look"}]}, "toolCalls"),
        ({"output": [{"type": "function_call", "name": "look"}]}, "not dict"),
        ({"candidates": []}, "not dict"),
        ({"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}, "2 choices"),
        ([{"type": "tool_use", "name": "look"}], "not list"),
    ],
)
def test_a_shape_in_which_calls_would_not_be_seen_is_an_error(reply, said):
    with limited() as guard:
        guard.ready()
        with pytest.raises(UsageError, match=said):
            guard.response(reply)


def test_the_older_form_of_one_call_is_read():
    read = read_reply({"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}})
    assert [call.name for call in read.calls] == ["look"]


def test_a_tool_that_is_not_there_is_answered_in_plain_words():
    async def concurrently(turn):
        return await turn.arun({"look": str})

    with limited() as guard:
        for work in (lambda turn: turn.run({"look": str}), lambda turn: asyncio.run(concurrently(turn))):
            guard.ready()
            turn = work(guard.response("", [("serach", {})]))
            assert (turn.results()[0].status, turn.results()[0].error.code) == ("error", "unknown_tool")
            assert "The tools are: look." in turn.messages()[0]["content"]


def named(id: str, **args):
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": json.dumps(args)}}


@pytest.mark.parametrize("ids", [("c", "c"), ("", ""), ("c", "")])
@pytest.mark.parametrize("made", [lambda call: call, lambda call: SimpleNamespace(**call)], ids=["mapping", "object"])
def test_calls_with_an_empty_or_repeated_id_get_one_of_their_own_in_the_reply_too(ids, made):
    calls = [made(named(id, page=at)) for at, id in enumerate(ids)]
    with Guard("default", task="go") as guard:
        guard.ready()
        turn = guard.response({"role": "assistant", "content": "", "tool_calls": calls})
        answers = turn.run({"look": lambda page: f"page {page}"}).messages()
    sent = [call["id"] if isinstance(call, dict) else call.id for call in calls]
    assert [answer["tool_call_id"] for answer in answers] == sent
    assert len({*sent, ""}) == 3


def test_blocks_with_a_repeated_id_get_one_of_their_own_in_the_reply_too():
    blocks = [{"type": "tool_use", "id": "t", "name": "look", "input": {"page": at}} for at in range(2)]
    with Guard("default", task="go") as guard:
        guard.ready()
        turn = guard.response({"type": "message", "role": "assistant", "content": blocks})
        (answer,) = turn.run({"look": lambda page: "found"}).messages()
    assert [one["tool_use_id"] for one in answer["content"]] == [block["id"] for block in blocks]
    assert len({block["id"] for block in blocks}) == 2


def test_a_turn_runs_its_calls_once_however_often_it_is_told_to():
    ran = []
    with Guard("default", task="go") as guard:
        guard.ready()
        turn = guard.response(
            {"role": "assistant", "content": "", "tool_calls": [named("a", page=1), named("b", page=2)]}
        )
        turn.answer("a", "by hand")
        turn.run({"look": lambda page: ran.append(page)}).run({"look": lambda page: ran.append(page)})
        asyncio.run(turn.arun({"look": lambda page: ran.append(page)}))
    assert (ran, guard.outcome.executed) == ([2], 2)


class Adder:
    def __call__(self, a, b=1):
        return a + b


class Unreadable(Adder):
    __signature__ = "nobody knows"


class Waiting:
    async def __call__(self, a):
        return a


def by_position(a, b=2, /, *, c=3):
    return a, b, c


def any_number(a, b=2, *more, **named):
    return a, b, more, named


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "name", "seen", "returned"),
    [
        (functools.partial(any_number, 1), (5,), {}, "any_number", {"b": 5}, (1, 5, (), {})),
        (len, ([1, 2],), {}, "len", {"obj": [1, 2]}, 2),
        (Adder(), (4,), {"b": 2}, "Adder", {"a": 4, "b": 2}, 6),
        (by_position, (1,), {"c": 4}, "by_position", {"a": 1, "c": 4}, (1, 2, 4)),
        (any_number, (1,), {"z": 9}, "any_number", {"a": 1, "z": 9}, (1, 2, (), {"z": 9})),
        (any_number, (1, 3, 4, 5), {}, "any_number", {"a": 1, "b": 3, "more": [4, 5]}, (1, 3, (4, 5), {})),
    ],
)
def test_any_function_may_be_a_tool_and_is_judged_by_the_names_of_its_arguments(
    function, args, kwargs, name, seen, returned
):
    calls = []
    with Guard("default", task="go") as guard:
        guard.allow = lambda *call: calls.append(call) or Guard.allow(guard, *call)
        assert guard.tool(function)(*args, **kwargs) == returned
    assert calls == [(name, seen)]


def test_an_object_that_is_called_asynchronously_is_awaited():
    with Guard("default", task="go") as guard:
        assert asyncio.run(guard.tool(Waiting())(3)) == 3


def test_a_function_that_hides_that_it_is_asynchronous_or_what_it_takes_is_a_usage_error():
    async def inner(a):
        return a

    with Guard("default", task="go") as guard:
        with pytest.raises(UsageError, match="async def"):
            guard.tool(lambda a: inner(a))(1)
        with pytest.raises(UsageError, match="cannot be read"):
            guard.tool(Unreadable())


def test_a_turn_that_the_provider_paused_is_no_answer():
    paused = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "I search."}]}
    with Guard("default", task="go") as guard:
        guard.ready()
        turn = guard.response({**paused, "stop_reason": "pause_turn"})
        assert (turn.kind, turn.messages(), guard.ready()) == ("calls", [], True)
        guard.response({**paused, "content": [{"type": "text", "text": "From 9 to 5."}], "stop_reason": "end_turn"})
    assert (guard.outcome.status, guard.outcome.iterations) == ("completed", 2)


@pytest.mark.parametrize("point", ["after_model_response", "after_parse", "before_tool_call", "after_tool_call"])
def test_an_engine_that_fails_at_every_response_ends_the_loop_soon(point, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Run, point, broken)
    requests = 0
    with Guard("default", task="go") as guard:
        while guard.ready():
            requests += 1
            reply = {"role": "assistant", "content": "", "tool_calls": [named(f"c{requests}", page=requests)]}
            guard.response(reply).run({"look": lambda page: "a"})
    assert (requests, guard.outcome.status, guard.outcome.stop.code) == (3, "failed", "adapter_failed")
