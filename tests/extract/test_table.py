from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from eyas.errors import ArtifactError, InputError
from eyas.extract.table import Sequences
from tests.extract.greedy import write_table


def test_counts_by_hand(tmp_path: Path) -> None:
    """A label needs two generated tokens in a row, a check one with any token before it."""
    sequences = Sequences(
        ["a", "b", "c"],
        ["x", "x", "y"],
        [[1, 2, 3, 4, 5], [1], [7, 8, 9, 10]],
        [[False, False, True, True, True], [True], [True, True, False, True]],
    )
    write_table(sequences, tmp_path / "s.parquet")
    read = Sequences.read(tmp_path / "s.parquet", 11)
    assert read == sequences
    assert read.lengths == [5, 1, 4]
    assert read.label_counts == [2, 0, 1]
    assert read.checked_counts == [3, 0, 2]


@pytest.mark.parametrize(
    ("ids", "mask"),
    [
        pytest.param([], [], id="empty"),
        pytest.param([1, 2], [True], id="short mask"),
        pytest.param([1, 11], [True, True], id="id too large"),
        pytest.param([1, -1], [True, True], id="negative id"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, ids: list[int], mask: list[bool]) -> None:
    write_table(Sequences(["fine", "bad:1"], ["x", "x"], [[1], ids], [[True], mask]), tmp_path / "s.parquet")
    with pytest.raises(InputError, match="bad:1"):
        Sequences.read(tmp_path / "s.parquet", 11)


def test_missing_table_or_column(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="can't be read"):
        Sequences.read(tmp_path / "s.parquet", 11)
    pl.DataFrame({"sequence_id": ["a"]}).write_parquet(tmp_path / "s.parquet")
    with pytest.raises(ArtifactError, match="can't be read"):
        Sequences.read(tmp_path / "s.parquet", 11)
