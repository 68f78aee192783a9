"""Several endpoints, endpoints that go down and come back, rows that are poison."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from threading import Timer

import pytest

from eyas.errors import ServerError
from eyas.generate.client import Reply
from eyas.generate.failure import Kind
from tests.generate.asking import ask_all, client, in_both_modes, pool, request
from tests.generate.scripted import Scripted, ScriptedServer, answer, completion


@pytest.fixture
def two() -> Iterator[list[ScriptedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ScriptedServer(slowly(0.01))) for _ in range(2)]


def slowly(delay_s: float) -> Callable[[str, int], Scripted]:
    return lambda prompt, number: Scripted(completion(prompt), delay_s=delay_s)


def urls(servers: Sequence[ScriptedServer]) -> list[str]:
    return [server.base_url for server in servers]


def prompts(count: int) -> list[str]:
    return [f"p{index}" for index in range(count)]


@in_both_modes
def test_two_endpoints_share_the_requests(two: list[ScriptedServer], stream: bool) -> None:
    replies = ask_all(urls(two), prompts(100), stream=stream, concurrency=10)
    assert all(reply.answer is not None for reply in replies)
    assert [server.most_in_flight for server in two] == [5, 5]
    assert min(server.posts.total() for server in two) > 30
    assert {reply.url for reply in replies} == set(urls(two))


@in_both_modes
def test_an_endpoint_leaves_and_comes_back_and_no_row_is_lost(
    two: list[ScriptedServer], stream: bool
) -> None:
    first, second = two
    Timer(0.15, first.stop).start()
    Timer(0.6, first.start).start()
    replies = ask_all(urls(two), prompts(1000), stream=stream, concurrency=10, max_attempts=1)
    assert all(reply.answer is not None for reply in replies)
    assert second.most_in_flight == 10  # it took over the share of the first
    assert first.posts.total() > 150  # before it left, at most 100; then it came back
    assert first.posts.total() + second.posts.total() <= 1000 + 5  # those in flight when it left


@in_both_modes
def test_case_D08_a_server_that_dies_and_returns_costs_no_row(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is away for far longer than all attempts of a row and their pauses would last."""
    with ScriptedServer(slowly(0.02)) as server, caplog.at_level(logging.INFO):
        Timer(0.1, server.stop).start()
        Timer(1.6, server.start).start()
        replies = ask_all(server.base_url, prompts(60), stream=stream, concurrency=8, max_attempts=1)
        assert all(reply.answer is not None for reply in replies)
        assert server.posts.total() <= 60 + 8  # only those in flight were asked again
        assert server.seen.gets["/health"] >= 1
    assert "is down" in caplog.text
    assert "answers again" in caplog.text


@in_both_modes
def test_case_D08_variation_500_for_every_request_of_a_dead_engine(stream: bool) -> None:
    """The HTTP server is still there: it says 500 to requests and 503 to health checks, then recovers."""
    with ScriptedServer() as server:
        server.script = lambda prompt, number: Scripted({"error": {"message": "EngineDeadError"}}, status=500)
        server.pages["/health"] = (503, {})

        def recover() -> None:
            server.script = answer
            server.pages["/health"] = (200, {})

        Timer(1.0, recover).start()
        replies = ask_all(server.base_url, prompts(20), stream=stream, concurrency=4, max_attempts=1)
        assert all(reply.answer is not None for reply in replies)
        assert server.posts.total() <= 20 + 4


@pytest.mark.stress
@pytest.mark.timeout(240)
def test_case_D08_variation_90_seconds_with_the_pauses_of_a_real_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.generate.asking.PAUSE_S", 1.0)
    with ScriptedServer(slowly(0.1)) as server:
        Timer(0.5, server.stop).start()
        Timer(90.5, server.start).start()
        replies = ask_all(server.base_url, prompts(60), concurrency=4)
        assert all(reply.answer is not None and reply.attempts <= 2 + 30 for reply in replies)
        assert server.posts.total() <= 60 + 4


def test_where_there_is_no_health_page_the_model_list_says_it() -> None:
    with ScriptedServer(slowly(0.02)) as server:
        del server.pages["/health"]
        Timer(0.1, server.stop).start()
        Timer(0.5, server.start).start()
        replies = ask_all(server.base_url, prompts(40), concurrency=4, max_attempts=1)
        assert all(reply.answer is not None for reply in replies)
        assert server.seen.gets["/v1/models"] >= 1


@in_both_modes
def test_case_D08_variation_nobody_answers_for_too_long(stream: bool) -> None:
    async def ask_and_watch(url: str) -> None:
        made = pool(url, give_up_after_s=0.4)
        async with client(made, stream, give_up_after_s=0.4) as asking:
            asked = asyncio.create_task(asking.ask(request("p")))
            while not asked.done():
                await asyncio.sleep(0.02)
                made.check()

    with ScriptedServer() as server:
        server.stop()
        started = time.monotonic()
        with pytest.raises(ServerError, match="no server has answered") as caught:
            asyncio.run(ask_and_watch(server.base_url))
        assert 0.4 <= time.monotonic() - started < 3.0
        server.start()
    assert server.base_url in str(caught.value)
    assert "give_up_after_s" in str(caught.value)


@in_both_modes
def test_a_poison_row_fails_alone(stream: bool) -> None:
    def script(prompt: str, number: int) -> Scripted:
        return Scripted(reset=True) if prompt == "p7" else Scripted(completion(prompt), delay_s=0.01)

    with ScriptedServer(script) as server:
        replies = ask_all(server.base_url, prompts(60), stream=stream, concurrency=4, max_attempts=3)
    failed = [reply for reply in replies if reply.answer is None]
    assert [reply.failure and (reply.failure.kind, reply.failure.reason) for reply in failed] == [
        (Kind.TRANSIENT, "connection")
    ]
    assert server.posts == dict.fromkeys(prompts(60), 1) | {"p7": 3}


@in_both_modes
def test_poison_rows_fail_even_if_there_is_nothing_else_to_ask(stream: bool) -> None:
    """What a second run asks are the failed rows of the first: it must come to its end too."""
    with ScriptedServer(lambda prompt, number: Scripted(reset=True)) as server:
        replies = ask_all(server.base_url, prompts(5), stream=stream, concurrency=4, max_attempts=2)
    assert [reply.failure and reply.failure.reason for reply in replies] == ["connection"] * 5
    assert server.posts == dict.fromkeys(prompts(5), 2)


def test_a_gateway_that_fails_everything_is_tried_one_row_at_a_time() -> None:
    """It says that it is healthy, but its server is away for a while: rows keep their attempts."""
    with ScriptedServer() as server:
        server.script = lambda prompt, number: Scripted(b"", status=502)

        def recover() -> None:
            server.script = slowly(0.01)

        Timer(0.8, recover).start()
        replies = ask_all(server.base_url, prompts(200), concurrency=32, max_attempts=3)
    assert all(reply.answer is not None for reply in replies)
    assert server.posts.total() < 200 + 32 + 40  # one wave, then one at a time, less and less often


def test_the_reply_of_a_row_tells_its_endpoint_and_its_posts(two: list[ScriptedServer]) -> None:
    two[0].script = lambda prompt, number: Scripted(b"", status=500)
    replies: list[Reply] = ask_all(urls(two), ["p"], concurrency=1)
    assert replies[0].attempts >= 1
    assert replies[0].url in urls(two)
