"""Reported failures of transports, replayed by a scripted server."""

from __future__ import annotations

import asyncio
import json
from threading import Event
from typing import Any

import pytest

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
    wait_until,
)
from tests.generate.scripted import Scripted, ScriptedServer, answer, completion, events


@in_both_modes
def test_case_A09_an_empty_body_is_transient_and_an_empty_string_is_no_reasoning(stream: bool) -> None:
    empty = {"role": "assistant", "content": None, "reasoning_content": ""}
    chunk = {"model": "tiny", "choices": [{"index": 0, "delta": empty, "finish_reason": None}]}
    first = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    whole = Scripted(completion("p", message={"reasoning_content": ""}))
    streamed = Scripted(chunks=[first, *events(completion("p"))])
    faults = [
        Scripted(b""),
        Scripted(b"\r\n \n"),
        Scripted(b"", headers={"Content-Type": "text/event-stream"}),
    ]
    with ScriptedServer(faults_then_answer(*faults, streamed if stream else whole)) as server:
        reply = ask(server.base_url, stream=stream, max_attempts=4)
    found = assert_answered(reply, posts=4)
    assert (found.reasoning, found.reasoning_field) == (None, None)


@in_both_modes
def test_case_D01_an_abort_is_no_answer(stream: bool) -> None:
    cut = completion("p", message={"content": "par"}, finish_reason="abort")
    nothing_yet = completion("p", message={"content": None}, token_ids=[], finish_reason="abort", usage=None)
    with ScriptedServer(faults_then_answer(Scripted(cut), Scripted(nothing_yet))) as server:
        assert_answered(ask(server.base_url, stream=stream), posts=3)
    with ScriptedServer(lambda prompt, number: Scripted(cut)) as server:
        reply = ask(server.base_url, stream=stream)
    assert (reply.answer, reply.failure and reply.failure.reason) == (None, "abort")


@in_both_modes
@pytest.mark.parametrize(
    ("error", "posts", "kind"),
    [
        ({"code": 502, "message": "x"}, 2, None),
        ({"code": 429, "message": "x"}, 2, None),
        ({"code": "503", "message": "x"}, 2, None),
        ({"message": "no code"}, 2, None),
        ({"code": 400, "message": "x"}, 1, Kind.PERMANENT),
    ],
)
def test_case_D03_an_error_inside_a_200_has_its_own_code(
    error: dict[str, Any], posts: int, kind: Kind | None, stream: bool
) -> None:
    alone = {"choices": [], "error": error}
    behind_text = [*events(completion("p"))[:2], b"data: " + json.dumps(alone).encode() + b"\n\n"]
    for fault in (
        Scripted(alone),
        Scripted(chunks=[*behind_text, b"data: [DONE]\n\n"]),
        Scripted(chunks=behind_text),
    ):
        with ScriptedServer(faults_then_answer(fault)) as server:
            reply = ask(server.base_url, stream=stream)
        assert server.posts == {"p": posts}
        if kind is None:
            assert_answered(reply, posts)
        else:
            assert reply.failure is not None
            assert reply.failure.kind is kind


def test_case_D05_a_stream_that_ends_without_a_finish_reason_has_failed() -> None:
    deltas = events(completion("p"))
    for kept in range(1, len(deltas) - 2):  # every cut before the chunk with the finish reason
        with ScriptedServer(faults_then_answer(Scripted(chunks=deltas[:kept], eof=True))) as server:
            assert_answered(ask(server.base_url, stream=True), posts=2)
    without = Scripted(completion("p", finish_reason=None))
    with ScriptedServer(faults_then_answer(without)) as server:
        assert_answered(ask(server.base_url), posts=2)


@in_both_modes
def test_case_D06_the_status_counts_before_the_body(stream: bool) -> None:
    looks_fine = completion("p")
    errors = [
        Scripted({"error": {"message": "boom"}}, status=500),
        Scripted({"object": "error", "message": "boom", "code": 500}, status=500),
        Scripted(looks_fine, status=500),
    ]
    with ScriptedServer(faults_then_answer(*errors)) as server:
        assert_answered(ask(server.base_url, stream=stream, max_attempts=4), posts=4)
    for body in (
        {"error": {"message": "bad"}},
        {"object": "error", "message": "bad", "code": 400},
        looks_fine,
    ):
        with ScriptedServer(lambda prompt, number, body=body: Scripted(body, status=400)) as server:  # type: ignore[misc]
            reply = ask(server.base_url, stream=stream)
        assert reply.failure is not None
        assert (reply.failure.kind, reply.failure.reason) == (Kind.PERMANENT, "http_400")
        assert server.posts == {"p": 1}


