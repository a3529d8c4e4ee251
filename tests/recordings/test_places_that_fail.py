"""Files and folders that cannot be looked at are told with the reason, and everything else is read."""

from __future__ import annotations

import json
import os
import sys

import pytest

from policyengine.backtest.run import backtest
from policyengine.recordings.model import Recording, Skipped, Unreadable
from policyengine.recordings.readers import read_recordings

HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
LOOP = "Too many levels of symbolic links"
LONG = "File name too long"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and reasons are those of POSIX")


@pytest.fixture
def folder(tmp_path):
    """Return a folder with one run."""
    made = tmp_path / "runs"
    made.mkdir()
    (made / "a.json").write_text(json.dumps(HELLO), encoding="utf-8")
    return made


def told(*paths):
    """Return ids of runs, and what was unreadable and skipped as (name, reason); a backtest tells the same."""
    items = list(read_recordings(paths))
    unread = [item for item in items if isinstance(item, Unreadable)]
    counted = backtest(paths)
    assert (counted.runs, counted.read_error_count) == (len(items) - len(unread) - _skips(items), len(unread))
    return (
        [item.id for item in items if isinstance(item, Recording)],
        [(os.path.basename(item.source), item.reason) for item in unread],
        [(os.path.basename(item.source), item.reason) for item in items if isinstance(item, Skipped)],
    )


def _skips(items):
    return sum(isinstance(item, Skipped) for item in items)


def denied(path):
    """Return the error of a folder that may not be searched."""
    return PermissionError(13, "Permission denied", str(path))


def test_a_link_to_itself_is_unreadable_in_a_folder_and_alone(folder):
    (folder / "l.jsonl").symlink_to("l.jsonl")
    assert told(folder) == (["a"], [("l.jsonl", LOOP)], [])
    assert told(folder / "l.jsonl") == ([], [("l.jsonl", LOOP)], [])


def test_a_looping_index_is_unreadable_and_the_runs_beside_it_are_read(folder):
    (folder / "index.csv").symlink_to("index.csv")
    assert told(folder) == (["a"], [("index.csv", LOOP)], [])


@pytest.mark.parametrize(("file", "reason"), [("l", LOOP), ("x" * 5000, LONG)])
def test_a_row_of_an_index_that_names_no_possible_file_is_unreadable(folder, file, reason):
    (folder / "l").symlink_to("l")
    (folder / "index.csv").write_text(f"id,file\nmine,a.json\nlost,{file}\n", encoding="utf-8")
    runs, unread, _ = told(folder)
    assert runs == ["mine"]
    assert unread == [("index.csv", f"it lists 1 run of files that cannot be read ({reason}): lost")]


def test_a_file_of_an_impossible_name_is_unreadable(folder):
    runs, unread, _ = told(folder / ("x" * 300), folder)
    assert (runs, unread) == (["a"], [("x" * 300, LONG)])


@pytest.mark.parametrize("which", ["closed", "."])
def test_a_folder_that_cannot_be_listed_is_unreadable(folder, monkeypatch, which):
    closed = folder / which
    closed.mkdir(exist_ok=True)
    scan = os.scandir

    def refusing(path):
        if os.path.samefile(path, closed):
            raise denied(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    runs, unread, _ = told(folder)
    assert runs == (["a"] if which == "closed" else [])
    assert unread == [(closed.name, "Permission denied")]


def test_a_file_in_a_folder_that_cannot_be_searched_is_unreadable(folder, monkeypatch):
    look = os.stat

    def refusing(path, *args, **more):
        if str(path).endswith("b.json"):
            raise denied(path)
        return look(path, *args, **more)

    monkeypatch.setattr(os, "stat", refusing)
    assert told(folder / "b.json", folder) == (["a"], [("b.json", "Permission denied")], [])


def test_a_link_to_a_folder_is_named_and_not_followed(folder, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.json").write_text(json.dumps(HELLO), encoding="utf-8")
    (folder / "link").symlink_to(tmp_path / "other")
    assert told(folder) == (["a"], [], [("link", "a link to a folder")])
    assert told(folder / "link")[0] == ["b"]
