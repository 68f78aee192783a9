"""Which endpoint a request goes to, how much each may have in flight, and which of them are down.

Two kinds of trouble cost no row an attempt. A *busy* endpoint (429, 503) gets a smaller window and a pause that all
requests share. An endpoint whose health check fails is *down*: it gets no requests until it is healthy, then one on
trial, then all. Only if a request fails and its endpoint proves healthy right behind it is the row to blame.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from eyas.errors import ServerError
from eyas.generate.endpoints import Endpoint, Lease, State
from eyas.generate.retry import backoff_s
from eyas.serving.params import ServerParams

logger = logging.getLogger(__name__)

BREAKER_ROWS = 3
"""So many different rows failing in a row are the endpoint's doing, however healthy it says it is."""
_LONGEST_PAUSE = 5.0
"""Of an endpoint that is down or on trial, in first pauses: one that comes back is used within seconds."""
_AT_WORK_S = 120.0
"""A request that a server has held for so long is being answered: while there is one, nobody gives up."""


Probe = Callable[[Endpoint], Awaitable[bool]]
"""Whether an endpoint says that it is healthy. Never raises."""


class Pool:
    """Gives each request an endpoint: one that is up, has room in its window, and has the least in flight.

    Belongs to one event loop. Each endpoint gets an equal share of `server.concurrency`; those that are up share
    what others leave.
    """

    def __init__(self, endpoints: Sequence[Endpoint], params: ServerParams, pause_s: float = 1.0) -> None:
        """`pause_s`: the first pause of a busy endpoint and between health checks; later ones are longer."""
        self.endpoints = list(endpoints)
        self._concurrency = params.concurrency
        self._give_up_after_s = params.give_up_after_s
        self._pause_s = pause_s
        self._waiting: deque[asyncio.Future[Lease]] = deque()
        self._leases: set[Lease] = set()
        self._wake: asyncio.TimerHandle | None = None
        self._polls: set[asyncio.Task[None]] = set()
        self._trouble_since: float | None = None
        self.succeeded_at = time.monotonic()
        """The last success, or when the pool was made."""

    def open(self, probe: Probe) -> None:
        """Set how health is checked, before the first lease."""
        self._probe = probe

    async def lease(self) -> Lease:
        """Wait for an endpoint with room; first come, first served."""
        if not self._waiting and (endpoint := self._choose()):
            return self._grant(endpoint)
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._dispatch()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(future.result())
            raise

    def release(self, lease: Lease) -> None:
        """Give a lease back without a verdict. Does nothing the second time."""
        if lease in self._leases:
            self._leases.remove(lease)
            lease.endpoint.in_flight -= not lease.is_stale
            self._dispatch()

    def succeeded(self, lease: Lease) -> None:
        """The endpoint did its work: it answered, or it refused this very request."""
        endpoint = lease.endpoint
        self.succeeded_at = time.monotonic()
        self._trouble_since = None
        endpoint.answered = True
        endpoint.pauses = 0
        endpoint.problem = None
        endpoint.failing.clear()
        endpoint.window.grow(self._share())
        if endpoint.state is State.TRIAL:
            endpoint.state = State.UP
            logger.info("%s answers again", endpoint.url)
        self.release(lease)

    def busy(self, lease: Lease, problem: str, retry_after_s: float | None) -> None:
        """The endpoint refused for now: halve its window, and pause it for as long as it asks, or ever longer."""
        endpoint, now = lease.endpoint, time.monotonic()
        self._note(endpoint, problem)
        if endpoint.window.cut(self._share(), lease.started, now):
            endpoint.pauses += 1
            if retry_after_s is None:
                retry_after_s = backoff_s(endpoint.pauses, self._pause_s)
        if retry_after_s is not None:
            endpoint.resume_at = max(endpoint.resume_at, now + retry_after_s)
        self.release(lease)

    async def blames(self, lease: Lease, key: str, problem: str) -> bool:
        """A request failed in a way that may be its own fault or the endpoint's: whether it is the row's.

        It is if the endpoint is healthy behind the failure, and was so all the time. If it is not, it is down from
        here on.
        """
        endpoint = lease.endpoint
        if lease.is_stale:
            self.release(lease)
            return False
        endpoint.failing.add(key)
        healthy = await self.is_healthy(endpoint, problem)
        self.release(lease)  # not before: the next one would only find out the same
        if not healthy:
            return False
        if endpoint.state is State.TRIAL or len(endpoint.failing) >= BREAKER_ROWS:
            self._put_on_trial(endpoint, problem)
        return True

    async def is_healthy(self, endpoint: Endpoint, problem: str) -> bool:
        """Check the health, once for all that ask at the same time; an unhealthy endpoint goes down."""
        asked_at = time.monotonic()
        async with endpoint.check:
            if endpoint.state is State.DOWN:
                return False
            if endpoint.checked_at < asked_at:
                endpoint.checked_at = time.monotonic()
                endpoint.healthy = await self._probe(endpoint)
            if not endpoint.healthy:
                self._take_down(endpoint, problem)
            return endpoint.healthy

    def check(self) -> None:
        """Call it about once a second.

        Raises:
            ServerError: there has been trouble and no success for `server.give_up_after_s`.
        """
        now = time.monotonic()
        if self._trouble_since is None or now - self._trouble_since < self._give_up_after_s:
            return
        if any(now - lease.started > _AT_WORK_S and not lease.is_stale for lease in self._leases):
            return
        raise ServerError(
            f"no server has answered for {now - self._trouble_since:.0f} s (server.give_up_after_s)",
            where="; ".join(
                f"{endpoint.url}: {endpoint.problem or 'nothing'}" for endpoint in self.endpoints
            ),
            hint="look at the server's log, start it again and run again: every answer that arrived is kept",
        )

    def to_json(self) -> list[dict[str, Any]]:
        """State of every endpoint, for progress displays."""
        return [endpoint.to_json(self._share()) for endpoint in self.endpoints]

    @property
    def in_flight(self) -> int:
        return len(self._leases)

    def close(self) -> None:
        """Stop polling."""
        for poll in self._polls:
            poll.cancel()
        if self._wake is not None:
            self._wake.cancel()

    def _choose(self) -> Endpoint | None:
        now, share = time.monotonic(), self._share()
        ready = [
            endpoint
            for endpoint in self.endpoints
            if endpoint.resume_at <= now and endpoint.in_flight < endpoint.limit(share)
        ]
        return min(ready, key=lambda endpoint: endpoint.in_flight, default=None)

    def _share(self) -> int:
        up = sum(endpoint.state is State.UP for endpoint in self.endpoints)
        return -(-self._concurrency // max(up, 1))

    def _grant(self, endpoint: Endpoint) -> Lease:
        lease = Lease(endpoint, time.monotonic(), endpoint.outages)
        endpoint.in_flight += 1
        self._leases.add(lease)
        return lease

    def _dispatch(self) -> None:
        """Serve those who wait, as far as there is room; come back when a pause ends."""
        while self._waiting:
            if self._waiting[0].done():  # cancelled
                self._waiting.popleft()
            elif endpoint := self._choose():
                self._waiting.popleft().set_result(self._grant(endpoint))
            else:
                self._dispatch_later()
                return

    def _dispatch_later(self) -> None:
        now = time.monotonic()
        pauses = [endpoint.resume_at for endpoint in self.endpoints if endpoint.resume_at > now]
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if pauses:
            loop = asyncio.get_running_loop()
            self._wake = loop.call_later(min(pauses) - now, self._dispatch)

    def _note(self, endpoint: Endpoint, problem: str) -> None:
        endpoint.problem = problem
        if self._trouble_since is None:
            self._trouble_since = time.monotonic()

    def _take_down(self, endpoint: Endpoint, problem: str) -> None:
        self._note(endpoint, problem)
        logger.warning("%s is down (%s); its rows wait, its health is polled", endpoint.url, problem)
        endpoint.state = State.DOWN
        endpoint.outages += 1
        endpoint.in_flight = 0
        poll = asyncio.create_task(self._poll(endpoint))
        self._polls.add(poll)
        poll.add_done_callback(self._polls.discard)
        self._dispatch()  # the others' shares have grown

    async def _poll(self, endpoint: Endpoint) -> None:
        polls = 0
        while True:
            polls += 1
            await asyncio.sleep(backoff_s(polls, self._pause_s, _LONGEST_PAUSE * self._pause_s))
            if await self._probe(endpoint):
                break
        endpoint.state = State.TRIAL
        endpoint.failing.clear()
        self._dispatch()

    def _put_on_trial(self, endpoint: Endpoint, problem: str) -> None:
        self._note(endpoint, problem)
        if endpoint.state is State.UP:
            logger.warning("%s is healthy but fails row after row (%s); one at a time", endpoint.url, problem)
        endpoint.state = State.TRIAL
        endpoint.pauses += 1
        endpoint.resume_at = time.monotonic() + backoff_s(
            endpoint.pauses, self._pause_s, _LONGEST_PAUSE * self._pause_s
        )
        self._dispatch()
