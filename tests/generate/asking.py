"""Asking a scripted server without a journal: what the client tests share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eyas.generate.client import Client, Reply
from eyas.generate.dialects.base import Dialect
from eyas.generate.dialects.choice import dialect
from eyas.generate.endpoints import Endpoint
from eyas.generate.pool import Pool
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest, build
from eyas.serving.endpoint import ModelInfo
from tests.generate.example import generate_params, profile
from tests.generate.scripted import MODEL, Script, Scripted, answer
from tests.serving.example import server_params

PAUSE_S = 0.02
"""First pause of everything that waits: fifty times shorter than in earnest."""
MODES = [False, True]
"""Without and with streaming."""
in_both_modes = pytest.mark.parametrize("stream", MODES, ids=["whole", "stream"])


def request(prompt: str) -> ChatRequest:
    return build(f"a:{prompt}", [{"role": "user", "content": prompt}], generate_params(), "0" * 64)


def speaker(stream: bool = False) -> Dialect:
    return dialect(generate_params(stream=stream), profile(), Path("no-tokenizer"))


def endpoint(url: str) -> Endpoint:
    return Endpoint(url, ModelInfo(MODEL, 512, "0.32.0"))


def client(pool: Pool, stream: bool = False, **server: Any) -> Client:
    return Client(pool, server_params(**server), speaker(stream), backoff_base_s=PAUSE_S)


def pool(urls: str | Sequence[str], **server: Any) -> Pool:
    urls = [urls] if isinstance(urls, str) else urls
    return Pool([endpoint(url) for url in urls], server_params(**server), PAUSE_S)


def ask_all(
    urls: str | Sequence[str], prompts: Sequence[str], *, stream: bool = False, **server: Any
) -> list[Reply]:
    """Ask all prompts at once; as many are in flight as `concurrency` allows."""

    async def ask() -> list[Reply]:
        async with client(pool(urls, **server), stream, **server) as asking:
            return await asyncio.gather(*(asking.ask(request(prompt)) for prompt in prompts))

    return asyncio.run(ask())


def ask(url: str, prompt: str = "p", **options: Any) -> Reply:
    (reply,) = ask_all(url, [prompt], **options)
    return reply


def faults_then_answer(*faults: Scripted) -> Script:
    def script(prompt: str, number: int) -> Scripted:
        return faults[number - 1] if number <= len(faults) else answer(prompt, number)

    return script


def assert_answered(reply: Reply, posts: int) -> Answer:
    assert reply.failure is None
    assert reply.answer is not None
    assert reply.answer.token_ids == [1001, 7, 2]
    assert reply.answer.content == "answer to p"
    assert reply.attempts == posts
    return reply.answer


def context_error() -> dict[str, Any]:
    message = "This model's maximum context length is 4096 tokens. However, you requested .."
    return {"error": {"message": message, "code": 400}}


def wait_until(true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
