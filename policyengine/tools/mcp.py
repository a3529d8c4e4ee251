"""Tools of MCP servers, through the official SDK: a command on its stdin and stdout, or a URL (streamable HTTP).

Knows: connections, how tools are listed and called, what a result or a failure becomes.
Must not know: guards, the loop, policies.

The SDK is asynchronous and a connection belongs to one event loop, so each server has a thread with a loop of its own.
Its tools work with both drivers and with any number of runs.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import Any, TypeVar

import msgspec

from policyengine.errors import UsageError
from policyengine.identity import content_mark
from policyengine.messages import Effect, ToolError, ToolResult, ToolSpec
from policyengine.results import as_result, classify_tool_result
from policyengine.toolset import Tool, Toolset
from policyengine.workers import fault_text

T = TypeVar("T")

MAX_PAGES = 200
"""Pages of a list of tools that are asked for; a server that always has a next page must not hang a run."""

MAX_NAME = 64
GONE, UNREACHABLE, REFUSED, UNREADABLE = "mcp_gone", "mcp_unreachable", "mcp_refused", "mcp_unreadable"
"""Codes of failed calls: the server went away meanwhile, cannot be reached, answered with a protocol error, answered
with what is no result of the protocol."""

MOST_SILENCE = 2
"""After how many calls in a row without an answer a server is asked whether it is still there."""

PROBE_S = 5.0
"""How long it has for that."""

_STDERR_SHOWN = 500
_FAULT_SHOWN = 300
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")


class McpServer:
    """A connection to an MCP server; made by `over_stdio` or `over_http`, closed by `close` or at the end of a `with`.

    It connects when it is first needed, and again after the server went away. A call that was lost with the connection
    is sent again only if the tool claims to read only or to be idempotent; any other may have run, and its result says
    so.
    """

    def __init__(
        self,
        transport: Callable[[Any], Any],
        described: str,
        *,
        prefix: str = "",
        timeout_s: float = 60.0,
        connect_timeout_s: float = 30.0,
        stderr: Any = None,
    ) -> None:
        self._sdk = _sdk()
        self.described = described
        self.prefix = prefix
        self.timeout_s = timeout_s
        self.connect_timeout_s = connect_timeout_s
        self._transport = transport
        self._stderr = stderr
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._link: _Link | None = None

    @classmethod
    def over_stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        **options: Any,
    ) -> McpServer:
        """Return a server that is started as a command.

        It gets a few harmless variables of this process's environment, and `env`. What it writes to stderr is shown
        only where it cannot be started. `options`: `prefix` of all its tools' names, `timeout_s` of a call,
        `connect_timeout_s`.
        """
        log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed by `close`

        def transport(sdk: Any) -> Any:
            extra = dict(env) if env is not None else None
            parameters = sdk.StdioServerParameters(command=command, args=list(args), env=extra, cwd=cwd)
            return sdk.stdio_client(parameters, errlog=log)

        return cls(transport, " ".join([command, *args]), stderr=log, **options)

    @classmethod
    def over_http(cls, url: str, *, headers: Mapping[str, str] | None = None, **options: Any) -> McpServer:
        """Return a server at a URL; `options` as for `over_stdio`."""

        def transport(sdk: Any) -> Any:
            return _http(url, dict(headers or {}))

        return cls(transport, url, **options)

    def __enter__(self) -> McpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tools(self) -> Toolset:
        """Return the server's tools as they are now, under names that providers accept.

        Raises:
            UsageError: the server cannot be reached or started, or two of its tools get the same name.
        """
        return Toolset(self._tool(listed) for listed in self._wait(self._listed()))

    def close(self) -> None:
        """Close the connection and stop what was started; calls that are open fail."""
        with self._lock:
            loop, thread, self._closed = self._loop, self._thread, True
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(self._hang_up(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
        if self._stderr is not None:
            self._stderr.close()

    async def call(self, name: str, arguments: dict[str, Any], *, again: bool = False) -> ToolResult:
        """Call a tool by the server's own name for it; whatever goes wrong is the result.

        With `again` the call is sent a second time if the connection was lost. Cancelling it cancels the request.
        """
        return await asyncio.wrap_future(self._submit(self._called(name, arguments, again)))

    # ---- in the server's own loop

    async def _called(self, name: str, arguments: dict[str, Any], again: bool) -> ToolResult:
        try:
            link = await self._linked()
        except _UnreachableError as error:
            return _failed(UNREACHABLE, f"The tool's server cannot be reached: {error}", True)
        try:
            async with asyncio.timeout(self.timeout_s):
                answer = await link.client.call_tool(name, arguments)
            link.silent = 0
            return result_of_answer(answer, name)
        except TimeoutError:
            link.silent += 1
            if link.silent >= MOST_SILENCE and not await self._answers(link):
                await self._drop(link)  # it hangs for good: the next call starts it anew
            text = f"No result after {self.timeout_s:g} s; the call was given up and may have had an effect."
            return ToolResult("", text, "timeout", ToolError("timeout", text))
        except self._sdk.MCPError as error:
            if not link.lost(error):
                return _failed(REFUSED, f"The tool's server refused the call: {error}", False)
        except Exception as error:  # noqa: BLE001 - a transport may raise anything, and so may what reads an answer
            link.fault = fault_text(error)
            if await self._answers(link):
                said = f"The tool's server gave an answer that is no valid result; the tool may have run. {link.fault}"
                return _failed(UNREADABLE, said[:_FAULT_SHOWN], False)
        await self._drop(link)
        if again:
            return await self._called(name, arguments, False)
        return _failed(GONE, "The tool's server went away during the call, which may have had an effect.", False)

    async def _answers(self, link: _Link) -> bool:
        """Return whether a server is still there, whatever became of a call."""
        if link.task.done():
            return False
        try:
            async with asyncio.timeout(min(PROBE_S, self.connect_timeout_s)):
                await link.client.list_tools(cache_mode="refresh")  # newer servers know no ping
        except self._sdk.MCPError as error:
            return not link.lost(error)
        except Exception:  # noqa: BLE001 - whatever a transport raises, nobody answered
            return False
        return True

    async def _listed(self) -> list[Any]:
        try:
            link = await self._linked()
            found: list[Any] = []
            cursor: str | None = None
            async with asyncio.timeout(self.connect_timeout_s):
                for _ in range(MAX_PAGES):
                    page = await link.client.list_tools(cursor=cursor, cache_mode="refresh")
                    found += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        return found
        except (_UnreachableError, TimeoutError, self._sdk.MCPError) as error:
            await self._drop(self._link)
            said = str(error) or f"no answer after {self.connect_timeout_s:g} s"
            raise UsageError(f"MCP server {self.described}: {said}{self._last_words()}") from error
        raise UsageError(f"MCP server {self.described}: its list of tools does not end")

    async def _linked(self) -> _Link:
        """Return a connection that works as far as is known, made now if there is none."""
        link = self._link
        if link is None or link.task.done():
            link = self._link = _Link(self._sdk.Client, lambda: self._transport(self._sdk))
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                await asyncio.shield(link.ready)
        except TimeoutError as error:
            await self._drop(link)
            raise _UnreachableError(f"no answer after {self.connect_timeout_s:g} s") from error
        except _UnreachableError:
            await self._drop(link)
            raise
        return link

    async def _drop(self, link: _Link | None) -> None:
        """Forget a connection, and end it without waiting for ever."""
        if link is None:
            return
        if self._link is link:
            self._link = None
        await link.end()

    async def _hang_up(self) -> None:
        await self._drop(self._link)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()

    # ---- from other threads

    def _submit(self, work: Coroutine[Any, Any, T]) -> Any:
        with self._lock:
            if self._closed:
                work.close()
                raise UsageError(f"MCP server {self.described} is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = f"policyengine-mcp {self.described}"[:60]
                self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        done: T = self._submit(work).result()
        return done

    def _tool(self, listed: Any) -> Tool:
        hints = listed.annotations
        reads = hints is not None and hints.read_only_hint is True
        again = reads or (hints is not None and hints.idempotent_hint is True)

        async def call(**arguments: Any) -> ToolResult:
            return await self.call(listed.name, arguments, again=again)

        name = _ILLEGAL.sub("_", f"{self.prefix}{listed.name}")[:MAX_NAME]
        spec = ToolSpec(name, listed.description or listed.title or "", dict(listed.input_schema))
        return Tool(spec, call, True, _effect(hints))

    def _last_words(self) -> str:
        """Return the end of what a command wrote to stderr, for the person who cannot start it."""
        if self._stderr is None:
            return ""
        with suppress(OSError, ValueError):
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, size - _STDERR_SHOWN))
            said = self._stderr.read().strip()
            return f"; it said: {said}" if said else ""
        return ""


class _UnreachableError(Exception):
    """A server that cannot be started, or does not answer."""


class _Link:
    """One connection. A task of its own opens and closes it: the SDK wants both in the same task."""

    def __init__(self, client: Callable[..., Any], transport: Callable[[], Any]) -> None:
        self.client: Any = None
        self.fault = ""
        self.silent = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self.task = asyncio.ensure_future(self._live(client, transport))

    async def _live(self, client: Callable[..., Any], transport: Callable[[], Any]) -> None:
        try:
            async with client(transport(), cache=None) as self.client:
                self.ready.set_result(None)
                await self._ending.wait()
        except Exception as error:  # noqa: BLE001 - a server that cannot be started may fail in any way
            if not self.ready.done():
                self.ready.set_exception(_UnreachableError(_innermost(error)))
        finally:
            if not self.ready.done():
                self.ready.set_exception(_UnreachableError("the connection was closed"))
            if not self.ready.cancelled():
                self.ready.exception()  # somebody else may have given up waiting for it

    def lost(self, error: Any) -> bool:
        """Return whether an error says that the connection is closed, not that the server refused a request."""
        code = import_module("mcp_types").CONNECTION_CLOSED
        return bool(error.code == code or self.task.done())

    async def end(self) -> None:
        """Close the connection; one that cannot be closed is given up."""
        self._ending.set()
        if not self.ready.done():
            self.task.cancel()
        await asyncio.wait({self.task}, timeout=10)
        if not self.task.done():
            self.task.cancel()


@asynccontextmanager
async def _http(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    """Yield the streams of a URL, over a client that is closed with them."""
    http = import_module("httpx2")
    connect = import_module("mcp.client.streamable_http").streamable_http_client
    # A server may hold a stream open for long; how long a call may take is for `timeout_s` to say.
    timeout = http.Timeout(30, read=None)
    async with (
        http.AsyncClient(headers=headers, timeout=timeout) as client,
        connect(url, http_client=client) as streams,
    ):
        yield streams


def _effect(hints: Any) -> Effect | None:
    """Return the effect a tool claims: to read only, or to write without destroying. Anything else claims nothing."""
    if hints is None:
        return None
    if hints.read_only_hint is True:
        return "read"
    return "write" if hints.destructive_hint is False else None


def result_of_answer(answer: Any, name: str) -> ToolResult:
    """Return a result of the protocol as ours: a flag that says it failed, structured content, blocks as text."""
    body: dict[str, Any] = {"content": [_block(block) for block in answer.content], "isError": bool(answer.is_error)}
    if answer.structured_content is not None:
        body["structuredContent"] = answer.structured_content
    result = as_result("", classify_tool_result(body, tool=name, kind="structured"))
    beside = " ".join(filter(None, map(_beside, answer.content)))
    return msgspec.structs.replace(result, beside=beside) if beside else result


def _beside(block: Any) -> str:
    """Return what stands for the data of a block that is no text, the same for the same data."""
    plain = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    data = plain.get("data") or plain.get("resource", {}).get("blob")
    return content_mark(str(plain.get("type")), data) if isinstance(data, str) else ""


def _block(block: Any) -> dict[str, Any]:
    """Return a content block as text; of what is no text the model is told what it was."""
    plain = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    match plain.get("type"):
        case "text":
            text = plain["text"]
        case "image" | "audio" as kind:
            text = f"[{kind}, {plain.get('mimeType', 'of unknown type')}, left out]"
        case "resource_link":
            text = f"[resource {plain.get('name', '')}: {plain.get('uri', '')}]"
        case "resource":
            inner = plain.get("resource", {})
            text = inner.get("text") or f"[resource {inner.get('uri', '')}, left out]"
        case kind:
            text = f"[{kind}, left out]"
    return {"type": "text", "text": text}


def _failed(code: str, text: str, retryable: bool) -> ToolResult:
    return ToolResult("", text, "error", ToolError(code, text, retryable))


def _innermost(error: BaseException) -> str:
    """Return the first fault inside the groups that task groups wrap around it."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return fault_text(error)


def _sdk() -> Any:
    """Import the SDK, which is done only where a server is wanted."""
    try:
        return import_module("mcp")
    except ImportError as error:
        if error.name != "mcp":
            raise UsageError(f"the package mcp cannot be imported: {error}") from error
        raise UsageError("the package mcp is not installed: pip install 'agent-policyengine[mcp]'") from error
