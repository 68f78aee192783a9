"""The client against scripted faults: what is retried, how often, and what stays one failed row."""

from __future__ import annotations

import asyncio
import json

import pytest

from eyas.errors import ServerError
from eyas.generate.client import Reply
from eyas.generate.failure import Kind
from tests.generate.asking import (
    ask,
    ask_all,
    assert_answered,
    client,
    context_error,
    faults_then_answer,
    in_both_modes,
    pool,
    request,
)
from tests.generate.scripted import Scripted, ScriptedServer, answer, completion, events

CUT = [b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [7]}]}\n\n'] * 2
"""Two deltas, and no more."""

TRANSIENT: dict[str, Scripted] = {
    "abort": Scripted(completion("p", finish_reason="abort")),
    "error in a 200": Scripted({"choices": [], "error": {"code": 502, "message": "x"}}),
    "no finish reason": Scripted(completion("p", finish_reason=None)),
    "500": Scripted({"error": {"message": "boom"}}, status=500),
    "502": Scripted(b"<html>Bad Gateway</html>", status=502),
    "empty body": Scripted(b""),
    "only newlines": Scripted(b"\n\n\n"),
    "garbage": Scripted(b"<html>busy</html>"),
    "cut JSON": Scripted(b'{"choices": [{"mess'),
    "reset": Scripted(reset=True),
    "cut body": Scripted(completion("p"), cut=100),
    "cut head of an answer": Scripted(completion("p"), cut=0),
    "end of file behind two deltas": Scripted(chunks=CUT, eof=True),
    "cut stream": Scripted(chunks=events(completion("p")), cut=150),
    "an event that is no JSON": Scripted(chunks=[b"data: {oops\n\n"]),
    "a stream without an event": Scripted(chunks=[]),
    "a stream of comments": Scripted(chunks=[b": ping\n\n"], eof=True),
    "408": Scripted(b"", status=408),
}


@in_both_modes
@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
def test_a_transient_fault_costs_one_more_post(fault: Scripted, stream: bool) -> None:
    with ScriptedServer(faults_then_answer(fault)) as server:
        assert_answered(ask(server.base_url, stream=stream), posts=2)
    assert server.posts == {"p": 2}


@in_both_modes
@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
def test_a_transient_fault_that_stays_is_one_failed_row(fault: Scripted, stream: bool) -> None:
    def script(prompt: str, number: int) -> Scripted:
        return fault if prompt == "p" else answer(prompt, number)

    with ScriptedServer(script) as server:
        bad, good = ask_all(server.base_url, ["p", "q"], stream=stream, max_attempts=3)
    assert bad.failure is not None
    assert bad.failure.kind is Kind.TRANSIENT
    assert bad.attempts == 3
    assert good.answer is not None
    assert server.posts == {"p": 3, "q": 1}


PERMANENT = {
    "400": (Scripted({"error": {"message": "bad", "code": 400}}, status=400), "http_400"),
    "400 in the second shape": (
        Scripted({"object": "error", "message": "bad", "code": 400}, status=400),
        "http_400",
    ),
    "too long": (Scripted(context_error(), status=400), "context_length"),
    "too long in a 200": (Scripted(context_error()), "context_length"),
    "422 without JSON": (Scripted(b"nope", status=422), "http_422"),
    "400 in a 200": (Scripted({"error": {"code": 400, "message": "x"}}), "http_400"),
    "repetition": (Scripted(completion("p", finish_reason="repetition")), "finish_reason"),
    "403": (Scripted({"error": {"message": "flagged", "code": 403}}, status=403), "http_403"),
}


@in_both_modes
@pytest.mark.parametrize(("fault", "reason"), PERMANENT.values(), ids=PERMANENT)
def test_a_fault_that_stays_is_asked_once_and_costs_no_other_row(
    fault: Scripted, reason: str, stream: bool
) -> None:
    def script(prompt: str, number: int) -> Scripted:
        return fault if prompt == "p" else answer(prompt, number)

    with ScriptedServer(script) as server:
        bad, good = ask_all(server.base_url, ["p", "q"], stream=stream)
    assert bad.failure is not None
    assert bad.failure.kind is not Kind.TRANSIENT
    assert bad.failure.reason == reason
    assert good.answer is not None
    assert server.posts == {"p": 1, "q": 1}


def test_a_refusal_that_may_be_of_the_key_does_not_last() -> None:
    with ScriptedServer(lambda prompt, number: PERMANENT["403"][0]) as server:
        reply = ask(server.base_url)
    assert reply.failure is not None
    assert reply.failure.kind is Kind.CONTENT


EVERYBODY = {
    "key": (Scripted({"error": {"message": "wrong key"}}, status=401), "OPENAI_API_KEY"),
    "path": (Scripted({"error": {"message": "no such model"}}, status=404), "OPENAI_BASE_URL"),
    "method": (Scripted(b"", status=405), "OPENAI_BASE_URL"),
    "moved": (
        Scripted(b"", status=307, headers={"Location": "https://x.example/v1"}),
        r"https://x\.example/v1",
    ),
}


@pytest.mark.parametrize(("refusal", "message"), EVERYBODY.values(), ids=EVERYBODY)
def test_a_refusal_of_everybody_ends_the_run_at_once(refusal: Scripted, message: str) -> None:
    with (
        ScriptedServer(lambda prompt, number: refusal) as server,
        pytest.raises(ServerError, match=message) as caught,
    ):
        ask(server.base_url)
    assert caught.value.where == server.base_url
    assert server.posts == {"p": 1}


def test_a_gateway_whose_server_is_away_is_asked_again() -> None:
    def script(prompt: str, number: int) -> Scripted:
        return Scripted(b"", status=404) if (prompt, number) == ("p", 1) else answer(prompt, number)

    async def first_one_then_the_other(url: str) -> list[Reply]:
        async with client(pool(url)) as asking:
            return [await asking.ask(request(prompt)) for prompt in ("q", "p")]

    with ScriptedServer(script) as server:
        _, reply = asyncio.run(first_one_then_the_other(server.base_url))
    assert_answered(reply, posts=2)


@in_both_modes
def test_the_body_arrives_as_it_was_built(stream: bool) -> None:
    with ScriptedServer() as server:
        ask(server.base_url, "Grüße\u2028?", stream=stream)
    (body,) = server.bodies
    assert body["messages"] == [{"role": "user", "content": "Grüße\u2028?"}]
    assert body["stream"] is stream


@in_both_modes
def test_an_answer_of_30_mb(stream: bool) -> None:
    text = "wörd " * 5_000_000
    with ScriptedServer(
        lambda prompt, number: Scripted(completion(prompt, message={"content": text}))
    ) as server:
        reply = ask(server.base_url, stream=stream)
    assert reply.answer is not None
    assert reply.answer.content == text


@in_both_modes
def test_a_connection_serves_one_request_after_another(stream: bool) -> None:
    with ScriptedServer() as server:
        ask_all(server.base_url, [f"p{index}" for index in range(40)], stream=stream, concurrency=4)
        assert server.seen.connections == 4


def test_a_server_that_does_not_stream_although_asked_to() -> None:
    whole = json.dumps(completion("p")).encode()
    with ScriptedServer(lambda prompt, number: Scripted(whole)) as server:
        assert_answered(ask(server.base_url, stream=True), posts=1)
