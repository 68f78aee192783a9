"""Confidence intervals of acceptance: the bootstrap over sequences (Efron 1979, percentile method).

Rounds of one answer resemble each other, so whole sequences are drawn, with replacement, and ratios are taken of their
sums. Datasets are no sample of anything: over several of them each one is drawn from on its own (stratified).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from eyas.evaluate.tally import count_by_sequence

LEVEL = 0.95
"""Of the confidence intervals."""
SEED = 0
DRAWS_AT_A_TIME = 1 << 22
"""Numbers of draws held at a time."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bootstrap:
    """Counts of rounds, over sequences that were drawn again."""

    drawn: Mapping[str, Sequence[Floats] | None]
    """By dataset, for k = 1.. draft tokens: drafts and accepted_at of each resample, [R, 1 + k]; None where a dataset has
    fewer than two sequences with drafts, so that nothing can be said."""

    @classmethod
    def of(cls, rounds: pl.DataFrame, sequences: pl.DataFrame, most: int, resamples: int) -> Bootstrap:
        """Draw.

        Args:
            rounds: of `Replay`, with 1..most draft tokens.
            sequences: of `Replay`, with the column dataset.
            most: draft tokens at most.
            resamples: R.
        """
        drawn = {}
        for part in sequences.sort("dataset", "sequence_id").partition_by("dataset", maintain_order=True):
            tables = [
                count_by_sequence(
                    rounds.filter(pl.col("draft_tokens") == tokens), part["sequence_id"], tokens
                )
                for tokens in range(1, most + 1)
            ]
            drawn[part["dataset"][0]] = _drawn(tables, resamples)
        return cls(drawn)

    def intervals(self, datasets: Sequence[str], draft_tokens: int) -> dict[str, list[float] | None]:
        """[low, high] of the acceptance length and the rates over these datasets, by name: length, at_1, ..."""
        names = ["length", *(f"at_{place}" for place in range(1, draft_tokens + 1))]
        parts = [part[draft_tokens - 1] for name in datasets if (part := self.drawn[name]) is not None]
        if not parts or len(parts) < len(datasets):
            return dict.fromkeys(names)
        total = np.sum(parts, axis=0)  # [R, 1 + k]
        rates = total[:, 1:] / total[:, :1]
        values = np.column_stack((1 + rates.sum(axis=1), rates))
        bounds = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)  # [2, 1 + k]
        return dict(zip(names, bounds.T.tolist(), strict=True))


def resample(sums: Floats, resamples: int, seed: int = SEED) -> Floats:
    """Sums over sequences that are drawn with replacement, [R, C], from those of each sequence [S, C].

    The same numbers of sequences and resamples always draw the same sequences.
    """
    sequences = len(sums)
    generator = np.random.default_rng(seed)
    step = max(1, DRAWS_AT_A_TIME // sequences)
    equal = np.full(sequences, 1 / sequences)
    parts = [
        generator.multinomial(sequences, equal, size=min(step, resamples - start)) @ sums
        for start in range(0, resamples, step)
    ]
    return np.concatenate(parts)


def _drawn(tables: Sequence[Floats], resamples: int) -> list[Floats] | None:
    """From tables [S, 1 + k] for each k, all with the same draws."""
    drafted = tables[0][:, 0] > 0
    if drafted.sum() < 2:
        return None
    columns = np.cumsum([table.shape[1] for table in tables])[:-1]
    return np.split(resample(np.hstack(tables)[drafted], resamples), columns, axis=1)
