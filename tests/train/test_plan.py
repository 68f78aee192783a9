from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.train.plan import Sizes, passes, shares, steps_of_epoch

LENGTHS = st.lists(st.integers(2, 300), min_size=1, max_size=80).map(np.array)


@given(LENGTHS, st.integers(50, 1000), st.integers(0, 5), st.integers(1, 20))
def test_each_sequence_once_and_within_the_budget(
    lengths: np.ndarray, budget: int, seed: int, bucket_steps: int
) -> None:
    steps = steps_of_epoch(lengths, budget, seed=seed, epoch=0, bucket_steps=bucket_steps)
    assert sorted(np.concatenate(steps).tolist()) == list(range(len(lengths)))
    for step in steps:
        assert len(step) == 1 or lengths[step].sum() <= budget


@given(LENGTHS, st.integers(50, 1000))
def test_without_buckets_only_the_last_step_has_room(lengths: np.ndarray, budget: int) -> None:
    steps = steps_of_epoch(lengths, budget, seed=0, epoch=0, bucket_steps=1)
    for step, following in itertools.pairwise(steps):
        assert lengths[step].sum() + lengths[following[0]] > budget


def test_steps_are_a_function_of_seed_and_epoch() -> None:
    lengths = np.array([20 + (7 * i) % 50 for i in range(200)])

    def steps(seed: int, epoch: int) -> list[list[int]]:
        found = steps_of_epoch(lengths, 400, seed=seed, epoch=epoch, bucket_steps=4)
        return [step.tolist() for step in found]

    assert steps(0, 3) == steps(0, 3)
    assert steps(0, 3) != steps(0, 4)
    assert steps(0, 3) != steps(1, 3)


def test_buckets_put_similar_lengths_together() -> None:
    lengths = np.random.default_rng(0).integers(10, 1000, 2000)

    def spread(bucket_steps: int) -> float:
        steps = steps_of_epoch(lengths, 8000, seed=0, epoch=0, bucket_steps=bucket_steps)
        return float(np.mean([lengths[step].std() for step in steps]))

    assert spread(16) < spread(1) / 4


@given(LENGTHS, st.integers(1, 5))
def test_shares_are_a_partition_and_even(lengths: np.ndarray, processes: int) -> None:
    step = np.arange(len(lengths))
    parts = shares(step, lengths, processes)
    assert len(parts) == processes
    assert sorted(np.concatenate(parts).tolist()) == step.tolist()
    if len(step) >= processes:
        assert min(len(part) for part in parts) >= 1
    loads = [int(lengths[part].sum()) for part in parts]
    assert max(loads) - min(loads) <= lengths.max()


@given(LENGTHS, st.one_of(st.none(), st.integers(1, 400)))
def test_passes_are_a_partition_and_small(lengths: np.ndarray, pass_tokens: int | None) -> None:
    share = np.arange(len(lengths))
    parts = passes(share, lengths, pass_tokens)
    assert sorted(np.concatenate(parts).tolist()) == share.tolist()
    if pass_tokens is None:
        assert len(parts) == 1
    else:
        assert all(len(part) == 1 or lengths[part].sum() <= pass_tokens for part in parts)


@pytest.mark.parametrize(("prompt", "label"), [(100, 0), (0, 10)])
def test_a_label_costs_more_than_a_prompt_token(prompt: int, label: int) -> None:
    sizes = Sizes(tokens=np.array([prompt + label]), labels=np.array([label]))
    assert sizes.loads(3).tolist() == [100] if prompt else sizes.loads(3) == [10 + 120]
