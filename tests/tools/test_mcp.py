"""Tools of a real MCP server, over stdio and over HTTP on the loopback interface."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from policyengine import Agent, Engine, UsageError, batch, call, say
from policyengine.identity import content_mark
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.providers.scripted import ScriptedModel
from policyengine.script import Script, ScriptedCall
from policyengine.tools.effects import with_effects
from policyengine.tools.mcp import McpServer

if "mcp" in os.environ.get("POLICYENGINE_NEEDS", "").split():
    import_module("mcp")
else:
    pytest.importorskip("mcp")

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: p\n"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


def stdio(marks: Path, **options) -> McpServer:
    return McpServer.over_stdio(sys.executable, [PROGRAM, str(marks)], **options)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def start_http(marks: Path, port: int) -> subprocess.Popen:
    program = [sys.executable, PROGRAM, str(marks), str(port)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.02)
    raise AssertionError("the server did not start")


@pytest.fixture(params=["stdio", "http"])
def server(request, tmp_path) -> Iterator[McpServer]:
    if request.param == "stdio":
        with stdio(tmp_path) as made:
            yield made
        return
    port = free_port()
    process = start_http(tmp_path, port)
    try:
        with McpServer.over_http(f"http://127.0.0.1:{port}/mcp", headers={"x-team": "blue"}) as made:
            yield made
    finally:
        process.kill()
        process.wait()


def results(server: McpServer, driver: str, *turns, policy: str = "default", **options):
    """Run a script with the server's tools and return the outcome and the texts of the results."""
    agent = Agent(Engine(policy), ScriptedModel(Script("t", (*turns, say("done")))), server.tools())
    outcome = asyncio.run(agent.arun("t", **options)) if driver == "async" else agent.run("t", **options)
    return outcome, [message.text for message in outcome.messages if message.role == "tool"]


DRIVERS = pytest.mark.parametrize("driver", ["sync", "async"])


def test_tools_are_listed_with_schemas_legal_names_and_the_effects_they_claim(server):
    tools = {tool.spec.name: tool for tool in server.tools()}
    assert set(tools) >= {"look", "put", "burn", "crash_now"}
    assert tools["look"].spec.description == "Look somewhere."
    assert tools["look"].spec.parameters["required"] == ["place"]
    assert [tools[name].effect for name in ("look", "put", "burn")] == ["read", "write", None]


@DRIVERS
def test_calls_of_a_batch_come_back_as_results_whatever_became_of_them(server, driver):
    calls = [
        ScriptedCall("look", {"place": "here"}),
        ScriptedCall("put", {"place": "there"}),
        ScriptedCall("burn", {"place": "wood"}),
        ScriptedCall("flagged"),
        ScriptedCall("picture"),
        ScriptedCall("look", {"nothing": 1}),
    ]
    outcome, texts = results(server, driver, batch(*calls))
    assert outcome.status == "completed"
    assert texts[0] == "a key lies here"
    assert "there" in texts[1]
    assert "wood is wet" in texts[2]
    assert texts[3] == "no such shelf"
    assert texts[4] == "seen\n[image, image/png, left out]"
    assert "place" in texts[5]


def test_failures_are_typed(server):
    async def go():
        asked = [("burn", {"place": "wood"}), ("flagged", {}), ("nothing", {}), ("look", {"place": "x"})]
        return [await server.call(name, arguments) for name, arguments in asked]

    burnt, flagged, unknown, fine = asyncio.run(go())
    assert (burnt.status, flagged.status, flagged.error.code) == ("error", "error", "error_flag")
    assert unknown.status == "error"
    assert (fine.status, fine.text) == ("ok", "a key lies x")


@DRIVERS
def test_a_call_that_takes_too_long_is_given_up_and_its_request_cancelled(tmp_path, driver):
    with stdio(tmp_path, timeout_s=0.3) as server:
        outcome, texts = results(server, driver, call("sleep", {"seconds": 60}), call("look", {"place": "here"}))
        assert texts[0].startswith("No result after 0.3 s")
        assert texts[1] == "a key lies here"
        assert outcome.status == "completed"
        wait_for(tmp_path / "cancelled")


@DRIVERS
def test_the_time_limit_of_the_policy_holds_for_tools_of_servers(tmp_path, driver):
    policy = tmp_path / "p.yaml"
    policy.write_text(f"{HEAD}tools: {{sleep: {{timeout: 300ms}}}}\n")
    with stdio(tmp_path) as server:
        _, texts = results(server, driver, call("sleep", {"seconds": 60}), policy=str(policy))
    assert "sleep" in texts[0]
    assert "0.3" in texts[0]


def test_a_cancelled_run_cancels_the_call_and_leaves_every_call_answered(tmp_path):
    with stdio(tmp_path) as server:
        turns = (batch(ScriptedCall("sleep", {"seconds": 60}), ScriptedCall("look", {"place": "x"})), say("done"))
        agent = Agent(Engine("default"), ScriptedModel(Script("t", turns)), server.tools())
        loop = agent.start()

        async def go() -> None:
            from policyengine.loop.state import Begin

            task = asyncio.ensure_future(agent.adrive(loop, Begin("t", None)))
            await asyncio.to_thread(wait_for, tmp_path / "slept")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(go())
        wait_for(tmp_path / "cancelled")
    asked = [item.id for message in loop.state.messages for item in message.tool_calls]
    answered = [message.tool_call_id for message in loop.state.messages if message.role == "tool"]
    assert len(asked) == 2
    assert asked == answered


