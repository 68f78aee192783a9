"""The async client: one POST per attempt, as many connections as requests in flight, no hidden retries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx2
import openai

from eyas import jsonl
from eyas.errors import InputError
from eyas.generate.failure import Kind, RowFailure, transient
from eyas.generate.record import error_failure
from eyas.generate.retry import backoff_s, retry_after_s
from eyas.serving.endpoint import api_key, trusts_proxies
from eyas.serving.params import ServerParams

Result = TypeVar("Result")

_KEEPALIVE_S = 3.0
"""Shorter than the 5 s after which uvicorn drops idle connections: a POST must not meet a closing one."""


@dataclass(frozen=True)
class Reply(Generic[Result]):
    """A read reply and what it took."""

    result: Result
    attempts: int
    seconds: float
    """Of the last attempt."""


class ChatClient:
    """Async context manager over one endpoint.

    The SDK's own retries are off: they would start a second generation while the first still runs.
    """

    def __init__(self, base_url: str, params: ServerParams, backoff_base_s: float = 1.0) -> None:
        """`base_url` ends with /v1."""
        self._max_attempts = params.max_attempts
        self._backoff_base_s = backoff_base_s
        self._resume_at = 0.0
        timeout = httpx2.Timeout(params.request_timeout_s, connect=params.connect_timeout_s, pool=None)
        limits = httpx2.Limits(
            max_connections=params.concurrency,
            max_keepalive_connections=params.concurrency,
            keepalive_expiry=_KEEPALIVE_S,
        )
        self._sdk = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key(),
            max_retries=0,
            http_client=httpx2.AsyncClient(
                timeout=timeout, limits=limits, trust_env=trusts_proxies(base_url), follow_redirects=False
            ),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._sdk.close()

    async def ask(self, body: Mapping[str, Any], read: Callable[[Any], Result]) -> Reply[Result]:
        """POST a chat completion until `read` accepts the reply.

        Raises:
            RowFailure: permanent or unusable, or transient and out of attempts.
        """
        for attempt in range(1, self._max_attempts + 1):
            await self._wait_for_turn()
            started = time.monotonic()
            try:
                result = read(await self._post(body))
            except RowFailure as failure:
                if failure.kind is not Kind.TRANSIENT or attempt == self._max_attempts:
                    raise
                await self._back_off(failure, attempt)
            else:
                return Reply(result, attempt, time.monotonic() - started)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _post(self, body: Mapping[str, Any]) -> Any:
        try:
            response = await self._sdk.post("/chat/completions", body=dict(body), cast_to=httpx2.Response)
        except openai.APIStatusError as error:
            raise _status_failure(error.response) from error
        except openai.APITimeoutError as error:
            raise transient("timeout", "no answer within server.request_timeout_s") from error
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise transient("connection", f"{type(cause).__name__}: {cause}") from error
        return _json(response)

    async def _wait_for_turn(self) -> None:
        """Wait until the moment that a server asked all of us for with Retry-After."""
        await asyncio.sleep(max(0.0, self._resume_at - time.monotonic()))

    async def _back_off(self, failure: RowFailure, failures: int) -> None:
        if failure.retry_after_s is not None:
            self._resume_at = max(self._resume_at, time.monotonic() + failure.retry_after_s)
            return
        await asyncio.sleep(backoff_s(failures, self._backoff_base_s))


def _json(response: Any) -> Any:
    """The body of a status-200 reply."""
    body: bytes = response.content
    if not body.strip():
        raise transient("empty_body", "status 200 with an empty body")
    try:
        return jsonl.parse(body, "reply")
    except InputError as error:
        raise transient("not_json", error.what) from error


def _status_failure(response: Any) -> RowFailure:
    """The failure of a reply whose status is not 2xx. Error bodies come in two shapes, or as no JSON at all."""
    try:
        body = jsonl.parse(response.content, "reply")
    except InputError:
        body = None
    error: Any = {"message": response.text[:500] or f"status {response.status_code} without a body"}
    if isinstance(body, Mapping):
        error = body.get("error") or body
    if isinstance(error, Mapping):
        error = {"message": error.get("message") or str(dict(error))}  # the status is the code
    failure = error_failure(error, response.status_code)
    failure.retry_after_s = retry_after_s(response.headers.get("retry-after"))
    return failure
