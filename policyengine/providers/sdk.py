"""A model behind an SDK: one request is one call of the SDK, whole or as a stream that is assembled.

Knows: how a client is made and asked, synchronously or not, and what a failure becomes.
Must not know: any protocol; retries. Those of the SDKs are switched off, because the rules decide about them.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from json import JSONDecodeError
from time import monotonic
from typing import Any, Protocol, cast

import msgspec

from policyengine.agent import RequestError
from policyengine.errors import UsageError
from policyengine.masking import without_known
from policyengine.messages import Message, ModelRequest, ModelResponse, ProviderError
from policyengine.providers.config import Provider, key_of
from policyengine.providers.errors import REMEDIES, RETRY_SAME_REQUEST, ErrorClass, classify_provider_error
from policyengine.results.plain import encodable

Body = dict[str, Any]

MOST_PARTS = 10
"""How often a provider may pause one response, to be asked to go on with it."""


class Assembler(Protocol):
    """Puts the events of a stream together."""

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        raise NotImplementedError

    def whole(self) -> Mapping[str, Any]:
        """Return the body that the response would have had without a stream; raises `RequestError` if it is cut."""
        raise NotImplementedError


class Adapter(Protocol):
    """A protocol: how a request is written and a response read. The extra that installs `package` has its name."""

    package: str
    sync_client: str
    async_client: str

    def resource(self, client: Any) -> Any:
        """Return the method of a client that sends a request."""
        raise NotImplementedError

    def body(self, provider: Provider, request: ModelRequest) -> Body:
        """Return a request as the protocol has it."""
        raise NotImplementedError

    def read(self, body: Mapping[str, Any], model: str) -> ModelResponse:
        """Return the response in a body; raises `RequestError` where it holds none."""
        raise NotImplementedError

    def assembler(self) -> Assembler:
        """Return what puts one stream together."""
        raise NotImplementedError


class _Parts:
    """The answer to a request, in as many parts as the provider makes of it; `next` is the request for the next one."""

    def __init__(self, adapter: Adapter, body: Body) -> None:
        self.next: Body | None = body
        self._adapter = adapter
        self._body = body
        self._parts: list[Mapping[str, Any]] = []

    def take(self, answer: Any) -> None:
        """Take the next part, and find out whether it is the last."""
        answer = as_body(answer)
        self._parts.append(answer)
        more = getattr(self._adapter, "more", None)  # an adapter of a package may know of no parts
        self.next = more(self.next, answer) if more is not None else None
        if self.next is not None and len(self._parts) >= MOST_PARTS:
            raise failure("malformed_output", f"the provider paused the response {MOST_PARTS} times")

    def read(self) -> ModelResponse:
        """Return the response that the parts make together."""
        whole = self._parts[0] if len(self._parts) == 1 else cast(Any, self._adapter).joined(self._parts)
        return self._adapter.read(whole, self._body["model"])


class SdkModel:
    """The model of a provider, asked through an SDK. It may be shared by runs, threads and event loops.

    Asked within an event loop, `complete` returns an awaitable. `close` and `aclose` end the connections that are kept.
    """

    def __init__(self, provider: Provider, adapter: Adapter) -> None:
        self.name = provider.model
        self.provider = provider
        self._adapter = adapter
        self._sdk = _sdk(adapter)
        self._key = key_of(provider)
        self._lock = threading.Lock()
        self._client: Any = None
        self._aclients: dict[asyncio.AbstractEventLoop, Any] = {}

    def complete(self, request: ModelRequest) -> ModelResponse | Awaitable[ModelResponse]:
        """Return the answer of the provider.

        Raises:
            RequestError: the request failed, or its stream was cut.
        """
        body = _sendable(self._adapter.body(self.provider, request))
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._complete(body)
        return self._acomplete(loop, body)

    def close(self) -> None:
        """Close the connections of synchronous requests."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections that requests of this event loop have left open."""
        with self._lock:
            client = self._aclients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _complete(self, body: Body) -> ModelResponse:
        with self._failures():
            with self._lock:
                if self._client is None:
                    self._client = self._made(self._adapter.sync_client)
            send, parts = self._adapter.resource(self._client), _Parts(self._adapter, body)
            while parts.next is not None:
                if not self.provider.stream:
                    parts.take(send(**_arguments(send, parts.next)))
                    continue
                assembler, late = self._adapter.assembler(), self._deadline()
                with send(**_arguments(send, parts.next), stream=True) as stream:
                    for event in stream:
                        assembler.feed(as_body(event))
                        late()
                parts.take(assembler.whole())
            return parts.read()

    async def _acomplete(self, loop: asyncio.AbstractEventLoop, body: Body) -> ModelResponse:
        with self._failures():
            send, parts = self._adapter.resource(self._aclient(loop)), _Parts(self._adapter, body)
            while parts.next is not None:
                if not self.provider.stream:
                    parts.take(await send(**_arguments(send, parts.next)))
                    continue
                assembler, late = self._adapter.assembler(), self._deadline()
                async with await send(**_arguments(send, parts.next), stream=True) as stream:
                    async for event in stream:
                        assembler.feed(as_body(event))
                        late()
                parts.take(assembler.whole())
            return parts.read()

    def _aclient(self, loop: asyncio.AbstractEventLoop) -> Any:
        """Return the client of an event loop: connections do not outlive the loop that they were made in."""
        with self._lock:
            for old in [old for old in self._aclients if old.is_closed()]:
                del self._aclients[old]  # a client refers to its loop, so nothing else would let go of it
            client = self._aclients.get(loop)
            if client is None:
                client = self._aclients[loop] = self._made(self._adapter.async_client)
            return client

    def _made(self, name: str) -> Any:
        provider = self.provider
        return getattr(self._sdk, name)(
            api_key=self._key,
            base_url=provider.base_url or None,
            timeout=provider.timeout_s,
            max_retries=0,
            default_headers=provider.headers,
        )

    def _deadline(self) -> Callable[[], None]:
        """Return what is called after each event, and raises once the stream has taken too long."""
        limit = self.provider.stream_timeout_s
        ends = monotonic() + limit if limit is not None else None

        def check() -> None:
            if ends is not None and monotonic() > ends:
                raise failure("timeout", f"the stream was not complete after {limit:g} s")

        return check

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn whatever the SDK raises about a request into a `RequestError`."""
        try:
            yield
        except (RequestError, UsageError):
            raise
        except (JSONDecodeError, UnicodeDecodeError) as error:  # the body, or an event of a stream
            raise failure("malformed_output", f"the response cannot be read: {error}") from error
        except Exception as error:
            found = classify_provider_error(error)
            ours = type(error).__module__.split(".")[0] in (self._adapter.package, "httpx", "httpx2", "httpcore")
            if found.code == "unknown" and not ours:
                raise
            # What a traceback says of the cause is the provider's text; where it holds the key, it is left out.
            raise RequestError(found) from (error if without_known(str(error)) == str(error) else None)


def failure(code: ErrorClass, message: str, *, status: int | None = 200) -> RequestError:
    """Return a failure of a class, with what helps against it."""
    return RequestError(
        ProviderError(
            code,
            message[:2000],
            status=status,
            retry_same_request=code in RETRY_SAME_REQUEST,
            remedies=REMEDIES[code],
        )
    )


def cut(seen: str) -> RequestError:
    """Return the failure of a stream that ended without its end; `seen` says how far it came."""
    return failure("stream_cut", f"the stream ended before the response did ({seen})")


def declared_failure(body: Mapping[str, Any], otherwise: str) -> RequestError:
    """Return the failure that a body with status 200 declares, or one that says what is missing."""
    found = classify_provider_error(dict(body)) if body else None
    if found is None or (found.code == "unknown" and not body.get("error")):
        return failure("malformed_output", otherwise)
    return RequestError(found)


def blocked(reason: str, text: str) -> RequestError:
    """Return the failure of a response that the provider's filter ended: what came before is no answer."""
    said = f"the response was ended by the provider ({reason})"
    return failure("content_filter", f"{said}: {text}" if text else said)


