"""A file of lines that is read in parts gives the runs, ids, lines and errors that it gives as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

from policyengine.recordings.loading import cut
from policyengine.recordings.model import Recording, Unreadable
from policyengine.recordings.readers import read_file

BOM = b"\xef\xbb\xbf"


def chat(text, **about):
    return json.dumps({"messages": [{"role": "user", "content": text}], **about}).encode()


def litellm(text):
    answer = {"choices": [{"message": {"content": text}}]}
    return json.dumps({"messages": [{"role": "user", "content": text}], "response": answer}).encode()


texts = st.text(st.characters(codec="utf-8"), max_size=40)
others = st.one_of(
    st.sampled_from([b"", b"  ", b"\t", b"{broken", b"[1, 2]", b"{}", b"null", b"7", b'"text"', b"\xff\xfe", b"[]"]),
    texts.map(lambda text: json.dumps({"role": "user", "content": text}).encode()),
    texts.map(lambda text: json.dumps([[{"role": "user", "content": text}]] * 2).encode()),
)
lines = st.lists(
    st.one_of(texts.map(chat), texts.map(litellm), st.integers(0, 900).map(lambda n: chat("x" * n)), others)
)
ends = st.sampled_from([b"\n", b"\r\n"])


def read(path, parts):
    found = [item for part in parts for item in read_file(path, "many.jsonl", part)]
    runs = [item for item in found if isinstance(item, Recording)]
    # Where a reader looks ahead, a broken line may be told before the run above it.
    errors = sorted((item for item in found if isinstance(item, Unreadable)), key=lambda item: item.line)
    assert len(runs) + len(errors) == len(found)
    return runs, errors


@given(
    st.sampled_from([chat("first", id="a"), chat("first"), litellm("first")]),
    lines,
    ends,
    st.booleans(),
    st.booleans(),
    st.integers(1, 300),
)
@example(chat("first"), [chat("x" * 900), b"", b"{broken", b""], b"\r\n", True, True, 10)
@example(chat("first"), [b"{broken"] * 9 + [chat("last")], b"\n", False, False, 20)
def test_parts_add_up_to_the_whole(first, lines, end, mark, open_end, size):
    content = (BOM if mark else b"") + end.join([first, *lines, chat("last")]) + (b"" if open_end else end)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "many.jsonl"
        path.write_bytes(content)
        parts = cut(path, size)
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == len(content)
        assert all(part.stop - part.start >= size for part in parts[:-1])
        assert all(content[part.start - 1 : part.start] in (b"", b"\n") for part in parts)
        assert [part.line for part in parts] == [1 + content[: part.start].count(b"\n") for part in parts]
        assert read(path, parts) == read(path, [None])


def test_an_empty_file_has_no_parts(tmp_path):
    path = tmp_path / "many.jsonl"
    path.touch()
    assert cut(path, 10) == []


def test_the_format_of_a_part_is_that_of_its_file(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_bytes(b"\n".join([chat("first"), b'{"instance_id": 1}', b"", chat("last")]))
    parts = cut(path, 1)
    assert [type(item) for part in parts for item in read_file(path, "many.jsonl", part)] == [
        Recording,
        Unreadable,
        Recording,
    ]


def test_a_run_in_a_part_has_the_number_of_its_line_from_0(tmp_path):
    path = tmp_path / "many.jsonl"
    several = json.dumps([[{"role": "user", "content": "one"}], [{"role": "user", "content": "two"}]]).encode()
    path.write_bytes(b"\n".join([chat("first"), b"", several, chat("own", id="own")]))
    for parts in ([None], cut(path, 1)):
        assert [run.id for run in read(path, parts)[0]] == ["many#0", "many#2#0", "many#2#1", "own"]
