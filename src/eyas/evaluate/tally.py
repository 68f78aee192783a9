"""Counts of replayed rounds, as an engine's counters would show them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from eyas.acceptance import AcceptanceCounts


def count(rounds: pl.DataFrame, draft_tokens: int) -> AcceptanceCounts:
    """Counts of rounds that all have so many draft tokens. What is drafted past an answer's end counts as rejected."""
    return _counts(rounds.select(_sums(draft_tokens)).row(0))


def count_at_most(rounds: pl.DataFrame, draft_tokens: int) -> AcceptanceCounts:
    """The same if an engine accepted all that it drafts past the end of an answer."""
    judged = draft_tokens - pl.col("past_end")
    open_at = [
        (pl.col("weight") * pl.col("open_end")).filter(judged < place).sum().alias(f"open_{place}")
        for place in range(1, draft_tokens + 1)
    ]
    return count(rounds, draft_tokens) + AcceptanceCounts(0, list(rounds.select(open_at).row(0)))


def count_by(rounds: pl.DataFrame, key: str, draft_tokens: int) -> dict[int, AcceptanceCounts]:
    """Counts by the values of a column, ascending."""
    table = rounds.group_by(key).agg(_sums(draft_tokens)).sort(key)
    return {value: _counts(row) for value, *row in table.iter_rows()}


def count_by_sequence(
    rounds: pl.DataFrame, sequence_ids: pl.Series, draft_tokens: int
) -> NDArray[np.float64]:
    """Drafts and accepted_at of each sequence, [S, 1 + k]; zeros for a sequence without rounds."""
    table = rounds.group_by("sequence_id").agg(_sums(draft_tokens))
    wanted = pl.DataFrame({"sequence_id": sequence_ids})
    joined = wanted.join(table, on="sequence_id", how="left", maintain_order="left").drop("sequence_id")
    return joined.fill_null(0.0).to_numpy().astype(np.float64)


def binned(rounds: pl.DataFrame, column: str, bins: Sequence[int]) -> pl.DataFrame:
    """The rounds with a column `bin`: the largest of the ascending bins that is not above the column's value."""
    places = np.searchsorted(np.asarray(bins), rounds[column].to_numpy(), side="right") - 1
    return rounds.with_columns(pl.Series("bin", np.asarray(bins)[places], dtype=pl.Int64))


def _sums(draft_tokens: int) -> list[pl.Expr]:
    weight = pl.col("weight")
    return [
        weight.sum(),
        *(
            (weight * pl.col(f"at_{place}")).sum().alias(f"at_{place}")
            for place in range(1, draft_tokens + 1)
        ),
    ]


def _counts(row: Sequence[float]) -> AcceptanceCounts:
    """From drafts, at_1, at_2, ..."""
    return AcceptanceCounts(row[0], list(row[1:]))
