"""Asking all pending prompts of one dataset: workers, journal, gate, stop signals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from eyas.generate.client import Client
from eyas.generate.conversation import Conversation
from eyas.generate.dialects.base import Dialect
from eyas.generate.endpoints import Endpoint
from eyas.generate.gate import Gate, Outcome
from eyas.generate.params import FIRST_BATCH, GenerateParams
from eyas.generate.pending import Pending
from eyas.generate.pool import Pool
from eyas.generate.progress import Counts, Display
from eyas.generate.recorder import Recorder
from eyas.generate.request import ChatRequest
from eyas.generate.stopping import run_until_stopped
from eyas.journal import Journal
from eyas.serving.endpoint import ModelInfo
from eyas.serving.params import ServerParams
from eyas.target.spec import TargetProfile

_TICK_S = 1.0
_PAUSE_S = 1.0
"""The first pause behind a failure of a row or a server; later ones are longer."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Servers:
    """Where to ask, and how to notice that a server of ours is gone."""

    models: dict[str, ModelInfo]
    """What each serves, by base URL."""
    check_alive: Callable[[], None] = lambda: None
    """Raises ServerError once a server of ours has ended."""


@dataclass(frozen=True)
class Asking:
    """How a run asks: the same for all datasets."""

    profile: TargetProfile
    params: GenerateParams
    server: ServerParams
    servers: Servers
    dialect: Dialect
    gate: Gate


class Run:
    """One pass over the pending prompts of a dataset. Every answer is in the journal before it counts."""

    def __init__(self, name: str, journal: Journal, asking: Asking) -> None:
        self._name = name
        self._journal = journal
        self._asking = asking

    def complete(self, pending: Pending, total: int) -> Counts:
        """Ask the pending prompts of a dataset with `total` turns.

        Raises:
            GateError: the first answers are wrong, or more rows failed than the params allow.
            ServerError: a server of ours ended, or none has answered for too long.
            JournalError: the journal can't be written.
            Interrupted: SIGINT or SIGTERM; requests in flight were abandoned, what had arrived is kept.
        """
        counts = Counts.resumed(
            total,
            pending.answered,
            self._journal.directory,
            self._asking.profile.think,
            refused=total - pending.answered - pending.turns,
        )
        with Display(self._name, counts, self._journal) as display:
            run_until_stopped(self._complete(pending, counts, display))
        self._journal.sync()
        return counts

    async def _complete(self, pending: Pending, counts: Counts, display: Display) -> None:
        asking = self._asking
        models = asking.servers.models
        pool = Pool([Endpoint(url, model) for url, model in models.items()], asking.server, _PAUSE_S)
        counts.endpoints = pool.to_json
        client = Client(
            pool, asking.server, asking.dialect, backoff_base_s=_PAUSE_S, on_fault=counts.add_fault
        )
        recorder = Recorder(self._journal, asking.gate, asking.params, models, counts, pending.turns)
        try:
            async with client, asyncio.TaskGroup() as group:
                ticker = group.create_task(self._tick(pool, display))
                first = pending.first(FIRST_BATCH)
                await self._ask_first(client, recorder, first)
                await self._each(chain(first, pending), lambda talk: self._converse(client, recorder, talk))
                recorder.finish()
                counts.all_asked = True
                ticker.cancel()
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from None

    async def _ask_first(self, client: Client, recorder: Recorder, first: Sequence[Conversation]) -> None:
        """Ask one turn of each of these conversations, and let the gate judge."""
        outcomes: dict[int, Outcome] = {}

        async def ask(number: int) -> None:
            request = first[number].next()
            if request is not None:  # none, if another conversation asks the same
                outcomes[number] = await self._ask(client, recorder, request)
                recorder.record(outcomes[number])

        await self._each(range(len(first)), ask)
        recorder.judge_first()
        for number, outcome in outcomes.items():
            _go_on(first[number], outcome)

    async def _converse(self, client: Client, recorder: Recorder, conversation: Conversation) -> None:
        """Ask the turns of a conversation one after another; each outcome is kept before the next request."""
        while (request := conversation.next()) is not None:
            outcome = await self._ask(client, recorder, request)
            recorder.record(outcome)
            _go_on(conversation, outcome)

    async def _ask(self, client: Client, recorder: Recorder, request: ChatRequest) -> Outcome:
        if (held := recorder.held(request)) is not None:
            return held
        reply = await client.ask(request)
        return Outcome(
            request, reply.answer, reply.failure, reply.seconds, reply.attempts, reply.url, reply.outages
        )

    async def _each(self, items: Iterable[Item], work: Callable[[Item], Awaitable[None]]) -> None:
        """Work through items with `server.concurrency` workers, so that never more requests are in flight."""
        left = iter(items)

        async def worker() -> None:
            for item in left:
                await work(item)

        async with asyncio.TaskGroup() as workers:
            for _ in range(self._asking.server.concurrency):
                workers.create_task(worker())

    async def _tick(self, pool: Pool, display: Display) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._asking.servers.check_alive()
            pool.check()
            self._journal.sync_if_due()
            display.refresh()


def _go_on(conversation: Conversation, outcome: Outcome) -> None:
    if outcome.answer is None:
        conversation.end()
    else:
        conversation.add(outcome.answer)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception that is not a group."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