def wait_for(path: Path) -> None:
    ends = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < ends, f"{path.name} did not happen"
        time.sleep(0.01)


@DRIVERS
def test_a_server_that_crashes_is_a_failed_call_and_the_next_call_reconnects(tmp_path, driver):
    with stdio(tmp_path) as server:
        outcome, texts = results(server, driver, call("crash_now"), call("look", {"place": "here"}))
    assert outcome.status == "completed"
    assert "went away during the call, which may have had an effect" in texts[0]
    assert texts[1] == "a key lies here"
    assert (tmp_path / "crashed").read_text() == "x"


def test_a_lost_call_that_only_reads_is_sent_again(tmp_path):
    with stdio(tmp_path) as server:
        _, texts = results(server, "sync", call("crash_once"))
    assert texts == ["second time"]
    assert (tmp_path / "once").read_text() == "xx"


def test_a_server_over_http_that_is_gone_is_a_typed_failure_and_is_found_again(tmp_path):
    port = free_port()
    process = start_http(tmp_path, port)
    with McpServer.over_http(f"http://127.0.0.1:{port}/mcp", connect_timeout_s=5) as server:
        ask = lambda: asyncio.run(server.call("look", {"place": "here"}))  # noqa: E731
        assert ask().text == "a key lies here"
        process.kill()
        process.wait()
        codes = [ask().error.code for _ in range(2)]
        assert codes[0] in ("mcp_gone", "mcp_unreachable", "mcp_refused")
        assert codes[1] == "mcp_unreachable"
        process = start_http(tmp_path, port)
        try:
            assert ask().text == "a key lies here"
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["-c", "import sys; sys.exit('no licence')"], "it said: no licence"),
        ([PROGRAM + ".missing"], "No such file"),
    ],
)
def test_a_server_that_cannot_be_started_says_why(args, reason):
    with McpServer.over_stdio(sys.executable, args) as server, pytest.raises(UsageError, match=reason):
        server.tools()


def test_a_command_that_there_is_not_is_a_usage_error():
    with McpServer.over_stdio("no-such-command-here") as server, pytest.raises(UsageError, match="no-such-command"):
        server.tools()


def test_a_server_that_says_nothing_is_given_up():
    silent = McpServer.over_stdio(sys.executable, ["-c", "import sys; sys.stdin.read()"], connect_timeout_s=0.5)
    with silent as server, pytest.raises(UsageError, match=r"no answer after 0\.5 s"):
        server.tools()


def test_a_closed_server_is_not_called(tmp_path):
    server = stdio(tmp_path, prefix="cellar.")
    assert server.tools().get("cellar_look") is not None
    server.close()
    server.close()
    with pytest.raises(UsageError, match="is closed"):
        server.tools()


def test_effects_that_tools_claim_count_only_where_the_policy_says_nothing(tmp_path):
    text = f"{HEAD}tools: {{put: {{effect: exec}}, l*: {{timeout: 3s}}}}\n"
    policy = load_policy_text(text, registry=builtin_registry())
    with stdio(tmp_path) as server:
        made = with_effects(policy, server.tools())
    assert (made.tool("put").effect, made.tool("burn").effect) == ("exec", "exec")
    assert (made.tool("look").effect, made.tool("look").timeout_s) == ("read", 3.0)
    assert made.digest != policy.digest
    assert Engine(made).snapshot.tool("look").effect == "read"


def odd(**options) -> McpServer:
    return McpServer.over_stdio(sys.executable, [str(Path(__file__).with_name("odd_mcp_server.py"))], **options)


def called(server: McpServer, *names: str) -> list[tuple[str, str]]:
    made = [asyncio.run(server.call(name, {}, again=True)) for name in names]
    return [(result.status, result.error.code if result.error else result.text) for result in made]


@pytest.mark.parametrize("name", ["new_block", "bad_structure"])
def test_an_answer_that_is_no_valid_result_leaves_the_server_as_it_is_and_is_not_asked_for_twice(name):
    with odd() as server:
        server.tools()
        assert called(server, "count", name, "count") == [
            ("ok", "call 1"),
            ("error", "mcp_unreadable"),
            ("ok", "call 3"),
        ]


def test_a_server_that_hangs_for_good_is_started_anew_once_two_calls_had_no_answer():
    with odd(timeout_s=0.3, connect_timeout_s=2) as server:
        server.tools()
        assert called(server, "hang", "count") == [("timeout", "timeout"), ("timeout", "timeout")]
        server.timeout_s = 10
        assert called(server, "count") == [("ok", "call 1")]


def test_images_are_compared_by_what_they_hold_and_never_shown(tmp_path):
    with stdio(tmp_path) as server:
        result = asyncio.run(server.call("picture", {}))
    assert result.text == "seen\n[image, image/png, left out]"
    assert result.beside == content_mark("image", "aGk=") != content_mark("image", "aGj=")
