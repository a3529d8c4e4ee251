"""tau2-bench simulations: whose calls they are, labels, errors, ids."""

from __future__ import annotations

import json

import pytest

from policyengine.messages import ToolCall, Usage
from policyengine.recordings.model import ModelSaid, Recording, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import read_recordings

CALL = {"id": "c1", "name": "weigh", "arguments": {"parcel": 7}, "requestor": "assistant"}
GREETING = {"role": "assistant", "content": "Good day.", "tool_calls": None}
REQUEST = {"role": "user", "content": "Weigh my parcel.", "tool_calls": None}
WEIGHED = {"role": "tool", "id": "c1", "content": "2 kg", "error": False, "requestor": "assistant"}


def asked(*calls, text=None, **more):
    return {"role": "assistant", "content": text, "tool_calls": list(calls), **more}


def simulation(*messages, reward=1.0, **more):
    facts = {"id": "s-1", "task_id": "t-4", "trial": 0, "termination_reason": "user_stop"}
    return {**facts, "reward_info": {"reward": reward}, "messages": list(messages), **more}


def read(tmp_path, *simulations, info=None):
    path = tmp_path / "shop.json"
    info = {"agent_info": {"llm": "m-1"}} if info is None else info
    path.write_text(json.dumps({"timestamp": "x", "info": info, "tasks": [], "simulations": list(simulations)}))
    return list(read_recordings([path]))


def recording(tmp_path, *messages, **more):
    (run,) = read(tmp_path, simulation(*messages, **more))
    assert isinstance(run, Recording)
    return run


def test_a_simulation_is_one_run_with_its_label_task_and_model(tmp_path):
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    call = asked(CALL, usage=usage, raw_data={"finish_reason": "tool_calls"})
    run = recording(tmp_path, GREETING, REQUEST, call, WEIGHED, asked(text="It weighs 2 kg."))
    assert (run.format, run.id, run.task, run.group, run.label) == ("tau2_bench", "s-1", "t-4", "m-1", True)
    assert [type(event) for event in run.events] == [ModelSaid, UserSaid, ModelSaid, ToolAnswered, ModelSaid]
    response = run.events[2].response
    assert response.tool_calls == (ToolCall("c1", "weigh", '{"parcel":7}', {"parcel": 7}),)
    assert (response.usage, response.finish_reason, response.model) == (Usage(5, 2, 7), "tool_calls", "m-1")
    assert (run.events[3].result.text, run.events[3].result.status) == ("2 kg", "ok")
    assert (run.ended, run.error) == ("final_answer", "")


def test_the_tools_of_the_simulated_user_are_left_out_but_not_what_it_says(tmp_path):
    own = {"id": "c1", "name": "restart_phone", "arguments": {}, "requestor": "user"}
    run = recording(
        tmp_path,
        asked(CALL),
        {"role": "user", "content": None, "tool_calls": [own]},
        {**WEIGHED, "content": "restarted", "requestor": "user"},
        {"role": "user", "content": "Restarting.", "tool_calls": [own]},
        WEIGHED,
    )
    assert [event.text for event in run.events if isinstance(event, UserSaid)] == ["Restarting."]
    assert [event.result.text for event in run.events if isinstance(event, ToolAnswered)] == ["2 kg"]


def test_a_result_failed_if_the_message_says_so(tmp_path):
    run = recording(tmp_path, asked(CALL), {**WEIGHED, "content": "fine", "error": True})
    assert run.events[-1].result.status == "error"


def test_results_that_one_message_holds_are_all_read(tmp_path):
    second = {**CALL, "id": "c2"}
    both = {"role": "tool", "tool_messages": [{**WEIGHED, "id": "c2", "content": "two"}, WEIGHED]}
    run = recording(tmp_path, asked(CALL, second), both)
    assert [(event.call_id, event.result.text) for event in run.events[1:]] == [("c2", "two"), ("c1", "2 kg")]


@pytest.mark.parametrize(
    ("reward", "label"), [(1, True), (0.9999999, True), (0.5, False), (0.0, False), (None, None), (True, None)]
)
def test_only_a_reward_of_one_is_a_success(tmp_path, reward, label):
    assert recording(tmp_path, GREETING, reward=reward).label is label


@pytest.mark.parametrize(
    ("reason", "error"), [("user_stop", ""), ("max_steps", ""), ("agent_error", "agent_error"), (None, "")]
)
def test_a_run_that_ended_in_an_error_says_which(tmp_path, reason, error):
    assert recording(tmp_path, GREETING, termination_reason=reason).error == error


def test_times_count_from_the_first_message(tmp_path):
    stamps = ("2025-08-01T10:00:00.5", "2025-08-01T10:00:02", "never")
    run = recording(tmp_path, *({**GREETING, "timestamp": stamp} for stamp in stamps))
    assert [event.at for event in run.events] == [0.0, 1.5, None]


def test_a_simulation_without_an_id_is_named_by_task_and_trial(tmp_path):
    assert recording(tmp_path, GREETING, id=None, trial=3).id == "t-4/3"


def test_without_the_name_of_a_model_the_file_is_the_group(tmp_path):
    (run,) = read(tmp_path, simulation(GREETING), info={})
    assert run.group == "shop"


def test_a_simulation_that_cannot_be_read_leaves_the_others(tmp_path):
    bad, good = read(tmp_path, simulation({"role": "exit"}), simulation(GREETING, id="s-2"))
    assert isinstance(bad, Unreadable)
    assert bad.reason == "a message has the role 'exit'"
    assert good.id == "s-2"


def test_an_index_may_put_a_name_before_the_id(tmp_path):
    (tmp_path / "index.csv").write_text("id,file,success\npath/x.json#s-1,shop.json,False\n")
    (run,) = read(tmp_path, simulation(GREETING, reward=None))
    assert (run.id, run.label) == ("path/x.json#s-1", False)
