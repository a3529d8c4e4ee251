"""A guess runs only where nothing can go wrong; the loop asks again otherwise, and keeps a valid history."""

import json

import pytest

from policyengine import Agent, Engine, ToolFacts, Verdict, batch, say
from policyengine.parsing import settle_guess
from policyengine.policy.model import ModelFacts, Parsing
from policyengine.providers.scripted import ScriptedModel
from policyengine.script import Script, ScriptedCall
from policyengine.testing import ListedRegistry, policy

READ = '<tool_call>{"name": "look", "arguments": {"q": "x"}}</tool_call>'
WRITE = READ.replace("look", "send")
REPAIR = Parsing("repair", text_fallback=True)


def effect_of(name):
    return {"look": "read", "send": "write"}.get(name, "exec")


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        (f"I look.\n{READ}", "ok", ""),
        (f"I send.\n{WRITE}", "prose", "guess"),
        (f"I send.\n```\n{WRITE}\n```", "fenced", "guess"),
        (f"Both.\n{READ}\n{WRITE}", "prose", "guess"),
        ('Now.\n<tool_call>{"name": "nope", "arguments": {}}</tool_call>', "prose", "guess"),
        (WRITE, "ok", ""),
        (f"```\n{WRITE}\n```", "ok", ""),
    ],
)
def test_a_guess_is_acted_on_only_if_every_call_reads(parse, text, kind, reason):
    settled = settle_guess(parse.answer(text, tools={"look", "send"}), effect_of)
    assert (settled.kind, settled.reason) == (kind, reason)
    assert settled.unknown == ()


def test_a_guessed_final_answer_is_an_answer():
    verdict = Verdict("ok", (), "done", guess=True)
    assert settle_guess(verdict, effect_of) is verdict


def look(q: str) -> str:
    return "seen"


def send(q: str) -> str:
    return "sent"


def run(*turns, parsing=REPAIR, protocol="native"):
    made = policy(parsing=parsing, tools=(("look", ToolFacts("read")), ("send", ToolFacts("write"))), protocol=protocol)
    answer = say(json.dumps({"tool_name": "response", "tool_args": {"text": "done"}}) if protocol == "text" else "done")
    model = ScriptedModel(Script("t", (*turns, answer), protocol=protocol))
    return Agent(Engine(made, registry=ListedRegistry()), model, [look, send]).run("task")


def test_the_loop_runs_a_recovered_read_and_stores_it_as_a_structured_call():
    outcome = run(say(f"I look.\n{READ}"))
    _, said, answered, *_ = outcome.messages
    assert (outcome.status, outcome.executed, said.text) == ("completed", 1, "I look.")
    assert [(call.name, json.loads(call.arguments)) for call in said.tool_calls] == [("look", {"q": "x"})]
    assert (answered.role, answered.tool_call_id) == ("tool", said.tool_calls[0].id)


def test_the_loop_asks_again_for_a_guessed_write():
    outcome = run(say(f"I send.\n{WRITE}"))
    assert (outcome.status, outcome.executed) == ("completed", 0)
    assert [message.origin for message in outcome.messages][2] == "warning:misformat"
    assert "guess" in outcome.messages[2].text


def test_ids_of_recovered_calls_do_not_repeat_within_a_run():
    outcome = run(say(READ), say(WRITE))
    ids = [call.id for message in outcome.messages for call in message.tool_calls]
    assert (outcome.executed, len(ids), len(set(ids))) == (2, 2, 2)


def test_a_mended_structured_call_is_stored_as_it_ran():
    outcome = run(batch(ScriptedCall("looklook", arguments='{"q": "x"}{"q": "x"}')))
    (call,) = outcome.messages[1].tool_calls
    assert (call.name, json.loads(call.arguments), outcome.executed) == ("look", {"q": "x"}, 1)


def test_leaked_markup_is_unusable_where_the_policy_recovers_nothing():
    outcome = run(say(READ), parsing=Parsing())
    assert (outcome.executed, outcome.messages[2].origin) == (0, "warning:misformat")


def test_a_fenced_request_runs_where_the_policy_allows_fences():
    text = '```json\n{"tool_name": "look", "tool_args": {"q": "x"}}\n```'
    assert run(say(text), parsing=Parsing("fenced"), protocol="text").executed == 1
    assert run(say(text), parsing=Parsing(), protocol="text").executed == 0


def test_a_model_may_have_its_own_mode():
    made = policy(
        models=(("scr*", ModelFacts({"mode": "repair", "text_fallback": True})),), tools=(("look", ToolFacts("read")),)
    )
    model = ScriptedModel(Script("t", (say(READ), say("done"))))
    assert Agent(Engine(made, registry=ListedRegistry()), model, [look, send]).run("task").executed == 1
