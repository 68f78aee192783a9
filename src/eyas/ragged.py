"""Lists of different lengths in two flat arrays, as Arrow keeps them: millions of sequences without Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Ragged:
    """N lists; list i is values[offsets[i] : offsets[i + 1]]."""

    values: Array
    """[total]"""
    offsets: npt.NDArray[np.int64]
    """[N + 1], from 0 to total."""

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], dtype: npt.DTypeLike) -> Ragged:
        """Pack lists."""
        arrays = [np.asarray(row, dtype=dtype) for row in rows]
        values = np.concatenate(arrays) if arrays else np.empty(0, dtype)
        return cls(values, offsets_of([len(array) for array in arrays]))

    @classmethod
    def of_column(cls, column: pl.Series, dtype: npt.DTypeLike) -> Ragged:
        """The lists of a Polars column, none of them null."""
        lengths = column.list.len().to_numpy()
        filled = column.filter(column.list.len() > 0)  # an empty list would explode to a null
        values = filled.explode().to_numpy() if len(filled) else np.empty(0)
        return cls(np.asarray(values, dtype=dtype), offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Array:
        """List `index`, a view."""
        if not 0 <= index < len(self):
            raise IndexError(f"list {index} of {len(self)}")
        row: Array = self.values[self.offsets[index] : self.offsets[index + 1]]
        return row

    def __iter__(self) -> Iterator[Array]:
        return (self[index] for index in range(len(self)))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """[N] values of each list."""
        return np.diff(self.offsets)

    def sums(self, values: Array) -> npt.NDArray[np.int64]:
        """[N] sum over each list's part of an array [total] of booleans or integers beside `values`."""
        sums = np.zeros(len(self), np.int64)
        filled = self.lengths > 0  # reduceat takes an empty run for one value
        if filled.any():
            sums[filled] = np.add.reduceat(values, self.offsets[:-1][filled], dtype=np.int64)
        return sums

    @property
    def first(self) -> npt.NDArray[np.bool_]:
        """[total], true on the first value of each list."""
        marks = np.zeros(len(self.values), np.bool_)
        marks[self.offsets[:-1][self.lengths > 0]] = True
        return marks


def offsets_of(lengths: Sequence[int] | npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """[N + 1] from lengths [N]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, dtype=np.int64))])
