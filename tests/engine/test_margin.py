from __future__ import annotations

import pytest

from eyas.engine.compare import Difference, compare
from eyas.engine.margin import margins_of, near_tie

from .examples import QUESTIONS, known_answers
from .fake_sglang import FakeSglang
from .fake_vllm import FakeVllm
from .test_client import endpoint

BY_ID = {each.sequence_id: each for each in QUESTIONS}


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 9, 3], Difference("x", 1, 2, 9, (1,))),
        ([1, 2, 3], [1, 2], Difference("x", 2, 3, None, (1, 2))),
        ([1, 2], [1, 2, 3], Difference("x", 2, None, 3, (1, 2))),
        ([], [], None),
    ],
)
def test_the_first_difference_is_found(
    expected: list[int], found: list[int], difference: Difference | None
) -> None:
    result = compare({"x": expected, "never asked": [4]}, {"x": found})
    assert (result.total, result.identical) == (1, int(difference is None))
    assert result.differences == ([difference] if difference else [])


def test_the_server_is_asked_behind_what_both_answers_begin_with() -> None:
    parted = Difference("a:1", 2, 7, 8, (5, 6))
    prompt = tuple(QUESTIONS[1].prompt_ids)
    with FakeVllm(known_answers(), logprobs={(*prompt, 5, 6): {7: -0.7, 8: -0.71, 3: -4.0}}) as server:
        margins = margins_of(endpoint(server), BY_ID, [parted])
    assert margins == {parted: pytest.approx(0.01)}
    assert (server.bodies[0]["max_tokens"], server.bodies[0]["temperature"]) == (1, 0.0)


def test_sglang_is_asked_too() -> None:
    parted = Difference("a:1", 2, 7, 8, (5, 6))
    with FakeSglang(known_answers()) as server:
        assert margins_of(endpoint(server), BY_ID, [parted]) == {parted: 1.0}
    assert server.bodies[0]["input_ids"] == [*QUESTIONS[1].prompt_ids, 5, 6]


@pytest.mark.parametrize(
    "parted",
    [Difference("a:1", 0, 7, 9), Difference("a:1", 5, 9, None), Difference("a:0", 0, 7, 8)],
    ids=["an unlikely token", "an end", "the server fails"],
)
def test_where_the_server_can_not_tell_there_is_no_margin(parted: Difference) -> None:
    known = {tuple(QUESTIONS[1].prompt_ids): {7: -0.7}}
    with FakeVllm(known_answers(), logprobs=known, fails=parted.sequence_id == "a:0") as server:
        assert margins_of(endpoint(server), BY_ID, [parted]) == {}


@pytest.mark.parametrize(
    ("margin", "dtype", "expected"),
    [
        (0.0005, "float32", True),
        (-0.0005, "float32", True),
        (0.1, "float32", False),
        (0.1, "bfloat16", True),
        (1.0, "bfloat16", False),
        (None, "bfloat16", None),
        (0.1, "float8", None),
    ],
)
def test_rounding_explains_small_margins(margin: float | None, dtype: str, expected: bool | None) -> None:
    assert near_tie(margin, dtype) is expected
