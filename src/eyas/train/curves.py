"""The curves of a run in DVCLive's layout: one TSV per metric, `plots/metrics/<name>.tsv` with columns step and name.

DVCLive goes on behind its own last row when a run is resumed, which is later than the saved state; so rows behind that
state are removed first (treeverse/dvclive#129 and others: duplicated steps).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dvclive.live import Live

from eyas.files import write_bytes

METRICS = Path("plots", "metrics")
SUMMARY = "metrics.json"


class Curves:
    """Writes rows; only the first process has one."""

    def __init__(self, directory: Path, step: int) -> None:
        """Go on behind `step` optimiser steps; 0: from the start."""
        if step:
            rewind(directory, step)
        self._live = Live(str(directory), resume=bool(step), report=None, save_dvc_exp=False, dvcyaml=None)
        self._release()

    def row(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row to each named curve; `step` is the number of optimiser steps done."""
        self._live.step = step
        for name, value in values.items():
            self._live.log_metric(name, value)

    def close(self) -> None:
        """Finish; DVCLive then writes its own summary."""
        self._live.end()  # type: ignore[no-untyped-call]
        self._release()

    def _release(self) -> None:
        """Close the repository's files that DVCLive opens for the revision and leaves open; it opens them again at need."""
        if (repo := self._live._dvc_repo) is not None:  # noqa: SLF001 - DVCLive has no way to do it
            repo.close()


def rewind(directory: Path, step: int) -> None:
    """Remove all rows behind `step`, a row that was cut off, and DVCLive's summary, which may be cut off too."""
    (directory / SUMMARY).unlink(missing_ok=True)
    for path in sorted((directory / METRICS).rglob("*.tsv")):
        head, *rows = path.read_bytes().split(b"\n")[:-1] or [b""]
        kept = [row for row in rows if int(row.split(b"\t")[0]) <= step]
        if not kept:
            path.unlink()
        else:
            write_bytes(path, b"\n".join([head, *kept]) + b"\n")
