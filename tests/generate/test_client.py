"""The client against scripted faults: what is retried, how often, and what stays one failed row."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from eyas.generate.client import ChatClient, Reply
from eyas.generate.failure import Kind, RowFailure
from eyas.generate.record import Answer, read_answer
from tests.generate.scripted import Scripted, ScriptedServer, answer, completion
from tests.serving.example import server_params


def body(prompt: str) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": prompt}], "top_k": 0}


def ask_all(url: str, prompts: list[str], **changes: Any) -> list[Reply[Answer] | RowFailure]:
    async def ask() -> list[Reply[Answer] | RowFailure]:
        async with ChatClient(url, server_params(**changes), backoff_base_s=0.02) as client:
            asks = (client.ask(body(prompt), lambda reply: read_answer(reply, 3)) for prompt in prompts)
            results = await asyncio.gather(*asks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, RowFailure):
                raise result
        return results  # type: ignore[return-value]

    return asyncio.run(ask())


def fault_then_answer(*faults: Scripted) -> Any:
    def script(prompt: str, number: int) -> Scripted:
        return faults[number - 1] if number <= len(faults) else answer(prompt, number)

    return script


TRANSIENT = {
    "D01 abort": Scripted(completion("p", finish_reason="abort")),
    "D03 error in a 200": Scripted({"choices": [], "error": {"code": 502, "message": "x"}}),
    "D05 no finish reason": Scripted(completion("p", finish_reason=None)),
    "D06 500": Scripted({"error": {"message": "boom"}}, status=500),
    "D09 queue full": Scripted({"error": {"message": "The request queue is full."}}, status=503),
    "D10 429": Scripted({"error": {"message": "slow down"}}, status=429),
    "D15 empty 503": Scripted(b"", status=503),
    "A09 empty body": Scripted(b""),
    "A09 only newlines": Scripted(b"\n\n\n"),
    "garbage": Scripted(b"<html>busy</html>"),
    "cut JSON": Scripted(b'{"choices": [{"mess'),
    "reset": Scripted(reset=True),
    "408": Scripted(b"", status=408),
}


@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
def test_a_transient_fault_costs_one_more_post(fault: Scripted) -> None:
    with ScriptedServer(fault_then_answer(fault)) as server:
        (result,) = ask_all(server.base_url, ["p"])
    assert isinstance(result, Reply)
    assert result.result.token_ids == [1001, 7, 2]
    assert result.attempts == 2
    assert server.posts == {"p": 2}


@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
def test_a_transient_fault_that_stays_is_one_failed_row(fault: Scripted) -> None:
    with ScriptedServer(lambda prompt, number: fault) as server:
        (result,) = ask_all(server.base_url, ["p"], max_attempts=3)
    assert isinstance(result, RowFailure)
    assert result.kind is Kind.TRANSIENT
    assert server.posts == {"p": 3}


PERMANENT = {
    "D06 400": (Scripted({"error": {"message": "bad", "code": 400}}, status=400), "http_400"),
    "D06 second shape": (
        Scripted({"object": "error", "message": "bad", "code": 400}, status=400),
        "http_400",
    ),
    "D17 context": (
        Scripted(
            {
                "error": {
                    "message": "This model's maximum context length is 4096 tokens. However, ..",
                    "code": 400,
                }
            },
            status=400,
        ),
        "context_length",
    ),
    "404": (Scripted({"error": {"message": "no such model"}}, status=404), "http_404"),
    "422 no JSON": (Scripted(b"nope", status=422), "http_422"),
    "400 in a 200": (Scripted({"error": {"code": 400, "message": "x"}}), "http_400"),
    "repetition": (Scripted(completion("p", finish_reason="repetition")), "finish_reason"),
}


@pytest.mark.parametrize(("fault", "reason"), PERMANENT.values(), ids=PERMANENT)
def test_a_permanent_fault_is_asked_once_and_costs_no_other_row(fault: Scripted, reason: str) -> None:
    def script(prompt: str, number: int) -> Scripted:
        return fault if prompt == "p" else answer(prompt, number)

    with ScriptedServer(script) as server:
        bad, good = ask_all(server.base_url, ["p", "q"])
    assert isinstance(bad, RowFailure)
    assert bad.kind is not Kind.TRANSIENT
    assert bad.reason == reason
    assert isinstance(good, Reply)
    assert server.posts == {"p": 1, "q": 1}


def test_the_servers_message_reaches_the_failure() -> None:
    with ScriptedServer(lambda prompt, number: PERMANENT["D17 context"][0]) as server:
        (result,) = ask_all(server.base_url, ["p"])
    assert isinstance(result, RowFailure)
    assert "maximum context length is 4096" in result.detail


def test_retry_after_holds_every_request_back() -> None:
    limited = Scripted({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "0.6"})
    moments: dict[str, float] = {}

    def script(prompt: str, number: int) -> Scripted:
        if prompt == "late":
            moments["late"] = time.monotonic()
        if prompt == "early" and number == 1:
            moments["limited"] = time.monotonic()
            return limited
        return answer(prompt, number)

    async def ask(url: str) -> None:
        async with ChatClient(url, server_params(), backoff_base_s=0.01) as client:
            first = asyncio.create_task(client.ask(body("early"), lambda reply: reply))
            await asyncio.sleep(0.2)
            await asyncio.gather(first, client.ask(body("late"), lambda reply: reply))

    with ScriptedServer(script) as server:
        asyncio.run(ask(server.base_url))
    assert moments["late"] - moments["limited"] >= 0.55
    assert server.posts == {"early": 2, "late": 1}


def test_all_requests_are_in_flight_at_once() -> None:
    with ScriptedServer(lambda prompt, number: Scripted(completion(prompt), delay_s=0.5)) as server:
        results = ask_all(server.base_url, [f"p{index}" for index in range(128)], concurrency=128)
    assert all(isinstance(result, Reply) for result in results)
    assert server.most_in_flight == 128


def test_no_time_limit_unless_asked_for() -> None:
    slow = fault_then_answer(Scripted(completion("p"), delay_s=0.4))
    with ScriptedServer(slow) as server:
        (result,) = ask_all(server.base_url, ["p"])
    assert isinstance(result, Reply)
    assert server.posts == {"p": 1}
    with ScriptedServer(slow) as server:
        (result,) = ask_all(server.base_url, ["p"], request_timeout_s=0.1, max_attempts=1)
    assert isinstance(result, RowFailure)
    assert result.reason == "timeout"
    assert server.posts == {"p": 1}


def test_a_refused_connection_is_transient() -> None:
    with ScriptedServer() as server:
        url = server.base_url
    (result,) = ask_all(url, ["p"], max_attempts=2)
    assert isinstance(result, RowFailure)
    assert (result.kind, result.reason) == (Kind.TRANSIENT, "connection")


def test_proxy_variables_do_not_hijack_a_local_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ScriptedServer() as server:
        (result,) = ask_all(server.base_url, ["p"])
    assert isinstance(result, Reply)


def test_the_body_arrives_as_it_was_built() -> None:
    with ScriptedServer() as server:
        ask_all(server.base_url, ["Grüße\u2028?"])
    assert server.bodies == [body("Grüße\u2028?")]
