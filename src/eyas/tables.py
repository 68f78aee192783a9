"""Parquet tables that carry notes about what made them, in the file's own metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandera.polars as pa
import polars as pl

from eyas.errors import ArtifactError
from eyas.files import atomic_file
from eyas.schema import check

INPUTS = "eyas.inputs"
"""On prompt tables: digest of the params sections that made them (eyas.freshness)."""
TEMPLATE_KWARGS = "eyas.chat_template_kwargs"
"""On validated tables: JSON of the template arguments that the server rendered the prompts with."""


def write_table(path: Path, table: pl.DataFrame, notes: Mapping[str, str] | None = None) -> None:
    """Write a table with its notes atomically."""
    with atomic_file(path) as temporary:
        table.write_parquet(temporary, metadata=dict(notes or {}))


def read_table(path: Path, model: type[pa.DataFrameModel]) -> pl.DataFrame:
    """Read a table of an earlier stage and check it.

    Raises:
        ArtifactError: no such file, not a Parquet file, or it breaks the model.
    """
    try:
        table = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ArtifactError(
            f"not a readable Parquet file: {error}", where=str(path), hint="dvc repro"
        ) from error
    check(model, table, str(path))
    return table


def read_note(path: Path, key: str) -> str | None:
    """A note of a table; None if it has none of this name.

    Raises:
        ArtifactError: no such file, or not a Parquet file.
    """
    try:
        return pl.read_parquet_metadata(path).get(key)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ArtifactError(
            f"not a readable Parquet file: {error}", where=str(path), hint="dvc repro"
        ) from error
