"""Servers that have too much to do."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from email.utils import formatdate

import pytest

from eyas.generate.client import Reply
from eyas.generate.failure import Kind
from tests.generate.asking import (
    ask,
    ask_all,
    assert_answered,
    client,
    in_both_modes,
    pool,
    request,
)
from tests.generate.scripted import Scripted, ScriptedServer, answer, completion


def http_date(seconds: float) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


@in_both_modes
def test_case_D10_429_waits_longer_each_time_and_costs_no_attempt(stream: bool) -> None:
    moments: list[float] = []

    def script(prompt: str, number: int) -> Scripted:
        moments.append(time.monotonic())
        return (
            Scripted({"error": {"message": "slow down"}}, status=429)
            if number <= 5
            else answer(prompt, number)
        )

    with ScriptedServer(script) as server:
        assert_answered(ask(server.base_url, stream=stream, max_attempts=1), posts=6)
    waits = [after - before for before, after in itertools.pairwise(moments)]
    for place, wait in enumerate(waits):  # 0.02, 0.04, 0.08, ... each shortened by up to half
        assert wait >= 0.01 * 2**place
    assert sum(waits) < 2.0


@in_both_modes
@pytest.mark.parametrize(
    ("status", "header", "at_least"),
    [(429, lambda: "0.6", 0.6), (503, lambda: "0.6", 0.6), (429, lambda: http_date(3), 1.9)],
    ids=["429 seconds", "503 seconds", "429 date"],
)
def test_case_D10_variation_retry_after_holds_every_worker_back(
    status: int, header: Callable[[], str], at_least: float, stream: bool
) -> None:
    moments: dict[str, float] = {}

    def script(prompt: str, number: int) -> Scripted:
        if prompt == "early" and number == 1:
            moments["refused"] = time.monotonic()
            headers = {"Retry-After": header()}
            return Scripted({"error": {"message": "slow down"}}, status=status, headers=headers)
        moments[prompt] = time.monotonic()
        return answer(prompt, number)

    async def ask_two(url: str) -> None:
        async with client(pool(url), stream) as asking:
            first = asyncio.create_task(asking.ask(request("early")))
            await asyncio.sleep(0.2)
            await asyncio.gather(first, asking.ask(request("late")))

    with ScriptedServer(script) as server:
        asyncio.run(ask_two(server.base_url))
    assert moments["late"] - moments["refused"] >= at_least
    assert moments["early"] - moments["refused"] >= at_least
    assert server.posts == {"early": 2, "late": 1}


@in_both_modes
def test_case_D09_a_full_queue_lowers_the_window_and_loses_no_row(stream: bool) -> None:
    """A server that takes 8 at a time; no attempt is spent however often it refuses."""
    refused: list[int] = []

    def script(prompt: str, number: int) -> Scripted:
        if server.seen.in_flight > 8:
            refused.append(len(server.posts))
            return Scripted({"error": {"message": "The request queue is full."}}, status=503)
        return Scripted(completion(prompt), delay_s=0.01)

    prompts = [f"p{index}" for index in range(300)]
    with ScriptedServer(script) as server:
        replies = ask_all(server.base_url, prompts, stream=stream, concurrency=64, max_attempts=1)
    assert all(reply.answer is not None for reply in replies)
    assert server.posts.total() == 300 + len(refused)
    assert len(refused) < 300  # the first wave brings 56; at a constant 64 there would be thousands


def test_a_row_that_is_refused_all_the_time_while_others_are_not_fails_in_the_end() -> None:
    def script(prompt: str, number: int) -> Scripted:
        return Scripted(b"", status=429) if prompt == "p" else Scripted(completion(prompt), delay_s=0.05)

    async def ask_both(url: str) -> Reply:
        async with client(pool(url, concurrency=2, give_up_after_s=0.5), give_up_after_s=0.5) as asking:
            refused = asyncio.create_task(asking.ask(request("p")))
            for index in range(100):
                await asking.ask(request(f"q{index}"))
                if refused.done():
                    break
            return refused.result()

    with ScriptedServer(script) as server:
        reply = asyncio.run(ask_both(server.base_url))
    assert reply.failure is not None
    assert (reply.failure.kind, reply.failure.reason) == (Kind.TRANSIENT, "http_429")
