from __future__ import annotations

from dataclasses import replace

import pytest

from eyas.acceptance import AcceptanceCounts
from eyas.engine import counters
from eyas.engine.answer import Answer
from eyas.engine.counters import acceptance_between, settled_metrics
from eyas.engine.measure import Measurement, measure
from eyas.engine.questions import levels
from eyas.engine.timing import Timing
from eyas.errors import ServerError

from .examples import QUESTIONS, known_answers
from .fake_sglang import FakeSglang
from .fake_vllm import FakeVllm
from .test_client import endpoint

COUNTED = {"a": AcceptanceCounts(4, [3, 1]), "b": AcceptanceCounts(2, [1, 0])}


def test_acceptance_is_counted_by_dataset_and_the_warm_up_left_out() -> None:
    asked = levels(QUESTIONS, [1, 2], prompts_at_1=1)
    with FakeVllm(known_answers(), speculates=True) as server:
        result = measure(endpoint(server), asked, version="0.32.0")
    assert result.acceptance == COUNTED
    assert {level: sorted(found) for level, found in result.answers.items()} == {
        2: ["a:0", "a:1", "b:0", "b:1"],
        1: ["a:0"],
    }
    timing = result.timings[2]["a"]
    assert (timing.requests, timing.tokens, len(timing.first_token_s), len(timing.token_s)) == (2, 8, 2, 2)
    assert len(result.timings[2]["b"].token_s) == 1  # an answer of one token has no time between tokens
    warm_up = server.bodies[:2]
    assert {body["max_tokens"] for body in warm_up} == {5, 3}


def test_levels_do_not_share_a_cache() -> None:
    asked = levels(QUESTIONS, [1, 2], prompts_at_1=1)
    with FakeVllm(known_answers()) as server:
        measure(replace(endpoint(server), cache_salt="s"), asked, None)
    assert [body["cache_salt"] for body in server.bodies] == ["s", "s", *["s-2"] * 4, "s-1"]


def test_sglang_is_counted_from_its_answers() -> None:
    with FakeSglang(known_answers()) as server:
        result = measure(endpoint(server), levels(QUESTIONS, [2], 1), None, draft_tokens=2)
    assert result.acceptance == COUNTED


def test_the_oldest_sglang_tells_drafts_but_no_acceptance() -> None:
    with FakeSglang(known_answers(), histogram_key=None) as server:
        result = measure(endpoint(server), levels(QUESTIONS, [2], 1), None, draft_tokens=2)
    assert result.acceptance is None
    assert sum(each.drafts or 0 for each in result.answers[2].values()) == 6


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


def test_rounds_add_up() -> None:
    first = Measurement(
        "v",
        {8: {"a:0": Answer([1], 0.1, 0.1)}},
        {8: {"a": Timing(1, 1, 2.0, [0.1], [])}},
        {"a": COUNTED["a"]},
    )
    second = Measurement(
        "v",
        {8: {"a:1": Answer([2], 0.3, 0.3)}, 1: {"a:1": Answer([2], 0.3, 0.3)}},
        {8: {"a": Timing(1, 3, 2.0, [0.3], [0.2]), "b": Timing(1, 1, 1.0)}, 1: {"a": Timing(1, 1, 1.0)}},
        {"a": COUNTED["a"], "b": COUNTED["b"]},
    )
    both = first + second
    assert {level: sorted(found) for level, found in both.answers.items()} == {8: ["a:0", "a:1"], 1: ["a:1"]}
    assert both.timings[8]["a"] == Timing(2, 4, 4.0, [0.1, 0.3], [0.2])
    assert both.timings[8]["b"].requests == both.timings[1]["a"].requests == 1
    assert both.acceptance == {"a": AcceptanceCounts(8, [6, 2]), "b": COUNTED["b"]}
    assert (first + Measurement("v")).acceptance is None  # half of it would look like all


def test_timings_are_reported_with_their_quantiles() -> None:
    total = Timing(2, 100, 4.0, [1.0, 3.0], [0.5]) + Timing(1, 20, 1.0, [2.0], [])
    assert total.report() == {
        "requests": 3,
        "tokens": 120,
        "seconds": 5.0,
        "tokens_per_s": 24.0,
        "time_to_first_token_s": {"p50": 2.0, "p90": pytest.approx(2.8)},
        "time_per_token_s": {"p50": 0.5, "p90": 0.5},
    }
    assert Timing(1, 1, 1.0, [1.0]).report()["time_per_token_s"] == {"p50": None, "p90": None}
