"""Leases, windows, health checks and trials of a pool whose endpoints exist in name only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from eyas.errors import ServerError
from eyas.generate.endpoints import Endpoint, State
from eyas.generate.pool import Pool
from tests.generate.asking import PAUSE_S, endpoint
from tests.serving.example import server_params


def run(
    work: Callable[[Pool], Coroutine[Any, Any, Any]], count: int = 1, concurrency: int = 4, **server: Any
) -> Any:
    """Run with a pool of so many endpoints that exist in name only."""

    async def healthy(endpoint: Endpoint) -> bool:
        return True

    async def main() -> Any:
        names = [endpoint(f"http://{index}/v1") for index in range(count)]
        made = Pool(names, server_params(concurrency=concurrency, **server), PAUSE_S)
        made.open(healthy)
        try:
            return await work(made)
        finally:
            made.close()

    return asyncio.run(main())


def test_the_endpoint_with_the_least_in_flight_is_next() -> None:
    async def work(pool: Pool) -> list[str]:
        leases = [await pool.lease() for _ in range(6)]
        assert [endpoint.in_flight for endpoint in pool.endpoints] == [2, 2, 2]
        pool.succeeded(leases[4])
        pool.succeeded(leases[1])
        return [(await pool.lease()).endpoint.url for _ in range(2)]

    assert run(work, count=3, concurrency=6) == ["http://1/v1", "http://1/v1"]


def test_those_who_wait_are_served_in_turn() -> None:
    async def work(pool: Pool) -> list[int]:
        served: list[int] = []

        async def one(number: int) -> None:
            lease = await pool.lease()
            served.append(number)
            await asyncio.sleep(0)
            pool.succeeded(lease)

        await asyncio.gather(*(one(number) for number in range(20)))
        assert pool.in_flight == 0
        return served

    assert run(work) == list(range(20))


def test_a_cancelled_wait_takes_no_place() -> None:
    async def work(pool: Pool) -> int:
        leases = [await pool.lease() for _ in range(2)]
        waiting = [asyncio.create_task(pool.lease()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        pool.release(leases[0])  # goes to the second, which is cancelled before it can take it
        waiting[1].cancel()
        await asyncio.gather(*waiting[:2], return_exceptions=True)
        lease = await asyncio.wait_for(waiting[2], 1)
        pool.release(lease)
        pool.release(lease)
        return pool.in_flight

    assert run(work, concurrency=2) == 1


def test_an_odd_concurrency_is_used_in_full() -> None:
    async def work(pool: Pool) -> list[int]:
        for _ in range(7):
            await asyncio.wait_for(pool.lease(), 1)
        return sorted(endpoint.in_flight for endpoint in pool.endpoints)

    assert run(work, count=3, concurrency=7) == [2, 2, 3]


def test_a_busy_endpoint_keeps_its_window_and_the_other_its_share() -> None:
    async def work(pool: Pool) -> None:
        leases = [await pool.lease() for _ in range(8)]
        refused = [lease for lease in leases if lease.endpoint is pool.endpoints[0]]
        for lease in refused:
            pool.busy(lease, "429", None)
        assert [state["window"] for state in pool.to_json()] == [2, 4]
        assert [state["problem"] for state in pool.to_json()] == ["429", None]
        taken = await asyncio.gather(*(asyncio.wait_for(pool.lease(), 1) for _ in range(2)))
        assert {lease.endpoint for lease in taken} == {pool.endpoints[0]}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.lease(), 0.1)

    run(work, count=2, concurrency=8)


def test_what_a_display_needs() -> None:
    async def work(pool: Pool) -> list[dict[str, Any]]:
        await pool.lease()
        return pool.to_json()

    assert run(work, count=2, concurrency=5) == [
        {"url": "http://0/v1", "state": "up", "in_flight": 1, "window": 3, "problem": None},
        {"url": "http://1/v1", "state": "up", "in_flight": 0, "window": 3, "problem": None},
    ]


def test_nobody_gives_up_without_trouble_or_while_a_server_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eyas.generate.pool._AT_WORK_S", 0.1)

    async def work(pool: Pool) -> None:
        at_work, refused = await pool.lease(), await pool.lease()
        await asyncio.sleep(0.15)
        pool.check()  # long answers are no trouble
        pool.busy(refused, "429", None)
        await asyncio.sleep(0.15)
        pool.check()  # the other request is being answered
        pool.release(at_work)
        with pytest.raises(ServerError, match="429"):
            pool.check()

    run(work, give_up_after_s=0.1)


def test_an_endpoint_on_trial_gets_one_request_until_one_succeeds() -> None:
    async def work(pool: Pool) -> None:
        (made,) = pool.endpoints
        for key in "abc":
            assert await pool.blames(await pool.lease(), key, "502")
        assert made.state == "trial"
        trial = await asyncio.wait_for(pool.lease(), 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.lease(), 0.05)
        pool.succeeded(trial)
        assert made.state == "up"
        for _ in range(4):
            await asyncio.wait_for(pool.lease(), 1)

    run(work)


def test_one_row_may_fail_as_often_as_it_likes_without_taking_the_endpoint_along() -> None:
    async def work(pool: Pool) -> State:
        for _ in range(10):
            await pool.blames(await pool.lease(), "a", "reset")
        return pool.endpoints[0].state

    assert run(work) is State.UP


def test_many_failures_at_once_are_one_health_check() -> None:
    checks: list[float] = []

    async def down(endpoint: Endpoint) -> bool:
        checks.append(time.monotonic())
        await asyncio.sleep(0.05)
        return False

    async def work(pool: Pool) -> list[bool]:
        pool.open(down)
        leases = [await pool.lease() for _ in range(50)]
        verdicts = await asyncio.gather(*(pool.blames(lease, "a", "reset") for lease in leases))
        assert pool.endpoints[0].state is State.DOWN
        return verdicts

    assert run(work, concurrency=50) == [False] * 50
    assert len(checks) <= 3


def test_a_failure_that_is_noticed_only_after_the_server_came_back_is_not_the_rows() -> None:
    health = [False, True]

    async def next_health(endpoint: Endpoint) -> bool:
        return health.pop(0) if len(health) > 1 else health[0]

    async def work(pool: Pool) -> list[bool]:
        pool.open(next_health)
        early, late = await pool.lease(), await pool.lease()
        verdicts = [await pool.blames(early, "a", "reset")]
        pool.succeeded(await asyncio.wait_for(pool.lease(), 1))
        verdicts.append(await pool.blames(late, "b", "reset"))
        return [*verdicts, await pool.blames(await pool.lease(), "c", "reset")]

    assert run(work) == [False, False, True]
