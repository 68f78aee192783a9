"""Reading the small reports in `reports/` that earlier stages left; eyas.metrics writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.errors import ArtifactError


def read_report(path: Path, hint: str) -> dict[str, Any]:
    """The contents of a report.

    Raises:
        ArtifactError: it is missing or no JSON object; with this hint.
    """
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"can't read a report: {error}", where=str(path), hint=hint) from error
    if not isinstance(report, dict):
        raise ArtifactError("a report must be a JSON object", where=str(path), hint=hint)
    return report


def counted_alike(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of an entry of reports/engine.json or reports/acceptance.json, what may be compared with the other's.

    An engine's counters hold what it accepted behind an answer's end too; where it told draft by draft, that is cut.
    """
    cut: Mapping[str, Any] | None = entry.get("in_answers")
    return entry if cut is None else cut
