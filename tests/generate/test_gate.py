"""The first batch: which requests, and what stops the run."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.errors import GateError
from eyas.generate.failure import RowFailure, content, permanent
from eyas.generate.gate import Outcome, judge, spread
from eyas.generate.record import read_answer
from eyas.generate.request import ChatRequest, build
from tests.generate.example import generate_params, profile
from tests.generate.scripted import completion


def request(length: int) -> ChatRequest:
    messages = [{"role": "user", "content": "x" * length}]
    return build(f"a:{length:04}", messages, profile(), generate_params(), "f")


def answered(length: int = 1, **changes: Any) -> Outcome:
    return Outcome(request(length), read_answer(completion("x" * length, **changes), 16), None)


def failed(failure: RowFailure) -> Outcome:
    return Outcome(request(1), None, failure)


def test_the_batch_covers_the_length_range_evenly() -> None:
    requests = [request(length) for length in (100, 3, 50, 20, 80, 10, 90, 40, 70, 60, 30, 1, 5, 7, 2)]
    assert [chosen.length for chosen in spread(requests)] == [1, 3, 7, 20, 40, 60, 80, 100]


@pytest.mark.parametrize("count", [1, 7, 8])
def test_few_prompts_are_all_in_the_batch(count: int) -> None:
    assert len(spread([request(length) for length in range(count)])) == count


def test_a_right_batch_passes_and_so_does_a_single_bad_row() -> None:
    judge(
        [answered(), answered(2), failed(permanent("context_length", "too long"))],
        generate_params(),
        profile(),
    )


def test_missing_token_ids_stop_at_the_first_row() -> None:
    outcomes = [answered(), failed(content("no_token_ids", "no `token_ids`"))]
    with pytest.raises(GateError, match="no token ids") as caught:
        judge(outcomes, generate_params(), profile())
    assert "vLLM" in str(caught.value)


def test_a_batch_without_any_answer_names_the_reason() -> None:
    reasons = [failed(content("finish_reason", "unexpected finish reason 'repetition'"))] * 3
    with pytest.raises(GateError, match=r"none of the first 3 .* 3 times: .*repetition"):
        judge(reasons, generate_params(), profile())


def test_a_batch_without_any_answer_passes_where_others_were_answered_before() -> None:
    judge(
        [failed(permanent("context_length", "too long"))],
        generate_params(expect_reasoning=True),
        profile(),
        answered_before=True,
    )


def test_another_model_stops() -> None:
    with pytest.raises(GateError, match="asked tiny, but other answered"):
        judge([answered(), answered(model="other")], generate_params(), profile())


def test_another_chat_template_stops() -> None:
    wrong = answered(prompt_token_ids=[5, 6, 1, 520, 9])
    with pytest.raises(GateError, match=r"ends with \[1, 520, 9\].*\[1, 520, 198\]"):
        judge([wrong], generate_params(), profile())
    judge([wrong], generate_params(chat_template_kwargs={"thinking": True}), profile())
    judge([wrong], generate_params(), profile(generation_prompt_ids=[]))


def test_expected_reasoning_must_be_there_once() -> None:
    params = generate_params(expect_reasoning=True)
    with pytest.raises(GateError, match="carries reasoning") as caught:
        judge([answered(), answered(message={"reasoning": ""})], params, profile())
    assert "--reasoning-parser" in str(caught.value)
    judge([answered(), answered(message={"reasoning": "R"})], params, profile())
