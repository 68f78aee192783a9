"""Asking all pending prompts of one dataset: workers, journal, gate, stop signals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.errors import GateError
from eyas.generate import gate
from eyas.generate.client import ChatClient
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
        first = gate.spread(pending)
        begun = {request.key for request in first}
        rest = iter([request for request in pending if request.key not in begun])
        try:
            async with (
                ChatClient(self._endpoint.base_url, self._server) as client,
                asyncio.TaskGroup() as group,
            ):
                ticker = group.create_task(self._tick(display))
                await self._pass_gate(client, first, counts)
                async with asyncio.TaskGroup() as workers:
                    for _ in range(self._server.concurrency):
                        workers.create_task(self._work(client, rest, counts))
                ticker.cancel()
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from None

    async def _pass_gate(self, client: ChatClient, first: Sequence[ChatRequest], counts: Counts) -> None:
        """Ask the first batch in the same way as the rest; nothing is kept of it unless it is right."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(client, request)) for request in first]
        outcomes = [task.result() for task in tasks]
        gate.judge(outcomes, self._params, self._profile)
        for outcome in outcomes:
            self._record(outcome, counts)

    async def _work(self, client: ChatClient, requests: Iterator[ChatRequest], counts: Counts) -> None:
        """Take the next request until there is none: never more in flight than workers, whatever the total."""
        for request in requests:
            self._record(await self._ask(client, request), counts)

    async def _ask(self, client: ChatClient, request: ChatRequest) -> Outcome:
        max_tokens = self._params.max_tokens
        try:
            reply = await client.ask(request.body, lambda reply: read_answer(reply, max_tokens))
        except RowFailure as failure:
            return Outcome(request, None, failure)
        return Outcome(request, reply.result, None, reply.seconds, reply.attempts)

    def _record(self, outcome: Outcome, counts: Counts) -> None:
        self._journal.append(_entry(outcome, self._endpoint.model))
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


def _entry(outcome: Outcome, model: ModelInfo) -> dict[str, Any]:
    """The journal entry of an outcome. Who answered goes with the answer: servers change between runs."""
    entry: dict[str, Any] = {"key": outcome.request.key, "sample_id": outcome.request.sample_id}
    if outcome.answer is None:
        failure = outcome.failure
        assert failure is not None
        return entry | {"error": {"kind": failure.kind, "reason": failure.reason, "detail": failure.detail}}
    return entry | {
        "answer": outcome.answer.to_json(),
        "server": {"version": model.version, "max_model_len": model.max_model_len},
        "seconds": outcome.seconds,
        "attempts": outcome.attempts,
    }


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception that is not a group."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
