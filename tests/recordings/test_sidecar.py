"""What an `index.csv` says of runs: labels, models, tasks; and what is said about an index that is wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyengine.backtest.run import backtest
from policyengine.recordings.model import Recording, Skipped, Unreadable
from policyengine.recordings.readers import read_recordings
from policyengine.recordings.sidecar import Index, Indexes, Row, read_index

HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
HEADER = "id,file,success,group,task\n"


def write(folder, index, **files):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.csv").write_bytes(index if isinstance(index, bytes) else index.encode())
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def read(folder):
    items = list(read_recordings([folder]))
    runs = [item for item in items if isinstance(item, Recording)]
    told = [(type(item).__name__, item.reason) for item in items if not isinstance(item, Recording)]
    return runs, told


def test_an_index_gives_label_model_and_task_and_the_set_is_its_folder(tmp_path):
    write(tmp_path / "harbour", f"{HEADER}one,a.json,True,m7,greet\n", a=HELLO)
    ((run,), told) = read(tmp_path)
    assert (run.id, run.label, run.group, run.task, run.set) == ("one", True, "m7", "hello", "harbour")
    assert told == []


def test_the_label_and_the_task_of_the_file_itself_stand_and_the_model_is_that_of_the_index(tmp_path):
    value = {"id": "x", "label": False, "model": "own", "task": "mine", "messages": HELLO}
    write(tmp_path, f"{HEADER}one,a.json,True,m7,greet\n", a=value)
    ((run,), _) = read(tmp_path)
    assert (run.label, run.task, run.group) == (False, "mine", "m7")


def test_without_an_index_the_set_is_the_folder_of_the_file(tmp_path):
    (tmp_path / "quay").mkdir()
    (tmp_path / "quay" / "a.json").write_text(json.dumps(HELLO))
    ((run,), _) = read(tmp_path)
    assert (run.set, run.label, run.group) == ("quay", None, "")


@pytest.mark.parametrize(
    "index",
    [
        b"id,file,success\r\none,a.json,True\r\n",
        b'\xef\xbb\xbf"id","file","success"\n"one","a.json","True"\n',
        b"file, success ,id\n./a.json,true,one\n",
        b"id,file,success\n\none,a.json, TRUE \n\n",
        b"id,file,success\none,a.json,1\ntwo,,False\n",
        b"id,file,success\none,a.json,1.0\n",
    ],
)
def test_an_index_may_be_written_in_many_ways(tmp_path, index):
    ((run,), told) = read(write(tmp_path, index, a=HELLO))
    assert (run.id, run.label, told) == ("one", True, [])


def test_quoted_ids_may_hold_commas_and_line_ends(tmp_path):
    ((run,), told) = read(write(tmp_path, 'id,file\n"a, ""b""\nc",a.json\n', a=HELLO))
    assert (run.id, told) == ('a, "b"\nc', [])


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("id,file,success\none,a.json,maybe\n", [("Unreadable", "success is 'maybe', not True, False or empty")]),
        ("id,file\none,a.json\none,a.json\n", [("Unreadable", "the run one is listed twice")]),
        ("id,file\none,a.json\n,b.json\n", [("Unreadable", "the row has no id")]),
        ("id,file\none,a.json,x\n", [("Unreadable", "the row has 3 cells, the header 2")]),
        ("id,file\none,a.json\ntwo\n", [("Unreadable", "the row has 1 cells, the header 2")]),
        ("id,file\none,a.json\ntwo,b.json\nthree,c.json:4\n",
         [("Skipped", "it lists 2 runs of files that are not there: two, three")]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_index_is_told_and_the_rest_is_used(tmp_path, index, said):
    ((run,), told) = read(write(tmp_path, index, a=HELLO))
    assert (run.id, run.label, told) == ("one", None, said)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("", "no index of runs: it has no column `id` and `file`"),
        ("id,name\n1,x\n", "no index of runs: it has no column `file`"),
        ("fish\nherring\n", "no index of runs: it has no column `id` and `file`"),
    ],
)
def test_a_file_of_that_name_that_is_no_index_is_skipped(tmp_path, index, said):
    ((run,), told) = read(write(tmp_path, index, a=HELLO))
    assert (run.id, told) == ("a", [("Skipped", said)])


def test_an_index_that_breaks_off_in_a_quote_is_used_up_to_there(tmp_path):
    ((run,), told) = read(write(tmp_path, 'id,file,success\none,a.json,True\n"two,b.json', a=HELLO))
    assert (run.id, run.label) == ("one", True)
    assert [kind for kind, _ in told] == ["Unreadable"]
    assert told[0][1].startswith("not CSV: ")


def test_problems_have_the_line_of_the_index(tmp_path):
    write(tmp_path, "id,file,success\none,a.json,True\ntwo,a.json,odd\n", a=[HELLO, HELLO])
    (problem,) = [item for item in read_recordings([tmp_path]) if isinstance(item, Unreadable) and item.line]
    assert (problem.source, problem.line) == ((tmp_path / "index.csv").as_posix(), 3)


def test_runs_that_the_index_has_and_the_file_has_not_are_told(tmp_path):
    rows = "".join(f"{name},a.json,True\n" for name in ("x", "left", "gone", "away", "lost"))
    write(tmp_path, f"id,file,success\n{rows}", a=[{"id": "x", "messages": HELLO}, {"id": "y", "messages": HELLO}])
    runs, told = read(tmp_path)
    assert [(run.id, run.label) for run in runs] == [("x", True), ("y", None)]
    assert told == [("Unreadable", "index.csv lists 4 runs not found in it: left, gone, away, ...")]


def test_a_run_that_cannot_be_read_is_told_once(tmp_path):
    write(tmp_path, "id,file\nx,a.json\ny,a.json\n", a=[{"id": "x", "messages": HELLO}, {"id": "y", "messages": [1]}])
    _, told = read(tmp_path)
    assert len(told) == 1


def test_an_index_above_is_told_once_and_not_for_files_that_nobody_asked_for(tmp_path):
    write(tmp_path, "id,file,success\none,below/a.json,odd\ntwo,below/b.json,True\n")
    below = tmp_path / "below"
    below.mkdir()
    for name in "ac":
        (below / f"{name}.json").write_text(json.dumps(HELLO))
    items = list(read_recordings([below / "a.json", below / "c.json", below]))
    assert [item.id for item in items if isinstance(item, Recording)] == ["one", "c"]
    assert [item.line for item in items if isinstance(item, Unreadable)] == [2]
    assert not [item for item in items if isinstance(item, Skipped)]


def test_a_file_of_that_name_further_above_that_is_no_index_is_not_this_sets(tmp_path):
    write(tmp_path, b"\xff\xfe")
    below = write(tmp_path / "below" / "set", "id,name\n", a=HELLO)
    items = list(read_recordings([below / "a.json"]))
    assert [type(item) for item in items] == [Recording]


def test_an_end_of_an_id_that_two_runs_share_names_neither(tmp_path):
    index = Index(tmp_path, [Row("m1#7", "a.json"), Row("m2#7", "a.json"), Row("m1#8", "a.json")])
    assert index.find(tmp_path / "a.json", "7", 1, alone=False) is None
    assert index.find(tmp_path / "a.json", "8", 1, alone=False).id == "m1#8"


def test_several_runs_of_one_line_are_told_apart_by_their_ids(tmp_path):
    line = json.dumps([{"id": name, "messages": HELLO} for name in "xy"])
    (tmp_path / "a.jsonl").write_text(f"{line}\n")
    write(tmp_path, "id,file,success\nset/x,a.jsonl:0,True\nset/y,a.jsonl:0,False\n")
    runs, told = read(tmp_path)
    assert ([(run.id, run.label) for run in runs], told) == ([("set/x", True), ("set/y", False)], [])


def test_a_backtest_counts_by_the_labels_of_an_index_and_tells_what_it_did_not_find(tmp_path):
    index = "id,file,success,group\nx,a.json,True,m1\ny,a.json,False,m1\nz,a.json,True,m1\nq,gone.json,True,m2\n"
    write(tmp_path / "harbour", index, a=[{"id": name, "messages": HELLO} for name in "xy"])
    counted = backtest([tmp_path])
    assert (counted.runs, counted.read_error_count) == (2, 1)
    assert [item.reason for item in counted.read_errors] == ["index.csv lists 1 run not found in it: z"]
    assert [item.reason for item in counted.skipped] == ["it lists 1 run of files that are not there: q"]


@given(data=st.binary(max_size=200) | st.text(alphabet='id,file"\r\n:0aTrue#/', max_size=80).map(str.encode))
def test_any_bytes_are_an_index_or_are_told(tmp_path_factory, data):
    folder = write(tmp_path_factory.mktemp("set"), data, a=HELLO)
    found = read_index(folder / "index.csv")
    assert isinstance(found, Index | Skipped | Unreadable)
    runs, _ = read(folder)
    assert len(runs) == 1
    assert Indexes().nearest(folder / "a.json") is None or isinstance(found, Index)
