"""The benchmark of recorded error texts fails where it has to."""

from __future__ import annotations

import json

import pytest

from benchmarks.provider_errors import KINDS, Kind, kind_of, main


def recordings(folder, *texts):
    raw = folder / "trae_iso_bench" / "raw"
    raw.mkdir(parents=True)
    run = {"agent_steps": [{"error": None}, *({"error": text} for text in texts)]}
    (raw / "run.json").write_text(json.dumps(run), encoding="utf-8")
    compact = json.dumps({"turns": [{"text": [1, "a", "b"]}, *({"error": text} for text in texts)]})
    (raw.parent / "compact.jsonl").write_text(compact + "\n", encoding="utf-8")
    return ["--recordings", str(folder)]


def test_known_kinds_pass(tmp_path, capsys):
    assert main([*recordings(tmp_path, "Connection error."), "--check"]) == 0
    assert "connection" in capsys.readouterr().out


def test_a_kind_that_nobody_has_read_fails_the_check_only(tmp_path, capsys):
    options = recordings(tmp_path, "Something nobody has seen before")
    assert main([*options, "--check"]) == 1
    assert main([*options, "--markdown"]) == 0
    assert "| kind | what it is |" in capsys.readouterr().out


def test_a_wrong_class_and_a_missing_id_fail(tmp_path, monkeypatch):
    text = "Error code: 500 - it broke"
    options = recordings(tmp_path, text)
    monkeypatch.setitem(KINDS, kind_of(text), Kind("a broken server", "server_error"))
    assert main([*options, "--check"]) == 0
    for wrong in (Kind("", "overloaded"), Kind("", "server_error", ids=True), Kind("", "server_error", index=True)):
        monkeypatch.setitem(KINDS, kind_of(text), wrong)
        assert main([*options, "--check"]) == 1


def test_texts_that_differ_in_ids_and_numbers_are_of_one_kind():
    assert kind_of("messages.12: call_aZ9 is missing") == kind_of("messages.4: call_b is  missing")
    assert kind_of("one") != kind_of("two")


@pytest.mark.parametrize("texts", [(), None])
def test_a_folder_without_texts_is_an_error(tmp_path, capsys, texts):
    options = ["--recordings", str(tmp_path)] if texts is None else recordings(tmp_path)
    assert main(options) == 2
    assert "error:" in capsys.readouterr().err
