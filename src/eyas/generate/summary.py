"""summary.json beside a journal's rows: what a run has done, written about once a second and read by `eyas status`.

It says up to which byte of rows.jsonl it counts, so that a reader needs to look only at what follows. Nothing depends
on it: without it, the rows are counted from the start.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.generate.linefacts import FailedAttempt, read_lines
from eyas.generate.tally import Tally
from eyas.target.spec import ThinkFormat

VERSION = 1
NAME = "summary.json"
_KEYS = frozenset(
    (
        "pid",
        "state",
        "message",
        "written_at",
        "seconds",
        "rows",
        "rate",
        "failures",
        "faults",
        "endpoints",
        "run",
        "journal",
    )
)


def write_summary(directory: Path, summary: Mapping[str, Any]) -> None:
    """Replace the summary of a journal directory.

    By rename, so that a reader sees a whole one; without fsync, because the next run and every reader can do without.
    """
    path = directory / NAME
    temporary = path.with_name(f"{NAME}.tmp")  # one name: the journal has one writer
    temporary.write_bytes(json.dumps(summary, ensure_ascii=False, allow_nan=False).encode())
    temporary.replace(path)


def read_summary(directory: Path) -> dict[str, Any] | None:
    """The summary of a journal directory; None if there is none of this version, or it is not whole."""
    try:
        summary = json.loads((directory / NAME).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(summary, dict) or summary.get("version") != VERSION or not summary.keys() >= _KEYS:
        return None
    return summary


@dataclass
class RowCount:
    """What the lines of a journal add up to, up to a byte offset."""

    size: int = 0
    """Bytes of whole lines that are counted."""
    tally: Tally = field(default_factory=Tally)
    new_answers: int = 0
    """Of the lines that the summary does not count."""
    failing: dict[str, FailedAttempt] = field(default_factory=dict)
    """Keys that those lines leave without an answer."""
    damaged: int = 0

    @property
    def failures(self) -> Counter[FailedAttempt]:
        return Counter(self.failing.values())


def count_rows(directory: Path, summary: Mapping[str, Any] | None, think: ThinkFormat | None) -> RowCount:
    """Count the answers of a journal directory, starting from what its summary counts."""
    return count_further(directory / "rows.jsonl", _counted_by(summary), think)


def count_further(rows: Path, count: RowCount, think: ThinkFormat | None) -> RowCount:
    """Count the lines of a file that `count` has not, into `count`. A file that shrank is counted anew."""
    try:
        size = rows.stat().st_size
    except FileNotFoundError:
        return count
    if size < count.size:
        count = RowCount()
    for line in read_lines(rows, count.size, think):
        count.size = line.offset + line.size
        if line.key is None or line.outcome is None:
            count.damaged += 1
        elif isinstance(line.outcome, FailedAttempt):
            count.failing[line.key] = line.outcome
        else:
            count.tally.add(line.outcome)
            count.new_answers += 1
            count.failing.pop(line.key, None)
    return count


def _counted_by(summary: Mapping[str, Any] | None) -> RowCount:
    if summary is None:
        return RowCount()
    journal = summary["journal"]
    return RowCount(journal["bytes"], Tally.from_json(journal["tally"]))
