"""The course of a training run: its optimiser steps, cut into stretches that each end with a validation."""

from __future__ import annotations

from dataclasses import dataclass

from eyas.train.params import TrainParams
from eyas.train.plan import Indices, Sizes, steps_of_epoch


@dataclass(frozen=True)
class Stretch:
    """Steps between two validations. To Lightning a stretch is an epoch."""

    epoch: int
    """Pass over the data, from 0."""
    start: int
    """First step within the epoch."""
    stop: int
    """One behind the last."""
    first: int
    """Number of the first step in the whole run, from 0."""
    ends_epoch: bool

    def __len__(self) -> int:
        return self.stop - self.start


class Course:
    """All steps of a run. Nothing but the sequences' sizes and the params decides it."""

    def __init__(self, sizes: Sizes, params: TrainParams) -> None:
        self.sizes = sizes
        self.params = params
        self._kept: tuple[int, list[Indices]] | None = None
        self.stretches = list(self._stretches())
        self.steps = sum(len(stretch) for stretch in self.stretches)

    def steps_of(self, epoch: int) -> list[Indices]:
        """The sequences of each step of an epoch; those of the last one asked for are kept."""
        if self._kept is None or self._kept[0] != epoch:
            steps = steps_of_epoch(
                self.sizes.tokens,
                self.params.batch_tokens,
                seed=self.params.seed,
                epoch=epoch,
                bucket_steps=self.params.bucket_steps,
            )
            self._kept = (epoch, steps)
        return self._kept[1]

    def _stretches(self) -> list[Stretch]:
        every = self.params.val_every_steps
        found: list[Stretch] = []
        first = 0
        for epoch in range(self.params.epochs):
            count = len(self.steps_of(epoch))
            for start in range(0, count, every or count):
                stop = min(start + (every or count), count)
                found.append(Stretch(epoch, start, stop, first + start, stop == count))
            first += count
        return found
