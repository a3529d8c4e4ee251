"""Runs in text protocols: the calls that a harness read, its answers, its own words, and what it could not read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.identity import call_identity
from policyengine.messages import ModelResponse
from policyengine.parsing import parse_response
from policyengine.policy.model import Parsing
from policyengine.recordings import bfcl, medagentbench, mint
from policyengine.recordings.model import Document, ModelSaid, Recording, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import READERS, read_recordings
from policyengine.replay import replay

LEFT = "You have 3 steps left and 2 chances to propose solution left.\n"
LAST = f"{LEFT}You should take the last step to propose a solution.\n"
NOT_READ = f"Observation:\nI don't understand your input. \n\n{LEFT}"
TAGS = "Use <execute> for code and <solution> for the answer."
FENCES = "Use ```python for code and <solution> for the answer."
PROMPT = "Write GET url, POST url with JSON, or FINISH([answers]). How tall is the lighthouse?"
FAILED = "-" * 75 + "\nNameError                    Traceback (most recent call last)\n..."


def history(first, *texts):
    roles = ["user", *["assistant", "user"] * len(texts)]
    return [{"role": role, "content": text} for role, text in zip(roles, (first, *texts), strict=False)]


def mint_run(*texts, prompt=TAGS, **state):
    known = {"history": history(prompt, *texts), "agent_action_count": {}, "success": False, "error": None}
    return {"state": known | state, "task": {"task_name": "sums", "task_id": 7, "prompt": "", "metadata": {}}}


def med_run(*texts, status="completed", index=4, **more):
    talk = [{**item, "role": item["role"].replace("assistant", "agent")} for item in history(PROMPT, *texts)]
    return {"index": index, "error": None, "output": {"index": index, "status": status, "history": talk}, **more}


def read_one(folder, value, name="runs.jsonl"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    (run,) = read_recordings([path])
    assert isinstance(run, Recording), run
    return run


def replies(run):
    return [event.response for event in run.events if isinstance(event, ModelSaid)]


def results(run):
    return [event.result for event in run.events if isinstance(event, ToolAnswered)]


def calls(run):
    return [[(call.name, call.args) for call in reply.tool_calls] for reply in replies(run)]


# ---- MINT


def test_a_mint_call_and_its_result_are_paired_and_what_the_harness_writes_around_them_is_taken_off(tmp_path):
    reply = "Assistant:\nI add.\n<execute> print(1 + 1) </execute>\n"
    run = read_one(tmp_path, mint_run(reply, f"Observation:\n2\n{LEFT}", "Assistant:\n<solution>2</solution>\n"))
    assert (run.format, run.id, run.protocol, run.forms) == ("mint", "sums/7", "text", mint.FORMS)
    assert calls(run) == [[("execute", {"code": "print(1 + 1)"})], []]
    assert replies(run)[0].text == "I add.\n<execute> print(1 + 1) </execute>"
    assert [(result.text, result.status) for result in results(run)] == [("2", "ok")]
    assert (run.label, run.ended) == (False, "final_answer")


def test_equal_mint_results_are_equal_however_many_steps_are_left(tmp_path):
    reply = "<execute>x</execute>"
    other = LAST.replace("3", "1")
    run = read_one(tmp_path, mint_run(reply, f"Observation:\n2\n{LEFT}", reply, f"Observation:\n2\n{other}"))
    assert [result.text for result in results(run)] == ["2", "2"]
    assert run.ended == "tool_result"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (FAILED, "error"),
        ("Cell In[2], line 1\n    (\n     ^\nSyntaxError: incomplete input\n", "error"),
        (f"7\n{FAILED}", "ok"),
        ("Error: this is what the code printed", "ok"),
    ],
)
def test_a_mint_result_failed_if_it_is_the_shells_report_of_an_exception(tmp_path, text, status):
    run = read_one(tmp_path, mint_run("<execute>x</execute>", f"Observation:\n{text}\n{LEFT}"))
    assert [result.status for result in results(run)] == [status]


def test_a_mint_reply_with_a_solution_is_an_answer_and_several_codes_are_one_call(tmp_path):
    both = "<execute>a</execute> <solution>1</solution>"
    several = "<execute>a</execute> then <execute>b</execute>"
    said = "Observation:\nYour answer is wrong.\n" + LEFT
    run = read_one(tmp_path, mint_run(both, said, several, f"Observation:\nok\n{LEFT}"))
    assert calls(run) == [[], [("execute", {"code": "a\nb"})]]
    assert [event.injected for event in run.events if isinstance(event, UserSaid)] == [False, True]


def test_the_mint_prompt_decides_whether_a_fence_is_a_call(tmp_path):
    reply = "```python\nprint(3)\n```"
    fenced = read_one(tmp_path, mint_run(reply, f"Observation:\n3\n{LEFT}", prompt=FENCES))
    assert calls(fenced) == [[("execute", {"code": "print(3)"})]]
    assert calls(read_one(tmp_path, mint_run(reply, NOT_READ))) == [[]]


def test_the_model_of_a_mint_run_is_in_its_path(tmp_path):
    run = read_one(tmp_path, mint_run("<solution>2</solution>"), "tower-7b/F=None/max5/sums/results.jsonl")
    assert run.group == "tower-7b"


def test_a_mint_run_that_ends_in_a_call_or_in_nothing_has_no_final_answer(tmp_path):
    assert read_one(tmp_path, mint_run("<execute>x</execute>")).ended == "call"
    assert read_one(tmp_path, mint_run("I give up.")).ended == "empty"
    assert read_one(tmp_path, mint_run("<solution> </solution>")).ended == "empty"
    assert read_one(tmp_path, mint_run("I", NOT_READ, error="cut off")).error == "cut off"


# ---- MedAgentBench


def test_medagentbench_calls_are_read_with_their_results_and_the_answer_is_none(tmp_path):
    payload = {"tower": 3, "lamp": [1.5, None]}
    post = f"POST http://sea/lamp\n{json.dumps(payload, indent=1)}"
    got = "Here is the response from the GET request:\n{}"
    run = read_one(
        tmp_path, med_run("GET http://sea/tower", got, post, "POST request accepted", "FINISH([31])"), "m2_runs.jsonl"
    )
    assert (run.format, run.id, run.group, run.task, run.label) == ("medagentbench", "m2/4", "m2", "4", None)
    assert calls(run) == [
        [("GET", {"url": "http://sea/tower"})],
        [("POST", {"url": "http://sea/lamp", "payload": payload})],
        [],
    ]
    assert [result.text for result in results(run)] == [got, "POST request accepted"]
    assert (run.ended, run.error) == ("final_answer", "")


def test_a_medagentbench_reply_in_a_fence_was_run_and_a_get_that_failed_says_so(tmp_path):
    run = read_one(
        tmp_path,
        med_run("```tool_code\nGET http://sea\n```", "Error in sending the GET request: gone", "```\nFINISH([])\n```"),
    )
    assert calls(run) == [[("GET", {"url": "http://sea"})], []]
    assert [result.status for result in results(run)] == ["error"]
    assert run.ended == "final_answer"


def test_what_medagentbench_could_not_read_is_no_call_and_ends_the_run(tmp_path):
    run = read_one(tmp_path, med_run("POST http://sea\n{broken", "Invalid POST request", "Well.", status="invalid"))
    assert calls(run) == [[], []]
    assert [event.injected for event in run.events if isinstance(event, UserSaid)] == [False, True]
    assert (run.ended, run.error) == ("empty", "invalid")


def test_the_model_of_a_medagentbench_run_is_two_folders_above_runs_jsonl(tmp_path):
    assert read_one(tmp_path, med_run("FINISH([])"), "m2/clinic-std/runs.jsonl").id == "m2/4"


def test_another_benchmark_in_the_same_container_is_not_medagentbench():
    other = med_run("FINISH([])")
    other["output"]["history"][0]["content"] = "Write SQL."
    assert not medagentbench.sniff(other)


# ---- BFCL


def test_bfcl_calls_are_read_without_results_and_every_turn_of_the_user_has_no_text(tmp_path):
    value = {"id": "multi_turn_base_3", "result": ["[ring(times=2), row(boat='a')]", "Done."]}
    run = read_one(tmp_path, value, "BFCL_v4_multi_turn_base_result.json")
    assert (run.format, run.id, run.label, run.ended) == ("bfcl", "multi_turn_base_3", None, "final_answer")
    assert calls(run) == [[("ring", {"times": 2}), ("row", {"boat": "a"})], []]
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid, UserSaid, ModelSaid]
    assert len({call.id for reply in replies(run) for call in reply.tool_calls}) == 2


@pytest.mark.parametrize("text", ["ring(times=2)", "```\n[ring(times=2)]\n```", "[ring(times=2)]"])
def test_bfcl_brackets_and_a_bare_fence_are_as_the_harness_has_them(tmp_path, text):
    run = read_one(tmp_path, {"id": "simple_0", "result": text})
    assert calls(run) == [[("ring", {"times": 2})]]


def test_bfcl_replies_to_one_turn_may_be_a_list_and_tokens_are_those_of_a_single_reply(tmp_path):
    steps = read_one(tmp_path, {"id": "multi_turn_base_0", "result": [["[a()]", "[b()]"], ["Ready."]]})
    assert [type(event) for event in steps.events] == [UserSaid, ModelSaid, ModelSaid, UserSaid, ModelSaid]
    value = {"id": "live_simple_0-0-0", "result": "[a()]", "input_token_count": 7, "output_token_count": 3}
    usage = replies(read_one(tmp_path, value))[0].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 3)


def test_a_bfcl_reply_that_breaks_off_is_neither_call_nor_answer(tmp_path):
    run = read_one(tmp_path, {"id": "simple_0", "result": "[ring(times="})
    assert (calls(run), run.ended) == ([[]], "empty")


# ---- what replay makes of them


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (mint_run("I look.\n<execute>\nprint({'a': [1]})\n</execute>", f"Observation:\n1\n{LEFT}"), "a.jsonl"),
        (med_run("GET http://sea/tower?height=1", "31"), "a.jsonl"),
        (med_run('POST http://sea\n{"b": 1.0, "a": {"c": [null, "é"]}}', "taken"), "a.jsonl"),
        ({"id": "parallel_0", "result": "[ring(a=[1, 2], b={'c': True}), row(d=None, e=-1.5)]"}, "a.jsonl"),
    ],
)
def test_a_call_that_a_harness_read_is_the_call_that_the_parser_reads(tmp_path, value, name):
    run = read_one(tmp_path, value, name)
    (reply,) = replies(run)
    for mode in ("strict", "repair"):
        verdict = parse_response(ModelResponse(reply.text), protocol="text", forms=run.forms, mode=mode)
        identities = [call_identity(call.name, call.args) for call in verdict.calls]
        assert identities == [call_identity(call.name, call.args) for call in reply.tool_calls]
        assert [call.arguments for call in verdict.calls] == [call.arguments for call in reply.tool_calls]


def test_calls_that_a_harness_read_are_judged_and_not_recovered(tmp_path, engine):
    several = "<execute>a</execute> then <execute>b</execute>"  # the parser alone would refuse it
    run = read_one(tmp_path, mint_run(several, f"Observation:\n1\n{LEFT}", "<solution>1</solution>"))
    report = replay(run, engine())
    assert (report.calls, report.recovered, report.iterations) == (1, 0, 2)


def test_calls_that_only_the_parser_reads_are_recovered(tmp_path, engine):
    run = read_one(tmp_path, mint_run("< execute >a</ execute >", NOT_READ, "<solution>1</solution>"))
    assert replay(run, engine()).recovered == 0  # the policy reads strictly
    assert replay(run, engine(parsing=Parsing(mode="repair"))).recovered == 1


# ---- nothing else is taken for one of these, and nothing raises


@pytest.mark.parametrize(
    "value",
    [mint_run("x"), med_run("x"), {"id": "irrelevance_0", "result": "no"}, {"id": "memory_0-kv-0", "result": []}],
)
def test_exactly_one_reader_knows_each(value):
    assert len([reader.name for reader in READERS if reader.sniff(value)]) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["state", "task", "history", "output", "status", "result", "id", "role", "content"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("reader", [mint, medagentbench, bfcl])
@given(value=JSON)
def test_any_json_is_a_recording_or_unreadable(reader, value):
    reader.sniff(value)
    for shaped in (
        value,
        {"state": value, "task": value},
        {"state": {"history": value}, "task": {}},
        {"index": 1, "output": value},
        {"index": 1, "output": {"history": value, "status": "completed"}},
        {"id": "simple_0", "result": value},
    ):
        items = list(reader.read(Document("a.jsonl", shaped, iter([(1, shaped)]))))
        assert len(items) == 1
        assert isinstance(items[0], Recording | Unreadable)
