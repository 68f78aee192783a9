"""Why a row has no answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What to do about a failure."""

    TRANSIENT = "transient"
    """The same request may succeed: try again."""
    PERMANENT = "permanent"
    """The server refuses this request: never again in this run."""
    CONTENT = "content"
    """An answer came and can't be used: asking again gives the same."""


@dataclass
class RowFailure(Exception):
    """One row failed. Stays inside `generate`: it ends as a line of errors.jsonl, never as a traceback."""

    kind: Kind
    reason: str
    """A word for counting, for example `abort`."""
    detail: str
    retry_after_s: float | None = None
    """How long the server asks to be left alone."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


def transient(reason: str, detail: str, retry_after_s: float | None = None) -> RowFailure:
    return RowFailure(Kind.TRANSIENT, reason, detail, retry_after_s)


def permanent(reason: str, detail: str) -> RowFailure:
    return RowFailure(Kind.PERMANENT, reason, detail)


def content(reason: str, detail: str) -> RowFailure:
    return RowFailure(Kind.CONTENT, reason, detail)
