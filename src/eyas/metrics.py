"""Writing the small reports that live in git: stable key order, rounded numbers, null for what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.files import write_json

SIGNIFICANT_DIGITS = 6


def write_report(path: Path, values: Mapping[str, Any]) -> None:
    """Write a report as JSON. Numbers keep six significant digits, so that last-bit noise makes no diff.

    Raises:
        ValueError: a value is NaN or infinite; a missing number is None.
    """
    write_json(path, _rounded(values))


def share(part: float, whole: float) -> float | None:
    """part / whole, or None (null in a report) where nothing was counted."""
    return part / whole if whole else None


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return value