@in_both_modes
def test_case_D12_one_post_per_attempt_and_an_abandoned_one_is_closed(stream: bool) -> None:
    slow = Scripted(completion("p"), delay_s=0.4)
    with ScriptedServer(lambda prompt, number: slow) as server:
        assert_answered(ask(server.base_url, stream=stream), posts=1)  # no time-out unless asked for
        assert server.seen.abandoned == 0
        reply = ask(server.base_url, stream=stream, request_timeout_s=0.1, max_attempts=2)
        assert reply.failure is not None
        assert (reply.failure.reason, reply.attempts) == ("timeout", 2)
        wait_until(lambda: server.seen.abandoned == 2)
        assert server.posts == {"p": 3}


def test_case_D12_variation_a_silent_stream_and_a_cancelled_request_are_closed() -> None:
    silent = Scripted(chunks=events(completion("p")), pause_s=0.4)
    with ScriptedServer(lambda prompt, number: silent) as server:
        reply = ask(server.base_url, stream=True, idle_timeout_s=0.1, max_attempts=1)
        assert reply.failure is not None
        assert reply.failure.reason == "timeout"
        wait_until(lambda: server.seen.abandoned == 1)
    steady = Scripted(chunks=events(completion("p")), pause_s=0.05)
    with ScriptedServer(lambda prompt, number: steady) as server:
        assert_answered(ask(server.base_url, stream=True, idle_timeout_s=0.2), posts=1)
    with ScriptedServer(lambda prompt, number: Scripted(hold=Event())) as server:
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(ask_one(server.base_url), 0.3))
        wait_until(lambda: server.seen.abandoned == 1)
        assert server.posts == {"p": 1}


async def ask_one(url: str) -> Reply:
    async with client(pool(url)) as asking:
        return await asking.ask(request("p"))


@in_both_modes
@pytest.mark.parametrize("concurrency", [128, 1024])
def test_case_D13_all_requests_are_in_flight_at_once(concurrency: int, stream: bool) -> None:
    release = Event()

    def script(prompt: str, number: int) -> Scripted:
        if server.seen.in_flight == concurrency:
            release.set()
        return Scripted(completion(prompt), hold=release)

    prompts = [f"p{index}" for index in range(concurrency + 50)]
    with ScriptedServer(script) as server:
        replies = ask_all(server.base_url, prompts, stream=stream, concurrency=concurrency)
    assert all(reply.answer is not None and reply.attempts == 1 for reply in replies)
    assert server.most_in_flight == concurrency


@in_both_modes
def test_case_D15_proxy_variables_do_not_hijack_a_local_server(
    monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "10.0.0.0/8")
    with ScriptedServer() as server:
        assert_answered(ask(server.base_url, stream=stream), posts=1)


def test_case_D15_variation_a_public_host_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer() as server:
        monkeypatch.setenv("http_proxy", server.base_url.removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        assert_answered(ask("http://model.example.com/v1"), posts=1)


@in_both_modes
def test_case_D17_a_prompt_that_does_not_fit_is_permanent_for_its_row(stream: bool) -> None:
    def script(prompt: str, number: int) -> Scripted:
        return Scripted(context_error(), status=400) if prompt == "p" else answer(prompt, number)

    with ScriptedServer(script) as server:
        bad, good = ask_all(server.base_url, ["p", "q"], stream=stream)
    assert bad.failure is not None
    assert (bad.failure.kind, bad.failure.reason) == (Kind.PERMANENT, "context_length")
    assert "maximum context length is 4096" in bad.failure.detail
    assert "the prompt has 1 characters" in bad.failure.detail
    assert good.answer is not None
    assert server.posts == {"p": 1, "q": 1}


@in_both_modes
def test_case_D17_variation_a_negative_max_tokens_is_never_asked_twice(stream: bool) -> None:
    error = {"object": "error", "message": "max_tokens must be at least 1, got -52.", "code": 400}
    with ScriptedServer(lambda prompt, number: Scripted(error, status=400)) as server:
        reply = ask(server.base_url, stream=stream, max_attempts=6)
    assert reply.failure is not None
    assert reply.failure.kind is Kind.PERMANENT
    assert server.posts == {"p": 1}
