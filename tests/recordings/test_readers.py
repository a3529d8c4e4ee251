"""Finding files, recognising formats, the ids of an index, and what is said about files that are no recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policyengine.recordings.loading import NotJsonError, decode, load
from policyengine.recordings.model import ModelSaid, Recording, Skipped, ToolAnswered, Unreadable, UserSaid
from policyengine.recordings.readers import READERS, read_recordings

HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "weigh", "arguments": "{}"}}


def tau_run(task=3, trial=1, reward=1.0, **more):
    return {"task_id": task, "trial": trial, "reward": reward, "info": {}, "traj": HELLO, **more}


def dojo_run(**more):
    return {
        "suite_name": "post",
        "pipeline_name": "local",
        "user_task_id": "user_task_2",
        "injection_task_id": None,
        "attack_type": None,
        "messages": HELLO,
        "error": None,
        "utility": True,
        "security": False,
        **more,
    }


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def read(*paths):
    return list(read_recordings(paths))


def recordings(*paths):
    found = read(*paths)
    assert all(isinstance(item, Recording) for item in found), found
    return found


def test_a_set_is_called_the_same_from_every_directory(tmp_path, monkeypatch):
    write(tmp_path / "town" / "a.json", HELLO)
    sets = set()
    for folder, name in (("town", "a.json"), (".", "town/a.json"), ("town", "../town/a.json"), ("town", ".")):
        monkeypatch.chdir(tmp_path / folder)
        sets |= {run.set for run in recordings(Path(name))}
    assert sets | {run.set for run in recordings(tmp_path / "town" / "a.json")} == {"town"}


# ---- formats


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("list.json", HELLO),
        ("object.json", {"messages": HELLO}),
        ("message.jsonl", "\n".join(json.dumps(message) for message in HELLO)),
        ("one.jsonl", json.dumps({"messages": HELLO}) + "\n"),
        ("lines.json", "\n".join(json.dumps(message) for message in HELLO)),
    ],
)
def test_every_spelling_of_one_chat_is_one_recording(tmp_path, name, value):
    (run,) = recordings(write(tmp_path / name, value))
    assert (run.format, run.ended, run.task, run.id) == ("openai_chat", "final_answer", "hello", name.split(".")[0])
    assert [type(event) for event in run.events] == [UserSaid, ModelSaid]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("many.jsonl", "\n".join(json.dumps({"messages": HELLO}) for _ in range(3))),
        ("many.jsonl", "\n".join(json.dumps(HELLO) for _ in range(3))),
        ("many.json", [{"messages": HELLO}] * 3),
        ("many.json", [HELLO] * 3),
    ],
)
def test_several_chats_in_a_file_are_numbered(tmp_path, name, value):
    assert [run.id for run in recordings(write(tmp_path / name, value))] == ["many#0", "many#1", "many#2"]


def test_a_chat_object_may_carry_its_id_label_model_task_and_error(tmp_path):
    value = {"id": "r-9", "label": False, "model": "m1", "task": "greet", "error": "late", "messages": HELLO}
    (run,) = recordings(write(tmp_path / "a.json", value))
    assert (run.id, run.label, run.group, run.task, run.error) == ("r-9", False, "m1", "greet", "late")


def test_a_tau_bench_file_gives_one_labelled_recording_per_element(tmp_path):
    first, second = recordings(write(tmp_path / "shop.json", [tau_run(), tau_run(4, 0, 0.0)]))
    assert (first.id, first.label, first.format, first.group) == ("3/1", True, "tau_bench", "shop")
    assert (second.id, second.label) == ("4/0", False)


def test_a_tau_bench_run_without_reward_has_no_label(tmp_path):
    assert recordings(write(tmp_path / "a.json", [tau_run(reward=None)]))[0].label is None


def test_a_tau_bench_result_that_starts_with_error_is_a_failure_and_user_turns_are_real(tmp_path):
    traj = [
        *HELLO,
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "name": "weigh", "content": "Error: scale not found"},
    ]
    (run,) = recordings(write(tmp_path / "a.json", [tau_run(traj=traj)]))
    answer = run.events[-1]
    assert isinstance(answer, ToolAnswered)
    assert (answer.result.status, answer.result.text) == ("error", "Error: scale not found")
    assert [event.injected for event in run.events if isinstance(event, UserSaid)] == [False, False]
    assert run.ended == "tool_result"


def test_an_agentdojo_run_is_read_with_blocks_null_ids_and_declared_errors(tmp_path):
    block = [{"type": "text", "content": "weigh both"}]
    call = {"function": "weigh", "args": {"parcel": 1}, "id": None, "placeholder_args": None}
    messages = [
        {"role": "user", "content": block},
        {"role": "assistant", "content": block, "tool_calls": [call, {**call, "args": {"parcel": 2}}]},
        {"role": "tool", "content": [{"type": "text", "content": "2 kg"}], "tool_call_id": None, "error": None},
        {"role": "tool", "content": [], "tool_call_id": None, "error": "KeyError: 2"},
        {"role": "user", "content": block},
        {"role": "assistant", "content": [], "tool_calls": [call]},
    ]
    (run,) = recordings(write(tmp_path / "a.json", dojo_run(messages=messages, utility=False)))
    results = [event.result for event in run.events if isinstance(event, ToolAnswered)]
    assert [(result.status, result.text) for result in results] == [("ok", "2 kg"), ("error", "KeyError: 2")]
    assert [event.injected for event in run.events if isinstance(event, UserSaid)] == [False, True]
    assert run.events[1].response.tool_calls[1].args == {"parcel": 2}
    assert (run.label, run.ended, run.task) == (False, "call", "post/user_task_2")


def test_the_folder_names_the_pipeline_of_an_agentdojo_run(tmp_path):
    below = tmp_path / "small-model" / "post" / "user_task_2" / "none" / "none.json"
    assert recordings(write(below, dojo_run()))[0].id == "small-model/post/user_task_2/none/none.json"
    loose = recordings(write(tmp_path / "loose.json", dojo_run()))[0]
    assert (loose.id, loose.group) == ("local/post/user_task_2/none/none.json", "local")


def test_an_agentdojo_run_without_messages_is_empty(tmp_path):
    (run,) = recordings(write(tmp_path / "a.json", dojo_run(messages=[])))
    assert (run.events, run.ended) == ((), "empty")


def test_a_recording_of_two_formats_is_read_by_exactly_one_reader():
    samples = {"agentdojo": dojo_run(), "tau_bench": [tau_run()], "openai_chat": {"messages": HELLO}}
    for name, sample in samples.items():
        claimed = [reader.name for reader in READERS if reader.sniff(sample)]
        assert claimed[0] == name


# ---- files and folders


def test_folders_are_read_recursively_in_sorted_order_and_say_what_they_skip(tmp_path):
    write(tmp_path / "b" / "one.json", HELLO)
    write(tmp_path / "a" / "two.json", HELLO)
    write(tmp_path / "README.md", "about")
    write(tmp_path / "tools.json", {"weigh": {}})
    write(tmp_path / ".cache" / "three.json", HELLO)
    write(tmp_path / ".hidden.json", HELLO)
    found = read(tmp_path)
    assert [item.id for item in found if isinstance(item, Recording)] == ["two", "one"]
    skipped = {
        item.source.removeprefix(f"{tmp_path.as_posix()}/"): item.reason for item in found if isinstance(item, Skipped)
    }
    assert skipped == {
        "README.md": "not .json, .traj, .jsonl, .ndjson or .parquet",
        "tools.json": "no reader knows this format",
        ".cache": "a hidden folder",
        ".hidden.json": "a hidden file",
    }


def test_a_file_named_twice_is_read_once(tmp_path):
    path = write(tmp_path / "a.json", HELLO)
    assert len(recordings(tmp_path, path, path)) == 1


def test_a_missing_path_is_unreadable():
    assert read("no-such-folder/x.json") == [Unreadable("no-such-folder/x.json", 0, "no such file or folder")]


@pytest.mark.parametrize(
    ("name", "text", "line", "reason"),
    [
        ("a.json", "", 0, "the file is empty"),
        ("a.jsonl", "\n", 0, "the file is empty"),
        ("a.json", '{\n"messages": [', 2, "not JSON"),
        ("a.json", "[" * 100_000, 1, "nested too deeply"),
        ("a.jsonl", "{oops\n", 1, "not JSON"),
    ],
)
def test_broken_json_is_unreadable_with_its_line(tmp_path, name, text, line, reason):
    path = write(tmp_path / name, text)
    (item,) = read(path)
    assert isinstance(item, Unreadable)
    assert (item.source, item.line) == (path.as_posix(), line)
    assert reason in item.reason


def test_bytes_that_are_no_utf8_are_unreadable(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"role": "user", "content": "\xff"}]')
    (item,) = read(path)
    assert isinstance(item, Unreadable)
    assert "UTF-8" in item.reason


def test_a_broken_line_is_reported_and_the_other_lines_are_read(tmp_path):
    lines = [json.dumps({"id": "one", "messages": HELLO}), "{", json.dumps({"id": "two", "messages": HELLO})]
    problem, first, second = read(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert (problem.line, first.id, second.id, second.line) == (2, "one", "two", 3)


def test_of_one_message_a_line_only_the_part_before_a_broken_line_is_used(tmp_path):
    lines = [json.dumps(HELLO[0]), json.dumps(HELLO[1]), "{", json.dumps(HELLO[0])]
    problem, run = read(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert (problem.line, len(run.events)) == (3, 2)


@pytest.mark.parametrize(
    "value",
    [
        [tau_run(), 5],
        [tau_run(), tau_run(traj=[{"role": "x"}])],
        [{"messages": HELLO}, {"text": "hello"}],
        [{"messages": HELLO}, 5],
        [dojo_run(), dojo_run(suite_name=["post"])],
    ],
)
def test_a_run_of_the_wrong_shape_is_unreadable_and_the_others_are_read(tmp_path, value):
    lines = "\n".join(json.dumps(run) for run in value)
    run, problem = read(write(tmp_path / "a.jsonl", lines))
    assert isinstance(run, Recording)
    assert isinstance(problem, Unreadable)


@pytest.mark.parametrize("value", [{"messages": [{"role": "user", "content": 5}]}, dojo_run(messages=7)])
def test_a_recognised_file_of_the_wrong_shape_is_unreadable(tmp_path, value):
    (item,) = read(write(tmp_path / "a.json", value))
    assert isinstance(item, Unreadable)


def test_a_byte_order_mark_and_lone_surrogates_are_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf[{"role": "user", "content": "x\\ud800"}]')
    (run,) = recordings(path)
    assert run.task == "x\ud800"
    lines = tmp_path / "b.jsonl"
    lines.write_bytes(b'\xef\xbb\xbf{"role": "user", "content": "x"}\r\n')
    assert recordings(lines)[0].task == "x"


def test_what_is_no_regular_file_is_skipped_and_what_cannot_be_opened_is_unreadable(tmp_path):
    (tmp_path / "a.json").symlink_to(tmp_path / "gone.json")
    assert read(tmp_path) == [Skipped((tmp_path / "a.json").as_posix(), "not a regular file")]
    assert isinstance(load(tmp_path, "folder"), Unreadable)


@pytest.mark.parametrize("text", ["{", "[1,]", "9" * 5000, "[" * 100_000, "\ufeff" + "[" * 100_000, '{"a": ' * 100_000])
def test_what_cannot_be_decoded_is_refused_in_one_way(text):
    with pytest.raises(NotJsonError):
        decode(text.encode())


# ---- ids from an index


def test_an_index_above_the_file_names_the_only_run_of_a_file(tmp_path):
    write(tmp_path / "index.csv", "id,file,success\nmodel-7/post/x.json,part/x.json,True\nother,part/y.json,\n")
    write(tmp_path / "part" / "x.json", dojo_run())
    assert [run.id for run in recordings(tmp_path / "part")] == ["model-7/post/x.json"]
    assert [run.id for run in recordings(tmp_path / "part" / "x.json")] == ["model-7/post/x.json"]


def test_an_index_prefixes_ids_per_file_even_where_another_file_has_the_bare_id(tmp_path):
    write(tmp_path / "index.csv", "id,file\n3/1,plain.json\n4/0,plain.json\nlong.json#3/1,renamed.json\n")
    write(tmp_path / "plain.json", [tau_run(), tau_run(4, 0)])
    write(tmp_path / "renamed.json", [tau_run(), tau_run(9, 9)])
    found = [item.id for item in read(tmp_path) if isinstance(item, Recording)]
    assert found == ["3/1", "4/0", "long.json#3/1", "9/9"]


def test_an_index_may_name_a_line_of_a_file(tmp_path):
    write(tmp_path / "index.csv", "id,file\nsecond,a.jsonl:1\n")
    write(tmp_path / "a.jsonl", "\n".join(json.dumps({"id": name, "messages": HELLO}) for name in "xy"))
    assert [run.id for run in recordings(tmp_path / "a.jsonl")] == ["x", "second"]


@pytest.mark.parametrize("text", ["name,path\na,b\n", "", "id,file\nx,a.json\ny,a.json\n", "id,file\n,a.json\n"])
def test_an_index_that_does_not_settle_the_id_changes_nothing(tmp_path, text):
    write(tmp_path / "index.csv", text)
    found = read(write(tmp_path / "a.json", HELLO))
    assert [item.id for item in found if isinstance(item, Recording)] == ["a"]


def test_an_index_with_one_row_does_not_name_a_file_with_several_runs(tmp_path):
    write(tmp_path / "index.csv", "id,file\nx,a.json\n")
    found = read(write(tmp_path / "a.json", [HELLO, HELLO]))
    assert [item.id for item in found if isinstance(item, Recording)] == ["a#0", "a#1"]


def test_an_index_that_is_no_text_is_told_and_changes_nothing(tmp_path):
    (tmp_path / "index.csv").write_bytes(b"\xff\xfe\x00")
    broken, run = read(write(tmp_path / "a.json", HELLO))
    assert (broken.reason, run.id) == ("not UTF-8 (byte 0)", "a")
