"""Where marker tokens stand in the generated ids of a batch: counted over all rows at once, no row by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from eyas.schema import TOKEN_IDS

ABSENT = -1
"""In place of an id that is null: no marker has it."""


@dataclass(frozen=True)
class Tokens:
    """The ids of all rows one behind the other. R rows, T tokens."""

    ids: npt.NDArray[np.int32]
    """T"""
    rows: npt.NDArray[np.int64]
    """T: the row that each token belongs to."""
    starts: npt.NDArray[np.int64]
    """R: index into `ids` of each row's first token."""


def tokens_of(ids: pl.Series) -> Tokens:
    """Flatten a column of id lists; a null list has no tokens."""
    lengths = ids.list.len().fill_null(0).to_numpy().astype(np.int64)
    flat = ids.cast(TOKEN_IDS).explode(empty_as_null=False, keep_nulls=False).fill_null(ABSENT)
    return Tokens(
        ids=flat.to_numpy(),
        rows=np.repeat(np.arange(len(lengths)), lengths),
        starts=np.cumsum(lengths) - lengths,
    )


def count(tokens: Tokens, marker: Sequence[int]) -> pl.Series:
    """How often each row holds the marker; Int64."""
    found = tokens.rows[_places(tokens, marker)]
    return pl.Series(np.bincount(found, minlength=len(tokens.starts)), dtype=pl.Int64)


def first(tokens: Tokens, marker: Sequence[int]) -> pl.Series:
    """Index within its row of each row's first marker; Int64, null where there is none."""
    return first_of(tokens, [marker])


def first_of(tokens: Tokens, markers: Sequence[Sequence[int]]) -> pl.Series:
    """Index within its row of the first of any of these markers; Int64, null where there is none."""
    positions = np.full(len(tokens.starts), np.iinfo(np.int64).max)
    for marker in markers:
        places = _places(tokens, marker)
        rows = tokens.rows[places]
        np.minimum.at(positions, rows, places - tokens.starts[rows])
    series = pl.Series(positions, dtype=pl.Int64)
    return series.set(series == np.iinfo(np.int64).max, None)


def _places(tokens: Tokens, marker: Sequence[int]) -> npt.NDArray[np.int64]:
    """Indices into `tokens.ids` at which the marker's tokens begin, all within one row."""
    if not marker:
        return np.empty(0, dtype=np.int64)
    places = np.flatnonzero(tokens.ids == marker[0])
    places = places[places + len(marker) <= len(tokens.ids)]
    for step, token in enumerate(marker[1:], 1):
        places = places[tokens.ids[places + step] == token]
    within: npt.NDArray[np.int64] = places[tokens.rows[places] == tokens.rows[places + len(marker) - 1]]
    return within
