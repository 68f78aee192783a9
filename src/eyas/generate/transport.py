"""HTTP: one POST, its reply read to the end in whatever form it comes, and health checks.

aiohttp rather than httpx2 or the openai SDK: with a thousand requests in flight their pools take several times as long as
the whole client here (benchmarks/generate.py). Nothing is sent twice: aiohttp repeats idempotent methods only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from eyas import jsonl
from eyas.errors import InputError, ServerError
from eyas.generate.dialects.base import Dialect
from eyas.generate.endpoints import Endpoint
from eyas.generate.failure import Kind, error_failure, transient
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.generate.retry import retry_after_s
from eyas.generate.sockets import allow_connections, keep_alive_socket
from eyas.generate.sse import DONE, Decoder
from eyas.serving.endpoint import api_key, effective_proxy, server_root
from eyas.serving.params import ServerParams

_KEEPALIVE_S = 3.0
"""Shorter than the 5 s after which uvicorn drops idle connections: a POST must not meet a closing one."""
_HEALTH_TIMEOUT_S = 30.0
_DRAIN_S = 1.0
_MOVED = (301, 302, 303, 307, 308)
_KEY_REFUSED = (401, 407)
_NO_SUCH_PAGE = (404, 405)


@dataclass(frozen=True)
class Question:
    """A request in the form in which it is sent."""

    request: ChatRequest
    dialect: Dialect
    body: bytes
    streams: bool

    @classmethod
    def of(cls, request: ChatRequest, dialect: Dialect) -> Question:
        """Make the body.

        Raises:
            RowFailure: the dialect can't express the request.
        """
        body = dialect.body(request)
        return cls(request, dialect, jsonl.encode(body), bool(body.get("stream")))

    def read(self, reply: Any) -> Answer:
        return self.dialect.read(reply, self.request)


class Transport:
    """Async context manager over the connections of a run. Any number of requests may be in flight."""

    def __init__(self, params: ServerParams) -> None:
        allow_connections(params.concurrency)
        self._params = params
        self._plain = self._timeout(None)
        self._streaming = self._timeout(params.idle_timeout_s)
        self._proxies: dict[str, str | None] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # how many requests are in flight is the pool's business
                keepalive_timeout=_KEEPALIVE_S,
                socket_factory=keep_alive_socket,
            ),
            headers={"Authorization": f"Bearer {api_key()}", "Content-Type": "application/json"},
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # proxies are given with each request, and ~/.netrc must not replace our key
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def exchange(self, endpoint: Endpoint, question: Question) -> Answer:
        """POST a request and read its answer. An exchange that is cancelled or fails closes its connection.

        Raises:
            RowFailure: no answer.
            ServerError: the server refuses the key, has moved, or never knew this path.
        """
        try:
            async with self._session.post(
                endpoint_url(endpoint.url, question.dialect.path),
                data=question.body,
                timeout=self._streaming if question.streams else self._plain,
                proxy=self._proxy(endpoint.url),
                allow_redirects=False,
            ) as response:
                if not 200 <= response.status < 300:
                    raise _refusal(endpoint, response, await response.read())
                if response.content_type == "text/event-stream":
                    return await _collect(response, question)
                return question.read(_json(await response.read()))
        except TimeoutError as error:
            raise transient("timeout", f"no answer in time: {error or type(error).__name__}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise transient("connection", f"{type(error).__name__}: {error}") from error

    async def is_healthy(self, endpoint: Endpoint) -> bool:
        """Ask /health, or the model list where there is no such page. An answer that is no 5xx is a good one."""
        for url in (f"{server_root(endpoint.url)}/health", f"{endpoint.url}/models"):
            timeout = aiohttp.ClientTimeout(total=_HEALTH_TIMEOUT_S)
            try:
                async with self._session.get(
                    url, timeout=timeout, proxy=self._proxy(endpoint.url)
                ) as response:
                    status = response.status
            except (aiohttp.ClientError, OSError, TimeoutError):
                return False
            if status not in _NO_SUCH_PAGE:
                return status < 500
        return True

    def _timeout(self, idle_s: float | None) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(
            total=self._params.request_timeout_s,
            sock_connect=self._params.connect_timeout_s,
            sock_read=idle_s,
        )

    def _proxy(self, url: str) -> str | None:
        if url not in self._proxies:
            self._proxies[url] = effective_proxy(url)
        return self._proxies[url]


def endpoint_url(base_url: str, path: str) -> str:
    """Where a dialect's path is: /v1/... behind the base URL, whatever that ends with; other paths at the root."""
    if path.startswith("/v1/"):
        return base_url + path.removeprefix("/v1")
    return server_root(base_url) + path


async def _collect(response: aiohttp.ClientResponse, question: Question) -> Answer:
    """Read an event stream. The answer is there with `[DONE]`, or without it at the end of the stream."""
    collector, decoder = question.dialect.collector(question.request), Decoder()
    async for chunk in response.content.iter_any():
        for payload in decoder.feed(chunk):
            if payload == DONE:
                await _drain(response)
                return collector.answer(done=True)
            collector.feed(_json(payload))
    for payload in decoder.close():
        if payload == DONE:
            return collector.answer(done=True)
        collector.feed(_json(payload))
    return collector.answer(done=False)


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the few bytes behind `[DONE]`, so that the connection can serve the next request; else it is closed."""
    try:
        async with asyncio.timeout(_DRAIN_S):
            await response.content.read()
    except (TimeoutError, aiohttp.ClientError):
        response.close()


def _json(body: bytes) -> Any:
    if not body.strip():
        raise transient("empty_body", "status 200 with an empty body")
    try:
        return jsonl.parse(body, "reply")
    except InputError as error:
        raise transient("not_json", error.what) from error


def _refusal(endpoint: Endpoint, response: aiohttp.ClientResponse, body: bytes) -> Exception:
    """What a reply stands for whose status is not 2xx. Error bodies come in two shapes, or as no JSON at all."""
    status = response.status
    failure = error_failure(_error(body) or f"status {status} without a body", status)
    failure.retry_after_s = retry_after_s(response.headers.get("Retry-After"))
    if status in _MOVED:
        target = response.headers.get("Location", "nowhere")
        return _misplaced(
            endpoint, f"the server sends us on to {target}", "set OPENAI_BASE_URL to the final address"
        )
    if status in _KEY_REFUSED:
        return _misplaced(endpoint, f"the server refuses the key: {failure.detail}", "set OPENAI_API_KEY")
    if status in _NO_SUCH_PAGE and not endpoint.answered:
        hint = "check OPENAI_BASE_URL (it ends with /v1), generate.dialect and the served model name"
        return _misplaced(endpoint, f"the server answers with status {status}: {failure.detail}", hint)
    if status in _NO_SUCH_PAGE:  # it has answered before: a gateway whose server is away
        failure.kind = Kind.TRANSIENT
    return failure


def _misplaced(endpoint: Endpoint, what: str, hint: str) -> ServerError:
    return ServerError(what, where=endpoint.url, hint=hint)


def _error(body: bytes) -> Any:
    try:
        value = json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()[:500]
    return (value.get("error") or value) if isinstance(value, Mapping) else str(value)
