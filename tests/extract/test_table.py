from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas.errors import ArtifactError, InputError
from eyas.extract.table import Sequences
from eyas.source import table_digest
from tests.extract.greedy import write_table


def test_counts_by_hand(tmp_path: Path) -> None:
    """A label needs two generated tokens in a row, a check one with any token before it."""
    sequences = Sequences.of(
        ["a", "b", "c"],
        ["x", "x", "y"],
        [[1, 2, 3, 4, 5], [1], [7, 8, 9, 10]],
        [[0, 0, 2, 1, 3], [3], [3, 3, 0, 5]],
        [1.0, 0.5, 2.0],
    )
    write_table(sequences, tmp_path / "s.parquet")
    read = Sequences.read(tmp_path / "s.parquet", 11)
    assert list(read.sequence_ids) == ["a", "b", "c"]
    assert [read.ids(index) for index in range(3)] == [[1, 2, 3, 4, 5], [1], [7, 8, 9, 10]]
    assert [kinds.tolist() for kinds in read.kinds] == [[0, 0, 2, 1, 3], [3], [3, 3, 0, 5]]
    assert read.weights.tolist() == [1.0, 0.5, 2.0]
    assert read.lengths.tolist() == [5, 1, 4]
    assert read.label_counts.tolist() == [2, 0, 1]
    assert read.checked_counts.tolist() == [3, 0, 2]
    assert read.per_dataset() == {"x": 2, "y": 1}
    assert read.per_dataset(read.lengths) == {"x": 6, "y": 4}
    assert (
        read.source_digest == sequences.source_digest == table_digest(pl.read_parquet(tmp_path / "s.parquet"))
    )


TWO: dict[str, Any] = {
    "sequence_ids": ["a", "bc"],
    "datasets": ["x", "x"],
    "token_ids": [[1, 2, 3], [4]],
    "kinds": [[0, 2, 3], [3]],
    "weights": [1.0, 0.5],
}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"sequence_ids": ["ab", "c"]}, id="other names with the same letters"),
        pytest.param({"token_ids": [[1, 2, 3], [5]]}, id="a token"),
        pytest.param({"token_ids": [[1, 2], [3, 4]], "kinds": [[0, 2], [3, 3]]}, id="a border"),
        pytest.param({"kinds": [[0, 2, 2], [3]]}, id="a kind"),
        pytest.param({"weights": [1.0, 1.0]}, id="a weight"),
        pytest.param({"weights": None}, id="no weights"),
    ],
)
def test_the_source_digest_sees_everything(change: dict[str, Any]) -> None:
    assert Sequences.of(**{**TWO, **change}).source_digest != Sequences.of(**TWO).source_digest


def test_the_source_digest_sees_the_order() -> None:
    turned = {key: values[::-1] for key, values in TWO.items()}
    assert Sequences.of(**turned).source_digest != Sequences.of(**TWO).source_digest


def test_the_source_digest_by_hand() -> None:
    """Stores on disk carry it: it must not change with the program or the machine."""
    columns = [
        struct.pack("<Q2q", 2, 1, 2),
        struct.pack("<Q3s", 3, b"abc"),
        struct.pack("<Q2q", 2, 3, 1),
        struct.pack("<Q4i", 4, 1, 2, 3, 4),
        struct.pack("<Q4B", 4, 0, 2, 3, 3),
        struct.pack("<Q2f", 2, 1.0, 0.5),
    ]
    expected = hashlib.sha256(b"eyas.sequences.1\n" + b"".join(columns)).hexdigest()
    assert Sequences.of(**TWO).source_digest == expected


@pytest.mark.parametrize(
    ("ids", "kinds"),
    [
        pytest.param([], [], id="empty"),
        pytest.param([1, 2], [3], id="a kind too few"),
        pytest.param([1, 2], [3, 6], id="unknown kind"),
        pytest.param([1, 11], [3, 3], id="id too large"),
        pytest.param([1, -1], [3, 3], id="negative id"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, ids: list[int], kinds: list[int]) -> None:
    sequences = Sequences.of(["fine", "bad:1"], ["x", "x"], [[1], ids], [[3], kinds])
    write_table(sequences, tmp_path / "s.parquet")
    with pytest.raises(InputError, match="bad:1"):
        Sequences.read(tmp_path / "s.parquet", 11)


def test_missing_table_or_column(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="can't be read"):
        Sequences.read(tmp_path / "s.parquet", 11)
    pl.DataFrame({"sequence_id": ["a"]}).write_parquet(tmp_path / "s.parquet")
    with pytest.raises(ArtifactError, match="can't be read"):
        Sequences.read(tmp_path / "s.parquet", 11)
