"""Asking a server for continuations of token ids, streamed, with so many requests in flight."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
from openai import AsyncOpenAI, OpenAIError

from eyas.engine.answer import Answer
from eyas.engine.asking import GREEDY, Asking
from eyas.engine.dialect import DIALECTS, Dialect
from eyas.engine.questions import Question
from eyas.errors import ServerError
from eyas.serving.endpoint import api_key, certificates, trusts_proxies
from eyas.serving.params import ServerParams

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 30.0


@dataclass(frozen=True)
class Endpoint:
    """Where a model is served, what the server speaks, and how it is asked."""

    base_url: str
    """Ends with /v1."""
    model: str
    server: ServerParams
    asking: Asking = GREEDY
    dialect: str = "vllm"
    """Key of DIALECTS."""
    cache_salt: str | None = None
    """vLLM shares cached prompts only among requests with the same one."""


@dataclass(frozen=True)
class Answers:
    """Answers to a list of questions, and the time from the first request to the last answer."""

    by_id: dict[str, Answer]
    """By sequence_id."""
    seconds: float

    @property
    def token_ids(self) -> dict[str, list[int]]:
        """By sequence_id."""
        return {sequence_id: answer.token_ids for sequence_id, answer in self.by_id.items()}

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return sum(len(answer.token_ids) for answer in self.by_id.values())


def ask(
    endpoint: Endpoint, questions: Sequence[Question], concurrency: int, max_tokens: int | None = None
) -> Answers:
    """Ask all questions; `max_tokens` cuts answers earlier than `endpoint.asking` does.

    No request is sent twice: a repeated one would falsify both time and counters.

    Raises:
        ServerError: a request failed, or the server returned no token ids.
    """
    return asyncio.run(_ask_all(endpoint, questions, concurrency, max_tokens))


async def _ask_all(
    endpoint: Endpoint, questions: Sequence[Question], concurrency: int, max_tokens: int | None
) -> Answers:
    free = asyncio.Semaphore(concurrency)
    answers: dict[str, Answer] = {}
    dialect = DIALECTS[endpoint.dialect]

    async def one(client: AsyncOpenAI, question: Question) -> None:
        limit = min(endpoint.asking.limit(question), max_tokens or endpoint.asking.limit(question))
        async with free:
            answers[question.sequence_id] = await _answer(client, dialect, endpoint, question, limit)

    started = time.monotonic()
    async with connect(endpoint, concurrency) as client, _progress(answers, len(questions)):
        await asyncio.gather(*(one(client, question) for question in questions))
    return Answers(by_id=answers, seconds=time.monotonic() - started)


async def _answer(
    client: AsyncOpenAI, dialect: Dialect, endpoint: Endpoint, question: Question, limit: int
) -> Answer:
    where = f"{endpoint.base_url}, {question.sequence_id}"
    body = dialect.body(endpoint.model, question, endpoint.asking, limit, endpoint.cache_salt)
    try:
        return await dialect.read(client, body)
    except (OpenAIError, httpx2.HTTPError) as error:
        raise ServerError(f"the server did not answer: {error}", where=where) from error
    except ServerError as error:
        raise ServerError(error.what, where=where, hint=error.hint) from error


@asynccontextmanager
async def connect(endpoint: Endpoint, concurrency: int) -> AsyncIterator[AsyncOpenAI]:
    """A client of the server that repeats no request."""
    server = endpoint.server
    transport = httpx2.AsyncClient(
        limits=httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        timeout=httpx2.Timeout(server.request_timeout_s, connect=server.connect_timeout_s),
        verify=certificates(),
        trust_env=trusts_proxies(endpoint.base_url),
    )
    async with AsyncOpenAI(
        base_url=DIALECTS[endpoint.dialect].root(endpoint.base_url),
        api_key=api_key(),
        max_retries=0,
        http_client=transport,
    ) as client:
        yield client


@asynccontextmanager
async def _progress(answers: dict[str, Answer], total: int) -> AsyncIterator[None]:
    async def report() -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            logger.info("  %d of %d answers", len(answers), total)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        task.cancel()
