"""What a source hands over: raw rows, and rows that it could not read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SourceRow:
    """One row of a source, not yet normalised."""

    orig_id: str
    """The row's id within its dataset; stays the same when other rows come or go."""
    where: str
    """For messages: file and line, or task and number."""
    value: Any
    """A prompt (string) or a conversation (list of messages), exactly as the source holds it."""
    task: str | None = None
    """What kind of prompt it is, where the source says so."""
    tools: Any = None
    """The tools that the target may call, exactly as the source holds them."""


@dataclass(frozen=True)
class Problem:
    """Why a row is not used."""

    reason: str
    """Stable snake_case name, counted in reports."""
    detail: str
    """What was seen."""


@dataclass(frozen=True)
class RejectedRow:
    """A row that is not used, and why."""

    orig_id: str
    where: str
    problem: Problem


@dataclass(frozen=True)
class SourceRows:
    """All rows of a source, in its own order."""

    rows: list[SourceRow]
    rejected: list[RejectedRow]
    unused: dict[str, int] = field(default_factory=dict)
    """Keys that some rows have and nothing reads, with how many rows have them."""
