from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eyas.extract.batches import plan_batches, plan_windows


def test_windows_by_hand() -> None:
    assert plan_windows([3, 3, 3, 9, 1, 1], 6) == [range(2), range(2, 3), range(3, 4), range(4, 6)]
    assert plan_windows([], 6) == []


def test_batches_by_hand() -> None:
    assert plan_batches([2, 7, 3, 3, 12], range(5), 10) == [[4], [1], [2, 3], [0]]


def test_a_busy_batch_takes_no_much_shorter_sequence() -> None:
    assert plan_batches([100, 95, 91, 80, 80], range(5), 1200) == [[0, 1, 2], [3, 4]]
    assert plan_batches([100, 50], range(2), 1600) == [[0, 1]]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
def test_windows_cover_everything_in_order(sizes: list[int], limit: int) -> None:
    windows = plan_windows(sizes, limit)
    assert [index for window in windows for index in window] == list(range(len(sizes)))
    for window in windows:
        assert sum(sizes[index] for index in window) <= limit or len(window) == 1


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
def test_batches_hold_each_sequence_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = plan_batches(lengths, range(len(lengths)), budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * max(lengths[index] for index in batch) <= budget or len(batch) == 1
    longest = [lengths[batch[0]] for batch in batches]
    assert longest == sorted(longest, reverse=True)
