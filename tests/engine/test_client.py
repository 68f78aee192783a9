from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eyas.engine.asking import GREEDY, Asking
from eyas.engine.client import Endpoint, ask
from eyas.engine.dialect import DIALECTS
from eyas.errors import ServerError
from tests.serving.example import server_params

from .examples import QUESTIONS, known_answers
from .fake_http import FakeServer
from .fake_sglang import FakeSglang
from .fake_vllm import FakeVllm

SAMPLED = Asking(temperature=0.7, top_p=0.9, top_k=40, max_tokens=3, seed=1)


def endpoint(server: FakeServer, asking: Asking = GREEDY) -> Endpoint:
    dialect = "sglang" if isinstance(server, FakeSglang) else "vllm"
    return Endpoint(server.base_url, "tiny", server_params(), asking, dialect)


@pytest.mark.parametrize("make", [FakeVllm, FakeSglang, lambda known: FakeSglang(known, incremental=True)])
def test_each_question_is_asked_once_for_as_many_tokens_as_are_stored(make: Any) -> None:
    with make(known_answers()) as server:
        answers = ask(endpoint(server), QUESTIONS, concurrency=2)
    assert answers.token_ids == {each.sequence_id: each.answer_ids for each in QUESTIONS}
    assert answers.tokens == 13
    assert len(server.bodies) == 4
    for answer in answers.by_id.values():
        assert 0 < answer.first_token_s <= answer.last_token_s <= answers.seconds


def test_a_request_to_vllm_leaves_nothing_to_its_defaults() -> None:
    with FakeVllm(known_answers()) as server:
        ask(replace(endpoint(server), cache_salt="s"), QUESTIONS[1:2], concurrency=1)
    assert server.bodies == [
        {
            "path": "/v1/completions",
            "model": "tiny",
            "prompt": QUESTIONS[1].prompt_ids,
            "max_tokens": 5,
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "min_tokens": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "cache_salt": "s",
        }
    ]


def test_sampled_answers_are_asked_for_as_they_were_generated() -> None:
    with FakeVllm(known_answers()) as server:
        answers = ask(endpoint(server, SAMPLED), QUESTIONS, concurrency=1)
    assert [len(ids) for ids in answers.token_ids.values()] == [3, 3, 1, 3]
    for body in server.bodies:
        assert (body["temperature"], body["top_p"], body["top_k"], body["max_tokens"]) == (0.7, 0.9, 40, 3)
    seeds = {body["seed"] for body in server.bodies}
    assert len(seeds) == 4
    assert seeds == {SAMPLED.seed_of(each) for each in QUESTIONS}
    assert SAMPLED.seed_of(QUESTIONS[0]) != replace(SAMPLED, seed=2).seed_of(QUESTIONS[0])


def test_greedy_by_top_k_is_asked_for_as_greedy() -> None:
    with FakeSglang(known_answers()) as server:
        ask(endpoint(server, replace(SAMPLED, top_k=1)), QUESTIONS[:1], concurrency=1)
    sampling = server.bodies[0]["sampling_params"]
    assert (sampling["temperature"], sampling["top_k"], sampling["max_new_tokens"]) == (0.0, -1, 3)
    assert "sampling_seed" not in sampling


@pytest.mark.parametrize("concurrency", [1, 3])
def test_so_many_requests_are_in_flight(concurrency: int) -> None:
    with FakeVllm(known_answers(), delay_s=0.05) as server:
        ask(endpoint(server), QUESTIONS, concurrency)
    assert server.most_running == concurrency


def test_a_failed_request_is_not_repeated_and_names_its_sequence() -> None:
    with FakeVllm(known_answers(), fails=True) as server, pytest.raises(ServerError, match="a:0") as caught:
        ask(endpoint(server), QUESTIONS[:1], concurrency=1)
    assert "engine died" in str(caught.value)
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("server", "match"),
    [
        (FakeVllm(known_answers(), token_ids=False), "no token ids"),
        (FakeVllm(known_answers(), finishes=False), "ended before its answer"),
        (FakeSglang(known_answers(), aborts=True), "out of memory"),
        (FakeSglang(known_answers(), lost=1), "the server counted 4"),
    ],
    ids=["no ids", "cut stream", "abort", "lost tokens"],
)
def test_an_answer_that_is_not_whole_is_refused(server: FakeServer, match: str) -> None:
    with server, pytest.raises(ServerError, match=match) as caught:
        ask(endpoint(server), QUESTIONS[:1], concurrency=1)
    assert "a:0" in str(caught.value)


def test_vllm_tells_the_accepted_tokens_of_each_draft() -> None:
    with FakeVllm(known_answers(), speculates=True) as server:
        answers = ask(endpoint(server), QUESTIONS, concurrency=2).by_id
    assert {key: each.accepted_by_round for key, each in answers.items()} == {
        "a:0": [1],
        "a:1": [1, 0, 2],
        "b:0": [],
        "b:1": [1, 0],
    }


@pytest.mark.parametrize("key", ["spec_correct_drafts_histogram", "spec_accept_histogram", None])
def test_sglang_tells_how_many_drafts_had_so_many_accepted(key: str | None) -> None:
    with FakeSglang(known_answers(), histogram_key=key) as server:
        answer = ask(endpoint(server), QUESTIONS[1:2], concurrency=1).by_id["a:1"]
    assert answer.accepted_histogram == (None if key is None else [1, 1, 1])
    assert answer.drafts == 3


def test_dialects_have_their_roots() -> None:
    assert DIALECTS["vllm"].root("http://x:1/v1") == "http://x:1/v1"
    assert DIALECTS["sglang"].root("http://x:1/v1") == "http://x:1"
