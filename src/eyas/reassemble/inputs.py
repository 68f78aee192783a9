"""The validated tables of all datasets, exactly those that params name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl

from eyas import paths
from eyas.errors import ArtifactError
from eyas.schema import Validated
from eyas.tables import TEMPLATE_KWARGS, read_note, read_table


@dataclass(frozen=True)
class ValidatedTable:
    """The valid responses of one dataset."""

    dataset: str
    rows: pl.DataFrame
    """Schema Validated."""
    template_kwargs: dict[str, Any]
    """Template arguments that the server rendered the prompts with."""


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


def read_validated(dataset: str) -> ValidatedTable:
    """Read one table.

    Raises:
        ArtifactError: it breaks its schema, or does not say how its prompts were rendered.
    """
    path = paths.validated(dataset)
    note = read_note(path, TEMPLATE_KWARGS)
    if note is None:
        raise ArtifactError(
            f"the table has no note `{TEMPLATE_KWARGS}`",
            where=str(path),
            hint=f"dvc repro -f validate@{dataset}",
        )
    return ValidatedTable(dataset, read_table(path, Validated), json.loads(note))
