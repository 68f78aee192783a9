"""From the hidden-state stores to the batches of each optimiser step, for one of several processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray
from torch import Tensor

from eyas.drafter.batch import DraftBatch, pack
from eyas.drafter.loss import weight_sums
from eyas.drafter.vocab import VocabMap
from eyas.errors import GateError
from eyas.hashing import digest
from eyas.shards import HiddenStore, SequenceStates
from eyas.train.course import Course, Stretch
from eyas.train.guards import check_labels, check_supervision
from eyas.train.params import TrainParams
from eyas.train.plan import Indices, Sizes, passes, shares
from eyas.train.prefetch import prefetched

AHEAD = 2
"""Passes packed ahead of the one that is computed."""
LOOKED_AT = 16
"""Of so many of the costliest steps all passes are compared, to find the costliest pass."""


@dataclass(frozen=True)
class Work:
    """What one process does in one optimiser step."""

    number: int
    """Of the step in the whole run, from 0."""
    weight_sums: Tensor
    """float64 [S]: weights of this process's rows, by draft step."""
    batches: Iterator[DraftBatch]
    count: int
    """How many batches follow: at least one."""
    idle: bool
    """There were fewer sequences than processes: the batch is another process's and must not count."""
    tokens: int
    """Of the step, over all processes."""
    labels: int
    """Labelled positions of the step, over all processes."""


