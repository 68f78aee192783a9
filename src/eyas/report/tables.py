"""Tables for `dvc plots`: engine beside simulation, and speed-up."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eyas.files import write_bytes
from eyas.report.contents import Contents
from eyas.reports import counted_alike


def write_tables(directory: Path, contents: Contents) -> None:
    """Write acceptance.tsv (dataset, side, draft_position, acceptance) and speedup.tsv (dataset, concurrency, speedup).

    A number that is not known yet has no row.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _write(
        directory / "acceptance.tsv",
        ("dataset", "side", "draft_position", "acceptance"),
        [
            *_acceptance("simulated", contents.reports.get("acceptance")),
            *_acceptance("engine", contents.reports.get("engine")),
        ],
    )
    _write(
        directory / "speedup.tsv",
        ("dataset", "concurrency", "speedup"),
        list(_speedups(contents.reports.get("speed"))),
    )


def _acceptance(side: str, report: Any) -> Iterable[Sequence[Any]]:
    for dataset, entry in (report or {"datasets": {}})["datasets"].items():
        for key, rate in counted_alike(entry)["acceptance"].items():
            if key.startswith("at_") and rate is not None:
                yield dataset, side, int(key.removeprefix("at_")), rate


def _speedups(report: Any) -> Iterable[Sequence[Any]]:
    levels = (report or {"by_concurrency": {}})["by_concurrency"]
    for concurrency, level in sorted(levels.items(), key=lambda item: int(item[0])):
        for dataset, entry in [*level["datasets"].items(), ("all", level)]:
            if entry["speedup"] is not None:
                yield dataset, int(concurrency), entry["speedup"]


def _write(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())
