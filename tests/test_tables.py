"""Tables that are written and read piece by piece."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from eyas import tables
from eyas.errors import ArtifactError
from eyas.schema import Prompts, RejectedPrompts, columns_of
from eyas.tables import read_note, read_pieces, write_batches, write_parted
from tests.hand_made import prompts, raw


def batch(*names: str) -> pl.DataFrame:
    rows = [(name, "reason", "detail") for name in names]
    return pl.DataFrame(rows, schema=columns_of(RejectedPrompts), orient="row")


def test_batches_become_one_table_in_their_order(tmp_path: Path) -> None:
    names = [f"talk:{number}" for number in range(50)]
    pieces = [batch(*names[:20]), batch(), batch(*names[20:21]), batch(*names[21:])]
    write_batches(tmp_path / "t.parquet", RejectedPrompts, pieces, {"note": "kept"})
    assert pl.read_parquet(tmp_path / "t.parquet").equals(batch(*names))
    assert read_note(tmp_path / "t.parquet", "note") == "kept"


def test_no_batches_make_an_empty_table(tmp_path: Path) -> None:
    write_batches(tmp_path / "t.parquet", RejectedPrompts, [])
    assert pl.read_parquet(tmp_path / "t.parquet").schema == columns_of(RejectedPrompts)


def test_row_groups_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROW_GROUP", 10)
    write_batches(tmp_path / "t.parquet", RejectedPrompts, [batch(*map(str, range(35)))] * 3)
    assert pl.scan_parquet(tmp_path / "t.parquet").select(pl.len()).collect().item() == 105
    whole = (tmp_path / "t.parquet").stat().st_size
    monkeypatch.setattr(tables, "ROW_GROUP", 1000)
    write_batches(tmp_path / "t.parquet", RejectedPrompts, [batch(*map(str, range(35)))] * 3)
    assert (tmp_path / "t.parquet").stat().st_size < whole


def test_the_error_of_a_batch_comes_through(tmp_path: Path) -> None:
    def batches() -> Iterator[pl.DataFrame]:
        yield batch("talk:1")
        raise ArtifactError("the second one")

    with pytest.raises(ArtifactError, match="the second one"):
        write_batches(tmp_path / "t.parquet", RejectedPrompts, batches())


def test_a_batch_of_other_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pl.exceptions.PolarsError):
        write_batches(tmp_path / "t.parquet", RejectedPrompts, [batch("talk:1").drop("detail")])


def test_an_interrupt_stops_at_the_next_batch(tmp_path: Path) -> None:
    made = threading.Event()

    def batches() -> Iterator[pl.DataFrame]:
        while True:
            made.set()
            yield batch("talk:1")

    def interrupt() -> None:
        made.wait()
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        write_batches(tmp_path / "t.parquet", RejectedPrompts, batches())


def test_pieces_are_read_in_order_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROW_GROUP", 7)
    table = prompts([raw(f"talk:{number:02}") for number in range(30)])
    table.write_parquet(tmp_path / "p.parquet", row_group_size=4)
    pieces = list(read_pieces(tmp_path / "p.parquet", Prompts))
    assert len(pieces) > 2
    assert pl.concat(pieces).equals(table)
    table.with_columns(prompt_hash=pl.lit("abc")).write_parquet(tmp_path / "p.parquet")
    with pytest.raises(ArtifactError, match="not a Prompts table"):
        list(read_pieces(tmp_path / "p.parquet", Prompts))


def test_rows_go_to_the_files_that_a_column_names_in_their_order(tmp_path: Path) -> None:
    table = prompts([raw(f"a:{number}") for number in range(9)])
    sides = pl.Series("side", ["odd" if number % 2 else "even" for number in range(9)])
    batches = [table.with_columns(sides)[start : start + 2] for start in range(0, 9, 2)]
    files = {"odd": "o.parquet", "even": "e.parquet", "none": "n.parquet"}
    write_parted(tmp_path, files, Prompts, iter(batches), "side")
    for side, name in files.items():
        assert pl.read_parquet(tmp_path / name).equals(table.filter(sides == side))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files.values())


def test_files_of_a_relative_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    table = prompts([raw("a:1")])
    write_parted(Path("here"), {"x": "x.parquet"}, Prompts, [table.with_columns(side=pl.lit("x"))], "side")
    assert pl.read_parquet("here/x.parquet").equals(table)


def test_the_error_of_a_parted_batch_comes_through(tmp_path: Path) -> None:
    def failing() -> Iterator[pl.DataFrame]:
        yield prompts([raw("a:1")]).with_columns(side=pl.lit("x"))
        raise ArtifactError("broken")

    with pytest.raises(ArtifactError, match="broken"):
        write_parted(tmp_path, {"x": "x.parquet"}, Prompts, failing(), "side")
