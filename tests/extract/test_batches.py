from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eyas.extract.batches import plan_batches, plan_windows
from eyas.extract.prefixes import pack


def token_ids(*lengths: int) -> list[list[int]]:
    """Sequences that share nothing."""
    return [[1000 * number, *range(1, length)] for number, length in enumerate(lengths)]


def test_windows_by_hand() -> None:
    assert plan_windows([3, 3, 3, 9, 1, 1], 6) == [range(2), range(2, 3), range(3, 4), range(4, 6)]
    assert plan_windows([], 6) == []


def test_batches_by_hand() -> None:
    """Filled up in order, the largest first; what is longer than the budget stands alone."""
    assert plan_batches(token_ids(2, 7, 3, 3, 12, 1), 10) == [[4], [0, 1], [2, 3], [5]]
    assert plan_batches([], 10) == []


def test_turns_of_a_conversation_stay_together() -> None:
    """The budget of the first batch would end inside the conversation."""
    other, more = [7] * 60, [9] * 60
    first = [8, *range(100, 130)]
    second = [*first, *range(200, 230)]
    third = [*second, *range(300, 330)]
    assert plan_batches([second, other, third, more, first], 130) == [[4, 0, 2], [1], [3]]
    assert plan_batches([second, other, third, more, first], 160) == [[1, 4, 0, 2], [3]]


def test_a_short_shared_prefix_does_not_cut_a_batch_short() -> None:
    system = list(range(20))
    sequences = [[*system, 1000 + number, *range(30)] for number in range(12)]
    assert plan_batches(sequences, 51 + 5 * 31) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_shared_tokens_count_once() -> None:
    same = [[*range(90), number, number] for number in range(6)]
    assert plan_batches(same, 102) == [[0, 1, 2, 3, 4, 5]]
    assert plan_batches(same, 101) == [[0, 1, 2, 3, 4], [5]]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
def test_windows_cover_everything_in_order(sizes: list[int], limit: int) -> None:
    windows = plan_windows(sizes, limit)
    assert [index for window in windows for index in window] == list(range(len(sizes)))
    for window in windows:
        assert sum(sizes[index] for index in window) <= limit or len(window) == 1


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), max_size=40),
    st.integers(1, 120),
)
def test_batches_hold_each_sequence_once_within_the_budget(sequences: list[list[int]], budget: int) -> None:
    batches = plan_batches(sequences, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(sequences)))
    computed = [len(pack([sequences[index] for index in batch]).token_ids) for batch in batches]
    assert computed == sorted(computed, reverse=True)
    for batch, tokens in zip(batches, computed, strict=True):
        assert tokens <= budget or tokens == max(len(sequences[index]) for index in batch)
