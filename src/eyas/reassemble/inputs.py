"""The validated tables of all datasets, exactly those that params name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from eyas import paths
from eyas.errors import ArtifactError, ConfigError
from eyas.schema import Validated, columns_of
from eyas.tables import ROW_GROUP, TEMPLATE_KWARGS, read_note

PIECE_ROWS = ROW_GROUP
"""Rows that are in memory at once where rows are looked at one by one."""


@dataclass(frozen=True)
class ValidatedTable:
    """The valid responses of one dataset."""

    dataset: str
    path: Path
    """A Parquet file of schema Validated, or a folder of them with `origin` and `refused` (reassemble.text)."""
    template_kwargs: dict[str, Any]
    """Template arguments that the server rendered the prompts with."""

    def rows(self) -> pl.LazyFrame:
        """All rows in their order, not yet read."""
        return pl.scan_parquet(self.path / "*.parquet" if self.path.is_dir() else self.path)

    def at(self, path: Path) -> ValidatedTable:
        """The same dataset in another place."""
        return replace(self, path=path)


def check_tables(datasets: Iterable[str]) -> None:
    """One table per dataset and no other file: a removed dataset leaves its table behind.

    Raises:
        ArtifactError: naming the missing or stray files.
    """
    expected = {paths.validated(name) for name in datasets}
    present = {path for path in paths.VALIDATED.glob("*") if path.name != ".gitignore"}
    if missing := sorted(map(str, expected - present)):
        raise ArtifactError(f"no {', '.join(missing)}", hint="dvc repro validate")
    if stray := sorted(map(str, present - expected)):
        raise ArtifactError(
            f"{', '.join(stray)} belongs to no dataset of params.yaml",
            hint=f"remove it: rm {' '.join(stray)}",
        )


def check_weights(weights: Iterable[str], datasets: Iterable[str]) -> None:
    """Every weight is one of a dataset.

    Raises:
        ConfigError: there is no dataset of that name.
    """
    if unknown := sorted(set(weights) - set(datasets)):
        raise ConfigError(
            f"`reassemble.weights.{unknown[0]}`: there is no such dataset",
            where=str(paths.PARAMS),
            hint=f"datasets: {', '.join(datasets)}",
        )


def scan_validated(dataset: str) -> ValidatedTable:
    """Open one table.

    Raises:
        ArtifactError: it is no Parquet file, has other columns, or does not say how its prompts were rendered.
    """
    path = paths.validated(dataset)
    hint = f"dvc repro -f validate@{dataset}"
    note = read_note(path, TEMPLATE_KWARGS)
    if note is None:
        raise ArtifactError(f"the table has no note `{TEMPLATE_KWARGS}`", where=str(path), hint=hint)
    found = pl.read_parquet_schema(path)
    if found != columns_of(Validated):
        different = sorted({name for name, _ in set(found.items()) ^ set(columns_of(Validated).items())})
        raise ArtifactError(
            f"not a Validated table: {', '.join(different) or 'order of columns'} differ",
            where=str(path),
            hint=hint,
        )
    return ValidatedTable(dataset, path, json.loads(note))


def pieces(rows: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """The rows in their order, a few thousand at a time."""
    yield from rows.collect_batches(chunk_size=PIECE_ROWS, maintain_order=True, engine="streaming")
