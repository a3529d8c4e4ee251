"""SWE-agent trajectories: one command per step, no errors declared, what the harness writes when it gives up."""

from __future__ import annotations

import json

from policyengine.messages import ToolCall, ToolResult
from policyengine.recordings.model import ModelSaid, Recording, Skipped, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import read_recordings


def step(action, observation="done", response=None, **more):
    said = f"Next step.\n```\n{action}\n```" if response is None else response
    return {"action": action, "observation": observation, "response": said, "thought": "Next step.", **more}


def trajectory(*steps, status="submitted", **more):
    history = [
        {"role": "system", "content": "You fix bugs.", "agent": "primary"},
        {"role": "user", "content": "a demonstration", "agent": "primary", "is_demo": True},
        {"role": "user", "content": "Mend the clock.", "agent": "primary"},
    ]
    info = {"exit_status": status, "submission": "", "model_stats": {"api_calls": 1}}
    return {"environment": "swe_main", "trajectory": list(steps), "history": history, "info": info, **more}


def read(tmp_path, value, name="shop__clock-7.traj"):
    path = tmp_path / name
    path.write_text(json.dumps(value), encoding="utf-8")
    (run,) = read_recordings([path])
    return run


def test_every_step_is_a_response_with_one_command_and_its_result(tmp_path):
    run = read(tmp_path, trajectory(step("open clock.py", "1: tick"), step("submit", "diff")))
    assert (run.format, run.id, run.task, run.ended, run.label) == (
        "sweagent",
        "shop__clock-7",
        "shop__clock-7",
        "tool_result",
        None,
    )
    task, first, answer, second, _ = run.events
    assert task == UserSaid("Mend the clock.")
    assert first.response.tool_calls == (ToolCall("step-1", "shell", args={"command": "open clock.py"}),)
    assert first.response.text == "Next step.\n```\nopen clock.py\n```"
    assert answer == ToolAnswered("step-1", ToolResult("step-1", "1: tick"))
    assert second.response.tool_calls[0].id == "step-2"


def test_words_of_failure_in_an_observation_are_no_error(tmp_path):
    run = read(tmp_path, trajectory(step("python x.py", "Traceback: KeyError")))
    assert run.events[-1].result.status == "ok"


def test_what_the_harness_writes_when_it_gives_up_is_no_response(tmp_path):
    given_up = step("exit_cost", "Exited (autosubmitted)", "Exit due to cost limit")
    run = read(tmp_path, trajectory(step("ls"), given_up, status="submitted (exit_cost)"))
    assert sum(isinstance(event, ModelSaid) for event in run.events) == 1
    assert (run.ended, run.error) == ("tool_result", "")


def test_a_text_without_a_readable_command_is_a_response_without_a_call(tmp_path):
    run = read(tmp_path, trajectory(step("exit_format", None, "I am done."), status="exit_format"))
    assert run.events[-1].response.text == "I am done."
    assert run.events[-1].response.tool_calls == ()
    assert run.error == "exit_format"


def test_a_command_without_an_observation_has_no_result(tmp_path):
    assert read(tmp_path, trajectory(step("sleep 9", None))).ended == "call"


def test_the_duration_of_a_command_is_kept(tmp_path):
    run = read(tmp_path, trajectory(step("ls", execution_time=1.5)))
    assert run.events[-1].result.duration_s == 1.5


def test_a_file_without_a_history_has_no_user_message(tmp_path):
    run = read(tmp_path, {"trajectory": [step("ls")], "info": {}})
    assert isinstance(run.events[0], ModelSaid)


def test_a_trajectory_of_the_wrong_shape_is_unreadable(tmp_path):
    for broken in (trajectory(step("ls"), 7), trajectory(step(["ls"])), trajectory(step("ls"), history=5)):
        assert isinstance(read(tmp_path, broken), Unreadable)


def test_traj_files_of_a_folder_are_read_and_others_are_not(tmp_path):
    (tmp_path / "a.traj").write_text(json.dumps(trajectory(step("ls"))), encoding="utf-8")
    (tmp_path / "a.trajectory").write_text("{}", encoding="utf-8")
    run, skipped = read_recordings([tmp_path])
    assert isinstance(run, Recording)
    assert isinstance(skipped, Skipped)
