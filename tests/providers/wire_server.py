"""A server on the loopback interface that speaks the wire protocols of providers, and says what a script says.

Requests are answered in order, one `Reply` each, and kept as they came. Builders write replies as the providers do.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

End = Literal["whole", "ended", "closed", "reset"]
"""How a stream ends: whole; ended as if nothing were missing; the connection closed; the connection reset."""


@dataclass(frozen=True)
class Reply:
    """One answer. With `events` it is a stream, of which `sent` events are sent before it ends as `end` says.

    `hold` keeps the answer (of a stream: its rest) until the server is closed: the client has to give up.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    events: tuple[Any, ...] = ()
    sent: int | None = None
    end: End = "whole"
    hold: bool = False


@dataclass
class Wire:
    """The address of a running server, and what it was asked."""

    url: str
    replies: list[Reply]
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve(*replies: Reply) -> Iterator[Wire]:
    """Run a server that gives these replies in order; past the end it answers with status 500."""
    wire = Wire("", list(replies))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers.get("content-length", 0))
            wire.requests.append(json.loads(self.rfile.read(size)))
            wire.headers.append({name.lower(): item for name, item in self.headers.items()})
            wire.paths.append(self.path)
            wire.asked.set()
            answer(self, wire.replies.pop(0) if wire.replies else Reply({"error": {"message": "over"}}, 500), wire)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    wire.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        wire.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def answer(handler: Any, reply: Reply, wire: Wire) -> None:
    """Write a reply to the client."""
    if reply.events:
        _stream(handler, reply, wire)
        return
    if reply.hold:
        wire.closing.wait(60)
        return
    if reply.end == "reset":
        _reset(handler)
        return
    data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
    handler.send_response(reply.status)
    for name, item in ({"content-type": "application/json"} | reply.headers).items():
        handler.send_header(name, item)
    handler.send_header("content-length", str(len(data) + (10 if reply.end == "closed" else 0)))
    handler.end_headers()
    handler.wfile.write(data)
    handler.close_connection = reply.end == "closed"


def _stream(handler: Any, reply: Reply, wire: Wire) -> None:
    handler.send_response(200)
    for name, item in ({"content-type": "text/event-stream"} | reply.headers).items():
        handler.send_header(name, item)
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    for event in reply.events[: reply.sent]:
        data = event if isinstance(event, bytes) else _event(event)
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
    handler.wfile.flush()
    if reply.hold:
        wire.closing.wait(60)
    elif reply.end == "reset":
        _reset(handler)
    elif reply.end == "closed":
        handler.close_connection = True
    else:
        handler.wfile.write(b"0\r\n\r\n")


def _event(event: Any) -> bytes:
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    named = f"event: {event['type']}\n" if isinstance(event.get("type"), str) else ""
    return f"{named}data: {json.dumps(event)}\n\n".encode()


def _reset(handler: Any) -> None:
    handler.close_connection = True
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.wfile = handler.rfile = _Nothing()


class _Nothing:
    closed = True

    def close(self) -> None:
        pass

    def flush(self) -> None:
        pass


# ---- chat completions


def chat(text: str | None = None, calls: Sequence[tuple[str, str, str]] = (), **facts: Any) -> Reply:
    """Return a chat completion; `calls` are ids, names and arguments; `facts` go into the message or the choice."""
    finish = facts.pop("finish_reason", "tool_calls" if calls else "stop")
    usage = facts.pop("usage", {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18})
    message: dict[str, Any] = {"role": "assistant", "content": text, **facts}
    if calls:
        message["tool_calls"] = [_chat_call(*call) for call in calls]
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return Reply({"id": "c1", "object": "chat.completion", "model": "served", "choices": [choice], "usage": usage})


def _chat_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_stream(reply: Reply, *, size: int = 4, done: bool = True, **how: Any) -> Reply:
    """Return the stream of a chat completion, with texts and arguments in pieces of so many characters."""
    choice = reply.body["choices"][0]
    message = dict(choice["message"])
    calls = message.pop("tool_calls", [])
    content = message.pop("content")
    deltas: list[dict[str, Any]] = [{"role": message.pop("role"), "content": ""}]
    for name, item in message.items():
        deltas += [{name: piece} for piece in pieces(item, size)] if isinstance(item, str) else [{name: item}]
    deltas += [{"content": piece} for piece in pieces(content or "", size)]
    for index, call in enumerate(calls):
        function = call["function"]
        deltas.append({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in pieces(function["arguments"], size)
        ]
    events = [_chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    events.append(_chunk([{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]))
    events.append({**_chunk([]), "usage": reply.body["usage"]})
    return Reply(events=(*events, *(["[DONE]"] if done else [])), **how)


def _chunk(choices: list[Any]) -> dict[str, Any]:
    return {"id": "c1", "object": "chat.completion.chunk", "model": "served", "choices": choices}


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


# ---- Responses


def response(*items: dict[str, Any], **facts: Any) -> Reply:
    """Return a response of Responses with these items of output."""
    usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
    body = {"id": "r1", "object": "response", "status": "completed", "model": "served", "error": None}
    return Reply({**body, "incomplete_details": None, "output": list(items), "usage": usage, **facts})


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def called(id: str, name: str, arguments: str) -> dict[str, Any]:
    item = {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name}
    return {**item, "arguments": arguments, "status": "completed"}


def thought(text: str, encrypted: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": encrypted}


def response_stream(reply: Reply, *, bare_end: bool = False, **how: Any) -> Reply:
    """Return the stream of a response; with `bare_end` the last event leaves out the items."""
    body = reply.body
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for place, item in enumerate(body["output"]):
        events.append({"type": "response.output_item.added", "output_index": place, "item": item})
        if item["type"] == "function_call":
            facts = {"item_id": item["id"], "output_index": place}
            events += [
                {"type": "response.function_call_arguments.delta", "delta": piece, **facts}
                for piece in pieces(item["arguments"], 4)
            ]
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    events.append({"type": f"response.{body['status']}", "response": {**body, "output": []} if bare_end else body})
    return Reply(events=tuple({**event, "sequence_number": number} for number, event in enumerate(events)), **how)


# ---- Messages


def message(*blocks: dict[str, Any], stop_reason: str | None = None, **facts: Any) -> Reply:
    """Return a message of Anthropic's with these blocks."""
    calls = any(block["type"] == "tool_use" for block in blocks)
    reason = stop_reason or ("tool_use" if calls else "end_turn")
    usage = {"input_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2, "output_tokens": 7}
    body = {"id": "m1", "type": "message", "role": "assistant", "model": "served", "content": list(blocks)}
    return Reply({**body, "stop_reason": reason, "stop_sequence": None, "usage": usage, **facts})


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def thinking_block(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def use_block(id: str, name: str, input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def message_stream(reply: Reply, *, arguments: str | None = None, **how: Any) -> Reply:
    """Return the stream of a message; `arguments` are sent as the text of every call's input instead of its JSON."""
    body = reply.body
    usage = {**body["usage"], "output_tokens": 1}
    start = {**body, "content": [], "stop_reason": None, "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(body["content"]):
        begun, deltas = _block_deltas(block, arguments)
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": body["usage"]["output_tokens"]}})
    events.append({"type": "message_stop"})
    return Reply(events=tuple(events), **how)


def _block_deltas(block: dict[str, Any], arguments: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"], 4)]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"], 4)]
            begun = {**block, "thinking": "", "signature": ""}
            return begun, [*deltas, {"type": "signature_delta", "signature": block["signature"]}]
        case "tool_use":
            told = arguments if arguments is not None else json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(told, 4)]]
            return {**block, "input": {}}, deltas
    return block, []
