"""The async client: asks until there is an answer, and knows whose fault it is when there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from eyas.generate.dialects.base import Dialect
from eyas.generate.endpoints import Lease
from eyas.generate.failure import Kind, RowFailure
from eyas.generate.pool import Pool
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.generate.retry import Patience
from eyas.generate.transport import Question, Transport
from eyas.serving.params import ServerParams

_BUSY = (429, 503)

OnFault = Callable[[RowFailure, str], None]
"""Called with a failure and the URL of its endpoint."""


@dataclass(frozen=True)
class Reply:
    """What became of a request and what it took: an answer, or a failure."""

    answer: Answer | None
    failure: RowFailure | None
    url: str | None
    """The endpoint that said so; None if none was asked."""
    attempts: int
    """POSTs."""
    seconds: float
    """Of the last one."""
    outages: int = 0
    """How often that endpoint had gone down before."""


class Client:
    """Async context manager: asks the endpoints of a pool in one dialect."""

    def __init__(
        self,
        pool: Pool,
        params: ServerParams,
        dialect: Dialect,
        *,
        backoff_base_s: float = 1.0,
        on_fault: OnFault | None = None,
    ) -> None:
        """`on_fault` is told of every failed attempt that will be tried again."""
        self._pool = pool
        self._params = params
        self._dialect = dialect
        self._backoff_base_s = backoff_base_s
        self._on_fault = on_fault
        self._transport = Transport(params)

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        self._pool.open(self._transport.is_healthy)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.close()
        await self._transport.__aexit__(kind, error, traceback)

    async def ask(self, request: ChatRequest) -> Reply:
        """Ask until there is an answer, or the row has failed for good or too often.

        Raises:
            ServerError: the server refuses everybody; see `Transport.exchange`.
        """
        try:
            question = Question.of(request, self._dialect)
        except RowFailure as error:
            return Reply(None, error, None, 0, 0.0)
        patience = Patience(self._params.max_attempts, self._params.give_up_after_s, self._backoff_base_s)
        posts = 0
        while True:
            lease = await self._pool.lease()
            posts += 1
            try:
                answer = await self._transport.exchange(lease.endpoint, question)
                self._pool.succeeded(lease)
                return _reply(answer, None, lease, posts)
            except RowFailure as failure:
                if await self._is_over(failure, lease, request.key, patience):
                    if failure.reason == "context_length":
                        failure.detail += f" (the prompt has {request.length} characters)"
                    return _reply(None, failure, lease, posts)
                if self._on_fault is not None:
                    self._on_fault(failure, lease.endpoint.url)
            finally:
                self._pool.release(lease)
            await asyncio.sleep(patience.pause_s)

    async def _is_over(self, failure: RowFailure, lease: Lease, key: str, patience: Patience) -> bool:
        """Whether nothing more can be done for a row; finds out whose fault the failure is."""
        if failure.kind is not Kind.TRANSIENT:
            self._pool.succeeded(lease)  # the server did its work
            return True
        if failure.status in _BUSY:
            self._pool.busy(lease, str(failure), failure.retry_after_s)
            if failure.status == 503:  # too much to do, or about to die?
                await self._pool.is_healthy(lease.endpoint, str(failure))
            return patience.refused(self._pool.succeeded_at)
        if await self._pool.blames(lease, key, str(failure)):
            return patience.spend(failure.retry_after_s)
        return patience.spare()


def _reply(answer: Answer | None, failure: RowFailure | None, lease: Lease, posts: int) -> Reply:
    seconds = time.monotonic() - lease.started
    return Reply(answer, failure, lease.endpoint.url, posts, seconds, lease.outages)
