"""Asking a server for continuations of token ids, greedily, with so many requests in flight."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
from openai import AsyncOpenAI, OpenAIError

from eyas.engine.questions import Question
from eyas.errors import ServerError
from eyas.serving.endpoint import api_key, trusts_proxies
from eyas.serving.params import ServerParams

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 30.0

_GREEDY = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
}
"""Every sampling parameter is explicit: a server fills gaps from the model's files."""


@dataclass(frozen=True)
class Endpoint:
    """Where a model is served and how long to wait for it."""

    base_url: str
    model: str
    server: ServerParams


@dataclass(frozen=True)
class Answers:
    """Answers to a list of questions, and the time from the first request to the last answer."""

    token_ids: dict[str, list[int]]
    """By sequence_id."""
    seconds: float

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return sum(len(ids) for ids in self.token_ids.values())


def ask(
    endpoint: Endpoint, questions: Sequence[Question], concurrency: int, max_tokens: int | None = None
) -> Answers:
    """Ask all questions; each answer has at most as many tokens as the stored one, or `max_tokens` if lower.

    No request is sent twice: a repeated one would falsify both time and counters.

    Raises:
        ServerError: a request failed, or the server returned no token ids.
    """
    return asyncio.run(_ask_all(endpoint, questions, concurrency, max_tokens))


async def _ask_all(
    endpoint: Endpoint, questions: Sequence[Question], concurrency: int, max_tokens: int | None
) -> Answers:
    free = asyncio.Semaphore(concurrency)
    answers: dict[str, list[int]] = {}

    async def one(client: AsyncOpenAI, question: Question) -> None:
        limit = min(len(question.answer_ids), max_tokens or len(question.answer_ids))
        async with free:
            answers[question.sequence_id] = await _complete(client, endpoint.model, question, limit)

    started = time.monotonic()
    async with _client(endpoint, concurrency) as client, _progress(answers, len(questions)):
        await asyncio.gather(*(one(client, question) for question in questions))
    return Answers(token_ids=answers, seconds=time.monotonic() - started)


async def _complete(client: AsyncOpenAI, model: str, question: Question, max_tokens: int) -> list[int]:
    where = f"{client.base_url}completions, {question.sequence_id}"
    try:
        reply = await client.completions.create(
            model=model,
            prompt=question.prompt_ids,
            max_tokens=max_tokens,
            extra_body={**_GREEDY, "return_token_ids": True},
        )
    except (OpenAIError, httpx2.HTTPError) as error:
        raise ServerError(f"the server did not answer: {error}", where=where) from error
    token_ids = getattr(reply.choices[0], "token_ids", None)
    if not isinstance(token_ids, list):
        raise ServerError(
            "the server returned no token ids, so answers can't be compared",
            where=where,
            hint="use vLLM 0.10.2 or later, which knows return_token_ids",
        )
    return token_ids


@asynccontextmanager
async def _client(endpoint: Endpoint, concurrency: int) -> AsyncIterator[AsyncOpenAI]:
    server = endpoint.server
    transport = httpx2.AsyncClient(
        limits=httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        timeout=httpx2.Timeout(server.request_timeout_s, connect=server.connect_timeout_s),
        trust_env=trusts_proxies(endpoint.base_url),
    )
    async with AsyncOpenAI(
        base_url=endpoint.base_url, api_key=api_key(), max_retries=0, http_client=transport
    ) as client:
        yield client


@asynccontextmanager
async def _progress(answers: dict[str, list[int]], total: int) -> AsyncIterator[None]:
    async def report() -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            logger.info("  %d of %d answers", len(answers), total)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        task.cancel()
