"""What the stages have reported so far, read for the page of the run."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.reports import read_report

REPORTS = {
    "profile": Path("models/profile.json"),
    "reassembly": Path("reports/reassembly.json"),
    "vocab": Path("reports/vocab.json"),
    "extraction": Path("reports/extraction.json"),
    "training": Path("reports/train/summary.json"),
    "training_speed": Path("reports/train/speed.json"),
    "acceptance": Path("reports/acceptance.json"),
    "engine": Path("reports/engine.json"),
    "speed": Path("reports/speed.json"),
}
"""Name in Contents.reports: file, relative to the repository root."""

TABLES = {
    "rows": Path("reports/reassembly/rows.tsv"),
    "kinds": Path("reports/reassembly/kinds.tsv"),
    "lengths": Path("reports/reassembly/lengths.tsv"),
    "validations": Path("reports/train/validations.tsv"),
    "by_position": Path("reports/acceptance/by_position.csv"),
    "by_context": Path("reports/acceptance/by_context.csv"),
    "by_kind": Path("reports/acceptance/by_kind.csv"),
    "by_draft_tokens": Path("reports/acceptance/by_draft_tokens.csv"),
}
"""Name in Contents.tables: file."""

CURVES = Path("reports/train/plots")

Row = Mapping[str, str]


@dataclass(frozen=True)
class Contents:
    """The reports that exist; what is missing has not run yet."""

    reports: Mapping[str, Mapping[str, Any]]
    """By name of REPORTS."""
    tables: Mapping[str, list[Row]]
    """By name of TABLES."""
    curves: Mapping[str, list[Row]]
    """Curves of the training, by metric: columns step and the metric's name."""
    params: Mapping[str, Any]
    """Sections of params.yaml that the run was made with."""
    missing: list[str]
    """Files that are not there."""


def read_contents(root: Path, params: Mapping[str, Any]) -> Contents:
    """Read what is there below a repository's root.

    Raises:
        ArtifactError: a file is damaged.
    """
    files = [*REPORTS.values(), *TABLES.values()]
    return Contents(
        reports={
            name: read_report(root / path, "dvc repro")
            for name, path in REPORTS.items()
            if (root / path).exists()
        },
        tables={name: _table(root / path) for name, path in TABLES.items() if (root / path).exists()},
        curves={path.stem: _table(path) for path in sorted((root / CURVES).glob("*.tsv"))},
        params=params,
        missing=[path.as_posix() for path in files if not (root / path).exists()],
    )


def _table(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
