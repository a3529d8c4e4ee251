"""Readers of other packages: how they are found, what is refused, and that one of them ends nothing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import policyengine.recordings as public
from policyengine.cli import cli
from policyengine.errors import UsageError
from policyengine.recordings import READERS, Reader, Recording, Skipped, Unreadable, installed_readers, read_recordings
from policyengine.recordings.readers import GROUP

BUOY = """
from policyengine import ModelResponse
from policyengine.recordings import Document, ModelSaid, Reader, Recording, Unreadable, UserSaid, ending, mapping


def sniff(value):
    return isinstance(value, dict) and "buoy" in value


def read(document):
    for line, value in document.values:
        if "fail" in value:
            raise KeyError(value["fail"])
        if "said" not in value:
            yield Unreadable(document.source, line, "nothing was said")
            continue
        happened = (UserSaid(value["buoy"]), ModelSaid(ModelResponse(value["said"])))
        yield Recording(value["buoy"], document.source, "buoy", happened, ending(happened), line=line)


READER = Reader("buoy", sniff, read, run_a_line=sniff)
NO_READER = 7
SAME = Reader("openai_chat", sniff, read)
GREEDY = Reader("greedy", lambda value: value["no"], read)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a distribution with entry points and modules."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def install(distribution, *entries, **modules):
        info = tmp_path / "site" / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "\n".join(entries))
        for name, source in modules.items():
            (tmp_path / "site" / f"{name}.py").write_text(source)
        installed_readers.cache_clear()

    installed_readers.cache_clear()
    yield install
    installed_readers.cache_clear()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def lines(folder, *values):
    path = folder / "runs.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def test_an_installed_reader_is_asked_before_those_of_this_package(tmp_path, install):
    install("buoys", "buoy = buoys_reader:READER", buoys_reader=BUOY)
    assert [reader.name for reader in installed_readers()] == ["buoy", *(reader.name for reader in READERS)]
    path = lines(tmp_path, {"buoy": "b1", "said": "ding"}, {"buoy": "b2"}, {"buoy": "b3", "said": "dong"})
    first, broken, last = read_recordings([path])
    assert [(run.id, run.format, run.ended) for run in (first, last)] == [
        ("b1", "buoy", "final_answer"),
        ("b3", "buoy", "final_answer"),
    ]
    assert isinstance(broken, Unreadable)
    assert broken.line == 2


def test_its_format_is_known_to_the_verbs(tmp_path, install):
    install("buoys", "buoy = buoys_reader:READER", buoys_reader=BUOY)
    path = lines(tmp_path, {"buoy": "b1", "said": "ding"})
    result = CliRunner().invoke(cli, ["replay", str(path), "--format", "buoy", "--json"])
    assert json.loads(result.stdout)["format"] == "buoy"
    assert CliRunner().invoke(cli, ["backtest", str(path), "--format", "buoy"]).exit_code == 0


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (["a = buoys_reader:READER", "b = buoys_reader:READER"], "two readers .* called buoy, of buoys and buoys"),
        (["a = buoys_reader:SAME"], "called openai_chat, of buoys and this package"),
        (["a = buoys_reader:NO_READER"], "a = buoys_reader:NO_READER of buoys is no Reader"),
        (["a = buoys_reader:MISSING"], "of buoys cannot be imported: AttributeError"),
        (["a = not_there:READER"], "of buoys cannot be imported: ModuleNotFoundError"),
        (["a = broken:READER"], "of buoys cannot be imported: SystemExit: 3"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_package(install, entries, said):
    install("buoys", *entries, buoys_reader=BUOY, broken="raise SystemExit(3)\n")
    with pytest.raises(UsageError, match=said):
        installed_readers()


def test_two_packages_with_one_name_are_both_named(install):
    install("buoys", "a = buoys_reader:READER", buoys_reader=BUOY)
    install("marks", "b = marks_reader:READER", marks_reader=BUOY)
    with pytest.raises(UsageError, match="called buoy, of buoys and marks"):
        installed_readers()


def test_a_reader_that_fails_is_told_and_other_files_are_read(tmp_path, install):
    install("buoys", "buoy = buoys_reader:READER", buoys_reader=BUOY)
    lines(tmp_path, {"buoy": "b1", "said": "ding"}, {"buoy": "b2", "fail": "here"}, {"buoy": "b3", "said": "dong"})
    chat = [{"role": "user", "content": "hello"}]
    (tmp_path / "z.json").write_text(json.dumps(chat))
    items = [item for item in read_recordings([tmp_path]) if not isinstance(item, Skipped)]
    assert [type(item) for item in items] == [Recording, Unreadable, Recording]
    assert items[1].reason == "the reader buoy failed: KeyError: 'here'"


def test_a_reader_that_cannot_look_at_a_file_is_named(tmp_path, install):
    install("buoys", "greedy = buoys_reader:GREEDY", buoys_reader=BUOY)
    path = lines(tmp_path, {"role": "user", "content": "hello"})
    with pytest.raises(UsageError, match=r"the reader greedy cannot look at .*runs\.jsonl: KeyError"):
        list(read_recordings([path]))


def test_names_of_readers_are_unique_and_the_public_names_are_there():
    names = [reader.name for reader in READERS]
    assert len(set(names)) == len(names)
    assert all(isinstance(reader, Reader) for reader in READERS)
    assert [name for name in public.__all__ if getattr(public, name, None) is None] == []
    assert sorted(public.__all__, key=str.lower) == sorted(set(public.__all__), key=str.lower)


def test_the_documentation_lists_every_format_once():
    page = Path(__file__).parents[2] / "docs" / "recordings.md"
    formats = page.read_text(encoding="utf-8").partition("## Formats")[2].partition("Messages are found")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", formats, re.MULTILINE)) == sorted(reader.name for reader in READERS)