class TrainableSequences:
    """The sequences of a store with at least one anchor (two generated tokens in a row) and a weight above 0."""

    def __init__(self, store: HiddenStore, most: int | None = None) -> None:
        """Choose them; no more than `most`, those whose ids have the smallest digests.

        Raises:
            GateError: there is none.
        """
        self.store = store
        chosen = [index for index in range(len(store)) if self._has_anchor(index)]
        weighed = [index for index in chosen if store.weights[index] > 0]
        if not chosen:
            raise GateError(
                "no sequence has two generated tokens in a row, so there is nothing to train on",
                where=str(store.directory),
                hint="look at reports/reassembly.json and at generate.max_tokens",
            )
        if not weighed:
            raise GateError(
                "all sequences that could be trained have weight 0",
                where=str(store.directory),
                hint="give a dataset a weight above 0 in reassemble.weights, then dvc repro",
            )
        if most is not None and most < len(weighed):
            weighed = sorted(sorted(weighed, key=lambda index: digest(store.sequence_ids[index]))[:most])
        self.indices = weighed
        self.sizes = Sizes(
            tokens=np.array([store.lengths[index] for index in weighed], dtype=np.int64),
            labels=np.array([store.label_counts[index] for index in weighed], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> SequenceStates:
        states = self.store[self.indices[index]]
        check_labels(states, self.store.directory)
        return states

    def ids(self, indices: Indices) -> list[str]:
        """Ids of sequences, for messages."""
        return [self.store.sequence_ids[self.indices[index]] for index in indices]

    def _has_anchor(self, index: int) -> bool:
        """Every labelled position but position 0 is the slot behind an anchor."""
        labels = self.store.label_counts[index]
        if labels != 1:
            return labels > 1
        kinds = self.store.kinds(index)
        return not bool(kinds[0] and kinds[1])


class Steps:
    """The work of one process in the rest of a stretch, packed ahead of its use."""

    def __init__(self, data: DrafterData, stretch: Stretch, offset: int) -> None:
        self.data = data
        self.stretch = stretch
        self.offset = offset

    def __len__(self) -> int:
        return len(self.stretch) - self.offset

    def __iter__(self) -> Iterator[Work]:
        stream = prefetched(self._stream(), AHEAD)
        batches = cast("Iterator[DraftBatch]", stream)
        for item in stream:
            assert isinstance(item, Work), "a batch of the step before was not used"
            yield replace(item, batches=islice(batches, item.count))

    def _stream(self) -> Iterator[Work | DraftBatch]:
        """Each step's Work, without its batches, and then these."""
        steps = self.data.course.steps_of(self.stretch.epoch)
        for place in range(self.stretch.start + self.offset, self.stretch.stop):
            number = self.stretch.first + place - self.stretch.start
            yield from self.data.work(steps[place], number)


class Passes:
    """One process's share of the val split, a batch at a time; a single None if it has none."""

    def __init__(self, data: DrafterData) -> None:
        self.data = data
        self.parts = data.val_passes()

    def __len__(self) -> int:
        return max(len(self.parts), 1)

    def __iter__(self) -> Iterator[DraftBatch | None]:
        if not self.parts:
            yield None
            return
        yield from prefetched((self.data.packed(part, self.data.val) for part in self.parts), AHEAD)


class DrafterData(LightningDataModule):
    """Both splits, in the order of the course. Lightning asks for a new loader for each stretch."""

    def __init__(
        self,
        train: HiddenStore,
        val: HiddenStore,
        vocab: VocabMap,
        params: TrainParams,
        pass_tokens: int | None = None,
    ) -> None:
        """Choose sequences and plan all steps.

        Raises:
            GateError: a split has nothing to train on.
        """
        super().__init__()
        self.params = params
        self.vocab = vocab
        self.pass_tokens = pass_tokens
        self.train = TrainableSequences(train)
        self.val = TrainableSequences(val, params.val_sequences)
        self.course = Course(self.train.sizes, params)
        self.offset = 0
        """Steps of the first stretch that an earlier run has done."""
        self.processes = 1
        self.process = 0
        self._weight_sums = np.full((len(self.train), params.ttt_steps), np.nan)
        """Of each training sequence, once it was needed: they are the same in every epoch."""

    def setup(self, stage: str) -> None:
        assert self.trainer is not None
        self.processes, self.process = self.trainer.world_size, self.trainer.global_rank

    def train_dataloader(self) -> Steps:
        assert self.trainer is not None
        offset, self.offset = self.offset, 0
        return Steps(self, self.course.stretches[self.trainer.current_epoch], offset)

    def val_dataloader(self) -> Passes:
        return Passes(self)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # a pass moves when it is computed, so that one at a time takes memory there

    def work(self, step: Indices, number: int) -> Iterator[Work | DraftBatch]:
        """The part of this process in a step: first what it is, then its batches."""
        sizes = self.train.sizes
        share = self._shares(step)[self.process]
        idle = len(share) == 0
        parts = passes(step[:1] if idle else share, sizes.tokens, self.pass_tokens)
        sums = torch.from_numpy(
            sum((self._weights(index) for index in share), np.zeros(self.params.ttt_steps))
        )
        tokens, labels = int(sizes.tokens[step].sum()), int(sizes.labels[step].sum())
        yield Work(number, sums, iter(()), len(parts), idle, tokens, labels)
        yield from (self.packed(part, self.train) for part in parts)

    def _weights(self, index: int) -> NDArray[np.float64]:
        """What the weights of a training sequence's rows sum to, [S]."""
        found: NDArray[np.float64] = self._weight_sums[index]
        if np.isnan(found[0]):
            steps, objective = self.params.ttt_steps, self.params.objective
            found[:] = weight_sums([self.train[index]], steps, self.vocab, objective)
        return found

    def val_passes(self) -> list[Indices]:
        """Passes of this process over the val split."""
        sizes = self.val.sizes
        everything = np.arange(len(self.val), dtype=np.int64)
        share = shares(everything, sizes.loads(self.params.ttt_steps), self.processes)[self.process]
        most = self.pass_tokens or max(1, self.params.batch_tokens // self.processes)
        return passes(share, sizes.tokens, most) if len(share) else []

    def heaviest_passes(self) -> list[Indices]:
        """The pass with the longest sequence and the costliest one, of all processes and epochs; one if it is both."""
        loads, tokens = self._loads, self.train.sizes.tokens
        steps = [step for epoch in range(self.params.epochs) for step in self.course.steps_of(epoch)]
        by_load = sorted(steps, key=lambda step: -int(loads[step].sum()))[:LOOKED_AT]
        by_length = max(steps, key=lambda step: int(tokens[step].max()))
        found = [
            part
            for step in [*by_load, by_length]
            for share in self._shares(step)
            for part in passes(share, tokens, self.pass_tokens)
            if len(part)
        ]
        heaviest = max(found, key=lambda part: int(loads[part].sum()))
        longest = max(found, key=lambda part: int(tokens[part].max()))
        return [longest, heaviest] if tokens[longest].max() > tokens[heaviest].max() else [heaviest]

    def _shares(self, step: Indices) -> list[Indices]:
        return shares(step, self._loads, self.processes)

    @property
    def _loads(self) -> Indices:
        return self.train.sizes.loads(self.params.ttt_steps)

    def packed(self, part: Indices, split: TrainableSequences) -> DraftBatch:
        """A batch of a split, in CPU memory."""
        batch = pack([split[index] for index in part], self.params.ttt_steps)
        check_supervision(batch)
        return batch
