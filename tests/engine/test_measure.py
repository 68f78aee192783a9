from __future__ import annotations

import pytest

from eyas.acceptance import AcceptanceCounts
from eyas.engine import counters
from eyas.engine.client import Endpoint, ask
from eyas.engine.counters import acceptance_between, settled_metrics
from eyas.engine.measure import Timing, measure
from eyas.engine.questions import levels
from eyas.errors import ServerError
from tests.serving.example import server_params

from .examples import QUESTIONS, known_answers
from .fake_vllm import FakeVllm


def endpoint(server: FakeVllm) -> Endpoint:
    return Endpoint(server.base_url, "tiny", server_params())


def test_each_question_is_asked_once_for_as_many_tokens_as_are_stored() -> None:
    with FakeVllm(known_answers()) as server:
        answers = ask(endpoint(server), QUESTIONS, concurrency=2)
    assert answers.token_ids == {each.sequence_id: each.answer_ids for each in QUESTIONS}
    assert answers.tokens == 13
    assert answers.seconds > 0
    bodies = {tuple(body["prompt"]): body for body in server.bodies}
    assert len(server.bodies) == len(bodies) == 4
    assert bodies[tuple(QUESTIONS[1].prompt_ids)] == {
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
        "return_token_ids": True,
    }


@pytest.mark.parametrize("concurrency", [1, 3])
def test_so_many_requests_are_in_flight(concurrency: int) -> None:
    with FakeVllm(known_answers(), delay_s=0.05) as server:
        ask(endpoint(server), QUESTIONS, concurrency)
    assert server.most_running == concurrency


def test_a_failed_request_is_not_repeated_and_names_its_sequence() -> None:
    with FakeVllm(known_answers(), fails=True) as server, pytest.raises(ServerError, match="a:0") as caught:
        ask(endpoint(server), QUESTIONS[:1], concurrency=1)
    assert "engine died" in str(caught.value)


def test_a_server_without_token_ids_is_refused() -> None:
    with (
        FakeVllm(known_answers(), token_ids=False) as server,
        pytest.raises(ServerError, match="no token ids"),
    ):
        ask(endpoint(server), QUESTIONS, concurrency=1)


def test_acceptance_is_counted_by_dataset_and_the_warm_up_left_out() -> None:
    asked = levels(QUESTIONS, [1, 2], prompts_at_1=1)
    with FakeVllm(known_answers(), speculates=True) as server:
        result = measure(endpoint(server), asked, version="0.32.0")
    assert result.acceptance == {"a": AcceptanceCounts(6, [6, 2]), "b": AcceptanceCounts(6, [6, 2])}
    assert {level: sorted(found) for level, found in result.answers.items()} == {
        2: ["a:0", "a:1", "b:0", "b:1"],
        1: ["a:0"],
    }
    assert result.timings[2]["a"].requests == 2
    assert result.timings[2]["a"].tokens == 8
    warm_up = server.bodies[:2]
    assert {body["max_tokens"] for body in warm_up} == {5, 3}


def test_a_server_that_does_not_speculate_has_no_acceptance() -> None:
    with FakeVllm(known_answers()) as server:
        assert measure(endpoint(server), levels(QUESTIONS, [2], 1), None).acceptance is None


def test_a_server_without_metrics_has_no_acceptance() -> None:
    with FakeVllm(known_answers(), speculates=True, metrics=False) as server:
        assert measure(endpoint(server), levels(QUESTIONS, [2], 1), None).acceptance is None


def test_counters_that_move_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [
        {"vllm:num_requests_running": running, "vllm:spec_decode_num_drafts_total": drafts}
        for running, drafts in [(1.0, 3.0), (0.0, 5.0), (0.0, 6.0), (0.0, 6.0)]
    ]
    monkeypatch.setattr(counters, "SETTLE_EVERY_S", 0.0)
    monkeypatch.setattr(counters, "read_metrics", lambda url: readings.pop(0))
    assert settled_metrics("http://x/v1")["vllm:spec_decode_num_drafts_total"] == 6.0


def test_counters_of_a_busy_server_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "SETTLE_EVERY_S", 0.0)
    monkeypatch.setattr(counters, "SETTLE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(counters, "read_metrics", lambda url: {"vllm:num_requests_running": 1.0})
    with pytest.raises(ServerError, match="do not come to rest"):
        settled_metrics("http://x/v1")


def test_positions_beyond_nine_keep_their_order() -> None:
    key = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%d"}'
    after = {"vllm:spec_decode_num_drafts_total": 20.0} | {key % place: 12.0 - place for place in range(12)}
    before = {"vllm:spec_decode_num_drafts_total": 5.0, key % 0: 2.0}
    counted = acceptance_between(before, dict(sorted(after.items())))
    assert counted == AcceptanceCounts(15, [10, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1])


def test_timings_add_up() -> None:
    total = Timing(2, 100, 4.0) + Timing(1, 20, 1.0)
    assert total.tokens_per_s == 24.0
