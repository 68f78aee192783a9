"""From the hidden-state store to packed batches: token budget, lengths together, order fixed by (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import DataLoader, Dataset, Sampler

from eyas.drafter.batch import DraftBatch, anchors_of, pack
from eyas.errors import GateError
from eyas.shards import HiddenStore, SequenceStates

WINDOW_BATCHES = 16
"""Sequences are shuffled, then sorted by length within windows of about so many batches."""


class TrainableSequences(Dataset[SequenceStates]):
    """The sequences of a store with at least one anchor: two generated tokens in a row."""

    def __init__(self, store: HiddenStore) -> None:
        """Choose them.

        Raises:
            GateError: there is none.
        """
        self.store = store
        self.indices = [index for index in range(len(store)) if len(anchors_of(store[index].loss_mask))]
        if not self.indices:
            raise GateError(
                "no sequence has two generated tokens in a row, so there is nothing to train on",
                where=str(store.directory),
                hint="look at reports/reassembly.json and at generate.max_tokens",
            )

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        return [self.store.lengths[index] for index in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> SequenceStates:
        return self.store[self.indices[index]]


class TokenBudgetBatches(Sampler[list[int]]):
    """Batches of sequence indices whose padded size stays within a token budget.

    The batches of an epoch are a function of (lengths, budget, seed, epoch) alone. A sequence longer than the
    budget makes a batch of its own.
    """

    def __init__(self, lengths: list[int], batch_tokens: int, *, seed: int, shuffle: bool) -> None:
        self.lengths = lengths
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches(self.epoch))

    def __len__(self) -> int:
        return len(self.batches(self.epoch))

    def batches(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch."""
        rng = np.random.default_rng((self.seed, epoch))
        count = len(self.lengths)
        order = rng.permutation(count) if self.shuffle else np.arange(count)
        window = self._window() if self.shuffle else max(count, 1)
        batches: list[list[int]] = []
        for start in range(0, count, window):
            by_length = sorted(
                (int(i) for i in order[start : start + window]), key=lambda i: (self.lengths[i], i)
            )
            batches.extend(self._cut(by_length))
        if self.shuffle:
            rng.shuffle(batches)
        return batches

    def _window(self) -> int:
        mean = sum(self.lengths) / max(len(self.lengths), 1)
        return max(1, round(WINDOW_BATCHES * self.batch_tokens / max(mean, 1)))

    def _cut(self, ascending: list[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in ascending:  # the newest is the longest, so it decides the padded size
            if batch and self.lengths[index] * (len(batch) + 1) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch


def loader(
    store: HiddenStore, batch_tokens: int, ttt_steps: int, *, seed: int, shuffle: bool
) -> DataLoader[SequenceStates]:
    """Batches packed for the drafter (DraftBatch) over the trainable sequences of a store.

    Raises:
        GateError: the store has no trainable sequence.
    """
    dataset = TrainableSequences(store)
    sampler = TokenBudgetBatches(dataset.lengths, batch_tokens, seed=seed, shuffle=shuffle)

    def collate(sequences: list[SequenceStates]) -> DraftBatch:
        return pack(sequences, ttt_steps)

    return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)
