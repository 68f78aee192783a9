"""Parquet tables that carry notes about what made them, in the file's own metadata."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal

import pandera.polars as pa
import polars as pl
from polars.io.plugins import register_io_source

from eyas.errors import ArtifactError
from eyas.files import atomic_file
from eyas.schema import check, columns_of

INPUTS = "eyas.inputs"
"""On prompt tables: digest of the params sections that made them (eyas.freshness)."""
TEMPLATE_KWARGS = "eyas.chat_template_kwargs"
"""On validated tables: JSON of the template arguments that the server rendered the prompts with."""

ROW_GROUP = 8192
"""Rows of a row group: some ten million tokens at most in memory at a time, and slices that are cheap to read."""
LOOK_UP_S = 0.2
"""The main thread waits in such pieces: a signal that the kernel gives to another thread does not end its wait, and is heard
after it."""
Compression = Literal["lz4", "zstd"]
"""lz4 for tables that one stage reads once: written in less time, two thirds larger. zstd for what is kept."""


def write_table(path: Path, table: pl.DataFrame, notes: Mapping[str, str] | None = None) -> None:
    """Write a table with its notes atomically."""
    with atomic_file(path) as temporary:
        table.write_parquet(
            temporary, compression_level=1, row_group_size=ROW_GROUP, metadata=dict(notes or {})
        )


def read_table(path: Path, model: type[pa.DataFrameModel]) -> pl.DataFrame:
    """Read a table of an earlier stage and check it.

    Raises:
        ArtifactError: no such file, not a Parquet file, or it breaks the model.
    """
    try:
        table = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error
    check(model, table, str(path))
    return table


def read_pieces(path: Path, model: type[pa.DataFrameModel]) -> Iterator[pl.DataFrame]:
    """The rows of a table of an earlier stage in their order, a few thousand at a time, each piece checked.

    What must be unique is checked within a piece only.

    Raises:
        ArtifactError: no such file, not a Parquet file, or it breaks the model.
    """
    try:
        for piece in pl.scan_parquet(path).collect_batches(chunk_size=ROW_GROUP, maintain_order=True):
            check(model, piece, str(path))
            yield piece
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error


def read_note(path: Path, key: str) -> str | None:
    """A note of a table; None if it has none of this name.

    Raises:
        ArtifactError: no such file, or not a Parquet file.
    """
    try:
        return pl.read_parquet_metadata(path).get(key)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error


def write_batches(
    path: Path,
    model: type[pa.DataFrameModel],
    batches: Iterable[pl.DataFrame],
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write a table that may be larger than memory, piece by piece; not atomic: `path` is a temporary file.

    What `batches` raises comes through. They are made in another thread, so that a stop signal finds this one waiting.
    """
    _write(path, columns_of(model), batches, notes, "lz4")


def write_parted(
    directory: Path,
    files: Mapping[str, str],
    model: type[pa.DataFrameModel],
    batches: Iterable[pl.DataFrame],
    column: str,
) -> None:
    """Write several tables at once as `write_batches` does: each row goes to the file that its `column` stands for.

    `files`: value of `column` -> name of a file in the new `directory`, which is there without any rows too.
    `batches` have the model's columns and `column`.
    """
    schema = columns_of(model)

    def path_of(part: Any) -> str:
        return files[part.partition_keys[column][0]]

    parts = pl.PartitionBy(
        directory,
        key=column,
        include_key=False,
        approximate_bytes_per_file=None,
        file_path_provider=path_of,
    )
    _write(parts, pl.Schema(schema | {column: pl.String()}), batches, None, "zstd")
    for name in files.values():
        if not (directory / name).exists():
            pl.DataFrame(schema=schema).write_parquet(directory / name)


def _write(
    target: Path | pl.PartitionBy,
    schema: pl.Schema,
    batches: Iterable[pl.DataFrame],
    notes: Mapping[str, str] | None,
    compression: Compression,
) -> None:
    """See `write_batches`; `target` is one file or says which rows go to which."""
    raised: list[Exception] = []
    stopped = threading.Event()

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        try:
            for batch in batches:
                if stopped.is_set():
                    return
                yield batch
        except Exception as error:  # noqa: BLE001 -- Polars would turn it into an error of its own
            raised.append(error)

    frame = register_io_source(source, schema=schema, validate_schema=True)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(
            frame.sink_parquet,
            target,
            compression=compression,
            compression_level=1 if compression == "zstd" else None,
            row_group_size=ROW_GROUP,
            metadata=dict(notes or {}),
            lazy=False,
        )
        try:
            while not wait([writing], LOOK_UP_S).done:
                pass
            writing.result()
        except BaseException:
            stopped.set()
            raise
    if raised:
        raise raised[0]


def _unreadable(path: Path, error: Exception) -> ArtifactError:
    return ArtifactError(f"not a readable Parquet file: {error}", where=str(path), hint="dvc repro")
