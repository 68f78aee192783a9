from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.ragged import Ragged, offsets_of

Rows = st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=8)


@given(Rows)
def test_like_lists(rows: list[list[int]]) -> None:
    ragged = Ragged.of(rows, np.int32)
    assert [row.tolist() for row in ragged] == rows
    assert len(ragged) == len(rows)
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    assert ragged.sums(ragged.values > 2).tolist() == [sum(value > 2 for value in row) for row in rows]
    firsts = [number == 0 for row in rows for number in range(len(row))]
    assert ragged.first.tolist() == firsts


def test_views_share_memory() -> None:
    ragged = Ragged.of([[1, 2], [3]], np.int32)
    assert np.shares_memory(ragged[0], ragged.values)
    assert ragged.values.dtype == np.int32


@pytest.mark.parametrize("index", [-1, 2])
def test_no_such_list(index: int) -> None:
    with pytest.raises(IndexError):
        Ragged.of([[1], [2]], np.int32)[index]


def test_offsets() -> None:
    assert offsets_of([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert offsets_of([]).tolist() == [0]


def test_a_column_of_lists_with_empty_ones() -> None:
    column = pl.Series([[1, 2], [], [3]], dtype=pl.List(pl.Int32))
    assert [row.tolist() for row in Ragged.of_column(column, np.int32)] == [[1, 2], [], [3]]
    assert len(Ragged.of_column(column.clear(), np.int32)) == 0
