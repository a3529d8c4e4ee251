"""`policyengine run` with the model of a provider."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from policyengine.cli import main
from policyengine.cli.run import command
from tests.providers.asking import needed, no_proxy
from tests.providers.wire_server import chat, chat_stream, serve

__all__ = ["main", "no_proxy"]
needed("openai")


def run(*options: str):
    return CliRunner().invoke(command, list(options), standalone_mode=False)


@pytest.mark.parametrize("driver", [(), ("--async",)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_task_is_worked_on_by_the_model_of_a_provider_with_tools_of_ones_own(tmp_path, monkeypatch, stream, driver):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"own_tools_{stream}.py").write_text("def look(place: str) -> str:\n    return 'a key'\n")
    monkeypatch.setenv("ACME_KEY", "secret-1")
    told = [chat(None, [("a", "look", '{"place": "drawer"}')]), chat("In the drawer.")]
    with serve(*map(chat_stream, told) if stream else told) as wire:
        options = ["--model", "openai:m", "--base-url", f"{wire.url}/v1", "--api-key-env", "ACME_KEY"]
        options += ["--stream"] if stream else []
        result = run(*options, *driver, "--tools", f"own_tools_{stream}:look", "--json", "Where is it?")
    assert result.exception is None
    outcome = json.loads(result.stdout)
    assert (outcome["status"], outcome["output"], outcome["executed"]) == ("completed", "In the drawer.", 1)
    assert wire.headers[0]["authorization"] == "Bearer secret-1"
    assert wire.requests[0]["stream"] is True if stream else "stream" not in wire.requests[0]


def test_a_provider_in_a_file_is_used_and_in_the_text_protocol_no_tool_is_offered_twice(tmp_path):
    answer = json.dumps({"tool_name": "response", "tool_args": {"text": "Here."}})
    with serve(chat(answer)) as wire:
        path = tmp_path / "local.yaml"
        path.write_text(f"preset: vllm\nmodel: m\nbase_url: {wire.url}/v1\n")
        result = run("--model", str(path), "--protocol", "text", "--tools", "json:dumps", "--json", "Where?")
    assert json.loads(result.stdout)["output"] == "Here."
    assert "tools" not in wire.requests[0]
    assert "dumps" in wire.requests[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--model", "opnai:m", "x"), "did you mean .openai"),
        (("--model", "vllm:m"), "say what"),
        (("--model", "openai:m", "--api-key-env", "NO_SUCH_KEY", "x"), "NO_SUCH_KEY is not set"),
        (("--stream", "x"), "is for the model of a provider"),
        (("--model", "missing.yaml", "x"), "cannot read"),
    ],
)
def test_what_is_missing_is_said(options, reason):
    result = run(*options)
    assert result.exception is not None
    assert result.exc_info is not None
    with pytest.raises(type(result.exception), match=reason):
        raise result.exception
