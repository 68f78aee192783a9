from __future__ import annotations

import pytest

from eyas.acceptance import AcceptanceCounts
from eyas.engine.answer import Answer, counted, within


def answer(count: int, rounds: list[int] | None = None, histogram: list[int] | None = None) -> Answer:
    return Answer(list(range(count)), 0.5, 2.5, rounds, histogram)


@pytest.mark.parametrize(
    ("count", "rounds", "drafts", "accepted_at"),
    [
        (6, [2, 1], 2, [2, 1, 0]),  # 1 + 3 + 2: ends with a token of the target
        (5, [2, 1], 2, [2, 1, 0]),  # that token was cut off
        (4, [3], 1, [1, 1, 1]),  # the answer ends with the last drafted token
        (3, [3], 1, [1, 1, 0]),  # one accepted token lies behind the end
        (2, [3], 1, [1, 0, 0]),
        (7, [3, 3], 2, [2, 2, 1]),  # only the last draft can reach over the end
        (1, [], 0, [0, 0, 0]),
        (9, [1, 1], 2, [2, 0, 0]),  # tokens without a draft: nothing to cut
    ],
)
def test_what_lies_behind_the_end_is_cut(
    count: int, rounds: list[int], drafts: int, accepted_at: list[float]
) -> None:
    assert within(answer(count, rounds), 3) == AcceptanceCounts(drafts, accepted_at)


def test_the_engine_counts_before_the_cut() -> None:
    assert counted(answer(7, [3, 3, 0]), 3) == AcceptanceCounts(3, [2, 2, 2])
    assert counted(answer(7, None, [1, 0, 0, 2]), 3) == AcceptanceCounts(3, [2, 2, 2])
    assert counted(answer(7), 3) is None
    assert within(answer(7, None, [1, 0, 0, 2]), 3) is None  # which draft was the last one?


def test_time_per_token_leaves_the_first_token_out() -> None:
    assert answer(5).token_s == 0.5
    assert answer(1).token_s is None
