from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eyas.train.data import TokenBudgetBatches


@given(
    lengths=st.lists(st.integers(2, 300), min_size=1, max_size=80),
    budget=st.integers(50, 1000),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_each_sequence_once_and_within_the_budget(
    lengths: list[int], budget: int, seed: int, shuffle: bool
) -> None:
    batches = TokenBudgetBatches(lengths, budget, seed=seed, shuffle=shuffle).batches(0)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[index] for index in batch) * len(batch) <= budget


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    lengths = [20 + (7 * i) % 50 for i in range(200)]

    def batches(seed: int, epoch: int) -> list[list[int]]:
        return TokenBudgetBatches(lengths, 400, seed=seed, shuffle=True).batches(epoch)

    assert batches(0, 3) == batches(0, 3)
    assert batches(0, 3) != batches(0, 4)
    assert batches(0, 3) != batches(1, 3)


def test_lightning_moves_the_epoch() -> None:
    sampler = TokenBudgetBatches([30] * 50, 100, seed=0, shuffle=True)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert len(sampler) == len(list(sampler))