def as_body(value: Any) -> dict[str, Any]:
    """Return what an SDK returned as plain data, unknown fields included."""
    if hasattr(value, "to_dict"):
        value = value.to_dict(mode="json", warnings=False)
    if not isinstance(value, dict):
        shown = str(value)[:200] if isinstance(value, str) else type(value).__name__
        raise failure("malformed_output", f"the response is no JSON object: {shown}")
    return value


def merged(provider: Provider, request: ModelRequest, body: Body, thinking: tuple[str, ...]) -> Body:
    """Return a body with the provider's options; without those about thinking where the model must not think."""
    options = dict(provider.options)
    if not request.thinking:
        extra = options.get("extra_body")
        if isinstance(extra, dict):
            options["extra_body"] = {name: item for name, item in extra.items() if name not in thinking}
        options = {name: item for name, item in options.items() if name not in thinking} | provider.thinking_off
    extra = options.pop("extra_body", None) or {}
    return {name: item for name, item in (body | options | extra).items() if item is not None}


def limit_of(provider: Provider, request: ModelRequest) -> int | None:
    """Return how many tokens an answer may have: the lower of the provider's and the request's limit."""
    return min((limit for limit in (provider.max_tokens, request.max_tokens) if limit is not None), default=None)


def message_text(message: Message) -> str:
    """Return the text of a message that is never empty: providers refuse those that are."""
    return message.text if message.text.strip() else "(empty)"


def raw_of(message: Any, shape: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any] | None:
    """Return the provider's mapping of a message if it is in the form that `shape` recognises."""
    raw = message.raw
    return raw if isinstance(raw, dict) and shape(raw) else None


def object_of(arguments: str, args: Any) -> dict[str, Any]:
    """Return the arguments of a call as an object; what is none was made one when it went into the history."""
    if isinstance(args, dict):
        return args
    try:
        read = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _sendable(body: Body) -> Body:
    """Return a body that UTF-8 can carry; names of files may hold what it cannot."""
    try:
        msgspec.json.encode(body)
    except UnicodeEncodeError:
        return cast(Body, _encodable(body))
    except (TypeError, ValueError, RecursionError, OverflowError):
        pass  # options of the provider may be what only its SDK can write
    return body


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {_encodable(name): _encodable(item) for name, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def _sdk(adapter: Adapter) -> Any:
    """Import the SDK, which is done only where a model of it is wanted."""
    try:
        return import_module(adapter.package)
    except ImportError as error:
        if error.name != adapter.package:
            raise UsageError(f"the package {adapter.package} cannot be imported: {error}") from error
        install = f"pip install 'agent-policyengine[{adapter.package}]'"
        raise UsageError(f"the package {adapter.package} is not installed: {install}") from error


def _arguments(send: Callable[..., Any], body: Body) -> dict[str, Any]:
    """Return a body as arguments of the SDK's method: what it has no parameter for goes in `extra_body`."""
    known = inspect.signature(send).parameters
    given = {name: item for name, item in body.items() if name in known}
    extra = {name: item for name, item in body.items() if name not in known}
    return {**given, "extra_body": extra} if extra else given
