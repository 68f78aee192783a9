"""Which sequences make an optimiser step, and which of them a process takes through the drafter together.

Steps are a function of (lengths, token budget, bucket, seed, epoch) alone: neither the number of processes nor the memory
of a pass changes them, so these change nothing but the order of floating-point sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

LABEL_LOAD = 4
"""A draft step of one labelled position costs about as much as this many prompt tokens, which only lend a key and a value."""


@dataclass(frozen=True)
class Sizes:
    """Tokens and labelled positions of each sequence, int64 [N]."""

    tokens: Indices
    labels: Indices

    def __len__(self) -> int:
        return len(self.tokens)

    def loads(self, ttt_steps: int) -> Indices:
        """Relative cost of each sequence, int64 [N]."""
        return self.tokens + LABEL_LOAD * ttt_steps * self.labels


def steps_of_epoch(
    tokens: Indices, batch_tokens: int, *, seed: int, epoch: int, bucket_steps: int
) -> list[Indices]:
    """Sequences (indices into `tokens`) of each optimiser step, in order; each sequence once.

    A step holds at most `batch_tokens` tokens, or one sequence that is longer than that.
    """
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(tokens))
    if bucket_steps > 1:
        order = _bucketed(order, tokens, _window(tokens, batch_tokens, bucket_steps))
    steps = _cut(order, tokens, batch_tokens)
    return [steps[place] for place in rng.permutation(len(steps))] if bucket_steps > 1 else steps


def _window(tokens: Indices, batch_tokens: int, bucket_steps: int) -> int:
    return max(1, round(bucket_steps * batch_tokens / max(float(tokens.mean()), 1.0)))


def _bucketed(order: Indices, tokens: Indices, window: int) -> Indices:
    """Sorted by length within windows, up and down in turn: where two windows meet, lengths meet too."""
    parts = []
    for number, start in enumerate(range(0, len(order), window)):
        part = order[start : start + window]
        ascending = part[np.lexsort((part, tokens[part]))]
        parts.append(ascending[::-1] if number % 2 else ascending)
    return np.concatenate(parts)


def _cut(order: Indices, tokens: Indices, most: int) -> list[Indices]:
    """Consecutive pieces of at most `most` tokens; a longer sequence is a piece of its own."""
    ends = np.cumsum(tokens[order])
    pieces = []
    start = 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        pieces.append(order[start:stop])
        start = stop
    return pieces


def shares(step: Indices, loads: Indices, processes: int) -> list[Indices]:
    """A step divided over processes so that their loads differ little: the heaviest first, each to the least loaded.

    With fewer sequences than processes some shares are empty.
    """
    if processes == 1:
        return [step]
    taken: list[list[int]] = [[] for _ in range(processes)]
    totals = np.zeros(processes, dtype=np.int64)
    for index in step[np.lexsort((step, -loads[step]))]:
        lightest = int(totals.argmin())
        taken[lightest].append(int(index))
        totals[lightest] += loads[index]
    return [np.array(part, dtype=np.int64) for part in taken]


def passes(share: Indices, tokens: Indices, pass_tokens: int | None) -> list[Indices]:
    """A share divided into forward and backward passes of at most `pass_tokens` tokens, similar lengths together."""
    if pass_tokens is None or len(share) == 0:
        return [share]
    return _cut(share[np.lexsort((share, tokens[share]))], tokens, pass_tokens)
