"""Asking all pending prompts of one dataset: workers, journal, gate, stop signals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from eyas.errors import GateError
from eyas.generate import gate
from eyas.generate.client import ChatClient
from eyas.generate.entry import entry, held, judged, rejected, unjudged
from eyas.generate.failure import RowFailure
from eyas.generate.gate import Outcome
from eyas.generate.params import GenerateParams
from eyas.generate.progress import Counts, Display
from eyas.generate.record import read_answer
from eyas.generate.request import ChatRequest
from eyas.generate.stopping import run_until_stopped
from eyas.journal import Journal
from eyas.serving.endpoint import ModelInfo
from eyas.serving.params import ServerParams
from eyas.target.spec import TargetProfile

_TICK_S = 1.0


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, and how to notice that it is gone."""

    base_url: str
    model: ModelInfo
    check_alive: Callable[[], None]
    """Raises ServerError once a server of ours has ended."""


class Run:
    """One pass over the pending prompts of a dataset. Every answer is in the journal before it counts."""

    def __init__(
        self,
        name: str,
        journal: Journal,
        endpoint: Endpoint,
        profile: TargetProfile,
        params: GenerateParams,
        server: ServerParams,
    ) -> None:
        self._name = name
        self._journal = journal
        self._endpoint = endpoint
        self._profile = profile
        self._params = params
        self._server = server

    def complete(self, pending: Sequence[ChatRequest], total: int) -> Counts:
        """Ask the pending prompts of a dataset with `total` rows.

        Raises:
            GateError: the first answers are wrong, or more rows failed than the params allow.
            ServerError: a server of ours ended.
            JournalError: the journal can't be written.
            Interrupted: SIGINT or SIGTERM; requests in flight were abandoned, what had arrived is kept.
        """
        counts = Counts(total, total - len(pending))
        with Display(self._name, counts) as display:
            run_until_stopped(self._complete(pending, counts, display))
        self._journal.sync()
        return counts

    async def _complete(self, pending: Sequence[ChatRequest], counts: Counts, display: Display) -> None:
        landed = held(self._journal, pending)
        first = _without(gate.spread(pending), landed)
        try:
            async with (
                ChatClient(self._endpoint.base_url, self._server) as client,
                asyncio.TaskGroup() as group,
            ):
                ticker = group.create_task(self._tick(display))
                await self._ask_all(client, first, lambda outcome: self._land(outcome, landed))
                self._pass_gate(landed, counts)
                rest = _without(pending, landed)
                await self._ask_all(client, rest, lambda outcome: self._record(outcome, counts))
                ticker.cancel()
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from None

    def _land(self, outcome: Outcome, landed: list[Outcome]) -> None:
        """Keep an outcome of the first batch; it counts once the batch is judged."""
        self._journal.append(unjudged(outcome, self._endpoint.model))
        landed.append(outcome)

    def _pass_gate(self, landed: Sequence[Outcome], counts: Counts) -> None:
        """Judge the first batch and put the verdict into the journal."""
        answered = [outcome.request for outcome in landed if outcome.answer is not None]
        try:
            gate.judge(landed, self._params, self._profile, answered_before=len(self._journal) > 0)
        except GateError as error:
            for request in answered:
                self._journal.append(rejected(request, error.what))
            raise
        for request in answered:
            kept = self._journal.error(request.key)
            assert kept is not None
            self._journal.append(judged(kept))
        for outcome in landed:
            self._count(outcome, counts)

    async def _ask_all(
        self, client: ChatClient, requests: Iterable[ChatRequest], record: Callable[[Outcome], None]
    ) -> None:
        """Ask with so many workers: never more in flight, and every outcome recorded before the next request."""
        left = iter(requests)

        async def work() -> None:
            for request in left:
                record(await self._ask(client, request))

        async with asyncio.TaskGroup() as workers:
            for _ in range(self._server.concurrency):
                workers.create_task(work())

    async def _ask(self, client: ChatClient, request: ChatRequest) -> Outcome:
        max_tokens = self._params.max_tokens
        try:
            reply = await client.ask(request.body, lambda reply: read_answer(reply, max_tokens))
        except RowFailure as failure:
            return Outcome(request, None, failure)
        return Outcome(request, reply.result, None, reply.seconds, reply.attempts)

    def _record(self, outcome: Outcome, counts: Counts) -> None:
        self._journal.append(entry(outcome, self._endpoint.model))
        self._count(outcome, counts)

    def _count(self, outcome: Outcome, counts: Counts) -> None:
        counts.add(outcome)
        if counts.failed > self._params.max_failed_share * counts.total:
            raise too_many_failed(counts.failed, counts.total, self._params, outcome)

    async def _tick(self, display: Display) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._endpoint.check_alive()
            self._journal.sync_if_due()
            display.refresh()


def too_many_failed(failed: int, total: int, params: GenerateParams, example: Outcome) -> GateError:
    """The error of a run whose failed rows exceed the allowed share."""
    return GateError(
        f"{failed} of {total} rows failed, more than generate.max_failed_share {params.max_failed_share:g}; "
        f"the last one: {example.failure}",
        where=example.request.sample_id,
        hint="look at the server's log and run again: answered rows are kept, failed ones are asked again",
    )


def _without(requests: Sequence[ChatRequest], landed: Sequence[Outcome]) -> list[ChatRequest]:
    keys = {outcome.request.key for outcome in landed}
    return [request for request in requests if request.key not in keys]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception that is not a group."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
